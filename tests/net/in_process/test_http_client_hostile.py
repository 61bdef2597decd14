"""Does a server that lies, stops or floods get a named failure, and nothing else?"""

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.net.http_client_peer import OK, STREAM, Peer, Server, Sink, chunk, client_of, post, serving, turns

from interlock.net.http.client import HttpClient
from interlock.net.http.connection import HEAD_BYTES_MAX, KNOWN_HEADS_MAX, FailureKind, Handle, HttpConnection

HEAD = b"HTTP/1.1 200 OK\r\n"
CHUNKED = HEAD + b"transfer-encoding: chunked\r\n\r\n"
LIMIT = 100_000

GARBAGE = [
    b"garbage\r\n\r\n",
    b"\0\0\0\0",
    b"\x16\x03\x01\x02\x00\x01\x00\x01",
    b"SSH-2.0-OpenSSH_9.6\r\n",
    b"<html></html>",
    b"GET / HTTP/1.1\r\n\r\n",
    b"HTTP/3.0 200 OK\r\n\r\n",
    b"HTTP/1.1 20 OK\r\n\r\n",
    b"HTTP/1.1 2000 OK\r\n\r\n",
    b"HTTP/1.1 -20 OK\r\n\r\n",
    b"HTTP/1.1 099 No\r\n\r\n",
    b"HTTP/1.1 000 No\r\n\r\n",
    b"HTTP/1.1 101 Switching Protocols\r\n\r\n",
    b"HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\nconnection: upgrade\r\n\r\n",
    HEAD + b"content-length: 2\r\ncontent-length: 3\r\n\r\n",
    HEAD + b"content-length: -1\r\n\r\n",
    HEAD + b"content-length: 1x\r\n\r\n",
    HEAD + b"content-length: 99999999999999999999999\r\n\r\n",
    HEAD + b"content-length:\r\n\r\n",
    HEAD + b"content-length: 2\r\ntransfer-encoding: chunked\r\n\r\n",
    HEAD + b"content-length : 2\r\n\r\n",
    HEAD + b"no colon here\r\n\r\n",
    HEAD + b"a\0b: c\r\n\r\n",
    HEAD + b"a: b\0c\r\n\r\n",
    HEAD + b" folded: x\r\n\r\n",
    HEAD + b"a: b\r\n folded\r\n\r\n",
    b"HTTP/1.1 200 OK\ncontent-length: 2\n\nok",
    CHUNKED + b"zz\r\n",
    CHUNKED + b"-1\r\n",
    CHUNKED + b"fffffffffffffffffffff\r\n",
    CHUNKED + b"2\r\nokay\r\n",
    CHUNKED + b"2\r\nok\r\n0\r\nbad trailer\r\n\r\n",
]


@pytest.mark.parametrize("raw", GARBAGE)
async def test_garbage_fails_as_malformed_and_closes_the_connection(raw: bytes) -> None:
    for pieces in [[raw], [raw[i : i + 1] for i in range(len(raw))]]:
        async with serving() as server, client_of(server) as client:
            sink = post(client)
            peer = await server.peer()
            await peer.request()
            try:
                await peer.send(*pieces)
            except ConnectionError:
                pass
            failure = await sink.failure()
            assert (failure.kind, failure.retry_safe) == (FailureKind.MALFORMED, False)
            assert failure.detail.startswith("the server does not speak HTTP/1.1: ")
            assert "Error" not in failure.detail
            assert sink.names == ["fail"]
            assert await peer.eof() == b""


@pytest.mark.parametrize(
    "raw",
    [
        HEAD + b"content-length: 5\r\n\r\nhello",
        CHUNKED + chunk(b"hello") + b"0\r\nx: y\r\n\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\n" + OK,
    ],
)
@pytest.mark.parametrize("how", ["close", "reset"])
async def test_a_server_that_goes_before_the_end_fails_at_every_point(raw: bytes, how: str) -> None:
    async with serving() as server, client_of(server) as client:
        for cut in range(len(raw)):
            sink = post(client)
            peer = await server.peer()
            await peer.request()
            await peer.send(raw[:cut])
            await getattr(peer, how)()
            failure = await sink.failure()
            expected = FailureKind.LOST_DURING_ANSWER if cut else FailureKind.LOST_BEFORE_ANSWER
            assert (failure.kind, failure.retry_safe) == (expected, False), cut


@pytest.mark.parametrize("content_type", [b"application/json", b"text/event-stream"])
async def test_an_answer_that_ends_with_its_connection_is_whole_only_if_the_end_was_orderly(
    content_type: bytes,
) -> None:
    async with serving() as server, client_of(server) as client:
        sink = post(client)
        peer = await server.peer()
        await peer.request()
        await peer.send(HEAD + b"content-type: %b\r\n\r\n" % content_type, b"hel")
        await peer.reset()
        assert (await sink.failure()).kind is FailureKind.LOST_DURING_ANSWER


@pytest.mark.parametrize(
    ("head", "frame"),
    [
        (HEAD + b"content-length: %d\r\n\r\n", lambda data: data),
        (CHUNKED, chunk),
        (HEAD + b"\r\n", lambda data: data),
    ],
)
@pytest.mark.parametrize("over", [0, 1])
async def test_an_answer_over_the_limit_is_refused_in_every_framing(head: bytes, frame: Any, over: int) -> None:
    size = LIMIT + over
    body = b"x" * size
    async with serving() as server, client_of(server, max_body_bytes=LIMIT) as client:
        sink = post(client)
        peer = await server.peer()
        await peer.request()
        try:
            await peer.send(
                head % size if b"%d" in head else head, *[frame(body[i : i + 999]) for i in range(0, size, 999)]
            )
            await peer.send(b"0\r\n\r\n" if frame is chunk else b"")
            await peer.close()
        except ConnectionError:
            assert over
        if over:
            failure = await sink.failure()
            assert (failure.kind, failure.retry_safe) == (FailureKind.TOO_LARGE, False)
            assert str(LIMIT) in failure.detail
        else:
            assert await sink.answer() == (200, body)


async def test_an_endless_answer_is_cut_off_at_the_limit() -> None:
    async with serving() as server, client_of(server, max_body_bytes=LIMIT) as client:
        sink = post(client)
        peer = await server.peer()
        await peer.request()
        with pytest.raises(ConnectionError):
            await peer.send(HEAD + b"\r\n", *[b"x" * 10_000] * 10_000)
        assert (await sink.failure()).kind is FailureKind.TOO_LARGE


FLOODS = {
    "one header": [HEAD + b"a: ", *[b"x" * 1000] * 200],
    "one header name": [HEAD, *[b"x" * 1000] * 200],
    "many headers": [HEAD, *[b"a: %b\r\n" % (b"x" * 993)] * 200],
    "the reason": [b"HTTP/1.1 200 ", *[b"x" * 1000] * 200],
    "informational answers": [b"HTTP/1.1 103 Early Hints\r\nlink: </x>\r\n\r\n" * 20] * 200,
    "empty lines": [b"\r\n" * 500] * 200,
    "one trailer": [CHUNKED + b"2\r\nok\r\n0\r\na: ", *[b"x" * 1000] * 200],
    "many trailers": [CHUNKED + b"2\r\nok\r\n0\r\n", *[b"a: %b\r\n" % (b"x" * 993)] * 200],
    "a chunk extension": [CHUNKED + b"2;a=", *[b"x" * 1000] * 200],
    "a chunk extension of a stream": [STREAM + b"2;a=", *[b"x" * 1000] * 200],
}


@pytest.mark.parametrize("pieces", FLOODS.values(), ids=FLOODS.keys())
async def test_everything_but_the_body_is_bounded(pieces: list[bytes]) -> None:
    async with serving() as server, client_of(server) as client:
        sink = post(client)
        peer = await server.peer()
        await peer.request()
        with pytest.raises(ConnectionError):
            await peer.send(*pieces)
        failure = await sink.failure()
        assert (failure.kind, failure.retry_safe) == (FailureKind.MALFORMED, False)
        assert str(HEAD_BYTES_MAX) in failure.detail


async def test_a_header_over_the_limit_is_refused_even_if_it_arrives_whole() -> None:
    for size, kind in [(HEAD_BYTES_MAX - 100, "answer"), (HEAD_BYTES_MAX + 1, "fail")]:
        async with serving() as server, client_of(server) as client:
            sink = post(client)
            peer = await server.peer()
            await peer.request()
            await peer.send(HEAD + b"a: %b\r\ncontent-length: 100000\r\n\r\n" % (b"x" * size) + b"x" * 100_000)
            assert (await sink.end())[0] == kind


async def test_a_slow_server_is_waited_for() -> None:
    async with serving() as server, client_of(server) as client:
        sink = post(client)
        peer = await server.peer()
        await peer.request()
        for piece in (OK[:10], OK[10:-1]):
            await peer.send(piece)
            await turns(50)
            assert sink.events == []
        await peer.send(OK[-1:])
        assert await sink.answer() == (200, b"ok")


async def test_a_server_that_speaks_before_it_is_asked_gets_no_request() -> None:
    async with serving() as server, client_of(server) as client:
        greeting = asyncio.create_task(server.peer())
        greeting.add_done_callback(lambda task: task.result().writer.write(b"220 mail.example ESMTP\r\n"))
        failure = await post(client).failure()
        assert failure.kind in (FailureKind.CONNECT_REFUSED, FailureKind.MALFORMED)
        await greeting


class Wire(asyncio.Transport):
    """A transport whose other end is the test."""

    def __init__(self) -> None:
        super().__init__()
        self.closing = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        assert not self.closing

    def is_closing(self) -> bool:
        return self.closing

    def close(self) -> None:
        self.closing = True

    abort = close


class Keeper:
    """An owner that counts."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.known_heads: dict[bytes, Any] = {}
        self.varying: Any = ()

    def ready(self, connection: HttpConnection) -> None:
        self.calls.append("ready")

    def gone(self, connection: HttpConnection) -> None:
        self.calls.append("gone")


class Terminals(Sink):
    def __init__(self) -> None:
        self.events = []
        self.hooks = {}

    def _note(self, *event: Any) -> None:
        self.events.append(event)


pieces_of_answers = st.lists(
    st.sampled_from(
        [
            HEAD,
            b"HTTP/1.1 100 Continue\r\n\r\n",
            b"content-length: 5\r\n",
            b"content-length: 0\r\n",
            b"transfer-encoding: chunked\r\n",
            b"content-type: text/event-stream\r\n",
            b"connection: close\r\n",
            b"keep-alive: timeout=5\r\n",
            b"\r\n",
            b"5\r\nhello\r\n",
            b"0\r\n\r\n",
            b"hello",
        ]
    )
    | st.binary(max_size=4),
    max_size=12,
)


@given(pieces_of_answers, st.data(), st.sampled_from([None, ConnectionResetError()]), st.booleans())
def test_any_input_in_any_pieces_ends_in_exactly_one_terminal_event(
    pieces: list[bytes], draw: st.DataObject, exc: Exception | None, head_only: bool
) -> None:
    raw = b"".join(pieces)
    cuts = sorted(draw.draw(st.lists(st.integers(0, len(raw)), max_size=5)))
    owner, wire, sink = Keeper(), Wire(), Terminals()
    connection = HttpConnection(owner, 1000, 30)
    connection.connection_made(wire)
    connection.send(Handle(sink, head_only), b"x")
    for begin, end in zip([0, *cuts], [*cuts, len(raw)], strict=True):
        if begin < end and not wire.closing:
            connection.data_received(raw[begin:end])
    if exc is None and not wire.closing:
        connection.eof_received()
    connection.connection_lost(exc)
    assert len([name for name in sink.names if name in ("answer", "stream_end", "fail")]) == 1
    assert sink.names[-1] in ("answer", "stream_end", "fail")
    assert owner.calls in (["gone"], ["ready", "gone"])
    if "chunk" in sink.names or "stream_end" in sink.names:
        assert sink.names[0] == "stream"


@given(pieces_of_answers, st.data())
def test_the_pieces_an_answer_arrives_in_do_not_change_it(pieces: list[bytes], draw: st.DataObject) -> None:
    raw = b"".join(pieces)
    cuts = sorted(draw.draw(st.lists(st.integers(0, len(raw)), max_size=5)))

    def outcome(parts: list[bytes]) -> tuple[Any, ...]:
        wire, sink = Wire(), Terminals()
        connection = HttpConnection(Keeper(), 1000, 30)
        connection.connection_made(wire)
        connection.send(Handle(sink, False), b"x")
        for part in parts:
            if part and not wire.closing:
                connection.data_received(part)
        connection.connection_lost(None)
        last = sink.events[-1]
        return (last[0], sink.streamed, last[1].kind if last[0] == "fail" else last[1:])

    assert outcome([raw[a:b] for a, b in zip([0, *cuts], [*cuts, len(raw)], strict=True)]) == outcome([raw])


@given(pieces_of_answers)
def test_an_answer_whose_head_was_seen_before_is_read_as_if_it_had_not_been(pieces: list[bytes]) -> None:
    raw = b"".join(pieces)

    def outcome(owner: Keeper) -> tuple[Any, ...]:
        wire, sink = Wire(), Terminals()
        connection = HttpConnection(owner, 1000, 30)
        connection.connection_made(wire)
        connection.send(Handle(sink, False), b"x")
        if raw:
            connection.data_received(raw)
        kept = not wire.closing
        connection.connection_lost(None)
        return [event[0] for event in sink.events], sink.streamed, sink.events[-1][1:], kept

    owner = Keeper()
    first = outcome(owner)
    assert [outcome(owner), outcome(owner)] == [first, first]


PLAIN = HEAD + b"content-type: application/json\r\ncontent-length: 5\r\n\r\n"


async def having_made_the_head_known(server: Server, client: HttpClient) -> Peer:
    first = post(client)
    peer = await server.peer()
    await peer.serve(PLAIN + b"first")
    await first.answer()
    second = post(client)
    await peer.serve(PLAIN + b"other")
    await second.answer()
    assert [head for head in client.known_heads.values() if head is not None]
    return peer


@pytest.mark.parametrize(
    ("pieces", "reused"),
    [
        ([PLAIN + b"HELLO"], True),
        ([PLAIN, b"HELLO"], True),
        ([PLAIN + b"HEL", b"LO"], True),
        ([PLAIN[:-2], b"\r\nHELLO"], True),
        ([PLAIN + b"HELLO" + PLAIN + b"again"], False),
        ([PLAIN + b"HELLO!"], False),
        ([b"HTTP/1.1 100 Continue\r\n\r\n" + PLAIN + b"HELLO"], True),
    ],
)
async def test_a_head_that_is_known_changes_nothing_about_what_follows_it(pieces: list[bytes], reused: bool) -> None:
    async with serving() as server, client_of(server) as client:
        peer = await having_made_the_head_known(server, client)
        sink = post(client)
        await peer.request()
        await peer.send(*pieces)
        assert await sink.answer() == (200, b"HELLO")
        third = post(client)
        third_peer = peer if reused else await server.peer()
        await third_peer.serve(PLAIN + b"third")
        assert await third.answer() == (200, b"third")


@pytest.mark.parametrize(
    ("lines", "body"),
    [
        (b"content-length: 11", b"hello world"),
        (b"content-length: 0", b""),
        (b"content-length: 5\r\ndate: Tue, 17 Nov 2026 05:00:00 GMT", b"HELLO"),
    ],
)
async def test_a_head_that_differs_in_length_or_date_means_the_same(lines: bytes, body: bytes) -> None:
    async with serving() as server, client_of(server) as client:
        peer = await having_made_the_head_known(server, client)
        for _ in range(3):
            sink = post(client)
            await peer.serve(PLAIN.replace(b"content-length: 5", lines) + body)
            assert await sink.answer() == (200, body)


@pytest.mark.parametrize("length", [b"5\r\ncontent-length: 6", b"+5", b"0x5", b"5, 6", b"5 6", b"", b"9" * 20])
async def test_a_known_head_with_a_length_that_is_none_is_malformed(length: bytes) -> None:
    async with serving() as server, client_of(server) as client:
        peer = await having_made_the_head_known(server, client)
        sink = post(client)
        await peer.serve(PLAIN.replace(b"content-length: 5", b"content-length: " + length) + b"HELLO")
        assert (await sink.failure()).kind in (FailureKind.MALFORMED, FailureKind.TOO_LARGE)


async def test_a_known_head_without_its_body_is_a_lost_answer() -> None:
    async with serving() as server, client_of(server) as client:
        peer = await having_made_the_head_known(server, client)
        sink = post(client)
        await peer.request()
        await peer.send(PLAIN + b"HEL")
        await peer.close()
        assert (await sink.failure()).kind is FailureKind.LOST_DURING_ANSWER


@pytest.mark.parametrize("surplus", [b"", b"HELLO"])
async def test_a_known_head_answers_a_head_request_without_a_body(surplus: bytes) -> None:
    async with serving() as server, client_of(server) as client:
        peer = await having_made_the_head_known(server, client)
        sink = Sink()
        client.request(b"HEAD", b"/mcp", b"", b"", sink)
        await peer.serve(PLAIN + surplus)
        assert await sink.answer() == (200, b"")


async def test_a_body_that_looks_like_a_known_answer_is_a_body() -> None:
    async with serving() as server, client_of(server) as client:
        peer = await having_made_the_head_known(server, client)
        sink, body = post(client), PLAIN + b"HELLO"
        await peer.request()
        await peer.send(HEAD + b"content-length: %d\r\n\r\n" % len(body), body)
        assert await sink.answer() == (200, body)


async def test_an_informational_answer_is_never_taken_for_the_answer() -> None:
    informational = b"HTTP/1.1 100 Continue\r\n\r\n"
    async with serving() as server, client_of(server) as client:
        sink = post(client)
        peer = await server.peer()
        for cut in (0, 0, 0, len(informational) + 2):
            await peer.request()
            whole = informational + OK
            await peer.send(*[piece for piece in (whole[:cut], whole[cut:]) if piece])
            assert await sink.answer() == (200, b"ok")
            sink = post(client)


def test_a_server_that_numbers_its_answers_does_not_fill_the_memory() -> None:
    owner = Keeper()
    connection = HttpConnection(owner, 1000, 30)
    connection.connection_made(Wire())
    for number in range(3 * KNOWN_HEADS_MAX):
        sink = Terminals()
        connection.send(Handle(sink, False), b"x")
        connection.data_received(HEAD + b"x-number: %d\r\ncontent-length: 2\r\n\r\nok" % number)
        assert sink.names == ["answer"]
        assert len(owner.known_heads) <= KNOWN_HEADS_MAX


@pytest.mark.parametrize("line", [b"keep-alive: timeout=1", b"connection: close"])
async def test_every_announced_close_of_a_server_is_noticed(line: bytes) -> None:
    async with serving() as server, client_of(server) as client:
        for _ in range(4):
            sink = post(client)
            peer = await server.peer()
            await peer.serve(HEAD + b"content-length: 2\r\n%b\r\n\r\nok" % line)
            assert await sink.answer() == (200, b"ok")
            assert await peer.eof() == b""


def test_the_client_can_be_built_without_an_event_loop() -> None:
    HttpClient("http://127.0.0.1:1", max_body_bytes=1)
