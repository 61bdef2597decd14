"""What the public door answers beside MCP: whether the node lives, and whether its servers had their first chance."""

from collections.abc import Callable
from typing import Any


def health_app(settled: Callable[[], bool]) -> Callable[..., Any]:
    """An ASGI application for /healthz and /readyz."""

    async def app(scope: dict[str, Any], receive: Callable[..., Any], send: Callable[..., Any]) -> None:
        if scope["type"] != "http":
            return
        path, method = scope["path"], scope["method"]
        if path not in ("/healthz", "/readyz"):
            status, body = 404, b'{"error":"not_found","message":"MCP is at /mcp","details":{}}'
        elif method not in ("GET", "HEAD"):
            status, body = 405, b'{"error":"method_not_allowed","message":"use GET","details":{}}'
        elif path == "/readyz" and not settled():
            status, body = 503, b'{"status":"starting"}'
        else:
            status, body = 200, b'{"status":"ok"}'
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": b"" if method == "HEAD" else body})

    return app
