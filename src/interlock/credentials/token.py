"""The life cycle of one token for one server: it is acquired, stored, and renewed before it expires.

A `TokenHolder` holds the token of the node for a server, or that of one user. `line` is the Authorization header, ready
to be sent. Subscribers are called when it changes. Nothing here is on the path of a call:

- `ready` loads the stored token when a link starts.
- `refused` is called when the server answered 401 or 403. It gets another token, or returns a `Denied` that says why
  there is none.
- A timer renews the token before it expires.
- `consent` returns the page for a person when only a person can help.

`Consents` keeps the consents that were requested, and handles the browser that comes back (OAuth 2.1 4.1). The state in
the URL is 256 random bits, valid once and for a limited time, and known only to the person who got the URL. A browser's
answer is rejected before anything else is read from it if another authorization server sent it (RFC 9207).

All changes to a holder happen under its lock. Several processes may share the store: a refresh token is valid once, so
a holder reads the store before it refreshes, and adopts a newer token that it finds there.
"""

import asyncio
import hashlib
import logging
import secrets
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, InitVar, dataclass, field
from math import inf
from typing import Final

import msgspec

from interlock.config.plan import Dial, OAuthPlan
from interlock.core.clock import Clock
from interlock.credentials.authorization_server import (
    AuthorizationServers,
    Clients,
    TokenGrant,
    TokenSource,
    grant_name,
    printable,
    union,
)
from interlock.credentials.protocol import oauth_client
from interlock.credentials.protocol.resource import INSUFFICIENT_SCOPE, NO_CHALLENGE, Challenge
from interlock.credentials.secret_references import NoOAuth, TokenRefused, Unobtainable
from interlock.drivers.protocol.server_name import server_name, settings_place
from interlock.store.ports import StoreError

CONSENT_S: Final = 600.0
# With less time left, a new page is made.
CONSENT_S_LEFT: Final = 60.0
# Bounds memory. The oldest page stops working when more are requested.
PENDING_MAX: Final = 10_000
STATE_BYTES: Final = 32


class RequestedConsent(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """A consent that a person is asked for: the URL of the page, and the values that turn its result into a token.

    `id` identifies the consent in messages and logs, because the state and the verifier are secret. `expires_at` is a
    time of the node's own clock.
    """

    id: str
    url: str
    issuer: str
    scopes: tuple[str, ...]
    expires_at: float
    requester: "TokenHolder"
    source: TokenSource
    client: oauth_client.Client
    verifier: str
    redirect_uri: str


class ConsentPage(msgspec.Struct, frozen=True):
    """The page that a person sees after returning from the authorization server."""

    status: int
    title: str
    text: str


_UNKNOWN: Final = ConsentPage(
    400,
    "Nothing was done",
    "This page was used before, or has expired. Ask for a new one: interlock links restart SEGMENT",
)
_ELSEWHERE: Final = ConsentPage(
    400, "Nothing was done", "The answer did not come from the authorization server that was asked."
)


class Consents:
    """The consents that people were asked for and have not given yet. Each token holder has at most one."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        # By the hash of the state, oldest first.
        self._pending: dict[bytes, RequestedConsent] = {}
        self._hashes: dict[TokenHolder, bytes] = {}

    def ask(
        self,
        requester: "TokenHolder",
        source: TokenSource,
        client: oauth_client.Client,
        redirect_uri: str,
        wanted: Sequence[str],
    ) -> RequestedConsent:
        """Ask for the consent of a person. Return it with the URL of the page on which the person can agree.

        Identical requests get the same page until it is about to expire.

        Raise Unobtainable if the authorization server offers no page for consents or does not support PKCE.
        """
        server = source.server
        if server.authorization_endpoint is None:
            raise Unobtainable("its authorization server has no page where anybody could agree")
        if "S256" not in (server.code_challenge_methods_supported or ()):  # MCP, Authorization Code Protection
            raise Unobtainable("its authorization server does not say that it supports PKCE with S256")
        scopes = oauth_client.scopes_to_ask(wanted, server)
        now = self._clock.now()
        before = self._pending.get(self._hashes.get(requester, b""))
        same = before is not None and (before.source, before.client, before.scopes) == (source, client, scopes)
        if before is not None and same and before.expires_at - now > CONSENT_S_LEFT:
            return before
        self.forget(requester)
        while self._pending:
            oldest = next(iter(self._pending.values()))
            if oldest.expires_at > now and len(self._pending) < PENDING_MAX:
                break
            self.forget(oldest.requester)
        state, verifier = secrets.token_urlsafe(STATE_BYTES), secrets.token_urlsafe(oauth_client.VERIFIER_BYTES)
        url = oauth_client.authorization_url(
            server.authorization_endpoint,
            client_id=client.client_id,
            redirect_uri=redirect_uri,
            state=state,
            challenge=oauth_client.pkce_challenge(verifier),
            resource=source.resource,
            scopes=scopes,
        )
        self._hashes[requester] = _hash(state)
        consent = self._pending[_hash(state)] = RequestedConsent(
            id=secrets.token_urlsafe(16),
            url=url,
            issuer=server.issuer,
            scopes=scopes,
            expires_at=now + CONSENT_S,
            requester=requester,
            source=source,
            client=client,
            verifier=verifier,
            redirect_uri=redirect_uri,
        )
        return consent

    async def finish(self, parameters: Sequence[tuple[str, str]]) -> tuple[ConsentPage, RequestedConsent | None]:
        """Finish the consent to which the parameters of a returning browser belong.

        Return the page to show, and the consent if the node now has a token, otherwise None.
        """
        answer = oauth_client.read_callback_untrusted(parameters)
        pending = self._pending.get(_hash(answer.state)) if answer is not None else None
        if answer is None or pending is None:
            return _UNKNOWN, None
        # A state is valid once, even if the code cannot be redeemed.
        self.forget(pending.requester)
        if self._clock.now() >= pending.expires_at:
            return _UNKNOWN, None
        server, requester = pending.source.server, pending.requester
        if not oauth_client.is_from(
            answer, server.issuer, always_says=server.authorization_response_iss_parameter_supported
        ):
            return _ELSEWHERE, None
        if answer.code is None:
            return ConsentPage(
                400, "There is no token", f"{requester.title}: the authorization server says {answer.error}."
            ), None
        try:
            form = oauth_client.code_form(answer.code, pending.verifier, pending.redirect_uri, pending.source.resource)
            await requester.redeem(pending, form)
        except Unobtainable as error:
            return ConsentPage(502, "There is no token", f"{requester.title}: {error}."), None
        except StoreError:
            return ConsentPage(503, "There is no token", f"{requester.title}: the token cannot be stored."), None
        return ConsentPage(200, "Done", f"{requester.title} can be used now. You may close this page."), pending

    def forget(self, requester: "TokenHolder") -> None:
        """Invalidate the consent page that a token holder has requested."""
        self._pending.pop(self._hashes.pop(requester, b""), None)


def _hash(state: str) -> bytes:
    return hashlib.sha256(state.encode("utf-8", "surrogatepass")).digest()


log = logging.getLogger("interlock.grants")

# A token is renewed this long before it expires, or after 80 % of its lifetime if that is later.
LEAD_S_MAX: Final = 300.0
LEAD_SHARE: Final = 0.2
# A replacement that the server refuses within this time is not replaced again: the server would refuse every token.
JUST_GIVEN_S: Final = 10.0
# A server may ask for more scopes this often before an operator has to ask again.
STEP_UPS_MAX: Final = 3
RETRY_S: Final = (5.0, 15.0, 30.0, 60.0)
DENIED_RETRY_S: Final = 60.0
# A person has to agree. The link still retries from time to time, because the server may stop requiring a token.
UNASKED_RETRY_S: Final = 600.0
_JUST_GIVEN: Final = "its authorization server has just given us"


class Denied(msgspec.Struct, frozen=True, kw_only=True):
    """The reason why the node has no token that a server accepts, and when to try again.

    `consent` is true if a person could agree to one.
    """

    reason: str
    retry_s: float
    consent: bool = False
    # False if the server refuses only this request and the token stays valid for others.
    standing: bool = True


@dataclass(eq=False, repr=False)
class TokenHolder:
    """A holder of an OAuth token for one MCP server. It gets, renews and removes the token of the node or of one user.

    For the token of a user, `node_own` is the holder of the node's token for the same server.
    """

    consents: Consents
    clients: Clients
    segment: str
    dial: InitVar[Dial]
    _: KW_ONLY
    principal: str = ""
    node_own: "TokenHolder | None" = None
    line: bytes = b""
    # True if there is no token that the server accepts, and a person could agree to one.
    waits_for_consent: bool = False
    _on_line: list[Callable[[], None]] = field(default_factory=list)
    _grant: TokenGrant | None = None
    _source: TokenSource | None = None
    # The scopes of the next token.
    _wanted: tuple[str, ...] = ()
    # When the present token was received, and when it last replaced a refused one, by our own clock.
    _given_at: float = -inf
    _replaced_at: float = -inf
    _step_ups: int = 0
    _failures: int = 0
    _loaded: bool = False
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    _timer: asyncio.TimerHandle | None = None
    _renewing: asyncio.Task[None] | None = None

    def __post_init__(self, dial: Dial) -> None:
        self._records, self._clock = self.clients.records, self.clients.records.clock
        self.name = server_name(self.segment)
        self._look_at_headers = f"check its headers in {settings_place(self.segment)}"
        self.title = self.name if not self.principal else f"{self.name}, for {self.principal},"
        self._plan = dial.auth or OAuthPlan()
        self._server = oauth_client.server_resource(dial.url)
        if self.node_own is None:
            self._authority = AuthorizationServers(dial.url, self._plan.issuer, self._clock, dial.egress)
            self._challenge = NO_CHALLENGE
        else:
            self._authority, self._challenge = self.node_own._authority, self.node_own._challenge

    @property
    def expires_at(self) -> float | None:
        return self._grant.expires_at if self._grant is not None else None

    @property
    def has_token(self) -> bool:
        """Return whether the holder has a token that may still be valid."""
        return self._grant is not None and not self.waits_for_consent

    def subscribe(self, on_line: Callable[[], None]) -> None:
        """Call `on_line` whenever the token is replaced or removed."""
        self._on_line.append(on_line)

    def unsubscribe(self, on_line: Callable[[], None]) -> None:
        if on_line in self._on_line:
            self._on_line.remove(on_line)

    async def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._renewing is not None:
            self._renewing.cancel()
            await asyncio.gather(self._renewing, return_exceptions=True)
        self.consents.forget(self)
        if self.node_own is None:
            await self._authority.close()

    async def ready(self) -> None:
        """Load the stored token, and renew it if it has expired.

        Failures are only logged: if the server needs a token it refuses the request, and `refused` handles that.
        """
        async with self._lock:
            if not self._loaded:
                try:
                    grant = await self._records.find_grant(self.segment, self.principal, self._server)
                except StoreError as error:
                    log.warning("the token for %s cannot be read: %s", self.name, error)
                    return
                self._loaded = True
                if grant is not None:
                    self._adopt(grant, is_new=False)
            if self._grant is not None and self._is_expired(self._grant):
                await self._try_to_renew()

    async def forget(self) -> None:
        """Stop using the token, because it was removed from the store."""
        async with self._lock:
            await self._forget()

    # The server refuses

    async def refused(self, status: int, challenge: Challenge, *, sent_at: float) -> Denied | None:
        """Handle a request that the server refused with HTTP 401 or 403, and try to get another token.

        Return None if there is another token now, otherwise the reason. `sent_at` is the time of the refused request,
        by the node's clock.
        """
        async with self._lock:
            if self._given_at > sent_at:
                return None
            try:
                if status == 403:
                    return await self._handle_forbidden(challenge)
                return await self._handle_unauthorized(challenge)
            except NoOAuth as error:
                reason = f"it refuses our credential (HTTP {status}), and {error}; {self._look_at_headers}"
                return Denied(reason=reason, retry_s=DENIED_RETRY_S)
            except Unobtainable as error:
                return Denied(reason=str(error), retry_s=RETRY_S[-1] if error.passing else DENIED_RETRY_S)
            except StoreError as error:
                return Denied(reason=str(error), retry_s=DENIED_RETRY_S)

    async def _handle_unauthorized(self, challenge: Challenge) -> Denied | None:
        """Handle a token that the server refused with HTTP 401. Get another token with client credentials, with the
        refresh token, or by asking a person for consent.
        """
        before, self._challenge = self._grant, challenge
        source = await self._authority.find(challenge, prefer=before.issuer if before is not None else None)
        self._source = source
        if before is not None and before.issuer != source.server.issuer:
            log.info("link %s: its authorization server is now %s", self.name, printable(source.server.issuer))
            await self._forget()
            before = None
        now = self._clock.now()
        self._wanted = self._plan.scopes or union(before.scopes if before else (), challenge.scope) or source.scopes
        replaced = before is not None and now - self._replaced_at < JUST_GIVEN_S
        if self._plan.grant == "client_credentials":
            if replaced:
                return Denied(reason=f"it refuses the token that {_JUST_GIVEN}", retry_s=DENIED_RETRY_S)
            await self._acquire(source)
            self._replaced_at = now
            return None
        if before is not None and before.refresh_token is not None and not replaced:
            try:
                await self._refresh(before)
                self._replaced_at = now
            except TokenRefused as error:
                log.info("link %s: %s", self.name, error)
                self._grant = msgspec.structs.replace(before, refresh_token=None)
            else:
                return None
        if now - self._given_at < JUST_GIVEN_S:
            return self._needs_consent(f"it refuses the token that {_JUST_GIVEN}, and wants another")
        return self._needs_consent()

    async def _handle_forbidden(self, challenge: Challenge) -> Denied | None:
        """Request a token with the additional scopes that the server demands (MCP, Step-Up Authorization Flow)."""
        grant = self._grant
        if challenge.error != INSUFFICIENT_SCOPE or not challenge.scope or grant is None:
            reason = f"it refuses this to us (HTTP 403); {self._look_at_headers}"
            return Denied(reason=reason, retry_s=DENIED_RETRY_S, standing=grant is None)
        lacking = [scope for scope in challenge.scope if scope not in grant.scopes]
        words = " ".join(lacking or challenge.scope)
        if not lacking:
            reason = f"it wants the scope {words}, which was asked for and not granted"
        elif self._plan.scopes:
            reason = f"it wants the scope {words}: add it to 'scopes' of auth in {settings_place(self.segment)}"
        elif self._step_ups >= STEP_UPS_MAX:
            reason = f"it wants ever more scopes, now {words}; interlock links restart {self.name} --authorize"
        else:
            self._step_ups += 1
            self._wanted = union(grant.scopes, challenge.scope)
            self._source = self._source or await self._authority.find(challenge, prefer=grant.issuer)
            if self._plan.grant == "client_credentials":
                await self._acquire(self._source)
                return None
            return self._needs_consent(f"it wants the scope {words} as well", standing=False)
        return Denied(reason=reason, retry_s=DENIED_RETRY_S, standing=False)

    def _needs_consent(self, why: str = "it wants a token, and a person has to agree", standing: bool = True) -> Denied:
        self.waits_for_consent = standing
        command = f"interlock links restart {self.name}" + ("" if standing else " --authorize")
        reason = f"{why}: {command} shows the page to open"
        return Denied(reason=reason, retry_s=UNASKED_RETRY_S, consent=True, standing=standing)

    # A person agrees

    async def consent(self, *, by_operator: bool = False) -> RequestedConsent:
        """Return a consent with the page on which a person can agree to a token. Raise Unobtainable or StoreError.

        If an operator asks, the process starts over: the authorization server is looked up again, and scopes may be
        requested again.
        """
        async with self._lock:
            if self._plan.grant == "client_credentials":
                raise Unobtainable("no consent is needed: the node gets its token with client credentials")
            if by_operator:
                self._step_ups = 0
            grant = self._grant or (self.node_own._grant if self.node_own is not None else None)
            if self._source is None or by_operator:
                # Without a refusal of the server to read, use the last one, the usual places, or the issuer of the
                # previous token.
                issuer = grant.issuer if grant is not None else None
                try:
                    self._source = await self._authority.find(self._challenge, prefer=issuer)
                except NoOAuth:
                    if grant is None:
                        raise
                    self._source = await self._source_of(grant)
            wanted = self._wanted or self._plan.scopes or (grant.scopes if grant is not None else ())
            redirect_uri = self.clients.redirect_uri()
            source = self._source
            client = await self.clients.find(self.segment, self._plan, source.server, self._authority)
            return self.consents.ask(self, source, client, redirect_uri, wanted or source.scopes)

    async def _source_of(self, grant: TokenGrant) -> TokenSource:
        return TokenSource(resource=grant.resource, server=await self._authority.server(grant.issuer))

    async def redeem(self, pending: RequestedConsent, form: dict[str, str]) -> None:
        """Exchange the authorization code of a consent for a token, and use the token. Raise Unobtainable or
        StoreError.
        """
        source = pending.source
        token = await self._request(source.server, pending.client, form)
        async with self._lock:
            await self._keep(token, pending.client.client_id, source.server.issuer, source.resource, pending.scopes)

    # Tokens

    async def _acquire(self, source: TokenSource) -> None:
        """Get a token with client credentials (OAuth 2.1 4.2), without a person."""
        client = await self.clients.find(self.segment, self._plan, source.server, self._authority)
        token = await self._request(source.server, client, oauth_client.credentials_form(self._wanted, source.resource))
        await self._keep(token, client.client_id, source.server.issuer, source.resource, self._wanted)

    async def _refresh(self, grant: TokenGrant) -> None:
        stored = await self._records.find_grant(self.segment, self.principal, self._server)
        if stored is None:
            raise TokenRefused("it was removed")
        if stored.access_token != grant.access_token:
            # Another process has refreshed the token already. A refresh token is valid once.
            grant = stored
            if not self._is_expired(stored):
                self._adopt(stored, is_new=True)
                return
        server = await self._authority.server(grant.issuer)
        client = await self.clients.of_grant(self._plan, grant, server)
        form = oauth_client.refresh_form(grant.refresh_token or "", grant.resource)
        token = await self._request(server, client, form)
        if token.refresh_token is None:
            # OAuth 2.1 4.3.2: the old refresh token stays valid.
            token = msgspec.structs.replace(token, refresh_token=grant.refresh_token)
        await self._keep(token, grant.client_id, grant.issuer, grant.resource, grant.scopes)

    async def _request(
        self, server: oauth_client.AuthorizationServer, client: oauth_client.Client, form: dict[str, str]
    ) -> oauth_client.IssuedTokens:
        assertion = None
        if client.method == "private_key_jwt" and self._plan.private_key is not None:
            from interlock.credentials.client_assertion import client_assertion  # `cryptography`

            accepted = server.token_endpoint_auth_signing_alg_values_supported
            now = self._clock.wall()
            assertion = await asyncio.to_thread(client_assertion, self._plan.private_key, client, accepted, now)
        try:
            return await self._authority.request(server, client, form, assertion)
        except TokenRefused as error:
            if error.code == "invalid_client" and self._plan.client_id is None:
                # The authorization server no longer has our registration. The next attempt registers again.
                await self._records.secrets.remove("client", server.issuer)
            raise

    async def _keep(
        self, token: oauth_client.IssuedTokens, client_id: str, issuer: str, resource: str, scopes: tuple[str, ...]
    ) -> None:
        now = self._clock.wall()
        grant = TokenGrant(
            server=self._server,
            resource=resource,
            issuer=issuer,
            client_id=client_id,
            access_token=token.access_token,
            refresh_token=token.refresh_token,
            expires_at=None if token.lifetime_s is None else now + token.lifetime_s,
            scopes=scopes,
        )
        await self._records.keep_grant(self.segment, self.principal, grant)
        self._adopt(grant, is_new=True, lifetime_s=token.lifetime_s)

    async def _forget(self) -> None:
        self._grant, self.line, self._step_ups = None, b"", 0
        self._given_at = self._replaced_at = -inf
        self._arm(None)
        await self._records.secrets.remove("token", grant_name(self.segment, self.principal))
        for on_line in self._on_line[:]:
            on_line()

    def _adopt(self, grant: TokenGrant, *, is_new: bool, lifetime_s: float | None = None) -> None:
        self._grant, self._loaded, self._failures, self.waits_for_consent = grant, True, 0, False
        self.line = b"authorization: Bearer %b\r\n" % grant.access_token.encode("ascii")
        if is_new:
            self._given_at = self._clock.now()
        if grant.expires_at is not None and self._is_renewable(grant):
            left = grant.expires_at - self._clock.wall()
            self._arm(left - min(LEAD_S_MAX, (lifetime_s or left) * LEAD_SHARE))
        else:
            self._arm(None)
        for on_line in self._on_line[:]:
            on_line()

    # Renewal

    def _is_renewable(self, grant: TokenGrant) -> bool:
        return grant.refresh_token is not None or self._plan.grant == "client_credentials"

    def _is_expired(self, grant: TokenGrant) -> bool:
        """Return whether the token has expired and can be renewed.

        Other tokens are used until the server refuses them.
        """
        is_over = grant.expires_at is not None and self._clock.wall() >= grant.expires_at
        return is_over and self._is_renewable(grant)

    def _arm(self, seconds: float | None) -> None:
        """Start the timer that renews the token after this many seconds. None stops the timer."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None
        if seconds is not None:
            self._timer = asyncio.get_running_loop().call_later(max(0.0, seconds), self._renew)

    def _renew(self) -> None:
        self._timer = None
        if self._renewing is None or self._renewing.done():

            async def renew_in_turn() -> None:
                async with self._lock:
                    await self._try_to_renew()

            self._renewing = asyncio.get_running_loop().create_task(renew_in_turn())

    async def _try_to_renew(self) -> None:
        grant = self._grant
        if grant is None:
            return
        try:
            if self._plan.grant == "client_credentials":
                self._wanted = self._wanted or grant.scopes
                await self._acquire(self._source or await self._source_of(grant))
            else:
                await self._refresh(grant)
        except TokenRefused as error:
            log.warning("link %s: %s; the token is used until it ends", self.name, error)
        except (Unobtainable, StoreError) as error:
            wait_s = RETRY_S[min(self._failures, len(RETRY_S) - 1)]
            self._failures += 1
            log.warning("link %s: %s; next try in %g s", self.name, error, wait_s)
            self._arm(wait_s)
