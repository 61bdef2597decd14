"""Files of other MCP clients on this machine: finds and reads them, and writes one entry to one of them.

An import only reads the files. `put_entry`, for an export, changes one entry and keeps a backup that only the owner may
read. The system, the home folder and the environment are arguments, so files of another machine can be read too. A file
that is absent, too large or unreadable is reported and skipped. The format of a file that the user names is detected.

Bundles (MCPB, DXT) are zip files with a manifest. They are read without unpacking, and unpacked into a separate folder.
Because bundles are untrusted, a bundle is refused before anything is written if it has names outside of its folder,
links, encrypted parts or too much data. The sizes that it states are not trusted: unpacking ends, and leaves nothing,
when it has written too much. The folder is named after the bundle's digest and does not change.
"""

import hashlib
import shutil
import stat
import sys
import tempfile
import zipfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Final, Literal, cast

import msgspec

from interlock.config.folders import home_folder
from interlock.core.bounded_file import read_bounded
from interlock.drivers.protocol.files.driver import DRIVER_FILE
from interlock.drivers.workspace.folder import write_whole
from interlock.interop.protocol import package_files
from interlock.interop.protocol.client_files import read_client_file
from interlock.interop.protocol.clients import BY_NAME, CLIENTS, Base, ClientProgram, ConfigPlace, Format, System
from interlock.interop.protocol.launchers import is_own
from interlock.interop.protocol.model import FileReading, ServerEntry
from interlock.interop.protocol.text_edits import BYTES_MAX, CannotEdit, UnreadableFile, read_data, with_entry

FILE_BYTES_MAX: Final = 512 * 1024 * 1024
UNPACKED_BYTES_MAX: Final = 1024 * 1024 * 1024
ENTRIES_MAX: Final = 50_000
MANIFEST_BYTES_MAX: Final = 4 * 1024 * 1024
_CHUNK: Final = 1024 * 1024


class BadBundle(Exception):
    """Error for a bundle that cannot be used. Its message explains why."""


class Bundle(msgspec.Struct, frozen=True, kw_only=True):
    """A bundle (MCPB or DXT) whose content has passed all checks."""

    path: Path
    target: Path  # where it is, or will be, unpacked
    manifest: bytes


def look_into(path: Path, packages: Path) -> Bundle:
    """Check a bundle and read its manifest without unpacking it. Raise BadBundle if the bundle is refused."""
    try:
        with path.open("rb") as file:
            if not stat.S_ISREG(path.stat().st_mode) or path.stat().st_size > FILE_BYTES_MAX:
                raise BadBundle(f"it is no file of at most {FILE_BYTES_MAX // (1024 * 1024)} MiB")
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        with zipfile.ZipFile(path) as archive:
            _check(archive)
            with archive.open(package_files.MANIFEST) as manifest:
                data = manifest.read(MANIFEST_BYTES_MAX + 1)
    except KeyError:
        raise BadBundle(f"it holds no {package_files.MANIFEST}") from None
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError, ValueError):
        raise BadBundle("it is not a zip file that can be read") from None
    except OSError as error:
        raise BadBundle(f"it cannot be read ({error.strerror})") from None
    if len(data) > MANIFEST_BYTES_MAX:
        raise BadBundle(f"its {package_files.MANIFEST} is too large")
    return Bundle(path=path, target=packages / "bundles" / digest[:32], manifest=data)


def unpack(bundle: Bundle) -> None:
    """Unpack the bundle completely or not at all. Do nothing if it was unpacked before. Raise BadBundle if it is
    refused.
    """
    if bundle.target.is_dir():
        return
    try:
        bundle.target.parent.mkdir(parents=True, exist_ok=True)
        beside = Path(tempfile.mkdtemp(dir=bundle.target.parent, prefix=".unpacking-"))
    except OSError as error:
        raise BadBundle(f"{bundle.target.parent} cannot be written ({error.strerror})") from None
    try:
        with zipfile.ZipFile(bundle.path) as archive:
            left = UNPACKED_BYTES_MAX
            for entry in _check(archive):
                left -= _write_entry(archive, entry, beside, left)
        beside.chmod(0o755)
        beside.rename(bundle.target)
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError, OSError) as error:
        if not bundle.target.is_dir():  # another import was quicker
            raise BadBundle(f"it cannot be unpacked ({error})") from None
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def _check(archive: zipfile.ZipFile) -> list[zipfile.ZipInfo]:
    """Return the file entries of an archive. Raise BadBundle if any entry is refused."""
    entries = archive.infolist()
    if len(entries) > ENTRIES_MAX:
        raise BadBundle(f"it holds more than {ENTRIES_MAX} files")
    if sum(entry.file_size for entry in entries) > UNPACKED_BYTES_MAX:
        raise BadBundle(f"it is larger than {UNPACKED_BYTES_MAX // (1024 * 1024)} MiB when unpacked")
    for entry in entries:
        name, fault = PurePosixPath(entry.orig_filename), None
        if name.is_absolute() or ".." in name.parts or "\\" in entry.orig_filename or ":" in entry.orig_filename:
            fault = "would be written outside of its folder"
        elif "\0" in entry.orig_filename or not entry.filename.strip("/. "):
            fault = "has no name that can be used"
        elif stat.S_IFMT(entry.external_attr >> 16) not in {0, stat.S_IFREG, stat.S_IFDIR}:
            fault = "is a link or a device"
        elif entry.flag_bits & 0x1:
            fault = "is encrypted"
        if fault is not None:
            raise BadBundle(f"a file in it {fault}")
    return [entry for entry in entries if not entry.is_dir()]


def _write_entry(archive: zipfile.ZipFile, entry: zipfile.ZipInfo, folder: Path, left: int) -> int:
    """Unpack one file of a bundle into `folder` and return its size in bytes. Raise BadBundle if it is larger than
    `left`; the sizes that the archive states are not trusted.
    """
    path = folder / entry.filename
    if not path.resolve().is_relative_to(folder.resolve()):
        raise BadBundle("a file in it would be written outside of its folder")
    path.parent.mkdir(parents=True, exist_ok=True)
    written = 0
    with archive.open(entry) as source, path.open("xb") as file:
        while chunk := source.read(_CHUNK):
            written += len(chunk)
            if written > left:
                raise BadBundle(f"it is larger than {UNPACKED_BYTES_MAX // (1024 * 1024)} MiB when unpacked")
            file.write(chunk)
    path.chmod(0o755 if (entry.external_attr >> 16) & 0o111 else 0o644)
    return written


State = Literal["read", "absent", "unreadable"]
ENV_FILE_BYTES_MAX: Final = 256 * 1024


class ClientMachine(msgspec.Struct, frozen=True, kw_only=True):
    """The machine whose client files are read: its system, home folder and environment."""

    system: System
    home: Path
    project: Path
    env: Mapping[str, str]

    @classmethod
    def this(cls, env: Mapping[str, str], project: Path) -> "ClientMachine":
        system = sys.platform if sys.platform in {"linux", "darwin", "win32"} else "linux"
        return cls(system=cast(System, system), home=home_folder(env), project=project, env=env)


class SourceFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file of a client, or a file that the user named, with its entries if it could be read."""

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
    """Yield each file in which these clients may store servers on this machine."""
    for client in clients:
        for place in client.places:
            if machine.system in place.systems:
                yield client, place, _base(machine, place.base) / place.path


def look(machine: ClientMachine, clients: Sequence[ClientProgram] = CLIENTS) -> list[SourceFile]:
    """Read all files in which these clients may store servers."""
    sources = []
    seen: set[tuple[str, Path]] = set()
    for client, place, path in places(machine, clients):
        if (client.name, path) not in seen:
            seen.add((client.name, path))
            sources.append(read_source(client, path, place.scope))
    return sources


def read_source(client: ClientProgram, path: Path, scope: Literal["global", "project", "file"] = "file") -> SourceFile:
    """Read a client's file and return its entries, or a problem if it cannot be read."""
    source = SourceFile(client=client.name, title=client.title, scope=scope, path=path, state="absent")
    return _read_into(source, lambda data: (client.name, client.title, read_client_file(data, client)))


def env_files(sources: Sequence[SourceFile], machine: ClientMachine) -> dict[str, str]:
    """Return the texts of all files that entries name as envFile. Keys are the paths as the entries write them."""
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
    """Return the source without entries that point to Interlock itself."""
    entries = tuple(each for each in source.reading.entries if not is_own(each, addresses))
    return msgspec.structs.replace(source, reading=msgspec.structs.replace(source.reading, entries=entries))


# The variable that names each base, and the folder below the home that is used without it.
_BASES: Final[Mapping[Base, tuple[str, str]]] = {
    "home": ("", ""),
    "xdg": ("XDG_CONFIG_HOME", ".config"),
    "support": ("", "Library/Application Support"),
    "appdata": ("APPDATA", "AppData/Roaming"),
    "localappdata": ("LOCALAPPDATA", "AppData/Local"),
    "claude": ("CLAUDE_CONFIG_DIR", ""),
    "codex": ("CODEX_HOME", ".codex"),
    "copilot": ("COPILOT_HOME", ".copilot"),
}


def _base(machine: ClientMachine, base: Base) -> Path:
    """Return the folder that a base such as "xdg" means on this machine. An environment variable that does not hold an
    absolute path is ignored.
    """
    if base == "project":
        return machine.project
    variable, usual = _BASES[base]
    named = Path(machine.env.get(variable, "") if variable else "")
    return named if named.is_absolute() else machine.home / usual


BACKUP: Final = ".interlock-backup"
OWNER_ONLY: Final = 0o600


def client_file(client: ClientProgram, machine: ClientMachine) -> Path:
    """Return the file in which the client stores servers for all projects of this user. If there are several, return
    one that exists.
    """
    own = [path for _, place, path in places(machine, [client]) if place.scope == "global"]
    return next((path for path in own if path.exists()), own[0])


def put_entry(path: Path, client: ClientProgram, name: str, entry: dict[str, object]) -> tuple[bool, Path | None]:
    """Write an entry to a client's file. If the file is a symbolic link, write to its target.

    Return whether the file was changed, and the path of the backup of its former content, if there is one.

    Raise UnreadableFile if the file cannot be read, and CannotEdit if it cannot be written or changed safely.
    """
    data = read_bounded(path, BYTES_MAX)
    if isinstance(data, str):
        raise UnreadableFile(data)
    try:
        text = "" if data is None else data.decode("utf-8")
    except UnicodeDecodeError:
        raise UnreadableFile("it is not UTF-8") from None
    mark = "\ufeff" if text.startswith("\ufeff") else ""
    edited = mark + with_entry(text.removeprefix("\ufeff"), client, name, entry)
    if edited == text:
        return False, None
    try:
        target = path.resolve()
        target.parent.mkdir(parents=True, exist_ok=True)
        backup = None
        if data is not None:
            backup = target.with_name(f"{target.name}{BACKUP}")
            number = 2
            while backup.exists():  # an older backup stays
                backup = target.with_name(f"{target.name}{BACKUP}-{number}")
                number += 1
            write_whole(backup, data, OWNER_ONLY)
        write_whole(target, edited.encode(), None if data is not None else OWNER_ONLY)
    except OSError as error:
        raise CannotEdit(f"it cannot be written ({error.strerror})") from None
    return True, backup


BUNDLES: Final = frozenset({".mcpb", ".dxt"})
_FORMS: Final[dict[str, Format]] = {".toml": "toml", ".yaml": "yaml", ".yml": "yaml"}


class UnknownFormat(Exception):
    """Error for a file that can be read, but belongs to no known client or format."""


def read_file(path: Path, client: ClientProgram | None, *, system: System, packages: Path) -> SourceFile:
    """Read a file that the user named. `packages` is the folder for unpacked bundles, but nothing is unpacked here.

    Raise UnknownFormat if `client` is None and the file does not show to which client or format it belongs.
    """
    source = SourceFile(client="file", title=path.name, scope="file", path=path, state="absent")
    if path.suffix.lower() not in BUNDLES:
        return _read_into(source, lambda data: _read_named(path, data, client))
    if not path.exists():
        return source
    try:
        bundle = look_into(path, packages)
        reading = package_files.read_manifest(bundle.manifest, system)
    except (BadBundle, UnreadableFile) as error:
        return msgspec.structs.replace(source, state="unreadable", reason=str(error))
    facts = {"client": "bundle", "title": "a bundle", "reading": reading, "bundle": bundle}
    return msgspec.structs.replace(source, state="read", **facts)


def _read_named(path: Path, data: bytes, client: ClientProgram | None) -> tuple[str, str, FileReading]:
    """Return the client or format of a file, its title, and its entries.

    Raise UnreadableFile if the file cannot be read, and UnknownFormat if it belongs to no known client or format.
    """
    if client is None and path.name == DRIVER_FILE:
        return "driver", "a driver", package_files.read_driver_entry(data)
    form = _FORMS.get(path.suffix.lower(), "json")
    if client is None:
        # A client's file is recognised by its name and its folder.
        usual = [(client.name, Path(place.path).parts) for client in CLIENTS for place in client.places]
        names = {name for name, parts in usual if path.parts[-min(2, len(parts)) :] == parts[-2:]}
        client = BY_NAME[names.pop()] if len(names) == 1 else None
    if client is None:
        content = read_data(data, form)
        if form == "json" and package_files.is_registry_data(content):
            return "registry", "a registry's description", package_files.read_registry(data)
        if form == "yaml" and package_files.is_docker_data(content):
            return "docker", "a Docker description", package_files.read_docker(data)
        keys = content.keys() if isinstance(content, dict) else ()
        fitting = (BY_NAME[name] for key, name in _KEYS.items() if key in keys and BY_NAME[name].form == form)
        client = next(fitting, None)
    if client is None:
        raise UnknownFormat(f"{path.name} does not say whose it is")
    return client.name, client.title, read_client_file(data, client)


_KEYS: Final = {
    "mcpServers": "claude-code",
    "servers": "vscode",
    "context_servers": "zed",
    "mcp_servers": "codex",
    "extensions": "goose",
}


def _read_into(source: SourceFile, read: Callable[[bytes], tuple[str, str, FileReading]]) -> SourceFile:
    """Return the source with the client, title and entries that `read` finds in its file, or with a problem."""
    data = read_bounded(source.path, BYTES_MAX)
    if data is None:
        return source
    try:
        if isinstance(data, str):
            raise UnreadableFile(data)
        client, title, reading = read(data)
    except UnreadableFile as error:
        return msgspec.structs.replace(source, state="unreadable", reason=str(error))
    return msgspec.structs.replace(source, client=client, title=title, state="read", reading=reading)
