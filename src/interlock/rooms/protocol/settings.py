"""The settings of one room. Each field declares its configuration key (`interlock.config.keys`)."""

from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta

from interlock.rooms.protocol.envelope import ENVELOPE_BYTES_MAX
from interlock.rooms.protocol.participants import Mode, Privilege

_WEEK_S: Final = 7 * 86_400
_UNKNOWN_PRIVILEGE: Final = {"code": "unknown_privilege"}  # X-3.1-1
_PerMinute = Annotated[int, Meta(ge=0, le=1_000_000)]


def _key(description: str, example: object, **more: Any) -> Meta:
    """Return the description of a configuration key, with an example of its value and its limits."""
    return Meta(description=description, examples=[example], **more)


class Rates(msgspec.Struct, frozen=True, kw_only=True):
    """The limits on what a participant may send per minute (X-7.3-3)."""

    proposals: _PerMinute = 10
    chat: _PerMinute = 60
    envelopes: _PerMinute = 600


class RoomSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of a room."""

    mode: Annotated[
        Mode,
        _key(
            "Who is full without more: those whom `full` or a token names (mixed), only those whom an admin"
            " promoted (restricted), everyone (open), or everyone, with a record of what mixed would"
            " have refused (observe).",
            "restricted",
        ),
    ] = "mixed"
    members: Annotated[tuple[str, ...], _key("Which clients may join, as restricted.", ["client:planner"])] = ()
    full: Annotated[tuple[str, ...], _key("Which clients may join, as full.", ["client:alice"])] = ()
    interlock_tools: Annotated[
        tuple[str, ...],
        _key("Which tools of this node the participant `interlock` offers to full participants.", ["filesystem.*"]),
    ] = ()
    trust_annotations: Annotated[
        bool,
        _key(
            "Whether tools of participants are what they say of themselves; else every call of one is irreversible.",
            True,
        ),
    ] = False
    max_participants: Annotated[int, _key("How many may be in it at once.", 10, ge=1, le=10_000)] = 50
    restricted_replies: Annotated[
        Literal["deny", "allow"], _key("Whether restricted participants may answer what is asked of them.", "allow")
    ] = "deny"
    restricted_chat: Annotated[bool, _key("Whether restricted participants may chat.", False)] = True
    extra_kinds: Annotated[
        dict[str, Annotated[Privilege, Meta(extra=_UNKNOWN_PRIVILEGE)]],
        _key(
            "Further kinds of envelopes, and the privilege that each takes.",
            {"mcp/reject": "full"},
            extra={"names": r"[a-z][a-z0-9/:_-]{0,63}", "names_are": "a kind"},
        ),
    ] = {}
    max_envelope_bytes: Annotated[int, _key("The largest envelope.", "256Ki", ge=1024, le=4 * 1024 * 1024)] = (
        ENVELOPE_BYTES_MAX
    )
    proposal_ttl_s: Annotated[
        int, _key("How long a proposal waits for someone to carry it out.", 3600, ge=10, le=_WEEK_S)
    ] = 300
    per_min: Annotated[
        Rates,
        _key(
            "How much one participant may send in a minute.",
            {"chat": 20},
            extra={"what": "how much a participant may send in a minute", "example": "per_min = { chat = 20 }"},
        ),
    ] = Rates()
    proposals_pending: Annotated[int, _key("How many proposals of one participant may wait.", 5, ge=1, le=1000)] = 20
    secret_patterns: Annotated[
        tuple[str, ...],
        _key(
            "Words that a proposer is warned of before they are sent, besides what looks like a credential anyway.",
            ["ACME-*"],
        ),
    ] = ()
    # X-10.2-2
    tracker: Annotated[bool, _key("Whether proposals are tracked, expire, and wait in the inbox.", False)] = True
    history_days: Annotated[int, _key("How long envelopes are kept, in days.", 30, ge=0, le=36_500)] = 7
    history_max: Annotated[int, _key("How many envelopes of a room are kept.", 1000, ge=1, le=10_000_000)] = 10_000
    history_visibility: Annotated[
        Literal["all", "since_join", "none"],
        _key("Which earlier envelopes a participant may read: all, those since it first joined, or none.", "none"),
    ] = "all"
    presence_grace_s: Annotated[
        float, _key("How long after the last connection a participant has left.", 30, ge=0, le=3600)
    ] = 10.0
    presence_heartbeat_s: Annotated[
        float, _key("How often the room is told of each participant that it is there; 0 is never.", 60, ge=0, le=3600)
    ] = 0.0
    connections_per_participant: Annotated[
        int, _key("How many connections a participant may have; one more replaces the oldest.", 3, ge=1, le=100)
    ] = 1
    violation_notice: Annotated[bool, _key("Whether the room is told of refused calls.", True)] = False
    v0_clients: Annotated[
        Literal["assign", "restricted", "full", "refuse"],
        _key(
            "What clients of MCPx v0 are: as everyone else, always restricted, always full, or refused.",
            "refuse",
            extra=_UNKNOWN_PRIVILEGE,
        ),
    ] = "assign"
    undeclared_protocol: Annotated[
        Literal["mcpx/v0.1", "mcp-x/v0"], _key("What a connection speaks that does not say ?protocol=.", "mcp-x/v0")
    ] = "mcpx/v0.1"
