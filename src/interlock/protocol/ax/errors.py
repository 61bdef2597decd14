"""The refusals of MCP-AX links, and how they look on the wire.

    registration     namespace_conflict, namespace_invalid, registration_cycle, split_brain
      authority      authority_unverified, authority_conflict
    session          session_unknown
    call             scope_denied, route_mismatch
    link             link_insecure
    confirmation     confirmation_unknown, _expired, _used, proof_invalid, confirmation_void, _denied

The draft names some of them and numbers none; the codes are positive, because -32000..-32019 is closed to new ones, and
the same on every link. Malformed params are -32602 and have no name of their own.
"""

from typing import Any, Final

from msgspec import Raw

from interlock.protocol.jsonrpc.codec import decode_object, decode_value, encode_value
from interlock.protocol.jsonrpc.errors import BUDGET_EXCEEDED, TOOL_DEGRADED, CodecError, Fault

NAMESPACE_CONFLICT: Final = 32110
NAMESPACE_INVALID: Final = 32111
REGISTRATION_CYCLE: Final = 32112
SPLIT_BRAIN: Final = 32113
AUTHORITY_UNVERIFIED: Final = 32114
AUTHORITY_CONFLICT: Final = 32115
SESSION_UNKNOWN: Final = 32116
SCOPE_DENIED: Final = 32117
ROUTE_MISMATCH: Final = 32118
LINK_INSECURE: Final = 32119
CONFIRMATION_UNKNOWN: Final = 32120
CONFIRMATION_EXPIRED: Final = 32121
CONFIRMATION_USED: Final = 32122
PROOF_INVALID: Final = 32123
CONFIRMATION_VOID: Final = 32124
CONFIRMATION_DENIED: Final = 32125

NAMES: Final = {
    NAMESPACE_CONFLICT: "namespace_conflict",
    NAMESPACE_INVALID: "namespace_invalid",
    REGISTRATION_CYCLE: "registration_cycle",
    SPLIT_BRAIN: "split_brain",
    AUTHORITY_UNVERIFIED: "authority_unverified",
    AUTHORITY_CONFLICT: "authority_conflict",
    SESSION_UNKNOWN: "session_unknown",
    SCOPE_DENIED: "scope_denied",
    ROUTE_MISMATCH: "route_mismatch",
    LINK_INSECURE: "link_insecure",
    CONFIRMATION_UNKNOWN: "confirmation_unknown",
    CONFIRMATION_EXPIRED: "confirmation_expired",
    CONFIRMATION_USED: "confirmation_used",
    PROOF_INVALID: "proof_invalid",
    CONFIRMATION_VOID: "confirmation_void",
    CONFIRMATION_DENIED: "confirmation_denied",
}


def refusal(code: int, why: str, **data: Any) -> Fault:
    """The message is the name (MCP-AX 4.2 compares it); what a person reads is data.detail."""
    name = NAMES[code]
    return Fault(code, name, {"mcpax_error": name, "detail": why, **data})


_DRAFT_CODES: Final = {("tool_degraded", -32002): TOOL_DEGRADED, ("budget_exceeded", -32003): BUDGET_EXCEEDED}
_DRAFT_MARKS: Final = (b"-32002", b"-32003")


def maybe_for_modern_edge(error: Raw) -> bytes | None:
    """An error with a number of the draft's own, as a 2026-07-28 client reads it (13.2); None for every other.

    It is known by its message and reason: -32002 alone may be a legacy server's word for a missing resource.
    """
    if not any(mark in bytes(error) for mark in _DRAFT_MARKS):
        return None
    members: dict[str, Any] | None = decode_object(error)
    try:
        said = {name: decode_value(members[name]) for name in ("code", "message", "data")} if members else {}
    except (KeyError, CodecError):
        return None
    data = said.get("data")
    if (
        members is None
        or not isinstance(data, dict)
        or data.keys().isdisjoint(("reason", "budget"))
        or type(said["code"]) is not int
    ):
        return None
    message = said["message"]
    code = _DRAFT_CODES.get((message, said["code"])) if isinstance(message, str) else None
    if code is None:
        return None
    return encode_value({**members, "code": code, "data": {**data, "mcpax_code": said["code"]}})
