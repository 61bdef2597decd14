"""What holds for every message of a room, whichever way it comes and whatever it holds (MCPx 3.1, 3.2, 4.1, 4.4.2)."""

import ast
import asyncio
import hashlib
import inspect
import json
import urllib.request
import uuid
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from tests.rooms.participant import CALL, Bare, ask, joined, names, token
from tests.support.node_process import RunningNode, running_node, wait_for
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

import interlock
from interlock.rooms.room import Room

ROOMS = """
[rooms]
presence_grace_s = 0.1

[[room]]
topic = "garden"

[[room]]
topic = "kinds"
extra_kinds = { "note/pinned" = "full", "note/plain" = "restricted" }
"""
DIGITS = "7" * 5000


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNode]:
    with running_node(tmp_path_factory.mktemp("every"), {}, ROOMS) as started:
        yield started


def history(node: RunningNode) -> str:
    """As it is written: it holds numbers that are too long for Python."""
    bearer = token(node, "reader", privilege="full")
    reply = urllib.request.Request(
        f"{node.url}/v0/topics/garden/history?limit=500", headers={"authorization": f"Bearer {bearer}"}
    )
    with urllib.request.urlopen(reply, timeout=10) as answer:
        text: str = answer.read().decode()
    assert '"history":[{' in text
    return text


@pytest.mark.req("X-3.1-2", "X-3.2-3", "X-4.1-1", "X-4-2", "X-4-3")
@pytest.mark.parametrize(
    "payload",
    [
        '{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"x","arguments":{}}}',
        '{"jsonrpc":"2.0","id":2,"method":"resources/read","params":{"uri":"file:///x"}}',
        '{"jsonrpc":"2.0","id":3,"method":"initialize","params":{}}',
        '{"jsonrpc":"2.0","id":4,"method":"no/such/method"}',
        '{"jsonrpc":"2.0","method":"notifications/progress","params":{"progress":1.0}}',
        '{"jsonrpc":"2.0","id":5,"result":{"b":1e3,"a":1.50}}',
        '{"jsonrpc":"2.0","id":6,"error":{"code":-1,"message":"no"}}',
        '{"method":"without jsonrpc","id":[]}',
        '{ "b" : 1,\t"a":' + DIGITS + ' , "\\u0061b": "\\u00e9" }',
        "{}",
    ],
)
async def test_mcp_envelopes_of_a_full_participant_are_delivered_and_kept_byte_for_byte(
    node: RunningNode, payload: str
) -> None:
    async with joined(node, *names("full", "restricted")) as (a, b):
        id = f"env-{uuid.uuid4().hex}"
        await a.socket.send(f'{{"protocol":"mcpx/v0.1","id":"{id}","kind":"mcp","payload":{payload}}}')
        while id not in (text := str(await b.socket.recv())):
            pass
        assert text.endswith(f'"payload":{payload}}}')
        assert json.loads(text.replace(DIGITS, "0"))["protocol"] == "mcpx/v0.1"
    late = await Bare.join(node, "garden", token(node, names("full")[0][0]), history="5")
    while id not in (text := str(await late.socket.recv())):
        pass
    assert f'"payload":{payload}}}' in text
    await late.leave()


@pytest.mark.req("X-4-2")
@pytest.mark.parametrize("said", [None, "mcpx/v0.2", "mew/v0.4", "MCPX/v0.1", 7, ""])
async def test_an_envelope_of_another_protocol_is_refused_with_those_that_there_are(
    node: RunningNode, said: Any
) -> None:
    async with joined(node, *names("full")) as (one,):
        id = await one.send("mcp", CALL, protocol=said)
        refused = await one.until(event="error")
        assert (refused["correlation_id"], refused["payload"]["code"]) == (id, "unsupported_protocol")
        assert refused["payload"]["details"] == {"supported": ["mcpx/v0.1", "mcp-x/v0"]}
        assert refused["protocol"] == "mcpx/v0.1"
        secret = token(node, names("full")[0][0], privilege="full")
        body = {"id": uuid.uuid4().hex, "kind": "chat", "payload": {"text": "x"}}
        written = body if said is None else {**body, "protocol": said}
        status, _ = ask(node, "/v0/topics/garden/messages", secret, "POST", written)
        assert status == (202 if said is None else 400)  # by POST the path says it


@pytest.mark.req("X-4.4.2-3", "X-3.1-4", "X-3.2-2", "X-4.2-1")
@pytest.mark.parametrize(
    ("written", "answered"),
    [
        ("45", "45"),
        ('"45"', '"45"'),
        ("-7", "-7"),
        ("12345678901234567890123", "12345678901234567890123"),
        ("null", "null"),
        ("true", "null"),
        ("[1]", "null"),
        ('{"a":1}', "null"),
        ('"' + "x" * 126 + '"', '"' + "x" * 126 + '"'),
        ('"' + "x" * 127 + '"', "null"),
        ("", "null"),
    ],
)
async def test_a_violation_is_answered_under_the_id_that_it_had(node: RunningNode, written: str, answered: str) -> None:
    async with joined(node, *names("restricted", "full")) as (agent, human):
        id = uuid.uuid4().hex
        message = f'"id":{written},' if written else ""
        payload = f'{{"jsonrpc":"2.0",{message}"method":"tools/call"}}'
        await agent.socket.send(f'{{"protocol":"mcpx/v0.1","id":"{id}","kind":"mcp","payload":{payload}}}')
        while '"error"' not in (text := str(await agent.socket.recv())):
            pass
        assert f'"payload":{{"jsonrpc":"2.0","id":{answered},"error":{{"code":-32001,' in text
        assert json.loads(text)["correlation_id"] == id
        still = await agent.say("still here")
        await agent.until(id=still)
        await human.until(id=still)
        assert id not in json.dumps([agent.heard, human.heard])  # one error, and to nobody else
    assert id not in history(node)


@pytest.mark.req("X-3.2-1", "X-4.4.2-2")
async def test_the_same_envelope_of_the_restricted_is_refused_by_post(node: RunningNode) -> None:
    ((name, _),) = names("restricted")
    secret = token(node, name)
    async with joined(node, *names("full")) as (witness,):
        for payload in (
            CALL,
            {"jsonrpc": "2.0", "method": "notifications/x"},
            {"jsonrpc": "2.0", "id": 1, "result": {}},
        ):
            id = uuid.uuid4().hex
            body = {"protocol": "mcpx/v0.1", "id": id, "kind": "mcp", "payload": payload}
            status, told = ask(node, "/v0/topics/garden/messages", secret, "POST", body)
            assert status == 403
            assert told["error"]["code"] == -32001 or told["error"] == "privilege_violation"
            assert id not in history(node)
        end = await witness.say("end")
        await witness.until(id=end)
        assert not [envelope for envelope in witness.heard if envelope["kind"] == "mcp"]


@pytest.mark.req("X-3.2-1")
def test_only_checked_envelopes_are_published() -> None:
    """Stored envelopes come from `Room.receive`, which judges them, or from the gateway's own `announce`."""
    source = inspect.getsourcefile(Room)
    assert source is not None
    room = ast.parse(Path(source).read_text())
    assert _calling(room, "self.timeline.add") == {"receive", "announce", "tell", "_announce"}
    assert _calling(room, "self._find_refusal") == {"receive"}
    for path in Path(interlock.__file__).parent.rglob("*.py"):
        if path != Path(source):
            assert "timeline.add(" not in path.read_text()


def _calling(room: ast.Module, what: str) -> set[str]:
    functions = [entry for entry in ast.walk(room) if isinstance(entry, ast.FunctionDef | ast.AsyncFunctionDef)]
    return {
        function.name
        for function in functions
        for call in ast.walk(function)
        if isinstance(call, ast.Call) and ast.unparse(call.func) == what
    }


@pytest.mark.req("X-3.2-4", "X-3.1-1", "X-3.1-3")
async def test_a_kind_of_the_rooms_own_takes_the_privilege_that_its_configuration_says(node: RunningNode) -> None:
    async with joined(node, *names("restricted", "full"), topic="kinds") as (agent, human):
        plain = await agent.send("note/plain", {"text": "x"})
        assert (await human.until(id=plain))["kind"] == "note/plain"
        await agent.send("note/pinned", {"text": "x"})
        assert (await agent.until(event="error"))["payload"]["code"] == "kind_not_allowed"
        pinned = await human.send("note/pinned", {"text": "x"})
        assert (await agent.until(kind="note/pinned"))["id"] == pinned
        await human.send("note/other", {"text": "x"})
        assert (await human.until(event="error"))["payload"]["code"] == "unknown_kind"


@pytest.mark.req("X-3.2-4", "X-4-9")
@pytest.mark.parametrize("privilege", ["full", "restricted"])
async def test_a_kind_that_is_not_known_reaches_nobody(node: RunningNode, privilege: str) -> None:
    async with joined(node, *names(privilege, "full")) as (one, witness):
        await witness.until(id=await one.say("begin"))
        for kind in ("mcp/request", "mcp/request:tools/call", "mcp/response", "MCP", "mcp ", "", 7):
            id = uuid.uuid4().hex
            await one.socket.send(json.dumps({"protocol": "mcpx/v0.1", "id": id, "kind": kind, "payload": CALL}))
            refused = await one.until(event="error")
            assert (refused["correlation_id"], refused["payload"]["code"]) == (id, "unknown_kind")
            assert id not in history(node)
        await witness.until(id=await one.say("end"))
        assert [envelope["kind"] for envelope in witness.heard if envelope["kind"] not in ("system", "presence")] == [
            "chat"
        ] * 2


@pytest.mark.req("X-4-7", "X-4-10", "X-4-12", "X-4.2-3")
async def test_no_recipients_are_all_of_them_and_what_the_room_does_not_know_is_carried_along(
    node: RunningNode,
) -> None:
    params = '{"b": 1.0,"a":[1e3 ], "\\u0061b":null}'
    payloads = {"mcp": "{}", "mcp/proposal": f'{{"method":"x","params":{params}}}', "chat": '{"text":"x"}'}
    more = '"correlation_id":"never-was","privilege":"full","later":[1, 2]'
    async with joined(node, *names("full", "restricted", "full")) as there:
        for kind, payload in payloads.items():
            for to, forwarded in (("", False), ('"to":[],', True), ('"to":null,', False)):
                id = uuid.uuid4().hex
                head = f'"protocol":"mcpx/v0.1","id":"{id}",{to}"kind":"{kind}"'
                await there[0].socket.send(f'{{{head},{more},"payload":{payload}}}')
                texts = set()
                for participant in there:
                    while id not in (text := str(await participant.socket.recv())):
                        pass
                    texts.add(text)
                (text,) = texts
                assert f'"payload":{payload}' in text and '"privilege":"full"' in text and '"later":[1, 2]' in text
                body = json.loads(text)
                assert ("to" in body) is forwarded and body.get("to", []) == []
                assert body["correlation_id"] == "never-was"
                assert text in history(node)
        # It gives nothing to one who is restricted.
        id = await there[1].send("mcp", CALL, privilege="full", later=[1, 2])
        refused = await there[1].until(kind="mcp", correlation_id=id)
        assert refused["payload"]["error"]["code"] == -32001


@pytest.mark.req("X-N-4")
async def test_a_polling_and_a_connected_participant_receive_the_same_order(node: RunningNode) -> None:
    async with joined(node, *names("full", "full")) as (one, other):
        first = await one.say("first")
        await other.until(id=first)
        secret, polled, after = token(node, names("full")[0][0]), [first], first

        async def talk() -> None:
            for number in range(20):
                await (one, other)[number % 2].say(str(number))

        talking = asyncio.create_task(talk())
        while len(polled) < 21:
            path = f"/v0/topics/garden/history?after={after}&wait_s=10"
            status, told = await asyncio.to_thread(ask, node, path, secret)
            assert status == 200 and told["history"]  # it waits for what is new
            polled += [entry["envelope"]["id"] for entry in told["history"]]
            after = polled[-1]
        await talking
        for each in (one, other):
            await each.until(id=polled[-1])
            assert [envelope["id"] for envelope in each.heard if envelope["kind"] == "chat"] == polled


@pytest.mark.req("X-5.1-5")
async def test_a_refused_call_stays_refused_after_a_promotion(node: RunningNode) -> None:
    (agent_id, _), (_, _) = who = names("restricted", "full")
    async with joined(node, *who) as (agent, human):
        earlier = await agent.send("mcp", CALL)
        assert (await agent.until(kind="mcp"))["payload"]["error"]["code"] == -32001
        node.admin(f"/admin/participants/{agent_id}/promote", "POST", {})
        await agent.until(event="privilege_changed")
        later = await agent.send("mcp", CALL)
        assert (await human.until(kind="mcp"))["id"] == later
        assert earlier not in json.dumps(human.heard)
    assert earlier not in history(node)


@pytest.mark.req("X-4-6", "X-7.1-1")
async def test_the_sender_of_an_envelope_may_be_named_and_is_filled_in_where_it_is_not(node: RunningNode) -> None:
    (name, _), (other, _) = who = names("full", "full")
    async with joined(node, *who) as (one, witness):
        for members in ({"from": name}, {}):
            envelope_id = await one.say("hello", **members)
            heard = await witness.until(id=envelope_id)
            assert heard["from"] == name
            assert datetime.fromisoformat(heard["ts"]).tzinfo is not None
        dated = await one.say("hello", ts="2026-11-18T00:00:00.125Z")
        assert (await witness.until(id=dated))["ts"] == "2026-11-18T00:00:00.125Z"
        await one.say("hello", **{"from": other})
        refused = (await one.until(event="error"))["payload"]
        assert (refused["code"], refused["details"]) == ("from_mismatch", {"expected": name})
    again = await Bare.join(node, "garden", token(node, name, privilege="full"))
    assert (await again.next())["payload"]["participant"]["id"] == name
    await again.leave()


@pytest.mark.req("X-7.1-2", "X-5.1-4")
async def test_passed_and_refused_envelopes_and_arrivals_are_recorded(node: RunningNode) -> None:
    (agent_id, _), (human_id, _) = who = names("restricted", "full")
    async with joined(node, *who) as (agent, human):
        refused = await agent.send("mcp", CALL)
        await agent.until(kind="mcp")
        passed = await human.send("mcp", CALL)
        await human.until(id=passed)
        node.admin(f"/admin/participants/{agent_id}/promote", "POST", {})
        await agent.until(event="privilege_changed")

    def rows() -> list[Any]:
        records = node.admin("/admin/audit?limit=1000")["records"]
        current_records = [record.get("record", record) for record in records]
        return current_records if any(entry.get("envelope") == passed for entry in current_records) else []

    records = await asyncio.to_thread(wait_for, rows)
    digest = hashlib.sha256(json.dumps(CALL).encode()).hexdigest()
    of = {record.get("envelope"): record for record in records if record.get("envelope")}
    for id, name, method, outcome in (
        (refused, agent_id, "rooms/refuse", "privilege_violation"),
        (passed, human_id, "rooms/publish", "ok"),
    ):
        row = of[id]
        assert (row["method"], row["verdict"], row["outcome"]) == (method, outcome, outcome)
        assert (row["who"], row["participant"], row["room"]) == (f"room:{name}", name, "garden")
        assert row["args_sha256"] == digest
    methods = [record["method"] for record in records if agent_id in json.dumps(record)]
    assert {"rooms/join", "rooms/refuse", "rooms/promote"} <= set(methods)
    joins = [record for record in records if record["method"] == "rooms/join" and record.get("participant") == agent_id]
    assert [join["source"] for join in joins] == ["token"]  # what settled its privilege


@pytest.mark.req("X-5.2-1", "X-5.2-2")
async def test_a_token_that_does_not_count_learns_nothing_of_the_room(node: RunningNode) -> None:
    ((inside, _),) = names("full")
    secrets: list[str | None] = ["Bearer", "Bearer ", "Basic YTpi", "Bearer ilr_unknown", "ilr_unknown"]
    async with joined(node, (inside, "full")) as (one,):
        await one.say("in here")
        for header in secrets:
            answers = []
            for topic in ("garden", "no-such-room"):
                with pytest.raises(InvalidStatus) as refused:
                    await connect(
                        f"ws://{node.host}:{node.port}/v0/ws?topic={topic}",
                        additional_headers={"Authorization": header or ""},
                    )
                assert refused.value.response.status_code == 401
                assert refused.value.response.headers["www-authenticate"] == "Bearer"
                answers.append(refused.value.response.body)
            assert answers[0] == answers[1] and inside.encode() not in (answers[0] or b"")
    for path in ("history", "participants", "proposals"):
        status, told = ask(node, f"/v0/topics/garden/{path}", "ilr_unknown")
        assert status == 401 and inside not in json.dumps(told)


@pytest.mark.req("X-7.1-1")
async def test_nothing_that_is_copied_from_another_gives_its_privilege(node: RunningNode) -> None:
    (agent_id, _), (human_id, _) = who = names("restricted", "full")
    async with joined(node, *who) as (agent, human):
        shown = await human.send("mcp", CALL)
        heard = await agent.until(id=shown)
        stolen: list[dict[str, Any]] = [
            {"from": human_id},
            {"correlation_id": shown},
            {"privilege": "full", "token": token(node, human_id, privilege="full")},
            {"payload": {**CALL, "privilege": "full", "from": human_id}},
        ]
        for more in stolen:
            await agent.send("mcp", **{"payload": CALL, **more})
            if "from" in more:
                assert (await agent.until(event="error"))["payload"]["code"] == "from_mismatch"
            else:
                refused = await agent.until(**{"kind": "mcp", "from": "system:gateway"})
                assert refused["payload"]["error"]["code"] == -32001
        assert heard["from"] == human_id
        end = await human.say(json.dumps(CALL))  # one who is full repeats its text: that runs nothing
        assert (await agent.until(id=end))["kind"] == "chat"
        assert [envelope["id"] for envelope in human.heard if envelope["kind"] == "mcp"] in ([], [shown])
        shown_there = node.admin("/admin/rooms/garden/connections")["connections"]
        assert {entry["participantId"]: entry["privilege"] for entry in shown_there}[agent_id] == "restricted"
