"""Files of other MCP clients on this machine: where they are, what they say, and one entry written to one of them.

Import only reads them. `put_entry`, for export, changes one entry and keeps a backup that only its owner may read. The
system, the home folder and the environment are arguments, so that the home of another machine can be read too. A file
that is absent, too large or unreadable is reported and skipped. A file that a person names is recognised by its form.
"""

import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, Literal, cast

import msgspec

from interlock.config.folders import home_folder
from interlock.core.bounded_file import read_bounded
from interlock.drivers.protocol.files.driver import DRIVER_FILE
from interlock.drivers.workspace.folder import write_whole
from interlock.interop.bundles import BadBundle, Bundle, look_into
from interlock.interop.protocol.client_files import read_client_file
from interlock.interop.protocol.clients import BY_NAME, CLIENTS, Base, ClientProgram, ConfigPlace, Format, System
from interlock.interop.protocol.launchers import is_own
from interlock.interop.protocol.model import FileReading, ServerEntry
from interlock.interop.protocol.package_files import (
    is_docker_data,
    is_registry_data,
    read_docker,
    read_driver_entry,
    read_manifest,
    read_registry,
)
from interlock.interop.protocol.text_edits import BYTES_MAX, CannotEdit, UnreadableFile, read_data, with_entry

State = Literal["read", "absent", "unreadable"]
ENV_FILE_BYTES_MAX: Final = 256 * 1024


class ClientMachine(msgspec.Struct, frozen=True, kw_only=True):
    system: System
    home: Path
    project: Path
    env: Mapping[str, str]

    @classmethod
    def this(cls, env: Mapping[str, str], project: Path) -> "ClientMachine":
        system = sys.platform if sys.platform in {"linux", "darwin", "win32"} else "linux"
        return cls(system=cast(System, system), home=home_folder(env), project=project, env=env)


class SourceFile(msgspec.Struct, frozen=True, kw_only=True):
    client: str
    title: str
    scope: Literal["global", "project", "file"]
    path: Path
    state: State
    reason: str | None = None
    reading: FileReading = FileReading()
    bundle: Bundle | None = None


def places(
    machine: ClientMachine, clients: Sequence[ClientProgram] = CLIENTS
) -> Iterator[tuple[ClientProgram, ConfigPlace, Path]]:
    for client in clients:
        for place in client.places:
            if machine.system in place.systems and (base := _base(machine, place.base)) is not None:
                yield client, place, base / place.path


def look(machine: ClientMachine, clients: Sequence[ClientProgram] = CLIENTS) -> list[SourceFile]:
    sources = []
    seen: set[tuple[str, Path]] = set()
    for client, place, path in places(machine, clients):
        if (client.name, path) not in seen:
            seen.add((client.name, path))
            sources.append(read_source(client, path, place.scope))
    return sources


def read_source(client: ClientProgram, path: Path, scope: Literal["global", "project", "file"] = "file") -> SourceFile:
    source = SourceFile(client=client.name, title=client.title, scope=scope, path=path, state="absent")
    data = read_bounded(path, BYTES_MAX)
    if data is None:
        return source
    if isinstance(data, str):
        return msgspec.structs.replace(source, state="unreadable", reason=data)
    reading = read_client_file(data, client)
    if reading.problem is not None:
        return msgspec.structs.replace(source, state="unreadable", reason=reading.problem)
    return msgspec.structs.replace(source, state="read", reading=reading)


def env_files(sources: Sequence[SourceFile], machine: ClientMachine) -> dict[str, str]:
    """Return the texts of all files that entries name as envFile, by the path as written."""
    contents: dict[str, str] = {}
    for source in sources:
        for entry in source.reading.entries:
            if entry.env_file is None or entry.env_file in contents:
                continue
            data = read_bounded(env_file_path(entry.env_file, entry, source, machine), ENV_FILE_BYTES_MAX)
            if isinstance(data, bytes):
                contents[entry.env_file] = data.decode("utf-8", "replace")
    return contents


def env_file_path(named: str, entry: ServerEntry, source: SourceFile, machine: ClientMachine) -> Path:
    written = named.replace("${workspaceFolder}", entry.project or str(machine.project))
    path = Path(written.replace("${userHome}", str(machine.home)).replace("~/", f"{machine.home}/", 1))
    base = machine.project if source.scope != "file" else source.path.parent
    return path if path.is_absolute() else base / path


def without_own(source: SourceFile, addresses: Collection[str]) -> SourceFile:
    """Return the source without the entries that are Interlock itself."""
    entries = tuple(each for each in source.reading.entries if not is_own(each, addresses))
    return msgspec.structs.replace(source, reading=msgspec.structs.replace(source.reading, entries=entries))


def _base(machine: ClientMachine, base: Base) -> Path | None:
    home = machine.home

    def chosen(variable: str, usual: Path) -> Path:
        named = machine.env.get(variable, "")
        return Path(named) if named and Path(named).is_absolute() else usual

    match base:
        case "home":
            return home
        case "project":
            return machine.project
        case "xdg":
            return chosen("XDG_CONFIG_HOME", home / ".config")
        case "support":
            return home / "Library" / "Application Support"
        case "appdata":
            return chosen("APPDATA", home / "AppData" / "Roaming")
        case "localappdata":
            return chosen("LOCALAPPDATA", home / "AppData" / "Local")
        case "claude":
            return chosen("CLAUDE_CONFIG_DIR", home)
        case "codex":
            return chosen("CODEX_HOME", home / ".codex")
        case "copilot":
            return chosen("COPILOT_HOME", home / ".copilot")


# The configuration file of one client: finds it, adds an entry, and keeps a backup that only its owner may read.

BACKUP: Final = ".interlock-backup"
OWNER_ONLY: Final = 0o600


class WriteResult(msgspec.Struct, frozen=True, kw_only=True):
    path: Path
    changed: bool
    backup: Path | None = None


def client_file(client: ClientProgram, machine: ClientMachine) -> Path:
    """Return the client's file of this user, preferring a file that exists."""
    own = [path for _, place, path in places(machine, [client]) if place.scope == "global"]
    return next((path for path in own if path.exists()), own[0])


def put_entry(path: Path, client: ClientProgram, name: str, entry: dict[str, object]) -> WriteResult:
    """Write an entry. Raises CannotEdit. A file that is a link stays one; what it leads to is written."""
    data = read_bounded(path, BYTES_MAX)
    if isinstance(data, str):
        raise CannotEdit(data)
    try:
        text = "" if data is None else data.decode("utf-8")
    except UnicodeDecodeError:
        raise CannotEdit("it is not UTF-8") from None
    mark = "\ufeff" if text.startswith("\ufeff") else ""
    edited = mark + with_entry(text.removeprefix("\ufeff"), client, name, entry)
    if edited == text:
        return WriteResult(path=path, changed=False)
    try:
        target = path.resolve()
        target.parent.mkdir(parents=True, exist_ok=True)
        backup = None
        if data is not None:
            backup = _free(target)
            write_whole(backup, data, OWNER_ONLY)
        write_whole(target, edited.encode(), None if data is not None else OWNER_ONLY)
    except OSError as error:
        raise CannotEdit(f"it cannot be written ({error.strerror})") from None
    return WriteResult(path=path, changed=True, backup=backup)


def _free(path: Path) -> Path:
    """Return an unused name for the backup, so that an older one is not overwritten."""
    backup = path.with_name(f"{path.name}{BACKUP}")
    number = 2
    while backup.exists():
        backup = path.with_name(f"{path.name}{BACKUP}-{number}")
        number += 1
    return backup


BUNDLES: Final = frozenset({".mcpb", ".dxt"})
_FORMS: Final[dict[str, Format]] = {".toml": "toml", ".yaml": "yaml", ".yml": "yaml"}


class UnknownFormat(Exception):
    """The file can be read, and nothing in it says whose it is."""


def read_file(path: Path, client: ClientProgram | None, *, system: System, packages: Path) -> SourceFile:
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


def _describe(source: SourceFile, data: bytes) -> SourceFile | ClientProgram:
    form = _FORMS.get(source.path.suffix.lower(), "json")
    try:
        content = read_data(data, form)
    except UnreadableFile as error:
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


def _by_place(path: Path) -> ClientProgram | None:
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
