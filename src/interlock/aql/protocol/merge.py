"""The deep merge of an UPDATE operation (4.5.1): JSON Merge Patch (RFC 7396) with an object root.

Objects merge, everything else replaces, null removes. `merged` works on decoded values, `merged_text` on JSON text, of
which everything that is not replaced stays the text it was. Neither changes what it is given.
"""

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Raw

from interlock.wire.jsonrpc.codec import decode_object


def merged(stored: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    made = dict(stored)
    for key, change in changes.items():
        if change is None:  # AQL-4.5.1-4, AQL-4.5.2-1
            made.pop(key, None)
        elif isinstance(change, Mapping):  # AQL-4.5.1-2
            before = made.get(key)
            made[key] = merged(before if isinstance(before, Mapping) else {}, change)  # AQL-4.5.1-1 and -2
        else:
            made[key] = change  # AQL-4.5.1-1, -3 and -5
    return made


def merged_text(stored: bytes, changes: bytes) -> bytes:
    """Both are texts of objects; ValueError otherwise."""
    made, given = decode_object(stored), decode_object(changes)
    if made is None or given is None:
        raise ValueError("only objects can be merged")
    made = dict(made)
    for key, change in given.items():
        text = bytes(change)
        if text == b"null":  # AQL-4.5.1-4, AQL-4.5.2-1
            made.pop(key, None)
        elif text[:1] == b"{":
            before = bytes(made.get(key, b""))
            made[key] = Raw(merged_text(before if before[:1] == b"{" else b"{}", text))  # AQL-4.5.1-1 and -2
        else:
            made[key] = change  # AQL-4.5.1-1, -3 and -5
    return msgspec.json.encode(made)
