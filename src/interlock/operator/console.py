"""The console at the operator endpoint: pages and files, which hold nothing of the node, and what keeps them live."""

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from interlock.operator.api import NodeEvent
from interlock.operator.endpoint import Endpoint, Handler, OperatorExchange
from interlock.operator.error_cases import UNKNOWN_FILE
from interlock.operator.event_stream import event_stream
from interlock.operator.pages.assets import PREFIX, assets
from interlock.operator.pages.frame import CLASSIFICATION, GRANTS, NAMES, PAGES, console_page
from interlock.operator.requests import wants_page
from interlock.store.api import AuditRecord

_PAGES = {one.path: one for one in (*PAGES, GRANTS, NAMES, CLASSIFICATION)}
_INBOX = "/approvals"  # where programs get the data itself


def is_console(request: Request) -> bool:
    """Whether it is the same for everyone: the data comes from elsewhere, to those who may see it."""
    path = request.url.path
    if path == _INBOX:
        return request.method == "GET" and wants_page(request)
    return path in _PAGES or path.startswith(PREFIX)


async def show_overview(_: OperatorExchange[None]) -> Response:
    return console_page(_PAGES["/"])


async def show_activity(_: OperatorExchange[None]) -> Response:
    return console_page(_PAGES["/activity"])


async def show_tools(_: OperatorExchange[None]) -> Response:
    return console_page(_PAGES["/tools"])


async def show_servers(_: OperatorExchange[None]) -> Response:
    return console_page(_PAGES["/servers"])


async def show_agents(_: OperatorExchange[None]) -> Response:
    return console_page(_PAGES["/agents"])


async def show_names(_: OperatorExchange[None]) -> Response:
    return console_page(NAMES)


async def show_grants(_: OperatorExchange[None]) -> Response:
    return console_page(GRANTS)


async def show_classification(_: OperatorExchange[None]) -> Response:
    return console_page(CLASSIFICATION)


async def show_rooms(_: OperatorExchange[None]) -> Response:
    return console_page(_PAGES["/rooms"])


async def show_access(_: OperatorExchange[None]) -> Response:
    return console_page(_PAGES["/access"])


async def get_console_file(exchange: OperatorExchange[None]) -> Response:
    asset = assets().get(exchange.path("file"))
    if asset is None:
        raise HTTPException(404)
    headers = {"Cache-Control": "no-cache", "ETag": asset.etag, "Content-Security-Policy": "default-src 'none'"}
    known = exchange.request.headers.get("if-none-match", "")
    if asset.etag in (one.strip().removeprefix("W/") for one in known.split(",")):
        return Response(status_code=304, headers=headers)
    return Response(asset.body, media_type=asset.media_type, headers=headers)


async def follow_node(exchange: OperatorExchange[None]) -> Response:
    return event_stream(exchange, exchange.operations.live.events())


def _page_endpoint(path: str, handler: Handler) -> Endpoint:
    return Endpoint(
        method="GET",
        path=path,
        handler=handler,
        summary=f"The page {_PAGES[path].title} of the console, without data.",
        role="anyone",
        takes_any_query=True,
        is_page=True,
    )


ENDPOINTS = (
    _page_endpoint("/", show_overview),
    _page_endpoint("/activity", show_activity),
    _page_endpoint("/tools", show_tools),
    _page_endpoint("/servers", show_servers),
    _page_endpoint("/agents", show_agents),
    _page_endpoint("/rooms", show_rooms),
    _page_endpoint("/names", show_names),
    _page_endpoint("/access", show_access),
    _page_endpoint("/grants", show_grants),
    _page_endpoint("/classification", show_classification),
    Endpoint(
        method="GET",
        path=f"{PREFIX}{{file}}",
        handler=get_console_file,
        summary="A script, the style or the icon of the console.",
        role="anyone",
        takes_any_query=True,
        files=("text/css", "text/javascript", "image/svg+xml"),
        errors=(UNKNOWN_FILE,),
    ),
    Endpoint(
        method="GET",
        path="/admin/events",
        handler=follow_node,
        summary="The status now, then every change of it, of approvals and of the audit log, and signs of life.",
        events=NodeEvent[AuditRecord],
    ),
)
