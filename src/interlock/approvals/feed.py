"""The feed of approvals: every change, in order, to the listeners of now.

A listener that reads too slowly loses the oldest changes, counted, and delays no other.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final, Self

from interlock.approvals.protocol.approval import Approval

QUEUE_MAX: Final = 1024  # changes waiting for one listener


class Listener:
    """An async iterator of approvals as they now stand; when it is closed, it ends after what had arrived."""

    def __init__(self, forget: Callable[["Listener"], None]) -> None:
        self.dropped = 0
        self._waiting: deque[Approval] = deque(maxlen=QUEUE_MAX)
        self._changed = asyncio.Event()
        self._closed = False
        self._forget = forget

    def deliver(self, approval: Approval) -> None:
        if len(self._waiting) == QUEUE_MAX:
            self.dropped += 1
        self._waiting.append(approval)
        self._changed.set()

    def close(self) -> None:
        self._closed = True
        self._changed.set()
        self._forget(self)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Approval:
        while not self._waiting:
            if self._closed:
                raise StopAsyncIteration
            self._changed.clear()
            await self._changed.wait()
        return self._waiting.popleft()


class ApprovalFeed:
    def __init__(self) -> None:
        self._listeners: dict[Listener, bool] = {}  # and whether it hears own changes alone
        self._closed = False

    def listen(self, *, only_own: bool = False) -> Listener:
        """`only_own`: of changes that this replica made, so that only one of several acts on each."""
        listener = Listener(self._forget)
        if self._closed:
            listener.close()
        else:
            self._listeners[listener] = only_own
        return listener

    def _forget(self, listener: Listener) -> None:
        self._listeners.pop(listener, None)

    def tell(self, approval: Approval, *, is_own: bool = True) -> None:
        for listener, only_own in self._listeners.items():
            if is_own or not only_own:
                listener.deliver(approval)

    def close(self) -> None:
        self._closed = True
        for listener in list(self._listeners):
            listener.close()
