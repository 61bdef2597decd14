"""Is a call of a tool that is withheld, or whose server is not there, answered with that reason and when to try again?

The way in is that of a flat client, of an AQL client and of the command line."""

import json
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.drivers.driver_files import contract, driver, text
from tests.servers.start import raw
from tests.support.node_process import RunningNode, Wire, running_node, wait_for
from tests.support.odd_server import command

SETTINGS = """[mcp]
list_wait_s = 0.5
[[tool]]
match = "echo.echo"
hide = true
[[access]]
who = ["client:narrow"]
tools = ["echo.*"]
scope = "write"
"""


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNode]:
    folder = tmp_path_factory.mktemp("absent")
    drafted = folder / "workspace" / ".drivers" / "first-mcp"
    (drafted / "tools" / "fs-read").mkdir(parents=True)
    (drafted / "tools/fs-read/TOOL.md").write_text(text(contract(id="garden.read")))
    (drafted / "DRIVER.md").write_text(text(driver("first-mcp")))
    servers = {
        "late": {"command": [sys.executable, "-c", "import time; time.sleep(600)"]},
        "gone": {"command": [sys.executable, "-c", "raise SystemExit('no key /etc/secret-place')"]},
        "echo": {"command": raw("echo")},
        "plant": {"command": command("rich", "--era", "legacy")},
    }
    with running_node(folder, servers, SETTINGS, announced=False) as started:
        started.wait_link("gone", {"state": "failed"})
        started.wait_link("plant", {"state": "ready"})
        wait_for(lambda: started.admin("/admin/status")["idle_drivers"])
        yield started


def refused(node: RunningNode, name: str) -> Any:
    with Wire(node) as wire:
        return wire.modern("tools/call", {"name": name, "arguments": {}}).message["error"]


def operated(node: RunningNode, name: str) -> Any:
    arguments = {"operation": name, "params": {}}
    with Wire(node, "/mcp/aql-single") as wire:
        result = wire.modern("tools/call", {"name": "mcp_aql", "arguments": arguments}).message["result"]
    return json.loads(result["content"][0]["text"])["error"]


EXPECTED = {
    "late.get_time": ("its server is still connecting", "relisting", 5000),
    "gone.fetch": ("its server has failed", "subserver_unreachable", 5000),
    "plant.broken": ("this tool is withheld", "tool_not_found", 60_000),
    "garden.read": ("an operator has not accepted the files of its server", "untrusted", 60_000),
}


def told(ask: Callable[[], Any], name: str) -> Any:
    """Return the error that names the expected reason. A server that failed is connecting again for moments."""
    return wait_for(lambda: EXPECTED[name][0] in (error := ask())["message"] and error)


@pytest.mark.req("AX-5.2-2")
@pytest.mark.parametrize("name", EXPECTED)
def test_a_flat_client_is_told_the_reason_and_when_to_try_again(node: RunningNode, name: str) -> None:
    _, reason, after_ms = EXPECTED[name]
    for spelled in (name, name.replace(".", "__")):
        error = told(lambda: refused(node, spelled), name)  # noqa: B023
        assert f"try again in {after_ms // 1000} s" in error["message"]
        assert (error["data"]["reason"], error["data"]["retry_after_ms"]) == (reason, after_ms)
        assert "did_you_mean" not in error["data"]
        assert "secret-place" not in json.dumps(error)


@pytest.mark.parametrize("name", EXPECTED)
def test_an_aql_client_is_told_the_same(node: RunningNode, name: str) -> None:
    error = told(lambda: operated(node, name.replace(".", "__")), name)
    assert "Did you mean" not in error["message"]


@pytest.mark.parametrize("name", EXPECTED)
def test_the_command_line_says_it_too(node: RunningNode, name: str) -> None:
    called = wait_for(
        lambda: EXPECTED[name][0] in " ".join((done := node.cli("tools", "call", name)).stderr.split()) and done
    )
    assert called.returncode != 0
    assert "there is no tool" not in called.stderr
    shown = node.cli("tools", "show", name)
    assert (shown.returncode, "there is no tool" in shown.stderr) == (1, False)
    segment = name.partition(".")[0]
    assert {"plant": "withheld"}.get(segment, f"{segment} is ") in " ".join(shown.stderr.split())


def test_what_is_hidden_or_unknown_or_not_for_this_caller_is_not_there(node: RunningNode) -> None:
    for name in ("echo.echo", "echo.nothing", "nowhere.at_all"):
        error = refused(node, name)
        assert (error["message"].partition(":")[0], "because" in error["data"]) == ("tool_not_found", False)
    issued = node.cli("access", "token", "--for", "client", "--name", "narrow", "--json")
    with Wire(node, token=json.loads(issued.stdout)["token"]) as wire:
        for name in EXPECTED:
            error = wire.modern("tools/call", {"name": name, "arguments": {}}).message["error"]
            assert error["message"].partition(":")[0] == "tool_not_found"
            assert error["data"].keys() <= {"reason", "did_you_mean"}
