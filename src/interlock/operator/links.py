"""Links at the operator endpoint, and the consent of a person to a token towards a server."""

from starlette.exceptions import HTTPException
from starlette.responses import Response

from interlock.credentials.api import Consent
from interlock.credentials.protocol.client import CALLBACK_PATH
from interlock.links.api import Frames, Link, LinkLog, Links, ReleasedSegment, RestartedLink
from interlock.operator.endpoint import Endpoint, OperatorExchange
from interlock.operator.error_cases import AUTH_FAILED, NO_OAUTH, NOT_FOUND
from interlock.operator.oauth_callback import FOREIGN, callback_page, is_foreign
from interlock.operator.parameters import IntegerParameter

LINES = IntegerParameter(
    name="lines", description="How many of the newest lines.", default=200, minimum=1, maximum=10_000
)


AFTER = IntegerParameter(
    name="after", description="The number of the last message that is known.", default=0, minimum=0, maximum=2**53
)


async def list_links(exchange: OperatorExchange[None]) -> Links:
    return exchange.operations.links.list_all()


async def get_link(exchange: OperatorExchange[None]) -> Link:
    return exchange.operations.links.get(exchange.path("segment"))


async def get_link_log(exchange: OperatorExchange[None]) -> LinkLog:
    return exchange.operations.links.logs(exchange.path("segment"), LINES.read(exchange.request))


async def get_frames(exchange: OperatorExchange[None]) -> Frames:
    return exchange.operations.links.frames(exchange.path("segment"), AFTER.read(exchange.request))


async def restart_link(exchange: OperatorExchange[None]) -> RestartedLink:
    return await exchange.operations.links.restart(exchange.path("segment"))


async def release_link(exchange: OperatorExchange[None]) -> ReleasedSegment:
    return await exchange.operations.links.release(exchange.path("segment"))


async def authorize_link(exchange: OperatorExchange[None]) -> Consent:
    return await exchange.operations.consents.authorize(exchange.path("segment"))


async def take_oauth_return(exchange: OperatorExchange[None]) -> Response:
    request = exchange.request
    if request.method == "HEAD":  # a look must not use the state up
        raise HTTPException(405, headers={"Allow": "GET"})
    if is_foreign(request.headers):
        return callback_page(FOREIGN)
    return callback_page(await exchange.operations.consents.take_return(request.query_params.multi_items()))


ENDPOINTS = (
    Endpoint(method="GET", path="/admin/links", handler=list_links, summary="Every link, and how it stands."),
    Endpoint(method="GET", path="/admin/links/{segment}", handler=get_link, summary="One link.", errors=(NOT_FOUND,)),
    Endpoint(
        method="GET",
        path="/admin/links/{segment}/frames",
        handler=get_frames,
        summary="What the node and a device said to each other, from the first time this is asked.",
        role="admin",
        query=(AFTER,),
        errors=(NOT_FOUND,),
    ),
    Endpoint(
        method="GET",
        path="/admin/links/{segment}/logs",
        handler=get_link_log,
        summary="What the program of a link wrote to stderr.",
        query=(LINES,),
        errors=(NOT_FOUND,),
    ),
    Endpoint(
        method="POST",
        path="/admin/links/{segment}/restart",
        handler=restart_link,
        summary="End a process or connection and start it afresh. Answers when the old one is gone.",
        role="admin",
        errors=(NOT_FOUND,),
    ),
    Endpoint(
        method="POST",
        path="/admin/links/{segment}/release",
        handler=release_link,
        summary="Forget who owns a segment, and what is kept for a subserver that is lost.",
        role="admin",
        errors=(NOT_FOUND,),
    ),
    Endpoint(
        method="POST",
        path="/admin/links/{segment}/authorize",
        handler=authorize_link,
        summary="The page on which a person agrees to a token for a server.",
        role="admin",
        errors=(NOT_FOUND, NO_OAUTH, AUTH_FAILED),
    ),
    Endpoint(
        method="GET",
        path=CALLBACK_PATH,
        handler=take_oauth_return,
        summary="Where an authorization server sends a person back to. The state is the only credential.",
        role="anyone",
        takes_any_query=True,
        is_page=True,
    ),
)
