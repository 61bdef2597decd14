"""One room on two replicas of a node: one order, one list of participants, one set of privileges (X-10.1-2)."""

import asyncio
import contextlib
import signal
import uuid
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from tests.gate.held_calls import ANCHORED
from tests.rooms.participant import Bare, ask, token
from tests.rooms.processes.test_room_proposals import Person, answer, post, propose
from tests.support.node_process import RunningNode, wait_for
from tests.support.replicas import Replicas, running_replicas

pytestmark = [pytest.mark.timeout(120)]

ROOMS = """
[rooms]
presence_grace_s = 0.2
per_min = { proposals = 4, chat = 600, envelopes = 2000 }

[[room]]
topic = "garden"

[[room]]
topic = "shed"
"""
EACH = 60


@pytest.fixture(scope="module")
def replicas(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Replicas]:
    with running_replicas(tmp_path_factory.mktemp("replicas"), extra=ANCHORED + ROOMS) as running:
        yield running


@contextlib.asynccontextmanager
async def present(*places: tuple[RunningNode, str], topic: str = "garden", **query: str) -> AsyncIterator[list[Bare]]:
    """Participants of these privileges, each at its replica, who have all heard of each other."""
    async with contextlib.AsyncExitStack() as stack:
        there: list[Bare] = []
        for number, (node, privilege) in enumerate(places):
            name = f"{privilege}{number}-{uuid.uuid4().hex[:8]}"
            secret = token(places[0][0], name, topic, privilege)
            await knows(node, topic, secret)
            participant = await Bare.join(node, topic, secret, **query)
            participant.secret, participant.name = secret, name
            stack.push_async_callback(participant.leave)
            assert (await participant.next())["payload"]["event"] == "welcome"
            for earlier in there:
                await seen(earlier, "join", name)
            there.append(participant)
        yield there


async def seen(one: Bare, event: str, name: str) -> None:
    while (await one.until(kind="presence", event=event))["payload"]["participant"]["id"] != name:
        pass


async def knows(node: RunningNode, topic: str, secret: str) -> None:
    """A token of one replica opens the other a moment later."""
    await asyncio.to_thread(wait_for, lambda: ask(node, f"/v0/topics/{topic}/participants", secret)[0] == 200)


async def heard_chat(one: Bare, count: int) -> list[str]:
    return [(await one.until(kind="chat"))["id"] for _ in range(count)]


@pytest.mark.req("X-10.1-2", "X-1-3")
async def test_participants_on_two_replicas_receive_one_order(replicas: Replicas) -> None:
    async with present((replicas.one, "full"), (replicas.other, "full")) as (here, there):

        async def talk(one: Bare) -> None:
            for number in range(EACH):
                await one.say(f"{number}")

        hearing = [asyncio.create_task(heard_chat(entry, 2 * EACH)) for entry in (here, there)]
        await asyncio.gather(talk(here), talk(there))
        first, second = await asyncio.gather(*hearing)
        assert first == second
        assert len(set(first)) == 2 * EACH
        for node, who in ((replicas.one, here), (replicas.other, there)):
            _, told = ask(node, f"/v0/topics/garden/history?limit={2 * EACH}", who.secret)
            entries = [entry["envelope"] for entry in reversed(told["history"])]
            assert [entry["id"] for entry in entries if entry["kind"] == "chat"] == first


@pytest.mark.req("X-10.1-2")
async def test_participants_at_another_replica_are_seen_to_join_and_leave(replicas: Replicas) -> None:
    async with present((replicas.one, "full")) as (here,):
        name = f"guest-{uuid.uuid4().hex[:8]}"
        secret = token(replicas.one, name)
        await knows(replicas.other, "garden", secret)
        guest = await Bare.join(replicas.other, "garden", secret)
        welcome = (await guest.next())["payload"]
        assert here.name in [participant["id"] for participant in welcome["participants"]]
        await seen(here, "join", name)
        for node in (replicas.one, replicas.other):
            _, told = ask(node, "/v0/topics/garden/participants", here.secret)
            assert {here.name, name} <= {participant["id"] for participant in told["participants"]}
            held = node.admin("/admin/rooms/garden/connections")["connections"]
            result = {
                entry["participantId"]: (entry["isElsewhere"], entry["source"], entry["protocol"]) for entry in held
            }
            assert result[name] == (node is replicas.one, "token", "mcpx/v0.1")
            assert result[here.name] == (node is replicas.other, "token", "mcpx/v0.1")
        assert "elsewhere" in replicas.one.cli("rooms", "show", "garden").stdout
        await guest.leave()
        await seen(here, "leave", name)


@pytest.mark.req("X-10.1-2", "X-5.1-6", "X-3.2-1")
async def test_a_privilege_that_one_replica_changes_holds_at_the_other(replicas: Replicas) -> None:
    async with present((replicas.one, "full"), (replicas.other, "full")) as (here, there):
        call = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
        await there.send("mcp", call, to=[here.name])
        await here.until(kind="mcp")
        replicas.one.admin(f"/admin/participants/{there.name}/demote?topic=garden", "POST", {})
        async with asyncio.timeout(1.0):
            changed = await there.until(event="privilege_changed")
        assert changed["payload"]["newPrivilege"] == "restricted"
        refused_id = await there.send("mcp", call, to=[here.name])
        refused = await there.until(correlation_id=refused_id)
        assert refused["payload"]["error"]["code"] == -32001
        body = {"protocol": "mcpx/v0.1", "id": str(uuid.uuid4()), "kind": "mcp", "payload": call, "to": [here.name]}
        for node in (replicas.one, replicas.other):
            status, said = ask(node, "/v0/topics/garden/messages", there.secret, "POST", body)
            assert (status, said["error"]["code"]) == (403, -32001)
        replicas.other.admin(f"/admin/participants/{there.name}/promote?topic=garden", "POST", {})
        await here.until(event="privilege_changed")
        await there.send("mcp", call, to=[here.name])
        await here.until(kind="mcp")


@pytest.mark.req("X-10.1-2")
async def test_a_privilege_for_the_connection_alone_reaches_the_replica_that_holds_it(replicas: Replicas) -> None:
    async with present((replicas.one, "restricted"), (replicas.other, "restricted")) as (here, there):
        terms = {"scope": "connection"}
        replicas.one.admin(f"/admin/participants/{there.name}/promote?topic=garden", "POST", terms)
        assert (await there.until(event="privilege_changed"))["payload"]["newPrivilege"] == "full"
        await there.send("mcp", {"jsonrpc": "2.0", "id": 1, "method": "ping"}, to=[here.name])
        await here.until(kind="mcp")


@pytest.mark.req("X-4-4", "X-10.1-2")
async def test_an_id_is_published_once_whichever_replica_it_comes_to(replicas: Replicas) -> None:
    async with present((replicas.one, "full"), (replicas.other, "full")) as (here, there):
        id = await here.say("first")
        assert (await there.until(kind="chat"))["id"] == id
        await there.say("another", id=id)
        refused = await there.until(correlation_id=id, event="error")
        assert (refused["payload"]["code"], refused["payload"]["details"]) == ("duplicate_id", {"identical": False})
        # The same at the same moment: one of the two is published, to both.
        for number in range(10):
            id = str(uuid.uuid4())
            await asyncio.gather(here.say(f"a {number}", id=id), there.say(f"b {number}", id=id))
            first, second = await asyncio.gather(here.until(kind="chat", id=id), there.until(kind="chat", id=id))
            assert first["payload"] == second["payload"]
        await here.say("end")
        for entry in (here, there):
            while (await entry.until(kind="chat"))["payload"]["text"] != "end":
                pass
        ids = [envelope["id"] for envelope in here.heard if envelope["kind"] == "chat"]
        assert len(ids) == len(set(ids))


@pytest.mark.req("X-7.3-3", "X-10.1-2")
async def test_rates_hold_over_replicas(replicas: Replicas) -> None:
    async with present((replicas.one, "restricted"), (replicas.other, "full"), topic="shed") as (agent, robot):
        for _ in range(2):
            id = await propose(agent, robot)
            await robot.until(kind="mcp/proposal", id=id)
        body = {"method": "tools/call", "params": {"name": "water"}}
        for _ in range(2):
            envelope = _envelope(body, robot.name)
            assert ask(replicas.other, "/v0/topics/shed/messages", agent.secret, "POST", envelope)[0] == 202
            await agent.until(kind="mcp/proposal", id=envelope["id"])
        status, said = ask(
            replicas.other, "/v0/topics/shed/messages", agent.secret, "POST", _envelope(body, robot.name)
        )
        assert (status, said["error"]) == (429, "rate_limited")
        refused_id = await propose(agent, robot)
        refused = await agent.until(correlation_id=refused_id)
        assert refused["payload"]["code"] == "rate_limited"


def _envelope(payload: Any, to: str) -> dict[str, Any]:
    id = str(uuid.uuid4())
    return {"protocol": "mcpx/v0.1", "id": id, "kind": "mcp/proposal", "payload": payload, "to": [to]}


@pytest.mark.req("X-10.1-2", "X-9.1-1", "X-10.2-3")
async def test_a_proposal_is_approved_at_another_replica_than_where_it_was_made(replicas: Replicas) -> None:
    async with present((replicas.one, "restricted"), (replicas.one, "full")) as (agent, robot):
        id = await propose(agent, robot)
        person = Person(replicas.other)
        waits = await person.waiting(id)
        deciding = asyncio.create_task(asyncio.to_thread(person.decide, waits["id"], "approve"))
        reply = await answer(robot)
        assert reply["payload"]["params"]["arguments"] == {"litres": 2, "bed": "roses"}
        assert (await deciding)["status"] in ("used", "done")
        ended = await agent.until(event="proposal_fulfilled")
        assert ended["payload"]["proposalId"] == id
        envelopes = [
            envelope["payload"]["event"] for envelope in agent.heard if envelope["payload"].get("proposalId") == id
        ]
        assert sorted(envelopes) == ["proposal_claimed", "proposal_fulfilled"]  # each told once, by one replica
        for node in (replicas.one, replicas.other):
            shown = await Person(node).waiting(id, "done")
            assert shown["id"] == waits["id"]


@pytest.mark.req("X-4.2.1-5", "X-10.1-2")
async def test_two_who_decide_at_two_replicas_send_one_request(replicas: Replicas) -> None:
    places = ((replicas.one, "restricted"), (replicas.one, "full"), (replicas.one, "full"), (replicas.other, "full"))
    async with present(*places) as (agent, robot, first, second):
        for _ in range(2):
            id = await propose(agent, robot)
            for node in (replicas.one, replicas.other):
                await Person(node).waiting(id)
            both = await asyncio.gather(
                asyncio.to_thread(post, replicas.one, first, f"proposals/{id}/fulfil"),
                asyncio.to_thread(post, replicas.other, second, f"proposals/{id}/fulfil"),
            )
            statuses = sorted(status for status, _ in both)
            refused = next(said for status, said in both if status != 200)
            assert (statuses[0], refused["error"]) == (200, "already_claimed")
            await answer(robot)
            await agent.until(event="proposal_fulfilled")
        requests = [
            envelope for envelope in robot.heard if envelope["kind"] == "mcp" and "method" in envelope["payload"]
        ]
        assert len(requests) == 2


@pytest.mark.req("X-10.1-2", "X-4.4.1-5")
async def test_a_participant_has_one_connection_over_all_replicas(replicas: Replicas) -> None:
    async with present((replicas.one, "full"), (replicas.other, "full")) as (here, there):
        again = await Bare.join(replicas.other, "garden", here.secret)
        assert (await again.next())["payload"]["event"] == "welcome"
        assert await here.closed() == 4409
        await again.say("I am here now")
        assert (await there.until(kind="chat"))["from"] == here.name
        await again.leave()
        left = [
            envelope["payload"]["participant"]["id"]
            for envelope in there.heard
            if envelope["payload"].get("event") == "leave"
        ]
        assert here.name not in left


@pytest.mark.req("X-10.1-2", "X-5.1-6")
async def test_a_removal_at_one_replica_closes_connections_at_the_other(replicas: Replicas) -> None:
    async with present((replicas.one, "full"), (replicas.other, "full"), (replicas.other, "full")) as (_, there, third):
        reply = replicas.one.admin(f"/admin/participants/{there.name}/disconnect?topic=garden", "POST", {})
        assert reply["closedConnections"] == 1
        assert await there.closed() == 4403
        history = "/v0/topics/garden/history"
        for node in (replicas.one, replicas.other):
            status, said = ask(node, history, there.secret)
            assert (status, said["error"]) == (403, "removed")
            shown = node.admin("/admin/rooms/garden/connections")["removed"]
            assert there.name in [item["participantId"] for item in shown]
        replicas.other.admin(f"/admin/participants/{there.name}/demote?topic=garden", "POST", {})
        await asyncio.to_thread(wait_for, lambda: ask(replicas.one, history, there.secret)[0] == 200)
        assert ask(replicas.other, history, there.secret)[0] == 200
        replicas.one.admin(f"/admin/tokens/{third.name}", "DELETE")
        assert await third.closed() == 4401
        status, _ = ask(replicas.other, "/v0/topics/garden/participants", third.secret)
        assert status == 401


@pytest.mark.req("X-10.1-2")
async def test_a_room_that_one_replica_makes_is_at_the_other(replicas: Replicas) -> None:
    topic = f"made-{uuid.uuid4().hex[:8]}"
    replicas.one.admin("/admin/rooms", "POST", {"topic": topic})
    async with present((replicas.one, "full"), (replicas.other, "full"), topic=topic) as (here, there):
        id = await here.say("hello")
        assert (await there.until(kind="chat"))["id"] == id


@pytest.mark.req("X-10.1-2")
async def test_without_the_store_nothing_is_sent_and_nothing_is_lost(tmp_path: Any) -> None:
    with running_replicas(tmp_path, extra=ROOMS) as running:
        async with present((running.one, "full"), (running.other, "full")) as (here, there):
            first = await here.say("before")
            assert (await there.until(kind="chat"))["id"] == first
            running.server.kill()
            for entry in (here, there):
                lost = await entry.say("while it is away")
                refused = await entry.until(correlation_id=lost)
                assert refused["payload"]["code"] == "unavailable"
            running.server.start()

            async def until_taken(one: Bare) -> str:
                while True:
                    id = await one.say("after")
                    reply = await one.until_either(id)
                    if reply["kind"] == "chat":
                        return id

            second = await until_taken(here)
            third = await until_taken(there)
            for entry in (here, there):
                while third not in [envelope["id"] for envelope in entry.heard]:
                    await entry.next()
                texts = [envelope["payload"]["text"] for envelope in entry.heard if envelope["kind"] == "chat"]
                assert "while it is away" not in texts
                ids = [envelope["id"] for envelope in entry.heard if envelope["kind"] == "chat"]
                assert [id for id in ids if id in (first, second, third)] == [first, second, third]
            for node, who in ((running.one, here), (running.other, there)):
                _, told = ask(node, "/v0/topics/garden/history?limit=10", who.secret)
                assert [current_entry["envelope"]["id"] for current_entry in reversed(told["history"])] == [
                    first,
                    second,
                    third,
                ]


@pytest.mark.req("X-10.1-2")
async def test_participants_of_a_killed_replica_leave_and_return_to_the_other(tmp_path: Any) -> None:
    with running_replicas(tmp_path, extra=ROOMS) as running:
        async with present((running.one, "full"), (running.other, "full")) as (here, there):
            sent = [await there.say(f"{number}") for number in range(20)]
            heard = await heard_chat(here, 1)
            running.other.process.send_signal(signal.SIGKILL)
            running.other.process.wait()
            await seen(here, "leave", there.name)
            heard += [
                envelope["id"] for envelope in here.heard if envelope["kind"] == "chat" and envelope["id"] not in heard
            ]
            assert heard == sent[: len(heard)]
            back = await Bare.join(running.one, "garden", there.secret, after="0")
            entries: list[str] = []
            while len(entries) < len(heard):
                payload = (await back.next())["payload"]
                entries += [entry["id"] for entry in payload.get("envelopes", ())]
            assert entries[: len(heard)] == heard
            await back.say("once more")
            await here.until(kind="chat")
            await back.leave()
