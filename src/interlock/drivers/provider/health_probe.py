"""Health probes without an MCP connection: exec and http (AIP-30.health-1).

In: the check of a driver. Out: None if it is healthy, else a reason for people. The provider decides when to ask and
what follows. An http check goes only where the driver itself may go, encrypted unless the host is this machine or one
the operator named.
"""

import asyncio
import ssl
from collections.abc import Collection
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from interlock.drivers.install.commands import CommandFailed, CommandRunner, run_command, words_of
from interlock.drivers.install.installation import Installed
from interlock.drivers.kinds import kind_of
from interlock.drivers.protocol.model import Driver, HealthCheck, HttpProbe
from interlock.net.http.client import Failure, Headers, HttpClient
from interlock.net.protocol.address_scope import Scope, is_loopback, scope_of
from interlock.net.protocol.egress import Permit, names_this_machine, permits, port_of

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
        found = [str(where[0]) for *_, where in await asyncio.get_running_loop().getaddrinfo(host, port)]
        nearest = max(map(scope_of, found))  # as the egress proxy judges it (AIP-security-3)
        if permit is not Permit.NAMED and nearest > Scope.PUBLIC:
            return f"{host} leads into a private network; name it in network.egress if it may be reached"
        if nearest is Scope.MACHINE and not names_this_machine(host):
            return f"{host} leads to this machine, which network.egress names as localhost or by address"
        address = found[0]
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
    """The server's own address needs no entry where there is no list (AIP-security-4)."""
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

    def on_fail(self, failure: Failure) -> None:
        self._end(failure.detail)
