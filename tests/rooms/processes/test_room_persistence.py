"""What a room has accepted is on disk before anyone hears it: a killed node loses none (X-10.1-2, X-5.2-6)."""

import asyncio
import contextlib
import json
import os
import signal
import socket
import sqlite3
import urllib.request
from pathlib import Path

import pytest
from tests.dispatch.processes.test_lifecycle_audit import change_record
from tests.rooms.participant import Bare, ask, token
from tests.support.node_process import RunningNode, Wire, running_node, wait_for
from websockets.exceptions import ConnectionClosed, InvalidStatus

ROOMS = """
[rooms]
per_min = { proposals = 10, chat = 60, envelopes = 1000000 }

[[room]]
topic = "garden"

[[room]]
topic = "watched"
mode = "observe"

[[room]]
topic = "short"
history_max = 10
"""
KILLS = int(os.environ.get("ROOM_KILLS", "3"))
SENT = 200
FLOOD = 5000  # X-5.2-6
AHEAD = 50  # envelopes of a sender that not everyone has heard


@pytest.mark.req("X-4-4", "X-10.1-2")
async def test_killed_in_mid_fan_out_each_stored_envelope_arrives_once_by_sequence(tmp_path: Path) -> None:
    last, heard_ever, secret = 0, {}, ""
    for round in range(KILLS):
        with running_node(tmp_path, {}, ROOMS) as node:
            secret = secret or token(node, "reader", privilege="full")
            sender = await Bare.join(node, "garden", token(node, f"sender-{round}", privilege="full"), echo="0")
            reader = await Bare.join(node, "garden", secret, sequences="1", after=str(last))
            sending = asyncio.create_task(_send(sender, round))
            live: dict[str, int] = {}
            with contextlib.suppress(ConnectionClosed, TimeoutError):
                while len(live) < SENT // 2:
                    current_envelope = await reader.next()
                    payload = current_envelope["payload"]
                    if payload.get("event") == "sequence":
                        assert payload["sequence"] == last + 1
                        last = payload["sequence"]
                        live[current_envelope["correlation_id"]] = last
                    elif payload.get("event") == "history":
                        for envelope, sequence in zip(payload["envelopes"], payload["sequences"], strict=True):
                            assert sequence == last + 1
                            last = sequence
                            heard_ever[envelope["id"]] = sequence
            node.process.send_signal(signal.SIGKILL)
            node.process.wait()
            sending.cancel()
            with contextlib.suppress(asyncio.CancelledError, ConnectionClosed):
                await sending
            await sender.leave()
            await reader.leave()
            assert not live.keys() & heard_ever.keys()
            heard_ever |= live
    with running_node(tmp_path, {}, ROOMS) as node:
        reader = await Bare.join(node, "garden", secret, after="0")
        stored: dict[str, int] = {}
        while len(stored) < len(heard_ever):
            payload = (await reader.next())["payload"]
            if payload.get("event") == "history":
                stored |= {one["id"]: at for one, at in zip(payload["envelopes"], payload["sequences"], strict=True)}
        assert stored.items() >= heard_ever.items()
        again = await Bare.join(node, "garden", token(node, "again", privilege="full"))
        await again.say("once more", id=next(iter(heard_ever)))
        assert (await again.until(event="error"))["payload"]["code"] == "duplicate_id"
        await reader.leave()
        await again.leave()


async def _send(sender: Bare, round: int) -> None:
    for number in range(SENT):
        await sender.send("mcp", {"round": round, "number": number})


@pytest.mark.req("X-5.2-6", "X-1-3")
async def test_a_reader_that_does_not_read_is_closed_and_resumes_with_nothing_missing(tmp_path: Path) -> None:
    """Delays beside such a reader are measured: bench/rooms."""
    patient = {"interlock.net.websocket:CLOSE_S": 60.0}  # for the peer's part of closing
    with running_node(tmp_path, {}, ROOMS, settings=patient) as node:
        secret = token(node, "slow")
        slow = connect_without_reading(node, secret)
        sender = await Bare.join(node, "garden", token(node, "sender", privilege="full"))
        witness = await Bare.join(node, "garden", token(node, "witness", privilege="full"), protocol="mcpx/v0.1")
        for number in range(FLOOD):
            await sender.send("mcp", {"number": number, "pad": "x" * 2000})
            if number % AHEAD == AHEAD - 1:  # those who read are never further behind
                for participant in (sender, witness):
                    while participant.heard[-1:] == [] or participant.heard[-1]["payload"].get("number") != number:
                        await participant.next()
        for participant in (sender, witness):
            assert [
                envelope["payload"]["number"] for envelope in participant.heard if envelope["kind"] == "mcp"
            ] == list(range(FLOOD))
        code, texts = await asyncio.to_thread(read_to_the_close, slow)
        assert code == 4429
        envelopes = [json.loads(text) for text in texts]
        heard = [entry for entry in envelopes if entry["kind"] == "mcp"]
        seen = [envelope["payload"]["number"] for envelope in heard]
        assert seen == list(range(len(seen))) and len(seen) < FLOOD
        back = await Bare.join(node, "garden", secret, after=heard[-1]["id"])
        while len(seen) < FLOOD:
            payload = (await back.next())["payload"]
            if payload.get("event") == "history":
                seen += [envelope["payload"]["number"] for envelope in payload["envelopes"]]
        assert seen == list(range(FLOOD))
        live = await sender.send("mcp", {"number": FLOOD})
        assert (await back.until(kind="mcp"))["id"] == live
        for participant in (back, sender, witness):
            await participant.leave()


def read_to_the_close(stuck: socket.socket) -> tuple[int, list[bytes]]:
    """The close code, and the texts before it; the frames of a server are not masked (RFC 6455 5.1)."""
    stuck.settimeout(30)
    with stuck.makefile("rb") as stream:
        while stream.readline() != b"\r\n":  # the rest of the handshake
            pass
        texts = []
        while True:
            first, second = stream.read(2)
            size = second & 0x7F
            if size >= 126:
                size = int.from_bytes(stream.read(2 if size == 126 else 8))
            data = stream.read(size)
            if first & 0x0F == 0x8:
                stuck.close()
                return int.from_bytes(data[:2]), texts
            if first & 0x0F == 0x1:
                texts.append(data)


def connect_without_reading(node: RunningNode, bearer: str, topic: str = "garden") -> socket.socket:
    stuck = socket.create_connection((node.host, node.port))
    stuck.sendall(
        f"GET /v0/ws?topic={topic}&protocol=mcpx/v0.1 HTTP/1.1\r\nhost: {node.host}:{node.port}\r\n"
        f"upgrade: websocket\r\nconnection: upgrade\r\n"
        f"sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\nsec-websocket-version: 13\r\n"
        f"authorization: Bearer {bearer}\r\n\r\n".encode()
    )
    assert stuck.recv(12) == b"HTTP/1.1 101"
    return stuck


@pytest.mark.req("X-7.3-3")
async def test_one_participant_cannot_fill_the_disk(tmp_path: Path) -> None:
    small = """
[[room]]
topic = "garden"
history_bytes = "1Mi"
[[room]]
topic = "slow"
per_min = { sent_bytes = "1Mi" }
"""
    pad = "x" * 100_000

    def stored_bytes(node: RunningNode) -> int:
        with contextlib.closing(sqlite3.connect(f"file:{node.data / 'store.db'}?mode=ro", uri=True)) as store:
            sizes = store.execute("SELECT sum(length(data)) FROM stream WHERE stream = 'rooms/garden'")
            return int(sizes.fetchone()[0])

    with running_node(tmp_path, {}, small) as node:
        secret = token(node, "sender", privilege="full")
        sender = await Bare.join(node, "garden", secret)
        last = [await sender.send("mcp", {"number": number, "pad": pad}) for number in range(40)][-1]
        await sender.until(id=last)
        await sender.leave()
        await asyncio.to_thread(wait_for, lambda: stored_bytes(node) < 1.3 * 1024 * 1024)
        slow = await Bare.join(node, "slow", token(node, "other", "slow", "full"))
        ids = [await slow.send("mcp", {"number": number, "pad": pad}) for number in range(11)]
        refused = await slow.until(event="error")
        assert (refused["payload"]["code"], refused["correlation_id"]) == ("rate_limited", ids[-1])
        assert refused["payload"]["details"]["limit"] == 1024 * 1024
        assert 0 < refused["payload"]["details"]["retry_after_ms"] <= 60_000
        await slow.leave()
    with running_node(tmp_path, {}, small) as node:  # what is kept from before counts
        before = stored_bytes(node)
        sender = await Bare.join(node, "garden", secret)
        for number in range(8):
            await sender.until(id=await sender.send("mcp", {"number": number, "pad": pad}))
        assert before > 0.5 * 1024 * 1024
        await asyncio.to_thread(wait_for, lambda: stored_bytes(node) < 1.3 * 1024 * 1024)
        await sender.leave()


@pytest.mark.req("X-8-1", "X-5.1-3")
async def test_nothing_configured_is_no_open_room_and_nobody_full(tmp_path: Path) -> None:
    with running_node(tmp_path, {}) as node:
        assert node.admin("/admin/rooms")["rooms"] == []
        assert node.admin("/admin/status")["open_rooms"] == []
        assert ask(node, "/v0/topics/garden/history", None)[0] == 404
        node.admin("/admin/rooms", "POST", {"topic": "garden"})
        (made,) = node.admin("/admin/rooms")["rooms"]
        assert made["mode"] == "mixed"
        room = {"topic": "garden", "participant": "stranger"}
        unsaid = node.admin("/admin/tokens", "POST", {"name": "stranger", "for": "room", "room": room})["token"]
        participant = await Bare.join(node, "garden", unsaid)
        assert (await participant.next())["payload"]["participant"]["privilege"] == "restricted"
        await participant.leave()
        assert ask(node, "/v0/topics/garden/history", None)[0] == 403  # whoever is on this machine is no member


@pytest.mark.req("X-8-1")
async def test_each_phase_is_a_change_of_the_configuration_and_loses_nothing(tmp_path: Path) -> None:
    entries: list[str] = []
    for mode, privilege in (
        ("open", "full"),
        ("observe", "full"),
        ("mixed", "restricted"),
        ("restricted", "restricted"),
    ):
        one_room = f'[[room]]\ntopic = "garden"\nmode = "{mode}"\nmembers = ["client:agent"]\n'
        with running_node(tmp_path, {}, one_room) as node:
            if not entries:
                secret = str(node.admin("/admin/tokens", "POST", {"name": "agent", "for": "client"})["token"])
            participant = await Bare.join(node, "garden", secret)
            assert (await participant.next())["payload"]["participant"] == {
                "id": "client:agent",
                "privilege": privilege,
            }
            await participant.until(id=await participant.say(mode))
            entries.append(mode)
            called = await participant.send("mcp", {"id": 1})
            assert ((await participant.until_either(called)).get("id") == called) is (privilege == "full")
            await participant.leave()
            history = ask(node, "/v0/topics/garden/history", secret)[1]["history"]
            texts = [each["envelope"]["payload"].get("text") for each in reversed(history)]
            assert [text for text in texts if text is not None] == entries


@pytest.mark.req("X-10.3-1", "X-7.3-1")
async def test_a_participant_that_only_posts_is_known_after_a_restart(tmp_path: Path) -> None:
    with running_node(tmp_path, {}, ROOMS) as node:
        secret = token(node, "poster", privilege="full")
        posting = Wire(node, "/v0/topics/garden/messages", secret)
        sent = json.dumps({"id": "p-1", "kind": "mcp", "payload": {"method": "x"}}).encode()
        assert (await asyncio.to_thread(posting.post, sent)).status == 202
        posting.close()
        node.stop()
    with running_node(tmp_path, {}, ROOMS) as node:
        (known,) = node.admin("/admin/rooms/garden/participants")["participants"]
        assert (known["id"], known["privilege"], known["is_present"]) == ("poster", "full", False)
        demoted = node.admin("/admin/participants/poster/demote", "POST", {"reason": "too loud"})
        assert (demoted["oldPrivilege"], demoted["newPrivilege"]) == ("full", "restricted")
        participant = await Bare.join(node, "garden", secret)
        assert (await participant.next())["payload"]["participant"]["privilege"] == "restricted"
        await participant.leave()


@pytest.mark.req("X-8-1", "X-7.1-2")
async def test_events_of_a_room_are_recorded(tmp_path: Path) -> None:
    with running_node(tmp_path, {}, ROOMS) as node:
        participant = await Bare.join(node, "garden", token(node, "agent"))
        await participant.next()
        proposal = await participant.send("mcp/proposal", {"method": "x"})
        refused = await participant.send("mcp", {"id": 1})
        await participant.until(kind="mcp")
        node.admin("/admin/participants/agent/promote", "POST", {"reason": "trusted"})
        await participant.leave()
        other = await Bare.join(node, "watched", token(node, "other", "watched"))
        observed = await other.send("mcp", {"id": 1})
        await other.until(kind="mcp", id=observed)  # everyone is full there
        await other.leave()
        node.stop()
        lines = [json.loads(line) for line in node.cli("audit", "export").stdout.splitlines()]
        records = [line.get("record", line) for line in lines]
        current_records = [
            (each["method"], each["outcome"], each.get("envelope")) for each in records if each.get("via") == "rooms"
        ]
        assert ("rooms/join", "ok", None) in current_records
        assert ("rooms/publish", "ok", proposal) in current_records
        assert ("rooms/refuse", "privilege_violation", refused) in current_records
        assert ("rooms/observe", "privilege_violation", observed) in current_records
        assert not [each for each in current_records if each[0] == "rooms/observe" and each[2] != observed]
        assert [each["reason"] for each in records if each["method"] == "rooms/promote"] == ["trusted"]
        assert node.cli("audit", "verify").returncode == 0
        changed = change_record(node.data, refused.encode(), refused[::-1].encode())
        verified = node.cli("audit", "verify", "--json")
        assert verified.returncode == 1
        assert json.loads(verified.stdout)["broken"]["sequence"] == changed


@pytest.mark.req("X-8-3", "X-8-1")
async def test_migrating_a_room_keeps_observed_participants_working(tmp_path: Path) -> None:
    with running_node(tmp_path, {}, ROOMS) as node:
        nothing = node.cli("rooms", "migrate", "watched")
        assert "nothing was observed" in nothing.stdout + nothing.stderr
        secret = token(node, "other", "watched")
        client = node.admin("/admin/tokens", "POST", {"name": "planner", "for": "client"})["token"]
        for entry in (await Bare.join(node, "watched", secret), await Bare.join(node, "watched", client)):
            await entry.until(kind="mcp", id=await entry.send("mcp", {"id": 1}))
            await entry.leave()
        participants = json.loads(node.cli("rooms", "migrate", "watched", "--json").stdout)["participants"]
        assert [
            (current_entry["participant"], current_entry["envelopes"], current_entry["kinds"], current_entry["is_full"])
            for current_entry in participants
        ] == [
            ("client:planner", 1, ["mcp"], False),
            ("other", 1, ["mcp"], False),
        ]
        assert participants[0]["remedy"] == 'full = ["client:planner"]'
        assert (
            "--for room --name other --topic watched --participant other --privilege full" in participants[1]["remedy"]
        )
        assert node.cli("rooms", "migrate", "watched", "--plan", "--apply").returncode == 2
        assert node.cli("rooms", "migrate", "nowhere").returncode == 1
        assert node.cli("rooms", "migrate", "watched", "--plan").stdout.count("keeps working with: ") == 2
        assert node.cli("rooms", "migrate", "watched", "--apply").stdout.count("is full by an admin's grant") == 2
    with running_node(tmp_path, {}, ROOMS.replace('mode = "observe"', 'mode = "mixed"')) as node:
        for bearer in (secret, client):  # though no list of the room names the client
            entry = await Bare.join(node, "watched", bearer)
            await entry.until(kind="mcp", id=await entry.send("mcp", {"id": 2}))
            await entry.leave()
        other = node.admin("/admin/tokens", "POST", {"name": "newcomer", "for": "client"})["token"]
        assert ask(node, "/v0/topics/watched/history", other)[1]["error"] == "wrong_topic"
        path, history = "/admin/participants/client:planner", "/v0/topics/watched/history"
        for change, wanted in (("demote", 200), ("promote", 200), ("disconnect", 403), ("demote", 200)):
            assert "error" not in node.admin(f"{path}/{change}?topic=watched", "POST", {})
            status, participants = ask(node, history, client)
            assert (status, participants.get("error")) == (wanted, None if wanted == 200 else "removed"), change
        again = node.cli("rooms", "migrate", "watched", "--apply")  # what an admin decided stands
        assert "keeps working with: interlock rooms promote client:planner --topic watched" in again.stdout
        assert "demoted or removed stay so" in again.stderr
        node.admin(f"{path}/disconnect?topic=watched", "POST", {})
        node.cli("rooms", "migrate", "watched", "--apply")
        assert ask(node, history, client)[1]["error"] == "removed"


async def test_a_node_that_stops_says_so_to_those_who_are_connected(tmp_path: Path) -> None:
    with running_node(tmp_path, {}, ROOMS) as node:
        participant = await Bare.join(node, "garden", token(node, "agent"))
        await participant.next()
        began = asyncio.get_running_loop().time()
        stopping = asyncio.create_task(asyncio.to_thread(node.stop))
        assert await participant.closed() == 1001
        assert await stopping == 0
        assert asyncio.get_running_loop().time() - began < 9  # not as long as calls under way may take


async def test_resuming_before_the_oldest_envelope_reports_a_gap(tmp_path: Path) -> None:
    with running_node(tmp_path, {}, ROOMS) as node:
        bearer = token(node, "one", "short", "full")
        participant = await Bare.join(node, "short", bearer)
        for number in range(30):
            await participant.until(id=await participant.say(str(number)))
        (shown,) = [each for each in node.admin("/admin/rooms")["rooms"] if each["topic"] == "short"]
        assert shown["participants"] == 1
        await participant.leave()
        wait_for(lambda: [room["participants"] for room in node.admin("/admin/rooms")["rooms"]] == [0, 0, 0])
        again = await Bare.join(node, "short", bearer, after="1")
        assert (await again.until(kind="system", event="history_gap"))["payload"]["event"] == "history_gap"
        await again.leave()


@pytest.mark.req("X-5.2-2", "X-5.1-1")
async def test_a_token_past_its_day_opens_no_room_and_ends_who_came_by_it(tmp_path: Path) -> None:
    sooner = {"interlock.access.tokens:DAY_S": 0.1, "interlock.rooms.endpoint:SWEEP_S": 0.0}
    with running_node(tmp_path, {}, ROOMS, settings=sooner) as node:

        def issue(name: str, days: int) -> str:
            room = {"topic": "garden", "participant": name}
            return str(
                node.admin("/admin/tokens", "POST", {"name": name, "for": "room", "days": days, "room": room})["token"]
            )

        stays = await Bare.join(node, "garden", issue("witness", 3650))
        await stays.until(id=await stays.say("in here"))
        secret = issue("brief", 30)  # three seconds
        brief = await Bare.join(node, "garden", secret)
        assert (await brief.next())["payload"]["event"] == "welcome"
        assert await brief.closed() == 4401
        with pytest.raises(InvalidStatus) as refused:
            await Bare.join(node, "garden", secret)
        answer = refused.value.response
        assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer")
        body = (answer.body or b"").decode()
        for path in ("history", "participants", "proposals"):
            status, told = ask(node, f"/v0/topics/garden/{path}", secret)
            assert status == 401
            body += json.dumps(told)
        assert "in here" not in body and "witness" not in body
        await stays.until(id=await stays.say("still here"))
        await stays.leave()


async def test_envelopes_older_than_the_history_limit_are_deleted(tmp_path: Path) -> None:
    with running_node(tmp_path, {}, ROOMS) as node:
        bearer = token(node, "one", privilege="full")
        participant = await Bare.join(node, "garden", bearer)
        await participant.until(id=await participant.say("of yesterday"))
        await participant.leave()
        assert kept(node, bearer) == ["of yesterday"]
    with running_node(tmp_path, {}, ROOMS.replace('"garden"', '"garden"\nhistory_days = 0')) as node:
        wait_for(lambda: kept(node, bearer) == [])


def kept(node: RunningNode, bearer: str) -> list[str]:
    request = urllib.request.Request(
        f"http://{node.host}:{node.port}/v0/topics/garden/history", headers={"authorization": f"Bearer {bearer}"}
    )
    with urllib.request.urlopen(request, timeout=10) as answer:
        body = json.load(answer)
    return [each["envelope"]["payload"]["text"] for each in body["history"]]
