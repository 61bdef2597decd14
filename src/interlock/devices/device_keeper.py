"""The keeper of a device's link: it follows the session, which polls the device and opens its transport again."""

import logging
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Any, Final

from msgspec import Raw

from interlock.config.plan import DevicePlan
from interlock.core.calls.call import Members
from interlock.core.link_state import LinkState
from interlock.devices.device_link import DeviceLink
from interlock.devices.session import DeviceSession
from interlock.devices.transports.connections import Connections
from interlock.links.connector import ConnectFailed, ConnectorParts
from interlock.links.keeper import Keeper, StockCatalog
from interlock.links.link import Link
from interlock.links.link_events import LinkEvents
from interlock.links.listing import Items, ListFailed, read_definitions
from interlock.mcp.methods import TOOLS_LIST
from interlock.wire.jsonrpc.codec import encode_value

log = logging.getLogger("interlock.devices")

PRESENT_S: Final = 3.0  # for the first sign of life, before the device is reported absent
LOOK_AGAIN_S: Final = 30.0  # the session wakes the keeper sooner; this only ends the grace of its tools


class DeviceKeeper(Keeper):
    """Keeps the link of a device: usable while its session finds the device, degraded while it does not."""

    link: DeviceLink
    reads = (TOOLS_LIST,)
    is_reread = False

    def __init__(
        self,
        plan: DevicePlan,
        connector_parts: ConnectorParts,
        connections: Connections,
        stock: StockCatalog,
        events: LinkEvents,
        tell: Callable[[DeviceLink], None],
        lost: Callable[[DeviceLink], None],
        members: Members | None = None,
    ) -> None:
        """`tell` is called when the state of the link changes, `lost` when a present device becomes absent."""
        self._tell = tell
        self._lost = lost
        clock, revealer = connector_parts.clock, connector_parts.revealer
        self.session = DeviceSession(plan.segment, plan.description, clock, self, connections, revealer)
        super().__init__(lambda keeper: DeviceLink(plan, keeper, clock, self.session, members), clock, stock, events)

    @property
    def may_return_soon(self) -> bool:
        return False

    def start(self) -> None:
        if self.link.fault is None:
            self.session.open()
        super().start()

    async def stop(self) -> None:
        await super().stop()
        await self.session.close()

    async def restart(self) -> None:
        """Close the transport and open it again."""
        if self.link.fault is None:
            self.session.reopen()

    async def _open_connection(self, start: AsyncExitStack) -> None:
        """Wait until the session has found the device. There is nothing to launch or to dial."""
        if self.link.fault is not None:
            raise ConnectFailed(self.link.fault)
        if not await self.session.present_within(PRESENT_S):
            raise ConnectFailed(self.session.reason or "it does not answer")
        self.link.arrive()

    async def _close_connection(self, reason: str) -> None:
        self.link.fail_all(reason)

    async def _read(self, method: str) -> tuple[Items | None, ListFailed | None]:
        """Return the tools that the session knows. Nothing is asked of the device."""
        known = self.listing.tools if self.listing is not None else None
        return read_definitions(method, (tool.item for tool in self.session.tools.values()), known), None

    def _backoff_s(self) -> float:
        return LOOK_AGAIN_S

    def _stand_lost(self, reason: str, wait_s: float, *, unauthorised: bool) -> None:
        """Report a loss once, although the session looks for the device all the time."""
        state = LinkState.FAILED if self.listing is None else LinkState.DEGRADED
        is_news = self.link.standing.state is not state
        if is_news:
            log.warning("device %s: %s", self.link.segment, reason)
        self.link.stand(state, reason)
        if is_news and state is LinkState.DEGRADED:
            self._lost(self.link)

    def on_standing(self, link: Link) -> None:
        super().on_standing(link)
        self._tell(self.link)

    # What the session says (SessionOwner)

    def on_present(self) -> None:
        self._wake.set()

    def on_absent(self, reason: str) -> None:
        if self._usable.is_set():
            self.lose(reason)

    def on_tools(self) -> None:
        if self._usable.is_set():
            self.announce("tools")

    def on_event(self, name: str, content: dict[str, Any]) -> None:
        message = {"level": "info", "logger": self.link.segment, "data": {**content, "event": name}}
        self._events.on_log(self.link, Raw(encode_value(message)))
