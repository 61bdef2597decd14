"""HTTP requests to the authorization server of an MCP server: discovery, registration, tokens.

The input is the challenge with which the MCP server refused a request. The results are values of
`protocol.oauth_client`, or Unobtainable with a reason for the operator. Tokens are not stored here.

All URLs come from peers. Therefore the fetcher does not connect to addresses that are closer to this machine than the
MCP server is (`within`): a public server cannot make the node fetch from its private network. For drivers, the egress
rules apply as well.
"""

from collections.abc import Mapping, Sequence
from typing import Final
from urllib.parse import urlsplit

import msgspec

from interlock.core.clock import Clock
from interlock.credentials.protocol import oauth_client
from interlock.credentials.protocol.resource import (
    BadMetadata,
    Challenge,
    discovery_urls,
    is_loopback_url,
    is_protected,
)
from interlock.credentials.secret_references import NoOAuth, TokenRefused, Unobtainable
from interlock.net.fetch import Fetcher, FetchFailed, scope_of_url
from interlock.net.protocol.egress import permits, port_of

METADATA_FRESH_S: Final = 600.0
# Longer texts of peers are cut in messages.
PEER_TEXT_CHARS_MAX: Final = 200
_JSON: Final = b"content-type: application/json\r\naccept: application/json\r\n"


class TokenSource(msgspec.Struct, frozen=True, kw_only=True):
    """The resource and the authorization server to request tokens from, for one MCP server."""

    resource: str
    server: oauth_client.AuthorizationServer
    scopes: tuple[str, ...] = ()  # the scopes to begin with, according to the server


class AuthorizationServers:
    """Client of the authorization servers of one MCP server."""

    def __init__(self, url: str, issuer: str | None, clock: Clock, egress: tuple[str, ...] | None = None) -> None:
        """Create the client. `egress` lists the hosts that it may connect to; None allows any host."""
        self._url = url
        self._egress = egress
        self._pinned = issuer
        self._clock = clock
        self._fetcher: Fetcher | None = None
        # Metadata by issuer, and until when it is used.
        self._cache: dict[str, tuple[oauth_client.AuthorizationServer, float]] = {}

    async def close(self) -> None:
        if self._fetcher is not None:
            await self._fetcher.close()

    # Discovery

    async def find(self, challenge: Challenge, *, prefer: str | None = None) -> TokenSource:
        """Find the authorization server of the MCP server.

        If the MCP server lists several issuers, `prefer` is tried first: the issuer that the node already uses. Raise
        NoOAuth if the MCP server names no authorization server, and Unobtainable if none can be used.
        """
        if not is_protected(self._url):
            raise Unobtainable("it wants a token, and its url is plain http beyond this machine: use https")
        resource, issuers, scopes = await self._resource(challenge)
        if self._pinned is not None:
            if issuers and self._pinned not in issuers:
                raise Unobtainable(f"its authorization server is {printable(issuers[0])}, not the issuer in 'auth'")
            issuers = (self._pinned,)
        if not issuers:
            # MCP 2025-03-26 had no resource metadata: the origin of the server was its authorization server.
            try:
                return TokenSource(resource=resource, server=await self.server(oauth_client.origin_of(self._url)))
            except Unobtainable:
                raise NoOAuth("it names no authorization server") from None
        trouble: Unobtainable | None = None
        for issuer in sorted(issuers, key=lambda candidate: candidate != prefer)[: oauth_client.ISSUERS_MAX]:
            try:
                return TokenSource(resource=resource, server=await self.server(issuer), scopes=scopes)
            except Unobtainable as error:
                trouble = trouble or error
        raise trouble or NoOAuth("it names no authorization server")

    async def server(self, issuer: str) -> oauth_client.AuthorizationServer:
        """Return the metadata of an issuer (MCP, Authorization Server Metadata Discovery).

        Raise Unobtainable if there is no usable metadata.
        """
        cached = self._cache.get(issuer)
        if cached is not None and self._clock.now() < cached[1]:
            return cached[0]
        if not oauth_client.is_issuer(issuer):
            raise Unobtainable("its authorization server is not at an https URL")
        trouble: Exception = FetchFailed("no metadata")
        for url in discovery_urls(issuer):
            try:
                metadata = oauth_client.read_authorization_server_untrusted(await self._get(url), issuer)
            except (FetchFailed, BadMetadata) as error:
                trouble = error if not isinstance(trouble, BadMetadata) else trouble
                continue
            self._cache = {issuer: (metadata, self._clock.now() + METADATA_FRESH_S)}
            return metadata
        passing = isinstance(trouble, FetchFailed)
        raise Unobtainable(f"its authorization server {printable(issuer)} cannot be used: {trouble}", passing=passing)

    async def _resource(self, challenge: Challenge) -> tuple[str, tuple[str, ...], tuple[str, ...]]:
        """Return the resource identifier, its issuers and its scopes.

        The issuers are empty if no metadata was found.
        """
        named = challenge.resource_metadata
        for url in (named,) if named is not None else oauth_client.resource_metadata_urls(self._url):
            try:
                metadata = oauth_client.read_protected_resource_untrusted(await self._get(url), self._url)
            except BadMetadata as error:
                raise Unobtainable(f"its resource metadata cannot be used: {error}") from None
            except FetchFailed as error:
                if named is not None:
                    raise Unobtainable(f"its resource metadata cannot be fetched: {error}", passing=True) from None
                continue
            return metadata.resource, metadata.authorization_servers, metadata.scopes_supported
        return oauth_client.server_resource(self._url), (), ()

    # Registration and tokens

    async def register(
        self, server: oauth_client.AuthorizationServer, redirect_uri: str, name: str
    ) -> oauth_client.Client:
        """Register the node as a client (RFC 7591).

        Raise Unobtainable if the authorization server offers no registration, refuses it, or cannot be reached.
        """
        method = oauth_client.find_method_to_register(server.token_endpoint_auth_methods_supported)
        if server.registration_endpoint is None or method is None:
            raise Unobtainable(
                f"its authorization server {printable(server.issuer)} lets no client register by itself: "
                "get a client_id there and set it in 'auth'"
            )
        wanted = oauth_client.client_metadata(redirect_uri, name, method, native=is_loopback_url(redirect_uri))
        try:
            response = await (await self._fetcher_for(server.registration_endpoint)).exchange(
                server.registration_endpoint, _JSON, msgspec.json.encode(wanted)
            )
            if response.status not in (200, 201):
                why = oauth_client.error_code_untrusted(response.body) or f"HTTP {response.status}"
                raise Unobtainable(f"its authorization server refuses to register this node: {why}")
            return oauth_client.read_registration_untrusted(response.body, server.issuer, method, redirect_uri)
        except oauth_client.BadRegistration as error:
            raise Unobtainable(f"its authorization server cannot be used: {error}") from None
        except FetchFailed as error:
            raise Unobtainable(f"its authorization server did not register this node: {error}", passing=True) from None

    async def request(
        self,
        server: oauth_client.AuthorizationServer,
        client: oauth_client.Client,
        form: Mapping[str, str],
        assertion: str | None,
    ) -> oauth_client.IssuedTokens:
        """Request a token.

        Raise TokenRefused if the server refuses it, and Unobtainable if there is no answer or it is not usable.
        """
        headers, body = oauth_client.token_request(form, client, assertion)
        try:
            response = await (await self._fetcher_for(server.token_endpoint)).exchange(
                server.token_endpoint, headers, body
            )
        except FetchFailed as error:
            raise Unobtainable(f"its authorization server gave no token: {error}", passing=True) from None
        if response.status == 200:
            try:
                return oauth_client.read_token_untrusted(response.body)
            except oauth_client.BadAnswer as error:
                raise Unobtainable(f"its authorization server cannot be used: {error}") from None
        if response.status >= 500:
            raise Unobtainable(f"its authorization server gave no token: HTTP {response.status}", passing=True)
        raise TokenRefused(oauth_client.error_code_untrusted(response.body) or f"HTTP {response.status}")

    async def _get(self, url: str) -> bytes:
        return await (await self._fetcher_for(url)).get(url)

    async def _fetcher_for(self, url: str) -> Fetcher:
        """Return the fetcher for a URL. Raise Unobtainable if the egress rules forbid its host."""
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
    """Return a peer's text in a form that fits on one line of a log or a terminal."""
    return "".join(character if character.isprintable() else "?" for character in text[:PEER_TEXT_CHARS_MAX])


def union(*parts: Sequence[str]) -> tuple[str, ...]:
    """Return the distinct items of all sequences, in the order in which they first occur."""
    return tuple(dict.fromkeys(item for part in parts for item in part))
