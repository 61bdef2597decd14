"""Driver folders that an import wrote: read, written and updated, each file whole or not at all.

.drivers/ID/ holds DRIVER.md, or DRIVER.draft.md while the server's tools are not known; SECRETS.md where it has
secrets; and import.json, which remembers what the source said, so that a later import can tell the person's edits
from the source's changes. Nothing is written through a symlink that leads out of the workspace.
"""

import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from interlock.core.bounded_file import read_bounded
from interlock.drivers.protocol.files.driver import DRIVER_FILE
from interlock.drivers.protocol.files.frontmatter import FILE_BYTES_MAX, read_frontmatter
from interlock.drivers.protocol.files.inventory import SECRETS_FILE
from interlock.drivers.workspace.scan import DRAFT_FILE, DRIVERS
from interlock.interop.protocol.drafts import ExistingDriver

RECORD_FILE: Final = "import.json"


class WorkspaceUnusable(Exception):
    """The workspace cannot be written as asked; the text says why."""


class Record(msgspec.Struct, frozen=True, kw_only=True):
    sources: tuple[str, ...]
    base: Mapping[str, Any]
    hints: Mapping[str, Any] = {}


class Folder(msgspec.Struct, frozen=True, kw_only=True):
    """One folder as it stands."""

    path: Path
    file: str | None = None  # DRIVER.md or DRIVER.draft.md
    text: str = ""
    data: Mapping[str, Any] = {}
    record: Record | None = None
    secrets_text: str = ""
    slugs: frozenset[str] = frozenset()

    @property
    def standing(self) -> ExistingDriver:
        sources = self.record.sources if self.record is not None else ()
        return ExistingDriver(id=self.path.name, sources=sources, data=self.data)


def read_folders(workspace: Path) -> dict[str, Folder]:
    try:
        paths = sorted(each for each in (workspace / DRIVERS).iterdir() if each.is_dir())
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except OSError as error:
        raise WorkspaceUnusable(f"{workspace / DRIVERS} cannot be read ({error.strerror})") from None
    return {path.name: read_folder(path) for path in paths}


def read_folder(path: Path) -> Folder:
    folder = Folder(path=path)
    for name in (DRIVER_FILE, DRAFT_FILE):
        if isinstance(data := read_bounded(path / name, FILE_BYTES_MAX), bytes):
            front = read_frontmatter(data, name).value
            folder = msgspec.structs.replace(
                folder, file=name, text=data.decode("utf-8", "replace"), data=front.data if front is not None else {}
            )
            break
    if isinstance(data := read_bounded(path / RECORD_FILE, FILE_BYTES_MAX), bytes):
        try:
            folder = msgspec.structs.replace(folder, record=msgspec.json.decode(data, type=Record))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            pass  # then it is a folder like any other
    if isinstance(data := read_bounded(path / SECRETS_FILE, FILE_BYTES_MAX), bytes):
        front = read_frontmatter(data, SECRETS_FILE).value
        entries = front.data.get("secrets") if front is not None else None
        slugs = [each.get("slug") for each in entries if isinstance(each, Mapping)] if isinstance(entries, list) else []
        folder = msgspec.structs.replace(
            folder,
            secrets_text=data.decode("utf-8", "replace"),
            slugs=frozenset(slug for slug in slugs if isinstance(slug, str)),
        )
    return folder


def record_text(record: Record) -> str:
    return msgspec.json.format(msgspec.json.encode(record), indent=2).decode() + "\n"


def write_files(workspace: Path, files: Sequence[tuple[Path, str]]) -> None:
    """Write files below the workspace; each replaces its predecessor atomically. Raises WorkspaceUnusable."""
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
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        Path(name).chmod(_usual_mode(path) if mode is None else mode)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _usual_mode(path: Path) -> int:
    """Return the mode of the existing file, or the mode that a new file would get."""
    try:
        return path.stat().st_mode & 0o777
    except OSError:
        mask = os.umask(0)
        os.umask(mask)
        return 0o666 & ~mask
