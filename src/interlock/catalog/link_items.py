"""The items that one server adds to the namespace: their final names, their capabilities and their routes.

`make_link_items` is called once for each change of a server's list. It works in slices, so that ten thousand tools
delay no other work, and takes over the routes of tools that did not change.

Names depend only on the configuration and the server's own list (MCP-AX 4.1, 4.3), never on other servers. They are
settled by who offers them: an unmodified server's names are normalised; a registered leaf may have no dots in them; an
aggregator's are dotted, and every part must be valid as it is. Names that MCP-AX forbids end the registration.

A tool that may not be listed becomes a `WithheldName` with the reason that `interlock status` shows. The reasons are
checked in this order: invalid name, hidden by configuration, too far away, its definition (which an operator may have
to accept), invalid capability, unproved authority, scope, arguments that cannot be mirrored in headers, unchecked link.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import partial
from typing import Any, Final

import msgspec
from msgspec import Raw

from interlock.ax.protocol import hop_metadata
from interlock.ax.protocol import names as ax_names
from interlock.ax.protocol import route as ax_route
from interlock.ax.protocol.budget import Price
from interlock.ax.protocol.capability import (
    Capability,
    InvalidAnnotation,
    LatencyClass,
    as_object,
    changed_claims,
    hints,
    read_capability,
    safety,
)
from interlock.ax.protocol.hop_metadata import CAPABILITY, DECLARED, ItemMetadata, Offer, as_declared, read_below
from interlock.ax.protocol.names import SCHEME, WithheldName, qualify, read_dotted
from interlock.catalog.item_definitions import (
    ADDED_REASON,
    DENIED_REASON,
    NOT_KEPT_REASON,
    UNPROVED_REASON,
    ItemDefinitions,
    Policy,
    is_asked_about_added,
    is_hash,
    policy_of,
)
from interlock.catalog.routes import (
    ADDED_NOTE,
    CHANGED,
    HIDDEN,
    LIST_STEPS_MAX,
    SHOWN_NOTE,
    TOOL,
    ChecksFor,
    DefinitionSnapshot,
    DefinitionState,
    LinkItems,
    Place,
    Route,
    Rulings,
    Surface,
    Surfaces,
    kept_note,
)
from interlock.config.plan import Plan, ToolClass, ToolRule
from interlock.gate.protocol.policy import ToolClaims, gate_of, hold_of, is_looser, no_looser, says_its_effect
from interlock.links.link import Link
from interlock.links.listing import Items, Listing
from interlock.mcp.items import Item, find_value
from interlock.mcp.methods import PROMPTS_GET, TOOLS_CALL
from interlock.mcp.modern_requests import Mirrored, mirrored_arguments, modern_head
from interlock.mcp.tasks import needs_task
from interlock.wire.jsonrpc.codec import CodecError, decode_object, decode_value, encode_value, find_string
from interlock.wire.jsontext.canonical import DEFINITION_MEMBERS, tool_digest
from interlock.wire.refusal import AUTHORITY_UNVERIFIED, NAMESPACE_INVALID, SCOPE_DENIED, Refusal, ax_refusal
from interlock.wire.schemas.budget import Effort
from interlock.wire.schemas.validators import find_excess_of_text, read_schema

log = logging.getLogger("interlock.catalog")

_PINNED: Final = "its definition changed, and [[tool]] pin withholds it until an operator accepts: interlock approvals"
_UNPROVED: Final = (
    "it changes something, and the authority of this registrant is not proved: "
    "let it send a proof (authority_proof, authority_key), vouch for it with authority in its [[access]] entry,"
    ' or set ax.require_proof = "never"'
)

INVALID_NAMES_MAX: Final = 100  # how many of them a refusal repeats
INVALID_NAME_CHARS_MAX: Final = 128


class SettledNames(msgspec.Struct, frozen=True):
    """The final names of the items of one list, and the names that are withheld or invalid.

    Each entry contains the original name, the item, the segments below the server, and the local name.
    """

    items: list[tuple[str, Item, tuple[str, ...], str]]
    withheld: tuple[WithheldName, ...]
    invalid: list[str]


def settle_names(offer: Offer, items: Items) -> SettledNames:
    """Determine the final name of each item in a list. Also return the names that are invalid or occur twice."""
    # Drop repeated items that are equal to the byte. A repeated name with another definition is withheld below.
    seen: dict[str, Item] = {}
    named: list[tuple[str, Item]] = []
    for name, item in items.items:
        if name not in seen or encode_value(seen[name]) != encode_value(item):
            seen[name] = item
            named.append((name, item))
    if offer.is_aggregator:
        times = Counter(name for name, _ in named)
        # Thousands of tools share their segments.
        shared_segments: dict[tuple[str, ...], tuple[str, ...]] = {}
        settled: list[tuple[str, Item, tuple[str, ...], str]] = []
        invalid: list[str] = []
        for name, item in named:
            if (parts := read_dotted(name)) is None:  # AX-4.3-1, AX-4.3-2
                invalid.append(name)
            elif times[name] == 1:
                settled.append((name, item, shared_segments.setdefault(parts[:-1], parts[:-1]), parts[-1]))
        repeated = sorted(name for name, count in times.items() if count > 1)
        return SettledNames(settled, tuple(ax_names.listed_twice(name, times[name]) for name in repeated), invalid)
    invalid = [name for name, _ in named if "." in name] if offer.kind == "leaf" else []  # AX-4.3-1
    resolution = ax_names.resolve_locals([name for name, _ in named])
    locals_ = resolution.local_names
    return SettledNames(
        [(original, item, (), locals_[original]) for original, item in named if original in locals_],
        resolution.withheld,
        invalid,
    )


def refuse_names(offer: Offer, names: list[str]) -> Refusal:
    """Return the refusal of a registration whose list contains invalid names."""
    why = (
        "each part of a name that an aggregator lists must be 1 to 63 characters of a-z, 0-9, _ and -"
        if offer.is_aggregator
        else "a leaf's names hold no dots: register as an aggregator, or rename the tools"
    )
    shown = [name[:INVALID_NAME_CHARS_MAX] for name in names[:INVALID_NAMES_MAX]]
    return ax_refusal(NAMESPACE_INVALID, why, names=shown)  # AX-4.3-1


SLICE: Final = 200  # items prepared before others get a turn
_KINDS: Final = ("tools", "prompts", "resources", "templates")


async def make_link_items(
    link: Link,
    listing: Listing,
    plan: Plan,
    old: LinkItems | None,
    rulings: Rulings,
    *,
    checks_for: ChecksFor,
    surfaces: Surfaces,
) -> LinkItems | Refusal:
    """Build the items that a server's lists add to the namespace, or return a refusal. If nothing changed, return
    `old`, no longer marked as degraded.

    If the list contains names that MCP-AX forbids, return the refusal that ends the session (MCP-AX 4.3).
    """
    offer = link.offer
    if old is not None and (old.link is not link or old.offer.session != offer.session):  # AX-13.1-3, AX-9.2-4
        old = None
    digests = {kind: getattr(listing, kind).digest for kind in _KINDS}
    digests["tasks"] = b"%d %d" % (link.tasks, link.modern)  # what a tool says of tasks counts only then
    instructions = link.facts.instructions if link.facts is not None else None
    digests["instructions"] = (instructions or "").encode("utf-8", "surrogatepass")
    least = hop_metadata.least_latency_class(offer.link_latency_ms, link.latencies)
    least = least if old is None else max(least, old.least_latency)  # AX-9.2-4: within a session
    is_same = old is not None and not old.stale and old.digests == digests and old.offer == offer  # AX-13.1-3
    if old is not None and is_same and old.least_latency is least:
        return msgspec.structs.replace(old, degraded=False) if old.degraded else old
    previous: dict[str, Route] = {}
    # Without these changes, the same item becomes the same route again.
    if (
        old is not None
        and not old.stale
        and old.offer == offer
        and old.least_latency is least
        and old.digests.get("tasks") == digests["tasks"]
    ):
        previous = {route.original: route for route in old.tools}
    else:
        old = None
    unchanged, others = _split_unchanged(offer, listing.tools, previous)
    named = settle_names(offer, others), settle_names(offer, listing.prompts)
    if invalid := [name for settled in named for name in settled.invalid]:  # AX-4.3-1
        return refuse_names(offer, invalid)
    tools, prompts = named
    stock = _LinkItemsBuilder(link, plan, offer, least, rulings, previous, checks_for, surfaces, tools=unchanged)
    await stock.take_tools(tools)
    if unchanged:
        stock.put_in_order(listing.tools)
    await stock.take_prompts(prompts, old)
    resources = await stock.places("resource", listing.resources, old.resources if old is not None else ())
    templates = await stock.places("template", listing.templates, old.templates if old is not None else ())
    shown_text = await stock.definitions.take_instructions(instructions)
    refused = next((route.surface for route in stock.tools if route.surface and route.surface.ends_session), None)
    if refused is not None:
        return LinkItems(link=link, offer=offer, least_latency=least, tools=stock.refuse(refused), digests=digests)
    withheld = [*tools.withheld, *prompts.withheld, *stock.withheld, *stock.definitions.withheld]
    for kind in _KINDS:
        withheld.extend(WithheldName(name=name, reason=reason) for name, reason in getattr(listing, kind).refused)
    return LinkItems(
        link=link,
        offer=offer,
        least_latency=least,
        tools=tuple(stock.tools),  # AX-3.1-2
        prompts=tuple(stock.prompts),
        resources=resources,
        templates=templates,
        instructions=shown_text,
        withheld=tuple(withheld),
        out_of_scope=frozenset(stock.out_of_scope),
        digests=digests,
        ttl_s=listing.tools.ttl_s,
        private=listing.tools.private,
        seen=(*stock.seen, *stock.definitions.seen),
        unaccepted=stock.definitions.unaccepted,
    )


def _split_unchanged(offer: Offer, items: Items, previous: dict[str, Route]) -> tuple[list[Route], Items]:
    """Return the routes of an aggregator's unchanged tools, and the other listed items.

    For a leaf all items are returned, because its names depend on each other.
    """
    if not previous or not offer.is_aggregator or len(dict(items.items)) < len(items.items):
        return [], items
    routes, others = [], []
    for entry in items.items:
        if (route := previous.get(entry[0])) is not None and route.source is entry[1]:
            routes.append(route)
        else:
            others.append(entry)
    return routes, msgspec.structs.replace(items, items=tuple(others), raws=())


class _Assessment(msgspec.Struct, frozen=True, kw_only=True):
    """The properties of a tool that are in effect at this node, such as whether its effect can be undone."""

    annotation: Capability  # of the server, with what operators say
    published: Capability  # the same with what this hop adds
    capability: Capability  # that this node believes, with what this hop adds
    irreversible: bool
    has_class: bool  # it declares how long it takes, or the operator does
    hints: dict[str, bool]
    changed: dict[str, object]  # what the server said and does not hold here
    price: Price
    notes: dict[bool, dict[str, Any]]  # whether it is gated -> its MCP-AX keys


class _Statements(msgspec.Struct, frozen=True):
    """The declarations about the effect of a tool, by its server and by operators."""

    original: str
    stated: ItemMetadata
    annotations: object
    rule: ToolRule | None
    ruling: ToolClass | None
    accepted: ToolClaims | None


class _Definition(msgspec.Struct, frozen=True):
    """The definition of a tool, present or accepted, with the values that were decoded from it."""

    item: Item  # without the keys of MCP-AX
    meta: dict[str, Raw]
    stated: ItemMetadata
    annotations: object
    snapshot: DefinitionSnapshot


@dataclass(eq=False)
class _LinkItemsBuilder:
    """A builder of what clients see of one server: tools, prompts and resources, made from the server's own lists."""

    link: Link
    plan: Plan
    offer: Offer
    least: LatencyClass
    rulings: Rulings
    previous: dict[str, Route]  # the routes from the last build under the same rules, by original names
    checks_for: ChecksFor
    surfaces: Surfaces
    tools: list[Route] = field(default_factory=list)
    prompts: list[Route] = field(default_factory=list)
    withheld: list[WithheldName] = field(default_factory=list)
    out_of_scope: list[str] = field(default_factory=list)
    seen: list[tuple[DefinitionSnapshot, DefinitionState]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._effort = Effort(LIST_STEPS_MAX)
        self._waits = self.rulings.waits(self.link.segment)
        own = self.plan.ax.root_segment
        self._root = () if own is None else (own,)
        path = ".".join((*self._root, self.link.segment))
        self.definitions = ItemDefinitions(self.link, self.offer, self.rulings, path)
        self._ways: dict[tuple[str, ...], tuple[tuple[str, ...], tuple[str, ...]]] = {}
        self._judged: dict[tuple[object, ...], _Assessment | InvalidAnnotation] = {}
        self._find_accepted: Callable[[str], Item | None] | None = None  # read once a tool has changed

    async def take_tools(self, named: SettledNames) -> None:
        for done, (original, item, inner, local) in enumerate(named.items):
            if done % SLICE == SLICE - 1:
                await asyncio.sleep(0)
            previous = self.previous.get(original)
            if (
                previous is not None
                and previous.source is item
                and previous.local == local  # which depends on the other names of the list
                and previous.below == self._way(inner)[1]
            ):
                self.tools.append(previous)
                continue
            if isinstance(route := await self._tool(original, item, inner, local), WithheldName):
                self.withheld.append(route)
            else:
                self.tools.append(route)

    def put_in_order(self, items: Items) -> None:
        """Put the tools into the order in which the server lists them."""
        places = {original: place for place, (original, _) in enumerate(items.items)}
        self.tools.sort(key=lambda route: places[route.original])

    def refuse(self, refused: Surface) -> tuple[Route, ...]:
        """Refuse all tools of a server, because one of them does not satisfy the registered meaning of its name and
        registry.enforce is "session". Return the routes of the refused tools.
        """
        routes = []
        for route in self.tools:
            own = route.surface if route.is_refused else refused
            other = msgspec.structs.replace(route, surface=own)
            msgspec.structs.force_setattr(other, "checks", self.checks_for(other))
            routes.append(other)
        return tuple(routes)

    async def take_prompts(self, named: SettledNames, old: LinkItems | None) -> None:
        """Add the prompts of a list. Unchanged ones are taken from `old`, the items of the last build."""
        previous = {route.original: route for route in old.prompts} if old is not None else {}
        for done, (original, item, inner, local) in enumerate(named.items):
            if done % SLICE == SLICE - 1:
                await asyncio.sleep(0)
            segments, below = self._way(inner)
            was = previous.get(original)
            if was is not None and was.source is item and (was.local, was.below) == (local, below) and not was.change:
                self.prompts.append(was)
                continue
            if isinstance(qualified := qualify(segments, local), WithheldName):
                self.withheld.append(WithheldName(name=original, reason=qualified.reason))
                continue
            meta = _meta(item)
            cleaned = _without_ax_keys(item, meta, read_below(meta, self.offer))
            if (shown := await self.definitions.take("prompt", original, cleaned, inner)) is None:
                continue
            self.prompts.append(
                Route(
                    link=self.link,
                    qualified=qualified,
                    alias=ax_names.alias(qualified),
                    local=local,
                    original=original,
                    wire_name=Raw(encode_value(original)),
                    head=modern_head(PROMPTS_GET, original),
                    item=shown.item,
                    source=item,
                    segments=segments,
                    below=below,
                    onward=self._onward(below, local),
                    change=shown.change,
                    timeout_s=self.link.timeout_s,
                )
            )

    async def places(self, kind: str, items: Items, old: tuple[Place, ...]) -> tuple[Place, ...]:
        """Return the resources or templates of a list. Unchanged ones are taken from `old`, the last result."""
        aggregator, path = self.offer.is_aggregator, ".".join((*self._root, self.link.segment))
        previous = {place.uri: place for place in old}
        places: dict[str, Place] = {}
        for done, (uri, item) in enumerate(items.items):
            if done % SLICE == SLICE - 1:
                await asyncio.sleep(0)
            if aggregator and uri.startswith(SCHEME) and not ax_names.is_nested(uri):
                self.withheld.append(WithheldName(name=uri, reason=_BAD_URI, code=NAMESPACE_INVALID))
                continue
            if (was := previous.get(uri)) is not None and was.source is item and was.change is None:
                places[uri] = was
                continue
            shown = ax_names.show_uri(path, uri, aggregator=aggregator)
            bare = ax_names.bare_uri(uri) if aggregator else uri
            meta = _meta(item)
            cleaned = _without_ax_keys(item, meta, read_below(meta, self.offer)) if meta else item
            if (seen := await self.definitions.take(kind, uri, cleaned)) is not None:
                places[uri] = Place(
                    link=self.link, uri=uri, bare=bare, shown=shown, item=seen.item, source=item, change=seen.change
                )
            else:
                places.pop(uri, None)
        return tuple(places.values())

    async def _tool(self, original: str, listed_item: Item, inner: tuple[str, ...], local: str) -> Route | WithheldName:
        segments, below = self._way(inner)
        if isinstance(qualified := qualify(segments, local), WithheldName):
            return WithheldName(name=original, reason=qualified.reason)
        rule = next((rule for rule in self.plan.tools if fnmatchcase(qualified, rule.match)), None)
        listed = self._define(qualified, original, listed_item, rule)
        if rule is not None and rule.hide:
            # What is hidden from the first list on is not new when the operator shows it.
            if self.rulings.look(self.link.segment, listed.snapshot) is DefinitionState.NEW:
                self.seen.append((listed.snapshot, DefinitionState.NEW))
            return WithheldName(name=original, reason=HIDDEN)
        if listed.stated.hops > self.plan.ax.max_hops:
            reason = f"it is {listed.stated.hops} hops away; ax.max_hops is {self.plan.ax.max_hops}"
            return WithheldName(name=original, reason=reason, code="hops_exceeded")
        look = self._look(listed.snapshot, rule)
        if look is not DefinitionState.SAME or qualified in self._waits:
            self.seen.append((listed.snapshot, look))
        definition = await self._shown(listed, look, rule)
        if isinstance(definition, WithheldName):
            return definition
        item, meta, stated, annotations = definition.item, definition.meta, definition.stated, definition.annotations
        snapshot, is_open = definition.snapshot, definition.snapshot.is_open
        if snapshot.is_flagged and not stated.flagged:
            stated = msgspec.structs.replace(stated, flagged=True)
        ruling = self.rulings.get(qualified, snapshot.digest) if self.rulings.knows(qualified) else None
        if definition is listed:
            accepted = self._find_stricter_claims(look, snapshot)
            if accepted is not None and accepted.is_open and snapshot.claims.severity < accepted.severity:
                is_open = self._may_be_open(original, rule)
            is_open = is_open and ruling is None
        else:
            # A change that clients do not see yet can make the tool stricter, as any other.
            accepted = listed.snapshot.claims if _is_stricter(listed.snapshot.claims, snapshot.claims, ruling) else None
            is_open = is_open and ruling is None and accepted is None
            ruling = ruling if accepted is None else None
        judged = self._judge(_Statements(original, stated, annotations, rule, ruling, accepted), item)
        if isinstance(judged, InvalidAnnotation):
            return WithheldName(name=original, reason=judged.reason, code="capability_invalid")  # AX-9.1-1
        capability = judged.capability
        # AX-4.2-7, AX-4.2-11
        if capability.mutable and not self.offer.proved and self.plan.ax.require_proof != "never":
            return WithheldName(name=original, reason=_UNPROVED, code=AUTHORITY_UNVERIFIED)  # AX-4.2-7
        scope = hop_metadata.implied_scope(capability)
        if self.offer.scope < scope:  # AX-10.2-1, AX-10.2-2
            self.out_of_scope.append(qualified)
            reason = f"it needs scope {scope.value}; this server is registered for {self.offer.scope.value}"
            return WithheldName(name=original, reason=reason, code=SCOPE_DENIED)
        schema = bytes(item.get("inputSchema", b"{}"))
        excess = find_excess_of_text(schema)
        mirrored: tuple[Mirrored, ...] | str = ()
        if _MIRROR_MARK in schema:
            mirrored = (
                mirrored_arguments(read_schema(schema)) if excess is None else f"its schema marks headers; {excess}"
            )
        if isinstance(mirrored, str):
            return WithheldName(name=original, reason=mirrored)
        was = self.previous.get(original)
        if excess is not None and (was is None or bytes(was.item.get("inputSchema", b"")) != schema):
            log.warning("link %s: the schema of %s counts as object: %s", self.link.name, qualified, excess)
        irreversible = judged.irreversible
        if irreversible and not is_open and not self.link.is_checked:  # AX-8.N-3
            reason = 'it cannot be undone, and its link has no checksum: write crc = "crc16", or allow_unchecked = true'
            return WithheldName(name=original, reason=reason, code="link_unchecked")
        by_contract = original in self.link.asks
        gate = self.plan.gate
        hold = hold_of(
            mode=gate.mode,
            unannotated=gate.unannotated,
            also=any(fnmatchcase(qualified, pattern) for pattern in gate.also),
            irreversible=irreversible,
            is_open=is_open,
            gated_below=stated.gated and self.offer.is_aggregator and self.offer.proved,
            by_contract=by_contract,
        )
        gated = stated.gated or hold is not None  # AX-11.3-17, AX-11.3-18
        # A tool is judged under its name at the server and under the name by which it is listed (REG-4.2-7).
        own = local if self.offer.is_aggregator else original
        names = (own,) if own == local else (own, local)
        surface = self.surfaces.judge(self.link.segment, qualified, names, item, meta, self._effort)
        notes = self._notes(stated, judged, gated=gated)
        route = Route(
            link=self.link,
            qualified=qualified,
            alias=ax_names.alias(qualified),
            local=local,
            original=original,
            wire_name=Raw(encode_value(original)),
            head=modern_head(TOOLS_CALL, original),
            item=item,
            source=listed_item,
            segments=segments,
            below=below,
            onward=self._onward(below, local),
            capability=capability,
            stated=stated.capability,
            meta=notes if surface is None or surface.meta is None else {**notes, hop_metadata.SURFACE: surface.meta},
            hints=judged.hints,
            hops=stated.hops,
            irreversible=irreversible,
            gated=gated,
            gate=gate_of(
                hold,
                relays=self.offer.is_aggregator and (stated.gated or irreversible),
                shows_holder=self.plan.gate.show_holder,
                by_contract=by_contract,
            ),
            is_open=is_open,
            is_classified=ruling is not None or self.link.checks_input or self._reclassify(original, rule),
            is_unaccepted=definition is listed and accepted is not None,
            change=self._remark(look, qualified, is_listed=definition is listed),
            offered=None if definition is listed else listed.snapshot.digest,
            timeout_s=hop_metadata.timeout_s(
                capability.latency_class if judged.has_class else None, stated.hops, self.link.timeout_s
            ),
            scope=scope.value,
            price=judged.price,
            mirrored=mirrored,
            needs_task=not self.link.modern and self.link.tasks and needs_task(item),
            surface=surface,
        )
        if checks := self.checks_for(route):
            msgspec.structs.force_setattr(route, "checks", checks)  # no other part has seen it yet
        return route

    def _define(self, qualified: str, original: str, item: Item, rule: ToolRule | None) -> _Definition:
        meta = _meta(item)
        stated = read_below(meta, self.offer)
        annotations = find_value(item, "annotations")
        # The effect of the tool is unknown. An aggregator states the effect of every tool that it lists.
        is_open = not stated.flagged and self._may_be_open(original, rule)
        is_open = is_open and not says_its_effect(as_declared(stated.capability, {}), annotations)
        cleaned = _without_ax_keys(item, meta, stated)
        snapshot = DefinitionSnapshot(
            qualified, original, cleaned, stated.capability, stated.declared, is_open=is_open, is_flagged=stated.flagged
        )
        return _Definition(cleaned, meta, stated, annotations, snapshot)

    def _look(self, snapshot: DefinitionSnapshot, rule: ToolRule | None) -> DefinitionState:
        look = self.rulings.look(self.link.segment, snapshot)
        if look is DefinitionState.ADDED:
            is_asked = is_asked_about_added(self.link, self.offer, self._policy(snapshot.original, rule))
            return look if is_asked else DefinitionState.NEW
        is_followed = look is DefinitionState.CHANGED and self._policy(snapshot.original, rule) == "follow"
        # No server lifts its own gate, even if no one is asked about its changes.
        return DefinitionState.ACCEPTED if is_followed and self._find_stricter_claims(look, snapshot) is None else look

    def _policy(self, original: str, rule: ToolRule | None) -> Policy:
        """Return the policy for a tool after its definition changes: accept, notify, follow or withhold."""
        return "withhold" if rule is not None and rule.pin else policy_of(self.link, self.offer, original, TOOL)

    async def _shown(
        self, listed: _Definition, look: DefinitionState, rule: ToolRule | None
    ) -> _Definition | WithheldName:
        """Return the definition that clients see, the present or the accepted one, or why they see neither."""
        original, policy = listed.snapshot.original, self._policy(listed.snapshot.original, rule)
        if look is DefinitionState.ADDED and policy != "notify":
            return WithheldName(name=original, reason=ADDED_REASON, code=CHANGED)
        if look not in (DefinitionState.CHANGED, DefinitionState.DENIED):
            return listed
        if self._find_accepted is None:
            self._find_accepted = await self.rulings.read_accepted(self.link.segment)
        members = self._find_accepted(listed.snapshot.tool)
        if policy == "accept" and (accepted := self._restore(listed, members, rule)) is not None:
            listed.snapshot.shown_instead = accepted.snapshot.digest  # AX-11.N-2
            return accepted
        if look is DefinitionState.DENIED:
            return WithheldName(name=original, reason=DENIED_REASON, code=CHANGED)
        if policy == "accept":
            return WithheldName(name=original, reason=NOT_KEPT_REASON, code=CHANGED)
        if rule is not None and rule.pin:
            return WithheldName(name=original, reason=_PINNED, code=CHANGED)
        # A subserver may say otherwise how its tool is reached (MCP-AX 1.2); what that loosens does not count yet.
        if policy == "withhold" and not (members and _has_equal_texts(members, listed)):  # AX-11.N-2
            return WithheldName(name=original, reason=UNPROVED_REASON, code=CHANGED)
        return listed

    def _restore(self, listed: _Definition, members: Item | None, rule: ToolRule | None) -> _Definition | None:
        """Return the accepted definition of a tool. The members that no digest covers are taken from the present list.
        Return None if the accepted definition is not available, belongs to another tool, or was denied later.
        """
        original = listed.snapshot.original
        if members is None or find_string(members.get("name")) != original or any(map(is_hash, members.values())):
            return None
        uncovered = {member: raw for member, raw in listed.item.items() if member not in DEFINITION_MEMBERS}
        meta = decode_object(members.get("_meta", b"{}")) or {}
        meta |= {key: raw for key, raw in listed.meta.items() if key not in listed.stated.rest and key != CAPABILITY}
        if "capability" in members:
            meta[CAPABILITY] = members["capability"]
        covered: Item = {member: members[member] for member in DEFINITION_MEMBERS if member in members}
        item = {**uncovered, **covered, "_meta": Raw(encode_value(meta))} if meta else uncovered | covered
        accepted = self._define(listed.snapshot.tool, original, item, rule)
        look = self.rulings.look(self.link.segment, accepted.snapshot)
        return accepted if look in (DefinitionState.SAME, DefinitionState.REWORDED) else None

    def _remark(self, look: DefinitionState, tool: str, *, is_listed: bool) -> str | None:
        """Return the remark for operators about a tool whose definition is not accepted, or None."""
        if is_listed:
            return _REMARKS.get(look)
        return kept_note(self.rulings.find_restless(self.link.segment, tool))

    def _may_be_open(self, original: str, rule: ToolRule | None) -> bool:
        return not (self.offer.is_aggregator or self._reclassify(original, rule))

    def _find_stricter_claims(self, look: DefinitionState, snapshot: DefinitionSnapshot) -> ToolClaims | None:
        """Return the accepted claims about a tool's effect if the changed definition claims less. They stay in effect
        then. Otherwise return None.

        They then stay in effect, because a server must not lift its own gate. A node that `defer` trusts is believed,
        because a person decided there.
        """
        is_left_to_it = self.plan.gate.mode == "defer" and self.offer.is_aggregator and self.offer.proved
        if look is not DefinitionState.CHANGED or is_left_to_it:
            return None
        accepted = self.rulings.find_accepted(self.link.segment, snapshot.tool)
        return accepted if accepted is not None and is_looser(snapshot.claims, accepted) else None

    def _judge(self, statements: _Statements, item: Item) -> _Assessment | InvalidAnnotation:
        """Return the assessment of a tool. Tools about which the same is declared share one assessment."""
        by_operators = (statements.rule, statements.ruling, statements.accepted)
        if by_operators != (None, None, None) or statements.original in self.link.classes:
            return self._judge_one(statements)
        stated = statements.stated
        key = (
            None if stated.capability is None else bytes(stated.capability),
            bytes(item.get("annotations", b"")),
            *sorted(stated.declared.items()),
            stated.hops,
            stated.flagged,
        )
        if (judged := self._judged.get(key)) is None:
            judged = self._judged[key] = self._judge_one(statements)
        return judged

    def _judge_one(self, statements: _Statements) -> _Assessment | InvalidAnnotation:
        stated, annotations, rule = statements.stated, statements.annotations, statements.rule
        if isinstance(read := self._capability(statements), InvalidAnnotation):
            return read
        capability = hop_metadata.raise_to_hop(read, self.least)
        # AX-9.2-1: what this node believes is one thing, what a registrant declares is passed on
        if isinstance(annotation := self._capability(statements, is_believed=False), InvalidAnnotation):
            return annotation
        published = hop_metadata.raise_to_hop(annotation, self.least)
        declaration = as_declared(stated.capability, {})
        has_class = isinstance(declaration, dict) and "latency_class" in declaration
        if self.offer.is_aggregator and read.latency_class is LatencyClass.STANDARD:
            has_class = False  # it lists tools without a class so, and gives up on the others first
        # The hints of a server that the operator configured give way to those of the definition accepted before.
        is_kept = self.offer.kind == "adopted" and statements.accepted is not None
        published_hints = hints(capability, None if is_kept else annotations)
        units = None if rule is None else rule.cost_units
        if units is None:
            units = getattr(self.plan.budget.units, capability.cost_class.value)
        return _Assessment(
            annotation=annotation,
            published=published,
            capability=capability,
            irreversible=safety(capability) is not None
            or (stated.flagged and (self.offer.is_aggregator or not self._reclassify(statements.original, rule))),
            hints=published_hints,
            has_class=has_class or (rule is not None and "latency_class" in rule.capability),
            changed=changed_claims(declaration, annotations, published, published_hints),
            price=Price(mutable=capability.mutable, units=units, limits=None if rule is None else rule.budget),
            notes={},
        )

    def _capability(self, statements: _Statements, *, is_believed: bool = True) -> Capability | InvalidAnnotation:
        """Return the capability of a tool: as this node believes it, or as it passes on the annotation (MCP-AX 9.2).

        The operator may override it, except for an aggregator: the capability that it states passes unchanged (MCP-AX
        11.3). If the registrant is not proved, if an aggregator flags the tool, or if it claims less than was accepted,
        this node believes stricter values.
        """
        declared: object = msgspec.UNSET
        annotations, stated = statements.annotations, statements.stated.capability
        if stated is not None:
            try:
                declared = decode_value(stated)
            except CodecError:
                return InvalidAnnotation(reason="the capability annotation cannot be read")
        if self.offer.kind == "leaf":
            declared = hop_metadata.over_transport(declared, self.offer.transport)
            if isinstance(declared, InvalidAnnotation):
                return declared
        read = partial(read_capability, private=None if self.offer.is_aggregator else self.plan.ax.transport_classes)
        is_flagged = self.offer.is_aggregator and statements.stated.flagged
        if is_believed and (is_flagged or not self.offer.proved):
            if isinstance(parsed := read(declared, annotations=annotations), InvalidAnnotation):
                return parsed
            declared, annotations = (
                as_object(hop_metadata.at_its_strictest(parsed, annotations, is_flagged=is_flagged)),
                None,
            )
        if statements.accepted is not None and (is_believed or self.offer.kind == "adopted"):
            if isinstance(parsed := read(declared, annotations=annotations), InvalidAnnotation):
                return parsed
            declared, annotations = as_object(no_looser(parsed, statements.accepted)), None
        if self.offer.is_aggregator:
            return read(declared, annotations=annotations)
        return read(
            declared,
            annotations=annotations,
            tool_class=self.link.classes.get(statements.original, statements.ruling),
            overrides=statements.rule.capability if statements.rule is not None else None,
        )

    def _reclassify(self, original: str, rule: ToolRule | None) -> bool:
        return original in self.link.classes or (
            rule is not None and not rule.capability.keys().isdisjoint(("mutable", "reversible"))
        )

    def _notes(self, stated: ItemMetadata, judged: _Assessment, *, gated: bool) -> dict[str, Any]:
        if (notes := judged.notes.get(gated)) is not None:
            return notes
        notes = judged.notes[gated] = {
            CAPABILITY: hop_metadata.published_annotation(stated.capability, judged.published),
            hop_metadata.HOPS: stated.hops,
        }
        declared = hop_metadata.declared_values(
            {**judged.changed, **stated.declared}, judged.annotation, judged.published
        )
        if declared:
            notes[DECLARED] = declared
        if judged.irreversible:
            notes[hop_metadata.SAFETY] = hop_metadata.IRREVERSIBLE
        if gated:
            notes[hop_metadata.GATED] = True
        return notes

    def _way(self, inner: tuple[str, ...]) -> tuple[tuple[str, ...], tuple[str, ...]]:
        if (way := self._ways.get(inner)) is None:
            below = (*self.link.path, *inner)
            way = self._ways[inner] = ((*self._root, *below), below)
        return way

    def _onward(self, below: tuple[str, ...], local: str) -> dict[str, Raw] | None:
        if self.offer.kind == "adopted":
            return None
        return ax_route.as_meta(ax_route.start(self.plan.ax.root_segment, (*below, local)))


_SEVERITIES: Final[dict[ToolClass, int]] = {"read_only": 0, "reversible": 1, "irreversible": 2}


def _is_stricter(listed: ToolClaims, accepted: ToolClaims, ruling: ToolClass | None) -> bool:
    """Return whether a changed definition is stricter than the accepted one, or than an operator's class."""
    is_above_ruling = ruling is not None and not listed.is_open and listed.severity > _SEVERITIES[ruling]
    return is_above_ruling or is_looser(accepted, listed)


def _has_equal_texts(accepted: Item, listed: _Definition) -> bool:
    """Return whether two definitions of a tool differ only in their capability, which models do not see."""
    items, name = (accepted, listed.item), listed.snapshot.original
    digests = {tool_digest(item, downstream_name=name, declared=None) for item in items}
    return len(digests) == 1 and find_string(accepted.get("name")) == name


# For operators, of tools that are listed although their definition is not accepted.
_REMARKS: Final = {DefinitionState.CHANGED: SHOWN_NOTE, DefinitionState.ADDED: ADDED_NOTE}
_MIRROR_MARK: Final = b'"x-mcp-header"'
_BAD_URI: Final = "its URI in the tree must be mcpax://, segments joined by dots, / and the server's own URI"


def _meta(item: Item) -> dict[str, Raw]:
    return (decode_object(item["_meta"]) if "_meta" in item else None) or {}


def _without_ax_keys(item: Item, meta: dict[str, Raw], stated: ItemMetadata) -> Item:
    """Return the item without the MCP-AX keys from its server, in place of which this node adds its own."""
    return item if len(stated.rest) == len(meta) else {**item, "_meta": Raw(encode_value(stated.rest))}
