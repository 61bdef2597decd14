"""The terminal client, driven by textual's pilot at 80 columns, in a room of a real node."""

import asyncio
import os
import pty
import sys
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from tests.rooms.participant import Bare, token
from tests.rooms.processes.test_room_persistence import connect_without_reading
from tests.support.node_process import RunningNode, running_node
from textual.pilot import Pilot
from textual.widgets import Input, OptionList, RichLog, Static

from interlock.cli.command import Invocation
from interlock.fronts import sockets
from interlock.rooms import cli as rooms_join
from interlock.rooms.cli import client as client
from interlock.sdk.rooms import Participant, ProposalEnded, RoomRefused
from interlock.wire.refusal import Refused

ROOMS = """
[rooms]
presence_grace_s = 0.1

[[room]]
topic = "garden"

[[room]]
topic = "watched"
presence_heartbeat_s = 1
"""
PINGS = {  # instead of a minute
    "interlock.fronts.sockets:PING_EVERY_S": 1.0,
    "interlock.fronts.sockets:PONG_WITHIN_S": 1.5,
}
SOON_S = 10.0


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNode]:
    with running_node(tmp_path_factory.mktemp("client"), {}, ROOMS, settings=PINGS) as started:
        yield started


def participant(node: RunningNode, id: str, privilege: str = "full", **more: Any) -> Participant:
    bearer = token(node, id, privilege=privilege)
    return Participant(node.url.removesuffix("/mcp"), "garden", token=bearer, **more)


@asynccontextmanager
async def shown(person: Participant, columns: int = 80) -> AsyncIterator[tuple[client.RoomApp, Pilot[int]]]:
    app = client.RoomApp(person, person.listen())
    async with person, app.run_test(size=(columns, 24)) as pilot:
        yield app, pilot


async def until(pilot: Pilot[int], true: Callable[[], bool]) -> None:
    async with asyncio.timeout(SOON_S):
        while not true():
            await pilot.pause(0.02)


async def enter(app: client.RoomApp, pilot: Pilot[int], line: str) -> None:
    app.query_one(Input).value = line
    await pilot.press("enter")


def said(app: client.RoomApp) -> str:
    return "\n".join(strip.text for strip in app.query_one(RichLog).lines)


def text(app: client.RoomApp, selector: str) -> str:
    return str(app.query_one(selector, Static).content)


def proposals(app: client.RoomApp) -> int:
    return app.query_one(OptionList).option_count


@pytest.mark.req("X-2.2-1", "X-8-2", "X-4.2.1-1")
async def test_a_person_reads_speaks_and_decides_with_one_key(
    node: RunningNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "SETTLE_S", 0.0)
    target = participant(node, "sensors")
    watered: list[int] = []

    @target.tool
    async def water(bed: int) -> str:
        watered.append(bed)
        return f"bed {bed} is wet"

    async with target, participant(node, "planner", "restricted") as planner:
        await planner.say("before you came")
        async with shown(participant(node, "ann", history=20)) as (app, pilot):
            await until(pilot, lambda: "before you came" in said(app))
            assert "Everyone in garden sees" in app.query_one(Input).placeholder
            assert "ann full" in text(app, "#head") and "connected" in text(app, "#head")
            assert "planner  restricted" in text(app, "#names") and "sensors" in text(app, "#names")
            await enter(app, pilot, "hello")
            await until(pilot, lambda: "ann hello" in said(app))
            assert app.query_one("#decide").display is False
            calling = asyncio.create_task(planner.call("sensors", "water", {"bed": 3}, reason="it is dry"))
            await until(pilot, lambda: proposals(app) == 1)
            assert app.query_one("#decide").display is True
            assert '"bed": 3' in text(app, "#what") and "because it is dry" in text(app, "#what")
            assert watered == []
            await pilot.press("ctrl+y")
            assert (await asyncio.wait_for(calling, SOON_S)).text == "bed 3 is wet"
            await until(pilot, lambda: "bed 3 is wet" in said(app) and proposals(app) == 0)
            assert watered == [3]
            refused = asyncio.create_task(planner.call("sensors", "water", {"bed": 9}))
            await until(pilot, lambda: proposals(app) == 1 and "min left" in text(app, "#what"))
            await pilot.press("ctrl+n")
            with pytest.raises(ProposalEnded, match="rejected by ann"):
                await asyncio.wait_for(refused, SOON_S)
            await until(pilot, lambda: "was rejected by ann" in said(app) and proposals(app) == 0)
            assert watered == [3]
            await enter(app, pilot, '/call sensors water {"bed": 4}')
            await until(pilot, lambda: "bed 4 is wet" in said(app))
            await enter(app, pilot, "/tools sensors")
            await until(pilot, lambda: "  water" in said(app))
            await enter(app, pilot, "/call sensors water nonsense")
            await until(pilot, lambda: "no JSON object" in said(app))
            await enter(app, pilot, "/what")
            await until(pilot, lambda: "^y approves" in said(app))
            assert all(len(line) <= 80 for line in said(app).splitlines())


async def test_a_key_decides_what_was_read_and_nothing_that_moved_up(node: RunningNode) -> None:
    bare = await Bare.join(node, "garden", token(node, "hasty"))
    async with shown(participant(node, "bob")) as (app, pilot):
        first = await bare.send("mcp/proposal", {"method": "tools/call", "params": {"name": "one"}}, to=["nobody"])
        await bare.send("mcp/proposal", {"method": "tools/call", "params": {"name": "\x1b[31mtwo"}}, to=["nobody"])
        await until(pilot, lambda: proposals(app) == 2)
        assert "\x1b" not in said(app) and "\\x1b[31mtwo" in said(app)
        assert app._find_selected_id() == first
        await pilot.press("ctrl+y")  # at once: nobody can have read it
        await pilot.pause()
        assert proposals(app) == 2 and len(app._notifications) == 1
    async with shown(participant(node, "eve", "restricted", history=20), 50) as (app, pilot):
        await until(pilot, lambda: proposals(app) == 2)
        assert app.query_one("#who").display is False  # there is no room for it in 50 columns
    async with shown(participant(node, "fay")) as (app, pilot):
        await until(pilot, lambda: proposals(app) == 2)  # from before she came, without history
    await bare.leave()


@pytest.mark.req("X-4.4.1-4")
async def test_a_half_open_connection_ends_and_its_owner_is_named(node: RunningNode) -> None:
    there = await Bare.join(node, "watched", token(node, "there", "watched"))
    bearer = token(node, "half", "watched")
    half = await asyncio.to_thread(connect_without_reading, node, bearer, "watched")
    assert (await there.until(kind="presence", event="join"))["payload"]["participant"]["id"] == "half"
    reply: set[str] = set()
    while (envelope := await there.until(kind="presence"))["payload"]["event"] == "heartbeat":
        reply.add(envelope["payload"]["participant"]["id"])  # pings go on meanwhile, and `half` answers none
    assert envelope["payload"] == {"event": "leave", "participant": {"id": "half", "privilege": "restricted"}}
    assert reply == {"there", "half"}
    half.settimeout(SOON_S)
    last_bytes = b"".join(iter(lambda: half.recv(65536), b""))  # until the gateway has closed it
    assert b"\x88" in last_bytes and (1011).to_bytes(2, "big") in last_bytes[last_bytes.rindex(b"\x88") :]
    half.close()
    assert (sockets.PING_EVERY_S, sockets.PONG_WITHIN_S) == (30.0, 30.0)  # where nothing sets them otherwise
    quiet = await Bare.join(node, "garden", token(node, "quiet"))
    await asyncio.sleep(1.2)  # the time of a heartbeat, of which there is none by default
    await quiet.say("done")
    await quiet.until(kind="chat")
    assert not [envelope for envelope in quiet.heard if envelope["payload"].get("event") == "heartbeat"]
    await quiet.leave()
    await there.leave()


async def test_a_removed_participant_learns_why_and_the_application_ends(node: RunningNode) -> None:
    person = participant(node, "carol")
    joining = asyncio.create_task(client.join(person, headless=True))
    async with asyncio.timeout(SOON_S):
        while not person.is_connected:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    node.admin("/admin/participants/carol/disconnect", "POST", {})
    with pytest.raises(RoomRefused, match="removed"):
        await asyncio.wait_for(joining, SOON_S)


def test_the_command_says_what_it_needs(node: RunningNode) -> None:
    piped = node.cli("rooms", "join", "garden")
    assert piped.returncode == 2 and "needs a terminal" in piped.stderr
    assert node.cli("rooms", "join", "garden", "--json").returncode == 2


def test_without_the_extra_it_says_what_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "textual", None)
    for stream in (sys.stdin, sys.stdout):
        monkeypatch.setattr(stream, "isatty", lambda: True)
    with pytest.raises(Refused) as refused:
        rooms_join.join(Invocation(), "garden")
    assert refused.value.hint == f"{sys.executable} -m pip install 'interlock[rooms]'"


async def test_the_command_joins_from_a_terminal_and_its_token_ends_with_the_visit(node: RunningNode) -> None:
    there = await Bare.join(node, "garden", token(node, "watcher", privilege="full"))
    ours, theirs = pty.openpty()
    name = f"dora-{uuid.uuid4().hex[:6]}"
    where = ("--config", str(node.config), "--data", str(node.data))
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "interlock", "rooms", "join", "garden", "--as", name, *where),
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={**os.environ, "TERM": "xterm-256color", "COLUMNS": "80", "LINES": "24"},
    )
    os.close(theirs)
    drawn = bytearray()
    asyncio.get_running_loop().add_reader(ours, lambda: drawn.extend(_read(ours)))
    async with asyncio.timeout(20):
        while (joined := (await there.until(kind="presence"))["payload"]["participant"])["id"] != name:
            pass
        assert (joined["kind"], joined["mcp"]) == ("human", {"version": "2025-11-25"})
        await there.say("good evening")
        while b"good evening" not in drawn:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        os.write(ours, b"\x11")  # ctrl+q
        assert await process.wait() == 0
    asyncio.get_running_loop().remove_reader(ours)
    os.close(ours)
    assert f"join-{name}" not in [current_token["name"] for current_token in node.admin("/admin/tokens")["tokens"]]
    await there.leave()


def _read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 65536)
    except OSError:
        return b""
