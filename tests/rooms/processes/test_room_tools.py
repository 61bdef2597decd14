"""The tools `rooms.*`: an unmodified MCP client of either era takes part in rooms (X-10.1-4, X-9.1-1)."""

import asyncio
import functools
import json
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from tests.rooms.mcp_client import client_token
from tests.rooms.mcp_participant import happened, serving
from tests.rooms.participant import Bare, token
from tests.support.node_process import RunningNode, Wire, running_node
from tests.support.peers import HttpPeer

ROOMS = """
[rooms]
presence_grace_s = 0.1
per_min = { proposals = 100, chat = 60, envelopes = 2000 }

[[room]]
topic = "garden"
members = ["client:agent"]
full = ["client:alice"]
secret_patterns = ["ACME-*"]

[[room]]
topic = "hidden"
full = ["client:alice"]

[[room]]
topic = "small"
full = ["client:alice"]
max_participants = 1

[[room]]
topic = "forgetful"
full = ["client:alice"]
history_visibility = "none"
presence_grace_s = 0
"""
NAMES = ["fulfil", "join", "leave", "list", "participants", "propose", "read", "reject", "say", "withdraw"]


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNode]:
    with running_node(tmp_path_factory.mktemp("tools"), {}, ROOMS) as started:
        yield started


def test_a_client_without_access_learns_that_the_tool_exists_for_others(node: RunningNode) -> None:
    for name, said in (("rooms.list", "rooms.list is not shown to this client"), ("rooms.no", "no tool rooms.no")):
        done = node.cli("tools", "call", name)
        assert (done.returncode, said in done.stderr) == (1, True), done.stderr
    assert "--token" in node.cli("tools", "call", "rooms.list").stderr


class Member:
    """A client that calls room tools, in one era or on the AQL surface."""

    def __init__(self, node: RunningNode, name: str, era: str) -> None:
        self.era = era
        self.wire = Wire(node, "/mcp/aql-single" if era == "aql" else "/mcp", client_token(node, name))
        if era == "legacy":
            self.wire.initialize()

    async def ask(self, method: str, params: dict[str, Any]) -> Any:
        ask = self.wire.legacy if self.era == "legacy" else self.wire.modern
        return (await asyncio.to_thread(ask, method, params)).message

    async def tool(self, name: str, **arguments: Any) -> Any:
        """The content of a call that is no error."""
        result = await self._call(name, arguments)
        assert result.get("isError") in (None, False), result
        return result["structuredContent"]

    async def refused(self, name: str, **arguments: Any) -> str:
        result = await self._call(name, arguments)
        assert result["isError"] is True, result
        return str(result["structuredContent"]["error"])

    async def _call(self, name: str, arguments: dict[str, Any]) -> Any:
        if self.era != "aql":
            return (await self.ask("tools/call", {"name": f"rooms__{name}", "arguments": arguments}))["result"]
        request = {"operation": f"rooms__{name}", "params": arguments}
        answer = (await self.ask("tools/call", {"name": "mcp_aql", "arguments": request}))["result"]
        body = json.loads(answer["content"][0]["text"])
        return {"structuredContent": body["data"], "isError": not body["success"]}


@functools.cache
def the_one_in_small(node: RunningNode) -> str:
    return token(node, "the-one", "small")


@pytest.fixture(params=["modern", "legacy"])
def members(node: RunningNode, request: pytest.FixtureRequest) -> Iterator[tuple[Member, Member]]:
    alice, agent = Member(node, "alice", request.param), Member(node, "agent", request.param)
    yield alice, agent
    alice.wire.close()
    agent.wire.close()


@pytest.mark.req("X-10.1-4")
async def test_a_client_joins_reads_says_and_leaves(node: RunningNode, members: tuple[Member, Member]) -> None:
    alice, agent = members
    bare = await Bare.join(node, "garden", token(node, f"w-{uuid.uuid4().hex[:8]}"))
    await bare.next()
    rooms = {room["topic"]: room for room in (await agent.tool("list"))["rooms"]}
    assert list(rooms) == ["garden"] and rooms["garden"]["you"] == {"id": "client:agent", "privilege": "restricted"}
    joined = await agent.tool("join", topic="garden")
    assert joined["you"]["privilege"] == "restricted"
    assert (await bare.until(kind="presence", event="join"))["payload"]["participant"]["id"] == "client:agent"
    await agent.tool("join", topic="garden")  # renews
    reply = await alice.tool("say", topic="garden", text="hello", to=["client:agent", "nobody"])
    assert reply["absent"] == ["nobody"]
    heard = await bare.until(kind="chat")
    assert (heard["from"], heard["payload"]) == ("client:alice", {"text": "hello"})
    read = await agent.tool("read", topic="garden", cursor=joined["cursor"])
    assert [message["envelope"]["payload"] for message in read["messages"]] == [{"text": "hello"}]
    waiting = asyncio.create_task(agent.tool("read", topic="garden", cursor=read["cursor"], wait_s=20))
    await asyncio.sleep(0.05)
    await bare.say("soon")
    assert [message["envelope"]["payload"] for message in (await waiting)["messages"]] == [{"text": "soon"}]
    newest = await agent.tool("read", topic="garden", limit=1)
    assert [message["envelope"]["payload"]["text"] for message in newest["messages"]] == ["soon"]
    there = {participant["id"] for participant in (await agent.tool("participants", topic="garden"))["participants"]}
    assert "client:agent" in there and "client:alice" not in there
    assert (await agent.tool("leave", topic="garden"))["left"] is True
    while (await bare.until(kind="presence", event="leave"))["payload"]["participant"]["id"] != "client:agent":
        pass
    assert not [
        envelope for envelope in bare.heard if envelope["kind"] == "mcp"
    ]  # a lease hears nothing: it is not asked for tools
    await bare.leave()


@pytest.mark.req("X-9.1-1", "X-10.1-4", "X-10.2-1", "X-3.2-1", "X-4.2.1-3", "X-4.2.1-6")
async def test_a_restricted_client_proposes_and_a_full_client_carries_it_out(
    node: RunningNode, members: tuple[Member, Member]
) -> None:
    alice, agent = members
    id = f"p-{uuid.uuid4().hex[:8]}"
    async with serving(node, id) as robot:
        proposed = await agent.tool("propose", topic="garden", to=id, tool="echo", arguments={"n": 1}, reason="dry")
        assert proposed["status"] == "pending"
        request = {"topic": "garden", "proposal_id": proposed["proposalId"]}
        shown = (await alice.tool("read", topic="garden"))["proposals"]
        (mine,) = [item for item in shown if item["proposalId"] == proposed["proposalId"]]
        assert {"proposer", "target", "method", "params", "status", "createdAt", "expiresAt"} <= mine.keys()
        assert await agent.refused("fulfil", **request) == "privilege_violation"
        assert await agent.refused("reject", **request) == "privilege_violation"
        assert await alice.refused("withdraw", **request) == "not_proposer"
        assert not robot.was_called()
        done = await alice.tool("fulfil", **request)
        assert done["status"] == "fulfilled" and done["answer"]["result"]["content"][0]["text"] == "{'n': 1}"
        assert robot.requests[-1]["from"] == "client:alice"
        assert robot.requests[-1]["correlation_id"] == proposed["proposalId"]
        assert await alice.refused("fulfil", **request) == "already_claimed"
        waiting = asyncio.create_task(
            agent.tool("propose", topic="garden", to=id, tool="echo", arguments={"n": 2}, wait_s=20)
        )
        await happened(lambda: any(envelope["kind"] == "mcp/proposal" for envelope in robot.bare.heard[-2:]))
        second = next(envelope["id"] for envelope in reversed(robot.bare.heard) if envelope["kind"] == "mcp/proposal")
        await alice.tool("fulfil", topic="garden", proposal_id=second)
        assert (await waiting)["status"] == "fulfilled"
        third = await agent.tool("propose", topic="garden", to=id, tool="echo")
        assert (await agent.tool("withdraw", topic="garden", proposal_id=third["proposalId"]))["status"] == "withdrawn"
        fourth = await agent.tool("propose", topic="garden", to=id, tool="echo")
        rejected = await alice.tool("reject", topic="garden", proposal_id=fourth["proposalId"], reason="unsafe")
        assert rejected["status"] == "rejected"


@pytest.mark.req("X-7.2-1")
async def test_a_proposer_is_warned_of_secrets_before_everyone_sees_them(
    node: RunningNode, members: tuple[Member, Member]
) -> None:
    _, agent = members
    bare = await Bare.join(node, "garden", token(node, f"w-{uuid.uuid4().hex[:8]}"))
    request: dict[str, Any] = {"topic": "garden", "to": "sensors", "tool": "log_in"}
    for arguments in (
        {"user": "ann", "note": "my key is ACME-4711, keep it"},  # secret_patterns
        {"steps": [{"password": "correct horse"}]},
        {"text": "use ghp_" + "a1B2" * 9},
    ):
        assert await agent.refused("propose", **request, arguments=arguments) == "secret_found"
    assert await agent.refused("propose", **request, reason="with ACME-4711") == "secret_found"
    shown = await agent._call("propose", {**request, "arguments": {"steps": [{"password": "correct horse"}]}})
    assert shown["structuredContent"]["details"] == {"at": ["/arguments/steps/0/password"]}
    assert "correct horse" not in json.dumps(shown)
    reply = await agent.tool("propose", **request, arguments={"password": "public"}, despite_secrets=True)
    heard = await bare.until(kind="mcp/proposal")  # the first that anyone hears of
    assert heard["id"] == reply["proposalId"]
    await agent.tool("withdraw", topic="garden", proposal_id=reply["proposalId"])
    listed = (await agent.ask("tools/list", {}))["result"]["tools"]
    (propose,) = [item for item in listed if item["name"] == "rooms__propose"]
    assert "sees it while it waits, arguments included" in propose["description"]
    await bare.leave()


@pytest.mark.req("X-2.2-3", "X-4.1-3")
async def test_forbidden_and_invalid_calls_have_named_errors(node: RunningNode, members: tuple[Member, Member]) -> None:
    alice, agent = members
    for wrong in ({}, {"topic": 3}, {"topic": "garden", "more": 1}, {"topic": "x" * 200}):
        assert await agent.refused("join", **wrong) == "input_invalid"
    assert await agent.refused("read", topic="garden", wait_s=26) == "input_invalid"
    assert await agent.refused("read", topic="garden", cursor=10**15) == "history_gap"
    assert await agent.refused("propose", topic="garden", to=["a", "b"], tool="x") == "input_invalid"
    assert await agent.refused("say", topic="garden", text="x" * 70_000) == "invalid_chat"
    assert await agent.refused("propose", topic="garden", to="a", tool="x" * 1_100_000) == "envelope_too_large"
    assert await agent.refused("fulfil", topic="garden", proposal_id="never") in ("unknown_proposal",)
    for topic in ("hidden", "nowhere"):
        for name in ("join", "leave", "participants", "read"):
            assert await agent.refused(name, topic=topic) == "unknown_topic"
        assert await agent.refused("say", topic=topic, text="x") == "unknown_topic"
    other = await Bare.join(node, "small", the_one_in_small(node))
    await other.next()
    assert await alice.refused("join", topic="small") == "room_full"
    await other.leave()
    await alice.tool("leave", topic="forgetful")
    assert (await alice.tool("read", topic="forgetful"))["messages"] == []
    await alice.tool("say", topic="forgetful", text="before")
    joined = await alice.tool("join", topic="forgetful")
    assert (await alice.tool("read", topic="forgetful"))["messages"] == []
    await alice.tool("say", topic="forgetful", text="x")
    for cursor in ({}, {"cursor": joined["cursor"]}):
        read = await alice.tool("read", topic="forgetful", **cursor)
        assert [message["envelope"]["payload"]["text"] for message in read["messages"]] == ["x"]
    for earlier in range(joined["cursor"]):
        assert await alice.refused("read", topic="forgetful", cursor=earlier) == "history_gap"
    await alice.tool("leave", topic="forgetful")
    assert await alice.refused("read", topic="forgetful", cursor=read["cursor"] - 1) == "history_gap"


async def test_room_tools_are_listed_only_to_clients_that_may_join_a_room(node: RunningNode) -> None:
    for name, expected in (("agent", NAMES), ("stranger", [])):
        with Wire(node, "/mcp?names=qualified", client_token(node, name)) as wire:
            listed = wire.modern("tools/list").message["result"]["tools"]
            of_rooms = [tool["name"] for tool in listed if tool["name"].startswith("rooms.")]
            if expected:  # those who left a moment ago may still have tools, which have longer names
                of_rooms = [tool for tool in of_rooms if tool.count(".") == 1]
            assert of_rooms == [f"rooms.{each}" for each in expected]
            called = wire.modern("tools/call", {"name": "rooms.list", "arguments": {}}).message
            assert ("error" in called) is (name == "stranger")


UPDATED = "notifications/resources/updated"


@pytest.mark.req("X-10.1-4")
@pytest.mark.parametrize("era", ["modern", "legacy"])
async def test_a_room_is_a_resource_to_read_and_subscribe_to(node: RunningNode, era: str) -> None:
    meet = HttpPeer.modern_ if era == "modern" else HttpPeer.legacy
    bare = await Bare.join(node, "garden", token(node, "gardener"))
    await bare.next()
    async with (
        await meet(f"{node.url}/mcp", token=client_token(node, "agent")) as agent,
        await meet(f"{node.url}/mcp", token=client_token(node, "stranger")) as stranger,
    ):
        listed = (await agent.request("resources/list")).result["resources"]
        assert [item["uri"] for item in listed] == ["room://garden"]  # and not hidden, small and forgetful
        assert (await stranger.request("resources/list")).result["resources"] == []
        for uri, peer in (("room://garden", stranger), ("room://hidden", agent), ("room://nowhere", agent)):
            assert "error" in (await peer.request("resources/read", {"uri": uri})).text
        if era == "modern":
            agent.begin("subscriptions/listen", {"notifications": {"resourceSubscriptions": ["room://garden"]}})
            honoured = await agent.hear("notifications/subscriptions/acknowledged")
            assert honoured["params"]["notifications"] == {"resourceSubscriptions": ["room://garden"]}
            stranger.begin("subscriptions/listen", {"notifications": {"resourceSubscriptions": ["room://garden"]}})
            refused = await stranger.hear("notifications/subscriptions/acknowledged")
            assert refused["params"]["notifications"] == {}
        else:
            await agent.listen()
            assert (await agent.request("resources/subscribe", {"uri": "room://garden"})).result == {}
            assert "error" in (await stranger.request("resources/subscribe", {"uri": "room://garden"})).text
        envelope_id = await bare.say("the tank is empty")
        assert (await agent.hear(UPDATED))["params"]["uri"] == "room://garden"
        (content,) = (await agent.request("resources/read", {"uri": "room://garden"})).result["contents"]
        body = json.loads(content["text"])
        assert (content["uri"], content["mimeType"], body["topic"]) == ("room://garden", "application/json", "garden")
        assert body["messages"][-1]["envelope"]["id"] == envelope_id
        assert "gardener" in [participant["id"] for participant in body["participants"]]
        assert {"cursor", "more", "proposals"} <= body.keys()
        for number in range(5):
            last = await bare.say(f"again {number}")
        await bare.until(id=last)
        await agent.hear(UPDATED)  # what came within the pause is told after it, at once
        assert agent.heard(UPDATED) == []
    await bare.leave()


async def test_room_tools_are_operations_of_the_aql_surface(node: RunningNode) -> None:
    alice = Member(node, "alice", "aql")
    assert {room["topic"] for room in (await alice.tool("list"))["rooms"]} >= {"garden", "hidden"}
    reply = await alice.tool("say", topic="hidden", text="through AQL")
    read = await alice.tool("read", topic="hidden", cursor=reply["cursor"] - 1)
    assert read["messages"][0]["envelope"]["payload"] == {"text": "through AQL"}
    alice.wire.close()
