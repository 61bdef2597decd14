"""Links at the operator endpoint, and the consent of a person to a token towards a server."""

from starlette.exceptions import HTTPException
from starlette.responses import Response

from interlock.credentials.api import AUTHORIZE_LINK, TAKE_OAUTH_RETURN, Consent
from interlock.links.api import (
    AFTER,
    GET_FRAMES,
    GET_LINK,
    GET_LINK_LOG,
    LINES,
    LIST_LINKS,
    RELEASE_LINK,
    RESTART_LINK,
    Frames,
    Link,
    LinkLog,
    Links,
    ReleasedSegment,
    RestartedLink,
)
from interlock.operator.endpoint import OperatorExchange, RequestHandlers
from interlock.operator.oauth_callback import FOREIGN, callback_page, is_foreign


async def list_links(exchange: OperatorExchange[None]) -> Links:
    return exchange.operations.links.list_all()


async def get_link(exchange: OperatorExchange[None]) -> Link:
    return exchange.operations.links.get(exchange.path("segment"))


async def get_link_log(exchange: OperatorExchange[None]) -> LinkLog:
    return exchange.operations.links.logs(exchange.path("segment"), exchange.query(LINES))


async def get_frames(exchange: OperatorExchange[None]) -> Frames:
    return exchange.operations.links.frames(exchange.path("segment"), exchange.query(AFTER))


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


REQUEST_HANDLERS: RequestHandlers = {
    LIST_LINKS: list_links,
    GET_LINK: get_link,
    GET_FRAMES: get_frames,
    GET_LINK_LOG: get_link_log,
    RESTART_LINK: restart_link,
    RELEASE_LINK: release_link,
    AUTHORIZE_LINK: authorize_link,
    TAKE_OAUTH_RETURN: take_oauth_return,
}
