"""Nodes that share a store on NATS: what one of them is told the other knows, and what happens without the server."""

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.store.nats_server import NatsServer
from tests.support.node_process import RunningNode, Wire, running_node, wait_for


@pytest.fixture
def server(tmp_path: Path) -> Iterator[NatsServer]:
    server = NatsServer(tmp_path / "nats")
    server.start()
    yield server
    server.kill()


def sharing(server: NatsServer, more: str = "") -> str:
    return f'[store]\nbackend = "nats"\nnats_url = "{server.url}"\n{more}'


def token(node: RunningNode, name: str) -> dict[str, Any]:
    done = node.cli("access", "token", "--for", "client", "--name", name, "--json")
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


def names(node: RunningNode) -> list[str]:
    return [current_token["name"] for current_token in node.admin("/admin/tokens")["tokens"]]


def test_replicas_share_their_knowledge_and_keep_it_across_restarts(server: NatsServer, tmp_path: Path) -> None:
    with running_node(tmp_path / "a", {}, sharing(server)) as a:
        current_token = token(a, "laptop")
        with running_node(tmp_path / "b", {}, sharing(server)) as b:
            assert a.status_at_start["node"]["aggregator_id"] == b.status_at_start["node"]["aggregator_id"]
            assert names(b) == ["laptop"]
            token(b, "phone")
            wait_for(lambda: names(a) == ["laptop", "phone"], 10)
            assert b.cli("access", "revoke", current_token["id"]).returncode == 0
            wait_for(lambda: names(a) == ["phone"], 10)
    assert a.cli("access", "list").stdout.count("phone") == 1  # no node runs: the command asks the store itself
    with running_node(tmp_path / "a", {}, sharing(server)) as again:
        assert names(again) == ["phone"]
        assert again.status_at_start["node"]["aggregator_id"] == a.status_at_start["node"]["aggregator_id"]


def test_without_the_server_a_node_says_so_and_refuses_what_needs_it_until_it_is_back(
    server: NatsServer, tmp_path: Path
) -> None:
    with running_node(tmp_path / "a", {}, sharing(server)) as node:
        assert node.admin("/admin/status")["node"]["store_trouble"] is None
        server.kill()
        wait_for(lambda: node.admin("/admin/status")["node"]["store_trouble"], 10)
        assert f"the store on NATS does not answer: {server.url}" in node.cli("status").stdout
        assert f"the store on NATS does not answer: {server.url}" in node.cli("doctor").stdout
        refused = node.cli("access", "token", "--for", "client", "--name", "never")
        assert refused.returncode == 1
        assert "nothing was done" in refused.stderr
        server.start()
        wait_for(lambda: node.admin("/admin/status")["node"]["store_trouble"] is None, 10)
        token(node, "after")
        assert names(node) == ["after"]


def test_commands_and_a_start_without_the_server_say_what_to_do(server: NatsServer, tmp_path: Path) -> None:
    with running_node(tmp_path / "a", {}, sharing(server)) as node:
        pass
    server.kill()
    for words in (("serve",), ("access", "list"), ("doctor",)):
        done = node.cli(*words)
        assert done.returncode == 1
        assert f"No NATS server answers at {server.url}" in done.stdout + done.stderr
        assert "store.nats_url" in done.stdout + done.stderr


@pytest.mark.req("AX-11.N-3")
def test_the_credentials_are_a_secret_of_the_node(tmp_path: Path) -> None:
    server = NatsServer(tmp_path / "nats", "authorization { user: node, password: sesame }")
    server.start()
    try:
        config = sharing(server, 'nats_secret = "${secrets.nats}"\n')
        with running_node(tmp_path / "plain", {}) as plain:
            pass
        plain.config.write_text(plain.config.read_text() + config)
        place = server.url.partition("//")[2]
        assert f"interlock secrets set nats --for {place}" in plain.cli("serve").stderr
        assert plain.cli("secrets", "set", "nats", "--for", "nats.example.com", input="node:wrong").returncode == 0
        assert f"interlock secrets set nats --for {place}" in plain.cli("access", "list").stderr
        assert plain.cli("secrets", "remove", "nats").returncode == 0
        checked = plain.cli("check")
        assert "it needs the secret nats, which is not set" in checked.stdout + checked.stderr
        assert plain.cli("secrets", "set", "nats", "--for", place, input="node:wrong").returncode == 0
        assert "does not take the credentials of this node" in plain.cli("serve").stderr
        assert plain.cli("secrets", "set", "nats", "--for", "127.0.0.1", input="node:sesame").returncode == 0
        assert plain.cli("access", "token", "--for", "client", "--name", "laptop").returncode == 0
    finally:
        server.kill()


def test_a_node_that_is_another_aggregator_is_no_replica(server: NatsServer, tmp_path: Path) -> None:
    with running_node(tmp_path / "a", {}, sharing(server)):
        pass
    with running_node(tmp_path / "b", {}) as other:
        pass
    other.config.write_text(other.config.read_text() + sharing(server))
    refused = other.cli("serve")
    assert refused.returncode == 1
    assert "set another node.name" in refused.stderr


def test_a_client_is_served_by_both_replicas_with_one_token(server: NatsServer, tmp_path: Path) -> None:
    with (
        running_node(tmp_path / "a", {}, sharing(server) + '[auth]\nanonymous = "never"\n') as a,
        running_node(tmp_path / "b", {}, sharing(server) + '[auth]\nanonymous = "never"\n') as b,
    ):
        bearer = token(a, "laptop")["token"]
        for status in (200, 401):
            for node in (a, b):
                wait_for(partial(_answers, node, bearer, status), 10)
            a.cli("access", "revoke", "laptop")


def _answers(node: RunningNode, bearer: str, status: int) -> bool:
    with Wire(node, token=bearer) as wire:
        return wire.modern("tools/list").status == status


def test_all_replicas_share_one_registry_of_names(server: NatsServer, tmp_path: Path) -> None:
    published = tmp_path / "published.json"
    with running_node(tmp_path / "a", {}, sharing(server)) as a, running_node(tmp_path / "b", {}, sharing(server)) as b:
        assert a.cli("names", "publish", "--out", str(published)).returncode == 0
        published.write_text(published.read_text().replace("org_alter_ingest", "org_alter_intake"))
        taken = a.cli("names", "import", str(published), "--source", "elsewhere")
        assert taken.returncode == 0, taken.stderr
        for node in (a, b):
            wait_for(partial(_lists, node, "org_alter_intake"), 10)
            assert "org_alter_intake" in node.cli("names", "show", "org_alter_intake", "--log").stdout
        assert not (a.data / "names.db").exists()
    with running_node(tmp_path / "c", {}, sharing(server)) as third:
        assert "org_alter_intake" in third.cli("names", "list").stdout


def _lists(node: RunningNode, name: str) -> bool:
    return name in node.cli("names", "list").stdout
