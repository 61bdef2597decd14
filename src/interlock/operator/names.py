"""The registry of names at the operator endpoint."""

from typing import Final, get_args

from msgspec import Raw
from starlette.responses import Response

from interlock.names.api import (
    ActOnName,
    CheckName,
    NameCheck,
    NameDetails,
    NameOutcome,
    NamePrefixes,
    Names,
    NameVerification,
    PinName,
    PinnedTools,
    TrustSource,
    VerifyName,
)
from interlock.names.protocol.entry import Status
from interlock.names.protocol.publication import MEDIA_TYPES, Form
from interlock.operator.endpoint import Endpoint, OperatorExchange
from interlock.operator.error_cases import INVALID_BODY, NAMES_REFUSED, NOT_FOUND
from interlock.operator.parameters import ChoiceParameter, IntegerParameter, TextParameter

PUBLIC: Final = ChoiceParameter(name="public", description="yes: only public surfaces.", choices=("yes",))
STATUS: Final = ChoiceParameter(
    name="status", description="Only entries of this status.", choices=tuple(one.value for one in Status)
)
SEARCH: Final = TextParameter(
    name="search", description="Only entries with this in their name, controller or reference."
)
LIMIT: Final = IntegerParameter(
    name="limit", description="At most so many.", default=1_000_000, minimum=1, maximum=1_000_000
)
LOG: Final = ChoiceParameter(name="log", description="yes: with every step.", choices=("yes",))
FORM: Final = ChoiceParameter(name="form", description="The form.", choices=get_args(Form), default="xml")


async def list_names(exchange: OperatorExchange[None]) -> Names:
    request = exchange.request
    return await exchange.operations.names.list_all(
        only_public=PUBLIC.read(request) == "yes",
        status=STATUS.read(request),
        search=SEARCH.read(request) or "",
        limit=LIMIT.read(request),
    )


async def list_prefixes(exchange: OperatorExchange[None]) -> NamePrefixes:
    return await exchange.operations.names.prefixes()


async def publish(exchange: OperatorExchange[None]) -> Response:
    form: Form = FORM.read(exchange.request)  # type: ignore[assignment]  # one of its choices
    return Response(await exchange.operations.names.publish(form), media_type=MEDIA_TYPES[form])


async def show_name(exchange: OperatorExchange[None]) -> NameDetails:
    with_log = LOG.read(exchange.request) == "yes"
    return await exchange.operations.names.show(exchange.path("name"), with_log=with_log)


async def check_name(exchange: OperatorExchange[CheckName]) -> NameCheck:
    return await exchange.operations.names.check(exchange.body.name, exchange.body.proposal)


async def verify_name(exchange: OperatorExchange[VerifyName]) -> NameVerification:
    return await exchange.operations.names.verify(exchange.body.name, exchange.body.definition)


async def act(exchange: OperatorExchange[ActOnName]) -> NameOutcome:
    body = exchange.body
    raw = body.body if isinstance(body.body, Raw) else Raw(b"{}")
    return await exchange.operations.names.act(exchange.principal, body.action, body.subject, raw, body.override)


async def trust(exchange: OperatorExchange[TrustSource]) -> Names:
    body = exchange.body
    return await exchange.operations.names.trust(exchange.principal, body.source, is_trusted=body.trusted)


async def repin(exchange: OperatorExchange[PinName]) -> PinnedTools:
    return await exchange.operations.names.surfaces.repin(exchange.body.name, is_removed=exchange.body.remove)


ENDPOINTS = (
    Endpoint(
        method="GET",
        path="/admin/names",
        handler=list_names,
        summary="The registry of tool surface names.",
        query=(PUBLIC, STATUS, SEARCH, LIMIT),
    ),
    Endpoint(
        method="GET",
        path="/admin/names/prefixes",
        handler=list_prefixes,
        summary="The vendor prefixes, and who holds each by first use.",
    ),
    Endpoint(
        method="GET",
        path="/admin/names/publication",
        handler=publish,
        summary="The registry as it is published.",
        query=(FORM,),
        files=tuple(MEDIA_TYPES.values()),
    ),
    Endpoint(
        method="GET",
        path="/admin/names/entries/{name}",
        handler=show_name,
        summary="One entry in full, with its requests.",
        query=(LOG,),
        errors=(NOT_FOUND,),
    ),
    Endpoint(
        method="POST",
        path="/admin/names/check",
        handler=check_name,
        summary="Run the machine checks of a request, and file nothing.",
        role="admin",
        errors=(INVALID_BODY,),
    ),
    Endpoint(
        method="POST",
        path="/admin/names/verify",
        handler=verify_name,
        summary="Compare a tool's definition with the registered specification of its name.",
        role="admin",
        errors=(INVALID_BODY,),
    ),
    Endpoint(
        method="POST",
        path="/admin/names/actions",
        handler=act,
        summary="Ask for a name, or act on one: as its controller, or in its place and on record.",
        role="admin",
        errors=(NOT_FOUND, NAMES_REFUSED),
    ),
    Endpoint(
        method="POST",
        path="/admin/names/trust",
        handler=trust,
        summary="Say whether what an imported registry says is enforced.",
        role="admin",
        errors=(NOT_FOUND, NAMES_REFUSED),
    ),
    Endpoint(
        method="POST",
        path="/admin/names/pins",
        handler=repin,
        summary="Hold the tools of a name to what they are now, or no longer.",
        role="admin",
        errors=(NOT_FOUND,),
    ),
)
