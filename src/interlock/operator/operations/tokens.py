"""Tokens for clients, subservers, rooms and operators: listed, issued and revoked, with a record of each."""

from collections.abc import Callable

from interlock.access.api import IssuedToken, RevokedTokens, Tokens
from interlock.access.tokens import TokenRegistry, issued_token, token_line
from interlock.core.clock import Clock
from interlock.core.operator_errors import NotFound, Refused
from interlock.core.recorder import Recorder
from interlock.rooms.protocol.envelope import PROTOCOLS
from interlock.rooms.protocol.participants import is_participant_id, is_reserved, is_topic
from interlock.store.tokens import BadTokenName, Scope, TokenAudience, TokenRoom


class TokenOperations:
    def __init__(self, tokens: TokenRegistry, dismiss: Callable[[], None], recorder: Recorder, clock: Clock) -> None:
        """`dismiss` closes connections whose token is no longer valid."""
        self._tokens = tokens
        self._recorder = recorder
        self._clock = clock
        self._dismiss = dismiss

    async def list_all(self) -> Tokens:
        return await self._tokens.list_live()

    async def issue(
        self,
        name: str,
        audience: TokenAudience,
        scope: Scope | None,
        days: int | None,
        room: TokenRoom | None = None,
        *,
        by: str,
    ) -> IssuedToken:
        """None means the configured default. A name may be used again. Raises Refused, StoreError."""
        if room is not None and (fault := _room_fault(room)) is not None:
            raise Refused(*fault)
        try:
            token, record = await self._tokens.issue(name, audience, scope, days, room)
        except BadTokenName as error:
            raise Refused("bad_token_name", str(error)) from None
        # Where this fails the token is not shown, so that no one ever has it.
        await self._recorder.append_now(token_line("issue", record, by, self._clock.wall()))
        return issued_token(token, record)

    async def revoke(self, ref: str, by: str) -> RevokedTokens:
        """`ref` is an id or a name. Raises NotFound, StoreError."""
        revoked = await self._tokens.revoke(ref)
        if not revoked:
            live = [record for record in await self._tokens.list() if record.revoked_at is None]
            raise NotFound("token", ref, [record.name for record in live])
        self._dismiss()  # first: also where the log cannot be written
        for record in revoked:
            await self._recorder.append_now(token_line("revoke", record, by, self._clock.wall()))
        return RevokedTokens(revoked=tuple(record.id for record in revoked))


def _room_fault(room: TokenRoom) -> tuple[str, str] | None:
    if not is_topic(room.topic):
        return "bad_topic", "a topic has 1 to 128 letters, digits and . _ : @ ~ -, and begins with a letter or digit"
    if not is_participant_id(room.participant):  # X-N-2
        return "bad_participant", "a participant's id has 1 to 64 letters, digits and . _ : -"
    if is_reserved(room.participant):  # X-N-2
        return "reserved_id", f"{room.participant} is the gateway's own"
    if room.protocol is not None and room.protocol not in PROTOCOLS:
        return "unsupported_protocol", f"protocol is one of {', '.join(PROTOCOLS)}"
    return None
