"""Operations on tokens. Each change to a token is recorded."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import get_args

import msgspec

from interlock.access import api
from interlock.access.tokens import TokenRegistry, issued_token, token_line
from interlock.core.clock import Clock
from interlock.core.operator_errors import refused_as
from interlock.core.recorder import Recorder
from interlock.operator.operation import INVALID_BODY, handles
from interlock.rooms.api import RoomPrivilege
from interlock.rooms.protocol.envelope import PROTOCOLS
from interlock.rooms.protocol.participants import is_participant_id, is_reserved, is_topic
from interlock.store.tokens import BadTokenName, GrantedRoom, token_name_fault
from interlock.wire.refusal import NotFound, Refused


@dataclass(eq=False)
class TokenOperations:
    """Operations on tokens."""

    tokens: TokenRegistry
    dismiss: Callable[[], None]
    recorder: Recorder
    clock: Clock

    @handles(api.LIST_TOKENS)
    async def list_all(self) -> api.Tokens:
        return await self.tokens.list_live()

    @handles(api.ISSUE_TOKEN)
    async def issue(self, body: api.IssueToken, by: str) -> api.IssuedToken:
        """Create a token and return it; this is the only time it is shown. Several tokens may have the same name.

        Raise Refused or StoreError.
        """
        room = check_token(body)
        try:
            token, record = await self.tokens.issue(body.name, body.audience, body.scope, body.days, room)
        except BadTokenName as error:
            raise refused_as(api.BAD_TOKEN_NAME, str(error)) from None
        # If the record cannot be written, the token is not returned, so that no caller ever has it.
        await self.recorder.append_now(token_line("issue", record, by, self.clock.wall()))
        return issued_token(token, record)

    @handles(api.REVOKE_TOKEN)
    async def revoke(self, ref: str, by: str) -> api.RevokedTokens:
        """Revoke the token with this id, or all tokens with this name. Raise NotFound or StoreError."""
        revoked = await self.tokens.revoke(ref)
        if not revoked:
            live = [record for record in await self.tokens.list() if record.revoked_at is None]
            raise NotFound("token", ref, [record.name for record in live])
        self.dismiss()  # first, so that connections close even if the log cannot be written
        for record in revoked:
            await self.recorder.append_now(token_line("revoke", record, by, self.clock.wall()))
        return api.RevokedTokens(revoked=tuple(record.id for record in revoked))


def check_token(wanted: api.IssueToken) -> GrantedRoom | None:
    """Check a request for a token. Return the room of a room token, or None for any other token.

    Raise Refused if the request is invalid.
    """
    if (problem := token_name_fault(wanted.name)) is not None:
        raise refused_as(INVALID_BODY, problem, {"member": "name"})
    if (wanted.audience == "room") != (wanted.room is not None):
        raise refused_as(INVALID_BODY, "a token for a room, and no other, names the room", {"member": "room"})
    if wanted.room is None:
        return None
    if wanted.room.privilege not in get_args(RoomPrivilege):
        message = f"a privilege is one of {', '.join(get_args(RoomPrivilege))}"
        raise refused_as(api.UNKNOWN_PRIVILEGE, message, {"member": "room.privilege"})
    room = msgspec.convert(wanted.room, type=GrantedRoom, from_attributes=True)
    if not is_topic(room.topic):
        message = "a topic has 1 to 128 letters, digits and . _ : @ ~ -, and begins with a letter or digit"
        raise Refused("bad_topic", message)
    if not is_participant_id(room.participant):  # X-N-2
        raise Refused("bad_participant", "a participant's id has 1 to 64 letters, digits and . _ : -")
    if is_reserved(room.participant):  # X-N-2
        raise Refused("reserved_id", f"{room.participant} is the gateway's own")
    if room.protocol is not None and room.protocol not in PROTOCOLS:
        raise Refused("unsupported_protocol", f"protocol is one of {', '.join(PROTOCOLS)}")
    return room
