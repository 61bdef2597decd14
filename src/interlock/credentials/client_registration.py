"""The client that the node is to an authorization server (MCP, Client Registration), in MCP's order: the one of the
configuration, the document it publishes, one that it registers itself.

What an issuer gave is used with that issuer alone.
"""

from interlock.config.plan import OAuthPlan
from interlock.core.current_plan import Addresses
from interlock.credentials.authorization_server import AuthorizationServers, printable
from interlock.credentials.errors import TokenRefused, Unobtainable
from interlock.credentials.protocol.client import CALLBACK_PATH, DOCUMENT_PATH, Client, Method, method_for
from interlock.credentials.protocol.discovery import AuthorizationServer
from interlock.credentials.protocol.resource import is_loopback_url, is_protected
from interlock.credentials.secret_references import SecretResolver
from interlock.credentials.token_store import Grant, TokenStore


class ClientIdentity:
    """The URLs of the node that an authorization server is told. Known once its sockets are bound."""

    def __init__(self, name: str, addresses: Addresses) -> None:
        self.name = name
        self._addresses = addresses

    @property
    def callback(self) -> str | None:
        """Return the URL to which a browser returns, or None."""
        return self._addresses.operator.rstrip("/") + CALLBACK_PATH if self._addresses.is_bound else None

    @property
    def document_url(self) -> str:
        return self._addresses.public.rstrip("/") + DOCUMENT_PATH

    @property
    def document(self) -> str | None:
        """Return the URL of the document about this node, if it is public (Client ID Metadata Document 3)."""
        url = self.document_url
        is_public = self._addresses.is_bound and url.startswith("https:") and not is_loopback_url(url)
        return url if is_public else None


class Clients:
    def __init__(self, records: TokenStore, identity: ClientIdentity, reveal: SecretResolver) -> None:
        self._records = records
        self._identity = identity
        self._reveal = reveal

    def redirect_uri(self) -> str:
        callback = self._identity.callback
        if callback is None:
            raise Unobtainable(
                "this node has no operator endpoint for the person to come back to: start interlock serve"
            )
        if not is_protected(callback):  # MCP, Communication Security
            raise Unobtainable(f"people would come back over plain http to {callback}: set node.operator_url to https")
        return callback

    async def find(
        self, segment: str, plan: OAuthPlan, server: AuthorizationServer, authority: AuthorizationServers
    ) -> Client:
        """Return the client that this node is to a server, and register it if necessary. Raise Unobtainable or
        StoreError.
        """
        if plan.client_id is not None:
            return await self._configured_client(segment, plan, plan.client_id, server)
        if server.client_id_metadata_document_supported and self._identity.document is not None:
            return Client(issuer=server.issuer, client_id=self._identity.document)
        redirect_uri = self.redirect_uri()
        client = await self._records.client(server.issuer)
        if client is None or client.redirect_uri != redirect_uri:
            client = await authority.register(server, redirect_uri, self._identity.name)
            await self._records.keep_client(client)
        return client

    async def of_grant(self, plan: OAuthPlan, grant: Grant, server: AuthorizationServer) -> Client:
        """Return the client that a token was issued to, which alone may renew it. Raise TokenRefused if it is gone."""
        if plan.client_id is not None:
            if plan.client_id != grant.client_id:
                raise TokenRefused("the client_id in 'auth' is another one now")
            return await self._proven(plan, plan.client_id, server)
        if grant.client_id == self._identity.document:
            return Client(issuer=grant.issuer, client_id=grant.client_id)
        client = await self._records.client(grant.issuer)
        if client is None or client.client_id != grant.client_id:
            raise TokenRefused("the client it was given to is no longer registered")
        return client

    async def _configured_client(
        self, segment: str, plan: OAuthPlan, client_id: str, server: AuthorizationServer
    ) -> Client:
        if plan.issuer is None:
            bound = await self._records.bound_issuer(segment, client_id, server.issuer)
            if bound != server.issuer:
                raise Unobtainable(
                    f"its authorization server is now {printable(server.issuer)}, and the client_id in 'auth' belongs "
                    f"to {printable(bound)}: if that is right, set 'issuer' there"
                )
        return await self._proven(plan, client_id, server)

    async def _proven(self, plan: OAuthPlan, client_id: str, server: AuthorizationServer) -> Client:
        supported = server.token_endpoint_auth_methods_supported
        method: Method | None = method_for(
            supported, secret=plan.client_secret is not None, key=plan.private_key is not None
        )
        if method is None:
            taken = printable(", ".join(supported or ("client_secret_basic",)))
            raise Unobtainable(f"its authorization server takes no proof that 'auth' has; it takes {taken}")
        secret = None if plan.client_secret is None else await self._reveal.text(plan.client_secret)
        return Client(issuer=server.issuer, client_id=client_id, method=method, secret=secret)
