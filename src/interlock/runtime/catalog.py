"""The live namespace, built from what the links offer.

`Catalog.namespace` is an immutable snapshot, replaced whole when a server's offer changes. A caller's `View` of it is
chosen by its ViewKey and made once per snapshot: which names exist for it, under which spelling, and the bytes of the
lists. Order is that of the qualified names; nothing changes while no server does.
"""

from collections.abc import Callable, Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Final

import msgspec
from msgspec import Raw

from interlock.config.plan import Plan
from interlock.protocol.ax import route as ax_route
from interlock.protocol.ax.hop import degraded
from interlock.protocol.ax.names import Withheld, withhold_colliding_aliases
from interlock.protocol.ax.uris import maybe_own_uri, nested_segments, show_uri
from interlock.protocol.jsonrpc.codec import encode_value
from interlock.protocol.jsonrpc.errors import Fault
from interlock.protocol.mcp.cursor import encode_cursor
from interlock.protocol.mcp.eras import Era
from interlock.protocol.mcp.items import prompt_item, resource_item, tool_item
from interlock.protocol.mcp.methods import PROMPTS_LIST, RESOURCES_LIST, TOOLS_LIST
from interlock.protocol.mcp.templates import matches
from interlock.runtime.callers import ViewKey
from interlock.runtime.links.link import Link
from interlock.runtime.links.listing import Listing
from interlock.runtime.shelves import (
    NO_RULINGS,
    RESOURCE_SCHEME,
    Changed,
    Place,
    Route,
    Rulings,
    Shelf,
    changes,
    era_of,
    make_shelf,
)

PAGE_ITEMS: Final = 1000
PAGES_KEPT_MAX: Final = 128
SCOPES: Final = ("read", "write", "admin")
EVERYTHING: Final = ViewKey(dotted=True, scope="admin")


class Page(msgspec.Struct, frozen=True):
    items: bytes  # the JSON array
    next_cursor: str | None


class View:
    """The namespace as one kind of caller sees it."""

    def __init__(self, namespace: "Namespace", key: ViewKey) -> None:
        self._namespace = namespace
        self._key = key
        self._pages: dict[tuple[str, Era, str], Page] = {}
        shelves = namespace.shelves if key.only is None else _only(namespace.shelves, key.only)
        self._shelves = shelves
        self.tool_routes = [route for shelf in shelves for route in shelf.tools if self.may_see(route)]
        self.prompt_routes = [route for shelf in shelves for route in shelf.prompts if self.may_see(route)]
        self.tools = self._spelled(self.tool_routes)
        self.prompts = self._spelled(self.prompt_routes)
        open_segments = [shelf for shelf in shelves if self._covers(shelf.link.segment)]
        self._open = {shelf.link.segment: shelf for shelf in open_segments}
        self._degraded = frozenset(shelf.link.segment for shelf in shelves if shelf.degraded)
        self._resources = [place for shelf in open_segments for place in shelf.resources]
        self._templates = [place for shelf in open_segments for place in shelf.templates]

    # Finding

    def find_tool(self, name: str) -> Route | None:
        return self.tools.get(encode_value(name))

    def find_prompt(self, name: str) -> Route | None:
        return self.prompts.get(encode_value(name))

    def find_resource(self, uri: str) -> tuple[Link, str] | list[str]:
        """The server and the URI as it knows it, or the candidates when the URI alone does not say (MCP-AX 3.1)."""
        if self._key.only is not None:
            shelf = self._open.get(self._key.only)
            return (shelf.link, _bare(uri, shelf.link.segment)) if shelf is not None else []
        if uri.startswith(RESOURCE_SCHEME):
            for shelf in self._open.values():
                own = self._namespace.maybe_own_uri(shelf, uri)
                if own is not None:
                    return shelf.link, own
            return []
        found = {place.link.segment: place.link for place in self._resources if place.uri == uri}
        if not found:
            found = {place.link.segment: place.link for place in self._templates if matches(place.uri, uri)}
        if len(found) == 1:
            return next(iter(found.values())), uri
        return [self._namespace.show_uri(found[segment], uri) for segment in sorted(found)]

    def find_template(self, uri: str) -> tuple[Link, str] | None:
        """For completions, whose reference is a template as it was listed."""
        for place in (*self._templates, *self._resources):
            if uri in (place.shown, place.uri):
                return place.link, place.uri
        return None

    # Listing

    def page(self, method: str, era: Era, after: str) -> Page:
        cached = self._pages.get((method, era, after))
        if cached is None:
            if len(self._pages) >= PAGES_KEPT_MAX:  # a client may make up cursors
                self._pages.clear()
            cached = self._pages[(method, era, after)] = self._make_page(method, era, after)
        return cached

    @property
    def private(self) -> bool:
        """Whether a shared cache must not keep its lists: a server says so, or not everybody sees the same."""
        if self._key.dotted or self._key.tools != ("*",):
            return True
        return any(shelf.private or any(route.scope != "read" for route in shelf.tools) for shelf in self._shelves)

    @property
    def ttl_s(self) -> float | None:
        """The least cache hint of the servers behind it."""
        return min((shelf.ttl_s for shelf in self._shelves if shelf.ttl_s is not None), default=None)

    @property
    def links(self) -> list[Link]:
        return [shelf.link for shelf in self._shelves]

    def _make_page(self, method: str, era: Era, after: str) -> Page:
        if method in (TOOLS_LIST, PROMPTS_LIST):
            routes = self.tool_routes if method == TOOLS_LIST else self.prompt_routes
            chosen = [route for route in routes if route.qualified > after] if after else routes
            page = chosen[:PAGE_ITEMS]
            show = self._show_tool if method == TOOLS_LIST else self._show_prompt
            last = page[-1].qualified if len(chosen) > PAGE_ITEMS else None
            shown: Iterable[bytes] = (show(route, era) for route in page)
        else:
            places = self._resources if method == RESOURCES_LIST else self._templates
            left = [place for place in places if place.shown > after] if after else places
            member = "uri" if method == RESOURCES_LIST else "uriTemplate"
            shown = (self._show_place(place, member) for place in left[:PAGE_ITEMS])
            last = left[PAGE_ITEMS - 1].shown if len(left) > PAGE_ITEMS else None
        return Page(b"[%b]" % b",".join(shown), encode_cursor(last) if last is not None else None)

    def show_name(self, route: Route) -> str:
        if self._key.only is not None:
            return route.original  # unprefixed: just as the server says it
        return route.qualified if self._key.dotted else route.alias

    def _show_tool(self, route: Route, era: Era) -> bytes:
        name = self.show_name(route)
        meta = route.meta if name == route.qualified else {**route.meta, "x-mcpax-name": route.qualified}
        if self._degraded and route.link.segment in self._degraded and route.capability is not None:
            meta = degraded(meta, route.capability)
        return tool_item(
            route.item,
            name=name,
            meta=meta,
            hints=route.hints,
            server=era_of(route.link),
            client=era,
            tasks=route.link.tasks,
        )

    def tool_definition(self, route: Route, era: Era) -> bytes:
        return self._show_tool(route, era)

    def _show_prompt(self, route: Route, era: Era) -> bytes:
        name = self.show_name(route)
        meta = {} if name == route.qualified else {"x-mcpax-name": route.qualified}
        return prompt_item(route.item, name=name, meta=meta)

    def _show_place(self, place: Place, member: str) -> bytes:
        uri = place.uri if self._key.only is not None else place.shown
        return resource_item(place.item, member=member, uri=uri)

    # Who sees what

    def may_see(self, route: Route) -> bool:
        key = self._key
        if route.qualified in self._namespace.clashing or SCOPES.index(route.scope) > SCOPES.index(key.scope):
            return False
        return key.tools == ("*",) or any(fnmatchcase(route.qualified, pattern) for pattern in key.tools)

    def _covers(self, segment: str) -> bool:
        """Resources have no scope of their own: they are seen by whoever may see all of their server."""
        tools = self._key.tools
        return tools == ("*",) or any(fnmatchcase(f"{segment}.*", pattern) for pattern in tools)

    def _spelled(self, routes: list[Route]) -> Mapping[bytes, Route]:
        """Every spelling a caller may use, as the JSON text it arrives in."""
        spelled: dict[bytes, Route] = {}
        if self._key.only is not None:
            spelled.update((encode_value(route.local), route) for route in routes)
            spelled.update((bytes(route.wire_name), route) for route in routes)
        spelled.update((b'"%b"' % route.alias.encode(), route) for route in routes)
        spelled.update((b'"%b"' % route.qualified.encode(), route) for route in routes)
        return spelled


def _only(shelves: tuple[Shelf, ...], segment: str) -> tuple[Shelf, ...]:
    return tuple(shelf for shelf in shelves if shelf.link.segment == segment)


def _bare(uri: str, segment: str) -> str:
    prefix = f"{RESOURCE_SCHEME}{segment}/"
    return uri[len(prefix) :] if uri.startswith(prefix) else uri


class Namespace:
    """One snapshot."""

    def __init__(self, version: int, shelves: Iterable[Shelf], root_segment: str | None) -> None:
        self.version = version
        self._root = f"{root_segment}." if root_segment else ""
        self.shelves = tuple(sorted(shelves, key=lambda shelf: shelf.link.segment + "."))
        self.clashing = self._clashes()
        self._views: dict[ViewKey, View] = {}

    def view(self, key: ViewKey) -> View:
        view = self._views.get(key)
        if view is None:
            view = self._views[key] = View(self, key)
        return view

    def show_uri(self, link: Link, uri: str) -> str:
        return show_uri(f"{self._root}{link.segment}", uri, aggregator=link.offer.is_aggregator)

    def maybe_own_uri(self, shelf: Shelf, shown: str) -> str | None:
        return maybe_own_uri(f"{self._root}{shelf.link.segment}", shown, aggregator=shelf.offer.is_aggregator)

    def way(self, link: Link, uri: str) -> tuple[str, ...]:
        """The segments below us to whoever has the resource that `link` calls `uri`."""
        return (link.segment, *(nested_segments(uri) if link.offer.is_aggregator else ()))

    def onward(self, link: Link, uri: str) -> dict[str, Raw]:
        """The route of a request for a resource, as `link` hands it on: it ends in the segment of whoever has it."""
        return ax_route.as_meta(ax_route.start(self._root.rstrip(".") or None, self.way(link, uri)))

    def fingerprint(self, kind: str) -> tuple[object, ...]:
        """What clients are told of when it changes. Who offers a list decides what of it is shown."""
        return tuple(
            (
                shelf.link.segment,
                shelf.digests[kind],
                shelf.offer.kind,
                shelf.offer.proved,
                shelf.offer.scope,
                shelf.reconsidered,
            )
            for shelf in self.shelves
            if getattr(shelf, kind)
        )

    def withheld(self, link: Link) -> list[Withheld]:
        found = [one for shelf in self.shelves if shelf.link is link for one in shelf.withheld]
        prefix = f"{self._root}{link.segment}."
        found.extend(one for name, one in self.clashing.items() if name.startswith(prefix))
        return found

    def listed(self, routes: tuple[Route, ...]) -> tuple[Route, ...]:
        """Without those whose alias another name has too."""
        return tuple(route for route in routes if route.qualified not in self.clashing) if self.clashing else routes

    def _clashes(self) -> dict[str, Withheld]:
        """Names whose aliases collide are all withheld (MCP-AX 3.2, our rule)."""
        names = (route.qualified for shelf in self.shelves for route in (*shelf.tools, *shelf.prompts))
        return {one.name: one for one in withhold_colliding_aliases(names).withheld}


class Stocked(msgspec.Struct, frozen=True, kw_only=True):
    """What came of taking over a list. `refused`: the registration ends with this (MCP-AX 4.3)."""

    shelf: Shelf | None = None
    refused: Fault | None = None
    changed: tuple[Changed, ...] = ()


class Catalog:
    def __init__(self, plan: Plan, on_change: Callable[[frozenset[str]], None]) -> None:
        self._plan = plan
        self.rulings: Rulings = NO_RULINGS
        self.on_redefined: list[Callable[[tuple[Changed, ...]], None]] = []
        self.on_seen: list[Callable[[Shelf], None]] = []  # of a shelf with definitions to remember or to ask about
        self._on_change = on_change
        self._shelves: dict[str, Shelf] = {}
        self._stocking: dict[object, Link] = {}
        self.namespace = Namespace(0, (), plan.ax.root_segment)

    def replan(self, plan: Plan) -> None:
        """Other rules for tools: no shelf is good any more; whoever keeps the lists stocks them again."""
        self._plan = plan
        for segment in self._shelves:
            self.reconsider(segment)

    def reconsider(self, segment: str) -> None:
        """An operator has said something new of what it offers: when it is stocked next, its shelf is made anew."""
        shelf = self._shelves.get(segment)
        if shelf is not None:
            self._shelves[segment] = msgspec.structs.replace(shelf, stale=True)

    async def stock(self, link: Link, listing: Listing) -> Stocked:
        """Take over what a server now offers. Where it is refused, nothing of that server is listed any more."""
        old = self._shelves.get(link.segment)
        ticket = object()
        self._stocking[ticket] = link
        try:
            shelf = await make_shelf(link, listing, self._plan, old, self.rulings)
        finally:
            left = self._stocking.pop(ticket, None) is None
        if left:
            return Stocked()  # dropped while its list was being prepared
        if isinstance(shelf, Fault):
            self.drop(link)
            return Stocked(refused=shelf)
        if shelf is not old:
            for tell_seen in self.on_seen if shelf.seen else ():
                tell_seen(shelf)
            shelf = msgspec.structs.replace(shelf, seen=()) if shelf.seen else shelf
            self._shelves[link.segment] = shelf
            self._rebuild()
        changed = changes(old, shelf)
        if changed:
            for tell in self.on_redefined:
                tell(changed)
        return Stocked(shelf=shelf, changed=changed)

    def place(self, shelf: Shelf) -> None:
        """A shelf that was made by other means than a server's lists."""
        self._shelves[shelf.link.segment] = shelf
        self._rebuild()

    def degrade(self, link: Link) -> None:
        """Its tools stay listed, as degraded, until it is stocked again or dropped (MCP-AX 13.2)."""
        shelf = self._shelves.get(link.segment)
        if shelf is not None and shelf.link is link and not shelf.degraded:
            self._shelves[link.segment] = msgspec.structs.replace(shelf, degraded=True)
            self._rebuild()

    def drop(self, link: Link) -> None:
        """A link that was superseded by another of its segment no longer has anything to drop."""
        for ticket in [one for one, whose in self._stocking.items() if whose is link]:
            del self._stocking[ticket]
        shelf = self._shelves.get(link.segment)
        if shelf is not None and shelf.link is link:
            del self._shelves[link.segment]
            self._rebuild()

    def _rebuild(self) -> None:
        old = self.namespace
        new = Namespace(old.version + 1, self._shelves.values(), self._plan.ax.root_segment)
        self.namespace = new
        changed = {
            kind
            for kind in ("tools", "prompts", "resources", "templates")
            if old.fingerprint(kind) != new.fingerprint(kind)
        }
        if "templates" in changed:
            changed.add("resources")
        if changed:
            self._on_change(frozenset(changed - {"templates"}))
