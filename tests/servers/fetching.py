"""An MCP server on stdio with one tool, `get`, which asks for a URL as Python programs do, with and without proxies."""

import asyncio
import http.client
import json
import ssl
import sys
import urllib.request
from typing import Any
from urllib.parse import urlsplit

WAIT_S = 5.0


def by_urllib(url: str) -> str:
    """Follows HTTPS_PROXY."""
    with urllib.request.urlopen(url, timeout=WAIT_S) as response:
        return response.read().decode()


def by_httpx(url: str) -> str:
    """Follows it too."""
    import httpx2

    return str(httpx2.get(url, timeout=WAIT_S).text)


def by_http_client(url: str) -> str:
    """Knows no proxy."""
    where = urlsplit(url)
    connect = http.client.HTTPSConnection if where.scheme == "https" else http.client.HTTPConnection
    connection = connect(where.hostname or "", where.port, timeout=WAIT_S)
    connection.request("GET", where.path or "/")
    return connection.getresponse().read().decode()


def by_asyncio(url: str) -> str:
    """Knows none either, as aiohttp unless it is told to."""

    async def ask() -> str:
        where = urlsplit(url)
        secure = ssl.create_default_context() if where.scheme == "https" else None
        reader, writer = await asyncio.open_connection(where.hostname, where.port, ssl=secure)
        writer.write(f"GET / HTTP/1.1\r\nHost: {where.hostname}\r\nConnection: close\r\n\r\n".encode())
        text = (await asyncio.wait_for(reader.read(), WAIT_S)).decode()
        writer.close()
        return text.rpartition("\r\n\r\n")[2]

    return asyncio.run(ask())


WAYS = {"urllib": by_urllib, "httpx": by_httpx, "http.client": by_http_client, "asyncio": by_asyncio}


def call(arguments: dict[str, str]) -> dict[str, Any]:
    try:
        return {"content": [{"type": "text", "text": WAYS[arguments["how"]](arguments["url"])}]}
    except Exception as failed:
        return {"isError": True, "content": [{"type": "text", "text": f"{type(failed).__name__}: {failed}"}]}


def answer(method: str, params: dict[str, Any]) -> dict[str, Any] | None:
    if method == "initialize":
        about = {"name": "fetching", "version": "1"}
        return {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": about}
    if method == "tools/list":
        return {"tools": [{"name": "get", "inputSchema": {"type": "object"}}]}
    if method == "tools/call":
        return call(params["arguments"])
    return {} if method == "ping" else None


def main() -> None:
    paired: list[dict[str, Any]] = []
    for line in sys.stdin:
        message = json.loads(line)
        if "id" not in message:
            continue
        if message.get("params", {}).get("arguments", {}).get("how") == "paired":  # two are worked on together
            message["params"]["arguments"]["how"] = "urllib"
            paired.append(message)
            if len(paired) < 2:
                continue
        for one in paired or [message]:
            one["result"] = answer(one["method"], one.get("params", {}))
        for one in paired or [message]:
            result = one["result"]
            said = {"error": {"code": -32601, "message": "Method not found"}} if result is None else {"result": result}
            print(json.dumps({"jsonrpc": "2.0", "id": one["id"], **said}), flush=True)
        paired.clear()


main()
