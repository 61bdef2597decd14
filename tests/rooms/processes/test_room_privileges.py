"""The privilege of participants: who gives it, how long it lasts, and that nothing else does (MCPx 3.1, 5.1, 6.1)."""

import contextlib
import http.client
import json
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from tests.rooms.participant import CALL, Bare, ask, joined, names, token
from tests.support.node_process import RunningNode, running_node
from websockets.asyncio.client import connect

ROOMS = """
[rooms]
presence_grace_s = 0.1

[[room]]
topic = "garden"

[[room]]
topic = "open"
mode = "open"
"""


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNode]:
    with running_node(tmp_path_factory.mktemp("privileges"), {}, ROOMS) as started:
        yield started


@pytest.mark.req("X-3.1-1")
async def test_every_connection_is_full_or_restricted_and_a_third_privilege_is_refused(node: RunningNode) -> None:
    async with joined(node, *names("full", "restricted")) as there:
        old = await Bare.join(node, "garden", token(node, names("full")[0][0]), protocol="mcp-x/v0")
        listed = node.admin("/admin/rooms/garden/connections")["connections"]
        assert len(listed) == len(there) + 1
        assert {item["privilege"] for item in listed} == {"full", "restricted"}
        await old.leave()
    for wrong in ("admin", "Full", "full ", ""):
        room = {"topic": "garden", "participant": "x", "privilege": wrong}
        refused = node.admin("/admin/tokens", "POST", {"name": "x", "for": "room", "room": room})
        assert (refused["error"], refused["details"]) == ("unknown_privilege", {"member": "room.privilege"})


@pytest.mark.req("X-6.1-2", "X-5.1-3")
async def test_nothing_but_the_configuration_opens_a_room(node: RunningNode) -> None:
    ((name, _),) = names("restricted")
    room = {"topic": "garden", "participant": name}
    request = {"name": name, "for": "room", "room": room}
    for more in ({"mode": "open"}, {"room": {**room, "mode": "open"}}):
        assert node.admin("/admin/tokens", "POST", request | more)["error"] == "invalid_body"
    assert node.admin("/admin/rooms", "POST", {"topic": "new", "mode": "open"})["error"] == "invalid_body"
    secret = token(node, name)
    url = f"ws://{node.host}:{node.port}/v0/ws?topic=garden&mode=open&open=1&privilege=full"
    headers = {"Authorization": f"Bearer {secret}", "X-Mode": "open", "X-Interlock-Mode": "open", "X-Privilege": "full"}
    bare = Bare(await connect(url, additional_headers=headers))
    assert (await bare.next())["payload"]["participant"]["privilege"] == "restricted"
    await bare.say("open", mode="open", privilege="full")
    await bare.send("chat", {"text": "x", "mode": "open"})
    await bare.send("system", {"event": "mode", "mode": "open"})
    assert (await bare.until(event="error"))["payload"]["code"] == "reserved_kind"
    await bare.send("mcp", CALL, mode="open", privilege="full")
    assert (await bare.until(kind="mcp"))["payload"]["error"]["code"] == -32001
    await bare.leave()
    modes = {shown["topic"]: shown["mode"] for shown in node.admin("/admin/rooms")["rooms"]}
    assert modes["garden"] == "mixed" and [topic for topic, mode in modes.items() if mode == "open"] == ["open"]
    assert node.admin("/admin/status")["open_rooms"] == ["open"]
    warned = [line for line in (node.data.parent / "stderr.txt").read_text().splitlines() if "is open" in line]
    assert len(warned) == 1 and "room open is open" in warned[0]


@pytest.mark.req("X-10.3-1")
async def test_only_an_admin_promotes_and_never_the_own_participant(node: RunningNode) -> None:
    ((name, _),) = who = names("restricted")
    path = f"/admin/participants/{name}/promote"
    host, port = node.operator_url.removeprefix("http://").rsplit(":", 1)

    def promote(path: str, secret: str | None) -> tuple[int, Any]:
        with contextlib.closing(http.client.HTTPConnection(host, int(port), timeout=10)) as connection:
            # As MCPx 10.3 prints it: a bearer and no body.
            connection.request("POST", path, headers={} if secret is None else {"authorization": f"Bearer {secret}"})
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read())

    def operator(scope: str) -> str:
        reply = node.admin("/admin/tokens", "POST", {"name": f"op-{scope}", "for": "operator", "scope": scope})
        return str(reply["token"])

    admin = operator("admin")
    async with joined(node, *who) as (agent,), joined(node, *who, topic="open"):
        for secret, status in ((None, 401), (token(node, "other"), 401), (operator("read"), 403)):
            assert promote(f"{path}?topic=garden", secret)[0] == status
        assert promote("/admin/participants/nobody/promote", admin)[0] == 404
        status, told = promote(path, admin)
        assert (status, told["error"]) == (409, "topic_required")
        assert "garden, open" in told["message"]
        for old in ("restricted", "full"):
            status, told = promote(f"{path}?topic=garden", admin)
            assert (status, told["oldPrivilege"], told["newPrivilege"]) == (200, old, "full")
        assert (await agent.until(event="privilege_changed"))["payload"]["newPrivilege"] == "full"
    own = await Bare.join(node, "open", None)
    assert (await own.next())["payload"]["participant"]["id"] == "local"
    assert node.admin("/admin/participants/local/promote?topic=open", "POST", {})["error"] == "self_promotion"
    await own.leave()


@pytest.mark.req("X-10.3-1")
async def test_a_promotion_may_end_with_the_connection_or_at_a_time(node: RunningNode) -> None:
    ((name, _),) = names("restricted")
    path, secret = f"/admin/participants/{name}", token(node, name)

    async def privilege() -> str:
        participant = await Bare.join(node, "garden", secret)
        current_privilege = (await participant.next())["payload"]["participant"]["privilege"]
        await participant.leave()
        return str(current_privilege)

    async with joined(node, (name, "restricted")) as (agent,):
        for wrong in ({"scope": "life"}, {"until": "soon"}, {"until": "2020-01-01T00:00:00Z"}):
            assert node.admin(f"{path}/promote", "POST", wrong)["error"] == "invalid_body"
        assert node.admin(f"{path}/promote", "POST", {"scope": "connection"})["newPrivilege"] == "full"
        sent = await agent.send("mcp", CALL)
        await agent.until(id=sent)
    assert await privilege() == "restricted"
    async with joined(node, (name, "restricted")) as (agent,):
        node.admin(f"{path}/demote", "POST", {"reason": "for good"})
        until = datetime.now(UTC) + timedelta(seconds=2.5)
        done = node.admin(f"{path}/promote", "POST", {"until": until.isoformat()})
        assert done["newPrivilege"] == "full"
        assert (await agent.until(event="privilege_changed"))["payload"]["newPrivilege"] == "full"
        ended = (await agent.until(event="privilege_changed"))["payload"]
        assert (ended["newPrivilege"], ended["by"]) == ("restricted", "system:gateway")
        await agent.send("mcp", CALL)
        assert (await agent.until(kind="mcp"))["payload"]["error"]["code"] == -32001
    assert await privilege() == "restricted"  # the demotion counts again
    assert node.admin(f"{path}/promote", "POST", {"scope": "connection"})["error"] == "not_found"  # it is not here


@pytest.mark.req("X-5.1-6", "X-10.3-1")
async def test_a_participant_that_only_posts_is_demoted_and_promoted(node: RunningNode) -> None:
    ((posting, _),) = names("full")
    secret = token(node, posting, privilege="full")
    envelope = {"kind": "mcp", "payload": {"method": "notifications/x"}}
    path = f"/admin/participants/{posting}"

    def publish() -> int:
        return ask(node, "/v0/topics/garden/messages", secret, "POST", {**envelope, "id": str(uuid.uuid4())})[0]

    async with joined(node, *names("full")) as (witness,):
        assert node.admin(f"{path}/demote?topic=garden", "POST", {})["error"] == "not_found"
        assert publish() == 202
        demoted = node.admin(f"{path}/demote", "POST", {})
        assert (demoted["oldPrivilege"], demoted["newPrivilege"]) == ("full", "restricted")
        assert (await witness.until(event="privilege_changed"))["payload"]["participant"]["id"] == posting
        assert publish() == 403
        assert node.admin(f"{path}/promote?topic=garden", "POST", {})["newPrivilege"] == "full"
        assert publish() == 202
