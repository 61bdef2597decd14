"""Devices that describe themselves: registered at boot and when asked, named by their description, classified once."""

import asyncio
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from cobs import cobs
from tests.devices.serial_lines import THERMOMETER, Line, call, content, listed
from tests.gate.held_calls import ADA, anchor, classify, sign_configuration
from tests.support.node_process import RunningNode, running_node, wait_for
from tests.support.peers import HttpPeer

from interlock.ax.protocol.capability import TIMEOUT_S, LatencyClass
from interlock.devices.protocol.cbor_codec import encoded, read_untrusted

ALONE = 'profile = "b"\n'
NAMED = ALONE + THERMOMETER
PLAIN_A = """
profile = "a"
[[tool]]
id = 1
name = "slow"
latency_class = "fast"
mutable = true
reversible = true
request = [{ name = "n", type = "u8" }]
response = [{ name = "n", type = "u8" }]
"""
CHANGED = "notifications/tools/list_changed"
QUICK = "heartbeat_ms = 400\ntimeout_ms = 400"
GATED = '[gate]\nmode = "gated"\n' + anchor("ada", ADA, "*")


def announcement(*entries: tuple[int, list[int], int]) -> bytes:
    return encoded({1: "r", 3: [{0: id, 1: types, 2: ret} for id, types, ret in entries]})


class Board:
    """Speaks Profile B by hand: announces `tools`, answers every call with `value`."""

    def __init__(self, line: Line, *tools: tuple[int, list[int], int], value: Any = None) -> None:
        self.line = line
        self.announced = [announcement(*tools)]
        self.value = {"celsius": 21} if value is None else value
        self.calls: list[bytes] = []
        line.reply = self.reply

    def reply(self, message: bytes) -> list[bytes]:
        members = read_untrusted(message)
        if members.get(1) == "r":
            return [self.line.framing.encode(one) for one in self.announced]
        if members.get(1) == "h":
            return [self.line.framing.encode(encoded({2: members[2], 4: {}}))]
        self.calls.append(message)
        return [self.line.framing.encode(encoded({2: members[2], 4: self.value}))]

    def reboot(self, *announced: bytes) -> None:
        self.announced = list(announced)
        self.line.say(*announced)


def say_class(place: "Place", tool: str, arguments: dict[str, Any], tool_class: str) -> None:
    """A call asks a person what the tool does; they say it."""
    held = call(place.node, tool, arguments)
    classify(place.node, held["_meta"]["x-mcpax-confirmation"], tool_class)


class Place:
    def __init__(self, node: RunningNode, boards: dict[str, Board], queue: Line, workspace: Path) -> None:
        self.node = node
        self.boards = boards
        self.queue = queue
        self.workspace = workspace


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("profile_b")
    workspace: Path = folder / "workspace"
    boards = {
        "alone": Board(Line(workspace, "alone", ALONE, QUICK), (1, [], 5), (2, [0], 5)),
        "named": Board(Line(workspace, "named", NAMED, QUICK), (1, [], 5), (2, [0, 3], 5)),
        "sixty": Board(Line(workspace, "sixty", ALONE, QUICK), (1, [], 5)),
        "late": Board(Line(workspace, "late", ALONE, QUICK), (1, [], 5)),
        "sure": Board(Line(workspace, "sure", ALONE, f'{QUICK}\ncrc = "crc16"'), (1, [], 5)),
    }
    queue = Line(workspace, "queue", PLAIN_A, QUICK)
    boards["late"].line.unplug()
    with running_node(folder, {}, GATED) as node:
        for segment in ("alone", "named", "sixty", "sure", "queue"):
            node.wait_link(segment, {"state": "ready"})
        made = Place(node, boards, queue, workspace)
        yield made
    for line in (queue, *(board.line for board in boards.values())):
        line.unplug()


@pytest.mark.req("AX-8.3-3")
async def test_a_device_registers_in_any_order_and_each_change_is_reported_once(place: Place) -> None:
    node, late = place.node, place.boards["late"]

    async def until(is_so: Callable[[], bool]) -> None:
        await asyncio.to_thread(wait_for, is_so)

    assert set(listed(node, "alone")) == {"alone.tool_1", "alone.tool_2"}  # there before the node
    late.line.plug()
    late.line.say(*late.announced)  # it boots, and is asked as well
    await asyncio.to_thread(node.wait_link, "late", {"state": "ready"}, 6.0)
    assert set(listed(node, "late")) == {"late.tool_1"}
    async with await HttpPeer.legacy(f"{node.url}/mcp") as peer:
        await peer.listen()
        for number in (3, 4):
            late.reboot(announcement((number, [], 5)))
            await until(lambda number=number: set(listed(node, "late")) == {f"late.tool_{number}"})  # type: ignore[misc]
            await peer.hear(CHANGED)
            received = node.link("late")["device"]["received"]
            late.line.say(*late.announced, *late.announced)
            await until(lambda received=received: node.link("late")["device"]["received"] >= received + 2)  # type: ignore[misc]
        assert peer.heard(CHANGED) == []
    assert node.link("late")["device"]["unplugged"] == 0


@pytest.mark.req("AX-8.2-7")
def test_numbers_and_types_suffice_for_a_schema(place: Place) -> None:
    schema = listed(place.node, "named")["named.tool_2"]["inputSchema"]
    assert schema["properties"] == {"arg0": {"type": "integer", "minimum": 0}, "arg1": {"type": "string"}}
    assert schema["required"] == ["arg0", "arg1"]


def test_a_description_names_what_is_announced_and_reports_what_is_not(place: Place) -> None:
    assert set(listed(place.node, "named")) == {"named.temperature", "named.tool_2"}
    assert place.node.link("named")["device"]["missing"] == ["never_announced"]
    assert content(place.node, "named.temperature") == {"celsius": 21}


@pytest.mark.req("AX-8.2-4")
def test_arguments_that_are_none_never_reach_the_line(place: Place) -> None:
    board = place.boards["named"]
    say_class(place, "named.tool_2", {"arg0": 1, "arg1": ""}, "reversible")
    board.calls.clear()
    for arguments in (
        {"arg0": -1, "arg1": ""},
        {"arg0": "1", "arg1": ""},
        {"arg0": 1},
        {"arg0": 1, "arg1": "", "arg2": 2},
        {"arg0": 1, "arg1": "", "arg2": 2, "arg3": 3, "arg4": 4},
        {"arg0": 2**70, "arg1": ""},
    ):
        result = call(place.node, "named.tool_2", arguments)
        assert result["isError"] is True, arguments
        assert "arg" in result["content"][0]["text"]
    assert board.calls == []


@pytest.mark.req("AX-8.N-1")
def test_sixty_four_tools_come_in_parts_and_are_swapped_whole(place: Place) -> None:
    board = place.boards["sixty"]
    entries = [(id, [0], 5) for id in range(64)]
    parts = [entries[at : at + 16] for at in range(0, 64, 16)]
    frames = [
        encoded({1: "r", 3: [{0: id, 1: types, 2: ret} for id, types, ret in part], 6: number < 3, 7: number})
        for number, part in enumerate(parts)
    ]
    assert all(len(frame) <= 256 for frame in frames)
    before = set(listed(place.node, "sixty"))
    time.sleep(1.1)  # it was asked when it came
    board.announced = frames
    board.line.heard.clear()
    board.line.say(frames[0], frames[1], frames[3])
    wait_for(lambda: encoded({1: "r"}) in board.line.heard)  # a part was lost: it is asked for again
    wait_for(lambda: len(listed(place.node, "sixty")) == 64)
    assert before == {"sixty.tool_1"}


TOO_LONG = announcement(*((id, [0, 0, 0, 0], 5) for id in range(40)))
TOO_MANY = [
    encoded({1: "r", 3: [{0: id, 1: [], 2: 5} for id in range(part * 13, part * 13 + 13)], 6: part < 4, 7: part})
    for part in range(5)
]


@pytest.mark.parametrize(
    "wrong",
    [
        announcement((1, [], 5), (1, [], 5)),
        announcement(*((id, [], 5) for id in range(20))) + b"\0",
        announcement((1, [0] * 5, 5)),
        announcement((1, [6], 5)),
        announcement((1, [], 0)),
        encoded({1: "r", 3: [{0: 256, 1: [], 2: 5}]}),
        encoded({1: "r", 3: [{0: 1}]}),
        TOO_LONG,
        TOO_MANY,
    ],
)
@pytest.mark.req("AX-B.2-5")
def test_a_wrong_announcement_is_refused_whole(place: Place, wrong: bytes | list[bytes]) -> None:
    before = set(listed(place.node, "alone"))
    dropped = sum(place.node.link("alone")["device"]["discarded"].values())
    line = place.boards["alone"].line
    if wrong is TOO_LONG:
        line.write(cobs.encode(TOO_LONG) + b"\0")
    else:
        line.say(*([wrong] if isinstance(wrong, bytes) else wrong))
    wait_for(lambda: sum(place.node.link("alone")["device"]["discarded"].values()) > dropped)
    assert set(listed(place.node, "alone")) == before


@pytest.mark.req("AX-8.N-3")
def test_unclassified_device_tools_are_asked_about_once_and_irreversible_tools_need_a_checksum(place: Place) -> None:
    board = place.boards["alone"]
    board.calls.clear()
    say_class(place, "alone.tool_1", {}, "read_only")
    assert board.calls == []
    wait_for(lambda: call(place.node, "alone.tool_1").get("structuredContent") == {"celsius": 21})
    say_class(place, "alone.tool_2", {"arg0": 1}, "irreversible")
    wait_for(lambda: "alone.tool_2" not in listed(place.node, "alone"))
    (withheld,) = place.node.link("alone")["withheld"]
    assert withheld["name"] == "tool_2"
    assert "checksum" in withheld["reason"]
    say_class(place, "sure.tool_1", {}, "irreversible")

    def is_final() -> bool:
        said = listed(place.node, "sure")["sure.tool_1"]["_meta"]["x-mcpax-capability"]
        return (said["mutable"], said["reversible"]) == (True, False)

    wait_for(is_final)
    assert not place.node.link("sure")["withheld"]


@pytest.mark.req("AX-B.1-8")
def test_one_request_is_on_the_line_and_sixteen_wait(place: Place) -> None:
    line = place.queue
    line.heard.clear()

    is_full = threading.Event()

    def slow(message: bytes) -> list[bytes]:
        if message[0] == 1:
            is_full.wait(3.0)
            return [
                line.framing.encode(bytes((2, 1, message[2] ^ 0x80 or 1, 1, 0))),
                *line.answers(message),
            ]  # and one for no request
        return line.answers(message)

    line.reply = slow
    with ThreadPoolExecutor(30) as clients:
        asked = [clients.submit(call, place.node, "queue.slow", {"n": n}) for n in range(30)]
        wait_for(lambda: sum(one.done() for one in asked) == 30 - 17)
        assert len(line.calls()) == 1
        is_full.set()
        results = [one.result() for one in asked]
    line.reply = line.answers
    answered = [n for n, result in enumerate(results) if "content" in result]
    assert all(results[n]["structuredContent"] == {"n": n} for n in answered)
    refused = [result for result in results if "content" not in result]
    assert len(refused) == 30 - 17
    assert all((one["code"], one["data"]["reason"]) == (32002, "link_busy") for one in refused)
    assert len(line.calls()) == 17
    assert place.node.link("queue")["device"]["discarded"]["no_request"] == 17


LONG = """
profile = "b"
[[tool]]
id = 1
name = "exchange"
mutable = false
reversible = true
latency_class = "fast"
request = [{ name = "text", type = "text", size = 16 }]
response = [{ name = "text", type = "text", size = 27 }]
"""


@pytest.mark.req("AX-B.2-2")
def test_a_line_of_9600_baud_is_fast_enough_and_a_slower_line_is_refused(place: Place, tmp_path: Path) -> None:
    (tmp_path / "interlock.toml").write_text("")
    (tmp_path / ".devices").mkdir()
    for baud in (4800, 9600, 115200, 921600):
        link = f'[link]\ntransport = "uart_cbor"\nport = "x{baud}"\nbaud = {baud}\n[[tool]]'
        (tmp_path / ".devices" / f"line_{baud}.toml").write_text(LONG.replace("[[tool]]", link, 1))
    command = [sys.executable, "-m", "interlock", "check", "--config", str(tmp_path / "interlock.toml")]
    checked = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    said = checked.stdout + checked.stderr
    assert checked.returncode == 1
    assert re.search(r"line_4800\.toml:\d+: error: .*9600 baud or more, not 4800", said), said
    assert not re.search(r"line_(9600|115200|921600).*(error|warning)", said), said

    line = Line(place.workspace, "slow_line", LONG, "baud = 9600\n" + QUICK)
    line.character_s = 10 / 9600  # with its start and stop bits
    frames: list[bytes] = []

    def reply(message: bytes) -> list[bytes]:
        asked = read_untrusted(message)
        if asked[1] != 1:
            return line.answers(message)
        filler = "y" * (27 if asked[2] < 24 else 25)  # a larger number takes a byte more, twice
        frames.extend(line.framing.encode(one) for one in (message, encoded({2: asked[2], 4: {0: filler}})))
        return frames[-1:]

    line.reply = reply
    try:
        sign_configuration(place.node)
        place.node.wait_link("slow_line", {"state": "ready"}, 10.0)
        begun = time.monotonic()
        answered = content(place.node, "slow_line.exchange", {"text": "x" * 16})["text"]
        elapsed = time.monotonic() - begun
        assert answered.encode() in frames[1]
        assert sum(map(len, frames)) == 64  # sent once, answered once
        assert 64 * line.character_s <= elapsed < TIMEOUT_S[LatencyClass.FAST]
        said = listed(place.node, "slow_line")["slow_line.exchange"]["_meta"]["x-mcpax-capability"]
        assert said["latency_class"] == "fast"
    finally:
        line.unplug()
        line.file.unlink()


@pytest.mark.req("AX-B.4-2")
def test_equal_numbers_under_different_segments_are_distinguished_and_a_segment_is_renamed_here_alone(
    place: Place,
) -> None:
    board = place.boards["named"]
    board.value = {"celsius": 5}
    assert content(place.node, "named.temperature") == {"celsius": 5}
    board.calls.clear()
    assert call(place.node, "sixty.tool_1", {"arg0": 1}) is not None
    assert board.calls == []
    board.line.file.rename(place.workspace / ".devices" / "renamed.toml")
    sign_configuration(place.node)
    place.node.wait_link("renamed", {"state": "ready"}, 6.0)
    assert content(place.node, "renamed.temperature") == {"celsius": 5}
    assert listed(place.node, "named") == {}
