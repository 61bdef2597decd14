"""The deep merge of an UPDATE operation (4.5.1): JSON Merge Patch (RFC 7396) with an object root.

Objects merge, everything else replaces, null removes. `merged` works on decoded values. `merged_text` works on JSON
text, and leaves everything that is not replaced as it was written. Neither changes its arguments.
"""

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Raw

from interlock.wire.jsonrpc.codec import decode_object


def merged(stored: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return a stored object with changes merged into it."""
    result = dict(stored)
    for key, change in changes.items():
        if change is None:  # AQL-4.5.1-4, AQL-4.5.2-1
            result.pop(key, None)
        elif isinstance(change, Mapping):  # AQL-4.5.1-2
            before = result.get(key)
            result[key] = merged(before if isinstance(before, Mapping) else {}, change)  # AQL-4.5.1-1 and -2
        else:
            result[key] = change  # AQL-4.5.1-1, -3 and -5
    return result


def merged_text(stored: bytes, changes: bytes) -> bytes:
    """Merge two texts of JSON objects. Raise ValueError if one is not an object."""
    result, members = decode_object(stored), decode_object(changes)
    if result is None or members is None:
        raise ValueError("only objects can be merged")
    result = dict(result)
    for key, change in members.items():
        text = bytes(change)
        if text == b"null":  # AQL-4.5.1-4, AQL-4.5.2-1
            result.pop(key, None)
        elif text[:1] == b"{":
            before = bytes(result.get(key, b""))
            result[key] = Raw(merged_text(before if before[:1] == b"{" else b"{}", text))  # AQL-4.5.1-1 and -2
        else:
            result[key] = change  # AQL-4.5.1-1, -3 and -5
    return msgspec.json.encode(result)
