"""The authorization server of one MCP server: found, registered with, and asked for tokens, over HTTP.

In: what the server's refusal said. Out: values of `protocol.oauth`, or Unobtainable. Whatever it fetches was named by
somebody outside, so nothing is fetched nearer to this machine than the server itself stands. Keeps no token.
"""

from collections.abc import Mapping, Sequence
from typing import Final
from urllib.parse import urlsplit

import msgspec

from interlock.core.clock import Clock
from interlock.credentials.errors import NoOAuth, TokenRefused, Unobtainable
from interlock.credentials.protocol.client import (
    BadRegistration,
    Client,
    client_metadata,
    method_to_register,
    read_registration_untrusted,
)
from interlock.credentials.protocol.discovery import (
    ISSUERS_MAX,
    AuthorizationServer,
    is_issuer,
    origin_of,
    read_authorization_server_untrusted,
    read_protected_resource_untrusted,
    resource_metadata_urls,
    server_resource,
)
from interlock.credentials.protocol.resource import BadMetadata, discovery_urls, is_loopback_url, is_protected
from interlock.credentials.protocol.token_request import (
    BadAnswer,
    Token,
    error_code_untrusted,
    read_token_untrusted,
    token_request,
)
from interlock.credentials.protocol.www_authenticate import Challenge
from interlock.net.fetch import Fetcher, FetchFailed, scope_of_url
from interlock.net.protocol.egress import permits, port_of

METADATA_FRESH_S: Final = 600.0
WORDS_MAX: Final = 200  # characters of somebody else's words that are repeated
_JSON: Final = b"content-type: application/json\r\naccept: application/json\r\n"


class TokenSource(msgspec.Struct, frozen=True, kw_only=True):
    """Resource and authorization server from which tokens for a server come."""

    resource: str
    server: AuthorizationServer
    scopes: tuple[str, ...] = ()  # what the server calls enough for a beginning


class AuthorizationServers:
    def __init__(self, url: str, issuer: str | None, clock: Clock, egress: tuple[str, ...] | None = None) -> None:
        """Create the client. `egress` are the hosts that may be asked; None allows any host."""
        self._url = url
        self._egress = egress
        self._pinned = issuer
        self._clock = clock
        self._fetcher: Fetcher | None = None
        self._known: dict[str, tuple[AuthorizationServer, float]] = {}

    async def close(self) -> None:
        if self._fetcher is not None:
            await self._fetcher.close()

    # Finding it

    async def find(self, challenge: Challenge, *, prefer: str | None = None) -> TokenSource:
        """Find the authorization server of a server. `prefer` is the issuer that we use already, if the server lists
        several.
        """
        if not is_protected(self._url):
            raise Unobtainable("it wants a token, and its url is plain http beyond this machine: use https")
        resource, issuers, scopes = await self._resource(challenge)
        if self._pinned is not None:
            if issuers and self._pinned not in issuers:
                raise Unobtainable(f"its authorization server is {printable(issuers[0])}, not the issuer in 'auth'")
            issuers = (self._pinned,)
        if not issuers:
            return await self._of_old(resource)
        trouble: Unobtainable | None = None
        for issuer in sorted(issuers, key=lambda candidate: candidate != prefer)[:ISSUERS_MAX]:
            try:
                return TokenSource(resource=resource, server=await self.server(issuer), scopes=scopes)
            except Unobtainable as error:
                trouble = trouble or error
        raise trouble or NoOAuth("it names no authorization server")

    async def server(self, issuer: str) -> AuthorizationServer:
        """Return the metadata of an issuer (MCP, Authorization Server Metadata Discovery)."""
        cached = self._known.get(issuer)
        if cached is not None and self._clock.now() < cached[1]:
            return cached[0]
        if not is_issuer(issuer):
            raise Unobtainable("its authorization server is not at an https URL")
        trouble: Exception = FetchFailed("no metadata")
        for url in discovery_urls(issuer):
            try:
                metadata = read_authorization_server_untrusted(await self._get(url), issuer)
            except (FetchFailed, BadMetadata) as error:
                trouble = error if not isinstance(trouble, BadMetadata) else trouble
                continue
            self._known = {issuer: (metadata, self._clock.now() + METADATA_FRESH_S)}
            return metadata
        passing = isinstance(trouble, FetchFailed)
        raise Unobtainable(f"its authorization server {printable(issuer)} cannot be used: {trouble}", passing=passing)

    async def _resource(self, challenge: Challenge) -> tuple[str, tuple[str, ...], tuple[str, ...]]:
        """Return the resource identifier, its issuers and its scopes. Without issuers, nothing was found."""
        named = challenge.resource_metadata
        for url in (named,) if named is not None else resource_metadata_urls(self._url):
            try:
                metadata = read_protected_resource_untrusted(await self._get(url), self._url)
            except BadMetadata as error:
                raise Unobtainable(f"its resource metadata cannot be used: {error}") from None
            except FetchFailed as error:
                if named is not None:
                    raise Unobtainable(f"its resource metadata cannot be fetched: {error}", passing=True) from None
                continue
            return metadata.resource, metadata.authorization_servers, metadata.scopes_supported
        return server_resource(self._url), (), ()

    async def _of_old(self, resource: str) -> TokenSource:
        """MCP 2025-03-26 knew no resource metadata: the server's own origin was its authorization server."""
        try:
            return TokenSource(resource=resource, server=await self.server(origin_of(self._url)))
        except Unobtainable:
            raise NoOAuth("it names no authorization server") from None

    # Asking it

    async def register(self, server: AuthorizationServer, redirect_uri: str, name: str) -> Client:
        """RFC 7591, where the authorization server offers it."""
        method = method_to_register(server.token_endpoint_auth_methods_supported)
        if server.registration_endpoint is None or method is None:
            raise Unobtainable(
                f"its authorization server {printable(server.issuer)} lets no client register by itself: "
                "get a client_id there and set it in 'auth'"
            )
        wanted = client_metadata(redirect_uri, name, method, native=is_loopback_url(redirect_uri))
        try:
            answered = await (await self._fetcher_for(server.registration_endpoint)).exchange(
                server.registration_endpoint, _JSON, msgspec.json.encode(wanted)
            )
            if answered.status not in (200, 201):
                why = error_code_untrusted(answered.body) or f"HTTP {answered.status}"
                raise Unobtainable(f"its authorization server refuses to register this node: {why}")
            return read_registration_untrusted(answered.body, server.issuer, method, redirect_uri)
        except BadRegistration as error:
            raise Unobtainable(f"its authorization server cannot be used: {error}") from None
        except FetchFailed as error:
            raise Unobtainable(f"its authorization server did not register this node: {error}", passing=True) from None

    async def request(
        self, server: AuthorizationServer, client: Client, form: Mapping[str, str], assertion: str | None
    ) -> Token:
        headers, body = token_request(form, client, assertion)
        try:
            answered = await (await self._fetcher_for(server.token_endpoint)).exchange(
                server.token_endpoint, headers, body
            )
        except FetchFailed as error:
            raise Unobtainable(f"its authorization server gave no token: {error}", passing=True) from None
        if answered.status == 200:
            try:
                return read_token_untrusted(answered.body)
            except BadAnswer as error:
                raise Unobtainable(f"its authorization server cannot be used: {error}") from None
        if answered.status >= 500:
            raise Unobtainable(f"its authorization server gave no token: HTTP {answered.status}", passing=True)
        raise TokenRefused(error_code_untrusted(answered.body) or f"HTTP {answered.status}")

    async def _get(self, url: str) -> bytes:
        return await (await self._fetcher_for(url)).get(url)

    async def _fetcher_for(self, url: str) -> Fetcher:
        """Return the fetcher for this URL. Raise Unobtainable if egress rules forbid it."""
        if self._egress is not None:
            try:
                parts = urlsplit(url)
                host, port = parts.hostname or "", port_of(parts)
            except ValueError:
                raise Unobtainable("egress_denied: the address of its authorization server cannot be read") from None
            if permits(host, port, self._egress) is None:
                raise Unobtainable(f"egress_denied: {printable(host)} is not in network.egress of its driver")
        if self._fetcher is None:
            self._fetcher = Fetcher(within=await scope_of_url(self._url))
        return self._fetcher


def printable(text: str) -> str:
    """Make the words of a peer fit for one line of a log or a terminal."""
    return "".join(character if character.isprintable() else "?" for character in text[:WORDS_MAX])


def union(*parts: Sequence[str]) -> tuple[str, ...]:
    """Return all items once, in the order in which they first occur."""
    return tuple(dict.fromkeys(item for part in parts for item in part))
