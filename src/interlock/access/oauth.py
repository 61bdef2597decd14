"""OAuth access tokens at the public endpoint: the node as a resource server (MCP authorization, OAuth 2.1 5).

The public endpoint asks `AccessTokens.admit` about an Authorization header that the `TokenRegistry` does not know. The
result is a Principal, which the registry then remembers, or the refusal to answer. Concurrent requests with the same
token share one verification.

A token is verified in one of two ways:

- A JWT is verified with the keys of its issuer (`key_sets.KeyRing`), unless only the introspection endpoint of this
  issuer is configured. It is verified again after a while, so that withdrawn keys take effect.
- Other tokens are shown to the authorization server that has an introspection endpoint (`Introspector`, RFC 7662). Its
  answer is remembered for a minute. A token that it confirmed before is believed for some minutes more while the server
  cannot be asked.

Anybody can invent tokens that only the authorization server can judge. `Verifications` therefore limits how many
verifications wait, in total and for each source; the sources take turns, so that none of them shuts out the others.
Tokens that the server confirmed before are outside these limits. A token is never stored, logged or passed on, and is
shown only to the authorization server that has to judge it.
"""

import asyncio
import hashlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from interlock.access.key_sets import IssuerUnavailable, KeyRing
from interlock.access.tokens import TokenRegistry, keep_recent
from interlock.config.plan import AccessRule, IssuerPlan
from interlock.core.audit_record import AuditRecord
from interlock.core.calls.caller import Caller, Principal, ViewKey, principal_for
from interlock.core.clock import Clock
from interlock.core.recorder import Recorder
from interlock.credentials.protocol import resource as oauth_resource
from interlock.crypto.jose import (
    SKEW_S,
    InvalidToken,
    Jwt,
    Reason,
    TokenClaims,
    check,
    is_jose,
    principal_name,
    read_jwt_untrusted,
    role_principals,
)
from interlock.crypto.jwt_verification import check_signature
from interlock.mcp.methods import TOOLS_CALL
from interlock.net.fetch import CONNECTIONS_MAX, Fetcher, FetchFailed
from interlock.store.tokens import PREFIXES
from interlock.wire.refusal import HttpRefusal

# Verifications that wait for an authorization server.
WAITING_MAX: Final = 1024
WAITING_PER_SOURCE_MAX: Final = 64
# One connection is left for tokens that the server confirmed before.
ASKING_MAX: Final = CONNECTIONS_MAX - 1
ASKING_PER_SOURCE_MAX: Final = ASKING_MAX - 1
# Includes the wait for a turn.
ASKING_S: Final = 10.0


class _Source:
    def __init__(self) -> None:
        self.waiting = 0
        self.turns = asyncio.Semaphore(ASKING_PER_SOURCE_MAX)


class Verifications:
    """Limits on how many access tokens may wait for their verification by an authorization server, in total and for
    each source of requests.
    """

    def __init__(self) -> None:
        self._waiting = 0
        self._sources: dict[str, _Source] = {}  # those with verifications that wait
        self._turns = asyncio.Semaphore(ASKING_MAX)

    @contextmanager
    def waiting(self, source: str) -> Iterator[_Source]:
        """Count a token of this source as waiting for verification while the context is open.

        Raise IssuerUnavailable if too many are waiting.
        """
        held = self._sources.get(source)
        if self._waiting >= WAITING_MAX or (held is not None and held.waiting >= WAITING_PER_SOURCE_MAX):
            raise IssuerUnavailable
        if held is None:
            held = self._sources[source] = _Source()
        self._waiting += 1
        held.waiting += 1
        try:
            yield held
        finally:
            self._waiting -= 1
            held.waiting -= 1
            if not held.waiting:
                del self._sources[source]

    @asynccontextmanager
    async def asking(self, source: str) -> AsyncIterator[None]:
        """Wait until this source of requests may send a request to its authorization server. Its turn lasts while the
        context is open.

        Raise IssuerUnavailable if the wait and the turn together last longer than ASKING_S, or if too many
        verifications are waiting.
        """
        try:
            with self.waiting(source) as held:
                async with asyncio.timeout(ASKING_S), held.turns, self._turns:
                    yield
        except TimeoutError:
            raise IssuerUnavailable from None


log = logging.getLogger("interlock.oauth")

# An answer is valid this long. A token that was revoked at the server is still admitted for this time.
BELIEVED_S: Final = 60.0
# The same while the server cannot be asked.
KEPT_S: Final = 600.0
# The lifetime of a token whose answer states none, which RFC 7662 2.2 allows.
UNSTATED_S: Final = 3600.0
REFUSED_MAX: Final = 4096
# As many as the TokenRegistry remembers.
CONFIRMED_MAX: Final = 10_000
# Between two lines in the log about the same server.
COMPLAINT_S: Final = 60.0

Post = Callable[[str, bytes, bytes], Awaitable[bytes]]


class Introspector:
    """Client of the introspection endpoint of one authorization server (RFC 7662). It caches answers briefly."""

    def __init__(self, plan: IssuerPlan, post: Post, verifications: Verifications, clock: Clock) -> None:
        """Create the client of the introspection endpoint at `plan.introspection_url`, which must be set."""
        self._name = plan.name
        self._issuer = plan.url
        self._url = plan.introspection_url or ""
        self._headers = oauth_resource.request_headers(plan.client_id or "", plan.client_secret or "")
        self._post = post
        self._verifications = verifications
        self._clock = clock
        self._refused: dict[bytes, tuple[InvalidToken, float]] = {}  # by the token's hash, oldest first
        self._confirmed: dict[bytes, tuple[TokenClaims, float]] = {}  # likewise, with the time of the answer
        self._next_complaint = 0.0

    async def claims(self, token: str, source: str) -> tuple[TokenClaims, float] | InvalidToken:
        """Return the claims of a token and for how many seconds they are valid, or InvalidToken if the authorization
        server rejects the token.

        Raise IssuerUnavailable if the server cannot be asked and has not confirmed the token within the last KEPT_S.
        """
        digest = hashlib.sha256(token.encode()).digest()
        now = self._clock.now()
        refused = self._refused.get(digest)
        if refused is not None and now < refused[1]:
            return refused[0]
        confirmed = self._confirmed.get(digest)
        if confirmed is None or now >= confirmed[1] + KEPT_S:
            async with self._verifications.asking(source):
                return await self._ask(token, digest)
        claims, confirmed_at = confirmed
        if now < confirmed_at + BELIEVED_S:
            return claims, confirmed_at + BELIEVED_S - now
        try:
            return await self._ask(token, digest)
        except IssuerUnavailable:
            return claims, min(BELIEVED_S, confirmed_at + KEPT_S - now)

    async def _ask(self, token: str, digest: bytes) -> tuple[TokenClaims, float] | InvalidToken:
        try:
            answer = await self._post(self._url, self._headers, oauth_resource.request_body(token))
            claims = oauth_resource.read_introspection_untrusted(answer, self._issuer)
        except FetchFailed as error:
            self._complain(error)
            raise IssuerUnavailable from None
        except oauth_resource.BadIntrospection as error:
            # This says nothing about the token, and the next answer may be better: remember nothing.
            self._complain(error)
            return InvalidToken(Reason.UNCLEAR)
        now = self._clock.now()
        if isinstance(claims, InvalidToken):
            self._confirmed.pop(digest, None)
            keep_recent(self._refused, digest, (claims, now + BELIEVED_S), REFUSED_MAX)
            return claims
        if claims.exp is None:
            claims = msgspec.structs.replace(claims, exp=self._clock.wall() + UNSTATED_S)
        keep_recent(self._confirmed, digest, (claims, now), CONFIRMED_MAX)
        return claims, BELIEVED_S

    def _complain(self, error: Exception) -> None:
        if self._clock.now() >= self._next_complaint:
            self._next_complaint = self._clock.now() + COMPLAINT_S
            log.warning("issuer %s cannot be asked about tokens: %s", self._name, error)


# A remembered JWT is verified again after this time, so that withdrawn keys take effect.
REVERIFY_S: Final = 300.0
RETRY_AFTER_S: Final = 5
_IN_URL: Final = "an access token belongs in the Authorization header"
_OURS: Final = tuple(PREFIXES.values())


class _Issuer:
    """A configured authorization server, with its key set or its introspection endpoint."""

    def __init__(
        self, plan: IssuerPlan, resource: str, fetcher: Fetcher, asking: Fetcher, limits: Verifications, clock: Clock
    ) -> None:
        self.name = plan.name
        self.url = plan.url
        self.audience = plan.audience or resource
        self.scopes = oauth_resource.DEFAULT_SCOPES if plan.scopes is None else plan.scopes
        self.introspector: Introspector | None = None
        self.keys: KeyRing | None = None
        if plan.introspection_url is not None:
            self.introspector = Introspector(plan, asking.post, limits, clock)
        if plan.introspection_url is None or plan.jwks_url is not None:
            self.keys = KeyRing(f"issuer {plan.name}", plan.url, plan.jwks_url, fetcher.get, clock)


@dataclass(eq=False, kw_only=True)
class AccessTokens:
    """The OAuth resource server of a node, which verifies access tokens of the configured authorization servers."""

    issuers: tuple[IssuerPlan, ...]
    rules: tuple[AccessRule, ...]  # the [[access]] entries
    node_name: str
    resource: Callable[[], str]  # the URL that tokens are for, which is known once the sockets are bound
    registry: TokenRegistry  # remembers tokens that were verified
    # The qualified name and the scope of a tool that is listed for callers with this key, by the name they send.
    find_tool: Callable[[ViewKey, bytes], tuple[str, str] | None]
    recorder: Recorder
    clock: Clock

    def __post_init__(self) -> None:
        self._fetcher = Fetcher()
        # A separate fetcher, so that requests for keys do not wait behind questions about tokens.
        self._asking = Fetcher()
        self._verifications = Verifications()
        self._issuers: dict[str, _Issuer] = {}
        self._asked: _Issuer | None = None
        self._under_way: dict[bytes, asyncio.Task[Principal | HttpRefusal]] = {}
        self._metadata_url = self._first_scope = ""
        self.metadata = b""
        self.without = self.in_url = HttpRefusal("unauthorised", "an access token is needed")

    async def open(self) -> None:
        resource = self.resource()
        parts = (self._fetcher, self._asking, self._verifications, self.clock)
        self._issuers = {plan.url: _Issuer(plan, resource, *parts) for plan in self.issuers}
        self._asked = next((each for each in self._issuers.values() if each.introspector is not None), None)
        self._metadata_url = oauth_resource.metadata_url(resource)
        basic = oauth_resource.basic
        first = tuple(dict.fromkeys(scope for each in self._issuers.values() for scope in basic(each.scopes)))
        self._first_scope, name = " ".join(first), f"Interlock {self.node_name}"
        self.metadata = oauth_resource.metadata_document(resource, name, tuple(self._issuers), first)
        header = self._challenge(scope=self._first_scope)
        self.without = HttpRefusal("unauthorised", "an access token is needed", headers=header)
        header = self._challenge(error="invalid_token", description=_IN_URL)
        self.in_url = HttpRefusal("unauthorised", _IN_URL, headers=header)

    async def close(self) -> None:
        tasks = list(self._under_way.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for issuer in self._issuers.values():
            if issuer.keys is not None:
                await issuer.keys.close()
        await self._fetcher.close()
        await self._asking.close()

    def replan(self, rules: tuple[AccessRule, ...]) -> None:
        self.rules = rules

    def documents(self) -> dict[str, bytes]:
        """Return the OAuth documents that describe this node as a protected resource, keyed by URL path."""
        return dict.fromkeys(oauth_resource.metadata_paths(self.resource()), self.metadata)

    async def admit(self, authorization: bytes, source: str) -> Principal | HttpRefusal:
        """Return the principal that the token in an Authorization header identifies, or a refusal. Concurrent requests
        with the same token share one verification.
        """
        under_way = self._under_way.get(authorization)
        if under_way is None:
            under_way = asyncio.get_running_loop().create_task(self._verify(authorization, source))
            self._under_way[authorization] = under_way
            under_way.add_done_callback(lambda _: self._under_way.pop(authorization, None))
        return await asyncio.shield(under_way)

    def beyond(self, caller: Caller, method: str, params: dict[str, Any]) -> HttpRefusal | None:
        """Return the refusal of a tool call for which the caller's scope is too narrow, if the caller could get a token
        with a wider scope (MCP, Scope Challenge).

        Return None otherwise. If no token could give the caller access to a tool, the tool does not exist for the
        caller.
        """
        principal = caller.principal
        if method != TOOLS_CALL or principal.ceiling in (None, principal.scope):
            return None
        name = bytes(params.get("name", b""))
        if not name or self.find_tool(caller.key, name) is not None:
            return None
        wider = msgspec.structs.replace(caller.key, scope=principal.ceiling)
        tool = self.find_tool(wider, name)
        if tool is None:
            return None
        qualified, scope = tool
        arguments = params.get("arguments")
        at, why = self.clock.wall(), "insufficient_scope"
        self.recorder.add(
            AuditRecord(at, principal.name, caller.via, method, qualified, arguments, "refused", "refused", 0.0, why)
        )
        return self._insufficient(self._issuers[principal.issuer or ""], scope)

    # One token

    async def _verify(self, authorization: bytes, source: str) -> Principal | HttpRefusal:
        """Verify an Authorization header: its form, its issuer, its claims, and finally the rights of its principal."""
        if not oauth_resource.is_bearer(authorization):
            return self.without
        token = oauth_resource.find_bearer(authorization)
        if token is None:
            return self._invalid(InvalidToken(Reason.MALFORMED))
        if token.startswith(_OURS):  # and not in our table, which is asked first
            return self._invalid(InvalidToken(Reason.UNKNOWN))
        try:
            outcome = await self._read(token, source)
        except IssuerUnavailable:
            return _UNAVAILABLE
        if isinstance(outcome, InvalidToken):
            return self._invalid(outcome)
        issuer, claims, believed_s = outcome
        now = self.clock.wall()
        fault = check(claims, issuer=issuer.url, audience=issuer.audience, now=now)
        if fault is not None:
            return self._invalid(fault)
        name, roles = principal_name(issuer.name, claims), role_principals(issuer.name, claims)
        scope = oauth_resource.granted_scope(claims.scopes, issuer.scopes)
        if issuer.scopes and scope is None:
            return self._insufficient(issuer, "read")
        ceiling = principal_for(name, "admin", self.rules, roles).scope if issuer.scopes else None
        principal = principal_for(name, scope, self.rules, roles)
        principal = msgspec.structs.replace(principal, issuer=issuer.url, ceiling=ceiling)
        ends = (claims.exp or now) + SKEW_S
        self.registry.remember(authorization, principal, until=min(ends, now + believed_s), ends=ends)
        return principal

    async def _read(self, token: str, source: str) -> tuple[_Issuer, TokenClaims, float] | InvalidToken:
        """Return the issuer of a token, its claims, and for how many seconds the claims can be trusted. Return
        InvalidToken if the token is not acceptable.

        A token that cannot be read is sent to the introspecting issuer only if it does not look like a JWT. A JWT of an
        unknown issuer may belong to anybody.
        """
        jwt = read_jwt_untrusted(token)
        if isinstance(jwt, Jwt):
            issuer = self._issuers.get(jwt.claims.iss or "")
            if issuer is None:
                return InvalidToken(Reason.ISSUER)
            if issuer.keys is not None:
                key = issuer.keys.find_key(jwt)
                if key is None:
                    with self._verifications.waiting(source):
                        key = await issuer.keys.key_for(jwt)
                fault = key if isinstance(key, InvalidToken) else check_signature(jwt, key)
                return (issuer, jwt.claims, REVERIFY_S) if fault is None else fault
        elif is_jose(token) or self._asked is None:
            return jwt
        else:
            issuer = self._asked
        assert issuer.introspector is not None  # noqa: S101  (an issuer has the one or the other)
        claims = await issuer.introspector.claims(token, source)
        return claims if isinstance(claims, InvalidToken) else (issuer, *claims)

    # What is answered

    def _invalid(self, fault: InvalidToken) -> HttpRefusal:
        header = self._challenge(error="invalid_token", description=fault.reason.value, scope=self._first_scope)
        return HttpRefusal("unauthorised", fault.reason.value, headers=header)

    def _insufficient(self, issuer: _Issuer, needed: str) -> HttpRefusal:
        scope = oauth_resource.scope_to_ask(needed, issuer.scopes)
        header = self._challenge(error="insufficient_scope", scope=scope)
        message = f"an access token with the scope {scope or needed} is needed"
        return HttpRefusal("insufficient_scope", message, headers=header)

    def _challenge(self, **parameters: str | None) -> bytes:
        return f"www-authenticate: {oauth_resource.challenge(self._metadata_url, **parameters)}\r\n".encode("latin-1")


_UNAVAILABLE: Final = HttpRefusal(
    "unavailable",
    "the authorization server cannot be asked now; try again",
    headers=f"retry-after: {RETRY_AFTER_S}\r\n".encode(),
)
