"""An adapter over HTTP: both eras, streams, sessions, what is kept out; a client with no code of ours, and a node."""

import contextlib
import http.client
import json
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from mcp.client.streamable_http import streamable_http_client
from tests.support.node_process import Wire, running_node, wait_for

from interlock.sdk.aql import Adapter, Context, not_found, server
from interlock.sdk.aql.server import REQUEST_BYTES_MAX, HttpApplication, run_http
from mcp import ClientSession

META = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientInfo": {"name": "c", "version": "1"},
    "io.modelcontextprotocol/clientCapabilities": {},
}
HELLO = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "c", "version": "1"}}
BOOKS = {"1": {"id": "1", "title": "Emma"}}


def make_library() -> Adapter:
    library = Adapter("library", description="The books of a library.")

    @library.read
    def get_book(book_id: str, context: Context) -> dict[str, str]:
        """One book."""
        context.progress(1, 2, "looking")
        return BOOKS.get(book_id) or not_found("book", book_id)

    @library.read
    def get_slow(context: Context) -> int:
        """Waits until it is cancelled."""
        for _ in range(500):
            if context.cancelled:
                CANCELLED.set()
                return 1
            time.sleep(0.01)
        return 0

    return library


CANCELLED = threading.Event()


@contextlib.contextmanager
def served(app: HttpApplication) -> Iterator[int]:
    listener = socket.create_server(("127.0.0.1", 0))
    http_server = uvicorn.Server(uvicorn.Config(app, log_level="critical", timeout_graceful_shutdown=1))
    thread = threading.Thread(target=http_server.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        yield listener.getsockname()[1]
    finally:
        http_server.should_exit = True
        thread.join(10)
        listener.close()


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with served(HttpApplication([make_library()])) as free_port:
        yield free_port


def post(
    port: int, body: bytes, headers: dict[str, str] | None = None, method: str = "POST"
) -> tuple[int, dict[str, str], bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    connection.request(method, "/mcp", body, {"accept": "application/json, text/event-stream", **(headers or {})})
    answer = connection.getresponse()
    result = answer.status, {key.lower(): value for key, value in answer.getheaders()}, answer.read()
    connection.close()
    return result


def request(method: str, params: dict[str, Any]) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).encode()


def modern(port: int, method: str, params: dict[str, Any], meta: dict[str, Any] | None = None) -> Any:
    headers = {"mcp-protocol-version": "2026-07-28", "mcp-method": method}
    if "name" in params:
        headers["mcp-name"] = params["name"]
    return post(port, request(method, {**params, "_meta": {**META, **(meta or {})}}), headers)


def call(operation: str, **params: Any) -> dict[str, Any]:
    return {"name": "mcp_aql_read", "arguments": {"operation": operation, "params": params}}


def test_both_eras_get_envelopes_and_progress_is_a_stream(port: int) -> None:
    status, head, text = modern(port, "tools/call", call("get_book", book_id="1"))
    assert (status, head["content-type"]) == (200, "application/json")
    assert json.loads(text)["result"]["structuredContent"] == {"success": True, "data": BOOKS["1"]}
    status, head, text = modern(port, "tools/call", call("get_book", book_id="1"), {"progressToken": 7})
    events = [json.loads(line[6:]) for line in text.splitlines() if line.startswith(b"data: ")]
    assert head["content-type"] == "text/event-stream"
    assert events[0]["params"] == {"progressToken": 7, "progress": 1.0, "total": 2.0, "message": "looking"}
    assert events[1]["result"]["structuredContent"]["success"] is True
    status, head, text = post(port, request("initialize", HELLO))
    session = {"mcp-session-id": head["mcp-session-id"], "mcp-protocol-version": "2025-06-18"}
    assert json.loads(text)["result"]["protocolVersion"] == "2025-06-18"
    assert post(port, b'{"jsonrpc":"2.0","method":"notifications/initialized"}', session)[0] == 202
    missing = json.loads(post(port, request("tools/call", call("get_book", book_id="9")), session)[2])
    assert missing["result"]["structuredContent"]["error"]["code"] == "NOT_FOUND_RESOURCE"
    assert post(port, b"", session, "DELETE")[0] == 204
    assert post(port, request("tools/list", {}), session)[0] == 404


def test_leaving_cancels_a_modern_call_and_a_notification_cancels_a_legacy_call(port: int) -> None:
    CANCELLED.clear()
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    headers = {"mcp-protocol-version": "2026-07-28", "mcp-method": "tools/call", "mcp-name": "mcp_aql_read"}
    connection.request("POST", "/mcp", request("tools/call", {**call("get_slow"), "_meta": META}), headers)
    time.sleep(0.05)
    connection.close()
    assert CANCELLED.wait(5)
    CANCELLED.clear()
    session = {"mcp-session-id": post(port, request("initialize", HELLO))[1]["mcp-session-id"]}
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    connection.request("POST", "/mcp", request("tools/call", call("get_slow")), session)
    message = b'{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}'
    wait_for(lambda: post(port, message, session)[0] == 202 and CANCELLED.wait(0.2))
    connection.close()


@pytest.mark.parametrize(
    ("headers", "method", "body", "status"),
    [
        ({"origin": "https://evil.example"}, "POST", request("tools/list", {}), 403),
        ({"host": "evil.example"}, "POST", request("tools/list", {}), 403),
        ({}, "GET", b"", 405),
        ({}, "POST", b"{", 400),
        ({}, "POST", b"\xff", 400),
        ({}, "POST", request("tools/list", {}), 400),
        ({"mcp-session-id": "x"}, "POST", request("tools/list", {}), 404),
        (
            {"mcp-protocol-version": "2026-07-28", "mcp-method": "x"},
            "POST",
            request("tools/list", {"_meta": META}),
            400,
        ),
        ({}, "POST", b'{"jsonrpc":"2.0","method":"notifications/initialized"}', 202),
        ({}, "DELETE", b"", 404),
        ({"authorization": "Bearer y"}, "POST", b" " * (REQUEST_BYTES_MAX + 1), 413),
    ],
)
def test_each_invalid_request_has_its_http_status(
    port: int, headers: dict[str, str], method: str, body: bytes, status: int
) -> None:
    try:
        assert post(port, body, headers, method)[0] == status
    except (BrokenPipeError, ConnectionResetError):
        assert status == 413  # the server did not read to the end


def test_invalid_utf_8_is_answered_with_an_envelope(port: int) -> None:
    body = request("tools/call", {**call("get_book", book_id="@"), "_meta": META}).replace(b"@", b"\xff")
    status, _, text = post(port, body, {"mcp-protocol-version": "2026-07-28", "mcp-method": "tools/call"})
    assert status == 200 and b"VALIDATION_INVALID_ENCODING" in text


def test_an_address_that_others_reach_needs_a_token_and_gets_nothing_without_it() -> None:
    library = make_library()
    for address in ("0.0.0.0:0", "nonsense", "127.0.0.1:x"):
        with pytest.raises(ValueError, match="token" if address.startswith("0") else "HOST:PORT"):
            run_http([library], address, None)
    with served(HttpApplication([library], "secret", is_open=True)) as port:
        for entry in ("", "Bearer", "Bearer wrong", "Bearer secrets"):
            assert post(port, request("initialize", HELLO), {"authorization": entry})[0] == 401
        good = {"authorization": "Bearer secret", "host": "library.example"}
        assert post(port, request("initialize", HELLO), good)[0] == 200


def test_the_session_that_was_unused_for_longest_ends_when_there_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "SESSIONS_MAX", 2)

    def open_session(port: int) -> dict[str, str]:
        return {"mcp-session-id": post(port, request("initialize", HELLO))[1]["mcp-session-id"]}

    with served(HttpApplication([make_library()])) as port:
        used, unused = open_session(port), open_session(port)
        assert post(port, request("tools/list", {}), used)[0] == 200
        newest = open_session(port)
        statuses = [post(port, request("tools/list", {}), session)[0] for session in (used, unused, newest)]
        assert statuses == [200, 404, 200]


async def test_a_client_with_no_code_of_ours_finds_and_calls(port: int) -> None:
    async with (
        streamable_http_client(f"http://127.0.0.1:{port}/mcp") as streams,
        ClientSession(streams[0], streams[1]) as session,
    ):
        await session.initialize()
        assert "mcp_aql_read" in {tool.name for tool in (await session.list_tools()).tools}
        reply = call("introspect", query="operations", search="book")
        listed = await session.call_tool(reply["name"], reply["arguments"])
        assert "get_book" in str(listed)
        current_reply = call("get_book", book_id="1")
        assert "Emma" in str(await session.call_tool(current_reply["name"], current_reply["arguments"]))


def test_a_node_lifts_its_operations(port: int, tmp_path: Path) -> None:
    servers = {"library": {"url": f"http://127.0.0.1:{port}/mcp"}}
    with running_node(tmp_path, servers) as node, Wire(node, "/mcp/aql") as wire:
        current_request = {"operation": "introspect", "params": {"query": "operations"}}

        def operations() -> str:
            return str(wire.modern("tools/call", {"name": "mcp_aql_read", "arguments": current_request}).message)

        wait_for(lambda: "library__get_book" in operations())
        arguments = {"operation": "library__get_book", "params": {"book_id": "1"}}
        assert "Emma" in str(wire.modern("tools/call", {"name": "mcp_aql_read", "arguments": arguments}).message)
