"""Servers that are container images: docker or podman pulls them, and one composed command runs them.

In: a driver of kind docker. Out: an image fixed by its digest, and the words before server.args. Values of environment
variables never stand in these words, which every local user can read: `-e NAME` makes the engine's client take them
from its own environment (AIP-server-6). So names that the client itself obeys cannot be a server's. The container is
the sandbox of such a server, and a network that cannot be kept to network.egress is refused.
"""

import asyncio
import os
import re
import secrets
import shutil
import socket
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from interlock.drivers.protocol.model import Docker, Driver
from interlock.process.orphan_reaper import OrphanReaper
from interlock.process.run import ChildStartFailed, Ran, run

ENGINES: Final = ("docker", "podman")  # in this order, the first on the PATH
PULL_LIMIT_S: Final = 600.0
ANSWER_LIMIT_S: Final = 30.0
LABEL: Final = "dev.interlock.driver"  # by these people find the containers of a driver,
NODE_LABEL: Final = "dev.interlock.node"
RUN_LABEL: Final = "dev.interlock.run"  # and by this we those of one life of it

# By these the client is told which engine to speak to, which files to trust and what to load into itself.
_CLIENTS_OWN = re.compile(
    r"(?:_?CONTAINERS?|DOCKER|BUILDX|BUILDKIT|PODMAN|XDG|LD|DYLD)_.*|STORAGE_(?:DRIVER|OPTS)|LISTEN_(?:FDS|PID|FDNAMES)"
    r"|PATH|HOME|TMPDIR|NOTIFY_SOCKET|REGISTRY_AUTH_FILE|GLIBC_TUNABLES|BASH_.*|SHELLOPTS|GODEBUG|INTERLOCK_.*",
    re.ASCII,
)
_PASSED_TO_CLIENT: Final = re.compile(
    r"DOCKER_(?:HOST|CONTEXT|CONFIG|CERT_PATH|TLS|TLS_VERIFY|API_VERSION)|CONTAINER_(?:HOST|CONNECTION|SSHKEY)"
    r"|CONTAINERS_.*|XDG_(?:RUNTIME_DIR|CONFIG_HOME|DATA_HOME)",
    re.ASCII,
)
_CONTAINER = re.compile(r"[0-9a-f]{12,64}")
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_VOLUME = re.compile(r"(?P<source>[^:]+):(?P<target>/[^:]*)(?::(?P<options>[A-Za-z,]+))?")
_SOCKETS: Final = ("docker.sock", "podman.sock", "containerd.sock", "crio.sock")


class ContainerRefused(Exception):
    """The driver cannot be run as a container; `code` and the message say why and what to do."""

    def __init__(self, code: str, message: str, output: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.code = code
        self.output = output


class Image(msgspec.Struct, frozen=True, kw_only=True):
    reference: str  # name@sha256:…, or the id of an image that was built here
    digest: str


class Engine:
    """The client of docker or podman, and the environment it runs with."""

    def __init__(self, program: str, environment: Mapping[str, str], reaper: OrphanReaper | None) -> None:
        self.program = program
        self.env = {name: value for name, value in environment.items() if _PASSED_TO_CLIENT.fullmatch(name)}
        kept = ("PATH", "HOME", "TMPDIR", "USER", "HTTPS_PROXY", "HTTP_PROXY", "NO_PROXY", "SSL_CERT_FILE")
        self._whole = {name: environment[name] for name in kept if name in environment} | self.env
        self._reaper = reaper

    async def pull(self, image: str, progress: Callable[[str], None]) -> Image:
        """Pull the newest image of a tag, or exactly the named digest; one that is only local is taken as it is."""
        progress(f"pulling {image}")
        ran = await self._run(PULL_LIMIT_S, "pull", "--quiet", image)
        found = await self.find(image)
        if found is None or (ran.returncode != 0 and not _is_local(found)):
            raise ContainerRefused(
                "install_failed", f"{image} cannot be pulled: the engine's client {ran.reason}{ran.gist}", ran.output
            )
        progress(f"pulled {found.digest}")
        return found

    async def find(self, image: str) -> Image | None:
        """The image on this machine; None: there is none."""
        ran = await self._run(ANSWER_LIMIT_S, "image", "inspect", image)
        if ran.returncode != 0:
            return None
        try:
            (seen,) = msgspec.json.decode(ran.stdout, type=list[_Inspected])
        except (msgspec.DecodeError, ValueError) as error:
            raise ContainerRefused(
                "install_failed", "the engine's client said nothing of use about the image; update it"
            ) from error
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
        """Remove every container with this label that a killed client left. Returns how many there were."""
        listed = await self._run(ANSWER_LIMIT_S, "ps", "--all", "--quiet", "--no-trunc", "--filter", f"label={label}")
        found = [word for word in listed.stdout.decode(errors="replace").split() if _CONTAINER.fullmatch(word)]
        if found:
            await self._run(ANSWER_LIMIT_S, "rm", "--force", *found)
        return len(found)

    async def _run(self, limit_s: float, *argv: str) -> Ran:
        try:
            async with asyncio.timeout(limit_s):
                return await run((self.program, *argv), self._whole, None, reaper=self._reaper)
        except TimeoutError as error:
            raise ContainerRefused(
                "install_failed", f"{self.program} {argv[0]} took longer than {limit_s:g} s; is the engine running?"
            ) from error
        except ChildStartFailed as error:
            raise ContainerRefused("install_failed", str(error)) from error


class _Inspected(msgspec.Struct, frozen=True, kw_only=True, rename={"id": "Id", "repo_digests": "RepoDigests"}):
    id: str
    repo_digests: list[str] = []


def _is_local(image: Image) -> bool:
    """Whether it was made on this machine: docker knows no repository of such an image, podman calls it localhost."""
    return image.reference == image.digest or image.reference.startswith("localhost/")


def find_engine(environment: Mapping[str, str], reaper: OrphanReaper | None) -> Engine:
    for name in ENGINES:
        found = shutil.which(name, path=environment.get("PATH", os.defpath))
        if found is not None:
            return Engine(found, environment, reaper)
    raise ContainerRefused("install_failed", "neither docker nor podman is on the PATH; install one of them")


async def remove_leftover_containers(command: Sequence[str], reaper: OrphanReaper | None) -> int:
    """Remove the containers that a composed command has started and left, once no client of theirs runs any more."""
    label = next((word for word in command if word.startswith(f"{RUN_LABEL}=")), None)
    return 0 if label is None else await Engine(command[0], os.environ, reaper).remove(label)


def free_port() -> int:
    """A port of the loopback that nothing listens on now."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


def container_command(
    program: str,
    driver: Driver,
    image: str,
    *,
    node: str,
    data: Path,
    host_port: int | None = None,
    is_open: bool = False,
) -> tuple[str, ...]:
    """The words before server.args. `is_open`: the operator lets this driver run without a sandbox."""
    server = driver.server
    if not isinstance(server, Docker):
        raise TypeError("only a server of kind docker runs in a container")
    # AIP-server-6
    words = [program, "run", "-i", "--rm", "--init", "--pull", "never", "--security-opt", "no-new-privileges"]
    for label in (f"{LABEL}={driver.key}", f"{NODE_LABEL}={node}", f"{RUN_LABEL}={secrets.token_hex(8)}"):
        words += ["--label", label]
    for name in environment_names(driver):
        words += ["-e", name]  # AIP-server-6
    words += _network(driver, host_port is not None, is_open)
    if host_port is not None:
        words += ["-p", f"127.0.0.1:{host_port}:{server.port}"]  # AIP-server-6
    for volume in server.volumes:
        words += ["-v", _volume(volume, data)]
    if server.cwd is not None:
        words += ["-w", server.cwd]
    return (*words, image)


def environment_names(driver: Driver) -> tuple[str, ...]:
    """Every name the container is given, once. Raises ContainerRefused for one that the client would obey."""
    names = dict.fromkeys(getattr(driver.server, "env", {}))
    if driver.sandbox is not None and driver.sandbox.env is not None:
        names |= dict.fromkeys((*driver.sandbox.env.passed, *driver.sandbox.env.set))
    for name in names:
        if _CLIENTS_OWN.fullmatch(name):
            raise ContainerRefused(
                "install_failed",
                f"{name} would be obeyed by the client of the container engine itself; "
                "set it in the image, or give the server another name for it",
            )
    return tuple(names)


def _network(driver: Driver, is_served: bool, is_open: bool) -> Sequence[str]:
    """AIP-security-2, -3: what cannot be held to the list is refused."""
    egress = driver.network.egress if driver.network is not None else ()
    if is_open or "*" in egress:
        return ()
    if not egress and not is_served:  # AIP-security-2
        return ("--network", "none")
    what = "a container that serves HTTP" if is_served else "a container with a list of hosts in network.egress"
    raise ContainerRefused(
        "sandbox_unavailable",
        f"{what} needs a network, and the engine's cannot be held to that list; "
        f"write egress: ['*'] if any host may be reached, or let the operator set drivers.sandbox {driver.id} = off",
    )


def _volume(text: str, data: Path) -> str:
    found = _VOLUME.fullmatch(text)
    if found is None or not set((found["options"] or "").split(",")) <= {"", "ro", "rw", "z", "Z"}:
        raise ContainerRefused("install_failed", "an entry of server.volumes is none; write /host/path:/path:ro")
    source = found["source"]
    if not source.startswith("/"):
        if re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]*", source):
            return text  # a volume that the engine keeps
        raise ContainerRefused("install_failed", "a folder in server.volumes is not absolute; write /host/path:/path")
    real = Path(source).resolve()
    if real.name in _SOCKETS or data.resolve().is_relative_to(real) or real.is_relative_to(data.resolve()):
        raise ContainerRefused(
            "install_failed",
            f"{source} in server.volumes would give the container the engine or the node itself; remove it",
        )
    return f"{real}{text.removeprefix(source)}"  # not a link that may lead elsewhere when it is mounted
