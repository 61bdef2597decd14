"""The order that a room keeps: one verdict for each kind and privilege, one error for each fault, one sequence."""

import asyncio
import json
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from tests.rooms.mcp_client import Client
from tests.rooms.mcp_participant import ECHO, serving
from tests.rooms.participant import CALL, Bare, ask, joined, names, token
from tests.support.node_process import RunningNode, running_node

ROOMS = """
[rooms]
presence_grace_s = 0.1

[[room]]
topic = "garden"
full = ["client:alice"]
members = ["client:agent"]
trust_annotations = true

[[room]]
topic = "busy"
per_min = { proposals = 10, chat = 60, envelopes = 1000 }

[[room]]
topic = "slow"
per_min = { proposals = 3, chat = 3, envelopes = 3 }
"""
EACH = 500  # envelopes of one sender
HINTS = {"readOnlyHint": True, "destructiveHint": False, "idempotentHint": True, "openWorldHint": False}
PAYLOADS = {
    "mcp": CALL,
    "mcp/proposal": {"method": "tools/call", "params": {"name": "echo"}},
    "chat": {"text": "x"},
    "presence": {"event": "join", "participant": {"id": "x"}},
    "system": {"event": "welcome"},
}
TABLE = {
    **{("full", kind): "published" for kind in ("mcp", "mcp/proposal", "chat")},
    **{("restricted", kind): "published" for kind in ("mcp/proposal", "chat")},
    ("restricted", "mcp"): "violation",
    **{(privilege, kind): "reserved_kind" for privilege in ("full", "restricted") for kind in ("presence", "system")},
}


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNode]:
    with running_node(tmp_path_factory.mktemp("filter"), {}, ROOMS) as started:
        yield started


async def by_socket(node: RunningNode, sender: Bare, kind: str) -> tuple[str, str]:
    """What became of an envelope, and its id."""
    id = await sender.send(kind, PAYLOADS[kind])
    reply = await sender.until_either(id)
    if reply.get("id") == id:
        return "published", id
    return reply["payload"].get("code") or {-32001: "violation"}[reply["payload"]["error"]["code"]], id


async def by_post(node: RunningNode, secret: str, kind: str) -> tuple[str, str]:
    id = str(uuid.uuid4())
    body = {"protocol": "mcpx/v0.1", "id": id, "kind": kind, "payload": PAYLOADS[kind]}
    status, told = await asyncio.to_thread(ask, node, "/v0/topics/garden/messages", secret, "POST", body)
    if status == 202:
        return "published", id
    assert status == 403
    return told["error"] if isinstance(told["error"], str) else {-32001: "violation"}[told["error"]["code"]], id


@pytest.mark.req("X-5.3-1", "X-3.2-1")
@pytest.mark.parametrize("privilege", ["full", "restricted"])
async def test_kind_and_privilege_alone_decide_by_every_way(node: RunningNode, privilege: str) -> None:
    wanted = {kind: TABLE[privilege, kind] for kind in PAYLOADS}
    ((name, _),) = names(privilege)
    secret = token(node, name, privilege=privilege)
    async with joined(node, *names("full")) as (witness,):
        sender = await Bare.join(node, "garden", secret)
        await sender.next()
        sockets = {kind: await by_socket(node, sender, kind) for kind in PAYLOADS}
        posts = {kind: await by_post(node, secret, kind) for kind in PAYLOADS}
        await sender.leave()
        assert {kind: outcome for kind, (outcome, _) in sockets.items()} == wanted
        assert {kind: outcome for kind, (outcome, _) in posts.items()} == wanted
        expected = [id for way in (sockets, posts) for outcome, id in way.values() if outcome == "published"]
        await witness.until(id=await witness.say("end"))
        heard = [envelope["id"] for envelope in witness.heard if envelope["from"] == name]
        assert heard == expected


@pytest.mark.req("X-5.3-1", "X-3.2-1", "X-4.4.2-2")
@pytest.mark.parametrize(("client", "privilege"), [("alice", "full"), ("agent", "restricted")])
async def test_tools_send_what_the_same_table_lets_pass(node: RunningNode, client: str, privilege: str) -> None:
    caller, sender = Client(node, client), f"client:{client}"
    harmless = {**ECHO, "annotations": HINTS}
    async with (
        serving(node, f"robot-{uuid.uuid4().hex[:8]}", tools=[harmless]) as robot,
        joined(node, *names("full")) as (witness,),
    ):
        called = f"rooms.garden.{robot.id}.echo"
        await caller.until_listed(called, "rooms.say")

        async def heard() -> list[str]:
            end = await witness.say("end")
            await witness.until(id=end)
            envelopes = [envelope["kind"] for envelope in witness.heard if envelope["from"] == sender]
            witness.heard.clear()
            return envelopes

        result = (await caller.call("rooms.say", topic="garden", text="x"))["result"]
        assert (result["isError"], await heard()) == (False, ["chat"])
        proposed = await caller.call("rooms.propose", topic="garden", to=robot.id, tool="echo")
        assert (proposed["result"]["isError"], await heard()) == (False, ["mcp/proposal"])
        assert not robot.was_called()
        answer = await caller.call(called)
        if TABLE[privilege, "mcp"] == "published":
            assert answer["result"]["isError"] is False and await heard() == ["mcp"]
        else:  # a call of the restricted is a proposal
            assert "confirmation_required" in json.dumps(answer) and await heard() == ["mcp/proposal"]
            assert not robot.was_called()
        proposal = proposed["result"]["structuredContent"]["proposalId"]
        fulfilled = (await caller.call("rooms.fulfil", topic="garden", proposal_id=proposal))["result"]
        code = "self_approval" if privilege == "full" else "privilege_violation"
        assert fulfilled["structuredContent"]["error"] == code
        for kind in ("presence", "system"):  # no tool takes a kind
            refused = (await caller.call("rooms.say", topic="garden", text="x", kind=kind))["result"]
            assert refused["structuredContent"]["error"] == "input_invalid"
        assert await heard() == []
    caller.wire.close()


@pytest.mark.req("X-5.3-1", "X-4-14")
async def test_the_first_of_several_faults_is_reported(node: RunningNode) -> None:
    """Each envelope has its own fault, and all those that are looked for later."""
    ((name, _),) = names("restricted")
    participant = await Bare.join(node, "slow", token(node, name, "slow"))
    await participant.next()
    taken = f"taken-{name}"
    later: dict[str, Any] = {"id": taken, "from": "somebody-else", "payload": {}}
    steps: list[tuple[str | dict[str, Any], str]] = [
        ("x" * (1024 * 1024 + 1), "envelope_too_large"),
        ('{"id": 7, "protocol": "mew/v0.4"', "invalid_json"),
        ({**later, "id": 7, "protocol": "mew/v0.4", "kind": "mcp/request"}, "invalid_envelope"),
        ({**later, "protocol": "mew/v0.4", "kind": "mcp/request"}, "unsupported_protocol"),
        ({**later, "kind": "mcp/request"}, "unknown_kind"),
        ({**later, "kind": "system"}, "reserved_kind"),
        ({**later, "kind": "mcp"}, "from_mismatch"),
        ({"id": taken, "kind": "chat", "payload": {"text": "x"}}, "published"),
        ({"id": taken, "kind": "chat", "payload": {}}, "invalid_chat"),
        ({"id": taken, "kind": "chat", "payload": {"text": "x"}}, "duplicate_id"),
        # From here on its minute is used up.
        ({"id": taken, "kind": "mcp", "payload": {}}, "violation"),
        ({"id": taken, "kind": "chat", "payload": {}}, "rate_limited"),
    ]
    for envelope, wanted in steps:
        whole = envelope if isinstance(envelope, str) else json.dumps({"protocol": "mcpx/v0.1", **envelope})
        await participant.socket.send(whole)
        if wanted == "published":
            assert (await participant.next())["id"] == taken
            continue
        refused = await participant.next()
        payload = refused["payload"]
        message = "violation" if payload.get("error", {}).get("code") == -32001 else payload["code"]
        assert message == wanted
        is_readable = isinstance(envelope, dict) and isinstance(envelope["id"], str)
        assert refused.get("correlation_id") == (taken if is_readable else None)
    await participant.leave()


@pytest.mark.req("X-1-3")
async def test_all_participants_receive_one_order_that_keeps_each_senders_order(node: RunningNode) -> None:
    async with joined(node, *names("full", "full", "full"), topic="busy") as there:

        async def send(one: Bare, mark: int) -> None:
            for number in range(EACH):
                await one.send("mcp", {"n": number, "of": mark})

        async def hear(one: Bare) -> list[tuple[int, int]]:
            heard = [(await one.until(kind="mcp"))["payload"] for _ in range(3 * EACH)]
            return [(payload["of"], payload["n"]) for payload in heard]

        *_, a, b, c = await asyncio.gather(
            *(send(one, mark) for mark, one in enumerate(there)), *(hear(participant) for participant in there)
        )
        assert a == b == c
        for mark in range(3):
            assert [n for of, n in a if of == mark] == list(range(EACH))
    newest_first: list[dict[str, Any]] = []
    while len(newest_first) < 3 * EACH:
        before = f"&before={newest_first[-1]['envelope']['id']}" if newest_first else ""
        path = f"/v0/topics/busy/history?limit={EACH}{before}"
        newest_first += ask(node, path, token(node, "reader", "busy", "full"))[1]["history"]
    stored = [
        (entry["envelope"]["payload"]["of"], entry["envelope"]["payload"]["n"]) for entry in reversed(newest_first)
    ]
    assert stored == a
    sequences = [entry["seq"] for entry in newest_first]
    assert sequences == sorted(sequences, reverse=True) and "seq" not in newest_first[0]["envelope"]
