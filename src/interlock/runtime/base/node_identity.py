"""The identity of this aggregator (MCP-AX 13.4): one UUID in the data folder, made at the first start, never changed.

Others know the node by it, so a file that cannot be read stops the start: a new id would be another aggregator.
"""

import os
import uuid
from pathlib import Path
from typing import Final

import msgspec

from interlock.store.ports import Damaged, FolderUnusable

FILE: Final = "identity.json"
NODE_KEY: Final = "node.key"  # what the node signs with; made when it is first needed
BYTES_MAX: Final = 4096


class Identity(msgspec.Struct, frozen=True, kw_only=True):
    aggregator_id: str


def own_identity(data: Path) -> Identity:
    """The identity on disk, made at the first start. Raises a StoreError that says what the operator does next."""
    path = data / FILE
    try:
        written = path.read_bytes()
    except FileNotFoundError:
        return _make(data)
    except OSError as error:
        raise FolderUnusable(f"{path} cannot be read: {error.strerror}") from None
    try:
        read = msgspec.json.decode(written[:BYTES_MAX], type=Identity)
        return Identity(aggregator_id=str(uuid.UUID(read.aggregator_id)))
    except (msgspec.DecodeError, ValueError):
        raise Damaged(
            f"{path} does not hold this node's identity; restore it from a backup, or remove it to begin as another "
            "aggregator, which parents and subservers do not know"
        ) from None


def _make(data: Path) -> Identity:
    """Writes the file whole or not at all, and never over one that another process made first."""
    path, draft = data / FILE, data / f".{FILE}.{os.getpid()}"
    made = Identity(aggregator_id=str(uuid.uuid4()))
    try:
        data.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(msgspec.json.encode(made))
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(draft, path)
        finally:
            draft.unlink()
    except FileExistsError:
        return own_identity(data)
    except OSError as error:
        raise FolderUnusable(f"{path} cannot be written: {error.strerror}") from None
    return made
