"""Connections: what several devices of one node share, such as a CAN bus, a broker or a line with several units."""

import asyncio
from collections.abc import Callable, Hashable
from typing import Protocol, TypeVar


class Connection(Protocol):
    @property
    def is_lost(self) -> bool:
        """Nothing comes from it any more: the next device makes a new one."""

    async def open(self) -> None:
        """Raises TransportFailed."""

    async def close(self) -> None:
        """Works after a failed `open`, and again after it is closed."""


C = TypeVar("C", bound=Connection)


class Connections:
    """Each connection is opened for the first device that needs it and closed after the last one."""

    def __init__(self) -> None:
        self._held: dict[Hashable, _Held] = {}

    async def acquire(self, key: Hashable, make: Callable[[], C]) -> C:
        """The open connection of that key. Raises TransportFailed."""
        held = self._held.get(key)
        if held is None or held.connection.is_lost:
            connection = make()
            held = self._held[key] = _Held(key, connection)
        else:
            connection = held.connection  # type: ignore[assignment]  # a key belongs to one kind of connection
        held.users += 1
        try:
            await held.open()
        except BaseException:
            await self._leave(held)
            raise
        return connection

    async def release(self, connection: Connection, key: Hashable) -> None:
        held = self._held.get(key)
        if held is None or held.connection is not connection:  # it was lost, and another has taken its place
            await connection.close()
            return
        await self._leave(held)

    async def _leave(self, held: "_Held") -> None:
        held.users -= 1
        if held.users == 0:
            if self._held.get(held.key) is held:
                del self._held[held.key]
            await held.connection.close()


class _Held:
    def __init__(self, key: Hashable, connection: Connection) -> None:
        self.key = key
        self.connection = connection
        self.users = 0
        self._is_open = False
        self._opening = asyncio.Lock()

    async def open(self) -> None:
        async with self._opening:
            if not self._is_open:
                await self.connection.open()
                self._is_open = True
