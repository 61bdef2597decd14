"""Servers that people use, from npm and PyPI, each with one call; and a client of theirs without anything between."""

import json
import os
import subprocess
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.conformance import toolbox

PROTOCOL = "2025-11-25"
ANSWER_SECONDS = 120.0
# What a node declares to a server of its: some servers list more tools to a client that can more.
CAPABILITIES = {
    "elicitation": {"form": {}, "url": {}},
    "roots": {"listChanged": True},
    "sampling": {},
    "tasks": {"requests": {"elicitation": {"create": {}}, "sampling": {"createMessage": {}}}},
}
NAMES = [
    "everything",
    "filesystem",
    "memory",
    "thinking",
    "taskmanager",
    "gitplus",
    "eslint",
    "context7",
    "time",
    "git",
    "fetch",
    "sqlite",
    "calculator",
    "editor",
]
COUNTING = {"thinking", "taskmanager"}  # these answer the same call in another way the next time


@dataclass(frozen=True)
class Server:
    command: list[str]
    tool: str
    arguments: Mapping[str, Any]
    env: Mapping[str, str] = field(default_factory=dict)


def servers(folder: Path, page: str) -> dict[str, Server]:
    """For a folder that they may work in, a git repository, and the URL of a page of this machine."""
    file, repository = str(folder / "hello.txt"), {"repo_path": str(folder)}
    npm, pypi = toolbox.npm_server, toolbox.pypi_server
    thought = {"thought": "One.", "nextThoughtNeeded": False, "thoughtNumber": 1, "totalThoughts": 1}
    task = {"originalRequest": "Test", "tasks": [{"title": "One", "description": "The first."}]}
    return {
        "everything": Server(npm("everything", "stdio"), "get-tiny-image", {}),
        "filesystem": Server(npm("filesystem", str(folder)), "read_text_file", {"path": file}),
        "memory": Server(npm("memory"), "read_graph", {}, {"MEMORY_FILE_PATH": str(folder / "memory.jsonl")}),
        "thinking": Server(npm("sequential-thinking"), "sequentialthinking", thought),
        "taskmanager": Server(
            npm("@kazuph/mcp-taskmanager"),
            "request_planning",
            task,
            {"TASK_MANAGER_FILE_PATH": "/dev/null"},
        ),
        "gitplus": Server(npm("@cyanheads/git-mcp-server"), "git_status", {"path": str(folder)}),
        "eslint": Server(npm("@eslint/mcp"), "lint-files", {"filePaths": [str(folder / "code.js")]}),
        "context7": Server(npm("@upstash/context7-mcp"), "resolve-library-id", {"libraryName": "a", "query": "b"}),
        "time": Server(
            pypi("time", "--local-timezone", "UTC"),
            "convert_time",
            {"source_timezone": "UTC", "time": "12:00", "target_timezone": "Asia/Kolkata"},
        ),
        "git": Server(pypi("git", "--repository", str(folder)), "git_log", repository),
        "fetch": Server(pypi("fetch", "--allow-private-ips"), "fetch", {"url": page}),
        "sqlite": Server(
            pypi("sqlite", "--db-path", str(folder / "data.db")), "read_query", {"query": "SELECT 6 * 7 AS answer"}
        ),
        "calculator": Server(pypi("calculator"), "calculate", {"expression": "6 * 7"}),
        "editor": Server(
            pypi("mcp-text-editor"),
            "get_text_file_contents",
            {"files": [{"file_path": file, "ranges": [{"start": 1, "end": None}]}]},
        ),
    }


class Direct:
    """One client of a stdio server: asks one thing after another."""

    def __init__(self, process: "subprocess.Popen[bytes]") -> None:
        self._process = process

    def _send(self, message: Mapping[str, Any]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")
        self._process.stdin.flush()

    def tell(self, method: str) -> None:
        self._send({"method": method})

    def ask(self, method: str, params: Mapping[str, Any]) -> Any:
        self._send({"id": method, "method": method, "params": params})
        assert self._process.stdout is not None
        for line in self._process.stdout:
            message = json.loads(line)
            if message.get("id") == method and "method" not in message:
                return message
            if "id" in message and message.get("method") == "roots/list":
                self._send({"id": message["id"], "result": {"roots": []}})
        raise RuntimeError(f"{self._process.args} ended before it answered {method}")


@contextmanager
def direct(server: Server) -> Iterator[Direct]:
    with subprocess.Popen(
        server.command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, **server.env},
    ) as process:
        late = threading.Timer(ANSWER_SECONDS, process.kill)
        late.start()
        try:
            client = Direct(process)
            info = {"name": "direct", "version": "1"}
            client.ask("initialize", {"protocolVersion": PROTOCOL, "capabilities": CAPABILITIES, "clientInfo": info})
            client.tell("notifications/initialized")
            yield client
        finally:
            late.cancel()
            process.kill()
