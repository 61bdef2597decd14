"""The registry of names at the operator endpoint."""

from msgspec import Raw
from starlette.responses import Response

from interlock.names.api import (
    ACT,
    CHECK_NAME,
    FORM,
    LIMIT,
    LIST_NAMES,
    LIST_PREFIXES,
    LOG,
    PUBLIC,
    PUBLISH,
    REPIN,
    SEARCH,
    SHOW_NAME,
    STATUS,
    TRUST,
    VERIFY_NAME,
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
from interlock.names.protocol.publication import MEDIA_TYPES, Form
from interlock.operator.endpoint import OperatorExchange, RequestHandlers


async def list_names(exchange: OperatorExchange[None]) -> Names:
    return await exchange.operations.names.list_all(
        only_public=exchange.query(PUBLIC),
        status=exchange.query(STATUS),
        search=exchange.query(SEARCH) or "",
        limit=exchange.query(LIMIT),
    )


async def list_prefixes(exchange: OperatorExchange[None]) -> NamePrefixes:
    return await exchange.operations.names.prefixes()


async def publish(exchange: OperatorExchange[None]) -> Response:
    form: Form = exchange.query(FORM)
    return Response(await exchange.operations.names.publish(form), media_type=MEDIA_TYPES[form])


async def show_name(exchange: OperatorExchange[None]) -> NameDetails:
    with_log = exchange.query(LOG)
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


REQUEST_HANDLERS: RequestHandlers = {
    LIST_NAMES: list_names,
    LIST_PREFIXES: list_prefixes,
    PUBLISH: publish,
    SHOW_NAME: show_name,
    CHECK_NAME: check_name,
    VERIFY_NAME: verify_name,
    ACT: act,
    TRUST: trust,
    REPIN: repin,
}
