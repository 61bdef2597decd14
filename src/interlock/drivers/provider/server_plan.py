"""How a driver's server is greeted: capabilities, protocol versions, the era it spoke last, trusted authorities."""

import asyncio
from pathlib import Path
from typing import Final

import msgspec

from interlock.drivers.protocol.model import Driver
from interlock.links.connector import ConnectorParts, Eras
from interlock.links.handshake import LEGACY_CAPABILITIES, Manner
from interlock.mcp.methods import LEGACY_VERSIONS, Era
from interlock.net.tls import trusting_context

HOMES: Final = "homes"


def manner_of(driver: Driver) -> Manner:
    asked = driver.interlock.client_capabilities
    return Manner(
        # AIP-proto-6: on a shared process a server's question cannot be tied to one caller.
        capabilities={name: LEGACY_CAPABILITIES[name] for name in asked},
        versions=driver.interlock.protocol_versions,
        patience_s=driver.connection.timeout_ms / 1000,
        either_transport=driver.server.address is not None,
    )


class DeclaredEras:
    """The era one driver's server spoke last, else the one of the version it is declared for (AIP-proto-3)."""

    def __init__(self, eras: Eras, driver: Driver) -> None:
        self._eras = eras
        self._key = driver.key
        self._declared = Era.LEGACY if driver.protocol_version in LEGACY_VERSIONS else None

    def get(self, server: str) -> Era | None:
        return self._eras.get(self._key) or self._declared

    def put(self, server: str, era: Era) -> None:
        self._eras.put(self._key, era)


async def with_own_authority(connector_parts: ConnectorParts, driver: Driver, ca_file: Path | None) -> ConnectorParts:
    """The parts with drivers.ca_file as an authority for a remote server. Raises OSError."""
    if ca_file is None or driver.server.address is None:
        return connector_parts
    return msgspec.structs.replace(connector_parts, tls=await asyncio.to_thread(trusting_context, ca_file))
