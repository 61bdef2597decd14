"""Lets uvicorn end when it is told to: otherwise each server of each node looks for that ten times a second."""

import asyncio
import contextlib
import socket
from typing import Any

import uvicorn

LOOK_S = 0.005
HEADERS_S = 1.0  # how often on_tick renews the date of the answers


class _Told:
    """`should_exit` of a server, which wakes its loop when it is set."""

    def __get__(self, server: Any, owner: type) -> bool:
        return bool(server.__dict__.get("exit_told", False))

    def __set__(self, server: Any, value: bool) -> None:
        server.__dict__["exit_told"] = value
        woken = server.__dict__.get("woken")
        if value and woken is not None:
            with contextlib.suppress(RuntimeError):  # the loop has ended already
                server.__dict__["running_on"].call_soon_threadsafe(woken.set)


async def _main_loop(self: Any) -> None:
    self.running_on, self.woken = asyncio.get_running_loop(), asyncio.Event()
    while not await self.on_tick(0):
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.woken.wait(), HEADERS_S)


async def _shutdown(self: Any, sockets: list[socket.socket] | None = None) -> None:
    for server in self.servers:
        server.close()
    for sock in sockets or []:
        sock.close()
    for connection in list(self.server_state.connections):
        connection.shutdown()
    try:
        async with asyncio.timeout(self.config.timeout_graceful_shutdown):
            while (self.server_state.connections or self.server_state.tasks) and not self.force_exit:  # noqa: ASYNC110
                await asyncio.sleep(LOOK_S)
            for server in self.servers:
                await server.wait_closed()
    except TimeoutError:
        for task in self.server_state.tasks:
            task.cancel()
    if not self.force_exit:
        await self.lifespan.shutdown()


def install() -> None:
    server: Any = uvicorn.Server
    server.should_exit, server.main_loop, server.shutdown = _Told(), _main_loop, _shutdown
