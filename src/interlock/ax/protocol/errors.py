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

from interlock.wire.jsonrpc.errors import Fault

NAMESPACE_CONFLICT: Final = 32110  # AX-4.2-2
NAMESPACE_INVALID: Final = 32111  # AX-4.1-2
REGISTRATION_CYCLE: Final = 32112  # AX-5.3-3
SPLIT_BRAIN: Final = 32113  # AX-13.4-2
AUTHORITY_UNVERIFIED: Final = 32114  # AX-4.2-6, AX-4.2-8
AUTHORITY_CONFLICT: Final = 32115  # AX-4.2-5
SESSION_UNKNOWN: Final = 32116  # AX-6.2-2
SCOPE_DENIED: Final = 32117  # AX-10.2-2
ROUTE_MISMATCH: Final = 32118  # AX-7.2-1
LINK_INSECURE: Final = 32119  # AX-10.4-1
CONFIRMATION_UNKNOWN: Final = 32120  # AX-11.3-3
CONFIRMATION_EXPIRED: Final = 32121  # AX-11.3-4
CONFIRMATION_USED: Final = 32122  # AX-11.3-15
PROOF_INVALID: Final = 32123  # AX-11.3-5
CONFIRMATION_VOID: Final = 32124  # AX-11.3-14
CONFIRMATION_DENIED: Final = 32125

NAMES: Final = {
    NAMESPACE_CONFLICT: "namespace_conflict",  # AX-4.2-2
    NAMESPACE_INVALID: "namespace_invalid",
    REGISTRATION_CYCLE: "registration_cycle",  # AX-5.3-3
    SPLIT_BRAIN: "split_brain",  # AX-13.4-2
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
    return Fault(code, name, {"mcpax_error": name, "detail": why, **data})  # AX-6.2-5
