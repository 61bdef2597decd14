"""Is a call whose stream broke taken up where the server allows it, and never sent twice?"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from interlock.links.pipes import HttpPipe, Trouble, Undelivered

SECONDS = 10.0
EVENT = b"id: 1\nretry: 1\nevent: message\ndata: {}\n\n"
STREAM = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n" + EVENT


class Origin:
    """A call under way."""

    upstream_id = 7


class Owner:
    def __init__(self) -> None:
        self.messages: list[bytes] = []
        self.told: asyncio.Future[Undelivered] = asyncio.get_running_loop().create_future()

    def on_message(self, data: bytes, origin: Any) -> None:
        self.messages.append(data)

    def on_undelivered(self, origin: Any, what: Undelivered) -> None:
        if origin is not None:
            self.told.set_result(what)

    @property
    def waiting(self) -> set[int]:
        return set() if self.told.done() else {7}

    def on_pipe_lost(self, reason: str) -> None: ...


@asynccontextmanager
async def served(answer: Callable[[str], bytes]) -> AsyncIterator[tuple[HttpPipe, Owner, list[str]]]:
    """A server that answers a request by its first line, and the heads it got."""
    heads: list[str] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        heads.append(head)
        writer.write(answer(head))
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    owner = Owner()
    pipe = HttpPipe(owner, f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/mcp", {}, 1 << 20)
    pipe.adopt_session(b"s", "2025-11-25")
    try:
        yield pipe, owner, heads
    finally:
        pipe.forget_session()
        await pipe.close()
        server.close()
        await server.wait_closed()


@pytest.mark.parametrize("status", [401, 403, 404, 500])
async def test_a_call_whose_stream_cannot_be_taken_up_is_lost_and_not_sent_again(status: int) -> None:
    def answer(head: str) -> bytes:
        return STREAM if head.startswith("POST") else b"HTTP/1.1 %d No\r\ncontent-length: 0\r\n\r\n" % status

    async with served(answer) as (pipe, owner, heads):
        pipe.send(b"{}", b"", Origin())  # type: ignore[arg-type]
        what = await asyncio.wait_for(owner.told, SECONDS)
        assert what.trouble is Trouble.LOST, "SESSION_LOST or UNAUTHORISED would send it again"
        assert [head.split(" ")[0] for head in heads] == ["POST", "GET"]
        assert "last-event-id: 1" in heads[1].lower()


async def test_a_request_that_a_server_without_the_session_refuses_was_not_looked_at() -> None:
    def answer(head: str) -> bytes:
        return b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n"

    async with served(answer) as (pipe, owner, _):
        pipe.send(b"{}", b"", Origin())  # type: ignore[arg-type]
        assert (await asyncio.wait_for(owner.told, SECONDS)).trouble is Trouble.SESSION_LOST
