"""Does the HTTP client read every framing of an answer, however the bytes arrive?"""

import pytest
from tests.net.http_client_peer import OK, STREAM, Sink, chunk, client_of, post, serving, turns

from interlock.net.http.client import HttpClient
from interlock.net.http.connection import FailureKind, header

HEAD = b"HTTP/1.1 200 OK\r\n"
UNTIL_CLOSE = HEAD + b"content-type: application/json\r\n\r\n"
TRAILERS = b"0\r\nx-sum: 1\r\ncontent-type: text/event-stream\r\n\r\n"

# name: (bytes of the answer, the server closes afterwards, status, body)
ANSWERS = {
    "content-length": (HEAD + b"Content-Length: 5\r\n\r\nhello", False, 200, b"hello"),
    "no body": (HEAD + b"content-length: 0\r\n\r\n", False, 200, b""),
    "chunked": (
        HEAD + b"transfer-encoding: chunked\r\n\r\n" + chunk(b"hel") + chunk(b"lo") + b"0\r\n\r\n",
        False,
        200,
        b"hello",
    ),
    "chunked after another coding": (
        HEAD + b"Transfer-Encoding: x, Chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
        False,
        200,
        b"hello",
    ),
    "chunk extensions and trailers": (
        HEAD + b'transfer-encoding: chunked\r\n\r\n5;a="b"\r\nhello\r\n' + TRAILERS,
        False,
        200,
        b"hello",
    ),
    "until the connection closes": (UNTIL_CLOSE + b"hello", True, 200, b"hello"),
    "nothing until the connection closes": (UNTIL_CLOSE, True, 200, b""),
    "unchunked coding until the connection closes": (HEAD + b"transfer-encoding: x\r\n\r\nhello", True, 200, b"hello"),
    "HTTP/1.0": (b"HTTP/1.0 200 OK\r\n\r\nhello", True, 200, b"hello"),
    "HTTP/1.0 with a length": (b"HTTP/1.0 200 OK\r\ncontent-length: 5\r\n\r\nhello", False, 200, b"hello"),
    "204 has no body": (b"HTTP/1.1 204 No Content\r\n\r\n", False, 204, b""),
    "204 with a length has no body": (b"HTTP/1.1 204 No Content\r\ncontent-length: 5\r\n\r\n", False, 204, b""),
    "304 has no body": (b"HTTP/1.1 304 Not Modified\r\ncontent-length: 5\r\n\r\n", False, 304, b""),
    "202 as MCP sends it": (b"HTTP/1.1 202 Accepted\r\ncontent-length: 0\r\n\r\n", False, 202, b""),
    "100 first": (b"HTTP/1.1 100 Continue\r\n\r\n" + OK, False, 200, b"ok"),
    "103 twice first": (
        b"HTTP/1.1 103 Early Hints\r\ncontent-type: text/event-stream\r\n\r\n" * 2 + OK,
        False,
        200,
        b"ok",
    ),
    "a redirect is an answer": (
        b"HTTP/1.1 307 Temporary Redirect\r\nlocation: /x\r\ncontent-length: 0\r\n\r\n",
        False,
        307,
        b"",
    ),
    "an error is an answer": (b"HTTP/1.1 500 Oops\r\ncontent-length: 4\r\n\r\noops", False, 500, b"oops"),
    "no reason phrase": (b"HTTP/1.1 200\r\ncontent-length: 2\r\n\r\nok", False, 200, b"ok"),
    "empty lines first": (b"\r\n\r\n" + OK, False, 200, b"ok"),
    "an offer to upgrade": (
        HEAD + b"upgrade: h2c\r\nconnection: upgrade, keep-alive\r\ncontent-length: 2\r\n\r\nok",
        False,
        200,
        b"ok",
    ),
    "of two content types the first": (
        HEAD + b"content-type: a/b\r\ncontent-type: text/event-stream\r\ncontent-length: 2\r\n\r\nok",
        False,
        200,
        b"ok",
    ),
    "another content type that begins alike": (
        HEAD + b"content-type: text/event-streams\r\ncontent-length: 2\r\n\r\nok",
        False,
        200,
        b"ok",
    ),
}


@pytest.mark.parametrize("name", ANSWERS)
async def test_an_answer_is_the_same_whole_and_byte_by_byte(name: str) -> None:
    raw, closes, status, body = ANSWERS[name]
    for pieces in [[raw], [raw[i : i + 1] for i in range(len(raw))]]:
        async with serving() as server, client_of(server) as client:
            sink = post(client)
            peer = await server.peer()
            await peer.request()
            await peer.send(*pieces)
            if closes:
                await peer.close()
            assert await sink.answer() == (status, body)
            assert sink.names == ["answer"]


@pytest.mark.parametrize("name", [name for name, (_, closes, _, _) in ANSWERS.items() if not closes])
async def test_an_answer_is_the_same_cut_at_every_place(name: str) -> None:
    raw, _, status, body = ANSWERS[name]
    async with serving() as server, client_of(server) as client:
        sink, peer = post(client), await server.peer()
        for cut in range(1, len(raw)):
            await peer.request()
            await peer.send(raw[:cut], raw[cut:])
            assert await sink.answer() == (status, body), cut
            sink = post(client)
            await turns()
            peer = await server.peer() if server.waiting else peer


async def test_headers_keep_order_case_and_repetition_and_are_found_in_any_case() -> None:
    raw = b"HTTP/1.1 200 OK\r\nMcp-Session-Id: s1 \r\nX-A: 1\r\nx-a: 2\r\nX-Empty:\r\ncontent-length: 0\r\n\r\n"
    async with serving() as server, client_of(server) as client:
        sink = post(client)
        await (await server.peer()).serve(raw)
        headers = (await sink.end())[2]
    assert [name for name, _ in headers] == [b"Mcp-Session-Id", b"X-A", b"x-a", b"X-Empty", b"content-length"]
    assert header(headers, b"mcp-session-id") == b"s1"
    assert header(headers, b"x-a") == b"1"
    assert header(headers, b"x-empty") == b""
    assert header(headers, b"x-none") is None


async def test_trailers_are_not_headers() -> None:
    async with serving() as server, client_of(server) as client:
        sink = post(client)
        await (await server.peer()).serve(ANSWERS["chunk extensions and trailers"][0])
        headers = (await sink.end())[2]
    assert header(headers, b"x-sum") is None
    assert header(headers, b"content-type") is None


@pytest.mark.parametrize("length", [b"content-length: 4000\r\n", b"transfer-encoding: chunked\r\n", b""])
async def test_the_answer_to_head_has_no_body_and_its_connection_is_not_used_again(length: bytes) -> None:
    async with serving() as server, client_of(server) as client:
        sink = Sink()
        client.request(b"HEAD", b"/mcp", b"", b"", sink)
        peer = await server.peer()
        assert b"content-length" not in await peer.request()
        await peer.send(HEAD + b"content-type: text/event-stream\r\n" + length + b"\r\n")
        assert await sink.answer() == (200, b"")
        assert await peer.eof() == b""


async def test_a_large_answer_in_many_pieces_is_whole() -> None:
    body = bytes(range(256)) * 3000
    async with serving() as server, client_of(server) as client:
        sink = post(client)
        peer = await server.peer()
        await peer.request()
        await peer.send(HEAD + b"content-length: %d\r\n\r\n" % len(body))
        await peer.send(*[body[i : i + 100_000] for i in range(0, len(body), 100_000)])
        assert await sink.answer() == (200, body)


@pytest.mark.parametrize(
    "content_type",
    [
        b"text/event-stream",
        b"Text/Event-Stream; charset=utf-8",
        b"text/event-stream;charset=utf-8",
        b"text/event-stream ",
    ],
)
async def test_an_event_stream_begins_before_its_first_byte_and_ends_in_order(content_type: bytes) -> None:
    async with serving() as server, client_of(server) as client:
        sink = post(client)
        peer = await server.peer()
        await peer.request()
        await peer.send(STREAM.replace(b"text/event-stream", content_type))
        await sink.until(lambda: sink.names == ["stream"])
        assert sink.events[0][1] == 200
        await peer.send(chunk(b"data: 1\n\n"))
        await sink.until(lambda: sink.names == ["stream", "chunk"])
        await peer.send(chunk(b"data: 2\n\n"))
        await sink.until(lambda: sink.streamed == b"data: 1\n\ndata: 2\n\n")
        await peer.send(b"0\r\n\r\n")
        assert await sink.end() == ("stream_end",)


STREAMS = {
    "chunked": (STREAM + chunk(b"data: 1\n") + chunk(b"\n") + b"0\r\n\r\n", False),
    "with a length": (HEAD + b"content-type: text/event-stream\r\ncontent-length: 9\r\n\r\ndata: 1\n\n", False),
    "until the connection closes": (HEAD + b"content-type: text/event-stream\r\n\r\ndata: 1\n\n", True),
    "HTTP/1.0": (b"HTTP/1.0 200 OK\r\ncontent-type: text/event-stream\r\n\r\ndata: 1\n\n", True),
}


@pytest.mark.parametrize("name", STREAMS)
async def test_a_stream_is_the_same_in_every_framing_whole_and_byte_by_byte(name: str) -> None:
    raw, closes = STREAMS[name]
    for pieces in [[raw], [raw[i : i + 1] for i in range(len(raw))]]:
        async with serving() as server, client_of(server) as client:
            sink = post(client)
            peer = await server.peer()
            await peer.request()
            await peer.send(*pieces)
            if closes:
                await peer.close()
            assert await sink.end() == ("stream_end",)
            assert sink.names[0] == "stream"
            assert sink.streamed == b"data: 1\n\n"


async def test_a_stream_without_data_begins_and_ends() -> None:
    async with serving() as server, client_of(server) as client:
        sink = post(client)
        await (await server.peer()).serve(STREAM + b"0\r\n\r\n")
        await sink.end()
        assert sink.names == ["stream", "stream_end"]


async def test_a_stream_that_breaks_off_has_failed_and_what_came_before_is_delivered() -> None:
    async with serving() as server, client_of(server) as client:
        sink = post(client)
        peer = await server.peer()
        await peer.request()
        await peer.send(STREAM + chunk(b"data: 1\n\n"))
        await peer.close()
        assert (await sink.failure()).kind is FailureKind.LOST_DURING_ANSWER
        assert sink.names == ["stream", "chunk", "fail"]


async def test_a_stream_that_turns_into_garbage_has_failed() -> None:
    async with serving() as server, client_of(server) as client:
        sink = post(client)
        peer = await server.peer()
        await peer.request()
        await peer.send(STREAM + chunk(b"data: 1\n\n") + b"zz\r\n")
        assert (await sink.failure()).kind is FailureKind.MALFORMED
        assert sink.streamed == b"data: 1\n\n"
        assert await peer.eof() == b""


async def test_a_stream_may_be_larger_than_any_whole_answer() -> None:
    async with serving() as server, client_of(server, max_body_bytes=100) as client:
        sink = post(client)
        peer = await server.peer()
        await peer.request()
        await peer.send(STREAM, *[chunk(b"x" * 90)] * 5, b"0\r\n\r\n")
        assert await sink.end() == ("stream_end",)
        assert sink.streamed == b"x" * 450


async def test_a_paused_stream_is_not_read_until_it_is_resumed() -> None:
    async with serving() as server, client_of(server) as client:
        sink = Sink()
        handle = client.request(b"GET", b"/mcp", b"", b"", sink)
        peer = await server.peer()
        await peer.request()
        await peer.send(STREAM)
        await sink.until(lambda: sink.names == ["stream"])
        handle.pause()
        handle.pause()
        await peer.send(chunk(b"data: 1\n\n"), b"0\r\n\r\n")
        await turns(50)
        assert sink.names == ["stream"]
        handle.resume()
        handle.resume()
        assert await sink.end() == ("stream_end",)
        assert sink.streamed == b"data: 1\n\n"


async def test_a_connection_whose_last_answer_was_paused_is_read_again() -> None:
    async with serving() as server, client_of(server) as client:
        sink = Sink()
        handle = client.request(b"GET", b"/mcp", b"", b"", sink)
        sink.hooks["stream"] = handle.pause
        peer = await server.peer()
        await peer.serve(STREAM + b"0\r\n\r\n")
        assert await sink.end() == ("stream_end",)
        handle.pause()
        second = post(client)
        await peer.serve(OK)
        assert await second.answer() == (200, b"ok")
        assert server.accepted == 1


@pytest.mark.parametrize(
    ("method", "body", "length"),
    [
        (b"POST", b"{}", b"content-length: 2\r\n"),
        (b"POST", b"", b"content-length: 0\r\n"),
        (b"GET", b"", b""),
        (b"DELETE", b"", b""),
        (b"DELETE", b"x", b"content-length: 1\r\n"),
    ],
)
async def test_a_request_is_written_exactly(method: bytes, body: bytes, length: bytes) -> None:
    async with serving() as server, client_of(server) as client:
        client.request(method, b"/a?b=c", b"accept: x\r\nmcp-name: y\r\n", body, Sink())
        seen = await (await server.peer()).request()
        host = b"host: 127.0.0.1:%d\r\n" % server.port
        start = b"%b /a?b=c HTTP/1.1\r\n" % method
        assert seen == start + host + b"accept: x\r\nmcp-name: y\r\n" + length + b"\r\n" + body


async def test_requests_with_different_methods_and_targets_are_not_mixed_up() -> None:
    async with serving() as server, client_of(server, max_connections=1) as client:
        asked = [(b"POST", b"/a"), (b"POST", b"/b"), (b"GET", b"/b"), (b"POST", b"/a")]
        for method, target in asked:
            client.request(method, target, b"", b"", Sink())
        lines = await (await server.peer()).serve(*[OK] * len(asked))
        assert [line.split(b" HTTP")[0] for line in lines] == [b"POST /a", b"POST /b", b"GET /b", b"POST /a"]


@pytest.mark.parametrize(
    ("method", "target", "headers"),
    [
        (b"POST", b"/a b", b""),
        (b"POST", b"/a\r\nx: y", b""),
        (b"POST", b"a", b""),
        (b"POST", b"", b""),
        (b"POST", b"/\xc3\xa4", b""),
        (b"POST /x HTTP/1.1\r\n", b"/", b""),
        (b"", b"/", b""),
        (b"POST", b"/", b"a: b"),
        (b"POST", b"/", b"a: b\n"),
    ],
)
async def test_a_malformed_request_is_refused_before_anything_is_sent(
    method: bytes, target: bytes, headers: bytes
) -> None:
    async with serving() as server, client_of(server) as client:
        with pytest.raises(ValueError, match="must be"):
            client.request(method, target, headers, b"", Sink())
        await turns()
        assert server.accepted == 0


@pytest.mark.parametrize(
    "url",
    [
        "ftp://x",
        "127.0.0.1:80",
        "http://",
        "http:///mcp",
        "",
        "http://me:secret@x/",
        "http://x:99999",
        "http://x:y",
        "http://a b/",
        "http://[::1%eth0]/",
        f"http://{'a' * 64}.x/",
    ],
)
def test_a_url_that_names_no_http_origin_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match=r"(?i)url|port") as refusal:
        HttpClient(url, max_body_bytes=1)
    assert "secret" not in str(refusal.value)


@pytest.mark.parametrize(
    ("url", "host"),
    [
        ("http://Example.com/mcp?x", b"host: example.com\r\n"),
        ("http://example.com:80", b"host: example.com\r\n"),
        ("http://example.com:443", b"host: example.com:443\r\n"),
        ("https://example.com", b"host: example.com\r\n"),
        ("https://example.com:80", b"host: example.com:80\r\n"),
        ("http://[::1]:7411/", b"host: [::1]:7411\r\n"),
        ("http://bücher.example", b"host: xn--bcher-kva.example\r\n"),
    ],
)
def test_the_host_header_is_that_of_the_origin(url: str, host: bytes) -> None:
    assert HttpClient(url, max_body_bytes=1)._host_line == host
