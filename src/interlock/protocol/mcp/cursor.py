"""Our own cursor over a merged list: the key after which to go on.

It names a place in the order, not a position in a version of the list, so paging stays right while servers come and go,
and no state is kept for it.
"""

import base64
import binascii

CURSOR_BYTES_MAX = 4096
_PREFIX = b"il1:"


def encode_cursor(after: str) -> str:
    return base64.urlsafe_b64encode(_PREFIX + after.encode()).decode().rstrip("=")


def decode_cursor_untrusted(cursor: str) -> str | None:
    """None for anything we did not write."""
    if len(cursor) > CURSOR_BYTES_MAX:
        return None
    try:
        raw = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True)
        return raw[len(_PREFIX) :].decode() if raw.startswith(_PREFIX) else None
    except (binascii.Error, UnicodeDecodeError, ValueError):
        return None
