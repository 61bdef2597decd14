"""Bad messages a line at a time: on the stdin of `serve --stdio`, and on the socket through which it joins a node."""

import contextlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.fronts.processes.test_public_door_messages import WRONG
from tests.servers.start import raw
from tests.support.node_process import LEGACY, RunningNode, running_node, wait_for
from tests.support.raw_client import META, STAMP, assert_discreet, assert_unharmed, message

LIMIT = 1024 * 1024
GREETING = b"interlock-stdio/1 \n"
HELLO = {"protocolVersion": LEGACY, "capabilities": {}, "clientInfo": {"name": "lines", "version": "1"}}
# A line ends at LF, and what is no line at all is answered with nothing.
LINES = [(name, body, code) for name, body, code in WRONG if b"\n" not in body and body.strip()]


class Lines:
    """A client on a pair of descriptors or a socket."""

    def __init__(self, read: int, write: int) -> None:
        self.read, self.write = os.fdopen(read, "rb", 0), os.fdopen(write, "wb", 0)
        self.buffer = b""

    def send(self, data: bytes) -> "Lines":
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            view = memoryview(data)
            while view:
                view = view[self.write.write(view) :]
        return self

    def line(self) -> Any:
        """The next answer; None when the other side has ended. News of changed lists may come at any time."""
        while (message := self._line()) is not None and "method" in message:
            assert message["method"].startswith("notifications/")
        return message

    def _line(self) -> Any:
        while b"\n" not in self.buffer:
            try:
                data = self.read.read(65536)
            except ConnectionResetError:
                data = b""
            if not data:
                assert not self.buffer, self.buffer[-200:]
                return None
            self.buffer += data
        found, _, self.buffer = self.buffer.partition(b"\n")
        assert_discreet(found)
        return json.loads(found)

    def ask(self, method: str, params: Any = None, request_id: Any = 1) -> Any:
        return self.send(message(method, params, request_id) + b"\n").line()

    def hang_up(self) -> None:
        self.write.close()

    def close(self) -> None:
        self.read.close()
        self.write.close()


@contextlib.contextmanager
def stdio(config: Path, data: Path, *options: str) -> Iterator[tuple[Lines, subprocess.Popen[bytes]]]:
    command = [sys.executable, "-m", "interlock", "serve", "--stdio", "--config", str(config), "--data", str(data)]
    errors = data.parent / f"{data.name}.stderr"
    with errors.open("wb") as stderr:
        process = subprocess.Popen(
            [*command, *options], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr, bufsize=0
        )
        assert process.stdin is not None and process.stdout is not None
        lines = Lines(os.dup(process.stdout.fileno()), os.dup(process.stdin.fileno()))
        process.stdin.close()
        process.stdout.close()
        try:
            yield lines, process
        finally:
            lines.close()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=10)
            if process.returncode is None:
                process.kill()
                process.wait()
    said = errors.read_bytes()
    assert b"Traceback" not in said, said[-2000:].decode()


@contextlib.contextmanager
def bridged(node: RunningNode, greeting: bytes = GREETING) -> Iterator[Lines]:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(10)
        connection.connect(str(node.data / "run" / "stdio.sock"))
        with contextlib.closing(Lines(os.dup(connection.fileno()), os.dup(connection.fileno()))) as lines:
            os.set_blocking(lines.read.fileno(), True)
            yield lines.send(greeting)


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNode]:
    servers = {"good": {"command": raw("all")}}
    with running_node(tmp_path_factory.mktemp("lines"), servers, f"[limits]\nmessage_bytes = {LIMIT}\n") as started:
        yield started
        assert_unharmed(started)


FRONTS = ["stdio", "bridge"]


@pytest.fixture(params=FRONTS)
def lines(request: pytest.FixtureRequest, node: RunningNode, tmp_path: Path) -> Iterator[Lines]:
    if request.param == "bridge":
        with bridged(node) as opened:
            yield opened
        return
    data = node.data if request.param == "bridged process" else tmp_path / "data"
    with stdio(node.config, data) as (opened, process):
        yield opened
        opened.hang_up()
        process.wait(timeout=10)


def test_lines_that_cannot_be_read_are_refused_by_name_and_the_connection_goes_on(lines: Lines) -> None:
    """Before the first request, in a legacy session, and (another test) in the modern era."""
    for greeted in (False, True):
        if greeted:
            assert lines.ask("initialize", HELLO)["result"]["protocolVersion"] == LEGACY
            lines.send(b'{"jsonrpc":"2.0","method":"notifications/initialized"}\n')
        for name, body, code in LINES:
            refused = lines.send(body + b"\n").line()
            assert refused["error"]["code"] == code, (name, greeted)
            assert refused["id"] in (None, 7), (name, greeted)
    assert lines.ask("tools/call", {"name": "good__echo", "arguments": {"a": 1}})["result"]["structuredContent"] == {
        "a": 1
    }
    refused = lines.ask("tools/call", {"name": "no_such_tool"})["error"]
    assert (refused["code"], refused["data"]["reason"]) == (-32601, "tool_not_found")
    assert lines.ask("no/such/method")["error"]["code"] == -32601
    assert lines.ask("server/discover", {"_meta": STAMP})["error"]["code"] in (-32601, -32600)
    assert lines.ask("tools/call", {"name": "good__echo", "arguments": []})["error"]["code"] == -32602


def test_the_modern_era_on_lines_has_its_own_refusals(lines: Lines) -> None:
    assert lines.ask("server/discover", {"_meta": STAMP})["result"]["resultType"] == "complete"
    for name, body, code in LINES:
        assert lines.send(body + b"\n").line()["error"]["code"] == code, name
    cases: list[tuple[str, Any, int]] = [
        ("tools/list", {}, -32602),
        ("tools/list", {"_meta": {META + "protocolVersion": "2026-07-28"}}, -32602),
        ("tools/list", {"_meta": {**STAMP, META + "protocolVersion": "2027-01-01"}}, -32022),
        ("initialize", {**HELLO, "_meta": STAMP}, -32601),
        ("ping", {"_meta": STAMP}, -32601),
        ("logging/setLevel", {"_meta": STAMP, "level": "debug"}, -32601),
        ("resources/subscribe", {"_meta": STAMP, "uri": "raw://text"}, -32601),
        ("tools/call", {"_meta": STAMP, "name": "no_such_tool"}, -32601),
        ("tools/call", {"_meta": STAMP}, -32602),
    ]
    for method, params, code in cases:
        assert lines.ask(method, params)["error"]["code"] == code, (method, params)
    called = lines.ask("tools/call", {"_meta": STAMP, "name": "good__echo", "arguments": {"a": 1}})
    assert called["result"]["structuredContent"] == {"a": 1}


def test_messages_before_the_first_request_decide_nothing(lines: Lines) -> None:
    lines.send(b'{"jsonrpc":"2.0","method":"notifications/initialized"}\n')
    lines.send(b'{"jsonrpc":"2.0","id":1,"result":{}}\n\n   \n\r\n')
    assert lines.ask("tools/list")["error"]["code"] == -32600
    assert lines.ask("initialize", {})["error"]["code"] == -32602
    assert lines.ask("initialize", HELLO)["result"]["protocolVersion"] == LEGACY
    assert lines.ask("initialize", HELLO)["error"]["code"] == -32600
    # An answer nobody asked for has nobody to be told.
    assert lines.send(b'{"jsonrpc":"2.0","id":"il-1","result":{}}\n').ask("ping", None, 5)["id"] == 5


def test_an_id_in_use_is_refused_and_the_first_call_is_not_disturbed(lines: Lines) -> None:
    lines.ask("initialize", HELLO)
    waits = {"name": "good__progress", "arguments": {"steps": 1, "ms": 300}}
    lines.send(message("tools/call", waits, 9) + b"\n" + message("tools/call", {"name": "good__echo"}, 9) + b"\n")
    assert lines.line()["error"]["code"] == -32600
    assert lines.line()["result"]["content"][0]["text"] == "1 steps"


@pytest.mark.parametrize("lines", [*FRONTS, "bridged process"], indirect=True)
def test_lines_may_come_in_any_pieces(lines: Lines) -> None:
    lines.ask("initialize", HELLO)
    data = b"".join(message("ping", None, number) + b"\r\n" for number in range(20))
    for at in range(0, len(data), 7):
        lines.send(data[at : at + 7])
    assert [lines.line()["id"] for _ in range(20)] == list(range(20))


@pytest.mark.parametrize("lines", [*FRONTS, "bridged process"], indirect=True)
def test_a_line_beyond_the_limit_is_refused_by_name(lines: Lines, node: RunningNode) -> None:
    lines.ask("initialize", HELLO)
    large = {"name": "good__echo", "arguments": {"x": "x" * (LIMIT - 400)}}
    assert lines.ask("tools/call", large)["result"]["structuredContent"] == large["arguments"]
    lines.send(message("ping", {"x": "x" * (2 * LIMIT)}, 76) + b"\n" + message("ping", None, 77) + b"\n")
    told = {one["id"]: one for one in (lines.line(), lines.line())}
    assert set(told) == {76, 77}
    refused = told[76]["error"]
    assert (refused["code"], refused["data"]["reason"]) == (-32600, "message_too_large")
    assert refused["data"]["limit_bytes"] == LIMIT
    assert "the operator of this node sets the limit" in refused["data"]["next"]
    assert_unharmed(node)


def test_random_lines_get_refusals_only(lines: Lines) -> None:
    dice = random.Random(7)
    lines.ask("initialize", HELLO)
    for _ in range(100):
        lines.send(b"x" + dice.randbytes(200).replace(b"\n", b"") + b"\n")
    assert {lines.line()["error"]["code"] for _ in range(100)} == {-32700}
    assert lines.ask("ping")["result"] == {}


# The socket itself


@pytest.mark.parametrize(
    "greeting",
    [b"GET / HTTP/1.1\r\n\r\n", b"\n", b"interlock-stdio/2 \n", b"x" * 10_000, b"\xff\x00\n", message("ping") + b"\n"],
    ids=lambda greeting: repr(greeting[:20]),
)
def test_the_socket_is_closed_to_what_does_not_greet_it(node: RunningNode, greeting: bytes) -> None:
    with bridged(node, greeting) as lines:
        assert lines.line() is None
    assert_unharmed(node)


def test_a_server_nobody_has_leads_to_an_empty_or_refused_session(node: RunningNode) -> None:
    with bridged(node, b"interlock-stdio/1 nobody\n") as lines:
        opened = lines.ask("initialize", HELLO)
        if opened is not None:
            listed = lines.ask("tools/list")
            assert "error" in listed or listed["result"]["tools"] == []
            assert lines.ask("tools/call", {"name": "good__echo"})["error"]["code"] == -32601
            assert lines.ask("resources/read", {"uri": "raw://text"})["error"]["code"] == -32002


def test_clients_of_the_socket_that_say_nothing_or_do_not_read_hold_nobody(node: RunningNode) -> None:
    with contextlib.ExitStack() as clients:
        for _ in range(50):
            clients.enter_context(bridged(node, b""))
        deaf = clients.enter_context(bridged(node))
        deaf.ask("initialize", HELLO)
        os.set_blocking(deaf.write.fileno(), False)
        with contextlib.suppress(BlockingIOError, OSError, TypeError):
            for number in range(5000):
                deaf.write.write(message("tools/list", None, number) + b"\n")
        assert_unharmed(node)
    wait_for(lambda: node.admin("/admin/status")["clients"]["sessions"] == 0)


def test_a_bridged_client_that_goes_cancels_its_call(node: RunningNode) -> None:
    with bridged(node) as lines:
        lines.ask("initialize", HELLO)
        lines.send(message("tools/call", {"name": "good__wait"}, 3) + b"\n")
        wait_for(lambda: node.admin("/admin/status")["calls"]["in_flight"] == 1)
    wait_for(lambda: node.admin("/admin/status")["calls"]["in_flight"] == 0)


def test_only_its_owner_may_open_the_sockets(node: RunningNode) -> None:
    for name in ("admin.sock", "stdio.sock"):
        assert (node.data / "run" / name).stat().st_mode & 0o777 == 0o600
    for folder in (node.data, node.data / "run"):
        assert folder.stat().st_mode & 0o077 == 0


def test_stdio_ends_with_its_client_and_takes_its_servers_along(node: RunningNode, tmp_path: Path) -> None:
    with stdio(node.config, tmp_path / "data") as (lines, process):
        lines.ask("initialize", HELLO)
        servers = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        assert servers
        lines.hang_up()
        assert process.wait(timeout=10) == 0
        wait_for(lambda: not any(Path(f"/proc/{pid}").exists() for pid in servers))


def test_a_bridge_whose_node_goes_says_so_and_ends(tmp_path: Path) -> None:
    with running_node(tmp_path / "n", {"good": {"command": raw("all")}}) as node:
        with stdio(node.config, node.data) as (lines, process):
            assert "result" in lines.ask("initialize", HELLO)
            node.process.send_signal(signal.SIGKILL)
            assert process.wait(timeout=10) == 1
        said = (node.data.parent / f"{node.data.name}.stderr").read_text()
        assert "node" in said and "stopped" in said
