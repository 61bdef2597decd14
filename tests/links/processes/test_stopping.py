"""Does a link stop at once, whatever it is doing? Stopped after each turn of the loop from its start on."""

import asyncio
import json
import os
from pathlib import Path

import pytest
import uvloop
from tests.servers.start import raw

from interlock.config.load import load
from interlock.links.keeper import STOP_S, Keeper
from interlock.node.node import Node
from interlock.process import child

TURNS = 25  # by then the child runs and is being greeted
MUTE = ["sh", "-c", "while read -r line; do :; done"]  # it starts at once and ends with its input
SOON_S = STOP_S / 2  # a child that is asked to end does so within a moment


async def started(folder: Path, command: list[str], count: int = 1) -> tuple[Node, list[Keeper]]:
    config = folder / "interlock.toml"
    names = [f"it{number}" for number in range(count)]
    config.write_text("".join(f"[servers.{name}]\ncommand = {json.dumps(command)}\n" for name in names))
    node = Node(
        load(config, os.environ, {"data": str(folder / "data")}).plan,
        lambda operations, authenticate: None,
        listen=False,
    )
    await node.open()
    return node, [node.calls.keepers[name] for name in names]


async def stop_timed(keeper: Keeper) -> float:
    began = asyncio.get_running_loop().time()
    await keeper.stop()
    return asyncio.get_running_loop().time() - began


async def stop_after_each_turn(folder: Path) -> None:
    """One link after no turn, the next after one turn, and so on."""
    node, keepers = await started(folder, MUTE, TURNS)
    stops: list[asyncio.Task[float]] = []
    for keeper in keepers:
        stops.append(asyncio.create_task(stop_timed(keeper)))
        await asyncio.sleep(0)
    times = await asyncio.gather(*stops)
    tasks = [keeper._task for keeper in keepers]
    await node.close()
    for turns, (task, took) in enumerate(zip(tasks, times, strict=True)):
        assert task is not None
        assert task.done(), f"after {turns} turns the link lives on"
        assert took < SOON_S, f"after {turns} turns it took {took:.1f} s"


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_a_link_that_is_stopped_while_its_server_starts_stops_at_once(tmp_path: Path, loop: str) -> None:
    factory = asyncio.new_event_loop if loop == "asyncio" else uvloop.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(stop_after_each_turn(tmp_path))


async def test_a_child_that_is_being_ended_when_the_node_stops_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(child, "TERM_GRACE_S", 0.5)
    node, (keeper,) = await started(tmp_path, raw("echo,stubborn"))
    await node.readiness.settle(20)
    pid = keeper.link.pid
    assert pid is not None
    await keeper.restart()
    async with asyncio.timeout(20):
        while keeper.link.pipe is not None:  # noqa: ASYNC110  (the node's own state)
            await asyncio.sleep(0)
    await keeper.stop()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    await node.close()
