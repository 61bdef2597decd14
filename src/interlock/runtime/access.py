"""Tokens in memory: which principal a bearer is, at which door.

The table is read once and kept in step by whoever issues or revokes through this node. A bearer seen before costs one
dictionary look-up; revoking forgets all of them.
"""

from interlock.config.plan import AccessRule
from interlock.runtime.callers import Principal, principal_for
from interlock.runtime.clock import Clock
from interlock.store.tokens import Door, Scope, TokenRecord, TokenTable, maybe_door, token_hash

DAY_S = 86_400


class TokenBook:
    def __init__(self, table: TokenTable, clock: Clock, rules: tuple[AccessRule, ...], days: int) -> None:
        self._table = table
        self._clock = clock
        self._rules = rules
        self._days = days
        self._records: dict[str, TokenRecord] = {}
        self._known: dict[bytes, tuple[Principal, float]] = {}

    async def open(self) -> None:
        self._records = await self._table.by_hash(self._clock.wall())

    def principal(self, authorization: bytes) -> Principal | None:
        """The client behind an Authorization header at the public door."""
        known = self._known.get(authorization)
        if known is None:
            scheme, _, bearer = authorization.partition(b" ")
            record = self._record(bearer.strip(), "client") if scheme.lower() == b"bearer" else None
            if record is None:
                return None
            principal = principal_for(f"client:{record.name}", record.scope, self._rules)
            known = self._known[authorization] = (principal, record.expires_at or float("inf"))
        principal, expires_at = known
        return principal if self._clock.wall() < expires_at else None

    def operator(self, bearer: bytes) -> str | None:
        """The person behind a bearer at the operator door."""
        record = self._record(bearer, "operator")
        return None if record is None else f"operator:{record.name}"

    def _record(self, bearer: bytes, door: Door) -> TokenRecord | None:
        token = bearer.decode("latin-1")
        if maybe_door(token) != door:
            return None
        record = self._records.get(token_hash(token))
        return record if record is not None and record.opens(self._clock.wall()) else None

    async def issue(self, name: str, door: Door, scope: Scope | None, days: int | None) -> tuple[str, TokenRecord]:
        now = self._clock.wall()
        expires_at = now + (days or self._days) * DAY_S
        token, record = await self._table.issue(
            name=name, owner=name, door=door, scope=scope or "write", now=now, expires_at=expires_at
        )
        self._records[token_hash(token)] = record
        return token, record

    async def revoke(self, reference: str) -> tuple[str, ...]:
        revoked = await self._table.revoke(reference, self._clock.wall())
        self._known.clear()
        await self.open()
        return revoked

    async def list(self) -> list[TokenRecord]:
        return await self._table.list(self._clock.wall())
