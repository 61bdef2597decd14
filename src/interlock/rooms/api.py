"""The operator API about rooms and their participants.

The names of members and paths that MCPx defines (10.3) are spelled as there, in camel case. All others are in the
spelling of this API.
"""

from typing import Annotated, Final, Literal

from msgspec import Meta, Struct

from interlock.operator.operation import ErrorCase, Operation, RequestBody, TextParameter, operations_in

RoomPrivilege = Literal["full", "restricted"]


class Room(Struct, frozen=True, kw_only=True):
    """A room as the operator API describes it.

    Members:
        topic: Its name.
        mode: mixed, restricted, observe or open.
        is_configured: Whether the configuration declares it.
        participants: How many are present.
        envelopes: The number of the last envelope.
    """

    topic: str
    mode: str
    is_configured: bool
    participants: int
    envelopes: int


class Rooms(Struct, frozen=True, kw_only=True):
    """A list of all rooms of the node.

    Members:
        rooms: Configured ones first.
    """

    rooms: tuple[Room, ...]


class RoomConnection(Struct, frozen=True, kw_only=True):
    """A connection of a participant to a room.

    Members:
        connectionId: Its id.
        participantId: Whose it is.
        privilege: full or restricted.
        connectedAt: Since when.
        protocol: What it speaks.
        topic: The room.
        source: What settled its privilege: grant, token, identity or mode.
        principal: Whose credential it is.
        isElsewhere: Another replica of the node holds it.
    """

    connectionId: str  # noqa: N815
    participantId: str  # noqa: N815
    privilege: str
    connectedAt: str  # noqa: N815
    protocol: str
    topic: str
    source: str
    principal: str
    isElsewhere: bool = False  # noqa: N815


class RemovedParticipant(Struct, frozen=True, kw_only=True):
    """A participant that an admin removed. It cannot join the room again until an admin gives it a privilege.

    Members:
        participantId: Who.
        by: Who removed it.
        at: When.
    """

    participantId: str  # noqa: N815
    by: str
    at: str


class RoomConnections(Struct, frozen=True, kw_only=True):
    """The connections to a room, and the participants that were removed from it.

    Members:
        topic: The room.
        connections: Oldest first, participant by participant.
        removed: By their ids.
    """

    topic: str
    connections: tuple[RoomConnection, ...]
    removed: tuple[RemovedParticipant, ...] = ()


class MethodRecord(Struct, frozen=True, kw_only=True):
    """The numbers of a participant's proposals for one method.

    Members:
        method: The MCP method.
        proposals: How often.
        approved: How many were carried out.
        rejected: How many were rejected.
    """

    method: str
    proposals: int
    approved: int
    rejected: int


class RoomParticipant(Struct, frozen=True, kw_only=True):
    """A current or former participant of a room, with the numbers of its proposals and of its refused messages.

    Members:
        id: Who, in the room.
        privilege: full or restricted; of one that is away: what it had or was granted.
        is_present: Whether it is in the room.
        removed_by: Who removed it; null: it may come in.
        removed_at: When it was removed.
        principal: Whose credential it came with.
        first_seen: When it came or sent something for the first time.
        last_seen: When it last came, or sent something without being there.
        proposals: How many it has made.
        approved: How many of them were carried out.
        rejected: How many of them were rejected.
        violations: How often it was refused an MCP message as restricted.
        methods: The same, by proposed method.
    """

    id: str
    privilege: str
    is_present: bool
    removed_by: str | None
    removed_at: str | None
    principal: str
    first_seen: str | None
    last_seen: str | None
    proposals: int
    approved: int
    rejected: int
    violations: int
    methods: tuple[MethodRecord, ...]


class RoomParticipants(Struct, frozen=True, kw_only=True):
    """The current and former participants of a room.

    Members:
        topic: The room.
        participants: Those present, those removed, then up to 200 that are away, the last seen first.
    """

    topic: str
    participants: tuple[RoomParticipant, ...]


class ObservedParticipant(Struct, frozen=True, kw_only=True):
    """A participant of a room in observe mode that sent envelopes which mode "mixed" would have refused.

    Members:
        participant: Who, in the room.
        principal: Whose credential it came with.
        envelopes: How many would have been refused; a flood is recorded in part.
        kinds: Of which kinds they were.
        first: When the first came.
        last: When the last came.
        is_full: Whether an admin has made it full since.
        remedy: The line of the configuration or the command that keeps it working.
    """

    participant: str
    principal: str
    envelopes: int
    kinds: tuple[str, ...]
    first: str
    last: str
    is_full: bool
    remedy: str


class ObservedRoom(Struct, frozen=True, kw_only=True):
    """The envelopes that mode "mixed" would have refused, from the record of a room in observe mode.

    Members:
        topic: The room.
        mode: Its mode now.
        participants: By their ids.
    """

    topic: str
    mode: str
    participants: tuple[ObservedParticipant, ...]


class Promoted(Struct, frozen=True, kw_only=True):
    """The result of a promotion: the participant may now send MCP messages.

    Members:
        participantId: Who.
        oldPrivilege: What it had.
        newPrivilege: What it has.
        promotedBy: Who did it.
        promotedAt: When.
    """

    participantId: str  # noqa: N815
    oldPrivilege: str  # noqa: N815
    newPrivilege: str  # noqa: N815
    promotedBy: str  # noqa: N815
    promotedAt: str  # noqa: N815


class Demoted(Struct, frozen=True, kw_only=True):
    """The result of a demotion: the participant may now only propose MCP messages.

    Members:
        participantId: Who.
        oldPrivilege: What it had.
        newPrivilege: What it has.
        demotedBy: Who did it.
        demotedAt: When.
    """

    participantId: str  # noqa: N815
    oldPrivilege: str  # noqa: N815
    newPrivilege: str  # noqa: N815
    demotedBy: str  # noqa: N815
    demotedAt: str  # noqa: N815


class Disconnected(Struct, frozen=True, kw_only=True):
    """The result of removing a participant: its connections are closed, and it cannot join again until an admin allows
    it.

    Members:
        participantId: Who.
        closedConnections: How many.
        by: Who did it.
        at: When.
    """

    participantId: str  # noqa: N815
    closedConnections: int  # noqa: N815
    by: str
    at: str


class CreateRoom(RequestBody, frozen=True, kw_only=True):
    """A request to create a room.

    Members:
        topic: Its name.
    """

    topic: Annotated[str, Meta(min_length=1, max_length=128)]


class ChangePrivilege(RequestBody, frozen=True, kw_only=True):
    """The reason and the duration of a promotion or demotion.

    Members:
        reason: For the record.
        scope: identity: also when it comes again; connection: while it stays connected.
        until: An RFC 3339 time, after which it is as before; null: no end.
    """

    reason: Annotated[str, Meta(max_length=2000)] = ""
    scope: Literal["identity", "connection"] = "identity"
    until: Annotated[str, Meta(max_length=64)] | None = None


# Errors

BAD_TOPIC: Final = ErrorCase("bad_topic", 409, "a room cannot have this name")
PARTICIPANT_REMOVED: Final = ErrorCase(
    "removed", 409, "the participant was removed: a decision without an end lets it in"
)
ROOM_EXISTS: Final = ErrorCase("room_exists", 409, "there is a room of this name")
SELF_PROMOTION: Final = ErrorCase("self_promotion", 403, "the participant is the one who asks")
TOPIC_REQUIRED: Final = ErrorCase("topic_required", 409, "the participant is in several rooms; say ?topic=")


# Query parameters

TOPIC: Final = TextParameter("topic", "Which room, where the participant is in several.")


# Operations

LIST_ROOMS: Final = Operation("GET /admin/rooms", "Every room.", output=Rooms)
CREATE_ROOM: Final = Operation(
    "POST /admin/rooms",
    "Make a room. It keeps its history while it is empty.",
    input=CreateRoom,
    output=Room,
    status=201,
    errors=(BAD_TOPIC, ROOM_EXISTS),
)
LIST_CONNECTIONS: Final = Operation(
    "GET /admin/rooms/{topic}/connections", "Who is connected to a room.", output=RoomConnections
)
LIST_PARTICIPANTS: Final = Operation(
    "GET /admin/rooms/{topic}/participants",
    "Who is or was in a room, with the record of each.",
    output=RoomParticipants,
)
SHOW_OBSERVED: Final = Operation(
    "GET /admin/rooms/{topic}/observed",
    "What the room would have refused as a mixed one, from the record of its time in observe mode.",
    output=ObservedRoom,
)
MIGRATE: Final = Operation(
    "POST /admin/rooms/{topic}/migrate",
    "Make those full who would be refused something as restricted.",
    output=ObservedRoom,
)
PROMOTE: Final = Operation(
    "POST /admin/participants/{id}/promote",
    "Let a participant send MCP messages, from its next one on.",
    input=ChangePrivilege,
    output=Promoted,
    query=(TOPIC,),
    errors=(TOPIC_REQUIRED, SELF_PROMOTION, PARTICIPANT_REMOVED),
)
DEMOTE: Final = Operation(
    "POST /admin/participants/{id}/demote",
    "Let a participant only propose, from its next message on.",
    input=ChangePrivilege,
    output=Demoted,
    query=(TOPIC,),
    errors=(TOPIC_REQUIRED, PARTICIPANT_REMOVED),
)
DISCONNECT: Final = Operation(
    "POST /admin/participants/{id}/disconnect",
    "Remove a participant: it may come in again when it is promoted or demoted.",
    output=Disconnected,
    query=(TOPIC,),
    errors=(TOPIC_REQUIRED,),
)

OPERATIONS: Final = operations_in(globals(), "rooms")
