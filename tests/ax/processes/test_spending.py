"""What a subserver was told it may use is what it and its callers get (MCP-AX 6.2, 11.4, 13.2)."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.ax.bare_subserver import BareSubserver, Refused, bare_subserver, tool
from tests.ax.blocking_client import call, legacy_call, ready
from tests.ax.tree import ACCESS, ax_url, parents, wait_parent
from tests.support.node_process import RunningNode, Wire, running_node, wait_for, write_config
from tests.support.peers import HttpPeer

LIMITS = {"max_calls_per_minute": 3, "max_mutable_calls_per_session": 2, "max_cost_units_per_session": 5}
EXTRA = (
    ACCESS
    + "[budget]\n"
    + "".join(f"{name} = {limit}\n" for name, limit in LIMITS.items())
    + '[[access]]\nwho = ["client:thrifty"]\nbudget = { max_mutable_calls_per_session = 1 }\n'
)
READ_ONLY = {"mutable": False, "reversible": True}
SAMPLED = {"role": "assistant", "model": "m", "content": {"type": "text", "text": "x"}}
TOOLS = [
    tool("read"),
    tool("write", annotations={"readOnlyHint": False, "destructiveHint": False}),
    tool("dear", _meta={"x-mcpax-capability": {**READ_ONLY, "cost_class": "expensive"}}),
]


@pytest.fixture(scope="module")
def thrifty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNode]:
    with running_node(tmp_path_factory.mktemp("budget"), {}, EXTRA) as started:
        yield started


@contextlib.asynccontextmanager
async def leaf(node: RunningNode, segment: str, **options: Any) -> AsyncIterator[BareSubserver]:
    async with bare_subserver(node, segment, tools=TOOLS, authority="dns:all.example", **options) as registered:
        await ready(node, segment, tools=len(TOOLS))
        yield registered


def called(one: BareSubserver) -> int:
    return sum(message.get("method") == "tools/call" for message in one.heard)


@pytest.mark.req("AX-6.2-4")
async def test_the_answer_to_a_registration_states_the_configured_limits(
    thrifty: RunningNode, node: RunningNode
) -> None:
    async with leaf(thrifty, "told") as told, bare_subserver(node, "free") as free:
        assert told.session["budget"] == LIMITS
        assert free.session["budget"] == {}


HOSTILE: list[Any] = [
    {"max_calls_per_minute": 10**9},
    {"max_calls_per_minute": -1, "max_mutable_calls_per_session": "many", "max_cost_units_per_session": 1e308},
    {"max_calls_per_minute": None},
    "unlimited",
    [],
    -5,
]


@pytest.mark.req("AX-11.4-2")
@pytest.mark.parametrize("number", range(len(HOSTILE)))
async def test_a_budget_that_a_subserver_proposes_is_ignored(thrifty: RunningNode, number: int) -> None:
    proposed = HOSTILE[number]
    async with leaf(thrifty, f"greedy{number}", budget=proposed) as greedy:
        assert greedy.session["budget"] == LIMITS
        await greedy.beat(budget=proposed)
        answers = [await call(thrifty, f"greedy{number}.read") for _ in range(4)]
        assert ["result" in one for one in answers] == [True, True, True, False]
        assert called(greedy) == 3


@pytest.mark.req("AX-11.4-3", "AX-13.2-3")
async def test_the_refusal_is_named_alike_in_both_eras_and_nothing_is_sent_down(thrifty: RunningNode) -> None:
    async with leaf(thrifty, "spent") as spent:
        for _ in range(3):
            await legacy_call(thrifty, "spent.read")
        old = (await legacy_call(thrifty, "spent.read"))["error"]
        answer = await asyncio.to_thread(_modern_answer, thrifty, "spent.read")
        new = answer.message["error"]
        assert answer.status == 200
        assert (old["code"], new["code"]) == (-32003, 32003)
        assert old["message"] == new["message"] == "budget_exceeded"
        assert 0 < new["data"]["retry_after_ms"] <= old["data"].pop("retry_after_ms") <= 60_000
        assert new["data"].pop("retry_after_ms")
        said = {"budget": "max_calls_per_minute", "limit": 3, "used": 3, "scope": "subserver"}
        assert old["data"] == said
        assert new["data"] == {**said, "mcpax_code": -32003}
        assert called(spent) == 3


@pytest.mark.req("AX-11.4-3")
async def test_a_limit_of_the_session_promises_no_time(thrifty: RunningNode) -> None:
    async with leaf(thrifty, "bounded") as bounded:
        dear = (await call(thrifty, "bounded.dear"))["error"]["data"]
        assert (dear["budget"], dear["limit"], dear["used"]) == ("max_cost_units_per_session", 5, 0)
        for _ in range(2):
            await call(thrifty, "bounded.write")
        third = (await call(thrifty, "bounded.write"))["error"]["data"]
        assert (third["budget"], third["limit"], third["used"]) == ("max_mutable_calls_per_session", 2, 2)
        assert dear["retry_after_ms"] is third["retry_after_ms"] is None
        assert called(bounded) == 2


async def test_only_calls_that_change_something_reduce_what_may_change(thrifty: RunningNode) -> None:
    async with leaf(thrifty, "apart"):
        await call(thrifty, "apart.read")
        shown = (await ready(thrifty, "apart"))["budget"]
        assert shown["max_mutable_calls_per_session"] == {"limit": 2, "used": 0}
        await call(thrifty, "apart.write")
        shown = (await ready(thrifty, "apart"))["budget"]
        assert shown["max_mutable_calls_per_session"] == {"limit": 2, "used": 1}
        assert shown["max_calls_per_minute"] == {"limit": 3, "used": 2}


@pytest.mark.req("AX-11.4-1")
async def test_many_clients_at_once_get_no_more_than_the_limit_and_a_new_session_begins_at_zero(
    thrifty: RunningNode,
) -> None:
    for _ in range(2):
        async with leaf(thrifty, "crowded") as crowded:
            one = [call(thrifty, "crowded.read") for _ in range(6)]
            other = [legacy_call(thrifty, "crowded.read") for _ in range(6)]
            answers = await asyncio.gather(*one, *other)
            assert sum("result" in answer for answer in answers) == called(crowded) == 3
            await crowded.request("mcpax/deregister", {"session_id": crowded.session["session_id"]})


async def test_a_client_has_one_budget_however_often_it_connects(thrifty: RunningNode) -> None:
    asked = {"name": "thrifty", "for": "client"}
    token = (await asyncio.to_thread(thrifty.admin, "/admin/tokens", "POST", asked))["token"]
    async with leaf(thrifty, "shared") as shared:
        first = await call(thrifty, "shared.write", token=token)
        refused = (await call(thrifty, "shared.write", token=token))["error"]["data"]
        assert "result" in first
        assert (refused["budget"], refused["scope"]) == ("max_mutable_calls_per_session", "caller")
        assert "result" in await call(thrifty, "shared.write")
        assert called(shared) == 2
    budgets = (await asyncio.to_thread(thrifty.admin, "/admin/status"))["budgets"]
    used = {"max_mutable_calls_per_session": {"limit": 1, "used": 1}}
    assert budgets == [{"scope": "caller", "name": "client:thrifty", "limits": used}]


@pytest.mark.req("AX-11.4-3")
async def test_a_subserver_that_asks_too_much_is_informed_itself(thrifty: RunningNode) -> None:
    asked: list[Any] = []

    async def sample(params: dict[str, Any]) -> dict[str, Any]:
        for _ in range(3):
            try:
                asked.append(await asking.request("sampling/createMessage", {"messages": [], "maxTokens": 1}))
            except Refused as refused:
                asked.append(refused.error)
        return {"content": []}

    async with (
        leaf(thrifty, "asking", era="2025-11-25", call=sample) as asking,
        await HttpPeer.legacy(f"{thrifty.url}/mcp", {"sampling": {}}) as peer,
    ):
        ongoing = peer.begin_call("asking__read")
        for _ in range(2):
            question = await peer.hear("sampling/createMessage")
            await peer.respond(question["id"], SAMPLED)
        await ongoing.reply()
        assert peer.heard("sampling/createMessage") == []  # no third
    assert asked[:2] == [SAMPLED] * 2
    assert (asked[2]["code"], asked[2]["data"]["scope"]) == (-32003, "subserver")


@pytest.mark.req("AX-11.4-5")
async def test_the_parents_budget_limits_the_budget_handed_down_and_further_calls_are_refused(tmp_path: Path) -> None:
    """root - mid - two leaves; root gives mid four calls a minute, mid itself would give a hundred."""
    with (
        running_node(tmp_path / "root", {}, ACCESS + "[budget]\nmax_calls_per_minute = 4\n") as root,
        running_node(
            tmp_path / "mid",
            {},
            parents((ax_url(root), "mid"))
            + ACCESS
            + "[budget]\nmax_calls_per_minute = 100\nmax_mutable_calls_per_session = 7\n",
        ) as mid,
    ):
        await asyncio.to_thread(wait_parent, mid, {"state": "registered"})
        async with leaf(mid, "one") as one, leaf(mid, "two") as two:
            assert one.session["budget"] == two.session["budget"]
            assert one.session["budget"] == {"max_calls_per_minute": 4, "max_mutable_calls_per_session": 7}
            await ready(root, "mid", tools=2 * len(TOOLS) + 1)
            assert "result" in await call(root, "mid.one.read")
            assert "result" in await legacy_call(root, "mid.two.read")
            assert "result" in await call(mid, "one.read")
            assert "result" in await legacy_call(mid, "two.read")
            for ask, name, code in ((call, "one.read", 32003), (legacy_call, "two.read", -32003)):
                refused = (await ask(mid, name))["error"]
                assert (refused["code"], refused["data"]["limit"], refused["data"]["used"]) == (code, 4, 4)
            above = (await ready(root, "mid"))["budget"]
            assert above == {"max_calls_per_minute": {"limit": 4, "used": 2}}
            for ask, code in ((call, 32003), (legacy_call, -32003)):  # by mid: root still has room
                refused = (await ask(root, "mid.one.read"))["error"]
                assert (refused["code"], refused["message"]) == (code, "budget_exceeded")
            assert called(one) + called(two) == 4
        said = await asyncio.to_thread(mid.cli, "status")
        assert "it gave us 4 of 4 calls a minute" in said.stdout


@pytest.mark.req("AX-11.4-2")
async def test_a_changed_configuration_is_for_sessions_that_begin_later(tmp_path: Path) -> None:
    def budget(limit: int) -> str:
        return f"{ACCESS}[budget]\nmax_calls_per_minute = {limit}\nunits = {{ expensive = {limit} }}\n"

    with running_node(tmp_path, {}, budget(2)) as node:
        async with leaf(node, "early") as early:
            write_config(tmp_path, {}, budget(100))
            shown = "costs 100 units"
            await asyncio.to_thread(wait_for, lambda: shown in json.dumps(node.admin("/admin/tools/early.dear")), 20.0)
            answers = [await call(node, "early.read") for _ in range(3)]
            assert ["result" in one for one in answers] == [True, True, False]
            assert called(early) == 2
            async with leaf(node, "late") as late:
                assert late.session["budget"] == {"max_calls_per_minute": 100}
                answers = [await call(node, "late.read") for _ in range(3)]
                assert all("result" in one for one in answers)


async def test_a_budget_is_enforced_from_the_moment_it_is_written(tmp_path: Path) -> None:
    with running_node(tmp_path, {}, ACCESS) as node:
        async with leaf(node, "here"):
            assert "result" in await call(node, "here.read")
            limited = '[[tool]]\nmatch = "here.read"\nbudget = { max_calls_per_minute = 0 }\n'
            write_config(tmp_path, {}, ACCESS + limited)
            await asyncio.to_thread(wait_for, lambda: "error" in _modern_answer(node, "here.read").message, 20.0)
            refused = (await legacy_call(node, "here.read"))["error"]["data"]
            assert (refused["scope"], refused["limit"], refused["retry_after_ms"]) == ("tool", 0, None)


async def test_operators_see_what_is_used(thrifty: RunningNode) -> None:
    async with leaf(thrifty, "seen"):
        for _ in range(3):
            await call(thrifty, "seen.read")
        tree = await asyncio.to_thread(thrifty.cli, "status")
        used = "3 of 3 calls a minute, 0 of 2 changing calls, 0 of 5 units"
        assert f"budget {used}" in tree.stdout
        detail = await asyncio.to_thread(thrifty.cli, "status", "seen")
        assert used in detail.stdout
        shown = json.loads((await asyncio.to_thread(thrifty.cli, "tools", "show", "seen.dear", "--json")).stdout)
        (rung,) = [one for one in shown["rungs"] if one["rung"] == 9]
        assert (rung["verdict"], rung["reason"]) == ("refuse", "max_cost_units_per_session: 0 of 5 used")
        explained = await asyncio.to_thread(thrifty.cli, "explain", "-32003")
        assert "data.retry_after_ms" in explained.stdout


def _modern_answer(node: RunningNode, name: str) -> Any:
    with Wire(node) as wire:
        return wire.modern("tools/call", {"name": name, "arguments": {}})
