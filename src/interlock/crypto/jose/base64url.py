"""Base64url without padding, the one spelling of it (RFC 7515 2). Python's own decoder skips what it does not know."""

import base64
import re

_ALPHABET = re.compile(r"[A-Za-z0-9_-]*", re.ASCII)


def maybe_decode(text: str) -> bytes | None:
    """None when it is not base64url, or is spelled so that another text means the same bytes."""
    if not _ALPHABET.fullmatch(text) or len(text) % 4 == 1:
        return None
    data = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    return data if encode(data) == text else None


def encode(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode("ascii")
