"""The parts of the namespace that are reused in the next snapshot, so that the cost of a change depends only on what
changed.

A thousand servers may register one after another, and each adds one tool to twenty thousand. Whatever belongs to other
links is reused: the counts of equal aliases (`AliasCollisions`), and the encoded bytes of each listed item
(`ShownTools`). Changes that arrive close together are announced together (`PacedChanges`).
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from math import inf
from typing import Any, Final

import msgspec

from interlock.ax.protocol.names import WithheldName, may_collide, withhold_colliding_aliases
from interlock.catalog.routes import LinkItems, Place, Route, era_of
from interlock.mcp.methods import MODERN, Era

PAUSE_S: Final = 30.0


class PacedChanges:
    """A combiner of frequent changes. The first change is reported at once, and those during the following pause
    together at its end (X-10.1-3).
    """

    def __init__(self, tell: Callable[[frozenset[str]], None], pause_s: float = PAUSE_S) -> None:
        self._tell_now = tell
        self._pause_s = pause_s
        self._kinds: frozenset[str] = frozenset()
        self._told = -inf  # in the time of the loop
        self._timer: asyncio.TimerHandle | None = None

    def add(self, kinds: frozenset[str]) -> None:
        self._kinds |= kinds
        if self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(max(0.0, self._told + self._pause_s - loop.time()), self._tell)

    def _tell(self) -> None:
        self._timer, self._told = None, asyncio.get_running_loop().time()
        kinds, self._kinds = self._kinds, frozenset()
        self._tell_now(kinds)


Routes = Sequence[Route]


class VisiblePart(msgspec.Struct, frozen=True, eq=False):
    """The items of one link that one kind of caller can see."""

    tools: tuple[Route, ...]
    prompts: tuple[Route, ...]
    shown: "ShownItems"


class ShownItems:
    """The cached bytes of a link's tools, in one form of their names."""

    __slots__ = ("_era", "_legacy", "_modern", "_tasks", "items")

    def __init__(self, items: LinkItems, former: "ShownItems | None") -> None:
        self.items = items
        self._era = era_of(items.link)
        self._tasks = items.link.tasks
        self._modern: dict[Route, bytes] = {}
        self._legacy: dict[Route, bytes] = {}
        if former is not None and former.items.degraded is items.degraded and former._speaks_like(items):
            self._modern, self._legacy = (
                {route: cache[route] for route in items.tools if route in cache} if cache else {}
                for cache in (former._modern, former._legacy)
            )

    def is_of(self, items: LinkItems) -> bool:
        return self.items is items and self._speaks_like(items)

    def _speaks_like(self, items: LinkItems) -> bool:
        """Return whether the server still has the same era and the same support for tasks, which may change with a new
        connection.
        """
        return self._era is era_of(items.link) and self._tasks is items.link.tasks

    def tool(self, route: Route, era: Era, show: Callable[[Route, Era], bytes]) -> bytes:
        cache = self._modern if era is MODERN else self._legacy
        if (shown := cache.get(route)) is None:
            shown = cache[route] = show(route, era)
        return shown


class ShownTools:
    """The cached bytes of all listed tools. Callers that see names in the same form share them."""

    def __init__(self) -> None:
        self._kept: dict[str, dict[str, ShownItems]] = {}  # segment -> form -> them

    def of(self, items: LinkItems, form: str) -> ShownItems:
        forms = self._kept.setdefault(items.link.segment, {})
        if (shown := forms.get(form)) is None or not shown.is_of(items):
            shown = forms[form] = ShownItems(items, shown)
        return shown

    def forget(self, segment: str) -> None:
        self._kept.pop(segment, None)


class AliasCollisions:
    """The names whose aliases collide, which are all withheld (MCP-AX 3.2, our rule)."""

    def __init__(self) -> None:
        self._claims: dict[str, dict[str, int]] = {}  # alias -> name -> how many have it: a tool and a prompt may
        self.withheld: Mapping[str, WithheldName] = {}

    def replace(self, old: LinkItems | None, new: LinkItems | None) -> None:
        """Replace the items of one link. If the colliding names changed, `withheld` is a new object."""
        before, after = (() if items is None else (*items.tools, *items.prompts) for items in (old, new))
        gone, come = route_difference(before, after)
        aliases, names = set(), set()
        for routes, step in ((gone, -1), (come, 1)):
            for route in routes:
                if may_collide(route.alias):
                    self._count(route, step)
                    aliases.add(route.alias)
                    names.add(route.qualified)
        if not names.isdisjoint(self.withheld) or any(len(self._claims.get(entry, ())) > 1 for entry in aliases):
            disputed = [name for claimed in self._claims.values() if len(claimed) > 1 for name in claimed]
            self.withheld = {entry.name: entry for entry in withhold_colliding_aliases(disputed).withheld}

    def _count(self, route: Route, step: int) -> None:
        claimed = self._claims.setdefault(route.alias, {})
        claimed[route.qualified] = claimed.get(route.qualified, 0) + step
        if not claimed[route.qualified]:
            del claimed[route.qualified]
        if not claimed:
            del self._claims[route.alias]


def difference(old: LinkItems | None, new: LinkItems | None) -> tuple[frozenset[str], frozenset[str]]:
    """Return the kinds of lists that change when the items of a link are replaced.

    In the first, clients see other names, schemas or descriptions. In the second, only the MCP-AX metadata changes,
    which is for parents (6.3, our rule).
    """
    definitions = {kind for kind in ("tools", "prompts") if not _is_same(kind, old, new, _same_definition)}

    def is_same_place(place: Place, other: Place) -> bool:
        return place.shown == other.shown and place.item == other.item

    def is_same_metadata(route: Route, other: Route) -> bool:
        return route.meta == other.meta and route.item.get("_meta") == other.item.get("_meta")

    if not all(_is_same(kind, old, new, is_same_place) for kind in ("resources", "templates")):
        definitions.add("resources")
    was, now = old is not None and old.degraded, new is not None and new.degraded
    has_tools = new is not None and bool(new.tools)
    marked = (has_tools and was is not now) or not _is_same("tools", old, new, is_same_metadata)
    return frozenset(definitions), frozenset(("tools",) if marked else ()) - definitions


def _is_same(kind: str, old: LinkItems | None, new: LinkItems | None, same: Callable[[Any, Any], bool]) -> bool:
    was, now = getattr(old, kind, ()), getattr(new, kind, ())
    return was is now or (
        len(was) == len(now) and all(left is right or same(left, right) for left, right in zip(was, now, strict=True))
    )


def _same_definition(route: Route, other: Route) -> bool:
    # Check whether two items are equal apart from `_meta`, which clients do not show to models.
    return (
        route.qualified == other.qualified
        and (route.item == other.item or {**route.item, "_meta": None} == {**other.item, "_meta": None})
        and route.hints == other.hints
        and route.irreversible == other.irreversible  # a tool that turned dangerous is another
        and route.scope == other.scope
    )


def route_difference(old: Routes, new: Routes) -> tuple[Routes, Routes]:
    """Return the routes that are only in `old` and the routes that are only in `new`."""
    if not old or not new:
        return old, new
    before, after = set(old), set(new)
    return [route for route in old if route not in after], [route for route in new if route not in before]
