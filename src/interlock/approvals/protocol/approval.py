"""The one record of something that waits for a decision: a held call, a tool without a class, a room's proposal.

Values only. Times are UNIX seconds. What a record may become is said in `state`, how a refusal looks in `errors`.
"""

import enum
from typing import Any, Final

import msgspec
from msgspec import Raw

from interlock.approvals.protocol.state import LIVE, Status

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
    """What an approval takes. To deny, the operator's role is enough."""

    ACK = "ack"
    ROLE = "role"
    CODE = "code"
    PROOF = "proof"


class What(enum.Enum):
    APPROVED = "approved"
    DENIED = "denied"


class Proof(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is kept of a proof that held. The token itself is kept nowhere."""

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
        """When it lapses by itself, if it does."""
        match self.status:
            case Status.PENDING:
                return self.expires_at
            case Status.APPROVED:
                return self.redeem_by
            case _:
                return None
