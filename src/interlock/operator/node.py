"""The node as a whole at the operator endpoint: its status, its configuration, the audit log, and this API itself."""

from msgspec import Raw
from starlette.responses import Response

from interlock.core.metrics import MEDIA_TYPE
from interlock.operator.api import (
    GET_CONFIGURATION,
    GET_METRICS,
    GET_OPENAPI,
    GET_STATUS,
    EffectiveConfiguration,
    Status,
)
from interlock.operator.endpoint import OperatorExchange, RequestHandlers
from interlock.store.api import AFTER, LIMIT, READ_AUDIT, AuditPage

SEQUENCE_MAX = 2**63 - 1  # what a store can count to


async def get_status(exchange: OperatorExchange[None]) -> Status:
    return exchange.operations.node.status()


async def get_configuration(exchange: OperatorExchange[None]) -> EffectiveConfiguration:
    return exchange.operations.node.configuration()


async def read_audit(exchange: OperatorExchange[None]) -> AuditPage[Raw]:
    return await exchange.operations.audit.page(exchange.query(AFTER), exchange.query(LIMIT))


async def get_metrics(exchange: OperatorExchange[None]) -> Response:
    return Response(exchange.operations.metrics.text(), media_type=MEDIA_TYPE)


async def get_openapi(_: OperatorExchange[None]) -> Response:
    from interlock.operator.openapi import encoded_document

    return Response(encoded_document(), media_type="application/json")


REQUEST_HANDLERS: RequestHandlers = {
    GET_STATUS: get_status,
    GET_METRICS: get_metrics,
    GET_CONFIGURATION: get_configuration,
    READ_AUDIT: read_audit,
    GET_OPENAPI: get_openapi,
}
