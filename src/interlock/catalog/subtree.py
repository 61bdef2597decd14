"""What lies below a link that is an aggregator itself, as far as its tools tell: segment by segment, for people."""

from collections.abc import Iterable

from interlock.ax.protocol.capability import Availability
from interlock.catalog.routes import Route
from interlock.links.api import Below


def below(routes: Iterable[Route]) -> tuple[Below, ...]:
    """In the order of their paths; a segment counts the tools of all segments below it as well."""
    found: dict[tuple[str, ...], list[Route]] = {}
    for route in routes:
        inner = route.below[1:]  # without the link's own segment
        for depth in range(1, len(inner) + 1):
            found.setdefault(inner[:depth], []).append(route)
    return tuple(_segment(path, found[path]) for path in sorted(found))


def _segment(path: tuple[str, ...], routes: list[Route]) -> Below:
    capabilities = [route.capability for route in routes if route.capability is not None]
    slowest = max((one.latency_class for one in capabilities), default=None)
    return Below(
        path=path,
        tools=len(routes),
        hops=min(route.hops for route in routes),
        latency_class=None if slowest is None else slowest.value,
        degraded=sum(one.availability is Availability.DEGRADED for one in capabilities),
        irreversible=sum(route.irreversible for route in routes),
        gated=sum(route.gated for route in routes),
    )
