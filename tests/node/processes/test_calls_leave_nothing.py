"""Do clients that went leave anything behind that only the garbage collector would find?

A node lets the collector look rarely. What waits for it keeps the bodies of its requests, and counts as growth.
"""

import asyncio
import gc
import hashlib
import itertools
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, cast

import pytest
import pytest_asyncio
from msgspec import Raw
from tests.drivers.contract_node import (
    FEATURES,
    ContractNode,
    LendingProvider,
    binding,
    contract,
    contract_node,
    driver,
)
from tests.gate.held_calls import ADA, MARK, anchor
from tests.gate.processes.test_gate_kept import Here
from tests.node.garbage_node import CALLS, CLIENTS
from tests.servers.start import raw
from tests.support.budget_node import Client, Leaf, budget_node, until
from tests.support.node_with_clock import ELICIT, FILLED, ModernRequest, filled_answers

from interlock.core.audit_record import AuditRecord
from interlock.core.link_state import LinkState
from interlock.core.recorder import Recorder
from interlock.drivers.protocol.problems import DriverRefusal

GATED = '[gate]\nmode = "open"\nalso = ["*.words", "*.play"]\n[approvals]\nmax_pending = 10000\n' + anchor(
    "ada", ADA, "*"
)
ASKS = {"act": {"ask": ELICIT}}
PAGES = {"elicitation": {"url": {}}}
HEAVY = ("repeated", "held below", "waiting", "refused", "parked", "hung up")
numbers = itertools.count()
PATH = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
PLAY = {
    "type": "object",
    "properties": {"act": {"type": "object"}, "label": {"type": "string"}, "say": {"type": "string"}},
}
TASKS = {"extensions": {"io.modelcontextprotocol/tasks": {}}}


def ran_alone(*words: str, **env: str) -> Any:
    """Return what the node of the garbage tests, in a process of its own, printed last."""
    command = [sys.executable, "-m", "tests.node.garbage_node", *words]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env={**os.environ, **env})
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout.splitlines()[-1])


@pytest.mark.parametrize("kind", CLIENTS)
def test_nothing_leaves_a_circle_for_the_collector(tmp_path: Path, kind: str) -> None:
    left = ran_alone(str(tmp_path), kind)
    assert len(left) < CALLS / 2, left


@pytest.mark.parametrize("kind", HEAVY)
def test_the_memory_of_a_node_does_not_grow_with_the_bodies_of_its_calls(tmp_path: Path, kind: str) -> None:
    """Long buffers go back to the system as soon as they are free: what stays resident is held."""
    calls, size = 40, 300_000
    left = ran_alone(str(tmp_path), kind, str(calls), str(size), MALLOC_MMAP_THRESHOLD_="131072")
    assert left < calls * size / 3


class Refusing:
    """An audit log whose disk is full."""

    def __init__(self) -> None:
        self.is_full, self.lines = True, list[bytes]()

    async def append(self, lines: list[bytes]) -> None:
        if self.is_full:
            raise OSError(28, "No space left on device")
        self.lines += lines


async def test_large_arguments_are_not_kept_until_the_next_flush_is_due(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("interlock.core.recorder.FLUSH_S", 3600)
    async with budget_node(tmp_path) as here:
        await here.leaf()
        kept, client = here.node.stores.recorder, here.client()
        assert "result" in await client.call("leaf.read", {"a": "small"}).message()
        assert kept._waiting
        assert "result" in await client.call("leaf.read", {"a": "x" * 300_000}).message()
        await until(lambda: not kept._waiting)


async def test_records_that_wait_for_a_full_disk_hold_no_arguments() -> None:
    audit = Refusing()
    recorder = Recorder(cast(Any, audit))
    arguments = Raw(b'"%b"' % (b"x" * 1_000_000))
    recorder.add(AuditRecord(0.0, "client:a", "http", "tools/call", "x.y", arguments, "admitted", "ok", 0.1, None))
    await recorder.flush()
    await recorder.flush()
    assert sum(len(one) for one in recorder._waiting if isinstance(one, bytes)) < 1000
    assert all(isinstance(one, bytes) for one in recorder._waiting)
    audit.is_full = False
    await recorder.flush()
    (line,) = audit.lines
    assert hashlib.sha256(arguments).hexdigest() in line.decode()


class Leaving(ContractNode):
    proof, confirm, approved = Here.proof, Here.confirm, Here.approved


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def here(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Leaving]:
    new = {"command": raw(f"{FEATURES},tasks", "--era", "modern")}
    async with contract_node(tmp_path_factory.mktemp("left"), {"new": new, "old": "legacy"}, GATED) as made:
        yield Leaving(made.node, made.clock)


async def ended(asked: ModernRequest) -> Any:
    """The answer. The test's own sink refers to its call: that circle is ours, not the node's."""
    message = await asked.message()
    asked.running = None
    return message


async def contract_answered(here: Leaving) -> None:
    assert "result" in await ended(here.call("fs__read", {"path": "/a"}))


async def contract_with_wrong_arguments(here: Leaving) -> None:
    assert (await ended(here.call("fs__read", {"path": 1})))["result"]["isError"]


async def contract_that_no_driver_takes(here: Leaving) -> None:
    assert (await ended(here.call("fs__gone", {"path": "/a"})))["result"]["isError"]


async def task_made(here: Leaving) -> None:
    made = (await ended(here.call("new__job", {}, capabilities=TASKS)))["result"]
    await ended(here.ask("tasks/get", {"taskId": made["taskId"]}, capabilities=TASKS))


async def unknown_tool(here: Leaving) -> None:
    assert "error" in await ended(here.call("new__nothing"))


async def cancelled(here: Leaving) -> None:
    asked = here.call("new__wait")
    asked.running.cancel("enough")
    asked.running = None
    await asyncio.sleep(0)


async def to_a_server_of_another_era(here: Leaving) -> None:
    assert "result" in await ended(here.call("old__keep", {"n": 1}))


async def held(here: Leaving, name: str, **options: Any) -> tuple[Any, Any]:
    """The arguments of a call that waits, and what is demanded for it."""
    arguments = {"label": f"n{next(numbers)}", "say": "x", **options.pop("more", {})}
    return arguments, (await ended(here.call(name, arguments, **options)))["result"]["_meta"][MARK]


async def agreed(here: Leaving, name: str, **options: Any) -> Any:
    arguments, demand = await held(here, name, **options)
    confirming = here.confirm(demand)
    assert (await ended(confirming))["result"]["status"] == "confirmed"
    options.pop("more", None)
    return arguments, (await ended(here.call(name, arguments, **options)))["result"]


async def waiting_for_a_person(here: Leaving) -> None:
    await held(here, "new__words")


async def released(here: Leaving) -> None:
    assert not (await agreed(here, "new__words"))[1].get("isError")


async def released_at_a_legacy_server(here: Leaving) -> None:
    assert not (await agreed(here, "old__words"))[1].get("isError")


async def confirmed_by_its_caller(here: Leaving) -> None:
    _, demand = await held(here, "new__words")
    assert not (await ended(here.confirm(demand, who="local")))["result"].get("isError")


async def confirmed_with_a_wrong_proof(here: Leaving) -> None:
    _, demand = await held(here, "new__words")
    assert "error" in await ended(here.confirm(demand, call_digest="0" * 64))


async def held_and_not_nameable(here: Leaving) -> None:
    assert "error" in await ended(here.call("new__words", {"n": 2**60}))


async def held_and_cancelled(here: Leaving) -> None:
    asked = here.call("new__words", {"say": f"n{next(numbers)}"})
    asked.running.cancel("enough")
    asked.running = None
    await asyncio.sleep(0)


async def shown_a_page_and_declined(here: Leaving) -> None:
    arguments = {"say": f"n{next(numbers)}"}
    said = (await ended(here.call("new__words", arguments, capabilities=PAGES)))["result"]
    answers = {"confirmation": {"action": "decline"}}
    back = here.again("new__words", arguments, said, answers, capabilities=PAGES)
    assert (await ended(back))["result"]["isError"]


async def released_and_asked_by_its_server(here: Leaving) -> None:
    arguments, said = await agreed(here, "new__play", more=ASKS)
    done = await ended(here.again("new__play", arguments, said, filled_answers(said)))
    assert done["result"]["resultType"] == "complete"


async def released_and_parked(here: Leaving) -> None:
    arguments, said = await agreed(here, "old__play", more=ASKS)
    done = await ended(here.again("old__play", arguments, said, filled_answers(said)))
    assert done["result"]["resultType"] == "complete"


async def parked_and_left(here: Leaving) -> None:
    _, said = await agreed(here, "old__play", more=ASKS)
    assert said["resultType"] == "input_required"
    here.clock.ahead += 301
    here.parking.sweep(here.clock.now())


async def contract_released(here: Leaving) -> None:
    assert "structuredContent" in (await agreed(here, "fs__ask"))[1]


async def contract_parked(here: Leaving) -> None:
    """By a contract's legacy server, and taken up again."""
    arguments = {"label": f"n{next(numbers)}", **ASKS}
    said = (await ended(here.call("fs__old", arguments)))["result"]
    assert (await ended(here.again("fs__old", arguments, said, filled_answers(said))))["result"][
        "resultType"
    ] == "complete"


async def contract_parked_and_left(here: Leaving) -> None:
    said = (await ended(here.call("fs__old", {"label": f"n{next(numbers)}", **ASKS})))["result"]
    assert said["resultType"] == "input_required"
    here.clock.ahead += 301
    here.parking.sweep(here.clock.now())


async def asked_of_a_legacy_client(here: Leaving) -> None:
    """By a modern server: the client is interviewed, and the call sent again."""
    client = Client(here, "legacy", "local", None, {"elicitation": {"form": {}}})
    asked = client.call("fs__new", {"label": f"n{next(numbers)}", **ASKS})
    await here.until(lambda: bool(asked.emitted or client.stream.emitted))
    (question,) = asked.emitted or client.stream.emitted
    client.answer(question["id"], FILLED)
    assert "result" in await ended(asked)
    close(here, client)


async def asked_of_a_legacy_client_that_leaves(here: Leaving) -> None:
    client = Client(here, "legacy", "local", None, {"elicitation": {"form": {}}})
    asked = client.call("fs__new", {"label": f"n{next(numbers)}", **ASKS})
    await here.until(lambda: bool(asked.emitted or client.stream.emitted))
    asked.running.cancel("enough")
    asked.running = None
    close(here, client)


def close(here: Leaving, client: Client) -> None:
    assert client._session is not None
    here.node.fronts.legacy.sessions.close(client._session, "enough")


async def timed_out(here: Leaving) -> None:
    asked = here.call("new__wait")
    here.clock.ahead += 1000
    here.node.calls.dispatch.under_way._sweep()
    assert "error" in await ended(asked)


async def lost(here: Leaving) -> None:
    asked = here.call("new__wait")
    here.node.calls.keepers["new"].link.fail_all("gone")
    assert "error" in await ended(asked)


async def to_a_subserver(here: Leaving) -> None:
    assert "result" in await ended(here.call("leaf__read"))


async def to_a_subserver_of_another_era(here: Leaving) -> None:
    assert "result" in await ended(here.call("elder__read"))


async def a_prompt(here: Leaving) -> None:
    assert await ended(here.ask("prompts/get", {"name": "new__plain"}))


async def a_resource(here: Leaving) -> None:
    assert await ended(here.ask("resources/read", {"uri": "nothing://here"}))


WAYS: dict[str, Callable[[Leaving], Awaitable[Any]]] = {
    "a contract": contract_answered,
    "wrong arguments": contract_with_wrong_arguments,
    "no driver": contract_that_no_driver_takes,
    "a task": task_made,
    "an unknown tool": unknown_tool,
    "cancelled": cancelled,
    "across eras": to_a_server_of_another_era,
    "waiting for a person": waiting_for_a_person,
    "released": released,
    "released at a legacy server": released_at_a_legacy_server,
    "confirmed by its caller": confirmed_by_its_caller,
    "confirmed with a wrong proof": confirmed_with_a_wrong_proof,
    "held and not nameable": held_and_not_nameable,
    "held and cancelled": held_and_cancelled,
    "shown a page and declined": shown_a_page_and_declined,
    "released and asked": released_and_asked_by_its_server,
    "released and parked": released_and_parked,
    "parked and left": parked_and_left,
    "a contract, released": contract_released,
    "a contract, parked": contract_parked,
    "a contract, parked and left": contract_parked_and_left,
    "a legacy client, asked": asked_of_a_legacy_client,
    "a legacy client, asked and gone": asked_of_a_legacy_client_that_leaves,
    "timed out": timed_out,
    "lost": lost,
    "a subserver": to_a_subserver,
    "a subserver across eras": to_a_subserver_of_another_era,
    "a prompt": a_prompt,
    "a resource": a_resource,
}


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("way", WAYS)
async def test_no_way_of_a_call_ends_in_a_circle(here: Leaving, way: str) -> None:
    read, gone = contract("fs.read", inputs=PATH), contract("fs.gone", inputs=PATH)
    lending = LendingProvider(here.node, "new", driver("read-mcp", binding(read.id, "keep")), [read])
    refusing = LendingProvider(here.node, "new", driver("gone-mcp", binding(gone.id, "keep")), [gone])
    refusing.refusal = DriverRefusal(code="auth_failed", message="no")
    ask, old, new = (
        contract("fs.ask", inputs=PLAY, approval="always"),
        contract("fs.old", inputs=PLAY),
        contract("fs.new", inputs=PLAY),
    )
    asking = LendingProvider(
        here.node, "new", driver("ask-mcp", binding(ask.id, "keep"), binding(new.id, "play")), [ask, new]
    )
    elder = LendingProvider(here.node, "old", driver("old-mcp", binding(old.id, "play")), [old])
    await here.offer([read, gone, ask, old, new], lending, refusing, asking, elder)
    if "leaf" not in here.node.calls.keepers:
        for segment, era in (("leaf", "modern"), ("elder", "legacy")):
            await Leaf(here, segment, era, None).register()
        await here.until(lambda: here.node.calls.keepers["elder"].link.standing.state is LinkState.READY)
        await here.until(lambda: here.node.calls.keepers["leaf"].link.standing.state is LinkState.READY)
    await WAYS[way](here)
    gc.collect()
    flags, enabled = gc.get_debug(), gc.isenabled()
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        for _ in range(CALLS):
            await WAYS[way](here)
        await here.until(lambda: not here.node.calls.dispatch.under_way.calls)
        gc.collect()
        left = [type(one).__name__ for one in gc.garbage if type(one).__module__.startswith("interlock.")]
    finally:
        gc.set_debug(flags)
        gc.garbage.clear()
        if enabled:
            gc.enable()
    assert len(left) < CALLS / 2, left
