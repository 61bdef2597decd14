"""The devices of a node: a keeper for each description, changes of descriptions, and registration at the parents.

`Devices` starts a keeper for every file in `.devices` and follows changes of the configuration: a device whose
description is unchanged is not touched. With `devices.mode = "on_behalf"`, `OnBehalf` registers each present device at
the parents of this node under a segment of its own, so that parents see devices as direct children (MCP-AX B.3). The
tools of such a device are then hidden from the node's own registration at its parents.
"""

import asyncio
import uuid
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from interlock.ax.parents.service import DEVICE_MARK, PARENT, own_key
from interlock.ax.parts import AxParts
from interlock.ax.protocol.notifications import lost_notice
from interlock.config.plan import DevicePlan, Plan
from interlock.core.background import BackgroundTasks
from interlock.core.clock import rfc3339
from interlock.core.feed import Feed
from interlock.core.link_state import USABLE, LinkState
from interlock.core.part import Part
from interlock.devices.transports.transport import SharedConnections
from interlock.links.keeper import Keeper
from interlock.links.link import Link
from interlock.links.listing import Listing
from interlock.node.capability_parts import CapabilityParts, NodeParts, Stage
from interlock.node.reload import ReloadStep, ReloadSteps
from interlock.wire.refusal import Refusal

if TYPE_CHECKING:
    from interlock.devices.device_link import DeviceLink
    from interlock.devices.device_uplink import DeviceUplink


class _DevicesHidden:
    """An access rule for nodes whose devices register separately: the node's own registration with a parent does not
    offer the devices. All other principals see them.

    It is used if each device has its own registration. A parent would otherwise list each tool twice: under the device
    and under the gateway.
    """

    name = "devices"

    def admits(self, principal: str) -> bool:
        return not principal.startswith(PARENT) or DEVICE_MARK in principal

    def find_refusal(self, principal: str) -> Refusal | None:
        return None


class Devices:
    """The keepers of all described devices. They follow changes of the configuration."""

    def __init__(self, node: NodeParts) -> None:
        self._current = node.stores.current
        self._calls = node.calls
        self._connector_parts = node.links.connector_parts
        self._connections = SharedConnections()
        self._own: dict[str, Keeper] = {}
        self.standings = Feed[Link]()  # a link that stands otherwise than before

    async def open(self) -> None:
        self._add(self._current.plan.devices.described)

    async def take(self, old: Plan, new: Plan) -> None:
        """Apply a changed configuration: stop devices that were removed or changed, and start those that are new or
        changed. Other devices are not touched.
        """
        was = {device.segment: device for device in old.devices.described}
        now = {device.segment: device for device in new.devices.described}
        await asyncio.gather(*(self._remove(segment) for segment, device in was.items() if now.get(segment) != device))
        self._add([device for segment, device in now.items() if was.get(segment) != device])

    async def close(self) -> None:
        await asyncio.gather(*(self._remove(segment) for segment in list(self._own)))

    def _add(self, devices: Iterable[DevicePlan]) -> None:
        members = _DevicesHidden() if self._current.plan.devices.mode == "on_behalf" else None
        for device in devices:
            # Imported when there is a device: a node without devices does not load what they need.
            from interlock.devices.device_link import DeviceKeeper

            events = self._calls.link_events
            keeper = DeviceKeeper(device, self._connector_parts, self._connections, self._stock, events, members)
            keeper.standings.subscribe(self.standings.publish)
            keeper.losses.subscribe(self._tell_lost)
            self._own[device.segment] = self._calls.keepers[device.segment] = keeper
            keeper.start()

    def _tell_lost(self, link: "DeviceLink") -> None:
        """Notify clients and parents (the aggregators above this node) that a device is lost (AX-13.1-1).

        Devices with their own registration are not reported to the parents, which notice that the connection has ended.
        """
        if self._current.plan.devices.mode != "on_behalf":
            # AX-13.1-1: since is the time of the loss
            since = rfc3339(self._connector_parts.clock.wall())
            self._calls.audience.notice(lost_notice(link.segment, link.device.loss, since, str(uuid.uuid4())))

    async def _stock(self, link: Link, listing: Listing | None) -> None:
        if listing is None:
            self._calls.catalog.drop(link)
        else:
            await self._calls.catalog.stock(link, listing)

    async def _remove(self, segment: str) -> None:
        """Remove a device. Its tools are removed from the lists first, so that no client calls a device that is being
        stopped.
        """
        if (keeper := self._own.pop(segment, None)) is None:
            return
        self._calls.catalog.drop(keeper.link)
        await keeper.stop()
        if self._calls.keepers.get(segment) is keeper:
            del self._calls.keepers[segment]


class OnBehalf:
    """Registrations of the devices with the parents of this node, which are aggregators. Each device has its own
    registration (AX-B.3-2, AX-B.4-5).

    While a device is present, a separate connection registers it with the gateway's credential and authority and sends
    its heartbeats. When the device is lost, the connection is closed without a farewell message. The parent then marks
    the device as degraded, but not the gateway. Calls of the parent pass this node's guard like those of all clients.
    """

    def __init__(self, node: NodeParts, devices: Devices) -> None:
        self._current = node.stores.current
        self._own_id = node.stores.identity.aggregator_id
        self._fronts = node.fronts.legacy, node.fronts.modern, node.calls.audience
        self._clock = node.stores.clock
        self._uplinks: dict[str, tuple[DeviceUplink, asyncio.Task[None]]] = {}
        self._links: dict[str, Link] = {}
        self._tasks = BackgroundTasks()  # also of those that are closing their connections
        devices.standings.subscribe(self._on_standing)

    async def open(self) -> None:
        """Do nothing: a device is registered when it becomes present."""

    async def close(self) -> None:
        for segment in list(self._uplinks):
            self._leave(segment)
        await self._tasks.close()

    def replan(self) -> None:
        """Register all present devices again, because the configured parents have changed."""
        for segment in list(self._uplinks):
            self._leave(segment)
        for link in list(self._links.values()):
            self._on_standing(link)

    def _on_standing(self, link: Link) -> None:
        self._links[link.segment] = link
        if link.standing.state is LinkState.STOPPED:
            del self._links[link.segment]
        plan = self._current.plan
        is_wanted = plan.devices.mode == "on_behalf" and bool(plan.ax.parents) and link.standing.state in USABLE
        if is_wanted and link.segment not in self._uplinks:
            # Imported here, so that a node without parents does not load them.
            from interlock.devices.device_uplink import DeviceUplink

            uplink = DeviceUplink(plan, link, self._own_id, self._fronts, self._clock, own_key(plan))
            task = self._tasks.begin(uplink.run(), name=f"registration of {link.segment}")
            self._uplinks[link.segment] = (uplink, task)
        elif not is_wanted:
            self._leave(link.segment)

    def _leave(self, segment: str) -> None:
        if (entry := self._uplinks.pop(segment, None)) is not None:
            uplink, task = entry
            task.cancel()
            uplink.leave_tenant()


class DeviceParts(CapabilityParts):
    """The parts of the node that serve devices: their links, and their registration at the parents."""

    def __init__(self, node: NodeParts) -> None:
        self.devices = Devices(node)
        self.on_behalf = OnBehalf(node, self.devices)
        node.get(AxParts).parents_changed.subscribe(lambda _: self.on_behalf.replan())

    def stages(self) -> Mapping[Stage, tuple[Part, ...]]:
        return {Stage.SERVERS: (self.on_behalf, self.devices)}

    def reload_steps(self, steps: ReloadSteps) -> Mapping[str, ReloadStep]:
        async def take_devices(old: Plan, new: Plan) -> None:
            steps.take_segments(new)
            await self.devices.take(old, new)

        return {"devices.described": take_devices}
