"""Remembers what was installed for each driver, by id@major (AIP-30.install-3)."""

from typing import Final

import msgspec

from interlock.core.clock import Clock
from interlock.drivers.install.outcome import Locked
from interlock.drivers.protocol.server_name import server_name
from interlock.store.ports import Damaged, KeyValue

BUCKET: Final = "driver-locks"


class Locks:
    def __init__(self, kv: KeyValue, clock: Clock) -> None:
        self._kv = kv
        self._clock = clock

    async def get(self, key: str) -> Locked | None:
        """Raises StoreError; a record that cannot be read is not taken for none, or something newer would be run."""
        entry = await self._kv.get(BUCKET, key, self._clock.wall())
        if entry is None:
            return None
        try:
            return msgspec.json.decode(entry.value, type=Locked)
        except msgspec.DecodeError as error:
            raise Damaged(
                f"what is recorded of the installation of {server_name(key)} cannot be read; "
                f"run `interlock drivers update {server_name(key)}`"
            ) from error

    async def put(self, key: str, lock: Locked) -> None:
        await self._kv.put(BUCKET, key, msgspec.json.encode(lock), self._clock.wall())

    async def remove(self, key: str) -> None:
        await self._kv.delete(BUCKET, key)
