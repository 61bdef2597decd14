"""Consents that people are asked for: the page each was sent to, and what their browser brings back (OAuth 2.1 4.1).

A state is 256 random bits, known to the person who was given the URL, good once and for a while. What comes back is
believed only from the authorization server that was asked, before anything else is looked at (RFC 9207).
"""

import hashlib
import secrets
from collections.abc import Sequence
from typing import Final, Protocol

import msgspec

from interlock.core.clock import Clock
from interlock.credentials.authorization_server import TokenSource
from interlock.credentials.errors import Unobtainable
from interlock.credentials.protocol.client import Client
from interlock.credentials.protocol.token_request import (
    VERIFIER_BYTES,
    Token,
    authorization_url,
    came_from,
    code_form,
    pkce_challenge,
    read_callback_untrusted,
    scopes_to_ask,
)
from interlock.store.ports import StoreError

CONSENT_S: Final = 600.0
CONSENT_S_LEFT: Final = 60.0  # with less than this left a new page is made
PENDING_MAX: Final = 10_000
STATE_BYTES: Final = 32


class Consent(msgspec.Struct, frozen=True, kw_only=True):
    """Consent that a person is asked for, with the URL of its page."""

    id: str  # not the state: it may be shown to anybody
    url: str
    issuer: str
    scopes: tuple[str, ...]
    expires_at: float  # of our own clock


class ConsentRequester(Protocol):
    """The part that needs the token."""

    segment: str
    principal: str  # whose token it will be; empty for the node's own
    title: str  # for the page

    async def redeem(self, pending: "PendingConsent", form: dict[str, str]) -> Token: ...

    async def accept(self, pending: "PendingConsent", token: Token) -> None: ...


class PendingConsent(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    requester: ConsentRequester
    found: TokenSource
    client: Client
    verifier: str
    redirect_uri: str
    consent: Consent


class Page(msgspec.Struct, frozen=True):
    """Page for the person who returns from the authorization server."""

    status: int
    title: str
    text: str


_UNKNOWN: Final = Page(
    400,
    "Nothing was done",
    "This page was used before, or has expired. Ask for a new one: interlock links restart SEGMENT",
)
_ELSEWHERE: Final = Page(
    400, "Nothing was done", "The answer did not come from the authorization server that was asked."
)


class Consents:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._pending: dict[bytes, PendingConsent] = {}  # by the state's hash, oldest first
        self._asked: dict[ConsentRequester, bytes] = {}  # one page for each

    def ask(
        self, requester: ConsentRequester, source: TokenSource, client: Client, redirect_uri: str, wanted: Sequence[str]
    ) -> Consent:
        """Return the consent with the page to visit. Repeated identical requests get the same page. Raise
        Unobtainable.
        """
        server = source.server
        if server.authorization_endpoint is None:
            raise Unobtainable("its authorization server has no page where anybody could agree")
        if "S256" not in (server.code_challenge_methods_supported or ()):  # MCP, Authorization Code Protection
            raise Unobtainable("its authorization server does not say that it supports PKCE with S256")
        scopes = scopes_to_ask(wanted, server)
        now = self._clock.now()
        before = self._pending.get(self._asked.get(requester, b""))
        same = before is not None and (before.found, before.client, before.consent.scopes) == (source, client, scopes)
        if before is not None and same and before.consent.expires_at - now > CONSENT_S_LEFT:
            return before.consent
        self.forget(requester)
        self._forget_old(now)
        state, verifier = secrets.token_urlsafe(STATE_BYTES), secrets.token_urlsafe(VERIFIER_BYTES)
        url = authorization_url(
            server.authorization_endpoint,
            client_id=client.client_id,
            redirect_uri=redirect_uri,
            state=state,
            challenge=pkce_challenge(verifier),
            resource=source.resource,
            scopes=scopes,
        )
        consent = Consent(
            id=secrets.token_urlsafe(16), url=url, issuer=server.issuer, scopes=scopes, expires_at=now + CONSENT_S
        )
        self._asked[requester] = _hash(state)
        self._pending[_hash(state)] = PendingConsent(
            requester=requester,
            found=source,
            client=client,
            verifier=verifier,
            redirect_uri=redirect_uri,
            consent=consent,
        )
        return consent

    async def finish(self, parameters: Sequence[tuple[str, str]]) -> tuple[Page, PendingConsent | None]:
        """Return the page to show, and the consent if there is a token now."""
        answer = read_callback_untrusted(parameters)
        pending = self._pending.get(_hash(answer.state)) if answer is not None else None
        if answer is None or pending is None:
            return _UNKNOWN, None
        self.forget(pending.requester)  # good once, whatever comes of it
        if self._clock.now() >= pending.consent.expires_at:
            return _UNKNOWN, None
        server, requester = pending.found.server, pending.requester
        if not came_from(answer, server.issuer, always_says=server.authorization_response_iss_parameter_supported):
            return _ELSEWHERE, None
        if answer.code is None:
            return Page(
                400, "There is no token", f"{requester.title}: the authorization server says {answer.error}."
            ), None
        try:
            form = code_form(answer.code, pending.verifier, pending.redirect_uri, pending.found.resource)
            await requester.accept(pending, await requester.redeem(pending, form))
        except Unobtainable as error:
            return Page(502, "There is no token", f"{requester.title}: {error}."), None
        except StoreError:
            return Page(503, "There is no token", f"{requester.title}: the token cannot be stored."), None
        return Page(200, "Done", f"{requester.title} can be used now. You may close this page."), pending

    def forget(self, requester: ConsentRequester) -> None:
        self._pending.pop(self._asked.pop(requester, b""), None)

    def _forget_old(self, now: float) -> None:
        while self._pending:
            oldest = next(iter(self._pending.values()))
            if oldest.consent.expires_at > now and len(self._pending) < PENDING_MAX:
                return
            self.forget(oldest.requester)


def _hash(state: str) -> bytes:
    return hashlib.sha256(state.encode("utf-8", "surrogatepass")).digest()
