"""The participant `interlock`: tools of the node inside a room (X-N-5), and proposals of calls of them (X-10.2-3)."""

import asyncio
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.gate.held_calls import ANCHORED, ActuatorLog, actuator_table, signed_enrolment
from tests.rooms.participant import Bare, token
from tests.support.node_process import RunningNode, running_node, wait_for

ROOMS = """
[[access]]
who = ["room:narrow*"]
tools = ["other.*"]

[rooms]
presence_grace_s = 0.1

[[room]]
topic = "garden"
interlock_tools = ["plant.look", "plant.fire"]
max_envelope_bytes = 65536

[[room]]
topic = "without"
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("node-tools")


@pytest.fixture(scope="module")
def diary(folder: Path) -> ActuatorLog:
    return ActuatorLog(folder / "diary")


@pytest.fixture(scope="module")
def node(folder: Path, diary: ActuatorLog) -> Iterator[RunningNode]:
    with running_node(folder, {"plant": actuator_table(diary)}, ANCHORED + ROOMS) as started:
        started.wait_link("plant", {"state": "ready"})
        yield started


async def join(node: RunningNode, kind: str, topic: str = "garden", privilege: str = "full") -> tuple[Bare, str]:
    id = f"{kind}-{uuid.uuid4().hex[:8]}"
    participant = await Bare.join(node, topic, token(node, id, topic, privilege))
    participant.welcome = await participant.next()
    return participant, id


async def ask(one: Bare, method: str, params: Any = None, to: Any = ("interlock",), id: Any = 1, **more: Any) -> Any:
    """What `interlock` answers."""
    payload = {"jsonrpc": "2.0", "id": id, "method": method} | ({} if params is None else {"params": params})
    sent = await one.send("mcp", payload, to=list(to), **more)
    answer = await one.until(**{"kind": "mcp", "from": "interlock", "correlation_id": sent})
    assert answer["payload"]["id"] == id
    return answer


@pytest.mark.req("X-N-5", "X-1-2", "X-2.2-2", "X-4.1-4", "AX-11.1-1")
async def test_listed_tools_are_answered_in_the_room_and_no_others(node: RunningNode, diary: ActuatorLog) -> None:
    one, id = await join(node, "robot")
    there = {each["id"]: each for each in one.welcome["payload"]["participants"]}
    assert there["interlock"]["privilege"] == "full" and there["interlock"]["mcp"] == {"version": "2025-11-25"}
    greeting = await ask(one, "initialize", {"protocolVersion": "2025-06-18", "capabilities": {}}, id="a")
    assert greeting["payload"]["result"]["protocolVersion"] == "2025-06-18"
    assert greeting["to"] == [id]
    tools = (await ask(one, "tools/list", {}, id=12345678901234567890))["payload"]["result"]["tools"]
    assert [tool["name"] for tool in tools] == ["plant__fire", "plant__look"]
    looked = await ask(one, "tools/call", {"name": "plant__look", "arguments": {"n": 10**20}})
    assert looked["payload"]["result"]["structuredContent"] == {"did": "look"}
    assert diary.read("look")[-1]["arguments"] == {"n": 10**20}
    for name in ("plant.say", "plant__hold", "nothing", ""):
        refused = (await ask(one, "tools/call", {"name": name}))["payload"]["error"]
        assert (refused["code"], refused["data"]["reason"]) == (-32601, "tool_not_found")
    held = (await ask(one, "tools/call", {"name": "plant.fire", "arguments": {}}))["payload"]["result"]
    assert held["isError"] is True and held["_meta"]["x-mcpax-confirmation"]["status"] == "confirmation_required"
    waiting = node.admin(f"/approvals/{held['_meta']['x-mcpax-confirmation']['confirmation_id']}")
    assert waiting["requested_by"] == f"room:{id}"
    assert diary.read("fire") == []
    recorded = [("room:" + id, "plant.look")]
    records = node.admin("/admin/audit?limit=1000")["records"]
    assert recorded == [
        (record["who"], record["tool"]) for record in records if (record["who"], record["tool"]) == recorded[0]
    ]
    await one.leave()


@pytest.mark.req("X-N-5", "X-1-2", "X-3.1-4")
async def test_requests_for_others_or_without_permission_run_nothing(node: RunningNode, diary: ActuatorLog) -> None:
    before = len(diary)
    call = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "plant.look", "arguments": {}}}
    one, _ = await join(node, "robot")
    narrow, _ = await join(node, "narrow")
    restricted, _ = await join(node, "agent", privilege="restricted")
    unanswered = [
        await one.send("mcp", call),  # to everyone
        await one.send("mcp", call, to=["somebody"]),
        await one.send("mcp/proposal", {"method": "tools/call", "params": call["params"]}, to=["interlock"]),
    ]
    await restricted.send("mcp", call, to=["interlock"])
    assert (await restricted.until(kind="mcp", **{"from": "system:gateway"}))["payload"]["error"]["code"] == -32001
    assert (await ask(narrow, "tools/list"))["payload"]["result"] == {"tools": []}
    refused = (await ask(narrow, "tools/call", {"name": "plant.look"}))["payload"]["error"]
    assert refused["data"]["reason"] == "tool_not_found"
    assert (await ask(one, "resources/list"))["payload"]["error"]["code"] == -32601
    assert (await ask(one, "tools/list", {"cursor": "forged"}))["payload"]["error"]["code"] == -32602
    assert (await ask(one, "tools/call", {"name": "plant.look", "_meta": 3}))["payload"]["error"]["code"] == -32602
    assert (await ask(one, "ping"))["payload"]["result"] == {}
    answers = [envelope["correlation_id"] for envelope in one.heard if envelope["from"] == "interlock"]
    assert answers and not set(answers) & set(unanswered)
    assert len(diary) == before
    elsewhere, _ = await join(node, "robot", "without")
    assert elsewhere.welcome["payload"]["participants"] == []
    sent = await elsewhere.send("mcp", call, to=["interlock"])
    assert (await elsewhere.until(event="recipient_absent"))["correlation_id"] == sent
    for each in (one, narrow, restricted, elsewhere):
        await each.leave()


@pytest.mark.req("X-10.2-3", "X-4.2.1-4", "AX-11.1-1")
async def test_one_approval_of_a_proposal_releases_the_held_call(node: RunningNode, diary: ActuatorLog) -> None:
    agent, id = await join(node, "agent", privilege="restricted")
    proposed = {"method": "tools/call", "params": {"name": "plant.fire", "arguments": {"at": "noon"}}}
    proposal = await agent.send("mcp/proposal", proposed, to=["interlock"])

    def look() -> Any:
        waiting = node.admin("/approvals?kind=proposal&status=pending")["approvals"]
        return next(
            (approval for approval in waiting if node.admin(f"/approvals/{approval['id']}")["proposal_id"] == proposal),
            None,
        )

    waiting = await asyncio.to_thread(wait_for, look)
    assert diary.read("fire") == []
    approve = {"decision": "approve", "proof": signed_enrolment(node, waiting["id"])}
    decided = await asyncio.to_thread(node.admin, f"/approvals/{waiting['id']}", "POST", approve)
    assert decided.get("status") in ("approved", "used", "done"), decided
    answer = await agent.until(**{"kind": "mcp", "from": "interlock"})
    assert answer["payload"]["result"]["structuredContent"] == {"did": "fire"} and id in answer["to"]
    assert [record["arguments"] for record in diary.read("fire")] == [{"at": "noon"}]
    assert await asyncio.to_thread(wait_for, lambda: node.admin(f"/approvals/{waiting['id']}")["status"] == "done")
    held = node.admin("/approvals?kind=call&status=pending")["approvals"]
    assert not [entry for entry in held if entry["requested_by"].startswith("operator:")]
    await agent.leave()
