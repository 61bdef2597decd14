"""Checks 8 and 12 of the guard, the queue of calls that wait for capacity, and the wait for servers after a start.

Check 8 asks whether the link is there and has capacity for another call, and, where a driver has to be chosen, whether
one could serve the call. Check 12 concerns released calls, which are never sent twice.

A call that was refused only for lack of capacity joins `CallQueue`. It leaves, with its place at the link booked, when
another call ends. Principals take turns, so that a thousand calls of one principal do not delay the single call of
another. The number, the bytes and the time of waiting calls are bounded, per principal and in total; beyond that a call
is refused.

After a start, many servers are still connecting. A client that lists tools at once would see too few, and a call of a
tool that appears a moment later would be refused. So both wait until every server has arrived (`Arrivals`). A server
has arrived when its first attempt to connect has ended, well or not. The bound counts from the moment at which the
server was started, so that a server that never connects delays nothing later on. Servers that are not there when the
bound is over are named as missing.
"""

import asyncio
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import msgspec
from msgspec import Raw

from interlock.catalog.api import CheckVerdict
from interlock.catalog.catalog import View
from interlock.catalog.routes import Route
from interlock.core.background import BackgroundTasks
from interlock.core.calls.call import Call, CallLink, answer_failures
from interlock.core.calls.caller import Principal
from interlock.core.calls.check import BUSY, CheckNumber, CheckRefusal, find_unusable
from interlock.core.clock import Clock
from interlock.core.link_state import LinkState
from interlock.core.shared_limit import Share, SharedLimit
from interlock.links.keeper import Keeper
from interlock.links.link import Link


class AvailabilityCheck:
    """Check 8 of the guard: whether the link of a call is available and has capacity for another call."""

    number = CheckNumber.AVAILABILITY
    name = "availability"
    is_common = True

    def __init__(self, calls_max: int, keepers: Mapping[str, Keeper]) -> None:
        """Create the check. `calls_max` limits the calls under way per link; `keepers` has the keeper of every link by
        segment.
        """
        self.calls_max = calls_max
        self._keepers = keepers

    def applies_to(self, route: Route) -> bool:
        return True

    def check(self, call: Call, link: CallLink) -> CheckRefusal | None:
        if (refused := find_unusable(link.standing)) is not None:
            return refused
        if call.booked is not link and self.is_full(link):
            return CheckRefusal(self.number, BUSY)
        if call.hold is None or not call.hold.is_waiting:
            return None  # what no person is asked about chooses its driver on its way
        refusal = call.availability_refusal()
        return None if refusal is None else CheckRefusal(self.number, refusal)

    def may_wait(self, refused: CheckRefusal, link: CallLink) -> bool:
        """Return whether a call that this check refused should wait, because its server is likely to be available again
        soon.
        """
        return refused.check is self.number and refused.refusal is not BUSY and self.may_return_soon(link)

    def may_return_soon(self, link: CallLink) -> bool:
        """Return whether a server that is not connected is likely to be available again soon.

        A child process that ended is restarted on demand. Calls do not wait for a child that keeps ending.
        """
        keeper = self._keepers.get(link.segment)
        return keeper is not None and keeper.may_return_soon

    def wake(self, link: CallLink) -> None:
        """Start to connect the server of a refused call, so that the next call may find it available."""
        if (keeper := self._keepers.get(link.segment)) is not None:
            keeper.wake()

    def explain(self, route: Route, caller: Principal) -> CheckVerdict:
        link = route.link
        own = link.own.find_usable(caller.name) if link.own is not None else None
        if own is not None:
            link = own
        standing, outlook = link.standing, link.find_outlook(route.original)
        if link.own is not None and not self.is_full(link):
            because = f" ({link.own.rule.reason})" if link.own.rule.reason is not None else ""
            verdict, reason = "later", f"the call goes over a link of the client's own{because}"
            if not link.own.is_whole:
                reason = f"the call opens a connection of {caller.name}'s own, or asks for consent"
        elif find_unusable(standing) is not None:
            reason = standing.reason or standing.state.value
            verdict = "later" if self.may_return_soon(link) else "refuse"
            reason += "; a call waits a short while for it" if verdict == "later" else ""
        elif self.is_full(link):
            verdict, reason = "later", f"{link.booked} calls are under way; a call waits until one of them ends"
        elif outlook is not None:
            verdict, reason = "pass" if outlook.available else "refuse", outlook.reason
        else:
            verdict, reason = "pass", standing.reason or standing.state.value
        return CheckVerdict(number=self.number, name=self.name, verdict=verdict, reason=reason)

    def is_full(self, link: CallLink) -> bool:
        return link.booked >= self.calls_max


class SendCheck:
    """Description of step 12 of the guard, for operators: the call is sent if its link is still usable after the
    approval.

    The guard makes the check itself.
    """

    number = CheckNumber.SEND
    name = "send"

    def explain(self, route: Route, caller: Principal) -> CheckVerdict:
        outlook = route.link.find_outlook(route.original)
        timeout_s = route.timeout_s if outlook is None else outlook.timeout_s
        reason = f"timeout {timeout_s:g} s" if timeout_s is not None else "no timeout (batch)"
        return CheckVerdict(number=self.number, name=self.name, verdict="later", reason=reason)


def forbid_resending(call: Call, link: Link) -> None:
    """Prevent an approved call from being sent a second time, even if its server lost the session or refused the
    credential.
    """
    if link.modern:
        call.renewed = True  # the ticket stays for the next round of a question
    else:
        call.ticket = None
    if call.hold is not None:
        call.hold.on_sent(call)


WAIT_S: Final = 30.0
CALLS_MAX: Final = 16_384
BYTES_MAX: Final = 64 * 1024 * 1024
SHARES: Final = 2  # how many principals it takes to fill the queue

IsFull = Callable[[CallLink], bool]


@dataclass(eq=False)
class WaitingCall:
    """Call that waits for a free place at its link. The future `is_booked` is done when the call gets the place or
    leaves the queue.
    """

    call: Call
    link: CallLink
    shares: tuple[Share, ...]  # of the limits of the queue, until it leaves
    is_booked: asyncio.Future[None] = field(default_factory=lambda: asyncio.get_running_loop().create_future())

    def release_shares(self) -> None:
        for share in self.shares:
            share.release()


# Principal -> its calls; the principal whose turn is next is first.
Turns = OrderedDict[str, deque[WaitingCall]]


class CallQueue:
    """Queue of all calls of a node that wait for capacity at their links."""

    def __init__(self, is_full: IsFull) -> None:
        """Create an empty queue. `is_full` returns whether a link has no capacity for another call."""
        self.calls = SharedLimit(of_all=CALLS_MAX, of_each=CALLS_MAX // SHARES)
        self.bytes = SharedLimit(of_all=BYTES_MAX, of_each=BYTES_MAX // SHARES)
        self._is_full = is_full
        self._turns: dict[CallLink, Turns] = {}

    def join(self, call: Call, link: CallLink) -> WaitingCall | None:
        """Add a call to the queue of a link, or return None if a limit is reached."""
        principal = call.caller.principal.name
        size = sum(len(value) for value in call.params.values() if isinstance(value, Raw))
        if (place := self.calls.hold(principal, 1)) is None:
            return None
        if (room := self.bytes.hold(principal, size)) is None:
            place.release()
            return None
        waiting = WaitingCall(call, link, (place, room))
        self._turns.setdefault(link, OrderedDict()).setdefault(principal, deque()).append(waiting)
        link.on_room = partial(self._serve_next, link)
        return waiting

    async def wait(self, waiting: WaitingCall) -> bool:
        """Wait until the link of a queued call has capacity. Return False if that took too long.

        The result is also True if the call left the queue because its client had gone, so check `call.done` first.
        """
        try:
            await asyncio.wait((waiting.is_booked,), timeout=WAIT_S)
            return waiting.is_booked.done()
        finally:
            waiting.is_booked.cancel()
            waiting.release_shares()
            self._remove_finished(waiting.link, waiting.shares[0].party)

    def _remove_finished(self, link: CallLink, principal: str) -> None:
        """Remove calls at the head of a principal's queue for a link if they no longer wait, for example because they
        were cancelled.

        Nothing else removes them while the link is full.
        """
        turns = self._turns.get(link)
        calls = None if turns is None else turns.get(principal)
        if turns is None or calls is None:
            return
        while calls and calls[0].is_booked.done():
            calls.popleft()
        if not calls:
            del turns[principal]
            self._end_if_empty(link)

    def _serve_next(self, link: CallLink) -> None:
        """Give free places at a link to the calls that wait for it. This is done before a new call can take a place."""
        turns = self._turns[link]
        while turns and not self._is_full(link):
            principal, calls = turns.popitem(last=False)
            waiting = calls.popleft()
            waiting.release_shares()
            if calls:
                turns[principal] = calls
            if waiting.call.done:  # its client left meanwhile
                waiting.is_booked.cancel()
            elif not waiting.is_booked.done():
                waiting.call.booked = link
                link.booked += 1
                waiting.is_booked.set_result(None)
        self._end_if_empty(link)

    def _end_if_empty(self, link: CallLink) -> None:
        if not self._turns[link]:
            del self._turns[link]
            link.on_room = None


Settle = Callable[[], Awaitable[Any]]


class MissingServer(msgspec.Struct, frozen=True):
    """Server whose tools are missing from a client's list, with the state of its link."""

    server: str
    state: str


class ArrivingCall(Call, eq=False, kw_only=True):
    """Call of a tool that no server lists yet. When the servers have connected, the call is made again as another call,
    its replacement.
    """

    replacement: Call | None = None

    def cancel(self, reason: str) -> None:
        if self.replacement is not None:
            self.replacement.cancel(reason)
        else:
            super().cancel(reason)


class Arrivals:
    """Bounded wait for the servers that are still connecting after the start of the node."""

    def __init__(self, keepers: Mapping[str, Keeper], clock: Clock, wait_s: float) -> None:
        self.wait_s = wait_s
        self._keepers = keepers
        self._clock = clock
        self._started = clock.now()
        self._expected: list[tuple[Callable[[], bool], Settle]] = []
        self._tasks = BackgroundTasks()
        # One wait for all requests, so that answers come in the order of the requests.
        self._waiting: asyncio.Task[None] | None = None

    def expect(self, is_settled: Callable[[], bool], settle: Settle) -> None:
        """Wait also for servers that the node does not know yet, such as children that still have to register."""
        self._expected.append((is_settled, settle))

    def maybe_wait(self) -> Coroutine[Any, Any, None] | None:
        """Return a coroutine that waits for the servers which have neither connected nor failed yet, or None if there
        are none.
        """
        if not self._pending():
            return None
        if self._waiting is None or self._waiting.done():
            self._waiting = self._tasks.begin(self._wait())

        async def wait_for(waiting: asyncio.Task[None]) -> None:
            await asyncio.shield(waiting)

        return wait_for(self._waiting)

    def missing(self, view: View) -> list[MissingServer]:
        """Return the servers that a client with this view would see, but of which no tools are listed yet."""
        return [
            MissingServer(keeper.link.segment, keeper.link.standing.state.value)
            for keeper in self._keepers.values()
            if keeper.listing is None
            and (keeper.is_offered or not keeper.settled.is_set())
            and keeper.link.standing.state is not LinkState.STOPPED
            and view.may_hold(keeper.link.segment)
        ]

    def postpone(self, call: ArrivingCall, make: Callable[[], Call]) -> bool:
        """Postpone a call until the servers that are still connecting after the start have arrived. Return False if all
        have arrived.

        `make` creates the call that then replaces it.
        """
        if (waits := self.maybe_wait()) is None:
            return False
        if call.caller.calls is not None:
            call.caller.calls[call.client_id] = call
        self._tasks.begin(answer_failures(call, self._make_later(call, waits, make)))
        return True

    async def _make_later(self, call: ArrivingCall, waits: Coroutine[Any, Any, None], make: Callable[[], Call]) -> None:
        await waits
        if call.done:
            return
        call.done = True
        if call.caller.calls is not None:
            call.caller.calls.pop(call.client_id, None)
        call.replacement = make()

    def _pending(self) -> list[tuple[float, Settle]]:
        """Return the servers that have neither connected nor failed yet. For each, return the seconds that are left,
        and a function that waits for it.
        """
        now = self._clock.now()
        left = self.wait_s - (now - self._started)
        pending = [(left, settle) for is_settled, settle in self._expected if left > 0 and not is_settled()]
        for keeper in self._keepers.values():
            if not keeper.settled.is_set() and (left := self.wait_s - (now - keeper.made_at)) > 0:
                pending.append((left, keeper.settled.wait))
        return pending

    async def _wait(self) -> None:
        """Wait until every server has connected or failed once, but at most until the time limit of each. Servers that
        are added meanwhile are waited for as well.
        """
        loop = asyncio.get_running_loop()
        pending = self._pending()
        deadline = loop.time() + max((left for left, _ in pending), default=0.0)
        while pending and (rest := deadline - loop.time()) > 0:
            tasks = [asyncio.ensure_future(settle()) for _, settle in pending]
            _, late = await asyncio.wait(tasks, timeout=min(rest, max(left for left, _ in pending)))
            for task in late:
                task.cancel()
            pending = self._pending()
