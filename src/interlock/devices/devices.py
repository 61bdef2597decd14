"""The devices of a node: a keeper for each description, and what happens when descriptions change."""

import asyncio
import uuid
from collections.abc import Iterable
from typing import TYPE_CHECKING

from interlock.ax.protocol.notifications import lost_notice
from interlock.catalog.catalog import Catalog
from interlock.config.plan import DevicePlan, Plan
from interlock.core.clock import rfc3339
from interlock.core.current_plan import CurrentPlan
from interlock.core.feed import Feed
from interlock.devices.on_behalf_members import BESIDE
from interlock.devices.transports.connections import Connections
from interlock.fronts.audience import Audience
from interlock.links.connector import ConnectorParts
from interlock.links.keeper import Keeper
from interlock.links.link import Link
from interlock.links.link_events import LinkEvents
from interlock.links.listing import Listing

if TYPE_CHECKING:
    from interlock.devices.device_link import DeviceLink


class Devices:
    def __init__(
        self,
        current: CurrentPlan,
        link_events: LinkEvents,
        keepers: dict[str, Keeper],
        catalog: Catalog,
        audience: Audience,
        connector_parts: ConnectorParts,
    ) -> None:
        self._current = current
        self._audience = audience
        self._link_events = link_events
        self._keepers = keepers
        self._catalog = catalog
        self._connector_parts = connector_parts
        self._connections = Connections()
        self._own: dict[str, Keeper] = {}
        self.standings = Feed[Link]()  # a link that stands otherwise than before

    async def open(self) -> None:
        self._add(self._current.plan.devices.described)

    async def take(self, old: Plan, new: Plan) -> None:
        """A device that is described as before is not touched."""
        was = {device.segment: device for device in old.devices.described}
        now = {device.segment: device for device in new.devices.described}
        await asyncio.gather(*(self._remove(one) for one, device in was.items() if now.get(one) != device))
        self._add([device for one, device in now.items() if was.get(one) != device])

    async def close(self) -> None:
        await asyncio.gather(*(self._remove(one) for one in list(self._own)))

    def _add(self, devices: Iterable[DevicePlan]) -> None:
        for device in devices:
            keeper = self._own[device.segment] = self._keepers[device.segment] = self._keeper(device)
            keeper.start()

    def _keeper(self, device: DevicePlan) -> Keeper:
        from interlock.devices.device_keeper import DeviceKeeper  # its libraries are an extra

        members = BESIDE if self._current.plan.devices.mode == "on_behalf" else None
        parts, tell = self._connector_parts, self.standings.publish
        return DeviceKeeper(
            device, parts, self._connections, self._stock, self._link_events, tell, self._tell_lost, members
        )

    def _tell_lost(self, link: "DeviceLink") -> None:
        """AX-13.1-1. Of a device that has a registration of its own at the parents, they tell themselves."""
        if self._current.plan.devices.mode != "on_behalf":
            since = rfc3339(self._connector_parts.clock.wall())
            self._audience.notice(lost_notice(link.segment, link.device.loss, since, str(uuid.uuid4())))

    async def _stock(self, link: Link, listing: Listing | None) -> None:
        if listing is None:
            self._catalog.drop(link)
        else:
            await self._catalog.stock(link, listing)

    async def _remove(self, segment: str) -> None:
        """Its tools leave the lists first, so that no client calls what is going away."""
        keeper = self._own.pop(segment, None)
        if keeper is None:
            return
        self._catalog.drop(keeper.link)
        await keeper.stop()
        if self._keepers.get(segment) is keeper:
            del self._keepers[segment]
