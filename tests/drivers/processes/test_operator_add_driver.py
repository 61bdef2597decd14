"""Servers are added on a running node by the operation `add_driver`, as the console does it."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.cli.program import Inline, Interlock
from tests.operator.operator_tree import OperatorTree, Reply, until
from tests.servers.start import raw, serving

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
        ({"reference": "/bin/sh"}, 409, "unknown_reference"),
        ({"reference": "dns:example.com"}, 409, "unknown_reference"),
        ({"reference": "http://127.0.0.1:9/mcp"}, 409, "upstream_error"),
        ({"reference": "https://a.example/mcp", "id": "../escape"}, 400, "invalid_body"),
        ({"reference": "https://a.example/mcp", "classes": {"look": "harmless"}}, 400, "invalid_body"),
        ({"reference": ""}, 400, "invalid_body"),
        ({}, 400, "invalid_body"),
    ],
)
def test_a_bad_request_is_refused_by_name_and_nothing_is_written(
    node: Node, body: dict[str, Any], status: int, error: str
) -> None:
    reply = node.ask("POST", "/admin/drivers", body)

    assert (reply.status, reply.json["error"]) == (status, error)
    assert not node.drivers.exists()


def test_a_node_with_approvers_adds_no_server_over_http(interlock: Interlock, inline: Inline) -> None:
    anchor = inline("access", "key", "ada", "--approves", "drivers.*", INTERLOCK_PASSPHRASE="correct horse").out
    with running(interlock, anchor) as node, serving(raw("echo", "--era", "legacy")) as url:
        reply = node.add(url, id="far-mcp")

        assert (reply.status, reply.json["error"]) == (403, "proof_required")
        assert not node.drivers.exists()
