"""Names of npm and PyPI packages as people write them, and the error every installation ends in when it fails."""

import re
from typing import Final, Literal

import msgspec

REFERENCE_CHARS_MAX: Final = 214  # npm's limit for a name; a folder's name has to hold it too

Registry = Literal["npm", "pypi"]

_PYPI = re.compile(
    r"(?P<name>[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)"
    r"(?:\[(?P<extras>[A-Za-z0-9._-]+(?:,[A-Za-z0-9._-]+)*)\])?"
    r"(?:==(?P<version>[A-Za-z0-9][A-Za-z0-9.!+_-]*))?"
)
_NPM = re.compile(
    r"(?P<name>(?:@[A-Za-z0-9~][A-Za-z0-9._~-]*/)?[A-Za-z0-9~][A-Za-z0-9._~-]*)"
    r"(?:@(?P<version>[A-Za-z0-9^~][A-Za-z0-9._+-]*))?"
)
# Both installers take a name that ends so for a file in the current folder.
_ARCHIVE = re.compile(r"\.(?:tgz|tar|tar\.[a-z0-9]+|tbz|txz|zip|whl|egg)(?:@|$)", re.IGNORECASE)


class PackageUnavailable(Exception):
    """The program is not available; the message says why and what to do. `output` ends what the installer said."""

    def __init__(self, message: str, output: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.output = output


class SourceBuildRefused(PackageUnavailable):
    """A package exists as source code only; building it would run its code, which the operator has not allowed."""


class Reference(msgspec.Struct, frozen=True, kw_only=True):
    registry: Registry
    text: str  # what the installer is told
    name: str
    folder: str


def read_reference(registry: Registry, text: str) -> Reference:
    """`text` is a name with an optional version: "mcp-server-time==2026.10.19", "@scope/server@1.2.3"."""
    pattern = {"pypi": _PYPI, "npm": _NPM}.get(registry)
    if pattern is None:
        raise PackageUnavailable(f"no registry {registry!r}; use npm or pypi")
    found = pattern.fullmatch(text) if len(text) <= REFERENCE_CHARS_MAX else None
    if found is None or _ARCHIVE.search(text) is not None:
        form = "NAME or NAME==VERSION" if registry == "pypi" else "NAME, @SCOPE/NAME or either with @VERSION"
        raise PackageUnavailable(f"{text[:80]!r} is not the name of a package; write {form}")
    parts = found.groupdict()
    name = normalised_name(parts["name"]) if registry == "pypi" else parts["name"]
    # "+" and a second "@" are in no name, so two packages never share a folder.
    folder = name.replace("/", "+")
    if parts.get("extras"):
        folder += "+" + "+".join(sorted(normalised_name(extra) for extra in parts["extras"].split(",")))
    if parts["version"]:
        folder += "@" + parts["version"]
    return Reference(registry=registry, text=text, name=name, folder=folder)


def normalised_name(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()  # PEP 503
