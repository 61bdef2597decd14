"""Servers that flood and servers with too much to list take nothing from the others, not even time."""

import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.servers.start import raw
from tests.support.node_process import RunningNode, Wire, running_node, wait_for
from tests.support.raw_client import ask, assert_unharmed, call, legacy, legacy_session, modern

LIMIT = 1_000_000
COUNT = 10_000


def flooder(line: str) -> list[str]:
    """A server that is honest but for this: from its first request on it writes `line` without end."""
    program = (
        "import sys, threading, json, os\n"
        f"line = {line!r}.encode() + b'\\n'\n"
        "def flood():\n"
        "    while True: sys.stdout.buffer.write(line * 200)\n"
        "for text in sys.stdin:\n"
        "    message = json.loads(text)\n"
        "    if message.get('method') == 'server/discover':\n"
        "        threading.Thread(target=flood, daemon=True).start()\n"
        "os._exit(0)\n"
    )
    return [sys.executable, "-S", "-c", program]


FLOODS = {
    "stdout": raw("flood-stdout"),
    "line": raw("flood-line"),
    "stderr": raw("flood-stderr"),
    "notices": raw("flood-notifications"),
    "old_notices": raw("flood-notifications", "--era", "legacy"),
    "answers": flooder('{"jsonrpc":"2.0","id":987654321,"result":{}}'),
    "pings": flooder('{"jsonrpc":"2.0","id":1,"method":"ping"}'),
    "changes": flooder('{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}'),
    "asks": flooder('{"jsonrpc":"2.0","id":2,"method":"roots/list"}'),
}


GROUPS = {
    "bytes": ("stdout", "line", "stderr", "answers"),
    "messages": ("notices", "old_notices", "changes", "pings", "asks"),
}


def node_with(tmp_path_factory: pytest.TempPathFactory, commands: dict[str, list[str]]) -> Iterator[RunningNode]:
    servers = {name: {"command": command} for name, command in {"good": raw("all"), **commands}.items()}
    extra = f"[mcp]\nlist_wait_s = 1\n[limits]\nmessage_bytes = {LIMIT}\n"
    with running_node(tmp_path_factory.mktemp("floods"), servers, extra, announced=False) as node:
        node.wait_link("good", {"state": "ready"})
        yield node
        assert_unharmed(node)


def test_ten_thousand_tools_are_listed_without_delaying_other_calls(tmp_path_factory: pytest.TempPathFactory) -> None:
    many = raw("many-tools", "--count", str(COUNT), "--page", "500")
    too_many = raw("many-tools", "--count", str(COUNT + 700), "--page", "900")
    for node in node_with(tmp_path_factory, {"many": many, "more": too_many}):
        slowest = 0.0
        with Wire(node) as wire:
            while node.link("many")["state"] == "connecting" or node.link("more")["state"] == "connecting":
                began = time.monotonic()
                wire.modern("tools/call", {"name": "good__echo", "arguments": {"n": 1}})
                slowest = max(slowest, time.monotonic() - began)
            assert slowest < 1.0
            assert node.link("many")["tools"] == COUNT
            assert node.link("more")["tools"] == COUNT
            assert any("700" in one["reason"] for one in node.link("more")["withheld"])
            seen: list[str] = []
            cursor: dict[str, Any] = {}
            while True:
                page = wire.modern("tools/list", cursor).json["result"]
                seen += [tool["name"] for tool in page["tools"]]
                if "nextCursor" not in page:
                    break
                cursor = {"cursor": page["nextCursor"]}
            assert len(seen) == len(set(seen))
            assert sum(name.startswith("many__") for name in seen) == COUNT
            began = time.monotonic()
            assert wire.modern("tools/list").status == 200
            assert time.monotonic() - began < 0.5  # from the cached bytes
            answer = ask(node, call("many__tool_09999", {"path": "x"}))
            assert answer.json["result"]["content"][0]["text"] == "tool_09999"


@pytest.fixture(scope="module")
def flooded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNode]:
    yield from node_with(tmp_path_factory, {name: FLOODS[name] for name in GROUPS[request.param]})


@pytest.mark.parametrize("flooded", GROUPS, indirect=True)
def test_floods_delay_no_list_and_no_call_of_another_server(flooded: RunningNode, tmp_path: Path) -> None:
    segments = {link["segment"] for link in flooded.admin("/admin/links")["links"]} - {"good"}
    for segment in segments:
        wait_for(lambda segment=segment: (link := flooded.link(segment))["pid"] or link["restarts"])
    times: list[float] = []
    quiet: list[float] = []  # of a node without floods, beside them: what a crowded machine does to both is no fault
    with (
        running_node(tmp_path, {"good": {"command": raw("all")}}) as other,
        Wire(flooded) as wire,
        Wire(other) as calm,
    ):
        for number in range(100):
            for client, taken in ((wire, times), (calm, quiet)):
                began = time.monotonic()
                answer = client.modern("tools/call", {"name": "good__echo", "arguments": {"n": number}})
                taken.append(time.monotonic() - began)
                assert answer.json["result"]["structuredContent"] == {"n": number}
        wire.modern("tools/list")  # the first waits for servers that were just begun with, within its bound
        began = time.monotonic()
        listed = wire.modern("tools/list").json["result"]["tools"]
        assert time.monotonic() - began < 5.0
        assert "good__echo" in {tool["name"] for tool in listed}
    assert statistics.median(times) < max(0.3, 5 * statistics.median(quiet)), sorted(times)[-5:]
    assert max(times) < max(1.0, 5 * max(quiet)), sorted(times)[-5:]
    for segment in segments & {"stdout", "line"}:
        link = wait_for(lambda segment=segment: (link := flooded.link(segment))["reason"] and link)
        assert "JSON-RPC" in link["reason"] or "longer than" in link["reason"]
    assert memory(flooded) < 300_000


@pytest.mark.parametrize("flooded", ["messages"], indirect=True)
def test_log_messages_that_no_client_requested_reach_no_client(flooded: RunningNode) -> None:
    session = legacy_session(flooded)
    for segment in ("notices", "old_notices"):
        flooded.wait_link(segment, {"state": "ready"})
    calls = (
        modern("tools/call", {"name": "notices__echo", "arguments": {"a": 1}}),
        legacy(session, "tools/call", {"name": "old_notices__echo", "arguments": {"a": 1}}),
    )
    for data in calls:
        answer = ask(flooded, data, 15)
        assert [event for event in answer.events if "method" in event] == []
        assert answer.message["result"]["structuredContent"] == {"a": 1}


def memory(node: RunningNode) -> int:
    """Resident KiB."""
    with open(f"/proc/{node.process.pid}/status") as status:  # noqa: PTH123
        return int(next(line.split()[1] for line in status if line.startswith("VmRSS")))
