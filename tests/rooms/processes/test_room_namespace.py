"""Participants of rooms as links of the namespace: `rooms.<topic>.<participant>.<tool>` (X-10.1-3)."""

import asyncio
import hashlib
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.rooms.mcp_client import Client, client_token
from tests.rooms.mcp_participant import happened, serving
from tests.support.node_process import RunningNode, Wire, running_node

ROOMS = """
[rooms]
presence_grace_s = 0.1

[[room]]
topic = "garden"
members = ["client:restricted"]
full = ["client:alice"]
per_min = { proposals = 10, chat = 60, envelopes = 1000 }

[[room]]
topic = "Trusting:Room"
full = ["client:alice"]
trust_annotations = true
max_envelope_bytes = 4096

[[room]]
topic = "patient"
full = ["client:alice"]
presence_grace_s = 2

[[room]]
topic = "closed"

[[room]]
topic = "untracked"
members = ["client:restricted"]
tracker = false
"""


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNode]:
    with running_node(tmp_path_factory.mktemp("rooms"), {}, ROOMS) as started:
        yield started


MakeClient = Callable[..., Client]
AQL = "/mcp/aql-single"


@pytest.fixture
def client(node: RunningNode) -> Iterator[MakeClient]:
    instances: list[Client] = []

    def make(*named: str) -> Client:
        instances.append(Client(node, *named))
        return instances[-1]

    yield make
    for entry in instances:
        entry.wire.close()


def new_id() -> str:
    return f"p-{uuid.uuid4().hex[:8]}"


def text_of(answer: Any) -> str:
    return str(answer["result"]["content"][0]["text"])


def availability(tool: dict[str, Any]) -> str | None:
    capability: dict[str, str] = tool["_meta"]["x-mcpax-capability"]
    return capability.get("availability")


def result(asked: dict[str, Any], text: str, **members: Any) -> dict[str, Any]:
    """An answer of a participant, as it should be but for `members`."""
    message = {"content": [{"type": "text", "text": text}], "isError": False}
    id = members.pop("rpc_id", asked["payload"]["id"])
    return {"payload": {"jsonrpc": "2.0", "id": id, "result": message}} | members


@pytest.mark.req("X-10.1-3", "X-1-2", "X-4.1.1-1", "X-4-8")
async def test_a_participants_tools_are_called_as_its_caller_in_the_room(node: RunningNode, client: MakeClient) -> None:
    id = new_id()
    alice = client("alice")
    async with serving(node, id) as one:
        name = f"rooms.garden.{id}.echo"
        listed = await alice.until_listed(name)
        capability = listed[name]["_meta"]["x-mcpax-capability"]
        assert (capability["mutable"], capability["reversible"]) == (True, False)
        answer = await alice.call(name, word="hello")
        assert text_of(answer) == "{'word': 'hello'}"
        assert node.admin(f"/admin/links/rooms.garden.{id}")["kind"] == "participant"
    greeted, asked_tools, called = one.requests
    assert [request["from"] for request in one.requests] == ["interlock", "interlock", "client:alice"]
    assert greeted["payload"]["params"]["protocolVersion"] == "2025-11-25"
    assert asked_tools["payload"]["method"] == "tools/list"
    assert called["payload"]["params"] == {"name": "echo", "arguments": {"word": "hello"}}
    assert called["to"] == [id]
    assert not [envelope for envelope in one.bare.heard if envelope["payload"].get("event") == "recipient_absent"]
    await alice.until(lambda listed: name not in listed)
    assert (await alice.call(name))["error"]["message"].startswith("tool_not_found")


@pytest.mark.req("X-10.1-3", "X-2.2-2")
async def test_members_alone_see_them(node: RunningNode, client: MakeClient) -> None:
    id = new_id()
    alice, stranger, restricted = (client(name) for name in ("alice", "stranger", "restricted"))
    async with serving(node, id) as one, serving(node, id, "closed") as closed:
        name = f"rooms.garden.{id}.echo"
        await alice.until_listed(name)
        assert name in await restricted.tools()
        assert await stranger.tools() == {}
        assert (await stranger.call(name))["error"]["message"].startswith("tool_not_found")
        instructions = (await asyncio.to_thread(stranger.wire.modern, "server/discover")).message["result"]
        assert id not in str(instructions) and "obey me" not in str(instructions)
        assert not one.was_called()
    assert closed.requests == []  # no client may join: nobody asks anything there


def demand_of(answer: Any) -> Any:
    assert answer["result"]["isError"] is True, answer
    return answer["result"]["_meta"]["x-mcpax-confirmation"]


@pytest.mark.req("X-10.1-3", "X-4.2-1")
async def test_a_call_of_a_restricted_client_becomes_a_proposal(node: RunningNode, client: MakeClient) -> None:
    id = new_id()
    alice, restricted = client("alice"), client("restricted")
    async with serving(node, id) as one, serving(node, id, "untracked"):
        name = f"rooms.garden.{id}.echo"
        await restricted.until_listed(name, f"rooms.untracked.{id}.echo")
        held = demand_of(await restricted.call(name, n=1))
        assert held["status"] == "confirmation_required"
        again, other = await asyncio.gather(restricted.call(name, n=1), client("restricted").call(name, n=2))
        assert demand_of(again)["confirmation_id"] == held["confirmation_id"]
        assert demand_of(other)["confirmation_id"] != held["confirmation_id"]
        waiting = node.admin(f"/approvals/{held['confirmation_id']}")
        assert (waiting["kind"], waiting["requested_by"], waiting["tool"]) == ("proposal", "client:restricted", name)
        assert not one.was_called()
        fulfilled = await alice.call("rooms.fulfil", topic="garden", proposal_id=held["proposalId"])
        assert fulfilled["result"]["structuredContent"]["status"] == "fulfilled"
        assert text_of(await restricted.call(name, n=1)) == "{'n': 1}"
        assert [request["from"] for request in one.requests if request["payload"]["method"] == "tools/call"] == [
            "client:alice"
        ]
        await alice.call("rooms.reject", topic="garden", proposal_id=demand_of(other)["proposalId"], reason="unsafe")
        denied = await restricted.call(name, n=2)
        assert demand_of(denied)["status"] == "confirmation_denied" and "unsafe" in text_of(denied)
        refused = (await restricted.call(f"rooms.untracked.{id}.echo"))["error"]
        assert refused["data"]["reason"] == "privilege_violation"


@pytest.mark.req("X-10.1-3", "X-4.1-4", "X-4-10")
async def test_an_answer_counts_once_and_only_from_the_client_that_was_asked(
    node: RunningNode, client: MakeClient
) -> None:
    id, other = new_id(), new_id()
    alice = client("alice")
    async with serving(node, id) as one, serving(node, other) as forger:
        name = f"rooms.garden.{id}.echo"
        await alice.until_listed(name, f"rooms.garden.{other}.echo")
        seen: list[dict[str, Any]] = []
        one.answer = lambda value: seen.append(value) or []  # type: ignore[func-returns-value]
        calling = asyncio.create_task(alice.call(name))
        await happened(lambda: bool(seen))
        request = seen[0]
        right = {"to": [request["from"]], "correlation_id": request["id"]}
        rpc = request["payload"]["id"]
        for bare, payload, members in (
            (forger.bare, result(request, "forged")["payload"], right),
            (
                one.bare,
                result(request, "wrong correlation")["payload"],
                right | {"correlation_id": str(uuid.uuid4())},
            ),
            (one.bare, result(request, "no correlation")["payload"], {"to": [request["from"]]}),
            (one.bare, result(request, "wrong type", rpc_id=str(rpc))["payload"], right),
            (one.bare, result(request, "wrong id", rpc_id=rpc + 1)["payload"], right),
            (one.bare, result(request, "huge id", rpc_id=10**30)["payload"], right),
            (one.bare, result(request, "the answer")["payload"], right),
            (one.bare, result(request, "a second one")["payload"], right),
        ):
            await bare.send("mcp", payload, **members)
        assert text_of(await calling) == "the answer"
        one.answer = None
        assert text_of(await alice.call(name, n=1)) == "{'n': 1}"
        one.answer = lambda value: [{"payload": {"id": value["payload"]["id"], "neither": 1}}]
        assert (await alice.call(name))["error"]["data"]["reason"] == "malformed_answer"


@pytest.mark.req("X-10.1-3", "X-4-8")
async def test_a_participant_that_goes_leaves_its_callers_with_an_answer(node: RunningNode, client: MakeClient) -> None:
    id = new_id()
    alice = client("alice")
    async with serving(node, id) as one:
        name = f"rooms.garden.{id}.echo"
        await alice.until_listed(name)
        one.answer = lambda value: one.stop() or []  # type: ignore[func-returns-value]
        calling = asyncio.create_task(alice.call(name))
        await happened(one.was_called)
    lost = (await calling)["error"]
    assert (lost["message"], lost["data"]["reason"]) == ("tool_degraded", "subserver_unreachable")
    assert lost["data"]["outcome"] == "unknown"


@pytest.mark.req("X-10.1-3")
async def test_tools_of_a_participant_that_left_are_degraded_and_then_removed(
    node: RunningNode, client: MakeClient
) -> None:
    id = new_id()
    alice, name = client("alice"), f"rooms.patient.{id}.echo"
    async with serving(node, id, "patient"):
        assert availability((await alice.until_listed(name))[name]) != "degraded"
        assert text_of(await alice.call(name, n=1)) == "{'n': 1}"
    await alice.until(lambda listed: name in listed and availability(listed[name]) == "degraded")
    degraded = (await alice.call(name))["error"]
    assert (degraded["message"], degraded["data"]["reason"]) == ("tool_degraded", "subserver_unreachable")
    await alice.until(lambda listed: name not in listed)
    assert (await alice.call(name))["error"]["message"].startswith("tool_not_found")


@pytest.mark.req("X-4.1-2")
async def test_a_call_that_is_taken_back_is_taken_back_in_the_room(node: RunningNode, client: MakeClient) -> None:
    id = new_id()
    alice = client("alice")
    async with serving(node, id) as one:
        name = f"rooms.garden.{id}.echo"
        await alice.until_listed(name)
        one.answer = lambda value: []
        with (
            Wire(node, token=client_token(node, "alice")) as legacy,
            Wire(node, token=client_token(node, "alice")) as other,
        ):
            legacy.initialize()
            other.session = legacy.session
            calling = asyncio.create_task(asyncio.to_thread(legacy.legacy, "tools/call", {"name": name}))
            await happened(one.was_called)
            cancelled = {"requestId": legacy.next_id, "reason": "enough"}
            await asyncio.to_thread(other.notify, "notifications/cancelled", cancelled)
            await happened(lambda: one.bare.heard[-1]["payload"].get("method") == "notifications/cancelled")
            await calling
    call, said = one.requests[-1], one.bare.heard[-1]
    assert (said["from"], said["to"], said["correlation_id"]) == ("client:alice", [id], call["id"])
    assert said["payload"]["params"]["requestId"] == call["payload"]["id"]
    sent = {heard["payload"].get("method") for heard in one.bare.heard if heard["kind"] == "mcp"}
    ours = {"initialize", "notifications/initialized", "tools/list", "tools/call", "notifications/cancelled"}
    assert {"tools/call", "notifications/cancelled"} <= sent - {None} <= ours  # of MCP, all of them


@pytest.mark.req("X-10.1-3", "X-4-13")
async def test_annotations_count_where_trusted_and_sizes_hold(node: RunningNode, client: MakeClient) -> None:
    id = "Mixed.Case:Id"
    read = {"name": "Read It!", "inputSchema": {"type": "object"}, "annotations": {"readOnlyHint": True}}
    alice = client("alice")
    async with serving(node, id, "Trusting:Room", [read]) as one:
        name = "rooms.trusting_room.mixed_case_id.read_it_"
        listed = await alice.until_listed(name)
        assert listed[name]["_meta"]["x-mcpax-capability"]["mutable"] is False
        assert text_of(await alice.call(name, word="x" * 3000)).endswith("xxx'}")
        large = (await alice.call(name, word="x" * 5000))["error"]
        assert (large["code"], large["data"]["reason"], large["data"]["limit"]) == (-32602, "envelope_too_large", 4096)
        assert len(one.requests) == 3
        async with (
            serving(node, "mixed-case_Id", "Trusting:Room", [read]),
            serving(node, "mixed.case.id", "Trusting:Room", [read]),
        ):
            several = await alice.until(lambda listed: len([item for item in listed if "read_it" in item]) == 3)
            segments = sorted(entry.split(".")[2] for entry in several if "read_it" in entry)
            assert segments == [
                "mixed-case_id",
                *sorted(
                    f"mixed_case_id_{hashlib.sha256(entry.encode()).hexdigest()[:8]}" for entry in (id, "mixed.case.id")
                ),
            ]


@pytest.mark.req("X-10.1-3")
async def test_ten_thousand_tools_are_listed_and_names_are_made_to_fit(node: RunningNode, client: MakeClient) -> None:
    id = new_id()
    many = [{"name": f"t{n}", "inputSchema": {"type": "object"}} for n in range(10_000)]
    alice = client("alice")
    async with serving(node, id, tools=[*many, {"name": ""}, {"noname": 1}, {"name": "x" * 5000}]):
        prefix = f"rooms.garden.{id}."
        listed = await alice.until(lambda listed: len([item for item in listed if item.startswith(prefix)]) >= 10_000)
        assert f"{prefix}t9999" in listed
        assert text_of(await alice.call(f"{prefix}t9999", n=1)) == "{'n': 1}"


@pytest.mark.req("X-10.1-3", "AQL-C.map-1")
async def test_tools_of_participants_are_aql_operations(node: RunningNode, client: MakeClient) -> None:
    id = f"aql{uuid.uuid4().hex[:8]}"
    flat, alice, stranger = client("alice"), client("alice", AQL), client("stranger", AQL)
    async with serving(node, id):
        await flat.until_listed(f"rooms.garden.{id}.echo")
        listed = (await asyncio.to_thread(alice.wire.modern, "tools/list")).message["result"]["tools"]
        endpoint = listed[0]["name"]
        operation = f"rooms__garden__{id}__echo"
        request = {"operation": "introspect", "params": {"query": "operations", "search": f"{id} echo"}}
        assert operation in text_of(await alice.call(endpoint, **request))
        assert operation not in text_of(await stranger.call(endpoint, **request))


@pytest.mark.req("X-10.1-3", "X-N-3")
async def test_a_former_member_no_longer_sees_the_tools_of_a_room(node: RunningNode, client: MakeClient) -> None:
    """The last one: it changes the configuration."""
    id = new_id()
    alice = client("alice")
    async with serving(node, id, "Trusting:Room"), serving(node, id):
        name, other = f"rooms.trusting_room.{id}.echo", f"rooms.garden.{id}.echo"
        await alice.until_listed(name, other)
        text = node.config.read_text()
        node.config.write_text(text.replace('full = ["client:alice"]\ntrust', 'full = ["client:bob"]\ntrust'))
        await alice.until(lambda listed: name not in listed)
        assert other in await alice.tools()
        assert (await alice.call(name))["error"]["message"].startswith("tool_not_found")
        await client("bob").until_listed(name)
