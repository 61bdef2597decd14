"""Pins: what a tool's schemas were when an operator pinned them, so that a drift is refused until it is pinned anew."""

from typing import Final

import msgspec

from interlock.core.clock import Clock
from interlock.names.surface_check import Pin
from interlock.store.ports import Change, Damaged, KeyValue

BUCKET: Final = "surface_pins"


class SurfacePins:
    """In memory, and on disk before they count. Raises StoreError."""

    def __init__(self, kv: KeyValue, clock: Clock) -> None:
        self._kv = kv
        self._clock = clock
        self._pins: dict[str, Pin] = {}

    async def open(self) -> None:
        for entry in await self._kv.entries(BUCKET, self._clock.wall()):
            try:
                pin = msgspec.json.decode(entry.value, type=Pin)
            except msgspec.DecodeError:
                raise Damaged(f"the pin {entry.key} cannot be read; put a backup of the store in its place") from None
            self._pins[pin.tool] = pin

    async def close(self) -> None:
        """All of it is on disk."""

    def take_change(self, change: Change) -> None:
        """What another replica pinned or released."""
        if change.entry is None:
            self._pins.pop(change.key, None)
        else:
            pin = msgspec.json.decode(change.entry.value, type=Pin)
            self._pins[pin.tool] = pin

    def get(self, tool: str) -> Pin | None:
        return self._pins.get(tool)

    def all(self) -> tuple[Pin, ...]:
        return tuple(self._pins.values())

    async def put(self, pin: Pin) -> None:
        await self._kv.put(BUCKET, pin.tool, msgspec.json.encode(pin), self._clock.wall())
        self._pins[pin.tool] = pin

    async def remove(self, tool: str) -> bool:
        if tool not in self._pins:
            return False
        await self._kv.delete(BUCKET, tool)
        del self._pins[tool]
        return True
