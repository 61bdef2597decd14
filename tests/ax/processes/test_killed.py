"""Leaves that are killed while calls run: no answer is lost, none is wrong, nothing is done twice."""

import asyncio
import contextlib
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.ax.blocking_client import call, ready
from tests.support.node_process import RunningNode, Wire, running_node, wait_for
from tests.support.scale import many

LEAF = Path(__file__).parents[1] / "library_leaf.py"
KILLS = many(3, 30)  # at least each of the leaves
CLIENTS = 4


class Leaf:
    """One leaf as a process that can be killed and started again, with the same identity."""

    def __init__(self, node: RunningNode, segment: str, folder: Path) -> None:
        self.segment = segment
        self.record = folder / f"{segment}.txt"
        self._command = [
            sys.executable,
            str(LEAF),
            segment,
            f"ws://{node.host}:{node.port}/ax",
            str(folder / segment),
            str(self.record),
        ]
        self._errors = (folder / f"{segment}.err").open("ab")
        self._start()

    def _start(self) -> None:
        self.process = subprocess.Popen(self._command, stdin=subprocess.DEVNULL, stderr=self._errors)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def again(self) -> None:
        self.kill()
        self._start()

    def close(self) -> None:
        self.kill()
        self._errors.close()


@contextlib.contextmanager
def _leaves(node: RunningNode, folder: Path, *segments: str) -> Iterator[list[Leaf]]:
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(contextlib.closing(Leaf(node, segment, folder))) for segment in segments]


async def test_a_leaf_of_the_library_registers_serves_and_comes_back_after_a_kill(tmp_path: Path) -> None:
    with running_node(tmp_path / "node", {}) as node, _leaves(node, tmp_path, "lib") as (leaf,):
        link = await ready(node, "lib", tools=2)
        first = (await call(node, "lib__pid"))["result"]["content"][0]["text"]
        leaf.again()
        identity = link["registration"]["subserver_id"]
        session = link["registration"]["session"]

        def is_back() -> Any:
            shown = node.link("lib")
            return shown.get("state") == "ready" and shown["registration"]["session"] != session and shown

        from tests.support.node_process import wait_for

        back = await asyncio.to_thread(wait_for, is_back, 20)
        assert back["registration"]["subserver_id"] == identity
        assert (await call(node, "lib__pid"))["result"]["content"][0]["text"] != first


@pytest.mark.req("AX-13.1-4")
async def test_killing_leaves_under_load_loses_no_answer_and_repeats_no_call(tmp_path: Path) -> None:
    segments = ("a1", "a2", "a3")
    with running_node(tmp_path / "node", {}) as node, _leaves(node, tmp_path, *segments) as leaves:
        for segment in segments:
            await ready(node, segment, tools=2)
        stopping = False
        outcomes: Counter[str] = Counter()
        wrong: list[Any] = []

        def load(client: int) -> None:
            number = client * 1_000_000
            with Wire(node) as wire:
                while not stopping:
                    number += 1
                    segment = segments[number % 3]
                    params = {"name": f"{segment}__echo", "arguments": {"number": number}}
                    message = wire.modern("tools/call", params).message
                    if "result" in message:
                        outcomes["result"] += 1
                        if message["result"]["content"][0]["text"] != str(number):
                            wrong.append(message)
                    elif message["error"]["message"] == "tool_degraded":
                        outcomes[message["error"]["data"]["reason"]] += 1
                    else:
                        wrong.append(message)

        loads = [asyncio.create_task(asyncio.to_thread(load, client)) for client in range(CLIENTS)]
        try:
            for turn in range(KILLS):
                victim = leaves[turn % 3]
                done = outcomes["result"]
                await asyncio.to_thread(victim.again)
                await ready(node, victim.segment, tools=2)
                await asyncio.to_thread(wait_for, lambda done=done: outcomes["result"] > done + 50, 20)
        finally:
            stopping = True
            await asyncio.gather(*loads)
        assert wrong == []
        assert outcomes["result"] > 100
        executed = [int(line) for leaf in leaves for line in leaf.record.read_text().split()]
        assert max(Counter(executed).values()) == 1
        assert len(executed) >= outcomes["result"]
