"""The live namespace, built from the items of all links.

`Catalog` receives the items of one link at a time (`link_items`) and publishes immutable snapshots: `Namespace` is
replaced as a whole when the list of a server changes. Changes that arrive close together are published together
(`incremental.PacedChanges`), because each one costs every client its cached list.

A caller sees a `View` of the snapshot. Its ViewKey says what the caller may see: scope, server, hidden rooms, spelling
of names. Equal keys share a view, which is built once for each snapshot: the names that exist, how they are spelled,
and the bytes of the lists. Parts of a view are taken over from the previous snapshot, so that a change costs only what
changed.

A list has the servers in the order of the configuration, then all other links by segment, and the items of each server
in the order in which that server lists them. It stays the same to the byte while no server changes.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, InitVar, dataclass, field
from fnmatch import fnmatchcase
from functools import cached_property
from itertools import dropwhile
from operator import attrgetter
from typing import Final, TypeVar

import msgspec
from msgspec import Raw

from interlock.ax.protocol import route as ax_route
from interlock.ax.protocol.capability import AuthScope, needed_hints
from interlock.ax.protocol.hop_metadata import Unlisted, degraded_meta, lean_meta
from interlock.ax.protocol.names import (
    WithheldName,
    maybe_own_uri,
    nested_segments,
    normalise,
    read_dotted,
    show_uri,
)
from interlock.catalog.link_items import make_link_items
from interlock.catalog.near_names import near_names
from interlock.catalog.routes import (
    HIDDEN,
    RESOURCE_SCHEME,
    TOOL,
    AliasCollisions,
    ChangedDefinition,
    ChecksFor,
    DefinitionState,
    LinkItems,
    PacedChanges,
    Place,
    Route,
    Routes,
    Rulings,
    ShownTools,
    Surfaces,
    VisiblePart,
    changes,
    difference,
    era_of,
    is_provided,
    route_difference,
)
from interlock.config.plan import Plan
from interlock.core.calls.call import AccessList
from interlock.core.calls.caller import ViewKey
from interlock.core.feed import Feed
from interlock.links.link import Link
from interlock.links.listing import Listing
from interlock.mcp.items import Matcher, encode_cursor, find_value, prompt_item, resource_item, tool_item
from interlock.mcp.methods import PROMPTS_LIST, RESOURCES_LIST, TOOLS_LIST, Era
from interlock.wire.jsonrpc.codec import encode_value
from interlock.wire.refusal import Refusal

PAGE_ITEMS: Final = 1000
VIEWS_KEPT_FOR: Final = 64  # snapshots in which no request asked for it
PAGES_KEPT_MAX: Final = 128
SCOPES: Final = ("read", "write", "admin")
# Which capability of a server comes with each kind of list.
LISTED_UNDER: Final = {"tool": "tools", "prompt": "prompts", "resource": "resources", "template": "resources"}
SEGMENT_END: Final = "/"  # in a cursor, between a segment, which has none in it, and a name
EVERYTHING: Final = ViewKey(dotted=True, scope="admin", who=None)


Listed = TypeVar("Listed", Route, Place)


class ListPage(msgspec.Struct, frozen=True):
    items: bytes  # the JSON array
    next_cursor: str | None


class View:
    """The part of the namespace that callers with the same key can see. It reuses the parts of `former`, the view of an
    earlier snapshot, that have not changed.
    """

    def __init__(self, namespace: "Namespace", key: ViewKey, former: "View | None" = None) -> None:
        self._namespace = namespace
        self.key = key
        self.pages: dict[tuple[str, Era, str], ListPage] = {}
        link_items = namespace.link_items
        if key.only is not None:
            link_items = tuple(items for items in link_items if items.link.segment == key.only)
        if key.hidden:
            link_items = tuple(
                items for items in link_items if items.link.members is None or items.link.members.name not in key.hidden
            )
        self._link_items = link_items
        if former is not None and (key.only is not None or former._namespace.clashing != namespace.clashing):
            former = None
        # Views with the same form of names share the encoded bytes of tools.
        names = "original" if key.only is not None else "qualified" if key.dotted else "alias"
        form = f"{names} full" if key.full else names
        self._parts: dict[str, VisiblePart] = {}
        for items in link_items:
            part = former._parts.get(items.link.segment) if former is not None else None
            if part is None or not part.shown.is_of(items):
                shown = namespace.shown.of(items, form)
                part = VisiblePart(self._visible_routes(items.tools), self._visible_routes(items.prompts), shown)
            self._parts[items.link.segment] = part
        self._spelled, self.prompts = self._spell_all(former)
        self._bare = self._providers()  # names without a segment, and who serves each now (REG-8.1-7)
        self.tools = self._spelled
        if self._bare:
            self.tools = self._spelled | {encode_value(name): route for name, route in self._bare.items()}

    def _visible_routes(self, routes: tuple[Route, ...]) -> tuple[Route, ...]:
        key = self.key
        if self._namespace.clashing or key.tools != ("*",):
            return tuple(route for route in routes if self.may_see(route))
        if key.scope == SCOPES[-1]:
            return routes
        scopes = SCOPES[: SCOPES.index(key.scope) + 1]
        return tuple(route for route in routes if route.scope in scopes)

    def _spell_all(self, former: "View | None") -> tuple[dict[bytes, Route], dict[bytes, Route]]:
        new = parts = list(self._parts.values())
        gone: list[VisiblePart] = []
        if former is not None:
            gone = [part for name, part in former._parts.items() if self._parts.get(name) is not part]
            new = [part for name, part in self._parts.items() if former._parts.get(name) is not part]
        if former is None or len(gone) * 2 > len(parts):
            return (
                self._spellings([route for part in parts for route in part.tools]),
                self._spellings([route for part in parts for route in part.prompts]),
            )
        tools = [[route for part in changed for route in part.tools] for changed in (gone, new)]
        prompts = [[route for part in changed for route in part.prompts] for changed in (gone, new)]
        return self._respell(former._spelled, *tools), self._respell(former.prompts, *prompts)

    def _respell(self, former: dict[bytes, Route], old: Routes, new: Routes) -> dict[bytes, Route]:
        gone, come = route_difference(old, new)
        if not gone and not come:
            return former
        spelled = former.copy()
        for name in self._spellings(gone):
            del spelled[name]
        spelled.update(self._spellings(come))
        return spelled

    def _providers(self) -> dict[str, Route]:
        """Return the tools that can be called by their registered name without a segment, as the setting
        `registry.routes` allows, by this name.

        It leads to the first present server that follows the specification of the name. Parent nodes only get names
        with segments.
        """
        if self.key.only is not None or self.key.full:
            return {}
        providers: dict[str, Route] = {}
        for name, segments in self._namespace.providers.items():
            parts = (self._parts[segment] for segment in segments if segment in self._parts)
            there = (route for part in parts if not part.shown.items.degraded for route in part.tools)
            providing = (
                route
                for route in there
                if name in (route.original, route.local) and not route.is_refused and is_provided(route.surface, name)
            )
            if (provider := next(providing, None)) is not None:
                providers[name] = provider
        return providers

    @cached_property
    def tool_routes(self) -> list[Route]:
        """Return the routes of the listed tools. Tools that the names registry refuses are not listed."""
        return [route for part in self._parts.values() for route in part.tools if not route.is_refused]

    @cached_property
    def prompt_routes(self) -> list[Route]:
        return [route for part in self._parts.values() for route in part.prompts]

    @cached_property
    def _open(self) -> dict[str, LinkItems]:
        return {items.link.segment: items for items in self._link_items if self._covers(items.link.segment)}

    @cached_property
    def _resources(self) -> list[Place]:
        return [place for items in self._open.values() for place in items.resources]

    @cached_property
    def _templates(self) -> list[Place]:
        return [place for items in self._open.values() for place in items.templates]

    # Finding

    def find_tool(self, name: str) -> Route | None:
        return self.tools.get(encode_value(name))

    def near_names(self, name: str) -> list[str]:
        """Return the names of tools in this view that a caller may have meant by an unknown name."""
        return near_names(name, (self.show_name(route) for route in self.tool_routes))

    def find_prompt(self, name: str) -> Route | None:
        return self.prompts.get(encode_value(name))

    def find_resource(self, uri: str) -> tuple[Link, str] | list[str]:
        """Return the server of a resource and the URI at that server. If the URI alone is ambiguous, return a list of
        the resources that it may mean (MCP-AX 3.1); if there is no such resource, return an empty list.
        """
        if self.key.only is not None:
            items = self._open.get(self.key.only)
            return (items.link, _bare(uri, items.link.segment)) if items is not None else []
        if uri.startswith(RESOURCE_SCHEME):
            for items in self._open.values():
                if (own := self._namespace.maybe_own_uri(items, uri)) is not None:
                    return items.link, own
            return []
        candidates = {place.shown: (place.link, place.uri) for place in self._resources if place.bare == uri}
        if not candidates:
            matcher = Matcher(uri)
            matching = (place for place in self._templates if matcher.matches(place.bare))
            below = ((place.link, place.uri.removesuffix(place.bare) + uri) for place in matching)
            candidates = {self._namespace.show_uri(link, own): (link, own) for link, own in below}
        return next(iter(candidates.values())) if len(candidates) == 1 else sorted(candidates)

    def find_template(self, uri: str) -> tuple[Link, str] | None:
        """Return the server of a resource template and the template at that server, or None.

        It is used for completions, which refer to a template as it was listed.
        """
        for place in (*self._templates, *self._resources):
            if uri in (place.shown, place.uri):
                return place.link, place.uri
        return None

    # Listing

    def page(self, method: str, era: Era, after: str) -> ListPage:
        if (cached := self.pages.get((method, era, after))) is None:
            if len(self.pages) >= PAGES_KEPT_MAX:  # a client may make up cursors
                self.pages.clear()
            if method in (TOOLS_LIST, PROMPTS_LIST):
                routes = self.tool_routes if method == TOOLS_LIST else self.prompt_routes
                left = self._after(after, routes, _qualified)
                page = left[:PAGE_ITEMS]
                last = place_of(page[-1]) if len(left) > PAGE_ITEMS else None
                shown: list[bytes] = []
                if method == TOOLS_LIST and not after:
                    shown += [self.show_tool(route, era, name) for name, route in sorted(self._bare.items())]
                for route in page:
                    if method == TOOLS_LIST:
                        shown.append(self._parts[route.link.segment].shown.tool(route, era, self.show_tool))
                    else:
                        name = self.show_name(route)
                        meta = {} if name == route.qualified else {"x-mcpax-name": route.qualified}
                        shown.append(prompt_item(route.item, name=name, meta=meta))
            else:
                places = self._resources if method == RESOURCES_LIST else self._templates
                resources = self._after(after, places, _shown)
                member = "uri" if method == RESOURCES_LIST else "uriTemplate"
                is_one = self.is_of_one_server
                shown = [
                    resource_item(place.item, member=member, uri=place.uri if is_one else place.shown)
                    for place in resources[:PAGE_ITEMS]
                ]
                last = place_of(resources[PAGE_ITEMS - 1]) if len(resources) > PAGE_ITEMS else None
            cached = self.pages[(method, era, after)] = ListPage(
                b"[%b]" % b",".join(shown), encode_cursor(last) if last is not None else None
            )
        return cached

    def tool_routes_after(self, after: str) -> Sequence[Route]:
        """Return the routes of the listed tools that follow the place in a cursor."""
        return self._after(after, self.tool_routes, _qualified)

    def _after(self, after: str, items: Sequence[Listed], name_of: Callable[[Listed], str]) -> Sequence[Listed]:
        """Return the items of a list that follow the place in a cursor.

        If the last item of the page before is gone, the items of its server are repeated, because any place among them
        could leave out an item that was there throughout. If its server is gone, the next server follows.
        """
        if not after:
            return items
        segment, _, name = after.partition(SEGMENT_END)
        for at, item in enumerate(items):
            if name_of(item) == name and item.link.segment == segment:
                return items[at + 1 :]
        order = self._namespace.order
        place = order.place(segment)
        return list(dropwhile(lambda item: order.place(item.link.segment) < place, items))

    @cached_property
    def private(self) -> bool:
        """Return whether shared caches must not store the lists, because a server forbids it or callers see different
        lists.
        """
        if self.key.dotted or self.key.tools != ("*",) or self._namespace.members:
            return True
        return any(items.private or any(route.scope != "read" for route in items.tools) for items in self._link_items)

    @cached_property
    def ttl_s(self) -> float | None:
        """Return the shortest cache lifetime that a server in this view suggests, or None if there is none."""
        return min((items.ttl_s for items in self._link_items if items.ttl_s is not None), default=None)

    @property
    def links(self) -> list[Link]:
        return [items.link for items in self._link_items]

    @property
    def is_of_one_server(self) -> bool:
        """Return whether this view shows the names of a single server without a prefix."""
        return self.key.only is not None

    def shows(self, link: Link) -> bool:
        """Return whether the caller can see any tool, prompt or resource of a link."""
        part = self._parts.get(link.segment)
        return part is not None and bool(part.tools or part.prompts or link.segment in self._open)

    def may_hold(self, segment: str) -> bool:
        """Return whether the caller's [[access]] entry could allow a tool in this segment, whether or
        not it has tools.
        """
        if self.key.only is not None:
            return segment == self.key.only
        tools, prefix = self.key.tools, self._namespace.prefix(segment)
        return tools == ("*",) or any(each.startswith(prefix) or fnmatchcase(prefix, each) for each in tools)

    def show_name(self, route: Route) -> str:
        if self.key.only is not None:
            return route.original  # unprefixed: just as the server says it
        return route.qualified if self.key.dotted else route.alias

    def show_tool(self, route: Route, era: Era, bare: str | None = None) -> bytes:
        name, meta, hints = bare or self.show_name(route), route.meta, route.hints
        if route.capability is not None and self._parts[route.link.segment].shown.items.degraded:
            meta = degraded_meta(meta)
        if not self.key.full:
            annotations = find_value(route.item, "annotations")
            hints = needed_hints(hints, annotations)
            meta = lean_meta(meta, {**annotations, **hints} if isinstance(annotations, dict) else hints)
        if name != route.qualified:
            meta = {**meta, "x-mcpax-name": route.qualified}
        return tool_item(
            route.item,
            name=name,
            meta=meta,
            hints=hints,
            server=era_of(route.link),
            client=era,
            tasks=route.link.tasks,
        )

    # Who sees what

    def may_see(self, route: Route) -> bool:
        return route.qualified not in self._namespace.clashing and self._is_in_scope(route) and self._is_named(route)

    def _is_in_scope(self, route: Route) -> bool:
        return SCOPES.index(route.scope) <= SCOPES.index(self.key.scope)

    def _is_named(self, route: Route) -> bool:
        return self.names_tool(route.qualified)

    def names_tool(self, qualified: str) -> bool:
        """Return whether the caller's [[access]] entry allows a tool of this name, whether or not such a tool is
        listed.
        """
        tools = self.key.tools
        return tools == ("*",) or any(fnmatchcase(qualified, pattern) for pattern in tools)

    @property
    def instructions(self) -> list[tuple[str, str]]:
        """Return the instructions of each server that has some, with its segment, as clients see them."""
        texts = ((items.link.segment, items.instructions.text) for items in self._link_items)
        return [(segment, text) for segment, text in texts if text]

    # What is not listed

    def qualify(self, segment: str, local: str) -> str:
        return self._namespace.prefix(segment) + local

    def find_name_below(self, segment: str, name: str) -> str | None:
        """Return the qualified name for a name that a caller used, in any spelling. Return None if the name does not
        begin with the prefix of this segment.
        """
        prefix = self._namespace.prefix(segment)
        if self.key.only is not None:
            return f"{prefix}{name}" if segment == self.key.only else None
        for dot in (".", "__", "_D_"):
            head = prefix.replace(".", dot)
            if name.startswith(head):
                return prefix + name[len(head) :].replace(dot, ".")
        return None

    def withheld(self) -> Iterator[tuple[str, str, WithheldName]]:
        """Yield the withheld tools that the caller would be allowed to see, each with its segment, qualified name and
        reason. Leave out tools that the operator hides.
        """
        for items in self._link_items:
            segment = items.link.segment
            for entry in items.withheld:
                local = entry.name if read_dotted(entry.name) is not None else normalise(entry.name)
                qualified = self.qualify(segment, local)
                if entry.is_tool and entry.reason != HIDDEN and self.names_tool(qualified):
                    yield segment, qualified, entry
            prefix = self._namespace.prefix(segment)
            for name, entry in self._namespace.clashing.items():
                if name.startswith(prefix) and self.names_tool(name):
                    yield segment, name, entry

    @cached_property
    def unlisted(self) -> Unlisted:
        """Return how many tools are listed for other callers but not for this caller. Hidden links do not count."""
        listed = [visible for items in self._link_items for visible in self._namespace.without_collisions(items.tools)]
        within = [route for route in listed if self._is_in_scope(route)]
        return Unlisted(
            scope=AuthScope(self.key.scope),
            beyond_scope=len(listed) - len(within),
            beyond_access=sum(not self._is_named(route) for route in within),
        )

    def _covers(self, segment: str) -> bool:
        """Return whether the caller's [[access]] entry lets it see the resources of a server.

        Resources have no scope. They are visible to callers whose patterns cover all names of their server; such a
        pattern ends in a star, which may match nothing.
        """
        tools, prefix = self.key.tools, self._namespace.prefix(segment)
        return tools == ("*",) or any(each.endswith("*") and fnmatchcase(prefix, each) for each in tools)

    def _spellings(self, routes: Routes) -> dict[bytes, Route]:
        """Return the routes by the names under which a caller can call them, each as encoded JSON: qualified names,
        aliases and, for a single server, its own names.
        """
        spelled: dict[bytes, Route] = {}
        is_one = self.key.only is not None
        if is_one:
            spelled.update((encode_value(route.local), route) for route in routes)
        spelled.update((b'"%b"' % route.alias.encode(), route) for route in routes)
        spelled.update((b'"%b"' % route.qualified.encode(), route) for route in routes)
        if is_one:  # the server's own names come before all others, whatever they look like
            spelled.update((bytes(route.wire_name), route) for route in routes)
        return spelled


_qualified: Final = attrgetter("qualified")
_shown: Final = attrgetter("shown")


def place_of(item: Route | Place) -> str:
    """Return a text that says where an item is in the lists, for use in a cursor."""
    return f"{item.link.segment}{SEGMENT_END}{item.shown if isinstance(item, Place) else item.qualified}"


def _bare(uri: str, segment: str) -> str:
    prefix = f"{RESOURCE_SCHEME}{segment}/"
    return uri[len(prefix) :] if uri.startswith(prefix) else uri


class LinkOrder(msgspec.Struct, frozen=True):
    """The order of links in lists: servers as they are configured, then all others by segment."""

    configured: Mapping[str, int] = {}

    @classmethod
    def of(cls, plan: Plan) -> "LinkOrder":
        segments = [*(server.segment for server in plan.servers), *(child.segment for child in plan.ax.children)]
        return cls({segment: place for place, segment in enumerate(segments)})

    def place(self, segment: str) -> tuple[int, str]:
        return self.configured.get(segment, len(self.configured)), f"{segment}."


@dataclass(eq=False)
class Namespace:
    """An immutable snapshot of the items of all links, with the names that collide between them."""

    version: int
    link_items: tuple[LinkItems, ...]  # in the order of `order`
    root_segment: str | None
    clashing: Mapping[str, WithheldName]
    shown: ShownTools
    former: InitVar["Namespace | None"] = None  # the previous snapshot, whose views are reused
    # Names that are offered without a segment, and the segments that may serve each.
    providers: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    order: LinkOrder = field(default_factory=LinkOrder)

    def __post_init__(self, former: "Namespace | None") -> None:
        self._root = f"{self.root_segment}." if self.root_segment else ""
        self._views: dict[ViewKey, View] = {}
        self._former: dict[ViewKey, tuple[int, View]] = former.hand_over() if former is not None else {}

    def view(self, key: ViewKey) -> View:
        if (view := self._views.get(key)) is None:
            shared = key
            if (who := key.who) is not None:
                hidden = frozenset(name for name, members in self.members.items() if not members.admits(who))
                shared = msgspec.structs.replace(key, who=None, hidden=hidden)
            if (view := self._views.get(shared)) is None:
                _, former = self._former.pop(shared, (0, None))
                view = self._views[shared] = View(self, shared, former)
            self._views[key] = view
        return view

    @cached_property
    def members(self) -> dict[str, AccessList]:
        """Return the access lists of the links that are not open to every client."""
        return {items.link.members.name: items.link.members for items in self.link_items if items.link.members}

    def hand_over(self) -> dict[ViewKey, tuple[int, View]]:
        """Remove the cached views from this snapshot and return them for the next one. Views of recent snapshots that
        were not used since are included.

        A view refers to its snapshot. If the snapshot also kept referring to its views, only the garbage collector
        could free both.
        """
        former, self._former = self._former, {}
        views, self._views = self._views, {}
        for view in views.values():
            view.pages.clear()
        recent = {key: entry for key, entry in former.items() if self.version - entry[0] < VIEWS_KEPT_FOR}
        return recent | {key: (self.version, view) for key, view in views.items() if key.who is None}

    def prefix(self, segment: str) -> str:
        """Return the prefix of all qualified names of a server."""
        return f"{self._root}{segment}."

    def show_uri(self, link: Link, uri: str) -> str:
        return show_uri(f"{self._root}{link.segment}", uri, aggregator=link.offer.is_aggregator)

    def maybe_own_uri(self, items: LinkItems, shown: str) -> str | None:
        return maybe_own_uri(f"{self._root}{items.link.segment}", shown, aggregator=items.offer.is_aggregator)

    def way(self, link: Link, uri: str) -> tuple[str, ...]:
        """Return the segments from this node to the server of a resource. `uri` is its URI at `link`."""
        return (link.segment, *(nested_segments(uri) if link.offer.is_aggregator else ()))

    def onward(self, link: Link, uri: str) -> dict[str, Raw]:
        """Return the MCP-AX route for a resource request that is sent over `link`, as members of `_meta`. The route
        ends with the segment of the resource's server.
        """
        return ax_route.as_meta(ax_route.start(self._root.rstrip(".") or None, self.way(link, uri)))

    def withheld(self, link: Link) -> list[WithheldName]:
        reasons = [entry for items in self.link_items if items.link is link for entry in items.withheld]
        reasons.extend(
            WithheldName(name=route.original, reason=route.surface.warning, code=route.refusal.message)  # REG-8.1-2
            for items in self.link_items
            if items.link is link
            for route in items.tools
            if route.surface is not None and route.refusal is not None
        )
        prefix = self.prefix(link.segment)
        reasons.extend(entry for name, entry in self.clashing.items() if name.startswith(prefix))
        return reasons

    def without_collisions(self, routes: tuple[Route, ...]) -> tuple[Route, ...]:
        """Return the routes to list: without tools that the registry refuses, and without tools whose aliases
        collide.
        """
        return tuple(route for route in routes if route.qualified not in self.clashing and not route.is_refused)


def _read_counts(link: Link, listing: Listing) -> dict[str, int]:
    """Return how many items of each kind a server listed, for example tools. A kind whose list was not read is left
    out.

    The first list of tools that is not empty counts as the first one: before that, a server may wait for a login. With
    it, everything else is known, also that there is none.
    """
    counts = {
        kind: len(getattr(listing, f"{kind}s").items)
        for kind in ("tool", "prompt", "resource", "template")
        if getattr(listing, f"{kind}s").digest or (link.facts and LISTED_UNDER[kind] not in link.facts.capabilities)
    }
    counts["instructions"] = int(link.facts is not None and bool(link.facts.instructions))
    return {kind: count for kind, count in counts.items() if count or (kind != "tool" and counts.get("tool"))}


class LiveNamespace:
    """A holder of the current snapshot of the namespace.

    It is created before the catalog, which replaces the snapshot, so that checks and names can read it.
    """

    __slots__ = ("current",)

    def __init__(self, root_segment: str | None) -> None:
        self.current = Namespace(0, (), root_segment, {}, ShownTools())

    def find_tool(self, name: str) -> Route | None:
        """Return the tool with this qualified name even if no client may see it, or None if there is no such tool."""
        return self.current.view(EVERYTHING).find_tool(name)


class ListUpdate(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of applying a server's list. `refused` is the refusal that ends its registration (MCP-AX 4.3)."""

    items: LinkItems | None = None
    refused: Refusal | None = None
    changed: tuple[ChangedDefinition, ...] = ()


@dataclass(eq=False)
class Catalog:
    """The builder of the live namespace, which receives the items of each link and publishes snapshots.

    Both callbacks get the kinds of lists that changed. `on_metadata` is called if only the MCP-AX metadata of tools
    changed.
    """

    plan: Plan
    on_change: Callable[[frozenset[str]], None]
    on_metadata: Callable[[frozenset[str]], None] = lambda kinds: None
    _: KW_ONLY
    checks_for: ChecksFor
    live: LiveNamespace  # receives each new snapshot
    rulings: Rulings = field(default_factory=Rulings)
    redefined: Feed[Mapping[str, str]] = field(default_factory=Feed)  # the new digests, by tool
    surfaces: Surfaces = field(default_factory=Surfaces)

    def __post_init__(self) -> None:
        self._paced = PacedChanges(self.on_change)  # of rooms, where many come and go
        self._link_items: dict[str, LinkItems] = {}
        self._order = LinkOrder.of(self.plan)
        self._sorted: list[LinkItems] = []
        self._clashes = AliasCollisions()
        self._stocking: dict[object, Link] = {}
        self._shown = self.live.current.shown
        self._said = 0  # how often an operator said something else of the tools

    @property
    def namespace(self) -> Namespace:
        return self.live.current

    def has_segment(self, segment: str) -> bool:
        return segment in self._link_items

    def tool_routes(self, link: Link) -> tuple[Route, ...]:
        """Return the routes to the tools of a link. The result is empty if another link has taken over its segment."""
        items = self._link_items.get(link.segment)
        return items.tools if items is not None and items.link is link else ()

    def replan(self, plan: Plan) -> None:
        """Apply a changed configuration of tools. All items count as stale until their lists are put into the namespace
        again.
        """
        self.plan = plan
        self._said += 1
        for segment in self._link_items:
            self.reconsider(segment)
        if (order := LinkOrder.of(plan)) != self._order:
            self._order = order
            before = [items.link.segment for items in self._sorted]
            self._sorted.sort(key=self._place)
            self._renew()
            if before != [items.link.segment for items in self._sorted]:
                self.on_change(frozenset(("tools", "prompts", "resources")))

    def reconsider(self, segment: str) -> None:
        """Mark the items of a segment as stale, because an operator decided about one of its tools. The next listing
        then builds all of them again.
        """
        self._said += 1
        if (items := self._link_items.get(segment)) is not None:
            self._link_items[segment] = msgspec.structs.replace(items, stale=True)

    async def stock(self, link: Link, listing: Listing) -> ListUpdate:
        """Put the lists of a server into the namespace. If they are refused, remove all items of the server."""
        old = self._link_items.get(link.segment)
        ticket = object()
        self._stocking[ticket] = link
        try:
            before, revision = old, -1
            while revision != self._said:  # by rules that hold no more, a tool could be let through that is held by now
                revision = self._said
                items = await make_link_items(
                    link, listing, self.plan, before, self.rulings, checks_for=self.checks_for, surfaces=self.surfaces
                )
                before = msgspec.structs.replace(old, stale=True) if old is not None else None
        finally:
            left = self._stocking.pop(ticket, None) is None
        if left:
            return ListUpdate()  # dropped while its list was being prepared
        if isinstance(items, Refusal):
            self.drop(link)
            return ListUpdate(refused=items)
        changed = changes(old, items)
        redefined = {definition.name: definition.after.offered_digest for definition in changed}
        if items is not old:
            # A tool can be withheld because it changed.
            seen_tools = ((seen, look) for seen, look in items.seen if seen.kind == TOOL)
            redefined |= {seen.tool: seen.digest for seen, look in seen_tools if look is DefinitionState.CHANGED}
            self.rulings.process_seen(link.segment, items.seen, _read_counts(link, listing))
            items = msgspec.structs.replace(items, seen=()) if items.seen else items
            self.place(items)
        if redefined:
            self.redefined.publish(redefined)
        return ListUpdate(items=items, changed=changed)

    async def stock_again(self, link: Link, listing: Listing) -> None:
        """Put the lists of a server into the namespace again, because configuration or decisions changed. If the server
        was marked as degraded, it stays so.
        """
        old = self._link_items.get(link.segment)
        await self.stock(link, listing)
        if old is not None and old.link is link and old.degraded:
            self.degrade(link)

    def place(self, items: LinkItems) -> None:
        """Replace the items of a segment, or add them at their position in the order of segments."""
        segment = items.link.segment
        old = self._link_items.get(segment)
        place = bisect_left(self._sorted, self._order.place(segment), key=self._place)
        if old is None:
            self._sorted.insert(place, items)
        self._link_items[segment] = self._sorted[place] = items
        self._replace(old, items)

    def degrade(self, link: Link) -> None:
        """Mark the tools of a link as degraded. They stay listed until the server is back or the link is dropped
        (MCP-AX 13.2).
        """
        items = self._link_items.get(link.segment)
        if items is not None and items.link is link and not items.degraded:
            self.place(msgspec.structs.replace(items, degraded=True))

    def drop(self, link: Link) -> None:
        """Remove the items of a link, unless another link has taken over its segment."""
        for ticket in [candidate for candidate, stocked_link in self._stocking.items() if stocked_link is link]:
            del self._stocking[ticket]
        if (items := self._link_items.get(link.segment)) is not None and items.link is link:
            del self._link_items[link.segment]
            del self._sorted[bisect_left(self._sorted, self._order.place(link.segment), key=self._place)]
            self._shown.forget(link.segment)
            self._replace(items, None)

    def readmit(self) -> None:
        """Build the namespace again, because the access lists of links may have changed. Tell clients that their lists
        of tools changed.
        """
        self._renew()
        self.on_change(frozenset(("tools",)))

    def _place(self, items: LinkItems) -> tuple[int, str]:
        return self._order.place(items.link.segment)

    def _renew(self) -> None:
        self.live.current = Namespace(
            self.namespace.version + 1,
            tuple(self._sorted),
            self.plan.ax.root_segment,
            self._clashes.withheld,
            self._shown,
            self.namespace,
            providers=self.plan.registry.routes,
            order=self._order,
        )

    def _replace(self, old: LinkItems | None, new: LinkItems | None) -> None:
        self._clashes.replace(old, new)
        self._renew()
        definitions, metadata = difference(old, new)
        if definitions:
            of_room = any(items is not None and items.link.members is not None for items in (old, new))
            (self._paced.add if of_room else self.on_change)(definitions)
        if metadata:
            self.on_metadata(metadata)
