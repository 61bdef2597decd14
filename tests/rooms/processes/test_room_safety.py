"""Clients in the safety loop that go to rooms by /v0, where nothing is reported."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.gate.held_calls import ActuatorLog, actuator_table
from tests.rooms.mcp_client import client_token
from tests.rooms.participant import CALL, Bare, ask, joined, names
from tests.support.node_process import RunningNode, Wire, running_node

CONFIG = """
[safety]
mode = "enforcing"
preapproved = true
require = ["client:required", "room:required-*"]

[approvals]
channels = ["command"]
command = "/bin/true"

[rooms]
presence_grace_s = 0.1

[[room]]
topic = "garden"
full = ["client:*"]
"""
SAY = "calling rooms.say to greet the others"


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNode]:
    folder: Path = tmp_path_factory.mktemp("safety")
    with running_node(folder, {"plant": actuator_table(ActuatorLog(folder / "diary.jsonl"))}, CONFIG) as started:
        started.wait_link("plant", {"state": "ready"})
        yield started


def operation(node: RunningNode, client: str, name: str, **params: Any) -> Any:
    with Wire(node, "/mcp/aql-single", client_token(node, client)) as wire:
        arguments = {"operation": name, "params": {"element_name": "coder", **params}}
        answer = wire.modern("tools/call", {"name": "mcp_aql", "arguments": arguments}).message
    return json.loads(answer["result"]["content"][0]["text"])


def block(node: RunningNode, client: str) -> str:
    assert operation(node, client, "execute_agent")["success"]
    directive = operation(node, client, "record_execution_step", nextActionHint="drop_table users")["data"]["autonomy"]
    assert directive["stopped"] is True
    return str(directive["notifications"][-1]["metadata"]["verificationId"])


async def refusals(node: RunningNode, client: str) -> list[tuple[str, str]]:
    """The codes and reasons with which each act of a client in the room is refused, on each way."""
    secret, found = client_token(node, client), []
    async with joined(node, *names("restricted")) as (other,):
        proposal = await other.send("mcp/proposal", {"method": "tools/call", "params": {"name": "x"}}, to=["robot"])
        await other.until(id=proposal)
        bare = await Bare.join(node, "garden", secret)
        for kind, payload in (("mcp", CALL), ("chat", {"text": "hi"}), ("mcp/proposal", {"method": "x"})):
            id = await bare.send(kind, payload, to=[other.name])
            refused = (await bare.until(correlation_id=id))["payload"]
            found.append((refused["code"], refused["details"]["reason"]))
        for decision in ("mcp/reject", "mcp/withdraw"):
            id = await bare.send(decision, {"reason": "no"}, correlation_id=proposal)
            refused = (await bare.until(correlation_id=id))["payload"]
            found.append((refused["code"], refused["details"]["reason"]))
        at = "/v0/topics/garden"
        said = {"kind": "chat", "id": f"by-{client}", "payload": {"text": "hi"}}
        ways = [(f"{at}/messages", said)]
        ways += [(f"{at}/proposals/{proposal}/{what}", {}) for what in ("fulfil", "reject", "withdraw")]
        for path, body in ways:
            status, refused = await asyncio.to_thread(ask, node, path, secret, "POST", body)
            assert status == 403
            found.append((refused["error"], refused["details"]["reason"]))
        listed = await asyncio.to_thread(ask, node, f"{at}/proposals", secret)
        assert {each["proposalId"]: each["status"] for each in listed[1]["proposals"]}[proposal] == "pending"
        request = await other.send("mcp/withdraw", {}, correlation_id=proposal)
        assert request
        await bare.leave()
    return found


@pytest.mark.req("AQL-8.6.4-5")
async def test_a_blocked_client_does_nothing_in_rooms(node: RunningNode) -> None:
    id = await asyncio.to_thread(block, node, "blocked")
    assert set(await refusals(node, "blocked")) == {("execution_refused", "agent_blocked")}
    status, refused = ask(
        node,
        "/v0/topics/garden/messages",
        client_token(node, "blocked"),
        "POST",
        {"kind": "chat", "id": "b", "payload": {"text": "hi"}},
    )
    assert (status, refused["details"]["verification_id"]) == (403, id)
    async with joined(node, *names("full")) as (other,):
        await other.say("who is not blocked goes on")
        await other.until(kind="chat")


@pytest.mark.req("AQL-8.6.1-2")
async def test_a_required_client_acts_in_rooms_by_reported_calls_and_answers(node: RunningNode) -> None:
    assert set(await refusals(node, "required")) == {("execution_refused", "execution_required")}
    assert (await asyncio.to_thread(operation, node, "required", "execute_agent"))["success"]
    assert set(await refusals(node, "required")) == {("execution_refused", "execution_required")}

    def say() -> Any:
        with Wire(node, "/mcp", client_token(node, "required")) as wire:
            arguments = {"topic": "garden", "text": "a reported greeting"}
            return wire.modern("tools/call", {"name": "rooms__say", "arguments": arguments}).message

    async with joined(node, *names("full")) as (other,):
        assert (await asyncio.to_thread(say))["error"]["data"]["reason"] == "unreported_action"
        await asyncio.to_thread(operation, node, "required", "record_execution_step", nextActionHint=SAY)
        assert not (await asyncio.to_thread(say))["result"].get("isError")
        assert (await other.until(kind="chat"))["payload"] == {"text": "a reported greeting"}
        robot = await Bare.join(node, "garden", client_token(node, "required"))
        request = await other.send("mcp", CALL, to=["client:required"])
        await robot.until(id=request)
        reply = {"jsonrpc": "2.0", "id": CALL["id"], "result": {}}
        answer = await robot.send("mcp", reply, to=[other.name], correlation_id=request)
        assert (await other.until(correlation_id=request))["id"] == answer
        await robot.leave()


async def test_a_client_with_an_execution_and_a_required_token_of_a_room_act_by_reported_calls(
    node: RunningNode,
) -> None:
    async with joined(node, ("required-robot", "full")) as (robot,):
        id = await robot.say("hi")
        refused = (await robot.until(correlation_id=id))["payload"]
        assert (refused["code"], refused["details"]["reason"]) == ("execution_refused", "execution_required")
    free = await Bare.join(node, "garden", client_token(node, "runs"))
    await free.say("before")
    await free.until(kind="chat", **{"from": "client:runs"})
    assert (await asyncio.to_thread(operation, node, "runs", "execute_agent"))["success"]
    id = await free.say("unreported")
    assert (await free.until(correlation_id=id))["payload"]["details"]["reason"] == "unreported_action"
    assert (await asyncio.to_thread(operation, node, "runs", "abort_execution"))["success"]
    await free.say("after")
    assert (await free.until(kind="chat"))["payload"] == {"text": "after"}
    await free.leave()
