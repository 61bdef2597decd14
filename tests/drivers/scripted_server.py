"""An MCP server over HTTP that keeps every request, and refuses or sends elsewhere as it is told."""

import asyncio
import contextlib
import json
import ssl
from typing import Any

OBJECT = {"type": "object"}


class Scripted:
    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self._tls = tls
        self.requests: list[tuple[str, dict[str, str], Any]] = []  # path, headers, message
        self.bytes = 0  # that arrived, of whatever kind
        self.refusal: tuple[int, dict[str, str]] | None = None  # status and headers for a tools/call
        self.moved: dict[str, str] = {}  # path -> Location

    async def __aenter__(self) -> "Scripted":
        self._tasks: set[asyncio.Task[None]] = set()
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self._tls)
        self.port = self._server.sockets[0].getsockname()[1]
        self.url = f"http{'s' if self._tls else ''}://127.0.0.1:{self.port}/mcp"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def calls(self) -> int:
        return sum(message.get("method") == "tools/call" for _, _, message in self.requests)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError):
                while await self._answer(reader, writer):
                    pass
        finally:
            writer.close()
            self._tasks.discard(task)

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        first = await reader.readline()
        if not first:
            return False
        headers = {}
        while (line := (await reader.readline()).decode().strip()) != "":
            name, _, value = line.partition(":")
            headers[name.lower()] = value.strip()
        body = await reader.readexactly(int(headers.get("content-length", "0")))
        self.bytes += len(first) + len(body)
        path = first.split()[1].decode()
        message = json.loads(body) if body else {}
        self.requests.append((path, headers, message))
        status, more, answer = self._said(path, message)
        data = b"" if answer is None else json.dumps({"jsonrpc": "2.0", "id": message.get("id"), **answer}).encode()
        head = [f"HTTP/1.1 {status} X", f"content-length: {len(data)}", *(f"{key}: {more[key]}" for key in more)]
        head += ["content-type: application/json"] if data else []
        writer.write("\r\n".join([*head, "", ""]).encode() + data)
        await writer.drain()
        return True

    def _said(self, path: str, message: dict[str, Any]) -> tuple[int, dict[str, str], Any]:
        if path in self.moved:
            return 307, {"location": self.moved[path]}, None
        match message.get("method"):
            case "initialize":
                info = {"name": "scripted", "version": "1"}
                version = message["params"]["protocolVersion"]
                return (
                    200,
                    {},
                    {"result": {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": info}},
                )
            case "tools/list":
                return 200, {}, {"result": {"tools": [{"name": "echo", "inputSchema": OBJECT, "outputSchema": OBJECT}]}}
            case "tools/call" if self.refusal is not None:
                return (*self.refusal, None)
            case "tools/call":
                return 200, {}, {"result": {"content": [], "structuredContent": {"path": path}}}
            case "ping":
                return 200, {}, {"result": {}}
            case _ if "id" in message:
                return 200, {}, {"error": {"code": -32601, "message": "no such method"}}
            case _:
                return (202 if message else 405), {}, None
