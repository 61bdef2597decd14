"""Participants of MCPx v0 and of v0.1 in one room, met on bare WebSockets (MCPx 6.3)."""

import json
import uuid
from collections.abc import Iterator

import pytest
from tests.rooms.mcp_client import client_token
from tests.rooms.participant import CALL, Bare, joined, names, token
from tests.support.node_process import RunningNode, running_node
from websockets.exceptions import InvalidStatus

ROOMS = """
[rooms]
presence_grace_s = 0.1

[[room]]
topic = "garden"

[[room]]
topic = "strict"
v0_clients = "refuse"

[[room]]
topic = "trusts-v0"
v0_clients = "full"
members = ["client:*"]

[[room]]
topic = "trusts-nobody"
mode = "restricted"
v0_clients = "full"
members = ["client:*"]

[[room]]
topic = "doubts-v0"
v0_clients = "restricted"
members = ["client:*"]

[[room]]
topic = "open"
mode = "open"
"""


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNode]:
    with running_node(tmp_path_factory.mktemp("versions"), {}, ROOMS) as started:
        yield started


@pytest.mark.req("X-6.3-3", "X-6.3-4", "X-6.3-5", "X-6.3-6", "X-4.1-2")
async def test_a_client_of_v0_talks_with_a_client_of_v01(node: RunningNode) -> None:
    (old_id, _), (new_id, _) = names("restricted", "full")
    old = await Bare.join(node, "garden", token(node, old_id), protocol="mcp-x/v0")
    welcome = await old.next()
    assert welcome["protocol"] == "mcp-x/v0"
    payload = welcome["payload"]
    assert (payload["event"], payload["type"]) == ("welcome", "welcome")
    assert (payload["participant"]["id"], payload["participant_id"], payload["topic"]) == (old_id, old_id, "garden")
    assert payload["history"] == []
    assert payload["participants"] == []
    async with joined(node, (new_id, "full")) as (new,):
        for faulty, code in (({"protocol": "mew/v0.4"}, "unsupported_protocol"), ({"kind": "system"}, "reserved_kind")):
            id = await old.send(**({"kind": "mcp", "payload": {}, "protocol": "mcp-x/v0"} | faulty))
            refused = await old.until(event="error")
            assert (refused["kind"], refused["correlation_id"], refused["protocol"]) == ("system", id, "mcp-x/v0")
            assert (refused["payload"]["type"], refused["payload"]["code"]) == ("error", code)
        message = {"jsonrpc": "2.0", "method": "notifications/chat/message", "params": {"text": "old words"}}
        await old.send("mcp", message, protocol="mcp-x/v0")
        heard = await new.until(kind="chat")
        assert (heard["protocol"], heard["payload"]) == ("mcpx/v0.1", {"text": "old words"})
        await new.say("new words")
        heard = await old.until(**{"from": new_id})
        assert (heard["protocol"], heard["kind"]) == ("mcp-x/v0", "mcp")
        assert heard["payload"]["params"] == {"text": "new words"}
        call = await new.send("mcp", CALL, to=[old_id])
        assert (await old.until(id=call))["payload"] == CALL
        await new.send("mcp/proposal", {"method": "x"})
        assert (await old.until(event="proposal"))["payload"]["proposer"] == new_id
        await old.send("mcp", CALL, protocol="mcp-x/v0")
        assert (await old.until(**{"from": "system:gateway", "kind": "mcp"}))["payload"]["error"]["code"] == -32001
    assert {envelope["protocol"] for envelope in old.heard} == {"mcp-x/v0"}
    assert {envelope["kind"] for envelope in old.heard} == {"mcp", "presence", "system"}
    assert {envelope["protocol"] for envelope in new.heard} == {"mcpx/v0.1"}
    await old.leave()
    by_client = client_token(node, "v0-client")
    for topic, given, secret, wanted in (
        ("trusts-v0", "restricted", by_client, "full"),
        ("trusts-v0", "restricted", token(node, old_id, "trusts-v0"), "restricted"),
        ("trusts-nobody", "restricted", by_client, "restricted"),
        ("doubts-v0", "full", token(node, old_id, "doubts-v0", "full"), "restricted"),
    ):
        for protocol, privilege in (("mcp-x/v0", wanted), ("mcpx/v0.1", given)):
            participant = await Bare.join(node, topic, secret, protocol=protocol)
            await participant.next()
            connections = node.admin(f"/admin/rooms/{topic}/connections")["connections"]
            assert [shown["privilege"] for shown in connections] == [privilege]
            await participant.leave()
    with pytest.raises(InvalidStatus) as refused:
        await Bare.join(node, "strict", token(node, "old", "strict"), protocol="mcp-x/v0")
    assert refused.value.response.status_code == 426


async def test_no_envelope_silences_a_client_of_v0_that_asks_for_history(node: RunningNode) -> None:
    (name, _), (old, _) = names("full", "restricted")
    async with joined(node, (name, "full"), topic="open") as (a,):
        mark = uuid.uuid4().hex
        text = '{"protocol":"mcpx/v0.1","id":"%s","kind":"chat","payload":{"text":"hi","x":1e999,"y":"\\ud800"}}'
        await a.socket.send(text.replace("%s", mark))
        await a.until(id=mark)
        listening = await Bare.join(node, "open", token(node, old, "open"), protocol="mcp-x/v0", history="5")
        assert (await listening.next())["payload"]["event"] == "welcome"
        body = json.loads(await listening.socket.recv(), parse_constant=str)
        assert mark in [envelope["id"] for envelope in body["payload"]["envelopes"]]
        envelope_id = await a.say("live")
        await listening.until(id=envelope_id)
        await listening.leave()


@pytest.mark.req("X-6.3-3")
async def test_a_silent_client_that_names_no_protocol_is_welcomed_in_both(node: RunningNode) -> None:
    (silent_id, _), (speaker_id, _) = names("restricted", "full")
    silent = await Bare.join(node, "garden", token(node, silent_id))
    silent.reads = None  # both protocols
    # Participants of the test before may still leave, which is said in between.
    first, second = await silent.next(), await silent.until(protocol="mcp-x/v0")
    assert [first["protocol"], second["protocol"]] == ["mcpx/v0.1", "mcp-x/v0"]
    assert first["payload"]["event"] == second["payload"]["event"] == "welcome"
    assert second["payload"]["participant_id"] == silent_id
    async with joined(node, (speaker_id, "full")) as (speaker,):
        chat = await speaker.say("to everybody")
        copies = [await silent.until(id=chat), await silent.until(id=chat)]
        assert [copy["protocol"] for copy in copies] == ["mcpx/v0.1", "mcp-x/v0"]
        # The first envelope decides, and each envelope comes once from then on.
        own = await silent.say("I speak v0.1")
        await silent.until(id=own)
        chats = [await speaker.say(text) for text in ("again", "and again")]
        assert [(await silent.next())["id"] for _ in chats] == chats
        assert {envelope["protocol"] for envelope in silent.heard[-2:]} == {"mcpx/v0.1"}
    await silent.leave()


@pytest.mark.req("X-6.3-6")
async def test_the_policy_for_v0_holds_for_clients_that_name_no_protocol(node: RunningNode) -> None:
    (strict, _), (doubted, _) = names("full", "full")
    message = {"jsonrpc": "2.0", "method": "notifications/chat/message", "params": {"text": "hello"}}
    refused = await Bare.join(node, "strict", token(node, strict, "strict", "full"))
    await refused.next()
    await refused.send("mcp", message, protocol="mcp-x/v0")
    assert await refused.closed() == 1008
    await refused.leave()
    restricted = await Bare.join(node, "doubts-v0", token(node, doubted, "doubts-v0", "full"))
    restricted.reads = None  # both protocols
    await restricted.next()
    await restricted.send("mcp", CALL, protocol="mcp-x/v0")
    blocked = await restricted.until(**{"from": "system:gateway", "kind": "mcp"})
    assert (blocked["protocol"], blocked["payload"]["error"]["code"]) == ("mcp-x/v0", -32001)
    await restricted.leave()


@pytest.mark.req("X-6.3-6")
@pytest.mark.parametrize(
    ("topic", "decision", "passes"), [("trusts-v0", "demote", False), ("doubts-v0", "promote", True)]
)
async def test_the_policy_for_v0_does_not_lift_what_an_admin_decided_about_a_silent_client(
    node: RunningNode, topic: str, decision: str, passes: bool
) -> None:
    secret = client_token(node, f"silent-{decision}")
    silent = await Bare.join(node, topic, secret)
    silent.reads = None  # both protocols
    participant = (await silent.next())["payload"]["participant"]["id"]
    done = node.admin(f"/admin/participants/{participant}/{decision}?topic={topic}", "POST", {})
    assert done["participantId"] == participant
    call = await silent.send("mcp", CALL, protocol="mcp-x/v0")
    reply = await silent.until_either(call)
    assert (reply.get("id") == call) is passes, reply
    await silent.leave()


@pytest.mark.req("X-6.3-2")
async def test_participants_of_both_versions_call_each_other_in_one_room(node: RunningNode) -> None:
    (old, _), (new, _) = names("full", "full")
    first = await Bare.join(node, "garden", token(node, old, privilege="full"), protocol="mcp-x/v0")
    second = await Bare.join(node, "garden", token(node, new, privilege="full"))
    versions = {old: "mcp-x/v0", new: "mcpx/v0.1"}
    for caller, one, target, other in ((old, first, new, second), (new, second, old, first)):
        request = await one.send("mcp", CALL, to=[target], protocol=versions[caller])
        envelope = await other.until(id=request)
        assert (envelope["protocol"], envelope["payload"]) == (versions[target], CALL)
        reply = {"jsonrpc": "2.0", "id": 42, "result": {"content": []}}
        await other.send("mcp", reply, to=[caller], correlation_id=request, protocol=versions[target])
        heard = await one.until(correlation_id=request, kind="mcp")
        assert (heard["protocol"], heard["payload"]) == (versions[caller], reply)
    # And both on one connection.
    await second.say("x", protocol="mcp-x/v0")
    assert (await second.until(kind="chat"))["protocol"] == "mcpx/v0.1"
    await first.leave()
    await second.leave()
