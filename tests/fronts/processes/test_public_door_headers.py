"""What a client gets for a wrong request line or header: the ladder of 2026-07-28, verbs, types, Host, Origin."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from tests.servers.start import raw
from tests.support.node_process import LEGACY, MODERN, RunningNode, running_node
from tests.support.raw_client import (
    ACCEPT,
    META,
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

MISMATCH, VERSION, PARAMS, INVALID = -32020, -32022, -32602, -32600
TOOL = "good__echo"
FUTURE = "2027-01-01"


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNode]:
    with running_node(tmp_path_factory.mktemp("door"), {"good": {"command": raw("all")}}) as started:
        yield started
        assert_unharmed(started)


@pytest.fixture(scope="module")
def session(node: RunningNode) -> str:
    return legacy_session(node)


def sent(meta: Any, headers: Any = None, method: str = "tools/call") -> bytes:
    params = {"name": TOOL, "arguments": {}, **({} if meta is None else {"_meta": meta})}
    return request("POST", "/mcp", headers or modern_headers(method, TOOL), message(method, params))


# The ladder


@pytest.mark.parametrize(
    ("meta", "code"),
    [
        (None, PARAMS),
        ({}, PARAMS),
        ([], PARAMS),
        ("x", PARAMS),
        ({META + "protocolVersion": MODERN}, PARAMS),
        ({META + "clientCapabilities": {}}, PARAMS),
        ({**STAMP, META + "clientCapabilities": []}, PARAMS),
        ({**STAMP, META + "clientCapabilities": "all"}, PARAMS),
        ({**STAMP, META + "protocolVersion": 20260728}, PARAMS),
        ({**STAMP, META + "protocolVersion": None}, PARAMS),
        ({**STAMP, META + "protocolVersion": LEGACY}, MISMATCH),
        ({**STAMP, META + "protocolVersion": FUTURE}, MISMATCH),
        ({**STAMP, META + "protocolVersion": MODERN + " "}, MISMATCH),
    ],
    ids=str,
)
def test_a_modern_request_without_a_proper_stamp_is_refused(node: RunningNode, meta: Any, code: int) -> None:
    answer = ask_in_every_way(node, sent(meta))
    assert (answer.status, answer.json["error"]["code"]) == (400, code)
    assert answer.json["id"] == 1


@pytest.mark.parametrize(
    "wrong",
    [
        {"mcp_method": None},
        {"mcp_method": ""},
        {"mcp_method": "tools/list"},
        {"mcp_method": "Tools/Call"},
        {"mcp_method": "tools/call, tools/call"},
        {"mcp_name": None},
        {"mcp_name": ""},
        {"mcp_name": "good__exact"},
        {"mcp_name": "GOOD__ECHO"},
        {"mcp_name": f'"{TOOL}"'},
        {"mcp_name": "good%5F_echo"},
        {"mcp_name": "=?base64?!!!!?="},
        {"mcp_name": "=?base64?Z29vZA?="},
        {"mcp_name": "=?base64?/w==?="},
        {"mcp_name": "=?base64??="},
        {"mcp_name": "=?base64?"},
        {"mcp_name": "=?utf-8?Z29vZF9fZWNobw==?="},
    ],
    ids=str,
)
def test_a_routing_header_that_does_not_repeat_the_body_is_refused(node: RunningNode, wrong: dict[str, Any]) -> None:
    answer = ask_in_every_way(node, call(TOOL, **wrong))
    assert (answer.status, answer.json["error"]["code"]) == (400, MISMATCH)


def test_a_name_may_be_sent_as_base64_and_with_blanks_around_it(node: RunningNode) -> None:
    for form in ("=?base64?Z29vZF9fZWNobw==?=", f"  {TOOL}", f"{TOOL}  ", f"\t{TOOL} \t"):
        answer = ask_in_every_way(node, call(TOOL, {"a": 1}, mcp_name=form))
        assert answer.status == 200, (form, answer.body)
        assert answer.json["result"]["structuredContent"] == {"a": 1}


@pytest.mark.parametrize("header", ["mcp-protocol-version", "mcp-method", "mcp-name"])
@pytest.mark.parametrize("other", ["the same", "another"])
def test_a_routing_header_sent_twice_is_refused(node: RunningNode, header: str, other: str) -> None:
    headers = [(name, value) for name, value in modern_headers("tools/call", TOOL).items() if value is not None]
    own = dict(headers)[header]
    for at in (0, len(headers)):
        doubled = [*headers]
        doubled.insert(at, (header.upper(), own if other == "the same" else "another"))
        answer = ask_in_every_way(node, sent(STAMP, doubled))
        if header == "mcp-protocol-version" and other == "another" and at == 0:
            assert answer.status == 400
        else:
            assert (answer.status, answer.json["error"]["code"]) == (400, MISMATCH)


@pytest.mark.parametrize("version", [FUTURE, "latest", "2026-07-27", "x" * 500, "1e9"])
def test_a_version_that_is_not_served_names_those_that_are(node: RunningNode, version: str) -> None:
    meta = {**STAMP, META + "protocolVersion": version}
    answer = ask_in_every_way(node, sent(meta, modern_headers("tools/call", TOOL, mcp_protocol_version=version)))
    assert (answer.status, answer.json["error"]["code"]) == (400, VERSION)
    assert answer.json["error"]["data"]["supported"] == [MODERN]
    assert version.startswith(answer.json["error"]["data"]["requested"])


def test_a_modern_request_without_the_version_header_is_taken_for_a_legacy_request(node: RunningNode) -> None:
    answer = ask_in_every_way(node, call(TOOL, mcp_protocol_version=None))
    assert (answer.status, answer.json["error"]["code"]) == (400, INVALID)


def test_a_legacy_message_under_a_modern_version_gets_no_session(node: RunningNode) -> None:
    answer = ask_in_every_way(node, hello(mcp_protocol_version=MODERN))
    assert (answer.status, answer.json["error"]["code"]) == (400, PARAMS)
    assert "mcp-session-id" not in answer.headers


# Verbs and paths


@pytest.mark.parametrize("verb", ["GET", "DELETE", "PUT", "PATCH", "OPTIONS", "TRACE"])
@pytest.mark.parametrize("path", ["/mcp", "/mcp/flat", "/mcp/only/good", "/mcp/only/good/mcp"])
def test_a_modern_path_takes_post_only(node: RunningNode, verb: str, path: str) -> None:
    answer = ask_in_every_way(node, request(verb, path, {"mcp-protocol-version": MODERN, "accept": ACCEPT}))
    assert (answer.status, answer.json["error"]) == (405, "method_not_allowed")
    assert answer.headers["allow"] == "POST"


@pytest.mark.parametrize("verb", ["PUT", "PATCH", "OPTIONS"])
def test_a_verb_no_era_knows_is_refused(node: RunningNode, session: str, verb: str) -> None:
    answer = ask_in_every_way(node, request(verb, "/mcp", legacy_headers(session)))
    assert answer.status == 405
    assert set(answer.headers["allow"].split(", ")) == {"GET", "POST", "DELETE"}
    for path, allowed in (("/sse", "GET"), ("/messages?session=x", "POST")):
        answer = ask_in_every_way(node, request(verb, path))
        assert (answer.status, answer.headers["allow"]) == (405, allowed)


def test_the_answer_to_head_has_no_body_and_the_connection_stays_in_step(node: RunningNode) -> None:
    for path in ("/mcp", "/healthz", "/nowhere"):
        with RawConnection(node) as rude:
            rude.send(request("HEAD", path) + call(TOOL, {"a": 1}))
            assert rude.answer(to_head=True).status in (200, 404, 405)
            after = rude.response()
            assert after is None or after.json["result"]["structuredContent"] == {"a": 1}


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/mcp/",
        "/mcpx",
        "/mcp/aql/more",
        "/mcp/aqls",
        "/mcp/flat/more",
        "/mcp/only",
        "/mcp/only/mcp",
        "/mcp/mcp",
        "/mcp/only/",
        "/mcp/only/nobody",
        "/mcp/only/good/echo",
        "/mcp/../mcp",
        "/mcp/%2e%2e/admin/status",
        "/admin/status",
        "/approvals",
        "/metrics",
        "/MCP",
        "//mcp",
        "/mcp;x=1",
        "/sse/flat/more",
        "/messages/1",
        "/?/mcp",
        "http://127.0.0.1/admin/status",
    ],
)
def test_any_other_path_is_404_and_leads_nowhere(node: RunningNode, path: str) -> None:
    answer = ask(node, modern("tools/list", path=path))
    if path == "/mcp/":  # a trailing slash may be forgiven
        assert answer.status in (200, 404)
        return
    assert (answer.status, answer.json["error"]) == (404, "not_found")


# Types


@pytest.mark.parametrize(
    "kind", [None, "", "text/plain", "text/json", "application/x-www-form-urlencoded", "*/*", "json"]
)
def test_a_body_that_is_not_declared_as_json_is_refused(node: RunningNode, session: str, kind: str | None) -> None:
    sse = request("POST", "/messages?session=x", {"content-type": kind}, message("ping"))
    for data in (call(TOOL, content_type=kind), legacy(session, "ping", content_type=kind), sse):
        answer = ask_in_every_way(node, data)
        assert (answer.status, answer.json["error"]) == (415, "unsupported_media_type")


@pytest.mark.parametrize(
    "kind", ["application/json; charset=utf-8", "Application/JSON", "application/json;charset=UTF-8 "]
)
def test_json_may_be_spelled_in_several_ways(node: RunningNode, session: str, kind: str) -> None:
    assert "result" in ask(node, call(TOOL, content_type=kind)).json
    assert "result" in ask(node, legacy(session, "ping", content_type=kind)).json


@pytest.mark.parametrize("accept", ["text/html", "image/*", "application/xml;q=0.9", "nonsense"])
def test_an_accept_that_allows_no_answer_is_refused(node: RunningNode, session: str, accept: str) -> None:
    for data in (call(TOOL, accept=accept), legacy(session, "ping", accept=accept)):
        answer = ask_in_every_way(node, data)
        assert (answer.status, answer.json["error"]) == (406, "not_acceptable")
    stream = request("GET", "/mcp", legacy_headers(session, accept=accept))
    assert ask(node, stream).status == 406


def test_an_answer_has_a_form_that_the_client_accepts(node: RunningNode) -> None:
    assert ask(node, call(TOOL, accept="application/json")).headers["content-type"] == "application/json"
    streamed = ask(node, call(TOOL, accept="text/event-stream"))
    assert streamed.headers["content-type"] == "text/event-stream"
    assert "result" in streamed.message
    for accept in ("*/*", None):
        assert "result" in ask(node, call(TOOL, accept=accept)).message


# Host and Origin


@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1.evil.example", "evil.example:80", "localhost.", "", "[::2]", "0"]
)
def test_a_foreign_host_is_misdirected(node: RunningNode, session: str, host: str) -> None:
    stream = request("GET", "/sse", {"host": host})
    for data in (call(TOOL, host=host), legacy(session, "ping", host=host), stream):
        answer = ask_in_every_way(node, data)
        assert answer.status in (400, 421)
        assert host == "" or (answer.status, answer.json["error"]) == (421, "bad_host")


def test_a_request_without_host_or_with_two_reaches_nobody(node: RunningNode) -> None:
    headers = [(k, v) for k, v in modern_headers("tools/call", TOOL).items() if v]
    body = message("tools/call", {"name": TOOL, "_meta": STAMP})
    for hosts in (
        [],
        [("host", "127.0.0.1"), ("host", "evil.example")],
        [("host", "evil.example"), ("host", "127.0.0.1")],
    ):
        answer = ask(node, request("POST", "/mcp", [*hosts, *headers], body, host=None))
        assert answer.status in (400, 421), hosts


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "LOCALHOST:1", "[::1]", "[::1]:7411", "127.0.0.1:80"])
def test_the_names_of_loopback_are_this_node(node: RunningNode, host: str) -> None:
    assert "result" in ask(node, call(TOOL, host=host)).json


@pytest.mark.parametrize(
    "origin",
    [
        "http://evil.example",
        "https://evil.example:7411",
        "http://localhost.evil.example",
        "http://127.0.0.1.evil.example",
        "http://evil.example/http://localhost",
        "http://localhost@evil.example",
        "null",
        "",
        "file://",
        "chrome-extension://abc",
        "localhost",
        "http://",
        "http://[::1",
        "http://[",
        "javascript://localhost/%0aalert(1)",
    ],
)
def test_a_foreign_origin_is_forbidden_for_every_request(node: RunningNode, session: str, origin: str) -> None:
    stream = request("GET", "/sse", {"origin": origin})
    preflight = request("OPTIONS", "/mcp", {"origin": origin, "access-control-request-method": "POST"})
    for data in (call(TOOL, origin=origin), legacy(session, "ping", origin=origin), stream, preflight):
        answer = ask_in_every_way(node, data)
        assert (answer.status, answer.json["error"]) == (403, "bad_origin")
        assert "access-control-allow-origin" not in answer.headers


def test_a_page_on_this_machine_may_call_and_learns_that(node: RunningNode) -> None:
    for origin in ("http://localhost:3000", "http://127.0.0.1:6274", "http://[::1]:8080"):
        answer = ask_in_every_way(node, call(TOOL, origin=origin))
        assert (answer.status, answer.headers["access-control-allow-origin"]) == (200, origin)
        asked = {"origin": origin, "access-control-request-method": "POST"}
        preflight = ask(node, request("OPTIONS", "/mcp", asked))
        assert preflight.status == 204
        wanted = {"mcp-method", "mcp-name", "mcp-protocol-version", "mcp-session-id", "authorization", "content-type"}
        assert wanted <= set(preflight.headers["access-control-allow-headers"].split(", "))


def test_two_origins_are_not_two_chances(node: RunningNode) -> None:
    headers = [(k, v) for k, v in modern_headers("tools/call", TOOL).items() if v]
    body = message("tools/call", {"name": TOOL, "_meta": STAMP})
    for pair in (("http://evil.example", "http://localhost"), ("http://localhost", "http://evil.example")):
        answer = ask(node, request("POST", "/mcp", [*headers, *(("origin", one) for one in pair)], body))
        assert answer.status in (400, 403), json.dumps(pair)
