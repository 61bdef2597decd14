"""Expired logins to a driver's server, stored between two runs of the node (AIP-30.auth-2).

State is per driver, workspace and user; the user is empty for a process that all share. An expired login is over when
one of the driver's secrets is another than it was, or an operator starts the server anew.
"""

import asyncio
import hashlib
import logging
from collections.abc import Callable, Iterable
from typing import Final

import msgspec

from interlock.config.plan import DriversPlan
from interlock.core.clock import Clock
from interlock.drivers.install.installation import CommandRunner, Installed
from interlock.drivers.protocol.model import Driver, HealthCheck, HttpProbe, Refresh
from interlock.drivers.provider.health import exec_health, http_health
from interlock.drivers.secrets.vault import Vault
from interlock.store.ports import KeyValue, StoreError

# The login refresh: does what auth.refresh says before a call, once `every` has passed (AIP-30.auth-1).
#
# One refresh at a time, for all calls that wait for it. One that fails is told to the operator, and the call goes on:
# its login may still hold, and if not the server says so.

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
        """Prepare to refresh a driver's login. `running`: returns the runner of the driver's programs."""
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


log = logging.getLogger("interlock.drivers")

BUCKET: Final = "driver-logins"


class _LoginRecord(msgspec.Struct, frozen=True, kw_only=True):
    reason: str
    secrets: dict[str, int | None]  # slug -> the revision that was refused


class Logins:
    def __init__(self, kv: KeyValue, vault: Vault, driver: Driver, slugs: Iterable[str]) -> None:
        self._kv = kv
        self._vault = vault
        self._driver = driver
        self._slugs = sorted(slugs)
        self._expired: dict[str | None, str] = {}  # who -> why
        self._known: set[str | None] = set()

    def maybe_expired(self, who: str | None) -> str | None:
        return self._expired.get(who)

    async def load(self, who: str | None) -> str | None:
        """Return why the login is expired, or None if it is not or nothing is stored. Raises StoreError."""
        if who in self._known:
            return self._expired.get(who)
        entry = await self._kv.get(BUCKET, self._key(who), self._vault.clock.wall())
        self._known.add(who)
        try:
            record = None if entry is None else msgspec.json.decode(entry.value, type=_LoginRecord)
        except msgspec.DecodeError:
            return None
        if record is not None and record.secrets == await self._revisions():
            self._expired[who] = record.reason
        return self._expired.get(who)

    def expire(self, who: str | None, reason: str) -> None:
        self._known.add(who)
        self._expired[who] = reason

    async def keep(self, who: str | None) -> None:
        """Store the login as it is now."""
        reason = self._expired.get(who)
        try:
            if reason is None:
                await self._kv.delete(BUCKET, self._key(who))
                return
            record = msgspec.json.encode(_LoginRecord(reason=reason, secrets=await self._revisions()))
            await self._kv.put(BUCKET, self._key(who), record, self._vault.clock.wall())
        except StoreError as error:
            log.warning("the login of %s could not be remembered: %s", self._driver.segment, error)

    def renew(self, who: str | None) -> bool:
        """Mark the login as valid. Returns whether it was expired."""
        self._known.add(who)
        return self._expired.pop(who, None) is not None

    @property
    def expired(self) -> tuple[str | None, ...]:
        return tuple(self._expired)

    async def _revisions(self) -> dict[str, int | None]:
        now = self._vault.clock.wall()
        return {slug: await self._vault.store.find_revision("secret", slug, now) for slug in self._slugs}

    def _key(self, who: str | None) -> str:
        named = "\0".join((self._driver.id, self._vault.workspace, who or ""))
        return hashlib.sha256(named.encode("utf-8", "surrogateescape")).hexdigest()
