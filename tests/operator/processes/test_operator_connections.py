"""The operator endpoint bounds what strangers may open and send, as the public one does."""

import contextlib
import json
from collections.abc import Iterator

import pytest
from tests.support.node_process import RunningNode, running_node, wait_for
from tests.support.raw_client import RawConnection, request

from interlock.node.endpoints import OPERATOR_CONNECTIONS_MAX


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNode]:
    with running_node(tmp_path_factory.mktemp("operator"), {}) as started:
        yield started


def at_operator(node: RunningNode) -> RawConnection:
    return RawConnection(node, url=node.operator_url)


def test_connections_beyond_the_limit_are_refused_and_the_machine_s_own_socket_still_answers(node: RunningNode) -> None:
    with contextlib.ExitStack() as open_connections:
        for _ in range(OPERATOR_CONNECTIONS_MAX):
            open_connections.enter_context(at_operator(node))
        for _ in range(3):
            with at_operator(node) as rude:
                refused = rude.answer()
                assert (refused.status, refused.json["error"]) == (503, "too_many_connections")
                rude.assert_closed()
        assert node.admin("/admin/status")["node"]
        recorded = node.admin("/admin/audit?limit=50")["records"]
        assert any(one["reason"] == "too_many_connections" and one["via"] == "operator" for one in recorded)

    def answers() -> bool:
        with at_operator(node) as rude:
            return rude.send(request("GET", "/admin/status")).answer().status == 401

    wait_for(answers)


def test_heads_have_a_limit(node: RunningNode) -> None:
    for headers in ({"x": "y" * 70_000}, {f"x-{number}": "1" for number in range(300)}):
        with at_operator(node) as rude:
            refused = rude.send(request("GET", "/admin/status", headers)).answer()
            assert (refused.status, refused.json["error"]) == (431, "headers_too_large")
            rude.assert_closed()


def test_a_request_without_a_credential_is_refused_before_its_body_has_come(node: RunningNode) -> None:
    with at_operator(node) as rude:
        headers = {"content-type": "application/json", "content-length": "1000000"}
        assert rude.send(request("POST", "/admin/tokens", headers) + b"{").answer().status == 401
        rude.send(b"x" * 300_000)
    with at_operator(node) as rude:  # and pipelined requests keep their order
        rude.send(request("GET", "/admin/status") + request("GET", "/healthz") + b"\x00\r\n\r\n")
        assert [rude.answer().status for _ in range(3)] == [401, 401, 400]


def test_a_token_is_made_over_a_connection_that_is_kept(node: RunningNode) -> None:
    token = node.admin("/admin/tokens", "POST", {"name": "ada", "for": "operator", "scope": "admin"})["token"]
    headers = {"authorization": f"Bearer {token}", "content-type": "application/json"}
    body = json.dumps({"name": "bob", "for": "client"}).encode()
    with at_operator(node) as rude:
        for _ in range(2):
            assert rude.send(request("POST", "/admin/tokens", headers, body)).answer().status == 201
