"""The subserver_id: a UUID that stays the same across restarts, crashes and upgrades (MCP-AX 6.1).

Kept in one small file that only its owner may read. A file that cannot be understood stops the start: a new id would
make this leaf a stranger to those who hold its namespace.
"""

import json
import os
import uuid
from pathlib import Path

from interlock.config.folders import data_folder
from interlock.sdk.subserver.errors import SubserverInvalid

FILE_BYTES_MAX = 4096  # it holds one id


def identity_file(segment: str, state: Path | None) -> Path:
    """`state` is a folder."""
    folder = state if state is not None else data_folder(os.environ) / "subservers"
    return folder / f"{segment}.json"


def subserver_id(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return _read(path, file.read(FILE_BYTES_MAX + 1))
    except FileNotFoundError:
        return _create(path)
    except OSError as error:
        raise SubserverInvalid(f"{path} cannot be read: {error.strerror}; make it readable or give state=") from error


def _read(path: Path, text: bytes) -> str:
    try:
        return str(uuid.UUID(json.loads(text)["subserver_id"]))
    except (ValueError, KeyError, TypeError, AttributeError):
        raise SubserverInvalid(
            f"{path} holds no subserver_id; restore it, or remove it to become a new subserver"
        ) from None


def _create(path: Path) -> str:
    """Write the file completely or not at all: a second writer reads what the first one wrote."""
    made = str(uuid.uuid4())
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        draft = path.with_suffix(f".{made}")
        descriptor = os.open(draft, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                file.write(json.dumps({"subserver_id": made}) + "\n")
                file.flush()
                os.fsync(file.fileno())
            os.link(draft, path)
        finally:
            draft.unlink()
    except FileExistsError:
        return subserver_id(path)
    except OSError as error:
        raise SubserverInvalid(
            f"the subserver_id cannot be kept in {path}: {error.strerror}; give state= a folder that can be written"
        ) from error
    return made
