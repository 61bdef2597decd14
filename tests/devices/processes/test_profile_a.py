"""Devices of Profile A on serial lines: listed by their description, called, gone and back."""

import asyncio
import contextlib
import json
import os
import re
import select
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import IO

import pytest
from tests import preloaded
from tests.ax.blocking_client import hearing, told
from tests.devices.serial_lines import Line, call, content, listed
from tests.support.node_process import KNOWS_AX, RunningNode, running_node, wait_for
from tests.support.peers import LEGACY, MODERN, HttpPeer, SsePeer, StdioPeer

TOOLS = """
profile = "a"
[[tool]]
id = 1
name = "read_sensor"
description = "The temperature at the vent."
mutable = false
reversible = true
latency_class = "fast"
response = [{ name = "celsius", type = "i32", scale = 0.1, unit = "degrees Celsius" }]
resp_len = 4
status = { "3" = "overheated" }
[[tool]]
id = 2
name = "set_led"
mutable = true
reversible = true
request = [{ name = "level", type = "u8", maximum = 100 }]
req_len = 1
"""
LOST = "notifications/mcpax/subserver_lost"
POLL_S, SLACK_S = 1.0, 0.9  # the second is less than another poll
QUICK = "heartbeat_ms = 200\ntimeout_ms = 300"


class Place:
    def __init__(self, node: RunningNode, lines: dict[str, Line], pins: Path) -> None:
        self.node = node
        self.lines = lines
        self.pins = pins  # see pins_first.py

    def line(self, segment: str) -> Line:
        return self.lines[segment]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("profile_a")
    workspace: Path = folder / "workspace"
    lines = {segment: Line(workspace, segment, TOOLS, QUICK) for segment in ("vent", "spare")}
    pins = folder / "pins"
    pins.mkdir()
    first = {"TESTS_PINS": str(pins), preloaded.FIRST: str(Path(__file__).parents[1] / "simulated_pins.py")}
    with running_node(folder, {}, env=first) as node:
        for segment in lines:
            node.wait_link(segment, {"state": "ready"})
        yield Place(node, lines, pins)
    for line in lines.values():
        line.unplug()


@pytest.mark.req("AX-B.1-1")
def test_a_described_device_is_listed_with_names_schemas_and_capabilities(place: Place) -> None:
    tools = listed(place.node, "vent")
    sensor, led = tools["vent.read_sensor"], tools["vent.set_led"]
    assert sensor["description"] == "The temperature at the vent."
    assert sensor["inputSchema"] == {"type": "object", "properties": {}, "additionalProperties": False}
    assert sensor["outputSchema"]["required"] == ["celsius"]
    assert led["inputSchema"]["properties"]["level"] == {"type": "integer", "minimum": 0, "maximum": 100}
    said = sensor["_meta"]["x-mcpax-capability"]
    assert (said["mutable"], said["reversible"], said["transport"]) == (False, True, "uart_cbor")
    assert said["latency_class"] == "fast"
    assert led["_meta"]["x-mcpax-capability"]["mutable"] is True
    assert sensor["annotations"] == {"readOnlyHint": True, "destructiveHint": False, "idempotentHint": True}
    assert led["annotations"]["destructiveHint"] is False


def test_a_call_is_the_number_of_the_tool_and_its_arguments_alone(place: Place) -> None:
    line = place.line("vent")
    line.heard.clear()
    assert (
        call(place.node, "vent.set_led", {"level": 7}, **{"x-mcpax-route": "r", "progressToken": 4})[
            "structuredContent"
        ]
        == {}
    )
    (sent,) = line.calls()
    assert (sent[1], sent[3:]) == (2, b"\x07")
    assert content(place.node, "vent.read_sensor") == {"celsius": pytest.approx(0.2, abs=1)}


def test_wrong_arguments_never_reach_the_line(place: Place) -> None:
    line = place.line("vent")
    line.heard.clear()
    for arguments, at in (
        ({"level": 101}, "/level"),
        ({"level": "x"}, "/level"),
        ({}, "level"),
        ({"level": 1, "b": 2}, "b"),
    ):
        result = call(place.node, "vent.set_led", arguments)
        assert result["isError"] is True
        assert at in result["content"][0]["text"]
        assert result["_meta"]["x-mcpax-device"]["fault"] == "argument_invalid"
    assert line.calls() == []


@pytest.mark.req("AX-B.1-8")
def test_a_status_other_than_0_is_an_error_with_its_name(place: Place) -> None:
    line = place.line("vent")
    line.reply = lambda message: (
        [line.framing.encode(bytes((2, message[1], message[2], 3)))] if message[0] == 1 else line.answers(message)
    )
    try:
        result = call(place.node, "vent.read_sensor")
    finally:
        line.reply = line.answers
    assert result["isError"] is True
    assert result["_meta"]["x-mcpax-device"] == {"fault": "status", "status": 3, "name": "overheated"}
    assert "structuredContent" in call(place.node, "vent.read_sensor")  # status 0


def test_a_response_that_is_none_is_not_shown(place: Place) -> None:
    line = place.line("vent")
    line.reply = lambda message: (
        [line.framing.encode(bytes((2, message[1], message[2])) + b"SECRET\0")]
        if message[0] == 1
        else line.answers(message)
    )
    try:
        result = call(place.node, "vent.read_sensor")
    finally:
        line.reply = line.answers
    assert result["_meta"]["x-mcpax-device"]["fault"] == "response_invalid"
    assert "SECRET" not in str(result)


def test_an_unplugged_device_is_degraded_at_once_and_returns_by_itself(place: Place) -> None:
    line = place.line("spare")
    line.unplug()
    place.node.wait_link("spare", {"state": "degraded"}, 2.0)
    refused = call(place.node, "spare.read_sensor")
    assert refused["data"]["reason"] == "device_absent"
    assert "spare.read_sensor" in listed(place.node, "spare")
    assert content(place.node, "vent.read_sensor")
    line.plug()
    place.node.wait_link("spare", {"state": "ready"}, 5.0)
    assert content(place.node, "spare.read_sensor")
    assert place.node.link("spare")["device"]["unplugged"] == 1


def test_a_silent_device_is_degraded_after_three_intervals(place: Place) -> None:
    line = place.line("spare")
    line.reply = lambda message: []
    link = place.node.wait_link("spare", {"state": "degraded"}, 3.0)
    assert "sign of life" in link["reason"]
    line.reply = line.answers
    place.node.wait_link("spare", {"state": "ready"}, 3.0)


@pytest.mark.req("AX-13.1-1", "AX-B.3-1")
@pytest.mark.parametrize("reason", ["connection_lost", "heartbeat_timeout"])
async def test_a_lost_device_is_reported_once_and_an_undescribed_device_is_not(place: Place, reason: str) -> None:
    line = Line(place.line("vent").file.parent.parent, "brief", TOOLS, QUICK)
    try:
        await asyncio.to_thread(place.node.wait_link, "brief", {"state": "ready"}, 10.0)
        async with hearing(place.node, KNOWS_AX) as heard:
            begun = time.time()
            if reason == "connection_lost":
                line.unplug()
            else:
                line.reply = lambda message: []
            lost = (await told(heard, LOST))["params"]
            assert (lost["segment"], lost["reason"]) == ("brief", reason)
            assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", lost["since"])
            since = datetime.fromisoformat(lost["since"]).timestamp()
            assert int(begun) <= since <= time.time()
            line.reply = line.answers
            if reason == "connection_lost":
                line.plug()
            await asyncio.to_thread(place.node.wait_link, "brief", {"state": "ready"}, 5.0)
            line.file.unlink()
            await asyncio.to_thread(wait_for, lambda: not listed(place.node, "brief"))
            assert LOST not in [heard.get_nowait()["method"] for _ in range(heard.qsize())]
    finally:
        line.unplug()


def test_a_description_that_is_written_while_the_node_runs_is_taken_up(place: Place) -> None:
    line = Line(place.line("vent").file.parent.parent, "late", TOOLS, QUICK)
    try:
        wait_for(lambda: "late.read_sensor" in listed(place.node, "late"))
        assert content(place.node, "late.read_sensor")
        line.file.unlink()
        wait_for(lambda: not listed(place.node, "late"))
    finally:
        line.unplug()


ONLY_CALLS = """
profile = "a"
[[tool]]
id = 1
name = "read"
description = "Reads."
mutable = false
reversible = true
response = [{ name = "n", type = "u8" }]
"""


@pytest.mark.req("AX-8.3-2")
def test_a_device_that_answers_calls_alone_is_served_by_its_description(place: Place) -> None:
    line = Line(place.line("vent").file.parent.parent, "mute", ONLY_CALLS, 'presence = "assume"\n' + QUICK)
    try:
        line.reply = lambda message: line.answers(message) if message[0] == 1 else []
        place.node.wait_link("mute", {"state": "ready"}, 5.0)
        tool = listed(place.node, "mute")["mute.read"]
        assert tool["description"] == "Reads."
        assert tool["outputSchema"]["properties"]["n"] == {"type": "integer", "minimum": 0, "maximum": 255}
        assert tool["_meta"]["x-mcpax-capability"]["mutable"] is False
        assert content(place.node, "mute.read") == {"n": 1}
        assert call(place.node, "mute.tool_2")["code"] != 0
        assert {message[1] for message in line.heard} == {1}
    finally:
        line.unplug()
        line.file.unlink()


@pytest.mark.req("AX-B.3-1")
async def test_a_device_is_found_in_every_way_within_one_poll_and_lost(place: Place, tmp_path: Path) -> None:
    gpio = tmp_path / "gpio"
    ways = {"poll": "", "cts": "", "gpio": f'gpio = "{gpio}"\n', "assume": ""}
    beat = f"heartbeat_ms = {2000 * POLL_S:.0f}\ntimeout_ms = 300"
    lines = {
        way: Line(tmp_path, f"by_{way}", ONLY_CALLS, f'presence = "{way}"\n{more}{beat}') for way, more in ways.items()
    }
    cts = place.pins / Path(os.ttyname(lines["cts"].slave)).name

    def come() -> None:
        lines["poll"].reply = lines["poll"].answers
        cts.write_text(str(termios.TIOCM_RTS | termios.TIOCM_CTS))
        gpio.write_text("1")
        lines["assume"].plug()

    def go() -> None:
        lines["poll"].unplug()
        cts.write_text(str(termios.TIOCM_RTS))
        gpio.write_text("0")
        lines["assume"].unplug()

    def is_looked_for() -> bool:
        links = [place.node.link(line.segment) for line in lines.values()]
        return all("device" in link for link in links) and (
            links[0]["device"]["sent"] > 0 and all(link["reason"] for link in links[1:])
        )

    lines["poll"].reply = lambda message: []
    lines["assume"].unplug()
    cts.write_text(str(termios.TIOCM_RTS))
    gpio.write_text("0")
    try:
        async with hearing(place.node, KNOWS_AX) as heard:
            for line in lines.values():
                line.file = line.file.rename(place.line("vent").file.parent / line.file.name)
            await asyncio.to_thread(wait_for, is_looked_for)
            links = [place.node.link(line.segment) for line in lines.values()]
            assert not [link for link in links if link["state"] == "ready" or link["tools"]]
            begun = time.monotonic()
            come()
            for line in lines.values():
                await asyncio.to_thread(place.node.wait_link, line.segment, {"state": "ready"})
            assert time.monotonic() - begun < POLL_S + SLACK_S
            for line in lines.values():
                assert await asyncio.to_thread(content, place.node, f"{line.segment}.read")
            assert {message[0] for way in ("cts", "gpio", "assume") for message in lines[way].heard} == {1}
            go()
            lost = {(await told(heard, LOST))["params"]["segment"] for _ in lines}
            assert lost == {line.segment for line in lines.values()}
    finally:
        for line in lines.values():
            line.unplug()
            line.file.unlink()


@pytest.mark.req("AX-B.1-1")
def test_the_check_command_refuses_a_wrong_description_with_file_and_line(place: Place, tmp_path: Path) -> None:
    (tmp_path / ".devices").mkdir()
    (tmp_path / "interlock.toml").write_text("")
    wrong = TOOLS.replace("id = 2", "id = 1").replace("set_led", "read_sensor").replace("req_len = 1", "req_len = 0")
    wrong = wrong.replace("[[tool]]", '[link]\ntransport = "uart_cbor"\nport = "x"\n[[tool]]', 1)
    wrong = wrong.replace("mutable = false\n", "")
    (tmp_path / ".devices" / "board.toml").write_text(wrong + '[[tool]]\nid = 5\nname = "No Name"\nmutable = true\n')
    checked = subprocess.run(
        [sys.executable, "-m", "interlock", "check", "--config", str(tmp_path / "interlock.toml")],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert checked.returncode == 1
    said = checked.stdout + checked.stderr
    for what in ("id 1 is that of", "name 'read_sensor' is that of", "'No Name'", "req_len says 0", "is mutable"):
        assert re.search(rf"board\.toml:\d+: error: .*{what}", said), (what, said)
    assert "is reversible" in said


@pytest.mark.req("AX-8.1-1")
async def test_every_way_in_reaches_the_same_tool_in_both_eras(place: Place) -> None:
    node = place.node
    command = [
        sys.executable,
        "-m",
        "interlock",
        "serve",
        "--stdio",
        "--config",
        str(node.config),
        "--data",
        str(node.data),
    ]
    openers = (
        lambda: HttpPeer.modern_(f"{node.url}/mcp"),
        lambda: HttpPeer.legacy(f"{node.url}/mcp"),
        lambda: SsePeer.legacy(f"{node.url}/sse"),
        lambda: StdioPeer.start(command, MODERN),
        lambda: StdioPeer.start(command, LEGACY),
    )
    found = []
    for opener in openers:
        async with await opener() as peer:
            names = [tool["name"] for tool in (await peer.request("tools/list")).result["tools"]]
            name = next(name for name in names if name in ("vent.set_led", "vent__set_led"))
            result = (await peer.request("tools/call", {"name": name, "arguments": {"level": 9}})).result
            result.pop("resultType", None)
            found.append(result)
    assert found == [{"content": [{"type": "text", "text": "{}"}], "structuredContent": {}}] * len(openers)


@contextlib.contextmanager
def running(*words: str) -> Iterator[IO[str]]:
    """What a command says."""
    command = [sys.executable, "-m", "interlock", *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout
        finally:
            process.terminate()


@pytest.mark.req("AX-8.N-6")
def test_a_simulated_device_is_served_and_its_events_are_shown(place: Place, tmp_path: Path) -> None:
    described = place.line("vent").file.parent / "played.toml"
    file, port = tmp_path / "played.toml", tmp_path / "played.pty"
    link = f'[link]\ntransport = "uart_cbor"\nport = "{port}"\n{QUICK}\n[[tool]]'
    file.write_text(ONLY_CALLS.replace("[[tool]]", link, 1))
    there = ["--config", str(place.node.config), "--data", str(place.node.data)]
    with running("device", "simulate", str(file), "--seed", "3") as simulated:
        assert str(port) in simulated.readline()
        described.write_text(file.read_text())
        place.node.wait_link("played", {"state": "ready"}, 5.0)
        with running("device", "monitor", "played", "-n", "99", "--json", *there) as said:
            wait_for(lambda: content(place.node, "played.read") and select.select([said], [], [], 0.1)[0])
            content(place.node, "played.read")  # the first may have been under way
            frames = map(json.loads, said)
            sent = next(frame for frame in frames if frame["text"].startswith("call read #"))
            answer = next(frame for frame in frames if frame["text"].startswith("answer read #"))
        described.unlink()
    assert [frame["is_sent"] for frame in (sent, answer)] == [True, False]
    number = sent["text"].removeprefix("call read #")
    assert re.fullmatch(rf"answer read #{number} n=\d+", answer["text"])
