"""The session with a device over a transport of the test's own: times, retries, ends, and missing libraries."""

import asyncio
import sys
import tomllib
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from tests.devices.device_descriptions import described

from interlock.core.clock import Clock
from interlock.devices import session as runtime_session
from interlock.devices.protocol.cbor_codec import encoded, read_untrusted
from interlock.devices.protocol.description import DeviceDescription
from interlock.devices.protocol.description_check import read_description
from interlock.devices.protocol.device_tools import Announcements
from interlock.devices.protocol.messages import Announced, AnnouncementFrame
from interlock.devices.protocol.simulation import SimulatedDevice
from interlock.devices.requests import AnswerLost, Busy, CallOutcome, DeviceFailure, Succeeded
from interlock.devices.session import DeviceSession
from interlock.devices.transports import transport
from interlock.devices.transports.transport import SharedConnections, TransportOwner

TEXT = """
profile = "a"
[link]
transport = "uart_cbor"
port = "nowhere"
heartbeat_ms = 50
timeout_ms = 20
[[tool]]
id = 1
name = "read"
mutable = false
reversible = true
response = [{ name = "n", type = "u8" }]
[[tool]]
id = 2
name = "press"
mutable = true
reversible = true
[[tool]]
id = 3
name = "set"
mutable = true
reversible = true
idempotent = true
"""


class Memory:
    """A transport that hears every message and says what `reply` makes of it."""

    is_reliable = False

    def __init__(self, description: DeviceDescription) -> None:
        self.device = SimulatedDevice(description)
        self.reply: Callable[[bytes], list[bytes]] = self.device.answer
        self.owner: TransportOwner | None = None
        self.heard: list[bytes] = []
        self.discarded: dict[str, int] = {}
        self.failures: list[Exception] = []  # of the next attempts to open it
        self.closed = 0

    def made(self, segment: str, description: DeviceDescription, owner: TransportOwner, *_: object) -> "Memory":
        self.owner = owner
        return self

    async def open(self) -> None:
        if self.failures:
            raise self.failures.pop()

    async def close(self) -> None:
        self.closed += 1

    def send(self, message: bytes) -> None:
        self.heard.append(message)
        for answer in self.reply(message):
            asyncio.get_running_loop().call_soon(self._say, answer)

    def withdraw(self, message: bytes) -> None:
        """Do nothing: no message waits here."""

    def _say(self, message: bytes) -> None:
        if self.owner is not None:
            self.owner.on_message(message)

    @property
    def calls(self) -> list[bytes]:
        return [message for message in self.heard if message[0] == 1]


class Owner:
    def __init__(self) -> None:
        self.said: list[str] = []
        self.is_present = asyncio.Event()

    def on_present(self) -> None:
        self.said.append("present")
        self.is_present.set()

    def on_absent(self, reason: str) -> None:
        self.said.append(reason)
        self.is_present.clear()

    def on_tools(self) -> None:
        self.said.append("tools")

    def on_event(self, name: str, content: dict[str, Any]) -> None:
        self.said.append(name)


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> Memory:
    made = Memory(described(TEXT))
    monkeypatch.setattr(transport, "import_module", lambda name: type("Module", (), {"UartTransport": made.made}))
    return made


async def opened(owner: Owner, text: str = TEXT) -> DeviceSession:
    session = DeviceSession("board", described(text), Clock(), owner, SharedConnections())
    session.open()
    assert await session.present_within(2.0)
    return session


async def called(session: DeviceSession, tool: str) -> CallOutcome:
    done: asyncio.Future[CallOutcome] = asyncio.get_running_loop().create_future()
    session.call(session.tools[tool], {}, done.set_result)
    return await asyncio.wait_for(done, 2.0)


@pytest.mark.req("AX-B.4-6")
async def test_every_fifth_message_lost_is_made_good_where_that_is_allowed(memory: Memory) -> None:
    session = await opened(Owner())
    number = iter(range(10_000))
    memory.reply = lambda message: memory.device.answer(message) if next(number) % 5 else []
    memory.heard.clear()
    outcomes = [await called(session, tool) for _ in range(20) for tool in ("read", "set")]
    assert all(isinstance(outcome, Succeeded) for outcome in outcomes)
    assert session.counters.retries > 0
    by_id: dict[int, int] = {}
    for message in memory.calls:
        by_id[message[2]] = by_id.get(message[2], 0) + 1
    assert max(by_id.values()) <= 3
    memory.reply = lambda message: []
    memory.heard.clear()
    outcome = await called(session, "press")
    assert isinstance(outcome, AnswerLost)
    assert outcome.was_sent
    assert len(memory.calls) == 1
    await session.close()


@pytest.mark.req("AX-B.4-6")
async def test_nothing_is_sent_again_on_a_transport_that_loses_nothing(memory: Memory) -> None:
    memory.is_reliable = True
    session = await opened(Owner(), TEXT.replace("heartbeat_ms = 50", "heartbeat_ms = 5000"))
    memory.reply = lambda message: []
    outcome = await called(session, "read")
    assert isinstance(outcome, AnswerLost)
    assert outcome.was_sent
    assert len(memory.calls) == 1
    await session.close()


@pytest.mark.req("AX-B.4-6")
async def test_a_caller_that_leaves_is_not_sent_again_and_its_place_is_kept(memory: Memory) -> None:
    session = await opened(Owner(), TEXT.replace("heartbeat_ms = 50", "heartbeat_ms = 5000"))
    memory.reply = lambda message: []
    memory.heard.clear()
    heard: list[CallOutcome] = []
    first = session.call(session.tools["read"], {}, heard.append)
    second = session.call(session.tools["read"], {}, heard.append)
    assert first is not None
    assert second is not None
    session.requests.abandon(second)  # it waits: never sent
    session.requests.abandon(first)  # it is on the line: not sent again
    await asyncio.sleep(0.08)
    assert len(memory.calls) == 1
    assert heard == []
    memory.reply = memory.device.answer
    assert isinstance(await called(session, "read"), Succeeded)
    await session.close()


async def test_a_lost_transport_ends_what_was_sent_as_unknown_and_what_waits_as_not_sent(memory: Memory) -> None:
    owner = Owner()
    session = await opened(owner, TEXT.replace("timeout_ms = 20", "timeout_ms = 5000"))
    memory.reply = lambda message: []
    outcomes: list[CallOutcome] = []
    for _ in range(18):
        session.call(session.tools["press"], {}, outcomes.append)
    assert isinstance(outcomes.pop(), Busy)  # one on the line, sixteen wait
    session.on_transport_lost("the line is gone")
    assert [outcome.was_sent for outcome in outcomes if isinstance(outcome, AnswerLost)] == [True] + [False] * 16
    assert owner.said[-1] == "the line is gone"
    await session.close()


async def test_a_device_that_is_given_a_rest_returns_when_an_operator_says_so(
    memory: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runtime_session, "REOPEN_S", 0.01)
    owner = Owner()
    session = await opened(owner)
    session.on_transport_lost("it floods", 60.0)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(owner.is_present.wait(), 0.2)  # long after any other
    assert session.reason == "it floods"
    session.reopen()
    await asyncio.wait_for(owner.is_present.wait(), 2.0)
    session.on_transport_lost("the line is gone")
    await asyncio.wait_for(owner.is_present.wait(), 2.0)  # it rests no more
    await session.close()


@pytest.mark.parametrize(
    ("missing", "text"),
    [
        ("serialx", TEXT),
        ("cbor2", 'profile = "b"\n[link]\ntransport = "uart_cbor"\nport = "nowhere"\n'),
        ("cobs", 'profile = "b"\n[link]\ntransport = "uart_cbor"\nport = "nowhere"\n'),
    ],
)
async def test_a_missing_library_is_the_failure_of_that_link_and_names_the_extra(
    monkeypatch: pytest.MonkeyPatch, missing: str, text: str
) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    monkeypatch.delitem(sys.modules, "interlock.devices.protocol.framing", raising=False)
    session = DeviceSession("board", described(text), Clock(), Owner(), SharedConnections())
    session.open()
    assert not await session.present_within(2.0)
    assert missing in (session.reason or "")
    assert "interlock[devices]" in (session.reason or "")
    await session.close()


SELF_DESCRIBING = 'profile = "b"\n[link]\ntransport = "uart_cbor"\nport = "nowhere"\ntimeout_ms = 20\n'


def announced(**ids: int) -> bytes:
    return encoded({1: "r", 3: [{0: number, 1: [], 2: 5, 3: name} for name, number in ids.items()]})


@pytest.mark.req("AX-8.3-3")
async def test_a_device_that_does_not_register_is_asked_again_every_five_seconds(
    memory: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = asyncio.get_running_loop()
    later, waits = loop.call_later, []

    def call_sooner(delay: float, callback: Callable[..., object], *arguments: Any) -> asyncio.TimerHandle:
        waits.append(delay)
        return later(delay / 1000, callback, *arguments)

    monkeypatch.setattr(loop, "call_later", call_sooner)
    asked = asyncio.Event()

    def hear(message: bytes) -> list[bytes]:
        if len(memory.heard) == 4:
            asked.set()
        return []

    memory.reply = hear
    session = DeviceSession(
        "board", described(f"{SELF_DESCRIBING}heartbeat_ms = 30000\n"), Clock(), Owner(), SharedConnections()
    )
    session.open()
    async with asyncio.timeout(2.0):
        await asked.wait()
    await session.close()
    assert set(memory.heard) == {encoded({1: "r"})}
    assert waits[:3] == [5.0] * 3


@pytest.mark.req("AX-B.3-3")
async def test_no_call_keeps_a_number_that_means_another_tool_now(memory: Memory) -> None:
    memory.reply = lambda message: [announced(read=1, fire=2)] if read_untrusted(message).get(1) == "r" else []
    session = await opened(Owner(), SELF_DESCRIBING)
    outcomes: list[CallOutcome] = []
    session.call(session.tools["read"], {}, outcomes.append)
    session.call(session.tools["read"], {}, outcomes.append)
    session.on_message(announced(read=2, fire=1))  # so soon after the one that was asked for
    assert outcomes == [AnswerLost("it was reset", was_sent=True), AnswerLost("it was reset", was_sent=False)]
    session.call(session.tools["read"], {}, outcomes.append)
    assert read_untrusted(memory.heard[-1])[1] == 2
    await session.close()


@pytest.mark.req("AX-8.N-9")
async def test_an_announcement_answers_a_heartbeat_and_no_call_is_lost(
    memory: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runtime_session, "SETTLE_S", 0.0)
    late: list[bytes] = []

    def reply(message: bytes) -> list[bytes]:
        members = read_untrusted(message)
        if members[1] == "r":
            return [announced(read=1)]
        if members[1] == "h":
            late.append(announced(read=1))
            return []
        return [encoded({2: members[2], 4: {}})]

    memory.reply = reply
    session = await opened(Owner(), f"{SELF_DESCRIBING}heartbeat_ms = 100\n".replace("= 20", "= 5000"))
    for _ in range(3):
        await until(lambda: bool(late))
        outcomes: list[CallOutcome] = []
        session.call(session.tools["read"], {}, outcomes.append)
        session.call(session.tools["read"], {}, outcomes.append)
        assert outcomes == []
        session.on_message(late.pop())
        await until(lambda: len(outcomes) == 2)  # noqa: B023
        assert all(isinstance(outcome, Succeeded) for outcome in outcomes)
    assert session.counters.unplugged == 0
    await session.close()


@pytest.mark.req("AX-8.N-9")
async def test_a_late_announcement_that_answers_a_heartbeat_is_no_reset(
    memory: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runtime_session, "SETTLE_S", 0.0)
    memory.reply = lambda message: [announced(read=1)] if read_untrusted(message).get(1) == "r" else []
    text = SELF_DESCRIBING.replace("timeout_ms = 20", "timeout_ms = 100")
    session = await opened(Owner(), f"{text}heartbeat_ms = 400\n")
    await until(lambda: bool(session.requests.in_flight))
    outcomes: list[CallOutcome] = []
    session.call(session.tools["read"], {}, outcomes.append)
    await until(lambda: read_untrusted(memory.heard[-1])[1] == 1)  # the heartbeat had no answer in time
    session.on_message(announced(read=1))
    assert outcomes == []
    session.on_message(encoded({2: read_untrusted(memory.heard[-1])[2], 4: {}}))
    assert outcomes == [Succeeded({})]
    await session.close()


@pytest.mark.req("AX-8.N-9", "AX-B.3-3")
async def test_calls_that_wait_are_sent_after_a_reset(memory: Memory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime_session, "SETTLE_S", 0.0)
    memory.reply = lambda message: [announced(read=1)] if read_untrusted(message).get(1) == "r" else []
    session = await opened(Owner(), SELF_DESCRIBING.replace("= 20", "= 5000"))
    outcomes: list[CallOutcome] = []
    session.call(session.tools["read"], {}, outcomes.append)
    session.call(session.tools["read"], {}, outcomes.append)
    memory.reply = lambda message: [encoded({2: read_untrusted(message)[2], 4: {}})]
    session.on_message(announced(read=1))
    assert outcomes == [AnswerLost("it was reset", was_sent=True)]
    await until(lambda: len(outcomes) == 2)
    assert isinstance(outcomes[1], Succeeded)
    await session.close()


async def test_a_heartbeat_answers_no_call_and_a_result_that_cannot_be_read_ends_it(
    memory: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = await opened(Owner(), TEXT.replace("timeout_ms = 20", "timeout_ms = 5000"))
    memory.reply = lambda message: [bytes((4, 0, message[2])), *memory.device.answer(message)]
    assert isinstance(await called(session, "read"), Succeeded)
    assert session.discarded["wrong_type"] == 1

    def broken(*_: object) -> dict[str, Any]:
        raise RuntimeError

    monkeypatch.setattr(session._codec, "result", broken)
    outcome = await called(session, "read")
    assert isinstance(outcome, DeviceFailure)
    assert outcome.fault == "response_invalid"
    await session.close()


async def test_the_first_id_of_a_process_is_not_that_of_every_process(memory: Memory) -> None:
    first_ids = set()
    for _ in range(8):
        memory.heard.clear()
        session = await opened(Owner())
        first_ids.add(memory.heard[0][2])  # SEQ of the frame
        await session.close()
    assert len(first_ids) > 1


@pytest.mark.parametrize("kind", ["codec", "framing"])
async def test_a_call_that_no_frame_holds_is_too_large(
    memory: Memory, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    text = TEXT + 'request = [{ name = "t", type = "text" }]\n'
    if kind == "codec":
        text = text.replace('port = "nowhere"', 'port = "nowhere"\nlen = 1')
    session = await opened(Owner(), text)

    def refuse(message: bytes) -> None:
        raise ValueError("a message of 256 bytes")

    if kind == "framing":
        monkeypatch.setattr(memory, "send", refuse)
    outcomes: list[CallOutcome] = []
    session.call(session.tools["set"], {"t": "x" * 253}, outcomes.append)
    (outcome,) = outcomes
    assert isinstance(outcome, DeviceFailure)
    assert outcome.fault == "too_large"
    assert session.requests.waiting == 0
    await session.close()


@pytest.mark.parametrize(
    ("latency", "is_reliable", "attempt_s"), [("fast", True, 5.0), ("fast", False, 5 / 3), ("realtime", False, 0.5 / 3)]
)
async def test_an_attempt_has_its_part_of_the_time_of_the_class(
    memory: Memory, latency: str, is_reliable: bool, attempt_s: float
) -> None:
    memory.is_reliable = is_reliable
    text = TEXT.replace('name = "read"', f'name = "read"\nlatency_class = "{latency}"')
    session = await opened(Owner(), text.replace("timeout_ms = 20", "timeout_ms = 1000"))
    request = session.call(session.tools["read"], {}, lambda outcome: None)
    assert request is not None
    assert session.requests.attempt_s(request) == pytest.approx(attempt_s)
    await session.close()


@pytest.mark.req("AX-B.4-6")
async def test_a_realtime_read_is_asked_for_again_within_its_half_second(memory: Memory) -> None:
    """Where an attempt may take longer than the class: with the timeout that a description has unless it says more."""
    text = TEXT.replace('name = "read"', 'name = "read"\nlatency_class = "realtime"')
    session = await opened(Owner(), text.replace("timeout_ms = 20", "timeout_ms = 1000"))
    lost = iter((True, True))
    memory.reply = lambda message: [] if message[0] == 1 and next(lost, False) else memory.device.answer(message)
    begun = asyncio.get_running_loop().time()
    assert isinstance(await called(session, "read"), Succeeded)
    assert asyncio.get_running_loop().time() - begun < 0.5
    assert len(memory.calls) == 3
    assert len({message[2] for message in memory.calls}) == 1
    await session.close()


@pytest.mark.parametrize("params", ['{"n": "x"}', '{"n": 256}', '{"n": 1, "junk": []}', "{}"])
async def test_an_event_on_mqtt_is_what_its_description_says_or_dropped(params: str) -> None:
    text = """
profile = "json"
link = { transport = "mqtt_json", host = "localhost" }
tool = [{ id = 1, name = "x" }]
event = [{ id = 9, name = "pressed", response = [{ name = "n", type = "u8" }] }]
"""
    owner = Owner()
    session = DeviceSession("board", described(text), Clock(), owner, SharedConnections())
    session._arrive()
    for said in (params, '{"n": 3}'):
        session.on_message(b'{"jsonrpc":"2.0","method":"pressed","params":%b}' % said.encode())
    assert owner.said == ["present", "pressed"]
    assert session.discarded == {"response_invalid": 1}


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(2.0):
        while not is_so():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


@pytest.mark.req("AX-B.3-1")
async def test_a_device_is_asked_for_a_sign_of_life_every_half_interval(memory: Memory) -> None:
    times: list[float] = []

    def answer(message: bytes) -> list[bytes]:
        times.append(asyncio.get_running_loop().time())
        return memory.device.answer(message)

    memory.reply = answer
    session = await opened(Owner(), TEXT.replace("heartbeat_ms = 50", "heartbeat_ms = 200"))
    await until(lambda: len(times) == 8)
    pauses = [later - earlier for earlier, later in pairwise(times)]
    assert 0.09 < min(pauses) < 0.15  # a busy machine may be late, and is never early
    await session.close()


async def test_after_a_call_without_an_answer_only_a_heartbeat_goes_out(memory: Memory) -> None:
    session = await opened(Owner(), TEXT.replace("heartbeat_ms = 50", "heartbeat_ms = 5000"))
    memory.reply = lambda message: []
    memory.heard.clear()
    outcomes: list[CallOutcome] = []
    for _ in range(3):
        session.call(session.tools["press"], {}, outcomes.append)
    await until(lambda: len(memory.heard) >= 3)
    assert [message[0] for message in memory.heard[:3]] == [1, 4, 4]
    assert outcomes == [AnswerLost("it did not answer in time", was_sent=True)]
    memory.reply = memory.device.answer
    await until(lambda: len(outcomes) == 3)
    assert all(isinstance(outcome, Succeeded) for outcome in outcomes[1:])
    await session.close()


async def test_calls_that_wait_for_a_sign_of_life_are_no_more_than_the_queue_holds(memory: Memory) -> None:
    text = TEXT.replace("heartbeat_ms = 50", "heartbeat_ms = 5000\nin_flight = 4")
    session = await opened(Owner(), text)
    memory.reply = lambda message: []
    assert isinstance(await called(session, "press"), AnswerLost)
    outcomes: list[CallOutcome] = []
    for _ in range(17):
        session.call(session.tools["press"], {}, outcomes.append)
    assert outcomes == [Busy()]
    await session.close()


@pytest.mark.req("AX-8.N-9")
async def test_the_transport_of_a_silent_device_is_opened_again_and_unsent_calls_end(memory: Memory) -> None:
    session = await opened(Owner())
    memory.reply = lambda message: []
    outcomes: list[CallOutcome] = []
    for _ in range(3):
        session.call(session.tools["press"], {}, outcomes.append)
    await until(lambda: not session.is_present)
    assert session.loss == "heartbeat_timeout"
    await until(lambda: len(outcomes) == 3)
    assert [outcome.was_sent for outcome in outcomes if isinstance(outcome, AnswerLost)] == [True, False, False]
    await until(lambda: memory.closed == 1)
    memory.reply = memory.device.answer
    await until(lambda: session.is_present)
    assert len(memory.calls) == 1
    await session.close()


@pytest.mark.req("AX-8.N-9")
async def test_unsent_calls_are_sent_to_a_silent_device_that_returns(memory: Memory) -> None:
    session = await opened(Owner(), TEXT.replace("heartbeat_ms = 50", "heartbeat_ms = 400"))
    memory.reply = lambda message: []
    outcomes: list[CallOutcome] = []
    for _ in range(4):
        last = session.call(session.tools["press"], {}, outcomes.append)
    await until(lambda: not session.is_present)
    assert last is not None
    session.requests.abandon(last)  # its client no longer waits
    memory.reply = memory.device.answer
    await until(lambda: len(outcomes) == 3)
    assert outcomes == [AnswerLost("it did not answer in time", was_sent=True), Succeeded({}), Succeeded({})]
    assert len(memory.calls) == 3
    await session.close()


@pytest.mark.req("AX-8.N-9")
async def test_a_heartbeat_without_an_answer_costs_no_call(memory: Memory) -> None:
    session = await opened(Owner(), TEXT.replace("timeout_ms = 20", "timeout_ms = 100"))
    memory.reply = lambda message: memory.device.answer(message) if message[0] == 1 else []
    await until(lambda: bool(session.requests.in_flight))
    memory.heard.clear()
    assert isinstance(await called(session, "press"), Succeeded)
    assert [message[0] for message in memory.heard] == [1]  # no heartbeat was repeated, or sent before the call
    await session.close()


@pytest.mark.req("AX-8.N-7")
@pytest.mark.parametrize("tail", [(2, 0, 1), (2, 1, 0), (4, 0, 0), (4, 0, 7, 7)], ids=str)
async def test_any_answer_with_its_number_answers_a_heartbeat(memory: Memory, tail: tuple[int, ...]) -> None:
    kind, tool_id, *payload = tail
    memory.reply = lambda message: [bytes((kind, tool_id, message[2], *payload))] if message[0] == 4 else []
    session = await opened(Owner())
    sent = session.counters.sent
    await until(lambda: session.counters.sent > sent + 8)  # longer than a silent device would be present
    assert session.is_present
    assert session.discarded == {}
    await session.close()


@pytest.mark.req("AX-8.N-7", "AX-8.N-8")
async def test_an_answer_with_another_number_is_no_sign_of_life(memory: Memory) -> None:
    memory.reply = lambda message: [bytes((2, 0, message[2] % 255 + 1, 0))]
    session = DeviceSession("board", described(TEXT), Clock(), Owner(), SharedConnections())
    session.open()
    await until(lambda: session.discarded.get("no_request", 0) > 3)
    assert not session.is_present
    await session.close()


@pytest.mark.req("AX-8.N-8")
async def test_a_self_describing_device_can_be_assumed_to_be_present(memory: Memory) -> None:
    tools = "".join(f'[[tool]]\nid = {number}\nname = "{name}"\n' for number, name in ((1, "read"), (2, "press")))
    memory.reply = lambda message: [encoded({2: read_untrusted(message)[2], 4: {}})]
    session = await opened(Owner(), f'{SELF_DESCRIBING}heartbeat_ms = 50\npresence = "assume"\n{tools}')
    for _ in range(3):
        assert isinstance(await called(session, "press"), Succeeded)
    await asyncio.sleep(0.1)
    assert [read_untrusted(message)[1] for message in memory.heard] == [2, 2, 2]
    session.on_message(announced(read=1, fire=3))
    assert sorted(session.tools) == ["fire", "read"]
    await session.close()


@pytest.mark.req("AX-8.N-8")
async def test_an_assumed_device_without_described_tools_is_asked_for_them(memory: Memory) -> None:
    memory.reply = lambda message: [announced(read=1)] if read_untrusted(message).get(1) == "r" else []
    session = await opened(Owner(), f'{SELF_DESCRIBING}heartbeat_ms = 50\npresence = "assume"\n')
    assert sorted(session.tools) == ["read"]
    await asyncio.sleep(0.2)
    assert session.is_present
    assert [read_untrusted(message)[1] for message in memory.heard] == ["r"]
    await session.close()


async def test_a_transport_whose_opening_raises_is_tried_again(memory: Memory) -> None:
    memory.failures = [OverflowError("port must be 0-65535"), UnicodeError("label too long")]
    session = DeviceSession("board", described(TEXT), Clock(), Owner(), SharedConnections())
    session.open()
    for said in ("label too long", "port must be 0-65535"):
        await until(lambda said=said: said in (session.reason or ""))  # type: ignore[misc]
        session.reopen()
    await until(lambda: session.is_present)
    assert memory.closed == 2
    await session.close()


@pytest.mark.parametrize(
    ("link", "key"),
    [
        ('transport = "can_cbor"\nchannel = "v"\nrx_id = -5\ntx_id = 6', "rx_id"),
        ('transport = "can_cbor"\nchannel = "v"\nrx_id = 5\ntx_id = 0x20000000', "tx_id"),
        ('transport = "can_cbor"\nchannel = "v"\nrx_id = 5\ntx_id = 5', "tx_id"),
        ('transport = "ble_cbor"\naddress = "x"\nservice = "nope"', "service"),
        ('transport = "mqtt_json"\nhost = "localhost"\ntcp_port = -1', "tcp_port"),
        ('transport = "modbus_tcp"\nhost = "localhost"\ntcp_port = 70000', "tcp_port"),
    ],
)
def test_addresses_that_no_transport_has_are_refused_where_they_are_written(link: str, key: str) -> None:
    profile = {"can": "b", "ble": "b", "mqtt": "json", "modbus": "modbus"}[link.split('"')[1].split("_")[0]]
    faults = read_description(tomllib.loads(f'profile = "{profile}"\n[link]\n{link}\n'))
    assert isinstance(faults, tuple)
    assert ("link", key) in [fault.path for fault in faults]


async def test_an_announcement_is_compiled_once_and_a_device_that_never_settles_is_absent(memory: Memory) -> None:
    now = Clock().now()
    announcements = Announcements("board", described(SELF_DESCRIBING))
    same = AnnouncementFrame(tools=(Announced(id=1, arg_types=(), ret_type=5),))
    tools = announcements.take(same, now)
    assert all(announcements.take(same, now) is tools for _ in range(10))

    memory.reply = lambda message: [announced(read=1)] if read_untrusted(message).get(1) == "r" else []
    owner = Owner()
    session = await opened(owner, SELF_DESCRIBING)
    outcomes: list[CallOutcome] = []
    for number in (2, 3):
        session.on_message(announced(read=number))
    session.call(session.tools["read"], {}, outcomes.append)
    session.on_message(announced(read=4))
    assert not session.is_present
    assert owner.said[-1] == "it announces other tools too often"
    assert outcomes == [AnswerLost("it announces other tools too often", was_sent=True)]
    await session.close()
