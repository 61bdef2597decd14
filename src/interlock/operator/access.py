"""Tokens and keys at the operator endpoint."""

from typing import get_args

from msgspec import convert

from interlock.access.api import (
    ISSUE_TOKEN,
    LIST_TOKENS,
    REVOKE_TOKEN,
    UNKNOWN_PRIVILEGE,
    IssuedToken,
    IssueToken,
    RevokedTokens,
    Tokens,
)
from interlock.approvals.api import REVOKE_KEY, RevokedKeys
from interlock.operator.endpoint import OperatorExchange, RequestHandlers
from interlock.operator.requests import RejectedRequest
from interlock.rooms.api import RoomPrivilege
from interlock.store.tokens import TokenRoom, token_name_fault


async def list_tokens(exchange: OperatorExchange[None]) -> Tokens:
    return await exchange.operations.tokens.list_all()


async def issue_token(exchange: OperatorExchange[IssueToken]) -> IssuedToken:
    wanted = exchange.body
    if (fault := token_name_fault(wanted.name)) is not None:
        raise RejectedRequest(400, "invalid_body", fault, {"member": "name"})
    if (wanted.audience == "room") != (wanted.room is not None):
        said = "a token for a room, and no other, names the room"
        raise RejectedRequest(400, "invalid_body", said, {"member": "room"})
    if wanted.room is not None and wanted.room.privilege not in get_args(RoomPrivilege):
        said = f"a privilege is one of {', '.join(get_args(RoomPrivilege))}"
        raise RejectedRequest(UNKNOWN_PRIVILEGE.status, UNKNOWN_PRIVILEGE.name, said, {"member": "room.privilege"})
    room = None if wanted.room is None else convert(wanted.room, type=TokenRoom, from_attributes=True)
    return await exchange.operations.tokens.issue(
        wanted.name, wanted.audience, wanted.scope, wanted.days, room, by=exchange.principal
    )


async def revoke_token(exchange: OperatorExchange[None]) -> RevokedTokens:
    return await exchange.operations.tokens.revoke(exchange.path("ref"), exchange.principal)


async def revoke_key(exchange: OperatorExchange[None]) -> RevokedKeys:
    return await exchange.operations.keys.revoke(exchange.path("ref"), exchange.principal)


REQUEST_HANDLERS: RequestHandlers = {
    LIST_TOKENS: list_tokens,
    ISSUE_TOKEN: issue_token,
    REVOKE_TOKEN: revoke_token,
    REVOKE_KEY: revoke_key,
}
