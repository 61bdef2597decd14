"""The requestState of a held call (MCP-AX 11.3, ours): which confirmation a 2026-07-28 client comes back for.

It proves nothing and opens nothing. It says which call the client was told to wait for, so that its answer to the page
is taken for no other; signed, because the client keeps it, and bound to the principal, the call and a time.
"""

from typing import Final

import msgspec

from interlock.mcp.mrtr import seal_bytes, unseal_bytes_untrusted

PREFIX: Final = "ilg1."


class Visit(msgspec.Struct, frozen=True, array_like=True):
    confirmation_id: str
    digest: str  # of the call; where a hop below holds it, of the request
    principal: str
    expires_at: float


def is_visit(state: str) -> bool:
    return state.startswith(PREFIX)


def seal(visit: Visit, key: bytes) -> str:
    return seal_bytes(PREFIX, msgspec.json.encode(visit), key)


def unseal_untrusted(state: str, key: bytes) -> Visit | None:
    """None for anything that this key did not seal."""
    body = unseal_bytes_untrusted(PREFIX, state, key)
    return None if body is None else msgspec.json.decode(body, type=Visit)
