"""One HTTP/1.1 request on a connection of its own, and its answer: whole, or event by event."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from urllib.parse import urlsplit

LINE_MAX = 64 * 1024 * 1024


class HttpExchange:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self.status = 0
        self.headers: dict[str, str] = {}

    @classmethod
    async def open(cls, url: str, method: str, headers: Mapping[str, str], body: bytes = b"") -> "HttpExchange":
        parts = urlsplit(url)
        assert parts.hostname is not None
        reader, writer = await asyncio.open_connection(parts.hostname, parts.port, limit=LINE_MAX)
        exchange = cls(reader, writer)
        try:
            target = parts.path + (f"?{parts.query}" if parts.query else "")
            lines = [f"{method} {target} HTTP/1.1", f"host: {parts.netloc}", f"content-length: {len(body)}"]
            lines += [f"{name}: {value}" for name, value in headers.items()]
            writer.write("\r\n".join([*lines, "", ""]).encode() + body)
            await writer.drain()
            start, *fields = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").rstrip("\r\n").split("\r\n")
            exchange.status = int(start.split(" ")[1])
            exchange.headers = {n.strip().lower(): v.strip() for n, _, v in (line.partition(":") for line in fields)}
        except BaseException:
            writer.close()
            raise
        return exchange

    async def __aenter__(self) -> "HttpExchange":
        return self

    async def __aexit__(self, *_: object) -> None:
        self._writer.close()
        with contextlib.suppress(Exception, asyncio.CancelledError):
            await self._writer.wait_closed()

    async def body(self) -> bytes:
        if "chunked" in self.headers.get("transfer-encoding", ""):
            return b"".join([chunk async for chunk in self._chunks()])
        return await self._reader.readexactly(int(self.headers.get("content-length", "0")))

    async def events(self) -> AsyncIterator[tuple[str, str]]:
        """(event, data) of each event of the stream."""
        kept = b""
        async for chunk in self._chunks():
            kept += chunk
            while b"\n\n" in kept:
                block, kept = kept.split(b"\n\n", 1)
                fields = [line.partition(": ") for line in block.decode().split("\n") if not line.startswith(":")]
                data = [value for name, _, value in fields if name == "data"]
                if data:
                    yield next((value for name, _, value in fields if name == "event"), ""), "\n".join(data)

    async def _chunks(self) -> AsyncIterator[bytes]:
        while size := int((await self._reader.readuntil(b"\r\n")).partition(b";")[0], 16):
            yield (await self._reader.readexactly(size + 2))[:-2]
        await self._reader.readuntil(b"\r\n")
