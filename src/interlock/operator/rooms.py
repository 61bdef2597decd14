"""Rooms at the operator endpoint (MCPx 10.3)."""

import time

from interlock.core.operator_errors import Refused
from interlock.operator.endpoint import OperatorExchange, RequestHandlers
from interlock.operator.operations.rooms import Terms
from interlock.operator.requests import RejectedRequest
from interlock.rooms.api import (
    CREATE_ROOM,
    DEMOTE,
    DISCONNECT,
    LIST_CONNECTIONS,
    LIST_PARTICIPANTS,
    LIST_ROOMS,
    MIGRATE,
    PROMOTE,
    SELF_PROMOTION,
    SHOW_OBSERVED,
    TOPIC,
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
from interlock.rooms.protocol.envelope import parse_moment


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
    topic, terms = exchange.query(TOPIC), _terms(exchange.body)
    try:
        return await exchange.operations.rooms.promote(exchange.path("id"), topic, exchange.principal, terms)
    except Refused as refused:
        if refused.error == SELF_PROMOTION.name:
            raise RejectedRequest(SELF_PROMOTION.status, refused.error, refused.message) from None
        raise


async def demote(exchange: OperatorExchange[ChangePrivilege]) -> Demoted:
    topic, terms = exchange.query(TOPIC), _terms(exchange.body)
    return await exchange.operations.rooms.demote(exchange.path("id"), topic, exchange.principal, terms)


def _terms(body: ChangePrivilege) -> Terms:
    until = None if body.until is None else parse_moment(body.until)
    if body.until is not None and (until is None or until <= time.time()):
        raise RejectedRequest(
            400, "invalid_body", "until is a time to come, as RFC 3339 writes it", {"member": "until"}
        )
    if until is not None and body.scope == "connection":
        raise RejectedRequest(400, "invalid_body", "what ends with a connection has no until", {"member": "until"})
    return Terms(reason=body.reason, lasts=body.scope == "identity", until=until)


async def disconnect(exchange: OperatorExchange[None]) -> Disconnected:
    topic = exchange.query(TOPIC)
    return await exchange.operations.rooms.disconnect(exchange.path("id"), topic, exchange.principal)


REQUEST_HANDLERS: RequestHandlers = {
    LIST_ROOMS: list_rooms,
    CREATE_ROOM: create_room,
    LIST_CONNECTIONS: list_connections,
    LIST_PARTICIPANTS: list_participants,
    SHOW_OBSERVED: show_observed,
    MIGRATE: migrate,
    PROMOTE: promote,
    DEMOTE: demote,
    DISCONNECT: disconnect,
}
