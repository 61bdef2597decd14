"""The gateway of rooms, met by participants on bare WebSockets (MCPx 3 to 5, 10.3)."""

import asyncio
import contextlib
import http.client
import json
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from tests.rooms.participant import CALL, Bare, ask, joined, names, token
from tests.support.node_process import RunningNode, running_node
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from interlock.fronts.sockets import FRAME_BYTES_MAX
from interlock.rooms.room import NOTICE_EVERY_S
from interlock.sdk.rooms.connection import SENT_BYTES_MAX

ROOMS = """
[rooms]
presence_grace_s = 0.1
per_min = { proposals = 10, chat = 60, envelopes = 2000 }

[[room]]
topic = "garden"

[[room]]
topic = "small"
max_participants = 1

[[room]]
topic = "late"

[[room]]
topic = "strict"
mode = "restricted"
restricted_chat = false

[[room]]
topic = "answering"
restricted_replies = "allow"
violation_notice = true

[[room]]
topic = "open"
mode = "open"

[[room]]
topic = "members"
members = ["client:planner"]
full = ["client:alice", "local"]
"""


LIMIT = 1_048_576  # X-4-13


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNode]:
    with running_node(tmp_path_factory.mktemp("rooms"), {}, ROOMS) as started:
        yield started


@pytest.mark.req("X-4.4.1-1", "X-4.4.1-2", "X-4.4.1-3", "X-4-6", "X-4.3-2")
async def test_a_newcomer_is_welcomed_first_and_announced_to_the_others(node: RunningNode) -> None:
    (agent, _), (human, _) = names("restricted", "full")
    first = await Bare.join(node, "garden", token(node, agent))
    welcome = await first.next()
    assert (welcome["protocol"], welcome["kind"], welcome["from"], welcome["to"]) == (
        *("mcpx/v0.1", "system", "system:gateway", [agent]),
    )
    assert uuid.UUID(welcome["id"]).version == 4
    assert welcome["payload"]["event"] == "welcome"
    assert welcome["payload"]["participant"] == {"id": agent, "privilege": "restricted"}
    assert welcome["payload"]["protocol"] == "mcpx/v0.1"
    assert welcome["payload"]["history"] == {"enabled": True, "limit": 100}
    second = await Bare.join(node, "garden", token(node, human, privilege="full"))
    there = {participant["id"]: participant for participant in (await second.next())["payload"]["participants"]}
    assert there[agent] == {"id": agent, "privilege": "restricted"} and human not in there
    join = await first.until(kind="presence", event="join")
    assert join["payload"] == {"event": "join", "participant": {"id": human, "privilege": "full"}}
    assert join["from"] == "system:gateway"
    await first.say("hello")
    assert (await second.until(kind="chat"))["payload"] == {"text": "hello"}
    joins = [envelope["payload"]["participant"]["id"] for envelope in second.heard if envelope["kind"] == "presence"]
    assert human not in joins
    second.socket.transport.abort()  # a crash is a leave too
    while True:
        left = (await first.until(kind="presence"))["payload"]
        if left["participant"]["id"] == human:
            break
    assert left["event"] == "leave"
    await first.leave()


@pytest.mark.req("X-1-1", "X-3.1-2", "X-3.1-3", "X-3.1-6", "X-4-5", "X-4-10", "X-2.2-2")
async def test_accepted_envelopes_reach_everyone_unchanged(node: RunningNode) -> None:
    async with joined(node, *names("full", "restricted", "full")) as (a, b, c):
        payload = '{"jsonrpc":"2.0","id":42,"method":"invented","params":{"b":1.0,"a":1e3,"n":12345678901234567890123}}'
        head = f'"protocol":"mcpx/v0.1","id":"{uuid.uuid4()}","to":["nobody-here"],"kind":"mcp"'
        await a.socket.send(f'{{{head},"payload":{payload}}}')
        heard = [await current_participant.until(kind="mcp") for current_participant in (a, b, c)]
        assert heard[0] == heard[1] == heard[2]
        assert heard[0]["ts"].endswith("Z") and heard[0]["from"].startswith("full-")
        absent = await a.until(event="recipient_absent")
        assert absent["payload"]["absent"] == ["nobody-here"] and absent["correlation_id"] == heard[0]["id"]
        for sender, kind in ((a, "mcp/proposal"), (b, "mcp/proposal")):
            id = await sender.send(kind, {"method": "tools/call", "params": {"name": "x"}})
            for participant in (a, b, c):
                assert (await participant.until(id=id))["payload"] == {"method": "tools/call", "params": {"name": "x"}}


@pytest.mark.req("X-3.1-4", "X-3.2-2", "X-4.4.2-1", "X-4.4.2-2", "X-4.4.2-3", "X-4.4.2-4", "X-7.1-1", "X-4-10")
async def test_no_mcp_envelope_of_the_restricted_is_published(node: RunningNode) -> None:
    async with joined(node, *names("restricted", "full")) as (agent, human):
        for payload, answers in (
            (CALL, 42),
            ({**CALL, "id": "42"}, "42"),
            ({"jsonrpc": "2.0", "method": "notifications/progress"}, None),
            ({"jsonrpc": "2.0", "id": 7, "result": {}}, 7),
        ):
            id = await agent.send("mcp", payload, to=["x"], privilege="full")
            refused = await agent.until(kind="mcp")
            assert (refused["kind"], refused["from"], refused["correlation_id"]) == ("mcp", "system:gateway", id)
            assert refused["payload"] == {
                "jsonrpc": "2.0",
                "id": answers,
                "error": {
                    "code": -32001,
                    "message": "Privilege violation",
                    "data": {
                        "reason": "Restricted participants cannot send MCP messages directly",
                        "suggestion": "Use kind: 'mcp/proposal' instead",
                    },
                },
            }
        envelope_id = await agent.say("still here")
        await human.until(id=envelope_id)
        assert not [envelope for envelope in human.heard if envelope["kind"] == "mcp"]
    bearer = token(node, "reader", privilege="full")
    _, told = ask(node, "/v0/topics/garden/history?limit=20", bearer)
    assert id not in [entry["envelope"]["id"] for entry in told["history"]]


@pytest.mark.req("X-4-6", "X-4-14", "X-3.2-5", "X-4-4", "X-4-10")
async def test_each_fault_has_one_named_answer_and_the_connection_lives(node: RunningNode) -> None:
    who = names("full", "full")
    async with joined(node, *who) as (a, b):
        for envelope, wanted in (
            ("[]", "invalid_envelope"),
            ("{", "invalid_json"),
            ({"protocol": "mew/v0.4"}, "unsupported_protocol"),
            ({"kind": "mcp/request"}, "unknown_kind"),
            ({"kind": "system", "payload": {"event": "welcome"}}, "reserved_kind"),
            ({"kind": "presence"}, "reserved_kind"),
            ({"from": "somebody"}, "from_mismatch"),
            ({"payload": {}}, "invalid_chat"),
            ({"kind": "mcp/proposal"}, "invalid_proposal"),
        ):
            whole = {"protocol": "mcpx/v0.1", "id": "bad-1", "kind": "chat", "payload": {"text": "x"}}
            text = envelope if isinstance(envelope, str) else json.dumps(whole | envelope)
            await a.socket.send(text)
            refused = await a.until(event="error")
            assert (refused["kind"], refused["from"], refused["to"]) == ("system", "system:gateway", [who[0][0]])
            assert refused["payload"].keys() == {"event", "code", "message", "details"}
            assert (refused["payload"]["event"], refused["payload"]["code"]) == ("error", wanted)
            assert refused.get("correlation_id") == (None if isinstance(envelope, str) else "bad-1")
            assert refused["payload"]["message"]
        await a.socket.send(b"\x01\x02")
        assert (await a.until(event="error"))["payload"]["code"] == "invalid_envelope"
        first = await a.say("once", id="twice-" + uuid.uuid4().hex)
        await a.until(id=first)
        await a.say("once", id=first)
        refused = await a.until(event="error")
        assert (refused["payload"]["code"], refused["payload"]["details"]) == ("duplicate_id", {"identical": True})
        await a.say("other", id=first)
        assert (await a.until(event="error"))["payload"]["details"] == {"identical": False}
        end = await a.say("end")
        await b.until(id=end)
        assert [envelope["id"] for envelope in b.heard if envelope["kind"] == "chat"] == [first, end]


@pytest.mark.req("X-4-13")
async def test_a_large_envelope_is_refused_and_a_huge_frame_ends_the_connection(node: RunningNode) -> None:
    async with joined(node, *names("full")) as (a,):

        def whole(size: int) -> str:
            head = f'{{"protocol":"mcpx/v0.1","id":"{uuid.uuid4()}","kind":"mcp","payload":{{"pad":"'
            return head + "x" * (size - len(head) - 3) + '"}}'

        await a.socket.send(whole(LIMIT))
        assert (await a.until(kind="mcp"))["from"] == a.name
        await a.socket.send(whole(LIMIT + 1))
        refused = (await a.until(event="error"))["payload"]
        assert (refused["code"], refused["details"]) == ("envelope_too_large", {"limit": LIMIT, "size": LIMIT + 1})
        status, told = ask(node, "/v0/topics/garden/messages", a.secret, "POST", {"pad": "x" * LIMIT})
        assert (status, told["error"]) == (413, "envelope_too_large")
        assert told["details"] == {"limit": LIMIT, "size": LIMIT + len('{"pad": ""}')}
        await a.say("x" * 5_000_000)
        assert await a.closed() == 1009
    assert FRAME_BYTES_MAX == SENT_BYTES_MAX == 4_194_304


@pytest.mark.req("X-4-1")
async def test_twenty_invalid_messages_in_a_minute_end_the_connection(node: RunningNode) -> None:
    async with joined(node, *names("full")) as (a,):
        for _ in range(20):
            await a.socket.send("no")
        assert await a.closed() == 1008


@pytest.mark.req("X-5.2-1", "X-5.2-2", "X-5.1-1", "X-2.2-3", "X-5.2-4")
async def test_a_caller_that_may_not_join_is_refused_before_the_upgrade(node: RunningNode) -> None:
    good = token(node, "somebody")

    async def refusal(path: str, bearer: str | None, **headers: str) -> tuple[int, str]:
        sent = headers | ({} if bearer is None else {"Authorization": f"Bearer {bearer}"})
        with pytest.raises(InvalidStatus) as refused:
            await connect(f"ws://{node.host}:{node.port}{path}", additional_headers=sent)
        answer = refused.value.response
        if answer.status_code == 401:
            assert answer.headers["www-authenticate"] == "Bearer"
        return answer.status_code, json.loads(answer.body)["error"]

    assert await refusal("/v0/ws?topic=garden", "ilr_wrong") == (401, "unauthorised")
    assert await refusal("/v0/ws?topic=garden", good[:-1] + ("y" if good.endswith("x") else "x")) == (
        401,
        "unauthorised",
    )
    assert await refusal("/v0/ws", good) == (400, "topic_required")
    assert await refusal("/v0/ws?topic=small", good) == (403, "wrong_topic")
    assert await refusal("/v0/ws?topic=garden", good, Origin="https://evil.example") == (403, "bad_origin")
    cookie = f"token={good}; interlock={good}; session={good}"
    assert await refusal("/v0/ws?topic=garden", None, Cookie=cookie) == (403, "wrong_topic")  # it is `local` still
    own = {"Authorization": f"Bearer {good}", "Origin": f"http://{node.host}:{node.port}"}
    async with connect(f"ws://{node.host}:{node.port}/v0/ws?topic=garden", additional_headers=own) as page:
        assert json.loads(await page.recv())["payload"]["event"] == "welcome"
    there = token(node, "there", "nowhere")
    assert await refusal("/v0/ws?topic=nowhere", there) == (404, "unknown_topic")
    assert await refusal("/v0/ws?topic=garden&ticket=made-up", None) == (401, "unauthorised")
    connected = await Bare.join(node, "garden", good)
    await connected.next()
    node.admin("/admin/tokens/somebody", "DELETE")
    assert await connected.closed() == 4401
    assert await refusal("/v0/ws?topic=garden", good) == (401, "unauthorised")
    assert " ERROR " not in (node.data.parent / "stderr.txt").read_text()  # it is no fault of the node


def is_utc(text: str) -> bool:
    """RFC 3339, of the last minute."""
    return text.endswith("Z") and abs((datetime.now(UTC) - datetime.fromisoformat(text)).total_seconds()) < 60


@pytest.mark.req("X-5.1-5", "X-10.3-2", "X-10.1-1")
async def test_an_admin_promotes_demotes_and_removes_a_live_participant(node: RunningNode) -> None:
    (agent_id, _), (human_id, _) = who = names("restricted", "full")
    async with joined(node, *who) as (agent, human):
        (shown,) = [
            connection
            for connection in node.admin("/admin/rooms/garden/connections")["connections"]
            if connection["participantId"] == agent_id
        ]
        assert {"connectionId", "participantId", "privilege", "connectedAt"} <= shown.keys()
        assert (shown["privilege"], shown["source"], shown["topic"]) == ("restricted", "token", "garden")
        assert is_utc(shown["connectedAt"])
        done = node.admin(f"/admin/participants/{agent_id}/promote", "POST", {"reason": "good"})
        assert done.keys() == {"participantId", "oldPrivilege", "newPrivilege", "promotedBy", "promotedAt"}
        assert (done["oldPrivilege"], done["newPrivilege"]) == ("restricted", "full")
        assert (done["participantId"], done["promotedBy"]) == (agent_id, "local") and is_utc(done["promotedAt"])
        for participant in (agent, human):
            changed = (await participant.until(event="privilege_changed"))["payload"]
            assert changed["participant"] == {"id": agent_id, "privilege": "full"}
            assert (changed["oldPrivilege"], changed["newPrivilege"], changed["by"]) == ("restricted", "full", "local")
        call = await agent.send("mcp", CALL, to=[human_id])
        assert (await human.until(kind="mcp"))["id"] == call
        assert node.admin(f"/admin/participants/{agent_id}/promote", "POST", {})["oldPrivilege"] == "full"
        done = node.admin(f"/admin/participants/{agent_id}/demote", "POST", {})
        assert done.keys() == {"participantId", "oldPrivilege", "newPrivilege", "demotedBy", "demotedAt"}
        assert done["demotedBy"] == "local" and is_utc(done["demotedAt"])
        await agent.send("mcp", CALL, to=[human_id])
        assert (await agent.until(kind="mcp", **{"from": "system:gateway"}))["payload"]["error"]["code"] == -32001
        assert node.admin("/admin/participants/unknown/promote", "POST", {})["error"] == "not_found"
        done = node.admin(f"/admin/participants/{agent_id}/disconnect", "POST")
        assert done["closedConnections"] == 1 and done.keys() == {"participantId", "closedConnections", "by", "at"}
        assert done["by"] == "local" and is_utc(done["at"])
        assert await agent.closed() == 4403
        connections = node.admin("/admin/rooms/garden/connections")["connections"]
        assert agent_id not in [connection["participantId"] for connection in connections]
    # Who was removed stays out until an admin decides on it; a demotion beats a token that says full.
    secret = token(node, agent_id, privilege="full")
    with pytest.raises(InvalidStatus) as refused:
        await Bare.join(node, "garden", secret)
    assert (refused.value.response.status_code, b'"removed"' in refused.value.response.body) == (403, True)
    node.admin(f"/admin/participants/{agent_id}/demote", "POST", {})
    again = await Bare.join(node, "garden", secret)
    assert (await again.next())["payload"]["participant"]["privilege"] == "restricted"
    await again.leave()


@pytest.mark.req("X-4.4.1-5")
async def test_a_newer_connection_replaces_the_older_without_a_leave(node: RunningNode) -> None:
    (name, _), (other, _) = names("restricted", "full")
    bearer = token(node, name)
    async with joined(node, (other, "full")) as (watching,):
        participant = await Bare.join(node, "garden", bearer)
        await watching.until(kind="presence")
        for _ in range(5):
            newer = await Bare.join(node, "garden", bearer)
            await newer.next()
            assert await participant.closed() == 4409
            participant = newer
        with pytest.raises(InvalidStatus) as refused:
            await Bare.join(node, "garden", bearer)
        assert refused.value.response.status_code == 409
        await asyncio.sleep(0.3)  # longer than a leave would wait
        envelope_id = await participant.say("still here")
        await watching.until(id=envelope_id)
        envelopes = [heard["payload"] for heard in watching.heard if heard["kind"] == "presence"]
        assert [each["event"] for each in envelopes if each["participant"]["id"] == name] == ["join"]
        present = ask(node, "/v0/topics/garden/participants", bearer)[1]["participants"]
        assert [each["id"] for each in present].count(name) == 1
        heard = await watching.say("to the one that stayed")
        await participant.until(id=heard)
        await participant.leave()


@pytest.mark.req("X-4.4.1-6", "X-N-4", "X-5.2-7")
async def test_history_is_wrapped_and_meets_live_traffic_without_gap_or_overlap(node: RunningNode) -> None:
    async with joined(node, *names("full")) as (a,):
        for number in range(30):
            await a.send("mcp", {"n": number})
        for _ in range(30):
            await a.until(kind="mcp")
        tenth = next(envelope["id"] for envelope in a.heard if envelope["payload"].get("n") == 10)

        async def send_on() -> None:
            for number in range(30, 130):
                await a.send("mcp", {"n": number})

        sending = asyncio.create_task(send_on())
        back = await Bare.join(node, "garden", token(node, "back", privilege="full"), after=tenth)
        assert (await back.next())["payload"]["event"] == "welcome"
        seen: list[int] = []
        while not seen or seen[-1] != 129:
            envelope = await back.next()
            if envelope["payload"].get("event") == "history":
                assert envelope["kind"] == "system"
                seen += [current_envelope["payload"]["n"] for current_envelope in envelope["payload"]["envelopes"]]
            elif envelope["kind"] == "mcp":
                seen.append(envelope["payload"]["n"])
        await sending
        assert seen == list(range(11, 130))
        await back.leave()
        late = await Bare.join(node, "garden", token(node, "late"), history="3")
        assert (await late.next())["payload"]["event"] == "welcome"
        payload = (await late.next())["payload"]
        assert (payload["event"], payload["more"]) == ("history", False)
        assert [envelope["payload"]["n"] for envelope in payload["envelopes"]] == [127, 128, 129]
        await late.leave()
        with pytest.raises(InvalidStatus) as too_many:
            await Bare.join(node, "garden", token(node, "late"), history="1001")
        assert too_many.value.response.status_code == 400
        lost = await Bare.join(node, "garden", token(node, "lost"), after="never-was")
        await lost.next()
        await lost.until(event="history_gap")
        await lost.leave()
    bearer = token(node, "poller")
    status, payload = ask(node, f"/v0/topics/garden/history?after={tenth}&limit=5", bearer)
    assert status == 200 and [entry["envelope"]["payload"]["n"] for entry in payload["history"]] == [11, 12, 13, 14, 15]
    assert payload["more"] is True and payload["history"][0]["received_at"].endswith("Z")
    status, payload = ask(node, f"/v0/topics/garden/history?before={tenth}&limit=2", bearer)
    assert [entry["envelope"]["payload"]["n"] for entry in payload["history"]] == [9, 8]
    assert ask(node, "/v0/topics/garden/history?limit=1001", bearer)[0] == 400
    assert ask(node, "/v0/topics/garden/history", None)[0] == 403  # `local` is no member of it
    assert ask(node, "/v0/topics/small/history", bearer) == (
        403,
        {"error": "wrong_topic", "message": "this token is for another room", "details": {}},
    )


def unnamed(node: RunningNode, path: str) -> tuple[int, str | None]:
    """What is told one without a token who is not at this machine."""
    connection = http.client.HTTPConnection(node.host, node.port, timeout=10)
    with contextlib.closing(connection):
        connection.request("GET", path, headers={"x-forwarded-for": "192.0.2.1"})
        answer = connection.getresponse()
        return answer.status, answer.getheader("www-authenticate")


@pytest.mark.req("X-5.2-8", "X-4-13", "X-4-14", "X-5.2-7")
async def test_over_http_the_same_is_enforced(node: RunningNode) -> None:
    async with joined(node, *names("full")) as (a,):
        bearer = token(node, "poster")
        path = "/v0/topics/garden/messages"
        id = uuid.uuid4().hex
        status, told = ask(node, path, bearer, "POST", {"id": id, "kind": "chat", "payload": {"text": "posted"}})
        assert (status, told["id"], told["status"]) == (202, id, "accepted")
        heard = await a.until(kind="chat")
        assert (heard["from"], heard["ts"]) == ("poster", told["ts"])
        status, told = ask(node, path, bearer, "POST", {"id": "v", "kind": "mcp", "payload": CALL})
        assert status == 403 and told["error"]["code"] == -32001 and told["id"] == 42
        for envelope, wanted in (
            ({"id": "v", "kind": "chat", "payload": {}}, (400, "invalid_chat")),
            ({"id": id, "kind": "chat", "payload": {"text": "posted"}}, (409, "duplicate_id")),
            ({"id": "v", "from": "me", "kind": "chat", "payload": {"text": ""}}, (403, "from_mismatch")),
            ({"id": "v", "kind": "chat", "payload": {"text": "x" * 1_100_000}}, (413, "envelope_too_large")),
        ):
            status, told = ask(node, path, bearer, "POST", envelope)
            assert (status, told["error"]) == wanted and told.keys() == {"error", "message", "details"}
        status, told = ask(node, "/v0/topics/garden/rate-limit", bearer)
        assert told.keys() == {"messages", "chatMessages", "proposals", "resetTime"} and told["chatMessages"] >= 1
        status, told = ask(node, "/v0/topics", bearer)
        assert told == {"topics": ["garden"]}
        status, told = ask(node, "/v0/topics/garden/participants", bearer)
        assert "full" in [participant["privilege"] for participant in told["participants"]]
        assert ask(node, "/v0/nothing", bearer)[0] == 404
        for what in ("/v0/topics", "/v0/topics/garden/history", "/v0/topics/garden/rate-limit"):
            assert unnamed(node, what) == (401, "Bearer")


@pytest.mark.req("X-5.2-3")
async def test_a_browser_comes_in_by_a_ticket_once(node: RunningNode) -> None:
    bearer = token(node, "page")
    status, told = ask(node, "/v0/ws-ticket", bearer, "POST", {"topic": "garden"})
    assert status == 200 and told["expires_in"] == 30
    page = await Bare.join(node, "garden", None, ticket=told["ticket"])
    assert (await page.next())["payload"]["participant"]["id"] == "page"
    used = [told["ticket"]]

    async def refused(topic: str, ticket: str, **headers: str) -> int:
        with pytest.raises(InvalidStatus) as turned_away:
            url = f"ws://{node.host}:{node.port}/v0/ws?topic={topic}&ticket={ticket}"
            await connect(url, additional_headers=headers)
        return turned_away.value.response.status_code

    assert await refused("garden", used[0]) == 401
    status, told = ask(node, "/v0/ws-ticket", bearer, "POST", {"topic": "garden"})
    assert await refused("small", told["ticket"]) == 401
    used.append(told["ticket"])
    status, told = ask(node, "/v0/ws-ticket", bearer, "POST", {"topic": "garden"})
    assert await refused("garden", told["ticket"], Origin=f"http://{node.host}:{node.port}") == 401  # asked without
    used.append(told["ticket"])
    status, told = ask(node, "/v0/ws-ticket", bearer, "POST", {"topic": "garden"})
    leaver = token(node, "leaver")
    status, ended = ask(node, "/v0/ws-ticket", leaver, "POST", {"topic": "garden"})
    assert (status, node.cli("access", "revoke", "leaver").returncode) == (200, 0)
    assert await refused("garden", ended["ticket"]) == 401  # the ticket ended with its token
    used.append(ended["ticket"])
    again = await Bare.join(node, "garden", None, ticket=told["ticket"])
    await again.leave()
    assert ask(node, "/v0/ws-ticket", bearer, "POST", {"topic": "small"})[0] == 403
    assert ask(node, "/v0/ws-ticket", bearer, "POST", [])[0] == 400
    await page.leave()
    logged = (node.data.parent / "stderr.txt").read_text()
    assert not [ticket for ticket in used if ticket in logged]


def test_one_participant_cannot_take_the_tickets_of_all(node: RunningNode) -> None:
    greedy, other = token(node, "greedy"), token(node, "other")
    answers = [ask(node, "/v0/ws-ticket", greedy, "POST", {"topic": "garden"})[0] for _ in range(51)]
    assert answers == [200] * 50 + [429]
    assert ask(node, "/v0/ws-ticket", other, "POST", {"topic": "garden"})[0] == 200


@pytest.mark.req("X-7.3-3")
async def test_the_eleventh_proposal_in_a_minute_is_refused(node: RunningNode) -> None:
    who = names("restricted", "full")
    async with joined(node, *who) as (agent, human):
        for _ in range(11):
            last = await agent.send("mcp/proposal", {"method": "x"})
        refused = await agent.until(event="error")
        assert (refused["payload"]["code"], refused["correlation_id"]) == ("rate_limited", last)
        assert 0 < refused["payload"]["details"]["retry_after_ms"] <= 60_000
        id = await human.send("mcp/proposal", {"method": "x"})
        assert (await human.until(id=id))["kind"] == "mcp/proposal"
        assert sum(envelope["kind"] == "mcp/proposal" for envelope in human.heard) == 11
        assert last not in [envelope["id"] for envelope in human.heard] and last not in json.dumps(
            node.admin("/approvals")
        )
    async with joined(node, who[0]) as (agent,):  # it holds over a reconnect
        again = await agent.send("mcp/proposal", {"method": "x"})
        assert (await agent.until_either(again))["payload"]["code"] == "rate_limited"


@pytest.mark.req("X-3.1-5", "X-5.3-2", "X-4-10")
async def test_a_room_may_let_the_restricted_answer_and_tell_of_violations(node: RunningNode) -> None:
    who = names("restricted", "full")
    agent_id = who[0][0]
    async with joined(node, *who, topic="answering") as (agent, human):
        sent_id = await human.send("mcp", CALL, to=[agent_id])
        await agent.until(id=sent_id)
        answer = await agent.send(
            "mcp", {"jsonrpc": "2.0", "id": 42, "result": {}}, correlation_id=sent_id, to=[agent_id, who[1][0]]
        )
        assert (await human.until(id=answer))["payload"]["result"] == {}
        # Neither a second answer nor an answer to one's own answer passes.
        refused_ids = []
        for again in (sent_id, answer):
            id = await agent.send(
                "mcp", {"jsonrpc": "2.0", "id": 42, "result": {}}, correlation_id=again, to=[agent_id]
            )
            refused = await agent.until(kind="mcp", **{"from": "system:gateway"})
            assert refused["payload"]["error"]["code"] == -32001
            refused_ids.append(id)
        notice = (await human.until(event="privilege_violation"))["payload"]
        assert notice["participant"] == agent_id and notice["kind"] == "mcp" and "payload" not in notice
        assert notice.keys() == {"event", "participant", "envelope", "kind"} and notice["envelope"] == refused_ids[0]
        await human.until(id=await human.say("end"))
        events = [envelope["payload"].get("event") for envelope in human.heard]
        assert events.count("privilege_violation") == 1 and NOTICE_EVERY_S == 10  # of the two
        assert not {*refused_ids} & {envelope["id"] for envelope in human.heard}
    async with joined(node, *who) as (agent, human):
        await agent.send("mcp", CALL)
        await agent.until(kind="mcp", **{"from": "system:gateway"})
        sent_id = await human.send("mcp", CALL, to=[agent_id])
        mute = await human.until(event="recipient_cannot_answer")
        assert (mute["correlation_id"], mute["payload"]["participants"]) == (sent_id, [agent_id])
        assert "privilege_violation" not in [
            envelope["payload"].get("event") for envelope in human.heard
        ]  # the default


@pytest.mark.req("X-6.1-1", "X-N-3", "X-3.1-8", "X-2.2-3")
async def test_modes_members_and_limits_of_rooms(node: RunningNode) -> None:
    async with joined(node, *names("full"), topic="strict") as (a,):
        await a.say("quiet")
        assert (await a.next())["payload"]["code"] == "kind_not_allowed"  # mode restricted: its token says full
    async with joined(node, *names("full"), topic="small"):
        with pytest.raises(InvalidStatus) as refused:
            await Bare.join(node, "small", token(node, "second", "small"))
        assert json.loads(refused.value.response.body)["error"] == "room_full"
    instance = {
        name: node.admin("/admin/tokens", "POST", {"name": name, "for": "client"})["token"]
        for name in ("planner", "alice", "mallory")
    }
    for topic, name, wanted in (
        ("members", "planner", "restricted"),
        ("members", "alice", "full"),
        ("open", "mallory", "full"),
    ):
        current_participant = await Bare.join(node, topic, instance[name])
        assert (await current_participant.next())["payload"]["participant"] == {
            "id": f"client:{name}",
            "privilege": wanted,
        }
        await current_participant.leave()
    # MCPx 6.1: also by a token of the room that names no privilege. One that says restricted stays restricted.
    for given, wanted in ((None, "full"), ("restricted", "restricted")):
        participant = await Bare.join(node, "open", token(node, f"newcomer-{wanted}", "open", given))
        assert (await participant.next())["payload"]["participant"]["privilege"] == wanted
        await participant.leave()
    participant = await Bare.join(node, "members", token(node, "newcomer", "members", None))
    assert (await participant.next())["payload"]["participant"]["privilege"] == "restricted"
    await participant.leave()
    node.admin("/admin/participants/client:mallory/demote?topic=open", "POST", {})
    current_participant = await Bare.join(node, "open", instance["mallory"])
    assert (await current_participant.next())["payload"]["participant"]["privilege"] == "restricted"
    await current_participant.leave()
    with pytest.raises(InvalidStatus) as refused:
        await Bare.join(node, "open", "ilr_unknown")
    assert refused.value.response.status_code == 401
    assert unnamed(node, "/v0/topics/open/history") == (401, "Bearer")
    with pytest.raises(InvalidStatus) as refused:
        await Bare.join(node, "members", instance["mallory"])
    assert refused.value.response.status_code == 403
    here = await Bare.join(node, "members", None)
    assert (await here.next())["payload"]["participant"] == {"id": "local", "privilege": "full"}
    await here.leave()
    for participant in ("system:x", "interlock"):
        room = {"topic": "garden", "participant": participant}
        assert node.admin("/admin/tokens", "POST", {"name": "x", "for": "room", "room": room})["error"] == "reserved_id"


@pytest.mark.req("X-5.2-5")
async def test_envelopes_sent_with_the_handshake_are_checked_after_the_welcome(node: RunningNode) -> None:
    early = {"protocol": "mcpx/v0.1", "id": "early", "kind": "mcp", "payload": CALL}
    text = json.dumps(early).encode()
    frame = bytes((0x81, 0x80 | 126)) + len(text).to_bytes(2, "big") + b"\0\0\0\0" + text
    reader, writer = await asyncio.open_connection(node.host, node.port)
    writer.write(
        f"GET /v0/ws?topic=garden HTTP/1.1\r\nhost: {node.host}:{node.port}\r\nupgrade: websocket\r\n"
        f"connection: upgrade\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\nsec-websocket-version: 13\r\n"
        f"authorization: Bearer {token(node, 'hasty')}\r\n\r\n".encode()
        + frame
    )
    heard = b""
    async with asyncio.timeout(10):
        while b"-32001" not in heard:
            heard += await reader.read(65536)
    assert 0 < heard.index(b'"welcome"') < heard.index(b"-32001")
    writer.close()


@pytest.mark.req("X-5.1-1", "X-2.2-3")
async def test_the_command_line_shows_rooms_and_changes_them(node: RunningNode) -> None:
    assert node.cli("rooms", "create", "workshop").returncode == 0
    again = node.cli("rooms", "create", "workshop")
    assert again.returncode == 1 and "already" in again.stderr
    listed = node.cli("rooms", "list").stdout
    assert "garden" in listed and "workshop" in listed
    output = node.cli(
        *("access", "token", "--for", "room", "--topic", "workshop", "--participant", "planner", "--name", "planner")
    )
    (issued,) = [
        current_token
        for current_token in node.admin("/admin/tokens")["tokens"]
        if current_token["name"] == "planner" and current_token["door"] == "room"
    ]
    lasts = datetime.fromisoformat(issued["expires_at"]) - datetime.now(UTC)
    assert 29.9 < lasts.total_seconds() / 86_400 <= 30
    secret = output.stdout.strip()
    assert secret not in json.dumps(issued) + node.cli("access", "list", "--json").stdout
    for path in node.data.rglob("*"):
        assert not path.is_file() or secret.encode() not in path.read_bytes()
    async with contextlib.AsyncExitStack() as stack:
        planner = await Bare.join(node, "workshop", secret)
        stack.push_async_callback(planner.leave)
        await planner.next()
        assert "planner" in node.cli("rooms", "show", "workshop").stdout
        assert "full" in node.cli("room", "promote", "planner", "--reason", "trusted").stdout
        assert (await planner.next())["payload"]["newPrivilege"] == "full"
        assert node.cli("rooms", "demote", "planner", "--topic", "workshop", "--json").returncode == 0
        assert node.cli("rooms", "disconnect", "planner").returncode == 0
        assert await planner.closed() == 4403
    missing = node.cli("rooms", "show", "gardn")
    assert missing.returncode == 1 and "garden" in missing.stderr
    assert node.cli("access", "token", "--for", "room", "--name", "x").returncode == 2


@pytest.mark.req("X-1-1", "X-4-8")
async def test_a_connection_may_ask_for_less_and_other_rooms_receive_nothing(node: RunningNode) -> None:
    who = names("full", "full", "full")
    async with joined(node, *who[:2]) as (a, b), joined(node, who[2], topic="open") as (elsewhere,):
        quiet = await Bare.join(node, "garden", token(node, "quiet", privilege="full"), echo="0", deliver="directed")
        await quiet.next()
        own = await quiet.say("my own")
        await a.until(id=own)
        to_b = await a.send("mcp", CALL, to=[who[1][0]])
        to_quiet = await a.send("mcp", CALL, to=["quiet"])
        broadcast = await a.say("to all")
        for id in (own, to_b, to_quiet, broadcast):
            await b.until(id=id)
        await quiet.until(id=broadcast)
        assert [envelope["id"] for envelope in quiet.heard if envelope["kind"] in ("mcp", "chat")] == [
            to_quiet,
            broadcast,
        ]
        end = await elsewhere.say("here")
        await elsewhere.until(id=end)
        envelopes = [
            envelope["id"]
            for envelope in elsewhere.heard
            if envelope["kind"] in ("mcp", "chat") and envelope["from"] != "interlock"
        ]
        assert envelopes == [end]
        await quiet.leave()


async def test_a_slow_body_is_checked_with_the_rights_at_its_end(node: RunningNode) -> None:
    ((name, _),) = names("full")
    bearer = token(node, name, privilege="full")
    async with joined(node, (name, "full")):
        body = json.dumps({"id": uuid.uuid4().hex, "kind": "mcp", "payload": CALL}).encode()
        reader, writer = await asyncio.open_connection(node.host, node.port)
        head = (
            f"POST /v0/topics/garden/messages HTTP/1.1\r\nhost: {node.host}:{node.port}\r\n"
            f"authorization: Bearer {bearer}\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        )
        writer.write(head.encode() + body[:10])
        await writer.drain()
        await asyncio.sleep(0.1)
        node.admin(f"/admin/participants/{name}/demote", "POST", {})
        writer.write(body[10:])
        async with asyncio.timeout(10):
            assert (await reader.readline()).split()[1] == b"403"
        writer.close()


async def test_answers_to_a_participants_own_requests_count_toward_its_rate(node: RunningNode) -> None:
    ((name, _),) = names("full")
    async with joined(node, (name, "full")) as (a,):
        sent_id = await a.send("mcp", CALL, to=[name])
        for _ in range(61):
            await a.say("again", correlation_id=sent_id)
        assert (await a.until(event="error"))["payload"]["code"] == "rate_limited"


async def test_a_flood_of_refusals_is_not_written_down_line_by_line(node: RunningNode) -> None:
    ((name, _),) = names("restricted")
    async with joined(node, (name, "restricted")) as (a,):
        for _ in range(150):
            await a.send("mcp", CALL)
        for _ in range(150):
            await a.until(kind="mcp")
    reply = node.admin("/admin/audit?limit=1000")
    lines = [
        record
        for record in reply["records"]
        if name in json.dumps(record) and "privilege_violation" in json.dumps(record)
    ]
    assert 0 < len(lines) <= 60


@pytest.mark.req("X-5.2-7", "X-2.2-3")
async def test_history_before_a_time_ends_there(node: RunningNode) -> None:
    secret = token(node, "historian", "late", "full")

    def read(**query: str) -> list[Any]:
        text = "&".join(f"{name}={value}" for name, value in query.items())
        status, told = ask(node, f"/v0/topics/late/history?{text}", secret)
        assert status == 200, told
        return [entry["envelope"]["payload"]["text"] for entry in told["history"]]

    for number in range(7):
        body = {"kind": "chat", "id": f"late-{number}", "payload": {"text": str(number)}}
        assert ask(node, "/v0/topics/late/messages", secret, "POST", body)[0] == 202
        await asyncio.sleep(0.002)  # times have milliseconds
    history = ask(node, "/v0/topics/late/history", secret)[1]["history"]
    times = {entry["envelope"]["id"]: entry["received_at"] for entry in history}
    assert read(before=times["late-4"], limit="2") == ["3", "2"]
    assert read(before=times["late-4"].replace("Z", "%2B00:00")) == ["3", "2", "1", "0"]
    assert read(before=times["late-0"]) == [] and read(before="2020-01-01T00:00:00Z") == []
    assert read(before="2999-01-01T00:00:00.123456789%2B05:00", limit="1") == ["6"]
    assert read(before="late-4", limit="1") == ["3"]
    assert ask(node, "/v0/topics/late/history?before=2026-13-45T99:00:00Z", secret)[0] == 404


@pytest.mark.req("X-4.4.1-2", "X-4.4.1-3")
async def test_name_and_kind_of_a_participant_are_shown_to_the_others(node: RunningNode) -> None:
    ((robot, _),) = names("full")
    async with joined(node, *names("restricted")) as (witness,):
        secret = token(node, robot, privilege="full")
        participant = await Bare.join(node, "garden", secret, name="Rob%20Ott", kind="robot", mcp="2025-11-25")
        shown = {"id": robot, "privilege": "full", "name": "Rob Ott", "kind": "robot", "mcp": {"version": "2025-11-25"}}
        assert (await participant.next())["payload"]["participant"] == shown
        assert (await witness.until(kind="presence", event="join"))["payload"]["participant"] == shown
        async with joined(node, *names("full")) as (newcomer,):
            assert newcomer.heard[0]["payload"]["participants"].count(shown) == 1
        assert shown in ask(node, "/v0/topics/garden/participants", secret)[1]["participants"]
        await participant.leave()
        while (left := (await witness.until(kind="presence", event="leave"))["payload"]["participant"])["id"] != robot:
            pass  # those of earlier tests leave too
        assert left == shown
        envelopes = [envelope["payload"] for envelope in witness.heard if envelope["kind"] == "presence"]
        assert [entry["event"] for entry in envelopes if entry["participant"]["id"] == robot] == ["join", "leave"]
        for wrong in ({"name": "a%00b"}, {"name": "x" * 65}, {"kind": "ghost"}, {"mcp": "latest"}):
            with pytest.raises(InvalidStatus) as refused:
                await Bare.join(node, "garden", secret, **wrong)
            assert refused.value.response.status_code == 400


@pytest.mark.req("X-N-2", "X-3.2-5")
def test_ids_are_short_plain_and_not_the_gateways(node: RunningNode) -> None:
    def issue(participant: str) -> Any:
        room = {"topic": "garden", "participant": participant}
        return node.admin("/admin/tokens", "POST", {"name": "ids", "for": "room", "room": room})

    for good in ("a", "A.b_c-d:9", "x" * 64):
        assert "token" in issue(good), good
    for reserved in ("interlock", "system:gateway", "system:x"):
        assert issue(reserved)["error"] == "reserved_id"
    for bad, error in (
        *(("", "invalid_body"), ("x" * 65, "invalid_body")),
        *((id, "bad_participant") for id in ("a b", "a\nb", "é", "a/b", "a\x00")),
    ):
        assert issue(bad)["error"] == error, bad
