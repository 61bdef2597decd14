"""Are messages found in what a line delivers: whole, byte by byte, cut, doubled, among garbage, and nothing else?"""

import random
import time
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from interlock.devices.protocol import framing as framing_module
from interlock.devices.protocol.description import DeviceDescription, Field, LinkDescription, ToolDescription
from interlock.devices.protocol.frame_codec import FrameCodec
from interlock.devices.protocol.framing import (
    CobsFraming,
    Framing,
    LengthFraming,
    SofFraming,
    crc8,
    crc8_bytes,
    crc16,
    framing_of,
)
from interlock.devices.protocol.messages import DeviceAnswer, DeviceFault

GAP_S = 0.005
CALL = bytes((1, 1, 1))
GROWTH_MAX = 8.0  # tests/wire/pure/test_growth.py


def sof(**settings: object) -> SofFraming:
    return SofFraming(**{"max_message": 256, "gap_s": GAP_S, **settings})  # type: ignore[arg-type]


FRAMINGS: dict[str, Callable[[], Framing]] = {
    "frame": sof,
    "frame, LEN of 1": lambda: sof(len_form=1),
    "frame, LEN of 2": lambda: sof(len_form=2),
    "frame, CRC-16": lambda: sof(crc="crc16"),
    "frame, CRC-8": lambda: sof(crc="crc8"),
    "frame, another SOF": lambda: sof(sof=0xA5),
    "COBS": lambda: CobsFraming(max_message=256),
    "COBS, CRC-8": lambda: CobsFraming(max_message=256, crc="crc8"),
    "COBS, CRC-16": lambda: CobsFraming(max_message=256, crc="crc16"),
    "length": lambda: LengthFraming(max_message=256),
}
CHECKED = [name for name in FRAMINGS if name.startswith("frame") or "CRC" in name]
each_framing = pytest.mark.parametrize("name", FRAMINGS)
messages = st.lists(st.binary(min_size=3, max_size=255), max_size=6)


@pytest.mark.req("AX-B.1-4")
def test_checksums_have_their_check_values_and_every_single_bit_error_is_discarded_and_counted() -> None:
    assert (crc8(b"123456789"), crc16(b"123456789")) == (0xF4, 0x29B1)
    for name in CHECKED:
        framing = FRAMINGS[name]()
        good = framing.encode(bytes((2, 1, 7)) + b"\x00\x7e\x03\x01\xff" * 3)
        # Without its zero a COBS frame is one with the next: that is two CBOR items in one, which the codec refuses.
        for bit in range((len(good) - ("COBS" in name)) * 8):
            bad = bytearray(good)
            bad[bit // 8] ^= 1 << bit % 8
            framing.reset()
            framing.discarded.clear()
            found = framing.feed_untrusted(bytes(bad), 0.0) + framing.feed_untrusted(b"", 1.0)
            # a lost end is noticed with the next frame
            found += framing.feed_untrusted(framing.encode(b"end"), 2.0)
            assert b"end" in found or "COBS" in name, (name, bit)
            assert not [each for each in found if each != b"end"], (name, bit)
            assert sum(framing.discarded.values()) >= 1, (name, bit)


@pytest.mark.req("AX-B.1-2")
def test_the_golden_frame_is_found_behind_noise_within_reads_and_after_garbage() -> None:
    golden = bytes.fromhex("7E 03 01 01 01 43")
    framing = sof()
    assert framing.encode(CALL) == golden
    assert framing.feed_untrusted(b"\x00\xff\x10" + golden, 0.0) == [CALL]  # noise before SOF
    assert framing.feed_untrusted(golden + golden, 0.0) == [CALL, CALL]  # two frames in one read
    with_sof = bytes((2, 1, 1)) + b"\x7e\x7e\x03\x7e"
    assert framing.feed_untrusted(framing.encode(with_sof), 0.0) == [with_sof]
    assert framing.feed_untrusted(golden[:4], 0.0) == []  # truncated, then silence
    assert framing.feed_untrusted(golden, GAP_S * 1.1) == [CALL]
    garbage = b"\x7e\x7f" + bytes(range(60))  # a LEN that waits for more than comes
    assert framing.feed_untrusted(garbage, 1.0) == []
    assert framing.feed_untrusted(golden, 2.0) == [CALL]
    assert framing.discarded["noise"] and framing.discarded["truncated"] == 2
    assert framing.feed_untrusted(b"\x7e\x0a" + golden + bytes(9), 2.5) == [CALL]  # within a bad frame
    assert framing.feed_untrusted(golden[:3], 3.0) + framing.feed_untrusted(golden[3:], 3.004) == [CALL]


@pytest.mark.req("AX-B.1-3")
def test_len_is_one_byte_below_128_and_two_above() -> None:
    framing = sof()
    for payload_bytes, head in ((124, "7f"), (125, "8080")):
        message = bytes((2, 1, 1)) + bytes(payload_bytes)
        frame = framing.encode(message)
        assert frame[1 : 1 + len(head) // 2].hex() == head
        assert len(frame) == 1 + len(head) // 2 + len(message) + len(head) // 2  # the CRC is as wide as LEN
        assert framing.feed_untrusted(frame, 0.0) == [message]
    body = bytes((0x80, 3)) + CALL
    two_for_three = b"\x7e" + body + crc16(body).to_bytes(2, "big")
    below_three = b"\x7e\x02\x01\x01" + bytes((crc8(b"\x02\x01\x01"),))
    above_max = b"\x7e" + (0x8000 | 257).to_bytes(2, "big") + bytes(257)
    for bad, reason in ((two_for_three, "length"), (below_three, "length"), (above_max, "too_large")):
        framing.reset()
        framing.discarded.clear()
        assert framing.feed_untrusted(bad, 0.0) == []
        assert framing.discarded[reason] == 1
        assert framing.feed_untrusted(framing.encode(CALL), 1.0) == [CALL]
    assert sof(len_form=2).encode(CALL)[:3].hex() == "7e0003"
    assert sof(len_form=1).encode(CALL + bytes(200))[:2].hex() == "7ecb"


@each_framing
@given(messages, st.integers(1, 7))
def test_messages_arrive_however_they_are_cut(name: str, sent: list[bytes], step: int) -> None:
    framing = FRAMINGS[name]()
    wire = b"".join(framing.encode(message) for message in sent)
    assert framing.feed_untrusted(wire, 0.0) == sent
    found = []
    for at in range(0, len(wire), step):
        found += framing.feed_untrusted(wire[at : at + step], 0.0)
    assert found == sent
    assert not framing.discarded


@each_framing
@given(st.lists(st.binary(max_size=400), max_size=5))
def test_garbage_is_counted_and_bounded_and_hurts_no_later_message(name: str, garbage: list[bytes]) -> None:
    framing = FRAMINGS[name]()
    for now, data in enumerate(garbage):
        for message in framing.feed_untrusted(data, float(now)):
            assert len(message) <= framing.max_message
        assert len(framing._begun) <= 2 * framing.max_message  # type: ignore[attr-defined]
    framing.reset() if name == "length" else framing.feed_untrusted(b"\0", 1e3)
    assert framing.feed_untrusted(framing.encode(b"good"), 1e6)[-1:] == [b"good"]


@pytest.mark.parametrize("name", CHECKED)
def test_frames_lost_doubled_and_out_of_order_are_delivered_as_they_come(name: str) -> None:
    framing = FRAMINGS[name]()
    chance = random.Random(19)
    frames = [(2, 1, seq, *chance.randbytes(seq % 50)) for seq in range(1, 200)]
    arriving = [frame for frame in frames if chance.random() > 0.2]
    arriving += chance.sample(arriving, 30)
    chance.shuffle(arriving)
    found = framing.feed_untrusted(b"".join(framing.encode(bytes(frame)) for frame in arriving), 0.0)
    assert found == [bytes(frame) for frame in arriving]


def test_cobs_discards_and_counts_invalid_frames() -> None:
    framing = CobsFraming(max_message=16)
    assert framing.encode(b"\x11\x00\x22").hex() == "0211022200"
    assert framing.feed_untrusted(b"\x05\x01\x00", 0.0) == []  # a code byte beyond the frame
    assert framing.feed_untrusted(b"\x00", 0.0) == []
    assert framing.feed_untrusted(b"\x01" * 400 + b"\x00", 0.0) == []
    assert framing.feed_untrusted(framing.encode(b"x" * 16)[:-1] + b"yy\x00", 0.0) == []
    assert framing.discarded == {"cobs": 1, "empty": 1, "too_large": 2}
    with pytest.raises(ValueError):
        framing.encode(bytes(17))
    checked = CobsFraming(max_message=16, crc="crc16")
    assert checked.feed_untrusted(framing.encode(b"no checksum") + framing.encode(b"x"), 0.0) == []
    assert checked.discarded == {"checksum": 2}


def test_a_false_length_ends_the_connection_and_the_next_connection_starts_clean() -> None:
    framing = LengthFraming(max_message=256, gap_s=1.0)
    assert framing.encode(b"abc").hex() == "0003616263"
    assert framing.feed_untrusted(b"\0\0\0\0\0\3abc\0\0", 0.0) == [b"abc"]  # 0 is nothing
    assert framing.feed_untrusted(b"\xff\xff\xff", 0.0) == []
    assert framing.is_lost and framing.discarded == {"too_large": 1}
    assert framing.feed_untrusted(framing.encode(b"abc"), 0.0) == []
    framing.reset()
    assert framing.feed_untrusted(b"\0\5ab", 0.0) == []
    assert framing.feed_untrusted(framing.encode(b"abc"), 1.5) == [b"abc"]
    assert framing.discarded["truncated"] == 1


@pytest.mark.parametrize("form", ["frame", "frame, CRC-16"])
def test_noise_of_one_byte_in_a_thousand_never_delivers_a_wrong_value(form: str) -> None:
    description = DeviceDescription(profile="a", link=LinkDescription(transport="uart_cbor"))
    codec, framing = FrameCodec(description), FRAMINGS[form]()
    tool = ToolDescription(id=1, name="read", response=(Field(name="a", type="u32"), Field(name="b", type="u32")))
    chance = random.Random(1)
    wrong = right = 0
    for number in range(20_000):
        seq, value = number % 255 + 1, chance.getrandbits(32)
        payload = value.to_bytes(4, "little") + (value ^ 0xFFFFFFFF).to_bytes(4, "little")
        line = bytearray(framing.encode(bytes((2, 1, seq)) + payload + b"\0"))
        for at in range(len(line)):
            if chance.random() < 0.001:
                line[at] = chance.randrange(256)
        for message in framing.feed_untrusted(bytes(line), number * 1.0):
            try:
                answer = codec.decode_untrusted(message)
                if (
                    not isinstance(answer, DeviceAnswer)
                    or answer.request_id != seq
                    or answer.tool_id != 1
                    or answer.status
                ):
                    continue
                result = codec.result(tool, answer.payload)
            except DeviceFault:
                continue
            right += result == {"a": value, "b": value ^ 0xFFFFFFFF}
            wrong += result != {"a": value, "b": value ^ 0xFFFFFFFF}
    assert wrong == 0
    assert right > 19_500
    assert sum(framing.discarded.values()) > 100


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("frame", b"\x7e"),
        ("frame", b"\x7e\x7f"),
        ("frame, LEN of 2", b"\x7e\x00"),
        ("COBS", b"\x01"),
        ("COBS", b"\x00"),
        ("COBS", b"\x01\x00"),
        ("length", b"\x00"),
        ("length", b"\x00\x01\x00"),
    ],
)
def test_hostile_bytes_take_linear_time(name: str, part: bytes) -> None:
    def seconds(count: int) -> float:
        best = 1e9
        for _ in range(6):
            framing = FRAMINGS[name]()
            began = time.process_time()  # what others do meanwhile does not count
            framing.feed_untrusted(part * count, 0.0)
            best = min(best, time.process_time() - began)
        return best

    assert seconds(4_000) < GROWTH_MAX * max(seconds(1_000), 1e-4)


@pytest.mark.req("AX-B.1-2")
def test_the_framing_is_the_links() -> None:
    def made(**settings: object) -> LinkDescription:
        return LinkDescription(**{"transport": "uart_cbor", **settings})  # type: ignore[arg-type]

    assert isinstance(framing_of(made(), "a"), SofFraming)
    assert isinstance(framing_of(made(), "b"), CobsFraming)
    assert isinstance(framing_of(made(framing="frame"), "b"), SofFraming)
    assert framing_of(made(baud=9600), "a").gap_s == pytest.approx(20 * 10 / 9600)  # type: ignore[attr-defined]
    assert framing_of(made(), "a").gap_s == GAP_S  # type: ignore[attr-defined]
    assert isinstance(framing_of(made(transport="spi_cbor"), "b"), LengthFraming)
    for refused in (made(crc="none"), made(transport="can_cbor")):
        with pytest.raises(ValueError):
            framing_of(refused, "a")


def test_bytes_are_checked_a_bounded_number_of_times(monkeypatch: pytest.MonkeyPatch) -> None:
    checked = 0

    def counted(data: bytes) -> bytes:
        nonlocal checked
        checked += len(data)
        return crc8_bytes(data)

    monkeypatch.setattr(framing_module, "crc8_bytes", counted)
    framing = SofFraming(max_message=4095, gap_s=1.0, len_form=2, crc="crc8")
    hostile = b"\x7e\x0f\x7e" * 20_000
    for start in range(0, len(hostile), 1024):
        framing.feed_untrusted(hostile[start : start + 1024], 0.0)
    assert checked <= 10 * len(hostile) + 16 * 4095
    framing.reset()
    assert framing.feed_untrusted(framing.encode(b"\x01\x02\x03"), 0.0) == [b"\x01\x02\x03"]
