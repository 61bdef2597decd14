"""The definitions of real servers, collected once into .cache/ and used from there."""

import json
import os
import select
import signal
import subprocess
import sys
import time
from typing import Any

from bench.environments import NotInstalled, python_with
from bench.processes import CACHE
from bench.tokens.sources import SOURCES, Source

FOLDER = CACHE / "bench-tools"
PATIENCE_S = 180.0
UV = "uv==0.13.7"


def collect() -> None:
    """Start each server that is not collected yet, list its tools, keep them."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, source in SOURCES.items():
        file = FOLDER / f"{name}.json"
        if file.exists():
            continue
        try:
            tools = _listed(source)
        except (OSError, ValueError, KeyError, EOFError, NotInstalled) as error:
            print(f"  {name}: not collected ({type(error).__name__}: {error})", file=sys.stderr)
            continue
        file.write_text(json.dumps({"package": source.package, "version": source.version, "tools": tools}))
        print(f"  {name}: {len(tools)} tools", file=sys.stderr)


def corpus() -> dict[str, list[dict[str, Any]]]:
    """The tools of each collected server, in the order of the list."""
    found = {name: FOLDER / f"{name}.json" for name in SOURCES}
    return {name: json.loads(file.read_text())["tools"] for name, file in found.items() if file.exists()}


def _command(source: Source) -> list[str]:
    if source.kind == "npm":
        return ["npx", "-y", f"{source.package}@{source.version}", *source.arguments]
    uvx = python_with("uv", UV).parent / "uvx"
    program = source.command or source.package
    return [str(uvx), "-q", "--from", f"{source.package}=={source.version}", program, *source.arguments]


def _listed(source: Source) -> list[dict[str, Any]]:
    home = FOLDER / "home"
    home.mkdir(exist_ok=True)
    process = subprocess.Popen(
        _command(source),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, **dict(source.environment)},
        cwd=home,
        start_new_session=True,
    )
    try:
        return _Listing(process, time.monotonic() + PATIENCE_S).tools()
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


class _Listing:
    """A handshake and tools/list over the pipes of a process."""

    def __init__(self, process: "subprocess.Popen[bytes]", deadline: float) -> None:
        self._process = process
        self._deadline = deadline
        self._buffer = b""

    def tools(self) -> list[dict[str, Any]]:
        info = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "bench", "version": "1"}}
        self._ask(1, "initialize", info)
        self._send({"jsonrpc": "2.0", "method": "notifications/initialized"})
        found: list[dict[str, Any]] = []
        params: dict[str, Any] = {}
        for number in range(2, 200):
            page = self._ask(number, "tools/list", params)
            found += page["tools"]
            if not page.get("nextCursor"):
                return found
            params = {"cursor": page["nextCursor"]}
        raise ValueError("the list has no end")

    def _send(self, message: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(message).encode() + b"\n")
        self._process.stdin.flush()

    def _ask(self, number: int, method: str, params: dict[str, Any]) -> dict[str, Any]:
        self._send({"jsonrpc": "2.0", "id": number, "method": method, "params": params})
        while True:
            try:
                message = json.loads(self._line())
            except ValueError:
                continue  # some write other things too
            if message.get("id") == number and "method" not in message:
                result: dict[str, Any] = message["result"]
                return result

    def _line(self) -> bytes:
        assert self._process.stdout is not None
        while b"\n" not in self._buffer:
            ready, _, _ = select.select([self._process.stdout], [], [], max(0.0, self._deadline - time.monotonic()))
            data = os.read(self._process.stdout.fileno(), 1 << 16) if ready else b""
            if not data:
                raise EOFError("it ended, or took too long")
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line
