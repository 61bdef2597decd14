"""The health schedule: checks one driver's server regularly, as its health_check says (AIP-30.health-1).

In: the driver, and its process as it runs. Out: None where it is healthy, else a reason for people; and when it last
was and was not. A server that sleeps is not woken to be asked.
"""

import asyncio
import ssl
from collections.abc import Awaitable, Callable, Collection
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from interlock.config.plan import DriversPlan, Spawn
from interlock.core.clock import Clock
from interlock.drivers.install.installation import (
    CommandFailed,
    CommandRunner,
    Installed,
    plain_runner,
    run_command,
    sandboxed_runner,
    words_of,
)
from interlock.drivers.kinds import kind_of
from interlock.drivers.protocol.model import Driver, HealthCheck, HttpProbe
from interlock.drivers.provider.keeper import DriverKeeper
from interlock.links.connected_link import ServerLink
from interlock.links.connector import ConnectorParts
from interlock.links.handshake import MODERN_META, modern_head
from interlock.links.link_requests import LostRefusal
from interlock.mcp.methods import DISCOVER, PING
from interlock.net.http.client import Headers, HttpClient, HttpFailure
from interlock.net.protocol.address_scope import Scope, is_loopback, scope_of
from interlock.net.protocol.egress import Permit, names_this_machine, permits, port_of
from interlock.wire.refusal import Refusal

# Health probes without an MCP connection: exec and http (AIP-30.health-1).
#
# In: the check of a driver. Out: None if it is healthy, else a reason for people. The provider decides when to ask and
# what follows. An http check goes only where the driver itself may go, encrypted unless the host is this machine or one
# the operator named.

BODY_BYTES_MAX: Final = 1024 * 1024  # it is discarded
_OK_MIN, _OK_MAX = 200, 299  # where expect_status is not written


async def exec_health(driver: Driver, check: HealthCheck, installed: Installed, running: CommandRunner) -> str | None:
    try:
        words = kind_of(driver.server).resolve_program(driver.server, words_of(check.cmd or ""), installed)
        ran = await run_command(words, check.timeout_ms, running)
    except CommandFailed as error:
        return f"the health check {error}"
    if ran.returncode != check.expect_exit:
        return f"the health check {ran.reason}, not with {check.expect_exit}"
    return None


async def http_health(
    driver: Driver, check: HealthCheck, *, insecure_hosts: Collection[str] = (), ca_file: Path | None = None
) -> str | None:
    probe = check.http
    if probe is None:
        return "the health check has no address"
    try:
        async with asyncio.timeout(check.timeout_ms / 1000):
            return await _probe(driver, probe, insecure_hosts, ca_file)
    except TimeoutError:
        return f"the health check was not answered within {check.timeout_ms} ms"
    except (ValueError, OSError) as error:
        return f"the address of the health check cannot be used: {error}"


async def _probe(driver: Driver, probe: HttpProbe, insecure_hosts: Collection[str], ca_file: Path | None) -> str | None:
    parts = urlsplit(probe.url)
    host = parts.hostname or ""
    if parts.scheme not in {"http", "https"} or not host or "@" in parts.netloc:
        return "the address of the health check is none; write https://host/path"
    if parts.scheme == "http" and not is_loopback(host) and host not in insecure_hosts:
        return f"the health check of {host} is not encrypted; write https://"
    address = None
    if not _is_own_address(driver, host):
        port = port_of(parts)
        permit = permits(host, port, driver.network.egress if driver.network is not None else ())
        if permit is None:
            return f"{host} is not in network.egress, so the health check may not ask it"
        addresses = [str(where[0]) for *_, where in await asyncio.get_running_loop().getaddrinfo(host, port)]
        nearest = max(map(scope_of, addresses))  # as the egress proxy judges it (AIP-security-3)
        if permit is not Permit.NAMED and nearest > Scope.PUBLIC:
            return f"{host} leads into a private network; name it in network.egress if it may be reached"
        if nearest is Scope.MACHINE and not names_this_machine(host):
            return f"{host} leads to this machine, which network.egress names as localhost or by address"
        address = addresses[0]
    tls = ssl.create_default_context(cafile=None if ca_file is None else str(ca_file))
    client = HttpClient(
        f"{parts.scheme}://{parts.netloc}", max_body_bytes=BODY_BYTES_MAX, tls=tls, address=address, max_connections=1
    )
    answer = _StatusSink()
    try:
        target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        client.request(probe.method.encode(), target.encode("ascii"), b"", b"", answer)
        status = await answer.status
    finally:
        await client.close()
    if isinstance(status, str):
        return f"the health check failed: {status}"
    expected = status == probe.expect_status if probe.expect_status else _OK_MIN <= status <= _OK_MAX
    return None if expected else f"the health check was answered with HTTP status {status}"


def _is_own_address(driver: Driver, host: str) -> bool:
    """Check whether `host` is the server's address, which needs no entry if there is no egress list
    (AIP-security-4).
    """
    address = driver.server.address
    return driver.network is None and address is not None and urlsplit(address).hostname == host


class _StatusSink:
    """A ResponseSink for nothing but the status."""

    def __init__(self) -> None:
        self.status: asyncio.Future[int | str] = asyncio.get_running_loop().create_future()

    def _end(self, outcome: int | str) -> None:
        if not self.status.done():
            self.status.set_result(outcome)

    def on_answer(self, status: int, headers: Headers, body: bytes) -> None:
        self._end(status)

    def on_stream(self, status: int, headers: Headers) -> None:
        self._end(status)

    def on_chunk(self, data: bytes) -> None:
        pass

    def on_stream_end(self) -> None:
        pass

    def on_fail(self, failure: HttpFailure) -> None:
        self._end(failure.detail)


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
        """Ping the server and return why that failed, or None if it answered.

        MCP 2026-07-28 has no ping, so a modern server gets a discover request instead.
        """
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
        """Return the runner of the driver's programs."""
        reach, connector_parts = self._keeper.link.plan.reach, self._connector_parts
        if isinstance(reach, Spawn) and reach.sandbox is not None:
            segment = self._keeper.link.segment
            return sandboxed_runner(
                connector_parts.sandboxes, segment, reach.sandbox, clock=self._clock, reaper=connector_parts.reaper
            )
        return plain_runner(connector_parts.reaper)
