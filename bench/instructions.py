"""What a plain call costs in instructions and bytecodes: `python -m bench.instructions [--write "what it is"]`.

A node with one 2026-07-28 server answers calls of a client on a line front. The server's end is replaced by one that
answers at once, in the same turn: every byte from the client's request to its answer is handled, and no socket, timer
or other thread takes part, so that the counts hardly depend on the machine's load. Instructions are counted by valgrind
(callgrind) over N and over 2N calls; the difference divided by N is one call. A trace function counts bytecodes.
"""

import argparse
import asyncio
import gc
import os
import platform
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from types import FrameType
from typing import Any, Final

from bench.instruction_counts import Count, keep, write_section
from bench.processes import ROOT
from interlock.config.load import load
from interlock.node.node import Node

CALLS: Final = 4000
TRACED_CALLS: Final = 200
WARM_UP: Final = 500
CONFIG: Final = """
[gate]
mode = "open"
[servers.fast]
command = {python}
args = ["-m", "bench.fast_server", "--stdio"]
env = {{ PYTHONPATH = {root} }}
"""
REQUEST: Final = (
    b'{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":"fast__echo","arguments":'
    b'{"count":3,"text":"some words to say"},"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28",'
    b'"io.modelcontextprotocol/clientCapabilities":{},'
    b'"io.modelcontextprotocol/clientInfo":{"name":"bench","version":"1"}}}}\n'
)
RESULT: Final = b'{"resultType":"complete","content":[{"type":"text","text":"%b"}],"isError":false}' % (b"x" * 200)
_ID: Final = re.compile(rb'"id":(\d+)')


class InstantPipe:
    """The server's end: whatever is sent is answered before `send` returns."""

    def __init__(self, link: Any) -> None:
        self._link = link

    def send(self, message: bytes, head: bytes, origin: Any) -> object:
        found = _ID.search(message)
        if found is not None:
            self._link.on_message(b'{"jsonrpc":"2.0","id":%b,"result":%b}' % (found[1], RESULT), origin)
        return None

    def abort(self, handle: object) -> bool:
        return False


class Reader:
    """The client's end: counts answers."""

    def __init__(self) -> None:
        self.results = 0

    def write(self, data: bytes) -> None:
        self.results += b'"result"' in data

    def is_closing(self) -> bool:
        return False

    def get_write_buffer_size(self) -> int:
        return 0


async def make_calls(count: int, *, traced: bool) -> int:
    """Starts a node, makes the calls, stops it; what starting and stopping cost is the same for any count."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "interlock.toml"
        file.write_text(CONFIG.format(python=f'"{sys.executable}"', root=f'"{ROOT}"'))
        node = Node(
            load(file, os.environ, {"data": str(Path(folder) / "data")}).plan,
            lambda operations, who: None,
            listen=False,
        )
        await node.open()
        await node.readiness.settle(120.0)
        link: Any = node.calls.keepers["fast"].link
        link.pipe, kept = InstantPipe(link), link.pipe
        front, reader = node.fronts.lines.make(None), Reader()
        front.connect(reader)  # type: ignore[arg-type]
        gc.collect()
        gc.disable()
        for number in range(WARM_UP):
            front.feed(REQUEST % number)
        lines = [REQUEST % number for number in range(count)]
        counted = _count_bytecodes(front.feed, lines) if traced else _feed(front.feed, lines)
        if reader.results != WARM_UP + count:
            raise SystemExit(f"{reader.results} results of {WARM_UP + count} calls")
        link.pipe = kept
        await node.close()
        return counted


def _feed(feed: Any, lines: list[bytes]) -> int:
    for line in lines:
        feed(line)
    return 0


def _count_bytecodes(feed: Any, lines: list[bytes]) -> int:
    counted = 0

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal counted
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        counted += event == "opcode"
        return trace

    for line in lines:
        sys.settrace(trace)
        feed(line)
        sys.settrace(None)
    return counted


def instructions(calls: int) -> int:
    command = ["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null"]
    command += [sys.executable, "-m", "bench.instructions", "--run", str(calls)]
    ran = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PYTHONHASHSEED": "0"})
    found = re.search(r"Collected : (\d+)", ran.stderr)
    if ran.returncode or found is None:
        raise SystemExit(f"{ran.stdout}{ran.stderr}"[-2000:])
    return int(found[1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=CALLS)
    parser.add_argument("--run", type=int, help="only make so many calls, in this process")
    parser.add_argument("--write", metavar="PROGRAM", help="keep the counts under this name, in docs/benchmarks.md too")
    parser.add_argument("--bytecodes", action="store_true", help="only count bytecodes, without valgrind")
    options = parser.parse_args()
    if options.run is not None:
        asyncio.run(make_calls(options.run, traced=False))
        return
    bytecodes = round(asyncio.run(make_calls(TRACED_CALLS, traced=True)) / TRACED_CALLS)
    print(f"bytecodes per call: {bytecodes}", flush=True)
    if options.bytecodes:
        return
    once, twice = instructions(options.calls), instructions(2 * options.calls)
    per_call = round((twice - once) / options.calls)
    print(f"instructions per call: {per_call}")
    if options.write:
        counted = Count(program=options.write, instructions=per_call, bytecodes=bytecodes)
        keep(counted, platform.python_version())
        write_section()


if __name__ == "__main__":
    main()
