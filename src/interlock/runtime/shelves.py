"""What one server offers, prepared for the namespace: names settled, capabilities read, routes made.

A shelf is made once per change of a server's list, in slices, so that ten thousand tools hold up nobody. Names depend
only on the configuration and the server's own list.
"""

import asyncio
from fnmatch import fnmatchcase
from typing import Any, Final

import msgspec
from msgspec import Raw

from interlock.config.plan import Plan, ToolRule
from interlock.protocol.ax.capability import (
    TIMEOUT_S,
    AuthScope,
    Capability,
    Invalid,
    as_object,
    hints,
    read_capability,
    safety,
)
from interlock.protocol.ax.names import Withheld, alias, qualify, resolve_locals
from interlock.protocol.jsonrpc.codec import decode_object, decode_value, encode_value
from interlock.protocol.mcp.eras import Era
from interlock.protocol.mcp.headers import Mirrored, encode_header, mirrored_arguments
from interlock.protocol.mcp.items import Item, maybe_value
from interlock.protocol.mcp.methods import PROMPTS_GET, TOOLS_CALL
from interlock.protocol.mcp.tasks import needs_task
from interlock.runtime.links.greeting import modern_head
from interlock.runtime.links.link import Link
from interlock.runtime.links.listing import Items, Listing

HIDDEN: Final = "hidden by [[tool]]"
SLICE: Final = 200  # items prepared before others get a turn


class Route(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """The way from a name to its server, and all a call needs to take it without looking anything up again."""

    link: Link
    qualified: str
    alias: str
    local: str
    original: str  # downstream_name of MCP-AX 7.1
    wire_name: Raw
    head: bytes  # routing headers for a 2026-07-28 server
    item: Item
    segments: tuple[str, ...]
    capability: Capability | None = None  # None for prompts
    meta: dict[str, Any] = {}
    hints: dict[str, bool] = {}
    timeout_s: float | None = None
    scope: str = "read"
    mirrored: tuple[Mirrored, ...] = ()
    needs_task: bool = False  # a legacy server's tool that can be called only as a task


class Place(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """A resource or a template and the server that has it."""

    link: Link
    uri: str  # as the server says it; a template for templates
    shown: str  # as clients see it
    item: Item


class Shelf(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    link: Link
    tools: tuple[Route, ...] = ()  # sorted by qualified name
    prompts: tuple[Route, ...] = ()
    resources: tuple[Place, ...] = ()  # sorted by shown URI
    templates: tuple[Place, ...] = ()
    withheld: tuple[Withheld, ...] = ()
    digests: dict[str, bytes] = {}
    ttl_s: float | None = None
    private: bool = True


RESOURCE_SCHEME: Final = "mcpax://"


async def make_shelf(link: Link, listing: Listing, plan: Plan, old: Shelf | None) -> Shelf:
    segments = ((plan.ax.root_segment,) if plan.ax.root_segment else ()) + (link.segment,)
    digests = {kind: getattr(listing, kind).digest for kind in ("tools", "prompts", "resources", "templates")}
    digests["tasks"] = b"%d" % link.tasks  # what a tool says of tasks counts only then
    withheld: list[Withheld] = []
    if old is not None and old.digests == digests:
        return old
    tools = await _tools(link, listing.tools, plan, segments, withheld)
    prompts = await _prompts(link, listing.prompts, segments, withheld)
    prefix = f"{RESOURCE_SCHEME}{'.'.join(segments)}/"
    for items in (listing.tools, listing.prompts, listing.resources, listing.templates):
        withheld.extend(Withheld(name=name, reason=reason) for name, reason in items.refused)
    return Shelf(
        link=link,
        tools=tuple(sorted(tools, key=lambda route: route.qualified)),
        prompts=tuple(sorted(prompts, key=lambda route: route.qualified)),
        resources=_places(link, listing.resources, prefix),
        templates=_places(link, listing.templates, prefix),
        withheld=tuple(withheld),
        digests=digests,
        ttl_s=listing.tools.ttl_s,
        private=listing.tools.private,
    )


async def _tools(
    link: Link, items: Items, plan: Plan, segments: tuple[str, ...], withheld: list[Withheld]
) -> list[Route]:
    named = _distinct(items)
    resolution = resolve_locals([name for name, _ in named])
    withheld.extend(resolution.withheld)
    routes: list[Route] = []
    for done, (original, item) in enumerate(named):
        if done % SLICE == SLICE - 1:
            await asyncio.sleep(0)
        local = resolution.local_names.get(original)
        if local is None:
            continue
        route = _tool(link, original, item, local, plan, segments)
        if isinstance(route, Withheld):
            withheld.append(route)
        else:
            routes.append(route)
    return routes


def _tool(link: Link, original: str, item: Item, local: str, plan: Plan, segments: tuple[str, ...]) -> Route | Withheld:
    qualified = qualify(segments, local)
    if isinstance(qualified, Withheld):
        return Withheld(name=original, reason=qualified.reason)
    rule = _rule(plan.tools, qualified)
    if rule is not None and rule.hide:
        return Withheld(name=original, reason=HIDDEN)
    annotations = maybe_value(item, "annotations")
    declared = _declared_capability(item)
    capability = read_capability(
        declared,
        annotations=annotations,
        tool_class=link.plan.classes.get(original),
        overrides=rule.capability if rule is not None else None,
    )
    if isinstance(capability, Invalid):
        return Withheld(name=original, reason=capability.reason)
    mirrored = (
        mirrored_arguments(maybe_value(item, "inputSchema"))
        if _MIRROR_MARK in bytes(item.get("inputSchema", b""))
        else ()
    )
    if isinstance(mirrored, str):
        return Withheld(name=original, reason=mirrored)
    scope = max(capability.auth_scope, AuthScope.WRITE if capability.mutable else AuthScope.READ)
    meta: dict[str, Any] = {"x-mcpax-capability": _capability_raw(capability), "x-mcpax-hops": 1}
    flag = safety(capability)
    if flag is not None:
        meta["x-mcpax-safety"] = flag
    return Route(
        link=link,
        qualified=qualified,
        alias=alias(qualified),
        local=local,
        original=original,
        wire_name=Raw(encode_value(original)),
        head=modern_head(TOOLS_CALL) + b"mcp-name: %b\r\n" % encode_header(original),
        item=item,
        segments=segments,
        capability=capability,
        meta=meta,
        hints=hints(capability, annotations),
        timeout_s=TIMEOUT_S[capability.latency_class],
        scope=scope.value,
        mirrored=mirrored,
        needs_task=not link.modern and link.tasks and needs_task(item),
    )


_MIRROR_MARK: Final = b'"x-mcp-header"'
_RAW_CAPABILITIES: dict[bytes, Raw] = {}


def _capability_raw(capability: Capability) -> Raw:
    """Most tools share a handful of annotations; their bytes are made once."""
    encoded = encode_value(as_object(capability))
    if len(_RAW_CAPABILITIES) > 1024:
        _RAW_CAPABILITIES.clear()
    return _RAW_CAPABILITIES.setdefault(encoded, Raw(encoded))


def _declared_capability(item: Item) -> object:
    meta = decode_object(item["_meta"]) if "_meta" in item else None
    raw = (meta or {}).get("x-mcpax-capability")
    return msgspec.UNSET if raw is None else decode_value(raw)


def _rule(rules: tuple[ToolRule, ...], qualified: str) -> ToolRule | None:
    return next((rule for rule in rules if fnmatchcase(qualified, rule.match)), None)


async def _prompts(link: Link, items: Items, segments: tuple[str, ...], withheld: list[Withheld]) -> list[Route]:
    named = _distinct(items)
    resolution = resolve_locals([name for name, _ in named])
    withheld.extend(resolution.withheld)
    routes: list[Route] = []
    for original, item in named:
        local = resolution.local_names.get(original)
        if local is None:
            continue
        qualified = qualify(segments, local)
        if isinstance(qualified, Withheld):
            withheld.append(Withheld(name=original, reason=qualified.reason))
            continue
        routes.append(
            Route(
                link=link,
                qualified=qualified,
                alias=alias(qualified),
                local=local,
                original=original,
                wire_name=Raw(encode_value(original)),
                head=modern_head(PROMPTS_GET) + b"mcp-name: %b\r\n" % encode_header(original),
                item=item,
                segments=segments,
                timeout_s=TIMEOUT_S[Capability().latency_class],
            )
        )
    return routes


def _distinct(items: Items) -> list[tuple[str, Item]]:
    """A repeat that is the same to the byte is one item; a differing repeat stays, and its name is refused."""
    seen: dict[str, Item] = {}
    kept = []
    for name, item in items.items:
        if name in seen and _same(seen[name], item):
            continue
        seen[name] = item
        kept.append((name, item))
    return kept


def _same(one: Item, other: Item) -> bool:
    return encode_value(one) == encode_value(other)


def _places(link: Link, items: Items, prefix: str) -> tuple[Place, ...]:
    places = {name: Place(link=link, uri=name, shown=prefix + name, item=item) for name, item in items.items}
    return tuple(sorted(places.values(), key=lambda place: place.shown))


def era_of(link: Link) -> Era:
    return link.facts.era if link.facts is not None else Era.LEGACY
