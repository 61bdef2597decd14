"""The life of one link: connect, list, stay, come back.

Theory of operation. A keeper makes its link and owns it. The link carries messages; the keeper has one task, `_live`,
that does everything else, so that a server that hangs or crashes in a loop costs other links nothing:

    connect (spawn or dial, handshake) -> read and publish the lists -> wait for a loss -> hang up -> back off -> again

What the others see of it is `link.standing`: CONNECTING until the first attempt ends, READY or SLOW (a list could not
be read) while it is usable, DEGRADED after a loss while what was listed stays listed, FAILED when it never listed or
was away for GRACE_S, UNAUTHORISED when it waits for another credential, ASLEEP when it was idle and is started on
demand, STOPPED at the end. Only the keeper sets it.

The link tells its keeper what happens to the connection (`LinkEvents`): a lost pipe ends the wait for a loss; a lost
session is greeted again beside the calls under way; a refused credential is renewed, and calls that it held up are sent
again; a changed list is read again. What is meant for clients the keeper passes on to the node's `LinkEvents`. When it
has stopped, the link no longer refers to it: each would otherwise keep the other until the garbage collector runs.

Everything the server was asked to remember (subscriptions, log level) is said again after each return.
"""

import asyncio
import logging
import random
import secrets
import weakref
from collections.abc import Awaitable, Callable, Iterable
from contextlib import AsyncExitStack
from math import inf, isfinite
from typing import Final

import msgspec
from msgspec import Raw

from interlock.core.calls.call import Call
from interlock.core.link_state import LinkState
from interlock.credentials.protocol.www_authenticate import read_challenge_untrusted
from interlock.credentials.token import Denied, TokenHolder
from interlock.drivers.protocol.server_name import settings_place
from interlock.links.connected_link import ConnectedLink
from interlock.links.connector import ConnectFailed, Connector, ConnectorParts, Loss
from interlock.links.failed_requests import LostRefusal
from interlock.links.handshake import MODERN_META, PROBE_S, modern_head
from interlock.links.link_events import LinkEvents, PassedOnEvents
from interlock.links.listing import FIELD, LIST_S, Items, ListFailed, Listing, read_list
from interlock.links.log_level import LogLevel
from interlock.links.pipes import HttpPipe, Pipe, Undelivered
from interlock.links.subscriptions import Subscriptions, has
from interlock.links.task_subscription import TaskListening
from interlock.links.unauthorized_retry import Renewal
from interlock.mcp.eras import Era
from interlock.mcp.methods import (
    DISCOVER,
    PING,
    PROMPTS_LIST,
    RESOURCES_LIST,
    TEMPLATES_LIST,
    TOOLS_LIST,
)
from interlock.process.stderr import StderrRing

log = logging.getLogger("interlock.links")

BACKOFF_FIRST_S: Final = 0.5
BACKOFF_MAX_S: Final = 30.0
STEADY_S: Final = 30.0  # ready this long, or a call served, means the next loss starts the backoff anew
WAKE_LEAST_S: Final = 1.0  # from one attempt to the next, where calls want it sooner than the backoff
WAKE_FAILED_S: Final = 5.0  # the same after an attempt that failed: the server was not there at all
UNAUTHORISED_RETRY_S: Final = 60.0
GRACE_S: Final = 300.0  # MCP-AX 13.2: how long a lost server's tools stay listed
STOP_S: Final = 6.0
QUICK_RETURNS_MAX: Final = 3
RENEWALS_MAX: Final = 3  # credentials in a row that the server refuses when greeted
REST_PER_ITEM_S: Final = 50e-6  # some ten times what reading one takes: a flood of changes gets a tenth of the node
REST_ITEMS_MIN: Final = 100  # what is read in a few milliseconds needs no rest
REST_MAX_S: Final = 1.0  # a fifth of the usual heartbeat interval, within which a change is to be seen above (6.3)
SAME_REST_S: Final = 0.25  # after a change was announced that is none: each such announcement is told to clients
IDLE: Final = "it was idle"

StockCatalog = Callable[[ConnectedLink, Listing | None], Awaitable[None]]

LISTS_OF: Final = {
    "tools": (TOOLS_LIST,),
    "prompts": (PROMPTS_LIST,),
    "resources": (RESOURCES_LIST, TEMPLATES_LIST),
}


class Keeper(PassedOnEvents):
    is_offered = True  # what its server lists is offered to clients as it is
    is_reread = True  # a list that has become old is read again when a client asks for it
    reads: tuple[str, ...] = (TOOLS_LIST, PROMPTS_LIST, RESOURCES_LIST, TEMPLATES_LIST)  # which of its lists
    wakes_after_s = WAKE_LEAST_S, WAKE_FAILED_S
    closes_holder = True  # its token is its own

    def __init__(
        self,
        make_link: Callable[[LinkEvents], ConnectedLink],
        connector_parts: ConnectorParts,
        stock: StockCatalog,
        events: LinkEvents,
        holder: TokenHolder | None = None,
        stderr: StderrRing | None = None,
    ) -> None:
        """`events`: the node's, which hear what is not for the keeper. `holder`: has the token for a server that may
        want one."""
        super().__init__(events)
        link = self.link = make_link(self)
        self.holder = holder
        self.listing: Listing | None = None
        self.listed_at = dict.fromkeys(LISTS_OF, 0.0)  # when each kind of list was last read, or could not be
        self.list_hint_s: float | None = None  # how long the server says they last, unless it announces changes
        self.settled = asyncio.Event()  # the first attempt has ended, well or not
        self.made_at = connector_parts.clock.now()
        self.stderr = stderr or StderrRing(now=connector_parts.clock.wall)
        refresh_all = weakref.WeakMethod(self._refresh_all)  # else what is listed would wait for the collector
        self.subscriptions = Subscriptions(link, lambda: (refresh := refresh_all()) and refresh())
        self.task_listening = TaskListening(link)
        self.log_level = LogLevel(link)
        self._connector_parts = connector_parts
        self._stock_catalog = stock
        self._loss = Loss()
        self._connector = Connector(link, connector_parts, self.stderr, self._loss, holder)
        self._wake = asyncio.Event()
        self._usable = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._relists: dict[str, asyncio.Task[None]] = {}
        self._rests_until = dict.fromkeys(LISTS_OF, 0.0)  # in the time of the loop
        self._unread: set[str] = set()  # kinds of lists that changed since they were last asked for
        self._announced: dict[str, float] = {}  # of these, the ones the server said it of, and since when
        self._troubles: dict[str, str] = {}  # method -> why its list could not be read
        self._regreeting: asyncio.Task[None] | None = None
        self._probing: asyncio.Task[None] | None = None
        self._closing: Pipe | None = None
        self._renewal = Renewal(link, holder, connector_parts.clock, self.probe) if holder is not None else None
        self._renewals = 0
        if holder is not None:
            link.failed.can_renew_credential = True
            holder.subscribe(self._on_credential)
        self._attempts = 0
        self._began = -inf  # of the last attempt
        self._waking: asyncio.TimerHandle | None = None
        self._stopping = False
        self._falls_asleep = False
        self.failure: ConnectFailed | None = None  # of the last attempt

    # Commands

    def start_asleep(self) -> None:
        """Nothing is begun until somebody wants the server."""
        self._falls_asleep = True
        self.start()

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._live(), name=f"link {self.link.segment}")

    async def stop(self) -> None:
        """Bounded: a child that does not end must not hold the node; the reaper sees to it."""
        self._stopping = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait((self._task,), timeout=STOP_S)
        try:
            await asyncio.wait_for(self._hang_up("the node is stopping"), STOP_S)
        except TimeoutError:
            log.warning("link %s: did not stop within %g s", self.link.name, STOP_S)
        if self.holder is not None:
            self.holder.unsubscribe(self._on_credential)
            if self.closes_holder:
                await self.holder.close()
        self.link.stand(LinkState.STOPPED, None)
        self._let_go_of_link()

    def _let_go_of_link(self) -> None:
        """It is over: the last words of the link are not for this keeper."""
        self.link.events = self._events

    async def restart(self) -> None:
        """Now, whatever the backoff says."""
        self._attempts = 0
        if self.link.standing.state in (LinkState.READY, LinkState.SLOW):
            self._usable.clear()  # a call that comes now waits for the new connection
            self.lose("restarted by the operator")
        self._wake.set()

    def lose(self, reason: str) -> None:
        self._loss.declare(reason)

    def wake(self) -> None:
        """Somebody wants this server now: it is tried at once, or as soon as the rate of attempts allows."""
        pause_s = self._began + self.wakes_after_s[self.failure is not None] - self._connector_parts.clock.now()
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
        """End the connection, and the process with it, until a call wakes it. No call may be under way."""
        self._falls_asleep = True
        self._clear_wake()
        self._usable.clear()
        self.lose(IDLE)

    @property
    def is_busy(self) -> bool:
        """Whether a call, task or subscription would be lost if it ended now. Our own listening does not count."""
        link = self.link
        if link.booked or link.waiting.suspended or self.subscriptions.uris or link.events.tasks.of_others(link, set()):
            return True
        return any(isinstance(pending, Call) for pending in link.in_flight.values())

    @property
    def contracts(self) -> int | None:
        """How many a driver's server serves; None where it is no driver's, and offers its own tools."""
        return None

    @property
    def may_return_soon(self) -> bool:
        """A server that was there and ended is worth a short wait; one that keeps failing to start is not."""
        is_near = self.failure is None or self._attempts <= QUICK_RETURNS_MAX
        return self.listing is not None and is_near and not self._stopping

    async def usable_within(self, seconds: float) -> bool:
        try:
            await asyncio.wait_for(self._usable.wait(), seconds)
        except TimeoutError:
            return False
        return True

    def refresh(self, kind: str) -> "asyncio.Task[None]":
        """Read one kind of list again; asked twice while under way, it is read once more afterwards at most."""
        task = self._relists.get(kind)
        self._unread.add(kind)
        if task is None or task.done():
            task = asyncio.get_running_loop().create_task(self._relist(kind))
            self._relists[kind] = task
        return task

    def _refresh_all(self) -> None:
        for kind in LISTS_OF:
            self.refresh(kind)

    def refreshed(self, kind: str) -> "asyncio.Future[None]":
        """One reading for all who find the list too old (MCP-AX 5.1); it begins now."""
        task = self._relists.get(kind)
        return asyncio.shield(self.refresh(kind) if task is None or task.done() else task)

    @property
    def announces_changes(self) -> bool:
        return self.link.facts is not None and has(self.link.facts.capabilities.get("tools"), "listChanged")

    # What the link says (LinkEvents)

    def on_changed(self, link: ConnectedLink, kind: str) -> None:
        if self.is_offered:
            self._announced.setdefault(kind, asyncio.get_running_loop().time())
        self.refresh(kind)

    def on_acknowledged(self, link: ConnectedLink, params: Raw) -> None:
        self.task_listening.on_acknowledged(params)

    def on_pipe_lost(self, link: ConnectedLink, reason: str) -> None:
        self.lose(reason)

    def on_session_lost(self, link: ConnectedLink) -> None:
        self.regreet()

    def on_unauthorised(self, link: ConnectedLink, what: Undelivered) -> None:
        log.warning("link %s: %s", link.name, what.detail)
        self.refused(what)

    def on_unreachable(self, link: ConnectedLink) -> None:
        self.probe()

    # Life

    async def _live(self) -> None:
        while not self._stopping:
            if self._falls_asleep:
                await self._sleep()
            self._loss.forget()
            self._clear_wake()
            began = self._began = self._connector_parts.clock.now()
            served_before = self.link.served
            retry_s = None
            try:
                await self._connect()
                self.settled.set()
                self._usable.set()
                self._renewals = 0
                self.failure = None
                reason = await self._loss.wait()
                if self._falls_asleep:
                    continue
            except ConnectFailed as failed:
                self.failure = failed
                reason = failed.reason
                if failed.refusal is not None:
                    denied = await self._another_credential(failed.refusal, began)
                    if denied is None:
                        await self._hang_up(reason)
                        continue
                    reason, retry_s = denied.reason, denied.retry_s
                elif failed.unauthorised:
                    retry_s = UNAUTHORISED_RETRY_S
            except Exception:
                ref = secrets.token_hex(6)
                log.exception("link %s: internal error %s", self.link.name, ref)
                reason = f"internal error {ref}"
                self.failure = ConnectFailed(reason)
            self._usable.clear()
            await self._hang_up(reason)
            if self._connector_parts.clock.now() - began > STEADY_S or self.link.served > served_before:
                self._attempts = 0
            self._attempts += 1
            self.link.restarts += 1
            wait_s = retry_s or self._backoff_s()
            self._stand_lost(reason, wait_s, unauthorised=retry_s is not None)
            self.settled.set()
            await self._pause(wait_s)

    async def _sleep(self) -> None:
        self._usable.clear()
        await self._hang_up(IDLE)
        self.link.stand(LinkState.ASLEEP, None)
        self.settled.set()
        await self._wake.wait()
        self._falls_asleep = False

    def _backoff_s(self) -> float:
        """How long after this loss, or failed attempt, the next attempt is made."""
        return backoff_s(self._attempts)

    def _stand_lost(self, reason: str, wait_s: float, *, unauthorised: bool) -> None:
        again = f"next attempt in {wait_s:.1f} s" if isfinite(wait_s) else "it is not tried again"
        log.warning("link %s: %s; %s", self.link.name, reason, again)
        if unauthorised:
            self.link.stand(LinkState.UNAUTHORISED, reason)
        elif self.listing is not None:
            self.link.stand(LinkState.DEGRADED, reason)
        else:
            self.link.stand(LinkState.FAILED, reason)

    # Credentials

    def refused(self, what: Undelivered) -> None:
        """The server refuses our credential, and calls may be waiting for another."""
        if self._renewal is not None:
            probing = self._probing is not None and not self._probing.done()
            if self.link.failed.refused or (self._usable.is_set() and not probing):
                self._renewal.begin(what)
        elif what.status == 401:
            self.probe()

    async def _another_credential(self, what: Undelivered, began: float) -> Denied | None:
        """None when it is worth greeting the server again, with another one."""
        if self.holder is None:
            reason = f"{what.detail}; check its headers in {settings_place(self.link.segment)}"
            return Denied(reason=reason, retry_s=UNAUTHORISED_RETRY_S)
        if self._renewals >= RENEWALS_MAX:
            self._renewals = 0
            return Denied(reason="it refuses every token that it is shown", retry_s=UNAUTHORISED_RETRY_S)
        self._renewals += 1
        return await self.holder.refused(what.status, read_challenge_untrusted(what.challenges), sent_at=began)

    def _on_credential(self) -> None:
        self._connector.show_credential()
        if self.link.standing.state is LinkState.UNAUTHORISED:
            self._wake.set()

    async def _pause(self, wait_s: float) -> None:
        """Wait for the next attempt; a degraded link's tools leave when their grace is over."""
        try:
            async with asyncio.timeout(wait_s if isfinite(wait_s) else None):
                await self._wake.wait()
        except TimeoutError:
            pass
        standing = self.link.standing
        if standing.state is LinkState.DEGRADED and self._connector_parts.clock.wall() - standing.since_wall > GRACE_S:
            self.listing = None
            self.link.stand(LinkState.FAILED, standing.reason)
            await self._stock_catalog(self.link, None)

    async def _connect(self) -> None:
        state = self.link.standing.state
        if state is LinkState.ASLEEP or (self.listing is None and state is not LinkState.CONNECTING):
            self.link.stand(LinkState.CONNECTING, self.link.standing.reason)
        async with AsyncExitStack() as start:
            await self._connector.connect(start)
            await self._stock()
        self._say_everything()

    def probe(self) -> None:
        """A request did not reach the server: ask once more, and if that fails too, the server is lost."""
        if self._usable.is_set() and (self._probing is None or self._probing.done()):
            self._probing = asyncio.get_running_loop().create_task(self._probe())

    async def _probe(self) -> None:
        facts = self.link.facts
        if facts is None or facts.era is Era.LEGACY:
            inquiry = self.link.ask(PING, {})
        else:
            inquiry = self.link.ask(DISCOVER, {"_meta": MODERN_META}, modern_head(DISCOVER))
        try:
            reply = await asyncio.wait_for(inquiry.future, PROBE_S)
        except TimeoutError:
            self.link.cancel(inquiry, "timeout")
            return
        if isinstance(reply, LostRefusal):
            self.lose(reply.detail)

    def regreet(self) -> None:
        """A legacy HTTP server forgot our session: open a new one on the same connection, lose no call."""
        if self._regreeting is None or self._regreeting.done():
            self._regreeting = asyncio.get_running_loop().create_task(self._regreet())

    async def _regreet(self) -> None:
        pipe = self.link.pipe
        if not isinstance(pipe, HttpPipe):
            return
        try:
            await self._connector.greet_anew(pipe)
        except ConnectFailed as failed:
            self.lose(failed.reason)
            return
        self._say_everything()
        self._refresh_all()

    async def _stock(self) -> None:
        """Read all lists. A list that does not come leaves the link usable but slow."""
        methods = self.reads
        outcomes = await asyncio.gather(*(self._read(method) for method in methods))
        refusal = next((failed.what for _, failed in outcomes if failed is not None and failed.unauthorised), None)
        if refusal is not None:
            raise ConnectFailed(refusal.detail, refusal=refusal)
        troubles = zip(methods, outcomes, strict=True)
        self._troubles = {method: str(failed) for method, (_, failed) in troubles if failed is not None}
        old = self.listing or Listing()
        fields = {
            FIELD[method]: items if items is not None else getattr(old, FIELD[method])
            for method, (items, _) in zip(methods, outcomes, strict=True)
        }
        await self._publish(Listing(**fields), LISTS_OF)
        self._stand_listed()

    async def _relist(self, kind: str) -> None:
        loop = asyncio.get_running_loop()
        while kind in self._unread:
            await asyncio.sleep(self._rests_until[kind] - loop.time())
            self._unread.discard(kind)
            announced, before = self._announced.pop(kind, None), self._digests(kind)
            await self._relist_once(kind)
            is_same = before == self._digests(kind)
            rest_s = SAME_REST_S if is_same and announced is not None else self._rest_s(kind)
            self._rests_until[kind] = loop.time() + rest_s
            # A node below announces what is news for parents alone, such as a leaf that came back (MCP-AX 13.1).
            if announced is not None and not self.link.offer.is_aggregator:
                self._events.on_announced(self.link, kind, announced)

    def _digests(self, kind: str) -> list[bytes]:
        listing = self.listing or Listing()
        return [getattr(listing, FIELD[method]).digest for method in LISTS_OF[kind]]

    def _rest_s(self, kind: str) -> float:
        """Between two readings of a list: the longer it is, the more changes are taken together."""
        listing = self.listing or Listing()
        items = sum(len(getattr(listing, FIELD[method]).items) for method in LISTS_OF[kind])
        return min(REST_MAX_S, items * REST_PER_ITEM_S) if items > REST_ITEMS_MIN else 0.0

    async def _relist_once(self, kind: str) -> None:
        listing = self.listing
        if listing is None or not self._usable.is_set():
            return
        for method in (method for method in LISTS_OF[kind] if method in self.reads):
            items, trouble = await self._read(method)
            self._troubles.pop(method, None)
            if items is not None:
                listing = msgspec.structs.replace(self.listing or listing, **{FIELD[method]: items})
                await self._publish(listing, (kind,))
            elif trouble is not None:
                self._troubles[method] = str(trouble)
                self.listed_at[kind] = (
                    self._connector_parts.clock.now()
                )  # what there is stays, and is not asked for each time
        if self.link.standing.state in (LinkState.READY, LinkState.SLOW):
            self._stand_listed()

    async def _read(self, method: str) -> tuple[Items | None, ListFailed | None]:
        try:
            known = getattr(self.listing, FIELD[method]) if self.listing is not None else None
            return await read_list(self.link, method, known, self._connector_parts.manner.within(LIST_S)), None
        except ListFailed as failed:
            return None, failed

    async def _publish(self, listing: Listing, kinds: Iterable[str]) -> None:
        self.listing = listing
        self.list_hint_s = None if self.announces_changes else listing.tools.ttl_s
        for kind in kinds:
            self.listed_at[kind] = self._connector_parts.clock.now()
        await self._stock_catalog(self.link, listing)

    def _stand_listed(self) -> None:
        self.link.stand(
            LinkState.SLOW if self._troubles else LinkState.READY, "; ".join(self._troubles.values()) or None
        )

    async def _hang_up(self, reason: str) -> None:
        """When it is interrupted, the next one waits for what this one began to close."""
        self._closing, self.link.pipe = self.link.pipe or self._closing, None
        self.link.pid = None
        self.subscriptions.hang_up()
        for task in (*self._relists.values(), self._regreeting, self._probing):
            if task is not None:
                task.cancel()
        self._relists.clear()
        if self._renewal is not None:
            self._renewal.cancel()
        self.link.fail_all(reason)
        if self._closing is not None:
            await self._closing.close()
            self._closing = None

    # What is said again after each return

    def _say_everything(self) -> None:
        facts = self.link.facts
        if facts is None:
            return
        self.subscriptions.say_again()
        self.task_listening.say()
        self.log_level.say()


def backoff_s(attempt: int, first_s: float = BACKOFF_FIRST_S) -> float:
    exact = min(BACKOFF_MAX_S, first_s * 2.0 ** min(attempt - 1, 10))
    return exact * random.uniform(0.8, 1.2)  # noqa: S311  (jitter, not a secret)
