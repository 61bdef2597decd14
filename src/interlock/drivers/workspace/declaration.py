"""Drivers of a workspace as the survey declares them, and the node's stored decisions about them.

`ParsedFolder` is one folder after parsing, `Declared` one driver with everything that it binds, and `Declaration` all
drivers of the workspace. `survey` creates these values.

The trust store records which folders were accepted and with which content, what was last registered under an id and
major version, and which hosts an operator allowed. It is kept outside the workspace (AIP-security-13), so no file in
the workspace can grant itself anything. `Memory` reads and writes the store. `Remembered` is a copy of its content for
the survey. Decisions and their audit records are made by other modules before anything is written here.
"""

import hashlib
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

from interlock.config.plan import Plan
from interlock.core.clock import Clock
from interlock.drivers.driver_state import DriverState
from interlock.drivers.install.installation import LOCKS
from interlock.drivers.protocol.identity import Manifest, manifest_of
from interlock.drivers.protocol.model import Contract, Driver, SecretEntry, SecretInventory
from interlock.drivers.protocol.problems import FileProblem, ParsedFile
from interlock.drivers.protocol.server_name import exposed_segment
from interlock.drivers.workspace.scan import Root
from interlock.store.ports import KeyValue

log = logging.getLogger("interlock.drivers")

TRUST: Final = "driver-trust"
MANIFESTS: Final = "driver-manifests"
ALLOWED: Final = "driver-allowed"
HOSTS_MAX: Final = 200  # of one driver

T = TypeVar("T")


class Trusted(msgspec.Struct, frozen=True, kw_only=True):
    """Record of a driver folder that a person accepted. `texts` are kept to show later what has changed."""

    folder: str
    key: str
    digest: str
    files: Mapping[str, str]  # the digest of everything that trust covers, by name
    texts: Mapping[str, str]
    tags: tuple[str, ...]  # those that count (AIP-security-12)
    summary: dict[str, Any] = {}  # what the person saw
    by: str
    at: float


class Hosts(msgspec.Struct, frozen=True, kw_only=True):
    """Record of the hosts that an operator lets a driver reach in addition to those that its file names."""

    id: str
    hosts: tuple[str, ...]


class Remembered(msgspec.Struct, frozen=True, kw_only=True):
    """Content of the trust store: accepted folders, registered drivers and allowed hosts."""

    trusted: Mapping[str, Trusted] = {}  # by folder
    manifests: Mapping[str, Manifest] = {}  # by id@major
    allowed: Mapping[str, tuple[str, ...]] = {}  # hosts, by id

    def trusts(self, folder: Path, digest: str) -> bool:
        """Return whether a person accepted this folder with exactly the content that has this digest."""
        record = self.trusted.get(str(folder))
        return record is not None and record.digest == digest


class Memory:
    """The trust store of a node. It remembers which driver folders a person accepted, and which hosts an operator
    allowed.

    `all` holds all records. It is replaced with every change, and `revision` increases. Methods that write raise
    StoreError.
    """

    def __init__(self, kv: KeyValue, clock: Clock) -> None:
        self._kv = kv
        self._clock = clock
        self.all = Remembered()
        self.revision = 0  # changes with every write, so that the survey is repeated

    async def open(self) -> None:
        """Read all records from the store. Raise StoreError if the store cannot be read."""
        now = self._clock.wall()
        trusted = [read_record(entry.value, Trusted) for entry in await self._kv.entries(TRUST, now)]
        manifests = [read_record(entry.value, Manifest) for entry in await self._kv.entries(MANIFESTS, now)]
        allowed = [read_record(entry.value, Hosts) for entry in await self._kv.entries(ALLOWED, now)]
        self.all = Remembered(
            trusted={record.folder: record for record in trusted if record is not None},
            manifests={record.key: record for record in manifests if record is not None},
            allowed={record.id: record.hosts for record in allowed if record is not None},
        )

    async def trust(self, trusted: Trusted) -> None:
        """Record that a person accepted a folder. This replaces an earlier record for the same folder."""
        await self._put(TRUST, trusted.folder, trusted)
        self._change(trusted={**self.all.trusted, trusted.folder: trusted})

    async def distrust(self, folder: str) -> bool:
        """Delete the record of an accepted folder. Return whether there was one."""
        return await self._delete(TRUST, folder, "trusted")

    async def register(self, driver: Driver) -> None:
        """Record the properties of a driver with which its next version is compared."""
        manifest = manifest_of(driver)
        if self.all.manifests.get(manifest.key) == manifest:
            return
        await self._put(MANIFESTS, manifest.key, manifest)
        self._change(manifests={**self.all.manifests, manifest.key: manifest})

    async def forget(self, key: str) -> bool:
        """Delete the properties that were recorded for a driver, and the record of its installation.

        Return whether there was a manifest.
        """
        await self._kv.delete(LOCKS, key)
        return await self._delete(MANIFESTS, key, "manifests")

    async def allow(self, id: str, hosts: tuple[str, ...]) -> None:
        """Replace the hosts that are allowed for the driver with this id. An empty tuple allows none."""
        if hosts:
            await self._put(ALLOWED, id, Hosts(id=id, hosts=hosts))
            self._change(allowed={**self.all.allowed, id: hosts})
        else:
            await self._delete(ALLOWED, id, "allowed")

    async def _put(self, bucket: str, name: str, record: msgspec.Struct) -> None:
        await self._kv.put(bucket, _hash_key(name), msgspec.json.encode(record), self._clock.wall())

    async def _delete(self, bucket: str, name: str, kind: str) -> bool:
        """Delete a record from the store and from `all`. `kind` is the field of `all` for the
        records of this bucket.
        """
        records: Mapping[str, Any] = getattr(self.all, kind)
        self._change(**{kind: {key: each for key, each in records.items() if key != name}})
        return await self._kv.delete(bucket, _hash_key(name))

    def _change(self, **records: Mapping[str, Any]) -> None:
        self.all = msgspec.structs.replace(self.all, **records)
        self.revision += 1


def _hash_key(name: str) -> str:
    """Return the key under which a record of this name is stored. It is a hash, because some stores reject certain
    characters.
    """
    return hashlib.sha256(name.encode("utf-8", "surrogateescape")).hexdigest()


def read_record(data_untrusted: bytes, shape: type[T]) -> T | None:
    """Decode a stored record. Log an error and return None if it cannot be read."""
    try:
        return msgspec.json.decode(data_untrusted, type=shape)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        # A record that cannot be read grants nothing.
        log.error("what is remembered of a driver (%s) cannot be read and does not count", shape.__name__)
        return None


class ParsedFolder(msgspec.Struct, frozen=True, kw_only=True):
    """The parsed files of a driver folder, before the driver is compared with anything outside the folder."""

    root: Root
    path: Path
    reading: ParsedFile[Driver]
    contracts: Mapping[str, ParsedFile[Contract]] = {}  # every TOOL.md of the folder, by its path in it
    secrets: ParsedFile[SecretInventory] | None = None
    digests: Mapping[str, str] = {}
    problems: tuple[FileProblem, ...] = ()  # of the folder and its further files

    @property
    def file(self) -> str:
        return str(self.path / "DRIVER.md")


class Declared(msgspec.Struct, frozen=True, kw_only=True):
    """A driver as its files declare it, with its contracts and secrets. If `state` is None, the driver can be started
    as soon as a person trusts it.
    """

    key: str  # id@major; the path of the folder if the file cannot be read
    root: Root
    folder: Path
    state: DriverState | None
    problems: tuple[FileProblem, ...] = ()
    driver: Driver | None = None
    contracts: Mapping[int, Contract] = {}  # by the index of the binding
    secrets: Mapping[str, SecretEntry] = {}  # by the NAME that the driver uses, if an inventory has it
    own_secrets: SecretInventory | None = None
    files: Mapping[str, str] = {}  # the digests of every file of the folder, and of contracts elsewhere
    # What names in its files mean outside of them: `secrets://NAME` an entry, `links://PATH` a path.
    resolved: Mapping[str, str] = {}
    real_paths: Mapping[Path, Path] = {}  # targets of the paths that it opens to its server
    digest: str = ""  # of everything that trust covers
    trusted: bool = False

    @property
    def covered(self) -> dict[str, str]:
        """Return the digests of everything that a person accepts by trusting the driver: its files, and the secrets and
        link targets outside its folder to which they refer.

        The two cannot collide: every name in `resolved` contains two slashes in a row, and no path does.
        """
        return {**self.files, **self.resolved}

    @property
    def bound_secrets(self) -> frozenset[str]:
        """Return the slugs of the secrets that the driver may use because its auth.ref names its own SECRETS.md
        (AIP-19.access-1).

        An entry with an explicit access list can still exclude the driver.
        """
        auth = self.driver.auth if self.driver is not None else None
        if auth is None or auth.ref is None or self.own_secrets is None:
            return frozenset()
        return frozenset(entry.slug for entry in self.own_secrets.entries)

    @property
    def id(self) -> str:
        """Return the id of the driver, or the name of the folder if its DRIVER.md cannot be read."""
        return self.driver.id if self.driver is not None else self.folder.name

    @property
    def segment(self) -> str:
        """Return the name under which people see the driver's server."""
        return exposed_segment(self.id)

    @property
    def is_fit(self) -> bool:
        """Return whether the driver could be started if a person trusts it."""
        return self.state is None and self.driver is not None

    @property
    def reason(self) -> str | None:
        """Return the first error that makes the driver unusable, or None if it is usable."""
        first = next((each for each in self.problems if each.severity == "error"), None)
        return None if first is None else f"{first.code}: {first.message}"


def configured_segments(plan: Plan) -> dict[str, str]:
    """Return the segments that the configuration gives to servers, subservers and devices, and where each is written.

    No driver may list anything under them.
    """
    devices = {device.segment: f".devices/{device.segment}.toml" for device in plan.devices.described}
    children = {child.segment: f"[[ax.children]] {child.segment}" for child in plan.ax.children}
    return devices | children | {server.segment: f"[servers.{server.segment}]" for server in plan.servers}


class Declaration(msgspec.Struct, frozen=True, kw_only=True):
    """The drivers that the files of a workspace declare, its secrets, and problems that belong to no driver."""

    drivers: tuple[Declared, ...] = ()
    secrets: tuple[SecretEntry, ...] = ()  # all inventories merged (AIP-19.file-3)
    problems: tuple[FileProblem, ...] = ()  # that belong to no driver
    others: tuple[Path, ...] = ()  # files outside the folders that were looked for, existing or not

    @property
    def opened(self) -> tuple[Path, ...]:
        """Return the paths of this machine that drivers make accessible to their servers."""
        return tuple(path for driver in self.drivers for path in driver.real_paths)


def changed_keys(now: Mapping[str, str], before: Mapping[str, str]) -> set[str]:
    """Return the names whose values differ between two mappings, including names that only one of them has."""
    return {name for name in {**before, **now} if before.get(name) != now.get(name)}
