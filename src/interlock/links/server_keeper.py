"""The keeper of a link to an MCP server: greeting, credentials, subscriptions, log level.

The link tells its keeper what happens to the connection (`LinkEvents`): a lost pipe ends the wait for a loss; a lost
session is greeted again while calls are under way; a refused credential is renewed, and the calls that it stopped are
sent again; a changed list is read again. Everything the server was asked to remember (subscriptions, log level) is
repeated after each return.

A refused credential has two cases. While the server is being greeted, the keeper obtains another credential and greets
again (`_plan_retry`). While the link is in use, `Renewal` obtains it beside the other calls, one renewal at a time, and
sends each refused call once more. If no token can be obtained, the refused calls fail with an error that says what an
operator has to do.
"""

import asyncio
import logging
import weakref
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Final

from interlock.core.calls.call import Call, Outcome
from interlock.core.clock import Clock
from interlock.core.link_state import LinkState
from interlock.credentials.protocol.resource import read_challenge_untrusted
from interlock.credentials.secret_references import Unobtainable
from interlock.credentials.token import Denied, TokenHolder
from interlock.drivers.protocol.server_name import settings_place
from interlock.links.connected_link import ConnectedLink
from interlock.links.connector import ConnectFailed, Connector, ConnectorParts
from interlock.links.handshake import PROBE_S
from interlock.links.keeper import Keeper, StockCatalog
from interlock.links.link import LinkEvents
from interlock.links.link_requests import LostRefusal
from interlock.links.listing import FIELD, LIST_S, Items, ListFailed, read_list
from interlock.links.pipes import HttpPipe, Pipe, Undelivered
from interlock.links.subscriptions import LogLevel, Subscriptions, TaskListening
from interlock.mcp.methods import DISCOVER, PING, TOOLS_LIST
from interlock.process.stderr import StderrRing
from interlock.store.ports import StoreError
from interlock.wire.jsonrpc.codec import Response
from interlock.wire.refusal import TOOL_DEGRADED, Refusal

log = logging.getLogger("interlock.links")

UNAUTHORISED_RETRY_S: Final = 60.0
RENEWALS_MAX: Final = 3  # credentials in a row that the server refuses when greeted


class ServerKeeper(Keeper):
    """Keeper of a link to an MCP server."""

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
        """Return whether closing the connection now would interrupt a client's call, task or subscription."""
        link = self.link
        if link.booked or link.waiting.suspended or self.subscriptions.uris or link.events.tasks.of_others(link, set()):
            return True
        return any(isinstance(pending, Call) for pending in link.in_flight.values())

    # What the link reports (LinkEvents)

    def on_changed(self, link: ConnectedLink, kind: str) -> None:
        self.announce(kind)

    def on_pipe_lost(self, link: ConnectedLink, reason: str) -> None:
        self.lose(reason)

    def on_session_lost(self, link: ConnectedLink) -> None:
        self.regreet()

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
        if self._usable.is_set() and (self._probing is None or self._probing.done()):
            self._probing = asyncio.get_running_loop().create_task(self._probe())

    async def _probe(self) -> None:
        reply = await self._test_connection(PROBE_S)
        if isinstance(reply, LostRefusal):
            self.lose(reply.detail)

    async def _test_connection(self, within_s: float) -> Response | Refusal | None:
        """Send a test request. Return the answer, or None if there is none within the time."""
        link = self.link
        # A server that answers no greeting may answer no ping either, but it lists its tools.
        legacy = PING if link.facts is None or link.facts.greeted else TOOLS_LIST
        return await link.request(DISCOVER if link.modern else legacy, {}, within_s)

    def regreet(self) -> None:
        """Open a new session on the same connection, with a legacy HTTP server that forgot the old one.

        The calls that the server refused for that reason are sent again. If the greeting fails, the connection is lost.
        """
        if self._regreeting is None or self._regreeting.done():
            self._regreeting = asyncio.get_running_loop().create_task(self._regreet())

    async def _regreet(self) -> None:
        pipe = self.link.pipe
        if not isinstance(pipe, HttpPipe):
            return
        try:
            await self._connector.greet_again(pipe)
        except ConnectFailed as failed:
            self.lose(failed.reason)
            return
        self._say_everything()
        self._refresh_all()

    async def _read(self, method: str) -> tuple[Items | None, ListFailed | None]:
        try:
            previous = getattr(self.listing, FIELD[method]) if self.listing is not None else None
            return await read_list(self.link, method, previous, self._connector_parts.manner.within(LIST_S)), None
        except ListFailed as failed:
            return None, failed

    def _say_everything(self) -> None:
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
            probing = self._probing is not None and not self._probing.done()
            if self.link.failed.refused or (self._usable.is_set() and not probing):
                self._renewal.begin(what)
        elif what.status == 401:
            self.probe()

    async def _plan_retry(self, failed: ConnectFailed, began: float) -> tuple[str, float | None] | None:
        """Obtain another credential if the server refused the present one, and then try again at once.

        If there is no token to renew, or too many were refused in a row, or no secret can be read, the next attempt
        follows after a longer time. For any other failure, the usual backoff applies.
        """
        what = failed.refusal
        if what is None:
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


class Renewal:
    """Renewal of one link's credential, on behalf of the calls that wait for it."""

    def __init__(self, link: ConnectedLink, holder: TokenHolder, clock: Clock, doubt: Callable[[], None]) -> None:
        """Create the renewal of a link.

        `doubt` is called when the server may refuse every further request.
        """
        self._link = link
        self._holder = holder
        self._clock = clock
        self._doubt = doubt
        self._task: asyncio.Task[None] | None = None
        self._held: dict[Call, None] = {}  # neither sent again nor refused yet

    @property
    def under_way(self) -> bool:
        return self._task is not None and not self._task.done()

    def begin(self, what: Undelivered) -> None:
        if not self.under_way:
            self._task = asyncio.get_running_loop().create_task(self._run(what))

    def cancel(self) -> None:
        """Stop, because the link is going away. The calls that wait are refused."""
        if self._task is not None:
            self._task.cancel()
        self._give_up()

    def _give_up(self) -> None:
        held, self._held = self._held, {}
        for call in held:
            call.on_failed(unauthorised(self._link.name), Outcome.ERROR)

    async def _run(self, what: Undelivered) -> None:
        try:
            await self._settle_all(what)
        except Exception:
            log.exception("link %s: its credential could not be renewed", self._link.name)
        finally:
            refused, self._link.failed.refused = self._link.failed.refused, []
            self._held.update((call, None) for call, _ in refused)
            self._give_up()

    async def _settle_all(self, what: Undelivered) -> None:
        """Renew the credential for each kind of refusal, until no further call is refused."""
        waiting: dict[Undelivered, list[Call]] = {what: []}
        while waiting:
            refused, self._link.failed.refused = self._link.failed.refused, []
            self._held = {call: None for call, _ in refused}
            for call, why in refused:
                waiting.setdefault(why, []).append(call)
            for why, calls in waiting.items():
                await self._settle(why, calls)
            waiting = {why: [] for _, why in self._link.failed.refused}

    async def _settle(self, what: Undelivered, calls: list[Call]) -> None:
        """Obtain another credential and send the refused calls once more. If none can be obtained, refuse the calls."""
        sent_at = max((call.started for call in calls), default=self._clock.now())
        challenge = read_challenge_untrusted(what.challenges)
        denied = await self._holder.refused(what.status, challenge, sent_at=sent_at)
        for call in calls:
            if not call.done:
                if denied is not None:
                    await self._tell(call, denied)
                elif call.ticket is not None:
                    self._link.send(call.ticket)
                else:
                    self._link.failed.lose(call, what)
            self._held.pop(call, None)
        if denied is not None and denied.standing:
            self._doubt()

    async def _tell(self, call: Call, denied: Denied) -> None:
        """Refuse a call, or send its user to the page where they can consent to a token."""
        if denied.consent and self._holder.principal:
            try:
                consent = await self._holder.consent()
            except (Unobtainable, StoreError):
                pass
            else:
                if not call.done:
                    call.handler.ask_consent(call, self._link.name, consent.url, consent.id)
                return
        call.on_failed(unauthorised(self._link.name, lasting=denied.standing), Outcome.ERROR)


def unauthorised(name: str, *, lasting: bool = True) -> Refusal:
    """Return the refusal for a client.

    It omits the exact reason, which may contain host names and is logged for the operator.
    """
    data = {
        "reason": "unauthorised" if lasting else "insufficient_scope",
        "outcome": "not_sent",
        "next": f"an operator looks at it: interlock status {name}",
        "mcpax_code": -32002,
    }
    return Refusal(TOOL_DEGRADED, "tool_degraded", data)
