"""The servers that asked their clients something on a pipe that all share, and for what: kept over restarts.

A server that is known to ask gives each session a link of its own from its first call on, instead of from the first
question on.
"""

import logging
from typing import Final

import msgspec

from interlock.protocol.drivers.server_name import server_name
from interlock.runtime.base.background import BackgroundTasks
from interlock.runtime.base.clock import Clock
from interlock.store.ports import KeyValue

log = logging.getLogger("interlock.node")

BUCKET: Final = "asking"


class Asking(msgspec.Struct, frozen=True):
    """What one server asks for."""

    server: str  # the name it gives itself: another server under the same segment is not known to ask
    asks: frozenset[str]  # capabilities of clients: elicitation, sampling, roots


class AskingMemory:
    def __init__(self, kv: KeyValue, clock: Clock) -> None:
        self._kv = kv
        self._clock = clock
        self._known: dict[str, Asking] = {}
        self._tasks = BackgroundTasks()

    async def open(self) -> None:
        """Raises StoreError."""
        for entry in await self._kv.entries(BUCKET, self._clock.wall()):
            try:
                self._known[entry.key] = msgspec.json.decode(entry.value, type=Asking)
            except msgspec.MsgspecError as error:
                log.warning("what %s asks for is not known any more: %s", entry.key, error)

    async def close(self) -> None:
        await self._tasks.finish()

    def asked(self, segment: str, server: str) -> frozenset[str]:
        known = self._known.get(segment)
        return known.asks if known is not None and known.server == server else frozenset()

    def add(self, segment: str, server: str, capability: str) -> None:
        asks = self.asked(segment, server)
        if capability not in asks:
            known = self._known[segment] = Asking(server, asks | {capability})
            self._tasks.begin(self._save(segment, known))

    async def _save(self, segment: str, known: Asking) -> None:
        try:
            await self._kv.put(BUCKET, segment, msgspec.json.encode(known), self._clock.wall())
        except Exception as error:
            log.warning("what %s asks for could not be remembered: %s", server_name(segment), error)
