"""A route is followed, not only checked (MCP-AX 7.2): calls, what they read, and the proofs that release them."""

import asyncio
import json
import uuid
from pathlib import Path
from typing import Any

import pytest
from tests.ax.bare_subserver import bare_subserver, tool
from tests.ax.processes.test_parents import OPEN, joined, listed
from tests.ax.raw_aggregator import Session
from tests.ax.tree import ACCESS, ax_url, parents, wait_parent
from tests.gate.held_calls import ADA, MARK, Client, anchor, proof
from tests.servers.start import raw
from tests.support.node_process import RunningNode, running_node

pytestmark = pytest.mark.req("AX-7.2-4")

SERVERS = {"bench": {"command": raw("all")}, "other": {"command": raw("all")}}
BOTH = OPEN + '[[tool]]\nmatch = "other.*"\nmutable = false\nauth_scope = "read"\n'
GATED = ACCESS + '[gate]\nmode = "gated"\nunannotated = "allow"\n' + anchor("ada", ADA, "*")
PROVED = "dns:all.example"  # by the [[access]] entry
FIRE = tool("fire", annotations={"readOnlyHint": False, "destructiveHint": True})


async def routed(session: Session, method: str, route: list[str], cursor: int, **params: Any) -> dict[str, Any]:
    meta = {"x-mcpax-route": route, "x-mcpax-cursor": cursor}
    return await session.modern(method, **params, _meta=meta)


async def calls(node: RunningNode, segment: str) -> int:
    return int((await asyncio.to_thread(node.link, segment))["calls"])


async def test_each_way_to_say_the_name_reaches_the_tool_that_the_route_names(tmp_path: Path) -> None:
    async with joined(tmp_path, BOTH, servers=SERVERS) as (node, session):
        await listed(session, "bench.echo")
        await listed(session, "other.echo")
        before = await calls(node, "other")
        route = ["root", "edge", "other", "echo"]
        for name in ("echo", "other.echo", "root.edge.other.echo"):
            answer = await routed(session, "tools/call", route, 1, name=name, arguments={"n": name})
            assert answer["result"]["structuredContent"] == {"n": name}
        assert await calls(node, "other") == before + 3
        beside = {"x-mcpax-route": route, "x-mcpax-cursor": 1}
        answer = await session.modern("tools/call", name="echo", arguments={"n": 4}, **beside)
        assert answer["result"]["structuredContent"] == {"n": 4}
        at_bench = await calls(node, "bench")
        for name in ("bench.echo", "other__echo", "edge.other.echo", "exact", "bench"):
            refused = (await routed(session, "tools/call", route, 1, name=name, arguments={}))["error"]
            assert (refused["code"], refused["message"]) == (32118, "route_mismatch"), name
        assert await calls(node, "other") == before + 4
        assert await calls(node, "bench") == at_bench
        nowhere = ["root", "edge", "other", "nothing"]
        unknown = await routed(session, "tools/call", nowhere, 1, name="nothing", arguments={})
        assert unknown["error"]["code"] == -32601


async def test_prompts_resources_and_completions_are_found_by_their_route(tmp_path: Path) -> None:
    async with joined(tmp_path, BOTH, servers=SERVERS) as (_, session):
        await listed(session, "bench.echo")
        await listed(session, "other.echo")
        prompt, place = ["root", "edge", "other", "greet"], ["root", "edge", "other"]
        argument = {"name": "who", "value": "a"}
        for name in ("greet", "other.greet", "root.edge.other.greet"):
            got = await routed(session, "prompts/get", prompt, 1, name=name, arguments={"who": "x"})
            assert "result" in got, got
            ref = {"type": "ref/prompt", "name": name}
            assert "result" in await routed(session, "completion/complete", prompt, 1, ref=ref, argument=argument)
        for prefix in ("", "mcpax://other/", f"mcpax://{'.'.join(place)}/"):
            got = await routed(session, "resources/read", place, 1, uri=f"{prefix}raw://text")
            assert "result" in got, got
            ref = {"type": "ref/resource", "uri": f"{prefix}raw://item/{{id}}"}
            assert "result" in await routed(session, "completion/complete", place, 1, ref=ref, argument=argument)
        wrong = await routed(session, "resources/read", place, 1, uri="mcpax://bench/raw://text")
        assert wrong["error"]["code"] == 32118
        assert (await routed(session, "prompts/get", prompt, 1, name="bench.greet"))["error"]["code"] == 32118


@pytest.mark.parametrize("said", ["in meta", "in params", "not at all"])
async def test_a_call_that_is_confirmed_reaches_the_leaf_with_its_whole_route(tmp_path: Path, said: str) -> None:
    route = ["root", "edge", "plant", "fire"]
    async with (
        joined(tmp_path, GATED, servers={}) as (node, session),
        bare_subserver(node, "plant", tools=[FIRE], authority=PROVED) as plant,
    ):
        await listed(session, "plant.fire")
        held = await routed(session, "tools/call", route, 1, name="fire", arguments={"n": 1})
        demand = held["result"]["_meta"][MARK]
        asked: dict[str, Any] = {"confirmation_id": demand["confirmation_id"]}
        for way in (["root", "edge", "plant", "other"], ["root", "west", "plant", "fire"]):
            refused = await routed(session, "mcpax/confirm", way, 1, **asked, proof=proof(demand))
            assert refused["error"]["code"] == 32118, refused
        assert not [one for one in plant.heard if one.get("method") == "tools/call"]
        keys = {"x-mcpax-route": route, "x-mcpax-cursor": 1}
        more = {"in meta": {"_meta": keys}, "in params": keys, "not at all": {}}[said]
        answer = await session.modern("mcpax/confirm", **asked, proof=proof(demand), **more)
        assert "result" in answer, answer
        (call,) = [one for one in plant.heard if one.get("method") == "tools/call"]
        assert call["params"]["_meta"]["x-mcpax-route"] == route
        assert call["params"]["_meta"]["x-mcpax-cursor"] == 2
        assert "x-mcpax-route" not in call["params"]


async def test_a_confirmation_that_is_carried_down_has_the_route_of_its_call(tmp_path: Path) -> None:
    """root over edge over an aggregator that holds the call itself."""
    confirmation = {"status": "confirmation_required", "confirmation_id": str(uuid.uuid4())}

    def hold(params: dict[str, Any]) -> dict[str, Any]:
        shown = {**confirmation, "tool": params["name"], "route": ["plant", "fire"], "arguments": {}}
        return {"content": [{"type": "text", "text": "held"}], "isError": True, "_meta": {MARK: shown}}

    gated = tool("plant.fire", annotations={"destructiveHint": True}, _meta={"x-mcpax-gated": True})
    root_node = running_node(tmp_path / "root", {}, ACCESS + '[gate]\nmode = "open"\n[ax]\nroot_segment = "top"\n')
    root = await asyncio.to_thread(root_node.__enter__)
    edge_node = running_node(
        tmp_path / "edge", {}, parents((ax_url(root), "edge")) + ACCESS + '[gate]\nmode = "open"\n'
    )
    edge = await asyncio.to_thread(edge_node.__enter__)
    try:
        await asyncio.to_thread(wait_parent, edge, {"state": "registered"})
        above = {"x-mcpax-subtree-ids": [str(uuid.uuid4())], "authority": PROVED}
        async with bare_subserver(edge, "low", tools=[gated], call=hold, **above) as low:
            await asyncio.to_thread(root.wait_link, "edge", {"tools": 2})
            demand = await asyncio.to_thread(_hold_and_confirm, root)
            (request,) = [one for one in low.heard if one.get("method") == "mcpax/confirm"]
            assert request["params"]["confirmation_id"] == demand["confirmation_id"]
            assert request["params"]["_meta"]["x-mcpax-route"] == ["top", "edge", "low", "plant", "fire"]
            assert request["params"]["_meta"]["x-mcpax-cursor"] == 2
            assert json.dumps(request).count("x-mcpax-route") == 1
    finally:
        await asyncio.to_thread(edge_node.__exit__, None, None, None)
        await asyncio.to_thread(root_node.__exit__, None, None, None)


def _hold_and_confirm(root: RunningNode) -> dict[str, Any]:
    with Client(root) as client:
        demand: dict[str, Any] = client.held("top.edge.low.plant.fire", {"n": 1})
        client.confirm(demand, "a.b.c")
    return demand
