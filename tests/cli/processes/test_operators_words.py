"""Do the operator's commands say the right thing of a real node: of its children, its endpoint, its record?"""

import json
import sys
from collections.abc import Iterator

import pytest
from tests.servers.start import raw
from tests.support.fleet import stdio_table
from tests.support.node_process import RunningNode, running_node, wait_for


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNode]:
    servers = {
        "fine": stdio_table(raw("echo")),
        "ends": stdio_table([sys.executable, "-c", "import sys; sys.exit('no key given')"]),
        "mute": stdio_table([sys.executable, "-c", "raise SystemExit(3)"]),
    }
    with running_node(tmp_path_factory.mktemp("words"), servers) as running:
        yield running


def test_status_points_to_the_last_words_of_a_child_that_exited(node: RunningNode) -> None:
    wait_for(lambda: node.link("ends")["state"] == "failed" and node.link("mute")["state"] == "failed")
    # It is started again now and then, and has said nothing yet while it starts.
    out = wait_for(lambda: "interlock links logs ends" in (said := node.cli("status").stdout) and said)
    assert "interlock links logs mute" not in out
    assert "interlock links logs fine" not in out
    assert "no key given" in node.cli("links", "logs", "ends").stdout


def test_an_unknown_segment_is_answered_with_those_there_are(node: RunningNode) -> None:
    done = node.cli("links", "logs", "nope")
    assert done.returncode == 1
    assert "there are fine, ends, mute" in done.stderr
    assert "did you mean mute?" in node.cli("links", "logs", "muet").stderr


def test_status_gives_the_url_and_the_endpoint_of_mcp(node: RunningNode) -> None:
    facts = json.loads(node.cli("status", "--json").stdout)["node"]
    assert facts["mcp_url"] == f"{facts['url']}/mcp"


def test_a_call_of_an_unknown_tool_is_in_the_record(node: RunningNode) -> None:
    done = node.cli("tools", "call", "fine.nonesuch", "--json")
    assert (done.returncode, json.loads(done.stdout)["error"]) == (1, "tool_not_found")
    records = [json.loads(line) for line in node.cli("audit", "tail", "--json").stdout.splitlines()]
    assert [(one["verdict"], one["who"]) for one in records if one["tool"] == "fine.nonesuch"] == [("refused", "local")]


def test_a_token_that_was_revoked_is_not_suggested(node: RunningNode) -> None:
    assert node.cli("access", "token", "--for", "client", "--name", "once").returncode == 0
    assert node.cli("access", "revoke", "once").returncode == 0
    again = node.cli("access", "revoke", "once")
    assert again.returncode == 1
    assert "did you mean" not in again.stderr
