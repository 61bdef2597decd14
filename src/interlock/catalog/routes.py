"""Routes: the server that each item of the namespace leads to, and everything that the checks of a call need to know.

A `Route` is constructed when a server lists its tools (`link_items`), not when a tool is called. It is immutable and
contains what is known by then: names, the effective capability, price, scope, gate rule, the request head to send. The
checks of a call only read it. `Place` is the same for resources and templates. The routes and places of one server are
its `LinkItems`; `local_items` builds those of the node's own tools.

A route refers to two judgements, which are made elsewhere and can change while a server lists the same tools:

- `DefinitionSnapshot` is the definition as it was listed. Operators accept definitions (`Rulings`), so that a tool that
  changed its meaning can be withheld until a person has looked at it.
- `Surface` is the verdict of the registry of names about the tool.

What did not change is reused in the next snapshot of the namespace, so that the cost of a change depends only on what
changed: a thousand servers may register one after another, and each adds one tool to twenty thousand. Whatever belongs
to other links is reused: the counts of equal aliases (`AliasCollisions`), and the encoded bytes of each listed item
(`ShownTools`). Changes that arrive close together are announced together (`PacedChanges`).
"""

import asyncio
import enum
import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import inf
from typing import Any, Final

import msgspec
from msgspec import Raw

from interlock.ax.protocol import hop_metadata
from interlock.ax.protocol.budget import Price
from interlock.ax.protocol.capability import Availability, Capability, LatencyClass, hints
from interlock.ax.protocol.hop_metadata import ADOPTED, CAPABILITY, DECLARED, HOPS, Offer, as_declared
from interlock.ax.protocol.names import SCHEME, WithheldName, alias, may_collide, withhold_colliding_aliases
from interlock.config.plan import ToolClass
from interlock.core.calls.check import Check
from interlock.gate.protocol.policy import GateRule, Hold, ToolClaims, read_claims
from interlock.links.api import Below
from interlock.links.link import Link, LocalLink
from interlock.mcp.items import Item, find_value
from interlock.mcp.methods import MODERN, TOOLS_CALL, Era
from interlock.mcp.modern_requests import Mirrored, modern_head
from interlock.names.protocol.judgement import Judgement, SurfaceVerdict
from interlock.wire.jsonrpc.codec import encode_value
from interlock.wire.jsontext.canonical import DEFINITION_MEMBERS, ITEM_MEMBERS, item_digest, quoted, tool_digest
from interlock.wire.refusal import Refusal
from interlock.wire.schemas.budget import Effort

FINGERPRINT_BYTES: Final = 16
# As much text as a book has.
SHOWN_BYTES_MAX: Final = 256 * 1024
# The effort for comparing the tools of one list with the registry of names. Tools beyond that are undecided.
LIST_STEPS_MAX: Final = 30_000
# The reason of a tool that the configuration hides.
HIDDEN: Final = "hidden by [[tool]]"
# The code of what is withheld because its changed definition is not accepted.
CHANGED: Final = "definition_changed"
# Remarks for operators about what is listed.
SHOWN_NOTE: Final = "its server changed the definition, which is listed and was not accepted yet: interlock approvals"
KEPT_NOTE: Final = "its server offers another definition; the accepted one is listed: interlock approvals"
RESTLESS_NOTE: Final = 'its server writes another %s in _meta with every list; definitions = "follow" shows every value'
ADDED_NOTE: Final = "its server was accepted without it; it is listed and was not accepted yet: interlock approvals"


class DefinitionState(enum.Enum):
    """The state of a listed definition in comparison with the accepted one."""

    SAME = "same"
    NEW = "new"
    # Other bytes with the same meaning.
    REWORDED = "reworded"
    # Changed, and an operator has accepted exactly this definition.
    ACCEPTED = "accepted"
    CHANGED = "changed"
    # Listed now by a server that was accepted without it.
    ADDED = "added"
    DENIED = "denied"


TOOL: Final = "tool"
# What has a definition: tools, the other items of ITEM_MEMBERS, and the section of names and tables for each.
DEFINITION_KINDS: Final[Mapping[str, str]] = {
    TOOL: "",
    "prompt": "prompts",
    "resource": "resources",
    "template": "templates",
    "instructions": "server",
}


def definition_table(segment: str, kind: str) -> str:
    """Return the name of the table that has the accepted definitions of one kind of one link."""
    return segment if kind == TOOL else f"{segment}/{DEFINITION_KINDS[kind]}"


def segment_of(table: str) -> str:
    """Return the segment of the link of a table of definitions."""
    return table.partition("/")[0]


@dataclass(eq=False)
class DefinitionSnapshot:
    """The definition of a tool or another item, as it was listed at one time. It is compared with the accepted
    definition.

    `tool` is the name under which people decide about it. The digest is computed from canonical JSON. Its fingerprint
    is cheaper to compute, and sufficient to detect that nothing changed.
    """

    tool: str
    original: str
    item: Item  # without the MCP-AX keys of its `_meta`
    stated: Raw | None
    stated_values: dict[str, object]  # stated beside the capability annotation
    is_open: bool = False  # neither server nor operator says whether it changes anything
    is_flagged: bool = False  # by x-mcpax-safety, now or, of the same definition, before
    # The digest of the accepted definition that clients see in its place, until a person decides.
    shown_instead: str | None = None
    kind: str = TOOL  # a key of DEFINITION_KINDS

    @property
    def members(self) -> tuple[str, ...]:
        """Return the names of the members that the digest covers for this kind of item."""
        return DEFINITION_MEMBERS if self.kind == TOOL else ITEM_MEMBERS[self.kind]

    @property
    def covered(self) -> Item:
        """Return what the digest covers: these members of the item, and the capability that a tool declares."""
        covered: Item = {member: self.item[member] for member in self.members if member in self.item}
        if self.declared is not None:
            covered[_CAPABILITY] = Raw(encode_value(self.declared))
        return covered

    @cached_property
    def declared(self) -> object:
        """Return the capability as the server declares it."""
        return as_declared(self.stated, self.stated_values)

    @cached_property
    def fingerprint(self) -> str:
        hashed = hashlib.blake2b(self.original.encode("utf-8", "surrogatepass"), digest_size=FINGERPRINT_BYTES)
        for member in self.members:
            hashed.update(b"\0%b\0" % bytes(self.item.get(member, b"")))
        hashed.update(bytes(self.stated or b""))
        return hashed.hexdigest()

    @cached_property
    def digest(self) -> str:
        if self.kind != TOOL:
            return item_digest(self.kind, self.item, name=self.original)
        return tool_digest(self.item, downstream_name=self.original, declared=self.declared)

    @cached_property
    def claims(self) -> ToolClaims:
        """Return the claims that a tool makes about its effect. Items of other kinds make no claims."""
        if self.kind != TOOL:
            return _NO_CLAIMS
        return read_claims(self.declared, find_value(self.item, "annotations"), is_flagged=self.is_flagged)

    def definition(self) -> bytes:
        """Return the definition that a person is shown, as JSON: everything that the digest covers
        (`digests.shown_digest`).

        The result is null if the definition is too long to read, because a person must not sign what they cannot have
        read; [[tool]] can still decide about it. A member that not every reader can decode is shown as its hash, as in
        the digest.
        """
        shown: dict[str, Any] = {"name" if self.kind == TOOL else self.kind: self.original}
        for member in self.members:
            if (raw := self.item.get(member)) is not None:
                shown[member] = raw if _is_readable(raw) else {"sha256": hashlib.sha256(raw).hexdigest()}
        if self.declared is not None:
            shown[_CAPABILITY] = self.declared
        definition = encode_value(shown)
        is_shown = len(definition) <= SHOWN_BYTES_MAX and _is_readable(definition)
        return definition if is_shown else b"null"


# The member of a shown or stored definition with what a tool declares. The item has it in its `_meta`.
_CAPABILITY: Final = "capability"
_NO_CLAIMS: Final = read_claims(None, None, is_flagged=False)


def _is_readable(raw: Raw | bytes) -> bool:
    try:
        msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    return True


class Surface(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """The verdict of the names registry on a tool. Its texts are built only when they are needed."""

    judgement: Judgement
    # The refusal of every call, if the registry forbids the tool.
    refuse: Callable[[], Refusal] | None = None
    # True if the server is refused together with the tool.
    ends_session: bool = False
    warn: Callable[[], str] | None = None

    @property
    def is_refused(self) -> bool:
        return self.refuse is not None

    @property
    def refusal(self) -> Refusal | None:
        return None if self.refuse is None else self.refuse()

    @property
    def warning(self) -> str:
        """Return the warning for operators, or "" if there is none."""
        return "" if self.warn is None else self.warn()

    @property
    def meta(self) -> dict[str, Any] | None:
        """Return the value of `dev.interlock/surface` for clients, or None if the tool's name is not registered
        (REG-2-1).
        """
        judged = self.judgement
        if judged.status is None:
            return None
        return {
            "name": judged.name,
            "verdict": judged.verdict.value,
            "digest": judged.digest,
            "status": judged.status.value,
        }


class Surfaces:
    """Interface to the verdicts of the names registry about tools. This base class has no verdict on any tool."""

    def judge(
        self, segment: str, tool: str, names: tuple[str, ...], item: Item, meta: Item, effort: Effort
    ) -> Surface | None:
        """Compare a tool with the specification that the registry has for its name. Return None if there is no verdict.

        `tool` is its qualified name. `names` are its names at the server and at this node, without prefixes. `meta` is
        its `_meta` as the server wrote it.
        """
        return None


def is_provided(surface: Surface | None, name: str) -> bool:
    """Return whether a tool conforms to the specification of this registered name, so that it can be called by the
    name.
    """
    if surface is None or surface.judgement.name != name:
        return False
    return surface.judgement.verdict in (SurfaceVerdict.IDENTICAL, SurfaceVerdict.COMPATIBLE)


NAMED_KEYS_MAX: Final = 3


def named_keys(keys: Iterable[str]) -> str:
    """Return the names of some keys as text for a message. The keys come from a server, so that they are quoted and
    limited in number.
    """
    return ", ".join(quoted(key) for key in sorted(keys)[:NAMED_KEYS_MAX])


def kept_note(restless: Iterable[str]) -> str:
    """Return the remark for an item of which clients see the accepted definition. `restless` are the keys of `_meta`
    that change all the time.
    """
    return f"{KEPT_NOTE}; {RESTLESS_NOTE % named_keys(restless)}" if restless else KEPT_NOTE


class Rulings:
    """Interface to the decisions of operators about the classes and definitions of tools. This base class knows no
    decisions.
    """

    def get(self, tool: str, digest: str) -> ToolClass | None:
        """Return the class that operators decided for a definition, or None.

        `digest` identifies the definition that they were shown.
        """
        return None

    def knows(self, tool: str) -> bool:
        """Return whether operators made any decision about a tool with this name."""
        return False

    def look(self, table: str, snapshot: DefinitionSnapshot) -> DefinitionState:
        """Compare a listed definition with the accepted one in a table (`definition_table`), and return the result. If
        the accepted one had the safety flag, set the flag again.
        """
        return DefinitionState.SAME

    def find_accepted(self, segment: str, tool: str) -> ToolClaims | None:
        """Return the claims about a tool's effect in its most recently accepted definition, or None if no definition
        was accepted.
        """
        return None

    async def read_accepted(self, table: str) -> Callable[[str], Item | None]:
        """Return a function that finds the accepted definition of an item of this table: the members that the digest
        covers, with the item's name and the declared capability of a tool. It returns None if the text was not kept.
        """
        return lambda tool: None

    def find_restless(self, table: str, tool: str) -> frozenset[str]:
        """Return the keys of an item's `_meta` that change with every list while nothing else does."""
        return frozenset()

    def waits(self, table: str) -> frozenset[str]:
        """Return the items of a table about which an operator asks for another decision."""
        return frozenset()

    def process_seen(
        self, segment: str, seen: Iterable[tuple[DefinitionSnapshot, DefinitionState]], counts: Mapping[str, int]
    ) -> None:
        """Process the definitions in a server's new lists: store those that are accepted, and ask a person about the
        others. The lists are published after this call.

        `counts` has how many items of each kind the link lists. A kind that is missing was not read.
        """


class Route(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """The path from a tool's or prompt's name to its server, with everything that a call needs, so that nothing is
    looked up again.
    """

    link: Link
    qualified: str  # segments and local name, joined by dots
    alias: str
    local: str
    original: str  # downstream_name of MCP-AX 7.1
    wire_name: Raw
    head: bytes  # routing headers for a 2026-07-28 server
    item: Item
    segments: tuple[str, ...]  # from the root
    below: tuple[str, ...]  # from here: the segments without our own
    source: Item | None = None  # of a tool: the item as it was listed, with what its server may not say
    onward: dict[str, Raw] | None = None  # route and cursor of a call that begins here; None for unmodified servers
    capability: Capability | None = None  # None for prompts
    stated: Raw | None = None  # the capability annotation as it came
    meta: dict[str, Any] = {}
    hints: dict[str, bool] = {}
    hops: int = 1
    irreversible: bool = False  # flagged so here or below
    gated: bool = False  # as listed: here or by a hop below
    gate: GateRule | None = None  # what a call meets before it is sent, or instead of the tool's own answer
    is_open: bool = False  # neither server nor operator says whether it changes anything
    is_classified: bool = False  # what it does is the word of this node's operator or of a contract, not its server's
    is_unaccepted: bool = False  # its server claims less than what was accepted, which does not count yet
    change: str | None = None  # for operators: that its definition is not accepted, and which one is listed
    offered: str | None = None  # the digest of that definition, if clients see the accepted one
    timeout_s: float | None = None
    scope: str = "read"
    price: Price = Price()  # what a call counts for in budgets
    mirrored: tuple[Mirrored, ...] = ()
    needs_task: bool = False  # a legacy server's tool that can be called only as a task
    surface: Surface | None = None  # what the registry of names says of it
    checks: "Checks" = ()  # of the guard, those that apply to its calls; empty for a plain tool

    @property
    def is_refused(self) -> bool:
        return self.surface is not None and self.surface.is_refused

    @property
    def refusal(self) -> Refusal | None:
        """Return the refusal that answers every call because the names registry refuses the tool, or None if it does
        not.
        """
        return self.surface.refusal if self.surface is not None else None

    @property
    def warning(self) -> str | None:
        """Return the warning of the names registry about the tool, or None if the registry has no
        verdict on the tool.
        """
        return self.surface.warning if self.surface is not None else None

    @property
    def is_changed(self) -> bool:
        """Return whether the server's present definition of the tool is not accepted, so that clients see the accepted
        one, none, or this one with a remark to operators.
        """
        return self.change is not None

    @property
    def is_held(self) -> bool:
        """Return whether a call of the tool waits for a person at this node."""
        return self.gate is not None and self.gate.hold is not None

    @property
    def may_be_granted(self) -> bool:
        """Return whether a standing grant can replace a person's approval of each call of the tool.

        A contract may demand a confirmation of every call (AIP-14.rules-1), and an unclassified tool has no definition
        that a person could sign. A call that an aggregator below holds must be confirmed at that aggregator.
        """
        return self.gate is not None and self.gate.hold is Hold.CALL and not self.gate.by_contract

    @property
    def digest(self) -> str:
        """Return the digest of the definition that clients see, including the capability that the server declares
        (MCP-AX 11.3).
        """
        declared = as_declared(self.stated, self.meta.get(DECLARED, {}))
        return tool_digest(self.item, downstream_name=self.original, declared=declared)

    @property
    def offered_digest(self) -> str:
        """Return the digest of the definition that the server lists now. An approval of a call is for this digest, so
        that it ends when the server changes the tool.
        """
        return self.digest if self.offered is None else self.offered


Checks = tuple[Check[Route], ...]
ChecksFor = Callable[[Route], Checks]  # what the guard says of a route that is being listed


class Place(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """A resource or a resource template of a server, with its URI at the server and its URI as clients see it."""

    link: Link
    uri: str  # as the server says it; a template for templates
    bare: str  # the same without the segments an aggregator put before it
    shown: str  # as clients see it
    item: Item
    source: Item | None = None  # the item as it was listed
    change: str | None = None  # for operators: that its definition changed, and which one is listed


class ShownText(msgspec.Struct, frozen=True, kw_only=True):
    """The instructions of a server as clients see them, with a remark for operators if they changed."""

    text: str | None = None
    change: str | None = None


class LinkItems(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """The tools, prompts and resources of one server as this node lists them, with the names that it withholds."""

    link: Link
    offer: Offer = ADOPTED
    least_latency: LatencyClass = LatencyClass.REALTIME  # no tool behind this link is faster (MCP-AX 9.2)
    tools: tuple[Route, ...] = ()  # all four in the order of the server
    prompts: tuple[Route, ...] = ()
    resources: tuple[Place, ...] = ()
    templates: tuple[Place, ...] = ()
    instructions: ShownText = ShownText()
    withheld: tuple[WithheldName, ...] = ()
    out_of_scope: frozenset[str] = frozenset()  # qualified names withheld because the registration may not have them
    digests: dict[str, bytes] = {}
    ttl_s: float | None = None
    private: bool = True
    degraded: bool = False  # the link is gone; what it offered stays listed for a while (MCP-AX 13.2)
    stale: bool = False  # an operator has said something new of its tools since it was made
    seen: tuple[
        tuple[DefinitionSnapshot, DefinitionState], ...
    ] = ()  # definitions that are to be remembered or asked about
    # What the server offers besides tools and no person accepted: its kinds, by the names under which people decide.
    unaccepted: Mapping[str, str] = {}


class ChangedDefinition(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """A tool whose definition differs from the previous list of its server."""

    name: str
    before: Route
    after: Route


RESOURCE_SCHEME: Final = SCHEME


def changes(old: LinkItems | None, new: LinkItems) -> tuple[ChangedDefinition, ...]:
    """Return the tools whose definition changed. Digests are computed only if the bytes differ."""
    if old is None or old is new or old.tools is new.tools:
        return ()
    same = set(old.tools).intersection(new.tools)
    before = {route.qualified: route for route in old.tools if route not in same}
    changed = []
    for after in new.tools if before else ():
        was = before.get(after.qualified)
        if was is None or (
            was.item == after.item
            and was.original == after.original
            and was.stated == after.stated
            and was.offered == after.offered
        ):
            continue
        if was.offered_digest != after.offered_digest:
            changed.append(ChangedDefinition(name=after.qualified, before=was, after=after))
    return tuple(changed)


def era_of(link: Link) -> Era:
    return link.facts.era if link.facts is not None else Era.LEGACY


def below(routes: Iterable[Route]) -> tuple[Below, ...]:
    """Return the segments below an aggregator, sorted by path. The count of a segment includes the tools of all
    segments below it.
    """
    routes_by_path: dict[tuple[str, ...], list[Route]] = {}
    for route in routes:
        inner = route.below[1:]  # without the link's own segment
        for depth in range(1, len(inner) + 1):
            routes_by_path.setdefault(inner[:depth], []).append(route)
    segments = []
    for path, inner_routes in sorted(routes_by_path.items()):
        capabilities = [route.capability for route in inner_routes if route.capability is not None]
        slowest = max((capability.latency_class for capability in capabilities), default=None)
        segment = Below(
            path=path,
            tools=len(inner_routes),
            hops=min(route.hops for route in inner_routes),
            latency_class=None if slowest is None else slowest.value,
            degraded=sum(capability.availability is Availability.DEGRADED for capability in capabilities),
            irreversible=sum(route.irreversible for route in inner_routes),
            gated=sum(route.gated for route in inner_routes),
        )
        segments.append(segment)
    return tuple(segments)


def local_items(link: LocalLink, root_segment: str | None) -> LinkItems:
    """Return the items that the node's own tools and resources behind a link add to the namespace, under
    `root_segment`.
    """
    root = () if root_segment is None else (root_segment,)
    below = () if link.is_root else link.path
    routes = []
    for tool in link.tools.values():
        qualified = ".".join((*root, *below, tool.name))
        definition = {"name": tool.name, "description": tool.description, "inputSchema": tool.input_schema}
        output = {} if tool.output_schema is None else {"outputSchema": tool.output_schema}
        capability = tool.capability
        route = Route(
            link=link,
            qualified=qualified,
            alias=alias(qualified),
            local=tool.name,
            original=tool.name,
            wire_name=Raw(encode_value(tool.name)),
            head=modern_head(TOOLS_CALL, tool.name),
            item=_encode_members({**definition, **output}),
            segments=(*root, *below),
            below=below,
            capability=capability,
            meta={CAPABILITY: hop_metadata.published_annotation(None, capability), HOPS: 1},
            hints=hints(capability, None),
            timeout_s=tool.timeout_s,
            scope=tool.scope,
        )
        routes.append(route)
    return LinkItems(
        link=link,
        tools=tuple(sorted(routes, key=lambda route: route.qualified)),
        resources=tuple(
            Place(link=link, uri=uri, bare=uri, shown=uri, item=_encode_members(resource.definition))
            for uri, resource in link.resources.items()
        ),
        digests=dict.fromkeys(("tools", "prompts", "resources", "templates"), b""),
    )


def _encode_members(definition: Mapping[str, object]) -> Item:
    return {member: Raw(encode_value(value)) for member, value in definition.items()}


PAUSE_S: Final = 30.0


class PacedChanges:
    """A limiter for reports of changes. It reports the first change at once, and combines the changes of the following
    pause into one report at its end (X-10.1-3).
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
    """The items of one link that are visible to callers with the same [[access]] rights."""

    tools: tuple[Route, ...]
    prompts: tuple[Route, ...]
    shown: "ShownItems"


class ShownItems:
    """The cached encoding of a link's tools. Callers share it if they see tool names in the same form."""

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
        """Return whether the server of these items has the era and the support for tasks that the cached encoding is
        made for.
        """
        return self._era is era_of(items.link) and self._tasks is items.link.tasks

    def tool(self, route: Route, era: Era, show: Callable[[Route, Era], bytes]) -> bytes:
        cache = self._modern if era is MODERN else self._legacy
        if (shown := cache.get(route)) is None:
            shown = cache[route] = show(route, era)
        return shown


class ShownTools:
    """The cached encoding of all listed tools. Callers that see names in the same form share it."""

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
    """The names of tools and prompts whose short forms (aliases) are equal. All of them are withheld (MCP-AX 3.2, our
    rule).
    """

    def __init__(self) -> None:
        self._claims: dict[str, dict[str, int]] = {}  # alias -> name -> how many have it: a tool and a prompt may
        self.withheld: Mapping[str, WithheldName] = {}

    def replace(self, old: LinkItems | None, new: LinkItems | None) -> None:
        """Update the collisions after the items of one link were replaced. If different names collide now, store a new
        object in `withheld`.
        """
        before, after = (() if items is None else (*items.tools, *items.prompts) for items in (old, new))
        gone, come = route_difference(before, after)
        aliases, names = set(), set()
        for routes, step in ((gone, -1), (come, 1)):
            for route in routes:
                if may_collide(route.alias):
                    claimed = self._claims.setdefault(route.alias, {})
                    claimed[route.qualified] = claimed.get(route.qualified, 0) + step
                    if not claimed[route.qualified]:
                        del claimed[route.qualified]
                    if not claimed:
                        del self._claims[route.alias]
                    aliases.add(route.alias)
                    names.add(route.qualified)
        if not names.isdisjoint(self.withheld) or any(len(self._claims.get(entry, ())) > 1 for entry in aliases):
            disputed = [name for claimed in self._claims.values() if len(claimed) > 1 for name in claimed]
            self.withheld = {entry.name: entry for entry in withhold_colliding_aliases(disputed).withheld}


def difference(old: LinkItems | None, new: LinkItems | None) -> tuple[frozenset[str], frozenset[str]]:
    """Compare the items of a link before and after they are replaced. Return the kinds of lists with changed
    definitions, and the kinds in which only metadata changed.

    In the first, clients see other names, schemas or descriptions. In the second, only the MCP-AX metadata or the order
    of the items changes, which is for parents (6.3, our rule).
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
    metadata = {"tools"} if marked else set()
    for kind in ("tools", "prompts", "resources", "templates"):
        if not _is_in_order(getattr(old, kind, ()), getattr(new, kind, ())):
            metadata.add("resources" if kind == "templates" else kind)
    return frozenset(definitions), frozenset(metadata) - definitions


def _is_same(kind: str, old: LinkItems | None, new: LinkItems | None, same: Callable[[Any, Any], bool]) -> bool:
    was, now = getattr(old, kind, ()), getattr(new, kind, ())
    if was is now:
        return True
    if not _is_in_order(was, now):
        was, now = sorted(was, key=_key), sorted(now, key=_key)
    return len(was) == len(now) and all(
        left is right or same(left, right) for left, right in zip(was, now, strict=True)
    )


def _is_in_order(old: Sequence[Any], new: Sequence[Any]) -> bool:
    """Return whether two lists of the same length have the same names at the same places. Lists of different lengths
    are not compared.
    """
    if old is new or len(old) != len(new):
        return True
    return all(left is right or _key(left) == _key(right) for left, right in zip(old, new, strict=True))


def _key(item: Route | Place) -> str:
    return item.shown if isinstance(item, Place) else item.qualified


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
