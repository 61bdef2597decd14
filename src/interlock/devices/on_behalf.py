"""Devices registered at the parents of this node, each for itself (AX-B.3-2, AX-B.4-5).

While a device is there, a connection of its own registers it with the gateway's credential and authority and beats for
it; when it is gone the connection ends without a farewell, so that the parent has it degraded, and not the gateway.
Calls of the parent pass this node's guard like those of all clients.
"""

import asyncio
from functools import partial
from typing import TYPE_CHECKING

from interlock.ax.parents.service import own_key
from interlock.config.plan import Plan
from interlock.core.background import BackgroundTasks
from interlock.core.clock import Clock
from interlock.core.current_plan import CurrentPlan
from interlock.core.link_state import USABLE, LinkState
from interlock.devices.devices import Devices
from interlock.fronts.audience import Audience
from interlock.fronts.legacy import LegacyFront
from interlock.fronts.modern import ModernFront
from interlock.links.link import Link

if TYPE_CHECKING:
    from interlock.devices.device_uplink import DeviceUplink


class OnBehalf:
    def __init__(
        self,
        current: CurrentPlan,
        devices: Devices,
        own_id: str,
        clock: Clock,
        legacy: LegacyFront,
        modern: ModernFront,
        audience: Audience,
    ) -> None:
        self._current = current
        self._own_id = own_id
        self._fronts = legacy, modern, audience
        self._clock = clock
        self._uplinks: dict[str, tuple[DeviceUplink, asyncio.Task[None]]] = {}
        self._links: dict[str, Link] = {}
        self._tasks = BackgroundTasks()  # also of those that are closing their connections
        devices.standings.subscribe(self._on_standing)

    async def open(self) -> None:
        """Devices come by themselves."""

    async def close(self) -> None:
        for segment in list(self._uplinks):
            self._leave(segment)
        await self._tasks.close()

    def replan(self) -> None:
        """The parents are others."""
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
            uplink = self._uplink(plan, link)
            task = self._tasks.begin(uplink.run(), name=f"registration of {link.segment}")
            self._uplinks[link.segment] = (uplink, task)
        elif not is_wanted:
            self._leave(link.segment)

    def _uplink(self, plan: Plan, link: Link) -> "DeviceUplink":
        from interlock.ax.parents.front import UpwardFront
        from interlock.devices.device_uplink import DeviceUplink  # without parents they are not imported

        make_front = partial(UpwardFront, *self._fronts)
        return DeviceUplink(plan, link, self._own_id, make_front, self._clock, own_key(plan))

    def _leave(self, segment: str) -> None:
        known = self._uplinks.pop(segment, None)
        if known is not None:
            uplink, task = known
            task.cancel()
            uplink.leave()
