"""Calls that continue in a further round after a question from the server or from the gate of an aggregator below.

The approval of a call that was answered with a question is used but not finished. The identical call continues it once
with the same approval, if it sends back the state that came with the question. A demand of a gate below is relayed to
the caller, and remembered so that the proof can be sent to that gate. All of this is in memory, so a person is asked
again after the node restarts.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec import Raw

from interlock.approvals.inbox import Inbox
from interlock.ax.protocol.hop_metadata import CALLER, caller_mark
from interlock.ax.protocol.route import CURSOR, ROUTE
from interlock.catalog.routes import Route
from interlock.core.calls.call import Call
from interlock.core.clock import Clock
from interlock.gate.protocol.relay import MARK, RelayedCall, RelayedDemand, find_demand
from interlock.gate.protocol.reserved_claims import DIGEST_MARK, ESCAPE_MARK, without_claims
from interlock.mcp.meta import RAW_EMPTY
from interlock.mcp.mrtr import ROUNDS_MAX
from interlock.wire.jsonrpc.codec import CodecError, Response, decode_untrusted, encode_result

if TYPE_CHECKING:
    from interlock.gate.gate import GateHold

# Each table forgets its oldest entry when it is full, or refuses a new one: callers and hops below fill them.
RELAYED_MAX: Final = 10_000  # confirmations of hops below
OPEN_ROUNDS_MAX: Final = 10_000
ROUTES_MAX: Final = 10_000  # of parents' calls that are held

_CLAIM_MARKS: Final = (MARK, DIGEST_MARK, ESCAPE_MARK)


class Relayed(msgspec.Struct, frozen=True, kw_only=True):
    """A confirmation that an aggregator below demands, and the call that it confirms."""

    route: Route
    requester: str
    digest: str
    onward: dict[str, Raw] | None = None  # route and cursor as the call had them (MCP-AX 7.2)


class NextRound(msgspec.Struct, frozen=True, kw_only=True):
    """Permission to continue a call with the approval that it has already used."""

    approval_id: str
    until: float
    state: bytes  # what the server's question asks back; empty: a hop below asks for a confirmation
    questions: frozenset[str] = frozenset()  # the names of what the server asks
    held_below: str | None = None  # the confirmation that a hop below asks for
    number: int = 0  # rounds before this one


@dataclass(eq=False)
class Rounds:
    """The table of calls that may continue, by requester and digest, and of confirmations that aggregators below
    demand.

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
        """Remember a confirmation that an aggregator below demands. Return False if its id already belongs to a
        confirmation of another link.

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
        """Remember the route of a parent's held call, because the confirmation may arrive without a route."""
        while len(self._routes) >= ROUTES_MAX:
            del self._routes[next(iter(self._routes))]
        self._routes[approval_id] = {key: meta[key] for key in (ROUTE, CURSOR) if key in meta}

    def take_route(self, approval_id: str) -> dict[str, Raw]:
        return self._routes.pop(approval_id, {})

    # Next rounds

    def allow_next_round(
        self, requester: str, digest: str, approval_id: str, state: bytes, seconds: float, **members: Any
    ) -> bool:
        """Allow the identical call to continue with its approval during the next `seconds`. `members` are further
        members of NextRound.

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
        """Remove and return the permission to continue this call, so that no other call can use it. Return None if
        there is none.
        """
        return self._open.pop((requester, digest), None)

    def _lapse(self, key: tuple[str, str], next_round: NextRound) -> None:
        if self._open.get(key) is next_round:
            del self._open[key]
            self.on_lapsed(next_round.approval_id)


@dataclass(eq=False)
class Relays:
    """Exchange between this gate and the gates of aggregators below: sends marks of callers, and reads demands."""

    inbox: Inbox
    rounds: Rounds
    aggregator_id: str
    key: bytes = field(default=b"", init=False)  # makes the marks of callers; the gate sets it when it opens

    def mark_caller(self, call: Call, requester: str) -> None:
        """Add a mark to the call that lets the aggregator below distinguish this node's callers. All callers without a
        credential share one mark.
        """
        who = "" if call.caller.principal.stranger else requester
        call.tell_below({CALLER: caller_mark(who, self.key)})

    def read_reply(self, call: Call, hold: "GateHold", message: bytes) -> RelayedDemand | bytes:
        """Return the demand of an aggregator below, translated to the names of this node, or the reply if it contains
        no demand.

        Claims about held calls that the aggregator may not make are removed from the reply.
        """
        offer = hold.route.link.offer
        if not (offer.is_aggregator and offer.proved and any(mark in message for mark in _CLAIM_MARKS)):
            return message
        result = result_of(message)
        if result is RAW_EMPTY:
            return message
        demand = self._find_demand(call, hold, result)
        return demand or encode_result(call.client_id, without_claims(result, is_aggregator=True))

    def _find_demand(self, call: Call, hold: "GateHold", result: Raw) -> RelayedDemand | None:
        route = hold.route
        if route.gate is None or not route.gate.relays:
            return None
        answered = RelayedCall(
            tool=route.qualified,
            arguments=hold.arguments,
            segments=route.segments,
            child=len(route.segments) - len(route.below) + 1,
            local=route.local,
            authority=route.link.offer.authority,
            shows_holder=call.caller.hop is not None or route.gate.shows_holder,
        )
        demand = find_demand(result, answered)
        # A hop that shows a call which is held here tries to have that call approved for its own.
        if demand is None or demand.aggregator_id == self.aggregator_id or self.inbox.get(demand.confirmation_id):
            return None
        relayed = Relayed(route=route, requester=hold.requester, digest=hold.digest, onward=call.onward)
        return demand if self.rounds.remember_relayed(demand.confirmation_id, relayed) else None


def result_of(message: bytes) -> Raw:
    """Return the result member of an encoded reply, or RAW_EMPTY if it is an error or unreadable."""
    try:
        response = decode_untrusted(message)
    except CodecError:
        return RAW_EMPTY
    return response.result if isinstance(response, Response) and not response.error else RAW_EMPTY
