"""Proposals of rooms in the one inbox: tracked, approved, denied, carried out in the room (MCPx 4.2, 9, 10.2)."""

import asyncio
import contextlib
import http.client
import json
import uuid
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from tests.interaction.gate.held import ANCHORED, signed_enrolment
from tests.interaction.harness import RunningNode, running_node, wait_for
from tests.interaction.rooms.participant import Bare, token

ROOMS = """
[rooms]
presence_grace_s = 0.1
per_min = { proposals = 100, chat = 60, envelopes = 2000 }

[[room]]
topic = "garden"
extra_kinds = { "mcp/reject" = "full", "mcp/withdraw" = "restricted" }

[[room]]
topic = "few"
proposals_pending = 2

[[room]]
topic = "brief"
proposal_ttl_s = 10

[[room]]
topic = "untracked"
tracker = false
"""
WATER = {"method": "tools/call", "params": {"name": "water", "arguments": {"litres": 2, "bed": "roses"}}}


class Person:
    """Someone at the operator endpoint, with a key."""

    def __init__(self, node: RunningNode) -> None:
        self.node = node

    def decide(self, id: str, decision: str, **more: Any) -> Any:
        if decision == "approve":
            more["proof"] = signed_enrolment(self.node, id)
        return self.node.admin(f"/approvals/{id}", "POST", {"decision": decision, **more})

    async def waiting(self, proposal: str, status: str = "pending") -> dict[str, Any]:
        """The approval of a proposal, once it is in the inbox."""

        def look() -> Any:
            listed = self.node.admin(f"/approvals?kind=proposal&status={status}")["approvals"]
            whole = [self.node.admin(f"/approvals/{one['id']}") for one in reversed(listed)]
            return next((one for one in whole if one["proposal_id"] == proposal), None)

        return dict(await asyncio.to_thread(wait_for, look))


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNode]:
    with running_node(tmp_path_factory.mktemp("proposals"), {}, ANCHORED + ROOMS) as started:
        yield started


@pytest.fixture(scope="module")
def person(node: RunningNode) -> Person:
    return Person(node)


@contextlib.asynccontextmanager
async def joined(node: RunningNode, *privileges: str, topic: str = "garden") -> AsyncIterator[list[Bare]]:
    async with contextlib.AsyncExitStack() as stack:
        mark, there = uuid.uuid4().hex[:8], []
        for number, privilege in enumerate(privileges):
            secret = token(node, f"p{number}-{mark}", topic, privilege)
            one = await Bare.join(node, topic, secret)
            one.secret, one.name = secret, f"p{number}-{mark}"
            stack.push_async_callback(one.leave)
            assert (await one.next())["payload"]["event"] == "welcome"
            for earlier in there:
                await earlier.until(kind="presence", event="join")
            there.append(one)
        yield there


async def propose(agent: Bare, target: Bare, payload: dict[str, Any] = WATER, **more: Any) -> str:
    return await agent.send("mcp/proposal", payload, to=[target.name], **more)


async def answer(target: Bare, **body: Any) -> dict[str, Any]:
    """The target hears the next request to it and answers it."""
    while True:
        asked = await target.until(kind="mcp")
        if asked.get("to") == [target.name] and "method" in asked["payload"]:
            break
    said = {"jsonrpc": "2.0", "id": asked["payload"]["id"], **(body or {"result": {"content": []}})}
    await target.send("mcp", said, to=[asked["from"]], correlation_id=asked["id"])
    return asked


def listed(node: RunningNode, who: Bare, topic: str = "garden") -> dict[str, dict[str, Any]]:
    connection = http.client.HTTPConnection(node.host, node.port, timeout=10)
    connection.request("GET", f"/v0/topics/{topic}/proposals", headers={"authorization": f"Bearer {who.secret}"})
    told = json.loads(connection.getresponse().read())
    connection.close()
    return {one["proposalId"]: one for one in told["proposals"]}


@pytest.mark.req("X-10.2-3", "X-N-1", "X-4.2.1-2", "X-10.2-1", "X-7.1-2")
async def test_a_proposal_is_approved_in_the_inbox_and_sent_as_the_approver(node: RunningNode, person: Person) -> None:
    async with joined(node, "restricted", "full", "restricted") as (agent, robot, bystander):
        proposal = await propose(agent, robot, {**WATER, "reason": "it is dry"})
        waiting = await person.waiting(proposal)
        assert (waiting["kind"], waiting["source"], waiting["status"]) == ("proposal", "rooms", "pending")
        assert (waiting["requested_by"], waiting["agent"], waiting["room"]) == (
            f"room:{agent.name}",
            agent.name,
            "garden",
        )
        assert (waiting["target"], waiting["method"], waiting["params"]) == (robot.name, "tools/call", WATER["params"])
        assert waiting["reason"] == "it is dry" and 290 < waiting["left_s"] <= 300
        assert waiting["tool"] == f"rooms.garden.{robot.name}.water"
        shown = listed(node, bystander)[proposal]
        assert {"proposalId", "proposer", "target", "method", "params", "status", "createdAt", "expiresAt"} <= set(
            shown
        )
        assert shown["status"] == "pending" and shown["params"] == WATER["params"]
        decided = await asyncio.to_thread(person.decide, waiting["id"], "approve")
        assert decided.get("status") in ("used", "done"), decided
        asked = await answer(robot, result={"content": [{"type": "text", "text": "watered"}]})
        assert asked["from"] == "operator:ada" and asked["correlation_id"] == proposal
        assert asked["payload"] == {"jsonrpc": "2.0", "id": asked["payload"]["id"], **WATER}
        for one in (agent, bystander):
            reply = await one.until(kind="mcp", correlation_id=asked["id"])
            assert reply["payload"]["result"]["content"][0]["text"] == "watered"
            told = await one.until(kind="system", event="proposal_fulfilled")
            assert told["correlation_id"] == proposal and told["payload"]["by"] == "operator:ada"
        assert listed(node, agent)[proposal]["status"] == "fulfilled"
        assert listed(node, agent)[proposal]["params"] == WATER["params"]
        assert (await asyncio.to_thread(person.decide, waiting["id"], "approve"))["error"] == "already_claimed"
