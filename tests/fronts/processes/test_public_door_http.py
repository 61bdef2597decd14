"""What the public door does with HTTP that is odd, too large, in pieces, or no HTTP at all."""

import json
import random
from collections.abc import Iterator

import pytest
from tests.servers.start import raw
from tests.support.node_process import Answer, RunningNode, running_node
from tests.support.raw_client import (
    STAMP,
    RawConnection,
    ask,
    ask_in_every_way,
    assert_discreet,
    assert_unharmed,
    call,
    hello,
    legacy,
    legacy_session,
    message,
    modern,
    modern_headers,
    request,
)

TOOL = "good__echo"
LIMIT = 256 * 1024
MS = 300


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNode]:
    servers = {"good": {"command": raw("all")}, "late": {"command": raw("slow-calls", "--ms", str(MS))}}
    with running_node(tmp_path_factory.mktemp("door"), servers, f"[limits]\nmessage_bytes = {LIMIT}\n") as started:
        yield started
        assert_unharmed(started)


@pytest.fixture(scope="module")
def session(node: RunningNode) -> str:
    return legacy_session(node)


def padded(size: int) -> bytes:
    """A call whose body has exactly so many bytes."""
    empty = message("tools/call", {"name": TOOL, "arguments": {"a": ""}, "_meta": STAMP})
    return empty.replace(b'"a": ""', b'"a": "' + b"x" * (size - len(empty)) + b'"')


def chunked(body: bytes, size: int, extension: bytes = b"", trailer: bytes = b"") -> bytes:
    parts = [body[at : at + size] for at in range(0, len(body), size)]
    framed = b"".join(b"%x%b\r\n%b\r\n" % (len(part), extension, part) for part in parts)
    return framed + b"0\r\n" + trailer + b"\r\n"


# Sizes


def assert_too_large(answer: Answer) -> None:
    """What a client shows of it: an error of JSON-RPC, with the limit and what to do."""
    assert (answer.status, answer.headers["content-type"]) == (413, "application/json")
    assert (answer.json["jsonrpc"], answer.json["id"]) == ("2.0", None)
    error = answer.json["error"]
    assert error["code"] == -32600
    assert str(LIMIT) in error["message"]
    assert (error["data"]["reason"], error["data"]["limit_bytes"]) == ("message_too_large", LIMIT)
    assert "the operator of this node sets the limit" in error["data"]["next"]


def test_a_body_of_the_limit_is_taken_and_one_byte_more_is_not(node: RunningNode) -> None:
    headers = modern_headers("tools/call", TOOL)
    assert "result" in ask(node, request("POST", "/mcp", headers, padded(LIMIT))).json
    for body in (padded(LIMIT + 1), padded(3 * LIMIT)):
        for framed, framing in ((body, {}), (chunked(body, 4096), {"transfer-encoding": "chunked"})):
            with RawConnection(node) as rude:
                answer = rude.send(request("POST", "/mcp", {**headers, **framing}, framed)).answer()
                assert_too_large(answer)
                assert answer.headers["connection"] == "close"
                rude.assert_closed()


def test_a_request_of_a_session_over_the_limit_is_refused_and_the_session_lives(node: RunningNode) -> None:
    session = legacy_session(node)
    arguments = {"text": "x" * LIMIT}
    params = {"name": TOOL, "arguments": arguments}
    assert_too_large(ask(node, legacy(session, "tools/call", params)))
    assert "result" in ask(node, legacy(session, "tools/call", {"name": TOOL, "arguments": {}})).json


@pytest.mark.parametrize("path", ["/mcp", "/messages?session=x"])
def test_a_body_that_is_announced_too_large_is_refused_before_it_is_sent(node: RunningNode, path: str) -> None:
    with RawConnection(node, seconds=3.0) as rude:
        headers = {**modern_headers("tools/call", TOOL), "content-length": str(LIMIT * 1000)}
        answer = rude.send(request("POST", path, headers)).answer()
        assert_too_large(answer)


def test_headers_beyond_their_limit_are_refused(node: RunningNode) -> None:
    cases = {
        "one long line": call(TOOL, x_long="x" * 100_000),
        "a long name": call(TOOL, **{"x" * 100_000: "x"}),
        "many lines": call(TOOL, **{f"x_{number}": "1" for number in range(5000)}),
        "a long path": call(TOOL, path="/mcp?" + "x" * 100_000),
        "a long path elsewhere": request("GET", "/healthz?" + "x" * 100_000),
        "a long cookie": call(TOOL, cookie="x" * 100_000),
    }
    for name, data in cases.items():
        whole = ask(node, data)
        assert (whole.status, whole.json["error"]) == (431, "headers_too_large"), name
        with RawConnection(node) as rude:
            apart = rude.send_apart([data[:60_000], data[60_000:80_000], data[80_000:]]).answer()
            assert apart.status == 431, name


def test_a_header_without_an_end_is_cut_off(node: RunningNode) -> None:
    with RawConnection(node) as rude:
        rude.send(b"POST /mcp HTTP/1.1\r\nhost: 127.0.0.1\r\nx-endless: " + b"x" * 1_000_000)
        assert rude.answer().status == 431
        rude.assert_closed()


# Ways of sending


def test_a_request_may_come_byte_by_byte_or_with_many_in_one_piece(node: RunningNode) -> None:
    data = call(TOOL, {"a": 1})
    with RawConnection(node) as rude:
        for byte in data[:-1]:
            rude.send(bytes([byte]))
        assert rude.send_apart([b""]).send(data[-1:]).answer().json["result"]["structuredContent"] == {"a": 1}
        rude.send(b"".join(call(TOOL, {"a": number}, request_id=number) for number in range(10)))
        answers = [rude.answer().json for _ in range(10)]
        assert [answer["id"] for answer in answers] == list(range(10))
        assert [answer["result"]["structuredContent"]["a"] for answer in answers] == list(range(10))


def test_pipelined_requests_are_answered_in_order_though_the_first_is_slow(node: RunningNode) -> None:
    with RawConnection(node) as rude:
        rude.send(call("late__echo", {"n": 1}, request_id=1) + call(TOOL, request_id=2) + modern("ping", request_id=3))
        rude.send(call("late__echo", {"n": 4}, request_id=4) + call(TOOL, request_id=5))
        assert [rude.answer().json["id"] for _ in range(5)] == [1, 2, 3, 4, 5]


def test_a_request_pipelined_behind_a_call_never_answers_in_its_place(node: RunningNode) -> None:
    behind = {
        "garbage": b"\x00\xff\xfe garbage\r\n\r\n",
        "no HTTP version": b"GET /mcp\r\n\r\n",
        "contradicting lengths": request("POST", "/mcp", [("content-length", "1"), ("content-length", "2")], b"ab"),
        "another path": request("GET", "/healthz"),
        "too long a path": request("GET", "/mcp?" + "x" * 100_000),
        "too many requests": b"".join(call(TOOL, request_id=number) for number in range(100, 200)),
        "half a request": call(TOOL)[:50],
        "an unknown method": request("BREW", "/mcp"),
    }
    for name, data in behind.items():
        with RawConnection(node) as rude:
            rude.send(call("late__echo", {"n": 1}, request_id=42) + data)
            first = rude.answer()
            assert (first.status, first.json["id"]) == (200, 42), name


def test_chunked_bodies_are_read_with_any_chunks(node: RunningNode, session: str) -> None:
    headers = {**modern_headers("tools/call", TOOL), "transfer-encoding": "chunked"}
    body = message("tools/call", {"name": TOOL, "arguments": {"é": "ü"}, "_meta": STAMP})
    for framed in (
        chunked(body, 1),
        chunked(body, 7, b";name=value"),
        chunked(body, 10_000),
        chunked(body, 50, trailer=b"x-trailer: 1\r\nauthorization: Bearer nonsense\r\nmcp-name: other\r\n"),
    ):
        answer = ask_in_every_way(node, request("POST", "/mcp", headers, framed))
        assert answer.json["result"]["structuredContent"] == {"é": "ü"}


@pytest.mark.parametrize(
    "framing",
    [
        [("content-length", "5"), ("transfer-encoding", "chunked")],
        [("transfer-encoding", "chunked"), ("content-length", "5")],
        [("transfer-encoding", "chunked, identity")],
        [("transfer-encoding", "identity")],
        [("transfer-encoding", "gzip, chunked, deflate")],
        [("transfer-encoding", "xchunked")],
        [("content-length", "5"), ("content-length", "6")],
        [("content-length", "5, 6")],
        [("content-length", "-1")],
        [("content-length", "+5")],
        [("content-length", "0x5")],
        [("content-length", "9" * 30)],
    ],
    ids=str,
)
def test_a_body_whose_end_two_readers_could_see_differently_is_refused(
    node: RunningNode, framing: list[tuple[str, str]]
) -> None:
    smuggled = call(TOOL, request_id=666)
    headers = [(k, v) for k, v in modern_headers("tools/list").items() if v]
    with RawConnection(node) as rude:
        rude.send(request("POST", "/mcp", [*headers, *framing], b"0\r\n\r\n" + smuggled))
        assert rude.answer().status == 400
        assert b"666" not in rude.rest()


def test_a_client_that_waits_for_100_continue_gets_it_and_then_its_answer(node: RunningNode) -> None:
    data = call(TOOL, {"a": 1}, expect="100-continue")
    end = data.index(b"\r\n\r\n") + 4
    with RawConnection(node) as rude:
        rude.send(data[:end])
        assert rude._until(b"\r\n\r\n") == b"HTTP/1.1 100 Continue"
        assert rude.send(data[end:]).answer().json["result"]["structuredContent"] == {"a": 1}


def test_an_http_1_0_client_gets_its_whole_answer_and_the_end(node: RunningNode) -> None:
    for tool in (TOOL, "late__echo"):
        with RawConnection(node) as rude:
            answer = rude.send(call(tool, {"a": 1}, version="HTTP/1.0")).answer()
            assert answer.json["result"]["structuredContent"] == {"a": 1}
            rude.assert_closed()
    with RawConnection(node) as rude:  # and no chunks, which it could not read
        stream = modern(
            "tools/call", {"name": "good__progress", "arguments": {}}, version="HTTP/1.0", meta={"progressToken": 1}
        )
        answer = rude.send(stream).answer()
        assert "transfer-encoding" not in answer.headers
        assert answer.message["result"]["content"][0]["text"] == "3 steps"


def test_connection_close_is_obeyed_and_keep_alive_is_kept(node: RunningNode) -> None:
    with RawConnection(node) as rude:
        answer = rude.send(call(TOOL, connection="close") + call(TOOL)).answer()
        assert (answer.status, answer.headers.get("connection")) == (200, "close")
        rude.assert_closed()
    with RawConnection(node) as rude:  # also beside an upgrade that is not taken
        answer = rude.send(call(TOOL, connection="close, Upgrade", upgrade="h2c") + call(TOOL)).answer()
        assert (answer.status, answer.headers.get("connection")) == (200, "close")
        rude.assert_closed()
    with RawConnection(node) as rude:
        for number in range(5):
            assert rude.send(call(TOOL, request_id=number)).answer().json["id"] == number
            assert rude.send(request("POST", "/mcp", modern_headers("x"), b"{")).answer().status == 400


@pytest.mark.parametrize("upgrade", ["h2c", "websocket", "TLS/1.0", "nonsense"])
def test_an_upgrade_that_is_not_spoken_here_is_not_taken(node: RunningNode, upgrade: str) -> None:
    data = call(
        TOOL, {"a": 1}, connection="Upgrade, HTTP2-Settings", upgrade=upgrade, http2_settings="AAMAAABkAAQAAP__"
    )
    with RawConnection(node) as rude:
        answer = rude.send(data).answer()
        assert answer.json["result"]["structuredContent"] == {"a": 1}
    with RawConnection(node) as rude:  # and what follows is no tunnel
        answer = rude.send(
            request("GET", "/mcp", {"connection": "Upgrade", "upgrade": upgrade}) + b"\x81\x05hello"
        ).answer()
        assert answer.status in (400, 426)
        assert b"101" not in rude.rest()[:20]


def test_connect_opens_no_tunnel(node: RunningNode) -> None:
    with RawConnection(node) as rude:
        rude.send(b"CONNECT 127.0.0.1:22 HTTP/1.1\r\nhost: 127.0.0.1:22\r\n\r\n")
        assert rude.answer().status >= 400


# No HTTP at all


@pytest.mark.parametrize(
    "data",
    [
        b"\r\n\r\n\r\n\r\nX",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"\x16\x03\x01\x00\xc8\x01\x00\x00\xc4\x03\x03" + bytes(200),
        b"SSH-2.0-OpenSSH_9.6\r\n",
        b"\x00" * 1000,
        b"GET /mcp HTTP/9.9\r\nhost: 127.0.0.1\r\n\r\n",
        b"POST /mcp\x00 HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n",
        b"POST /mcp HTTP/1.1\r\nhost : 127.0.0.1\r\n\r\n",
        b"POST /mcp HTTP/1.1\r\nhost: 127.0.0.1\r\nx\x00y: 1\r\n\r\n",
        b"POST /mcp HTTP/1.1\r\nhost: 127.0.0.1\r\nx: a\x00b\r\n\r\n",
        b"POST /mcp HTTP/1.1\r\nhost: 127.0.0.1\r\nx: 1\r\n folded: 2\r\n\r\n",
        b"POST /mcp HTTP/1.1\r\nno colon here\r\n\r\n",
        b"POST /mcp HTTP/1.1\nhost: 127.0.0.1\n\n",
        b'{"jsonrpc":"2.0","id":1,"method":"ping"}\n',
    ],
    ids=lambda data: repr(data[:30]),
)
def test_invalid_http_is_refused_and_the_connection_closed(node: RunningNode, data: bytes) -> None:
    with RawConnection(node) as rude:
        answer = rude.send(data).answer()
        assert (answer.status, answer.json["error"]) == (400, "bad_request")
        rude.assert_closed()


def test_random_bytes_harm_nobody(node: RunningNode) -> None:
    dice = random.Random(20260728)
    for _ in range(150):
        with RawConnection(node) as rude:
            rude.send(dice.randbytes(dice.randrange(1, 3000)) + b"\r\n\r\n")
            answer = rude.response()
            assert answer is None or answer.status == 400
    assert_unharmed(node)


def test_requests_with_random_faults_get_an_answer_that_says_so(node: RunningNode, session: str) -> None:
    dice = random.Random(20251125)
    good = [
        call(TOOL, {"a": "é"}),
        modern("tools/list"),
        modern("resources/read", {"uri": "raw://text"}),
        legacy(session, "tools/call", {"name": TOOL, "arguments": {"b": [1, 2.5, None]}}),
        legacy(session, "completion/complete", {"ref": {"type": "ref/prompt", "name": "good__greet"}}),
        hello(),
        request("DELETE", "/mcp", {"mcp-session-id": "x"}),
    ]
    for _ in range(400):
        data = bytearray(dice.choice(good))
        for _ in range(dice.randrange(1, 4)):
            at = dice.randrange(len(data))
            match dice.randrange(4):
                case 0:
                    data[at] = dice.randrange(256)
                case 1:
                    del data[at : at + dice.randrange(1, 20)]
                case 2:
                    data[at:at] = dice.randbytes(dice.randrange(1, 20))
                case 3:
                    data[at:at] = data[at : at + dice.randrange(1, 40)]
        with RawConnection(node) as rude:
            rude.send(bytes(data))
            rude.socket.shutdown(1)
            said = rude.rest()
        assert_discreet(said)
        head, _, body = said.partition(b"\r\n\r\n")
        if not said:
            continue
        assert head.split(b" ")[1] in (
            b"200",
            b"202",
            b"204",
            b"400",
            b"403",
            b"404",
            b"405",
            b"406",
            b"415",
            b"421",
            b"431",
        ), said
        assert b"-32603" not in body, (bytes(data), said)
        if head.startswith(b"HTTP/1.1 4"):
            refused = json.loads(body.partition(b"HTTP/1.1")[0])
            assert refused["error"], said
    assert_unharmed(node)
