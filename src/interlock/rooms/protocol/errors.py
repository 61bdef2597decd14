"""Refusals of rooms: one shape for every fault of an envelope, and the codes that there are.

EnvelopeRefusal
  whose envelope is at fault    invalid_json, invalid_envelope, unsupported_protocol, unknown_kind, reserved_kind,
                                from_mismatch, invalid_proposal, invalid_chat, duplicate_id, envelope_too_large
  who may not                   kind_not_allowed, privilege_violation, not_proposer, self_approval, removed
  what is over                  already_claimed, proposal_expired, unknown_proposal
  what to wait for              rate_limited, unavailable, target_absent, room_full
  which is not there            unknown_topic, history_gap
  whose arguments are at fault  input_invalid, secret_found (of a room tool)
"""

from typing import Any, Final, Literal

from interlock.wire.refusal import Refusal

Code = Literal[
    "invalid_json",
    "invalid_envelope",
    "invalid_proposal",
    "invalid_chat",
    "unsupported_protocol",
    "unknown_kind",
    "kind_not_allowed",
    "reserved_kind",
    "from_mismatch",
    "duplicate_id",
    "envelope_too_large",
    "rate_limited",
    "one_recipient",
    "not_proposer",
    "already_claimed",
    "proposal_expired",
    "unknown_proposal",
    "self_approval",
    "target_absent",
    "privilege_violation",
    "unavailable",
    "unknown_topic",
    "room_full",
    "removed",
    "history_gap",
    "input_invalid",
    "secret_found",
]

# MCPx 4.4.2, to the letter.
VIOLATION_CODE: Final = -32001  # X-4.4.2-2
VIOLATION_MESSAGE: Final = "Privilege violation"  # X-4.4.2-2
VIOLATION_REASON: Final = "Restricted participants cannot send MCP messages directly"
VIOLATION_SUGGESTION: Final = "Use kind: 'mcp/proposal' instead"


class EnvelopeRefusal(Refusal, frozen=True, kw_only=True):
    """The refusal of an envelope, or of a decision on a proposal. Its code is one of `Code`."""

    id: str | None = None  # of the envelope, if it could be read
    answers: bytes = b"null"  # the JSON-RPC id that a privilege violation is answered under


def violation_error() -> dict[str, Any]:
    return {
        "code": VIOLATION_CODE,
        "message": VIOLATION_MESSAGE,
        "data": {"reason": VIOLATION_REASON, "suggestion": VIOLATION_SUGGESTION},
    }
