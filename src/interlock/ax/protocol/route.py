"""The route of a request on an MCP-AX link: `x-mcpax-route` and `x-mcpax-cursor` (MCP-AX 7.2).

In comes what an authenticated parent wrote; out comes a Routed value, or the refusal route_mismatch. The path of a tool
or prompt ends in its local name; that of a resource ends in the segment of the server that has it. On the wire
path[cursor] is the segment the receiver was assigned, so an aggregator moves the cursor only past a segment of its own.
The route is followed: a receiver finds the item by the rest of the path, and the name in params has to agree with it.
Names are never cut up here, they are only put together from the path and compared.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec import Raw

from interlock.ax.protocol.names import QUALIFIED_MAX, SCHEME, is_segment
from interlock.wire.jsonrpc.codec import CodecError, decode_value, encode_value
from interlock.wire.refusal import ROUTE_MISMATCH, Refusal, ax_refusal

ROUTE: Final = "x-mcpax-route"  # AX-7.2-1
CURSOR: Final = "x-mcpax-cursor"  # AX-7.2-1
ROUTE_BYTES_MAX: Final = 4096  # a path spells a name of at most 255 characters; the rest is room for white space
CURSOR_BYTES_MAX: Final = 8


class Routed(msgspec.Struct, frozen=True, kw_only=True):
    """Route of a request: its path through the tree, and the position of the receiver in this path (`cursor`)."""

    path: tuple[str, ...]  # root first, the same on every link
    cursor: int

    @property
    def receiver(self) -> str:
        return self.path[self.cursor]

    @property
    def rest(self) -> tuple[str, ...]:
        """Return the segments of the path that follow the receiver."""
        return self.path[self.cursor + 1 :]


def read_untrusted(params: Mapping[str, Raw], meta: Mapping[str, Raw]) -> Routed | Refusal | None:
    """Read the route of a request. Return None if the request has no route, or a refusal if the route is invalid.

    `meta` is the `_meta` of `params`. The route is read from both places, and written to `_meta` only (7.2). If the two
    differ, the request is refused.
    """
    route = _read(ROUTE, ROUTE_BYTES_MAX, params, meta)
    cursor = _read(CURSOR, CURSOR_BYTES_MAX, params, meta)
    if isinstance(route, Refusal):
        return route
    if isinstance(cursor, Refusal):
        return cursor
    if route is msgspec.UNSET and cursor is msgspec.UNSET:
        return None
    if route is msgspec.UNSET or cursor is msgspec.UNSET:  # AX-7.2-1: only one of the two
        return _mismatch(f"{ROUTE} and {CURSOR} come together, and one of them is missing")
    if not isinstance(route, list) or not route:  # AX-7.2-1
        return _mismatch(f"{ROUTE} must be an array of segments")
    if not all(isinstance(segment, str) and is_segment(segment) for segment in route):  # AX-7.2-1
        return _mismatch(f"each element of {ROUTE} must be 1 to 63 characters of a-z, 0-9, _ and -")
    if sum(map(len, route)) + len(route) - 1 > QUALIFIED_MAX:
        return _mismatch(f"the name {ROUTE} spells is longer than {QUALIFIED_MAX} characters")
    if type(cursor) is not int or not 0 <= cursor < len(route):  # AX-7.2-1
        return _mismatch(f"{CURSOR} must be an integer that points into {ROUTE}")
    return Routed(path=tuple(route), cursor=cursor)


def check(routed: Routed, *, segment: str, rest: Sequence[str]) -> Refusal | None:
    """Return a refusal if a route does not lead to the node that received it or to the requested item, otherwise None.

    `segment` is the segment that the parent assigned. `rest` is the path of the item in the receiver's own table: the
    segments below the receiver, then the local name. For a leaf it is the local name alone.
    """
    if routed.receiver != segment:
        return _elsewhere(routed)
    return None if routed.rest == tuple(rest) else _disagrees(routed)


def follow_name(routed: Routed, *, segment: str, name: str) -> str | Refusal:
    """Return the name of the tool or prompt to which a route leads, with the dotted segments below the receiver.

    `name` is the name in params: the local name, the name below the receiver or the full name. Any other name is
    refused, never corrected (7.2).
    """
    if routed.receiver != segment:  # AX-7.2-4
        return _elsewhere(routed)
    below = ".".join(routed.rest)
    # AX-7.2-4
    return below if below and name in (routed.path[-1], below, ".".join(routed.path)) else _disagrees(routed)


def follow_uri(routed: Routed, *, segment: str, uri: str) -> str | Refusal:
    """Return the URI of the resource to which a route leads, in the form that the nodes below the receiver know.

    `uri` is the URI in params: the URI below the receiver, the URI at the root, or the server's own URI.
    """
    if routed.receiver != segment:
        return _elsewhere(routed)
    below, whole = (f"{SCHEME}{'.'.join(path)}/" for path in (routed.rest, routed.path))
    if not routed.rest or (uri.startswith(SCHEME) and not uri.startswith((below, whole))):
        return _disagrees(routed)
    return uri if uri.startswith(below) else below + uri.removeprefix(whole)


def start(own: str | None, below: Sequence[str]) -> Routed:
    """Return the route of a request that begins at this node, with the cursor for the first hop.

    `own` is the root segment; if it is None, the first child is at position 0. `below` begins with that child's
    segment.
    """
    return Routed(path=(*below,), cursor=0) if own is None else Routed(path=(own, *below), cursor=1)  # AX-7.2-5


def advance(routed: Routed) -> Routed:
    """Return the route for the next hop: the same path, with the cursor one position further."""
    return Routed(path=routed.path, cursor=routed.cursor + 1)  # AX-7.2-3


def as_meta(routed: Routed) -> dict[str, Raw]:
    """Return a route as the two keys that are added to the `_meta` of a request."""
    return {ROUTE: Raw(encode_value(routed.path)), CURSOR: Raw(b"%d" % routed.cursor)}


def _read(key: str, bytes_max: int, params: Mapping[str, Raw], meta: Mapping[str, Raw]) -> Any:
    """Return the decoded value of a key, UNSET if the key is absent, or a Refusal if the value cannot be read."""
    places = [place[key] for place in (meta, params) if key in place]
    if any(len(raw) > bytes_max for raw in places):
        return _mismatch(f"{key} is longer than {bytes_max} bytes")
    try:
        values = [decode_value(raw) for raw in places]
    except CodecError:
        return _mismatch(f"{key} cannot be read")
    if len(values) == 2 and values[0] != values[1]:
        return _mismatch(f"{key} in params and in params._meta are not the same")
    return values[0] if values else msgspec.UNSET


def _elsewhere(routed: Routed) -> Refusal:
    return _mismatch("this is not the node that the route names at the cursor", cursor=routed.cursor)


def _disagrees(routed: Routed) -> Refusal:
    return _mismatch("the rest of the route and the name in params are not the same", cursor=routed.cursor)


def _mismatch(why: str, **data: int) -> Refusal:
    return ax_refusal(ROUTE_MISMATCH, why, **data)
