"""The operations of AQL servers below this node, by the endpoint tool behind which each is (C.map-16)."""

from collections import Counter
from collections.abc import Container, Mapping

from interlock.aql.protocol.model import Operation
from interlock.aql.protocol.tool_names import suffixed
from interlock.catalog.routes import Route
from interlock.core.feed import Feed


class LiftedOperations:
    """Operations that AQL servers below declared. A tool of such a server without operations offers none that are
    not elsewhere.
    """

    def __init__(self) -> None:
        self.changed = Feed[None]()
        self._by_route: dict[Route, Mapping[str, Operation]] = {}  # by the name that the server has for it
        self._name_counts: Mapping[str, int] = {}  # how many operations would have a name

    def operations(self, route: Route) -> Mapping[str, Operation] | None:
        """Return the operations behind a tool by the server's names, or None for an ordinary tool."""
        return self._by_route.get(route)

    def name(self, route: Route, upstream: str, taken: Container[str]) -> str:
        """Return the name here of an operation. A name that something else has too names neither (C.map-3)."""
        name = self._by_route[route][upstream].name
        is_doubled = name in taken or self._name_counts[name] > 1
        return suffixed(name, f"{route.qualified}.{upstream}") if is_doubled else name

    def replace(self, segment: str, operations: Mapping[Route, Mapping[str, Operation]]) -> None:
        """Replace what the server of this segment declared."""
        for route in [route for route in self._by_route if route.link.segment == segment]:
            del self._by_route[route]
        self._by_route.update(operations)
        self._name_counts = Counter(
            operation.name for declared in self._by_route.values() for operation in declared.values()
        )
        self.changed.publish(None)
