"""The operations of a node on each kind of server: installing it, planning its process and cleaning up after it.

To add a kind of server, for example `kind: snap`, write in `interlock/drivers/protocol/kinds.py` a subclass of
`LocalServer` (or of `ServerBlock`, if the node does not start it), and add it to the table `SERVERS` there. The class
defines which keys the block has in DRIVER.md, how it is read, what identifies it, and which program runs it. No other
code distinguishes kinds: reading, schemas, compatibility, export, `interlock add snap:NAME`, installation, version
checks, sandboxes and trust all follow from that class.

A kind also has a class here if it is more than a program to run: if it has its own installer, is confined by something
other than the sandbox, or runs elsewhere and is connected to.

The methods of a `ServerKind` are called in this order: `declared_paths` when the driver is surveyed; `implied_methods`,
`pin_package` and `complete` while the server is installed, and `find_present` if no method succeeded; `names_package`
for its version check and `resolve_program` for the commands of its version and health checks; `compile_plan` before
each start; `clean_up` after the last process has ended.

A server plan contains placeholders instead of secrets, which are filled in when the server starts. A plan never
contains anything that belongs to a caller (AIP-security-8).
"""

import logging
import os
import re
import secrets
import shutil
import socket
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from hashlib import sha256
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Final, Generic, Literal, TypeVar
from urllib.parse import urlsplit

import msgspec

from interlock.config.plan import Dial, OAuthPlan, SandboxPlan, ServerPlan, Spawn
from interlock.drivers.install.installation import (
    Engine,
    Installation,
    Installed,
    Locked,
    MethodFailed,
    MethodResult,
    Note,
)
from interlock.drivers.protocol.files.driver import runner_limits
from interlock.drivers.protocol.kinds import (
    DockerServer,
    LocalServer,
    NpmServer,
    PypiServer,
    RemoteAuth,
    RemoteServer,
    ServerBlock,
)
from interlock.drivers.protocol.model import Driver, FileAccess, Install, NetworkAccess, SandboxBlock
from interlock.process.orphan_reaper import OrphanReaper
from interlock.process.packages import programs
from interlock.process.packages.installer import PythonRunners

log = logging.getLogger("interlock.drivers")

HOMES: Final = "homes"

Use = Literal["read", "write", "deny"]
ServerT = TypeVar("ServerT", bound=ServerBlock)


class DeclaredPath(msgspec.Struct, frozen=True, kw_only=True):
    """A path of this machine that a DRIVER.md lets its server use, or denies to it. `place` is the field that names the
    path.
    """

    place: str  # in DRIVER.md, as a JSON pointer
    use: Use
    path: Path
    is_implied: bool = False  # an argument, and granted only if it may follow from one (AIP-security-5)

    @property
    def real(self) -> Path:
        """Return the path with all symbolic links resolved."""
        return Path(os.path.realpath(self.path))


class ServerKind(Generic[ServerT]):
    """Base of the kinds of servers, such as npm packages and containers: how a server is installed, started and cleaned
    up.

    Objects have no state: every method receives the server block or the driver. The methods that a kind does not
    override suit a program that needs no installation.
    """

    # The code of a server that cannot be reached and gives no code itself.
    failure_code: ClassVar[str] = "tool_unavailable"

    # Install

    def implied_methods(self, server: ServerT) -> tuple[Install, ...]:
        """Return the methods by which a server is installed if its driver does not list any."""
        return ()

    def pin_package(self, server: ServerT, method: str, package: str) -> str:
        """Return the package reference of an installation method, with the version that the server block prescribes.

        Raise MethodFailed if `package` and the server block name different versions.
        """
        return package

    async def complete(self, server: ServerT, installation: Installation, brought: MethodResult) -> Installed:
        """Return the installed server with its start command. `brought` is the result of the installation method.

        Raise MethodFailed if the result does not contain the server or the container is not allowed, PackageUnavailable
        if a package cannot be obtained, or OSError if the disk fails.
        """
        raise NotImplementedError

    def find_present(self, server: ServerT, installation: Installation) -> Installed | None:
        """Return a server that can be used without installing it, or None if there is none.

        Raise MethodFailed if the server should be present and is not.
        """
        return None

    def package_name(self, server: ServerT) -> str | None:
        """Return the normalised name of the server's package, or None if it has no package.

        The name is used to find the driver that Interlock ships for a package.
        """
        return None

    # Run

    def names_package(self, server: ServerT, words: tuple[str, ...]) -> bool:
        """Return whether a command from DRIVER.md runs the package of the server itself.

        If it does, the version is known without running the command.
        """
        return False

    def resolve_program(self, server: ServerT, words: tuple[str, ...], installed: Installed) -> tuple[str, ...]:
        """Return the words of a command in DRIVER.md, with the installed program in place of its name.

        If the first word is the server's own program, it is replaced by the installed program.
        """
        return words

    def of_new_process(self, installed: Installed) -> Installed:
        """Return the server as its next process must be started. For example, each process of a container gets a port
        of its own.
        """
        return installed

    def dial(self, driver: Driver) -> Dial:
        """Return how the node connects to a server that it does not start."""
        raise NotImplementedError

    def compile_plan(
        self,
        driver: Driver,
        installed: Installed,
        *,
        folder: Path,
        data: Path,
        tenant: str | None = None,
        is_sandboxed: bool = True,
        real_paths: Mapping[Path, Path] = MappingProxyType({}),
    ) -> ServerPlan:
        """Return the plan by which the node starts the server, or connects to it.

        `folder` contains DRIVER.md; relative paths start there. `data` is the node's data folder. `tenant` is the
        tenant or user whom the process serves, or None if it serves everyone. `real_paths` maps the driver's paths to
        their targets at the time the driver was accepted.
        """
        server = driver.server
        # Segments of configured or registered servers contain no '@'.
        suffix = "" if tenant is None else f"+{sha256(tenant.encode()).hexdigest()[:8]}"
        segment = driver.key + suffix
        if not isinstance(server, LocalServer):
            return ServerPlan(segment=segment, reach=self.dial(driver))
        place = partial(path_of, folder)
        # Every home has the same parent. A server that could write to it could replace another home with a link.
        home = data / HOMES / (driver.id + suffix)
        variables, roots = {}, None
        if driver.sandbox is not None:
            if driver.sandbox.env is not None:
                # A variable that is both passed and set is a default: the host's value wins (AIP-import-7).
                passed = {name for name in driver.sandbox.env.passed if name in os.environ}
                variables = {name: value for name, value in driver.sandbox.env.set.items() if name not in passed}
            fs = driver.sandbox.fs
            roots = tuple(map(place, (*fs.read, *fs.write) if fs is not None else ()))
        # A container is its own sandbox, and has a working directory of its own.
        is_container = server.confinement == "container"
        is_caged = is_sandboxed and not is_container
        installed = self.of_new_process(installed)
        return ServerPlan(
            segment=segment,
            reach=Spawn(
                command=(*installed.command, *server.args),
                env={**installed.env, **variables, **server.env},
                cwd=None if server.cwd is None or is_container else place(server.cwd),
                sandbox=_sandbox_plan(driver, installed, home, place, real_paths) if is_caged else None,
                serves=installed.url,
            ),
            # Without a sandbox block, the folders among the arguments are the roots, as they are for the sandbox.
            roots=roots,
        )

    def declared_paths(self, driver: Driver, folder: Path) -> Iterator[DeclaredPath]:
        """Yield the paths of this machine that a DRIVER.md lets its server use, or denies to it.

        This reads the disk and blocks.
        """
        fs = (driver.sandbox.fs if driver.sandbox is not None else None) or FileAccess()
        uses: tuple[tuple[Use, tuple[str, ...]], ...] = (("read", fs.read), ("write", fs.write), ("deny", fs.deny))
        for use, paths in uses:
            for index, each in enumerate(paths):
                yield DeclaredPath(place=f"/sandbox/fs/{use}/{index}", use=use, path=path_of(folder, each))
        for index, each in enumerate(driver.auth.state.paths if driver.auth is not None else ()):
            yield DeclaredPath(place=f"/auth/state/paths/{index}", use="write", path=path_of(folder, each))
        args = driver.server.args if driver.sandbox is None and isinstance(driver.server, LocalServer) else ()
        for index, each in enumerate(args):
            path = Path(each)
            if path.is_absolute() and os.path.lexists(path):
                yield DeclaredPath(place=f"/server/args/{index}", use="write", path=path, is_implied=True)

    async def clean_up(self, driver: Driver, installed: Installed, reaper: OrphanReaper | None) -> None:
        """Remove what the server's processes left behind. Call this after the last process has ended."""


def path_of(folder: Path, text: str) -> Path:
    """Return a path that is written in DRIVER.md as an absolute path.

    A relative path starts in `folder`, a leading `~` is expanded, and `..` is removed.
    """
    return Path(os.path.normpath(folder / Path(text).expanduser()))


def _sandbox_plan(
    driver: Driver, installed: Installed, home: Path, place: Callable[[str], Path], real_paths: Mapping[Path, Path]
) -> SandboxPlan:
    """Return the plan of a server's sandbox: the paths, hosts and programs that the server may use.

    If the driver has no sandbox block, the paths among its arguments are opened (AIP-security-5). `place` turns a path
    of the file into an absolute one. `real_paths` are the accepted targets of links, which must not change after the
    driver was trusted.
    """
    block = driver.sandbox or SandboxBlock()
    fs = block.fs or FileAccess()
    network = driver.network or block.network or NetworkAccess()
    login_state = tuple(place(path) for path in driver.auth.state.paths) if driver.auth is not None else ()
    return SandboxPlan(
        home=home,
        from_arguments=driver.sandbox is None,
        read=(*installed.reads, *map(place, fs.read)),
        write=(*installed.writes, *map(place, fs.write), *login_state),
        deny=tuple(map(place, fs.deny)),
        accepted=dict(real_paths),
        egress=network.egress,
        programs=block.exec.spawn if block.exec is not None else (),
        any_program=block.exec is not None and block.exec.allow,
        passed=block.env.passed if block.env is not None else (),
        **runner_limits(driver.runner),
    )


# Programs of this machine: kinds binary, npm and pypi
#
# Every installation method returns a `MethodResult`: a folder, a program, or `Pins`, which name one version of a
# package and the hashes of its files. `complete` turns it into `Installed`: the command, and the files that the sandbox
# must let the server read. The script of an installed package is started with its interpreter, and never through its
# `#!` line.


class ProgramKind(ServerKind[LocalServer]):
    """Kind of servers that are plain programs (AIP-server-1). Kinds of servers without a class are treated in the same
    way.
    """

    async def complete(self, server: LocalServer, installation: Installation, brought: MethodResult) -> Installed:
        pins = brought.pins
        if pins is None:
            return _installed_program(server, installation, brought)
        folder = await installation.installer.put(pins)
        scripts = folder / "node_modules" / ".bin" if pins.registry == "npm" else folder / "bin"
        installed = _installed_program(server, installation, msgspec.structs.replace(brought, programs=(scripts,)))
        program = Path(installed.command[0])
        if program.parent != scripts:
            raise MethodFailed(f"{pins.name} brings no program {server.program}")
        # Run the script with its interpreter: its first line cannot hold a long path and finds no private one.
        if pins.registry == "npm":
            interpreter = programs.node_tool("node", installation.environment, pins.name)
        else:
            interpreter = str(folder / "bin/python")
        return msgspec.structs.replace(
            installed,
            command=(interpreter, str(program.resolve()), *server.program_args),
            version=pins.version,
            reads=(folder, Path(interpreter).resolve(), Path(sys.base_prefix).resolve()),
        )

    def find_present(self, server: LocalServer, installation: Installation) -> Installed | None:
        """Find the program if a person has already installed it, for example by following a method's instructions."""
        lock = Locked(asked=installation.digest, method="present")
        return _installed_program(server, installation, MethodResult(lock=lock))

    def resolve_program(self, server: LocalServer, words: tuple[str, ...], installed: Installed) -> tuple[str, ...]:
        # The program need not be on the PATH.
        if words and words[0] in {server.program, Path(server.program).name}:
            return (*installed.command[: len(installed.command) - len(server.program_args)], *words[1:])
        return words


def _installed_program(server: LocalServer, installation: Installation, brought: MethodResult) -> Installed:
    """Return the installed server for a program that is started directly. Raise MethodFailed if the program is not
    found.
    """
    folder = installation.folder
    program = find_program(server.program, installation, brought)
    real = program.resolve()
    # A program of the driver or of the node may read the files beside it, any other program only itself.
    around = folder if real.is_relative_to(folder.resolve()) else real.parent
    is_ours = real.is_relative_to(installation.root.resolve()) or around == folder
    return brought.installed((str(program), *server.program_args), reads=(around,) if is_ours else (real,))


def find_program(path: str, installation: Installation, brought: MethodResult) -> Path:
    """Return the path of a server's program. `path` is absolute, relative to the driver's folder, or the bare name of a
    program (AIP-server-1). `brought` is the result of the installation method.

    A bare name is searched for among the folders and programs of an installation method, or on the PATH if the server
    is already present. Raise MethodFailed if the program is not found or not allowed.
    """
    if os.sep in path:
        program = Path(path) if path.startswith(os.sep) else resolve_inside(path, installation)
        if not program.is_file():
            raise MethodFailed(f"{path} does not exist; install the server or correct server.path")
        if not os.access(program, os.X_OK):
            raise MethodFailed(f"{path} is not executable; run chmod +x on it, or correct server.path")
        return program
    for place in brought.programs:
        candidate = place / path if place.is_dir() else place
        if candidate.name == path and candidate.is_file() and os.access(candidate, os.X_OK):
            return candidate
    # A method that should bring the program does not succeed because of one that was there before.
    on_path = shutil.which(path, path=installation.search_path if brought.lock.method == "present" else "")
    if on_path is None:
        raise MethodFailed(f"no program {path!r} is on the PATH; install the server or write the whole path")
    return Path(on_path).absolute()


def resolve_inside(path: str, installation: Installation) -> Path:
    """Return the absolute path for a relative path in DRIVER.md. Raise MethodFailed if it leads outside the workspace.

    Raise MethodFailed if the path leads outside the workspace, directly or through a symbolic link.
    """
    target = installation.folder / path
    if not target.resolve().is_relative_to(installation.workspace.resolve()):
        message = f"{path} leads out of the workspace; keep the file inside, or write an absolute path"
        raise MethodFailed(message, code="path_escape")  # AIP-server-1
    return Path(os.path.normpath(target))


class NpmKind(ServerKind[NpmServer]):
    """Kind of servers that are npm packages.

    With the setting `npx`, the program npx fetches the pinned version at every start instead.
    """

    def implied_methods(self, server: NpmServer) -> tuple[Install, ...]:
        return (Install(method="npm", options={"package": server.package}),)  # AIP-30.install-1

    def pin_package(self, server: NpmServer, method: str, package: str) -> str:
        is_own = method == "npm"
        return pin_reference(package, "@", server.package, server.package, server.version) if is_own else package

    async def complete(self, server: NpmServer, installation: Installation, brought: MethodResult) -> Installed:
        folder, pins = brought.folder, brought.pins
        if pins is not None and pins.registry == "npm":
            if installation.settings.npx:
                npx = programs.node_tool("npx", installation.environment, server.package)
                return brought.installed((npx, "--yes", f"{pins.name}@{pins.version}"), pins.version)
            folder = await installation.installer.put(pins)
        if folder is None or not (programs.npm_folder(folder, server.package) / "package.json").is_file():
            raise MethodFailed(f"this does not bring the npm package {server.package}")
        node = await programs.node_program(installation.environment, server.package, installation.reaper)
        command = (node, str(programs.npm_program(folder, server.package, server.entry)))
        version = str(programs.npm_manifest(folder, server.package).get("version", "")) or None
        return brought.installed(command, version, reads=(folder, Path(node).resolve()))

    def package_name(self, server: NpmServer) -> str | None:
        return server.package

    def names_package(self, server: NpmServer, words: tuple[str, ...]) -> bool:
        """Return whether a command such as `npx PACKAGE --version` runs the server's own package (AIP-30.version-2)."""
        return any(word[:1] + word[1:].partition("@")[0] == server.package for word in words)


def pin_reference(reference: str, mark: str, name: str, package: str, version: str | None) -> str:
    """Add the version that the server block prescribes to a package reference. Return the reference unchanged if no
    version is prescribed, or if it refers to another package.

    `mark` separates name and version; `name` is the package's name and `package` the name with its extras. Raise
    MethodFailed if `reference` has a different version.
    """
    scope = reference[:1] if reference.startswith("@") else ""
    own_name, _, pin = reference.removeprefix("@").partition(mark)
    if version is None or (scope + own_name).partition("[")[0].lower() != name.lower():
        return reference
    if pin and pin != version:
        raise MethodFailed("install and server name two versions of the package; keep the pin in one of them")
    return f"{package}{mark}{version}"


class PypiKind(ServerKind[PypiServer]):
    """Kind of servers that are Python packages. They run in a virtual environment of the node, or with uvx or pipx."""

    def implied_methods(self, server: PypiServer) -> tuple[Install, ...]:
        return (Install(method="pip", options={"package": server.package}),)  # AIP-30.install-1

    def pin_package(self, server: PypiServer, method: str, package: str) -> str:
        name = server.package.partition("[")[0]
        return package if method != "pip" else pin_reference(package, "==", name, server.package, server.version)

    async def complete(self, server: PypiServer, installation: Installation, brought: MethodResult) -> Installed:
        pins = brought.pins
        if pins is None or pins.registry != "pypi" or pins.name != self.package_name(server):
            raise MethodFailed(f"this does not bring the Python package {server.package}")
        if server.runner in {"uvx", "pipx"}:
            runners = PythonRunners(installation.installer)
            keep = runners.keep_with_uvx if server.runner == "uvx" else runners.keep_with_pipx
            runnable = await keep(pins, server.package, server.entry, brought.beside)
            files = {"reads": runnable.reads, "writes": runnable.writes}
            return brought.installed(runnable.command, pins.version, **files, env=runnable.env)
        folder = await installation.installer.put(pins)
        command = programs.pypi_command(folder, pins.name, server.entry)
        return brought.installed(command, pins.version, reads=(folder, Path(sys.base_prefix).resolve()))

    def package_name(self, server: PypiServer) -> str:
        return programs.normalised_name(server.package.partition("[")[0])

    def names_package(self, server: PypiServer, words: tuple[str, ...]) -> bool:
        """Return whether a command such as `uvx --from PACKAGE NAME` runs the server's own package
        (AIP-30.version-2).
        """
        if words[:1] == (server.entry,):
            return True
        name = self.package_name(server)
        return any(programs.normalised_name(re.split(r"==|\[|@", word)[0]) == name for word in words)


# Containers: kind docker


# People find the containers of a driver by the first two labels. The third is random for each command that
# `container_command` returns, so that the node removes only the containers which that command started.
LABEL: Final = "dev.interlock.driver"
RUN_LABEL: Final = "dev.interlock.run"

# Variables that the engine's client obeys itself: which engine to speak to, which files to trust, what to load.
_CLIENTS_OWN = re.compile(
    r"(?:_?CONTAINERS?|DOCKER|BUILDX|BUILDKIT|PODMAN|XDG|LD|DYLD)_.*|STORAGE_(?:DRIVER|OPTS)|LISTEN_(?:FDS|PID|FDNAMES)"
    r"|PATH|HOME|TMPDIR|NOTIFY_SOCKET|REGISTRY_AUTH_FILE|GLIBC_TUNABLES|BASH_.*|SHELLOPTS|GODEBUG|INTERLOCK_.*",
    re.ASCII,
)
_VOLUME = re.compile(r"(?P<source>[^:]+):(?P<target>/[^:]*)(?::(?P<options>[A-Za-z,]+))?")
_SOCKETS: Final = ("docker.sock", "podman.sock", "containerd.sock", "crio.sock")


class DockerKind(ServerKind[DockerServer]):
    """Kind of servers that docker or podman runs in a container, from an image that is fixed by its digest.

    Values of environment variables are never part of the command, which every local user can read. With `-e NAME`, the
    client of docker or podman takes the value from its own environment (AIP-server-6). Variables that would change the
    behaviour of this client are therefore refused. The container is the sandbox of the server. A network that cannot be
    limited to network.egress is refused.

    The installed command is complete except for server.args, which follow it.
    """

    def implied_methods(self, server: DockerServer) -> tuple[Install, ...]:
        return (Install(method="docker", options={"image": server.image}),)  # AIP-30.install-1

    async def complete(self, server: DockerServer, installation: Installation, brought: MethodResult) -> Installed:
        if brought.image is None:
            raise MethodFailed(f"this does not bring the image {server.image}")
        port = free_port() if installation.driver.transport == "http" else None
        command = container_command(installation, server, brought.image.reference, port)
        url = None if port is None else f"http://127.0.0.1:{port}{server.path}"
        return brought.installed(command, env=installation.engine.env, url=url)

    def of_new_process(self, installed: Installed) -> Installed:
        """Return the installed server with another free port on this machine, because every container process needs its
        own.
        """
        if installed.url is None:
            return installed
        before = installed.url.partition("//")[2].partition("/")[0]
        after = f"127.0.0.1:{free_port()}"
        command = tuple(
            f"{after}{word.removeprefix(before)}" if word.startswith(f"{before}:") else word
            for word in installed.command
        )
        return msgspec.structs.replace(installed, command=command, url=installed.url.replace(before, after, 1))

    def declared_paths(self, driver: Driver, folder: Path) -> Iterator[DeclaredPath]:
        assert isinstance(driver.server, DockerServer)  # noqa: S101  (the table of kinds says so)
        for index, volume in enumerate(driver.server.volumes):
            source = volume.partition(":")[0]
            if source.startswith("/"):
                yield DeclaredPath(place=f"/server/volumes/{index}", use="write", path=Path(source))

    async def clean_up(self, driver: Driver, installed: Installed, reaper: OrphanReaper | None) -> None:
        """Remove containers that are still running because the process that started them was killed (AIP-server-6)."""
        try:
            await remove_leftover_containers(installed.command, reaper)
        except MethodFailed as refused:
            log.warning("driver %s: its containers cannot be looked for: %s", driver.segment, refused)


async def remove_leftover_containers(command: Sequence[str], reaper: OrphanReaper | None) -> int:
    """Remove the containers that an earlier run of this start command left behind.

    Return how many there were.
    """
    label = next((word for word in command if word.startswith(f"{RUN_LABEL}=")), None)
    return 0 if label is None else await Engine(command[0], os.environ, reaper).remove(label)


def free_port() -> int:
    """Return a loopback port on which no program listens at present."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


def container_command(
    installation: Installation, server: DockerServer, image: str, host_port: int | None
) -> tuple[str, ...]:
    """Return the command that starts a server's container, without server.args.

    `host_port` is the loopback port on which the node reaches an HTTP server. Raise MethodFailed for a network, a
    variable or a volume that is not allowed.
    """
    driver = installation.driver
    # AIP-server-6
    options = "run -i --rm --init --pull never --security-opt no-new-privileges"
    words = [installation.engine.program, *options.split()]
    for label in (
        f"{LABEL}={driver.key}",
        f"dev.interlock.node={installation.node}",
        f"{RUN_LABEL}={secrets.token_hex(8)}",
    ):
        words += ["--label", label]
    names = dict.fromkeys(server.env)
    if driver.sandbox is not None and driver.sandbox.env is not None:
        names |= dict.fromkeys((*driver.sandbox.env.passed, *driver.sandbox.env.set))
    for name in names:
        if _CLIENTS_OWN.fullmatch(name):
            remedy = "set it in the image, or give the server another name for it"
            raise MethodFailed(f"{name} would be obeyed by the client of the container engine itself; {remedy}")
        words += ["-e", name]  # AIP-server-6
    # AIP-security-2, AIP-security-3: the engine cannot limit a network to a list of hosts, so none is given.
    egress = driver.network.egress if driver.network is not None else ()
    # An operator can allow this driver to run without a sandbox.
    if driver.id not in installation.settings.sandbox and "*" not in egress:
        if egress or host_port is not None:
            kind = "that serves HTTP" if host_port is not None else "with a list of hosts in network.egress"
            message = f"a container {kind} needs a network, and the engine's cannot be held to that list"
            remedy = "write egress: ['*'] if any host may be reached"
            remedy += f", or let the operator set drivers.sandbox {driver.id} = off"
            raise MethodFailed(f"{message}; {remedy}", code="sandbox_unavailable")
        words += ["--network", "none"]
    if host_port is not None:
        words += ["-p", f"127.0.0.1:{host_port}:{server.port}"]  # AIP-server-6
    for volume in server.volumes:
        words += ["-v", _volume(volume, installation.packages.own.parent)]
    if server.cwd is not None:
        words += ["-w", server.cwd]
    return (*words, image)


def _volume(text: str, data: Path) -> str:
    """Check an entry of server.volumes, and return it as the value of the engine's option -v.

    Raise MethodFailed if the entry is no valid volume, or would give the container an engine's socket or the node's
    data folder.
    """
    parts = _VOLUME.fullmatch(text)
    if parts is None or not set((parts["options"] or "").split(",")) <= {"", "ro", "rw", "z", "Z"}:
        raise MethodFailed("an entry of server.volumes is no volume; write /host/path:/path:ro")
    source = parts["source"]
    if not source.startswith("/"):
        if re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]*", source):
            return text  # a volume that the engine keeps
        raise MethodFailed("a folder in server.volumes is not absolute; write /host/path:/path")
    real = Path(source).resolve()
    if real.name in _SOCKETS or data.resolve().is_relative_to(real) or real.is_relative_to(data.resolve()):
        message = f"{source} in server.volumes would give the container the engine or the node itself; remove it"
        raise MethodFailed(message)
    # The real path, because a link could lead elsewhere by the time it is mounted.
    return f"{real}{text.removeprefix(source)}"


# Servers elsewhere: kind remote


class RemoteKind(ServerKind[RemoteServer]):
    """Kind of servers that run on other machines. They have no process, no sandbox and no paths on this machine.

    Nothing is installed; the node connects to the URL with the credentials of DRIVER.md. A plan contains
    `${secrets.NAME}` instead of a credential. The keeper fills it in when it connects, so a plan can be compared and
    shown. A network.egress in DRIVER.md limits every host that the node connects to for the server, including
    authorization servers.
    """

    failure_code: ClassVar[str] = "upstream_error"

    def find_present(self, server: RemoteServer, installation: Installation) -> Installed | None:
        has_install = bool(installation.driver.install)
        notes = (Note(code="install_ignored", message="a remote server is not installed"),) if has_install else ()
        return Installed(command=(), version=None, lock=Locked(asked="", method="present"), notes=notes)

    def dial(self, driver: Driver) -> Dial:
        server = driver.server
        assert isinstance(server, RemoteServer)  # noqa: S101  (the table of kinds says so)
        auth = server.auth or RemoteAuth(type="none")
        secret = None if auth.secret is None else f"${{secrets.{auth.secret}}}"
        headers = dict(server.headers)
        if auth.type == "bearer":
            headers["Authorization"] = f"Bearer {secret}"
        elif auth.type == "header" and auth.header is not None:
            headers[auth.header] = str(secret)
        oauth = None
        if auth.type == "oauth":
            oauth = OAuthPlan(
                grant="authorization_code" if secret is None else "client_credentials",
                client_id=auth.client_id,
                client_secret=secret,
                scopes=auth.scopes,
            )
        # AIP-security-4: a list of hosts also limits the authorization servers that may be asked for a token.
        egress = None
        if driver.network is not None and "/network/egress" in driver.places.lines:
            egress = (*driver.network.egress, urlsplit(server.url).hostname or "")
        return Dial(
            url=server.url,
            headers=headers,
            query=dict(server.query),
            transport="sse" if driver.transport == "sse" else "http",
            auth=oauth,
            egress=egress,
        )

    def declared_paths(self, driver: Driver, folder: Path) -> Iterator[DeclaredPath]:
        return iter(())


_PROGRAM: Final = ProgramKind()
_OTHERS: Final[Mapping[str, ServerKind[Any]]] = {
    "npm": NpmKind(),
    "pypi": PypiKind(),
    "docker": DockerKind(),
    "remote": RemoteKind(),
}


def kind_of(server: ServerBlock) -> ServerKind[Any]:
    """Return the object that installs and starts servers of this kind, such as npm packages. Kinds that are not in the
    table are treated as plain programs.
    """
    return _OTHERS.get(server.kind, _PROGRAM)
