"""The settings of one room. Each field declares its configuration key (`interlock.config.keys`)."""

from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from interlock.rooms.protocol.envelope import ENVELOPE_BYTES_MAX
from interlock.rooms.protocol.participants import Mode, Privilege

_WEEK_S: Final = 7 * 86_400
_UNKNOWN_PRIVILEGE: Final = {"code": "unknown_privilege"}  # X-3.1-1
_PerMinute = Annotated[int, Meta(ge=0, le=1_000_000)]


class Rates(msgspec.Struct, frozen=True, kw_only=True):
    """The limits on what a participant may send per minute (X-7.3-3)."""

    proposals: _PerMinute = 10
    chat: _PerMinute = 60
    envelopes: _PerMinute = 600


class RoomSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of a room."""

    mode: Annotated[
        Mode,
        Meta(
            description="Who is full without more: those whom `full` or a token names (mixed), only those whom an admin"
            " promoted (restricted), everyone (open), or everyone, with a record of what mixed would"
            " have refused (observe).",
            examples=["restricted"],
        ),
    ] = "mixed"
    members: Annotated[
        tuple[str, ...], Meta(description="Which clients may join, as restricted.", examples=[["client:planner"]])
    ] = ()
    full: Annotated[
        tuple[str, ...], Meta(description="Which clients may join, as full.", examples=[["client:alice"]])
    ] = ()
    interlock_tools: Annotated[
        tuple[str, ...],
        Meta(
            description="Which tools of this node the participant `interlock` offers to full participants.",
            examples=[["filesystem.*"]],
        ),
    ] = ()
    trust_annotations: Annotated[
        bool,
        Meta(
            description="Whether tools of participants are what they say of themselves; else every call of one is"
            " irreversible.",
            examples=[True],
        ),
    ] = False
    max_participants: Annotated[
        int, Meta(description="How many may be in it at once.", examples=[10], ge=1, le=10_000)
    ] = 50
    restricted_replies: Annotated[
        Literal["deny", "allow"],
        Meta(description="Whether restricted participants may answer what is asked of them.", examples=["allow"]),
    ] = "deny"
    restricted_chat: Annotated[
        bool, Meta(description="Whether restricted participants may chat.", examples=[False])
    ] = True
    extra_kinds: Annotated[
        dict[str, Annotated[Privilege, Meta(extra=_UNKNOWN_PRIVILEGE)]],
        Meta(
            description="Further kinds of envelopes, and the privilege that each takes.",
            examples=[{"mcp/reject": "full"}],
            extra={"names": r"[a-z][a-z0-9/:_-]{0,63}", "names_are": "a kind"},
        ),
    ] = {}
    max_envelope_bytes: Annotated[
        int, Meta(description="The largest envelope.", examples=["256Ki"], ge=1024, le=4 * 1024 * 1024)
    ] = ENVELOPE_BYTES_MAX
    proposal_ttl_s: Annotated[
        int,
        Meta(description="How long a proposal waits for someone to carry it out.", examples=[3600], ge=10, le=_WEEK_S),
    ] = 300
    per_min: Annotated[
        Rates,
        Meta(
            description="How much one participant may send in a minute.",
            examples=[{"chat": 20}],
            extra={"what": "how much a participant may send in a minute", "example": "per_min = { chat = 20 }"},
        ),
    ] = Rates()
    proposals_pending: Annotated[
        int, Meta(description="How many proposals of one participant may wait.", examples=[5], ge=1, le=1000)
    ] = 20
    secret_patterns: Annotated[
        tuple[str, ...],
        Meta(
            description="Words that a proposer is warned of before they are sent, besides what looks like a credential"
            " anyway.",
            examples=[["ACME-*"]],
        ),
    ] = ()
    # X-10.2-2
    tracker: Annotated[
        bool, Meta(description="Whether proposals are tracked, expire, and wait in the inbox.", examples=[False])
    ] = True
    history_days: Annotated[
        int, Meta(description="How long envelopes are kept, in days.", examples=[30], ge=0, le=36_500)
    ] = 7
    history_max: Annotated[
        int, Meta(description="How many envelopes of a room are kept.", examples=[1000], ge=1, le=10_000_000)
    ] = 10_000
    history_visibility: Annotated[
        Literal["all", "since_join", "none"],
        Meta(
            description="Which earlier envelopes a participant may read: all, those since it first joined, or none.",
            examples=["none"],
        ),
    ] = "all"
    presence_grace_s: Annotated[
        float,
        Meta(description="How long after the last connection a participant has left.", examples=[30], ge=0, le=3600),
    ] = 10.0
    presence_heartbeat_s: Annotated[
        float,
        Meta(
            description="How often the room is told of each participant that it is there; 0 is never.",
            examples=[60],
            ge=0,
            le=3600,
        ),
    ] = 0.0
    connections_per_participant: Annotated[
        int,
        Meta(
            description="How many connections a participant may have; one more replaces the oldest.",
            examples=[3],
            ge=1,
            le=100,
        ),
    ] = 1
    violation_notice: Annotated[
        bool, Meta(description="Whether the room is told of refused calls.", examples=[True])
    ] = False
    v0_clients: Annotated[
        Literal["assign", "restricted", "full", "refuse"],
        Meta(
            description="What clients of MCPx v0 are: as everyone else, always restricted, always full, or refused.",
            examples=["refuse"],
            extra=_UNKNOWN_PRIVILEGE,
        ),
    ] = "assign"
    undeclared_protocol: Annotated[
        Literal["mcpx/v0.1", "mcp-x/v0"],
        Meta(description="What a connection speaks that does not say ?protocol=.", examples=["mcp-x/v0"]),
    ] = "mcpx/v0.1"
