"""Servers that have yet to arrive: lists, and calls of tools that are not listed, wait for them within a bound.

After a start, many servers are still connecting. A client that lists tools at once would see too few, and a call of a
tool that appears a moment later would be refused. So both wait until every server has arrived. A server has arrived
when its first attempt to connect has ended, well or not. The bound counts from the moment at which the server was
started, so that a server that never connects delays nothing later on. Servers that are not there when the bound is
over are named as missing.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any

import msgspec

from interlock.catalog.catalog import View
from interlock.core.background import BackgroundTasks
from interlock.core.calls.call import Call, answer_failures
from interlock.core.clock import Clock
from interlock.core.link_state import LinkState
from interlock.links.keeper import Keeper

Settle = Callable[[], Awaitable[Any]]


class MissingServer(msgspec.Struct, frozen=True):
    """Server of which a client sees nothing, with the state of its link."""

    server: str
    state: str


class ArrivingCall(Call, eq=False, kw_only=True):
    """Call of something that is not listed yet. After the wait for servers, it is replaced by another call."""

    replacement: Call | None = None

    def cancel(self, reason: str) -> None:
        if self.replacement is not None:
            self.replacement.cancel(reason)
        else:
            super().cancel(reason)


class Arrivals:
    """Wait for the servers of a node that are still connecting after the start."""

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
        """Add a wait for servers that are not discovered yet and so have no keeper."""
        self._expected.append((is_settled, settle))

    def maybe_wait(self) -> Coroutine[Any, Any, None] | None:
        """Return a coroutine that waits for the servers which have not arrived yet, or None if all have arrived."""
        if not self._pending():
            return None
        if self._waiting is None or self._waiting.done():
            self._waiting = self._tasks.begin(self._wait())
        return _wait_for(self._waiting)

    def missing(self, view: View) -> list[MissingServer]:
        """Return the unavailable servers that have no items in this view."""
        return [
            MissingServer(keeper.link.segment, keeper.link.standing.state.value)
            for keeper in self._keepers.values()
            if keeper.listing is None
            and (keeper.is_offered or not keeper.settled.is_set())
            and keeper.link.standing.state is not LinkState.STOPPED
            and view.may_hold(keeper.link.segment)
        ]

    def postpone(self, call: ArrivingCall, make: Callable[[], Call]) -> bool:
        """Postpone a call until servers have arrived. Return False, without postponing it, if all have arrived.

        `make` creates the call that then replaces it.
        """
        waits = self.maybe_wait()
        if waits is None:
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
        """Return the waits that are not over, each with the seconds that are left."""
        now = self._clock.now()
        left = self.wait_s - (now - self._started)
        pending = [(left, settle) for is_settled, settle in self._expected if left > 0 and not is_settled()]
        for keeper in self._keepers.values():
            if not keeper.settled.is_set() and (left := self.wait_s - (now - keeper.made_at)) > 0:
                pending.append((left, keeper.settled.wait))
        return pending

    async def _wait(self) -> None:
        """Wait until all servers have arrived or their time is over. A server that arrives may add further servers."""
        loop = asyncio.get_running_loop()
        pending = self._pending()
        deadline = loop.time() + max((left for left, _ in pending), default=0.0)
        while pending and (rest := deadline - loop.time()) > 0:
            tasks = [asyncio.ensure_future(settle()) for _, settle in pending]
            _, late = await asyncio.wait(tasks, timeout=min(rest, max(left for left, _ in pending)))
            for task in late:
                task.cancel()
            pending = self._pending()


async def _wait_for(task: asyncio.Task[None]) -> None:
    await asyncio.shield(task)
