"""What several tools are, said with one signature: the list that is signed, and its digest."""

import hashlib
from collections.abc import Iterable
from typing import Final

import msgspec

from interlock.wire.jsontext.canonical import canonical

KIND: Final = "classification"
VERSION: Final = 1


class ClassEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One tool, the digest of its definition, and what it is."""

    tool: str
    digest: str
    tool_class: str


def classification_digest(id: str, entries: Iterable[ClassEntry]) -> str:
    """SHA-256 in hex over the canonical list, whatever its order; what a proof has as its call_digest."""
    listed = sorted((entry.tool, entry.digest, entry.tool_class) for entry in entries)
    rows = [{"tool": tool, "digest": digest, "class": tool_class} for tool, digest, tool_class in listed]
    return hashlib.sha256(canonical({"v": VERSION, "kind": KIND, "id": id, "entries": rows})).hexdigest()
