"""A real node with one of everything that an operator can look at, and its endpoint over admin.sock.

Below it: a server, a server that fails, a subserver, a child that never registers, drivers that are ready, untrusted
and unreadable; above it a parent that is not there.
"""

import contextlib
import http.client
import json
import socket
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.cli.program import Interlock
from tests.drivers.driver_files import contract, driver, text
from tests.preloaded import settings
from tests.support import intervals

ROOT = Path(__file__).resolve().parents[2]
DRIVEN = ROOT / "tests" / "servers" / "driven.py"
GREENHOUSE = ROOT / "examples" / "tree" / "greenhouse.py"
PATIENCE_S = 60.0  # of a busy machine
ARGUMENTS = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}

_LEAF = """
from interlock.sdk.subserver import Subserver

leaf = Subserver("leaf")


@leaf.tool(mutable=False)
def look(bench: int) -> float:
    "How warm a bench is."
    return 20.5 + bench


@leaf.tool()
def tidy() -> str:
    "Nothing is said about what it does."
    return "tidy"


leaf.run(stdio=True)
"""
_CONFIGURATION = """
[node]
listen = "127.0.0.1:0"
operator_listen = "127.0.0.1:0"
operator_url = "http://localhost:7412"

[gate]
mode = "gated"

[mcp]
list_wait_s = 1

[drivers]
sandbox = {{ ready-mcp = "off", new-mcp = "off" }}

[[room]]
topic = "yard"

[servers.greenhouse]
command = ["{python}", "{greenhouse}"]

[servers.gone]
command = ["{python}", "-c", "raise SystemExit('no')"]

[[access]]
who = ["local"]
scope = "admin"
budget = {{ max_calls_per_minute = 600 }}

[[ax.parents]]
url = "ws://127.0.0.1:9/ax"
segment = "us"

[[ax.children]]
segment = "leaf"
command = ["{python}", "leaf.py"]

[[ax.children]]
segment = "mute"
command = ["{python}", "-c", "import time; time.sleep(3600)"]
"""


class Reply:
    def __init__(self, status: int, content_type: str, raw: bytes) -> None:
        self.status, self.content_type, self.raw = status, content_type, raw

    @property
    def json(self) -> Any:
        return json.loads(self.raw)


class OperatorTree:
    """The folder of a node, and requests to it."""

    def __init__(self, interlock: Interlock, anchors: str = "") -> None:
        self.interlock = interlock
        folder = interlock.folder
        (folder / "leaf.py").write_text(_LEAF)
        tools = [{"name": "read_file", "inputSchema": ARGUMENTS, "outputSchema": {"type": "object"}}]
        (folder / "tools.json").write_text(json.dumps(tools))
        self.write_driver("ready-mcp")
        self.write_driver("new-mcp")
        broken = self.write_driver("broken-mcp")
        (broken / "DRIVER.md").write_text("---\nname: [\n---\n")
        (folder / "interlock.toml").write_text(
            _CONFIGURATION.format(python=sys.executable, greenhouse=GREENHOUSE) + anchors, encoding="utf-8"
        )

    def write_driver(self, id: str) -> Path:
        folder = self.interlock.folder / ".drivers" / id
        (folder / "tools" / "fs-read").mkdir(parents=True, exist_ok=True)
        args = [
            str(DRIVEN),
            "--log",
            str(self.interlock.folder / f"{id}.log"),
            "--tools",
            str(self.interlock.folder / "tools.json"),
        ]
        server = {"kind": "binary", "path": sys.executable, "args": args}
        examples = [{"name": "hello", "input": {"text": "hello"}}]
        said = contract(id=f"demo.{id.removesuffix('-mcp')}", inputs=ARGUMENTS, examples=examples)
        (folder / "tools/fs-read/TOOL.md").write_text(text(said))
        (folder / "DRIVER.md").write_text(text(driver(id, server=server)))
        return folder

    def ask(
        self, method: str, path: str, body: Any = None, *, accept: str = "application/json", raw: bytes | None = None
    ) -> Reply:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        sock.settimeout(PATIENCE_S)
        sock.connect(str(self.interlock.data / "run" / "admin.sock"))
        connection = http.client.HTTPConnection("localhost")
        connection.sock = sock
        headers = {"Accept": accept}
        sent = raw if raw is not None else None if body is None else json.dumps(body).encode()
        if sent is not None:
            headers["Content-Type"] = "application/json"
        try:
            connection.request(method, path, sent, headers)
            answer = connection.getresponse()
            content_type = answer.headers.get_content_type()
            said = answer.fp.readline() if content_type == "text/event-stream" and answer.fp else answer.read()
            return Reply(answer.status, content_type, said)
        finally:
            connection.close()

    def get(self, path: str) -> Any:
        reply = self.ask("GET", path)
        assert reply.status == 200, (path, reply.raw)
        return reply.json

    def post(self, path: str, body: Any = None) -> Any:
        reply = self.ask("POST", path, body)
        assert reply.status in (200, 201), (path, reply.raw)
        return reply.json

    def settle(self) -> None:
        """Until everything stands as it will."""
        digest = self.get("/admin/drivers/ready-mcp")["digest"]
        self.post("/admin/drivers/ready-mcp/trust", {"digest": digest})
        wanted = {"greenhouse": "ready", "gone": "failed", "leaf": "ready"}
        until(
            lambda: (
                wanted.items() <= {one["segment"]: one["state"] for one in self.get("/admin/links")["links"]}.items()
            )
        )
        until(lambda: self.get("/admin/drivers/ready-mcp")["state"] == "ready")
        until(lambda: any(one["name"].startswith("demo.") for one in self.get("/admin/tools")["tools"]))

    def hold_call(self) -> str:
        """A call that waits for a decision: the id of its approval."""
        done = self.interlock("tools", "call", "greenhouse.water_beds", "--arg", "litres=1", "--json")
        found = self.get("/approvals?kind=call")["approvals"]
        assert found, (done.code, done.out, done.err)
        return str(found[0]["id"])


@contextlib.contextmanager
def running_tree(interlock: Interlock, anchors: str = "") -> Iterator[OperatorTree]:
    """`anchors`: TOML of those who may approve."""
    tree = OperatorTree(interlock, anchors)
    with interlock.start("serve", COLUMNS="80", **settings({intervals.READY_S: 0.5})) as running:
        while "Ctrl-C stops the node" not in running.next_line():
            pass
        tree.settle()
        yield tree


def until(check: Callable[[], Any]) -> None:
    end = time.monotonic() + PATIENCE_S
    while not check():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.05)
