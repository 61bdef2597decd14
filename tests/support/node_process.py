"""A real node as a real process, and the plainest of clients to talk to it.

`running_node` starts `interlock serve` on free ports with a configuration of server tables and gives a RunningNode.
`Wire` sends bytes over one HTTP connection and shows exactly what came back; it contains no code of the product.
"""

import contextlib
import http.client
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tests import preloaded
from tests.support import intervals

START_SECONDS = 20.0
MODERN = "2026-07-28"
LEGACY = "2025-11-25"
SOONER = {  # a node of the tests looks sooner than a user's whether files have changed
    intervals.CONFIGURATION_LOOK_S: 0.2,
    intervals.DRIVERS_LOOK_S: 0.2,
    intervals.LOG_REPEAT_S: 0.0,
}


class RunningNode:
    patience_s = 10.0  # for an answer to an operator

    def __init__(self, process: subprocess.Popen[bytes], status: dict[str, Any], data: Path, config: Path) -> None:
        self.process = process
        self.status_at_start = status
        self.url: str = status["node"]["url"]
        self.operator_url: str = status["node"]["operator_url"]
        where = urlsplit(self.url)
        self.host, self.port = where.hostname or "", where.port or 0
        self.data = data
        self.config = config

    def admin(self, path: str, method: str = "GET", body: Any = None) -> Any:
        """Ask the operator door on its unix socket."""
        return json.loads(self.text(path, method, body))

    def text(self, path: str, method: str = "GET", body: Any = None) -> str:
        with contextlib.closing(_UnixConnection(self.data / "run" / "admin.sock", self.patience_s)) as connection:
            payload = None if body is None else json.dumps(body).encode()
            headers = {"content-type": "application/json"} if payload else {}
            connection.request(method, path, body=payload, headers=headers)
            return connection.getresponse().read().decode()

    def link(self, segment: str) -> dict[str, Any]:
        return self.admin(f"/admin/links/{segment}")

    def wait_link(self, segment: str, wanted: Mapping[str, Any], seconds: float = 20.0) -> dict[str, Any]:
        """Until the link shows these values."""
        return wait_for(
            lambda: (link := self.link(segment)) and all(link.get(k) == v for k, v in wanted.items()) and link, seconds
        )

    def cli(self, *words: str, **options: Any) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "interlock", *words, "--config", str(self.config), "--data", str(self.data)]
        return subprocess.run(command, capture_output=True, text=True, timeout=30, check=False, **options)

    def stop(self) -> int:
        """SIGTERM, and its exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout=20)


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: Path, seconds: float = 10.0) -> None:
        super().__init__("localhost", timeout=seconds)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))


@contextlib.contextmanager
def running_node(
    folder: Path,
    servers: Mapping[str, Mapping[str, Any]],
    extra: str = "",
    env: Mapping[str, str] | None = None,
    announced: bool = True,
    settings: Mapping[str, Any] | None = None,
) -> Iterator[RunningNode]:
    """`servers` is segment -> table of [servers.SEGMENT]; `extra` is TOML that comes before them.

    `settings` are values of the program's modules, see `preloaded.settings`.
    `announced` waits until the node has printed its status; without it, only until its doors are open.
    """
    data = folder / "data"
    config = write_config(folder, servers, extra)
    command = [sys.executable, "-m", "interlock", "serve", "--json", "--config", str(config), "--data", str(data)]
    errors = (folder / "stderr.txt").open("wb")
    environment = {
        "INTERLOCK_PACKAGES": str(folder / "store"),
        **os.environ,
        **preloaded.settings({**SOONER, **(settings or {})}),
        **(env or {}),
    }
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=errors, stdin=subprocess.DEVNULL, env=environment
    )
    try:
        status = _read_status(process, folder) if announced else _ask_status(process, data, folder)
        yield RunningNode(process, status, data, config)
    finally:
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(timeout=15)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        assert process.stdout is not None
        process.stdout.close()
        errors.close()


def write_config(folder: Path, servers: Mapping[str, Mapping[str, Any]], extra: str = "") -> Path:
    workspace = folder / "workspace"
    workspace.mkdir(parents=True, exist_ok=True)
    config = workspace / "interlock.toml"
    listens = "" if "[node]" in extra else '[node]\nlisten = "127.0.0.1:0"\noperator_listen = "127.0.0.1:0"\n'
    # Most tests are about other things than what people have to agree to.
    gate = "" if "[gate]" in extra else '[gate]\nmode = "open"\n'
    tables = "".join(f"[servers.{segment}]\n{_toml(table)}\n" for segment, table in servers.items())
    config.write_text(f"{extra}\n{listens}\n{gate}\n{tables}")
    return config


def _read_status(process: subprocess.Popen[bytes], folder: Path) -> dict[str, Any]:
    assert process.stdout is not None
    read, deadline, text = process.stdout.fileno(), time.monotonic() + START_SECONDS, b""
    while True:
        ready, _, _ = select.select([read], [], [], max(0.0, deadline - time.monotonic()))
        data = os.read(read, 65536) if ready else b""
        text += data
        with contextlib.suppress(ValueError):
            return json.loads(text)
        if not data:
            raise RuntimeError(
                f"the node did not start (exit code {process.poll()}): {text!r} {(folder / 'stderr.txt').read_text()}"
            )


def _ask_status(process: subprocess.Popen[bytes], data: Path, folder: Path) -> dict[str, Any]:
    def ask() -> Any:
        if process.poll() is not None:
            raise RuntimeError(
                f"the node did not start (exit code {process.poll()}): {(folder / 'stderr.txt').read_text()}"
            )
        with (
            contextlib.suppress(OSError, http.client.HTTPException),
            contextlib.closing(_UnixConnection(data / "run" / "admin.sock")) as connection,
        ):
            connection.request("GET", "/admin/status")
            return json.loads(connection.getresponse().read())

    return wait_for(ask, START_SECONDS)


def _toml(table: Mapping[str, Any]) -> str:
    return "".join(f"{key} = {_toml_value(value)}\n" for key, value in table.items())


def _toml_value(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(k)} = {_toml_value(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(_toml_value(one) for one in value) + "]"
    return json.dumps(value, ensure_ascii=False)


def wait_for(check: Any, seconds: float = 10.0) -> Any:
    """Until `check()` is true; gives what it gave. The bound is for a broken product, not for timing."""
    deadline = time.monotonic() + seconds
    while True:
        if got := check():
            return got
        if time.monotonic() > deadline:
            raise AssertionError(f"did not happen within {seconds} s; last: {got!r}")
        time.sleep(0.02)


class Answer:
    def __init__(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.status = status
        self.headers = headers
        self.body = body

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def events(self) -> list[Any]:
        """The messages of an event stream, or the one message of a plain answer."""
        if "text/event-stream" not in self.headers.get("content-type", ""):
            return [self.json]
        return [
            json.loads(line.removeprefix(b"data: ")) for line in self.body.split(b"\n") if line.startswith(b"data: ")
        ]

    @property
    def message(self) -> Any:
        """The answer itself: the last message."""
        return self.events[-1]


# What a client declares to be told all that MCP-AX says of a tool, in either era.
KNOWS_AX = {"extensions": {"dev.interlock/ax": {}}, "experimental": {"dev.interlock/ax": {}}}


class Wire:
    """One client on one keep-alive connection."""

    def __init__(self, node: RunningNode, path: str = "/mcp", token: str | None = None) -> None:
        self.path = path
        self.base = {"content-type": "application/json", "accept": "application/json, text/event-stream"}
        if token is not None:
            self.base["authorization"] = f"Bearer {token}"
        self.connection = http.client.HTTPConnection(node.host, node.port, timeout=30)
        self.session: str | None = None
        self.next_id = 0

    def close(self) -> None:
        self.connection.close()

    def __enter__(self) -> "Wire":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def request(self, method: str, headers: Mapping[str, str] | None = None, body: bytes | None = None) -> Answer:
        self.connection.request(method, self.path, body=body, headers=dict(headers or {}))
        response = self.connection.getresponse()
        return Answer(response.status, {k.lower(): v for k, v in response.getheaders()}, response.read())

    def post(self, body: bytes, headers: Mapping[str, str] | None = None) -> Answer:
        return self.request("POST", {**self.base, **(headers or {})}, body)

    def modern(
        self,
        method: str,
        params: Mapping[str, Any] | None = None,
        *,
        headers: Mapping[str, str] | None = None,
        capabilities: Mapping[str, Any] | None = None,
        meta: Mapping[str, Any] | None = None,
    ) -> Answer:
        """A 2026-07-28 request with the headers it needs."""
        self.next_id += 1
        stamp = {
            "io.modelcontextprotocol/protocolVersion": MODERN,
            "io.modelcontextprotocol/clientCapabilities": dict(capabilities or {}),
            **(meta or {}),
        }
        body = {"jsonrpc": "2.0", "id": self.next_id, "method": method, "params": {**(params or {}), "_meta": stamp}}
        sent = {"mcp-protocol-version": MODERN, "mcp-method": method}
        named = (params or {}).get("name") if method in ("tools/call", "prompts/get") else None
        named = (params or {}).get("uri") if method == "resources/read" else named
        if named is not None:
            sent["mcp-name"] = named
        return self.post(json.dumps(body).encode(), {**sent, **(headers or {})})

    def initialize(self, capabilities: Mapping[str, Any] | None = None, version: str = LEGACY) -> Answer:
        """Open a legacy session."""
        self.next_id += 1
        params = {
            "protocolVersion": version,
            "capabilities": dict(capabilities or {}),
            "clientInfo": {"name": "wire", "version": "1"},
        }
        body = {"jsonrpc": "2.0", "id": self.next_id, "method": "initialize", "params": params}
        answer = self.post(json.dumps(body).encode())
        self.session = answer.headers["mcp-session-id"]
        self.notify("notifications/initialized")
        return answer

    def legacy_headers(self) -> dict[str, str]:
        return {"mcp-session-id": self.session or "", "mcp-protocol-version": LEGACY}

    def legacy(self, method: str, params: Mapping[str, Any] | None = None) -> Answer:
        """A request of the open session."""
        self.next_id += 1
        body = {"jsonrpc": "2.0", "id": self.next_id, "method": method, "params": dict(params or {})}
        return self.post(json.dumps(body).encode(), self.legacy_headers())

    def notify(self, method: str, params: Mapping[str, Any] | None = None) -> Answer:
        body: dict[str, Any] = {"jsonrpc": "2.0", "method": method}
        if params is not None:
            body["params"] = dict(params)
        return self.post(json.dumps(body).encode(), self.legacy_headers())
