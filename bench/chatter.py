"""What one server that talks without end costs the calls of another: 1,000 notifications a second beside them.

Two nodes have the same fast server and a second one beside it, which is silent at one node and talks at the other. The
two take turns.
"""

import contextlib
import json
import sys
from dataclasses import replace
from typing import Any, Final

from bench import contestants
from bench.load import Job
from bench.measure import Figures, fast_server, sample
from bench.processes import NotStarted, cores

SILENT: Final = "beside a silent server"
KINDS: Final = {
    "log messages": {"method": "notifications/message", "params": {"level": "info", "data": "a line of some length"}},
    "progress of no call": {"method": "notifications/progress", "params": {"progressToken": 10**9, "progress": 1}},
    "a vendor's own": {"method": "notifications/vendor/beat", "params": {"at": "now"}},
}
PER_SECOND: Final = 1000
_GREETING: Final = {"protocolVersion": "2025-11-25", "capabilities": {"logging": {}}}
_PROGRAM: Final = """
import json, sys, threading, time
line, at_once = sys.argv[1].encode() + b"\\n", 20
def talk():
    while True:
        sys.stdout.buffer.write(line * at_once)
        sys.stdout.buffer.flush()
        time.sleep(at_once / {per_second})
for text in sys.stdin:
    message = json.loads(text)
    if message.get("method") == "initialize":
        result = {greeting}
    elif "id" in message:
        result = {{}}
    else:
        if message.get("method") == "notifications/initialized" and len(line) > 1:
            threading.Thread(target=talk, daemon=True).start()
        continue
    print(json.dumps({{"jsonrpc": "2.0", "id": message["id"], "result": result}}), flush=True)
"""


def talking(kind: str) -> str:
    """The server as a table of the configuration; the kind "" is silent."""
    greeting = {**_GREETING, "serverInfo": {"name": "talking", "version": "1"}}
    program = _PROGRAM.format(per_second=PER_SECOND, greeting=greeting)
    line = json.dumps({"jsonrpc": "2.0", **KINDS[kind]}) if kind else ""
    return f"command = {json.dumps(sys.executable)}\nargs = {json.dumps(['-c', program, line])}"


def take_turns(job: Job, rounds: int, say: Any) -> list[Figures]:
    figures = {name: Figures(name=name) for name in (SILENT, *(f"beside {kind}" for kind in KINDS))}
    with contextlib.ExitStack() as stack:
        try:
            server = contestants.dialled(stack.enter_context(fast_server(job.era)))
            nodes = [
                stack.enter_context(contestants.node({"fast": server, "other": talking(kind)}, cores()[1]))
                for kind in ("", *KINDS)
            ]
            for number in range(1, rounds + 1):
                for one, node in zip(figures.values(), nodes, strict=True):
                    taken = sample(replace(node, tool="fast__echo"), job)
                    one.samples.append(taken)
                    say(f"  round {number}: {one.name:28} {taken.cpu_us:7.1f} us CPU   p99 {taken.p99_us:7.1f} us")
        except NotStarted as reason:
            say(f"  failed: {reason}")
            for one in figures.values():
                one.absent, one.samples = "the node failed", []
    return list(figures.values())
