"""Who wants to hear of approvals: what changed, in order, to those who listen now.

A listener that reads too slowly loses the oldest changes, counted, and holds nobody up.
"""

import asyncio
from collections import deque
from typing import Final, Self

from interlock.protocol.approvals.messages import Approval

CHANGES_MAX: Final = 1024  # waiting for one listener


class Listener:
    """An async iterator of approvals as they now stand; ends when it or the inbox is closed."""

    def __init__(self, circle: "Circle") -> None:
        self.dropped = 0
        self._circle = circle
        self._waiting: deque[Approval] = deque(maxlen=CHANGES_MAX)
        self._changed = asyncio.Event()
        self._closed = False

    def tell(self, approval: Approval) -> None:
        if len(self._waiting) == CHANGES_MAX:
            self.dropped += 1
        self._waiting.append(approval)
        self._changed.set()

    def close(self) -> None:
        self._closed = True
        self._changed.set()
        self._circle.forget(self)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Approval:
        while not self._waiting:
            if self._closed:
                raise StopAsyncIteration
            self._changed.clear()
            await self._changed.wait()
        return self._waiting.popleft()


class Circle:
    def __init__(self) -> None:
        self._listeners: set[Listener] = set()
        self._closed = False

    def listen(self) -> Listener:
        listener = Listener(self)
        if self._closed:
            listener.close()
        else:
            self._listeners.add(listener)
        return listener

    def tell(self, approval: Approval) -> None:
        for listener in self._listeners:
            listener.tell(approval)

    def forget(self, listener: Listener) -> None:
        self._listeners.discard(listener)

    def close(self) -> None:
        self._closed = True
        for listener in list(self._listeners):
            listener.close()
