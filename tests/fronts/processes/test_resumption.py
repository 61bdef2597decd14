"""A legacy client that loses its connection loses neither its call nor, where it has an event's id, the answer."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from tests.servers.start import raw
from tests.support.node_process import RunningNode, running_node, wait_for
from tests.support.raw_client import (
    RawConnection,
    ask,
    assert_unharmed,
    legacy,
    legacy_headers,
    legacy_session,
    request,
)

STEPS = 4


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNode]:
    with running_node(tmp_path_factory.mktemp("resumed"), {"good": {"command": raw("all")}}) as started:
        yield started
        assert_unharmed(started)


def in_flight(node: RunningNode) -> int:
    return int(node.admin("/admin/status")["calls"]["in_flight"])


def stepping(session: str, request_id: int = 7, ms: int = 150) -> bytes:
    params = {
        "name": "good__progress",
        "arguments": {"steps": STEPS, "ms": ms},
        "_meta": {"progressToken": f"t{request_id}"},
    }
    return legacy(session, "tools/call", params, request_id=request_id)


def event(rude: RawConnection) -> tuple[str, Any] | None:
    """The id and the message of the next event."""
    while True:
        size = rude._until(b"\r\n")
        if size is None or int(size, 16) == 0:
            return None
        lines = rude._exactly(int(size, 16) + 2).decode().splitlines()
        said = dict(line.split(": ", 1) for line in lines if ": " in line)
        if "data" in said:
            return said["id"], json.loads(said["data"])


def taking_up(session: str, event_id: str) -> bytes:
    return request("GET", "/mcp", {**legacy_headers(session), "last-event-id": event_id})


def rest(rude: RawConnection) -> list[Any]:
    told = []
    while (one := event(rude)) is not None:
        told.append(one[1])
    return told


@pytest.mark.parametrize("late", [False, True], ids=["while it runs", "after it has ended"])
def test_a_dropped_stream_is_taken_up_where_it_was_lost(node: RunningNode, late: bool) -> None:
    session = legacy_session(node)
    with RawConnection(node) as rude:
        rude.send(stepping(session)).stream_head()
        first = event(rude)
    assert first is not None
    if late:
        wait_for(lambda: in_flight(node) == 0)
    with RawConnection(node) as again:
        again.send(taking_up(session, first[0])).stream_head()
        told = rest(again)
    assert [one["params"]["progress"] for one in [first[1], *told[:-1]]] == list(range(1, STEPS + 1))
    assert (told[-1]["id"], told[-1]["result"]["content"][0]["text"]) == (7, f"{STEPS} steps")


def test_a_stream_is_taken_up_again_though_its_first_connection_is_still_open(node: RunningNode) -> None:
    session = legacy_session(node)
    with RawConnection(node) as first, RawConnection(node) as second, RawConnection(node) as third:
        first.send(stepping(session)).stream_head()
        one = event(first)
        assert one is not None
        second.send(taking_up(session, one[0])).stream_head()
        two = event(second)
        assert two is not None
        assert b"steps" not in first.rest()
        third.send(taking_up(session, one[0])).stream_head()
        assert event(third) == two
        assert rest(third)[-1]["id"] == 7
        assert b"steps" not in second.rest()


def test_a_lost_connection_cancels_no_legacy_call_and_a_notification_does(node: RunningNode) -> None:
    session = legacy_session(node)
    before = in_flight(node)
    with RawConnection(node) as rude:
        rude.send(legacy(session, "tools/call", {"name": "good__wait", "arguments": {}}, request_id=9))
        wait_for(lambda: in_flight(node) == before + 1)
    began = node.admin("/admin/status")["node"]["uptime_s"]
    wait_for(lambda: node.admin("/admin/status")["node"]["uptime_s"] > began + 0.5)
    assert in_flight(node) == before + 1
    cancelled = json.dumps({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 9}})
    assert ask(node, request("POST", "/mcp", legacy_headers(session), cancelled.encode())).status == 202
    wait_for(lambda: in_flight(node) == before)


def test_the_end_of_its_session_ends_a_call_without_a_connection(node: RunningNode) -> None:
    session = legacy_session(node)
    with RawConnection(node) as rude:
        rude.send(legacy(session, "tools/call", {"name": "good__wait", "arguments": {}}))
        wait_for(lambda: in_flight(node) == 1)
    ask(node, request("DELETE", "/mcp", legacy_headers(session)))
    wait_for(lambda: in_flight(node) == 0)


def test_only_so_many_calls_go_on_without_a_connection(node: RunningNode) -> None:
    session = legacy_session(node)
    crowd = []
    for number in range(70):
        crowd.append(RawConnection(node))
        crowd[-1].send(legacy(session, "tools/call", {"name": "good__wait", "arguments": {}}, request_id=number + 100))
    wait_for(lambda: in_flight(node) == 70)
    for rude in crowd:
        rude.socket.close()
    wait_for(lambda: in_flight(node) == 64)
    ask(node, request("DELETE", "/mcp", legacy_headers(session)))
    wait_for(lambda: in_flight(node) == 0)


@pytest.mark.parametrize("event_id", ["", "x", "1", "1-", "-1", "1-0", "1-x", "9" * 40 + "-1", "999999-1", "1-1-1"])
def test_an_id_that_names_no_event_opens_an_ordinary_stream(node: RunningNode, event_id: str) -> None:
    session = legacy_session(node)
    with RawConnection(node) as rude:
        head = rude.send(taking_up(session, event_id)).stream_head()
        assert (head.status, head.headers["content-type"]) == (200, "text/event-stream")


def test_another_session_receives_nothing_of_a_stream(node: RunningNode) -> None:
    own, other = legacy_session(node), legacy_session(node)
    with RawConnection(node) as rude:
        rude.send(stepping(own, ms=20)).stream_head()
        told = list(iter(lambda: event(rude), None))
    with RawConnection(node, 1.0) as rude:
        rude.send(taking_up(other, told[0][0])).stream_head()
        with pytest.raises(AssertionError, match="nothing came"):
            event(rude)
