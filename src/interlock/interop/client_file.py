"""The configuration file of one client: finds it, adds an entry, and keeps a backup that only its owner may read."""

from pathlib import Path
from typing import Final

import msgspec

from interlock.core.bounded_file import read_bounded
from interlock.drivers.workspace.imported_folder import write_whole
from interlock.interop.client_discovery import Machine, places
from interlock.interop.protocol.clients import Client
from interlock.interop.protocol.formats import BYTES_MAX
from interlock.interop.protocol.write.text_edits import CannotEdit, with_entry

BACKUP: Final = ".interlock-backup"
OWNER_ONLY: Final = 0o600


class WriteResult(msgspec.Struct, frozen=True, kw_only=True):
    path: Path
    changed: bool
    backup: Path | None = None


def client_file(client: Client, machine: Machine) -> Path:
    """The client's file of this person: one that is there before one that is not."""
    own = [path for _, place, path in places(machine, [client]) if place.scope == "global"]
    return next((path for path in own if path.exists()), own[0])


def put_entry(path: Path, client: Client, name: str, entry: dict[str, object]) -> WriteResult:
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
    """A free name for the backup: an older one is not overwritten."""
    found = path.with_name(f"{path.name}{BACKUP}")
    number = 2
    while found.exists():
        found = path.with_name(f"{path.name}{BACKUP}-{number}")
        number += 1
    return found
