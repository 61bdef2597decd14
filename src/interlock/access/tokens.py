"""The registry of tokens, which finds the principal of a bearer token for one audience.

The table of tokens is read once, when the node starts. After that the registry follows every change: of this node, and
of replicas (`take_change`). A token is valid for one audience only: the public endpoint (`client`), the operator
endpoint (`operator`, `browser`), registration (`subserver`) or a room.

The public endpoint asks for every request. An Authorization header that was seen before costs one dictionary look-up,
whether it has a token of this node or an access token that was verified (`oauth`). The entry of a token of this node
expires after a minute, so that the use of the token is noted. Revoking a token removes all entries, because they do not
say which token they used.
"""

import base64
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any, Final, Literal, TypeVar

import msgspec
from msgspec import UNSET

from interlock.access.api import IssuedToken, RoomOfToken, Token, Tokens
from interlock.ax.protocol.capability import AuthScope
from interlock.config.plan import AccessRule
from interlock.core.audit_record import AuditRecord
from interlock.core.calls.caller import Principal, principal_for
from interlock.core.clock import Clock, rfc3339
from interlock.core.views import view_of
from interlock.store.ports import Change, StoreError
from interlock.store.tokens import GrantedRoom, Scope, TokenAudience, TokenRecord, TokenTable, find_audience, token_hash


def token_line(event: Literal["issue", "revoke"], token: TokenRecord, by: str, now: float) -> bytes:
    """Return the audit record for issuing or revoking a token. It never contains the token itself."""
    outcome = "made" if event == "issue" else "revoked"
    details: dict[str, Any] = {
        "token_id": token.id,
        "token_name": token.name,
        "token_for": token.audience,
        "scope": token.scope,
        "until": None if token.expires_at is None else rfc3339(token.expires_at),
    }
    if token.room is not None:
        room = token.room
        details |= {"room": room.topic, "participant": room.participant, "privilege": room.privilege}
    return AuditRecord.event(now, by, "operator", f"tokens/{event}", verdict=outcome, **details)


DAY_S = 86_400
# The last use of a client's token is known to this precision.
USE_NOTED_S: Final = 60.0
# No token gives the role `operator`, which decides approvals. It needs a proof.
SCOPE_ROLES: Final[Mapping[Scope, tuple[str, ...]]] = {
    "read": ("viewer",),
    "write": ("viewer", "admin"),
    "admin": ("viewer", "admin"),
}
# Remembered headers, and clients of authorization servers. A node has as many sessions.
KNOWN_MAX: Final = 10_000

log = logging.getLogger("interlock.access")

IssuedRecord = tuple[str, TokenRecord]  # the token itself, and its record
K = TypeVar("K")
V = TypeVar("V")


class Operator(msgspec.Struct, frozen=True, kw_only=True):
    """A person who is authenticated at the operator endpoint."""

    principal: str
    roles: frozenset[str]


def credential_of(authorization: str, *, basic: bool) -> str:
    """Return the token or password that an Authorization header at the operator endpoint contains.

    This is a bearer token or, with `basic`, a password. A browser attaches a password to any request that a page makes,
    so `basic` is set only for requests where this is harmless. The result is empty if there is no such credential.
    """
    scheme, _, credential = authorization.partition(" ")
    credential = credential.strip()
    if scheme.lower() == "bearer":
        return credential
    if scheme.lower() != "basic" or not basic:
        return ""
    try:
        return base64.b64decode(credential, validate=True).decode().partition(":")[2]
    except ValueError:
        return ""


@dataclass(eq=False)
class TokenRegistry:
    """The tokens of a node, and the verified access tokens of authorization servers."""

    table: TokenTable
    clock: Clock
    rules: tuple[AccessRule, ...]
    days: int
    _records: dict[str, TokenRecord] = field(default_factory=dict, init=False)
    # When tokens were last used, by hash. Written when the tokens are listed, and at the end.
    _used: dict[str, float] = field(default_factory=dict, init=False)
    # The principal of a header, and until when the header is not verified again.
    _known: dict[bytes, tuple[Principal, float]] = field(default_factory=dict, init=False)
    # When the last access token of a principal of an authorization server ends.
    _vouched: dict[str, float] = field(default_factory=dict, init=False)

    def replan(self, rules: tuple[AccessRule, ...]) -> None:
        """Apply changed [[access]] entries. The rights of each caller are determined again at its next request."""
        self.rules = rules
        self._known.clear()

    async def open(self) -> None:
        self._records = await self.table.by_hash(self.clock.wall())

    def take_change(self, change: Change) -> bool:
        """Apply a change that another replica made to a token: it was issued, revoked or removed.

        Return whether a token that was valid before is no longer valid.
        """
        before = self._records.get(change.key)
        if change.entry is None:
            self._records.pop(change.key, None)
        else:
            self._records[change.key] = TokenRecord.decode(change.entry.value)
        after, now = self._records.get(change.key), self.clock.wall()
        has_ended = before is not None and before.opens(now) and (after is None or not after.opens(now))
        if has_ended:
            self._known.clear()
        return has_ended

    async def close(self) -> None:
        try:
            await self._keep_uses()
        except StoreError as away:
            log.warning("when tokens were last used could not be kept: %s", away)

    def principal(self, authorization: bytes) -> Principal | None:
        """Return the client that the bearer token in an Authorization header identifies, or None if the token is
        unknown or no longer valid.
        """
        cached = self._known.get(authorization)
        now = self.clock.wall()
        if cached is None or now >= cached[1]:
            record = self._bearer(authorization, "client")
            if record is None:
                return None
            current = principal_for(f"client:{record.name}", record.scope, self.rules)
            principal = cached[0] if cached is not None and cached[0] == current else current
            # Looked up again after a while, which is when its use is noted; a call in between costs nothing more.
            cached = (principal, min(record.expires_at or float("inf"), now + USE_NOTED_S))
            keep_recent(self._known, authorization, cached)
        return cached[0]

    def remember(self, authorization: bytes, principal: Principal, *, until: float, ends: float) -> None:
        """Cache the principal of a verified access token until `until`. `ends` is when the token itself expires."""
        keep_recent(self._known, authorization, (principal, until))
        keep_recent(self._vouched, principal.name, max(ends, self._vouched.get(principal.name, 0.0)))

    def stands(self, principal: str) -> bool:
        """Return whether this principal still has a valid token of this node. Only clients, subservers and participants
        of rooms have such tokens.

        The result is true for all other principals.
        """
        audience, colon, name = principal.partition(":")
        if not colon or audience not in ("client", "subserver", "room") or "/" in name:
            return True
        now = self.clock.wall()
        return any(r.name == name and r.audience == audience and r.opens(now) for r in self._records.values())

    def has_lapsed(self, principal: str) -> bool:
        """Return whether every access token that this principal has used has expired. Return True if no such token is
        in memory.

        Such tokens come from authorization servers. The result is false for all other principals.
        """
        from_issuer = principal.startswith("client:") and "/" in principal  # a parent's name is a URL
        return from_issuer and self.clock.wall() >= self._vouched.get(principal, 0.0)

    def as_it_would_be(self, principal: str) -> Principal:
        """Return the principal with the rights that it would have if it connected now.

        These follow from its token of this node, if it has one, and from [[access]].
        """
        audience, _, name = principal.partition(":")
        now = self.clock.wall()
        own = [r for r in self._records.values() if (r.audience, r.name) == (audience, name) and r.opens(now)]
        return principal_for(principal, own[0].scope if own else None, self.rules)

    def as_it_is(self, principal: Principal) -> Principal:
        """Return a principal that is already connected, with the rights that its token and [[access]] give it now.

        Only clients of this node and `local` are looked up. Any other principal is returned unchanged; its next request
        is checked.
        """
        if principal.issuer is not None or principal.stranger or not is_ours(principal.name):
            return principal
        return self.as_it_would_be(principal.name)

    def operator(self, credential: str) -> "Operator | None":
        """Return the operator with this credential at the operator endpoint, or None if it is not valid."""
        record = self._record(credential.encode("latin-1", "replace"), "operator")
        return None if record is None else Operator(principal=f"operator:{record.name}", roles=_roles(record))

    def browser(self, cookie: str) -> "Operator | None":
        """Return the operator with this browser session, or None if the cookie is not valid.

        The cookie is valid for nothing else, and no token is valid as a cookie.
        """
        record = self._record(cookie.encode("latin-1", "replace"), "browser")
        return None if record is None else Operator(principal=f"browser:{record.id[:8]}", roles=_roles(record))

    def subserver(self, authorization: bytes) -> TokenRecord | None:
        """Return the token record of the registrant that sent an Authorization header to /ax, or None.

        The token is valid for nothing else (MCP-AX 10.1).
        """
        return self._bearer(authorization, "subserver")

    def room(self, authorization: bytes) -> TokenRecord | None:
        """Return the token record of the participant that sent an Authorization header to /v0, or None."""
        return self._bearer(authorization, "room")

    def _bearer(self, authorization: bytes, audience: TokenAudience) -> TokenRecord | None:
        scheme, _, bearer = authorization.partition(b" ")
        return self._record(bearer.strip(), audience) if scheme.lower() == b"bearer" else None

    def _record(self, bearer: bytes, audience: TokenAudience) -> TokenRecord | None:
        token = bearer.decode("latin-1")
        if find_audience(token) != audience:
            return None
        hash = token_hash(token)
        record = self._records.get(hash)
        now = self.clock.wall()
        if record is None or not record.opens(now):
            return None
        self._used[hash] = now
        return record

    async def issue(
        self, name: str, audience: TokenAudience, scope: Scope | None, days: int | None, room: GrantedRoom | None = None
    ) -> IssuedRecord:
        widest: Scope = "admin" if audience == "subserver" else "write"
        return await self._issue(name, audience, scope or widest, (days or self.days) * DAY_S, room=room)

    async def begin_session(self, name: str, roles: frozenset[str], lasts_s: float, cookie: str) -> IssuedRecord:
        """Start a browser's session, and return its cookie and its record. Sessions that have ended are removed
        first.
        """
        await self.table.forget_ended("browser", self.clock.wall())  # they are many and short
        scope: Scope = "write" if "admin" in roles else "read"
        return await self._issue(name, "browser", scope, lasts_s, roles=tuple(sorted(roles)), token=cookie)

    async def _issue(
        self, name: str, audience: TokenAudience, scope: Scope, lasts_s: float, **others: Any
    ) -> IssuedRecord:
        """Store a new token that is valid for `lasts_s` seconds. `others` are further arguments of
        `TokenTable.issue`.
        """
        now = self.clock.wall()
        token, record = await self.table.issue(
            name=name, owner=name, audience=audience, scope=scope, now=now, expires_at=now + lasts_s, **others
        )
        self._records[token_hash(token)] = record
        return token, record

    async def revoke(self, reference: str) -> tuple[TokenRecord, ...]:
        now = self.clock.wall()
        revoked = await self.table.revoke(reference, now)
        self._known.clear()
        # The table is not read again, because that would undo what another replica revoked in the meantime.
        ids = {token.id for token in revoked}
        for hash, record in self._records.items():
            if record.id in ids:
                self._records[hash] = msgspec.structs.replace(record, revoked_at=now)
        return revoked

    async def list(self) -> list[TokenRecord]:
        await self._keep_uses()
        return await self.table.list(self.clock.wall())

    async def _keep_uses(self) -> None:
        used, self._used = self._used, {}
        for hash, at in used.items():
            await self.table.note_used(hash, at, self.clock.wall())

    async def list_live(self) -> Tokens:
        """Return all tokens that are not revoked, without expired browser sessions."""
        records, now = await self.list(), self.clock.wall()
        live = (r for r in records if r.revoked_at is None and (r.audience != "browser" or r.opens(now)))
        return Tokens(tokens=tuple(map(self.token_view, live)))

    def token_view(self, record: TokenRecord) -> Token:
        """Return the data about a token that operators see: its metadata, and the scope that applies to it at this
        node.

        It does not contain the token itself.
        """
        scope: str = record.scope
        if record.audience == "subserver":
            scope = registrant_scope(f"subserver:{record.name}", self.rules, record.scope).value
        room = msgspec.convert(record.room, RoomOfToken | None, from_attributes=True)
        return view_of(Token, record, scope=scope, room=room or UNSET)


def _roles(record: TokenRecord) -> frozenset[str]:
    return frozenset(record.roles if record.roles is not None else SCOPE_ROLES[record.scope])


def registrant_scope(principal: str, rules: tuple[AccessRule, ...], token_scope: Scope | None) -> AuthScope:
    """Return the scope of a subserver that registers. It is the scope of the first [[access]] entry that names the
    subserver, otherwise read.

    The scope of its token can only narrow this.
    """
    rule = find_access_rule(principal, rules)
    scope = AuthScope.READ if rule is None else AuthScope(rule.scope)
    return scope if token_scope is None else min(scope, AuthScope(token_scope))


def find_access_rule(principal: str, rules: tuple[AccessRule, ...]) -> AccessRule | None:
    """Return the first [[access]] entry that names the principal, or None."""
    return next((rule for rule in rules if any(fnmatchcase(principal, who) for who in rule.who)), None)


def is_ours(principal: str) -> bool:
    """Return whether this node itself identified a principal: by a client token of this node, or as a caller on this
    machine without a token.
    """
    return principal == "local" or (principal.startswith("client:") and "/" not in principal)


def issued_token(token: str, record: TokenRecord) -> IssuedToken:
    """Return a new token with its secret value, in the form that its creator sees only once."""
    return view_of(IssuedToken, record, token=token)


def keep_recent(table: dict[K, V], key: K, value: V, most: int = KNOWN_MAX) -> None:
    """Add an entry to a table, and remove the oldest entry if there are `most` already."""
    table.pop(key, None)
    if len(table) >= most:
        del table[next(iter(table))]
    table[key] = value
