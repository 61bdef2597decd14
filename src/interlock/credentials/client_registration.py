"""Client registrations and tokens of the node, and where both are stored.

A client that asks an authorization server for a token must be known to that server. `Clients.find` chooses who the node
is, in the order of MCP (Client Registration): the client of the configuration, the document that the node publishes
about itself, or a registration that the node makes and stores. What an issuer gave is only used with that issuer.

`TokenStore` keeps tokens and registrations in secrets.db, sealed, so that they survive a restart. Every method reads or
writes the file, and none is on the path of a call.
"""

from dataclasses import dataclass
from typing import TypeVar

import msgspec

from interlock.config.plan import OAuthPlan
from interlock.core.clock import Clock
from interlock.core.current_plan import Addresses
from interlock.credentials.authorization_server import AuthorizationServers, printable
from interlock.credentials.protocol import oauth_client
from interlock.credentials.protocol.resource import is_loopback_url, is_protected
from interlock.credentials.secret_references import SecretResolver, TokenRefused, Unobtainable
from interlock.store.sqlite.secrets import SealedSecrets

T = TypeVar("T")


class TokenGrant(msgspec.Struct, frozen=True, kw_only=True):
    """A stored token for one server, issued to the node or to one user. Operators see only where it came from and its
    scopes.
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
    """Binding of a configured client to the issuer with which it was first used (MCP, Authorization Server Binding)."""

    client_id: str
    issuer: str


class TokenStore:
    """Store of tokens and client registrations. An entry that cannot be read counts as absent."""

    def __init__(self, secrets: SealedSecrets, clock: Clock) -> None:
        self._secrets = secrets
        self._clock = clock

    async def find_grant(self, segment: str, principal: str, server: str) -> TokenGrant | None:
        """Return the stored token for a server, or None if there is none.

        A token that was issued for another server is removed, because the URL of a segment may have changed. So is an
        entry that cannot be read.
        """
        name = grant_name(segment, principal)
        data = await self._secrets.get("token", name, self._clock.wall())
        grant = _read(data, TokenGrant)
        if data is not None and (grant is None or grant.server != server):
            await self._secrets.remove("token", name)
            return None
        return grant

    async def keep_grant(self, segment: str, principal: str, grant: TokenGrant) -> None:
        name = grant_name(segment, principal)
        await self._secrets.put("token", name, msgspec.json.encode(grant), self._clock.wall())

    async def drop_grant(self, segment: str, principal: str) -> None:
        await self._secrets.remove("token", grant_name(segment, principal))

    async def find_client(self, issuer: str) -> oauth_client.Client | None:
        """Return the node's registration at an issuer, or None if there is none or it has expired."""
        client = _read(await self._secrets.get("client", issuer, self._clock.wall()), oauth_client.Client)
        if client is None or client.issuer != issuer:
            return None
        return client if client.expires_at is None or self._clock.wall() < client.expires_at else None

    async def keep_client(self, client: oauth_client.Client) -> None:
        await self._secrets.put("client", client.issuer, msgspec.json.encode(client), self._clock.wall())

    async def drop_client(self, issuer: str) -> None:
        await self._secrets.remove("client", issuer)

    async def bound_issuer(self, segment: str, client_id: str, issuer: str) -> str:
        """Return the issuer to which a configured client is bound. On first use, bind it to `issuer`."""
        name = f"{segment} in the configuration"  # no issuer has blanks
        bound = _read(await self._secrets.get("client", name, self._clock.wall()), _ClientBinding)
        if bound is None or bound.client_id != client_id:
            bound = _ClientBinding(client_id, issuer)
            await self._secrets.put("client", name, msgspec.json.encode(bound), self._clock.wall())
        return bound.issuer


def grant_name(segment: str, principal: str) -> str:
    return f"{segment} {principal}" if principal else segment


def _read(data: bytes | None, shape: type[T]) -> T | None:
    try:
        return None if data is None else msgspec.json.decode(data, type=shape)
    except msgspec.DecodeError:
        # Another version of the program stored it with other fields.
        return None


class ClientIdentity:
    """The name and the URLs under which authorization servers know the node.

    The URLs are available once the node's sockets are bound.
    """

    def __init__(self, name: str, addresses: Addresses) -> None:
        self.name = name
        self._addresses = addresses

    @property
    def callback(self) -> str | None:
        """Return the URL to which the browser returns after a consent, or None if there is none."""
        return self._addresses.operator.rstrip("/") + oauth_client.CALLBACK_PATH if self._addresses.is_bound else None

    @property
    def document_url(self) -> str:
        return self._addresses.public.rstrip("/") + oauth_client.DOCUMENT_PATH

    @property
    def document(self) -> str | None:
        """Return the URL of the document that describes this node as a client, or None if it is not public (Client ID
        Metadata Document 3).
        """
        url = self.document_url
        is_public = self._addresses.is_bound and url.startswith("https:") and not is_loopback_url(url)
        return url if is_public else None


@dataclass(eq=False)
class Clients:
    """A chooser of the client identity that the node uses at an authorization server."""

    records: TokenStore
    identity: ClientIdentity
    reveal: SecretResolver

    def redirect_uri(self) -> str:
        """Return the URL to which a person's browser returns. Raise Unobtainable if the node has no safe URL."""
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
        """Return the client that the node is at an authorization server, and register it if necessary.

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
        """Return the client to which a token was issued. Only this client may renew the token.

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
        """Return the configured client with an authentication method that the server supports."""
        supported = server.token_endpoint_auth_methods_supported
        method: oauth_client.Method | None = oauth_client.find_auth_method(
            supported, secret=plan.client_secret is not None, key=plan.private_key is not None
        )
        if method is None:
            accepted = printable(", ".join(supported or ("client_secret_basic",)))
            raise Unobtainable(f"its authorization server takes no proof that 'auth' has; it takes {accepted}")
        secret = None if plan.client_secret is None else await self.reveal.text(plan.client_secret)
        return oauth_client.Client(issuer=server.issuer, client_id=client_id, method=method, secret=secret)
