"""Which servers of this node offered a surface name, and when last: its known implementations (REG-7.3-4).

Asked of the live manifests, and remembered for as long as a server that offered a name counts. No address is kept.
"""

from collections.abc import Callable, Iterable
from typing import Final

import msgspec

from interlock.core.clock import Clock
from interlock.names.protocol.life import SEEN_DAYS
from interlock.names.state import RegistryState
from interlock.store.ports import KeyValue

BUCKET: Final = "names-seen"
_DAY_S: Final = 86_400.0

Offered = Iterable[tuple[str, str]]  # the name as its server has it, and the segment of the server


class Sightings:
    def __init__(self, state: RegistryState, kv: KeyValue, clock: Clock) -> None:
        self._state = state
        self._kv = kv
        self._clock = clock
        self._offered: Callable[[], Offered] = tuple

    def provide(self, offered: Callable[[], Offered]) -> None:
        """What the servers of this node offer now, once there is a catalog."""
        self._offered = offered

    async def note(self) -> None:
        """Remembers who offers a registered name now. Raises StoreError."""
        now = self._clock.wall()
        for name, segments in self._registered_offers().items():
            for segment in segments:
                day = msgspec.json.encode(self._state.today)
                await self._kv.put(BUCKET, f"{name} {segment}", day, now, ttl_s=SEEN_DAYS * _DAY_S)

    async def of(self, name: str) -> list[str]:
        """The servers that offered the name lately, each with the day. Raises StoreError."""
        await self.note()
        found = await self._kv.entries(BUCKET, self._clock.wall())
        own = [one for one in found if one.key.startswith(f"{name} ")]
        return [f"{one.key.removeprefix(f'{name} ')} ({msgspec.json.decode(one.value)})" for one in own]

    def under(self, prefix: str) -> dict[str, str]:
        """Names under a prefix that servers offer now, registered or not, with one server each."""
        return {name: segment for name, segment in self._offered() if name.startswith(prefix)}

    def _registered_offers(self) -> dict[str, set[str]]:
        found: dict[str, set[str]] = {}
        for name, segment in self._offered():
            if self._state.entry(name) is not None:
                found.setdefault(name, set()).add(segment)
        return found
