"""OAuth access tokens at the public endpoint: this node as a resource server (MCP authorization, OAuth 2.1 5).

In: an Authorization header that no token of ours explains. Out: its Principal, which the TokenRegistry then remembers,
or the Refusal that the endpoint answers. A token is never stored, logged or passed on; only its own authorization
server is ever shown it.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final, Protocol

import msgspec

from interlock.access.introspection import Introspector
from interlock.access.verifications import Verifications
from interlock.approvals.trust.key_sets import KeyRing, Unavailable
from interlock.catalog.catalog import View
from interlock.config.plan import AccessRule, IssuerPlan
from interlock.core.calls.caller import Caller, Principal, ViewKey, principal_for
from interlock.core.clock import Clock
from interlock.core.recorder import Recorder
from interlock.credentials.protocol.challenge import challenge, is_bearer, maybe_bearer
from interlock.credentials.protocol.resource import metadata_document, metadata_paths, metadata_url
from interlock.credentials.protocol.scopes import DEFAULT_SCOPES, basic, granted_scope, scope_to_ask
from interlock.crypto.jose.claims import SKEW_S, Claims, check, principal_name, role_principals
from interlock.crypto.jose.errors import Invalid, Reason
from interlock.crypto.jose.jwt import Jwt, is_jose, read_jwt_untrusted
from interlock.crypto.keys.jwt_verification import check_signature
from interlock.mcp.methods import TOOLS_CALL
from interlock.net.fetch import Fetcher
from interlock.store.tokens import PREFIXES
from interlock.wire.refusal import HttpRefusal

REVERIFY_S: Final = 300.0  # a remembered JWT is looked at again after this, so that withdrawn keys take effect
RETRY_AFTER_S: Final = 5
_IN_URL: Final = "an access token belongs in the Authorization header"
_OURS: Final = tuple(PREFIXES.values())


class KnownTokens(Protocol):
    def remember(self, authorization: bytes, principal: Principal, *, until: float, ends: float) -> None: ...


class _Issuer:
    """One authorization server and how its tokens are looked at."""

    def __init__(
        self, plan: IssuerPlan, resource: str, fetcher: Fetcher, asking: Fetcher, limits: Verifications, clock: Clock
    ) -> None:
        self.name = plan.name
        self.url = plan.url
        self.audience = plan.audience or resource
        self.scopes = DEFAULT_SCOPES if plan.scopes is None else plan.scopes
        self.introspector: Introspector | None = None
        self.keys: KeyRing | None = None
        if plan.introspection_url is not None:
            self.introspector = Introspector(
                plan.name,
                plan.url,
                plan.introspection_url,
                client_id=plan.client_id or "",
                client_secret=plan.client_secret or "",
                post=asking.post,
                verifications=limits,
                clock=clock,
            )
        if plan.introspection_url is None or plan.jwks_url is not None:
            self.keys = KeyRing(f"issuer {plan.name}", plan.url, plan.jwks_url, fetcher.get, clock)


class AccessTokens:
    def __init__(
        self,
        issuers: tuple[IssuerPlan, ...],
        rules: tuple[AccessRule, ...],
        *,
        resource: Callable[[], str],
        node_name: str,
        known_tokens: KnownTokens,
        view: Callable[[ViewKey], View],
        recorder: Recorder,
        clock: Clock,
    ) -> None:
        """`resource`: the URL that tokens are for, known when the sockets are bound."""
        self._fetcher = Fetcher()
        self._asking = Fetcher()  # of its own, so that no question about a token waits in front of a key
        self._verifications = Verifications()
        self._plans = issuers
        self._resource = resource
        self._node_name = node_name
        self._issuers: dict[str, _Issuer] = {}
        self._asked: _Issuer | None = None
        self._rules = rules  # the [[access]] entries
        self._known_tokens = known_tokens
        self._view = view
        self._recorder = recorder
        self._clock = clock
        self._under_way: dict[bytes, asyncio.Task[Principal | HttpRefusal]] = {}
        self._metadata_url = ""
        self._first_scope = ""
        self.metadata = b""
        self.without = self.in_url = HttpRefusal("unauthorised", "an access token is needed")

    async def open(self) -> None:
        resource = self._resource()
        self._issuers = {
            plan.url: _Issuer(plan, resource, self._fetcher, self._asking, self._verifications, self._clock)
            for plan in self._plans
        }
        self._asked = next((each for each in self._issuers.values() if each.introspector is not None), None)
        self._metadata_url = metadata_url(resource)
        first = tuple(dict.fromkeys(scope for each in self._issuers.values() for scope in basic(each.scopes)))
        self._first_scope = " ".join(first)
        self.metadata = metadata_document(resource, f"Interlock {self._node_name}", tuple(self._issuers), first)
        self.without = HttpRefusal(
            "unauthorised", "an access token is needed", headers=self._challenge(scope=self._first_scope)
        )
        self.in_url = HttpRefusal(
            "unauthorised", _IN_URL, headers=self._challenge(error="invalid_token", description=_IN_URL)
        )

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
        self._rules = rules

    def documents(self) -> dict[str, bytes]:
        """What says which authorization servers there are, by its path."""
        return dict.fromkeys(metadata_paths(self._resource()), self.metadata)

    async def admit(self, authorization: bytes, source: str) -> Principal | HttpRefusal:
        """The principal of the token; many requests with one token are one verification."""
        under_way = self._under_way.get(authorization)
        if under_way is None:
            under_way = self._under_way[authorization] = _begin(self._verify(authorization, source))
            under_way.add_done_callback(lambda _: self._under_way.pop(authorization, None))
        return await asyncio.shield(under_way)

    def beyond(self, caller: Caller, method: str, params: dict[str, Any]) -> HttpRefusal | None:
        """The refusal of a tool that a token with a wider scope would open for this caller (MCP, Scope Challenge).

        A tool that no token of theirs could open is not there for them at all, as for every other caller.
        """
        principal = caller.principal
        if method != TOOLS_CALL or principal.ceiling in (None, principal.scope):
            return None
        name = bytes(params.get("name", b""))
        if not name or name in self._view(caller.key).tools:
            return None
        wider = msgspec.structs.replace(caller.key, scope=principal.ceiling)
        route = self._view(wider).tools.get(name)
        if route is None:
            return None
        arguments = params.get("arguments")
        at, why = self._clock.wall(), "insufficient_scope"
        self._recorder.add(
            (at, principal.name, caller.via, method, route.qualified, arguments, "refused", "refused", 0.0, why)
        )
        return self._insufficient(self._issuers[principal.issuer or ""], route.scope)

    # One token

    async def _verify(self, authorization: bytes, source: str) -> Principal | HttpRefusal:
        if not is_bearer(authorization):
            return self.without
        token = maybe_bearer(authorization)
        if token is None:
            return self._invalid(Invalid(Reason.MALFORMED))
        if token.startswith(_OURS):  # and not in our table, which is asked first
            return self._invalid(Invalid(Reason.UNKNOWN))
        try:
            found = await self._read(token, source)
        except Unavailable:
            return _UNAVAILABLE
        if isinstance(found, Invalid):
            return self._invalid(found)
        issuer, claims, believed_s = found
        now = self._clock.wall()
        fault = check(claims, issuer=issuer.url, audience=issuer.audience, now=now)
        if fault is not None:
            return self._invalid(fault)
        principal = self._principal(issuer, claims)
        if isinstance(principal, Principal):
            ends = (claims.exp or now) + SKEW_S
            self._known_tokens.remember(authorization, principal, until=min(ends, now + believed_s), ends=ends)
        return principal

    async def _read(self, token: str, source: str) -> tuple[_Issuer, Claims, float] | Invalid:
        """Whose token it is, what it says, and how long that may be believed. Where it cannot be read, only one that
        has not the form of a JWT is shown to the issuer that is asked about tokens: another's may be anybody's."""
        jwt = read_jwt_untrusted(token)
        if isinstance(jwt, Jwt):
            issuer = self._issuers.get(jwt.claims.iss or "")
            if issuer is None:
                return Invalid(Reason.ISSUER)
            if issuer.keys is not None:
                return await self._read_signed(jwt, issuer, issuer.keys, source)
        elif is_jose(token) or self._asked is None:
            return jwt
        else:
            issuer = self._asked
        assert issuer.introspector is not None  # noqa: S101  (an issuer has the one or the other)
        said = await issuer.introspector.claims(token, source)
        return said if isinstance(said, Invalid) else (issuer, *said)

    async def _read_signed(
        self, jwt: Jwt, issuer: _Issuer, keys: KeyRing, source: str
    ) -> tuple[_Issuer, Claims, float] | Invalid:
        key = keys.maybe_key(jwt)
        if key is None:
            with self._verifications.waiting(source):
                key = await keys.key_for(jwt)
        fault = key if isinstance(key, Invalid) else check_signature(jwt, key)
        return (issuer, jwt.claims, REVERIFY_S) if fault is None else fault

    def _principal(self, issuer: _Issuer, claims: Claims) -> Principal | HttpRefusal:
        name, roles = principal_name(issuer.name, claims), role_principals(issuer.name, claims)
        if not issuer.scopes:
            return msgspec.structs.replace(principal_for(name, None, self._rules, roles), issuer=issuer.url)
        scope = granted_scope(claims.scopes, issuer.scopes)
        if scope is None:
            return self._insufficient(issuer, "read")
        ceiling = principal_for(name, "admin", self._rules, roles).scope
        principal = principal_for(name, scope, self._rules, roles)
        return msgspec.structs.replace(principal, issuer=issuer.url, ceiling=ceiling)

    # What is answered

    def _invalid(self, fault: Invalid) -> HttpRefusal:
        said = self._challenge(error="invalid_token", description=fault.reason.value, scope=self._first_scope)
        return HttpRefusal("unauthorised", fault.reason.value, headers=said)

    def _insufficient(self, issuer: _Issuer, needed: str) -> HttpRefusal:
        scope = scope_to_ask(needed, issuer.scopes)
        said = self._challenge(error="insufficient_scope", scope=scope)
        return HttpRefusal(
            "insufficient_scope", f"an access token with the scope {scope or needed} is needed", headers=said
        )

    def _challenge(self, **said: str | None) -> bytes:
        return f"www-authenticate: {challenge(self._metadata_url, **said)}\r\n".encode("latin-1")


def _begin(verification: Coroutine[Any, Any, Principal | HttpRefusal]) -> asyncio.Task[Principal | HttpRefusal]:
    return asyncio.get_running_loop().create_task(verification)


_UNAVAILABLE: Final = HttpRefusal(
    "unavailable",
    "the authorization server cannot be asked now; try again",
    headers=f"retry-after: {RETRY_AFTER_S}\r\n".encode(),
)
