"""The environment of a driver: everything that the node gives each of them, as one value."""

from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec

from interlock.config.plan import Dial, DriversPlan
from interlock.core.calls.caller import Caller
from interlock.credentials.secret_references import SecretResolver
from interlock.credentials.token import TokenHolder
from interlock.drivers.install.installation import Installed, InstallFailed
from interlock.drivers.protocol.model import Driver
from interlock.drivers.provider.context import tenant_of, user_of
from interlock.drivers.secrets.vault import Vault
from interlock.links.connector import ConnectorParts
from interlock.links.keeper import Keeper
from interlock.links.link import LinkEvents
from interlock.store.ports import KeyValue

Installer = Callable[[Driver, Path, Callable[[str], None]], Awaitable[Installed | InstallFailed]]


class DriverEnvironment(msgspec.Struct, frozen=True, kw_only=True):
    plan: DriversPlan
    data: Path
    connector_parts: ConnectorParts
    link_events: LinkEvents
    keepers: dict[str, Keeper]
    kv: KeyValue
    install: Installer
    holder_for: Callable[[str, Dial, SecretResolver], TokenHolder | None]
    vault: Vault
    tenant_of: Callable[[Caller], str] = tenant_of
    user_of: Callable[[Caller], str] = user_of
    vendor_meta: bool = True

    def with_plan(self, plan: DriversPlan) -> "DriverEnvironment":
        return msgspec.structs.replace(self, plan=plan)
