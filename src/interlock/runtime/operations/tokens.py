"""Tokens for clients, subservers and operators: listed, issued and revoked."""

from collections.abc import Callable

from interlock.operator_api.access import IssuedToken, RevokedTokens, Tokens
from interlock.runtime.access.tokens import TokenRegistry, issued_token
from interlock.runtime.base.operator_errors import NotFound, Refused
from interlock.store.tokens import BadTokenName, Scope, TokenAudience


class TokenOperations:
    def __init__(self, tokens: TokenRegistry, dismiss: Callable[[], None]) -> None:
        """`dismiss` closes connections whose token is no longer valid."""
        self._tokens = tokens
        self._dismiss = dismiss

    async def list_all(self) -> Tokens:
        return await self._tokens.list_live()

    async def issue(self, name: str, audience: TokenAudience, scope: Scope | None, days: int | None) -> IssuedToken:
        """None means the configured default. A name may be used again. May raise Refused."""
        try:
            token, record = await self._tokens.issue(name, audience, scope, days)
        except BadTokenName as error:
            raise Refused("bad_token_name", str(error)) from None
        return issued_token(token, record)

    async def revoke(self, ref: str) -> RevokedTokens:
        """`ref` is an id or a name. Raises NotFound."""
        revoked = await self._tokens.revoke(ref)
        if not revoked:
            live = [record for record in await self._tokens.list() if record.revoked_at is None]
            raise NotFound("token", ref, [record.name for record in live])
        self._dismiss()
        return RevokedTokens(revoked=revoked)
