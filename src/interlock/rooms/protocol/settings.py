"""The settings of one room, as its configuration gives them."""

from typing import Literal

import msgspec

from interlock.rooms.protocol.envelope import ENVELOPE_BYTES_MAX
from interlock.rooms.protocol.participants import Mode, Privilege


class Rates(msgspec.Struct, frozen=True, kw_only=True):
    """Per participant and minute (X-7.3-3)."""

    proposals: int = 10
    chat: int = 60
    envelopes: int = 600


class RoomSettings(msgspec.Struct, frozen=True, kw_only=True):
    mode: Mode = "mixed"
    members: tuple[str, ...] = ()  # client principals that may join, by glob
    full: tuple[str, ...] = ()  # and those that are known, hence full
    interlock_tools: tuple[str, ...] = ()  # tools of the node that take part, by glob
    trust_annotations: bool = False  # what tools of participants say of themselves holds
    max_participants: int = 50
    restricted_replies: Literal["deny", "allow"] = "deny"
    restricted_chat: bool = True
    extra_kinds: dict[str, Privilege] = {}
    max_envelope_bytes: int = ENVELOPE_BYTES_MAX
    proposal_ttl_s: int = 300
    per_min: Rates = Rates()
    proposals_pending: int = 20
    secret_patterns: tuple[str, ...] = ()  # what also counts as a secret in a proposal, word by word, by glob
    tracker: bool = True  # of proposals (X-10.2-2)
    history_days: int = 7
    history_max: int = 10_000
    history_visibility: Literal["all", "since_join", "none"] = "all"
    presence_grace_s: float = 10.0
    presence_heartbeat_s: float = 0.0  # 0: none
    connections_per_participant: int = 1
    violation_notice: bool = False
    v0_clients: Literal["assign", "restricted", "full", "refuse"] = "assign"
    undeclared_protocol: Literal["mcpx/v0.1", "mcp-x/v0"] = "mcpx/v0.1"
