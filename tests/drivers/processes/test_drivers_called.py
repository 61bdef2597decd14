"""Contracts called by clients while the servers behind them die, sleep and change their tools."""

import os
import signal
from pathlib import Path
from typing import Any

import pytest
from tests.drivers.driver_node import Workspace, alive, states, until, wait_states
from tests.support.node_process import LEGACY, MODERN, RunningNode
from tests.support.peers import HttpPeer

ERAS = {"legacy": (LEGACY, -32002), "modern": (MODERN, 32002)}


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    return Workspace(tmp_path)


def opened(node: RunningNode, version: str) -> Any:
    return HttpPeer(f"{node.url}/mcp", version).greet()


@pytest.mark.req("AIP-transport-13", "AIP-30.errors-1")
@pytest.mark.parametrize("era", ERAS)
async def test_calls_under_way_at_a_server_that_dies_end_at_once_and_the_next_is_served(
    workspace: Workspace, era: str
) -> None:
    version, code = ERAS[era]
    workspace.add("waiting-mcp", tools={"echo": "demo.echo", "wait": "demo.wait"})
    with workspace.node() as node:
        wait_states(node, "ready", "waiting-mcp")
        async with await opened(node, version) as peer:
            never = str(workspace.folder / "never")
            calls = [peer.begin_call("demo__wait", {"until": never}) for _ in range(3)]
            await until(lambda: workspace.calls("waiting-mcp") == 3)
            (pid,) = workspace.pids("waiting-mcp")
            os.kill(pid, signal.SIGKILL)
            for call in calls:
                error = (await call.reply()).error
                assert (error["code"], error["message"]) == (code, "tool_degraded")
                assert error["data"]["outcome"] == "unknown"
            answer = (await peer.call("demo__echo", {"n": 1})).result["structuredContent"]
            assert answer["n"] == 1
            assert answer["pid"] == workspace.pids("waiting-mcp")[-1] != pid


@pytest.mark.req("AIP-transport-3")
async def test_a_contract_whose_server_sleeps_is_listed_and_the_call_wakes_it(workspace: Workspace) -> None:
    workspace.add("sleepy-mcp", tools={"echo": "demo.echo"}, metadata={"interlock": {"idle_timeout_ms": 1000}})
    with workspace.node() as node:
        wait_states(node, "ready", "sleepy-mcp")
        (pid,) = workspace.pids("sleepy-mcp")
        node.wait_link("sleepy", {"state": "asleep"}, 5)
        assert not alive(pid)
        assert states(node)["sleepy-mcp"] == "ready"
        async with await opened(node, LEGACY) as peer:
            listed = (await peer.request("tools/list")).result["tools"]
            assert [tool["name"] for tool in listed] == ["demo__echo"]
            answer = (await peer.call("demo__echo", {"n": 1})).result["structuredContent"]
            assert answer["pid"] == workspace.pids("sleepy-mcp")[-1] != pid
        for version in (LEGACY, MODERN):
            async with await HttpPeer(f"{node.url}/mcp/only/demo", version).greet() as peer:
                listed = (await peer.request("tools/list")).result["tools"]
                assert [tool["name"] for tool in listed] == ["echo"]
                assert (await peer.call("echo", {"n": 2})).result["structuredContent"]["n"] == 2
        nobody = HttpPeer(f"{node.url}/mcp/only/nobody", MODERN, judged=False)
        async with nobody:
            assert (await nobody.begin("tools/list").reply()).status == 404


@pytest.mark.req("AIP-tools-10")
async def test_clients_learn_of_a_changed_list_only_when_their_own_changed(workspace: Workspace) -> None:
    options = workspace.tools("echo", "other")
    workspace.add("changing-mcp", *options, tools={"echo": "demo.echo"})
    with workspace.node() as node:
        wait_states(node, "ready", "changing-mcp")
        async with await opened(node, LEGACY) as peer:
            before = (await peer.request("tools/list")).result["tools"]
            await peer.listen()
            (pid,) = workspace.pids("changing-mcp")

            def listed() -> int:
                return sum(
                    line.get("got", {}).get("method") == "tools/list" for line in workspace.lines("changing-mcp")
                )

            read = listed()
            workspace.tools("echo", "another")  # what no contract is bound to
            os.kill(pid, signal.SIGUSR1)
            await until(lambda: listed() > read)
            assert (await peer.request("tools/list")).result["tools"] == before
            assert (await peer.call("demo__echo", {"n": 1})).result["structuredContent"]["n"] == 1
            workspace.tools("another")
            os.kill(pid, signal.SIGUSR1)
            await peer.hear("notifications/tools/list_changed")
            assert peer.heard("notifications/tools/list_changed") == []  # one, and that for the second change
            assert (await peer.request("tools/list")).result["tools"] == []
            assert workspace.calls("changing-mcp") == 1


@pytest.mark.req("AIP-proto-6")
async def test_a_servers_question_reaches_only_the_caller_of_that_call(workspace: Workspace) -> None:
    able = {"client_capabilities": ["elicitation"]}
    workspace.add("asking-mcp", tools={"ask": "demo.ask"}, metadata={"interlock": able})
    with workspace.node() as node:
        wait_states(node, "ready", "asking-mcp")
        capable = {"elicitation": {}}
        async with (
            await HttpPeer(f"{node.url}/mcp", LEGACY).greet(capable) as ada,
            await HttpPeer(f"{node.url}/mcp", LEGACY).greet(capable) as bob,
        ):
            calls = {peer: peer.begin_call("demo__ask", {"n": number}) for number, peer in enumerate((ada, bob))}
            for number, peer in enumerate((ada, bob)):
                asked = await peer.hear("elicitation/create")
                assert asked["params"]["message"] == str(number)
                assert workspace.calls("asking-mcp") == number + 1  # one at a time
                await peer.respond(asked["id"], {"action": "accept", "content": {"c": str(number)}})
                answer = (await calls[peer].reply()).result["structuredContent"]["answer"]
                assert answer["content"] == {"c": str(number)}


@pytest.mark.req("AIP-proto-6")
async def test_a_shared_server_that_asks_all_the_same_reaches_nobody(workspace: Workspace) -> None:
    workspace.add("asking-mcp", tools={"ask": "demo.ask"})
    with workspace.node() as node:
        wait_states(node, "ready", "asking-mcp")
        async with await HttpPeer(f"{node.url}/mcp", LEGACY).greet({"elicitation": {}}) as peer:
            answer = (await peer.call("demo__ask", {"n": 1})).result["structuredContent"]["answer"]
            assert answer["code"] == -32601
            assert peer.heard("elicitation/create") == []
