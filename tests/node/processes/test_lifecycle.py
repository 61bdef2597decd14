"""A node's end and return: what is under way is answered, children go with it, what it promised to keep is kept."""

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests import preloaded
from tests.servers.start import raw
from tests.support import intervals
from tests.support.node_process import RunningNode, running_node, wait_for
from tests.support.raw_client import (
    RawConnection,
    ask,
    assert_unharmed,
    call,
    legacy,
    legacy_session,
    message,
    modern,
    request,
)

MS = 700
SLOW = {"slow": {"command": raw("echo,slow-calls", "--ms", str(MS))}, "good": {"command": raw("all")}}
HELLO = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "l", "version": "1"}}


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def serve(node: RunningNode, *options: str, data: Path | None = None) -> subprocess.CompletedProcess[str]:
    """A second `interlock serve` with the same configuration, which is expected to refuse."""
    command = [
        sys.executable,
        "-m",
        "interlock",
        "serve",
        "--config",
        str(node.config),
        "--data",
        str(data or node.data),
    ]
    return subprocess.run([*command, *options], capture_output=True, text=True, timeout=20, check=False)


@contextlib.contextmanager
def with_children(folder: Path) -> Iterator[tuple[RunningNode, list[int]]]:
    servers = {
        "good": {"command": raw("all")},
        "hang": {"command": raw("hang")},
        "stubborn": {"command": raw("echo,stubborn")},
        "parent": {"command": raw("echo,grandchild")},
        "flood": {"command": raw("flood-stderr")},
    }
    with running_node(folder, servers, announced=False) as node:
        for segment in ("good", "stubborn", "parent", "flood"):
            node.wait_link(segment, {"state": "ready"})
        pids = [link["pid"] for link in node.admin("/admin/links")["links"]]
        lines = [line["text"] for line in node.admin("/admin/links/parent/logs")["lines"]]
        pids += [int(line.split()[1]) for line in lines if line.startswith("grandchild")]
        assert len(pids) == len(servers) + 1 and all(alive(pid) for pid in pids)
        yield node, pids


class Leaving:
    """A node that was told to end while a call was under way that never ends and a child that does not want to."""

    def __init__(self, node: RunningNode, pids: list[int], rude: RawConnection) -> None:
        self.node, self.pids, self.rude = node, pids, rude
        self.seconds: float | None = None
        rude.send(call("good__wait"))
        wait_for(lambda: node.admin("/admin/status")["calls"]["in_flight"] == 1)
        self.began = time.monotonic()
        node.process.send_signal(signal.SIGTERM)
        self.thread = threading.Thread(target=self._wait)
        self.thread.start()

    def _wait(self) -> None:
        self.node.process.wait(timeout=40)
        self.seconds = time.monotonic() - self.began


@pytest.fixture(scope="module", autouse=True)
def leaving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Leaving]:
    """Begun before the first test of this file, because it may take a while; judged in the last."""
    with with_children(tmp_path_factory.mktemp("leaving")) as (node, pids), RawConnection(node, 30.0) as rude:
        left = Leaving(node, pids, rude)
        yield left
        left.thread.join()


# Draining


def test_sigterm_answers_what_is_under_way_ends_streams_and_takes_no_new_connection(tmp_path: Path) -> None:
    with running_node(tmp_path / "n", SLOW) as node, contextlib.ExitStack() as clients:
        session = legacy_session(node)
        slow = {"name": "slow__echo", "arguments": {"a": 1}}
        under_way = {
            "modern": modern("tools/call", slow),
            "legacy": legacy(session, "tools/call", slow),
            "pipelined": modern("tools/call", slow) + modern("tools/call", slow, request_id=2),
        }
        streams = {
            "listen": modern("subscriptions/listen", {"notifications": {"toolsListChanged": True}}, request_id="sub"),
            "legacy": request("GET", "/mcp", {"accept": "text/event-stream", "mcp-session-id": session}),
            "sse": request("GET", "/sse", {"accept": "text/event-stream"}),
        }
        open_streams = {name: clients.enter_context(RawConnection(node)).send(data) for name, data in streams.items()}
        for rude in open_streams.values():
            assert rude.stream_head().headers["content-type"] == "text/event-stream"
        calls = {name: clients.enter_context(RawConnection(node)).send(data) for name, data in under_way.items()}
        idle = clients.enter_context(RawConnection(node))
        half = clients.enter_context(RawConnection(node)).send(call("good__echo")[:60])
        wait_for(lambda: node.admin("/admin/status")["calls"]["in_flight"] >= len(calls))
        node.process.send_signal(signal.SIGTERM)
        wait_for(lambda: refused(node), 5)
        assert node.process.poll() is None  # the calls are still under way
        for name, rude in calls.items():
            assert rude.answer().json["result"]["structuredContent"] == {"a": 1}, name
        events = []
        while (event := open_streams["listen"].event()) is not None:
            events.append(event)
        assert events[-1]["id"] == "sub" and events[-1]["result"]["resultType"] == "complete"
        for name in ("legacy", "sse"):
            while open_streams[name].event() is not None:
                pass
        idle.assert_closed()
        half.assert_closed()
        assert node.process.wait(timeout=10) == 0
        assert not list((node.data / "run").iterdir())


def refused(node: RunningNode) -> bool:
    try:
        with socket.create_connection((node.host, node.port), timeout=1):
            return False
    except (ConnectionRefusedError, ConnectionResetError):  # reset: it came while the socket was being closed
        return True


def test_a_call_on_the_oldest_transport_is_answered_before_its_stream_ends(tmp_path: Path) -> None:
    with running_node(tmp_path / "n", SLOW) as node, RawConnection(node) as stream:
        stream.send(request("GET", "/sse", {"accept": "text/event-stream"})).stream_head()
        endpoint = stream.event()
        for number, (method, params) in enumerate(
            (("initialize", HELLO), ("tools/call", {"name": "slow__echo", "arguments": {"a": 1}}))
        ):
            body = message(method, params, number)
            assert ask(node, request("POST", endpoint, {"content-type": "application/json"}, body)).status == 202
        assert stream.event()["id"] == 0
        wait_for(lambda: node.admin("/admin/status")["calls"]["in_flight"] >= 1)
        node.process.send_signal(signal.SIGTERM)
        answer = stream.event()
        assert answer is not None, "the stream ended before the answer"
        assert answer["result"]["structuredContent"] == {"a": 1}
        assert node.process.wait(timeout=10) == 0


@pytest.mark.parametrize("bridged", [False, True], ids=["stdio", "bridge"])
def test_a_call_on_stdio_is_answered_before_the_node_ends(tmp_path: Path, bridged: bool) -> None:
    with running_node(tmp_path / "n", SLOW) as node:
        data = node.data if bridged else tmp_path / "own"
        command = [
            sys.executable,
            "-m",
            "interlock",
            "serve",
            "--stdio",
            "--config",
            str(node.config),
            "--data",
            str(data),
        ]
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        ) as client:
            assert client.stdin is not None and client.stdout is not None
            client.stdin.write(message("initialize", HELLO, 1) + b"\n")
            client.stdin.flush()
            assert b"protocolVersion" in client.stdout.readline()
            client.stdin.write(message("tools/call", {"name": "slow__echo", "arguments": {"a": 1}}, 2) + b"\n")
            client.stdin.write(message("ping", None, 3) + b"\n")
            client.stdin.flush()
            while b'"id":3' not in client.stdout.readline():
                pass
            if bridged:
                wait_for(lambda: node.admin("/admin/status")["calls"]["in_flight"] >= 1)
            (node.process if bridged else client).send_signal(signal.SIGTERM)
            rest = client.stdout.read()
            client.wait(timeout=10)
        answers = [json.loads(line) for line in rest.splitlines()]
        assert [one["result"]["structuredContent"] for one in answers if one.get("id") == 2] == [{"a": 1}], rest


# Children


def test_children_and_grandchildren_end_when_the_node_is_killed(tmp_path: Path) -> None:
    with with_children(tmp_path / "n") as (node, pids):
        node.process.send_signal(signal.SIGKILL)
        node.process.wait(timeout=5)
        wait_for(lambda: not [pid for pid in pids if alive(pid)], 5)


# Starting


def test_a_port_in_use_is_reported(tmp_path: Path) -> None:
    sooner = {**os.environ, **preloaded.settings({intervals.HOLDER_ANSWER_S: 0.1})}  # what holds it never answers
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        for door, other in (("listen", "operator_listen"), ("operator_listen", "listen")):
            folder = tmp_path / door
            folder.mkdir()
            config = folder / "interlock.toml"
            config.write_text(f'[node]\n{door} = "127.0.0.1:{port}"\n{other} = "127.0.0.1:0"\n')
            command = [
                sys.executable,
                "-m",
                "interlock",
                "serve",
                "--config",
                str(config),
                "--data",
                str(tmp_path / "d"),
            ]
            refused = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False, env=sooner)
            assert refused.returncode == 1
            assert f"another program listens on 127.0.0.1:{port}\n" in refused.stderr
            assert f"INTERLOCK_NODE__{other.upper()}=127.0.0.1:0 " in refused.stderr  # what to do next
            beside = re.search(rf"INTERLOCK_NODE__{door.upper()}=127\.0\.0\.1:(\d+) ", refused.stderr)
            assert beside is not None and int(beside[1]) > port
            assert "Traceback" not in refused.stderr
            assert not (tmp_path / "d" / "run" / "admin.sock").exists()


def test_a_second_node_on_the_same_folder_is_refused_and_the_first_undisturbed(tmp_path: Path) -> None:
    with running_node(tmp_path / "n", {"good": {"command": raw("all")}}) as node:
        refused = serve(node)
        assert refused.returncode == 1
        assert "already running" in refused.stderr
        assert "Traceback" not in refused.stderr
        assert_unharmed(node)
        assert node.link("good")["state"] == "ready"  # its sockets are still its own
        assert node.cli("status").returncode == 0


def test_two_desktop_clients_share_a_folder_without_harm(tmp_path: Path) -> None:
    """Each starts `serve --stdio` on the same data folder at the same time: both are served, the record is whole."""
    workspace = tmp_path / "w"
    workspace.mkdir()
    config, data = workspace / "interlock.toml", tmp_path / "data"
    config.write_text(f"[servers.good]\ncommand = {json.dumps(raw('all'))}\n")
    command = [sys.executable, "-m", "interlock", "serve", "--stdio", "--config", str(config), "--data", str(data)]
    answers: dict[int, list[Any]] = {}

    def client(number: int) -> None:
        lines = [message("initialize", HELLO, 0)]
        lines += [message("tools/call", {"name": "good__echo", "arguments": {"n": n}}, n) for n in range(1, 21)]
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        ) as process:
            assert process.stdin is not None and process.stdout is not None
            got = answers.setdefault(number, [])
            for line in lines:
                process.stdin.write(line + b"\n")
                process.stdin.flush()
                while (answer := json.loads(process.stdout.readline() or b"{}")) and "method" in answer:
                    pass
                got.append(answer)
            process.stdin.close()
            process.wait(timeout=15)

    threads = [threading.Thread(target=client, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=30)
    for number in range(2):
        assert [answer.get("id") for answer in answers[number]] == list(range(21)), answers[number][-1]
        assert all("result" in answer for answer in answers[number])
    words = [
        sys.executable,
        "-m",
        "interlock",
        "audit",
        "verify",
        "--json",
        "--config",
        str(config),
        "--data",
        str(data),
    ]
    verified = subprocess.run(words, capture_output=True, text=True, timeout=20, check=False)
    assert verified.returncode == 0, verified.stdout + verified.stderr
    assert json.loads(verified.stdout)["records"] == 40


def test_a_restart_keeps_tokens_and_eras(tmp_path: Path) -> None:
    servers = {
        "good": {"command": raw("all")},
        "deaf": {"command": raw("echo,recorder,deaf-to-discover", "--era", "legacy")},
    }
    with running_node(tmp_path / "n", servers) as node:
        node.wait_link("deaf", {"state": "ready"})
        token = node.admin("/admin/tokens", "POST", {"name": "kept", "for": "client"})["token"]
        gone = node.admin("/admin/tokens", "POST", {"name": "gone", "for": "client"})["token"]
        node.admin("/admin/tokens/gone", "DELETE")
        ask(node, call("good__echo"))
        assert node.stop() == 0
    began = time.monotonic()
    with running_node(tmp_path / "n", servers) as node:
        node.wait_link("deaf", {"state": "ready", "era": "legacy"})
        assert time.monotonic() - began < 3.0  # a server not known to be deaf is given that long
        assert ask(node, call("good__echo", authorization=f"Bearer {token}")).status == 200
        assert ask(node, call("good__echo", authorization=f"Bearer {gone}")).status == 401
        records = node.admin("/admin/audit")["records"]
        assert [record["seq"] for record in records] == list(range(1, len(records) + 1))


def test_a_node_starts_again_after_it_was_killed(tmp_path: Path) -> None:
    with running_node(tmp_path / "n", {"good": {"command": raw("all")}}) as node:
        token = node.admin("/admin/tokens", "POST", {"name": "kept", "for": "client"})["token"]
        node.process.kill()
        node.process.wait()
        assert (node.data / "run" / "admin.sock").exists()  # nobody cleaned up
    with running_node(tmp_path / "n", {"good": {"command": raw("all")}}) as node:
        assert ask(node, call("good__echo", authorization=f"Bearer {token}")).status == 200
        assert_unharmed(node)


@pytest.mark.parametrize("name", ["store.db", "audit"])
def test_a_damaged_store_is_refused_in_words(tmp_path: Path, name: str) -> None:
    with running_node(tmp_path / "n", {"good": {"command": raw("all")}}) as node:
        ask(node, call("good__echo"))
        node.stop()
        damaged = [node.data / name] if name.endswith(".db") else list((node.data / name).rglob("*"))
        for path in damaged:
            if path.is_file():
                path.write_bytes(b"this is no database" * 1000)
        refused = serve(node)
        assert refused.returncode == 1, refused.stderr
        assert "Traceback" not in refused.stderr and refused.stderr.strip()


def test_a_data_folder_whose_path_is_too_long_for_a_socket_is_reported(tmp_path: Path) -> None:
    config = tmp_path / "interlock.toml"
    config.write_text('[node]\nlisten = "127.0.0.1:0"\noperator_listen = "127.0.0.1:0"\n')
    data = tmp_path / ("d" * 120)
    command = [sys.executable, "-m", "interlock", "serve", "--config", str(config), "--data", str(data)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        try:
            _, said = process.communicate(timeout=5)
        except subprocess.TimeoutExpired:  # or it found another way
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=10)
            return
        assert process.returncode == 1
        assert b"path" in said and b"Traceback" not in said


def test_signals_end_the_node_however_often_and_early_they_come(tmp_path: Path) -> None:
    with running_node(tmp_path / "n", SLOW) as node:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGTERM, signal.SIGINT):
            with contextlib.suppress(ProcessLookupError):
                os.kill(node.process.pid, number)
        assert node.process.wait(timeout=10) == 0
        log = (node.data.parent / "stderr.txt").read_text()
        assert "Traceback" not in log, log


def test_a_call_and_a_child_that_never_end_do_not_hold_the_node_for_ever(leaving: Leaving) -> None:
    leaving.thread.join(timeout=30)
    assert leaving.seconds is not None and leaving.seconds < 20.0
    assert leaving.node.process.returncode == 0
    answer = leaving.rude.response()
    assert answer is None or answer.json["error"]["message"] == "tool_degraded"
    assert not [pid for pid in leaving.pids if alive(pid)]
    log = (leaving.node.data.parent / "stderr.txt").read_text()
    assert "Traceback" not in log, log
