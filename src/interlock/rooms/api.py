"""The operator API about rooms and their participants.

The names of members and paths that MCPx defines (10.3) are spelled as there, in camel case. All others are in the
spelling of this API.
"""

from typing import Annotated, Final, Literal

from msgspec import Meta, Struct

from interlock.operator.operation import NOT_FOUND, ErrorCase, Operation, RequestBody, TextParameter, operations_in

RoomPrivilege = Literal["full", "restricted"]


class Room(Struct, frozen=True, kw_only=True):
    """A room as the operator API describes it."""

    topic: Annotated[str, Meta(description="Its name.")]
    mode: Annotated[str, Meta(description="mixed, restricted, observe or open.")]
    is_configured: Annotated[bool, Meta(description="Whether the configuration declares it.")]
    participants: Annotated[int, Meta(description="How many are present.")]
    envelopes: Annotated[int, Meta(description="The number of the last envelope.")]


class Rooms(Struct, frozen=True, kw_only=True):
    """A list of all rooms of the node."""

    rooms: Annotated[tuple[Room, ...], Meta(description="Configured ones first.")]


class RoomConnection(Struct, frozen=True, kw_only=True):
    """A connection of a participant to a room."""

    connectionId: Annotated[str, Meta(description="Its id.")]  # noqa: N815
    participantId: Annotated[str, Meta(description="Whose it is.")]  # noqa: N815
    privilege: Annotated[str, Meta(description="full or restricted.")]
    connectedAt: Annotated[str, Meta(description="Since when.")]  # noqa: N815
    protocol: Annotated[str, Meta(description="What it speaks.")]
    topic: Annotated[str, Meta(description="The room.")]
    source: Annotated[str, Meta(description="What settled its privilege: grant, token, identity or mode.")]
    principal: Annotated[str, Meta(description="Whose credential it is.")]
    isElsewhere: Annotated[bool, Meta(description="Another replica of the node holds it.")] = False  # noqa: N815


class RemovedParticipant(Struct, frozen=True, kw_only=True):
    """A participant that an admin removed. It cannot join the room until an admin promotes or demotes it."""

    participantId: Annotated[str, Meta(description="Who.")]  # noqa: N815
    by: Annotated[str, Meta(description="Who removed it.")]
    at: Annotated[str, Meta(description="When.")]


class RoomConnections(Struct, frozen=True, kw_only=True):
    """The connections to a room, and the participants that were removed from it."""

    topic: Annotated[str, Meta(description="The room.")]
    connections: Annotated[tuple[RoomConnection, ...], Meta(description="Oldest first, participant by participant.")]
    removed: Annotated[tuple[RemovedParticipant, ...], Meta(description="By their ids.")] = ()


class MethodRecord(Struct, frozen=True, kw_only=True):
    """The numbers of a participant's proposals for one method."""

    method: Annotated[str, Meta(description="The MCP method.")]
    proposals: Annotated[int, Meta(description="How often.")]
    approved: Annotated[int, Meta(description="How many were carried out.")]
    rejected: Annotated[int, Meta(description="How many were rejected.")]


class RoomParticipant(Struct, frozen=True, kw_only=True):
    """A current or former participant of a room, with its record there."""

    id: Annotated[str, Meta(description="Who, in the room.")]
    privilege: Annotated[str, Meta(description="full or restricted; of one that is away: what it had or was granted.")]
    is_present: Annotated[bool, Meta(description="Whether it is in the room.")]
    removed_by: Annotated[str | None, Meta(description="Who removed it; null: it may come in.")]
    removed_at: Annotated[str | None, Meta(description="When it was removed.")]
    principal: Annotated[str, Meta(description="Whose credential it came with.")]
    first_seen: Annotated[str | None, Meta(description="When it came or sent something for the first time.")]
    last_seen: Annotated[str | None, Meta(description="When it last came, or sent something without being there.")]
    proposals: Annotated[int, Meta(description="How many it has made.")]
    approved: Annotated[int, Meta(description="How many of them were carried out.")]
    rejected: Annotated[int, Meta(description="How many of them were rejected.")]
    violations: Annotated[int, Meta(description="How often it was refused an MCP message as restricted.")]
    methods: Annotated[tuple[MethodRecord, ...], Meta(description="The same, by proposed method.")]


class RoomParticipants(Struct, frozen=True, kw_only=True):
    """The current and former participants of a room."""

    topic: Annotated[str, Meta(description="The room.")]
    participants: Annotated[
        tuple[RoomParticipant, ...],
        Meta(description="Those present, those removed, then up to 200 that are away, the last seen first."),
    ]


class ObservedParticipant(Struct, frozen=True, kw_only=True):
    """A participant of a room in observe mode that sent envelopes which mode "mixed" would have refused."""

    participant: Annotated[str, Meta(description="Who, in the room.")]
    principal: Annotated[str, Meta(description="Whose credential it came with.")]
    envelopes: Annotated[int, Meta(description="How many would have been refused; a flood is recorded in part.")]
    kinds: Annotated[tuple[str, ...], Meta(description="Of which kinds they were.")]
    first: Annotated[str, Meta(description="When the first came.")]
    last: Annotated[str, Meta(description="When the last came.")]
    is_full: Annotated[bool, Meta(description="Whether an admin has made it full since.")]
    remedy: Annotated[str, Meta(description="The line of the configuration or the command that keeps it working.")]


class ObservedRoom(Struct, frozen=True, kw_only=True):
    """The envelopes that mode "mixed" would have refused, from the record of a room in observe mode."""

    topic: Annotated[str, Meta(description="The room.")]
    mode: Annotated[str, Meta(description="Its mode now.")]
    participants: Annotated[tuple[ObservedParticipant, ...], Meta(description="By their ids.")]


class Promoted(Struct, frozen=True, kw_only=True):
    """The result of a promotion: the participant may now send MCP messages."""

    participantId: Annotated[str, Meta(description="Who.")]  # noqa: N815
    oldPrivilege: Annotated[str, Meta(description="What it had.")]  # noqa: N815
    newPrivilege: Annotated[str, Meta(description="What it has.")]  # noqa: N815
    promotedBy: Annotated[str, Meta(description="Who did it.")]  # noqa: N815
    promotedAt: Annotated[str, Meta(description="When.")]  # noqa: N815


class Demoted(Struct, frozen=True, kw_only=True):
    """The result of a demotion: the participant may now only propose MCP messages."""

    participantId: Annotated[str, Meta(description="Who.")]  # noqa: N815
    oldPrivilege: Annotated[str, Meta(description="What it had.")]  # noqa: N815
    newPrivilege: Annotated[str, Meta(description="What it has.")]  # noqa: N815
    demotedBy: Annotated[str, Meta(description="Who did it.")]  # noqa: N815
    demotedAt: Annotated[str, Meta(description="When.")]  # noqa: N815


class Disconnected(Struct, frozen=True, kw_only=True):
    """The result of removing a participant: its connections are closed, and it cannot join again until an admin allows
    it.
    """

    participantId: Annotated[str, Meta(description="Who.")]  # noqa: N815
    closedConnections: Annotated[int, Meta(description="How many.")]  # noqa: N815
    by: Annotated[str, Meta(description="Who did it.")]
    at: Annotated[str, Meta(description="When.")]


class CreateRoom(RequestBody, frozen=True, kw_only=True):
    """A request to create a room."""

    topic: Annotated[str, Meta(description="Its name.", min_length=1, max_length=128)]


class ChangePrivilege(RequestBody, frozen=True, kw_only=True):
    """The reason and the duration of a promotion or demotion."""

    reason: Annotated[str, Meta(description="For the record.", max_length=2000)] = ""
    scope: Annotated[
        Literal["identity", "connection"],
        Meta(description="identity: also when it comes again; connection: while it stays connected."),
    ] = "identity"
    until: Annotated[
        Annotated[str, Meta(max_length=64)] | None,
        Meta(description="An RFC 3339 time, after which it is as before; null: no end."),
    ] = None


# Errors

BAD_TOPIC: Final = ErrorCase("bad_topic", 409, "a room cannot have this name")
PARTICIPANT_REMOVED: Final = ErrorCase(
    "removed", 409, "the participant was removed: a decision without an end lets it in"
)
ROOM_EXISTS: Final = ErrorCase("room_exists", 409, "there is a room of this name")
SELF_PROMOTION: Final = ErrorCase("self_promotion", 403, "the participant is the one who asks")
TOPIC_REQUIRED: Final = ErrorCase("topic_required", 409, "the participant is in several rooms; say ?topic=")


# Query parameters

TOPIC: Final = TextParameter(name="topic", description="Which room, where the participant is in several.")


# Operations

LIST_ROOMS: Final = Operation("list_rooms", "rooms", "GET /admin/rooms", "Every room.", output=Rooms)
CREATE_ROOM: Final = Operation(
    "create_room",
    "rooms",
    "POST /admin/rooms",
    "Make a room. It keeps its history while it is empty.",
    role="admin",
    input=CreateRoom,
    output=Room,
    status=201,
    errors=(BAD_TOPIC, ROOM_EXISTS),
)
LIST_CONNECTIONS: Final = Operation(
    "list_connections",
    "rooms",
    "GET /admin/rooms/{topic}/connections",
    "Who is connected to a room.",
    output=RoomConnections,
    errors=(NOT_FOUND,),
)
LIST_PARTICIPANTS: Final = Operation(
    "list_participants",
    "rooms",
    "GET /admin/rooms/{topic}/participants",
    "Who is or was in a room, with the record of each.",
    output=RoomParticipants,
    errors=(NOT_FOUND,),
)
SHOW_OBSERVED: Final = Operation(
    "show_observed",
    "rooms",
    "GET /admin/rooms/{topic}/observed",
    "What the room would have refused as a mixed one, from the record of its time in observe mode.",
    output=ObservedRoom,
    errors=(NOT_FOUND,),
)
MIGRATE: Final = Operation(
    "migrate",
    "rooms",
    "POST /admin/rooms/{topic}/migrate",
    "Make those full who would be refused something as restricted.",
    role="admin",
    output=ObservedRoom,
    errors=(NOT_FOUND,),
)
PROMOTE: Final = Operation(
    "promote",
    "rooms",
    "POST /admin/participants/{id}/promote",
    "Let a participant send MCP messages, from its next one on.",
    role="admin",
    input=ChangePrivilege,
    output=Promoted,
    query=(TOPIC,),
    errors=(NOT_FOUND, TOPIC_REQUIRED, SELF_PROMOTION, PARTICIPANT_REMOVED),
)
DEMOTE: Final = Operation(
    "demote",
    "rooms",
    "POST /admin/participants/{id}/demote",
    "Let a participant only propose, from its next message on.",
    role="admin",
    input=ChangePrivilege,
    output=Demoted,
    query=(TOPIC,),
    errors=(NOT_FOUND, TOPIC_REQUIRED, PARTICIPANT_REMOVED),
)
DISCONNECT: Final = Operation(
    "disconnect",
    "rooms",
    "POST /admin/participants/{id}/disconnect",
    "Remove a participant: it may come in again when it is promoted or demoted.",
    role="admin",
    output=Disconnected,
    query=(TOPIC,),
    errors=(NOT_FOUND, TOPIC_REQUIRED),
)

OPERATIONS: Final = operations_in(globals())
