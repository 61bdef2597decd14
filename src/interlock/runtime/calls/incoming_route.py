"""Where an authenticated parent's request comes in (MCP-AX 7.2, 10.2): its route is held against our own table.

Only callers that are parents have a Hop; what a client says of routes is dropped on its way, and never read.
"""

from collections.abc import Sequence
from typing import Any, Final

from msgspec import Raw

from interlock.protocol.ax.errors import SCOPE_DENIED, refusal
from interlock.protocol.ax.route import CURSOR, ROUTE, advance, as_meta, check, read_untrusted
from interlock.protocol.jsonrpc.errors import Fault

KNOWN_MAX: Final = 4096  # routes remembered; each is one tool's
KNOWN_BYTES_MAX: Final = 512  # of a route that is worth remembering


class Hop:
    """`segment` is what the parent assigned to us."""

    __slots__ = ("_known", "segment")

    def __init__(self, segment: str) -> None:
        self.segment = segment
        self._known: dict[tuple[bytes, bytes], tuple[Sequence[str], dict[str, Raw] | None]] = {}

    def onward(
        self, params: dict[str, Any], meta: dict[str, Raw], rest: Sequence[str]
    ) -> dict[str, Raw] | Fault | None:
        """What an AX peer below is to read; the refusal; None where the parent says nothing of the way.

        `rest` is what our table has for the item: the segments below us, then its local name if it has one.
        """
        if ROUTE not in meta or CURSOR not in meta or ROUTE in params or CURSOR in params:
            return self._judge(params, meta, rest)
        said = bytes(meta[ROUTE]), bytes(meta[CURSOR])
        known = self._known.get(said)  # a parent says the same of a tool with every call
        if known is not None and known[0] == rest:
            return known[1]
        onward = self._judge(params, meta, rest)
        if not isinstance(onward, Fault) and len(said[0]) <= KNOWN_BYTES_MAX:
            if len(self._known) >= KNOWN_MAX:
                self._known.clear()
            self._known[said] = rest, onward
        return onward

    def _judge(
        self, params: dict[str, Any], meta: dict[str, Raw], rest: Sequence[str]
    ) -> dict[str, Raw] | Fault | None:
        routed = read_untrusted(params, meta)
        if routed is None or isinstance(routed, Fault):
            return routed
        mismatch = check(routed, segment=self.segment, rest=rest)
        if mismatch is not None:
            return mismatch
        params.pop(ROUTE, None)  # read in both places, written only to `_meta`
        params.pop(CURSOR, None)
        return as_meta(advance(routed)) if len(routed.rest) > 0 else None


OUT_OF_SCOPE: Final = refusal(SCOPE_DENIED, "the tool is there, and needs a wider scope than this registration has")
