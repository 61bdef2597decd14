"""What a node more between client and server costs: one chain of nodes, called at several of them.

Depth is the number of nodes a call passes. At depth 1 the node that the client calls has the server itself, over HTTP;
each further node is registered, over a WebSocket at /ax, with the one above it. The first hop is what a call costs at
depth 1: all that a node does for a client. A further hop is what it costs more at depth d, divided by d - 1.
"""

import contextlib
import json
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import msgspec

from bench import contestants
from bench.contestants import Ready
from bench.load import META, Job
from bench.measure import Figures, Spread, fast_server, sample, spread
from bench.processes import START_SECONDS, NotStarted, cores

DEPTHS = (1, 2, 4, 8)
CONNECTIONS = 64
MANY = "calls through nodes below one another"
FEW = "the same with few calls under way"
FIRST = f"depth {DEPTHS[0]}"
READS = '\ntools = { echo = "read_only" }'  # nothing that a gate would hold
ADMITS = '[[access]]\nwho = ["subserver:*"]\nscope = "admin"\nauthority = "dns:bench.example"\n'
BELOW = """
[[ax.parents]]
url = "ws://127.0.0.1:{port}/ax"
segment = "{segment}"
secret = "{secret}"
authority = "dns:bench.example"
"""


def below(above: Ready, segment: str) -> str:
    """What makes a node a child of this one, in TOML."""
    return BELOW.format(port=above.port, segment=segment, secret=contestants.issue_token(above.where, "subserver"))


@contextlib.contextmanager
def chain(server: int, length: int) -> Iterator[list[Ready]]:
    """Nodes below one another, the one with the server first: its number in the list, and one, is its depth."""
    with contextlib.ExitStack() as stack:
        nodes: list[Ready] = []
        for number in range(length):
            servers = {"fast": contestants.dialled(server) + READS} if number == length - 1 else {}
            extra = ADMITS + (below(nodes[-1], f"n{number}") if nodes else "")
            nodes.append(stack.enter_context(contestants.node(servers, cores()[1], extra=extra)))
        found = []
        for number, node in enumerate(nodes):
            way = "".join(f"n{further}__" for further in range(number + 1, length))
            tool = f"{way}fast__echo"
            wait_for_tool(node, tool)
            under = tuple(pid for lower in nodes[number + 1 :] for pid in lower.pids)
            found.append(replace(node, tool=tool, below=under))
        yield found[::-1]


def wait_for_tool(node: Ready, tool: str) -> None:
    """Until a call of it is answered with a result."""
    body = b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"%b","arguments":{},%b}}'
    headers = {
        "content-type": "application/json",
        "accept": "application/json, text/event-stream",
        "authorization": f"Bearer {node.token}",
        "mcp-protocol-version": "2026-07-28",
        "mcp-method": "tools/call",
        "mcp-name": tool,
    }
    url, answer = f"http://127.0.0.1:{node.port}/mcp", b"nothing"
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        request = urllib.request.Request(url, body % (tool.encode(), META), headers)
        with contextlib.suppress(urllib.error.URLError), urllib.request.urlopen(request, timeout=5) as got:
            answer = got.read()
            if "result" in json.loads(answer):
                return
        time.sleep(0.05)
    raise NotStarted(f"{tool} is answered with {answer[:200]!r}")


def take_turns(many: Job, few: Job, rounds: int, say: Any) -> list[tuple[str, Job, list[Figures]]]:
    """Both loads on one chain: every depth with the one, then every depth with the other, round after round."""
    jobs = {MANY: many, FEW: few}
    figures = {title: {f"depth {depth}": Figures(name=f"depth {depth}") for depth in DEPTHS} for title in jobs}
    with contextlib.ExitStack() as stack:
        try:
            nodes = stack.enter_context(chain(stack.enter_context(fast_server("modern")), max(DEPTHS)))
            for number in range(1, rounds + 1):
                for title, job in jobs.items():
                    for depth, one in zip(DEPTHS, figures[title].values(), strict=True):
                        taken = sample(nodes[depth - 1], msgspec.structs.replace(job))
                        one.samples.append(taken)
                        what = f"{one.name}, {job.connections} connections"
                        say(f"  round {number}: {what:26} {taken.cpu_us:7.1f} us CPU   p50 {taken.p50_us:7.1f} us")
        except NotStarted as reason:
            say(f"  failed: {reason}")
            for one in (one for turns in figures.values() for one in turns.values()):
                one.absent, one.samples = "the nodes failed", []
    return [(title, jobs[title], list(turns.values())) for title, turns in figures.items()]


def further(figures: Sequence[Figures], name: str, field: str = "cpu_us", *, of_first: bool = False) -> Spread | None:
    """What each node beyond the first adds at this depth, round by round; as a share of the first's if so wanted."""
    samples = {one.name: one.samples for one in figures}
    depth = dict(zip(samples, DEPTHS, strict=True))[name]
    if depth == 1 or not samples[name]:
        return None
    pairs = [
        (getattr(one, field), getattr(first, field)) for one, first in zip(samples[name], samples[FIRST], strict=True)
    ]
    return spread([(deep - first) / (depth - 1) / (first if of_first else 1) for deep, first in pairs])
