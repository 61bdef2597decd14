"""Servers of kind docker: an image, run as a container by docker or podman."""

import re
from collections.abc import Collection, Sequence
from typing import Any, ClassVar, Self

import msgspec

from interlock.drivers.protocol.files.schemas.universal import STRINGS
from interlock.drivers.protocol.kinds.server import TEXT, Confinement, JsonObject, LocalServer, Transport
from interlock.drivers.protocol.problems import FileFindings

_IMAGE = re.compile(
    r"[A-Za-z0-9][A-Za-z0-9._/:-]*?(?P<tag>:[A-Za-z0-9_][A-Za-z0-9._-]*)?(?P<digest>@sha256:[0-9a-f]{64})?", re.ASCII
)
_URL_PATH = re.compile(r"/[!-~]*")


class Docker(LocalServer, frozen=True, kw_only=True, tag="docker"):
    kind: ClassVar[str] = "docker"
    keys: ClassVar[tuple[str, ...]] = ("image", "port", "path", "volumes", "args", "env", "cwd")
    transports: ClassVar[tuple[Transport, ...]] = ("stdio", "http")
    confinement: ClassVar[Confinement] = "container"
    schema: ClassVar[dict[str, Any]] = {
        **LocalServer.schema,
        "port": {"type": "integer", "minimum": 1, "maximum": 65535},
        "path": TEXT,
        "volumes": STRINGS,
    }
    # The published schema has `path` for programs only. Here it is the path of a URL.
    published_keys: ClassVar[frozenset[str]] = LocalServer.published_keys - {"path"}
    registry_type: ClassVar[str | None] = "oci"
    registry_name: ClassVar[str | None] = "the registry of images"
    launcher: ClassVar[tuple[str, ...]] = ("docker", "run")

    image: str
    port: int | None = None
    path: str = "/mcp"  # of the URL at which the container serves HTTP
    volumes: tuple[str, ...] = ()

    @classmethod
    def read(
        cls, block: JsonObject, transport: str, findings: FileFindings, insecure_hosts: Collection[str]
    ) -> Self | None:
        image = _IMAGE.fullmatch(block["image"])
        if image is None:
            findings.say(
                "/server/image", "schema_invalid", "this is not the name of an image", "write registry/name:tag"
            )
            return None
        if image["digest"] is None and (image["tag"] in {None, ":latest"}):  # AIP-server-5
            findings.say(
                "/server/image",
                "image_unpinned",
                "the image names no fixed version",
                "write a tag or a digest, so that an update is your decision",
                "warning",
            )
        if transport == "http" and "port" not in block:
            findings.say(
                "/server/port", "schema_invalid", "port is missing", "name the port the container serves HTTP on"
            )
        if "path" in block and not _URL_PATH.fullmatch(block["path"]):
            findings.say("/server/path", "schema_invalid", "this is no path of a URL", "write one like /mcp")
        return msgspec.convert(block, cls)

    @property
    def source(self) -> str | None:
        """Return the name of the image without its tag and digest."""
        folder, slash, name = self.image.partition("@")[0].rpartition("/")
        return folder + slash + name.partition(":")[0]

    def client_command(self, args: Sequence[str], variables: Sequence[str]) -> list[str]:
        volumes = [word for each in self.volumes for word in ("-v", each)]
        environment = [word for each in variables for word in ("-e", each)]
        return ["docker", "run", "-i", "--rm", *volumes, *environment, self.image, *args]

    def registry_package(self) -> dict[str, Any]:
        package: dict[str, Any] = {"registryType": "oci", "identifier": self.image, "transport": {"type": "stdio"}}
        if self.volumes:
            package["runtimeHint"] = "docker"
            package["runtimeArguments"] = [{"type": "named", "name": "-v", "value": each} for each in self.volumes]
        return package

    @classmethod
    def name_parts(cls, reference: str) -> tuple[str, str]:
        scope, _, name = reference.partition("@")[0].rpartition("/")
        return scope, name.partition(":")[0]
