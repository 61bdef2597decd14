"""Proposals of rooms in the one inbox: tracked, approved, denied, carried out in the room (MCPx 4.2, 9, 10.2)."""

import asyncio
import contextlib
import functools
import http.client
import json
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from tests.gate.held_calls import ANCHORED, signed_enrolment
from tests.rooms import participant
from tests.rooms.participant import Bare, names, token
from tests.support.node_process import RunningNode, running_node, wait_for

ROOMS = """
[rooms]
presence_grace_s = 0.1
per_min = { proposals = 100, chat = 60, envelopes = 2000 }

[[room]]
topic = "garden"
extra_kinds = { "mcp/reject" = "full", "mcp/withdraw" = "restricted" }

[[room]]
topic = "plain"

[[room]]
topic = "few"
proposals_pending = 2

[[room]]
topic = "mixed"
full = ["client:alice"]
members = ["client:newcomer"]

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

    def read(self, path: str) -> str:
        """What a viewer gets over HTTP."""
        reply = self.node.admin("/admin/tokens", "POST", {"name": "monitor", "for": "operator", "scope": "read"})
        connection = http.client.HTTPConnection(self.node.operator_url.removeprefix("http://"), timeout=10)
        connection.request("GET", path, headers={"authorization": f"Bearer {reply['token']}"})
        answered = connection.getresponse()
        text = answered.read().decode()
        connection.close()
        assert answered.status == 200, text
        return text

    async def waiting(self, proposal: str, status: str = "pending") -> dict[str, Any]:
        """The approval of a proposal, once it is in the inbox."""

        def look() -> Any:
            listed = self.node.admin(f"/approvals?kind=proposal&status={status}")["approvals"]
            whole = [self.node.admin(f"/approvals/{item['id']}") for item in reversed(listed)]
            return next((item for item in whole if item["proposal_id"] == proposal), None)

        return dict(await asyncio.to_thread(wait_for, look))


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNode]:
    with running_node(tmp_path_factory.mktemp("proposals"), {}, ANCHORED + ROOMS) as started:
        yield started


@pytest.fixture(scope="module")
def person(node: RunningNode) -> Person:
    return Person(node)


def joined(
    node: RunningNode, *privileges: str, topic: str = "garden"
) -> contextlib.AbstractAsyncContextManager[list[Bare]]:
    return participant.joined(node, *names(*privileges), topic=topic)


async def propose(agent: Bare, target: Bare, payload: dict[str, Any] = WATER, **more: Any) -> str:
    return await agent.send("mcp/proposal", payload, to=[target.name], **more)


async def answer(target: Bare, **body: Any) -> dict[str, Any]:
    """The target hears the next request to it and answers it."""
    while True:
        envelope = await target.until(kind="mcp")
        if envelope.get("to") == [target.name] and "method" in envelope["payload"]:
            break
    message = {"jsonrpc": "2.0", "id": envelope["payload"]["id"], **(body or {"result": {"content": []}})}
    await target.send("mcp", message, to=[envelope["from"]], correlation_id=envelope["id"])
    return envelope


def listed(node: RunningNode, who: Bare, topic: str = "garden") -> dict[str, dict[str, Any]]:
    connection = http.client.HTTPConnection(node.host, node.port, timeout=10)
    connection.request("GET", f"/v0/topics/{topic}/proposals", headers={"authorization": f"Bearer {who.secret}"})
    body = json.loads(connection.getresponse().read())
    connection.close()
    return {proposal["proposalId"]: proposal for proposal in body["proposals"]}


def post(node: RunningNode, who: Bare, path: str, body: Any = None, topic: str = "garden") -> tuple[int, Any]:
    connection = http.client.HTTPConnection(node.host, node.port, timeout=10)
    headers = {"authorization": f"Bearer {who.secret}"}
    connection.request("POST", f"/v0/topics/{topic}/{path}", json.dumps(body or {}), headers)
    answered = connection.getresponse()
    current_body = json.loads(answered.read())
    connection.close()
    return answered.status, current_body


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
        shape = {"id", "digest", "created_at", "expires_at", "requires"}
        assert shape <= waiting.keys() and all(waiting[member] for member in shape)
        shown = listed(node, bystander)[proposal]
        assert {"proposalId", "proposer", "target", "method", "params", "status", "createdAt", "expiresAt"} <= set(
            shown
        )
        assert shown["status"] == "pending" and shown["params"] == WATER["params"]
        preview = (await asyncio.to_thread(node.cli, "approvals", "show", waiting["id"][:8])).stdout
        for entry in ("once, in your name", "it is dry", f"tools/call to {robot.name}, in the room garden", '"roses"'):
            assert entry in " ".join(preview.split()), preview
        decided = await asyncio.to_thread(person.decide, waiting["id"], "approve")
        assert decided.get("status") in ("used", "done"), decided
        current_reply = await answer(robot, result={"content": [{"type": "text", "text": "watered"}]})
        assert current_reply["from"] == "operator:ada" and current_reply["correlation_id"] == proposal
        assert current_reply["payload"] == {"jsonrpc": "2.0", "id": current_reply["payload"]["id"], **WATER}
        for current_participant in (agent, bystander):
            reply = await current_participant.until(kind="mcp", correlation_id=current_reply["id"])
            assert reply["payload"]["result"]["content"][0]["text"] == "watered"
            entry = await current_participant.until(kind="system", event="proposal_fulfilled")
            assert entry["correlation_id"] == proposal and entry["payload"]["by"] == "operator:ada"
        assert listed(node, agent)[proposal]["status"] == "fulfilled"
        assert listed(node, agent)[proposal]["params"] == WATER["params"]
        assert (await asyncio.to_thread(person.decide, waiting["id"], "approve"))["error"] == "already_claimed"


@pytest.mark.req("X-5.1-6")
async def test_a_removed_participant_cannot_decide_from_the_inbox(node: RunningNode, person: Person) -> None:
    async with joined(node, "restricted", "full") as (agent, robot):
        first = await person.waiting(await propose(agent, robot))
        assert (await asyncio.to_thread(person.decide, first["id"], "approve"))["status"] in ("used", "done")
        await answer(robot)
        path = "/admin/participants/operator:ada"
        assert "error" not in node.admin(f"{path}/disconnect?topic=garden", "POST", {})
        second = await person.waiting(await propose(agent, robot))
        refused = await asyncio.to_thread(person.decide, second["id"], "approve")
        assert refused["error"] == "privilege_violation", refused
        node.admin(f"{path}/promote?topic=garden", "POST", {})
        assert (await asyncio.to_thread(person.decide, second["id"], "approve"))["status"] in ("used", "done")


@pytest.mark.req("X-4.2.1-6", "X-4.2.1-5", "X-N-6")
async def test_a_proposal_is_denied_rejected_and_withdrawn_each_over_each_way(
    node: RunningNode, person: Person
) -> None:
    async with joined(node, "restricted", "full", "full") as (agent, robot, human):

        async def told(status: str, proposal: str, **wanted: Any) -> None:
            event = await robot.until(kind="system", event=f"proposal_{status}", correlation_id=proposal)
            assert {name: event["payload"].get(name) for name in wanted} == wanted
            assert listed(node, agent)[proposal]["status"] == status

        denied = await propose(agent, robot)
        waiting = await person.waiting(denied)
        await asyncio.to_thread(person.decide, waiting["id"], "deny", reason="not now")
        await told("rejected", denied, reason="not now", by="local")
        over_http, over_socket, back_http, back_socket = [await propose(agent, robot) for _ in range(4)]
        await person.waiting(back_socket)
        assert post(node, agent, f"proposals/{over_http}/reject")[0] == 403
        status, said = post(node, human, f"proposals/{over_http}/reject", {"reason": "unsafe"})
        assert (status, said) == (200, {"proposalId": over_http, "status": "rejected"})
        await told("rejected", over_http, reason="unsafe", by=human.name)
        await human.send("mcp/reject", {"reason": "disagree"}, correlation_id=over_socket)
        await told("rejected", over_socket, reason="disagree", by=human.name)
        assert post(node, human, f"proposals/{back_http}/withdraw")[1]["error"] == "not_proposer"
        assert post(node, agent, f"proposals/{back_http}/withdraw")[1]["status"] == "withdrawn"
        await told("withdrawn", back_http, by=agent.name)
        await robot.send("mcp/withdraw", {}, correlation_id=back_socket)
        assert (await robot.until(event="error"))["payload"]["code"] == "not_proposer"
        await agent.send("mcp/withdraw", {}, correlation_id=back_socket)
        await told("withdrawn", back_socket, by=agent.name)
        assert post(node, agent, f"proposals/{back_http}/withdraw")[1]["error"] == "already_claimed"
        assert post(node, agent, "proposals/never/withdraw")[1]["error"] == "unknown_proposal"


@pytest.mark.req("X-8-2", "X-4.2.1-2", "X-10.2-3")
async def test_a_proposal_is_edited_and_only_what_was_signed_then_is_sent(node: RunningNode, person: Person) -> None:
    async with joined(node, "restricted", "full") as (agent, robot):
        proposal = await propose(agent, robot)
        first = (await person.waiting(proposal))["id"]
        decide = functools.partial(asyncio.to_thread, person.decide)

        async def edit(id: str, params: str) -> Any:
            return await asyncio.to_thread(node.admin, f"/approvals/{id}/edit", "POST", {"params": json.loads(params)})

        for wrong in ("[]", "null", '"x"', "3"):
            assert (await edit(first, wrong))["error"] == "invalid_body", wrong
        assert (await edit(first, '{"n": 9007199254740993}'))["error"] == "invalid_proposal"  # read in two ways
        signed_before = await asyncio.to_thread(signed_enrolment, node, first)
        edited = await edit(first, '{"name": "water", "arguments": {"litres": 2}}')
        second = edited["id"]
        assert second != first and edited["params"] == {"name": "water", "arguments": {"litres": 2}}
        assert (edited["requested_by"], edited["proposal_id"], edited["status"]) == (
            *((await asyncio.to_thread(node.admin, f"/approvals/{first}"))["requested_by"], proposal, "pending"),
        )
        assert (await asyncio.to_thread(node.admin, f"/approvals/{first}"))["status"] == "void"
        assert "error" in await decide(first, "approve")  # nothing is approved by the old one
        stolen = {"decision": "approve", "proof": signed_before}
        assert (await asyncio.to_thread(node.admin, f"/approvals/{second}", "POST", stolen))["error"] == "proof_invalid"
        assert listed(node, agent)[proposal]["status"] == "pending"
        assert "error" not in await decide(second, "approve")
        request = await answer(robot, result={"content": []})
        assert request["payload"]["params"] == {"name": "water", "arguments": {"litres": 2}}
        assert request["correlation_id"] == proposal
        envelope = await agent.until(event="proposal_fulfilled")
        assert (envelope["correlation_id"], envelope["payload"]["modified"]) == (proposal, True)
        shown = listed(node, agent)[proposal]
        assert (shown["params"], shown["modified"]) == (WATER["params"], True)
        assert shown["sent_params"] == {"name": "water", "arguments": {"litres": 2}}
        assert "proposal_void" not in [envelope["payload"].get("event") for envelope in agent.heard]
        assert (await edit(second, "{}"))["error"] == "already_claimed"


@pytest.mark.req("X-N-6", "X-4.2.1-6", "X-4-9")
async def test_a_proposal_is_rejected_and_withdrawn_over_a_websocket_and_nothing_of_it_is_published(
    node: RunningNode,
) -> None:
    async with joined(node, "restricted", "full", "full", topic="plain") as (agent, robot, human):
        first, second, third = [await propose(agent, robot) for _ in range(3)]
        for sender, kind, about, code in (
            (agent, "mcp/reject", first, "kind_not_allowed"),
            (human, "mcp/withdraw", first, "not_proposer"),
            (human, "mcp/reject", "never", "unknown_proposal"),
            (human, "mcp/reject", None, "unknown_proposal"),
            (human, "mcp/approve", first, "unknown_kind"),
        ):
            sent = await sender.send(kind, {}, correlation_id=about)
            refused = await sender.until(event="error")
            assert (refused["correlation_id"], refused["payload"]["code"]) == (sent, code)
        await human.send("mcp/reject", {"reason": "unsafe"}, correlation_id=first)
        envelope = await robot.until(event="proposal_rejected")
        assert (envelope["correlation_id"], envelope["payload"]["by"], envelope["payload"]["reason"]) == (
            first,
            human.name,
            "unsafe",
        )
        await agent.send("mcp/withdraw", {}, correlation_id=second)
        envelope = await robot.until(event="proposal_withdrawn")
        assert (envelope["correlation_id"], envelope["payload"]["by"]) == (second, agent.name)
        body = {"id": str(uuid.uuid4()), "kind": "mcp/withdraw", "correlation_id": third, "payload": {}}
        assert post(node, agent, "messages", body, "plain")[0] == 202
        assert (await robot.until(event="proposal_withdrawn"))["correlation_id"] == third
        again = await agent.send("mcp/withdraw", {}, correlation_id=second)
        assert (await agent.until(event="error"))["correlation_id"] == again
        heard = [envelope["kind"] for each in (agent, robot, human) for envelope in each.heard]
        assert "mcp/reject" not in heard and "mcp/withdraw" not in heard


@pytest.mark.req("X-4.2.1-1", "X-4.2.1-3", "X-4.2.1-5", "X-3.1-7", "X-10.2-2")
async def test_a_full_participant_fulfils_in_the_room_and_the_inbox_item_is_decided(
    node: RunningNode, person: Person
) -> None:
    async with joined(node, "restricted", "full", "full") as (agent, robot, human):
        request = {"jsonrpc": "2.0", "id": 7, **WATER}
        proposal = await propose(agent, robot)
        waiting = await person.waiting(proposal)
        fulfilment = await human.send("mcp", request, to=[robot.name], correlation_id=proposal)
        reply = await answer(robot)
        assert (reply["from"], reply["id"]) == (human.name, fulfilment)
        ended = await agent.until(event="proposal_fulfilled")
        assert ended["payload"]["by"] == human.name and ended["payload"]["fulfilment"] == fulfilment
        decided = node.admin(f"/approvals/{waiting['id']}")
        assert decided["status"] == "done" and decided["decision"]["by"] == f"room:{human.name}"
        shown = listed(node, agent)[proposal]
        assert shown["matched_by"] == "correlation_id" and "modified" not in shown
        # A second one is delivered, and named for what it is.
        again = await human.send("mcp", request, to=[robot.name], correlation_id=proposal)
        assert (await robot.until(id=again))["from"] == human.name
        refused = await human.until(event="error", correlation_id=again)
        assert refused["payload"]["code"] == "already_claimed"
        # Without a correlation it is found by what it asks for, unless two ask for the same.
        alike = await propose(agent, robot, {**WATER, "params": {"name": "water", "arguments": {"a": 1, "b": 2}}})
        await person.waiting(alike)
        spelled = {"name": "water", "arguments": {"b": 2, "a": 1.0}}
        await human.send("mcp", {**request, "params": spelled}, to=[robot.name])
        await answer(robot, error={"code": -1, "message": "no water"})
        assert (await agent.until(event="proposal_failed"))["correlation_id"] == alike
        assert listed(node, agent)[alike]["matched_by"] == "content"
        twins = [await propose(agent, robot) for _ in range(2)]
        await person.waiting(twins[1])
        await human.send("mcp", request, to=[robot.name])
        await answer(robot)
        edited = {**request, "params": {"name": "water", "arguments": {"litres": 1}}}
        await human.send("mcp", edited, to=[robot.name], correlation_id=twins[0])
        await answer(robot)
        ended = await agent.until(event="proposal_fulfilled")
        assert ended["correlation_id"] == twins[0] and ended["payload"]["modified"] is True
        shown = listed(node, agent)
        assert shown[twins[0]]["params"] == WATER["params"] and shown[twins[0]]["sent_params"] == edited["params"]
        assert shown[twins[1]]["status"] == "pending"


@pytest.mark.req("X-4.2.1-5", "X-10.2-3")
async def test_of_all_who_fulfil_a_proposal_at_once_one_participant_succeeds_and_never_its_proposer(
    node: RunningNode, person: Person
) -> None:
    async with joined(node, "full", "full") as (agent, robot):
        request = {"jsonrpc": "2.0", "id": 7, **WATER}
        proposal = await propose(agent, robot)
        waiting = await person.waiting(proposal)
        own = await agent.send("mcp", request, to=[robot.name], correlation_id=proposal)
        assert (await agent.until(event="error", correlation_id=own))["payload"]["code"] == "self_approval"
        assert (await person.waiting(proposal))["status"] == "pending"
        proofs = [signed_enrolment(node, waiting["id"]) for _ in range(4)]
        bodies = [{"decision": "approve", "proof": proof} for proof in proofs]
        path = f"/approvals/{waiting['id']}"
        results = await asyncio.gather(*(asyncio.to_thread(node.admin, path, "POST", body) for body in bodies))
        errors = [entry["error"] for entry in results if "error" in entry]
        assert errors == ["already_claimed"] * 3
        envelope = await robot.until(kind="mcp", correlation_id=proposal, **{"from": "operator:ada"})
        await robot.say("done")
        await robot.until(kind="chat")
        assert [envelope["id"] for envelope in robot.heard if envelope.get("from") == "operator:ada"] == [
            envelope["id"]
        ]


@pytest.mark.req("X-7.3-3")
async def test_the_21st_pending_proposal_is_refused_and_not_published(node: RunningNode, person: Person) -> None:
    async with joined(node, "restricted", "full", topic="few") as (agent, robot):
        sent = [await propose(agent, robot) for _ in range(3)]
        refused = await agent.until(event="error")
        assert (refused["payload"]["code"], refused["correlation_id"]) == ("rate_limited", sent[2])
        assert refused["payload"]["details"]["limit"] == 2 and refused["payload"]["details"]["retry_after_ms"] > 0
        await person.waiting(sent[1])
        assert listed(node, agent, "few").keys() == set(sent[:2])
        assert post(node, agent, f"proposals/{sent[0]}/withdraw", topic="few")[0] == 200
        await agent.until(event="proposal_withdrawn")
        again = await propose(agent, robot)
        assert (await robot.until(id=again))["kind"] == "mcp/proposal"
        assert sent[2] not in [envelope["id"] for envelope in robot.heard]


@pytest.mark.req("X-10.2-2", "X-4.2-6", "X-4.2-7")
async def test_rooms_enforce_without_the_tracker_and_a_target_must_be_there(node: RunningNode, person: Person) -> None:
    async with joined(node, "restricted", "full", topic="untracked") as (agent, robot):
        proposal = await propose(agent, robot)
        assert (await robot.until(id=proposal))["kind"] == "mcp/proposal"
        assert listed(node, agent, "untracked") == {}
    async with joined(node, "restricted", "full") as (agent, robot):
        several = await agent.send("mcp/proposal", WATER, to=[robot.name, agent.name])
        absent = await agent.send("mcp/proposal", WATER, to=["away"])
        none = await agent.send("mcp/proposal", WATER)
        for proposal, code in ((several, "one_recipient"), (none, "one_recipient"), (absent, "target_absent")):
            waiting = await person.waiting(proposal)
            assert (await asyncio.to_thread(person.decide, waiting["id"], "approve"))["error"] == code
            assert (await person.waiting(proposal))["status"] == "pending"
        shown = listed(node, agent)
        assert shown[none]["target"] is None and "targets" not in shown[none]
        assert shown[several]["target"] is None and shown[several]["targets"] == [robot.name, agent.name]
        ambiguous = set()
        for doubled in (
            '{"method":"tools/call","params":{"name":"a","name":"b"}}',
            '{"method":"tools/call","params":{"name":"a","arguments":{"o":[{"n":1,"n":2}]}}}',
            '{"method":"tools/call","params":{"name":"a"},"params":{"name":"b"}}',
            '{"method":"tools/call","params":{"name":"a"},"Params":{"name":"b"}}',
        ):
            id = str(uuid.uuid4())
            ambiguous.add(id)
            head = f'"protocol":"mcpx/v0.1","id":"{id}","to":["{robot.name}"],"kind":"mcp/proposal"'
            await agent.socket.send(f'{{{head},"payload":{doubled}}}')
            refused = await agent.until(event="error")
            assert (refused["payload"]["code"], refused["correlation_id"]) == ("invalid_proposal", id)
        last, reached = await agent.send("mcp/proposal", WATER, to=[robot.name]), []
        while not reached or reached[-1] != last:
            reached.append((await robot.next())["id"])
        assert not {several, none, last}.difference(reached) and not ambiguous.intersection(reached)


@pytest.mark.req("X-9.1-1", "X-3.1-4", "X-7.1-2")
async def test_the_workflow_of_a_restricted_agent(node: RunningNode, person: Person) -> None:
    """MCPx 9.1, step by step."""
    async with joined(node, "restricted", "full", "restricted") as (agent, robot, bystander):
        blocked = await agent.send("mcp", {"jsonrpc": "2.0", "id": 1, **WATER}, to=[robot.name])
        violation = await agent.until(kind="mcp", correlation_id=blocked)
        assert violation["payload"]["error"]["code"] == -32001
        proposal = await propose(agent, robot, {**WATER, "reason": "it is dry"})
        for current_participant in (robot, bystander):
            assert (await current_participant.until(kind="mcp/proposal"))["id"] == proposal
        waiting = await person.waiting(proposal)
        await asyncio.to_thread(person.decide, waiting["id"], "approve", reason="go on")
        reply = await answer(robot, result={"content": [{"type": "text", "text": "watered"}]})
        for current_participant in (agent, bystander):
            assert (await current_participant.until(kind="mcp", correlation_id=reply["id"]))["payload"]["result"]
            assert (await current_participant.until(event="proposal_fulfilled"))["correlation_id"] == proposal
        requests = [
            envelope for envelope in robot.heard if envelope["kind"] == "mcp" and "method" in envelope["payload"]
        ]
        assert [request["id"] for request in requests] == [reply["id"]]  # it ran once, and the blocked one never
        whole = node.admin(f"/approvals/{waiting['id']}")
        assert (whole["status"], whole["outcome"], whole["decision"]["reason"]) == ("done", "ok", "go on")

        def trail() -> Any:
            """Once the answer is in it: what is no decision is written within a second."""
            lines = [json.loads(line) for line in node.cli("audit", "export").stdout.splitlines()]
            envelopes = [line.get("record", line) for line in lines]
            return envelopes if any(entry.get("correlation_id") == reply["id"] for entry in envelopes) else None

        records = await asyncio.to_thread(wait_for, trail)
        named = [
            record
            for record in records
            if proposal in (record.get("envelope"), record.get("correlation_id"), record.get("proposal"))
        ]
        steps = [
            (request["method"], request["who"])
            for request in named
            if request["method"] not in ("approvals/raise", "approvals/move")
        ]
        assert steps == [
            ("rooms/publish", f"room:{agent.name}"),
            ("approvals/approve", "local"),
            ("rooms/publish", "operator:ada"),
        ]
        decision = next(request for request in named if request["method"] == "approvals/approve")
        assert decision["anchor"] == "ada" and decision["jti"]
        replied = [record for record in records if record.get("correlation_id") == reply["id"]]
        assert [entry["who"] for entry in replied] == [f"room:{robot.name}"] and replied[0]["args_sha256"]


@pytest.mark.req("X-9.2-1", "X-5.1-5")
async def test_trust_is_promoted_on_the_same_connection(node: RunningNode, person: Person) -> None:
    """MCPx 9.2, step by step."""
    async with joined(node, "restricted", "full", "full") as (agent, robot, human):
        request = {"jsonrpc": "2.0", "id": 5, **WATER}
        for _ in range(2):
            proposal = await propose(agent, robot)
            await person.waiting(proposal)
            await human.send("mcp", request, to=[robot.name], correlation_id=proposal)
            await answer(robot)
            await agent.until(event="proposal_fulfilled")
        seen = [
            approval
            for approval in node.admin("/approvals?kind=proposal&status=done")["approvals"]
            if approval["agent"] == agent.name
        ]
        assert len(seen) == 2
        promoted = node.admin(f"/admin/participants/{agent.name}/promote", "POST", {"reason": "two good ones"})
        assert promoted["newPrivilege"] == "full"
        direct = await agent.send("mcp", request, to=[robot.name])
        assert (await answer(robot))["id"] == direct
        assert (await agent.until(kind="mcp", correlation_id=direct))["payload"]["result"] == {"content": []}
        node.admin(f"/admin/participants/{agent.name}/demote", "POST", {})
        refused = await agent.send("mcp", request, to=[robot.name])
        assert (await agent.until(kind="mcp", correlation_id=refused))["payload"]["error"]["code"] == -32001


@pytest.mark.req("X-9.3-1", "X-6.2-1", "X-5.1-2", "X-5.1-3", "X-5.3-1")
async def test_people_and_agents_of_different_trust_work_in_one_room(node: RunningNode) -> None:
    """MCPx 9.3: by identity rule, token, default and token."""
    clients = {
        name: str(node.admin("/admin/tokens", "POST", {"name": name, "for": "client"})["token"])
        for name in ("alice", "newcomer")
    }
    expected = {"client:alice": "full", "established": "full", "client:newcomer": "restricted", "outside": "restricted"}
    secrets = {
        "client:alice": clients["alice"],
        "established": token(node, "established", "mixed", "full"),
        "client:newcomer": clients["newcomer"],
        "outside": token(node, "outside", "mixed"),
    }
    there: dict[str, Bare] = {}
    async with contextlib.AsyncExitStack() as stack:
        for name, secret in secrets.items():
            there[name] = await Bare.join(node, "mixed", secret)
            stack.push_async_callback(there[name].leave)
            welcome = (await there[name].next())["payload"]
            assert welcome["participant"] == {"id": name, "privilege": expected[name]}
        roster = {
            current_participant["id"]: current_participant["privilege"]
            for current_participant in welcome["participants"]
        } | {name: welcome["participant"]["privilege"]}
        assert roster == expected
        for name, one in there.items():
            for kind, payload in (
                ("mcp", {"method": "notifications/x"}),
                ("mcp/proposal", WATER),
                ("chat", {"text": "x"}),
            ):
                id = await one.send(kind, payload)
                passes = kind != "mcp" or expected[name] == "full"
                if passes:
                    for other in there.values():
                        assert (await other.until(id=id))["from"] == name
                else:
                    assert (await one.until(kind="mcp", correlation_id=id))["payload"]["error"]["code"] == -32001


@pytest.mark.req("X-7.3-2")
async def test_proposals_and_refusals_can_be_monitored(node: RunningNode, person: Person) -> None:
    def metrics() -> dict[str, float]:
        lines = person.read("/metrics").splitlines()
        return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines if not line.startswith("#")}

    async with joined(node, "restricted", "full", topic="few") as (agent, robot):
        before = metrics()
        proposal = await propose(agent, robot)
        await agent.send("mcp", {"id": 1}, to=[robot.name])
        waiting = await person.waiting(proposal)
        now = metrics()
        assert now['interlock_room_participants{room="few"}'] == now['interlock_room_connections{room="few"}'] == 2
        pending = 'interlock_room_proposals_pending{room="few"}'
        assert now[pending] == before[pending] + 1
        await asyncio.to_thread(person.decide, waiting["id"], "deny")
        await agent.until(event="proposal_rejected")
        after = metrics()
        grown = {name: value - before.get(name, 0) for name, value in after.items() if 'room="few"' in name}
        name = "interlock_room_proposal_decision_seconds"
        assert {one: value for one, value in grown.items() if value == 1} == {
            'interlock_room_envelopes_total{room="few",kind="mcp/proposal"}': 1,
            'interlock_room_refusals_total{room="few",code="privilege_violation"}': 1,
            'interlock_room_violations_total{room="few"}': 1,
            'interlock_room_proposals_total{room="few",status="pending"}': 1,
            'interlock_room_proposals_total{room="few",status="rejected"}': 1,
            f'{name}_count{{room="few"}}': 1,
        } | {entry: 1.0 for entry in grown if entry.startswith(f"{name}_bucket")}
        assert after[f'{name}_bucket{{room="few",le="+Inf"}}'] == after[f'{name}_count{{room="few"}}']
