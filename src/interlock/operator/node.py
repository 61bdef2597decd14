"""The node as a whole at the operator endpoint: its status, its configuration, the audit log, and this API itself."""

from typing import Any

from msgspec import Raw
from starlette.responses import Response

from interlock.core.metrics import MEDIA_TYPE
from interlock.operator.api import EffectiveConfiguration, Status
from interlock.operator.endpoint import Endpoint, OperatorExchange
from interlock.operator.parameters import IntegerParameter
from interlock.store.api import AuditPage, AuditRecord

SEQUENCE_MAX = 2**63 - 1  # what a store can count to

AFTER = IntegerParameter(
    name="after", description="Records above this sequence.", default=0, minimum=0, maximum=SEQUENCE_MAX
)
LIMIT = IntegerParameter(
    name="limit",
    description="At most so many; a reader goes on with after.",
    default=100,
    minimum=1,
    maximum=1_000,
)


async def get_status(exchange: OperatorExchange[None]) -> Status:
    return exchange.operations.node.status()


async def get_configuration(exchange: OperatorExchange[None]) -> EffectiveConfiguration:
    return exchange.operations.node.configuration()


async def read_audit(exchange: OperatorExchange[None]) -> AuditPage[Raw]:
    return await exchange.operations.audit.page(AFTER.read(exchange.request), LIMIT.read(exchange.request))


async def get_metrics(exchange: OperatorExchange[None]) -> Response:
    return Response(exchange.operations.metrics.text(), media_type=MEDIA_TYPE)


async def get_openapi(_: OperatorExchange[None]) -> Response:
    from interlock.operator.openapi import encoded_document

    return Response(encoded_document(), media_type="application/json")


ENDPOINTS = (
    Endpoint(
        method="GET",
        path="/admin/status",
        handler=get_status,
        summary="The node as a whole, and how every link stands.",
    ),
    Endpoint(
        method="GET",
        path="/metrics",
        handler=get_metrics,
        summary="The metrics of rooms and of the registry of names, in the text format of monitoring programs.",
        files=("text/plain",),
    ),
    Endpoint(
        method="GET",
        path="/admin/config",
        handler=get_configuration,
        summary="The configuration in effect: every key with its value, and no secret.",
    ),
    Endpoint(
        method="GET",
        path="/admin/audit",
        handler=read_audit,
        summary="A page of the audit log.",
        query=(AFTER, LIMIT),
        answer=AuditPage[AuditRecord],
    ),
    Endpoint(
        method="GET",
        path="/admin/openapi.json",
        handler=get_openapi,
        summary="This API as an OpenAPI 3.1 document.",
        answer=dict[str, Any],
    ),
)
