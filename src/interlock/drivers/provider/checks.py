"""Checks of a driver's server: its tools against the contracts, its health, and the refresh of its login.

`check` compares the lists of a server with the contracts that its driver binds, and decides which hold. It has no side
effects, but how long it takes depends on the server's schemas, so the provider runs it in a thread. If a server lacks a
bound tool, or has one that does not fit, the driver becomes rejected. With the setting drivers.on_mismatch =
"drop_binding" it becomes partial instead and keeps its other bindings, if there are any.

`Snapshots` store the inputs and the result of a driver's last check, so that a lazy start needs no process. They
contain only digests: a tool definition is never served from a snapshot (MCP-AX 13.1).

A health check is a ping over the link, a command (`exec`) or an HTTP request (`http`), as the driver file configures it
(AIP-30.health-1, auth-1). Its outcome is None if the server is healthy, otherwise a readable reason. `HealthSchedule`
repeats the check and remembers when it last passed and failed. The provider updates its state after each outcome, and
the resolver decides how long an outcome is valid. A sleeping server is not woken for a check. An http check may connect
only to hosts that the driver is allowed to reach. It uses encryption unless the host is this machine or one that the
operator listed.
"""

import asyncio
import logging
import ssl
from collections.abc import Awaitable, Collection, Iterable, Iterator, Mapping
from hashlib import sha256
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal
from urllib.parse import urlsplit

import msgspec

from interlock.config.problems import nearest
from interlock.core.background import BackgroundTasks
from interlock.core.clock import Clock
from interlock.drivers.driver_state import DriverState
from interlock.drivers.install import installation
from interlock.drivers.install.installation import Installed
from interlock.drivers.kinds import kind_of
from interlock.drivers.protocol.binding.match import Bound, HookEntry, match
from interlock.drivers.protocol.model import Contract, Driver, HealthCheck, HttpProbe
from interlock.drivers.protocol.problems import FileProblem
from interlock.drivers.provider.keeper import DriverKeeper
from interlock.drivers.workspace.declaration import read_record
from interlock.links.connected_link import MODERN_META, ServerLink
from interlock.links.link import ServerFacts
from interlock.links.listing import Listing
from interlock.links.server_messages import LostRefusal
from interlock.mcp.methods import DISCOVER, PING
from interlock.mcp.modern_requests import modern_head
from interlock.net.fetch import DocumentSink, FetchedAnswer, FetchFailed
from interlock.net.http.client import HttpClient
from interlock.net.http.connection import Headers
from interlock.net.protocol.address_scope import Scope, is_loopback, scope_of
from interlock.net.protocol.egress import Permit, names_this_machine, permits, port_of
from interlock.store.ports import KeyValue, StoreError
from interlock.wire.jsonrpc.codec import decode_value
from interlock.wire.refusal import Refusal

if TYPE_CHECKING:
    from interlock.drivers.provider.provider import DriverProvider


log = logging.getLogger("interlock.drivers")

BUCKET: Final = "driver_snapshots"


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """Stored result of comparing a server with its contracts, and a digest of what was compared."""

    about: str  # the driver's folder, its contracts and what was installed
    protocol: str
    tools: dict[str, str]  # contract id -> digest of the tool's definition


def about(folder: str, installed: Installed | None, contracts: Iterable[Contract]) -> str:
    """Return a digest of everything on which the result of comparing a server with its contracts depends."""
    package = "" if installed is None else f"{installed.version} {installed.lock.integrity}"
    return sha256(msgspec.json.encode([folder, package, list(contracts)])).hexdigest()


class Snapshots:
    """Storage of the last result of comparing one driver's server with its contracts."""

    def __init__(self, kv: KeyValue, clock: Clock, key: str) -> None:
        self._kv = kv
        self._clock = clock
        self._key = key
        self._last: Snapshot | None = None

    async def find(self, wanted: str) -> Snapshot | None:
        """Return the stored result, or None if there is none or its digest is not `wanted`. `wanted` is the digest of
        what would be compared now.

        Raise StoreError if the store cannot be read.
        """
        entry = await self._kv.get(BUCKET, self._key, self._clock.wall())
        self._last = snapshot = None if entry is None else read_record(entry.value, Snapshot)
        return snapshot if snapshot is not None and snapshot.about == wanted else None

    async def keep(self, snapshot: Snapshot) -> None:
        if snapshot == self._last:
            return
        self._last = snapshot
        try:
            await self._kv.put(BUCKET, self._key, msgspec.json.encode(snapshot), self._clock.wall())
        except StoreError as error:
            log.warning("what %s was found to offer could not be kept: %s", self._key, error)


MISSING: Final = "mcp_tool_missing"
CHANGED: Final = "definition_changed"

OnMismatch = Literal["reject", "drop_binding"]


class ContractVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """Result of comparing a server with its contracts: the new state of the driver, the bindings that fit, and all
    problems.
    """

    state: DriverState
    bound: Mapping[str, Bound]  # by the contract's id
    problems: tuple[FileProblem, ...] = ()

    @property
    def reason(self) -> str | None:
        return next((problem.message for problem in self.problems if problem.severity == "error"), None)

    @property
    def code(self) -> str | None:
        return next((problem.code for problem in self.problems if problem.severity == "error"), None)


def check(
    driver: Driver,
    contracts: Mapping[int, Contract],
    listing: Listing,
    on_mismatch: OnMismatch,
    earlier: Mapping[str, Bound],
    entry: HookEntry | None = None,
) -> ContractVerdict:
    """Compare the tools that a server lists with the contracts that its driver binds to them.

    `contracts` maps the index of each binding to its contract. `earlier` holds the bindings of the previous check: if a
    tool definition has changed since then but still fits, this is only reported as a note (AIP-tools-10). `entry`
    describes the driver's driver.py, or is None if the driver has none.
    """
    raws = {name: raw for (name, _), raw in zip(listing.tools.items, listing.tools.raws, strict=True)}
    bound: dict[str, Bound] = {}
    problems: list[FileProblem] = []
    for binding in driver.implements:
        contract = contracts[binding.index]
        pointer = f"{binding.pointer}/metadata/mcp/tool_name"
        raw = raws.get(binding.tool_name)
        if raw is None:  # AIP-tools-1
            similar = nearest(binding.tool_name, raws)
            names = ", ".join(sorted(raws)[:20]) or "none"
            hint = f"did you mean {similar}?" if similar is not None else f"it lists {names}"
            message = f"the server lists no tool {binding.tool_name}"
            problems.append(driver.places.problem(pointer, MISSING, message, hint))
            continue
        outcome = match(driver, binding, contract, decode_value(raw), entry=entry)
        if isinstance(outcome, tuple):  # AIP-tools-2 and -3
            problems += outcome
            continue
        bound[contract.id] = outcome
        problems += outcome.warnings
        before = earlier.get(contract.id)
        if before is not None and before.tool_digest != outcome.tool_digest:
            message = f"the server's definition of {binding.tool_name} has changed and still fits its contract"
            hint = "nothing needs to be done"
            problems.append(driver.places.problem(pointer, CHANGED, message, hint, severity="note"))
    problems.sort(key=lambda problem: ("error", "warning", "note").index(problem.severity))
    if all(problem.severity != "error" for problem in problems):
        return ContractVerdict(state=DriverState.READY, bound=bound, problems=tuple(problems))
    if on_mismatch == "drop_binding" and bound:  # AIP-tools-9
        return ContractVerdict(state=DriverState.PARTIAL, bound=bound, problems=tuple(problems))
    return ContractVerdict(state=DriverState.REJECTED, bound={}, problems=tuple(problems))  # AIP-tools-3, AIP-tools-9


def greeting_warnings(driver: Driver, facts: ServerFacts, transport: str) -> Iterator[FileProblem]:
    """Yield warnings if the server's MCP version or transport is not what its driver declares. Neither prevents its
    use.
    """
    target = driver.protocol_version
    if target is not None and facts.version < target:  # AIP-proto-3
        message = f"the server speaks MCP {facts.version}, older than the {target} it is declared for"
        hint = f"write protocol_version: {facts.version}, or update the server"
        yield driver.places.problem("/protocol_version", "protocol_below_target", message, hint, severity="warning")
    if transport != driver.transport:  # AIP-transport-10
        message = f"the server refuses {driver.transport} and speaks {transport}"
        hint = f"write transport: {transport}"
        yield driver.places.problem("/transport", "transport_mismatch", message, hint, severity="warning")


BODY_BYTES_MAX: Final = 1024 * 1024  # of a response; the body is discarded
_OK_MIN, _OK_MAX = 200, 299  # where expect_status is not written


async def exec_health(
    driver: Driver, check: HealthCheck, installed: installation.Installed, running: installation.CommandRunner
) -> str | None:
    """Run the command of a health check. Return None if the server is healthy, otherwise the reason why it is not."""
    try:
        words = kind_of(driver.server).resolve_program(driver.server, installation.words_of(check.cmd or ""), installed)
        ran = await installation.run_command(words, check.timeout_ms, running)
    except installation.CommandFailed as error:
        return f"the health check {error}"
    if ran.returncode != check.expect_exit:
        return f"the health check {ran.reason}, not with {check.expect_exit}"
    return None


async def http_health(
    driver: Driver, check: HealthCheck, *, insecure_hosts: Collection[str] = (), ca_file: Path | None = None
) -> str | None:
    """Send the request of a health check. Return None if the server is healthy, otherwise the reason why it is not.

    Hosts in `insecure_hosts` may be reached without encryption. `ca_file` replaces the system's certificate
    authorities.
    """
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
    own_address = driver.server.address
    # The server's own address needs no entry if there is no egress list (AIP-security-4).
    is_own = driver.network is None and own_address is not None and urlsplit(own_address).hostname == host
    if not is_own:
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
        status = (await answer.answered).status
    except FetchFailed as failed:
        return f"the health check failed: {failed}"
    finally:
        await client.close()
    expected = status == probe.expect_status if probe.expect_status else _OK_MIN <= status <= _OK_MAX
    return None if expected else f"the health check was answered with HTTP status {status}"


class _StatusSink(DocumentSink):
    """Receiver of an HTTP response that needs only the status. Unlike its base class, it accepts an event stream as
    well.
    """

    def on_stream(self, status: int, headers: Headers) -> None:
        self._end(FetchedAnswer(status, b""))


EVERY_LEAST_S: Final = 1.0
REFRESH_MS: Final = 30_000


class HealthSchedule:
    """Health checks of one driver's server, at intervals and whenever a call needs to know whether the server works.

    It also refreshes the driver's login (AIP-30.auth-1). A call waits for that when more time than `every` in
    auth.refresh has passed.
    """

    def __init__(self, provider: "DriverProvider") -> None:
        """Prepare the health checks. Each result is passed to `provider.on_health`."""
        self.passed_at: float | None = None  # in the time of the clock
        self.failed_at: float | None = None
        self.driver = driver = provider.driver
        self.clock: Clock = provider.environment.connector_parts.clock
        self._provider = provider
        self._server: tuple[installation.Installed, DriverKeeper] | None = None  # once it is installed
        self._checking = BackgroundTasks()
        self._login = driver.auth.refresh if driver.auth is not None else None
        self._login_every_s = inf if self._login is None else self._login.every_s or inf
        self._login_refreshed_at = inf  # no login is due before the server is installed
        self._refreshing = asyncio.Lock()

    def attach(self, installed: installation.Installed, keeper: DriverKeeper) -> None:
        """Store the installed server and the keeper of its process, which health checks need. The time until the next
        refresh of the login begins now.
        """
        self._server = installed, keeper
        self._login_refreshed_at = self.clock.now()

    def start(self) -> None:
        check = self.driver.health_check
        if check is not None and check.method != "noop" and check.every_s is not None and not self._checking:
            self._checking.begin(self._check_regularly(check.every_s), f"health of driver {self.driver.key}")

    async def stop(self) -> None:
        await self._checking.close()

    async def check(self) -> str | None:
        """Check the server now. Return why it does not work. Return None if it works or cannot be checked."""
        check = self.driver.health_check
        probing = None if check is None else self.probe(check)
        if probing is None:
            return None
        reason = await probing
        if reason is None:
            self.passed_at = self.clock.now()
        else:
            self.failed_at = self.clock.now()
        self._provider.on_health(reason)
        return reason

    async def _check_regularly(self, every_s: float) -> None:
        while True:
            await asyncio.sleep(max(EVERY_LEAST_S, every_s))
            await self.check()

    def probe(self, check: HealthCheck) -> Awaitable[str | None] | None:
        """Return an awaitable that carries out a health check. Its result says why the check failed, or is None if it
        passed.

        Return None if there is nothing to check, for example when a ping would wake a sleeping server.
        """
        if self._server is None:
            return None
        installed, keeper = self._server
        environment = self._provider.environment
        match check.method:
            case "ping":
                return self._ping(keeper.link, check) if keeper.is_usable else None
            case "exec":
                runner = installation.runner_for(keeper.link.plan, environment.connector_parts)
                return exec_health(self.driver, check, installed, runner)
            case "http":
                hosts, ca_file = environment.plan.insecure_hosts, environment.plan.ca_file
                return http_health(self.driver, check, insecure_hosts=hosts, ca_file=ca_file)
            case "noop":
                return None

    async def _ping(self, link: ServerLink, check: HealthCheck) -> str | None:
        """Send a ping to the server. Return None if it answered, otherwise the reason for the failure.

        MCP 2026-07-28 has no ping, so a server of that version gets a discover request instead.
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

    @property
    def is_login_due(self) -> bool:
        """Return whether the login has to be refreshed now, because the interval that the driver sets has passed since
        the last refresh.
        """
        is_repeated = self._login_every_s < inf
        return is_repeated and self.clock.now() - self._login_refreshed_at >= self._login_every_s

    async def refresh_login(self) -> None:
        """Refresh the login of the server if that is due, with the command or the request that the driver names.

        All waiting calls share one refresh. If it fails, the failure is logged for the operator and the calls continue,
        because the login may still be valid. If it is not, the server's response shows that.
        """
        async with self._refreshing:
            login = self._login
            if login is None or not self.is_login_due:
                return
            check = HealthCheck(method="noop")
            if login.cmd is not None:
                check = HealthCheck(method="exec", cmd=login.cmd, timeout_ms=REFRESH_MS)
            elif login.url is not None:
                probe = HttpProbe(method="GET", url=login.url)
                check = HealthCheck(method="http", http=probe, timeout_ms=REFRESH_MS)
            probing = self.probe(check)
            reason = None if probing is None else await probing
            self._login_refreshed_at = self.clock.now()
            if reason is not None:
                log.warning("driver %s: its login could not be refreshed: %s", self.driver.segment, reason)
