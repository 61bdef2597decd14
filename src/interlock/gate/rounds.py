"""What is remembered of calls that were answered with a question: by a gate below, or by the server itself.

Such a call has not ended. The identical call takes it up again, with the approval it has used already, once, and only
with the state that the question asked back. Nothing here outlives the node: then a person is asked once more.
"""

import asyncio
from collections.abc import Callable
from typing import Final

import msgspec
from msgspec import Raw

from interlock.ax.protocol.route import CURSOR, ROUTE
from interlock.catalog.routes import Route
from interlock.core.clock import Clock
from interlock.mcp.mrtr import ROUNDS_MAX

RELAYED_MAX: Final = 10_000  # confirmations of hops below that are remembered
PASSES_MAX: Final = 10_000
ROUTES_MAX: Final = 10_000  # of parents' calls that are held


class Relayed(msgspec.Struct, frozen=True, kw_only=True):
    """A confirmation that a hop below demands, and the call it is for."""

    route: Route
    requester: str
    digest: str
    onward: dict[str, Raw] | None = None  # route and cursor as the call had them (MCP-AX 7.2)


class Pass(msgspec.Struct, frozen=True, kw_only=True):
    approval_id: str
    until: float
    state: bytes  # what the server's question asks back; empty: a hop below asks for a confirmation
    questions: frozenset[str] = frozenset()  # what it asks, by its names
    held_below: str | None = None  # the confirmation that a hop below asks for
    number: int = 0  # rounds before this one


class Rounds:
    def __init__(self, clock: Clock, on_lapsed: Callable[[str], None]) -> None:
        """`on_lapsed` is told the approval of a call that no caller took up again."""
        self._clock = clock
        self._on_lapsed = on_lapsed
        self._relayed: dict[str, Relayed] = {}
        self._passes: dict[tuple[str, str], Pass] = {}
        self._routes: dict[str, dict[str, Raw]] = {}

    # Demands of hops below

    def remember(self, confirmation_id: str, relayed: Relayed) -> bool:
        """Remember a confirmation that a hop below demands; False if another link showed this id before.

        The first call stays: another caller that is shown the same id gets no result for it.
        """
        first = self._relayed.pop(confirmation_id, relayed)
        is_own = first.route.link.segment == relayed.route.link.segment
        if not is_own or first.requester != relayed.requester:
            relayed = first
        while len(self._relayed) >= RELAYED_MAX:
            del self._relayed[next(iter(self._relayed))]
        self._relayed[confirmation_id] = relayed
        return is_own

    def maybe_relayed(self, confirmation_id: str) -> Relayed | None:
        return self._relayed.get(confirmation_id)

    # Calls that a parent sent, and that are held here

    def note_route(self, approval_id: str, meta: dict[str, Raw]) -> None:
        """Remember the route of a parent's held call: a confirmation may come without it."""
        while len(self._routes) >= ROUTES_MAX:
            del self._routes[next(iter(self._routes))]
        self._routes[approval_id] = {key: meta[key] for key in (ROUTE, CURSOR) if key in meta}

    def take_route(self, approval_id: str) -> dict[str, Raw]:
        return self._routes.pop(approval_id, {})

    # Calls that go on

    def let_go_on(
        self,
        requester: str,
        digest: str,
        approval_id: str,
        state: bytes,
        seconds: float,
        questions: frozenset[str] = frozenset(),
        held_below: str | None = None,
        number: int = 0,
    ) -> bool:
        """Let the identical call go on with its approval; False if too many do, or it went on too often: then it is
        over.
        """
        if len(self._passes) >= PASSES_MAX or number > ROUNDS_MAX:
            return False
        key = (requester, digest)
        before = self._passes.get(key)
        if before is not None and before.approval_id != approval_id:
            self._on_lapsed(before.approval_id)  # the same call was begun anew, and goes on in its place
        until = self._clock.now() + seconds
        held = self._passes[key] = Pass(
            approval_id=approval_id,
            until=until,
            state=state,
            questions=questions,
            held_below=held_below,
            number=number,
        )
        asyncio.get_running_loop().call_later(seconds, self._lapse, key, held)
        return True

    def may_go_on(self, requester: str, digest: str, state: bytes) -> bool:
        held = self._passes.get((requester, digest))
        return held is not None and held.state == state and self._clock.now() < held.until

    def maybe_approval(self, requester: str, digest: str) -> str | None:
        held = self._passes.get((requester, digest))
        return held.approval_id if held is not None else None

    def take(self, requester: str, digest: str) -> Pass | None:
        """Take the round of the call that goes on now: no other call goes on with it."""
        return self._passes.pop((requester, digest), None)

    def _lapse(self, key: tuple[str, str], held: Pass) -> None:
        if self._passes.get(key) is held:
            del self._passes[key]
            self._on_lapsed(held.approval_id)
