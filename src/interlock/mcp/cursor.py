"""Our own cursor over a merged list: the key after which to go on.

It names a place in the order, not a position in a version of the list, so paging stays right while servers come and go,
and no state is kept for it.
"""

import base64

CURSOR_BYTES_MAX = 2 * 1024 * 1024  # the key may be a URI as long as a list item (1 MiB), and base64 adds a third
_PREFIX = b"il1:"


def encode_cursor(after: str) -> str:
    return base64.urlsafe_b64encode(_PREFIX + after.encode()).decode().rstrip("=")


def decode_cursor_untrusted(cursor: str) -> str | None:
    """None for anything we did not write."""
    if len(cursor) > CURSOR_BYTES_MAX:
        return None
    try:
        raw = base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4))
        after = raw[len(_PREFIX) :].decode()
    except ValueError:
        return None
    return after if encode_cursor(after) == cursor else None
