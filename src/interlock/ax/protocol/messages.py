"""The messages of a registration's life on an MCP-AX link, as values (MCP-AX 6, 13.4).

`codec` reads and writes them. Identifiers are UUIDs in lower case; an authority is a DNS name in lower case, without
its scheme "dns:" and without a trailing dot.
"""

from typing import Any, Final, Literal

import msgspec

from interlock.ax.protocol.capability import AuthScope
from interlock.ax.protocol.transport_classes import NATIVE

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

SUBPROTOCOL: Final = "mcpax.v1"  # of the WebSocket at /ax
VERSION: Final = "2026-05-01"  # the AX revision we speak (6.1)
HEARTBEAT_MS: Final = 5000  # where a registrant names none; AX-13.2-2
HEARTBEATS_MISSED_MAX: Final = 3  # 6.3; AX-6.3-2, AX-6.2-3


class Proof(msgspec.Struct, frozen=True, kw_only=True):
    """`authority_proof`: something that shows a claim of authority to be true."""

    type: Literal["jwt"]
    token: str


class Register(msgspec.Struct, frozen=True, kw_only=True):
    subserver_id: str
    segment: str
    authority: str | None = None
    tools: bool = True
    resources: bool = False
    notifications: bool = False
    prompts: bool | None = None  # None: what the subserver's own MCP capabilities say
    completions: bool | None = None
    heartbeat_interval_ms: int = HEARTBEAT_MS
    transport_class: str = NATIVE
    version: str | None = None
    endpoint: str | None = None  # dial-back: where the aggregator finds the subserver as an MCP server
    authority_proof: Proof | None = None
    auth_scope: AuthScope | None = None  # what the registrant asks for; None: whatever it may have
    parent_id: str | msgspec.UnsetType | None = msgspec.UNSET  # UNSET: not said; None: it has no parent
    released_session: str | None = None  # the session at its former parent, given up for this registration
    tree: str | None = None  # None: whichever tree the aggregator belongs to
    subtree_ids: tuple[str, ...] | None = None  # its own aggregator_id first; None for a leaf

    @property
    def is_aggregator(self) -> bool:
        return self.subtree_ids is not None


class Registered(msgspec.Struct, frozen=True, kw_only=True):
    assigned_segment: str
    session_id: str
    heartbeat_deadline_ms: int
    budget: dict[str, Any]
    aggregator_id: str | None = None  # this and the two below are ours: an aggregator that keeps to the draft is silent
    tree: str | None = None
    auth_scope: AuthScope | None = None
    claims: bool | None = None  # ours: True where it takes mcpax/claim


class Heartbeat(msgspec.Struct, frozen=True, kw_only=True):
    session_id: str
    subtree_ids: tuple[str, ...] | None = None  # said again when it changed


class Deregister(msgspec.Struct, frozen=True, kw_only=True):
    session_id: str


class Parent(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to mcpax/parent. `parent_id` is the aggregator_id of the parent, None where there is none."""

    subserver_id: str
    parent_id: str | None


class Claimed(msgspec.Struct, frozen=True, kw_only=True):
    """A subserver, the aggregator it registered with, and a hash of its session there."""

    subserver_id: str
    aggregator_id: str
    session_hash: str


class Claims(msgspec.Struct, frozen=True, kw_only=True):
    """mcpax/claim: which subservers the sender has, itself or below it, and which it has no more."""

    claims: tuple[Claimed, ...] = ()
    released: tuple[str, ...] = ()  # subserver_ids
    released_session: str | None = None  # as the registrant said it: the former holder's session is over
