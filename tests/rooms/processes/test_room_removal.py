"""A participant that an admin removed stays out, by every way in, until an admin lets it in again (X-5.1-6)."""

import asyncio
import http.client
import json
import signal
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.rooms.mcp_client import Client, client_token
from tests.rooms.mcp_participant import serving
from tests.rooms.participant import Bare, ask, joined, names, token
from tests.support.node_process import RunningNode, running_node, wait_for
from websockets.exceptions import InvalidStatus

ROOMS = """
[rooms]
presence_grace_s = 0.1

[[room]]
topic = "garden"
members = ["client:agent"]
full = ["client:alice"]
trust_annotations = true

[[room]]
topic = "shed"
interlock_tools = ["any.*"]
presence_grace_s = 60
"""


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNode]:
    with running_node(tmp_path_factory.mktemp("removal"), {}, ROOMS) as started:
        yield started


def admin(node: RunningNode, participant: str, what: str, topic: str = "garden") -> Any:
    return node.admin(f"/admin/participants/{participant}/{what}?topic={topic}", "POST", {})


async def refusal(node: RunningNode, secret: str, **query: str) -> tuple[int, Any]:
    with pytest.raises(InvalidStatus) as refused:
        await Bare.join(node, "garden", secret, **query)
    return refused.value.response.status_code, json.loads(refused.value.response.body)["error"]


@pytest.mark.req("X-5.1-6")
async def test_every_way_in_is_refused_to_who_was_removed_until_an_admin_lets_it_in(node: RunningNode) -> None:
    (gone, _), (other, _) = names("full", "full")
    secret = token(node, gone, privilege="full")
    shed = token(node, gone, "shed")
    envelope = {"id": str(uuid.uuid4()), "kind": "chat", "payload": {"text": "again"}}
    ways = {
        "messages": envelope,
        "proposals/x/fulfil": {},
        "proposals/x/reject": {},
        "proposals/x/withdraw": {},
        **dict.fromkeys(("participants", "history", "proposals", "rate-limit")),
    }

    def answers() -> set[tuple[int, str]]:
        done = set()
        for way, body in ways.items():
            status, told = ask(node, f"/v0/topics/garden/{way}", secret, "GET" if body is None else "POST", body)
            done.add((status, told.get("error")))
        return done

    async with joined(node, (other, "full")) as (witness,):
        leaving = await Bare.join(node, "garden", secret)
        await leaving.next()
        envelope_id = await leaving.say("before")
        await witness.until(id=envelope_id)
        _, ticket = ask(node, "/v0/ws-ticket", secret, "POST", {"topic": "garden"})
        polling = http.client.HTTPConnection(node.host, node.port, timeout=30)
        waits = f"/v0/topics/garden/history?after={envelope_id}&wait_s=20"
        polling.request("GET", waits, headers={"authorization": f"Bearer {secret}"})
        ask(node, "/v0/topics/garden/participants", secret)  # it waits when this is answered
        done = admin(node, gone, "disconnect")
        assert (done["participantId"], done["closedConnections"]) == (gone, 1)
        assert await leaving.closed() == 4403
        later = await witness.say("what it does not hear")
        await witness.until(id=later)
        polled = polling.getresponse()
        assert (polled.status, json.loads(polled.read())["error"]) == (403, "removed")
        polling.close()
        assert answers() == {(403, "removed")}
        assert await refusal(node, secret) == (403, "removed")
        assert ask(node, "/v0/ws-ticket", secret, "POST", {"topic": "garden"})[1]["error"] == "removed"
        ticketed = f"/v0/ws?topic=garden&ticket={ticket['ticket']}"
        assert ask(node, ticketed, secret)[0] == 426  # a ticket is for a WebSocket
        assert await refusal(node, secret, ticket=ticket["ticket"]) == (403, "removed")
        assert await refusal(node, token(node, gone, privilege="full")) == (403, "removed")  # with another token
        assert "interlock rooms demote" in ask(node, "/v0/topics/garden/history", secret)[1]["message"]
        assert ask(node, "/v0/topics/shed/history", shed)[0] == 200  # another room is another matter
        history = ask(node, "/v0/topics/garden/history?limit=10", witness_token(node, other))[1]["history"]
        assert envelope_id in [entry["envelope"]["id"] for entry in history]  # what was said stays said
        assert admin(node, gone, "disconnect")["closedConnections"] == 0  # and may be said twice

    (shown,) = [
        removal
        for removal in node.admin("/admin/rooms/garden/connections")["removed"]
        if removal["participantId"] == gone
    ]
    assert shown["by"] == "local"
    assert f"removed: {gone} (by local" in node.cli("rooms", "show", "garden").stdout
    (listed,) = [
        participant
        for participant in node.admin("/admin/rooms/garden/participants")["participants"]
        if participant["id"] == gone
    ]
    assert (listed["removed_by"], listed["removed_at"]) == ("local", shown["at"])
    assert "rooms demote" in node.cli("explain", "removed").stdout

    for what, privilege in (("demote", "restricted"), ("promote", "full")):
        assert admin(node, gone, what)["newPrivilege"] == privilege
        back = await Bare.join(node, "garden", secret)
        assert (await back.next())["payload"]["participant"]["privilege"] == privilege
        await back.leave()
        assert answers().isdisjoint({(403, "removed")})
        assert admin(node, gone, "disconnect")
        assert answers() == {(403, "removed")}
    recorded = [
        record["method"].removeprefix("rooms/")
        for record in node.admin("/admin/audit?limit=1000")["records"]
        if record.get("participant") == gone
        and record.get("method") in ("rooms/disconnect", "rooms/demote", "rooms/promote")
    ]
    expected = ["disconnect", "disconnect", "demote", "disconnect", "promote", "disconnect"]
    assert recorded in (expected, expected[::-1])


def witness_token(node: RunningNode, name: str) -> str:
    return token(node, f"{name}-reads", privilege="full")


@pytest.mark.req("X-5.1-6", "X-4.4.1-3")
async def test_a_removed_participant_has_left_at_once(node: RunningNode) -> None:
    (gone, _), _ = who = names("full", "full")
    async with joined(node, *who, topic="shed") as (_, witness):
        admin(node, gone, "disconnect", "shed")
        left = await witness.until(kind="presence", event="leave")
        assert left["payload"]["participant"]["id"] == gone
        there = ask(node, "/v0/topics/shed/participants", witness.secret)[1]["participants"]
        assert {participant["id"] for participant in there} == {witness.name, "interlock"}
    (gone, _), _ = who = names("full", "full")
    async with joined(node, *who, topic="shed") as (leaving, witness):
        await leaving.leave()
        wait_for(lambda: gone not in {connection["participantId"] for connection in connections(node, "shed")})
        admin(node, gone, "disconnect", "shed")  # within the grace, which is a minute
        left = await witness.until(kind="presence", event="leave")
        assert left["payload"]["participant"]["id"] == gone


def connections(node: RunningNode, topic: str) -> Any:
    return node.admin(f"/admin/rooms/{topic}/connections")["connections"]


@pytest.mark.req("X-5.1-6")
async def test_only_a_decision_without_an_end_lets_in_again(node: RunningNode) -> None:
    ((gone, _),) = who = names("full")
    async with joined(node, *who) as (there,):
        admin(node, gone, "disconnect")
        assert await there.closed() == 4403
    until = (datetime.now(UTC) + timedelta(seconds=60)).isoformat()
    for terms in ({"until": until}, {"scope": "connection"}):
        for what in ("promote", "demote"):
            path = f"/admin/participants/{gone}/{what}?topic=garden"
            assert node.admin(path, "POST", terms)["error"] == "removed", (what, terms)
    assert await refusal(node, token(node, gone, privilege="full")) == (403, "removed")


def waiting_of(node: RunningNode, proposer: str) -> Any:
    """The approval of a proposal that waits."""
    listed = node.admin("/approvals?kind=proposal&status=pending")["approvals"]
    whole = [node.admin(f"/approvals/{item['id']}") for item in listed]
    return next((item["id"] for item in whole if item["agent"] == proposer), None)


@pytest.mark.req("X-5.1-6", "X-10.1-4")
async def test_a_client_that_was_removed_has_nothing_of_the_room(node: RunningNode) -> None:
    agent = Client(node, "agent")

    async def tool(name: str, **more: Any) -> Any:
        return (await agent.call(f"rooms.{name}", **({} if name == "list" else {"topic": "garden"}), **more))["result"]

    async with serving(node, "robot-" + uuid.uuid4().hex[:8]) as robot:
        of_robot = f"rooms.garden.{robot.id}.echo"
        await agent.until_listed(of_robot)
        cursor = (await tool("join"))["structuredContent"]["cursor"]
        reading = asyncio.create_task(tool("read", cursor=cursor, wait_s=20))
        done = await asyncio.to_thread(admin, node, "client:agent", "disconnect")
        assert done["by"] == "local"
        await robot.bare.say("what it does not hear")
        assert (await reading)["structuredContent"]["error"] == "removed"
        await asyncio.to_thread(admin, node, "client:agent", "demote")
        proposing = asyncio.create_task(tool("propose", to=robot.id, tool="echo", wait_s=20))
        proposal = await asyncio.to_thread(wait_for, lambda: waiting_of(node, "client:agent"))
        await asyncio.to_thread(admin, node, "client:agent", "disconnect")
        await asyncio.to_thread(node.admin, f"/approvals/{proposal}", "POST", {"decision": "deny"})
        assert (await proposing)["structuredContent"]["error"] == "removed"  # and not what became of it
        for name, more in (
            ("join", {}),
            ("read", {}),
            ("participants", {}),
            ("leave", {}),
            ("say", {"text": "x"}),
            ("propose", {"to": robot.id, "tool": "x"}),
            ("fulfil", {"proposal_id": "x"}),
            ("reject", {"proposal_id": "x"}),
            ("withdraw", {"proposal_id": "x"}),
        ):
            refused = await tool(name, **more)
            assert (refused["isError"], refused["structuredContent"]["error"]) == (True, "removed"), name
        assert (await tool("list"))["structuredContent"]["rooms"] == []
        listed = await agent.tools()
        assert listed and of_robot not in listed
        assert (await agent.call(of_robot))["error"]["code"] == -32601
        assert await refusal(node, client_token(node, "agent")) == (403, "removed")
        await asyncio.to_thread(admin, node, "client:agent", "demote")
        assert (await tool("join"))["structuredContent"]["you"] == {"id": "client:agent", "privilege": "restricted"}
        await agent.until_listed(of_robot)
        await tool("leave")
    agent.wire.close()


@pytest.mark.req("X-5.1-6")
async def test_a_removal_is_on_disk_before_it_is_answered(tmp_path: Path) -> None:
    with running_node(tmp_path, {}, ROOMS) as node:
        secret = token(node, "planner", privilege="full")
        there = await Bare.join(node, "garden", secret)
        await there.next()
        admin(node, "planner", "disconnect")
        node.process.send_signal(signal.SIGKILL)
        node.process.wait()
        await there.leave()
    with running_node(tmp_path, {}, ROOMS) as node:
        assert await refusal(node, secret) == (403, "removed")
        assert admin(node, "planner", "promote")["newPrivilege"] == "full"
        back = await Bare.join(node, "garden", secret)
        assert (await back.next())["payload"]["participant"] == {"id": "planner", "privilege": "full"}
        await back.leave()


async def test_unknown_participants_and_the_node_itself_are_not_removed(node: RunningNode) -> None:
    assert admin(node, "nobody", "disconnect")["error"] == "not_found"
    assert admin(node, "interlock", "disconnect", "shed")["error"] == "not_found"
    assert "interlock" in [
        participant["id"] for participant in node.admin("/admin/rooms/shed/participants")["participants"]
    ]
