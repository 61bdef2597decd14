"""Where an authenticated parent's request comes in (MCP-AX 7.2, 10.2): its route is followed to the item it leads to.

Only callers that are parents have a Hop; what a client says of routes is dropped on its way, and never read.
"""

from collections.abc import Sequence
from typing import Any, Final

import msgspec
from msgspec import Raw

from interlock.ax.protocol.route import (
    CURSOR,
    ROUTE,
    Routed,
    advance,
    as_meta,
    check,
    follow_name,
    follow_uri,
    read_untrusted,
)
from interlock.wire.jsonrpc.codec import encode_value, find_string
from interlock.wire.refusal import SCOPE_DENIED, Refusal, ax_refusal

KNOWN_MAX: Final = 4096  # routes remembered; each is one tool's
KNOWN_BYTES_MAX: Final = 512  # of a route, and of a name, that is worth remembering


class Followed(msgspec.Struct, frozen=True):
    """Item that a route leads to."""

    name: str  # of the tool or prompt as our own table has it; the URI of a resource
    raw: Raw  # the same as JSON
    onward: dict[str, Raw]  # the route one further, for an AX peer below
    received: dict[str, Raw]  # the route as it came, as `_meta` has it


class Hop:
    """The link to a parent, as far as routes are concerned. `segment` is the one that the parent assigned to us."""

    __slots__ = ("_known", "segment")

    def __init__(self, segment: str) -> None:
        self.segment = segment
        self._known: dict[tuple[bytes, bytes, bytes], Followed] = {}

    def follow(self, params: dict[str, Any], meta: dict[str, Raw], name: Raw | None) -> Followed | Refusal | None:
        """Follow a parent's route to a tool or prompt; `name` is its name as the parent wrote it.

        Returns None if the request has no route or no name.
        """
        if name is None:
            return None
        if ROUTE not in meta or CURSOR not in meta or ROUTE in params or CURSOR in params:
            return self._follow(params, meta, name)
        key = bytes(meta[ROUTE]), bytes(meta[CURSOR]), bytes(name)
        cached = self._known.get(key)  # a parent says the same of a tool with every call
        if cached is not None:
            return cached
        followed = self._follow(params, meta, name)
        if isinstance(followed, Followed) and max(map(len, key)) <= KNOWN_BYTES_MAX:
            if len(self._known) >= KNOWN_MAX:
                self._known.clear()
            self._known[key] = followed
        return followed

    def _follow(self, params: dict[str, Any], meta: dict[str, Raw], name: Raw) -> Followed | Refusal | None:
        text = find_string(name)
        if text is None:
            return None
        routed = _take_route(params, meta)
        if not isinstance(routed, Routed):
            return routed
        local_name = follow_name(routed, segment=self.segment, name=text)
        return local_name if isinstance(local_name, Refusal) else _followed(local_name, routed)

    def follow_uri(self, params: dict[str, Any], meta: dict[str, Raw], uri: str) -> Followed | Refusal | None:
        """Follow a parent's route to a resource, whose URI is returned as our own lists have it."""
        routed = _take_route(params, meta)
        if not isinstance(routed, Routed):
            return routed
        local_uri = follow_uri(routed, segment=self.segment, uri=uri)
        return local_uri if isinstance(local_uri, Refusal) else _followed(local_uri, routed)

    def check(self, params: dict[str, Any], meta: dict[str, Raw], rest: Sequence[str]) -> Followed | Refusal | None:
        """Check a parent's route to an item that is already determined.

        `rest` is the segments below this node, then the item's local name.
        """
        routed = _take_route(params, meta)
        if not isinstance(routed, Routed):
            return routed
        return check(routed, segment=self.segment, rest=rest) or _followed(".".join(rest), routed)


def _take_route(params: dict[str, Any], meta: dict[str, Raw]) -> Routed | Refusal | None:
    """Take the route out of a request. It is read beside `_meta` and in it, and is only written to `_meta`."""
    routed = read_untrusted(params, meta)
    params.pop(ROUTE, None)
    params.pop(CURSOR, None)
    return routed


def _followed(name: str, routed: Routed) -> Followed:
    return Followed(name, Raw(encode_value(name)), as_meta(advance(routed)), as_meta(routed))


OUT_OF_SCOPE: Final = ax_refusal(SCOPE_DENIED, "the tool is there, and needs a wider scope than this registration has")
