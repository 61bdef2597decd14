"""What a contract costs: the same tool of the same server, called as the server's own and through a driver's contract.

One node has the server twice: declared in its configuration, and as a driver that binds one contract. The two take
turns; a call through the contract has its input and its output checked and leaves two more records.
"""

import contextlib
from dataclasses import replace
from typing import Any, Final

from bench import contestants
from bench.load import Job
from bench.measure import Figures, fast_server, sample
from bench.processes import NotStarted, cores

PLAIN: Final = "as the server's own"
BOUND: Final = "through a contract"
TRUSTED: Final = "[drivers]\ntrust_workspace = true\n"
DRIVER: Final = """---
name: Bound
id: bound-mcp
description: The fast server behind a contract.
version: "1.0.0"
kind: mcp
server:
  kind: remote
  url: http://127.0.0.1:{port}/mcp
transport: http
implements:
  - tool: ./tools/echo/TOOL.md
    version: ^1.0.0
    metadata:
      mcp:
        tool_name: echo
---
"""
CONTRACT: Final = """---
name: echo
id: bound.echo
description: Says it again.
version: "1.0.0"
inputs:
  type: object
  properties:
    text: {type: string}
    count: {type: integer}
outputs:
  type: object
  properties:
    content: {type: string}
  required: [content]
---
"""


def take_turns(job: Job, rounds: int, say: Any) -> list[Figures]:
    figures = {name: Figures(name=name) for name in (PLAIN, BOUND)}
    with contextlib.ExitStack() as stack:
        try:
            port = stack.enter_context(fast_server(job.era))
            files = {
                ".drivers/bound-mcp/DRIVER.md": DRIVER.format(port=port),
                ".drivers/bound-mcp/tools/echo/TOOL.md": CONTRACT,
            }
            servers = {"fast": contestants.dialled(port)}
            node = stack.enter_context(contestants.node(servers, cores()[1], extra=TRUSTED, files=files))
            contestants.wait_for_tool(node, "bound.echo")
            for number in range(1, rounds + 1):
                for name, tool in ((PLAIN, "fast__echo"), (BOUND, "bound__echo")):
                    taken = sample(replace(node, tool=tool), job)
                    figures[name].samples.append(taken)
                    say(f"  round {number}: {name:20} {taken.cpu_us:7.1f} us CPU   p50 {taken.p50_us:7.1f} us")
        except NotStarted as reason:
            say(f"  failed: {reason}")
            for one in figures.values():
                one.absent, one.samples = "the node failed", []
    return list(figures.values())
