"""One token: that of the node for a server, or that of one user for it. Acquired, kept, renewed before it ends.

`line` is the Authorization header, ready to be sent; its sender is told when it is replaced. Nothing here is on the
path of a call. When the server refuses the token, `refused` gets another or says why there is none; when only a
person can help, `consent` makes the page for them.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Final

import msgspec

from interlock.config.plan import Dial, OAuthPlan
from interlock.core.clock import Clock
from interlock.credentials.authorization_server import AuthorizationServers, TokenSource, printable, union
from interlock.credentials.client_registration import Clients
from interlock.credentials.consents import Consent, Consents, PendingConsent
from interlock.credentials.errors import NoOAuth, TokenRefused, Unobtainable
from interlock.credentials.protocol.client import Client
from interlock.credentials.protocol.discovery import AuthorizationServer, server_resource
from interlock.credentials.protocol.token_request import Token, credentials_form, refresh_form
from interlock.credentials.protocol.www_authenticate import INSUFFICIENT_SCOPE, NO_CHALLENGE, Challenge
from interlock.credentials.token_store import Grant, TokenStore
from interlock.drivers.protocol.server_name import server_name, settings_place
from interlock.store.ports import StoreError

log = logging.getLogger("interlock.grants")

LEAD_S_MAX: Final = 300.0  # how long before its end a token is renewed at the earliest
LEAD_SHARE: Final = 0.2  # and of a short life, this much
JUST_GIVEN_S: Final = 10.0  # a token that replaced a refused one, and is refused so soon itself, is not replaced again
STEP_UPS_MAX: Final = 3  # wider scopes, until an operator asks again
RETRY_S: Final = (5.0, 15.0, 30.0, 60.0)
DENIED_RETRY_S: Final = 60.0
_JUST_GIVEN: Final = "its authorization server has just given us"
UNASKED_RETRY_S: Final = 600.0  # a person has to agree; should the server no longer want that, we notice some time


class Denied(msgspec.Struct, frozen=True, kw_only=True):
    """No token that would help, and why. `consent`: a person could agree to one."""

    reason: str
    retry_s: float
    consent: bool = False
    standing: bool = True  # False: only what was asked for is refused, the token is still good


class TokenServices(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """Services that all token holders share."""

    records: TokenStore
    consents: Consents
    clients: Clients
    clock: Clock


class TokenHolder:
    _authority: AuthorizationServers
    _challenge: Challenge

    def __init__(
        self,
        services: TokenServices,
        segment: str,
        dial: Dial,
        *,
        principal: str = "",
        node_own: "TokenHolder | None" = None,
    ) -> None:
        """Create a holder. `node_own` holds the node's own token for the server if this is the holder of a user's
        token.
        """
        self.segment = segment
        self.principal = principal
        self.name = server_name(segment)
        self.title = self.name if not principal else f"{self.name}, for {principal},"
        self.line = b""
        self._on_line: list[Callable[[], None]] = []
        self._services = services
        self._plan = dial.auth or OAuthPlan()
        self._server = server_resource(dial.url)
        self._node_own = node_own
        self._authority = (
            AuthorizationServers(dial.url, self._plan.issuer, services.clock, dial.egress)
            if node_own is None
            else node_own._authority
        )
        self._challenge: Challenge = NO_CHALLENGE if node_own is None else node_own._challenge
        self._grant: Grant | None = None
        self._found: TokenSource | None = None
        self._wanted: tuple[str, ...] = ()  # the scopes of the next token
        self._given_at = float("-inf")
        self._replaced_at = float("-inf")
        self._step_ups = 0
        self._failures = 0
        self._loaded = False
        self.waits_for_consent = False  # there is no token that helps, and a person could agree to one
        self._lock = asyncio.Lock()
        self._timer: asyncio.TimerHandle | None = None
        self._renewing: asyncio.Task[None] | None = None

    @property
    def expires_at(self) -> float | None:
        return self._grant.expires_at if self._grant is not None else None

    @property
    def has_token(self) -> bool:
        """Return whether there is a token that may still be valid."""
        return self._grant is not None and not self.waits_for_consent

    def subscribe(self, on_line: Callable[[], None]) -> None:
        """Call `on_line` whenever the token changes or is removed."""
        self._on_line.append(on_line)

    def unsubscribe(self, on_line: Callable[[], None]) -> None:
        if on_line in self._on_line:
            self._on_line.remove(on_line)

    def _tell_line(self) -> None:
        for on_line in self._on_line[:]:
            on_line()

    async def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._renewing is not None:
            self._renewing.cancel()
            await asyncio.gather(self._renewing, return_exceptions=True)
        self._services.consents.forget(self)
        if self._node_own is None:
            await self._authority.close()

    async def ready(self) -> None:
        """Load what is kept, and renew it when it has ended meanwhile. Fails silently: the server will say no."""
        async with self._lock:
            if not self._loaded:
                try:
                    grant = await self._services.records.grant(self.segment, self.principal, self._server)
                except StoreError as error:
                    log.warning("the token for %s cannot be read: %s", self.name, error)
                    return
                self._loaded = True
                if grant is not None:
                    self._adopt(grant, is_new=False)
            if self._grant is not None and self._has_ended(self._grant):
                await self._try_to_renew()

    async def forget(self) -> None:
        """Forget the token, because it was removed."""
        async with self._lock:
            await self._forget()

    # The server refuses

    async def refused(self, status: int, challenge: Challenge, *, sent_at: float) -> Denied | None:
        """Handle a request that the server refused. Return None if there is another token now. `sent_at` is when the
        refused request was made, by our own clock.
        """
        async with self._lock:
            if self._given_at > sent_at:
                return None
            try:
                if status == 403:
                    return await self._forbidden(challenge)
                return await self._deny(challenge)
            except NoOAuth as error:
                reason = f"it refuses our credential (HTTP {status}), and {error}; {self._look_at_headers()}"
                return Denied(reason=reason, retry_s=DENIED_RETRY_S)
            except Unobtainable as error:
                return Denied(reason=str(error), retry_s=RETRY_S[-1] if error.passing else DENIED_RETRY_S)
            except StoreError as error:
                return Denied(reason=str(error), retry_s=DENIED_RETRY_S)

    async def _deny(self, challenge: Challenge) -> Denied | None:
        before, self._challenge = self._grant, challenge
        source = await self._authority.find(challenge, prefer=before.issuer if before is not None else None)
        self._found = source
        if before is not None and before.issuer != source.server.issuer:
            log.info("link %s: its authorization server is now %s", self.name, printable(source.server.issuer))
            await self._forget()
            before = None
        now = self._services.clock.now()
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

    async def _forbidden(self, challenge: Challenge) -> Denied | None:
        """MCP, Step-Up Authorization Flow."""
        grant = self._grant
        if challenge.error != INSUFFICIENT_SCOPE or not challenge.scope or grant is None:
            reason = f"it refuses this to us (HTTP 403); {self._look_at_headers()}"
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
            self._found = self._found or await self._authority.find(challenge, prefer=grant.issuer)
            if self._plan.grant == "client_credentials":
                await self._acquire(self._found)
                return None
            return self._needs_consent(f"it wants the scope {words} as well", standing=False)
        return Denied(reason=reason, retry_s=DENIED_RETRY_S, standing=False)

    def _look_at_headers(self) -> str:
        return f"check its headers in {settings_place(self.segment)}"

    def _needs_consent(self, why: str = "it wants a token, and a person has to agree", standing: bool = True) -> Denied:
        self.waits_for_consent = standing
        command = f"interlock links restart {self.name}" + ("" if standing else " --authorize")
        reason = f"{why}: {command} shows the page to open"
        return Denied(reason=reason, retry_s=UNASKED_RETRY_S, consent=True, standing=standing)

    # A person agrees

    async def consent(self, *, anew: bool = False) -> Consent:
        """Return the consent to ask a person for. With `anew`, an operator asks, so that a step that was given up is
        tried again. Raise Unobtainable or StoreError.
        """
        async with self._lock:
            if self._plan.grant == "client_credentials":
                raise Unobtainable("no consent is needed: the node gets its token with client credentials")
            if anew:
                self._step_ups = 0
            grant = self._grant or (self._node_own._grant if self._node_own is not None else None)
            if self._found is None or anew:
                self._found = await self._find_again(grant)
            wanted = self._wanted or self._plan.scopes or (grant.scopes if grant is not None else ())
            redirect_uri = self._services.clients.redirect_uri()
            client = await self._services.clients.find(self.segment, self._plan, self._found.server, self._authority)
            return self._services.consents.ask(self, self._found, client, redirect_uri, wanted or self._found.scopes)

    async def _find_again(self, grant: Grant | None) -> TokenSource:
        """Find the token source without a refusal: by the last challenge, at the usual places, or where the previous
        token came from.
        """
        try:
            return await self._authority.find(self._challenge, prefer=grant.issuer if grant is not None else None)
        except NoOAuth:
            if grant is None:
                raise
            return TokenSource(resource=grant.resource, server=await self._authority.server(grant.issuer))

    async def redeem(self, pending: PendingConsent, form: dict[str, str]) -> Token:
        return await self._request(pending.found.server, pending.client, form)

    async def accept(self, pending: PendingConsent, token: Token) -> None:
        async with self._lock:
            source, scopes = pending.found, pending.consent.scopes
            await self._keep(token, pending.client.client_id, source.server.issuer, source.resource, scopes)

    # Tokens

    async def _acquire(self, source: TokenSource) -> None:
        """Get a token with client credentials (OAuth 2.1 4.2): the node is its own user."""
        client = await self._services.clients.find(self.segment, self._plan, source.server, self._authority)
        token = await self._request(source.server, client, credentials_form(self._wanted, source.resource))
        await self._keep(token, client.client_id, source.server.issuer, source.resource, self._wanted)

    async def _refresh(self, grant: Grant) -> None:
        stored = await self._services.records.grant(self.segment, self.principal, self._server)
        if stored is None:
            raise TokenRefused("it was removed")
        if stored.access_token != grant.access_token:  # another process was first, and a refresh token is good once
            grant = stored
            if not self._has_ended(stored):
                self._adopt(stored, is_new=True)
                return
        server = await self._authority.server(grant.issuer)
        client = await self._services.clients.of_grant(self._plan, grant, server)
        form = refresh_form(grant.refresh_token or "", grant.resource)
        token = await self._request(server, client, form)
        if token.refresh_token is None:  # OAuth 2.1 4.3.2: then the old one goes on
            token = msgspec.structs.replace(token, refresh_token=grant.refresh_token)
        await self._keep(token, grant.client_id, grant.issuer, grant.resource, grant.scopes)

    async def _request(self, server: AuthorizationServer, client: Client, form: dict[str, str]) -> Token:
        assertion = None
        if client.method == "private_key_jwt" and self._plan.private_key is not None:
            from interlock.credentials.client_assertion import client_assertion  # `cryptography`

            accepted = server.token_endpoint_auth_signing_alg_values_supported
            now = self._services.clock.wall()
            assertion = await asyncio.to_thread(client_assertion, self._plan.private_key, client, accepted, now)
        try:
            return await self._authority.request(server, client, form, assertion)
        except TokenRefused as error:
            if error.code == "invalid_client" and self._plan.client_id is None:
                await self._services.records.drop_client(server.issuer)  # it was forgotten there; register anew
            raise

    async def _keep(self, token: Token, client_id: str, issuer: str, resource: str, scopes: tuple[str, ...]) -> None:
        now = self._services.clock.wall()
        grant = Grant(
            server=self._server,
            resource=resource,
            issuer=issuer,
            client_id=client_id,
            access_token=token.access_token,
            refresh_token=token.refresh_token,
            expires_at=None if token.lifetime_s is None else now + token.lifetime_s,
            scopes=scopes,
        )
        await self._services.records.keep_grant(self.segment, self.principal, grant)
        self._adopt(grant, is_new=True, lifetime_s=token.lifetime_s)

    async def _forget(self) -> None:
        self._grant, self.line, self._step_ups = None, b"", 0
        self._given_at = self._replaced_at = float("-inf")
        self._arm(None)
        await self._services.records.drop_grant(self.segment, self.principal)
        self._tell_line()

    def _adopt(self, grant: Grant, *, is_new: bool, lifetime_s: float | None = None) -> None:
        self._grant, self._loaded, self._failures, self.waits_for_consent = grant, True, 0, False
        self.line = b"authorization: Bearer %b\r\n" % grant.access_token.encode("ascii")
        if is_new:
            self._given_at = self._services.clock.now()
        if grant.expires_at is not None and self._renewable(grant):
            left = grant.expires_at - self._services.clock.wall()
            self._arm(left - min(LEAD_S_MAX, (lifetime_s or left) * LEAD_SHARE))
        else:
            self._arm(None)
        self._tell_line()

    # Before it ends

    def _renewable(self, grant: Grant) -> bool:
        return grant.refresh_token is not None or self._plan.grant == "client_credentials"

    def _has_ended(self, grant: Grant) -> bool:
        return (
            grant.expires_at is not None and self._services.clock.wall() >= grant.expires_at and self._renewable(grant)
        )

    def _arm(self, seconds: float | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None
        if seconds is not None:
            self._timer = asyncio.get_running_loop().call_later(max(0.0, seconds), self._renew)

    def _renew(self) -> None:
        self._timer = None
        if self._renewing is None or self._renewing.done():
            self._renewing = asyncio.get_running_loop().create_task(self._renew_in_turn())

    async def _renew_in_turn(self) -> None:
        async with self._lock:
            await self._try_to_renew()

    async def _try_to_renew(self) -> None:
        grant = self._grant
        if grant is None:
            return
        try:
            if self._plan.grant == "client_credentials":
                self._wanted = self._wanted or grant.scopes
                source = self._found
                if source is None:
                    source = TokenSource(resource=grant.resource, server=await self._authority.server(grant.issuer))
                await self._acquire(source)
            else:
                await self._refresh(grant)
        except TokenRefused as error:
            log.warning("link %s: %s; the token is used until it ends", self.name, error)
        except (Unobtainable, StoreError) as error:
            wait_s = RETRY_S[min(self._failures, len(RETRY_S) - 1)]
            self._failures += 1
            log.warning("link %s: %s; next try in %g s", self.name, error, wait_s)
            self._arm(wait_s)
