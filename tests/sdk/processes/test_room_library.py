"""The library for participants, against a real node: tools, calls, proposals, and what it refuses (MCPx 4)."""

import asyncio
import json
import threading
import time
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from tests.rooms.participant import CALL, Bare, ask, token
from tests.rooms.published_v0_client import PublishedClient
from tests.support.node_process import RunningNode, running_node

from interlock.rooms.protocol.envelope import Envelope
from interlock.sdk.rooms import (
    CallFailed,
    Context,
    EnvelopeRefused,
    NoAnswer,
    Participant,
    ProposalEnded,
    RoomInvalid,
    RoomRefused,
    RoomUnreachable,
    ToolFailed,
)
from interlock.sdk.rooms import conversation as listening
from interlock.sdk.rooms.conversation import FollowedProposals

LARGE = 24  # messages, more than the gateway and the system hold for a reader
ROOMS = """
[rooms]
presence_grace_s = 0.1
per_min = { proposals = 100, chat = 1000, envelopes = 2000 }

[[room]]
topic = "garden"

[[room]]
topic = "room:t"

[[room]]
topic = "large"

[[room]]
topic = "answering"
restricted_replies = "allow"
"""


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNode]:
    with running_node(tmp_path_factory.mktemp("library"), {}, ROOMS) as started:
        yield started


def participant(node: RunningNode, privilege: str = "full", topic: str = "garden", **more: Any) -> Participant:
    """One that no other test knows."""
    name = f"{privilege}-{uuid.uuid4().hex[:8]}"
    return Participant(node.url.removesuffix("/mcp"), topic, token=token(node, name, topic, privilege), **more)


def with_tools(agent: Participant) -> Participant:
    agent.done = []  # type: ignore[attr-defined]

    @agent.tool(mutable=False)
    def dangerous_operation(target: str = "") -> str:
        "Runs."
        agent.done.append(target)  # type: ignore[attr-defined]
        return f"ran on {target}"

    @agent.tool
    async def fails() -> None:
        raise ToolFailed("no water")

    @agent.tool
    async def waits(context: Context) -> None:
        try:
            await asyncio.sleep(30)
        finally:
            agent.done.append("cancelled" if context.cancelled else "over")  # type: ignore[attr-defined]

    return agent


@pytest.mark.req("X-1-2", "X-4.1.1-1", "X-4.1-1", "X-4.1-4", "X-4.2-1", "X-4-2", "X-4-3", "X-6.3-1", "X-4-10")
async def test_a_tool_is_called_from_another_participant(node: RunningNode) -> None:
    async with with_tools(participant(node)) as agent, participant(node) as caller:
        watcher = caller.listen()
        listed = await caller.tools(agent.id)
        assert [item["name"] for item in listed] == ["dangerous_operation", "fails", "waits"]
        assert listed[0]["inputSchema"]["properties"] == {"target": {"type": "string", "default": ""}}
        answer = await caller.call(agent.id, "dangerous_operation", {"target": "bed 3"})
        assert (answer.text, answer.sender, answer.is_error) == ("ran on bed 3", agent.id, False)
        failed = await caller.call(agent.id, "fails")
        assert failed.is_error and failed.text == "no water"
        with pytest.raises(CallFailed) as unknown:
            await caller.call(agent.id, "no_such_tool")
        assert unknown.value.code == -32601
        with pytest.raises(CallFailed):
            await caller.request(agent.id, 'odd"method', {})
        entries = [heard async for heard in _until(watcher, lambda entry: "no_such_tool" in str(entry.payload))]
        methods = [entry.payload["method"] for entry in entries if entry.sender == caller.id]
        assert methods[:3] == ["initialize", "notifications/initialized", "tools/list"]  # once for each peer
        assert methods[3:] == ["tools/call"] * 3


@pytest.mark.req("X-1-2", "X-4.1-4", "X-4.1.1-1")
async def test_messages_addressed_to_others_are_seen_and_not_performed(node: RunningNode) -> None:
    async with with_tools(participant(node)) as agent:
        bare = await Bare.join(node, "garden", token(node, f"bare-{uuid.uuid4().hex[:8]}", privilege="full"))
        other = await Bare.join(node, "garden", token(node, f"bare-{uuid.uuid4().hex[:8]}", privilege="full"))
        call = {**CALL, "params": {"name": "dangerous_operation", "arguments": {"target": "production"}}}
        await bare.send("mcp", call)
        await bare.send("mcp", call, to=["somebody-else"])
        await bare.send("mcp/proposal", {"method": call["method"], "params": call["params"]}, to=[agent.id])
        for id in (42, "42", 12345678901234567890, 1):
            sent_id = await bare.send("mcp", {**call, "id": id}, to=[agent.id])
            answer = await bare.until(**{"from": agent.id})
            assert (answer["kind"], answer["correlation_id"], answer["payload"]["id"]) == ("mcp", sent_id, id)
            assert type(answer["payload"]["id"]) is type(id) and answer["to"] == [bare_id(bare)]
            assert answer["protocol"] == "mcpx/v0.1" and uuid.UUID(answer["id"]).version == 4
        both = [await entry.send("mcp", {**call, "id": 1}, to=[agent.id]) for entry in (bare, other)]
        answers = {
            entry["correlation_id"]: entry["to"] for entry in [await bare.until(**{"from": agent.id}) for _ in both]
        }
        assert sorted(answers) == sorted(both) and answers[both[0]] != answers[both[1]]
        assert agent.done == ["production"] * 6  # type: ignore[attr-defined]
        await bare.leave()
        await other.leave()


@pytest.mark.req("X-4.1-4")
async def test_an_answer_counts_only_from_the_asked_party_and_with_the_sent_id(node: RunningNode) -> None:
    robot = f"bare-{uuid.uuid4().hex[:8]}"
    bare = await Bare.join(node, "garden", token(node, robot, privilege="full"))
    other = await Bare.join(node, "garden", token(node, f"bare-{uuid.uuid4().hex[:8]}", privilege="full"))
    async with participant(node) as caller:
        asking = asyncio.create_task(caller.request(robot, "tools/call", {"name": "read"}))
        envelope = await bare.until(**{"from": caller.id, "kind": "mcp"})
        hello = {"protocolVersion": "2025-06-18", "capabilities": {}, "serverInfo": {"name": "r", "version": "1"}}
        first = {"jsonrpc": "2.0", "id": envelope["payload"]["id"], "result": hello}
        await bare.send("mcp", first, to=[caller.id], correlation_id=envelope["id"])
        while envelope["payload"].get("method") != "tools/call":
            envelope = await bare.until(**{"from": caller.id, "kind": "mcp"})
        rpc_id = envelope["payload"]["id"]
        for who, id, text in ((other, rpc_id, "forged"), (bare, f"{rpc_id}0", "another"), (bare, rpc_id, "meant")):
            result = {"jsonrpc": "2.0", "id": id, "result": {"said": text}}
            await who.send("mcp", result, to=[caller.id], correlation_id=envelope["id"])
        assert (await asyncio.wait_for(asking, 5.0)).result == {"said": "meant"}
    await bare.leave()
    await other.leave()


@pytest.mark.req("X-4.2-1")
async def test_a_call_that_became_a_proposal_is_given_up_when_its_caller_says(node: RunningNode) -> None:
    async with with_tools(participant(node)) as target, participant(node, "restricted") as agent:
        async with asyncio.timeout(10):
            with pytest.raises(NoAnswer, match=r"within 0\.3 s"):
                await agent.call(target.id, "dangerous_operation", {"target": "it"}, timeout_s=0.3)
        assert target.done == []  # type: ignore[attr-defined]
        (waiting,) = [proposal for proposal in agent.proposals if proposal.proposer == agent.id]
        await agent.withdraw(waiting.id)


def bare_id(bare: Bare) -> str:
    return str(bare.heard[0]["payload"]["participant"]["id"])


@pytest.mark.req("X-4.2-1", "X-4.2.1-1", "X-4.2.1-2", "X-4.2.1-3", "X-4.2.1-4", "X-3.1-7", "X-4.2-6", "X-4.2-4")
async def test_a_restricted_call_is_a_proposal_until_a_full_participant_performs_it(node: RunningNode) -> None:
    async with with_tools(participant(node)) as target, participant(node) as human:
        seen = human.listen()
        async with participant(node, "restricted") as agent:
            calling = asyncio.create_task(
                agent.call(target.id, "dangerous_operation", {"target": "it"}, reason="maintenance")
            )
            async for heard in seen:
                if heard.kind == "mcp/proposal":
                    break
            (proposal,) = human.proposals
            assert (proposal.proposer, proposal.target, proposal.tool) == (agent.id, target.id, "dangerous_operation")
            assert (proposal.arguments, proposal.reason) == ({"target": "it"}, "maintenance")
            assert target.done == []  # type: ignore[attr-defined]
            performed = await human.fulfil(proposal.id)
            assert (await calling).raw == performed.raw and performed.text == "ran on it"
            assert target.done == ["it"] and human.proposals == []  # type: ignore[attr-defined]
        envelopes = [heard async for heard in _until(seen, lambda entry: agent.id in entry.to)]
        fulfilment = next(
            envelope for envelope in envelopes if envelope.kind == "mcp" and envelope.correlation_id == proposal.id
        )
        answer = envelopes[-1]
        assert fulfilment.sender == human.id and fulfilment.payload["params"] == {
            "name": "dangerous_operation",
            "arguments": {"target": "it"},
        }
        assert answer.correlation_id == fulfilment.id and answer.to == (human.id, agent.id)
        assert not [envelope for envelope in envelopes if envelope.sender == agent.id and envelope.kind == "mcp"]


async def _until(listener: Any, wanted: Any) -> Any:
    async for heard in listener:
        yield heard
        if wanted(heard):
            return


async def test_arguments_may_be_changed_and_a_method_is_written_as_the_text_it_is(node: RunningNode) -> None:
    async with with_tools(participant(node)) as target, participant(node) as human:
        bare = await Bare.join(node, "garden", token(node, f"bare-{uuid.uuid4().hex[:8]}"))
        evil = 'x","params":{"name":"dangerous_operation","arguments":{"target":"evil"}},"method":"tools/call'
        first = await bare.send("mcp/proposal", {"method": evil, "params": {}}, to=[target.id])
        second = await bare.send("mcp/proposal", {"method": "tools/call", "params": {"name": "dangerous_operation"}})
        await bare.until(id=second)
        with pytest.raises(CallFailed):
            await human.fulfil(first)
        with pytest.raises(RoomInvalid, match="peer="):
            await human.fulfil(second)
        await human.fulfil(second, peer=target.id, arguments={"target": "changed"})
        assert target.done == ["changed"]  # type: ignore[attr-defined]
        await bare.leave()


async def test_messages_of_a_hostile_participant_harm_no_other(node: RunningNode) -> None:
    bare = await Bare.join(node, "garden", token(node, f"bare-{uuid.uuid4().hex[:8]}", privilege="full"))
    async with with_tools(participant(node)) as agent, participant(node) as caller:
        heard = caller.listen()
        await bare.next()
        half, digits = '"\\ud800"', "9" * 5000
        for kind, payload in (
            ("chat", f'{{"text":"hi","beside":{half}}}'),
            ("mcp/proposal", f'{{"method":"tools/call","params":{{"a":{digits},"b":{half}}},"beside":{half}}}'),
            ("mcp", f'{{"jsonrpc":"2.0","id":{digits},"method":{half}}}'),
            ("mcp", f'{{"jsonrpc":"2.0","id":1,"result":{digits}}}'),
            ("mcp", '{"jsonrpc":"2.0","id":[1],"method":"tools/call","params":7}'),
            ("mcp", "{}"),
        ):
            head = f'"protocol":"mcpx/v0.1","id":"{uuid.uuid4()}","to":["{agent.id}"],"kind":"{kind}"'
            await bare.socket.send(f'{{{head},"payload":{payload}}}')
        assert (await caller.call(agent.id, "dangerous_operation", {"target": "x"})).text == "ran on x"
        entries = [
            entry
            async for entry in _until(heard, lambda entry: entry.sender == agent.id and "ran on" in str(entry.payload))
        ]
        assert [entry.text for entry in entries if entry.kind == "chat"] == ["hi"]
        assert len([entry.payload for entry in entries if entry.sender == bare_id(bare)]) == 6
    await bare.leave()


@pytest.mark.req("X-9.2-1", "X-5.1-5")
async def test_a_promotion_holds_from_the_next_call_on_the_same_connection(node: RunningNode) -> None:
    async with with_tools(participant(node)) as target, participant(node, "restricted") as agent:
        with pytest.raises(EnvelopeRefused) as refused:
            await agent.request(target.id, "tools/list")
        assert refused.value.code == "privilege_violation"
        heard = agent.listen()
        node.admin(f"/admin/participants/{agent.id}/promote", "POST", {"reason": "good work"})
        async for entry in _until(
            heard, lambda current_entry: current_entry.payload.get("event") == "privilege_changed"
        ):
            assert entry.sender
        assert agent.privilege == "full"
        assert (await agent.call(target.id, "dangerous_operation")).text == "ran on "
        assert {peer.id: peer.privilege for peer in agent.who()}[target.id] == "full"


async def test_absent_too_slow_and_too_late_are_distinguished(node: RunningNode) -> None:
    async with with_tools(participant(node)) as target, participant(node) as caller:
        with pytest.raises(NoAnswer, match="not in the room"):
            await caller.call("nobody", "x")
        with pytest.raises(NoAnswer, match="within"):
            await caller.call(target.id, "waits", timeout_s=0.3)
        async with asyncio.timeout(5):
            while not target.done:  # type: ignore[attr-defined]  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert target.done == ["cancelled"]  # type: ignore[attr-defined]
        async with participant(node, "restricted") as mute:
            with pytest.raises(NoAnswer, match="restricted"):
                await caller.call(mute.id, "x")
            assert mute.id in [peer.id for peer in caller.who()]
        with pytest.raises(EnvelopeRefused) as large:
            await caller.say("x" * 70_000)
        assert large.value.code == "invalid_chat"


@pytest.mark.req("X-3.1-5")
async def test_where_a_room_lets_them_the_restricted_answer(node: RunningNode) -> None:
    agent = with_tools(participant(node, "restricted", "answering", restricted_replies=True))
    async with agent, participant(node, topic="answering") as caller:
        assert (await caller.call(agent.id, "dangerous_operation", {"target": "x"})).text == "ran on x"


@pytest.mark.req("X-4.1-3")
async def test_invalid_addresses_and_topics_are_reported_at_once(node: RunningNode, unused_tcp_port: int) -> None:
    address = node.url.removesuffix("/mcp")
    for wrong in ("ftp://127.0.0.1", "ws://10.0.0.1:1", f"{address}/mcp", "ws://me:secret@127.0.0.1"):
        with pytest.raises(RoomInvalid):
            Participant(wrong, "garden")
    with pytest.raises(RoomInvalid):
        Participant(address, "no topic")
    with pytest.raises(RoomRefused) as unknown:
        await Participant(address, "nowhere", token=token(node, "n", "nowhere")).open()
    assert unknown.value.code == "unknown_topic"
    with pytest.raises(RoomRefused) as stranger:
        await Participant(address, "garden", token="wrong").open()
    assert stranger.value.code == "unauthorised"
    with pytest.raises(RoomUnreachable):
        await Participant(f"ws://127.0.0.1:{unused_tcp_port}", "garden").open()
    async with participant(node) as one:
        with pytest.raises(RoomInvalid, match="one_recipient"):
            await one.request("", "tools/list")
        bare = await Bare.join(node, "garden", token(node, f"bare-{uuid.uuid4().hex[:8]}"))
        await one.notify("notifications/tools/list_changed")  # and it may go to all
        envelope = await bare.until(kind="mcp", **{"from": one.id})
        assert not envelope.get("to") and envelope["payload"]["method"] == "notifications/tools/list_changed"
        await bare.leave()


async def test_a_replaced_or_removed_participant_is_informed_and_does_not_come_back(node: RunningNode) -> None:
    result = participant(node)
    listener = result.listen()
    await result.open()
    node.admin(f"/admin/participants/{result.id}/disconnect", "POST", {})
    with pytest.raises(RoomRefused) as removed:
        async for _ in listener:
            pass
    assert removed.value.code == "removed"
    with pytest.raises(RoomRefused):
        await result.wait()
    with pytest.raises(RoomRefused):
        await result.say("still there?")
    await result.close()


@pytest.mark.req("X-5.2-3")
async def test_a_ticket_is_good_for_one_connection_and_a_function_for_each(node: RunningNode) -> None:
    name = f"ticket-{uuid.uuid4().hex[:8]}"
    bearer = token(node, name)

    async def fetch() -> str:
        _, made = await asyncio.to_thread(ask, node, "/v0/ws-ticket", bearer, "POST", {"topic": "garden"})
        return str(made["ticket"])

    address = node.url.removesuffix("/mcp")
    async with Participant(address, "garden", ticket=fetch) as one:
        assert one.id == name
    once = Participant(address, "garden", ticket=await fetch())
    await once.open()
    await once.close()
    with pytest.raises(RoomRefused, match="one connection"):
        await once.open()


async def test_ten_lines_are_an_agent_with_one_tool(node: RunningNode) -> None:
    agent = with_tools(participant(node))
    running = threading.Thread(target=lambda: asyncio.run(agent.serve()))
    running.start()
    async with participant(node) as caller:
        async with asyncio.timeout(5):
            while agent.id not in [peer.id for peer in caller.who()]:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        assert (await caller.call(agent.id, "dangerous_operation", {"target": "y"})).text == "ran on y"
        assert await caller.say("thanks", to=(agent.id,))
    agent.stop()
    await asyncio.to_thread(running.join, 10)
    assert not running.is_alive()


@pytest.mark.req("X-4.2.1-6", "X-N-6")
async def test_a_proposal_is_rejected_withdrawn_or_decided_in_the_inbox(node: RunningNode) -> None:
    async with with_tools(participant(node)) as target, participant(node) as human:
        async with participant(node, "restricted") as agent:
            request = {"target": "it"}
            id = await agent.propose(target.id, "dangerous_operation", request)
            async with asyncio.timeout(5):  # it is tracked a moment after it was published
                while not (listed := [each for each in await human.read_proposals() if each.expires_at]):  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            assert [(item.id, item.arguments) for item in listed] == [(id, request)]
            await human.reject(id, reason="unsafe")
            with pytest.raises(ProposalEnded, match=f"rejected by {human.id}: unsafe"):
                await agent.outcome(id)
            with pytest.raises(EnvelopeRefused) as over:
                await human.reject(id)
            assert over.value.code == "already_claimed"
            id = await agent.propose(target.id, "dangerous_operation", request)
            with pytest.raises(EnvelopeRefused) as violation:
                await agent.reject(id)
            assert violation.value.code == "privilege_violation"
            with pytest.raises(EnvelopeRefused) as others:
                await human.withdraw(id)
            assert others.value.code == "not_proposer"
            await agent.withdraw(id)
            with pytest.raises(ProposalEnded, match="withdrawn"):
                await agent.outcome(id)
        assert target.done == []  # type: ignore[attr-defined]


async def test_the_outcome_of_a_proposal_is_reported_once(node: RunningNode) -> None:
    """The gateway's events about proposals are stored, and resumed like all else."""
    async with participant(node) as target, participant(node) as human:
        agent = participant(node, "restricted")
        await agent.open()
        id = await agent.propose(target.id, "dangerous_operation")
        heard = agent.listen()
        lost = agent._connection._pipe
        assert lost is not None
        lost.abort()
        await human.reject(id, reason="meanwhile")
        with pytest.raises(ProposalEnded, match="meanwhile"):
            await agent.outcome(id, timeout_s=10)
        await agent.say("back")
        entries = [entry async for entry in _until(heard, lambda entry: entry.text == "back")]
        events = [entry for entry in entries if entry.correlation_id == id]
        assert [(event.payload["event"], event.is_old) for event in events] == [("proposal_rejected", True)]
        assert agent.position == entries[-1].sequence
        await agent.close()


@pytest.mark.req("X-4.2.1-5")
async def test_two_who_approve_at_the_same_moment_perform_it_once(node: RunningNode) -> None:
    async with (
        with_tools(participant(node)) as target,
        participant(node) as one,
        participant(node) as other,
        participant(node, "restricted") as agent,
    ):
        id = await agent.propose(target.id, "dangerous_operation", {"target": "once"})
        await other.say("heard")  # it comes after the proposal, for both
        done = await asyncio.gather(one.fulfil(id), other.fulfil(id), return_exceptions=True)
        refused = [each for each in done if isinstance(each, EnvelopeRefused)]
        assert [each.code for each in refused] == ["already_claimed"]
        assert (await agent.outcome(id)).text == "ran on once"
        assert target.done == ["once"]  # type: ignore[attr-defined]


@pytest.mark.req("X-4.2.1-3")
async def test_a_fulfilment_that_does_not_name_its_proposal_answers_it_all_the_same(node: RunningNode) -> None:
    """As printed in 4.2.1: the gateway finds the proposal by its content."""
    async with with_tools(participant(node)) as target, participant(node, "restricted") as agent:
        human = await Bare.join(node, "garden", token(node, f"bare-{uuid.uuid4().hex[:8]}", privilege="full"))
        calling = asyncio.create_task(agent.call(target.id, "dangerous_operation", {"target": "printed"}))
        proposal = await human.until(kind="mcp/proposal")
        request = {"jsonrpc": "2.0", "id": 44, **{key: proposal["payload"][key] for key in ("method", "params")}}
        await human.send("mcp", request, to=[target.id])
        assert (await asyncio.wait_for(calling, 5)).text == "ran on printed"
        await human.leave()


async def test_a_proposal_that_has_ended_ends_every_wait() -> None:
    proposals = FollowedProposals()
    payload = json.dumps({"method": "tools/call", "params": {"name": "x"}}).encode()
    proposals.on_proposal(Envelope(id="p", kind="mcp/proposal", payload=payload, sender="a", to=("b",)))
    waiting = proposals.outcome("p")
    envelope = Envelope(id="e", kind="system", payload=b"{}", correlation_id="p")
    proposals.on_event(envelope, {"event": "proposal_expired"})
    with pytest.raises(ProposalEnded, match="has expired"):
        await waiting
    with pytest.raises(ProposalEnded, match="has expired"):
        await proposals.outcome("p")
    assert proposals.pending() == []


@pytest.mark.req("X-6.3-2", "X-6.3-4", "X-6.3-3", "X-6.3-5", "X-4-4")
@pytest.mark.parametrize("protocol_of_token", [None, "mcp-x/v0"])
async def test_the_published_client_of_v0_chats_and_calls_and_is_called(
    node: RunningNode, protocol_of_token: str | None
) -> None:
    room = {"topic": "room:t", "participant": "alice", "privilege": "full", "protocol": protocol_of_token}
    issued = node.admin("/admin/tokens", "POST", {"name": "alice", "for": "room", "room": room})
    address = f"ws://{node.host}:{node.port}"
    alice = PublishedClient(address, "room:t", issued["token"])
    robot = Participant(address, "room:t", token=token(node, "robot", "room:t", "full"))
    moved: list[int] = []

    @robot.tool
    async def move(metres: int) -> int:
        moved.append(metres)
        await asyncio.sleep(0 if metres < 5 else 0.2)
        return metres

    heard = robot.listen()
    async with robot:
        await alice.connect()
        assert alice.participant_id == "alice" and "robot" in alice.peers
        await alice.chat("old words")
        async for envelope in heard:
            if envelope.kind == "chat":
                assert (envelope.sender, envelope.text, envelope.envelope.protocol) == (
                    "alice",
                    "old words",
                    "mcpx/v0.1",
                )
                break
        heard.close()
        await robot.say("new words")
        while (await asyncio.wait_for(alice.chats.get(), 5)) != ("robot", "new words"):
            pass  # its own message comes back to it first
        greeting = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "a", "version": "1"}}
        assert (await alice.request("robot", "initialize", greeting))["protocolVersion"] == "2025-06-18"
        await alice.notify(["robot"], "notifications/initialized")
        assert [tool["name"] for tool in (await alice.request("robot", "tools/list"))["tools"]] == ["move"]
        moving = {"name": "move", "arguments": {"metres": 3}}
        assert (await alice.request("robot", "tools/call", moving))["content"] == [{"type": "text", "text": "3"}]
        assert [tool["name"] for tool in await robot.tools("alice")] == ["turn"]
        assert (await robot.call("alice", "turn")).text == "turned"
        assert alice.calls == ["initialize", "tools/list", "tools/call"]
        # A connection that names no protocol is welcomed in both; the client reports the other one and goes on.
        other_welcome = ["Invalid protocol version: mcpx/v0.1"] if protocol_of_token is None else []
        assert alice.errors == other_welcome

        slow = asyncio.create_task(alice.request("robot", "tools/call", {"name": "move", "arguments": {"metres": 9}}))
        async with asyncio.timeout(5):
            while 9 not in moved:  # noqa: ASYNC110
                await asyncio.sleep(0.005)
        await alice.reconnect()  # it sends the same envelope again: the tool does not run twice
        assert (await slow)["content"] == [{"type": "text", "text": "9"}]
        assert moved == [3, 9]
        # Without a protocol the answer comes with the second welcome, before the client sends again.
        repeated = ["published before" in error for error in alice.errors]
        assert sum(repeated) == (0 if protocol_of_token is None else 1)
        await alice.disconnect()


@pytest.mark.req("X-5.2-6")
async def test_a_program_that_reads_slowly_is_resumed_with_nothing_missing(
    node: RunningNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listening, "HEARD_MAX", 4)
    slow = participant(node, "restricted", "large")
    listener = slow.listen()
    sender = await Bare.join(node, "large", token(node, "sender", "large", "full"))
    async with slow:
        for number in range(LARGE):
            await sender.send("mcp", {"number": number, "pad": "x" * 900_000})
            await sender.until(kind="mcp")  # the room goes on
        async with asyncio.timeout(10):
            while _connected(node) != ["sender"]:  # noqa: ASYNC110 - 4429: the gateway gave it up
                await asyncio.sleep(0.05)
        heard: list[int] = []
        async with asyncio.timeout(20):
            async for entry in listener:
                if entry.kind == "mcp":
                    heard.append(entry.payload["number"])
                    if len(heard) == LARGE:
                        break
        assert heard == list(range(LARGE)) and slow.position == LARGE
        began = time.monotonic()
        await slow.say("back")
        assert time.monotonic() - began < 5
    await sender.leave()


def _connected(node: RunningNode) -> list[str]:
    shown = node.admin("/admin/rooms/large/connections")["connections"]
    return [item["participantId"] for item in shown]
