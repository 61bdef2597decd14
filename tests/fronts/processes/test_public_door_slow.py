"""Clients that are slow, silent, half gone or too many do not hold the node, and are let go of in time."""

import contextlib
import json
import resource
import socket
import threading
import time
from collections.abc import Iterator

import pytest
from tests.servers.start import raw
from tests.support.idle_clients import ASKED, HUGE, PATIENCE_S, SLACK_S, IdleClients
from tests.support.node_process import RunningNode, running_node, wait_for
from tests.support.raw_client import (
    RawConnection,
    ask,
    assert_unharmed,
    call,
    hello,
    legacy,
    legacy_headers,
    legacy_session,
    modern,
    request,
)

from interlock.fronts.connections import PEER_UNKNOWN_BYTES

TOOL = "good__echo"


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNode]:
    servers = {"good": {"command": raw("all")}, "huge": {"command": raw("huge-answer", "--bytes", "4000000")}}
    with running_node(tmp_path_factory.mktemp("door"), servers) as started:
        yield started
        assert_unharmed(started)


def test_half_sent_requests_by_the_hundred_delay_nobody(node: RunningNode) -> None:
    whole = call(TOOL, {"a": 1})
    with contextlib.ExitStack() as open_connections:
        slow = [open_connections.enter_context(RawConnection(node)) for _ in range(200)]
        for number, rude in enumerate(slow):
            rude.send(whole[: 10 + number])
        assert_unharmed(node)
        for number, rude in enumerate(slow):  # and each is served once the rest has come
            rude.send(whole[10 + number :])
        assert {rude.answer().status for rude in slow} == {200}


def test_unfinished_heads_are_bounded_and_take_no_room_from_bodies(node: RunningNode) -> None:
    head = b"POST /mcp HTTP/1.1\r\nhost: x\r\nx-long: " + b"x" * 60_000
    with contextlib.ExitStack() as open_connections:
        slow = [
            open_connections.enter_context(RawConnection(node)).send(head)
            for _ in range(PEER_UNKNOWN_BYTES // len(head))
        ]
        assert_unharmed(node)
        with RawConnection(node) as one_more:
            assert one_more.send(head).answer().status == 503
        whole = call(TOOL, {"a": "x" * 1_000_000})
        with RawConnection(node) as rude:
            rude.send(whole[:500_000])
            assert rude.send(whole[500_000:]).answer().status == 200
        assert len(slow) > 50


def test_clients_that_do_not_read_delay_nobody(node: RunningNode) -> None:
    with contextlib.ExitStack() as open_connections:
        for _ in range(5):
            deaf = open_connections.enter_context(RawConnection(node))
            deaf.send(call("huge__echo") * 2)
        assert_unharmed(node)
        assert len(ask(node, call("huge__echo")).body) > 4_000_000


def test_an_answer_in_the_making_is_given_up_when_the_client_has_gone(node: RunningNode) -> None:
    idle = ids(node, "good__waiting")
    waits = {"gone": call("good__wait"), "reset": call("good__wait")}
    with contextlib.ExitStack() as open_connections:
        opened = {name: open_connections.enter_context(RawConnection(node)).send(data) for name, data in waits.items()}
        wait_for(lambda: node.admin("/admin/status")["calls"]["in_flight"] == len(waits))
        before = len(ids(node, "good__cancelled"))
        opened["reset"].socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00")
        for rude in opened.values():
            rude.socket.close()
        wait_for(lambda: node.admin("/admin/status")["calls"]["in_flight"] == 0)
    assert len(ids(node, "good__cancelled")) == before + len(waits)
    assert ids(node, "good__waiting") == idle


def ids(node: RunningNode, tool: str) -> list[int]:
    return ask(node, call(tool)).json["result"]["structuredContent"]["ids"]


def test_a_half_closed_connection_is_answered_or_ended_and_leaves_nothing(node: RunningNode) -> None:
    for data in (call(TOOL), call("good__progress", {"steps": 1, "ms": 100}), call(TOOL)[:40], b""):
        with RawConnection(node) as rude:
            rude.send(data)
            rude.socket.shutdown(socket.SHUT_WR)
            answer = rude.response()
            assert answer is None or answer.status in (200, 400)
            rude.assert_closed()
    assert node.admin("/admin/status")["calls"]["in_flight"] == 0


def test_a_stream_whose_client_has_gone_is_forgotten(node: RunningNode) -> None:
    before = node.admin("/admin/status")["clients"]["streams"]
    session = legacy_session(node)
    opening = [
        modern("subscriptions/listen", {"notifications": {"toolsListChanged": True}}),
        request("GET", "/mcp", {"accept": "text/event-stream", "mcp-session-id": session}),
        request("GET", "/sse", {"accept": "text/event-stream"}),
    ]
    with contextlib.ExitStack() as open_connections:
        for data in opening * 10:
            rude = open_connections.enter_context(RawConnection(node))
            assert rude.send(data).stream_head().headers["content-type"] == "text/event-stream"
        assert node.admin("/admin/status")["clients"]["streams"] >= before + 20
        assert_unharmed(node)
    wait_for(lambda: node.admin("/admin/status")["clients"]["streams"] == before)


def test_more_connections_than_the_node_has_files_are_survived(node: RunningNode) -> None:
    limits = resource.prlimit(node.process.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(node.process.pid, resource.RLIMIT_NOFILE, (90, limits[1]))
    try:
        with contextlib.ExitStack() as open_connections:
            for _ in range(150):
                with contextlib.suppress(OSError):
                    open_connections.enter_context(RawConnection(node))
            assert node.process.poll() is None
        wait_for(lambda: answers(node), 15)
    finally:
        resource.prlimit(node.process.pid, resource.RLIMIT_NOFILE, limits)
    assert_unharmed(node)


def answers(node: RunningNode) -> bool:
    try:
        return ask(node, request("GET", "/healthz"), 1.0).status == 200
    except (OSError, AssertionError):
        return False


def test_the_post_of_a_call_that_was_cancelled_or_whose_session_ended_comes_to_an_end(node: RunningNode) -> None:
    cancelled = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 5}}
    for way in ("cancelled", "deleted"):
        session = legacy_session(node)
        with RawConnection(node, 5.0) as rude:
            rude.send(legacy(session, "tools/call", {"name": "good__wait", "arguments": {}}, request_id=5))
            wait_for(lambda: node.admin("/admin/status")["calls"]["in_flight"] == 1)
            if way == "cancelled":
                ask(node, request("POST", "/mcp", legacy_headers(session), json.dumps(cancelled).encode()))
            else:
                ask(node, request("DELETE", "/mcp", legacy_headers(session)))
            answer = rude.response()  # whatever it says, it ends
            assert answer is None or "result" not in (answer.json if answer.body else {})
        wait_for(lambda: node.admin("/admin/status")["calls"]["in_flight"] == 0)


def test_a_message_with_a_million_members_delays_nobody(node: RunningNode) -> None:
    many = {f"com.example/{number}": 1 for number in range(500_000)}
    heavy = modern("tools/call", {"name": "no_such_tool"}, meta=many)
    longest = 0.0
    done = threading.Event()

    def attack() -> None:
        for _ in range(3):
            ask(node, heavy, 30.0)
        done.set()

    thread = threading.Thread(target=attack)
    thread.start()
    while not done.is_set():
        began = time.monotonic()
        assert ask(node, request("GET", "/healthz")).status == 200
        longest = max(longest, time.monotonic() - began)
    thread.join()
    assert longest < 0.5


def test_sessions_nobody_uses_any_more_lock_nobody_out(node: RunningNode) -> None:
    kept = legacy_session(node)
    with RawConnection(node) as stream, RawConnection(node) as rude:
        stream.send(request("GET", "/mcp", legacy_headers(kept))).stream_head()
        sixteen = hello() * 16
        for _ in range(10_200 // 16):
            rude.send(sixteen)
            heads = 0
            while heads < 16:
                heads += rude.socket.recv(262_144).count(b"HTTP/1.1 ")
        newest = ask(node, hello())
        assert newest.status == 200, newest.body
        assert ask(node, legacy(newest.headers["mcp-session-id"], "ping")).json["result"] == {}
        assert ask(node, legacy(kept, "ping")).json["result"] == {}  # its stream is open: it is in use


def test_a_connection_may_be_silent_before_and_between_requests(node: RunningNode) -> None:
    with RawConnection(node) as silent, RawConnection(node) as used:
        assert used.send(call(TOOL)).answer().status == 200
        began = node.admin("/admin/status")["node"]["uptime_s"]
        wait_for(lambda: node.admin("/admin/status")["node"]["uptime_s"] >= began + 2.5)
        for rude in (silent, used):
            assert rude.send(call(TOOL)).answer().status == 200


def test_a_request_that_does_not_end_is_refused_in_time_and_a_client_that_does_not_read_is_cut_off(
    idle_clients: IdleClients,
) -> None:
    for name, rude in idle_clients.half_sent.items():
        answer = rude.response()
        assert answer is not None and answer.status == 408, name
        assert answer.json["error"] == "request_timeout"
        rude.assert_closed()
    half = idle_clients.at_operator["half a head"].response()
    assert half is not None and half.json["error"] == "request_timeout"
    idle_clients.at_operator["silent"].assert_closed()
    assert time.monotonic() - idle_clients.began > PATIENCE_S - 1
    waiting = idle_clients.node.admin("/admin/status")["calls"]["in_flight"]
    assert waiting == 0
    # What the kernel had taken by then still comes; the rest does not.
    wait_for(lambda: time.monotonic() - idle_clients.began > PATIENCE_S + SLACK_S / 2, PATIENCE_S)
    assert len(idle_clients.deaf.rest()) < ASKED * HUGE
    assert_unharmed(idle_clients.node)
