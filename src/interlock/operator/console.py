"""The console at the operator endpoint: its pages and files, which contain no data of the node."""

from typing import Final

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from interlock.operator.api import GET_CONSOLE_FILE, GET_OPENAPI
from interlock.operator.endpoint import OperatorExchange, RequestHandlers, wants_page
from interlock.operator.operation import Operation
from interlock.operator.pages.frame import CLASSIFICATION, GRANTS, NAMES, PAGES, PREFIX, assets, console_page

_PAGES = {page.path: page for page in (*PAGES, GRANTS, NAMES, CLASSIFICATION)}
_INBOX = "/approvals"  # where programs get the data itself


def is_console(request: Request) -> bool:
    """Return whether a request is for a page or file that contains no data and is therefore the same for everybody."""
    path = request.url.path
    if path == _INBOX:
        return request.method == "GET" and wants_page(request)
    return path in _PAGES or path.startswith(PREFIX)


_PATHS = (
    "/",
    "/activity",
    "/tools",
    "/servers",
    "/agents",
    "/rooms",
    "/names",
    "/access",
    "/grants",
    "/classification",
)
CONSOLE_PAGES: Final[tuple[Operation[None], ...]] = tuple(
    Operation(
        "console",
        f"GET {path}",
        f"The page {_PAGES[path].title} of the console, without data.",
        name=f"show_{_PAGES[path].script.removesuffix('.js')}",
        role="anyone",
        takes_any_query=True,
        is_page=True,
    )
    for path in _PATHS
)


async def show_console_page(exchange: OperatorExchange[None]) -> Response:
    return console_page(_PAGES[exchange.operation.path])


async def get_console_file(exchange: OperatorExchange[None]) -> Response:
    asset = assets().get(exchange.request.path_params["file"])
    if asset is None:
        raise HTTPException(404)
    headers = {"Cache-Control": "no-cache", "ETag": asset.etag, "Content-Security-Policy": "default-src 'none'"}
    etags = exchange.request.headers.get("if-none-match", "")
    if asset.etag in (etag.strip().removeprefix("W/") for etag in etags.split(",")):
        return Response(status_code=304, headers=headers)
    return Response(asset.body, media_type=asset.media_type, headers=headers)


async def get_openapi(_: OperatorExchange[None]) -> Response:
    from interlock.operator.openapi import encoded_document

    return Response(encoded_document(), media_type="application/json")


REQUEST_HANDLERS: RequestHandlers = {
    **dict.fromkeys(CONSOLE_PAGES, show_console_page),
    GET_CONSOLE_FILE: get_console_file,
    GET_OPENAPI: get_openapi,
}
