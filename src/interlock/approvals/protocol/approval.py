"""The record of something that waits for a decision, its states, and the refusals around it.

This module contains only values; times are UNIX seconds. A held call, a tool without a class, a step of an agent, a
proposal in a room and a new approver are all the same record, so that expiry, proof, page and command are the same for
all of them.

Refusals have a number and a name (MCP-AX 11.3 names none of them):

asked too late or twice   confirmation_unknown, confirmation_expired, confirmation_used
no longer valid           confirmation_void, confirmation_denied
proof                     proof_invalid
asked too often           budget_exceeded (the draft's own number, 11.4)
store                     unavailable: nothing was done
"""

import enum
from collections.abc import Mapping
from typing import Any, Final

import msgspec
from msgspec import Raw

from interlock.wire import refusal
from interlock.wire.jsontext.display import Shown, fold, fold_differences
from interlock.wire.refusal import Refusal, RefusalCode, ax_refusal

# What an approval can become.
#
#     pending    not decided yet
#     approved   may be used once, until redeem_by
#     used       on its way: its first byte may have left
#     the rest   are ends; done, failed and unknown say how a used one went
#
# The table below has every move there is. A missing row is a refusal with a name (`errors.refusal_of`), never a move.


class Status(enum.Enum):
    """The status of an approval. It is called live while it is PENDING or APPROVED. All other statuses except USED are
    final.
    """

    PENDING = "pending"
    APPROVED = "approved"
    USED = "used"
    DONE = "done"
    FAILED = "failed"
    UNKNOWN = "unknown"
    DENIED = "denied"
    WITHDRAWN = "withdrawn"
    EXPIRED = "expired"
    VOID = "void"


class Move(enum.Enum):
    APPROVE = "approve"
    DENY = "deny"
    WITHDRAW = "withdraw"
    EXPIRE = "expire"
    VOID = "void"
    USE = "use"
    SUCCEED = "succeed"
    FAIL = "fail"
    LOSE = "lose"  # the answer was lost, or the node died: the outcome is unknown


TABLE: Final[Mapping[tuple[Status, Move], Status]] = {
    (Status.PENDING, Move.APPROVE): Status.APPROVED,
    (Status.PENDING, Move.DENY): Status.DENIED,
    (Status.PENDING, Move.WITHDRAW): Status.WITHDRAWN,
    (Status.PENDING, Move.EXPIRE): Status.EXPIRED,
    (Status.PENDING, Move.VOID): Status.VOID,
    (Status.APPROVED, Move.USE): Status.USED,
    (Status.APPROVED, Move.DENY): Status.DENIED,
    (Status.APPROVED, Move.EXPIRE): Status.EXPIRED,
    (Status.APPROVED, Move.VOID): Status.VOID,
    (Status.USED, Move.SUCCEED): Status.DONE,
    (Status.USED, Move.FAIL): Status.FAILED,
    (Status.USED, Move.LOSE): Status.UNKNOWN,
}

LIVE: Final = frozenset((Status.PENDING, Status.APPROVED))  # a decision or a use is still possible
ENDS: Final = frozenset(status for status in Status if not any(status is before for before, _ in TABLE))


def find_next_status(status: Status, move: Move) -> Status | None:
    """Return the status after a move, or None if the move is not possible."""
    return TABLE.get((status, move))


CLASSIFIED: Final = "classified_here"  # a factor of a call: its class is the word of this node's operator


class Kind(enum.Enum):
    """Kind of an approval, which determines who carries out the decision."""

    CALL = "call"
    DEFINITION = "definition"
    ACK = "ack"
    START = "start"
    STEP = "step"
    VERIFY = "verify"
    PROPOSAL = "proposal"
    REQUEST = "request"
    ENROLMENT = "enrolment"
    CONFIGURATION = "configuration"


class Source(enum.Enum):
    """The capability that raised an approval."""

    AX = "ax"
    AQL = "aql"
    ROOMS = "rooms"
    DRIVERS = "drivers"
    NAMES = "names"
    NODE = "node"


class Requires(enum.Enum):
    """The requirement for approving: an acknowledgement, a role, a code or a proof. Denying requires only the role of
    an operator.
    """

    ACK = "ack"
    ROLE = "role"
    CODE = "code"
    PROOF = "proof"


class What(enum.Enum):
    APPROVED = "approved"
    DENIED = "denied"


class Proof(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The stored facts about an accepted proof. The token itself is not among them."""

    type: str
    anchor: str
    jti: str
    key: str | None = None  # the thumbprint of the key that signed: an anchor may be given another

    @property
    def facts(self) -> dict[str, str]:
        """Return what the audit log records of the proof."""
        return {"anchor": self.anchor, "jti": self.jti, "proof": self.type}


class Decision(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    what: What
    by: str
    at: float
    reason: str | None = None
    proof: Proof | None = None
    answer: str | None = None  # of a definition: the class it was given


class Approval(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A record of something that waits for a decision. `id` is also the confirmation_id of MCP-AX 11.3.

    `params` is the content that a person is shown: for a tools/call request the arguments exactly as the caller wrote
    them; for a definition the definition and, if it changed, the previous one. `digest` binds the decision to its
    subject: it is the call_digest of a call or the tool_digest of a definition.
    """

    id: str
    kind: Kind
    source: Source
    requested_by: str
    tool: str
    digest: str
    created_at: float
    status: Status = Status.PENDING
    agent: str | None = None
    room: str | None = None
    proposal_id: str | None = None
    target: str | None = None
    method: str | None = None
    params: Raw | None = None
    route: tuple[str, ...] = ()
    capability: dict[str, Any] | None = None
    tool_digest: str | None = None  # of the definition as its owner declared it
    nonce: str | None = None
    reason: str | None = None  # why a person is asked
    factors: tuple[str, ...] = ()
    requires: Requires = Requires.PROOF
    expires_at: float | None = None  # None: it waits for ever
    redeem_by: float | None = None  # set when it is approved
    decision: Decision | None = None
    gating_link: str | None = None  # the segment of the hop below that asked
    outcome: str | None = None

    @property
    def is_live(self) -> bool:
        return self.status in LIVE

    @property
    def is_about_driver(self) -> bool:
        """Return whether the approval is about trusting a driver, rather than about a call that a driver's contract
        holds.
        """
        return self.source is Source.DRIVERS and self.kind is Kind.DEFINITION

    @property
    def deadline(self) -> float | None:
        """Return the time at which the approval lapses, or None if it cannot lapse in its present status."""
        if self.status is Status.PENDING:
            return self.expires_at
        return self.redeem_by if self.status is Status.APPROVED else None


# What a person is shown of an approval's params before deciding: the arguments of a call, or a definition.


def shown_params(params: bytes, kind: str, *, lines_max: int, chars_max: int) -> Shown:
    """Return the params in the form that a person sees: the arguments of a call, or the difference
    between two definitions.
    """
    change = find_change(params) if kind == Kind.DEFINITION.value else None
    if change is not None:
        return fold_differences(*change, lines_max=lines_max, chars_max=chars_max)
    return fold(params, lines_max=lines_max, chars_max=chars_max)


def find_change(params: bytes) -> tuple[bytes, bytes] | None:
    """Return the previous and the new definition from the params of an approval, or None if they do not contain a
    change.
    """
    try:
        members = msgspec.json.decode(params, type=dict[str, msgspec.Raw])
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    return (bytes(members["before"]), bytes(members["after"])) if members.keys() == {"before", "after"} else None


# What a yes does to the node itself, by the kind of approval.
NODE_EFFECTS: Final = {
    "enrolment": "the holder of this key may approve from now on; approve it only if you made it yourself",
    "configuration": "the change counts from now on; approve it only if you made it yourself",
    "request": "the registry of names takes this up as it is shown; nothing is called",
}
# What a yes does in a room.
PROPOSAL_EFFECT: Final = "exactly this is sent to its target in the room, once, in your name"
# What a yes does to an agent, by the kind of approval.
AGENT_EFFECTS: Final = {
    "start": "the agent starts; each step that it reports is still judged",
    "step": "the agent continues, and may make the calls that are named here, each once",
    "verify": "the agent is unblocked, or continues and may make the calls that are named here, each once",
}


_GONE: Final = "there is no such approval, or it ended long ago; make the call again"
_UNKNOWN_END: Final = "the call it was for was sent or was about to be; look at what happened before making it again"
_TOO_LATE: Final = (
    "it expired, because it was not decided, or not used, in time; the caller asks again with the identical call"
)
UNKNOWN: Final = ax_refusal(refusal.CONFIRMATION_UNKNOWN, _GONE)

_REFUSALS: Final[dict[Status, tuple[RefusalCode, str, str]]] = {
    Status.PENDING: (refusal.CONFIRMATION_UNKNOWN, "not decided yet; wait for an operator", "pending"),
    Status.APPROVED: (refusal.CONFIRMATION_USED, "it is approved already; make the identical call", "already_approved"),
    Status.USED: (refusal.CONFIRMATION_USED, "the call it was for is under way", "used"),
    Status.DONE: (refusal.CONFIRMATION_USED, "the call it was for has been made", "done"),
    Status.FAILED: (refusal.CONFIRMATION_USED, "the call it was for has been made, and failed", "failed"),
    Status.UNKNOWN: (refusal.CONFIRMATION_USED, _UNKNOWN_END, "unknown"),
    Status.EXPIRED: (refusal.CONFIRMATION_EXPIRED, _TOO_LATE, "expired"),
    Status.VOID: (refusal.CONFIRMATION_VOID, "what it was for has changed; make the call again", "void"),
    Status.WITHDRAWN: (refusal.CONFIRMATION_VOID, "the caller withdrew it", "withdrawn"),
    Status.DENIED: (refusal.CONFIRMATION_DENIED, "an operator said no", "denied"),
}

_OF_PROPOSALS: Final = {
    refusal.CONFIRMATION_USED: ("already_claimed", "somebody has it carried out already"),
    refusal.CONFIRMATION_EXPIRED: ("proposal_expired", "no one decided on the proposal in time; it may be made again"),
}


def refusal_of(approval: Approval) -> Refusal:
    """Return the refusal for an approval that cannot be decided or used in its present status."""
    code, why, reason = _REFUSALS[approval.status]
    if approval.kind is Kind.PROPOSAL and code in _OF_PROPOSALS:  # MCPx: X-4.2.1-5, X-7.3-4
        name, why = _OF_PROPOSALS[code]
        return Refusal(code, name, {"detail": why, "reason": reason, "confirmation_id": approval.id})
    data: dict[str, Any] = {"reason": reason, "confirmation_id": approval.id}
    if approval.status is Status.DENIED and approval.decision is not None and approval.decision.reason:
        data["said"] = approval.decision.reason
    if approval.status in (Status.VOID, Status.UNKNOWN, Status.FAILED) and approval.outcome:
        data["outcome"] = approval.outcome
    return ax_refusal(code, why, **data)


def settled_refusal(status: Status) -> Refusal:
    """Return the refusal for deciding on an approval that already has this status."""
    code, why, reason = _REFUSALS[status]
    return ax_refusal(code, why, reason=reason)


OF_ANOTHER_REPLICA: Final = refusal.unavailable(
    "other_replica",
    "it is about what another replica of this node holds: its drivers, its configuration, or an agent "
    "that works there; decide it at that replica",
)
UNAVAILABLE_NOW: Final = refusal.unavailable("store", "the node's store cannot be written; nothing was done")
