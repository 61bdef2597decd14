"""Tokens for clients, subservers and operators: listed, issued and revoked."""

from collections.abc import Callable

from interlock.runtime.access.tokens import TokenBook
from interlock.runtime.base.clock import rfc3339
from interlock.runtime.base.operator_errors import JsonObject, NotFound, Refused
from interlock.store.tokens import BadTokenName, Door, Scope


class TokenOperations:
    def __init__(self, tokens: TokenBook, dismiss: Callable[[], None]) -> None:
        """`dismiss` sends away whoever came in with a token that counts no more."""
        self._tokens = tokens
        self._dismiss = dismiss

    async def list_all(self) -> JsonObject:
        book = self._tokens
        return {"tokens": [book.shown(record) for record in await book.list() if record.revoked_at is None]}

    async def issue(self, name: str, door: Door, scope: Scope | None, days: int | None) -> JsonObject:
        """None means the configured default. A name may be used again. May raise Refused."""
        try:
            token, record = await self._tokens.issue(name, door, scope, days)
        except BadTokenName as error:
            raise Refused("bad_token_name", str(error)) from None
        return {
            "token": token,
            "id": record.id,
            "name": record.name,
            "for": record.door,
            "expires_at": rfc3339(record.expires_at) if record.expires_at else None,
        }

    async def revoke(self, ref: str) -> JsonObject:
        """`ref` is an id or a name. Raises NotFound."""
        revoked = await self._tokens.revoke(ref)
        if not revoked:
            live = [record for record in await self._tokens.list() if record.revoked_at is None]
            raise NotFound("token", ref, [record.name for record in live])
        self._dismiss()
        return {"revoked": list(revoked)}
