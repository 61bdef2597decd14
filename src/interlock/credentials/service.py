"""Credentials towards servers: secrets, tokens, consents, and the node as an OAuth client.

The node makes one service, and links get their token holders from it. secrets.db is not created, and `cryptography` not
imported, before the first secret is stored.
"""

import hmac
from pathlib import Path
from typing import Literal

from interlock.config.plan import Dial, ServerPlan, Spawn
from interlock.config.value_types import is_slug
from interlock.core.clock import Clock
from interlock.core.current_plan import Addresses
from interlock.credentials.client_registration import ClientIdentity, Clients, TokenStore
from interlock.credentials.protocol.oauth_client import DOCUMENT_PATH, client_document, client_metadata
from interlock.credentials.protocol.resource import is_loopback_url
from interlock.credentials.secret_references import SecretResolver, secrets_named
from interlock.credentials.token import Consents, TokenHolder, TokenServices
from interlock.store.sqlite.secrets import KINDS, Kind, SealedSecrets


def referenced_secrets(plan: ServerPlan) -> frozenset[str]:
    """Return the secrets that a server's configuration refers to."""
    match plan.reach:
        case Spawn():
            return secrets_named(*plan.reach.command, *plan.reach.env.values())
        case Dial():
            auth = plan.reach.auth
            written = (*plan.reach.headers.values(), *plan.reach.query.values())
            return secrets_named(*written, auth.client_secret or "" if auth is not None else "")


class BadSecretName(ValueError):
    """The name of a secret is not a slug. References write slugs like environment variables (`${secrets.MY_TOKEN}`)."""


class CredentialService:
    """Secrets, tokens and consents of the node."""

    def __init__(self, data: Path, clock: Clock, node_name: str, addresses: Addresses) -> None:
        self._clock = clock
        self.secrets = SealedSecrets(data)
        self.revealer = SecretResolver(self.secrets, clock)
        self._identity = ClientIdentity(f"Interlock {node_name}", addresses)
        self.consents = Consents(clock)
        records = TokenStore(self.secrets, clock)
        clients = Clients(records, self._identity, self.revealer)
        self._services = TokenServices(records=records, consents=self.consents, clients=clients, clock=clock)

    async def open(self) -> None:
        await self.secrets.open()

    async def close(self) -> None:
        await self.secrets.close()

    def documents(self) -> dict[str, bytes]:
        """Return the public document about this node, by path. The listeners must be bound, so that URLs are known."""
        identity = self._identity
        callback = identity.callback or ""
        metadata = client_metadata(callback, identity.name, "none", native=is_loopback_url(callback))
        return {DOCUMENT_PATH: client_document(identity.document_url, metadata)}

    def holder(self, segment: str, dial: Dial, revealer: SecretResolver | None = None) -> TokenHolder | None:
        """Return the token holder of a server, or None if its credential is in the configuration. `revealer`
        resolves the server's own secrets.
        """
        if any(name.lower() == "authorization" for name in dial.headers):
            return None
        services = self._services
        if revealer is not None:
            clients = Clients(services.records, self._identity, revealer)
            services = TokenServices(
                records=services.records, consents=self.consents, clients=clients, clock=self._clock
            )
        return TokenHolder(services, segment, dial)

    def holder_for(self, node_own: TokenHolder, dial: Dial, principal: str) -> TokenHolder:
        """Return the holder of a user's own token, beside the token of the node."""
        return TokenHolder(self._services, node_own.segment, dial, principal=principal, node_own=node_own)

    # Secrets by name

    async def secret_names(self) -> list[tuple[Kind, str]]:
        """Return the kind and name of everything that is stored: secrets, tokens and registrations."""
        now = self._clock.wall()
        return [(kind, name) for kind in KINDS for name in await self.secrets.names(kind, now)]

    async def set_secret(self, name: str, value: str) -> None:
        if not is_slug(name):
            raise BadSecretName("a secret's name has 2 to 80 small letters, digits and dashes, like github-token")
        await self.secrets.put("secret", name, value.encode(), self._clock.wall())

    async def keep_secret(self, name: str, value: str) -> Literal["new", "same", "differs"]:
        """Store a secret unless one of that name exists. Return whether it is new, the same, or differs from the
        stored one.
        """
        before = await self.secrets.get("secret", name, self._clock.wall())
        if before is not None:
            return "same" if hmac.compare_digest(before, value.encode()) else "differs"
        await self.set_secret(name, value)
        return "new"

    async def remove_secret(self, kind: Kind, name: str) -> bool:
        return await self.secrets.remove(kind, name)
