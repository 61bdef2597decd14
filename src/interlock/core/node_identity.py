"""The identity of this aggregator (MCP-AX 13.4): one UUID in the data folder, made at the first start, never changed.

Others know the node by it, so a file that cannot be read stops the start: a new id would be another aggregator.
Replicas that share a store are one aggregator: the first one's identity is everyone's.
"""

import os
import uuid
from pathlib import Path
from typing import Final

import msgspec

from interlock.store.ports import Conflict, Damaged, FolderUnusable, KeyValue

FILE: Final = "identity.json"
NODE_KEY: Final = "node.key"  # what the node signs with; made when it is first needed
BYTES_MAX: Final = 4096
BUCKET: Final = "identity"  # of a store that replicas share
KEY: Final = "node"


class Identity(msgspec.Struct, frozen=True, kw_only=True):
    """The identity of an aggregator, as stored in its file."""

    aggregator_id: str


def own_identity(data: Path) -> Identity:
    """Return the identity stored in the data folder. Create it at the first start.

    Raise StoreError with advice for the operator if the file cannot be read or written.
    """
    return find_identity(data) or _keep(data, Identity(aggregator_id=str(uuid.uuid4())))


async def adopt_identity(data: Path, shared: KeyValue, now: float) -> None:
    """Copy the identity that all replicas share into the data folder. The first replica stores its own identity as the
    shared one.

    Raise StoreError if the shared store or the file cannot be used, or if the folder belongs to another node.
    """
    own, entry = find_identity(data), await shared.get(BUCKET, KEY, now)
    if entry is None:
        own = own or own_identity(data)
        try:
            await shared.create(BUCKET, KEY, msgspec.json.encode(own), now)
        except Conflict:  # another replica was first
            await adopt_identity(data, shared, now)
        return
    theirs = msgspec.json.decode(entry.value, type=Identity)
    if own is None:
        own = _keep(data, theirs)
    if own != theirs:
        raise FolderUnusable(
            f"{data / FILE} says that this data folder belongs to another node than the shared store; "
            "set another node.name, or give this replica an empty data folder"
        )


def find_identity(data: Path) -> Identity | None:
    """Return the identity in the data folder, or None if there is none yet.

    Raise StoreError if the file cannot be read.
    """
    path = data / FILE
    try:
        written = path.read_bytes()
    except FileNotFoundError:
        return None
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


def _keep(data: Path, identity: Identity) -> Identity:
    """Write the identity file atomically, and return the identity in it. If another process has written one first,
    return that one.
    """
    path, draft = data / FILE, data / f".{FILE}.{os.getpid()}"
    try:
        data.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(msgspec.json.encode(identity))
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
    return identity
