"""Budgets of a node with a clock that a test sets (MCP-AX 11.4)."""

import asyncio
import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from tests.servers.start import raw
from tests.support.budget_node import budget_node, outcomes, until
from tests.support.node_with_clock import ModernRequest

from interlock.ax.protocol.budget import BudgetLimits
from interlock.core.link_state import LinkState
from interlock.guard import budgets
from interlock.guard.api import Spent

MINUTE, MUTABLE, UNITS = "max_calls_per_minute", "max_mutable_calls_per_session", "max_cost_units_per_session"
DRAFT = f"[budget]\n{MINUTE} = 3\n{MUTABLE} = 2\n{UNITS} = 5\n"
ERAS = ["legacy", "modern"]


@pytest.mark.req("AX-11.4-1")
@pytest.mark.parametrize("era", ERAS)
async def test_the_minute_recovers_and_a_session_does_not_until_the_next_begins_at_zero(
    tmp_path: Path, era: str
) -> None:
    async with budget_node(tmp_path, DRAFT) as here:
        leaf, client = await here.leaf(), here.client(era)
        assert await outcomes([client.call("leaf__read") for _ in range(4)]) == ["ran"] * 3 + [MINUTE]
        here.clock.ahead += 59.0
        assert await outcomes([client.call("leaf__read")]) == [MINUTE]
        here.clock.ahead += 1.5
        assert await outcomes([client.call("leaf__write") for _ in range(3)]) == ["ran", "ran", MUTABLE]
        here.clock.ahead += 60.5
        assert await outcomes([client.call("leaf__write"), client.call("leaf__read")]) == [MUTABLE, "ran"]
        assert leaf.ran == ["read"] * 3 + ["write"] * 2 + ["read"]
        leaf.hang_up()
        again, client = await here.leaf(), here.client(era)
        assert await outcomes([client.call("leaf__write") for _ in range(3)]) == ["ran", "ran", MUTABLE]
        assert again.ran == ["write"] * 2


@pytest.mark.req("AX-11.4-1")
async def test_the_call_that_would_exceed_the_units_is_refused_and_a_free_call_is_not(tmp_path: Path) -> None:
    weights = f"[budget]\n{UNITS} = 5\nunits = {{ metered = 2, expensive = 4 }}\n"
    async with budget_node(tmp_path, weights) as here:
        await here.leaf()
        names = ["metered", "expensive", "metered", "metered", "read"]
        asked = [here.client().call(f"leaf__{name}") for name in names]
        assert await outcomes(asked) == ["ran", UNITS, "ran", UNITS, "ran"]
        assert here.used() == {UNITS: 4}


@pytest.mark.req("AX-9.1-9", "AX-11.4-4")
async def test_by_default_free_costs_nothing_metered_one_and_expensive_ten_units(tmp_path: Path) -> None:
    priced = '[[tool]]\nmatch = "leaf.quick"\ncost_units = 7\n'
    async with budget_node(tmp_path, f"[budget]\n{UNITS} = 1000\n{priced}") as here:
        await here.leaf()
        counted = []
        for name in ("read", "metered", "expensive", "quick"):
            before = here.used()[UNITS]
            await here.client().call(f"leaf__{name}").result()
            counted.append(here.used()[UNITS] - before)
        assert counted == [0, 1, 10, 7]


@pytest.mark.req("AX-11.4-1")
async def test_calls_side_by_side_never_overshoot(tmp_path: Path) -> None:
    async with budget_node(tmp_path, f"[budget]\n{MINUTE} = 7\n") as here:
        silent: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        leaf = await here.leaf(call=lambda params: silent)
        clients = [here.client(era, f"client:{number}") for era in ERAS for number in range(10)]
        asked = [client.call("leaf__read") for client in clients for _ in range(5)]
        silent.set_result({"content": []})
        assert sorted(await outcomes(asked)) == [MINUTE] * 93 + ["ran"] * 7
        assert len(leaf.ran) == 7


@pytest.mark.req("AX-11.4-4")
async def test_refused_calls_cost_nothing_and_failed_calls_are_charged(tmp_path: Path) -> None:
    def answer(params: Any) -> Any:
        return {"error": {"code": 4711, "message": "no"}} if params["name"] == "write" else None

    async with budget_node(tmp_path, f"[budget]\n{MINUTE} = 100\n") as here:
        leaf = await here.leaf(call=answer)
        client = here.client()
        assert (await client.call("leaf__read", []).error())["code"] == -32602
        assert (await client.call("leaf__none").error())["code"] == -32601
        assert here.used() == {MINUTE: 0}
        assert (await client.call("leaf__write").error())["code"] == 4711
        assert here.used() == {MINUTE: 1}
        slow = client.call("leaf__quick")
        here.clock.ahead += 1.0
        assert (await slow.error())["message"] == "call_timeout"
        assert here.used() == {MINUTE: 2}
        gone = client.call("leaf__read")
        gone.running.cancel("changed its mind")
        assert here.used() == {MINUTE: 3}
        link = here.node.calls.keepers["leaf"].link
        leaf.hang_up()
        assert (await client.call("leaf__read").error())["message"] == "tool_degraded"
        assert link.account is not None
        assert link.account.usage.calls(here.clock.now()) == 3


@pytest.mark.req("AX-11.4-4")
@pytest.mark.parametrize("era", ERAS)
async def test_a_call_that_never_left_is_given_back_on_every_account(tmp_path: Path, era: str) -> None:
    everywhere = (
        f'[budget]\n{MINUTE} = 9\n[[access]]\nwho = ["local"]\nbudget = {{ {MINUTE} = 9 }}\n'
        f'[[tool]]\nmatch = "leaf.read"\nbudget = {{ {MINUTE} = 9 }}\n'
    )
    async with budget_node(tmp_path, everywhere) as here:
        leaf, client = await here.leaf(), here.client(era)
        await client.call("leaf__read").result()
        leaf.reads = False
        assert (await client.call("leaf__read").error())["data"]["reason"] == "link_busy"
        leaf.reads = True
        assert here.used() == {MINUTE: 1}
        shown = here.node.operations.node.status().budgets
        assert sorted((one.scope, one.name) for one in shown) == [("caller", "local"), ("tool", "leaf.read")]
        assert [one.limits for one in shown] == [{MINUTE: Spent(limit=9, used=1)}] * 2


async def test_a_call_is_charged_once_however_often_it_is_asked_and_room_alone_charges_nothing(tmp_path: Path) -> None:
    async with budget_node(tmp_path, f"[budget]\n{MINUTE} = 1\n") as here:
        silent: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        await here.leaf(call=lambda params: silent)
        link = here.node.calls.keepers["leaf"].link
        call = here.client().call("leaf__read").running
        assert here.node.calls.budgets.charge(call, link) is here.node.calls.budgets.room(call, link) is None
        assert here.used() == {MINUTE: 1}
        call.charge = None
        for _ in range(2):
            fault = here.node.calls.budgets.room(call, link)
            assert fault is not None
            assert fault.message == "budget_exceeded"
        assert here.used() == {MINUTE: 1}
        call.cancel("the test is over")


async def test_a_call_that_waits_for_its_server_is_charged_when_it_is_sent_and_not_before(tmp_path: Path) -> None:
    rule = f'[[access]]\nwho = ["local"]\nbudget = {{ {MINUTE} = 9 }}\n'
    servers = f"[servers.old]\ncommand = {json.dumps(raw('all', '--era', 'legacy'))}\n"
    async with budget_node(tmp_path, f"{rule}{servers}") as here:
        link = here.node.calls.keepers["old"].link

        def used() -> int:
            return sum(one.limits[MINUTE].used for one in here.node.operations.node.status().budgets)

        for ends in (True, False):
            assert link.pid is not None
            os.kill(link.pid, signal.SIGKILL)
            await until(lambda: link.pipe is None)
            waits = here.client().call("old__echo")
            before = used()
            if ends:
                waits.running.cancel("changed its mind")
                await until(lambda: link.standing.state is LinkState.READY)
                assert used() == before
            else:
                await waits.result()
                assert used() == before + 1


async def test_asking_about_a_task_costs_nothing_once_the_call_that_made_it_is_charged(tmp_path: Path) -> None:
    rule = f'[[access]]\nwho = ["local"]\nbudget = {{ {MINUTE} = 1 }}\n'
    servers = f"[servers.old]\ncommand = {json.dumps(raw('tasks', '--era', 'legacy'))}\n"
    async with budget_node(tmp_path, f"{rule}{servers}") as here:
        client = here.client("legacy")
        call = {"name": "old__job", "arguments": {"id": "t"}, "task": {}}
        made = (await client.ask("tools/call", call).result())["task"]
        for _ in range(3):
            assert (await client.ask("tasks/get", {"taskId": made["taskId"]}).result())["status"] == "working"
        assert await outcomes([client.ask("tools/call", call)]) == [MINUTE]


async def test_prompts_and_resources_are_calls_that_cost_no_units(tmp_path: Path) -> None:
    rule = f'[[access]]\nwho = ["local"]\nbudget = {{ {MINUTE} = 3, {MUTABLE} = 0, {UNITS} = 0 }}\n'
    servers = f"[servers.old]\ncommand = {json.dumps(raw('all', '--era', 'legacy'))}\n"
    async with budget_node(tmp_path, f"{rule}{servers}") as here:
        client = here.client()
        completing = {"ref": {"type": "ref/prompt", "name": "old__greet"}, "argument": {"name": "who", "value": "a"}}
        asked = [
            client.ask("prompts/get", {"name": "old__greet", "arguments": {"who": "x"}}),
            client.ask("resources/read", {"uri": "raw://text"}),
            client.ask("completion/complete", completing),
            client.ask("resources/read", {"uri": "raw://text"}),
        ]
        assert await outcomes(asked) == ["ran"] * 3 + [MINUTE]


async def test_a_caller_has_one_budget_in_both_eras_and_a_new_session_refills_nothing(tmp_path: Path) -> None:
    rule = f'[[access]]\nwho = ["client:ci-*"]\nbudget = {{ {MINUTE} = 2, {MUTABLE} = 1 }}\n'
    async with budget_node(tmp_path, rule) as here:
        await here.leaf()
        for era in ERAS:
            assert await outcomes([here.client(era, "client:ci-1").call("leaf__read")]) == ["ran"]
        asked = here.client("legacy", "client:ci-1").call("leaf__read")
        error = await asked.error()
        assert error["code"] == -32003
        assert error["data"]["scope"] == "caller"
        others = [here.client(era, who).call("leaf__read") for who in ("client:ci-2", "local") for era in ERAS]
        assert await outcomes(others) == ["ran"] * 4


async def test_a_caller_that_keeps_asking_is_not_idle_and_starts_over_after_half_an_hour_without_a_call(
    tmp_path: Path,
) -> None:
    rule = f'[[access]]\nwho = ["local"]\nbudget = {{ {MUTABLE} = 1 }}\n'
    async with budget_node(tmp_path, rule) as here:
        await here.leaf()
        assert await outcomes([here.client().call("leaf__write") for _ in range(2)]) == ["ran", MUTABLE]
        for _ in range(3):
            here.clock.ahead += 1000
            assert await outcomes([here.client().call("leaf__write")]) == [MUTABLE]
        here.clock.ahead += budgets.IDLE_S + 1
        assert here.node.operations.node.status().budgets == ()
        assert await outcomes([here.client("legacy").call("leaf__write") for _ in range(2)]) == ["ran", MUTABLE]


async def test_a_tool_is_counted_over_all_callers_and_each_tool_of_an_entry_by_itself(tmp_path: Path) -> None:
    rule = f'[[tool]]\nmatch = "leaf.*"\nbudget = {{ {MINUTE} = 2 }}\n'
    async with budget_node(tmp_path, rule) as here:
        await here.leaf()
        clients = [here.client("modern", "client:a"), here.client("legacy", "client:b"), here.client()]
        asked = [client.call("leaf__read") for client in clients]
        assert await outcomes(asked) == ["ran", "ran", MINUTE]
        assert (await asked[2].error())["data"]["scope"] == "tool"
        assert await outcomes([here.client().call("leaf__metered")]) == ["ran"]


async def test_of_several_refusals_the_longest_is_reported_and_nobody_is_charged(tmp_path: Path) -> None:
    both = f'[budget]\n{MINUTE} = 1\n[[access]]\nwho = ["local"]\nbudget = {{ {MUTABLE} = 1 }}\n'
    async with budget_node(tmp_path, both) as here:
        await here.leaf()
        assert await outcomes([here.client().call("leaf__write") for _ in range(3)]) == ["ran", MUTABLE, MUTABLE]
        error = await here.client().call("leaf__read").error()
        assert (error["data"]["budget"], error["data"]["scope"]) == (MINUTE, "subserver")
        assert here.used() == {MINUTE: 1}


@pytest.mark.req("AX-11.4-5")
async def test_a_parents_budget_limits_the_declared_budgets_and_their_sum(
    tmp_path: Path,
) -> None:
    parents = '[[ax.parents]]\nurl = "ws://127.0.0.1:1/ax"\nsegment = "here"\n'
    async with budget_node(tmp_path, f"[budget]\n{MINUTE} = 50\n{UNITS} = 5\n{parents}") as here:
        early = await here.leaf("early")
        here.node.calls.budgets.receive(
            "default", BudgetLimits(max_calls_per_minute=6, max_mutable_calls_per_session=4)
        )
        one, two = await here.leaf("one"), await here.leaf("two")
        assert early.registered["budget"] == {MINUTE: 50, UNITS: 5}
        assert one.registered["budget"] == two.registered["budget"] == {MINUTE: 6, MUTABLE: 4, UNITS: 5}
        above = here.client(who="parent:x", parent="here")
        asked = [
            client.call(f"{segment}__read") for segment in ("one", "two", "early") for client in (above, here.client())
        ]
        refused = here.client("legacy").call("two__read")
        assert await outcomes([*asked, refused]) == ["ran"] * 6 + [MINUTE]
        assert (await refused.error())["data"]["scope"] == "subserver"
        assert [leaf.ran for leaf in (early, one, two)] == [["read"] * 2] * 3


@pytest.mark.req("AX-11.4-2")
async def test_declarations_hold_for_the_session_whatever_a_parent_gives_later(tmp_path: Path) -> None:
    parents = '[[ax.parents]]\nurl = "ws://127.0.0.1:1/ax"\nsegment = "here"\n'
    async with budget_node(tmp_path, parents) as here:
        here.node.calls.budgets.receive("default", BudgetLimits(max_calls_per_minute=2))
        leaf = await here.leaf()
        here.node.calls.budgets.receive("default", BudgetLimits(max_calls_per_minute=1000))
        assert leaf.registered["budget"] == {MINUTE: 2}
        assert await outcomes([here.client().call("leaf__read") for _ in range(3)]) == ["ran", "ran", MINUTE]
        here.node.calls.budgets.receive("default", None)
        later = await here.leaf("later")
        assert later.registered["budget"] == {}


async def test_an_entry_of_a_subserver_says_more_than_the_budget_of_all(tmp_path: Path) -> None:
    rule = f'[[access]]\nwho = ["subserver:busy"]\nscope = "admin"\nbudget = {{ {MINUTE} = 600 }}\n'
    async with budget_node(tmp_path, f"[budget]\n{MINUTE} = 60\n{MUTABLE} = 10\n{rule}") as here:
        assert (await here.leaf("busy")).registered["budget"] == {MINUTE: 600, MUTABLE: 10}
        assert (await here.leaf("calm")).registered["budget"] == {MINUTE: 60, MUTABLE: 10}


@pytest.mark.req("AX-11.4-3")
async def test_questions_of_a_legacy_subserver_are_charged_to_its_session(tmp_path: Path) -> None:
    wait: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    async with budget_node(tmp_path, f"[budget]\n{MINUTE} = 3\n") as here:
        leaf = await here.leaf(era="legacy", call=lambda params: wait)
        client = here.client("legacy", capabilities={"sampling": {}})
        called = client.call("leaf__read")
        await until(lambda: leaf.ran)
        question = {"messages": [], "maxTokens": 5}
        for number in range(2):
            asking = asyncio.ensure_future(leaf.ask("sampling/createMessage", question))
            await until(lambda number=number: len(_questions(client.stream, called)) > number)
            client.answer(_questions(client.stream, called)[-1]["id"], {"role": "assistant"})
            assert (await asking)["result"] == {"role": "assistant"}
        refused = (await leaf.ask("sampling/createMessage", question))["error"]
        assert (refused["code"], refused["message"]) == (-32003, "budget_exceeded")
        assert refused["data"] == {
            "budget": MINUTE,
            "limit": 3,
            "used": 3,
            "retry_after_ms": refused["data"]["retry_after_ms"],
            "scope": "subserver",
        }
        assert len(_questions(client.stream, called)) == 2
        assert await leaf.ask("ping", {}) == {"jsonrpc": "2.0", "id": "up-5", "result": {}}
        wait.set_result({"content": []})
        await called.result()


async def test_the_rounds_of_a_modern_subserver_are_charged_to_its_session(tmp_path: Path) -> None:
    form = {"message": "Which?", "requestedSchema": {"type": "object", "properties": {}}}
    asks = {
        "resultType": "input_required",
        "inputRequests": {"q": {"method": "elicitation/create", "params": form}},
        "requestState": "s",
    }
    async with budget_node(tmp_path, f"[budget]\n{MINUTE} = 2\n") as here:
        leaf = await here.leaf(call=lambda params: asks)
        client = here.client("legacy", capabilities={"elicitation": {}})
        called = client.call("leaf__read")
        await until(lambda: _questions(client.stream, called))
        client.answer(_questions(client.stream, called)[0]["id"], {"action": "decline"})
        error = await called.error()
        assert (error["code"], error["data"]["budget"], error["data"]["used"]) == (-32003, MINUTE, 2)
        assert leaf.ran == ["read", "read"]


async def test_as_many_callers_are_remembered_as_there_is_room_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(budgets, "ACCOUNTS_MAX", 3)
    rule = f'[[access]]\nwho = ["client:*"]\nbudget = {{ {MINUTE} = 1 }}\n'
    async with budget_node(tmp_path, rule) as here:
        await here.leaf()
        for name in "abcad":
            here.client(who=f"client:{name}").call("leaf__read")
        assert list(here.node.calls.budgets.callers) == ["client:c", "client:a", "client:d"]


async def test_a_node_without_budgets_counts_nothing(tmp_path: Path) -> None:
    async with budget_node(
        tmp_path, '[budget]\nunits = { metered = 3 }\n[[tool]]\nmatch = "*"\ncost_units = 5\n'
    ) as here:
        leaf = await here.leaf()
        assert leaf.registered["budget"] == {}
        assert not here.node.calls.budgets.is_enforced
        called = here.client().call("leaf__write")
        await called.result()
        assert called.running.charge is None


def _questions(stream: ModernRequest, called: ModernRequest) -> list[Any]:
    return [one for one in (*stream.emitted, *called.emitted) if "id" in one and "method" in one]
