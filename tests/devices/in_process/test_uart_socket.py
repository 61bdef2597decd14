"""A line that is a socket, as emulators have it, on both event loops."""

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
import uvloop
from tests.devices.device_owner import Owner, description

from interlock.devices.transports.transport import SharedConnections
from interlock.devices.transports.uart import UartTransport


@pytest.mark.req("AX-B.3-1")
@pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def test_messages_pass_in_both_directions(run: Callable[[Coroutine[Any, Any, None]], None]) -> None:
    run(_exchange())


async def _exchange() -> None:
    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(256):
                writer.write(data)
        writer.close()
        ended.set()

    owner, ended = Owner(), asyncio.Event()
    async with await asyncio.start_server(echo, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        link = description(transport="uart_cbor", port=f"socket://127.0.0.1:{port}")
        transport = UartTransport("valve", link, owner, SharedConnections())
        await transport.open()
        assert await transport.is_signalled() is False  # a socket has no such line
        transport.send(b"\xa1\x01\x02")
        assert await owner.next_message() == b"\xa1\x01\x02"
        await transport.close()
        await ended.wait()
