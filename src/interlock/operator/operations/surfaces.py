"""Tools with registered names, for operators: which are pinned to what they are."""

from interlock.catalog.catalog import Catalog
from interlock.catalog.routes import Route
from interlock.core.feed import AsyncFeed
from interlock.core.operator_errors import NotFound
from interlock.names.api import PinnedTool, PinnedTools
from interlock.names.protocol.judgement import SchemaPair
from interlock.names.surface_check import ANY, NONE, Pin, SurfacePins
from interlock.wire.jsonrpc.errors import CodecError


class SurfaceOperations:
    def __init__(self, catalog: Catalog, pins: SurfacePins, ruled: AsyncFeed[str]) -> None:
        """`ruled` has the tools of a segment listed anew."""
        self._catalog = catalog
        self._pins = pins
        self._ruled = ruled

    async def repin(self, name: str, *, is_removed: bool = False) -> PinnedTools:
        """Pins what the tools of a surface name, or one tool, offer now. Raises NotFound, StoreError."""
        routes = {route.qualified: route for route in self._routes() if _goes_by(route, name)}
        done: list[PinnedTool] = []
        if is_removed:
            for pin in [one for one in self._pins.all() if one.tool in routes or one.tool == name]:
                await self._pins.remove(pin.tool)
                done.append(PinnedTool(tool=pin.tool, digest=pin.digest))
        else:
            for pin in filter(None, map(_pin, routes.values())):
                await self._pins.put(pin)
                done.append(PinnedTool(tool=pin.tool, digest=pin.digest))
        if not done:
            raise NotFound("tool", name, sorted({route.original for route in self._routes()}))
        for segment in sorted({routes[one.tool].link.segment for one in done if one.tool in routes}):
            await self._ruled.publish(segment)
        return PinnedTools(tools=tuple(sorted(done, key=lambda one: one.tool)))

    def offers(self) -> dict[str, list[tuple[str, str]]]:
        """By the name that servers give a tool: the segments of those that offer it, and its qualified names."""
        found: dict[str, list[tuple[str, str]]] = {}
        for route in self._routes():
            found.setdefault(route.original, []).append((route.link.segment, route.qualified))
        return found

    def _routes(self) -> list[Route]:
        return [route for items in self._catalog.namespace.link_items for route in items.tools]


def _goes_by(route: Route, name: str) -> bool:
    return name in (route.qualified, route.original, route.local)


def _pin(route: Route) -> Pin | None:
    """None: its schemas cannot be read."""
    argument, returned = route.item.get("inputSchema", ANY), route.item.get("outputSchema")
    try:
        digest = SchemaPair(argument, returned).digest
    except CodecError:
        return None
    return Pin(tool=route.qualified, digest=digest, argument=argument, returned=NONE if returned is None else returned)
