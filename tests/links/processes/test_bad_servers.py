"""One bad server harms nobody: what it does is seen on its own link, and its callers get an answer in time."""

import contextlib
import json
import os
import re
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.servers.start import raw
from tests.support.node_process import RunningNode, Wire, running_node, wait_for
from tests.support.raw_client import RawConnection, ask, assert_unharmed, call, legacy, legacy_session, modern

HUGE, LIMIT = 700_000, 1_000_000
SECONDS = 0.5  # what a realtime tool may take (MCP-AX 7.3)
REALTIME = '[[tool]]\nmatch = "good.*"\n[[tool]]\nmatch = "*"\nlatency_class = "realtime"\n'
BAD = {
    "hang": raw("hang"),
    "hang_list": raw("hang-list"),
    "crash_loop": raw("crash-loop"),
    "not_there": ["no-such-program-anywhere"],
    "not_a_server": [sys.executable, "-c", "print('hello')"],
    "dies_of_discover": raw("dies-of-discover", "--era", "legacy"),
    "deaf_to_discover": raw("deaf-to-discover", "--era", "legacy"),
    "crash_on_call": raw("crash-on-call"),
    "never": raw("never"),
    "wrong_id": raw("wrong-id"),
    "text_id": raw("text-id"),
    "twice": raw("twice"),
    "not_an_answer": raw("not-an-answer"),
    "invalid_utf8": raw("invalid-utf8"),
    "deep_nesting": raw("deep-nesting"),
    "huge": raw("huge-answer", "--bytes", str(HUGE)),
    "too_huge": raw("huge-answer", "--bytes", str(2 * LIMIT)),
    "banner": raw("prints-banner"),
    "garbage": raw("garbage-lines"),
    "slowly": raw("slow", "--ms", "100"),
    "waits": raw("echo,cancellations"),
    "old_waits": raw("echo,cancellations", "--era", "legacy"),
}


@pytest.fixture(scope="module")
def zoo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNode]:
    """A node with one good server and every kind of bad one. Given as soon as its doors are open."""
    servers = {name: {"command": command} for name, command in {"good": raw("all"), **BAD}.items()}
    extra = f"[mcp]\nlist_wait_s = 1\n[limits]\nmessage_bytes = {LIMIT}\n{REALTIME}"
    with running_node(tmp_path_factory.mktemp("zoo"), servers, extra, announced=False) as node:
        yield node
        node.wait_link("good", {"state": "ready"})
        assert_unharmed(node)


pytestmark = pytest.mark.usefixtures("idle_clients")


def echo(segment: str, arguments: dict[str, Any] | None = None) -> bytes:
    return call(f"{segment}__echo", arguments or {"a": 1})


# The others


def test_the_good_server_is_listed_and_called_while_others_hang_and_crash(zoo: RunningNode) -> None:
    """The first test on this node: it is only just up."""
    listed = wait_for(lambda: names(zoo) & {"good__echo"} and names(zoo), 5)
    assert "good__echo" in listed
    assert zoo.link("hang")["state"] == "connecting"
    for number in range(20):
        began = time.monotonic()
        assert ask(zoo, echo("good", {"n": number})).json["result"]["structuredContent"] == {"n": number}
        assert time.monotonic() - began < 1.0
    began = time.monotonic()
    assert "good__echo" in names(zoo)
    session = legacy_session(zoo)
    assert "good__echo" in {tool["name"] for tool in ask(zoo, legacy(session, "tools/list")).json["result"]["tools"]}
    assert time.monotonic() - began < 5.0  # MCP-AX 5.1


def names(node: RunningNode) -> set[str]:
    return {tool["name"] for tool in ask(node, modern("tools/list")).json["result"]["tools"]}


def test_a_node_says_that_it_is_up_though_a_server_hangs(tmp_path: Path) -> None:
    began = time.monotonic()
    with running_node(tmp_path / "n", {"good": {"command": raw("echo")}, "hang": {"command": raw("hang")}}) as node:
        assert time.monotonic() - began < 5.0
        states = {link["segment"]: link["state"] for link in node.status_at_start["links"]}
        assert states == {"good": "ready", "hang": "connecting"}


def test_servers_that_end_while_they_are_started_are_all_seen_to(tmp_path: Path) -> None:
    quick = {f"q{number}": {"command": [sys.executable, "-S", "-c", "print('hello')"]} for number in range(12)}
    with running_node(tmp_path / "n", {"good": {"command": raw("echo")}, **quick}) as node:
        assert_unharmed(node)
        for segment in quick:
            link = wait_for(lambda segment=segment: _ended(node.link(segment)), 20)
            assert link["tools"] == 0


def _ended(link: dict[str, Any]) -> dict[str, Any] | None:
    """A busy machine may take longer to start a program than the node waits; then it is tried again."""
    return link if link["restarts"] and link["reason"] == "exited with code 0" else None


def test_the_limit_of_one_server_refuses_no_call_at_another(tmp_path: Path) -> None:
    servers = {"good": {"command": raw("echo")}, "never": {"command": raw("never")}}
    with running_node(tmp_path / "n", servers, "[limits]\ncalls_in_flight = 4\n") as node:
        with contextlib.ExitStack() as callers:
            for _ in range(4):
                callers.enter_context(RawConnection(node)).send(echo("never"))
            wait_for(lambda: node.admin("/admin/status")["calls"]["in_flight"] == 4, 5)
            assert_unharmed(node)
            callers.enter_context(RawConnection(node)).send(echo("never"))  # waits for a place
            wait_for(lambda: node.admin("/admin/status")["calls"]["in_flight"] == 5, 5)
            assert_unharmed(node)
        wait_for(lambda: node.admin("/admin/status")["calls"]["in_flight"] == 0)


# State and reason


@pytest.mark.parametrize(
    ("segment", "states", "reason"),
    [
        ("hang", {"connecting", "failed"}, "no answer"),
        ("hang_list", {"slow"}, "tools/list was not answered within 5 s"),
        ("crash_loop", {"failed"}, "exited with code 3"),
        ("not_there", {"failed"}, "no-such-program-anywhere"),
        ("not_a_server", {"failed"}, "exited with code 0|closed"),
        ("good", {"ready"}, None),
        ("never", {"ready"}, None),
        ("banner", {"ready"}, None),
        ("slowly", {"ready"}, None),
        ("deaf_to_discover", {"ready"}, None),
        ("dies_of_discover", {"ready"}, None),
    ],
)
def test_the_state_of_a_server_and_its_reason_can_be_seen(
    zoo: RunningNode, segment: str, states: set[str], reason: str | None
) -> None:
    def stands_so() -> bool:
        link = zoo.link(segment)
        told = link["reason"] is None if reason is None else re.search(reason, link["reason"] or "")
        return link["state"] in states and bool(told)

    wait_for(stands_so, 12)
    shown = zoo.link(segment)
    assert "Traceback" not in json.dumps(shown)
    assert shown["since"].endswith("Z")


def test_the_links_of_a_node_are_shown_together_and_in_the_command_line(zoo: RunningNode) -> None:
    zoo.wait_link("hang_list", {"state": "slow"})
    links = {link["segment"]: link for link in zoo.admin("/admin/links")["links"]}
    assert set(links) == {"good", *BAD}
    shown = zoo.cli("links", "list", "--json")
    assert shown.returncode == 0, shown.stderr
    listed = {link["segment"]: link["state"] for link in json.loads(shown.stdout)["links"]}
    assert set(listed) == set(links)
    assert listed["hang_list"] == "slow"


def test_stderr_of_a_server_is_kept_after_it_ended(zoo: RunningNode) -> None:
    wait_for(lambda: zoo.link("crash_loop")["restarts"] >= 2)
    kept = [line["text"] for line in zoo.admin("/admin/links/crash_loop/logs")["lines"]]
    assert kept.count("fatal: cannot find the database") >= 2
    shown = zoo.cli("links", "logs", "crash_loop")
    assert shown.returncode == 0
    assert "fatal: cannot find the database" in shown.stdout


# Calls


@pytest.mark.parametrize("segment", ["never", "wrong_id", "text_id", "not_an_answer", "invalid_utf8", "deep_nesting"])
def test_a_call_that_gets_no_usable_answer_ends_in_time_and_by_name(zoo: RunningNode, segment: str) -> None:
    zoo.wait_link(segment, {"state": "ready"})
    before = zoo.link(segment)
    began = time.monotonic()
    answer = ask(zoo, echo(segment))
    assert time.monotonic() - began < SECONDS + 1.0
    assert answer.status == 200
    error = answer.json["error"]
    if error["code"] == 32130:
        assert error["message"] == "call_timeout"
        assert error["data"]["timeout_ms"] == SECONDS * 1000
        assert error["data"]["latency_class"] == "realtime"
        assert error["data"]["outcome"] == "unknown"
    else:  # an answer that is there but cannot be used need not be waited for
        assert error["code"] == -32603 and segment in ("not_an_answer", "invalid_utf8", "deep_nesting")
        assert error["data"]["reason"] == "malformed_answer"
    after = zoo.link(segment)
    assert (after["state"], after["pid"], after["restarts"]) == ("ready", before["pid"], before["restarts"])
    assert after["in_flight"] <= before["in_flight"]
    assert after["errors"] == before["errors"] + 1


@pytest.mark.parametrize("segment", ["banner", "garbage", "slowly", "deaf_to_discover"])
def test_noise_and_slowness_around_an_answer_do_not_spoil_it(zoo: RunningNode, segment: str) -> None:
    zoo.wait_link(segment, {"state": "ready"})
    session = legacy_session(zoo)
    for number in range(5):
        assert ask(zoo, echo(segment, {"n": number})).message["result"]["structuredContent"] == {"n": number}
        params = {"name": f"{segment}__echo", "arguments": {"m": number}}
        answer = ask(zoo, legacy(session, "tools/call", params))
        assert answer.message["result"]["structuredContent"] == {"m": number}


def test_a_second_answer_belongs_to_no_call(zoo: RunningNode) -> None:
    zoo.wait_link("twice", {"state": "ready"})
    with Wire(zoo) as one, Wire(zoo) as other:
        for number in range(30):
            for wire in (one, other):
                answer = wire.modern("tools/call", {"name": "twice__echo", "arguments": {"n": number}})
                assert answer.json["result"]["structuredContent"] == {"n": number}


def test_a_huge_answer_arrives_whole(zoo: RunningNode) -> None:
    zoo.wait_link("huge", {"state": "ready"})
    answer = ask(zoo, echo("huge"))
    assert answer.json["result"]["structuredContent"] == {"a": "x" * HUGE}


def test_an_answer_beyond_the_limit_costs_its_own_call_only(zoo: RunningNode) -> None:
    zoo.wait_link("too_huge", {"state": "ready"})
    for _ in range(2):
        error = ask(zoo, echo("too_huge")).json["error"]
        assert (error["code"], error["message"]) == (32132, "result_too_large")
        assert (error["data"]["limit_bytes"], error["data"]["outcome"]) == (LIMIT, "unknown")
    assert (zoo.link("too_huge")["state"], zoo.link("too_huge")["restarts"]) == ("ready", 0)
    assert_unharmed(zoo)


def test_a_call_whose_server_dies_fails_with_an_unknown_outcome(zoo: RunningNode) -> None:
    zoo.wait_link("crash_on_call", {"state": "ready"})
    answer = ask(zoo, echo("crash_on_call"))
    assert answer.status == 200
    error = answer.json["error"]
    assert (error["code"], error["message"]) == (32002, "tool_degraded")
    assert error["data"]["reason"] == "subserver_unreachable"
    assert error["data"]["outcome"] == "unknown"
    assert error["data"]["retry_after_ms"] > 0
    zoo.wait_link("crash_on_call", {"state": "ready"})
    params = {"name": "crash_on_call__echo", "arguments": {}}
    error = ask(zoo, legacy(legacy_session(zoo), "tools/call", params)).json["error"]
    assert (error["code"], error["message"], error["data"]["outcome"]) == (-32002, "tool_degraded", "unknown")
    assert "crash_on_call__echo" in names(zoo)  # it stays listed (MCP-AX 13.2)
    assert "fatal: crashed in a call" in [
        line["text"] for line in zoo.admin("/admin/links/crash_on_call/logs")["lines"]
    ]


@pytest.mark.parametrize("segment", ["waits", "old_waits"])
def test_a_call_that_takes_too_long_is_cancelled_at_its_server(zoo: RunningNode, segment: str) -> None:
    zoo.wait_link(segment, {"state": "ready"})
    idle, before = ids(zoo, f"{segment}__waiting"), ids(zoo, f"{segment}__cancelled")
    session = legacy_session(zoo)
    params = {"name": f"{segment}__wait", "arguments": {}}
    for data in (modern("tools/call", params), legacy(session, "tools/call", params)):
        assert ask(zoo, data).json["error"]["code"] == 32130
    wait_for(lambda: len(ids(zoo, f"{segment}__cancelled")) == len(before) + 2)
    assert ids(zoo, f"{segment}__waiting") == idle


def ids(node: RunningNode, tool: str) -> list[Any]:
    return ask(node, call(tool)).json["result"]["structuredContent"]["ids"]


# Coming back


def test_a_call_after_the_child_was_killed_starts_it_again(zoo: RunningNode) -> None:
    first = zoo.wait_link("waits", {"state": "ready"})["pid"]
    os.kill(first, signal.SIGKILL)
    wait_for(lambda: zoo.link("waits")["pid"] != first)
    answer = ask(zoo, echo("waits"))
    assert answer.json["result"]["structuredContent"] == {"a": 1}, answer.body
    second = zoo.link("waits")
    assert second["pid"] not in (None, first)
    assert second["restarts"] >= 1


def test_a_link_can_be_restarted_by_the_operator(zoo: RunningNode) -> None:
    first = zoo.wait_link("slowly", {"state": "ready"})["pid"]
    shown = zoo.cli("links", "restart", "slowly")
    assert shown.returncode == 0, shown.stderr
    wait_for(lambda: zoo.link("slowly")["pid"] not in (None, first))
    zoo.wait_link("slowly", {"state": "ready"})
    assert ask(zoo, echo("slowly")).json["result"]["structuredContent"] == {"a": 1}


def test_no_child_is_left_as_a_zombie(zoo: RunningNode) -> None:
    wait_for(lambda: zoo.link("crash_loop")["restarts"] >= 3)
    node = zoo.process.pid

    def zombies() -> list[str]:
        stats = [path.read_text() for path in Path("/proc").glob("[0-9]*/stat") if path.exists()]
        fields = [text.rpartition(")")[2].split() for text in stats]
        return [one for one in fields if one[1] == str(node) and one[0] == "Z"]

    wait_for(lambda: not zombies(), 5)
