"""The installation of a driver's server: what is asked for, what a method brought, and what came out.

The outcome is a command with a record of exactly what it runs (`Locked`), or every method tried with the reason why it
failed. The record is stored under id@major, so that a restart runs the same bytes (AIP-30.install-3).
"""

import asyncio
import hashlib
import os
import shutil
from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Final, Literal

import msgspec

from interlock.config.plan import DriversPlan
from interlock.core.clock import Clock
from interlock.drivers.install.commands import Caged
from interlock.drivers.install.containers import Engine, Image, find_engine
from interlock.drivers.protocol.model import Driver
from interlock.drivers.protocol.server_name import server_name
from interlock.process.orphan_reaper import OrphanReaper
from interlock.process.packages.installer import Installer, Pins
from interlock.store.ports import Damaged, KeyValue

INSTALL_FAILED: Final = "install_failed"
PATH_ESCAPE: Final = "path_escape"  # AIP-server-1
LOCKS: Final = "driver-locks"  # the bucket of records
VERSION_MISMATCH: Final = "version_mismatch"  # AIP-30.version-1

Method = Literal["npm", "pip", "docker", "download", "curl", "vendored", "present"]


class Locked(msgspec.Struct, frozen=True, kw_only=True):
    """What was installed, exactly (AIP-30.install-3). Kept under id@major; a restart runs this and nothing newer."""

    asked: str  # what server and install said: when the file asks for something else, the lock counts no more
    method: Method
    package: str = ""  # the name alone
    version: str | None = None
    integrity: str | None = None  # npm's sha512-…, sha256:… of a wheel, an image or a file
    pins: str = ""  # package-lock.json, requirements with hashes, or name@digest: every byte below it as well


class Attempt(msgspec.Struct, frozen=True, kw_only=True):
    """One method that was tried; `reason` None: it succeeded."""

    method: str
    reason: str | None = None
    output: tuple[str, ...] = ()  # the last of what an installer said


class Note(msgspec.Struct, frozen=True, kw_only=True):
    """Something to be shown with the driver that keeps nothing from working."""

    code: str
    message: str


class Installed(msgspec.Struct, frozen=True, kw_only=True):
    """`command` stands before server.args; nothing of it is a secret. A remote server has none."""

    command: tuple[str, ...]
    version: str | None
    lock: Locked
    reads: tuple[Path, ...] = ()  # what a sandbox has to show the program
    writes: tuple[Path, ...] = ()  # caches without which it does not start
    env: Mapping[str, str] = {}  # of the node's own, which the command needs beside server.env
    url: str | None = None  # where a container serves HTTP
    attempts: tuple[Attempt, ...] = ()
    notes: tuple[Note, ...] = ()


class InstallFailed(msgspec.Struct, frozen=True, kw_only=True):
    code: str
    attempts: tuple[Attempt, ...] = ()

    @property
    def reason(self) -> str:
        """The reason for `interlock drivers show`: every method with what kept it from succeeding."""
        return "; ".join(f"{attempt.method}: {attempt.reason}" for attempt in self.attempts if attempt.reason)


class MethodFailed(Exception):
    def __init__(self, reason: str, output: tuple[str, ...] = (), code: str = INSTALL_FAILED) -> None:
        super().__init__(reason)
        self.output = output
        self.code = code


class MethodResult(msgspec.Struct, frozen=True, kw_only=True):
    lock: Locked
    pins: Pins | None = None  # packages: what to run,
    beside: tuple[str, ...] = ()  # what has to hold of others, for a runner that asks again, and
    folder: Path | None = None  # where it is; None with npx, which keeps it itself
    programs: tuple[Path, ...] = ()  # files and folders that hold programs
    image: Image | None = None
    notes: tuple[Note, ...] = ()


class Installation:
    """One request to install a driver's server, with everything that installing needs."""

    def __init__(
        self,
        driver: Driver,
        *,
        packages: Path,
        folder: Path,
        settings: DriversPlan,
        progress: Callable[[str], None],
        reaper: OrphanReaper | None,
        workspace: Path | None = None,
        environment: Mapping[str, str] | None = None,
        node: str = "default",
        caged: Caged | None = None,
    ) -> None:
        """`folder` holds DRIVER.md; paths in it may lead anywhere below `workspace` (default: `folder`).

        `packages` is the folder for the packages of all drivers. `caged` runs the author's installer in a sandbox; it
        is None if the operator lets this driver run without one.
        """
        self.driver = driver
        self.data = packages.parent
        self.root = packages_of(packages, driver).absolute()
        self.folder = folder
        self.workspace = workspace or folder
        self.settings = settings
        self.progress = progress
        self.reaper = reaper
        self.environment = os.environ if environment is None else environment
        self.node = node
        self.caged = caged
        self.digest = request_digest(driver)
        self.packages = Installer(
            self.root, self.environment, progress, reaper, source_builds=settings.allow_unverified_install
        )

    @cached_property
    def engine(self) -> Engine:
        """Return the client of docker or podman. Raises ContainerRefused."""
        return find_engine(self.environment, self.reaper)

    @property
    def search_path(self) -> str:
        return self.environment.get("PATH", os.defpath)


def request_digest(driver: Driver) -> str:
    """A digest of everything in the file that decides what is installed."""
    server = msgspec.to_builtins(driver.server)
    keys = ("kind", "package", "version", "image", "path", "runner", driver.server.keys[0])
    deciding = {key: server.get(key) for key in keys}
    methods = [[entry.method, dict(entry.options)] for entry in driver.install]
    return hashlib.sha256(msgspec.json.encode([deciding, methods], order="sorted")).hexdigest()


def packages_of(packages: Path, driver: Driver) -> Path:
    """The folder where everything of this driver, and of no other, is installed."""
    return packages / "drivers" / driver.key


async def remove_packages(packages: Path, driver: Driver) -> None:
    await asyncio.to_thread(shutil.rmtree, packages_of(packages, driver), ignore_errors=True)


def difference(before: Locked, after: Locked) -> tuple[str, ...]:
    """The difference that an update would make, in words; empty: the same bytes."""
    said = []
    if before.version != after.version:  # AIP-30.install-3
        said.append(f"version {before.version or 'unknown'} -> {after.version or 'unknown'}")
    if before.integrity != after.integrity:
        said.append(f"integrity {before.integrity or 'none'} -> {after.integrity or 'none'}")
    if not said and before.pins != after.pins:
        said.append("packages below it have changed")
    if before.method != after.method:
        said.append(f"installed with {after.method} instead of {before.method}")
    return tuple(said)


class Locks:
    def __init__(self, kv: KeyValue, clock: Clock) -> None:
        self._kv = kv
        self._clock = clock

    async def get(self, key: str) -> Locked | None:
        """Raises StoreError; a record that cannot be read is not taken for none, or something newer would be run."""
        entry = await self._kv.get(LOCKS, key, self._clock.wall())
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
        await self._kv.put(LOCKS, key, msgspec.json.encode(lock), self._clock.wall())

    async def remove(self, key: str) -> None:
        await self._kv.delete(LOCKS, key)
