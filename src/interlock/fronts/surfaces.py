"""The surfaces of the node, and the choice of one for each client.

A surface is one front for each era, over the same dispatcher. The path or command of the client decides, otherwise its
[[access]] rule, otherwise [mcp]. With `auto`, the tokens of the flat list are compared with aql.auto_tokens when the
client greets. The surface of a connected client does not change.
"""

from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any, Final, Literal, cast

import msgspec

from interlock.catalog.catalog import Catalog, Namespace, View
from interlock.core.calls.caller import Principal, ViewKey, view_key
from interlock.core.current_plan import CurrentPlan
from interlock.dispatch.availability import Arrivals
from interlock.fronts.legacy import LegacyFront
from interlock.fronts.modern import ModernFront

ServedSurface = Literal["flat", "aql", "aql-single", "safety"]
BYTES_PER_TOKEN: Final = 4  # what tokenizers make of JSON, near enough to choose by
HYSTERESIS: Final = 0.8  # below this share of the threshold the flat list comes back
CHOICES_MAX: Final = 256


class FrontPair(msgspec.Struct, frozen=True):
    """The name of a surface, with the entry points for its legacy and its modern clients."""

    name: ServedSurface
    legacy: LegacyFront
    modern: ModernFront


@dataclass(eq=False)
class SurfaceChooser:
    """A chooser of the surface that each client gets: every tool by itself, or a few MCP-AQL endpoints."""

    pairs: dict[ServedSurface, FrontPair]
    current: CurrentPlan
    catalog: Catalog
    arrivals: Arrivals
    _auto: dict[ViewKey, tuple[Namespace, bool, int]] = field(default_factory=dict)

    def choose(self, requested: str | None, principal: Principal, only: str | None = None) -> tuple[FrontPair, str]:
        """Choose what a client sees: every tool by itself, or a few MCP-AQL endpoints. `requested` is its wish in the
        URL or command, or None.

        Also return a text for the log: the name of the surface, and what determined the choice.
        """
        wanted, why = self._wanted(requested, principal, only)
        if wanted != "auto":
            return self.pairs[wanted], f"{wanted} ({why})"
        # The size of the flat list is computed once per change of the catalogue. Small changes around the threshold do
        # not change the result.
        namespace, limit = self.catalog.namespace, self.current.plan.aql.auto_tokens
        view = namespace.view(view_key(principal, only=None, names="auto", declares_extension=False))
        size = self._auto.get(view.key)
        if size is None or size[0] is not namespace:
            tokens = list_tokens(view)
            was_large = size is not None and size[1]
            if len(self._auto) > CHOICES_MAX:
                self._auto.clear()
            size = self._auto[view.key] = (namespace, tokens > limit * (HYSTERESIS if was_large else 1.0), tokens)
        _, is_large, tokens = size
        pair = self.pairs["aql" if is_large else "flat"]
        return pair, f"{pair.name} (auto: the flat list has about {tokens} tokens, aql.auto_tokens is {limit})"

    def maybe_wait(
        self, requested: str | None, principal: Principal, only: str | None = None
    ) -> Coroutine[Any, Any, None] | None:
        """Return a coroutine that waits until the servers are connected whose tools decide about the surface, for at
        most mcp.list_wait_s.

        Return None if there is nothing to wait for.
        """
        return self.arrivals.maybe_wait() if self._wanted(requested, principal, only)[0] == "auto" else None

    def _wanted(
        self, requested: str | None, principal: Principal, only: str | None
    ) -> tuple[ServedSurface | Literal["auto"], str]:
        """Return the surface that the request or the configuration selects, and a text that says what selected it. The
        surface can be `auto`, so that the size of the list of tools decides.
        """
        if only is not None and requested is None:
            return "flat", "one server only"
        if requested is not None and (requested == "auto" or requested in self.pairs):
            return cast(ServedSurface, requested), "asked for"
        if principal.surface is not None:
            return principal.surface, "[[access]]"
        return self.current.plan.mcp.surface, "mcp.surface"


def list_tokens(view: View) -> int:
    """Return the approximate number of tokens in the flat tools/list, counting what a model reads of each tool."""
    size = sum(
        len(route.qualified) + sum(len(route.item.get(member, b"")) for member in ("description", "inputSchema"))
        for route in view.tool_routes
    )
    return size // BYTES_PER_TOKEN
