"""Do clients that went leave anything behind that only the garbage collector would find?

A node lets the collector look rarely. What waits for it keeps the bodies of its requests, and counts as growth.
"""

import asyncio
import gc
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from tests.runtime.contracts_here import FEATURES, ContractPlace, Lending, binding, contract, contract_place, driver
from tests.runtime.leaving import CALLS, CLIENTS
from tests.runtime.parked import Asked
from tests.servers.start import raw

from interlock.protocol.drivers.errors import DriverError
from interlock.runtime.calls.call import Call

PATH = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
TASKS = {"extensions": {"io.modelcontextprotocol/tasks": {}}}
Way = Callable[[ContractPlace], Awaitable[Any]]


@pytest.mark.parametrize("kind", CLIENTS)
def test_nothing_leaves_a_circle_for_the_collector(tmp_path: Path, kind: str) -> None:
    command = [sys.executable, "-m", "tests.runtime.leaving", str(tmp_path), kind]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    left = json.loads(ran.stdout.splitlines()[-1])
    assert len(left) < CALLS / 2, left


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def here(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ContractPlace]:
    new = {"command": raw(f"{FEATURES},tasks", "--era", "modern")}
    async with contract_place(tmp_path_factory.mktemp("left"), {"new": new, "old": "legacy"}) as here:
        yield here


async def ended(asked: Asked) -> Any:
    """The answer. The test's own sink refers to its call: that circle is ours, not the node's."""
    message = await asked.message()
    asked.running = None
    return message


async def contract_answered(here: ContractPlace) -> None:
    assert "result" in await ended(here.call("fs__read", {"path": "/a"}))


async def contract_with_wrong_arguments(here: ContractPlace) -> None:
    assert (await ended(here.call("fs__read", {"path": 1})))["result"]["isError"]


async def contract_that_no_driver_takes(here: ContractPlace) -> None:
    assert (await ended(here.call("fs__gone", {"path": "/a"})))["result"]["isError"]


async def task_made(here: ContractPlace) -> None:
    made = (await ended(here.call("new__job", {}, capabilities=TASKS)))["result"]
    await ended(here.ask("tasks/get", {"taskId": made["taskId"]}, capabilities=TASKS))


async def unknown_tool(here: ContractPlace) -> None:
    assert "error" in await ended(here.call("new__nothing"))


async def cancelled(here: ContractPlace) -> None:
    asked = here.call("new__wait")
    asked.running.cancel("enough")
    asked.running = None
    await asyncio.sleep(0)


async def to_a_server_of_another_era(here: ContractPlace) -> None:
    assert "result" in await ended(here.call("old__keep", {"n": 1}))


WAYS: dict[str, Way] = {
    "a contract": contract_answered,
    "wrong arguments": contract_with_wrong_arguments,
    "no driver": contract_that_no_driver_takes,
    "a task": task_made,
    "an unknown tool": unknown_tool,
    "cancelled": cancelled,
    "across eras": to_a_server_of_another_era,
}


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("way", WAYS)
async def test_no_way_of_a_call_ends_in_a_circle(here: ContractPlace, way: str) -> None:
    read, gone = contract("fs.read", inputs=PATH), contract("fs.gone", inputs=PATH)
    lending = Lending(here.node, "new", driver("read-mcp", binding(read.id, "keep")), [read])
    refusing = Lending(here.node, "new", driver("gone-mcp", binding(gone.id, "keep")), [gone])
    refusing.refusal = DriverError(code="auth_failed", message="no")
    await here.offer([read, gone], lending, refusing)
    await WAYS[way](here)
    gc.collect()
    flags, enabled = gc.get_debug(), gc.isenabled()
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        for _ in range(CALLS):
            await WAYS[way](here)
        await here.until(lambda: not here.node.calls.dispatch.in_flight)
        gc.collect()
        left = [type(one).__name__ for one in gc.garbage if isinstance(one, Call)]
    finally:
        gc.set_debug(flags)
        gc.garbage.clear()
        if enabled:
            gc.enable()
    assert len(left) < CALLS / 2, left
