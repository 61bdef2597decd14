"""The servers that asked their clients something on a link that all share, and for what: kept over restarts.

What a server is known to ask decides over which link a call goes from the first call on, instead of from the first
question on.
"""

import logging
from typing import Final

import msgspec

from interlock.core.background import BackgroundTasks
from interlock.core.clock import Clock
from interlock.drivers.protocol.server_name import server_name
from interlock.store.ports import KeyValue

log = logging.getLogger("interlock.node")

BUCKET: Final = "asking"


class Asking(msgspec.Struct, frozen=True):
    """What one server asks for."""

    server: str  # the name it gives itself: another server under the same segment is not known to ask
    asks: frozenset[str]  # capabilities of clients: elicitation, sampling, roots; nothing said which client was meant
    asks_in_calls: frozenset[str] = frozenset()  # the same, on the stream of a call, whose client was meant


NOTHING: Final = Asking("", frozenset())


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

    def of(self, segment: str, server: str) -> Asking:
        known = self._known.get(segment)
        return known if known is not None and known.server == server else NOTHING

    def add(self, segment: str, server: str, capability: str, *, in_call: bool) -> None:
        known = self.of(segment, server)
        asks, in_calls = known.asks, known.asks_in_calls
        if in_call:
            in_calls |= {capability}
        else:
            asks |= {capability}
        known = self._known[segment] = Asking(server, asks, in_calls)
        self._tasks.begin(self._save(segment, known))

    async def _save(self, segment: str, known: Asking) -> None:
        try:
            await self._kv.put(BUCKET, segment, msgspec.json.encode(known), self._clock.wall())
        except Exception as error:
            log.warning("what %s asks for could not be remembered: %s", server_name(segment), error)
