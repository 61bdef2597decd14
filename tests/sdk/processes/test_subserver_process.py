"""A leaf as people run it: a ten-line program, its signals, its pipes, and what importing it costs."""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.ax.raw_aggregator import PATIENCE_S, A, aggregator

LEAF = """
import os, sys
from interlock.sdk.subserver import Subserver
STATE = os.environ["STATE"]
leaf = Subserver("greenhouse", parents=sys.argv[1:], token="ils_x", state=STATE, heartbeat_interval_ms=200)

@leaf.tool(mutable=False)
def temperature(bench: int) -> float:
    "The air temperature of a bench in degrees Celsius."
    print("a stray print")
    return 20.5 + bench

leaf.run()
"""


@contextlib.asynccontextmanager
async def running(folder: Path, *parents: str, **env: str) -> AsyncIterator[asyncio.subprocess.Process]:
    (folder / "leaf.py").write_text(LEAF)
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        str(folder / "leaf.py"),
        *parents,
        env={**os.environ, "STATE": str(folder / "state"), **env},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.communicate()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_ends_it_in_order(tmp_path: Path, number: signal.Signals) -> None:
    async with aggregator() as parent, running(tmp_path, parent.url) as process:
        session = await parent.joined()
        assert (await session.call("temperature", bench=1))["content"][0]["text"] == "21.5"
        process.send_signal(number)
        assert await asyncio.wait_for(process.wait(), PATIENCE_S) == 0
        assert len(session.all("mcpax/deregister")) == 1


@pytest.mark.req("AX-6.1-2")
async def test_after_a_kill_it_comes_back_as_the_same_subserver(tmp_path: Path) -> None:
    seen = []
    async with aggregator() as parent:
        for _ in range(2):
            async with running(tmp_path, parent.url) as process:
                session = await parent.joined()
                seen.append(session.heard[0]["params"]["subserver_id"])
                process.kill()
                await asyncio.wait_for(process.wait(), PATIENCE_S)
                assert await session.closed() == 1006
                assert session.all("mcpax/deregister") == []
    assert seen[0] == seen[1]


async def test_a_signal_also_ends_a_subserver_that_never_found_a_parent(tmp_path: Path) -> None:
    async with running(tmp_path, "ws://127.0.0.1:9/ax") as process:
        assert process.stderr is not None
        line = await asyncio.wait_for(process.stderr.readline(), PATIENCE_S)
        assert b"ws://127.0.0.1:9/ax" in line
        assert b"trying again in" in line
        process.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(process.wait(), PATIENCE_S) == 0


class Pipes:
    """The aggregator's side of a child's standard input and output."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._in, self._out = process.stdin, process.stdout

    async def hear(self, method: str | None = None, id: Any = None) -> dict[str, Any]:
        """The next message that is of this method or answers this id."""
        async with asyncio.timeout(PATIENCE_S):
            while line := await self._out.readline():
                message = json.loads(line)
                if (method is not None and message.get("method") == method) or (
                    id is not None and message.get("id") == id and "method" not in message
                ):
                    assert isinstance(message, dict)
                    return message
        raise AssertionError("the child closed its output")

    def say(self, **message: Any) -> None:
        self._in.write(json.dumps({"jsonrpc": "2.0", **message}, indent=None).encode() + b"\n")

    def grant(self, register: dict[str, Any]) -> None:
        result = {"status": "registered", "assigned_segment": "greenhouse", "session_id": "s1", "aggregator_id": A}
        self.say(id=register["id"], result={**result, "heartbeat_deadline_ms": 600, "budget": {}})


async def test_started_by_its_aggregator_it_speaks_through_its_pipes(tmp_path: Path) -> None:
    async with running(tmp_path, INTERLOCK_AX="stdio") as process:
        pipes = Pipes(process)
        register = await pipes.hear("mcpax/register")
        assert register["params"]["segment"] == "greenhouse"
        pipes.grant(register)
        beat = await pipes.hear("mcpax/heartbeat")
        assert beat["params"] == {"session_id": "s1"}
        pipes.say(id=beat["id"], result={"status": "ok", "heartbeat_deadline_ms": 600})
        pipes.say(id="c", method="tools/call", params={"name": "temperature", "arguments": {"bench": 2}})
        assert (await pipes.hear(id="c"))["result"]["content"][0]["text"] == "22.5"
        assert process.stdin is not None
        process.stdin.close()
        assert await asyncio.wait_for(process.wait(), PATIENCE_S) == 0
        assert process.stderr is not None
        assert b"a stray print" in await process.stderr.read()


async def test_a_child_that_is_asked_to_end_deregisters_first(tmp_path: Path) -> None:
    async with running(tmp_path, INTERLOCK_AX="stdio") as process:
        pipes = Pipes(process)
        pipes.grant(await pipes.hear("mcpax/register"))
        await pipes.hear("mcpax/heartbeat")
        process.send_signal(signal.SIGTERM)
        farewell = await pipes.hear("mcpax/deregister")
        pipes.say(id=farewell["id"], result={"status": "deregistered"})
        assert await asyncio.wait_for(process.wait(), PATIENCE_S) == 0


async def test_a_child_that_is_refused_says_why_and_ends(tmp_path: Path) -> None:
    async with running(tmp_path, INTERLOCK_AX="stdio") as process:
        pipes = Pipes(process)
        register = await pipes.hear("mcpax/register")
        pipes.say(id=register["id"], error={"code": 32110, "message": "namespace_conflict"})
        assert await asyncio.wait_for(process.wait(), PATIENCE_S) != 0
        assert process.stderr is not None
        assert b"namespace_conflict" in await process.stderr.read()


@pytest.mark.parametrize("text", [b"\xff\xfe\n", b"nonsense\n", b"[]\n", b"\n\n"])
async def test_a_child_survives_nonsense_on_its_input(tmp_path: Path, text: bytes) -> None:
    async with running(tmp_path, INTERLOCK_AX="stdio") as process:
        pipes = Pipes(process)
        register = await pipes.hear("mcpax/register")
        assert process.stdin is not None
        process.stdin.write(text)
        pipes.grant(register)
        await pipes.hear("mcpax/heartbeat")


def test_importing_it_brings_neither_the_node_nor_what_only_a_running_leaf_needs() -> None:
    program = "import sys, interlock.sdk.subserver; print('\\n'.join(sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
    strangers = ("websockets", "uvicorn", "starlette", "typer", "rich", "httptools", "uvloop", "cryptography")
    ours = ("interlock.node", "interlock.dispatch", "interlock.operator", "interlock.cli", "interlock.store")
    assert [name for name in loaded if name.startswith((*strangers, *ours))] == []
