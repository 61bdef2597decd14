"""Reads one driver's folder: the bytes of its declaration files, and a digest of every file. Blocking.

A folder is refused, not cut, where it is larger than the limits or a link leads out of it: what is trusted is all of
it. A pipe, a device or a file that is swapped for a link while it is read is never waited for.
"""

import asyncio
import errno
import hashlib
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from interlock.drivers.protocol.files.frontmatter import FILE_BYTES_MAX
from interlock.drivers.protocol.problems import FileProblem
from interlock.drivers.workspace.scan import (
    DRIVER_FILE,
    FILES_MAX,
    SECRETS_FILE,
    TOOL_FILE,
    FoundFolder,
    Root,
    is_text,
    mark_of,
    walk,
)

FOLDER_BYTES_MAX: Final = 512 * 1024 * 1024
TEXT_BYTES_MAX: Final = 256 * 1024  # of a further file kept to show a difference
TEXTS_BYTES_MAX: Final = 2 * 1024 * 1024  # of all of them
_TEXTS: Final = (".md", ".json", ".py", ".toml", ".yaml", ".yml", ".txt", ".sh", ".js", ".mjs", ".ts")
_NOT_OURS: Final = "node_modules/"  # packages may hold files of these names; they are digested and not read
_CHUNK: Final = 1024 * 1024


class Folder(msgspec.Struct, frozen=True, kw_only=True):
    """`texts`: what declares the driver, and further short files, by their path in the folder. `digests`: of all."""

    path: Path
    texts: Mapping[str, bytes] = {}
    digests: Mapping[str, str] = {}
    problems: tuple[FileProblem, ...] = ()


class FolderUnreadable(Exception):
    """A folder cannot be read; the text gives a person the reason, without the path."""


def read_folder(location: FoundFolder) -> Folder:
    path = location.path
    if location.mark is None:
        return Folder(path=path, problems=(_problem(path, "path_escape", "the folder is a link", "copy it here"),))
    texts: dict[str, bytes] = {}
    digests: dict[str, str] = {}
    problems: list[FileProblem] = []
    room, text_room = FOLDER_BYTES_MAX, TEXTS_BYTES_MAX
    for name, seen in walk(path):
        if len(digests) == FILES_MAX or seen.st_size > room:
            message = f"the folder has more than {FILES_MAX} files or {FOLDER_BYTES_MAX >> 20} MiB"
            problems.append(_problem(path, "folder_too_large", message, "install what it brings from elsewhere"))
            break
        if not is_text(name):
            message = f"the name of the file {name!r} is no plain text"
            problems.append(_problem(path, "name_invalid", message, "rename it"))
            continue
        try:
            if stat.S_ISLNK(seen.st_mode):
                digests[name] = _link(path, name)
                continue
            limit = _limit(name, seen.st_size, text_room)
            data, digests[name] = _read(path / name, limit, room)
        except FolderUnreadable as fault:
            problems.append(_problem(path / name, "file_unreadable", str(fault), "mend or remove it"))
            continue
        room -= seen.st_size
        if data is None and is_declaration(name):
            message = f"the file is longer than {FILE_BYTES_MAX >> 20} MiB"
            problems.append(_problem(path / name, "frontmatter_invalid", message, "shorten it"))
        elif data is not None:
            texts[name] = data
            text_room -= 0 if is_declaration(name) else len(data)
    return Folder(path=path, texts=texts, digests=digests, problems=tuple(problems))


def is_declaration(name: str) -> bool:
    """Check whether a file is read for what it declares."""
    base = name.rpartition("/")[2]
    return (base == TOOL_FILE and _NOT_OURS not in name) or name in (DRIVER_FILE, SECRETS_FILE, "server.json")


def read_file(path: Path) -> tuple[bytes, str]:
    """Return the content and the digest of a declaration file outside the folder. Raises FolderUnreadable."""
    data, digest = _read(path, FILE_BYTES_MAX, FILE_BYTES_MAX)
    return data or b"", digest


def digest_of(path: Path) -> str:
    """Return the digest of a file, as in `Folder.digests`. Raises FolderUnreadable."""
    return _read(path, 0, FOLDER_BYTES_MAX)[1]


def _limit(name: str, size: int, remaining: int) -> int:
    """Return how many bytes of a file to keep in memory, or 0 for none. `remaining`: the bytes left for further
    texts.
    """
    if is_declaration(name):
        return FILE_BYTES_MAX
    return size if name.endswith(_TEXTS) and size <= min(TEXT_BYTES_MAX, remaining) and _NOT_OURS not in name else 0


def _link(folder: Path, name: str) -> str:
    try:
        target = os.readlink(folder / name)  # noqa: PTH115  (as it is written)
    except OSError as error:
        raise FolderUnreadable(_words(error)) from None
    if not Path(os.path.realpath(folder / name)).is_relative_to(os.path.realpath(folder)):
        raise FolderUnreadable("it is a link out of the folder")
    return f"link:{target}"


def _read(path: Path, limit: int, room: int) -> tuple[bytes | None, str]:
    """Return the bytes of a file, or None if there are more than `limit`, and the digest of all of them.

    `room`: the size at which reading fails.
    """
    try:
        # Without waiting for somebody to write into a pipe, and not through a link that came after the look.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        raise FolderUnreadable(_words(error)) from None
    with os.fdopen(descriptor, "rb", buffering=0) as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise FolderUnreadable("it is not a regular file")
        digest = hashlib.sha256(b"x" if status.st_mode & 0o111 else b"-")
        chunks: list[bytes] | None = []
        length = 0
        try:
            while chunk := file.read(_CHUNK):
                digest.update(chunk)
                length += len(chunk)
                if length > room:
                    raise FolderUnreadable("it grew beyond what a folder may hold")
                if chunks is not None:
                    chunks = [*chunks, chunk] if length <= limit else None
        except OSError as error:
            raise FolderUnreadable(_words(error)) from None
    return None if chunks is None else b"".join(chunks), digest.hexdigest()


def _words(error: OSError) -> str:
    return "it is a link" if error.errno == errno.ELOOP else (error.strerror or "it cannot be read").lower()


def _problem(path: Path, code: str, message: str, hint: str) -> FileProblem:
    return FileProblem(file=str(path), code=code, message=message, hint=hint)


# The tamper check: is a driver's folder still the trusted one? Before and after each start (AIP-security-13).
#
# Between two looks of the registry files may change, and be put back; a program that was started meanwhile would be
# another than the one accepted. Whatever touched a file since shows by its marks, which cannot be put back.

BROKEN: Final = "untrusted"
WORDS: Final = "the files of the driver are not those that were trusted"


class TamperCheck:
    def __init__(self, root: Root, folder: Path, files: Mapping[str, str]) -> None:
        """Prepare to check a folder. `files`: what trust covers; only files in the folder are checked."""
        self._root = root
        self._folder = folder
        self._files = {name: digest for name, digest in files.items() if not Path(name).is_absolute()}
        self._good: bytes | None = None  # marks under which the files were found to be these

    async def mark(self) -> bytes | None:
        """Return the mark of the files if they are the trusted ones, or None if they differ."""
        return await asyncio.to_thread(self._mark)

    async def is_same(self, mark: bytes) -> bool:
        """Check whether no file has been touched since `mark` was taken."""
        return await asyncio.to_thread(mark_of, self._folder) == mark

    def _mark(self) -> bytes | None:
        mark = mark_of(self._folder)
        if mark == self._good:
            return mark
        read = read_folder(FoundFolder(root=self._root, path=self._folder, mark=mark))
        if read.problems or dict(read.digests) != self._files or mark_of(self._folder) != mark:
            return None
        self._good = mark
        return mark
