"""Servers of kind pypi: a Python package, run in an environment of its own. An extension of AIP-32 (AIP-front-11)."""

import re
from collections.abc import Collection, Sequence
from typing import Any, ClassVar, Literal, Self

import msgspec

from interlock.drivers.protocol.kinds.server import TEXT, JsonObject, LocalServer, read_pin
from interlock.drivers.protocol.problems import FileFindings

_PACKAGE = re.compile(
    r"(?P<name>[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)(?P<extras>\[[A-Za-z0-9][A-Za-z0-9._,-]*\])?"
    r"(?:==(?P<version>[A-Za-z0-9][A-Za-z0-9.!+_-]*))?",
    re.ASCII,
)
_MODULE = re.compile(r"-m [A-Za-z_][A-Za-z0-9_.]*", re.ASCII)
_SCRIPT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*", re.ASCII)
_PIN = re.compile(r"(?P<name>.+?)==(?P<version>[^=]+)")
_AFTER_NAME = re.compile(r"[\[=<>!~;@ ].*", re.DOTALL)
_NEWER_MCP = re.compile(
    r"cannot import name .* from '?mcp[.' ]|No module named '?mcp\b|module 'mcp[\w.]*' has no attribute"
    r"|'(Server|FastMCP|MCPServer|ServerSession|RequestContext|NotificationOptions)' object has no attribute"
    r"|type object '\w+' has no attribute .*mcp"
)


class Pypi(LocalServer, frozen=True, kw_only=True, tag="pypi"):
    kind: ClassVar[str] = "pypi"
    keys: ClassVar[tuple[str, ...]] = ("package", "version", "entry", "runner", "args", "env", "cwd")
    schema: ClassVar[dict[str, Any]] = {
        **LocalServer.schema,
        "version": TEXT,
        "entry": TEXT,
        "runner": {"enum": ["auto", "uvx", "pipx", "venv"]},
    }
    is_published: ClassVar[bool] = False
    registry_type: ClassVar[str | None] = "pypi"
    registry_name: ClassVar[str | None] = "PyPI"
    launcher: ClassVar[tuple[str, ...]] = ("uvx",)

    package: str  # with its extras, without the pin
    version: str | None = None
    entry: str  # the console script, or "-m module"
    runner: Literal["auto", "uvx", "pipx", "venv"] = "auto"

    @classmethod
    def read(
        cls, block: JsonObject, transport: str, findings: FileFindings, insecure_hosts: Collection[str]
    ) -> Self | None:
        match = _PACKAGE.fullmatch(block["package"])
        if match is None:
            findings.say(
                "/server/package",
                "schema_invalid",
                "this is not the name of a PyPI package",
                "write name or name==1.2.3",
            )
            return None
        entry = block.get("entry", match["name"])
        if not _SCRIPT.fullmatch(entry) and not _MODULE.fullmatch(entry):
            findings.say(
                "/server/entry", "schema_invalid", "this is no console script", "write its name, or `-m module`"
            )
        version = read_pin(match["version"], block.get("version"), findings)
        package = match["name"] + (match["extras"] or "")
        return msgspec.convert({**block, "package": package, "version": version, "entry": entry}, cls)

    @property
    def source(self) -> str | None:
        return self.package

    @property
    def pinned_version(self) -> str | None:
        return self.version

    @classmethod
    def publish(cls, block: JsonObject, lost: list[str], changed: list[str]) -> dict[str, Any]:
        """Write the server as the program uvx with the package as an argument: AIP-32 has no Python kind."""
        package = str(block["package"])
        pin = _PIN.fullmatch(package)
        name, version = (pin["name"], pin["version"]) if pin is not None else (package, block.get("version"))
        entry = str(block.get("entry", name.partition("[")[0]))
        program = ["python", *entry.split(" ", 1)] if entry.startswith("-m ") else [entry]
        requirement = name if version is None else f"{name}=={version}"
        changed.append("server.kind")
        lost += [f"server.{key}" for key in ("cwd", "runner") if key in block]
        published: dict[str, Any] = {"kind": "binary", "path": "uvx"}
        published["args"] = ["--from", requirement, *program, *block.get("args", ())]
        return published | ({"env": block["env"]} if "env" in block else {})

    def client_command(self, args: Sequence[str], variables: Sequence[str]) -> list[str]:
        package = self.package if self.version is None else f"{self.package}=={self.version}"
        if self.package == self.entry:
            return ["uvx", package, *args]
        return ["uvx", "--from", package, *self.entry.split(" "), *args]

    def registry_package(self) -> dict[str, Any]:
        pin = {"version": self.version} if self.version not in {None, "latest"} else {}
        return {"registryType": "pypi", "identifier": self.package, **pin, "transport": {"type": "stdio"}}

    @classmethod
    def advise_on_start(cls, output: str, *, has_extra_packages: bool) -> str | None:
        if has_extra_packages or _NEWER_MCP.search(output) is None:
            return None
        return "it was made for an older mcp package: --with 'mcp<2' installs that beside it"

    @classmethod
    def name_parts(cls, reference: str) -> tuple[str, str]:
        return "", _AFTER_NAME.sub("", reference)
