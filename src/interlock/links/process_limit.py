"""The room for processes that one principal, session or tenant has of its own: how many of all servers, and which of
them makes way for another.

Each server's processes are a pool of their own, with a limit of their own. All pools of a node share this room.
"""

from collections.abc import Callable
from typing import Final, Protocol

SETTLED_S: Final = 60.0  # idle for so long, a process makes room for another's


class RoomFull(Exception):
    """There is no room for another: none of those there are may end."""

    def __init__(self, most: int) -> None:
        super().__init__(most)
        self.most = most


class ProcessPool(Protocol):
    """The processes of one server's clients."""

    def __len__(self) -> int: ...

    def maybe_idle_since(self) -> float | None:
        """When the one that is idle longest was last used; None where none may make room."""

    def end_longest_idle(self) -> None: ...


def _no_limit() -> int:
    return 1_000_000


class ProcessRoom:
    def __init__(self, most: Callable[[], int] = _no_limit) -> None:
        self._most = most
        self._pools: set[ProcessPool] = set()

    def join(self, pool: ProcessPool) -> None:
        self._pools.add(pool)

    def leave(self, pool: ProcessPool) -> None:
        self._pools.discard(pool)

    def make_room(self) -> None:
        """Raises RoomFull."""
        most = self._most()
        if sum(len(pool) for pool in self._pools) < most:
            return
        idle = [(since, pool) for pool in self._pools if (since := pool.maybe_idle_since()) is not None]
        if not idle:
            raise RoomFull(most)
        min(idle, key=lambda one: one[0])[1].end_longest_idle()
