"""The settings of one room. Each field declares its configuration key (`interlock.config.keys`)."""

from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta

from interlock.rooms.protocol.envelope import ENVELOPE_BYTES_MAX
from interlock.rooms.protocol.participants import Mode, Origin, Privilege

_WEEK_S: Final = 7 * 86_400
_UNKNOWN_PRIVILEGE: Final = {"code": "unknown_privilege"}  # X-3.1-1
_PerMinute = Annotated[int, Meta(ge=0, le=1_000_000)]


def _key(example: object, **more: Any) -> Meta:
    """Return the declaration of a configuration key: an example of its value, and its limits."""
    return Meta(examples=[example], **more)


class Rates(msgspec.Struct, frozen=True, kw_only=True):
    """The limits on what a participant may send per minute (X-7.3-3). `sent_bytes` are those of its envelopes."""

    proposals: _PerMinute = 10
    chat: _PerMinute = 60
    envelopes: _PerMinute = 600
    # In 16 minutes it fills a history of the default size; so do the envelopes of the default rate by their number.
    sent_bytes: Annotated[int, Meta(ge=1024, le=1024**4)] = 32 * 1024 * 1024


class RoomSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of a room.

    Keys:
        mode: Who is full without more: those whom `full` or a token names (mixed), only those whom an admin promoted
            (restricted), everyone (open), or everyone, with a record of what mixed would have refused (observe).
        members: Which clients may join, as restricted.
        full: Which clients may join, as full.
        interlock_tools: Which tools of this node the participant `interlock` offers to full participants.
        trust_annotations: Whether tools of participants are what they say of themselves; else every call of one is
            irreversible.
        max_participants: How many may be in it at once.
        restricted_replies: Whether restricted participants may answer what is asked of them.
        restricted_chat: Whether restricted participants may chat.
        extra_kinds: Further kinds of envelopes, and the privilege that each takes.
        max_envelope_bytes: The largest envelope.
        proposal_ttl_s: How long a proposal waits for someone to carry it out.
        per_min: How much one participant may send in a minute.
        proposals_pending: How many proposals of one participant may wait.
        secret_patterns: Words that a proposer is warned of before they are sent, besides what looks like a credential
            anyway.
        tracker: Whether proposals are tracked, expire, and wait in the inbox.
        history_days: How long envelopes are kept, in days.
        history_max: How many envelopes of a room are kept.
        history_bytes: How many bytes of envelopes of a room are kept; then the oldest are removed.
        history_visibility: Which earlier envelopes and proposals a participant may read: all, those since it first
            joined, or none from before it came this time.
        presence_grace_s: How long after the last connection a participant has left.
        presence_heartbeat_s: How often the room is told of each participant that it is there; 0 is never.
        connections_per_participant: How many connections a participant may have; one more replaces the oldest.
        violation_notice: Whether the room is told of refused calls.
        v0_clients: What clients of MCPx v0 are: as everyone else, always restricted, full unless their token or the
            mode restricts them, or refused.
        undeclared_protocol: What a connection speaks that does not say ?protocol=. With "either", it is welcomed in
            mcpx/v0.1, and a second later in mcp-x/v0 as well if it stays silent; its first envelope decides.
    """

    mode: Annotated[Mode, _key("restricted")] = "mixed"
    members: Annotated[tuple[str, ...], _key(["client:planner"])] = ()
    full: Annotated[tuple[str, ...], _key(["client:alice"])] = ()
    interlock_tools: Annotated[tuple[str, ...], _key(["filesystem.*"])] = ()
    trust_annotations: Annotated[bool, _key(True)] = False
    max_participants: Annotated[int, _key(10, ge=1, le=10_000)] = 50
    restricted_replies: Annotated[Literal["deny", "allow"], _key("allow")] = "deny"
    restricted_chat: Annotated[bool, _key(False)] = True
    extra_kinds: Annotated[
        dict[str, Annotated[Privilege, Meta(extra=_UNKNOWN_PRIVILEGE)]],
        _key({"mcp/reject": "full"}, extra={"names": r"[a-z][a-z0-9/:_-]{0,63}", "names_are": "a kind"}),
    ] = {}
    max_envelope_bytes: Annotated[int, _key("256Ki", ge=1024, le=4 * 1024 * 1024)] = ENVELOPE_BYTES_MAX
    proposal_ttl_s: Annotated[int, _key(3600, ge=10, le=_WEEK_S)] = 300
    per_min: Annotated[
        Rates,
        _key(
            {"chat": 20},
            extra={"what": "how much a participant may send in a minute", "example": "per_min = { chat = 20 }"},
        ),
    ] = Rates()
    proposals_pending: Annotated[int, _key(5, ge=1, le=1000)] = 20
    secret_patterns: Annotated[tuple[str, ...], _key(["ACME-*"])] = ()
    # X-10.2-2
    tracker: Annotated[bool, _key(False)] = True
    history_days: Annotated[int, _key(30, ge=0, le=36_500)] = 7
    history_max: Annotated[int, _key(1000, ge=1, le=10_000_000)] = 10_000
    history_bytes: Annotated[int, _key("64Mi", ge=1024, le=1024**4)] = 512 * 1024 * 1024
    history_visibility: Annotated[Literal["all", "since_join", "none"], _key("none")] = "all"
    presence_grace_s: Annotated[float, _key(30, ge=0, le=3600)] = 10.0
    presence_heartbeat_s: Annotated[float, _key(60, ge=0, le=3600)] = 0.0
    connections_per_participant: Annotated[int, _key(3, ge=1, le=100)] = 1
    violation_notice: Annotated[bool, _key(True)] = False
    v0_clients: Annotated[
        Literal["assign", "restricted", "full", "refuse"], _key("refuse", extra=_UNKNOWN_PRIVILEGE)
    ] = "assign"
    undeclared_protocol: Annotated[Literal["either", "mcpx/v0.1", "mcp-x/v0"], _key("mcp-x/v0")] = "either"

    def find_v0_privilege(self, origin: Origin) -> Privilege | None:
        """Return the privilege that `v0_clients` gives a client of mcp-x/v0, or None if it keeps its own. `origin` is
        the rule that determined its own privilege (X-6.3-6).
        """
        if origin == "grant":
            return None
        if self.v0_clients == "restricted":
            return Privilege.RESTRICTED
        # `full` lifts neither what a token says nor the mode `restricted`.
        may_lift = origin != "token" and self.mode != "restricted"
        return Privilege.FULL if self.v0_clients == "full" and may_lift else None
