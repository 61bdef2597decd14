"""HTTP requests to the authorization server of an MCP server: discovery, registration, tokens.

The input is the challenge with which the MCP server refused a request. The results are values of
`protocol.oauth_client`, or Unobtainable with a reason for the operator. `AuthorizationServers` stores no tokens.

All URLs come from peers. Therefore the fetcher does not connect to addresses that are closer to this machine than the
MCP server is (`within`): a public server cannot make the node fetch from its private network. For drivers, the egress
rules apply as well.

A client that asks an authorization server for a token must be known to that server. `Clients.find` chooses who the node
is, in the order of MCP (Client Registration): the client of the configuration, the document that the node publishes
about itself, or a registration that the node makes and stores. What an issuer gave is only used with that issuer.
`TokenStore` keeps tokens and registrations in secrets.db, sealed, so that they survive a restart.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar
from urllib.parse import urlsplit

import msgspec

from interlock.config.plan import OAuthPlan
from interlock.core.clock import Clock
from interlock.core.current_plan import Addresses
from interlock.credentials.protocol import oauth_client
from interlock.credentials.protocol.resource import (
    BadMetadata,
    Challenge,
    discovery_urls,
    is_loopback_url,
    is_protected,
)
from interlock.credentials.secret_references import NoOAuth, SecretResolver, TokenRefused, Unobtainable
from interlock.net.fetch import Fetcher, FetchFailed, scope_of_url
from interlock.net.protocol.egress import permits, port_of
from interlock.store.sqlite.secrets import SealedSecrets

T = TypeVar("T")

METADATA_FRESH_S: Final = 600.0
# Longer texts of peers are cut in messages.
PEER_TEXT_CHARS_MAX: Final = 200
_JSON: Final = b"content-type: application/json\r\naccept: application/json\r\n"


class TokenSource(msgspec.Struct, frozen=True, kw_only=True):
    """The place to request tokens for one MCP server: the authorization server, and the resource that it issues tokens
    for.
    """

    resource: str
    server: oauth_client.AuthorizationServer
    scopes: tuple[str, ...] = ()  # the scopes to begin with, according to the server


class AuthorizationServers:
    """A client of the authorization servers of one MCP server. It finds them, registers the node, and requests
    tokens.
    """

    def __init__(self, url: str, issuer: str | None, clock: Clock, egress: tuple[str, ...] | None = None) -> None:
        """Create a client for the MCP server at `url`. `issuer` is the only authorization server to use, or None.
        `egress` lists the hosts that may be contacted; None allows any host.
        """
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
        """Find the authorization server that issues tokens for the MCP server.

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
        """Return the metadata of the authorization server `issuer` (MCP, Authorization Server Metadata Discovery).

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
        """Return the resource identifier of the MCP server, the issuers of tokens for it, and its scopes.

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
        """Register the node as a client of an authorization server (RFC 7591).

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
            fetcher = await self._fetcher_for(server.registration_endpoint)
            response = await fetcher.exchange(server.registration_endpoint, _JSON, msgspec.json.encode(wanted))
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
        """Request a token from an authorization server.

        Raise TokenRefused if the server refuses it, and Unobtainable if there is no answer or it is not usable.
        """
        headers, body = oauth_client.token_request(form, client, assertion)
        try:
            fetcher = await self._fetcher_for(server.token_endpoint)
            response = await fetcher.exchange(server.token_endpoint, headers, body)
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
        """Return the HTTP client that fetches a URL. Raise Unobtainable if the egress rules forbid its host."""
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
    """Return a text of a peer, shortened and without control characters, so that it fits on one line of a log or a
    terminal.
    """
    return "".join(character if character.isprintable() else "?" for character in text[:PEER_TEXT_CHARS_MAX])


def union(*parts: Sequence[str]) -> tuple[str, ...]:
    """Return the distinct items of all sequences, in the order in which they first occur."""
    return tuple(dict.fromkeys(item for part in parts for item in part))


# Client registrations and tokens


class TokenGrant(msgspec.Struct, frozen=True, kw_only=True):
    """A stored OAuth token for one MCP server, issued to the node or to one user. Operators see its issuer and its
    scopes, never the token itself.
    """

    # The only server to which the token is ever sent.
    server: str
    # The resource for which the token was requested.
    resource: str
    issuer: str
    client_id: str
    access_token: str
    refresh_token: str | None = None
    # Wall clock.
    expires_at: float | None = None
    # The requested scopes. A token with more scopes is requested with these and the missing ones.
    scopes: tuple[str, ...] = ()


class _ClientBinding(msgspec.Struct, frozen=True):
    """The record of the issuer with which an OAuth client of the configuration was first used. The node uses the client
    with no other issuer (MCP, Authorization Server Binding).
    """

    client_id: str
    issuer: str


@dataclass(eq=False)
class TokenStore:
    """The stored OAuth tokens and client registrations. An entry that cannot be read counts as missing."""

    secrets: SealedSecrets
    clock: Clock

    async def find_grant(self, segment: str, principal: str, server: str) -> TokenGrant | None:
        """Return the stored token for an MCP server, or None if there is none.

        A token that was issued for another server is removed, because the URL of a segment may have changed. So is an
        entry that cannot be read.
        """
        name = grant_name(segment, principal)
        data = await self.secrets.get("token", name, self.clock.wall())
        grant = _read(data, TokenGrant)
        if data is not None and (grant is None or grant.server != server):
            await self.secrets.remove("token", name)
            return None
        return grant

    async def keep_grant(self, segment: str, principal: str, grant: TokenGrant) -> None:
        name = grant_name(segment, principal)
        await self.secrets.put("token", name, msgspec.json.encode(grant), self.clock.wall())

    async def find_client(self, issuer: str) -> oauth_client.Client | None:
        """Return the client registration of the node at an issuer, or None if there is none or it has expired."""
        client = _read(await self.secrets.get("client", issuer, self.clock.wall()), oauth_client.Client)
        if client is None or client.issuer != issuer:
            return None
        return client if client.expires_at is None or self.clock.wall() < client.expires_at else None

    async def keep_client(self, client: oauth_client.Client) -> None:
        await self.secrets.put("client", client.issuer, msgspec.json.encode(client), self.clock.wall())

    async def bound_issuer(self, segment: str, client_id: str, issuer: str) -> str:
        """Return the issuer to which a client of the configuration is bound. If it is not bound yet, bind it to
        `issuer`.
        """
        name = f"{segment} in the configuration"  # no issuer has blanks
        bound = _read(await self.secrets.get("client", name, self.clock.wall()), _ClientBinding)
        if bound is None or bound.client_id != client_id:
            bound = _ClientBinding(client_id, issuer)
            await self.secrets.put("client", name, msgspec.json.encode(bound), self.clock.wall())
        return bound.issuer


def grant_name(segment: str, principal: str) -> str:
    return f"{segment} {principal}" if principal else segment


def _read(data: bytes | None, shape: type[T]) -> T | None:
    try:
        return None if data is None else msgspec.json.decode(data, type=shape)
    except msgspec.DecodeError:
        # Another version of the program stored it with other fields.
        return None


@dataclass(eq=False)
class ClientIdentity:
    """The name and the URLs under which authorization servers know the node.

    The URLs are available once the node's sockets are bound.
    """

    name: str
    addresses: Addresses

    @property
    def callback(self) -> str | None:
        """Return the URL to which a browser returns after a consent, or None before the node has bound its sockets."""
        return self.addresses.operator.rstrip("/") + oauth_client.CALLBACK_PATH if self.addresses.is_bound else None

    @property
    def document_url(self) -> str:
        return self.addresses.public.rstrip("/") + oauth_client.DOCUMENT_PATH

    @property
    def document(self) -> str | None:
        """Return the URL of the document that describes this node as an OAuth client, or None if it is not public
        (Client ID Metadata Document 3).
        """
        url = self.document_url
        is_public = self.addresses.is_bound and url.startswith("https:") and not is_loopback_url(url)
        return url if is_public else None


@dataclass(eq=False)
class Clients:
    """Selection of the OAuth client identity that the node uses at an authorization server: configured, published as a
    document, or registered.
    """

    records: TokenStore
    identity: ClientIdentity
    reveal: SecretResolver

    def redirect_uri(self) -> str:
        """Return the URL to which the browser of a person returns after a consent. Raise Unobtainable if the node has
        no URL that is safe enough.
        """
        callback = self.identity.callback
        if callback is None:
            raise Unobtainable(
                "this node has no operator endpoint for the person to come back to: start interlock serve"
            )
        if not is_protected(callback):  # MCP, Communication Security
            raise Unobtainable(f"people would come back over plain http to {callback}: set node.operator_url to https")
        return callback

    async def find(
        self, segment: str, plan: OAuthPlan, server: oauth_client.AuthorizationServer, authority: AuthorizationServers
    ) -> oauth_client.Client:
        """Return the OAuth client identity that the node uses at an authorization server. Register the node there if
        necessary.

        Raise Unobtainable if there is no way to become a client, or StoreError.
        """
        if plan.client_id is not None:
            # Unless the configuration names the issuer, the first one that was used stays the only one: a server that
            # changes its authorization server must not receive the credentials of another (MCP, Authorization Server
            # Binding).
            if plan.issuer is None:
                bound = await self.records.bound_issuer(segment, plan.client_id, server.issuer)
                if bound != server.issuer:
                    raise Unobtainable(
                        f"its authorization server is now {printable(server.issuer)}, and the client_id in 'auth' "
                        f"belongs to {printable(bound)}: if that is right, set 'issuer' there"
                    )
            return await self._authenticate_configured(plan, plan.client_id, server)
        if server.client_id_metadata_document_supported and self.identity.document is not None:
            return oauth_client.Client(issuer=server.issuer, client_id=self.identity.document)
        redirect_uri = self.redirect_uri()
        client = await self.records.find_client(server.issuer)
        if client is None or client.redirect_uri != redirect_uri:
            client = await authority.register(server, redirect_uri, self.identity.name)
            await self.records.keep_client(client)
        return client

    async def of_grant(
        self, plan: OAuthPlan, grant: TokenGrant, server: oauth_client.AuthorizationServer
    ) -> oauth_client.Client:
        """Return the OAuth client to which a token was issued, because no other client may renew the token.

        Raise TokenRefused if it no longer exists, or Unobtainable if the configured client cannot authenticate.
        """
        if plan.client_id is not None:
            if plan.client_id != grant.client_id:
                raise TokenRefused("the client_id in 'auth' is another one now")
            return await self._authenticate_configured(plan, plan.client_id, server)
        if grant.client_id == self.identity.document:
            return oauth_client.Client(issuer=grant.issuer, client_id=grant.client_id)
        client = await self.records.find_client(grant.issuer)
        if client is None or client.client_id != grant.client_id:
            raise TokenRefused("the client it was given to is no longer registered")
        return client

    async def _authenticate_configured(
        self, plan: OAuthPlan, client_id: str, server: oauth_client.AuthorizationServer
    ) -> oauth_client.Client:
        """Return the client of the configuration, with an authentication method that the authorization server
        supports.
        """
        supported = server.token_endpoint_auth_methods_supported
        method: oauth_client.Method | None = oauth_client.find_auth_method(
            supported, secret=plan.client_secret is not None, key=plan.private_key is not None
        )
        if method is None:
            accepted = printable(", ".join(supported or ("client_secret_basic",)))
            raise Unobtainable(f"its authorization server takes no proof that 'auth' has; it takes {accepted}")
        secret = None if plan.client_secret is None else await self.reveal.text(plan.client_secret)
        return oauth_client.Client(issuer=server.issuer, client_id=client_id, method=method, secret=secret)
