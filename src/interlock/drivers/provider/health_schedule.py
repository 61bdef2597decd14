"""The health schedule: checks one driver's server regularly, as its health_check says (AIP-30.health-1).

In: the driver, and its process as it runs. Out: None where it is healthy, else a reason for people; and when it last
was and was not. A server that sleeps is not woken to be asked.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from interlock.config.plan import DriversPlan, Spawn
from interlock.core.clock import Clock
from interlock.drivers.install.commands import CommandRunner, plain_runner, sandboxed_runner
from interlock.drivers.install.installation import Installed
from interlock.drivers.protocol.model import Driver, HealthCheck
from interlock.drivers.provider.health_probe import exec_health, http_health
from interlock.drivers.provider.keeper import DriverKeeper
from interlock.links.connected_link import ServerLink
from interlock.links.connector import ConnectorParts
from interlock.links.handshake import MODERN_META, modern_head
from interlock.links.link_requests import LostRefusal
from interlock.mcp.methods import DISCOVER, PING
from interlock.wire.refusal import Refusal

EVERY_LEAST_S: Final = 1.0


class HealthSchedule:
    def __init__(
        self,
        driver: Driver,
        installed: Installed,
        keeper: DriverKeeper,
        *,
        plan: DriversPlan,
        connector_parts: ConnectorParts,
        on_outcome: Callable[[str | None], None],
    ) -> None:
        self.passed_at: float | None = None  # in the clock's own time
        self.failed_at: float | None = None
        self._driver = driver
        self._installed = installed
        self._keeper = keeper
        self._plan = plan
        self._connector_parts = connector_parts
        self._clock: Clock = connector_parts.clock
        self._on_outcome = on_outcome
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        check = self._driver.health_check
        if check is not None and check.method != "noop" and check.every_s is not None and self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._look_often(check.every_s))

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait((self._task,))

    async def look(self) -> str | None:
        """Check now. None: the server is healthy, or there is nothing to ask."""
        check = self._driver.health_check
        asking = None if check is None else self._start_probe(check)
        if asking is None:
            return None
        reason = await asking
        if reason is None:
            self.passed_at = self._clock.now()
        else:
            self.failed_at = self._clock.now()
        self._on_outcome(reason)
        return reason

    async def _look_often(self, every_s: float) -> None:
        while True:
            await asyncio.sleep(max(EVERY_LEAST_S, every_s))
            await self.look()

    def _start_probe(self, check: HealthCheck) -> Awaitable[str | None] | None:
        match check.method:
            case "ping":
                return self._ping(self._keeper.link, check) if self._keeper.is_usable else None
            case "exec":
                return exec_health(self._driver, check, self._installed, self.running())
            case "http":
                hosts, ca_file = self._plan.insecure_hosts, self._plan.ca_file
                return http_health(self._driver, check, insecure_hosts=hosts, ca_file=ca_file)
            case "noop":
                return None

    async def _ping(self, link: ServerLink, check: HealthCheck) -> str | None:
        """2026-07-28 has no ping."""
        if link.modern:
            inquiry = link.ask(DISCOVER, {"_meta": MODERN_META}, modern_head(DISCOVER))
        else:
            inquiry = link.ask(PING, {})
        try:
            reply = await asyncio.wait_for(inquiry.future, check.timeout_ms / 1000)
        except TimeoutError:
            link.cancel(inquiry, "timeout")
            return f"the health check was not answered within {check.timeout_ms} ms"
        if isinstance(reply, LostRefusal):
            return f"the health check was not answered: {reply.detail}"
        if isinstance(reply, Refusal) or reply.error:
            return "the health check was refused"
        return None

    def running(self) -> CommandRunner:
        """The runner of the driver's own programs."""
        reach, connector_parts = self._keeper.link.plan.reach, self._connector_parts
        if isinstance(reach, Spawn) and reach.sandbox is not None:
            segment = self._keeper.link.segment
            return sandboxed_runner(
                connector_parts.sandboxes, segment, reach.sandbox, clock=self._clock, reaper=connector_parts.reaper
            )
        return plain_runner(connector_parts.reaper)
