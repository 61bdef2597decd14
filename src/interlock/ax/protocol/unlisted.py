"""How many tools a node does not list for its parent, and why: numbers in the `_meta` of its tools/list, no names.

A parent that does not know the key ignores it, and a child that does not send it has said nothing. Only the two reasons
that lie between the two nodes are told: the scope that the parent may use, and the `tools` of an [[access]] entry.
"""

from typing import Final

import msgspec
from msgspec import Raw

from interlock.ax.protocol.capability import AuthScope
from interlock.wire.jsonrpc.codec import decode_object

META_UNLISTED: Final = "dev.interlock/unlisted"
COUNT_MAX: Final = 1_000_000  # more tools than any node lists


class Unlisted(msgspec.Struct, frozen=True, kw_only=True):
    scope: AuthScope  # what the parent may use here
    beyond_scope: int = 0  # tools that need more
    beyond_access: int = 0  # of the others, those that an [[access]] entry of the child leaves out


def maybe_unlisted_untrusted(page: dict[str, Raw]) -> Unlisted | None:
    """As a child says it in a page of its list; None where it says nothing that can be read."""
    meta = decode_object(page["_meta"]) if "_meta" in page else None
    if meta is None or META_UNLISTED not in meta:
        return None
    try:
        said = msgspec.json.decode(meta[META_UNLISTED], type=Unlisted)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    is_count = all(0 <= number <= COUNT_MAX for number in (said.beyond_scope, said.beyond_access))
    return said if is_count else None
