"""Is the event stream read and written as WHATWG HTML 9.2.5 and 9.2.6 say?"""

import re
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from interlock.wire.jsonrpc.oversized import MessageKind, Oversized
from interlock.wire.sse import RETRY_DIGITS_MAX, SseEvent, SseParser, encode_event, event_pieces

LIMIT = 4096


def read(*pieces: bytes, limit: int = LIMIT) -> list[SseEvent]:
    parser = SseParser(limit)
    return [event for piece in pieces for event in parser.feed(piece)]


def one_by_one(stream: bytes) -> list[bytes]:
    return [stream[i : i + 1] for i in range(len(stream))]


def reference(stream: bytes) -> list[SseEvent]:
    """The standard's algorithm on a whole stream, written as slowly and plainly as it is written there."""
    stream = stream.removeprefix(b"\xef\xbb\xbf")
    lines = re.split(rb"\r\n|\r|\n", stream)[:-1]
    events, data, kind, event_id, retry = [], b"", "", None, None
    for line in lines:
        if line == b"":
            if data or event_id is not None or retry is not None:
                events.append(SseEvent(kind or "message", data[:-1], event_id, retry))
            data, kind, event_id, retry = b"", "", None, None
            continue
        name, value = line.split(b":", 1) if b":" in line else (line, b"")
        value = value[1:] if value[:1] == b" " else value
        if name == b"data":
            data += value + b"\n"
        elif name == b"event":
            kind = value.decode(errors="replace")
        elif name == b"id" and b"\0" not in value:
            event_id = value.decode(errors="replace")
        elif name == b"retry" and re.fullmatch(rb"[0-9]{1,%d}" % RETRY_DIGITS_MAX, value):
            retry = int(value)
    return events


def message(data: bytes, **rest: str | int) -> SseEvent:
    return SseEvent("message", data, **rest)


VECTORS = {
    "one message": (b"event: message\ndata: {}\n\n", [message(b"{}")]),
    "one message with CR LF": (b"event: message\r\ndata: {}\r\n\r\n", [message(b"{}")]),
    "data alone": (b"data: {}\n\n", [message(b"{}")]),
    "data alone with CR LF": (b"data: {}\r\n\r\n", [message(b"{}")]),
    "CR alone ends lines": (b"data: {}\r\r", [message(b"{}")]),
    "mixed line endings": (b"data: a\rdata: b\r\ndata: c\n\r\n", [message(b"a\nb\nc")]),
    "the standard's stock example": (b"data: YHOO\ndata: +2\ndata: 10\n\n", [message(b"YHOO\n+2\n10")]),
    "the standard's id example": (
        b": test stream\n\ndata: first event\nid: 1\n\ndata:second event\nid\n\ndata:  third event\n\n",
        [message(b"first event", id="1"), message(b"second event", id=""), message(b" third event")],
    ),
    "the standard's empty data example": (b"data\n\ndata\ndata\n\ndata:", [message(b""), message(b"\n")]),
    "space after the colon is optional": (b"data:test\n\ndata: test\n\n", [message(b"test"), message(b"test")]),
    "named event": (b"event: endpoint\ndata: /m?s=1\n\n", [SseEvent("endpoint", b"/m?s=1")]),
    "an empty name is message": (b"event:\ndata: x\n\n", [message(b"x")]),
    "the last name of an event counts": (b"event: a\nevent: b\ndata: x\n\n", [SseEvent("b", b"x")]),
    "a name does not outlive its event": (b"event: a\n\ndata: x\n\n", [message(b"x")]),
    "an event with only a name is none": (b"event: a\n\n", []),
    "a priming event with an empty data field": (b"id: 7\ndata: \n\n", [message(b"", id="7")]),
    "a priming event without a data field": (b"id: 7\nretry: 500\n\n", [message(b"", id="7", retry_ms=500)]),
    "a retry alone": (b"retry: 0\n\n", [message(b"", retry_ms=0)]),
    "retry is digits only": (
        b"retry: 1s\nretry: -1\nretry: +1\nretry: \nretry: \xd9\xa1\ndata: x\n\n",
        [message(b"x")],
    ),
    "an absurd retry is ignored": (b"retry: " + b"9" * 400 + b"\ndata: x\n\n", [message(b"x")]),
    "an id with NUL is ignored": (b"id: a\0b\ndata: x\n\n", [message(b"x")]),
    "comments": (b": ping\n\n:\n:data: no\ndata: x\n: mid\n\n", [message(b"x")]),
    "unknown fields": (b"Data: no\nfoo: bar\n data: no\ndata : no\ndata: x\n\n", [message(b"x")]),
    "colons in the value": (b'data: {"a":"b: c"}\n\n', [message(b'{"a":"b: c"}')]),
    "byte order mark": (b"\xef\xbb\xbfdata: x\n\n", [message(b"x")]),
    "only one byte order mark": (b"\xef\xbb\xbf\xef\xbb\xbfdata: x\n\ndata: y\n\n", [message(b"y")]),
    "no byte order mark after the start": (b"\n\xef\xbb\xbfdata: x\n\n", []),
    "half a byte order mark": (b"\xef\xbbdata: x\n\ndata: y\n\n", [message(b"y")]),
    "other separators are data": (
        b"data: \x0b\x0c\x1c\x85\xe2\x80\xa8\n\n",
        [message(b"\x0b\x0c\x1c\x85\xe2\x80\xa8")],
    ),
    "data that is not UTF-8 stays as it came": (b"data: \xff\xfe\0\n\n", [message(b"\xff\xfe\0")]),
    "a name that is not UTF-8 is repaired": (b"event: \xff\ndata: x\n\n", [SseEvent("�", b"x")]),
    "an unfinished event is dropped": (b"data: x\n\ndata: y\n", [message(b"x")]),
    "an unfinished line is dropped": (b"data: x\n\ndata: y", [message(b"x")]),
    "blank lines only": (b"\n\r\n\r\n\n\r\r", []),
    "nothing": (b"", []),
}


@pytest.mark.parametrize(("stream", "events"), VECTORS.values(), ids=VECTORS.keys())
def test_a_stream_gives_the_same_events_whole_and_byte_by_byte(stream: bytes, events: list[SseEvent]) -> None:
    assert read(stream) == events
    assert read(*one_by_one(stream)) == events


@pytest.mark.parametrize(("stream", "events"), VECTORS.values(), ids=VECTORS.keys())
def test_a_stream_gives_the_same_events_cut_at_every_place(stream: bytes, events: list[SseEvent]) -> None:
    for cut in range(len(stream) + 1):
        assert read(stream[:cut], stream[cut:]) == events
        assert read(stream[:cut], b"", stream[cut:]) == events


@pytest.mark.parametrize(("stream", "events"), VECTORS.values(), ids=VECTORS.keys())
def test_the_reference_used_below_agrees_with_the_vectors(stream: bytes, events: list[SseEvent]) -> None:
    assert reference(stream) == events


def test_an_event_is_reported_as_soon_as_its_blank_line_is_there() -> None:
    parser = SseParser(LIMIT)
    assert parser.feed(b"data: x\r\n") == []
    assert parser.feed(b"\r") == [message(b"x")]
    assert parser.feed(b"\ndata: y\n\n") == [message(b"y")]


def test_a_plain_event_between_two_cut_events_is_read_alike() -> None:
    plain = b"event: message\ndata: 2\n\n"
    assert read(b"data: 1\n\n", plain, b"id: 3\nda", b"ta: 3\n\n", plain) == [
        message(b"1"),
        message(b"2"),
        message(b"3", id="3"),
        message(b"2"),
    ]
    assert read(b"data: 1\n", plain) == [message(b"1\n2")]
    assert read(b"data: 1", plain) == [message(b"1event: message\n2")]
    assert read(b": comment\r", plain) == [message(b"2")]


def oversized(kind: MessageKind = MessageKind.UNKNOWN, id: bytes = b"") -> SseEvent:
    return SseEvent("message", b"", oversized=Oversized(100, kind, id))


@pytest.mark.parametrize("ending", [b"\n", b"\r", b"\r\n"])
@pytest.mark.parametrize("begin", [b"data:", b"data: "])
def test_data_of_the_limit_is_read_and_one_byte_more_is_left_out(ending: bytes, begin: bytes) -> None:
    fits = begin + b"x" * 100 + ending + ending
    over = begin + b"x" * 101 + ending + ending
    for stream, event in ((fits, message(b"x" * 100)), (over, oversized())):
        assert read(stream, limit=100) == [event]
        assert read(*one_by_one(stream), limit=100) == [event]


def test_the_data_of_many_lines_counts_together() -> None:
    fits = b"data:x\n" * 50 + b"data:\n\n"
    assert len(read(fits, limit=100)[0].data) == 100
    over = b"data:x\n" * 51 + b"data:\n\n"
    assert read(over, limit=100) == read(*one_by_one(over), limit=100) == [oversized()]


LONG = b"y" * 300
OVERSIZED = {
    "id first": (b'data: {"id":5,"result":{"text":"' + LONG + b'"}}\n\n', [oversized(MessageKind.RESPONSE, b"5")]),
    "id last": (
        b'data: {"result":{"id":7,"text":"' + LONG + b'"},"id":512345}\n\n',
        [oversized(MessageKind.RESPONSE, b"512345")],
    ),
    "over many lines": (
        b'data: {"result":\r\ndata:  {"text":"' + LONG + b'"}\r\n: comment\r\ndata: ,"id":\r\ndata:5\r\ndata:}\r\n\r\n',
        [oversized(MessageKind.RESPONSE, b"5")],
    ),
    "its id and retry count": (
        b'id: 9\ndata: {"method":"x","params":"' + LONG + b'"}\nretry: 7\n\n',
        [oversized(MessageKind.NOTIFICATION), message(b"", id="9", retry_ms=7)],
    ),
    "of another name": (b"event: other\ndata: " + LONG + b"\n\n", []),
    "a long comment within it": (
        b'data: {"result":"' + LONG + b'"\n: ,"id":8}' + LONG + b',"id":8}\ndata: ,"id":5}\n\n',
        [oversized(MessageKind.RESPONSE, b"5")],
    ),
    "a long comment": (b": " + LONG + b"\n\n", []),
    "a long field": (b"id: " + LONG + b"\ndata: x\n\n", [message(b"x")]),
    "a long name": (LONG + b"\ndata: x\n\n", [message(b"x")]),
}


@pytest.mark.parametrize(("stream", "events"), OVERSIZED.values(), ids=OVERSIZED.keys())
def test_oversized_events_are_left_out_and_reading_continues(stream: bytes, events: list[SseEvent]) -> None:
    around = b"data: 1\n\n"
    expected = [message(b"1"), *events, message(b"1")]
    stream = around + stream + around
    assert read(stream, limit=100) == expected
    assert read(*one_by_one(stream), limit=100) == expected
    for cut in range(0, len(stream), 3):
        assert read(stream[:cut], stream[cut:], around, limit=100) == [*expected, message(b"1")]


def test_an_endless_event_is_reported_as_soon_as_its_owner_is_known() -> None:
    parser = SseParser(100)
    assert parser.feed(b'data: {"id":5,"result":"' + LONG) == [oversized(MessageKind.RESPONSE, b"5")]
    for _ in range(100):
        assert parser.feed(LONG) == []
    assert parser.feed(b"\n\ndata: next\n\n") == [message(b"next")]


@pytest.mark.parametrize("stream", [b":" + b"x" * 106, b"x" * 107, b"id: " + b"x" * 103])
def test_a_line_without_end_is_not_kept(stream: bytes) -> None:
    parser = SseParser(100)
    for _ in range(100):
        assert parser.feed(stream) == []
    assert parser.feed(b"\ndata: next\n\n") == [message(b"next")]


def test_comments_and_events_without_end_are_not_too_large() -> None:
    assert read(b": keep-alive\n" * 1000 + b"\n", limit=100) == []
    assert len(read(b"data: x\n\n" * 1000, limit=100)) == 1000


# Few letters, so that fields, colons and line endings come together often.
streams = st.lists(
    st.sampled_from(
        [b"data", b"event", b"id", b"retry", b":", b" ", b"\r", b"\n", b"\r\n", b"\0", b"7", b"\xef\xbb\xbf"]
    )
    | st.binary(max_size=3),
    max_size=40,
).map(b"".join)


@given(streams, st.data())
def test_any_stream_cut_anywhere_is_read_as_the_standard_says(stream: bytes, draw: st.DataObject) -> None:
    cuts = sorted(draw.draw(st.lists(st.integers(0, len(stream)), max_size=6)))
    pieces = [stream[a:b] for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    assert read(*pieces) == reference(stream)


one_line = st.text(st.characters(exclude_characters="\r\n\0", exclude_categories=["Cs"]), max_size=20)


@given(
    st.binary(max_size=200),
    st.none() | one_line.filter(bool),
    st.none() | one_line,
    st.none() | st.integers(0, 10**RETRY_DIGITS_MAX - 1),
)
def test_encoded_events_are_read_back(
    data: bytes, event: str | None, event_id: str | None, retry_ms: int | None
) -> None:
    encoded = encode_event(
        data,
        event=None if event is None else event.encode(),
        id=None if event_id is None else event_id.encode(),
        retry_ms=retry_ms,
    )
    expected = SseEvent(event or "message", re.sub(rb"\r\n|\r", b"\n", data), event_id, retry_ms)
    assert read(encoded) == [expected]
    assert read(*one_by_one(encoded)) == [expected]
    assert read(encoded + encoded) == [expected, expected]


def test_json_is_encoded_on_one_line() -> None:
    assert encode_event(b'{"a":1}', event=b"message") == b'event: message\ndata: {"a":1}\n\n'
    assert encode_event(b'{"a":1}') == b'data: {"a":1}\n\n'
    assert encode_event(b"", id=b"7", retry_ms=500) == b"id: 7\nretry: 500\ndata: \n\n"


@pytest.mark.parametrize(
    "fields",
    [{"event": b"a\nb"}, {"event": b"a\rb"}, {"id": b"a\nb"}, {"id": b"a\r"}, {"id": b"a\0b"}, {"retry_ms": -1}],
)
def test_a_field_that_would_break_the_stream_is_not_encoded(fields: dict[str, bytes | int]) -> None:
    with pytest.raises(ValueError, match="event must"):
        encode_event(b"x", **fields)


def test_a_large_event_is_in_memory_twice_at_most() -> None:
    data = b'{"a":"%b"}' % (b"x" * 4_000_000)
    written = encode_event(data, event=b"message", id=b"1")
    pieces = [written[start : start + 65536] for start in range(0, len(written), 65536)]
    parser, events = SseParser(len(data)), []
    tracemalloc.start()
    try:
        for piece in pieces:
            events += parser.feed(piece)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert events == [SseEvent("message", data, "1")]
    assert peak < 2.3 * len(data)


@pytest.mark.parametrize("data", [b"{}", b"x" * 100_000, b"x" * 100_000 + b"\r\ny"])
def test_an_event_in_pieces_is_the_event(data: bytes) -> None:
    pieces = event_pieces(data, event=b"message", id=b"7")
    assert b"".join(pieces) == encode_event(data, event=b"message", id=b"7")
    assert any(piece is data for piece in pieces) is (len(data) == 100_000)
