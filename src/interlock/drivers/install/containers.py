"""The client of a container engine, docker or podman: it pulls, finds and removes on behalf of the node.

How a container is run is in `interlock.drivers.kinds.docker`.
"""

import asyncio
import os
import re
import shutil
from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from interlock.process.orphan_reaper import OrphanReaper
from interlock.process.run import ChildStartFailed, Ran, run

ENGINES: Final = ("docker", "podman")  # in this order, the first on the PATH
PULL_LIMIT_S: Final = 600.0
ANSWER_LIMIT_S: Final = 30.0

_PASSED_TO_CLIENT: Final = re.compile(
    r"DOCKER_(?:HOST|CONTEXT|CONFIG|CERT_PATH|TLS|TLS_VERIFY|API_VERSION)|CONTAINER_(?:HOST|CONNECTION|SSHKEY)"
    r"|CONTAINERS_.*|XDG_(?:RUNTIME_DIR|CONFIG_HOME|DATA_HOME)",
    re.ASCII,
)
_CONTAINER = re.compile(r"[0-9a-f]{12,64}")
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


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
