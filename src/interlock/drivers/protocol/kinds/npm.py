"""Servers of kind npm: a package of the npm registry, run with Node.js."""

import re
from collections.abc import Collection, Sequence
from typing import Any, ClassVar, Self

import msgspec

from interlock.drivers.protocol.kinds.server import TEXT, JsonObject, LocalServer, read_pin
from interlock.drivers.protocol.problems import FileFindings

_PACKAGE = re.compile(
    r"(?P<name>(?:@[A-Za-z0-9~][A-Za-z0-9._~-]*/)?[A-Za-z0-9~][A-Za-z0-9._~-]*)(?:@(?P<version>[A-Za-z0-9^~][\w.+-]*))?",
    re.ASCII,
)
_PIN = re.compile(r"(?<=.)@[^/@]*$")


class Npm(LocalServer, frozen=True, kw_only=True, tag="npm"):
    kind: ClassVar[str] = "npm"
    keys: ClassVar[tuple[str, ...]] = ("package", "version", "entry", "args", "env", "cwd")
    schema: ClassVar[dict[str, Any]] = {**LocalServer.schema, "version": TEXT, "entry": TEXT}
    registry_type: ClassVar[str | None] = "npm"
    registry_name: ClassVar[str | None] = "the npm registry"
    launcher: ClassVar[tuple[str, ...]] = ("npx",)

    package: str  # the name alone; the pin, from @ or from version, is `version`
    version: str | None = None
    entry: str | None = None

    @classmethod
    def read(
        cls, block: JsonObject, transport: str, findings: FileFindings, insecure_hosts: Collection[str]
    ) -> Self | None:
        match = _PACKAGE.fullmatch(block["package"])
        if match is None:
            findings.say(
                "/server/package",
                "schema_invalid",
                "this is not the name of an npm package",
                "write @scope/name or name@1.2.3",
            )
            return None
        version = read_pin(match["version"], block.get("version"), findings)
        return msgspec.convert({**block, "package": match["name"], "version": version}, cls)

    @property
    def source(self) -> str | None:
        return self.package

    @property
    def pinned_version(self) -> str | None:
        return self.version

    @classmethod
    def publish(cls, block: JsonObject, lost: list[str], changed: list[str]) -> dict[str, Any]:
        version = block.get("version")
        if not isinstance(version, str):
            return super().publish(block, lost, changed)
        published = super().publish({key: value for key, value in block.items() if key != "version"}, lost, changed)
        if "@" not in published["package"][1:]:
            published["package"] = f"{published['package']}@{version}"
        changed.append("server.version")
        return published

    def client_command(self, args: Sequence[str], variables: Sequence[str]) -> list[str]:
        package = self.package if self.version is None else f"{self.package}@{self.version}"
        words = ["-p", package, self.entry] if self.entry else [package]
        return ["npx", "-y", *words, *args]

    def registry_package(self) -> dict[str, Any]:
        pin = {"version": self.version} if self.version not in {None, "latest"} else {}
        return {"registryType": "npm", "identifier": self.package, **pin, "transport": {"type": "stdio"}}

    @classmethod
    def name_parts(cls, reference: str) -> tuple[str, str]:
        scope, _, name = _PIN.sub("", reference).rpartition("/")
        return scope, name
