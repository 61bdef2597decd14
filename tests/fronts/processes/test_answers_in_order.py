"""Requests on one connection are answered in their order, whoever answers them."""

from collections.abc import Iterator

import pytest
from tests.ax.processes.test_refused_at_the_door import UPGRADE
from tests.servers.start import raw
from tests.support.node_process import RunningNode, running_node, wait_for
from tests.support.raw_client import RawConnection, assert_unharmed, call, request

TOOL = "good__echo"
HEALTH = request("GET", "/healthz")
NOWHERE = request("GET", "/nowhere")


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNode]:
    servers = {"good": {"command": raw("all")}, "late": {"command": raw("slow-calls", "--ms", "200")}}
    with running_node(tmp_path_factory.mktemp("order"), servers) as started:
        yield started
        assert_unharmed(started)


def late(number: int) -> bytes:
    return call("late__echo", request_id=number)


def fast(number: int) -> bytes:
    return call(TOOL, request_id=number)


@pytest.mark.parametrize("apart", [False, True], ids=["in one piece", "apart"])
@pytest.mark.parametrize(
    ("sent", "expected"),
    [
        ([late(1), HEALTH, fast(2), NOWHERE, late(3)], [1, 200, 2, 404, 3]),
        ([HEALTH, late(1), NOWHERE, HEALTH, fast(2)], [200, 1, 404, 200, 2]),
        ([NOWHERE, fast(1), HEALTH, late(2), HEALTH], [404, 1, 200, 2, 200]),
        ([late(1), request("POST", "/ax", {"content-type": "text/plain"}, b"{}"), fast(2)], [1, 200, 2]),
    ],
    ids=["a call first", "the application first", "mixed", "a body for the application"],
)
def test_answers_of_the_endpoint_and_the_application_keep_their_order(
    node: RunningNode, sent: list[bytes], expected: list[int], apart: bool
) -> None:
    with RawConnection(node) as rude:
        if apart:
            rude.send_apart(sent)
        else:
            rude.send(b"".join(sent))
        answers = [rude.answer() for _ in expected]
        assert [one.json.get("id") or one.status for one in answers] == expected


def test_any_number_of_requests_may_ask_for_an_upgrade_that_is_ignored(node: RunningNode) -> None:
    one = request("GET", "/mcp", {"connection": "upgrade", "upgrade": "h2c"})
    with RawConnection(node) as rude:
        rude.send(one * 400 + HEALTH)
        assert {rude.answer().status for _ in range(400)} == {400}
        assert rude.answer().status == 200


def test_a_refusal_waits_for_its_turn_too(node: RunningNode) -> None:
    for first, expected in ((late(1), 200), (HEALTH + late(1), 200)):
        with RawConnection(node) as rude:
            rude.send(first + b"\x00 garbage\r\n\r\n")
            answers = [rude.answer() for _ in range(first.count(b"HTTP/1.1"))]
            assert {one.status for one in answers} == {expected}
            refused = rude.answer()
            assert (refused.status, refused.json["error"]) == (400, "bad_request")
            rude.assert_closed()


def test_too_many_requests_at_once_are_answered_as_far_as_they_were_taken(node: RunningNode) -> None:
    with RawConnection(node) as rude:
        rude.send(late(0) + b"".join(fast(number) + HEALTH for number in range(1, 20)))
        statuses = [rude.answer().status for _ in range(18)]
        assert statuses == [200] * 17 + [503]
        rude.assert_closed()


def test_an_upgrade_behind_a_running_call_is_answered_after_it(node: RunningNode) -> None:
    upgrade = request("GET", "/ax", UPGRADE)
    for before, count in ((late(1), 1), (late(1) + HEALTH, 2), (HEALTH, 1)):
        for apart in (False, True):
            with RawConnection(node) as rude:
                if apart:
                    rude.send_apart([before, upgrade])
                else:
                    rude.send(before + upgrade)
                assert [rude.answer().status for _ in range(count)] == [200] * count
                head = rude.stream_head()
                assert (head.status, head.headers["sec-websocket-protocol"]) == (101, "mcpax.v1")


def test_a_refused_upgrade_behind_a_running_call_says_so(node: RunningNode) -> None:
    with RawConnection(node) as rude:
        rude.send(late(1) + request("GET", "/ax", {**UPGRADE, "authorization": "Bearer ils_no"}))
        assert [rude.answer().status for _ in range(2)] == [200, 401]


def test_a_peer_that_does_not_wait_for_the_upgrade_is_disconnected_and_its_call_cancelled(node: RunningNode) -> None:
    with RawConnection(node) as rude:
        rude.send_apart([call("good__wait"), request("GET", "/ax", UPGRADE)])
        wait_for(lambda: node.admin("/admin/status")["calls"]["in_flight"] == 1)
        rude.send(b"\x81\x85abcdefghi")
        rude.assert_closed()
    wait_for(lambda: node.admin("/admin/status")["calls"]["in_flight"] == 0)


def test_100_continue_is_not_sent_inside_the_previous_answer(node: RunningNode) -> None:
    data = call(TOOL, {"a": 1}, expect="100-continue", request_id=2)
    end = data.index(b"\r\n\r\n") + 4
    with RawConnection(node) as rude:
        rude.send(late(1) + data[:end])
        first = rude.answer()
        assert (first.json["id"], rude.interim) == (1, [])
        assert rude._until(b"\r\n\r\n") == b"HTTP/1.1 100 Continue"
        assert rude.send(data[end:]).answer().json["id"] == 2


def test_a_client_that_goes_away_cancels_its_call_though_others_wait_behind_it(node: RunningNode) -> None:
    with RawConnection(node) as rude:
        rude.send(call("good__wait") + HEALTH + fast(2))
        wait_for(lambda: node.admin("/admin/status")["calls"]["in_flight"] == 1)
    wait_for(lambda: node.admin("/admin/status")["calls"]["in_flight"] == 0)
