"""How many copies of a large message does a node make?"""

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from bench.measure import fast_server
from bench.processes import python
from tests.support.node_process import RunningNode, Wire, running_node

SIZE = 12_000_000
COPIES_MAX = 2.4  # two, and what is read at once, written at once and kept by the allocator
SMALL, LARGE = 200, SIZE


def stdio(result_bytes: int) -> dict[str, object]:
    words = python("-m", "bench.fast_server", "--stdio", "--era", "legacy", "--result-bytes", str(result_bytes))
    return {"command": words[0], "args": words[1:], "cwd": str(Path(__file__).parents[3])}


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNode]:
    servers: dict[str, dict[str, object]] = {}
    with contextlib.ExitStack() as stack:
        for size, name in ((SMALL, "small"), (LARGE, "large")):
            for era in ("modern", "legacy"):
                port = stack.enter_context(fast_server(era, result_bytes=size))
                servers[f"{era}-{name}"] = {"url": f"http://127.0.0.1:{port}/mcp"}
            servers[f"stdio-{name}"] = stdio(size)
        node = stack.enter_context(running_node(tmp_path_factory.mktemp("copies"), servers))
        for segment in servers:
            node.wait_link(segment, {"state": "ready"})
        yield node


def memory(node: RunningNode, field: str) -> int:
    lines = Path(f"/proc/{node.process.pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))


@pytest.mark.parametrize("client", ["modern", "legacy"])
@pytest.mark.parametrize("server", ["modern", "legacy", "stdio"])
@pytest.mark.parametrize("large", ["request", "result"])
def test_a_large_message_is_in_memory_twice_at_most(node: RunningNode, client: str, server: str, large: str) -> None:
    text = "x" * SIZE if large == "request" else "x"
    name = f"{server}-{'small' if large == 'request' else 'large'}__echo"
    with Wire(node) as wire:
        ask = wire.modern if client == "modern" else wire.legacy
        if client == "legacy":
            wire.initialize()
        before = memory(node, "VmRSS")
        Path(f"/proc/{node.process.pid}/clear_refs").write_text("5")  # the peak is counted from here
        answer = ask("tools/call", {"name": name, "arguments": {"text": text}})
        assert "result" in json.loads(answer.body)
        assert (memory(node, "VmHWM") - before) / SIZE < COPIES_MAX
