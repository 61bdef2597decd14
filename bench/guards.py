"""What the guard costs a call that nothing holds: the same call through the same parts, with the guard and without it.

One process, one event loop that never turns: from the dispatcher's request to the client's answer, with a server that
answers at once. The ways take turns, a thousand calls each; what a way costs more than the one without a guard is
the difference within a turn. CPU time of the process.
"""

import asyncio
import gc
import statistics
import time
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Raw

from bench.measure import Spread, spread
from interlock.ax.protocol.budget import LIMIT_MAX, BudgetLimits
from interlock.ax.protocol.capability import AuthScope
from interlock.ax.protocol.hop_metadata import Offer
from interlock.catalog.catalog import Catalog, LiveNamespace
from interlock.catalog.checks import ArgumentsCheck, RouteCheck
from interlock.catalog.routes import Route
from interlock.config.plan import Plan, ServerPlan, Spawn
from interlock.core.calls.call import Call
from interlock.core.calls.caller import Caller, ClientRequest, Principal, ViewKey
from interlock.core.calls.check import Account
from interlock.core.clock import Clock
from interlock.core.current_plan import CurrentPlan
from interlock.core.link_state import LinkState
from interlock.dispatch.availability import AvailabilityCheck, SendCheck
from interlock.dispatch.dispatch import Dispatch
from interlock.gate.gate import CommitCheck, GateCheck
from interlock.guard.budgets import BudgetCheck, Budgets
from interlock.guard.checks import GuardChecks
from interlock.guard.guard import Guard
from interlock.links.connected_link import ServerLink
from interlock.links.link import ServerFacts
from interlock.links.listing import Items, Listing
from interlock.mcp.methods import LATEST_MODERN, Era
from interlock.names.surface_check import NamesCheck
from interlock.safety.watch import AgentCheck

UNGUARDED, GUARDED, BUDGETED = "no guard at all", "the guard", "the guard and two budgets"
CALLS = 1000  # of one way before the next has its turn: short, so that a disturbance hits all of them
META = Raw(b'{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}')
PLENTY = BudgetLimits(max_calls_per_minute=LIMIT_MAX, max_mutable_calls_per_session=LIMIT_MAX)


class Guarding(msgspec.Struct, kw_only=True):
    """CPU time of a call by way, turn by turn; empty when it could not be measured."""

    turns: dict[str, list[float]] = {}

    def median_us(self, way: str) -> float:
        return statistics.median(self.turns[way])

    def added_us(self, way: str) -> Spread | None:
        """What a way costs more than the one without a guard. Of many short turns the middle half is given."""
        pairs = zip(self.turns.get(way, ()), self.turns.get(UNGUARDED, ()), strict=True)
        added = sorted(ours - theirs for ours, theirs in pairs)
        quarter = len(added) // 4
        return spread(added[quarter : len(added) - quarter]) if added else None


class _Unasked:
    """In place of what the guard admits."""

    def __init__(self) -> None:
        self.command: Any = None


class _Unguarded(Dispatch):
    """Asks nobody: the cheapest way from a route to its link."""

    _ticket = _Unasked()

    def send(self, call: Call, link: ServerLink) -> Call:
        self._register(call, link)
        self._ticket.command = call
        link.send(self._ticket)  # type: ignore[arg-type]
        return call


class _Echo:
    """A server at the other end of a link, and what it answers."""

    RESULT = b'"result":{"resultType":"complete","content":[{"type":"text","text":"hello"}],"isError":false}'

    def __init__(self, link: ServerLink) -> None:
        self._link = link

    def send(self, message: bytes, head: bytes, origin: Any) -> object:
        self._link.on_message(b'{"jsonrpc":"2.0","id":%d,%b}' % (origin.upstream_id, self.RESULT), origin)
        return None


class Nobody:
    """Of everything that hears of calls: no work that would be the same in all ways."""

    def __getattr__(self, name: str) -> Any:
        return lambda *_: None


class _Sink:
    last = b""

    def emit(self, message: bytes) -> None: ...

    def answer(self, message: bytes, status: int = 200) -> None:
        self.last = message

    def drop(self) -> None: ...


class Way:
    """One way of a call: the dispatcher, who calls, and where the answer goes."""

    def __init__(self, dispatch: Dispatch, catalog: Catalog, limits: BudgetLimits | None) -> None:
        self.dispatch = dispatch
        self.catalog = catalog
        self.caller = Caller(Principal("local", budget=limits), Era.MODERN, "http", ViewKey())
        self.sink = _Sink()

    def take_turn(self) -> float:
        """Microseconds of a call."""
        dispatch, caller, sink = self.dispatch, self.caller, self.sink
        name, arguments = Raw(b'"server__echo"'), Raw(b'{"text":"hello"}')
        meta = msgspec.json.decode(META, type=dict[str, Raw])
        began = time.process_time_ns()
        for _ in range(CALLS):
            params = {"name": name, "arguments": arguments, "_meta": META}
            dispatch.call_tool(ClientRequest(caller, b"1", "tools/call", params, meta, sink))
        return (time.process_time_ns() - began) / CALLS / 1000


async def make_way(kind: str, schema: bytes = b'{"type":"object"}') -> Way:
    clock, nobody = Clock(), Nobody()
    plan = ServerPlan(segment="server", reach=Spawn(command=("true",)))
    offer = Offer(kind="leaf", scope=AuthScope.ADMIN)
    link = ServerLink(plan, nobody, clock, vendor_meta=True)
    link.offer = offer
    link.pipe = _Echo(link)  # type: ignore[assignment]
    link.greeted(ServerFacts(era=Era.MODERN, version=LATEST_MODERN))
    link.set_state(LinkState.READY, None)
    node_plan = Plan(workspace=Path(), data=Path())
    budgets = Budgets(PLENTY, clock, is_enforced=kind == BUDGETED)
    live = LiveNamespace(None)
    route_check = RouteCheck(live)
    gate: Any = nobody  # nothing is held
    availability = AvailabilityCheck(node_plan.limits.calls_in_flight, {})
    agent = AgentCheck(gate, clock)
    commit = CommitCheck(budgets, on_committed=agent.use)
    checks = GuardChecks[Route](
        route=route_check,
        agent=agent,
        names=NamesCheck(),
        arguments=ArgumentsCheck(),
        availability=availability,
        budget=BudgetCheck(budgets),
        gate=GateCheck(gate, gate, CurrentPlan(node_plan)),
        commit=commit.check,
        explained_later=(commit, SendCheck()),
        is_agent_checked=False,
    )
    guard = Guard(checks, budgets=budgets, calls_max=node_plan.limits.calls_in_flight)
    catalog = Catalog(node_plan, lambda kinds: None, live=live, checks_for=guard.checks_for)
    item = {"name": Raw(b'"echo"'), "inputSchema": Raw(schema)}
    item["annotations"] = Raw(b'{"readOnlyHint":true}')
    await catalog.stock(link, Listing(tools=Items(items=(("echo", item),), digest=b"x")))
    made = _Unguarded if kind == UNGUARDED else Dispatch
    dispatch = made(
        catalog=catalog,
        keepers={},
        recorder=nobody,  # type: ignore[arg-type]
        clock=clock,
        guard=guard,
        route_check=route_check,
        availability=availability,
        budgets=budgets,
        gate=gate,
        decisions=gate,
        arrivals=gate,
        absent_tools=gate,
    )
    if kind != BUDGETED:
        return Way(dispatch, catalog, None)
    link.account = Account("subserver", PLENTY, clock.now())
    return Way(dispatch, catalog, PLENTY)


async def _measure(turns: int) -> Guarding:
    ways = {kind: await make_way(kind) for kind in (UNGUARDED, GUARDED, BUDGETED)}
    found = Guarding(turns={kind: [] for kind in ways})
    for kind, way in ways.items():
        way.take_turn()
        if b'"hello"' not in way.sink.last:
            raise RuntimeError(f"{kind}: no call came through: {way.sink.last!r}")
    gc.collect()
    gc.freeze()
    try:
        for _ in range(turns):
            for kind, way in ways.items():
                found.turns[kind].append(way.take_turn())
    finally:
        gc.unfreeze()
    return found


def measure(quick: bool, say: Any) -> Guarding:
    found = asyncio.run(_measure(20 if quick else 200))
    for kind in found.turns:
        added = found.added_us(kind)
        more = f"   {added.median:+.2f} us" if added is not None and kind != UNGUARDED else ""
        say(f"  {kind:28} {found.median_us(kind):6.2f} us CPU{more}")
    return found
