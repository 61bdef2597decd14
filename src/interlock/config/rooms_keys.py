"""The keys of rooms: [rooms] for all of them, and [[room]] for one."""

from typing import Final

import msgspec

from interlock.config.plan import RoomsPlan
from interlock.config.sections import Key, choices_of, keys_of
from interlock.config.value_types import Choice, Many, Record, Seconds, Size, Table, Text, Whole
from interlock.rooms.protocol.settings import Rates

_PER_MINUTE: Final = Whole(low=0, high=1_000_000)
_RATES: Final = Record(
    what="how much a participant may send in a minute",
    example="per_min = { chat = 20 }",
    fields={"proposals": _PER_MINUTE, "chat": _PER_MINUTE, "envelopes": _PER_MINUTE},
    make=Rates,
)
_PRIVILEGE: Final = Choice(values=("full", "restricted"), code="unknown_privilege")  # X-3.1-1
_GLOBS: Final = Many(item=Text())
WEEK_S: Final = 7 * 86_400

ROOMS: Final = keys_of(
    RoomsPlan,
    Key(
        name="mode",
        example="restricted",
        help="Who is full without more: those whom `full` or a token names (mixed), only those whom an admin promoted"
        " (restricted), everyone (open), or everyone, with a record of what mixed would have refused (observe).",
    ),
    Key(name="members", kind=_GLOBS, example=["client:planner"], help="Which clients may join, as restricted."),
    Key(name="full", kind=_GLOBS, example=["client:alice"], help="Which clients may join, as full."),
    Key(
        name="interlock_tools",
        kind=_GLOBS,
        example=["filesystem.*"],
        help="Which tools of this node the participant `interlock` offers to full participants.",
    ),
    Key(
        name="trust_annotations",
        example=True,
        help="Whether tools of participants are what they say of themselves; else every call of one is irreversible.",
    ),
    Key(name="max_participants", kind=Whole(low=1, high=10_000), example=10, help="How many may be in it at once."),
    Key(
        name="restricted_replies",
        example="allow",
        help="Whether restricted participants may answer what is asked of them.",
    ),
    Key(name="restricted_chat", example=False, help="Whether restricted participants may chat."),
    Key(
        name="extra_kinds",
        kind=Table(names=r"[a-z][a-z0-9/:_-]{0,63}", names_are="a kind", item=_PRIVILEGE),
        default={},
        example={"mcp/reject": "full"},
        help="Further kinds of envelopes, and the privilege that each takes.",
    ),
    Key(
        name="max_envelope_bytes",
        kind=Size(low=1024, high=4 * 1024 * 1024),
        example="256Ki",
        help="The largest envelope.",
    ),
    Key(
        name="proposal_ttl_s",
        kind=Whole(low=10, high=WEEK_S),
        example=3600,
        help="How long a proposal waits for someone to carry it out.",
    ),
    Key(name="per_min", kind=_RATES, example={"chat": 20}, help="How much one participant may send in a minute."),
    Key(
        name="proposals_pending",
        kind=Whole(low=1, high=1000),
        example=5,
        help="How many proposals of one participant may wait.",
    ),
    Key(
        name="secret_patterns",
        kind=_GLOBS,
        example=["ACME-*"],
        help="Words that a proposer is warned of before they are sent, besides what looks like a credential anyway.",
    ),
    Key(name="tracker", example=False, help="Whether proposals are tracked, expire, and wait in the inbox."),
    Key(name="history_days", kind=Whole(low=0, high=36_500), example=30, help="How long envelopes are kept, in days."),
    Key(
        name="history_max",
        kind=Whole(low=1, high=10_000_000),
        example=1000,
        help="How many envelopes of a room are kept.",
    ),
    Key(
        name="history_visibility",
        example="none",
        help="Which earlier envelopes a participant may read: all, those since it first joined, or none.",
    ),
    Key(
        name="presence_grace_s",
        kind=Seconds(low=0, high=3600),
        example=30,
        help="How long after the last connection a participant has left.",
    ),
    Key(
        name="presence_heartbeat_s",
        kind=Seconds(low=0, high=3600),
        example=60,
        help="How often the room is told of each participant that it is there; 0 is never.",
    ),
    Key(
        name="connections_per_participant",
        kind=Whole(low=1, high=100),
        example=3,
        help="How many connections a participant may have; one more replaces the oldest.",
    ),
    Key(name="violation_notice", example=True, help="Whether the room is told of refused calls."),
    Key(
        name="v0_clients",
        kind=msgspec.structs.replace(choices_of(RoomsPlan, "v0_clients"), code=_PRIVILEGE.code),
        example="refuse",
        help="What clients of MCPx v0 are: as everyone else, always restricted, always full, or refused.",
    ),
    Key(
        name="undeclared_protocol",
        example="mcp-x/v0",
        help="What a connection speaks that does not say ?protocol=.",
    ),
    Key(name="auto_create", example=True, help="Whether connecting to an unknown topic makes a room of it."),
)

ROOM: Final = {
    "topic": Key(
        name="topic",
        kind=Text(
            pattern=r"[A-Za-z0-9][A-Za-z0-9._:@~-]{0,127}",
            what="1 to 128 of the characters A-Z a-z 0-9 . _ : @ ~ -, beginning with a letter or digit",
        ),
        example="garden",
        required=True,
        help="The room's name.",
    ),
} | {name: msgspec.structs.replace(key, default=None) for name, key in ROOMS.items() if name != "auto_create"}
