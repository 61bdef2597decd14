"""Snapshots: the inputs and result of each driver's last check, stored so that a lazy start needs no process.

Digests alone are kept: no definition of a server is ever served from here (MCP-AX 13.1).
"""

import logging
from collections.abc import Iterable
from hashlib import sha256
from typing import Final

import msgspec

from interlock.core.clock import Clock
from interlock.drivers.install.installation import Installed
from interlock.drivers.protocol.model import Contract
from interlock.store.ports import KeyValue, StoreError

log = logging.getLogger("interlock.drivers")

BUCKET: Final = "driver_snapshots"


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    about: str  # the driver's folder, its contracts and what was installed
    protocol: str
    tools: dict[str, str]  # contract id -> digest of the tool's definition


def about(folder: str, installed: Installed | None, contracts: Iterable[Contract]) -> str:
    """`folder`: the digest of its files."""
    package = "" if installed is None else f"{installed.version} {installed.lock.integrity}"
    return sha256(msgspec.json.encode([folder, package, list(contracts)])).hexdigest()


class Snapshots:
    """The snapshots of one driver."""

    def __init__(self, kv: KeyValue, clock: Clock, key: str) -> None:
        self._kv = kv
        self._clock = clock
        self._key = key
        self._last: Snapshot | None = None

    async def maybe(self, wanted: str) -> Snapshot | None:
        """The last snapshot, if it is about these inputs. Raises StoreError."""
        entry = await self._kv.get(BUCKET, self._key, self._clock.wall())
        try:
            found = None if entry is None else msgspec.json.decode(entry.value, type=Snapshot)
        except msgspec.DecodeError:
            return None
        self._last = found
        return found if found is not None and found.about == wanted else None

    async def keep(self, snapshot: Snapshot) -> None:
        if snapshot == self._last:
            return
        self._last = snapshot
        try:
            await self._kv.put(BUCKET, self._key, msgspec.json.encode(snapshot), self._clock.wall())
        except StoreError as error:
            log.warning("what %s was found to offer could not be kept: %s", self._key, error)
