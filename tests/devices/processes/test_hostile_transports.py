"""The hostile device over every transport, at one node: named errors, bounded memory, no wrong value, others unharmed.

What a broker itself can do wrong is in `tests/devices/in_process/test_mqtt_hostile_broker.py`.
"""

import contextlib
import random
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import cbor2
import pytest
from tests.devices.broker import Broker
from tests.devices.device_ends import ANNOUNCED, CheckedPtyEnd, End, Ends, Hosts, MqttEnd, SpiEnd
from tests.devices.processes.test_hostile_devices import MEMORY_MAX, discarded, memory
from tests.devices.serial_lines import call, content, listed
from tests.support import intervals
from tests.support.node_process import RunningNode, running_node, wait_for

FRAMES, CBOR, JSON = ("vent",), ("valve", "checked", "array", "panel", "motor"), ("pump",)
SEGMENTS = (*FRAMES, *CBOR, *JSON)
BOMBS_CBOR = [
    b"\xa2\x02\x01\x04\x9b\xff\xff\xff\xff\xff\xff\xff\xff",  # an array of 2^64 - 1
    b"\xa2\x02\x01\x04\x5a\xff\xff\xff\xff",  # bytes, 4 GB of them
    b"\xa2\x02\x01\x04" + b"\x81" * 200,  # nesting
    b"\xa2\x02\x01\x04" + b"\xa1\x00" * 100 + b"\x00",
    b"\xbf\x02\x01\x04\xa0\xff",  # an indefinite length
    b"\xa2\x02\x01\x04\x9f\xff",
    b"\xa3\x02\x01\x04\xa0\x04\xa0",  # a key twice
    b"\xa2\x02\x01\x04\xc2\x41\x01",  # a tag
    b"\xa2\x02\x01\x04\xa0\x00",  # bytes behind it
    b"\xa2\x02\x01\x04\x61\xff",  # no UTF-8
    b"\x83\x01\x02\x03",  # no map
    b"\xff",
]
BOMBS_FRAME = [
    b"\x02",
    b"\x02\x01\x01",
    b"\x02\x01",
    b"\x77\x01\x01\x00",
    b"\x03\x01\x01" + b"\x81" * 100,
    b"\x04",
    b"\x00" * 120,
]
BOMBS_JSON = [
    b"[" * 60000,
    b'{"jsonrpc":"2.0","id":1,"result":' + b'{"a":' * 10000,
    b'{"jsonrpc":"2.0","id":' + b"9" * 5000 + b',"result":{}}',
    b'{"jsonrpc":"2.0","id":1e999,"result":{}}',
    b'{"jsonrpc":"2.0","id":1,"result":{"celsius":1e999}}',
    b'{"jsonrpc":"2.0","id":[1],"result":{}}',
    b'{"jsonrpc":"2.0","id":1}',
    b'{"jsonrpc":"2.0","id":1,"result":{},"error":{}}',
    b"\xff\xfe\x00",
    b"null",
    b"",
]
BOMBS = {**dict.fromkeys(FRAMES, BOMBS_FRAME), **dict.fromkeys(CBOR, BOMBS_CBOR), **dict.fromkeys(JSON, BOMBS_JSON)}
# Below the framing: lengths that lie and silence in the middle of a message, and what they are counted as. None: what
# is only begun is not counted.
LIES: dict[str, list[tuple[bytes, str | None]]] = {
    "vent": [
        (b"\x7e\x7f\x02\x01\x01", None),
        (b"\x7e\xff\xff\x02", "too_large"),
        (b"\x7e\x00", "length"),
        (b"\x7e" * 300, "checksum"),
    ],
    "valve": [
        (b"\xff\x01\x01", None),
        (b"\x05\x01\x00", "cobs"),
        (b"\x00" * 50, "empty"),
        (b"\x01" * 600 + b"\x00", "too_large"),
        (b"\xc8", None),
    ],
    "checked": [(b"\xff\x01\x01", None), (b"\x03\x01\x02\x00", "checksum")],
    "array": [(b"\x00\xf0\xa2\x02", None), (b"\xff\xff\x00", "too_large"), (b"\x00", None)],
    "motor": [
        (b"\x1f\xff\xa2\x02\x01\x04\xa1\x00", "too_large"),  # a first frame of 4,095 bytes
        (b"\x10\x10\xa2\x02\x01\x04\xa1\x00" + b"\x25" + b"\x00" * 7, "sequence"),  # the fifth behind the first
        (b"\x21\x00\x00", "sequence"),  # what follows nothing
        (b"\x07\xa2", "malformed"),  # seven bytes, of which there is one
        (b"\x00", "malformed"),
        (b"\x31\x00\x00" + b"\x00" * 5 + b"\x32\x00\x00", "flow_control"),  # wait; overflow
        (b"\x7f\xff", "malformed"),
    ],
    "panel": [(b"\xff\xff", "stuck"), (b"\x13\x88", "too_large"), (b"\x01\x01", "too_large")],  # what polls read
}
SLOWEST_S = 2.0  # a call of another device beside a flood, on a machine that may be busy; bench has the time itself


class Place:
    def __init__(self, node: RunningNode, ends: Ends) -> None:
        self.node = node
        self.ends = ends.all


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("hostile")
    broker = Broker(folder)
    broker.start()
    sooner = {intervals.DEVICE_REOPEN_S: 0.1, intervals.DEVICE_SETTLE_S: 0.05, intervals.FLOOD_REST_S: 0.5}
    with contextlib.ExitStack() as stack:
        stack.callback(broker.stop)
        hosts = stack.enter_context(Hosts())
        more = (CheckedPtyEnd("checked", folder), MqttEnd("tank", hosts.run, broker))
        ends = Ends(folder, broker, hosts, *more)
        stack.callback(ends.stop)
        node = stack.enter_context(running_node(folder, {}, env=ends.environment, settings=sooner))
        for segment in ends.all:
            node.wait_link(segment, {"state": "ready"})
        yield Place(node, ends)


@pytest.fixture
def end(request: pytest.FixtureRequest, place: Place) -> Iterator[End]:
    """The hostile one; all others answer as before when it is done, and were never gone."""
    hostile = place.ends[request.param]
    others = [segment for segment in place.ends if segment != request.param]
    gone = {segment: place.node.link(segment)["device"]["unplugged"] for segment in others}
    hostile.heard.clear()
    before = memory(place.node)
    yield hostile
    hostile.lie = None
    for segment in others:
        assert content(place.node, f"{segment}.read") == {"celsius": 21}
        assert place.node.link(segment)["device"]["unplugged"] == gone[segment]
    assert memory(place.node) - before < MEMORY_MAX
    wait_for(lambda: call(place.node, f"{request.param}.read").get("structuredContent") == {"celsius": 21}, 10.0)


def over(*segments: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("end", segments, indirect=True)


def lost(place: Place, end: End) -> Any:
    """A call that is sent once and gets no answer that is one: its outcome."""
    return call(place.node, f"{end.segment}.set_level", {"level": 1})["data"]


@over(*SEGMENTS)
def test_answers_to_other_requests_and_repeated_answers_are_dropped(place: Place, end: End) -> None:
    before = discarded(place.node, end.segment).get("no_request", 0)
    told = iter(range(100, 110))

    def lie(message: bytes) -> list[bytes]:
        own = end.id_of(message)
        false = [end.reading((own + more) % 255 + 1, 66) for more in (0, 100)]
        return [*false, *[end.reading(own, next(told))] * 3]

    end.lie = lie
    for celsius in range(100, 110):
        assert content(place.node, f"{end.segment}.read") == {"celsius": celsius}
    wait_for(lambda: discarded(place.node, end.segment).get("no_request", 0) >= before + 40)


@over(*SEGMENTS)
def test_bombs_are_refused_by_name(place: Place, end: End) -> None:
    before = discarded(place.node, end.segment)
    end.lie = lambda message: [bomb for bomb in BOMBS[end.segment] if bomb or end.segment in JSON]
    assert lost(place, end)["outcome"] == "unknown"

    def are_counted() -> bool:
        now = discarded(place.node, end.segment)
        return sum(now.values()) - sum(before.values()) >= len(BOMBS[end.segment])

    wait_for(are_counted)
    now = discarded(place.node, end.segment)
    assert now["malformed"] > before.get("malformed", 0)


@over(*LIES)
def test_lengths_that_lie_and_silence_in_the_middle_cost_their_own_call(place: Place, end: End) -> None:
    end.lie = lambda message: []
    for raw, counted in LIES[end.segment]:
        place.node.wait_link(end.segment, {"state": "ready"})
        end.heard.clear()
        before = discarded(place.node, end.segment)
        with ThreadPoolExecutor(1) as pool:
            called = pool.submit(lost, place, end)
            wait_for(lambda: end.heard)
            if isinstance(end, SpiEnd):
                end.lengths.append(raw)
            else:
                end.say_garbage(raw)
            assert called.result()["reason"] == "device_absent", raw
        now = discarded(place.node, end.segment)
        assert counted is None or now.get(counted, 0) > before.get(counted, 0), (raw, counted, now)
        end.lie, kept = None, end.lie
        wait_for(lambda: call(place.node, f"{end.segment}.read").get("structuredContent") == {"celsius": 21})
        end.lie = kept


@over("vent", "valve", "checked", "array", "motor")
def test_an_answer_in_the_smallest_pieces_is_an_answer(place: Place, end: End) -> None:
    end.lie = lambda message: []
    with ThreadPoolExecutor(1) as pool:
        called = pool.submit(content, place.node, f"{end.segment}.read")
        for asked in range(3):  # it is asked again where a busy machine made the pieces late
            wait_for(lambda asked=asked: len(end.heard) > asked or called.done())  # type: ignore[misc]
            if called.done():
                break
            own = end.id_of(end.heard[-1])
            # a number in more bytes than it needs: several frames on CAN
            long = end.reading(own, 7) if end.profile == "a" else b"\xa2\x02\x19\x00%c\x04\xa1\x00\x18\x07" % own
            end.drip(long)
        assert called.result() == {"celsius": 7}


@over(*SEGMENTS)
def test_a_flood_costs_others_nothing(place: Place, end: End) -> None:
    before = discarded(place.node, end.segment)
    enough = threading.Event()
    stale = end.reading(20, 9)  # one frame on CAN
    others = [segment for segment in place.ends if segment != end.segment]
    with ThreadPoolExecutor(1) as pool:
        pouring = pool.submit(end.pour, stale, enough)
        try:
            wait_for(lambda: discarded(place.node, end.segment).get("no_request", 0) > before.get("no_request", 0) + 50)
            slowest = 0.0
            for _ in range(5):
                for segment in others:
                    began = time.monotonic()
                    assert content(place.node, f"{segment}.read") == {"celsius": 21}
                    slowest = max(slowest, time.monotonic() - began)
            if end.segment in JSON:
                reason = wait_for(lambda: place.node.link(end.segment).get("reason"))
                assert "more than 100 messages a second" in reason
        finally:
            enough.set()
        pouring.result()
    assert slowest < SLOWEST_S


@over(*(segment for segment in CBOR))
@pytest.mark.req("AX-B.3-3")
def test_a_reset_in_the_middle_of_a_call_ends_it_and_reads_the_tools_again(place: Place, end: End) -> None:
    same, fewer = (cbor2.dumps({1: "r", 3: tools}) for tools in (ANNOUNCED, ANNOUNCED[1:]))
    end.lie = lambda message: [same]
    quickest = 1.0
    for _ in range(3):
        began = time.monotonic()
        assert lost(place, end)["outcome"] == "unknown"
        quickest = min(quickest, time.monotonic() - began)
    assert quickest < 0.12  # not by its timeout
    end.lie = lambda message: [fewer]
    assert lost(place, end)["outcome"] == "unknown"
    names = {f"{end.segment}.{name}" for name in ("read", "set_level", "press")}
    wait_for(lambda: set(listed(place.node, end.segment)) == names - {f"{end.segment}.read"})
    assert place.node.link(end.segment)["device"]["missing"] == ["read"]
    end.say(same)
    wait_for(lambda: set(listed(place.node, end.segment)) == names)


@over(*JSON)
def test_a_device_that_goes_offline_in_the_middle_of_a_call_ends_it(place: Place, end: End) -> None:
    assert isinstance(end, MqttEnd)
    end.lie = lambda message: []
    with ThreadPoolExecutor(1) as pool:
        called = pool.submit(lost, place, end)
        wait_for(lambda: end.heard)
        end.say_status(b"offline")
        assert called.result()["outcome"] == "unknown"
    place.node.wait_link(end.segment, {"state": "degraded"})
    end.say_status(b"online")


@over("vent", "checked")
def test_noise_of_one_byte_in_a_thousand_delivers_no_wrong_value(place: Place, end: End) -> None:
    """Of lines whose messages have a checksum of ours; CAN and BLE have one of their own, TCP too."""
    chance = random.Random(3)
    assert hasattr(end, "encode")

    def spoil(message: bytes) -> list[bytes]:
        sound = end.encode(end.reading(end.id_of(message), end.id_of(message)))  # type: ignore[attr-defined]
        end.say_garbage(bytes(byte ^ (1 << chance.randrange(8)) if chance.random() < 0.001 else byte for byte in sound))
        return []

    end.lie = spoil
    answered = 0
    for _ in range(300):
        result = call(place.node, f"{end.segment}.read")
        if "structuredContent" in result:
            answered += 1
            assert result["structuredContent"] == {"celsius": end.id_of(end.heard[-1])}
    assert answered >= 299  # a read is repeated
