"""The refusal of a request before any message of it was read."""

import msgspec

from interlock.wire.jsonrpc.errors import Fault


class Refusal(msgspec.Struct, frozen=True):
    """An answer that says no before any message was read."""

    status: int
    error: str
    message: str
    extra: bytes = b""  # header lines
    fault: Fault | None = None  # what is said instead to clients of MCP
