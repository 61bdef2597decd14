"""Feeds, which carry events from one part of a node to others. The parts know the feed but not each other."""

from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

Event = TypeVar("Event")


class Feed(Generic[Event]):
    """A list of listeners to which events are published. Publishing calls the listeners at once, in the order in which
    they subscribed.
    """

    def __init__(self) -> None:
        self._listeners: list[Callable[[Event], None]] = []

    def subscribe(self, listener: Callable[[Event], None]) -> None:
        self._listeners.append(listener)

    def publish(self, event: Event) -> None:
        for listener in self._listeners:
            listener(event)


class AsyncFeed(Generic[Event]):
    """A list of listeners to which events are published. Publishing awaits the listeners one after the other, in the
    order in which they subscribed.
    """

    def __init__(self) -> None:
        self._listeners: list[Callable[[Event], Awaitable[None]]] = []

    def subscribe(self, listener: Callable[[Event], Awaitable[None]]) -> None:
        self._listeners.append(listener)

    async def publish(self, event: Event) -> None:
        for listener in self._listeners:
            await listener(event)
