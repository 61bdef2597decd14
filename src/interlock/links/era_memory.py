"""The era each server spoke last, so that the next start asks in the right tongue first."""

import contextlib
import logging
from typing import Final

from interlock.core.background import BackgroundTasks
from interlock.core.clock import Clock
from interlock.mcp.methods import Era
from interlock.store.ports import KeyValue

log = logging.getLogger("interlock.node")

BUCKET: Final = "eras"


class EraMemory:
    def __init__(self, kv: KeyValue, clock: Clock) -> None:
        self._kv = kv
        self._clock = clock
        self._known: dict[str, Era] = {}
        self._tasks = BackgroundTasks()

    async def open(self) -> None:
        """Raises StoreError."""
        for entry in await self._kv.entries(BUCKET, self._clock.wall()):
            with contextlib.suppress(ValueError):
                self._known[entry.key] = Era(entry.value.decode())

    async def close(self) -> None:
        await self._tasks.finish()

    def get(self, server: str) -> Era | None:
        return self._known.get(server)

    def put(self, server: str, era: Era) -> None:
        if self._known.get(server) is not era:
            self._known[server] = era
            self._tasks.begin(self._save(server, era))

    async def _save(self, server: str, era: Era) -> None:
        try:
            await self._kv.put(BUCKET, server, era.value.encode(), self._clock.wall())
        except Exception as error:
            log.warning("the era of %s could not be remembered: %s", server, error)
