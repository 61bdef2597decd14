"""Do servers that people use list and answer the same behind a node as alone?"""

import contextlib
import functools
import http.server
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tests.conformance import real_servers, toolbox
from tests.conformance.gateway import ready_node, table
from tests.conformance.real_servers import COUNTING, NAMES, Server, direct
from tests.support.node_process import RunningNode, Wire

pytestmark = [pytest.mark.timeout(300)]
AT_ONCE = 3  # servers that are asked directly
PAGE = "<!doctype html><title>A page</title><link rel=icon href='data:,'><h1>Hello</h1><p>from a page.</p>"
SERVER_INFO = "io.modelcontextprotocol/serverInfo"
ERAS = ("legacy", "modern")
OURS = ("dev.interlock/", "x-mcpax-")


class Told(NamedTuple):
    """What a server said."""

    tools: dict[str, dict[str, Any]]
    answer: dict[str, Any]


class Fleet(NamedTuple):
    node: RunningNode
    servers: dict[str, Server]
    alone: dict[str, Told]


def told_alone(server: Server) -> Told:
    with direct(server) as client:
        listed = client.ask("tools/list", {})["result"]
        assert "nextCursor" not in listed
        answer = client.ask("tools/call", {"name": server.tool, "arguments": server.arguments})
        return Told({tool["name"]: tool for tool in listed["tools"]}, answer)


@contextlib.contextmanager
def pages(folder: Path) -> Iterator[str]:
    """The URL of a page in a folder."""
    handler = functools.partial(QuietHandler, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/page.html"
        finally:
            server.shutdown()
            thread.join()


class QuietHandler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *arguments: Any) -> None:
        pass


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    folder = tmp_path_factory.mktemp("real").resolve()
    (folder / "hello.txt").write_text("Hello from a file.\n")
    (folder / ".gitignore").write_text("data.db\n")
    (folder / "page.html").write_text(PAGE)
    (folder / "code.js").write_text("var a = 1;\n")
    (folder / "eslint.config.mjs").write_text('export default [{ rules: { "no-var": "error" } }];\n')
    toolbox.run(["git", "init", "--quiet", "--initial-branch", "trunk", "."], cwd=folder)
    author = ["-c", "user.name=Ada", "-c", "user.email=ada@example.org"]
    toolbox.run(["git", *author, "commit", "--quiet", "--allow-empty", "--message", "First"], cwd=folder)
    with pages(folder) as page, ThreadPoolExecutor(AT_ONCE) as pool:
        servers = real_servers.servers(folder, page)
        tables = {name: table(server.command) | {"env": dict(server.env)} for name, server in servers.items()}
        alone = pool.map(told_alone, servers.values())
        with ready_node(tables) as running:
            yield Fleet(running, servers, dict(zip(servers, alone, strict=True)))


@contextlib.contextmanager
def asking(fleet: Fleet, era: str) -> Iterator[Any]:
    with Wire(fleet.node) as wire:
        if era == "legacy":
            wire.initialize()
        yield wire.legacy if era == "legacy" else wire.modern


def defined(tool: dict[str, Any], era: str) -> dict[str, Any]:
    """A tool's definition without what a node writes beside it; `execution` is of 2025-11-25 alone."""
    meta = {key: value for key, value in tool.get("_meta", {}).items() if not key.startswith(OURS)}
    left_out = {"_meta"} if era == "legacy" else {"_meta", "execution"}
    return {key: value for key, value in tool.items() if key not in left_out} | ({"_meta": meta} if meta else {})


def answered(result: dict[str, Any]) -> dict[str, Any]:
    """A result without what every result of 2026-07-28 says."""
    meta = {key: value for key, value in result.get("_meta", {}).items() if key != SERVER_INFO}
    kept = {key: value for key, value in result.items() if key not in ("_meta", "resultType")}
    return kept | ({"_meta": meta} if meta else {})


@pytest.mark.parametrize("era", ERAS)
def test_every_tool_is_listed_as_its_server_defines_it(fleet: Fleet, era: str) -> None:
    with asking(fleet, era) as ask:
        listed = ask("tools/list").message["result"]["tools"]
    behind: dict[str, dict[str, Any]] = {}
    for tool in listed:
        segment, _, name = tool["name"].partition("__")
        behind.setdefault(segment, {})[name] = tool
    alone = {segment: told.tools for segment, told in fleet.alone.items()}
    assert {segment: list(tools) for segment, tools in behind.items()} == {k: list(v) for k, v in alone.items()}
    for segment, tools in alone.items():
        for name, tool in tools.items():
            assert defined(behind[segment][name], era) == defined(tool, era) | {"name": f"{segment}__{name}"}


@pytest.mark.parametrize(
    ("name", "era"),
    [(name, era) for era in ERAS for name in NAMES if era == "legacy" or name not in COUNTING],
)
def test_a_call_is_answered_as_by_the_server_alone(fleet: Fleet, name: str, era: str) -> None:
    server = fleet.servers[name]
    with asking(fleet, era) as ask:
        answer = ask("tools/call", {"name": f"{name}__{server.tool}", "arguments": dict(server.arguments)}).message
    assert answered(answer["result"]) == answered(fleet.alone[name].answer["result"])
