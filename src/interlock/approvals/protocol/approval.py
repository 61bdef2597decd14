"""The one record of something that waits for a decision: a held call, a tool without a class, a room's proposal.

Values only. Times are UNIX seconds. What a record may become is said in `state`, how a refusal looks in `errors`.
"""

import enum
from collections.abc import Mapping
from typing import Any, Final

import msgspec
from msgspec import Raw

from interlock.wire.jsontext.display import Shown, fold, fold_differences

# What an approval can become.
#
#     pending    not decided yet
#     approved   may be used once, until redeem_by
#     used       on its way: its first byte may have left
#     the rest   are ends; done, failed and unknown say how a used one went
#
# The table below has every move there is. A missing row is a refusal with a name (`errors.refusal_of`), never a move.


class Status(enum.Enum):
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


def maybe_after(status: Status, move: Move) -> Status | None:
    """Return the status after a move, or None if the move is not possible."""
    return TABLE.get((status, move))


CLASSIFIED: Final = "classified_here"  # a factor of a call: its class is the word of this node's operator


class Kind(enum.Enum):
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
    AX = "ax"
    AQL = "aql"
    ROOMS = "rooms"
    DRIVERS = "drivers"
    NAMES = "names"
    NODE = "node"


class Requires(enum.Enum):
    """Requirement for an approval. Denying needs only the role of an operator."""

    ACK = "ack"
    ROLE = "role"
    CODE = "code"
    PROOF = "proof"


class What(enum.Enum):
    APPROVED = "approved"
    DENIED = "denied"


class Proof(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Facts of an accepted proof that are stored. The token itself is not stored."""

    type: str
    anchor: str
    jti: str
    key: str | None = None  # the thumbprint of the key that signed: an anchor may be given another


class Decision(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    what: What
    by: str
    at: float
    reason: str | None = None
    proof: Proof | None = None
    answer: str | None = None  # of a definition: the class it was given


class Approval(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`id` is also the confirmation_id of MCP-AX 11.3.

    `params` is what a person is shown of what will happen, and nothing that may be sent without asking: of tools/call
    the arguments alone, as the caller wrote them; of a definition the definition and, if it changed, the one before.
    `digest` binds the decision: the call_digest of a call, the tool_digest of a definition.
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
    def deadline(self) -> float | None:
        """Return when the approval lapses by itself, or None."""
        match self.status:
            case Status.PENDING:
                return self.expires_at
            case Status.APPROVED:
                return self.redeem_by
            case _:
                return None


# What a person is shown of an approval's params before deciding: the arguments of a call, or a definition.


def shown_params(params: bytes, kind: str, *, lines_max: int, chars_max: int) -> Shown:
    """Return what a person sees: the arguments of a call, or the difference of a changed definition."""
    change = maybe_change(params) if kind == Kind.DEFINITION.value else None
    if change is not None:
        return fold_differences(*change, lines_max=lines_max, chars_max=chars_max)
    return fold(params, lines_max=lines_max, chars_max=chars_max)


def maybe_change(params: bytes) -> tuple[bytes, bytes] | None:
    """Return the old and the new definition, or None if nothing changed."""
    try:
        members = msgspec.json.decode(params, type=dict[str, msgspec.Raw])
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    return (bytes(members["before"]), bytes(members["after"])) if members.keys() == {"before", "after"} else None


# What a yes does to the node itself, by the kind of approval.
NODE_EFFECTS: Final = {
    "enrolment": "the holder of this key may approve from now on; approve it only if you made it yourself",
    "configuration": "you say that you changed this; it is in effect, and is no longer shown as unsigned",
    "request": "the registry of names takes this up as it is shown; nothing is called",
}
# What a yes does in a room.
PROPOSAL_EFFECT: Final = "exactly this is sent to its target in the room, once, in your name"
# What a yes does to an agent, by the kind of approval.
AGENT_EFFECTS: Final = {
    "start": "the agent starts; each step that it reports is still judged",
    "step": "the agent goes on with the step that it reported, once",
    "verify": "the agent is unblocked, or goes on with the step that it reported",
}
