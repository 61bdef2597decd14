"""The folder of a driver on disk: reading, comparing with the trusted content, and writing. These functions block.

`read_folder` returns the bytes of the declaration files and a digest of every file. Trust covers all files of the
folder. Therefore a folder that is too large, or that has a link to a place outside it, is refused instead of being read
in part. Reading never waits for a pipe or a device, and does not follow a link that replaces a file in the meantime.

`TamperCheck` compares the folder of a running driver with the trusted files, before and after each start
(AIP-security-13). Between two scans, somebody could change a file and restore it, and a server started in between would
not be the accepted one. Every change is visible in the status of the files (`mark_of`), which cannot be restored.

`read_imported_folder` and `write_files` are used by imports. .drivers/ID/ contains DRIVER.md, or DRIVER.draft.md while
the server's tools are not known. It contains SECRETS.md if the driver has secrets. Its import.json records the values
in the source, so a later import can distinguish a person's edits from changes in the source. Each file is written
completely or not at all, and nothing is written through a link that leads outside the workspace.
"""

import asyncio
import errno
import hashlib
import os
import stat
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import msgspec

from interlock.core.bounded_file import read_bounded
from interlock.drivers.protocol.files.frontmatter import FILE_BYTES_MAX, read_frontmatter
from interlock.drivers.protocol.problems import FileProblem
from interlock.drivers.workspace import scan
from interlock.interop.protocol.drafts import ExistingDriver

FOLDER_BYTES_MAX: Final = 512 * 1024 * 1024
TEXT_BYTES_MAX: Final = 256 * 1024  # of a further file kept to show a difference
TEXTS_BYTES_MAX: Final = 2 * 1024 * 1024  # of all of them
_TEXTS: Final = (".md", ".json", ".py", ".toml", ".yaml", ".yml", ".txt", ".sh", ".js", ".mjs", ".ts")
_NOT_OURS: Final = "node_modules/"  # packages may hold files of these names; they are digested and not read
_CHUNK: Final = 1024 * 1024


class DriverFolder(msgspec.Struct, frozen=True, kw_only=True):
    """The content of a driver folder: the texts that are needed, and a digest of every file."""

    path: Path
    texts: Mapping[str, bytes] = {}  # declaration files and further short texts, by their path in the folder
    digests: Mapping[str, str] = {}  # of every file
    problems: tuple[FileProblem, ...] = ()


class FolderUnreadable(Exception):
    """Error: a folder or file cannot be read. The message is the reason, without the path."""


def read_folder(location: scan.FoundFolder) -> DriverFolder:
    """Read the folder of a driver. A file or link that a driver folder must not contain becomes a problem in the
    result.
    """
    path = location.path
    texts: dict[str, bytes] = {}
    digests: dict[str, str] = {}
    problems: list[FileProblem] = []

    def add_problem(name: str, code: str, message: str, hint: str) -> None:
        problems.append(FileProblem(file=str(path / name), code=code, message=message, hint=hint))

    if location.mark is None:
        add_problem("", "path_escape", "the folder is a link", "copy it here")
        return DriverFolder(path=path, problems=tuple(problems))
    bytes_left, text_bytes_left = FOLDER_BYTES_MAX, TEXTS_BYTES_MAX
    for name, status in scan.walk(path):
        if len(digests) == scan.FILES_MAX or status.st_size > bytes_left:
            message = f"the folder has more than {scan.FILES_MAX} files or {FOLDER_BYTES_MAX >> 20} MiB"
            add_problem("", "folder_too_large", message, "install what it brings from elsewhere")
            break
        if not scan.is_text(name):
            add_problem("", "name_invalid", f"the name of the file {name!r} is no plain text", "rename it")
            continue
        try:
            if stat.S_ISLNK(status.st_mode):
                if not Path(os.path.realpath(path / name)).is_relative_to(os.path.realpath(path)):
                    raise FolderUnreadable("it is a link out of the folder")
                # The target as it is written.
                digests[name] = f"link:{os.readlink(path / name)}"  # noqa: PTH115
                continue
            # How many bytes of the file are kept: all of a declaration, and of another text if it is short.
            limit = FILE_BYTES_MAX
            if not is_declaration(name):
                is_kept = name.endswith(_TEXTS) and _NOT_OURS not in name
                limit = status.st_size if is_kept and status.st_size <= min(TEXT_BYTES_MAX, text_bytes_left) else 0
            data, digests[name] = _read(path / name, limit, bytes_left)
        except (OSError, FolderUnreadable) as fault:
            reason = _describe(fault) if isinstance(fault, OSError) else str(fault)
            add_problem(name, "file_unreadable", reason, "repair or remove it")
            continue
        bytes_left -= status.st_size
        if data is None and is_declaration(name):
            message = f"the file is longer than {FILE_BYTES_MAX >> 20} MiB"
            add_problem(name, "frontmatter_invalid", message, "shorten it")
        elif data is not None:
            texts[name] = data
            text_bytes_left -= 0 if is_declaration(name) else len(data)
    return DriverFolder(path=path, texts=texts, digests=digests, problems=tuple(problems))


def is_declaration(name: str) -> bool:
    """Return whether a file of a driver folder declares something, such as DRIVER.md, so that its text is read."""
    base = name.rpartition("/")[2]
    is_contract = base == scan.TOOL_FILE and _NOT_OURS not in name
    return is_contract or name in (scan.DRIVER_FILE, scan.SECRETS_FILE, "server.json")


def read_file(path: Path) -> tuple[bytes, str]:
    """Return the content and the digest of a declaration file, such as a TOOL.md outside the driver's folder.

    Raise FolderUnreadable if the file cannot be read or is too large.
    """
    data, digest = _read(path, FILE_BYTES_MAX, FILE_BYTES_MAX)
    return data or b"", digest


def digest_of(path: Path) -> str:
    """Return the digest of a file, as in `DriverFolder.digests`. Raise FolderUnreadable if the file cannot be read."""
    return _read(path, 0, FOLDER_BYTES_MAX)[1]


def _read(path: Path, limit: int, bytes_max: int) -> tuple[bytes | None, str]:
    """Return the bytes and the digest of a file. The bytes are None if the file is longer than `limit`.

    Raise FolderUnreadable if the file cannot be read or has more than `bytes_max` bytes.
    """
    try:
        # Without waiting for a writer of a pipe, and not through a link that replaced the file after it was listed.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        raise FolderUnreadable(_describe(error)) from None
    with os.fdopen(descriptor, "rb", buffering=0) as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise FolderUnreadable("it is not a regular file")
        # A file that becomes executable is another file.
        digest = hashlib.sha256(b"x" if status.st_mode & 0o111 else b"-")
        chunks: list[bytes] | None = []
        length = 0
        try:
            while chunk := file.read(_CHUNK):
                digest.update(chunk)
                length += len(chunk)
                if length > bytes_max:
                    raise FolderUnreadable("it grew beyond what a folder may hold")
                if chunks is not None:
                    chunks = [*chunks, chunk] if length <= limit else None
        except OSError as error:
            raise FolderUnreadable(_describe(error)) from None
    return None if chunks is None else b"".join(chunks), digest.hexdigest()


def _describe(error: OSError) -> str:
    return "it is a link" if error.errno == errno.ELOOP else (error.strerror or "it cannot be read").lower()


BROKEN: Final = "untrusted"
WORDS: Final = "the files of the driver are not those that were trusted"


class TamperCheck:
    """Checker of whether the files of a driver are still the ones that a person trusted."""

    def __init__(self, root: scan.Root, folder: Path, files: Mapping[str, str]) -> None:
        """Prepare to check whether the files of a driver folder are the trusted ones.

        `files` maps names to the digests that trust covers. Only files in the folder itself are checked.
        """
        self._root = root
        self._folder = folder
        self._files = {name: digest for name, digest in files.items() if not Path(name).is_absolute()}
        self._good: bytes | None = None  # marks under which the files were found to be these

    async def mark(self) -> bytes | None:
        """Return a value that identifies the present state of the folder, if all its files are those that a person
        trusted. Otherwise return None.

        Return None if they differ, cannot be read or change in the meantime.
        """

        def find_mark() -> bytes | None:
            mark = scan.mark_of(self._folder)
            if mark != self._good:
                folder = read_folder(scan.FoundFolder(root=self._root, path=self._folder, mark=mark))
                if folder.problems or dict(folder.digests) != self._files or scan.mark_of(self._folder) != mark:
                    return None
                self._good = mark
            return mark

        return await asyncio.to_thread(find_mark)

    async def is_same(self, mark: bytes) -> bool:
        """Return whether the folder is still in the state for which `mark` returned this value."""
        return await asyncio.to_thread(scan.mark_of, self._folder) == mark


RECORD_FILE: Final = "import.json"


class WorkspaceUnusable(Exception):
    """Error: the workspace cannot be read or written. The message is the reason."""


class ImportRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The content of an import.json: where a driver was imported from, and the values that were written then."""

    sources: tuple[str, ...]
    base: Mapping[str, Any]
    hints: Mapping[str, Any] = {}


class ImportedFolder(ExistingDriver, frozen=True, kw_only=True):
    """The present content of a folder below .drivers. An import compares it with what it would write."""

    path: Path
    file: str | None = None  # DRIVER.md or DRIVER.draft.md
    text: str = ""
    record: ImportRecord | None = None
    secrets_text: str = ""
    slugs: frozenset[str] = frozenset()


def read_imported_folders(workspace: Path) -> dict[str, ImportedFolder]:
    """Return all folders below .drivers, keyed by name. Raise WorkspaceUnusable if .drivers cannot be read."""
    try:
        paths = sorted(each for each in (workspace / scan.DRIVERS).iterdir() if each.is_dir())
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except OSError as error:
        raise WorkspaceUnusable(f"{workspace / scan.DRIVERS} cannot be read ({error.strerror})") from None
    return {path.name: read_imported_folder(path) for path in paths}


def read_imported_folder(path: Path) -> ImportedFolder:
    """Read the files of one imported driver. A file that is missing or cannot be read results in an empty field."""
    file, text, data = None, "", {}
    for name in (scan.DRIVER_FILE, scan.DRAFT_FILE):
        if isinstance(content := read_bounded(path / name, FILE_BYTES_MAX), bytes):
            front = read_frontmatter(content, name).value
            file, text, data = name, content.decode("utf-8", "replace"), front.data if front is not None else {}
            break
    content, record = read_bounded(path / RECORD_FILE, FILE_BYTES_MAX), None
    # A record that cannot be read counts as absent: then it is a folder like any other.
    with suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        record = msgspec.json.decode(content if isinstance(content, bytes) else b"", type=ImportRecord)
    content = read_bounded(path / scan.SECRETS_FILE, FILE_BYTES_MAX)
    secrets_text = content.decode("utf-8", "replace") if isinstance(content, bytes) else ""
    return ImportedFolder(
        id=path.name,
        sources=record.sources if record is not None else (),
        data=data,
        path=path,
        file=file,
        text=text,
        record=record,
        secrets_text=secrets_text,
        slugs=frozenset(inventory_slugs(secrets_text)),
    )


def inventory_slugs(text: str) -> list[str]:
    """Return the slugs in the text of a SECRETS.md, as far as it can be read."""
    front = read_frontmatter(text.encode(), scan.SECRETS_FILE).value if text else None
    entries = front.data.get("secrets") if front is not None else None
    slugs = [each.get("slug") for each in entries if isinstance(each, Mapping)] if isinstance(entries, list) else []
    return [slug for slug in slugs if isinstance(slug, str)]


def record_text(record: ImportRecord) -> str:
    """Return an import record as the text of import.json."""
    return msgspec.json.format(msgspec.json.encode(record), indent=2).decode() + "\n"


def write_files(workspace: Path, files: Sequence[tuple[Path, str]]) -> None:
    """Write files below the workspace. Each file is replaced in one step, so that it is never half written.

    Raise WorkspaceUnusable if a file cannot be written or a link leads outside the workspace.
    """
    root = workspace.resolve()
    for path, text in files:
        if not path.parent.resolve().is_relative_to(root):
            raise WorkspaceUnusable(f"{path.parent} leads out of the workspace")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(path, text.encode())
        except OSError as error:
            raise WorkspaceUnusable(f"{path} cannot be written ({error.strerror})") from None


def write_whole(path: Path, data: bytes, mode: int | None = None) -> None:
    """Write a file in one step, so that no reader ever sees half of it.

    If `mode` is None, the file keeps the mode of the existing file, or gets the default mode of a new file.
    """
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        if mode is None:
            try:
                mode = path.stat().st_mode & 0o777
            except OSError:
                # The mode that a new file would get. The mask can only be read by setting it.
                mask = os.umask(0)
                os.umask(mask)
                mode = 0o666 & ~mask
        Path(name).chmod(mode)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
