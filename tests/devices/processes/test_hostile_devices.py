"""Broken and hostile devices against a node: named errors, bounded memory, no wrong value, others unharmed."""

import random
import struct
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest
from tests.devices.serial_lines import Line, call, content, listed
from tests.support.node_process import RunningNode, running_node, wait_for

TOOLS = """
[[tool]]
id = 1
name = "echo"
mutable = false
reversible = true
request = [{ name = "n", type = "u32" }]
response = [{ name = "n", type = "u32" }]
[[tool]]
id = 2
name = "count"
mutable = true
reversible = true
request = [{ name = "n", type = "u32" }]
"""
EVENT = """
[[event]]
id = 9
name = "pressed"
response = [{ name = "n", type = "u8" }]
"""
PROFILE_A = f'profile = "a"\n{TOOLS}{EVENT}'
PROFILE_B = f'profile = "b"\n{TOOLS}'
QUICK = "heartbeat_ms = 1000\ntimeout_ms = 150"
SEGMENTS_A = ("good", "noisy", "wrong", "flood", "drip", "loss")
SEGMENTS_B = ("bombs", "reset")
MEMORY_MAX = 40 * 1024 * 1024  # what hostile devices may add to the node


@pytest.fixture(scope="module")
def lines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Line]]:
    workspace = tmp_path_factory.mktemp("hostile") / "workspace"
    made = {segment: Line(workspace, segment, PROFILE_A, QUICK) for segment in SEGMENTS_A}
    made |= {segment: Line(workspace, segment, PROFILE_B, QUICK) for segment in SEGMENTS_B}
    yield made
    for line in made.values():
        line.unplug()


@pytest.fixture(scope="module")
def node(lines: dict[str, Line]) -> Iterator[RunningNode]:
    folder = lines["good"].file.parent.parent.parent
    with running_node(folder, {}) as started:
        for segment in lines:
            started.wait_link(segment, {"state": "ready"})
        yield started


@pytest.fixture(autouse=True)
def others_are_unharmed(node: RunningNode, lines: dict[str, Line]) -> Iterator[None]:
    yield
    for line in lines.values():
        line.reply = line.answers
    assert content(node, "good.echo", {"n": 77}) == {"n": 77}
    assert node.link("good")["device"]["unplugged"] == 0


def instead(line: Line, reply: Callable[[bytes], Iterable[bytes]]) -> None:
    """Heartbeats are answered, calls as `reply` says."""
    line.reply = lambda message: reply(message) if _is_call(line, message) else line.answers(message)


def _is_call(line: Line, message: bytes) -> bool:
    return message[0] == 0x01 if line.segment in SEGMENTS_A else b"\x01\x61" not in message[:4]


def response(message: bytes, n: int, *, seq: int | None = None, tool: int | None = None) -> bytes:
    head = bytes((2, message[1] if tool is None else tool, message[2] if seq is None else seq))
    return head + struct.pack("<I", n) + b"\0"


def discarded(node: RunningNode, segment: str) -> dict[str, int]:
    return node.link(segment)["device"]["discarded"]


def test_answers_to_other_requests_are_dropped_and_the_right_answer_is_taken(
    node: RunningNode, lines: dict[str, Line]
) -> None:
    line = lines["wrong"]

    def lie(message: bytes) -> list[bytes]:
        false = [
            response(message, 666, seq=message[2] % 255 + 1),
            response(message, 667, tool=2),
            response(message, 668, seq=(message[2] + 100) % 255 + 1),
        ]
        right = response(message, struct.unpack("<I", message[3:])[0])
        return [line.framing.encode(one) for one in (*false, right, right, right)]

    instead(line, lie)
    for n in range(20):
        assert content(node, "wrong.echo", {"n": n}) == {"n": n}
    counted = wait_for(lambda: (found := discarded(node, "wrong")).get("no_request", 0) >= 80 and found)
    assert counted["wrong_tool"] == 20


def test_noise_of_one_byte_in_a_thousand_delivers_no_wrong_value(node: RunningNode, lines: dict[str, Line]) -> None:
    line, chance = lines["noisy"], random.Random(7)

    def spoil(message: bytes) -> list[bytes]:
        (good,) = line.answers(message)
        return [bytes(byte ^ (1 << chance.randrange(8)) if chance.random() < 0.001 else byte for byte in good)]

    line.reply = spoil
    results = [call(node, "noisy.echo", {"n": n}) for n in range(400)]
    answered = [(n, result["structuredContent"]["n"]) for n, result in enumerate(results) if "content" in result]
    assert all(asked == told for asked, told in answered)
    assert len(answered) >= 399  # a read is repeated
    assert sum(discarded(node, "noisy").values()) > 0


def test_a_lost_answer_is_asked_for_again_only_where_that_does_no_harm(
    node: RunningNode, lines: dict[str, Line]
) -> None:
    line = lines["loss"]
    lost = {"calls": 2}

    def lose(message: bytes) -> list[bytes]:
        lost["calls"] -= 1
        return [] if lost["calls"] >= 0 else line.answers(message)

    instead(line, lose)
    line.heard.clear()
    assert content(node, "loss.echo", {"n": 5}) == {"n": 5}
    sent = line.calls()
    assert len(sent) == 3
    assert len(set(sent)) == 1  # under the same id
    line.heard.clear()
    lost["calls"] = 1
    error = call(node, "loss.count", {"n": 5})
    assert error["data"]["outcome"] == "unknown"
    assert len(line.calls()) == 1


def test_lengths_that_lie_and_silence_in_the_middle_of_a_frame_cost_their_own_call(
    node: RunningNode, lines: dict[str, Line]
) -> None:
    line = lines["drip"]
    for lie in (b"\x7e\x7f\x02\x01\x01", b"\x7e\xff\xff\x02", b"\x7e\x00", b"\x7e\x02\x02\x01\x43", b"\x7e" * 300):
        instead(line, lambda message, lie=lie: [lie])
        assert call(node, "drip.count", {"n": 1})["data"]["reason"] == "device_absent"
        line.reply = line.answers
        assert content(node, "drip.echo", {"n": 9}) == {"n": 9}

    def drip(message: bytes) -> list[bytes]:
        (whole,) = line.answers(message)
        for byte in whole:
            line.write(bytes((byte,)))
            time.sleep(0.001)
        return []

    instead(line, drip)
    assert content(node, "drip.echo", {"n": 3}) == {"n": 3}


def test_a_flood_is_read_slowly_and_kept_nowhere(node: RunningNode, lines: dict[str, Line]) -> None:
    line = lines["flood"]
    before = memory(node)
    over = threading.Event()
    event = line.framing.encode(bytes((2, 9, 0, 7)))
    answer = line.framing.encode(bytes((2, 1, 99)) + b"\1\0\0\0\0")

    def pour() -> None:
        while not over.is_set():
            line.write((event + answer + b"\xff\x7e\x03") * 30)

    pouring = threading.Thread(target=pour, daemon=True)
    pouring.start()
    try:
        slowest = 0.0
        for n in range(30):
            began = time.monotonic()
            assert content(node, "good.echo", {"n": n}) == {"n": n}
            slowest = max(slowest, time.monotonic() - began)
        wait_for(lambda: discarded(node, "flood").get("no_request", 0) > 1500)
    finally:
        over.set()
        pouring.join()
    assert slowest < 0.5
    assert memory(node) - before < MEMORY_MAX
    assert discarded(node, "flood")["too_many_events"] > 0


def test_cbor_bombs_are_refused_by_name(node: RunningNode, lines: dict[str, Line]) -> None:
    line = lines["bombs"]
    bombs = (
        b"\xa2\x02\x01\x04\x9b\xff\xff\xff\xff\xff\xff\xff\xff",  # an array of 2^64 - 1
        b"\xa2\x02\x01\x04" + b"\x81" * 200,  # nesting
        b"\xbf\x02\x01\x04\xa0\xff",  # an indefinite length
        b"\xa3\x02\x01\x04\xa0\x04\xa0",  # a key twice
        b"\xa2\x02\x01\x04\xc2\x41\x01",  # a tag
        b"\xa2\x02\x01\x04\xa0\x00",  # bytes behind it
        b"\x83\x01\x02\x03",  # no map
        b"",
    )
    instead(line, lambda message: [line.framing.encode(bomb) for bomb in bombs if bomb] + [b"\0\0\0"])
    before = memory(node)
    assert call(node, "bombs.count", {"n": 1})["data"]["outcome"] == "unknown"
    assert discarded(node, "bombs")["malformed"] >= 7
    assert memory(node) - before < MEMORY_MAX
    line.reply = line.answers
    assert content(node, "bombs.echo", {"n": 4}) == {"n": 4}


@pytest.mark.req("AX-B.3-3")
def test_a_reset_in_the_middle_of_a_call_ends_it_and_reads_the_tools_again(
    node: RunningNode, lines: dict[str, Line]
) -> None:
    line = lines["reset"]
    assert set(listed(node, "reset")) == {"reset.echo", "reset.count"}
    time.sleep(1.1)  # an announcement right after the one that was asked for is no reset
    del line.device._tools[1]
    line.device._description = type(line.device._description)(
        profile="b", link=line.device._description.link, tools=line.device._description.tools[1:]
    )
    instead(line, lambda message: [line.framing.encode(one) for one in line.device.boot()])
    began = time.monotonic()
    error = call(node, "reset.count", {"n": 1})
    assert error["data"]["outcome"] == "unknown"
    assert time.monotonic() - began < 0.12  # not by its timeout
    line.reply = line.answers
    wait_for(lambda: set(listed(node, "reset")) == {"reset.count"})
    assert node.link("reset")["device"]["missing"] == ["echo"]


def memory(node: RunningNode) -> int:
    return int(Path(f"/proc/{node.process.pid}/statm").read_text().split()[1]) * 4096
