"""Servers are added on a running node by the operation `add_driver`, as the console does it."""

import contextlib
import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.cli.program import Inline, Interlock
from tests.operator.operator_tree import PATIENCE_S, OperatorTree, Reply, until
from tests.servers.start import raw, serving

from interlock.cli.client.operator import EVENT_BYTES_MAX, OperatorClient
from interlock.drivers.api import TRY_SERVER, TryServer
from interlock.wire.refusal import Refused
from interlock.wire.sse import SseParser

ANCHORS = """
[[gate.operator]]
name = "ada"
key = "{key}"
"""


class Node(OperatorTree):
    """A node without servers, and requests to it."""

    def __init__(self, interlock: Interlock, anchors: str = "") -> None:
        self.interlock = interlock
        (interlock.folder / "interlock.toml").write_text(
            f'{anchors}[node]\nlisten = "127.0.0.1:0"\noperator_listen = "127.0.0.1:0"\n'
        )

    def add(self, reference: str, **body: Any) -> Reply:
        return self.ask("POST", "/admin/drivers", {"reference": reference, **body})

    def add_from_afar(self, path: str = "", **body: Any) -> Reply:
        """Send the request over TCP with the token of an admin, as from another machine."""
        if not hasattr(self, "token"):
            made = self.interlock("access", "token", "--for", "operator", "--name", "far", "--scope", "admin", "--json")
            self.token = made.json["token"]
        url = f"{self.get('/admin/status')['node']['operator_url'].rstrip('/')}/admin/drivers{path}"
        headers = {"Authorization": f"Bearer {self.token}", "Content-Type": "application/json"}
        request = urllib.request.Request(url, json.dumps(body).encode(), headers)
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
                return Reply(answer.status, answer.headers["Content-Type"], answer.read())
        except urllib.error.HTTPError as refused:
            return Reply(refused.code, refused.headers["Content-Type"], refused.read())

    def try_out(self, reference: str, **body: Any) -> list[Any]:
        """Try a server out over admin.sock and return the events of the stream."""
        events: list[Any] = []
        client = OperatorClient.of_data(self.interlock.data)
        client.follow(TRY_SERVER, lambda event: events.append(event.value), body=TryServer(reference=reference, **body))
        return events

    @property
    def drivers(self) -> Path:
        return self.interlock.folder / ".drivers"


@contextlib.contextmanager
def running(interlock: Interlock, anchors: str = "") -> Iterator[Node]:
    node = Node(interlock, anchors)
    with interlock.start("serve", COLUMNS="80") as process:
        while "Ctrl-C stops the node" not in process.next_line():
            pass
        yield node


@pytest.fixture
def node(interlock: Interlock) -> Iterator[Node]:
    with running(interlock) as node:
        yield node


def test_a_server_is_added_trusted_and_served(node: Node) -> None:
    with serving(raw("echo", "--era", "legacy")) as url:
        reply = node.add(url, id="far-mcp", accept=True)

        assert reply.status == 200, reply.raw
        added = reply.json
        assert (added["id"], added["key"]) == ("far-mcp", "far-mcp@1")
        assert (added["state"], added["trusted"]) == ("untrusted", False)
        assert added["tools"]
        front = yaml.safe_load((node.drivers / "far-mcp" / "DRIVER.md").read_text().split("---")[1])
        assert front["server"] == {"kind": "remote", "url": url}

        digest = node.get("/admin/drivers/far-mcp")["digest"]
        node.post("/admin/drivers/far-mcp/trust", {"digest": digest})
        until(lambda: node.get("/admin/drivers/far-mcp")["state"] == "ready")


def test_the_addition_is_on_record(node: Node) -> None:
    with serving(raw("echo", "--era", "legacy")) as url:
        assert node.add(url, id="far-mcp").status == 200

    lines = node.interlock("audit", "tail", "--json").out
    assert "drivers/add" in lines


def test_a_driver_with_other_content_is_overwritten_only_on_request(node: Node) -> None:
    with serving(raw("echo", "--era", "legacy")) as url:
        assert node.add(url, id="far-mcp").status == 200
        again = node.add(url, id="far-mcp")
        assert (again.status, again.json["files"]) == (200, [])

        other = {"headers": {"X-Level": "high"}}
        refused = node.add(url, id="far-mcp", **other)
        assert (refused.status, refused.json["error"]) == (409, "exists")
        assert node.add(url, id="far-mcp", replace=True, **other).status == 200


@pytest.mark.parametrize(
    ("body", "status", "error"),
    [
        ({"reference": "nonsense"}, 409, "unknown_reference"),
        ({"reference": "npm:"}, 409, "unknown_reference"),
        ({"reference": "dns:example.com"}, 409, "unknown_reference"),
        ({"reference": "http://127.0.0.1:9/mcp"}, 409, "upstream_error"),
        ({"reference": "https://a.example/mcp", "id": "../escape"}, 400, "invalid_body"),
        ({"reference": "https://a.example/mcp", "classes": {"look": "harmless"}}, 400, "invalid_body"),
        ({"reference": ""}, 400, "invalid_body"),
        ({}, 400, "invalid_body"),
        ({"trial": "none"}, 409, "unknown_trial"),
        ({"trial": "none", "reference": "https://a.example/mcp"}, 400, "invalid_body"),
    ],
)
def test_a_bad_request_is_refused_by_name_and_nothing_is_written(
    node: Node, body: dict[str, Any], status: int, error: str
) -> None:
    reply = node.ask("POST", "/admin/drivers", body)

    assert (reply.status, reply.json["error"]) == (status, error)
    assert not node.drivers.exists()


def test_a_node_with_approvers_tries_a_server_out_for_its_local_user_only(interlock: Interlock, inline: Inline) -> None:
    anchor = inline("access", "key", "ada", "--approves", "drivers.*", INTERLOCK_PASSPHRASE="correct horse").out
    with running(interlock, anchor) as node, serving(raw("echo", "--era", "legacy")) as url:
        for path in ("", "/trials"):
            reply = node.add_from_afar(path, reference=url, id="far-mcp")
            assert (reply.status, reply.json["error"]) == (403, "proof_required")
        assert not node.drivers.exists()

        assert "trial" in node.try_out(url, id="far-mcp")[-1]
        added = node.add(url, id="far-mcp")
        assert (added.status, added.json["trusted"]) == (200, False)


@pytest.mark.parametrize("path", ["", "/trials"])
@pytest.mark.parametrize(
    ("body", "status", "error"),
    [
        ({"reference": "/bin/sh"}, 409, "unknown_reference"),
        ({"args": ["/bin/sh"]}, 409, "unknown_reference"),
        ({"reference": "npm:some-server", "passed": ["HOME"]}, 403, "only_local"),
        ({"reference": "npm:some-server", "writes": ["/srv"]}, 403, "only_local"),
        ({"reference": "npm:some-server", "environment": {"HOME": "/"}}, 403, "only_local"),
    ],
)
def test_commands_folders_and_variables_of_the_machine_are_for_its_local_user_only(
    node: Node, path: str, body: dict[str, Any], status: int, error: str
) -> None:
    reply = node.add_from_afar(path, **body)

    assert (reply.status, reply.json["error"]) == (status, error)
    assert not node.drivers.exists()


def test_a_server_is_tried_out_shown_and_added_with_the_chosen_classes(node: Node) -> None:
    with serving(raw("echo", "--era", "legacy")) as url:
        *steps, last = node.try_out(url, id="far-mcp")
        assert {"step": "starting it, and asking for its tools"} in steps
        trial = last["trial"]
        assert (trial["driver"], trial["sandbox"]["kind"]) == ("far-mcp", "none")
        proposed = trial["tools"][0]
        assert proposed.keys() == {"tool", "contract", "class", "by", "new", "question"}
        assert not node.drivers.exists()
        assert list(node.interlock.folder.glob(".adding-*")) == []

        unknown = node.ask("POST", "/admin/drivers", {"trial": trial["id"], "classes": {"nothing": "read_only"}})
        assert (unknown.status, unknown.json["error"]) == (409, "tool_unknown")
        chosen = {proposed["tool"]: "irreversible"}
        added = node.ask("POST", "/admin/drivers", {"trial": trial["id"], "classes": chosen, "accept": True})
        assert added.status == 200, added.raw
        tool = next(each for each in added.json["tools"] if each["tool"] == proposed["tool"])
        assert (tool["class"], tool["by"]) == ("irreversible", "person")

        again = node.ask("POST", "/admin/drivers", {"trial": trial["id"]})
        assert (again.status, again.json["error"]) == (409, "unknown_trial")


def test_a_trial_is_of_the_principal_who_asked_for_it(node: Node) -> None:
    with serving(raw("echo", "--era", "legacy")) as url:
        local = node.try_out(url, id="far-mcp")[-1]["trial"]["id"]
        stream = SseParser(EVENT_BYTES_MAX).feed(node.add_from_afar("/trials", reference=url, id="far-mcp").raw)
        far = json.loads(stream[-1].data)["trial"]["id"]

        for reply in (node.add_from_afar(trial=local), node.ask("POST", "/admin/drivers", {"trial": far})):
            assert (reply.status, reply.json["error"]) == (409, "unknown_trial")
        assert not node.drivers.exists()
        assert node.add_from_afar(trial=far).status == 200


def test_a_trial_that_fails_ends_its_stream_with_the_reason(node: Node) -> None:
    *_, last = SseParser(EVENT_BYTES_MAX).feed(node.add_from_afar("/trials", reference="http://127.0.0.1:9/mcp").raw)
    assert (last.event, json.loads(last.data)["error"]) == ("refused", "upstream_error")

    with pytest.raises(Refused) as refused:
        node.try_out("http://127.0.0.1:9/mcp")
    assert refused.value.code == "upstream_error"
    assert str(refused.value.hint).startswith("check the address")
