"""What is refused at the door is on record, a flood of it does not fill the log, and trusted proxies say who it was."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.servers.start import raw
from tests.support.node_process import RunningNode, running_node
from tests.support.raw_client import ask, assert_unharmed, call, hello, request

SERVERS = {"good": {"command": raw("all")}}
LIMITS = "[limits]\nmessage_bytes = 4096\n"


@pytest.fixture
def node(tmp_path: Path) -> Iterator[RunningNode]:
    with running_node(tmp_path, SERVERS, LIMITS) as started:
        yield started
        assert_unharmed(started)


def records(node: RunningNode) -> list[dict[str, Any]]:
    return node.admin("/admin/audit?limit=1000")["records"]


def refused(node: RunningNode) -> list[tuple[str, str, str]]:
    return [(one["who"], one["via"], one["reason"]) for one in records(node) if one["verdict"] == "refused"]


@pytest.mark.parametrize(
    ("status", "reason", "data"),
    [
        (401, "unauthorised", call("good__echo", authorization="Bearer ilc_nobodys_s3cret")),
        (401, "unauthorised", request("POST", "/mcp?access_token=s3cret", {}, b"{}")),
        (401, "unauthorised", hello(x_forwarded_for="203.0.113.9")),
        (403, "bad_origin", call("good__echo", origin="https://evil.example")),
        (421, "bad_host", call("good__echo", host="evil.example")),
        (413, "body_too_large", request("POST", "/mcp", {"content-length": "99999"})),
        (431, "headers_too_large", request("POST", "/mcp", {"x": "y" * 70_000})),
        (400, "bad_request", b"NONSENSE\r\n\r\n"),
    ],
)
def test_a_refusal_at_the_endpoint_is_recorded_without_the_credential(
    node: RunningNode, status: int, reason: str, data: bytes
) -> None:
    assert ask(node, data).status == status
    assert refused(node) == [("peer:127.0.0.1", "http", reason)]
    assert "s3cret" not in json.dumps(records(node))
    assert "evil" not in json.dumps(records(node))


def test_a_call_that_comes_in_leaves_its_own_record_only(node: RunningNode) -> None:
    assert ask(node, call("good__echo")).status == 200
    assert [one["verdict"] for one in records(node)] == ["admitted"]


def test_a_preflight_and_a_wrong_method_are_no_refusals_of_access(node: RunningNode) -> None:
    assert ask(node, request("OPTIONS", "/mcp", {"origin": "http://localhost:1"})).status == 204
    assert ask(node, request("PUT", "/mcp", {}, b"{}")).status == 405
    assert refused(node) == []


def test_a_flood_costs_the_log_a_few_records_that_account_for_all_of_it(tmp_path: Path) -> None:
    flood = 400
    with running_node(tmp_path, SERVERS) as node:
        for number in range(flood):
            assert ask(node, call("good__echo", authorization=f"Bearer guess-{number}")).status == 401
        assert len(refused(node)) <= 5
        assert node.stop() == 0
        told = node.cli("audit", "tail", "--json").stdout.splitlines()
        assert [json.loads(line)["reason"] for line in told] == [
            "unauthorised",
            f"unauthorised, {flood - 1} times more",
        ]
        assert node.cli("audit", "verify").returncode == 0


def test_a_wrong_credential_at_the_operator_endpoint_is_recorded(node: RunningNode) -> None:
    port = int(node.operator_url.rpartition(":")[2])
    public, node.port = node.port, port
    for credential in ({}, {"authorization": "Bearer ilo_s3cret"}, {"x-forwarded-for": "203.0.113.9"}):
        assert ask(node, request("GET", "/admin/status", credential)).status == 401
    node.port = public
    assert refused(node) == [("peer:127.0.0.1", "operator", "unauthorised")]


# Trusted proxies


@pytest.fixture(scope="module")
def proxied(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNode]:
    node = '[node]\nlisten = "127.0.0.1:0"\noperator_listen = "127.0.0.1:0"\ntrusted_proxies = ["127.0.0.1"]\n'
    with running_node(tmp_path_factory.mktemp("proxied"), SERVERS, node) as started:
        yield started


FAR = {
    "nothing said": {},
    "a stranger": {"x_forwarded_for": "203.0.113.1"},
    "a stranger who claims more": {"x_forwarded_for": "127.0.0.1, 203.0.113.2"},
    "a stranger, in the standard's words": {"forwarded": 'for="203.0.113.3:99";proto=https'},
    "two headers that disagree": {"x_forwarded_for": "203.0.113.4", "forwarded": "for=127.0.0.9"},
    "somebody hidden": {"forwarded": "for=_hidden"},
    "another header": {"x_real_ip": "127.0.0.9"},
}
NEAR = {
    "this machine": {"x_forwarded_for": "127.0.0.9"},
    "this machine, in the standard's words": {"forwarded": 'for="[::1]:4000"'},
    "this machine through two proxies": {"x_forwarded_for": "::1, 127.0.0.1"},
}


@pytest.mark.parametrize("who", FAR)
def test_a_caller_without_a_trusted_proxys_word_needs_a_token(proxied: RunningNode, who: str) -> None:
    for data in (call("good__echo", **FAR[who]), hello(**FAR[who])):
        assert ask(proxied, data).status == 401
    token = proxied.admin("/admin/tokens", "POST", {"name": "far", "for": "client"})["token"]
    assert ask(proxied, call("good__echo", authorization=f"Bearer {token}", **FAR[who])).status == 200


@pytest.mark.parametrize("who", NEAR)
def test_a_program_of_this_machine_behind_a_trusted_proxy_of_this_machine_is_local(
    proxied: RunningNode, who: str
) -> None:
    for data in (call("good__echo", **NEAR[who]), hello(**NEAR[who])):
        assert ask(proxied, data).status == 200


def test_the_record_names_the_client_behind_the_proxy(proxied: RunningNode) -> None:
    assert ask(proxied, call("good__echo", x_forwarded_for="198.51.100.77")).status == 401
    assert ("peer:198.51.100.77", "http", "unauthorised") in refused(proxied)


def test_headers_of_a_proxy_that_is_not_configured_are_not_trusted(tmp_path: Path) -> None:
    """Naming a proxy makes no other peer's headers believed, and takes nothing from programs of this machine."""
    config = '[node]\nlisten = "127.0.0.1:0"\noperator_listen = "127.0.0.1:0"\ntrusted_proxies = ["10.0.0.0/8"]\n'
    with running_node(tmp_path, SERVERS, config) as node:
        assert ask(node, call("good__echo")).status == 200
        assert ask(node, call("good__echo", x_forwarded_for="127.0.0.1")).status == 401
        assert refused(node) == [("peer:127.0.0.1", "http", "unauthorised")]
