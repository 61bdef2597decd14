"""The mark of a caller, `x-mcpax-caller` (ours, for MCP-AX 11.3): by it a hop below tells a parent's callers apart.

To a gate, all that comes over the link to a parent comes from that parent. The mark says which of its callers asked, so
that an approval is good for that one alone. It is opaque: only the node that made it can tell whose it is, and each
node makes its own. Only an authenticated parent's is read.
"""

import hashlib
import hmac
import re
from base64 import urlsafe_b64encode
from collections.abc import Mapping
from typing import Final

from msgspec import Raw

CALLER: Final = "x-mcpax-caller"
MARK_BYTES: Final = 16
SEPARATOR: Final = "#"  # between the name of a parent, which is a URL without a fragment, and the mark
_match_mark = re.compile(rb'"([A-Za-z0-9_-]{1,43})"').fullmatch


def caller_mark(requester: str, key: bytes) -> Raw:
    """The mark for the hop below, as JSON. `key` is this node's and outlives it, as approvals do."""
    made = hmac.digest(key, b"caller\0" + requester.encode("utf-8", "surrogatepass"), "sha256")
    return Raw(b'"%b"' % _text(made))


def requester(principal: str, meta: Mapping[str, Raw]) -> str:
    """Who asks: the parent, and which of its callers where it says so. A mark of another form is known by its hash."""
    raw = bytes(meta.get(CALLER, b""))
    if not raw:
        return principal
    plain = _match_mark(raw)
    mark = plain[1] if plain is not None else _text(hashlib.sha256(raw).digest())
    return f"{principal}{SEPARATOR}{mark.decode()}"


def _text(digest: bytes) -> bytes:
    return urlsafe_b64encode(digest[:MARK_BYTES]).rstrip(b"=")
