"""The login refresh: does what auth.refresh says before a call, once `every` has passed (AIP-30.auth-1).

One refresh at a time, for all calls that wait for it. One that fails is told to the operator, and the call goes on: its
login may still hold, and if not the server says so.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from interlock.config.plan import DriversPlan
from interlock.core.clock import Clock
from interlock.drivers.install.commands import CommandRunner
from interlock.drivers.install.installation import Installed
from interlock.drivers.protocol.model import Driver, HealthCheck, HttpProbe, Refresh
from interlock.drivers.provider.health_probe import exec_health, http_health

log = logging.getLogger("interlock.drivers")

REFRESH_MS: Final = 30_000


class LoginRefresh:
    def __init__(
        self,
        driver: Driver,
        refresh: Refresh,
        every_s: float,
        installed: Installed,
        *,
        plan: DriversPlan,
        clock: Clock,
        running: Callable[[], CommandRunner],
    ) -> None:
        """`running`: where the driver's own programs run."""
        self._driver = driver
        self._refresh = refresh
        self._every_s = every_s
        self._installed = installed
        self._plan = plan
        self._clock = clock
        self._running = running
        self._at = clock.now()
        self._lock = asyncio.Lock()

    @property
    def is_due(self) -> bool:
        return self._clock.now() - self._at >= self._every_s

    async def refresh(self) -> None:
        async with self._lock:
            if not self.is_due:
                return
            reason = await self._refresh_result()
            self._at = self._clock.now()
            if reason is not None:
                log.warning("driver %s: its login could not be refreshed: %s", self._driver.segment, reason)

    async def _refresh_result(self) -> str | None:
        refresh, driver = self._refresh, self._driver
        if refresh.cmd is not None:
            check = HealthCheck(method="exec", cmd=refresh.cmd, timeout_ms=REFRESH_MS)
            return await exec_health(driver, check, self._installed, self._running())
        if refresh.url is not None:
            probe = HttpProbe(method="GET", url=refresh.url)
            check = HealthCheck(method="http", http=probe, timeout_ms=REFRESH_MS)
            hosts, ca_file = self._plan.insecure_hosts, self._plan.ca_file
            return await http_health(driver, check, insecure_hosts=hosts, ca_file=ca_file)
        return None


def maybe_refreshing(
    driver: Driver,
    installed: Installed,
    *,
    plan: DriversPlan,
    clock: Clock,
    running: Callable[[], CommandRunner],
) -> LoginRefresh | None:
    refresh = driver.auth.refresh if driver.auth is not None else None
    if refresh is None or refresh.every_s is None:
        return None
    return LoginRefresh(driver, refresh, refresh.every_s, installed, plan=plan, clock=clock, running=running)
