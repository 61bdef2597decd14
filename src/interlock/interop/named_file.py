"""Reads a file that a person names: a client's configuration or a package's description, told apart by its form."""

from pathlib import Path
from typing import Final

import msgspec

from interlock.core.bounded_file import read_bounded
from interlock.drivers.protocol.files.driver import DRIVER_FILE
from interlock.interop.bundles import BadBundle, look_into
from interlock.interop.client_discovery import SourceFile
from interlock.interop.protocol.clients import BY_NAME, CLIENTS, Client, System
from interlock.interop.protocol.formats import BYTES_MAX, Format, Unreadable, read_data
from interlock.interop.protocol.model import FileReading
from interlock.interop.protocol.read.bundle_manifest import read_manifest
from interlock.interop.protocol.read.client_files import read_client_file
from interlock.interop.protocol.read.docker_files import is_docker_data, read_docker
from interlock.interop.protocol.read.driver_files import read_driver_entry
from interlock.interop.protocol.read.registry_files import is_registry_data, read_registry

BUNDLES: Final = frozenset({".mcpb", ".dxt"})
_FORMS: Final[dict[str, Format]] = {".toml": "toml", ".yaml": "yaml", ".yml": "yaml"}


class UnknownFormat(Exception):
    """The file can be read, and nothing in it says whose it is."""


def read_file(path: Path, client: Client | None, *, system: System, packages: Path) -> SourceFile:
    """Read the file. `packages`: the folder in which bundles are unpacked, which is not done here."""
    source = SourceFile(client="file", title=path.name, scope="file", path=path, state="absent")
    if path.suffix.lower() in BUNDLES:
        return _bundle(source, system, packages)
    data = read_bounded(path, BYTES_MAX)
    if not isinstance(data, bytes):
        state = "absent" if data is None else "unreadable"
        return msgspec.structs.replace(source, state=state, reason=data)
    if client is None and path.name == DRIVER_FILE:
        return _read(source, "driver", "a driver", read_driver_entry(data))
    if client is None:
        described = _describe(source, data)
        if isinstance(described, SourceFile):
            return described
        client = described
    return _read(source, client.name, client.title, read_client_file(data, client))


def _bundle(source: SourceFile, system: System, packages: Path) -> SourceFile:
    if not source.path.exists():
        return source
    try:
        bundle = look_into(source.path, packages)
    except BadBundle as bad:
        return msgspec.structs.replace(source, state="unreadable", reason=str(bad))
    reading = _read(source, "bundle", "a bundle", read_manifest(bundle.manifest, system))
    return msgspec.structs.replace(reading, bundle=bundle)


def _describe(source: SourceFile, data: bytes) -> SourceFile | Client:
    form = _FORMS.get(source.path.suffix.lower(), "json")
    try:
        content = read_data(data, form)
    except Unreadable as error:
        return msgspec.structs.replace(source, state="unreadable", reason=str(error))
    by_place = _by_place(source.path)
    if by_place is not None:
        return by_place
    if form == "json" and is_registry_data(content):
        return _read(source, "registry", "a registry's description", read_registry(data))
    if form == "yaml" and is_docker_data(content):
        return _read(source, "docker", "a Docker description", read_docker(data))
    keys = set(content) if isinstance(content, dict) else set()
    for key, name in _KEYS.items():
        if key in keys and BY_NAME[name].form == form:
            return BY_NAME[name]
    raise UnknownFormat(f"{source.path.name} does not say whose it is")


_KEYS: Final = {
    "mcpServers": "claude-code",
    "servers": "vscode",
    "context_servers": "zed",
    "mcp_servers": "codex",
    "extensions": "goose",
}


def _by_place(path: Path) -> Client | None:
    """Return the only client that uses a file with this name and folder, or None."""
    fitting = {
        client.name
        for client in CLIENTS
        for place in client.places
        if path.parts[-min(2, len(Path(place.path).parts)) :] == Path(place.path).parts[-2:]
    }
    return BY_NAME[fitting.pop()] if len(fitting) == 1 else None


def _read(source: SourceFile, client: str, title: str, reading: FileReading) -> SourceFile:
    if reading.problem is not None:
        return msgspec.structs.replace(source, state="unreadable", reason=reading.problem)
    return msgspec.structs.replace(source, client=client, title=title, state="read", reading=reading)
