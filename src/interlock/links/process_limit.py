"""The limit on processes that belong to one principal, session or tenant, over all servers of the node.

Each server's processes are a pool with a limit of its own. All pools of a node share this limit; when it is reached,
the process that is idle longest ends.
"""

from collections.abc import Callable
from typing import Final, Protocol

SETTLED_S: Final = 60.0  # idle for so long, a process makes room for another's


class LimitReached(Exception):
    """The limit on processes is reached, and none of them may end."""

    def __init__(self, most: int) -> None:
        super().__init__(most)
        self.most = most


class ProcessPool(Protocol):
    """The processes of one server's clients."""

    def __len__(self) -> int: ...

    def find_idle_since(self) -> float | None:
        """Return when the process that is idle longest was last used, or None if none may end."""

    def end_longest_idle(self) -> None: ...


def _no_limit() -> int:
    return 1_000_000


class ProcessLimit:
    """The limit that all process pools of a node share."""

    def __init__(self, most: Callable[[], int] = _no_limit) -> None:
        self._most = most
        self._pools: set[ProcessPool] = set()

    def join(self, pool: ProcessPool) -> None:
        self._pools.add(pool)

    def leave(self, pool: ProcessPool) -> None:
        self._pools.discard(pool)

    def free_one(self) -> None:
        """End an idle process if the limit is reached, so that another one can start. Raises LimitReached."""
        most = self._most()
        if sum(len(pool) for pool in self._pools) < most:
            return
        idle = [(since, pool) for pool in self._pools if (since := pool.find_idle_since()) is not None]
        if not idle:
            raise LimitReached(most)
        min(idle, key=lambda idle_pool: idle_pool[0])[1].end_longest_idle()
