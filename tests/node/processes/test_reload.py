"""The configuration changes under a running node."""

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.ax.tree import ACCESS, ax_url, parents, wait_parent
from tests.servers.start import raw
from tests.support.node_process import RunningNode, Wire, running_node, wait_for, write_config

BENCH = {"bench": {"command": raw("all")}}
LEAF = Path(__file__).parents[2] / "ax" / "leaf.py"
HIDE = '[[tool]]\nmatch = "bench.echo"\nhide = true\n'


def child(segment: str) -> str:
    command = json.dumps([sys.executable, str(LEAF), segment])
    return f'[[ax.children]]\nsegment = "{segment}"\ncommand = {command}\n'


def rewrite(node: RunningNode, servers: Any, extra: str = "") -> None:
    """As an editor would: a new file in the place of the old."""
    folder = node.config.parent.parent
    write_config(folder, servers, extra)


def pid(node: RunningNode, segment: str) -> Any:
    return node.link(segment)["pid"]


def names(node: RunningNode) -> set[str]:
    with Wire(node) as wire:
        return {tool["name"] for tool in wire.modern("tools/list").message["result"]["tools"]}


def configuration(node: RunningNode) -> dict[str, Any]:
    found: dict[str, Any] = node.admin("/admin/status")["configuration"]
    return found


def segments(node: RunningNode) -> set[str]:
    return {link["segment"] for link in node.admin("/admin/links")["links"]}


def test_a_server_comes_and_goes_and_the_others_are_not_disturbed(tmp_path: Path) -> None:
    with running_node(tmp_path, BENCH) as node:
        node.wait_link("bench", {"state": "ready"})
        before = pid(node, "bench")
        rewrite(node, {**BENCH, "second": {"command": raw("all")}})
        node.wait_link("second", {"state": "ready"})
        assert any(name.startswith("second__") for name in names(node))
        with Wire(node, "/mcp/only/second") as wire:
            assert wire.modern("tools/list").message["result"]["tools"]
        rewrite(node, BENCH)
        wait_for(lambda: segments(node) == {"bench"}, 20)
        assert not any(name.startswith("second__") for name in names(node))
        assert pid(node, "bench") == before
        assert configuration(node) | {"read_at": None} == {
            "files": [str(node.config)],
            "read_at": None,
            "problem": None,
            "restart_for": [],
        }


def test_a_server_with_a_changed_entry_is_started_again(tmp_path: Path) -> None:
    with running_node(tmp_path, BENCH) as node:
        node.wait_link("bench", {"state": "ready"})
        before = pid(node, "bench")
        rewrite(node, {"bench": {"command": raw("all"), "env": {"CHANGED": "yes"}}})
        wait_for(lambda: pid(node, "bench") not in (before, None), 20)
        node.wait_link("bench", {"state": "ready"})
        assert "bench__echo" in names(node)


def test_a_file_that_cannot_be_used_changes_nothing_and_the_status_says_why(tmp_path: Path) -> None:
    with running_node(tmp_path, BENCH) as node:
        node.wait_link("bench", {"state": "ready"})
        written = node.config.read_text()
        node.config.write_text(written + "\n[servers.broken]\nurl_ = 1\n")
        wait_for(lambda: configuration(node)["problem"], 20)
        assert "interlock.toml" in configuration(node)["problem"]
        assert segments(node) == {"bench"}
        assert "cannot be used" in node.cli("status").stdout
        node.config.write_text("")
        node.config.write_text(written)
        wait_for(lambda: configuration(node)["problem"] is None, 20)
        assert pid(node, "bench") is not None


def test_a_mistake_in_the_file_takes_no_command_away_from_the_running_node(tmp_path: Path) -> None:
    with running_node(tmp_path, BENCH, f'data = "{tmp_path / "data"}"\n') as node:
        node.wait_link("bench", {"state": "ready"})
        node.config.write_text(node.config.read_text() + "\n[gate_]\nmode = 1\n")
        command = [sys.executable, "-m", "interlock", "status", "--config", str(node.config)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=30)
        assert done.returncode == 0, done.stderr
        assert "bench" in done.stdout
        assert "gate_" in done.stderr
        assert "the node keeps its configuration" in done.stderr
        node.stop()
        away = subprocess.run(command, capture_output=True, text=True, timeout=30)
        assert away.returncode == 1
        assert "gate_" in away.stderr


DEVICE = Path(__file__).parents[3] / "examples/tree/.devices/vent.toml"


def test_a_wrong_description_of_a_device_keeps_nothing_else_from_being_taken_up(tmp_path: Path) -> None:
    devices = tmp_path / "workspace" / ".devices"
    devices.mkdir(parents=True)
    vent, wrong = devices / "vent.toml", devices / "wrong.toml"
    vent.write_text(DEVICE.read_text())
    with running_node(tmp_path, BENCH) as node:
        node.wait_link("vent", {"state": "ready"})
        wrong.write_text('profile = "zzz"\n')  # new and wrong: failed, as at a start
        rewrite(node, BENCH | {"more": {"command": raw("echo")}})
        node.wait_link("more", {"state": "ready"})
        assert "wrong.toml:1" in node.wait_link("wrong", {"state": "failed"})["reason"]
        assert configuration(node)["problem"] is None

        vent.write_text('profile = "zzz"\n' + DEVICE.read_text())  # it worked until now: it goes on as it was
        said = wait_for(lambda: configuration(node)["problem"], 20)
        assert "vent.toml:" in said
        assert "the device vent keeps its description" in said
        rewrite(node, {"more": {"command": raw("echo")}})
        wait_for(lambda: node.link("bench").get("error") == "not_found", 20)
        assert node.link("vent")["state"] == "ready"
        assert node.cli("tools", "call", "vent.read_air").returncode == 0

        wrong.unlink()
        vent.write_text(DEVICE.read_text().replace("Set the speed of", "Turn"))
        wait_for(lambda: configuration(node)["problem"] is None, 20)
        wait_for(lambda: "Turn the ventilator" in node.cli("tools", "list").stdout, 20)


def test_changes_that_need_a_restart_are_named_and_the_rest_is_applied(tmp_path: Path) -> None:
    with running_node(tmp_path, BENCH) as node:
        node.wait_link("bench", {"state": "ready"})
        rewrite(node, BENCH, HIDE + "[limits]\ncalls_in_flight = 7\n")
        wait_for(lambda: configuration(node)["restart_for"] == ["limits.calls_in_flight"], 20)
        wait_for(lambda: "bench__echo" not in names(node), 20)
        assert "limits.calls_in_flight" in node.cli("status").stdout
        rewrite(node, BENCH)
        wait_for(lambda: configuration(node)["restart_for"] == [], 20)
        wait_for(lambda: "bench__echo" in names(node), 20)


def test_an_access_rule_holds_for_the_next_request_of_the_same_connection(tmp_path: Path) -> None:
    with running_node(tmp_path, BENCH) as node, Wire(node) as wire:
        node.wait_link("bench", {"state": "ready"})
        assert "error" not in wire.modern("tools/call", {"name": "bench__echo", "arguments": {}}).message
        rewrite(node, BENCH, '[[access]]\nwho = ["local"]\ntools = ["nothing.*"]\n')
        wait_for(
            lambda: (
                wire.modern("tools/call", {"name": "bench__echo", "arguments": {}})
                .message.get("error", {})
                .get("message")
                == "tool_not_found"
            ),
            20,
        )


def test_an_access_rule_holds_for_callers_from_beyond_the_machine_too(tmp_path: Path) -> None:
    anyone = '[auth]\nanonymous = "any"\n'

    with running_node(tmp_path, BENCH, anyone) as node, Wire(node) as wire, Wire(node) as local:
        node.wait_link("bench", {"state": "ready"})
        wire.base["x-forwarded-for"] = "203.0.113.9"

        def refused(caller: Wire) -> Any:
            answer = caller.modern("tools/call", {"name": "bench__echo", "arguments": {}}).message
            return answer.get("error", {}).get("message")

        assert refused(wire) is None
        rewrite(node, BENCH, f'{anyone}[[access]]\nwho = ["local"]\ntools = ["nothing.*"]\n')
        wait_for(lambda: refused(local) == "tool_not_found", 20)
        assert refused(wire) == "tool_not_found"


@pytest.mark.timeout(120)
def test_a_running_node_becomes_the_child_of_another_and_leaves_it_again(tmp_path: Path) -> None:
    with running_node(tmp_path / "root", {}, ACCESS) as root, running_node(tmp_path / "edge", BENCH, ACCESS) as edge:
        edge.wait_link("bench", {"state": "ready"})
        before = pid(edge, "bench")
        rewrite(edge, BENCH, parents((ax_url(root), "edge")) + ACCESS)
        wait_for(lambda: edge.admin("/admin/status")["parents"], 20)
        wait_parent(edge, {"state": "registered", "assigned_segment": "edge"})
        root.wait_link("edge", {"state": "ready"})
        rewrite(edge, BENCH, parents((ax_url(root), "moved")) + ACCESS)
        root.wait_link("moved", {"state": "ready"})
        assert any(name.startswith("moved__bench__") for name in names(root))
        rewrite(edge, BENCH, ACCESS)
        wait_for(lambda: edge.admin("/admin/status")["parents"] == [], 20)
        wait_for(lambda: not names(root) or not any("bench" in name for name in names(root)), 20)
        assert pid(edge, "bench") == before


def test_children_come_and_go_and_the_others_are_not_disturbed(tmp_path: Path) -> None:
    with running_node(tmp_path, {}, child("kid")) as node:
        node.wait_link("kid", {"state": "ready"})
        before = pid(node, "kid")
        rewrite(node, {}, child("kid") + child("second"))
        node.wait_link("second", {"state": "ready"})
        rewrite(node, {}, child("kid"))
        wait_for(lambda: "second" not in segments(node) or node.link("second").get("state") == "degraded", 20)
        assert pid(node, "kid") == before


def test_sighup_reads_the_files_at_once(tmp_path: Path) -> None:
    with running_node(tmp_path, BENCH) as node:
        before = configuration(node)["read_at"]
        wait_for(lambda: _hung_up(node) and configuration(node)["read_at"] > before, 20)
        assert node.process.poll() is None


def _hung_up(node: RunningNode) -> bool:
    node.process.send_signal(signal.SIGHUP)
    return True
