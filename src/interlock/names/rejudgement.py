"""Tools judged again when the registry changes: those whose names it has, or had something to say of."""

from collections.abc import Callable, Iterator

from interlock.catalog.catalog import Namespace
from interlock.catalog.routes import Route
from interlock.core.background import BackgroundTasks
from interlock.core.feed import AsyncFeed, Feed
from interlock.names.protocol.model import Lookup


class Rejudgement:
    def __init__(
        self, lookup: Lookup, changed: Feed[None], namespace: Callable[[], Namespace], ruled: AsyncFeed[str]
    ) -> None:
        """`ruled` has the tools of a segment listed anew."""
        self._lookup = lookup
        self._namespace = namespace
        self._ruled = ruled
        self._work = BackgroundTasks()
        self._is_due = False
        self._is_open = False
        changed.subscribe(self._on_change)

    async def open(self) -> None:
        self._is_open = True

    async def close(self) -> None:
        self._is_open = False
        await self._work.finish()

    async def settle(self) -> None:
        """Until everything is judged by what the registry now says."""
        await self._work.finish()

    def _on_change(self, _: None) -> None:
        if not self._is_open:
            return  # what is listed later is judged by the registry as it is then
        is_working, self._is_due = self._is_due or len(self._work) > 0, True
        if not is_working:
            self._work.begin(self._judge_again(), name="tools judged by the registry")

    async def _judge_again(self) -> None:
        while self._is_due:
            self._is_due = False
            for segment in list(self._segments()):
                await self._ruled.publish(segment)

    def _segments(self) -> Iterator[str]:
        for items in self._namespace().link_items:
            if any(map(self._is_concerned, items.tools)):
                yield items.link.segment

    def _is_concerned(self, route: Route) -> bool:
        if route.surface is not None:
            return True
        return self._lookup.entry(route.original) is not None or self._lookup.entry(route.local) is not None
