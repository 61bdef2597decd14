"""Publish/subscribe inside one process: what a store on one machine needs, since a node is one process.

A subscriber that reads too slowly loses its oldest messages, counted; it never holds up a publisher.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Generic, Self, TypeVar

from interlock.store.ports import Unavailable

QUEUE_MAX = 1024  # messages waiting for one subscriber

T = TypeVar("T")


class LocalSubscription(Generic[T]):
    """An async iterator of what is delivered; it ends, after what had already arrived, when it is closed."""

    def __init__(self, forget: Callable[["LocalSubscription[T]"], None]) -> None:
        self.dropped = 0
        self._waiting: deque[T] = deque(maxlen=QUEUE_MAX)
        self._changed = asyncio.Event()
        self._closed = False
        self._forget = forget

    def deliver(self, data: T) -> None:
        if len(self._waiting) == QUEUE_MAX:
            self.dropped += 1
        self._waiting.append(data)
        self._changed.set()

    def close(self) -> None:
        self._closed = True
        self._changed.set()
        self._forget(self)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> T:
        while not self._waiting:
            if self._closed:
                raise StopAsyncIteration
            self._changed.clear()
            await self._changed.wait()
        return self._waiting.popleft()


class LocalPubSub:
    def __init__(self) -> None:
        self._subscriptions: dict[str, list[LocalSubscription[bytes]]] = {}
        self._closed = False

    async def publish(self, subject: str, data: bytes) -> None:
        if self._closed:
            raise Unavailable("publish/subscribe is closed")
        for subscription in self._subscriptions.get(subject, ()):
            subscription.deliver(data)

    def subscribe(self, subject: str) -> LocalSubscription[bytes]:
        subscription = LocalSubscription[bytes](lambda leaving: self._remove(subject, leaving))
        if self._closed:
            subscription.close()
        else:
            self._subscriptions.setdefault(subject, []).append(subscription)
        return subscription

    def close(self) -> None:
        self._closed = True
        for subscriptions in list(self._subscriptions.values()):
            for subscription in list(subscriptions):
                subscription.close()

    def _remove(self, subject: str, subscription: LocalSubscription[bytes]) -> None:
        subscriptions = self._subscriptions.get(subject, [])
        if subscription in subscriptions:
            subscriptions.remove(subscription)
        if not subscriptions:
            self._subscriptions.pop(subject, None)
