"""The installation of a driver's server: the request, the result, its record, and the commands that a driver runs.

- `Installation` is a request to install; `Installed` or `InstallFailed` is its result. `Installed` contains a command
  and an exact record of what it runs (`Locked`). `InstallFailed` lists every method that was tried with the reason why
  it failed. The record is stored under id@major (`Locks`), so a restart runs the same bytes (AIP-30.install-3).
- `Engine` is the client of docker or podman: it pulls, finds and removes images and containers for the node.
  `drivers.kinds` describes how a container is run.
- `run_command` runs version_check.cmd, health_check.cmd and auth.refresh.cmd. A command is one line of words and is
  never run through a shell. It runs inside the sandbox of the driver's server if there is one. A command that takes too
  long is killed with everything it started.
"""

import asyncio
import hashlib
import os
import re
import shlex
import shutil
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from interlock.config.plan import DriversPlan, SandboxPlan, ServerPlan, Spawn
from interlock.core.clock import Clock
from interlock.drivers.protocol.model import Driver
from interlock.drivers.protocol.server_name import server_name
from interlock.links.connector import ConnectorParts
from interlock.process.child import ChildStartFailed, Ran, child_environment, run
from interlock.process.orphan_reaper import OrphanReaper
from interlock.process.packages.installer import Installer, Pins
from interlock.process.packages.package_store import PackageFolders
from interlock.process.sandbox.host_paths import SandboxFailed
from interlock.process.sandbox.sandbox import SandboxedCommand
from interlock.process.stderr import StderrRing
from interlock.store.ports import Damaged, KeyValue

PULL_LIMIT_S: Final = 600.0
ANSWER_LIMIT_S: Final = 30.0

_PASSED_TO_CLIENT: Final = re.compile(
    r"DOCKER_(?:HOST|CONTEXT|CONFIG|CERT_PATH|TLS|TLS_VERIFY|API_VERSION)|CONTAINER_(?:HOST|CONNECTION|SSHKEY)"
    r"|CONTAINERS_.*|XDG_(?:RUNTIME_DIR|CONFIG_HOME|DATA_HOME)",
    re.ASCII,
)
_CONTAINER = re.compile(r"[0-9a-f]{12,64}")
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


INSTALL_FAILED: Final = "install_failed"


class MethodFailed(Exception):
    """Error: an installation method failed, or a container cannot be run. The message says why and what to do. `output`
    has the last lines that an installer printed.
    """

    def __init__(self, reason: str, output: tuple[str, ...] = (), code: str = INSTALL_FAILED) -> None:
        super().__init__(reason)
        self.output = output
        self.code = code


class Image(msgspec.Struct, frozen=True, kw_only=True):
    """A container image on this machine."""

    reference: str  # name@sha256:…, or the id of an image that was built here
    digest: str


class Engine:
    """Client of a container engine, docker or podman."""

    def __init__(self, program: str, environment: Mapping[str, str], reaper: OrphanReaper | None) -> None:
        self.program = program
        self.env = {name: value for name, value in environment.items() if _PASSED_TO_CLIENT.fullmatch(name)}
        names = ("PATH", "HOME", "TMPDIR", "USER", "HTTPS_PROXY", "HTTP_PROXY", "NO_PROXY", "SSL_CERT_FILE")
        self._whole = {name: environment[name] for name in names if name in environment} | self.env
        self._reaper = reaper

    async def pull(self, image: str, progress: Callable[[str], None]) -> Image:
        """Download a container image. For a tag, get its newest image; for a digest, exactly that image.

        An image that was built on this machine is used even if it cannot be pulled. Raise MethodFailed if there is
        no image to use.
        """
        progress(f"pulling {image}")
        ran = await self._run(PULL_LIMIT_S, "pull", "--quiet", image)
        pulled = await self.find(image)
        # Docker lists no repository for an image that was built here; podman calls the repository localhost.
        is_local = pulled is not None and (
            pulled.reference == pulled.digest or pulled.reference.startswith("localhost/")
        )
        if pulled is None or (ran.returncode != 0 and not is_local):
            raise MethodFailed(f"{image} cannot be pulled: the engine's client {ran.reason}{ran.gist}", ran.output)
        progress(f"pulled {pulled.digest}")
        return pulled

    async def find(self, image: str) -> Image | None:
        """Return the image, or None if the engine does not find it on this machine.

        Raise MethodFailed if the engine cannot be started, takes too long or gives an unreadable answer.
        """
        ran = await self._run(ANSWER_LIMIT_S, "image", "inspect", image)
        if ran.returncode != 0:
            return None
        try:
            (seen,) = msgspec.json.decode(ran.stdout, type=list[_Inspected])
        except (msgspec.DecodeError, ValueError) as error:
            raise MethodFailed("the engine's client said nothing of use about the image; update it") from error
        name, _, wanted = image.partition("@")
        tagged = name.rpartition(":")[0] if ":" in name.rpartition("/")[2] else name
        for repository in seen.repo_digests:
            own, _, digest = repository.partition("@")
            is_ours = own == tagged or own.endswith(f"/{tagged}")
            if is_ours and _DIGEST.fullmatch(digest) and wanted in {"", digest}:
                return Image(reference=repository, digest=digest)
        identifier = seen.id if seen.id.startswith("sha256:") else f"sha256:{seen.id}"
        return Image(reference=identifier, digest=identifier)

    async def remove(self, label: str) -> int:
        """Remove all containers with this label, which a killed process left behind. Return their number."""
        listed = await self._run(ANSWER_LIMIT_S, "ps", "--all", "--quiet", "--no-trunc", "--filter", f"label={label}")
        containers = [word for word in listed.stdout.decode(errors="replace").split() if _CONTAINER.fullmatch(word)]
        if containers:
            await self._run(ANSWER_LIMIT_S, "rm", "--force", *containers)
        return len(containers)

    async def _run(self, limit_s: float, *argv: str) -> Ran:
        try:
            async with asyncio.timeout(limit_s):
                return await run((self.program, *argv), self._whole, None, reaper=self._reaper)
        except TimeoutError as error:
            message = f"{self.program} {argv[0]} took longer than {limit_s:g} s; is the engine running?"
            raise MethodFailed(message) from error
        except ChildStartFailed as error:
            raise MethodFailed(str(error)) from error


class _Inspected(msgspec.Struct, frozen=True, kw_only=True, rename={"id": "Id", "repo_digests": "RepoDigests"}):
    id: str
    repo_digests: list[str] = []


CommandRunner = Callable[[tuple[str, ...]], Awaitable[Ran]]  # raises ChildStartFailed, SandboxFailed
Caged = Callable[[SandboxPlan], CommandRunner]  # in a sandbox of the caller's choice


class CommandFailed(Exception):
    """Error: a command could not be run to its end.

    The message completes a sentence that begins with "the command ...".
    """


def plain_runner(reaper: OrphanReaper | None, cwd: Path | None = None) -> CommandRunner:
    """Return a function that runs commands without a sandbox.

    Its commands get the environment that the node gives to every child process.
    """

    return lambda words: run(words, child_environment({}, os.environ), cwd, reaper=reaper)


def sandboxed_runner(connector_parts: ConnectorParts, segment: str, plan: SandboxPlan) -> CommandRunner:
    """Return a function that runs commands in the sandbox that `plan` describes.

    `segment` is the name of the sandbox in records and messages.
    """

    async def run_sandboxed(words: tuple[str, ...]) -> Ran:
        if connector_parts.sandboxes is None:
            raise SandboxFailed("sandbox_unavailable", "no sandboxes are made here")
        stderr = StderrRing(now=connector_parts.clock.wall)
        command = SandboxedCommand(argv=words, env={}, cwd=plan.home)
        sandbox = await connector_parts.sandboxes.make(segment, plan, command, stderr)
        try:
            return await run(
                sandbox.argv, sandbox.env, sandbox.cwd, reaper=connector_parts.reaper, output=stderr, cell=sandbox
            )
        finally:
            sandbox.close()

    return run_sandboxed


def runner_for(plan: ServerPlan, connector_parts: ConnectorParts, cwd: Path | None = None) -> CommandRunner:
    """Return the function that runs a driver's commands, in the sandbox of its server if there is one."""
    if isinstance(plan.reach, Spawn) and plan.reach.sandbox is not None:
        return sandboxed_runner(connector_parts, plan.segment, plan.reach.sandbox)
    return plain_runner(connector_parts.reaper, cwd)


def words_of(command: str) -> tuple[str, ...]:
    """Split a command line into words. Raise CommandFailed if a quotation is not closed."""
    try:
        return tuple(shlex.split(command))
    except ValueError as error:
        raise CommandFailed("has a quotation without an end") from error


async def run_command(words: tuple[str, ...], timeout_ms: int, running: CommandRunner) -> Ran:
    """Run a command and return its result.

    Raise CommandFailed if the command is empty, does not start or takes longer than `timeout_ms`.
    """
    if not words:
        raise CommandFailed("is empty")
    try:
        async with asyncio.timeout(timeout_ms / 1000):
            return await running(words)
    except TimeoutError as error:
        raise CommandFailed(f"was ended after {timeout_ms} ms") from error
    except (ChildStartFailed, SandboxFailed) as error:
        raise CommandFailed(f"cannot be started: {error}") from error


LOCKS: Final = "driver-locks"  # the bucket of records
VERSION_MISMATCH: Final = "version_mismatch"  # AIP-30.version-1

Method = Literal["npm", "pip", "docker", "download", "curl", "vendored", "present"]


class Locked(msgspec.Struct, frozen=True, kw_only=True):
    """Exact record of what was installed, so that the same files can be installed again (AIP-30.install-3).

    It is stored under id@major. A restart runs exactly what it records, and never a newer version.
    """

    asked: str  # a digest of server and install: the lock counts only while the file asks for the same
    method: Method
    package: str = ""  # the name alone
    version: str | None = None
    integrity: str | None = None  # npm's sha512-…, sha256:… of a wheel, an image or a file
    pins: str = ""  # package-lock.json, requirements with hashes, or name@digest: every byte below it as well


class Attempt(msgspec.Struct, frozen=True, kw_only=True):
    """An attempt to install a server by one method. `reason` says why it failed, or is None if it succeeded."""

    method: str
    reason: str | None = None
    output: tuple[str, ...] = ()  # the last of what an installer said


class Note(msgspec.Struct, frozen=True, kw_only=True):
    """Remark about an installation that a person should know and that does not prevent its use."""

    code: str
    message: str


class Installed(msgspec.Struct, frozen=True, kw_only=True):
    """An installed server. `command` starts the server, with server.args appended. It contains no secret, and is empty
    for a remote server.
    """

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
    """Result if no method could install the server, or if the installed version does not fit the driver."""

    code: str
    attempts: tuple[Attempt, ...] = ()

    @property
    def reason(self) -> str:
        """Return why each method failed, as one text."""
        return "; ".join(f"{attempt.method}: {attempt.reason}" for attempt in self.attempts if attempt.reason)


class MethodResult(msgspec.Struct, frozen=True, kw_only=True):
    """Result of one installation method: where the installed files are and exactly what was installed. The start
    command is made from this.
    """

    lock: Locked
    pins: Pins | None = None  # of a package: exactly what to run
    beside: tuple[str, ...] = ()  # packages that a runner has to install beside it
    folder: Path | None = None  # where the package is; None with npx, which keeps it itself
    programs: tuple[Path, ...] = ()  # files and folders that hold programs
    image: Image | None = None
    notes: tuple[Note, ...] = ()

    def installed(self, command: tuple[str, ...], version: str | None = None, **fields: Any) -> Installed:
        """Return the installed server with this start command. `fields` are further fields of `Installed`."""
        return Installed(command=command, version=version, lock=self.lock, notes=self.notes, **fields)


@dataclass(eq=False)
class Installation:
    """A request to install the server of a driver, with everything that installing needs.

    Paths in DRIVER.md may lead anywhere below `workspace`.
    """

    driver: Driver
    _: KW_ONLY
    packages: PackageFolders  # of all drivers
    folder: Path  # contains DRIVER.md
    workspace: Path
    settings: DriversPlan
    progress: Callable[[str], None]
    reaper: OrphanReaper | None
    environment: Mapping[str, str] = field(default_factory=lambda: os.environ)
    node: str = "default"
    caged: Caged | None = None  # runs shell installers in a sandbox; None: this driver may run without one

    @cached_property
    def root(self) -> Path:
        return packages_of(self.packages.own, self.driver).absolute()

    @cached_property
    def digest(self) -> str:
        return request_digest(self.driver)

    @cached_property
    def installer(self) -> Installer:
        may_build = self.settings.allow_unverified_install
        store = self.packages.store
        return Installer(self.root, store, self.environment, self.progress, self.reaper, source_builds=may_build)

    @cached_property
    def engine(self) -> Engine:
        """Return the client of docker or podman, whichever is found first. Raise MethodFailed if there is none."""
        for name in ("docker", "podman"):
            program = shutil.which(name, path=self.search_path)
            if program is not None:
                return Engine(program, self.environment, self.reaper)
        raise MethodFailed("neither docker nor podman is on the PATH; install one of them")

    @property
    def search_path(self) -> str:
        return self.environment.get("PATH", os.defpath)


def request_digest(driver: Driver) -> str:
    """Return a digest of everything in DRIVER.md that determines what is installed."""
    server = msgspec.to_builtins(driver.server)
    keys = ("kind", "package", "version", "image", "path", "runner", driver.server.keys[0])
    deciding = {key: server.get(key) for key in keys}
    methods = [[entry.method, dict(entry.options)] for entry in driver.install]
    return hashlib.sha256(msgspec.json.encode([deciding, methods], order="sorted")).hexdigest()


def packages_of(packages: Path, driver: Driver) -> Path:
    """Return the folder for the installed server of a driver. `packages` is the folder for all servers."""
    return packages / "drivers" / driver.key


async def remove_packages(packages: Path, driver: Driver) -> None:
    """Delete the folder in which a driver's server was installed, and ignore errors. Downloaded packages stay in the
    package store, which is pruned separately.
    """
    await asyncio.to_thread(shutil.rmtree, packages_of(packages, driver), ignore_errors=True)


def differences(before: Locked, after: Locked) -> tuple[str, ...]:
    """Describe the differences between two installation records. An empty result means that the installed bytes stay
    the same.
    """
    pairs = {
        "version": (before.version or "unknown", after.version or "unknown"),  # AIP-30.install-3
        "integrity": (before.integrity or "none", after.integrity or "none"),
    }
    changes = [f"{name} {old} -> {new}" for name, (old, new) in pairs.items() if old != new]
    if not changes and before.pins != after.pins:
        changes.append("packages below it have changed")
    if before.method != after.method:
        changes.append(f"installed with {after.method} instead of {before.method}")
    return tuple(changes)


@dataclass(frozen=True)
class Locks:
    """Store of installation records, keyed by id@major."""

    kv: KeyValue
    clock: Clock

    async def get(self, key: str) -> Locked | None:
        """Return the record of an installation, or None if there is none.

        Raise StoreError if the store fails or the record is unreadable: ignoring such a record would install a newer
        version.
        """
        entry = await self.kv.get(LOCKS, key, self.clock.wall())
        if entry is None:
            return None
        try:
            return msgspec.json.decode(entry.value, type=Locked)
        except msgspec.DecodeError as error:
            name = server_name(key)
            message = f"what is recorded of the installation of {name} cannot be read"
            raise Damaged(f"{message}; run `interlock drivers update {name}`") from error

    async def put(self, key: str, lock: Locked) -> None:
        await self.kv.put(LOCKS, key, msgspec.json.encode(lock), self.clock.wall())
