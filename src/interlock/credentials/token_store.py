"""The store of tokens between two runs, sealed in secrets.db, with what an operator may see of them."""

from typing import TypeVar

import msgspec

from interlock.core.clock import Clock
from interlock.credentials.protocol.client import Client
from interlock.store.sqlite.secrets import Secrets

T = TypeVar("T")


class Grant(msgspec.Struct, frozen=True, kw_only=True):
    """A token for one server, of one user or of the node itself. Never shown, but for where it is from and for what."""

    server: str  # the only resource it is ever sent to
    resource: str  # what it was asked for
    issuer: str
    client_id: str
    access_token: str
    refresh_token: str | None = None
    expires_at: float | None = None  # wall clock
    scopes: tuple[str, ...] = ()  # asked for, so that a wider one can be


class _ClientBinding(msgspec.Struct, frozen=True):
    """A client of the configuration, and the issuer it was first used with (MCP, Authorization Server Binding)."""

    client_id: str
    issuer: str


class TokenStore:
    def __init__(self, secrets: Secrets, clock: Clock) -> None:
        self._secrets = secrets
        self._clock = clock

    async def grant(self, segment: str, principal: str, server: str) -> Grant | None:
        """Return the stored token of a server. Return None if it was issued for another server, because the URL of a
        segment may have changed.
        """
        name = grant_name(segment, principal)
        data = await self._secrets.get("token", name, self._clock.wall())
        grant = _read(data, Grant)
        if data is not None and (grant is None or grant.server != server):
            await self._secrets.remove("token", name)
            return None
        return grant

    async def keep_grant(self, segment: str, principal: str, grant: Grant) -> None:
        name = grant_name(segment, principal)
        await self._secrets.put("token", name, msgspec.json.encode(grant), self._clock.wall())

    async def drop_grant(self, segment: str, principal: str) -> None:
        await self._secrets.remove("token", grant_name(segment, principal))

    async def client(self, issuer: str) -> Client | None:
        """Return our registration at an issuer as long as it is valid, or None."""
        client = _read(await self._secrets.get("client", issuer, self._clock.wall()), Client)
        if client is None or client.issuer != issuer:
            return None
        return client if client.expires_at is None or self._clock.wall() < client.expires_at else None

    async def keep_client(self, client: Client) -> None:
        await self._secrets.put("client", client.issuer, msgspec.json.encode(client), self._clock.wall())

    async def drop_client(self, issuer: str) -> None:
        await self._secrets.remove("client", issuer)

    async def bound_issuer(self, segment: str, client_id: str, issuer: str) -> str:
        """Return the issuer that a client of the configuration belongs to. The first use binds it to the given
        issuer.
        """
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
    except msgspec.DecodeError:  # of a version that kept other things
        return None
