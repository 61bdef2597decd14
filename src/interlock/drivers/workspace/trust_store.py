"""The trust store: which folders were accepted and in what state, what was last registered, what is allowed.

Kept outside the workspace (AIP-security-13), so that nothing in it can grant itself anything. `Remembered` is a value
for the scan of the folders; `Memory` writes, and is told beforehand what was decided by whom.
"""

import hashlib
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

from interlock.core.clock import Clock
from interlock.drivers.install.installation import LOCKS
from interlock.drivers.protocol.model import Driver
from interlock.drivers.protocol.selection.compatibility import Manifest, manifest_of
from interlock.drivers.protocol.selection.history import keep, recall
from interlock.store.ports import Entry, KeyValue

log = logging.getLogger("interlock.drivers")

TRUST: Final = "driver-trust"
MANIFESTS: Final = "driver-manifests"
ALLOWED: Final = "driver-allowed"
HOSTS_MAX: Final = 200  # of one driver

T = TypeVar("T")


class Trusted(msgspec.Struct, frozen=True, kw_only=True):
    """A folder as somebody accepted it. `texts`: what is shown beside what it has become."""

    folder: str
    key: str
    digest: str
    files: Mapping[str, str]  # all that trust covers
    texts: Mapping[str, str]
    tags: tuple[str, ...]  # those that count (AIP-security-12)
    summary: dict[str, Any] = {}  # as it was shown
    by: str
    at: float


class Hosts(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    hosts: tuple[str, ...]


class Remembered(msgspec.Struct, frozen=True, kw_only=True):
    trusted: Mapping[str, Trusted] = {}  # by folder
    manifests: Mapping[str, Manifest] = {}  # by id@major
    allowed: Mapping[str, tuple[str, ...]] = {}  # hosts, by id

    def trusts(self, folder: Path, digest: str) -> bool:
        kept = self.trusted.get(str(folder))
        return kept is not None and kept.digest == digest

    def trusts_files(self, folder: Path, files: Mapping[str, str]) -> bool:
        """Whether the files were accepted, whatever the names in them lead to by now."""
        kept = self.trusted.get(str(folder))
        return kept is not None and {name: each for name, each in kept.files.items() if "://" not in name} == files


class Memory:
    def __init__(self, kv: KeyValue, clock: Clock) -> None:
        self._kv = kv
        self._clock = clock
        self._trusted: dict[str, Trusted] = {}
        self._manifests: dict[str, Manifest] = {}
        self._allowed: dict[str, tuple[str, ...]] = {}
        self.revision = 0  # another whenever something else is remembered

    async def open(self) -> None:
        """Raises StoreError."""
        now = self._clock.wall()
        trusted = [_read(entry, Trusted) for entry in await self._kv.entries(TRUST, now)]
        manifests = [recall(entry.value) for entry in await self._kv.entries(MANIFESTS, now)]
        allowed = [_read(entry, Hosts) for entry in await self._kv.entries(ALLOWED, now)]
        self._trusted = {one.folder: one for one in trusted if one is not None}
        self._manifests = {one.key: one for one in manifests if one is not None}
        self._allowed = {one.id: one.hosts for one in allowed if one is not None}

    @property
    def all(self) -> Remembered:
        return Remembered(trusted=dict(self._trusted), manifests=dict(self._manifests), allowed=dict(self._allowed))

    def maybe_trusted(self, folder: Path) -> Trusted | None:
        return self._trusted.get(str(folder))

    async def trust(self, trusted: Trusted) -> None:
        await self._kv.put(TRUST, _hash_key(trusted.folder), msgspec.json.encode(trusted), self._clock.wall())
        self._trusted[trusted.folder] = trusted
        self.revision += 1

    async def distrust(self, folder: str) -> bool:
        self._trusted.pop(folder, None)
        self.revision += 1
        return await self._kv.delete(TRUST, _hash_key(folder))

    async def register(self, driver: Driver) -> None:
        manifest = manifest_of(driver)
        if self._manifests.get(manifest.key) == manifest:
            return
        await self._kv.put(MANIFESTS, _hash_key(manifest.key), keep(driver), self._clock.wall())
        self._manifests[manifest.key] = manifest
        self.revision += 1

    async def forget(self, key: str) -> bool:
        """Delete what was registered, and the record of what was installed."""
        self._manifests.pop(key, None)
        self.revision += 1
        await self._kv.delete(LOCKS, key)
        return await self._kv.delete(MANIFESTS, _hash_key(key))

    async def allow(self, id: str, hosts: tuple[str, ...]) -> None:
        """Allow these hosts, in place of those before."""
        self.revision += 1
        if not hosts:
            self._allowed.pop(id, None)
            await self._kv.delete(ALLOWED, _hash_key(id))
            return
        await self._kv.put(ALLOWED, _hash_key(id), msgspec.json.encode(Hosts(id=id, hosts=hosts)), self._clock.wall())
        self._allowed[id] = hosts


def _hash_key(name: str) -> str:
    """A key that every store takes: some refuse some characters."""
    return hashlib.sha256(name.encode("utf-8", "surrogateescape")).hexdigest()


def _read(entry: Entry, shape: type[T]) -> T | None:
    try:
        return msgspec.json.decode(entry.value, type=shape)
    except (msgspec.DecodeError, UnicodeDecodeError):
        # Nothing is granted by what cannot be read.
        log.error("what is remembered of a driver (%s) cannot be read and does not count", shape.__name__)
        return None
