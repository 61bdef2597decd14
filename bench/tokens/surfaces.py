"""The surfaces that a model can be given over the same servers, and what it reads and writes on each.

Every one is a running program, asked over MCP: what is counted is what came back.
"""

import contextlib
import json
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

from bench.contestants import LOGS, PATHS
from bench.environments import python_with
from bench.processes import cores, free_port, python, running, wait_for_port
from bench.tokens.tasks import Step

FOUND_MAX = 5  # what a search answers at most, on each surface that has one
PATIENCE_S = 120.0
VERSION = "2025-06-18"
NODE = """
[node]
listen = "127.0.0.1:{listen}"
operator_listen = "127.0.0.1:{operator}"
[gate]
mode = "open"
unannotated = "allow"
[aql.danger]
enforce = false
"""
SERVER = """
[servers.{name}]
command = {command}
args = ["-m", "bench.tokens.recorded_server", {file}]
env = {{ PYTHONPATH = {path} }}
"""
PROXY = """
import sys, json
from fastmcp.server import create_proxy
from fastmcp.server.transforms.search import BM25SearchTransform
server = create_proxy(json.loads(open(sys.argv[2]).read()))
server.add_transform(BM25SearchTransform(max_results=int(sys.argv[3])))
server.run(transport="http", host="127.0.0.1", port=int(sys.argv[1]), log_level="ERROR", show_banner=False)
"""


class Client:
    """A legacy client over streamable HTTP."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._session: str | None = None
        self._count = 0
        info = {"protocolVersion": VERSION, "capabilities": {}, "clientInfo": {"name": "bench", "version": "1"}}
        self.ask("initialize", info)
        self._post({"jsonrpc": "2.0", "method": "notifications/initialized"})

    def ask(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        self._count += 1
        answer = self._post({"jsonrpc": "2.0", "id": self._count, "method": method, "params": params})
        found: dict[str, Any] = json.loads(answer)
        result: dict[str, Any] = found["result"]
        return result

    def tools(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        params: dict[str, Any] = {}
        while True:
            page = self.ask("tools/list", params)
            found += page["tools"]
            if not page.get("nextCursor"):
                return found
            params = {"cursor": page["nextCursor"]}

    def _post(self, message: dict[str, Any]) -> str:
        headers = {"content-type": "application/json", "accept": "application/json, text/event-stream"}
        if self._session is not None:
            headers |= {"mcp-session-id": self._session, "mcp-protocol-version": VERSION}
        request = urllib.request.Request(self._url, json.dumps(message).encode(), headers)
        with urllib.request.urlopen(request, timeout=60) as answer:
            self._session = answer.headers.get("mcp-session-id", self._session)
            text: str = answer.read().decode()
        lines = [line[6:] for line in text.splitlines() if line.startswith("data: ") and len(line) > 6]
        return lines[-1] if lines else text


class Said(Protocol):
    """What was read and written: texts, in turns."""

    def read(self, text: str) -> None: ...
    def write(self, text: str) -> None: ...


class Surface:
    """A client at one surface. `open`: what a model reads before it does anything."""

    name = "flat"

    def __init__(self, client: Client) -> None:
        self._client = client
        self.listed = client.tools()

    def open(self) -> str:
        return json.dumps(self.listed, separators=(",", ":"))

    def do(self, step: Step, said: Said) -> None:
        local = step.tool.partition(".")[2]
        server = step.tool.partition(".")[0]
        (name,) = (one["name"] for one in self.listed if one["name"].endswith(local) and server in one["name"])
        for arguments in attempts(step):
            self.call(name, arguments, said)

    def call(self, name: str, arguments: dict[str, Any], said: Said) -> dict[str, Any]:
        said.write(json.dumps({"name": name, "arguments": arguments}, separators=(",", ":")))
        result = self._client.ask("tools/call", {"name": name, "arguments": arguments})
        said.read("\n".join(one.get("text", "") for one in result["content"]))
        return result


def attempts(step: Step) -> list[dict[str, Any]]:
    """The arguments of each call; of a wrong one first without the last argument."""
    if not step.wrong:
        return [step.arguments]
    return [dict(list(step.arguments.items())[:-1]), step.arguments]


def found_name(step: Step, search: Callable[[str], list[str]]) -> str:
    """The name that a search finds a tool under; where the words do not find it, the words of its name do."""
    server, _, local = step.tool.partition(".")
    for words in (step.words, local.replace("_", " ")):
        for name in search(words):
            if name.endswith(local) and server in name:
                return name
    raise LookupError(f"no search finds {step.tool}")


class Aql(Surface):
    """Search, details, call. What was looked up once is known."""

    name = "aql"

    def __init__(self, client: Client) -> None:
        super().__init__(client)
        self._known: dict[str, tuple[str, str]] = {}

    def forget(self) -> None:
        self._known.clear()

    def do(self, step: Step, said: Said) -> None:
        if step.tool not in self._known:
            self._known[step.tool] = self._look_up(step, said)
        tool, operation = self._known[step.tool]
        for arguments in attempts(step):
            params = {_snake(name): value for name, value in arguments.items()}
            self.call(tool, {"operation": operation, "params": params}, said)

    def _look_up(self, step: Step, said: Said) -> tuple[str, str]:
        reader = next(one["name"] for one in self.listed if one["name"] in ("mcp_aql_read", "mcp_aql"))

        def search(words: str) -> list[str]:
            query = {"query": "operations", "search": words, "first": FOUND_MAX}
            found = self.call(reader, {"operation": "introspect", "params": query}, said)
            return [one["name"] for one in json.loads(found["content"][0]["text"])["data"]["operations"]]

        query = {"query": "operations", "name": found_name(step, search)}
        details = self.call(reader, {"operation": "introspect", "params": query}, said)
        operation = json.loads(details["content"][0]["text"])["data"]["operation"]
        return operation["mcpTool"], operation["name"]


class AqlSingle(Aql):
    name = "aql-single"


class SearchProxy(Surface):
    """search_tools answers whole definitions, call_tool calls one of them."""

    name = "search proxy"

    def __init__(self, client: Client) -> None:
        super().__init__(client)
        self._known: dict[str, str] = {}

    def forget(self) -> None:
        self._known.clear()

    def do(self, step: Step, said: Said) -> None:
        if step.tool not in self._known:

            def search(words: str) -> list[str]:
                text = self.call("search_tools", {"query": words}, said)["content"][0]["text"]
                return [one["name"] for one in json.loads(text)]

            self._known[step.tool] = found_name(step, search)
        for arguments in attempts(step):
            self.call("call_tool", {"name": self._known[step.tool], "arguments": arguments}, said)


def _snake(name: str) -> str:
    return "".join(f"_{one.lower()}" if one.isupper() else one for one in name)


@contextlib.contextmanager
def surfaces(servers: dict[str, list[dict[str, Any]]]) -> Iterator[list[Surface]]:
    """One node and one proxy in front of the same recorded servers."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        text, proxied = "", {}
        listen, operator, proxy = free_port(), free_port(), free_port()
        path = PATHS["PYTHONPATH"]
        for name, tools in servers.items():
            file = folder / f"{name}.json"
            file.write_text(json.dumps(tools))
            command, *arguments = python("-m", "bench.tokens.recorded_server", str(file))
            text += SERVER.format(
                name=name, command=json.dumps(command), file=json.dumps(str(file)), path=json.dumps(path)
            )
            proxied[name] = {"command": command, "args": arguments, "env": {"PYTHONPATH": path}}
        (folder / "interlock.toml").write_text(NODE.format(listen=listen, operator=operator) + text)
        (folder / "proxy.json").write_text(json.dumps({"mcpServers": proxied}))
        (folder / "proxy.py").write_text(PROXY)
        here, there = cores()
        options = ("--config", str(folder / "interlock.toml"), "--data", str(folder / "data"))
        node = python("-m", "interlock", "serve", *options)
        interpreter = python_with("fastmcp", "fastmcp==4.1.2")
        search = [str(interpreter), str(folder / "proxy.py"), str(proxy), str(folder / "proxy.json"), str(FOUND_MAX)]
        log, proxy_log = LOGS / "tokens.log", LOGS / "tokens-proxy.log"
        with running(node, there, log, PATHS) as process, running(search, here, proxy_log) as other:
            wait_for_port(listen, process, log)
            wait_for_port(proxy, other, proxy_log)
            base = f"http://127.0.0.1:{listen}/mcp"
            _wait_for_tools(f"{base}/flat", sum(len(tools) for tools in servers.values()))
            yield [
                Surface(Client(f"{base}/flat")),
                Aql(Client(f"{base}/aql")),
                AqlSingle(Client(f"{base}/aql-single")),
                SearchProxy(Client(f"http://127.0.0.1:{proxy}/mcp")),
            ]


def _wait_for_tools(url: str, expected: int) -> None:
    deadline = time.monotonic() + PATIENCE_S
    found = 0
    while time.monotonic() < deadline:
        found = len(Client(url).tools())
        if found >= expected:
            return
        time.sleep(0.5)
    raise TimeoutError(f"{found} of {expected} tools are listed")
