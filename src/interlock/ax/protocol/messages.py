"""The messages of MCP-AX as values (MCP-AX 6, 13.4), and the names of its methods.

`codec` reads them, and writes those whose members differ from the fields here. Identifiers are UUIDs in lower case; an
authority is a DNS name in lower case, without its scheme "dns:" and without a trailing dot. Members marked "ours" are
not in the draft: an aggregator that follows only the draft does not send them.
"""

from typing import Any, Final, Literal

import msgspec

from interlock.ax.protocol.capability import NATIVE, AuthScope

REGISTER: Final = "mcpax/register"  # AX-1-1
HEARTBEAT: Final = "mcpax/heartbeat"  # AX-1-1
DEREGISTER: Final = "mcpax/deregister"  # AX-1-1
CONFIRM: Final = "mcpax/confirm"
PARENT: Final = "mcpax/parent"  # ours: the query of 13.4, which the draft leaves without a name
CLAIM: Final = "mcpax/claim"  # ours: the common parent as the witness of 13.4

SUBSERVER_LOST: Final = "notifications/mcpax/subserver_lost"
OVERFLOW: Final = "notifications/mcpax/notification_overflow"
TOOLS_REFUSED: Final = "notifications/mcpax/tools_refused"
HELD_ELSEWHERE: Final = "notifications/mcpax/split_brain"  # ours

SUBTREE_IDS: Final = "x-mcpax-subtree-ids"  # AX-5.3-4
SUBPROTOCOL: Final = "mcpax.v1"  # of the WebSocket at /ax
VERSION: Final = "2026-05-01"  # the AX revision we speak (6.1)
HEARTBEAT_MS: Final = 5000  # of a registrant that names no interval; AX-13.2-2
HEARTBEATS_MISSED_MAX: Final = 3  # 6.3; AX-6.3-2, AX-6.2-3


class AuthorityProof(msgspec.Struct, frozen=True, kw_only=True):
    """Proof that a registrant may claim its authority (`authority_proof`)."""

    type: Literal["jwt"]
    token: str


class Register(msgspec.Struct, frozen=True, kw_only=True):
    """Request mcpax/register, with which a subserver registers."""

    subserver_id: str
    segment: str
    authority: str | None = None
    tools: bool = True
    resources: bool = False
    notifications: bool = False
    prompts: bool | None = None  # None: as the subserver's own MCP capabilities say
    completions: bool | None = None
    heartbeat_interval_ms: int = HEARTBEAT_MS
    transport_class: str = NATIVE
    version: str | None = None
    endpoint: str | None = None  # dial-back: where the aggregator finds the subserver as an MCP server
    authority_proof: AuthorityProof | None = None
    auth_scope: AuthScope | None = None  # requested; None: the widest that it may have
    parent_id: str | msgspec.UnsetType | None = msgspec.UNSET  # UNSET: not sent; None: it has no parent
    released_session: str | None = None  # the session at its former parent, given up for this registration
    tree: str | None = None  # None: whichever tree the aggregator belongs to
    subtree_ids: tuple[str, ...] | None = None  # its own aggregator_id first; None for a leaf

    @property
    def is_aggregator(self) -> bool:
        return self.subtree_ids is not None


# AX-6.2-1
class Registered(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="status", tag="registered"):
    """Answer to mcpax/register that accepts the registration. Its JSON form has exactly these members and a status."""

    assigned_segment: str
    session_id: str
    heartbeat_deadline_ms: int
    budget: dict[str, Any]
    aggregator_id: str | None = None  # ours, like the three below
    tree: str | None = None
    auth_scope: AuthScope | None = None
    claims: bool | None = None  # True if the aggregator takes mcpax/claim


class Heartbeat(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Message mcpax/heartbeat, which keeps a session alive. Its JSON form has exactly these members."""

    session_id: str
    subtree_ids: tuple[str, ...] | None = msgspec.field(default=None, name=SUBTREE_IDS)  # sent when they changed


class Deregister(msgspec.Struct, frozen=True, kw_only=True):
    """Request mcpax/deregister, which ends a session."""

    session_id: str


class Parent(msgspec.Struct, frozen=True, kw_only=True):
    """Answer to the request mcpax/parent. `parent_id` is the aggregator_id of the subserver's parent, or None if it has
    no parent.
    """

    subserver_id: str
    parent_id: str | None


class Claimed(msgspec.Struct, frozen=True, kw_only=True):
    """Claim to one subserver: its id, the aggregator where it is registered, and a hash of its session there."""

    subserver_id: str
    aggregator_id: str
    session_hash: str


class Claims(msgspec.Struct, frozen=True, kw_only=True):
    """Message mcpax/claim: the subservers that the sender now has, itself or through nodes below it, and those that it
    no longer has.
    """

    claims: tuple[Claimed, ...] = ()
    released: tuple[str, ...] = ()  # subserver_ids
    released_session: str | None = None  # as the registrant sent it: the former holder's session is over
