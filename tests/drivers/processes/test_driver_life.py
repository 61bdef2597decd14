"""A driver's server while it runs: one process for many calls, sleep, and lists that change."""

import asyncio
import json
import os
import signal
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from tests.drivers.driver_stage import (
    AheadClock,
    DriverStage,
    alive,
    call_tool,
    caller,
    driver_stage,
    lend_link,
    until,
    wait_until_settled,
)
from tests.drivers.scripted_server import Scripted

from interlock.core.link_state import LinkState
from interlock.drivers.driver_state import DriverState
from interlock.drivers.protocol.problems import DriverRefusal
from interlock.drivers.provider import checks

KEY = "driven-mcp@1"
SECOND = {"metadata": {"idle_timeout_ms": 1000}}


@pytest.fixture
def clock() -> AheadClock:
    return AheadClock()


@pytest_asyncio.fixture
async def stage(tmp_path: Path, clock: AheadClock) -> AsyncIterator[DriverStage]:
    async with driver_stage(tmp_path, clock) as stage:
        yield stage


def is_asleep(stage: DriverStage) -> bool:
    return stage.node.calls.keepers[KEY].link.standing.state is LinkState.ASLEEP


@pytest.mark.req("AIP-transport-2")
async def test_a_hundred_calls_one_after_the_other_are_answered_by_one_process_greeted_once(stage: DriverStage) -> None:
    provider = await wait_until_settled(stage.provider())
    pids = set()
    for number in range(100):
        lease = await lend_link(provider)
        answer = await call_tool(lease, n=number)
        assert answer["n"] == number
        pids.add(answer["pid"])
        lease.release()
    assert len(pids) == 1
    assert stage.log.methods.count("initialize") == 1


class TouchedFolder:
    """A driver's folder that is the trusted one when its server starts, and another a moment later."""

    def __init__(self, *, is_touched: bool) -> None:
        self.is_touched = is_touched

    async def mark(self) -> bytes:
        return b"as trusted"

    async def is_same(self, mark: bytes) -> bool:
        assert mark == b"as trusted"
        return not self.is_touched


@pytest.mark.req("AIP-security-13")
async def test_a_server_whose_folder_was_touched_while_it_started_is_asked_for_nothing(stage: DriverStage) -> None:
    whole = await wait_until_settled(stage.provider(seal=TouchedFolder(is_touched=False)))
    assert whole.state is DriverState.READY
    await whole.stop()
    listed = stage.log.methods.count("tools/list")
    touched = await wait_until_settled(stage.provider(seal=TouchedFolder(is_touched=True)))
    assert touched.state is not DriverState.READY
    assert stage.log.methods.count("tools/list") == listed


@pytest.mark.req("AIP-transport-5")
async def test_twenty_slow_calls_are_under_way_at_once_on_one_process(stage: DriverStage) -> None:
    provider = await wait_until_settled(stage.provider())
    gates = [stage.folder / f"gate{number}" for number in range(20)]
    leases = [await lend_link(provider) for _ in gates]
    calls = [
        asyncio.create_task(call_tool(lease, "wait", until=str(gate)))
        for lease, gate in zip(leases, gates, strict=True)
    ]
    await until(lambda: stage.log.methods.count("tools/call") == 20)
    answers: list[Any] = []
    for gate, call in reversed(list(zip(gates, calls, strict=True))):  # answered in the reverse order
        gate.touch()
        answers.append(await call)
        assert answers[-1]["until"] == str(gate)
    assert len({answer["pid"] for answer in answers}) == len(stage.log.pids) == 1
    for lease in leases:
        lease.release()


@pytest.mark.req("AIP-transport-5")
async def test_an_answer_to_nothing_that_was_asked_is_logged_counted_and_dropped(
    stage: DriverStage, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    provider = await wait_until_settled(stage.provider())
    lease = await lend_link(provider)
    lease.link.on_message(b'{"jsonrpc":"2.0","id":999999,"result":{}}', None)
    assert lease.link.stray == 1
    assert "an answer to no request, id 999999" in caplog.text
    assert (await call_tool(lease, n=1))["n"] == 1
    lease.release()


@pytest.mark.req("AIP-transport-3")
async def test_a_server_does_not_fall_asleep_while_a_call_is_under_way(stage: DriverStage, clock: AheadClock) -> None:
    provider = await wait_until_settled(stage.provider(**SECOND))
    lease = await lend_link(provider)
    gate = stage.folder / "gate"
    call = asyncio.create_task(call_tool(lease, "wait", until=str(gate)))
    await until(lambda: "tools/call" in stage.log.methods)
    instance = lease.instance
    clock.ahead += 10
    provider._instances._look(instance)  # type: ignore[union-attr]
    assert not is_asleep(stage)
    assert alive(stage.log.pids[0])
    gate.touch()
    await call
    lease.release()
    await until(lambda: is_asleep(stage), 3)
    assert not alive(stage.log.pids[0])


@pytest.mark.req("AIP-transport-3")
async def test_a_server_does_not_fall_asleep_while_somebody_watches_a_resource(
    stage: DriverStage, clock: AheadClock
) -> None:
    provider = await wait_until_settled(stage.provider(**SECOND))
    keeper = stage.node.calls.keepers[KEY]
    keeper.subscriptions.uris.add("file:///a")
    clock.ahead += 10
    instance = provider._instances.find(None)  # type: ignore[union-attr]
    assert instance is not None
    provider._instances._look(instance)  # type: ignore[union-attr]
    assert not is_asleep(stage)
    keeper.subscriptions.uris.clear()
    await until(lambda: is_asleep(stage), 3)


@pytest.mark.req("AIP-transport-3")
async def test_keepalive_keeps_a_server_awake(stage: DriverStage, clock: AheadClock) -> None:
    provider = await wait_until_settled(stage.provider(**SECOND, connection_options={"keepalive": True}))
    instance = provider._instances.find(None)  # type: ignore[union-attr]
    assert instance is not None
    assert instance.watch is None
    async with Scripted() as there:  # which runs elsewhere, and is not ours to end
        remote = stage.provider(id="far-mcp", server={"kind": "remote", "url": there.url}, transport="http", **SECOND)
        instance = (await wait_until_settled(remote))._instances.find(None)  # type: ignore[union-attr]
        assert instance is not None
        assert instance.watch is None


@pytest.mark.req("AIP-transport-1")
async def test_two_calls_that_find_it_asleep_start_one_process(stage: DriverStage) -> None:
    provider = await wait_until_settled(stage.provider(**SECOND))
    await until(lambda: is_asleep(stage), 5)
    one, other = await asyncio.gather(lend_link(provider, "ada"), lend_link(provider, "bob"))
    assert len(stage.log.pids) == 2
    assert one.link is other.link
    one.release()
    other.release()


@pytest.mark.req("AIP-transport-1")
async def test_a_driver_that_was_checked_before_is_lazily_ready_without_a_process(stage: DriverStage) -> None:
    first = await wait_until_settled(stage.provider())
    await first.stop()
    again = await wait_until_settled(stage.provider(plan={"registration": "lazy"}))
    assert again.state is DriverState.READY
    assert again.contract_ids == {"echoes"}
    await until(lambda: is_asleep(stage))
    assert len(stage.log.starts) == 1
    one, other = await asyncio.gather(lend_link(again, "ada"), lend_link(again, "bob"))
    assert len(stage.log.starts) == 2
    assert set(again.bound) == {"echoes"}
    one.release()
    other.release()


@pytest.mark.req("AIP-transport-1")
async def test_a_lazy_driver_is_checked_again_before_its_first_call_is_dispatched(stage: DriverStage) -> None:
    options = stage.tools({"name": "echo"})
    first = await wait_until_settled(stage.provider(*options))
    await first.stop()
    stage.tools({"name": "other"})
    again = await wait_until_settled(stage.provider(*options, plan={"registration": "lazy"}))
    assert again.state is DriverState.READY
    error = await again.acquire(caller())
    assert isinstance(error, DriverRefusal)
    assert error.code == "contract_mismatch"
    assert again.state is DriverState.REJECTED
    assert "tools/call" not in stage.log.methods


async def test_a_lazy_driver_that_changed_since_it_was_checked_is_checked_at_once(stage: DriverStage) -> None:
    first = await wait_until_settled(stage.provider())
    await first.stop()
    changed = {"echoes": {"description": "Other words."}}
    again = await wait_until_settled(stage.provider(plan={"registration": "lazy"}, contracts=changed))
    assert again.state is DriverState.READY
    assert len(stage.log.starts) == 2


async def test_a_stored_check_contains_no_text_of_the_server(stage: DriverStage) -> None:
    options = stage.tools({"name": "echo", "description": "WORDS OF THE SERVER"})
    await wait_until_settled(stage.provider(*options))
    entry = await stage.node.stores.store.kv.get("driver_snapshots", KEY, stage.node.stores.clock.wall())
    assert entry is not None
    assert b"WORDS" not in entry.value
    assert set(json.loads(entry.value)["tools"]) == {"echoes"}


@pytest.mark.req("AIP-tools-10")
async def test_a_tool_that_goes_away_rejects_the_driver_before_its_next_call(stage: DriverStage) -> None:
    provider = await wait_until_settled(stage.provider(*stage.tools({"name": "echo"})))
    (await lend_link(provider)).release()
    stage.tools({"name": "other"})
    os.kill(stage.log.pids[0], signal.SIGUSR1)
    keeper = stage.node.calls.keepers[KEY]
    await until(lambda: keeper._relists)
    error = await provider.acquire(caller())
    assert isinstance(error, DriverRefusal)
    assert error.code == "contract_mismatch"
    assert provider.code == "mcp_tool_missing"
    stage.tools({"name": "echo"})
    os.kill(stage.log.pids[0], signal.SIGUSR1)
    await until(lambda: provider.state is DriverState.READY)


@pytest.mark.req("AIP-tools-10")
async def test_a_definition_that_changed_and_still_fits_is_only_noted(stage: DriverStage) -> None:
    provider = await wait_until_settled(stage.provider(*stage.tools({"name": "echo"})))
    before = provider.bound["echoes"]
    stage.tools({"name": "echo", "description": "Says it again."})
    os.kill(stage.log.pids[0], signal.SIGUSR1)
    await until(lambda: provider.bound["echoes"] is not before)
    assert provider.state is DriverState.READY
    assert [(problem.code, problem.severity) for problem in provider.problems] == [("definition_changed", "note")]


@pytest.mark.req("AIP-tools-10")
async def test_bindings_are_checked_again_after_a_respawn(stage: DriverStage) -> None:
    provider = await wait_until_settled(stage.provider(*stage.tools({"name": "echo"})))
    stage.tools({"name": "other"})
    os.kill(stage.log.pids[0], signal.SIGKILL)
    await until(lambda: provider.state is DriverState.REJECTED)
    assert "tools/call" not in stage.log.methods


@pytest.mark.req("AIP-tools-10")
async def test_bindings_are_checked_again_when_a_modern_list_has_had_its_time(
    stage: DriverStage, clock: AheadClock
) -> None:
    options = ("--era", "modern", "--ttl-ms", "30000", *stage.tools({"name": "echo"}))
    provider = await wait_until_settled(stage.provider(*options))
    (await lend_link(provider)).release()
    listed = stage.log.methods.count("tools/list")
    (await lend_link(provider)).release()
    assert stage.log.methods.count("tools/list") == listed
    stage.tools({"name": "other"})
    clock.ahead += 31
    assert provider.find_ready_lease(caller()) is None
    error = await provider.acquire(caller())
    assert isinstance(error, DriverRefusal)
    assert error.code == "contract_mismatch"


@pytest.mark.req("AIP-tools-9")
async def test_one_missing_tool_of_several_refuses_all_of_them_and_is_named(stage: DriverStage) -> None:
    tools = {"echo": "echoes", "wait": "waits", "gone": "goes"}
    provider = await wait_until_settled(stage.provider(tools=tools))
    other = await wait_until_settled(stage.provider(id="other-mcp"))
    assert (provider.state, provider.contract_ids) == (DriverState.REJECTED, frozenset())
    assert "gone" in (provider.reason or "")
    assert other.state is DriverState.READY


@pytest.mark.req("AIP-tools-9")
async def test_an_operator_may_have_only_the_broken_binding_dropped(stage: DriverStage) -> None:
    tools = {"echo": "echoes", "wait": "waits", "gone": "goes"}
    provider = await wait_until_settled(stage.provider(tools=tools, plan={"on_mismatch": "drop_binding"}))
    assert (provider.state, provider.contract_ids) == (DriverState.PARTIAL, {"echoes", "waits"})
    alone = stage.provider(id="none-mcp", tools={"gone": "goes"}, plan={"on_mismatch": "drop_binding"})
    assert (await wait_until_settled(alone)).state is DriverState.REJECTED
    lease = await lend_link(provider)
    assert (await call_tool(lease, n=1))["n"] == 1
    lease.release()


@pytest.mark.req("AIP-tools-1")
async def test_a_tool_on_a_later_page_of_the_list_is_found(stage: DriverStage) -> None:
    options = stage.tools({"name": "first"}, {"name": "second"}, {"name": "echo"})
    provider = await wait_until_settled(stage.provider(*options, "--page", "1"))
    assert provider.state is DriverState.READY
    assert stage.log.methods.count("tools/list") == 3


@pytest.mark.req("AIP-tools-1")
async def test_names_of_tools_are_compared_with_their_case(stage: DriverStage) -> None:
    provider = await wait_until_settled(stage.provider(tools={"Echo": "echoes"}))
    assert (provider.state, provider.code) == (DriverState.REJECTED, "mcp_tool_missing")


async def test_a_replaced_driver_ends_its_calls_before_its_process(stage: DriverStage) -> None:
    old = await wait_until_settled(stage.provider())
    lease = await lend_link(old)
    gate = stage.folder / "gate"
    call = asyncio.create_task(call_tool(lease, "wait", until=str(gate)))
    await until(lambda: "tools/call" in stage.log.methods)
    leaving = asyncio.create_task(old.stop())
    new = await wait_until_settled(stage.provider())
    assert new.state is DriverState.READY
    assert not leaving.done()
    gate.touch()
    assert (await call)["pid"] == stage.log.pids[0]
    lease.release()
    await leaving
    assert not alive(stage.log.pids[0])
    assert alive(stage.log.pids[1])
    assert stage.node.calls.keepers[KEY].link.pid == stage.log.pids[1]


async def test_a_list_that_takes_long_to_check_holds_up_nobody_else(
    stage: DriverStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    hold, checking = threading.Event(), checks.check

    def slow(driver: Any, *more: Any) -> Any:
        if driver.id == "slow-mcp":
            hold.wait(20)
        return checking(driver, *more)

    monkeypatch.setattr(checks, "check", slow)
    held = stage.provider(id="slow-mcp")
    other = await wait_until_settled(stage.provider())
    lease = await lend_link(other)
    assert (await call_tool(lease, n=1))["n"] == 1
    lease.release()
    assert held.state is DriverState.CHECKING
    hold.set()
    assert (await wait_until_settled(held)).state is DriverState.READY


async def test_a_driver_that_ended_starts_nothing_and_keeps_nobody_waiting(stage: DriverStage) -> None:
    provider = stage.provider("--mute")
    await until(lambda: stage.log.starts)
    waiting = asyncio.create_task(provider.acquire(caller()))
    await until(lambda: (instance := provider._instances.find(None)) and instance.leases)  # type: ignore[union-attr]
    await provider.stop(at_once=True)
    for error in (await waiting, await provider.acquire(caller())):
        assert isinstance(error, DriverRefusal)
        assert (error.code, error.retryable) == ("tool_unavailable", True)
    assert provider.find_ready_lease(caller()) is None
    assert not any(map(alive, stage.log.pids))
    assert stage.node.calls.keepers == {}


async def test_a_sleeping_driver_is_shown_as_such_and_its_lists_make_no_other_list_old(stage: DriverStage) -> None:
    await wait_until_settled(stage.provider(**SECOND))
    await until(lambda: is_asleep(stage), 5)
    (shown,) = stage.node.operations.links.list_all().links
    assert (shown.state, shown.tools) == ("asleep", 0)
    assert stage.node.fronts.lists._ttl_ms(None) > 50_000
