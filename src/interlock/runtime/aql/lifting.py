"""AQL servers below this node: their operations in place of their endpoint tools (C.map-16).

A server whose tools are named like MCP-AQL endpoints and that answers `introspect` as MCP-AQL says is lifted: its
operations stand under its namespace with its own categories. One that only looks like it is served as ordinary tools.
"""

from collections.abc import Callable, Mapping, Sequence

from interlock.config.plan import Plan
from interlock.runtime.aql.operation_index import Entry
from interlock.runtime.catalog.routes import Route


class LiftedServers:
    """By endpoint tool: the operations behind it. Filled by `AqlScout`."""

    def __init__(self, on_change: Callable[[], None]) -> None:
        self._on_change = on_change
        self._by_route: Mapping[Route, Sequence[Entry]] = {}

    def entries(self, route: Route, plan: Plan) -> Sequence[Entry] | None:
        """None: an ordinary tool."""
        return self._by_route.get(route) if self._by_route else None

    def replace(self, found: Mapping[Route, Sequence[Entry]]) -> None:
        self._by_route = found
        self._on_change()
