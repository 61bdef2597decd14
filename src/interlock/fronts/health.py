"""What the public endpoint answers beside MCP: whether the node lives, and whether its servers had their first chance.

Also the documents that anybody may read: where this node takes access tokens from (RFC 9728).
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

App = Callable[..., Any]
Header = tuple[bytes, bytes]

_JSON: Final[Header] = (b"content-type", b"application/json")
_OPEN: Final[list[Header]] = [  # web pages look for these documents before they have any credential
    (b"access-control-allow-origin", b"*"),
    (b"access-control-allow-methods", b"GET"),
    (b"access-control-allow-headers", b"*"),
    (b"cache-control", b"max-age=300"),
]


def public_app(settled: Callable[[], bool], documents: Mapping[str, bytes], apps: Mapping[str, App]) -> App:
    """Return an ASGI application for /healthz, /readyz and the documents, by path.

    `apps` serve the other paths: each its own path, or all that begin with it if it ends in a slash.
    """
    by_path = {path: app for path, app in apps.items() if not path.endswith("/")}
    by_start = tuple((path, app) for path, app in apps.items() if path.endswith("/"))

    async def app(scope: dict[str, Any], receive: Callable[..., Any], send: Callable[..., Any]) -> None:
        other = by_path.get(scope["path"]) or next(
            (app for start, app in by_start if scope["path"].startswith(start)), None
        )
        if other is not None:
            await other(scope, receive, send)
            return
        path, method = scope["path"], scope["method"]
        document = documents.get(path)
        headers: list[Header] = [] if document is None else list(_OPEN)
        if document is not None and method == "OPTIONS":
            status, body = 204, b""
        elif document is None and path not in ("/healthz", "/readyz"):
            status, body = 404, b'{"error":"not_found","message":"MCP is at /mcp","details":{}}'
        elif method not in ("GET", "HEAD"):
            status, body = 405, b'{"error":"method_not_allowed","message":"use GET","details":{}}'
            headers.append((b"allow", b"GET, HEAD"))
        elif document is not None:
            status, body = 200, document
        elif path == "/readyz" and not settled():
            status, body = 503, b'{"status":"starting","program":"interlock"}'
        else:
            status, body = 200, b'{"status":"ok","program":"interlock"}'
        if body:
            headers += [_JSON, (b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": b"" if method == "HEAD" else body})

    return app
