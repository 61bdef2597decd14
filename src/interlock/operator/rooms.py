"""Rooms at the operator endpoint (MCPx 10.3)."""

import time

from interlock.core.operator_errors import Refused
from interlock.operator.endpoint import Endpoint, OperatorExchange
from interlock.operator.error_cases import (
    BAD_TOPIC,
    NOT_FOUND,
    PARTICIPANT_REMOVED,
    ROOM_EXISTS,
    SELF_PROMOTION,
    TOPIC_REQUIRED,
)
from interlock.operator.operations.rooms import Terms
from interlock.operator.parameters import TextParameter
from interlock.operator.requests import RejectedRequest
from interlock.rooms.api import (
    ChangePrivilege,
    CreateRoom,
    Demoted,
    Disconnected,
    ObservedRoom,
    Promoted,
    Room,
    RoomConnections,
    RoomParticipants,
    Rooms,
)
from interlock.rooms.protocol.envelope import maybe_moment


async def list_rooms(exchange: OperatorExchange[None]) -> Rooms:
    return exchange.operations.rooms.list_all()


async def create_room(exchange: OperatorExchange[CreateRoom]) -> Room:
    return await exchange.operations.rooms.create(exchange.body.topic, exchange.principal)


async def list_connections(exchange: OperatorExchange[None]) -> RoomConnections:
    return exchange.operations.rooms.connections(exchange.path("topic"))


async def list_participants(exchange: OperatorExchange[None]) -> RoomParticipants:
    return exchange.operations.rooms.participants(exchange.path("topic"))


async def show_observed(exchange: OperatorExchange[None]) -> ObservedRoom:
    return await exchange.operations.rooms.observed(exchange.path("topic"))


async def migrate(exchange: OperatorExchange[None]) -> ObservedRoom:
    return await exchange.operations.rooms.migrate(exchange.path("topic"), exchange.principal)


async def promote(exchange: OperatorExchange[ChangePrivilege]) -> Promoted:
    topic, terms = TOPIC.read(exchange.request), _terms(exchange.body)
    try:
        return await exchange.operations.rooms.promote(exchange.path("id"), topic, exchange.principal, terms)
    except Refused as refused:
        if refused.error == SELF_PROMOTION.name:
            raise RejectedRequest(SELF_PROMOTION.status, refused.error, refused.message) from None
        raise


async def demote(exchange: OperatorExchange[ChangePrivilege]) -> Demoted:
    topic, terms = TOPIC.read(exchange.request), _terms(exchange.body)
    return await exchange.operations.rooms.demote(exchange.path("id"), topic, exchange.principal, terms)


def _terms(body: ChangePrivilege) -> Terms:
    until = None if body.until is None else maybe_moment(body.until)
    if body.until is not None and (until is None or until <= time.time()):
        raise RejectedRequest(
            400, "invalid_body", "until is a time to come, as RFC 3339 writes it", {"member": "until"}
        )
    if until is not None and body.scope == "connection":
        raise RejectedRequest(400, "invalid_body", "what ends with a connection has no until", {"member": "until"})
    return Terms(reason=body.reason, lasts=body.scope == "identity", until=until)


async def disconnect(exchange: OperatorExchange[None]) -> Disconnected:
    topic = TOPIC.read(exchange.request)
    return await exchange.operations.rooms.disconnect(exchange.path("id"), topic, exchange.principal)


TOPIC = TextParameter(name="topic", description="Which room, where the participant is in several.")

ENDPOINTS = (
    Endpoint(method="GET", path="/admin/rooms", handler=list_rooms, summary="Every room."),
    Endpoint(
        method="POST",
        path="/admin/rooms",
        handler=create_room,
        summary="Make a room. It keeps its history while it is empty.",
        role="admin",
        status=201,
        errors=(BAD_TOPIC, ROOM_EXISTS),
    ),
    Endpoint(
        method="GET",
        path="/admin/rooms/{topic}/connections",
        handler=list_connections,
        summary="Who is connected to a room.",
        errors=(NOT_FOUND,),
    ),
    Endpoint(
        method="GET",
        path="/admin/rooms/{topic}/participants",
        handler=list_participants,
        summary="Who is or was in a room, with the record of each.",
        errors=(NOT_FOUND,),
    ),
    Endpoint(
        method="GET",
        path="/admin/rooms/{topic}/observed",
        handler=show_observed,
        summary="What the room would have refused as a mixed one, from the record of its time in observe mode.",
        errors=(NOT_FOUND,),
    ),
    Endpoint(
        method="POST",
        path="/admin/rooms/{topic}/migrate",
        handler=migrate,
        summary="Make those full who would be refused something as restricted.",
        role="admin",
        errors=(NOT_FOUND,),
    ),
    Endpoint(
        method="POST",
        path="/admin/participants/{id}/promote",
        handler=promote,
        summary="Let a participant send MCP messages, from its next one on.",
        role="admin",
        query=(TOPIC,),
        errors=(NOT_FOUND, TOPIC_REQUIRED, SELF_PROMOTION, PARTICIPANT_REMOVED),
    ),
    Endpoint(
        method="POST",
        path="/admin/participants/{id}/demote",
        handler=demote,
        summary="Let a participant only propose, from its next message on.",
        role="admin",
        query=(TOPIC,),
        errors=(NOT_FOUND, TOPIC_REQUIRED, PARTICIPANT_REMOVED),
    ),
    Endpoint(
        method="POST",
        path="/admin/participants/{id}/disconnect",
        handler=disconnect,
        summary="Remove a participant: it may come in again when it is promoted or demoted.",
        role="admin",
        query=(TOPIC,),
        errors=(NOT_FOUND, TOPIC_REQUIRED),
    ),
)
