"""Calls that continue in a further round after a question from the server or from the gate of an aggregator below.

The approval of a call that was answered with a question is used but not finished. The identical call continues it once
with the same approval, if it sends back the state that came with the question. A demand of a gate below is relayed to
the caller, and remembered so that the proof can be sent to that gate. All of this is in memory, so a person is asked
again after the node restarts.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec
from msgspec import Raw

from interlock.ax.protocol.route import CURSOR, ROUTE
from interlock.catalog.routes import Route
from interlock.core.clock import Clock
from interlock.mcp.meta import RAW_EMPTY
from interlock.mcp.mrtr import ROUNDS_MAX
from interlock.wire.jsonrpc.codec import CodecError, Response, decode_untrusted

# Each table forgets its oldest entry when it is full, or refuses a new one: callers and hops below fill them.
RELAYED_MAX: Final = 10_000  # confirmations of hops below
OPEN_ROUNDS_MAX: Final = 10_000
ROUTES_MAX: Final = 10_000  # of parents' calls that are held


class Relayed(msgspec.Struct, frozen=True, kw_only=True):
    """A confirmation that an aggregator below demands, with the call that it is for."""

    route: Route
    requester: str
    digest: str
    onward: dict[str, Raw] | None = None  # route and cursor as the call had them (MCP-AX 7.2)


class NextRound(msgspec.Struct, frozen=True, kw_only=True):
    """Permission for a caller to continue a call after answering a question, without another approval."""

    approval_id: str
    until: float
    state: bytes  # what the server's question asks back; empty: a hop below asks for a confirmation
    questions: frozenset[str] = frozenset()  # the names of what the server asks
    held_below: str | None = None  # the confirmation that a hop below asks for
    number: int = 0  # rounds before this one


@dataclass(eq=False)
class Rounds:
    """Table of the calls that their clients may continue after answering a question, and of the confirmations that
    aggregators below demand.

    `on_lapsed` is called with the approval id of a call that its caller did not continue in time, or that an identical
    call with another approval replaced.
    """

    clock: Clock
    on_lapsed: Callable[[str], None]
    _relayed: dict[str, Relayed] = field(default_factory=dict, init=False)
    _open: dict[tuple[str, str], NextRound] = field(default_factory=dict, init=False)
    _routes: dict[str, dict[str, Raw]] = field(default_factory=dict, init=False)

    # Demands of hops below

    def remember_relayed(self, confirmation_id: str, relayed: Relayed) -> bool:
        """Remember a confirmation that an aggregator below demands. Return False if an aggregator on another link has
        already demanded a confirmation with the same id.

        The id stays with its first requester, so another caller that is shown the same id gets no result for it.
        """
        first = self._relayed.pop(confirmation_id, relayed)
        is_own = first.route.link.segment == relayed.route.link.segment
        if not is_own or first.requester != relayed.requester:
            relayed = first
        while len(self._relayed) >= RELAYED_MAX:
            del self._relayed[next(iter(self._relayed))]
        self._relayed[confirmation_id] = relayed
        return is_own

    def find_relayed(self, confirmation_id: str) -> Relayed | None:
        return self._relayed.get(confirmation_id)

    # Calls that a parent sent, and that are held here

    def remember_route(self, approval_id: str, meta: dict[str, Raw]) -> None:
        """Remember the route of a held call from a parent, because the later confirmation may contain no route."""
        while len(self._routes) >= ROUTES_MAX:
            del self._routes[next(iter(self._routes))]
        self._routes[approval_id] = {key: meta[key] for key in (ROUTE, CURSOR) if key in meta}

    def take_route(self, approval_id: str) -> dict[str, Raw]:
        return self._routes.pop(approval_id, {})

    # Next rounds

    def allow_next_round(
        self, requester: str, digest: str, approval_id: str, state: bytes, seconds: float, **members: Any
    ) -> bool:
        """Allow the caller to continue this call with the same approval during the next `seconds`. `members` are
        further members of NextRound.

        Return False if too many calls may continue already or this call has continued too often; the call has then
        ended.
        """
        until = self.clock.now() + seconds
        next_round = NextRound(approval_id=approval_id, until=until, state=state, **members)
        if len(self._open) >= OPEN_ROUNDS_MAX or next_round.number > ROUNDS_MAX:
            return False
        key = (requester, digest)
        before = self._open.get(key)
        if before is not None and before.approval_id != approval_id:
            self.on_lapsed(before.approval_id)  # the same call was made a second time, and replaces the first
        self._open[key] = next_round
        asyncio.get_running_loop().call_later(seconds, self._lapse, key, next_round)
        return True

    def has_next_round(self, requester: str, digest: str, state: bytes) -> bool:
        next_round = self._open.get((requester, digest))
        return next_round is not None and next_round.state == state and self.clock.now() < next_round.until

    def find_approval(self, requester: str, digest: str) -> str | None:
        next_round = self._open.get((requester, digest))
        return next_round.approval_id if next_round is not None else None

    def take_next_round(self, requester: str, digest: str) -> NextRound | None:
        """Remove and return the permission to continue this call, so that it is used only once. Return None if there is
        none.
        """
        return self._open.pop((requester, digest), None)

    def _lapse(self, key: tuple[str, str], next_round: NextRound) -> None:
        if self._open.get(key) is next_round:
            del self._open[key]
            self.on_lapsed(next_round.approval_id)


def result_of(message: bytes) -> Raw:
    """Return the `result` member of an encoded JSON-RPC reply, or RAW_EMPTY if the reply is an error or unreadable."""
    try:
        response = decode_untrusted(message)
    except CodecError:
        return RAW_EMPTY
    return response.result if isinstance(response, Response) and not response.error else RAW_EMPTY
