"""`ServerKind`: what a node does with servers of one kind, from installation to the plan of a running process.

Server blocks are read and compared by pure code in `interlock.drivers.protocol.kinds`. The methods here are called in
this order: `declared_paths` when the driver is surveyed; `implied_methods`, `pin_package` and `complete` while the
server is installed, and `find_present` if no method succeeded; `names_package` for its version check and
`resolve_program` for the commands of its version and health checks; `compile_plan` before each start; `clean_up` after
the last process has ended.

A server plan contains placeholders instead of secrets, which are filled in when the server starts. A plan never
contains anything that belongs to a caller (AIP-security-8).
"""

import os
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from hashlib import sha256
from pathlib import Path
from types import MappingProxyType
from typing import ClassVar, Final, Generic, Literal, TypeVar

import msgspec

from interlock.config.plan import Dial, SandboxPlan, ServerPlan, Spawn
from interlock.drivers.install.installation import Installation, Installed, MethodResult
from interlock.drivers.protocol.files.driver import runner_limits
from interlock.drivers.protocol.kinds import LocalServer, ServerBlock
from interlock.drivers.protocol.model import Driver, FileAccess, Install, NetworkAccess, SandboxBlock
from interlock.process.orphan_reaper import OrphanReaper

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
        """Return the package with the version that the server block prescribes. `method` is the installation method
        that uses it.

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
    """Return the absolute path for a path that is written in DRIVER.md.

    A relative path starts in `folder`, a leading `~` is expanded, and `..` is removed.
    """
    return Path(os.path.normpath(folder / Path(text).expanduser()))


def _sandbox_plan(
    driver: Driver, installed: Installed, home: Path, place: Callable[[str], Path], real_paths: Mapping[Path, Path]
) -> SandboxPlan:
    """Return what the sandbox lets a server read, write, reach and start.

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
