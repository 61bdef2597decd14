"""The credential service of a node: secrets, tokens, consents, and the node as an OAuth client.

A node has one service, from which links get their token holders. Until the first secret is stored, secrets.db is not
created and `cryptography` is not imported.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from interlock.config.plan import Dial
from interlock.config.value_types import is_slug
from interlock.core.clock import Clock
from interlock.core.current_plan import Addresses, CurrentPlan
from interlock.core.operator_errors import refused_as
from interlock.credentials.api import BAD_SECRET_NAME
from interlock.credentials.authorization_server import ClientIdentity, Clients, TokenStore
from interlock.credentials.protocol.oauth_client import DOCUMENT_PATH, client_document, client_metadata
from interlock.credentials.protocol.resource import is_loopback_url
from interlock.credentials.secret_references import SecretResolver
from interlock.credentials.token import Consents, TokenHolder
from interlock.store.sqlite.secrets import KINDS, Kind, SealedSecrets


class CredentialService:
    """The service that manages the secrets, the tokens and the consents of a node."""

    def __init__(
        self,
        data: Path,
        clock: Clock,
        node_name: str,
        addresses: Addresses,
        current: CurrentPlan | None = None,
        record: Callable[[bytes], None] | None = None,
    ) -> None:
        """Construct the service. If links of a node get secrets, `current` is the configuration of the node and
        `record` writes its audit log.
        """
        self._clock = clock
        self.secrets = SealedSecrets(data)
        self.revealer = SecretResolver(self.secrets, clock, current, record)
        self._identity = ClientIdentity(f"Interlock {node_name}", addresses)
        self.consents = Consents(clock)
        self._clients = Clients(TokenStore(self.secrets, clock), self._identity, self.revealer)

    async def open(self) -> None:
        await self.secrets.open()

    async def close(self) -> None:
        await self.secrets.close()

    def documents(self) -> dict[str, bytes]:
        """Return the public documents about this node as an OAuth client, by URL path. Call this after the listeners
        are bound, because the documents contain URLs.
        """
        identity = self._identity
        callback = identity.callback or ""
        metadata = client_metadata(callback, identity.name, "none", native=is_loopback_url(callback))
        return {DOCUMENT_PATH: client_document(identity.document_url, metadata)}

    def holder(self, segment: str, dial: Dial, revealer: SecretResolver | None = None) -> TokenHolder | None:
        """Return the holder of the node's OAuth token for a server, or None if the configuration already has a
        credential for it.

        `revealer` resolves the secrets of this server.
        """
        if any(name.lower() == "authorization" for name in dial.headers):
            return None
        clients = replace(self._clients, reveal=revealer or self.revealer.of_link(segment))
        return TokenHolder(self.consents, clients, segment, dial)

    def holder_for(self, node_own: TokenHolder, dial: Dial, principal: str) -> TokenHolder:
        """Return the holder of a user's OAuth token for a server.

        `node_own` holds the token of the node for the same server.
        """
        clients = replace(self._clients, reveal=self.revealer.of_link(node_own.segment))
        return TokenHolder(self.consents, clients, node_own.segment, dial, principal=principal, node_own=node_own)

    # Secrets by name

    async def secret_names(self) -> list[tuple[Kind, str]]:
        """Return kind and name of all stored secrets, tokens and client registrations."""
        now = self._clock.wall()
        return [(kind, name) for kind in KINDS for name in await self.secrets.names(kind, now)]

    async def set_secret(self, name: str, value: str) -> None:
        """Store a secret. Its name is a slug such as `my-token`, which references write in capitals
        (`${secrets.MY_TOKEN}`).

        Raise Refused if the name is not a slug, or StoreError.
        """
        if not is_slug(name):
            message = "a secret's name has 2 to 80 small letters, digits and dashes, like github-token"
            raise refused_as(BAD_SECRET_NAME, message)
        await self.secrets.put("secret", name, value.encode(), self._clock.wall())
