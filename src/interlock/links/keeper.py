"""The life of one link: connect, list, stay, come back.

Theory of operation. A keeper makes its link and owns it. The link carries calls; the keeper has one task, `_live`, that
does everything else, so that a server that hangs or crashes in a loop costs other links nothing:

    connect -> read and publish the lists -> wait for a loss -> hang up -> back off -> again

What the others see of it is `link.standing`: CONNECTING until the first attempt ends, READY or SLOW (a list could not
be read) while it is usable, DEGRADED after a loss while what was listed stays listed, FAILED when it never listed or
was away for GRACE_S, UNAUTHORISED when it waits for another credential, ASLEEP when it was idle and is started on
demand, STOPPED at the end. Only the keeper sets it.

A subclass knows how to connect, to read a list and to hang up: `ServerKeeper` for MCP servers, `DeviceKeeper` for
devices. What the link reports for clients, the keeper passes on to the node's `LinkEvents`. When it has stopped, the
link no longer refers to it: each would otherwise keep the other until the garbage collector runs.

`ServerKeeper` reacts to what its link reports about the connection (`LinkEvents`): a lost pipe ends the wait for a
loss; a lost session is greeted again while calls are under way; a refused credential is renewed, and the calls that it
stopped are sent again; a changed list is read again. Everything the server was asked to remember (subscriptions, log
level) is repeated after each return.

A refused credential has two cases. While the server is being greeted, the keeper obtains another credential and greets
again (`_plan_retry`). While the link is in use, `Renewal` obtains it beside the other calls, one renewal at a time, and
sends each refused call once more. If no token can be obtained, the refused calls fail with an error that says what an
operator has to do.
"""

import asyncio
import logging
import random
import secrets
import weakref
from collections.abc import Awaitable, Callable, Iterable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from math import inf, isfinite
from typing import Final

import msgspec

from interlock.core.calls.call import Call, Outcome
from interlock.core.clock import Clock
from interlock.core.link_state import USABLE, LinkState
from interlock.credentials.protocol.resource import read_challenge_untrusted
from interlock.credentials.secret_references import Unobtainable
from interlock.credentials.token import Denied, TokenHolder
from interlock.drivers.protocol.server_name import settings_place
from interlock.links.connected_link import ConnectedLink
from interlock.links.connector import PROBE_S, ConnectFailed, Connector, ConnectorParts, Loss
from interlock.links.link import Link, LinkEvents, PassedOnEvents
from interlock.links.listing import FIELD, LIST_S, Items, ListFailed, Listing, read_list
from interlock.links.pipes import HttpPipe, Pipe, Undelivered
from interlock.links.server_messages import LostRefusal
from interlock.links.subscriptions import LogLevel, Subscriptions, TaskListening
from interlock.mcp.meta import has
from interlock.mcp.methods import DISCOVER, PING, PROMPTS_LIST, RESOURCES_LIST, TEMPLATES_LIST, TOOLS_LIST
from interlock.process.stderr import StderrRing
from interlock.store.ports import StoreError
from interlock.wire.jsonrpc.codec import Response
from interlock.wire.refusal import TOOL_DEGRADED, Refusal

log = logging.getLogger("interlock.links")

BACKOFF_FIRST_S: Final = 0.5
BACKOFF_MAX_S: Final = 30.0
STEADY_S: Final = 30.0  # ready this long, or a call served: the next loss starts the backoff from its first step
WAKE_LEAST_S: Final = 1.0  # from one attempt to the next, if calls want it sooner than the backoff
WAKE_FAILED_S: Final = 5.0  # the same after an attempt that failed: the server was not there at all
GRACE_S: Final = 300.0  # MCP-AX 13.2: how long a lost server's tools stay listed
STOP_S: Final = 6.0
QUICK_RETURNS_MAX: Final = 3
REST_PER_ITEM_S: Final = 50e-6  # some ten times what reading one takes: a flood of changes gets a tenth of the node
REST_ITEMS_MIN: Final = 100  # what is read in a few milliseconds needs no rest
REST_MAX_S: Final = 1.0  # a fifth of the usual heartbeat interval, within which parents must see a change (6.3)
SAME_REST_S: Final = 0.25  # after an announcement that changed nothing: clients get a notification for each
IDLE: Final = "it was idle"

StockCatalog = Callable[[Link, Listing | None], Awaitable[None]]

LISTS_OF: Final = {"tools": (TOOLS_LIST,), "prompts": (PROMPTS_LIST,), "resources": (RESOURCES_LIST, TEMPLATES_LIST)}


class Keeper(PassedOnEvents):
    """Owner of one link. It connects the link, lists what its server offers, and reconnects it after a loss."""

    link: Link
    is_offered = True  # clients see what its server lists
    is_reread = True  # a list that has become old is read again when a client asks for it
    reads: tuple[str, ...] = (TOOLS_LIST, PROMPTS_LIST, RESOURCES_LIST, TEMPLATES_LIST)  # which of its lists
    wakes_after_s = WAKE_LEAST_S, WAKE_FAILED_S
    holder: TokenHolder | None = None  # has the token for a server that may want one

    def __init__(
        self,
        make_link: Callable[[LinkEvents], Link],
        clock: Clock,
        stock: StockCatalog,
        events: LinkEvents,
        stderr: StderrRing | None = None,
    ) -> None:
        """Create the keeper and its link. `stock` puts lists into the catalog; `events` are the node's events, for what
        clients must learn.
        """
        super().__init__(events)
        self.link = make_link(self)
        self.listing: Listing | None = None
        self.listed_at = dict.fromkeys(LISTS_OF, 0.0)  # when each kind of list was last read, or could not be
        self.list_hint_s: float | None = None  # how long the server says they last, unless it announces changes
        self.settled = asyncio.Event()  # the first attempt has ended, well or not
        self.made_at = clock.now()
        self.stderr = stderr or StderrRing(now=clock.wall)
        self.failure: ConnectFailed | None = None  # of the last attempt
        self._clock = clock
        self._stock_catalog = stock
        self._loss = Loss()
        self._wake = asyncio.Event()
        self._usable = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._relists: dict[str, asyncio.Task[None]] = {}
        self._rests_until = dict.fromkeys(LISTS_OF, 0.0)  # in the time of the loop
        self._unread: set[str] = set()  # kinds of lists that changed since they were last read
        self._announced: dict[str, float] = {}  # those of them that the server announced, and since when
        self._troubles: dict[str, str] = {}  # method -> why its list could not be read
        self._attempts = 0
        self._began = -inf  # of the last attempt
        self._waking: asyncio.TimerHandle | None = None
        self._stopping = False
        self._falls_asleep = False

    # What a subclass knows

    async def _open_connection(self, start: AsyncExitStack) -> None:
        """Connect the link. Raise ConnectFailed if that fails.

        `start` is closed when the server is up: until then it counts as starting.
        """
        raise NotImplementedError

    async def _read(self, method: str) -> tuple[Items | None, ListFailed | None]:
        """Read one list. Return its items, or the reason why it could not be read.

        Both are None if the server has no such list.
        """
        raise NotImplementedError

    async def _close_connection(self, reason: str) -> None:
        """Close the connection and end every call under way."""
        raise NotImplementedError

    def _repeat_requests(self) -> None:
        """Send the requests again that a server forgets with its connection, such as subscriptions. This is called
        after each connection.
        """

    async def _plan_retry(self, failed: ConnectFailed, began: float) -> tuple[str, float | None] | None:
        """Return why an attempt to connect failed and how many seconds to wait before the next one.

        The seconds are None for the usual backoff. The result is None if the next attempt should follow at once.
        """
        return failed.reason, None

    # Commands

    def start_asleep(self) -> None:
        """Start without a connection. The first call opens it."""
        self._falls_asleep = True
        self.start()

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._live(), name=f"link {self.link.segment}")

    async def stop(self) -> None:
        """Stop connecting the link, close its connection, and return within a time limit.

        A child process that does not end in time is left to the reaper, so that it cannot block the node.
        """
        self._stopping = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait((self._task,), timeout=STOP_S)
        try:
            await asyncio.wait_for(self._hang_up("the node is stopping"), STOP_S)
        except TimeoutError:
            log.warning("link %s: did not stop within %g s", self.link.name, STOP_S)
        await self._release_holder()
        self.link.set_state(LinkState.STOPPED, None)
        self.link.events = self._events  # the last events do not concern this keeper

    async def _release_holder(self) -> None:
        """Release the token that the link uses for its server, when the keeper stops."""

    async def restart(self) -> None:
        """Reconnect now, without waiting for the backoff."""
        self._attempts = 0
        if self.link.standing.state in USABLE:
            # A call that arrives now waits for the new connection.
            self._usable.clear()
            self.lose("restarted by the operator")
        self._wake.set()

    def lose(self, reason: str) -> None:
        """Declare the connection lost, for this reason. The keeper then reconnects."""
        self._loss.declare(reason)

    def wake(self) -> None:
        """Connect for a call that waits: at once, or as soon as the limit on attempts allows."""
        pause_s = self._began + self.wakes_after_s[self.failure is not None] - self._clock.now()
        if pause_s <= 0:
            self._wake.set()
        elif self._waking is None:
            self._waking = asyncio.get_running_loop().call_later(pause_s, self._wake.set)

    def _clear_wake(self) -> None:
        self._wake.clear()
        if self._waking is not None:
            self._waking.cancel()
            self._waking = None

    def sleep(self) -> None:
        """End the connection, and the process if there is one, until the next call. No call may be under way."""
        self._falls_asleep = True
        self._clear_wake()
        self._usable.clear()
        self.lose(IDLE)

    @property
    def contracts(self) -> int | None:
        """Return how many contracts a driver's server serves, or None for a server that offers tools directly."""
        return None

    @property
    def unlisted(self) -> str | None:
        """Return why tools of this server are not listed although the server is running, or None if they are listed."""
        return None

    @property
    def may_return_soon(self) -> bool:
        """Return whether calls should wait for the server: it served before and does not keep failing to start."""
        is_near = self.failure is None or self._attempts <= QUICK_RETURNS_MAX
        return self.listing is not None and is_near and not self._stopping

    async def usable_within(self, seconds: float) -> bool:
        try:
            await asyncio.wait_for(self._usable.wait(), seconds)
        except TimeoutError:
            return False
        return True

    def refresh(self, kind: str) -> "asyncio.Task[None]":
        """Read one kind of list again. If a reading is under way, another one follows it."""
        self._unread.add(kind)
        if not _is_running(self._relists.get(kind)):
            self._relists[kind] = asyncio.get_running_loop().create_task(self._relist(kind))
        return self._relists[kind]

    def _refresh_all(self) -> None:
        for kind in LISTS_OF:
            self.refresh(kind)

    def refreshed(self, kind: str) -> "asyncio.Future[None]":
        """Return a future that is done when one kind of list has been read again. If a reading is under way, its future
        is shared (MCP-AX 5.1).

        The future is done when the list has been read.
        """
        return asyncio.shield(self._relists[kind] if _is_running(self._relists.get(kind)) else self.refresh(kind))

    def announce(self, kind: str) -> None:
        """Read a list again because the server says that it changed, and notify the clients that see it."""
        if self.is_offered:
            self._announced.setdefault(kind, asyncio.get_running_loop().time())
        self.refresh(kind)

    # Life

    async def _live(self) -> None:
        """Connect the link, and reconnect it after each loss, until the keeper stops.

        An attempt that fails early lengthens the backoff. A connection that lasted STEADY_S or served a call resets the
        backoff.
        """
        while not self._stopping:
            if self._falls_asleep:
                self._usable.clear()
                await self._hang_up(IDLE)
                self.link.set_state(LinkState.ASLEEP, None)
                self.settled.set()
                await self._wake.wait()
                self._falls_asleep = False
            self._loss.clear()
            self._clear_wake()
            began = self._began = self._clock.now()
            served_before = self.link.served
            retry_s = None
            try:
                await self._connect()
                self._on_connected()
                await self._loss.wait()
                reason = self._loss.reason
                if self._falls_asleep:
                    continue
            except ConnectFailed as failed:
                self.failure = failed
                if (retry := await self._plan_retry(failed, began)) is None:
                    await self._hang_up(failed.reason)
                    continue
                reason, retry_s = retry
            except Exception:
                ref = secrets.token_hex(6)
                log.exception("link %s: internal error %s", self.link.name, ref)
                reason = f"internal error {ref}"
                self.failure = ConnectFailed(reason)
            self._usable.clear()
            await self._hang_up(reason)
            if self._clock.now() - began > STEADY_S or self.link.served > served_before:
                self._attempts = 0
            self._attempts += 1
            self.link.restarts += 1
            wait_s = retry_s or self._backoff_s()
            self._set_lost_state(reason, wait_s, unauthorised=retry_s is not None)
            self.settled.set()
            await self._pause(wait_s)

    async def _connect(self) -> None:
        state = self.link.standing.state
        if state is LinkState.ASLEEP or (self.listing is None and state is not LinkState.CONNECTING):
            self.link.set_state(LinkState.CONNECTING, self.link.standing.reason)
        async with AsyncExitStack() as start:
            await self._open_connection(start)
            await self._stock()
        self._repeat_requests()

    def _on_connected(self) -> None:
        self.settled.set()
        self._usable.set()
        self.failure = None

    def _backoff_s(self) -> float:
        """Return how many seconds to wait before the next attempt, after a loss or a failed attempt."""
        return backoff_s(self._attempts)

    def _set_lost_state(self, reason: str, wait_s: float, *, unauthorised: bool) -> None:
        again = f"next attempt in {wait_s:.1f} s" if isfinite(wait_s) else "it is not tried again"
        log.warning("link %s: %s; %s", self.link.name, reason, again)
        state = LinkState.DEGRADED if self.listing is not None else LinkState.FAILED
        self.link.set_state(LinkState.UNAUTHORISED if unauthorised else state, reason)

    async def _pause(self, wait_s: float) -> None:
        """Wait at most `wait_s` seconds before the next attempt to connect, or until the keeper must connect now.

        Remove the tools of a degraded link from the catalog when its grace period ends.
        """
        try:
            async with asyncio.timeout(wait_s if isfinite(wait_s) else None):
                await self._wake.wait()
        except TimeoutError:
            pass
        standing = self.link.standing
        if standing.state is LinkState.DEGRADED and self._clock.wall() - standing.since_wall > GRACE_S:
            self.listing = None
            self.link.set_state(LinkState.FAILED, standing.reason)
            await self._stock_catalog(self.link, None)

    async def _hang_up(self, reason: str) -> None:
        for task in self._relists.values():
            task.cancel()
        self._relists.clear()
        await self._close_connection(reason)

    # Lists

    async def _stock(self) -> None:
        """Read all lists of the server and pass them to the catalog. If a list cannot be read, the link stays usable
        but is marked as slow.

        Raise ConnectFailed if the server refuses the credential.
        """
        outcomes = dict(zip(self.reads, await asyncio.gather(*map(self._read, self.reads)), strict=True))
        failures = {method: failed for method, (_, failed) in outcomes.items() if failed is not None}
        refusal = next((failed.what for failed in failures.values() if failed.unauthorised), None)
        if refusal is not None:
            raise ConnectFailed(refusal.detail, refusal)
        self._troubles = {method: str(failed) for method, failed in failures.items()}
        fields = {FIELD[method]: items for method, (items, _) in outcomes.items() if items is not None}
        await self._publish(msgspec.structs.replace(self.listing or Listing(), **fields), LISTS_OF)
        self._set_listed_state()

    async def _relist(self, kind: str) -> None:
        """Read one kind of list again, for example all tools, and repeat that while the server announces further
        changes.

        There is a pause between two readings, so that a server which announces changes all the time costs little.
        Clients are notified after the reading, so that they get the new list.
        """
        loop = asyncio.get_running_loop()
        while kind in self._unread:
            await asyncio.sleep(self._rests_until[kind] - loop.time())
            self._unread.discard(kind)
            announced, before = self._announced.pop(kind, None), self._digests(kind)
            await self._relist_once(kind)
            is_same = before == self._digests(kind)
            # A longer pause combines more changes into one reading.
            listing = self.listing or Listing()
            items = sum(len(getattr(listing, FIELD[method]).items) for method in LISTS_OF[kind])
            rest_s = min(REST_MAX_S, items * REST_PER_ITEM_S) if items > REST_ITEMS_MIN else 0.0
            if is_same and announced is not None:
                rest_s = SAME_REST_S
            self._rests_until[kind] = loop.time() + rest_s
            # A node below announces what is news for parents alone, such as a leaf that came back (MCP-AX 13.1).
            if announced is not None and not self.link.offer.is_aggregator:
                self._events.on_announced(self.link, kind, announced)

    def _digests(self, kind: str) -> list[bytes]:
        listing = self.listing or Listing()
        return [getattr(listing, FIELD[method]).digest for method in LISTS_OF[kind]]

    async def _relist_once(self, kind: str) -> None:
        if (listing := self.listing) is None or not self._usable.is_set():
            return
        for method in (method for method in LISTS_OF[kind] if method in self.reads):
            items, trouble = await self._read(method)
            self._troubles.pop(method, None)
            if items is not None:
                listing = msgspec.structs.replace(self.listing or listing, **{FIELD[method]: items})
                await self._publish(listing, (kind,))
            elif trouble is not None:
                self._troubles[method] = str(trouble)
                # The old list stays, and is not read again for every client that asks.
                self.listed_at[kind] = self._clock.now()
        if self.link.standing.state in USABLE:
            self._set_listed_state()

    async def _publish(self, listing: Listing, kinds: Iterable[str]) -> None:
        self.listing, facts = listing, self.link.facts
        announces = facts is not None and has(facts.capabilities.get("tools"), "listChanged")
        self.list_hint_s = None if announces else listing.tools.ttl_s
        for kind in kinds:
            self.listed_at[kind] = self._clock.now()
        await self._stock_catalog(self.link, listing)

    def _set_listed_state(self) -> None:
        state = LinkState.SLOW if self._troubles else LinkState.READY
        self.link.set_state(state, "; ".join(self._troubles.values()) or None)


def _is_running(task: "asyncio.Task[None] | None") -> bool:
    return task is not None and not task.done()


def backoff_s(attempt: int, first_s: float = BACKOFF_FIRST_S) -> float:
    exact = min(BACKOFF_MAX_S, first_s * 2.0 ** min(attempt - 1, 10))
    return exact * random.uniform(0.8, 1.2)  # noqa: S311  (jitter, not a secret)


UNAUTHORISED_RETRY_S: Final = 60.0
RENEWALS_MAX: Final = 3  # credentials in a row that the server refuses when greeted


class ServerKeeper(Keeper):
    """Keeper of a link to an MCP server: it connects and reconnects the link, lists the server's items, and renews the
    credential.
    """

    link: ConnectedLink
    closes_holder = True  # whether its token belongs to it alone

    def __init__(
        self,
        make_link: Callable[[LinkEvents], ConnectedLink],
        connector_parts: ConnectorParts,
        stock: StockCatalog,
        events: LinkEvents,
        holder: TokenHolder | None = None,
        stderr: StderrRing | None = None,
    ) -> None:
        clock = connector_parts.clock
        super().__init__(make_link, clock, stock, events, stderr)
        link = self.link
        self.holder = holder
        # A strong reference would keep what is listed until the garbage collector runs.
        refresh_all = weakref.WeakMethod(self._refresh_all)
        self.subscriptions = Subscriptions(link, lambda: (refresh := refresh_all()) and refresh())
        self.task_listening = TaskListening(link)
        self.log_level = LogLevel(link)
        self._connector_parts = connector_parts
        self._connector = Connector(link, connector_parts, self.stderr, self._loss, holder)
        self._regreeting: asyncio.Task[None] | None = None  # opens a new session
        self._probing: asyncio.Task[None] | None = None
        self._closing: Pipe | None = None
        self._renewal = Renewal(link, holder, clock, self.probe) if holder is not None else None
        self._renewals = 0
        if holder is not None:
            link.failed.can_renew_credential = True
            holder.subscribe(self._on_credential)

    @property
    def is_busy(self) -> bool:
        """Return whether closing the connection now would interrupt a client's call, task or subscription at the
        server.
        """
        link = self.link
        if link.booked or link.waiting.suspended or self.subscriptions.uris or link.events.tasks.of_others(link, set()):
            return True
        return any(isinstance(pending, Call) for pending in link.in_flight.values())

    # What the link reports (LinkEvents)

    def on_changed(self, link: ConnectedLink, kind: str) -> None:
        self.announce(kind)

    def on_pipe_lost(self, link: ConnectedLink, reason: str) -> None:
        self.lose(reason)

    def on_unauthorised(self, link: ConnectedLink, what: Undelivered) -> None:
        log.warning("link %s: %s", link.name, what.detail)
        self.refused(what)

    def on_unreachable(self, link: ConnectedLink) -> None:
        self.probe()

    # Connection

    async def _open_connection(self, start: AsyncExitStack) -> None:
        await self._connector.connect(start)

    def _on_connected(self) -> None:
        super()._on_connected()
        self._renewals = 0

    async def _close_connection(self, reason: str) -> None:
        # If this is interrupted, the next call waits for the pipe that this one began to close.
        self._closing, self.link.pipe = self.link.pipe or self._closing, None
        self.link.pid = None
        self.subscriptions.hang_up()
        for task in (self._regreeting, self._probing):
            if task is not None:
                task.cancel()
        if self._renewal is not None:
            self._renewal.cancel()
        self.link.fail_all(reason)
        if self._closing is not None:
            await self._closing.close()
            self._closing = None

    def probe(self) -> None:
        """Send a test request after a request could not be sent.

        If the test request is not delivered either, the connection is lost. A test that is not answered in time changes
        nothing.
        """

        async def probe() -> None:
            if isinstance(reply := await self._test_connection(PROBE_S), LostRefusal):
                self.lose(reply.detail)

        if self._usable.is_set() and not _is_running(self._probing):
            self._probing = asyncio.get_running_loop().create_task(probe())

    async def _test_connection(self, within_s: float) -> Response | Refusal | None:
        """Send a test request, such as a ping. Return the answer, or None if there is none within the time."""
        link = self.link
        # A server that answers no greeting may answer no ping either, but it lists its tools.
        legacy = PING if link.facts is None or link.facts.greeted else TOOLS_LIST
        return await link.request(DISCOVER if link.modern else legacy, {}, within_s)

    def on_session_lost(self, link: ConnectedLink) -> None:
        """Open a new session on the same connection, with a legacy HTTP server that forgot the old one.

        The calls that the server refused for that reason are sent again. If the greeting fails, the connection is lost.
        """
        pipe = link.pipe

        async def regreet(pipe: HttpPipe) -> None:
            try:
                await self._connector.greet_again(pipe)
            except ConnectFailed as failed:
                self.lose(failed.reason)
            else:
                self._repeat_requests()
                self._refresh_all()

        if not _is_running(self._regreeting) and isinstance(pipe, HttpPipe):
            self._regreeting = asyncio.get_running_loop().create_task(regreet(pipe))

    async def _read(self, method: str) -> tuple[Items | None, ListFailed | None]:
        try:
            previous = getattr(self.listing, FIELD[method]) if self.listing is not None else None
            return await read_list(self.link, method, previous, self._connector_parts.manner.within(LIST_S)), None
        except ListFailed as failed:
            return None, failed

    def _repeat_requests(self) -> None:
        if self.link.facts is None:
            return
        self.subscriptions.say_again()
        self.task_listening.say()
        self.log_level.say()

    # Credentials

    def refused(self, what: Undelivered) -> None:
        """Renew the credential that the server refused, since calls may be waiting for a new one.

        If the node has no token to renew, a 401 leads to a test of the connection instead.
        """
        if self._renewal is not None:
            if self.link.failed.refused or (self._usable.is_set() and not _is_running(self._probing)):
                self._renewal.begin(what)
        elif what.status == 401:
            self.probe()

    async def _plan_retry(self, failed: ConnectFailed, began: float) -> tuple[str, float | None] | None:
        """Obtain another credential if the server refused the present one. Return None to try again at once, otherwise
        the reason of the failure and how many seconds to wait, or None as seconds for the usual time.

        If there is no token to renew, or too many were refused in a row, or no secret can be read, the next attempt
        follows after a longer time. For any other failure, the usual backoff applies.
        """
        if (what := failed.refusal) is None:
            return failed.reason, UNAUTHORISED_RETRY_S if failed.unauthorised else None
        if self.holder is None:
            return f"{what.detail}; check its headers in {settings_place(self.link.segment)}", UNAUTHORISED_RETRY_S
        if self._renewals >= RENEWALS_MAX:
            self._renewals = 0
            return "it refuses every token that it is shown", UNAUTHORISED_RETRY_S
        self._renewals += 1
        denied = await self.holder.refused(what.status, read_challenge_untrusted(what.challenges), sent_at=began)
        return None if denied is None else (denied.reason, denied.retry_s)

    def _on_credential(self) -> None:
        self._connector.show_credential()
        if self.link.standing.state is LinkState.UNAUTHORISED:
            self._wake.set()

    async def _release_holder(self) -> None:
        if self.holder is not None:
            self.holder.unsubscribe(self._on_credential)
            if self.closes_holder:
                await self.holder.close()


@dataclass(eq=False)
class Renewal:
    """Renewal of one link's credential, on behalf of the calls that wait for it.

    `doubt` is called when the server may refuse every further request.
    """

    link: ConnectedLink
    holder: TokenHolder
    clock: Clock
    doubt: Callable[[], None]
    _task: asyncio.Task[None] | None = None
    _held: dict[Call, None] = field(default_factory=dict)  # neither sent again nor refused yet

    def begin(self, what: Undelivered) -> None:
        if not _is_running(self._task):
            self._task = asyncio.get_running_loop().create_task(self._run(what))

    def cancel(self) -> None:
        """Stop, because the link is going away. The calls that wait are refused."""
        if self._task is not None:
            self._task.cancel()
        self._give_up()

    def _give_up(self) -> None:
        held, self._held = self._held, {}
        for call in held:
            call.on_failed(unauthorised(self.link.name), Outcome.ERROR)

    async def _run(self, what: Undelivered) -> None:
        # Renew the credential for each kind of refusal, until no further call is refused.
        waiting: dict[Undelivered, list[Call]] = {what: []}
        try:
            while waiting:
                refused, self.link.failed.refused = self.link.failed.refused, []
                self._held = {call: None for call, _ in refused}
                for call, why in refused:
                    waiting.setdefault(why, []).append(call)
                for why, calls in waiting.items():
                    await self._settle(why, calls)
                waiting = {why: [] for _, why in self.link.failed.refused}
        except Exception:
            log.exception("link %s: its credential could not be renewed", self.link.name)
        finally:
            refused, self.link.failed.refused = self.link.failed.refused, []
            self._held.update((call, None) for call, _ in refused)
            self._give_up()

    async def _settle(self, what: Undelivered, calls: list[Call]) -> None:
        """Obtain another credential and send the refused calls once more. If none can be obtained, refuse the calls."""
        sent_at = max((call.started for call in calls), default=self.clock.now())
        challenge = read_challenge_untrusted(what.challenges)
        denied = await self.holder.refused(what.status, challenge, sent_at=sent_at)
        for call in calls:
            if not call.done:
                if denied is not None:
                    await self._refuse_or_ask_consent(call, denied)
                elif call.ticket is not None:
                    self.link.send(call.ticket)
                else:
                    self.link.failed.lose(call, what)
            self._held.pop(call, None)
        if denied is not None and denied.standing:
            self.doubt()

    async def _refuse_or_ask_consent(self, call: Call, denied: Denied) -> None:
        """Refuse a call whose credential was refused by the server. If the user can consent to a new token, send them
        to the page for that instead.
        """
        if denied.consent and self.holder.principal:
            try:
                consent = await self.holder.consent()
            except (Unobtainable, StoreError):
                pass
            else:
                if not call.done:
                    call.handler.ask_consent(call, self.link.name, consent.url, consent.id)
                return
        call.on_failed(unauthorised(self.link.name, lasting=denied.standing), Outcome.ERROR)


def unauthorised(name: str, *, lasting: bool = True) -> Refusal:
    """Return the refusal of a call whose server refuses the node's credential. `name` is the name of the server.

    It omits the exact reason, which may contain host names and is logged for the operator.
    """
    data = {
        "reason": "unauthorised" if lasting else "insufficient_scope",
        "outcome": "not_sent",
        "next": f"an operator looks at it: interlock status {name}",
        "mcpax_code": -32002,
    }
    return Refusal(TOOL_DEGRADED, "tool_degraded", data)
