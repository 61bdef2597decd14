"""The queue of calls that wait for room: their links have as many calls under way as they may.

In: calls that were refused for want of room alone. Out: a call at a time, with its room taken, whenever another ends.
Principals take turns, so that the thousand calls of one do not keep the single call of another waiting. What waits is
bounded in number, in bytes and in time, for each principal and for all; beyond that a call is refused, as it was.
"""

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Final

from msgspec import Raw

from interlock.core.calls.call import Call, CallLink, WaitingCalls

WAIT_S: Final = 30.0
CALLS_MAX: Final = 16_384
BYTES_MAX: Final = 64 * 1024 * 1024
SHARES: Final = 2  # how many principals it takes to fill the queue

IsFull = Callable[[CallLink], bool]


class Place:
    """A call in the queue, until it leaves or gets its room."""

    __slots__ = ("_line", "_queue", "call", "has_room", "principal", "size")

    def __init__(self, call: Call, queue: "CallQueue") -> None:
        self.call = call
        self._queue: CallQueue | None = queue
        self._line: WaitingCalls | None = None
        self.principal = call.caller.principal.name
        self.size = sum(len(value) for value in call.params.values() if isinstance(value, Raw))
        self.has_room: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def join(self, line: WaitingCalls) -> None:
        self._line = line
        line.join(self)

    def leave(self) -> None:
        queue, self._queue = self._queue, None
        if queue is not None:
            queue.change(self, -1)
        if self._line is not None and self.has_room.done():
            self._line.forget_left(self.principal)


class LinkQueue:
    """Queue of the calls that wait for one link."""

    __slots__ = ("_is_full", "_link", "_turns")

    def __init__(self, link: CallLink, is_full: IsFull) -> None:
        self._link = link
        self._is_full = is_full
        self._turns: OrderedDict[str, deque[Place]] = OrderedDict()  # principal -> its calls; the next one is first

    def join(self, place: Place) -> None:
        self._turns.setdefault(place.principal, deque()).append(place)

    def forget_left(self, principal: str) -> None:
        """Remove a principal's first calls that no longer wait; nothing else releases them while the link is full."""
        places = self._turns.get(principal)
        if places is None:
            return
        while places and places[0].has_room.done():
            places.popleft()
        if not places:
            del self._turns[principal]
        if not self._turns and self._link.queue is self:
            self._link.queue = None

    def on_room(self) -> None:
        """Give the capacity of a call that has ended to the next waiting call, before any new call can take it."""
        while self._turns and not self._is_full(self._link):
            principal, places = self._turns.popitem(last=False)
            place = places.popleft()
            place.leave()
            if places:
                self._turns[principal] = places
            if place.call.done:  # its client left meanwhile
                place.has_room.cancel()
            elif not place.has_room.done():
                place.call.booked = self._link
                self._link.booked += 1
                place.has_room.set_result(None)
        if not self._turns:
            self._link.queue = None


class CallQueue:
    """All calls that wait for room."""

    def __init__(self, is_full: IsFull) -> None:
        """Create an empty queue; `is_full` returns whether a link has as many calls as it may."""
        self._is_full = is_full
        self.count = 0
        self._bytes = 0
        self._of: dict[str, tuple[int, int]] = {}  # principal -> calls and bytes

    def maybe_join(self, call: Call, link: CallLink) -> Place | None:
        """Add a call to the queue of a link, or return None if a limit is reached."""
        place = Place(call, self)
        calls, size = self._of.get(place.principal, (0, 0))
        if (
            self.count >= CALLS_MAX
            or self._bytes + place.size > BYTES_MAX
            or calls >= CALLS_MAX // SHARES
            or size + place.size > BYTES_MAX // SHARES
        ):
            return None
        self.change(place, 1)
        queue = link.queue
        if queue is None:
            queue = link.queue = LinkQueue(link, self._is_full)
        place.join(queue)
        return place

    async def wait(self, place: Place) -> bool:
        """Wait for capacity and return whether it became available in time."""
        try:
            await asyncio.wait((place.has_room,), timeout=WAIT_S)
            return place.has_room.done()
        finally:
            place.has_room.cancel()
            place.leave()

    def change(self, place: Place, by: int) -> None:
        self.count += by
        self._bytes += by * place.size
        calls, size = self._of.get(place.principal, (0, 0))
        if calls + by:
            self._of[place.principal] = (calls + by, size + by * place.size)
        else:
            self._of.pop(place.principal, None)
