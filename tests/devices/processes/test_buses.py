"""Devices on every transport, through a real node: called with nothing but their own, noisy, silent and back."""

import contextlib
import http.client
import os
import random
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tests.devices.broker import Broker
from tests.devices.device_ends import BleEnd, End, Ends, Hosts, MqttEnd, PtyEnd
from tests.devices.serial_lines import call, content, listed
from tests.support import intervals
from tests.support.node_process import RunningNode, Wire, running_node, wait_for

from mcp import Client

SEGMENTS = ("vent", "valve", "array", "panel", "motor", "pump")
TRANSPORTS = {"uart_cbor", "ble_cbor", "can_cbor", "spi_cbor", "mqtt_json"}
CBOR = ("valve", "array", "panel", "motor")
# What `read` may answer against its schema, a number from 0 to 255 that is called celsius.
WRONG: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(CBOR, ({0: -1}, {0: 300}, {0: "secret"}, {}, {0: 1, 1: 2}, {0: [1]})),
    "vent": ({}, {0: 1, 1: 2}),  # a struct of one byte
    "pump": ({"celsius": -1}, {"celsius": 300}, {"celsius": "secret"}, {}, {"celsius": 1, "more": 2}, {"celsius": [1]}),
}
METADATA = {
    f"x-mcpax-{name}": value
    for name, value in {
        "route": ["root", "vent", "read"],
        "hops": 3,
        "latency-ms": 7,
        "cursor": "c",
        "origin": "o",
        "event-id": "e1",
        "causal-parent": "e0",
        "caller": "someone",
        "name": "vent.read",
        "capability": {"mutable": False},
        "subtree-ids": ["a"],
        "unheard-of": {"deep": [1]},
    }.items()
}


class Place:
    def __init__(self, node: RunningNode, ends: Ends, before: set[int]) -> None:
        self.node = node
        self.ends = ends
        self.before = before  # processes of other tests


def _children(process: int) -> dict[int, str]:
    """Their command lines."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            parent = int((folder / "stat").read_bytes().rpartition(b")")[2].split()[1])
            if parent == process:
                found[int(folder.name)] = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
    return found


@pytest.fixture(scope="module")
def before() -> set[int]:
    return set(_children(os.getpid()))


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory, before: set[int]) -> Iterator[Broker]:
    broker = Broker(tmp_path_factory.mktemp("broker"))
    broker.start()
    yield broker
    broker.stop()


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, broker: Broker, before: set[int]) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("buses")
    with Hosts() as hosts:
        ends = Ends(folder, broker, hosts)
        sooner = {intervals.DEVICE_REOPEN_S: 0.1}
        with running_node(folder, {}, env=ends.environment, settings=sooner) as node:
            for segment in SEGMENTS:
                node.wait_link(segment, {"state": "ready"})
            yield Place(node, ends, before)
        ends.stop()


@pytest.fixture(params=SEGMENTS)
def end(request: pytest.FixtureRequest, place: Place) -> End:
    return _ready(place, request.param)


def _ready(place: Place, segment: str) -> End:
    end = place.ends.all[segment]
    place.node.wait_link(segment, {"state": "ready"}, 5.0)
    end.heard.clear()
    return end


@pytest.mark.req("AX-1.2-4")
async def test_an_ordinary_client_lists_and_calls_all_of_them_in_one_process(place: Place) -> None:
    async with Client(f"{place.node.url}/mcp") as client:
        names = {tool.name for tool in (await client.list_tools()).tools}
        for segment in SEGMENTS:
            assert {f"{segment}__read", f"{segment}__set_level", f"{segment}__press"} <= names
            assert (await client.call_tool(f"{segment}__read", {})).structured_content == {"celsius": 21}
            assert not (await client.call_tool(f"{segment}__set_level", {"level": 7})).is_error
    assert {place.node.link(segment)["transport"] for segment in SEGMENTS} == TRANSPORTS
    assert _children(place.node.process.pid) == {}  # none beside it carries a device's bytes
    started = [words for pid, words in _children(os.getpid()).items() if pid not in place.before]
    assert sorted("mosquitto" in words for words in started if "preloaded.py" not in words) == [False, True], started


@pytest.mark.req("AX-8.2-4", "AX-8.2-5", "AX-B.4-3")
def test_arguments_are_checked_and_nothing_of_the_route_reaches_the_line(place: Place, end: End) -> None:
    tool = f"{end.segment}.set_level"
    wrong = [
        ({"level": "7"}, "level"),
        ({"level": 101}, "level"),
        ({}, "level"),
        ({"level": 1, "other": 2}, "other"),
        ({"level": 1, "a": 1, "b": 1, "c": 1, "d": 1}, "'a'"),
    ]
    for arguments, at in wrong:
        result = call(place.node, tool, arguments)
        assert result["isError"] is True
        assert at in result["content"][0]["text"]
        assert result["_meta"]["x-mcpax-device"]["fault"] == "argument_invalid"
    assert end.heard == []

    assert call(place.node, tool, {"level": 7})["structuredContent"] == {}
    with Wire(place.node) as wire:
        params = {"name": tool, "arguments": {"level": 7, "_meta": METADATA, **METADATA}, **METADATA}
        answer = wire.modern("tools/call", params, meta={"progressToken": "t", "traceparent": "00-1", **METADATA})
    assert answer.message["result"]["structuredContent"] == {}
    plain, decorated = end.heard
    assert end.call_of(plain) == end.call_of(decorated)  # and as long, but for a number that grew
    for message in (plain, decorated):
        assert b"x-mcpax" not in message
        assert end.segment.encode() not in message


def test_transports_and_capabilities_are_listed(place: Place) -> None:
    for segment, end in place.ends.all.items():
        said = listed(place.node, segment)[f"{segment}.read"]["_meta"]["x-mcpax-capability"]
        assert (said["transport"], said["mutable"]) == (end.transport, False)


@pytest.mark.req("AX-8.N-2")
def test_a_device_that_falls_silent_is_degraded_and_returns(place: Place, end: End) -> None:
    end.is_silent = True
    try:
        place.node.wait_link(end.segment, {"state": "degraded"}, 4.0)
    finally:
        end.is_silent = False
    place.node.wait_link(end.segment, {"state": "ready"}, 6.0)
    assert content(place.node, f"{end.segment}.read") == {"celsius": 21}


@pytest.mark.req("AX-8.N-2")
def test_a_pty_that_is_unplugged_is_degraded_at_once_and_registered_again(place: Place) -> None:
    end = _ready(place, "valve")
    assert isinstance(end, PtyEnd)
    end.stop()
    place.node.wait_link("valve", {"state": "degraded"}, 0.5)
    end.plug()
    place.node.wait_link("valve", {"state": "ready"}, 5.0)
    assert content(place.node, "valve.read") == {"celsius": 21}


@pytest.mark.req("AX-B.4-6")
@pytest.mark.parametrize("segment", ["array", "motor"])
def test_with_one_frame_in_five_lost_reads_succeed_and_actions_are_sent_once(place: Place, segment: str) -> None:
    end = _ready(place, segment)
    end.loses = True
    try:
        for _ in range(8):
            end.heard.clear()
            assert content(place.node, f"{segment}.read") == {"celsius": 21}
            assert 1 <= len(end.heard) <= 3
            assert len({end.id_of(message) for message in end.heard}) == 1
        outcomes = []
        for _ in range(5):
            end.heard.clear()
            outcomes.append(call(place.node, f"{segment}.press"))
            assert len(end.heard) <= 1
    finally:
        end.loses = False
    lost = [outcome for outcome in outcomes if "structuredContent" not in outcome]
    assert 1 <= len(lost) <= 3
    for outcome in lost:
        assert outcome["data"]["outcome"] == "unknown"
    assert place.node.link(segment)["device"]["retries"] > 0


@pytest.mark.req("AX-B.4-6")
@pytest.mark.parametrize("segment", ["array", "motor"])
def test_retries_end_with_the_caller(place: Place, segment: str) -> None:
    end = _ready(place, segment)
    end.ignores = True
    try:
        with Wire(place.node) as wire:
            gone = threading.Thread(target=wire_call, args=(wire, f"{segment}.read"))
            gone.start()
            wait_for(lambda: end.heard)
            assert wire.connection.sock is not None
            wire.connection.sock.shutdown(socket.SHUT_RDWR)
            gone.join()
        sent = len(end.heard)
        time.sleep(0.5)  # in which the other attempts would be made
        assert len(end.heard) == sent < 3
    finally:
        end.ignores = False


def wire_call(wire: Wire, tool: str) -> None:
    with contextlib.suppress(OSError, http.client.HTTPException):
        wire.modern("tools/call", {"name": tool, "arguments": {}})


@pytest.mark.req("AX-10.4-3")
def test_fuzzed_bytes_harm_neither_the_gateway_nor_its_callers(place: Place, end: End) -> None:
    chance = random.Random(end.segment)
    for number in range(60):
        data = chance.randbytes(chance.randrange(1, 40))
        if number % 2:
            end.say(data)
        else:
            end.say_garbage(data)
    sound = end.result
    for wrong in WRONG[end.segment]:
        end.result = wrong
        result = wait_for(lambda: _answered(place, f"{end.segment}.read"))
        assert result["isError"] is True, wrong
        assert result["_meta"]["x-mcpax-device"]["fault"] == "response_invalid"
        assert "structuredContent" not in result
        assert "secret" not in str(result)
    end.result = sound
    assert wait_for(lambda: _answered(place, f"{end.segment}.read"))["structuredContent"] == {"celsius": 21}
    assert place.node.link(end.segment)["state"] == "ready"


def _answered(place: Place, tool: str) -> object:
    """None: the link was lost by what was said before, and is coming back."""
    result = call(place.node, tool)
    return result if "content" in result else None


def _recorded(place: Place, tool: str) -> int:
    records = place.node.admin("/admin/audit?limit=1000")["records"]
    return len([one for one in records if one.get("tool") == tool and one.get("outcome") == "ok"])


@pytest.mark.req("AX-8.1-3")
def test_a_disconnect_within_an_answer_ends_the_call_as_lost(place: Place) -> None:
    end = _ready(place, "array")
    assert isinstance(end, BleEnd)
    end.ignores = True
    try:
        with ThreadPoolExecutor(1) as pool:
            called = pool.submit(call, place.node, "array.press")
            wait_for(lambda: end.heard)
            end.say_garbage(b"\0\x09\xa2\x02")  # nine bytes are announced
            end.disconnect()
            assert called.result()["data"]["outcome"] == "unknown"
    finally:
        end.ignores = False
    place.node.wait_link("array", {"state": "ready"}, 6.0)
    assert content(place.node, "array.read") == {"celsius": 21}
    assert len(end.heard) == 2


@pytest.mark.req("AX-8.1-6")
def test_mqtt_answers_once_and_follows_status_and_broker(place: Place, broker: Broker) -> None:
    end = _ready(place, "pump")
    assert isinstance(end, MqttEnd)
    recorded = _recorded(place, "pump.read")
    end.repeats = True
    assert content(place.node, "pump.read") == {"celsius": 21}
    end.repeats = False
    wait_for(lambda: place.node.link("pump")["device"]["discarded"].get("no_request"))
    assert len(end.heard) == 1
    wait_for(lambda: _recorded(place, "pump.read") == recorded + 1)

    before = place.node.link("pump")["device"]["discarded"]
    end.say(b"{not json")
    end.say(b'"' + b"x" * 66000 + b'"')
    for reason in ("malformed", "too_large"):
        wait_for(
            lambda reason=reason: place.node.link("pump")["device"]["discarded"].get(reason, 0) > before.get(reason, 0)
        )

    end.say_status(b"offline")
    place.node.wait_link("pump", {"state": "degraded"}, 2.0)
    end.say_status(b"online")
    place.node.wait_link("pump", {"state": "ready"}, 5.0)

    end.stop()
    broker.stop()
    place.node.wait_link("pump", {"state": "degraded"}, 2.0)
    broker.start()
    end.start()
    place.node.wait_link("pump", {"state": "ready"}, 5.0)
    assert content(place.node, "pump.read") == {"celsius": 21}
