"""Servers of kind docker: docker or podman runs a container from an image that is fixed by its digest.

Values of environment variables are never part of the command, which every local user can read. With `-e NAME`, the
client of docker or podman takes the value from its own environment (AIP-server-6). Variables that would change the
behaviour of this client are therefore refused. The container is the sandbox of the server. A network that cannot be
limited to network.egress is refused.
"""

import logging
import os
import re
import secrets
import socket
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import msgspec

from interlock.drivers.install.installation import Engine, Installation, Installed, MethodFailed, MethodResult
from interlock.drivers.kinds.kind import DeclaredPath, ServerKind
from interlock.drivers.protocol.kinds import DockerServer
from interlock.drivers.protocol.model import Driver, Install
from interlock.process.orphan_reaper import OrphanReaper

log = logging.getLogger("interlock.drivers")

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
    """Kind of servers that run in a container, which serves as their sandbox.

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
