"""Base64url without padding, the one spelling of it (RFC 7515 2). Python's own decoder skips what it does not know."""

import base64
import re

_ALPHABET = re.compile(r"[A-Za-z0-9_-]*", re.ASCII)


def decode_base64url(text: str) -> bytes | None:
    """Decode base64url, or return None if the text is invalid or not the canonical spelling of its bytes."""
    if not _ALPHABET.fullmatch(text) or len(text) % 4 == 1:
        return None
    data = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    return data if encode(data) == text else None


def encode(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode("ascii")
