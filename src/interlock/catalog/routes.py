"""Routes: where each item of the namespace leads, and what holds for a call of it."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, Protocol

import msgspec
from msgspec import Raw

from interlock.ax.protocol.budget import Price
from interlock.ax.protocol.capability import Availability, Capability, LatencyClass
from interlock.ax.protocol.hop_metadata import ADOPTED, DECLARED, Offer, as_declared
from interlock.ax.protocol.names import SCHEME, WithheldName
from interlock.catalog.definition import DefinitionSnapshot, DefinitionState
from interlock.catalog.surface import Surface
from interlock.config.plan import ToolClass
from interlock.core.calls.check import Check
from interlock.gate.protocol.policy import GateRule, ToolClaims
from interlock.links.api import Below
from interlock.links.link import Link
from interlock.mcp.headers import Mirrored
from interlock.mcp.items import Item
from interlock.mcp.methods import Era
from interlock.wire.jsontext.canonical import tool_digest
from interlock.wire.refusal import Refusal


class Rulings(Protocol):
    """The rulings of operators on tools that do not say it themselves."""

    def get(self, tool: str, digest: str) -> ToolClass | None:
        """Return the class that operators decided for a definition, or None. `digest`: of the definition they were
        shown.
        """

    def knows(self, tool: str) -> bool:
        """Return whether operators decided anything about a tool of this name."""

    def look(self, segment: str, snapshot: DefinitionSnapshot) -> DefinitionState:
        """Compare a definition with the one that was accepted before. A flag that it had then is set again."""

    def find_accepted(self, segment: str, tool: str) -> ToolClaims | None:
        """Return the claims of the definition that was last accepted, or None."""

    def waits(self, segment: str) -> frozenset[str]:
        """Return the tools that wait for an operator's decision."""

    def took(
        self, segment: str, seen: Iterable[tuple[DefinitionSnapshot, DefinitionState]], listed: Mapping[str, object]
    ) -> None:
        """Remember the definitions in `seen`, or ask about them, after a list was taken over."""


class _NoRulings:
    def get(self, tool: str, digest: str) -> ToolClass | None:
        return None

    def knows(self, tool: str) -> bool:
        return False

    def look(self, segment: str, snapshot: DefinitionSnapshot) -> DefinitionState:
        return DefinitionState.SAME

    def find_accepted(self, segment: str, tool: str) -> ToolClaims | None:
        return None

    def waits(self, segment: str) -> frozenset[str]:
        return frozenset()

    def took(
        self, segment: str, seen: Iterable[tuple[DefinitionSnapshot, DefinitionState]], listed: Mapping[str, object]
    ) -> None:
        """Do nothing: no definition is remembered."""


NO_RULINGS: Final = _NoRulings()


class Route(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """The way from a name to its server, and all a call needs to take it without looking anything up again."""

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
    said: Raw | None = None  # the capability annotation as it came
    meta: dict[str, Any] = {}
    hints: dict[str, bool] = {}
    hops: int = 1
    irreversible: bool = False  # flagged so here or below
    gated: bool = False  # as listed: here or by a hop below
    gate: GateRule | None = None  # what a call meets before it is sent, or instead of the tool's own answer
    is_open: bool = False  # neither server nor operator says whether it changes anything
    is_classified: bool = False  # what it does is the word of this node's operator or of a contract, not its server's
    is_unaccepted: bool = False  # its server claims less than what was accepted, which does not count yet
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
        """Return the refusal of every call, if the registry of names refuses the tool."""
        return self.surface.refusal if self.surface is not None else None

    @property
    def is_held(self) -> bool:
        """Return whether a call waits for a person here."""
        return self.gate is not None and self.gate.hold is not None

    @property
    def digest(self) -> str:
        """Return the digest of the definition as declared (MCP-AX 11.3)."""
        declared = as_declared(self.said, self.meta.get(DECLARED, {}))
        return tool_digest(self.item, downstream_name=self.original, declared=declared)


Checks = tuple[Check[Route], ...]
ChecksFor = Callable[[Route], Checks]  # what the guard says of a route that is being listed


class Place(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """A resource or a template and the server that has it."""

    link: Link
    uri: str  # as the server says it; a template for templates
    bare: str  # the same without the segments an aggregator put before it
    shown: str  # as clients see it
    item: Item


class LinkItems(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    link: Link
    offer: Offer = ADOPTED
    least_latency: LatencyClass = LatencyClass.REALTIME  # no tool behind this link is faster (MCP-AX 9.2)
    tools: tuple[Route, ...] = ()  # sorted by qualified name
    prompts: tuple[Route, ...] = ()
    resources: tuple[Place, ...] = ()  # sorted by shown URI
    templates: tuple[Place, ...] = ()
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


class ChangedDefinition(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """A tool whose definition is not what it was when the server last listed it."""

    name: str
    before: Route
    after: Route


RESOURCE_SCHEME: Final = SCHEME


def changes(old: LinkItems | None, new: LinkItems) -> tuple[ChangedDefinition, ...]:
    """Return the tools whose definition changed. A digest is only computed if the bytes differ."""
    if old is None or old is new or old.tools is new.tools:
        return ()
    same = set(old.tools).intersection(new.tools)
    before = {route.qualified: route for route in old.tools if route not in same}
    changed = []
    for after in new.tools if before else ():
        was = before.get(after.qualified)
        if was is None or (was.item == after.item and was.original == after.original and was.said == after.said):
            continue
        if was.digest != after.digest:
            changed.append(ChangedDefinition(name=after.qualified, before=was, after=after))
    return tuple(changed)


def era_of(link: Link) -> Era:
    return link.facts.era if link.facts is not None else Era.LEGACY


def below(routes: Iterable[Route]) -> tuple[Below, ...]:
    """Return the segments below an aggregator, by path. A segment counts the tools of all segments below it."""
    routes_by_path: dict[tuple[str, ...], list[Route]] = {}
    for route in routes:
        inner = route.below[1:]  # without the link's own segment
        for depth in range(1, len(inner) + 1):
            routes_by_path.setdefault(inner[:depth], []).append(route)
    return tuple(_segment(path, routes_by_path[path]) for path in sorted(routes_by_path))


def _segment(path: tuple[str, ...], routes: list[Route]) -> Below:
    capabilities = [route.capability for route in routes if route.capability is not None]
    slowest = max((capability.latency_class for capability in capabilities), default=None)
    return Below(
        path=path,
        tools=len(routes),
        hops=min(route.hops for route in routes),
        latency_class=None if slowest is None else slowest.value,
        degraded=sum(capability.availability is Availability.DEGRADED for capability in capabilities),
        irreversible=sum(route.irreversible for route in routes),
        gated=sum(route.gated for route in routes),
    )
