"""The keeper factory: one keeper for the driver's server, and one for each tenant or user where they are isolated."""

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Protocol

import msgspec

from interlock.config.plan import Dial
from interlock.drivers.install.installation import Installed
from interlock.drivers.kinds import kind_of
from interlock.drivers.protocol.model import Driver, Secret
from interlock.drivers.protocol.selection.login_expiry import maybe_detector
from interlock.drivers.provider.environment import DriverEnvironment
from interlock.drivers.provider.keeper import DriverKeeper
from interlock.drivers.provider.link import DriverLink
from interlock.drivers.secrets.vault import DriverRevealer
from interlock.drivers.workspace.tamper_check import TamperCheck
from interlock.links.connector import ConnectorParts
from interlock.links.link import Link
from interlock.links.listing import Listing


class ServerEvents(Protocol):
    """What a driver is told of its servers; `who` is the tenant or user of one, None for the driver's own."""

    async def on_listing(self, link: Link, who: str | None, listing: Listing | None) -> None: ...

    def on_up(self) -> None:
        """A server is connected, and its lists were checked."""

    def on_fallen(self, who: str | None) -> None:
        """A series of attempts failed."""

    def on_restarted(self, who: str | None) -> None:
        """A restart was requested."""

    def on_expired(self, who: str | None, reason: str) -> None:
        """The server says that its login has expired."""

    def serves(self) -> int:
        """How many contracts the driver serves now."""


class KeeperFactory:
    def __init__(
        self,
        driver: Driver,
        environment: DriverEnvironment,
        events: ServerEvents,
        *,
        folder: Path,
        inventory: Mapping[str, Secret],
        own_secrets: Collection[str],
        contracts: tuple[str, ...],
        seal: TamperCheck | None,
        real_paths: Mapping[Path, Path],
    ) -> None:
        self._driver = driver
        self._environment = environment
        self._events = events
        self._folder = folder
        self._inventory = inventory
        self._own_secrets = own_secrets
        self._contracts = contracts
        self._seal = seal
        self._real_paths = real_paths

    def make(self, installed: Installed, connector_parts: ConnectorParts, who: str | None) -> DriverKeeper:
        environment, driver, events = self._environment, self._driver, self._events
        plan = kind_of(driver.server).compile_plan(
            driver,
            installed,
            folder=self._folder,
            data=environment.data,
            tenant=who,
            is_sandboxed=environment.plan.sandbox.get(driver.id) != "off",
            real_paths=self._real_paths,
        )
        plan = msgspec.structs.replace(plan, result_bytes=environment.plan.result_bytes.get(driver.id))
        revealer = DriverRevealer(environment.vault, driver, self._inventory, self._own_secrets, self._contracts, who)
        holder = None
        if isinstance(plan.reach, Dial) and driver.server.accepts_oauth:
            holder = environment.holder_for(plan.segment, plan.reach, revealer)
        return DriverKeeper(
            lambda link_events: DriverLink(
                plan,
                link_events,
                environment.connector_parts.clock,
                vendor_meta=environment.vendor_meta,
                revealer=revealer,
                redacts_results=driver.interlock.redact_results,
                detector=maybe_detector(driver),
                on_expired=lambda reason: events.on_expired(who, reason),
                owner=who if "roots" in driver.interlock.client_capabilities else None,
            ),
            msgspec.structs.replace(connector_parts, revealer=revealer),
            lambda link, listing: events.on_listing(link, who, listing),
            environment.link_events,
            holder,
            driver=driver,
            on_up=events.on_up,
            on_fallen=lambda: events.on_fallen(who),
            on_restarted=lambda: events.on_restarted(who),
            serves=events.serves,
            seal=self._seal,
            redact=lambda line, cut: (revealer.redactor.cut if cut else revealer.redactor.redacted)(line),
        )
