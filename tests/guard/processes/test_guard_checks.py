"""Does the guard ask its checks in order, and does what it tells an operator beforehand hold for the call itself?"""

import asyncio
import json
import os
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from msgspec import Raw
from tests.servers.start import raw
from tests.support.budget_node import budget_node as node_with_servers
from tests.support.budget_node import until
from tests.support.frozen_node import FrozenNode, Leaf, frozen_node, in_frozen_time, run_until_idle, tool

from interlock.ax.protocol.budget import BudgetLimits
from interlock.catalog.api import CheckVerdict
from interlock.catalog.catalog import EVERYTHING
from interlock.catalog.checks import RouteCheck
from interlock.catalog.routes import Route
from interlock.core.calls.call import Call, CallLink
from interlock.core.calls.caller import Caller, ClientRequest, Principal, view_key
from interlock.core.calls.check import CheckNumber, CheckRefusal
from interlock.dispatch.dispatch import Dispatch
from interlock.mcp.methods import Era
from interlock.wire.jsonrpc.codec import encode_value
from interlock.wire.refusal import EXECUTION_REFUSED, Refusal

FIRE = {"mutable": True, "reversible": False}
TOOLS = [tool("look"), tool("glance"), tool("fire", FIRE), tool("silent", annotations={})]
LIMITED = "[budget]\nmax_calls_per_minute = 1000\n"
ONE_CALL = BudgetLimits(max_calls_per_minute=1)

LOCAL = Principal("local")
READER = Principal("client:reader", scope="read")
FEW = Principal("client:few", tools=("plant.look",))
STRANGER = Principal("local", stranger=True)
POOR = Principal("client:poor", budget=ONE_CALL)
BLOCKED = Principal("client:blocked")


class Answer:
    """The Sink of one call."""

    def __init__(self) -> None:
        self.message: bytes | None = None

    def emit(self, message: bytes) -> None: ...

    def answer(self, message: bytes, status: int = 200) -> None:
        self.message = message

    def drop(self) -> None: ...


def begin(node: FrozenNode, name: str, who: Principal) -> Answer:
    caller = Caller(who, Era.MODERN, "test", view_key(who, only=None, names="auto", declares_extension=False))
    answer = Answer()
    params = {"name": Raw(encode_value(name)), "arguments": Raw(b"{}")}
    node.node.calls.dispatch.call_tool(ClientRequest(caller, b"1", "tools/call", params, {}, answer))
    return answer


async def call(node: FrozenNode, name: str, who: Principal) -> bytes:
    answer = begin(node, name, who)
    await node.until(lambda: answer.message is not None)
    assert answer.message is not None
    return answer.message


def route_of(node: FrozenNode, name: str) -> Route:
    route = node.node.calls.catalog.namespace.view(EVERYTHING).find_tool(name)
    assert route is not None
    return route


def explained(node: FrozenNode, name: str, who: Principal) -> CheckNumber | None:
    """The first check that would not let the call pass."""
    verdicts = node.node.calls.dispatch.guard.explain(route_of(node, name), who)
    return next((one.number for one in verdicts if one.verdict in ("refuse", "hold")), None)


@pytest.fixture
def refusals(monkeypatch: pytest.MonkeyPatch) -> list[CheckNumber]:
    """The checks that refused calls, in order."""
    made: list[CheckNumber] = []
    refuse, unlisted = Dispatch._refuse, RouteCheck.unlisted

    def noted_refuse(self: Dispatch, call: Call, refused: CheckRefusal, status: int | None = None) -> Call:
        made.append(refused.check)
        return refuse(self, call, refused, status)

    def noted_unlisted(self: RouteCheck, caller: Caller, name: str) -> Refusal:
        made.append(CheckNumber.ROUTE)
        return unlisted(self, caller, name)

    monkeypatch.setattr(Dispatch, "_refuse", noted_refuse)
    monkeypatch.setattr(RouteCheck, "unlisted", noted_unlisted)
    return made


async def nothing(node: FrozenNode, leaf: Leaf) -> None: ...


async def cut(node: FrozenNode, leaf: Leaf) -> None:
    leaf.cut()
    await run_until_idle()


async def spend(node: FrozenNode, leaf: Leaf) -> None:
    await call(node, "plant.look", POOR)


async def cut_and_spend(node: FrozenNode, leaf: Leaf) -> None:
    await spend(node, leaf)
    await cut(node, leaf)


class Situation(NamedTuple):
    tool: str
    who: Principal
    refused_by: CheckNumber | None
    before: Callable[[FrozenNode, Leaf], Awaitable[None]] = nothing
    config: str = LIMITED


SITUATIONS = {
    "a plain call": Situation("plant.look", LOCAL, None),
    "nobody is limited": Situation("plant.look", LOCAL, None, config=""),
    "out of scope": Situation("plant.fire", READER, CheckNumber.ROUTE),
    "not named by access": Situation("plant.glance", FEW, CheckNumber.ROUTE),
    "out of scope of a lost server": Situation("plant.fire", READER, CheckNumber.ROUTE, cut),
    "a stranger and a gate": Situation("plant.fire", STRANGER, CheckNumber.ROUTE),
    "a stranger and no gate": Situation("plant.look", STRANGER, None),
    "a lost server": Situation("plant.look", LOCAL, CheckNumber.AVAILABILITY, cut),
    "a lost server and a gate": Situation("plant.fire", LOCAL, CheckNumber.AVAILABILITY, cut),
    "a lost server and a spent budget": Situation("plant.look", POOR, CheckNumber.AVAILABILITY, cut_and_spend),
    "a budget with room": Situation("plant.look", POOR, None),
    "a spent budget": Situation("plant.look", POOR, CheckNumber.BUDGET, spend),
    "a spent budget and a gate": Situation("plant.fire", POOR, CheckNumber.BUDGET, spend),
    "a budget with room and a gate": Situation("plant.fire", POOR, CheckNumber.GATE),
    "a gate": Situation("plant.fire", LOCAL, CheckNumber.GATE),
    "a gate and no budgets": Situation("plant.fire", LOCAL, CheckNumber.GATE, config=""),
    "nobody said what it does": Situation("plant.silent", LOCAL, CheckNumber.GATE),
    "no gate for anybody": Situation("plant.fire", LOCAL, None, config='[gate]\nmode = "open"\n'),
}


@pytest.mark.parametrize("name", SITUATIONS)
def test_a_call_meets_what_was_explained(tmp_path: Path, refusals: list[CheckNumber], name: str) -> None:
    situation = SITUATIONS[name]

    @in_frozen_time
    async def meet() -> None:
        async with frozen_node(tmp_path, situation.config) as node:
            leaf = await node.leaf("plant", tools=TOOLS, heartbeat_interval_ms=0).joined()
            await situation.before(node, leaf)
            refusals.clear()
            foreseen = explained(node, situation.tool, situation.who)
            answer = await call(node, situation.tool, situation.who)
            assert foreseen is situation.refused_by
            assert refusals == ([] if foreseen is None else [foreseen])
            assert (b" ran" in answer) is (foreseen is None)
            leaf.cut()  # ends what it never answered
            await run_until_idle()

    meet()


@in_frozen_time
async def test_a_plain_tool_carries_no_check_and_others_those_that_apply_in_order(tmp_path: Path) -> None:
    async with frozen_node(tmp_path, LIMITED) as node:
        await node.leaf("plant", tools=TOOLS, heartbeat_interval_ms=0).joined()
        carried = {name: [one.number for one in route_of(node, f"plant.{name}").checks] for name in ("look", "fire")}
        assert carried == {"look": [], "fire": [4, 7, 8, 9, 10]}
        told = [one.number for one in node.node.calls.dispatch.guard.explain(route_of(node, "plant.look"), LOCAL)]
        assert told == [4, 6, 7, 8, 9, 10, 11, 12]


class AgentCheck:
    """A check that a capability could bring: this class is all there is to it."""

    number = CheckNumber.AGENT
    name = "agent state"
    is_common = False

    def applies_to(self, route: Route) -> bool:
        return route.local == "look"

    def check(self, call: Call, link: CallLink) -> CheckRefusal | None:
        if not self._is_blocked(call.caller.principal):
            return None
        return CheckRefusal(self.number, Refusal(EXECUTION_REFUSED, "agent_blocked", {"reason": "agent_blocked"}))

    def explain(self, route: Route, caller: Principal) -> CheckVerdict:
        refused = self.applies_to(route) and self._is_blocked(caller)
        reason = "agent_blocked" if refused else "nothing is known against it"
        return CheckVerdict(number=self.number, name=self.name, verdict="refuse" if refused else "pass", reason=reason)

    def _is_blocked(self, principal: Principal) -> bool:
        return principal.name == BLOCKED.name


@in_frozen_time
async def _meet_a_new_check(folder: Path, refusals: list[CheckNumber]) -> None:
    async with frozen_node(folder, LIMITED) as node:
        node.node.calls.dispatch.guard.include(AgentCheck(), is_included=True)
        leaf = await node.leaf("plant", tools=TOOLS, heartbeat_interval_ms=0).joined()
        assert [one.number for one in route_of(node, "plant.look").checks] == [5, 8, 9]
        assert route_of(node, "plant.glance").checks == ()

        assert b" ran" in await call(node, "plant.look", LOCAL)
        assert b" ran" in await call(node, "plant.glance", BLOCKED)
        assert b'"agent_blocked"' in await call(node, "plant.look", BLOCKED)
        assert refusals == [CheckNumber.AGENT]
        leaf.cut()
        await run_until_idle()
        await call(node, "plant.look", LOCAL)
        await call(node, "plant.look", BLOCKED)
        assert refusals[1:] == [CheckNumber.AVAILABILITY, CheckNumber.AGENT]

        shown = node.node.operations.tools.get("plant.look", "client:blocked").checks
        assert [one.number for one in shown] == [4, 5, 6, 7, 8, 9, 10, 11, 12]
        assert shown[1] == CheckVerdict(number=5, name="agent state", verdict="refuse", reason="agent_blocked")
        assert node.node.operations.tools.get("plant.look", "local").checks[1].verdict == "pass"


def test_a_new_check_is_one_class_that_is_put_on_the_list(tmp_path: Path, refusals: list[CheckNumber]) -> None:
    _meet_a_new_check(tmp_path, refusals)


@in_frozen_time
async def test_calls_that_are_refused_one_after_another_leave_nothing_under_way(tmp_path: Path) -> None:
    async with frozen_node(tmp_path, LIMITED) as node:
        await node.leaf("plant", tools=TOOLS, heartbeat_interval_ms=0).joined()
        for who in (LOCAL, READER, STRANGER, POOR):
            await asyncio.gather(*(call(node, f"plant.{name}", who) for name in ("look", "fire", "silent")))
        assert not node.node.calls.dispatch.under_way.calls
        assert node.node.calls.keepers["plant"].link.booked == 0


async def test_a_failure_inside_the_node_answers_the_call_that_waits_and_frees_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail(*given: Any) -> None:
        raise RuntimeError("a fault of ours")

    async with frozen_node(tmp_path, LIMITED) as node:
        await node.leaf("plant", tools=TOOLS, heartbeat_interval_ms=0).joined()
        monkeypatch.setattr(type(node.node.approvals.inbox), "raise_", fail)
        answer = json.loads(await call(node, "plant.fire", LOCAL))
        assert answer["error"]["code"] == -32603
        assert answer["error"]["data"]["ref"] in caplog.text
        assert "a fault of ours" not in json.dumps(answer)
        assert not node.node.calls.dispatch.under_way.calls
        assert node.node.calls.keepers["plant"].link.booked == 0


async def test_a_call_whose_client_leaves_while_it_waits_is_not_charged_afterwards(tmp_path: Path) -> None:
    async with frozen_node(tmp_path, LIMITED) as node:
        await node.leaf("plant", tools=TOOLS, heartbeat_interval_ms=0).joined()
        dispatch = node.node.calls.dispatch
        caller = Caller(LOCAL, Era.MODERN, "test", view_key(LOCAL, only=None, names="auto", declares_extension=False))
        params = {"name": Raw(encode_value("plant.look")), "arguments": Raw(b"{}")}
        first = asyncio.get_running_loop().create_future()
        route = route_of(node, "plant.look")
        waiting = Call(
            caller, b"1", "tools/call", params, {}, Answer(), 0.0, dispatch.under_way, price=route.price, route=route
        )
        waiting.after = first  # what its server must have heard before it
        dispatch.send(waiting, route.link)
        await run_until_idle()
        waiting.cancel("changed its mind")
        first.set_result(None)
        await run_until_idle()
        assert waiting.charge is None


async def test_a_server_that_is_started_again_is_explained_as_the_call_finds_it(tmp_path: Path) -> None:
    """It is waited for, neither passed at once nor refused; and one that does not come back is refused."""
    servers = f"[servers.old]\ncommand = {json.dumps(raw('all', '--era', 'legacy'))}\n"
    async with node_with_servers(tmp_path, servers) as here:
        keeper = here.node.calls.keepers["old"]
        route = here.node.calls.catalog.namespace.view(EVERYTHING).find_tool("old.echo")
        assert route is not None

        def availability() -> CheckVerdict:
            verdicts = here.node.calls.dispatch.guard.explain(route, LOCAL)
            return next(one for one in verdicts if one.number is CheckNumber.AVAILABILITY)

        assert availability().verdict == "pass"
        assert keeper.link.pid is not None
        os.kill(keeper.link.pid, signal.SIGKILL)
        await until(lambda: keeper.link.pipe is None)
        foreseen = availability()
        assert (foreseen.verdict, foreseen.reason.endswith("; a call waits a short while for it")) == ("later", True)
        assert "error" not in await here.client().call("old__echo").message()
        await keeper.stop()
        assert availability().verdict == "refuse"
        assert (await here.client().call("old__echo").message())["error"]["message"] == "tool_degraded"


@pytest.mark.parametrize("era", ["modern", "legacy"])
@in_frozen_time
async def test_a_call_that_breaks_its_tools_schema_is_refused_before_anybody_is_asked(tmp_path: Path, era: str) -> None:
    number = {"type": "object", "properties": {"n": {"type": "integer"}, "on": {"format": "date"}}, "required": ["n"]}
    tools = [tool("fire", FIRE, inputSchema=number), tool("silent", annotations={}, inputSchema=number)]
    tools += [tool("look", inputSchema=number), tool("odd", FIRE, inputSchema={"type": 7})]
    async with frozen_node(tmp_path) as here:
        plant = await here.leaf("plant", tools=tools).joined()
        client = here.client("safe")
        if era == "legacy":
            await client.greet(level=None)
        inbox = here.node.approvals.inbox
        for name in ("fire", "silent"):
            before = len(inbox.listed())
            for arguments, said in (({}, "/n: it is missing"), ({"n": "x"}, "/n: it is not of type integer")):
                answer = await client.request("tools/call", {"name": f"plant__{name}", "arguments": arguments})
                result = answer["result"]
                assert result["isError"] is True and said in result["content"][0]["text"], answer
                assert result["_meta"]["dev.interlock/error"]["code"] == "input_invalid"
                assert ("resultType" in result) is (era == "modern")
            assert len(inbox.listed()) == before
        for name, held in (("fire", {"n": 1, "on": "no date"}), ("odd", {"n": "x"})):
            waits = client.begin("tools/call", {"name": f"plant__{name}", "arguments": held})
            await here.until(waits.done)
            assert "confirmation_required" in str(waits.result())
        assert not [one for one in plant.heard if one.get("method") == "tools/call"]
        await client.request("tools/call", {"name": "plant__look", "arguments": {"n": "x"}})
        assert len([one for one in plant.heard if one.get("method") == "tools/call"]) == 1  # its server's to judge
