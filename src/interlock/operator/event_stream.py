"""Values as a stream of Server-Sent Events."""

import contextlib
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any, Final

import msgspec
from starlette.responses import Response, StreamingResponse

from interlock.mcp.sse import encode_event
from interlock.operator.endpoint import OperatorExchange

_HEADERS: Final = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}


def event_stream(exchange: OperatorExchange[Any], values: AsyncGenerator[Any, None]) -> Response:
    """One event for each value. The values end when the reader goes, or when its credential does not stand any more."""
    return StreamingResponse(_events(exchange, values), media_type="text/event-stream", headers=_HEADERS)


async def _events(exchange: OperatorExchange[Any], values: AsyncGenerator[Any, None]) -> AsyncIterator[bytes]:
    yield b": begun\n\n"  # the head of the answer leaves now
    async with contextlib.aclosing(values):
        async for value in values:
            if not exchange.is_live:
                return
            yield encode_event(msgspec.json.encode(value))
