"""What a client gets for a message that is wrong: at every path of the public door, in both eras."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from tests.servers.start import raw
from tests.support.node_process import RunningNode, running_node, wait_for
from tests.support.raw_client import (
    STAMP,
    RawConnection,
    ask,
    ask_in_every_way,
    assert_unharmed,
    call,
    hello,
    legacy,
    legacy_headers,
    legacy_session,
    message,
    modern,
    modern_headers,
    request,
)

PARSE, INVALID, UNKNOWN, PARAMS = -32700, -32600, -32601, -32602
DEEP = 200_000
LISTING = {"jsonrpc": "2.0", "id": 7, "method": "tools/list", "params": {"_meta": STAMP}}


def text(**changes: Any) -> bytes:
    """A good message but for these members; None takes one away."""
    return json.dumps({k: v for k, v in {**LISTING, **changes}.items() if v is not None}).encode()


UNREADABLE = {
    "nothing": b"",
    "blanks": b" \r\n\t ",
    "half an object": text()[:-1],
    "two objects": text() + text(),
    "an object and more": text() + b"x",
    "no JSON at all": b"GET / HTTP/1.1",
    "single quotes": b"{'jsonrpc':'2.0'}",
    "a comment": text()[:-1] + b"/**/}",
    "NaN": b'{"jsonrpc":"2.0","id":7,"method":"tools/list","params":{"x":NaN}}',
    "two byte order marks": b"\xef\xbb\xbf" * 2 + text(),
    "only a byte order mark": b"\xef\xbb\xbf",
    "UTF-16": text().decode().encode("utf-16"),
    "a Latin-1 byte": b'{"jsonrpc":"2.0","id":7,"method":"tools/list","params":{"x":"\xe9"}}',
    "an overlong NUL": b'{"jsonrpc":"2.0","id":7,"method":"tools/list","params":{"x":"\xc0\x80"}}',
    "half a surrogate pair": b'{"jsonrpc":"2.0","id":7,"method":"tools/list","params":{"x":"\xed\xa0\x80"}}',
    "NUL bytes": b"\x00" * 64,
    "a NUL after the end": text() + b"\x00",
    "a NUL in a string": b'{"jsonrpc":"2.0","id":7,"method":"tools\x00/list"}',
    "arrays without end": b"[" * DEEP,
    "objects without end": b'{"a":' * DEEP,
    "a deep parameter": b'{"jsonrpc":"2.0","id":7,"method":"tools/list","params":' + b"[" * DEEP + b"]" * DEEP + b"}",
}
NO_ENVELOPE = {
    "a batch": b"[" + text() + b"]",
    "an empty batch": b"[]",
    "a number": b"1",
    "null": b"null",
    "a string": b'"tools/list"',
    "no jsonrpc": text(jsonrpc=None),
    "jsonrpc 1.0": text(jsonrpc="1.0"),
    "jsonrpc as a number": text(jsonrpc=2.0),
    "neither method nor result": text(method=None),
    "an empty object": b"{}",
    "a method that is a number": text(method=5),
    "a method that is an object": text(method={}),
    "an id that is a fraction": text(id=1.5),
    "an id that is null": text().replace(b'"id": 7', b'"id": null'),
    "an id that is true": text(id=True),
    "an id that is a list": text(id=[1]),
    "an id longer than anybody needs": text(id="x" * 70_000),
    "a result and an error": b'{"jsonrpc":"2.0","id":7,"result":{},"error":{"code":1,"message":"x"}}',
}
WRONG = [*((name, body, PARSE) for name, body in UNREADABLE.items())]
WRONG += [(name, body, INVALID) for name, body in NO_ENVELOPE.items()]
MODERN_PATHS = ("/mcp", "/mcp/flat", "/mcp/only/good", "/mcp?names=qualified")


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNode]:
    extra = '[limits]\nmessage_bytes = "4Mi"\n'
    with running_node(
        tmp_path_factory.mktemp("door"), {"good": {"command": raw("all,header-params"), "definitions": "follow"}}, extra
    ) as started:
        yield started
        assert_unharmed(started)


@pytest.fixture(scope="module")
def session(node: RunningNode) -> str:
    return legacy_session(node)


@pytest.mark.parametrize("path", MODERN_PATHS)
@pytest.mark.parametrize(("body", "code"), [one[1:] for one in WRONG], ids=[one[0] for one in WRONG])
def test_a_modern_message_that_cannot_be_read_is_refused_by_name(
    node: RunningNode, path: str, body: bytes, code: int
) -> None:
    ways = ask_in_every_way if path == "/mcp" else ask
    answer = ways(node, request("POST", path, modern_headers("tools/list"), body))
    assert answer.status == 400
    assert answer.json["error"]["code"] == code
    assert answer.json["id"] in (None, 7)


@pytest.mark.parametrize(("body", "code"), [one[1:] for one in WRONG], ids=[one[0] for one in WRONG])
def test_a_legacy_message_that_cannot_be_read_is_refused_by_name(
    node: RunningNode, session: str, body: bytes, code: int
) -> None:
    answer = ask_in_every_way(node, request("POST", "/mcp", legacy_headers(session), body))
    assert answer.status == 400
    assert answer.json["error"]["code"] == code
    assert answer.json["id"] in (None, 7)
    assert ask(node, legacy(session, "ping")).json["result"] == {}


def test_a_byte_order_mark_before_a_message_is_ignored(node: RunningNode, session: str) -> None:
    """RFC 8259 section 8.1 lets a reader ignore it, and other implementations of MCP do."""
    mark = b"\xef\xbb\xbf"
    params = {"name": "good__echo", "arguments": {"text": "\ufeff"}}
    modern_call = modern("tools/call", params).partition(b"\r\n\r\n")[2]
    for headers, marked in (
        (modern_headers("tools/call", "good__echo"), mark + modern_call),
        (legacy_headers(session), mark + message("tools/call", params)),
    ):
        answer = ask_in_every_way(node, request("POST", "/mcp", headers, marked))
        assert (answer.status, answer.json["result"]["structuredContent"]) == (200, {"text": "\ufeff"})
    with RawConnection(node) as stream:
        endpoint = open_sse(stream)
        greeting = {"protocolVersion": "2024-11-05", "capabilities": {}, "clientInfo": {"name": "r", "version": "1"}}
        body = mark + message("initialize", greeting)
        assert ask(node, request("POST", endpoint, {"content-type": "application/json"}, body)).status == 202
        assert stream.event()["result"]["protocolVersion"] == "2024-11-05"


def test_an_unreadable_message_of_the_oldest_transport_is_refused_and_its_stream_goes_on(node: RunningNode) -> None:
    with RawConnection(node) as stream:
        endpoint = open_sse(stream)
        for name, body, code in WRONG:
            answer = ask(node, request("POST", endpoint, {"content-type": "application/json"}, body))
            assert (answer.status, answer.json["error"]["code"]) == (400, code), name
        assert ask(node, sse(endpoint, "ping")).status == 202
        assert stream.event()["error"]["code"] == INVALID  # no initialize yet
        greeting = {"protocolVersion": "2024-11-05", "capabilities": {}, "clientInfo": {"name": "r", "version": "1"}}
        assert ask(node, sse(endpoint, "initialize", greeting)).status == 202
        assert stream.event()["result"]["protocolVersion"] == "2024-11-05"
        assert ask(node, sse(endpoint, "tools/call", {"name": "good__echo", "arguments": {"a": 1}})).status == 202
        assert stream.event()["result"]["structuredContent"] == {"a": 1}


def open_sse(stream: RawConnection) -> str:
    stream.send(request("GET", "/sse", {"accept": "text/event-stream"}))
    assert stream.stream_head().headers["content-type"] == "text/event-stream"
    endpoint = stream.event()
    assert endpoint.startswith("/messages?session=")
    return endpoint


def sse(endpoint: str, method: str, params: Any = None) -> bytes:
    return request("POST", endpoint, {"content-type": "application/json"}, message(method, params))


def test_the_oldest_transport_knows_only_its_own_sessions(node: RunningNode) -> None:
    for endpoint in ("/messages", "/messages?session=", "/messages?session=guess", "/messages?session=%00%ff"):
        answer = ask_in_every_way(node, sse(endpoint, "ping"))
        assert (answer.status, answer.json["error"]) == (404, "session_unknown")
    with RawConnection(node) as stream:
        endpoint = open_sse(stream)
    # The stream is gone, and so is its endpoint; how soon the node hears of the first is up to the kernel.
    for _ in range(200):
        answer = ask(node, sse(endpoint, "ping"))
        if answer.status == 404:
            return
    raise AssertionError("a session outlives its stream")


# Methods and tools


@pytest.mark.parametrize(
    "method",
    [
        "initialize",
        "ping",
        "logging/setLevel",
        "resources/subscribe",
        "resources/unsubscribe",
        "roots/list",
        "sampling/createMessage",
        "elicitation/create",
        "tasks/get",
        "no/such/method",
        "Tools/List",
        "__class__",
        "m" * 10_000,
    ],
)
def test_an_unknown_or_removed_method_is_404_in_the_modern_era(node: RunningNode, method: str) -> None:
    answer = ask_in_every_way(node, modern(method))
    assert answer.status == 404
    assert answer.json["error"]["code"] == UNKNOWN
    assert answer.json["id"] == 1
    assert len(answer.body) < 1000


@pytest.mark.parametrize("method", ["server/discover", "subscriptions/listen", "no/such/method", "tools/LIST"])
def test_an_unknown_method_is_200_in_the_legacy_era(node: RunningNode, session: str, method: str) -> None:
    answer = ask_in_every_way(node, legacy(session, method))
    assert answer.status == 200
    assert answer.json["error"]["code"] == UNKNOWN


@pytest.mark.parametrize(
    "name", ["no_such_tool", "good", "good__", "good__nothing", "other__echo", "", "é", "n" * 9000]
)
def test_an_unknown_tool_is_a_named_error_and_no_unknown_method(node: RunningNode, session: str, name: str) -> None:
    for data in (call(name), legacy(session, "tools/call", {"name": name, "arguments": {}})):
        answer = ask_in_every_way(node, data)
        assert answer.status == 200
        assert answer.json["error"]["code"] == UNKNOWN
        assert answer.json["error"]["data"]["reason"] == "tool_not_found"


def test_a_tool_that_is_withheld_or_was_withdrawn_is_unknown_and_nothing_is_sent_on(
    node: RunningNode, session: str
) -> None:
    withheld = {one["name"] for one in node.link("good")["withheld"]}
    assert "badly_mirrored" in withheld
    change = call("good__change", {"kind": "tools", "name": "fleeting"})
    ask(node, change)
    wait_for(lambda: "result" in ask(node, call("good__fleeting")).json)
    ask(node, change)
    wait_for(lambda: "error" in ask(node, call("good__fleeting")).json)
    before = node.link("good")["calls"]
    for name in ("good__badly_mirrored", "good.badly_mirrored", "good__fleeting", "good.fleeting"):
        for data in (call(name), legacy(session, "tools/call", {"name": name, "arguments": {}})):
            answer = ask(node, data)
            assert (answer.status, answer.json["error"]["code"]) == (200, UNKNOWN)
            assert answer.json["error"]["data"]["reason"] == "tool_not_found"
    assert node.link("good")["calls"] == before


@pytest.mark.parametrize(
    "params",
    [
        {},
        {"name": None},
        {"name": 5},
        {"name": ["good__echo"]},
        {"name": "good__echo", "arguments": []},
        {"name": "good__echo", "arguments": "a"},
        {"name": "good__echo", "arguments": 1},
    ],
    ids=str,
)
def test_a_call_with_wrong_parameters_is_refused_before_any_server_sees_it(
    node: RunningNode, session: str, params: dict[str, Any]
) -> None:
    before = node.link("good")["calls"]
    name = params["name"] if isinstance(params.get("name"), str) else None
    body = message("tools/call", {**params, "_meta": STAMP})
    answer = ask_in_every_way(node, request("POST", "/mcp", modern_headers("tools/call", name), body))
    assert answer.status == 400
    assert answer.json["error"]["code"] in (PARAMS, -32020)
    answer = ask_in_every_way(node, legacy(session, "tools/call", params))
    assert (answer.status, answer.json["error"]["code"]) == (200, PARAMS)
    assert node.link("good")["calls"] == before


def test_null_for_arguments_reaches_the_server_as_it_was_written(node: RunningNode, session: str) -> None:
    before = node.link("good")["calls"]
    params = {"name": "good__echo", "arguments": None}
    body = message("tools/call", {**params, "_meta": STAMP})
    for asked in (
        request("POST", "/mcp", modern_headers("tools/call", "good__echo"), body),
        legacy(session, "tools/call", params),
    ):
        assert "params.arguments" not in str(ask(node, asked).json)
    assert node.link("good")["calls"] == before + 2


@pytest.mark.parametrize("params", [[], "x", 5, None, [1, 2]], ids=repr)
def test_parameters_that_are_no_object_are_refused(node: RunningNode, session: str, params: Any) -> None:
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": params}).encode()
    answer = ask_in_every_way(node, request("POST", "/mcp", modern_headers("tools/list"), body))
    assert (answer.status, answer.json["error"]["code"]) == (400, PARAMS)
    answer = ask_in_every_way(node, request("POST", "/mcp", legacy_headers(session), body))
    assert (answer.status, answer.json["error"]["code"]) == (200, PARAMS)


@pytest.mark.parametrize("cursor", ["", "x", "=" * 1000, 5, None, {}, "../../x", "\x00"], ids=repr)
def test_a_cursor_that_is_not_ours_is_refused(node: RunningNode, session: str, cursor: Any) -> None:
    answer = ask_in_every_way(node, modern("tools/list", {"cursor": cursor}))
    assert (answer.status, answer.json["error"]["code"]) == (400, PARAMS)
    answer = ask_in_every_way(node, legacy(session, "tools/list", {"cursor": cursor}))
    assert (answer.status, answer.json["error"]["code"]) == (200, PARAMS)


def test_wrong_parameters_of_the_other_methods_are_refused_by_name(node: RunningNode, session: str) -> None:
    wrong: dict[str, list[Any]] = {
        "prompts/get": [{}, {"name": 1}, {"name": "good__no_such_prompt"}],
        "resources/read": [{}, {"uri": 1}],
        "completion/complete": [{}, {"ref": 1}, {"ref": {"type": "x"}}, {"ref": {"type": "ref/prompt", "name": "x"}}],
    }
    for method, cases in wrong.items():
        for params in cases:
            name = next((v for k, v in params.items() if k in ("name", "uri") and isinstance(v, str)), None)
            body = message(method, {**params, "_meta": STAMP})
            answer = ask(node, request("POST", "/mcp", modern_headers(method, name), body))
            assert answer.status == 400, (method, params)
            assert answer.json["error"]["code"] in (PARAMS, -32020), (method, params)
            answer = ask(node, legacy(session, method, params))
            assert (answer.status, answer.json["error"]["code"]) == (200, PARAMS), (method, params)
    for method, params in (
        ("resources/subscribe", {}),
        ("logging/setLevel", {"level": "loud"}),
        ("logging/setLevel", {}),
    ):
        assert ask(node, legacy(session, method, params)).json["error"]["code"] == PARAMS
    for notifications in (
        None,
        [],
        "all",
        {"resourceSubscriptions": "raw://text"},
        {"resourceSubscriptions": ["x"] * 2000},
    ):
        answer = ask(node, modern("subscriptions/listen", {"notifications": notifications}))
        assert (answer.status, answer.json["error"]["code"]) == (400, PARAMS)


@pytest.mark.parametrize("uri", ["raw://nothing", "mcpax://good/raw://nothing", "mcpax://other/raw://text", "é", ""])
def test_an_unknown_resource_has_the_code_of_its_era(node: RunningNode, session: str, uri: str) -> None:
    answer = ask(node, modern("resources/read", {"uri": uri}))
    assert (answer.status, answer.json["error"]["code"]) == (400, PARAMS)
    answer = ask(node, legacy(session, "resources/read", {"uri": uri}))
    assert (answer.status, answer.json["error"]["code"]) == (200, -32002)


# Sessions and ids


def test_a_session_that_is_missing_unknown_or_ended_is_refused(node: RunningNode) -> None:
    for verb in ("POST", "GET", "DELETE"):
        body = message("ping") if verb == "POST" else None
        answer = ask(node, request(verb, "/mcp", legacy_headers(None), body))
        assert (answer.status, answer.json["error"]["code"]) == (400, INVALID)
        for guess in ("", "guess", "../..", "\xff", "x" * 2000):
            answer = ask(node, request(verb, "/mcp", legacy_headers(guess), body))
            assert (answer.status, answer.json["error"]["code"]) == (404, INVALID)
    ended = legacy_session(node)
    assert ask(node, legacy(ended, "ping")).status == 200
    assert ask(node, request("DELETE", "/mcp", legacy_headers(ended))).status in (200, 204)
    assert ask_in_every_way(node, legacy(ended, "ping")).status == 404


def test_initialize_needs_to_say_which_version_and_happens_once(node: RunningNode, session: str) -> None:
    for params in (None, {}, {"protocolVersion": 5}, {"protocolVersion": "2025-11-25", "capabilities": []}):
        answer = ask_in_every_way(node, request("POST", "/mcp", legacy_headers(None), message("initialize", params)))
        assert (answer.status, answer.json["error"]["code"]) == (400, PARAMS)
        assert "mcp-session-id" not in answer.headers
    again = ask(node, hello(mcp_session_id=session))
    assert again.json["error"]["code"] == INVALID


def test_a_response_nobody_asked_for_is_refused_in_both_eras(node: RunningNode, session: str) -> None:
    for payload in ({"result": {}}, {"error": {"code": 1, "message": "no"}}):
        body = json.dumps({"jsonrpc": "2.0", "id": 1, **payload}).encode()
        for headers in (modern_headers("tools/call"), legacy_headers(session)):
            answer = ask_in_every_way(node, request("POST", "/mcp", headers, body))
            assert (answer.status, answer.json["error"]["code"]) == (400, INVALID)


def test_notifications_are_taken_without_a_reply_even_unknown_notifications(node: RunningNode, session: str) -> None:
    for method in ("notifications/cancelled", "notifications/unheard-of", "tools/call"):
        body = json.dumps({"jsonrpc": "2.0", "method": method, "params": {"requestId": 99}}).encode()
        for headers in (modern_headers(method), legacy_headers(session)):
            answer = ask_in_every_way(node, request("POST", "/mcp", headers, body))
            assert (answer.status, answer.body) == (202, b"")


def test_an_id_in_use_is_refused_and_the_first_call_is_not_disturbed(node: RunningNode, session: str) -> None:
    waiting = legacy(
        session, "tools/call", {"name": "good__progress", "arguments": {"steps": 1, "ms": 400}}, request_id=5
    )
    with RawConnection(node) as first:
        first.send_apart([waiting])
        second = ask(node, legacy(session, "tools/call", {"name": "good__echo", "arguments": {}}, request_id=5))
        assert (second.status, second.json["error"]["code"]) == (400, INVALID)
        assert first.answer().json["result"]["content"][0]["text"] == "1 steps"
    assert "result" in ask(node, legacy(session, "tools/call", {"name": "good__echo"}, request_id=5)).json
