"""The refusal of a request before any message of it was read."""

import msgspec

from interlock.wire.refusal import Refusal


class AccessRefusal(msgspec.Struct, frozen=True):
    """An answer that says no before any message was read."""

    status: int
    error: str
    message: str
    extra: bytes = b""  # header lines
    refusal: Refusal | None = None  # what is said instead to clients of MCP
