"""Does the first list after a start have every server that will be there, and name the one that does not come?

Five servers: three that are there at once, one that takes three seconds, and one that comes only when it is let.
"""

import json
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tests.servers.start import raw
from tests.support import intervals
from tests.support.node_process import LEGACY, MODERN, RunningNode, Wire, running_node, wait_for, write_config

SLOW_S = 3.0
WAIT_S = 6.0
BOUND_S = WAIT_S + 3.0  # for a machine with other things to do
WAITING = f"[mcp]\nlist_wait_s = {WAIT_S}\n"
SOON = {intervals.BACKOFF_MAX_S: 0.3}
WHOLE = {"one", "two", "three", "slow"}
MISSING = "dev.interlock/missing"
NEVER = [{"server": "never", "state": "connecting"}]


def five(folder: Path) -> dict[str, dict[str, Any]]:
    begun = "import os, sys, time\n{}\nos.execv(sys.argv[1], sys.argv[1:])"
    late = begun.format(f"time.sleep({SLOW_S})")
    held = begun.format(f"while not os.path.exists({str(folder / 'come')!r}): time.sleep(0.05)")
    servers = {name: {"command": raw("echo")} for name in ("one", "two", "three")}
    servers["slow"] = {"command": [sys.executable, "-S", "-c", late, *raw("echo")]}
    servers["never"] = {"command": [sys.executable, "-S", "-c", held, *raw("echo")]}
    return servers


def segments(listed: dict[str, Any]) -> set[str]:
    return {tool["name"].replace("__", ".").partition(".")[0] for tool in listed["tools"]}


def listed_modern(node: RunningNode) -> dict[str, Any]:
    with Wire(node) as wire:
        return dict(wire.modern("tools/list").message["result"])


def listed_legacy(node: RunningNode) -> dict[str, Any]:
    with Wire(node) as wire:
        wire.initialize()
        return dict(wire.legacy("tools/list").message["result"])


def called_slow(node: RunningNode) -> dict[str, Any]:
    with Wire(node) as wire:
        params = {"name": "slow.echo", "arguments": {"text": "early"}}
        return dict(wire.modern("tools/call", params).message)


def introspected(node: RunningNode, *, is_modern: bool) -> dict[str, Any]:
    params = {"name": "mcp_aql_read", "arguments": {"operation": "introspect", "params": {"query": "operations"}}}
    with Wire(node, "/mcp/aql") as wire:
        if not is_modern:
            wire.initialize()
        answer = wire.modern("tools/call", params) if is_modern else wire.legacy("tools/call", params)
    return dict(json.loads(answer.message["result"]["content"][0]["text"])["data"])


def operations_of(answer: dict[str, Any]) -> set[str]:
    return {one["name"].partition("__")[0] for one in answer["operations"] if "__" in one["name"]}


def test_the_first_lists_over_http_are_whole_within_the_bound(tmp_path: Path) -> None:
    with (
        running_node(tmp_path, five(tmp_path), extra=WAITING, announced=False, settings=SOON) as node,
        ThreadPoolExecutor() as pool,
    ):
        began = time.monotonic()
        asked: list[Callable[[], dict[str, Any]]] = [
            lambda: listed_modern(node),
            lambda: listed_legacy(node),
            lambda: called_slow(node),
            lambda: introspected(node, is_modern=True),
            lambda: introspected(node, is_modern=False),
        ]
        modern, legacy, called, aql, aql_legacy = [one.result() for one in [pool.submit(each) for each in asked]]
        assert time.monotonic() - began < BOUND_S
        for listed in (modern, legacy):
            assert segments(listed) == WHOLE
            assert listed["_meta"][MISSING] == NEVER
        assert modern["ttlMs"] <= 1000
        assert "result" in called, called
        for answer in (aql, aql_legacy):
            assert operations_of(answer) == WHOLE
            assert answer["_protocol"]["missing_servers"] == NEVER
        began = time.monotonic()
        assert listed_modern(node)["_meta"][MISSING] == NEVER
        assert time.monotonic() - began < 1.0  # what never comes holds up no later list
        _comes_later(node, tmp_path)


def _comes_later(node: RunningNode, folder: Path) -> None:
    """The client is told, and the list is whole."""
    with Wire(node) as wire, Wire(node) as stream:
        wire.initialize()
        headers = {"accept": "text/event-stream", **wire.legacy_headers()}
        stream.connection.request("GET", "/mcp", headers=headers)
        events = stream.connection.getresponse()
        (folder / "come").touch()
        while b"notifications/tools/list_changed" not in events.readline():
            pass
        listed = wire.legacy("tools/list").message["result"]
        assert segments(listed) == {*WHOLE, "never"}
        assert MISSING not in listed.get("_meta", {})
        assert "missing_servers" not in introspected(node, is_modern=True)["_protocol"]


def request(number: int, method: str, params: Mapping[str, Any]) -> str:
    return json.dumps({"jsonrpc": "2.0", "id": number, "method": method, "params": params}) + "\n"


STAMP = {
    "io.modelcontextprotocol/protocolVersion": MODERN,
    "io.modelcontextprotocol/clientCapabilities": {},
}
HELLO = {"protocolVersion": LEGACY, "capabilities": {}, "clientInfo": {"name": "once", "version": "1"}}
ONCE = {
    "modern": request(2, "tools/list", {"_meta": STAMP}),
    "legacy": request(1, "initialize", HELLO)
    + '{"jsonrpc":"2.0","method":"notifications/initialized"}\n'
    + request(2, "tools/list", {}),
}


def test_a_client_on_stdio_that_asks_once_and_leaves_sees_every_server(tmp_path: Path) -> None:
    """Its input ends behind the question, in both eras at once."""

    def asked(era: str) -> dict[str, Any]:
        folder = tmp_path / era
        config = write_config(folder, five(folder), WAITING)
        command = [sys.executable, "-m", "interlock", "serve", "--stdio", "--config", str(config)]
        command += ["--data", str(folder / "data")]
        done = subprocess.run(command, input=ONCE[era].encode(), capture_output=True, timeout=50, check=False)
        assert done.returncode == 0, done.stderr
        return dict(json.loads(done.stdout.splitlines()[-1])["result"])

    with ThreadPoolExecutor() as pool:
        for listed in pool.map(asked, ONCE):
            assert segments(listed) == WHOLE
            assert listed["_meta"][MISSING] == NEVER


@pytest.mark.req("AQL-X-6")
def test_a_status_in_json_is_printed_once_however_late_a_server_is(tmp_path: Path) -> None:
    with running_node(tmp_path, {"never": five(tmp_path)["never"]}, settings={intervals.READY_S: 0.1}) as node:
        assert [one["state"] for one in node.status_at_start["links"]] == ["connecting"]
        (tmp_path / "come").touch()
        node.wait_link("never", {"state": "ready"})
        node.stop()
        assert node.process.stdout is not None
        assert node.process.stdout.read() == b""


def test_the_surface_of_a_client_that_comes_early_is_decided_when_the_servers_have_come(tmp_path: Path) -> None:
    """Over HTTP in both eras and over stdio, where all input is there at once."""
    late = "import os, sys, time\ntime.sleep(1.0)\nos.execv(sys.argv[1], sys.argv[1:])"
    slow = {"slow": {"command": [sys.executable, "-S", "-c", late, *raw("echo")]}}
    auto = '[mcp]\nsurface = "auto"\n[aql]\nauto_tokens = 1\n'

    def asked(era: str) -> dict[str, Any]:
        config = write_config(tmp_path / era, slow, auto)
        command = [sys.executable, "-m", "interlock", "serve", "--stdio", "--config", str(config)]
        command += ["--data", str(tmp_path / era / "data")]
        done = subprocess.run(command, input=ONCE[era].encode(), capture_output=True, timeout=50, check=False)
        return dict(json.loads(done.stdout.splitlines()[-1])["result"])

    with ThreadPoolExecutor() as pool:
        stdio = pool.submit(asked, "legacy")
        with running_node(tmp_path / "http", slow, extra=auto, announced=False) as node:
            http = [pool.submit(one, node) for one in (listed_modern, listed_legacy)]
            for listed in (*http, stdio):
                assert "mcp_aql_read" in {tool["name"] for tool in listed.result()["tools"]}


@pytest.mark.parametrize("pattern", ["one.*", "one.echo"])
def test_a_caller_does_not_learn_of_a_missing_server_that_it_may_not_use(tmp_path: Path, pattern: str) -> None:
    servers = {"one": {"command": raw("echo")}, "gone": {"command": ["/nonexistent/server"]}}
    access = f'[[access]]\nwho = ["local"]\ntools = ["{pattern}"]\n'
    with running_node(tmp_path, servers, extra=access) as node:
        assert MISSING not in listed_modern(node)["_meta"]
    with running_node(tmp_path, servers) as node:
        assert listed_modern(node)["_meta"][MISSING] == [{"server": "gone", "state": "failed"}]


def test_a_server_that_was_just_added_is_waited_for_as_well(tmp_path: Path) -> None:
    with running_node(tmp_path, {"one": {"command": raw("echo")}}, extra=WAITING) as node:
        late = f"import os, sys, time\ntime.sleep({SLOW_S / 2})\nos.execv(sys.argv[1], sys.argv[1:])"
        command = json.dumps([sys.executable, "-S", "-c", late, *raw("echo")])
        node.config.write_text(f"{node.config.read_text()}\n[servers.added]\ncommand = {command}\n")
        wait_for(lambda: "added" in [link["segment"] for link in node.admin("/admin/links")["links"]])
        assert segments(listed_modern(node)) == {"one", "added"}
