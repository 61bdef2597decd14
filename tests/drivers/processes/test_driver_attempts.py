"""A driver's server that does not come, or goes: how often is it tried, who waits, and what is said?"""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import pytest_asyncio
from tests.drivers.driver_stage import (
    AheadClock,
    DriverStage,
    call_tool,
    caller,
    driver_stage,
    lend_link,
    until,
    wait_until_settled,
)

from interlock.drivers.driver_state import DriverState
from interlock.drivers.install.installation import Attempt, InstallFailed
from interlock.drivers.protocol.problems import DriverRefusal
from interlock.drivers.provider import keeper as keeping
from interlock.drivers.provider import provider as provider_module
from interlock.links import connector
from interlock.links.keeper import backoff_s
from interlock.links.server_messages import LostRefusal
from interlock.process import limits


@pytest.fixture
def clock() -> AheadClock:
    return AheadClock()


@pytest_asyncio.fixture
async def stage(tmp_path: Path, clock: AheadClock) -> AsyncIterator[DriverStage]:
    async with driver_stage(tmp_path, clock) as stage:
        yield stage


@pytest.mark.req("AIP-transport-12")
def test_the_pauses_between_attempts_start_at_a_quarter_second_double_and_end_at_half_a_minute() -> None:
    pauses = [backoff_s(attempt, keeping.FIRST_S) for attempt in range(1, 12)]
    for attempt, pause in enumerate(pauses):
        exact = min(30.0, 0.25 * 2**attempt)
        assert exact * 0.8 <= pause <= exact * 1.2


@pytest.mark.req("AIP-transport-12")
async def test_a_server_that_ends_at_once_is_tried_once_and_max_retries_more_times(stage: DriverStage) -> None:
    provider = await wait_until_settled(stage.provider("--exit", "3", connection_options={"max_retries": 2}))
    assert provider.state is DriverState.UNAVAILABLE
    assert "exited with code 3" in (provider.reason or "")
    assert len(stage.log.starts) == 3


@pytest.mark.req("AIP-transport-12")
async def test_a_call_for_a_failed_driver_makes_one_more_series_and_ends_as_retryable(stage: DriverStage) -> None:
    provider = await wait_until_settled(stage.provider("--exit", "3", connection_options={"max_retries": 0}))
    error = await provider.acquire(caller())
    assert isinstance(error, DriverRefusal)
    assert (error.code, error.retryable) == ("tool_unavailable", True)
    assert "exited with code 3" in error.cause["reason"]
    assert "exited" not in error.message
    assert len(stage.log.starts) == 2


@pytest.mark.req("AIP-transport-12")
async def test_five_exits_within_a_minute_leave_it_alone_for_a_minute(
    stage: DriverStage, clock: AheadClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeping, "FIRST_S", 0.02)
    provider = await wait_until_settled(stage.provider("--exit", "3", connection_options={"max_retries": 10}))
    assert provider.state is DriverState.UNAVAILABLE
    assert len(stage.log.starts) == 5
    error = await provider.acquire(caller())
    assert isinstance(error, DriverRefusal)
    assert error.retryable
    assert len(stage.log.starts) == 5
    clock.ahead += keeping.BARRED_S + 1
    waiting = asyncio.create_task(provider.acquire(caller()))
    await until(lambda: len(stage.log.starts) > 5)
    waiting.cancel()


@pytest.mark.req("AIP-transport-12")
async def test_five_exits_that_are_further_apart_are_no_reason_to_leave_it_alone(
    stage: DriverStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert (keeping.EXITS_MAX, keeping.EXITS_WITHIN_S, keeping.BARRED_S) == (5, 60.0, 60.0)
    monkeypatch.setattr(keeping, "FIRST_S", 0.02)
    monkeypatch.setattr(keeping, "EXITS_WITHIN_S", 0.0)
    await wait_until_settled(stage.provider("--exit", "3", connection_options={"max_retries": 5}))
    assert len(stage.log.starts) == 6


@pytest.mark.req("AIP-transport-13")
async def test_a_server_that_dies_fails_its_open_calls_at_once_and_the_next_runs_on_another(stage: DriverStage) -> None:
    provider = await wait_until_settled(stage.provider())
    leases = [await lend_link(provider) for _ in range(3)]
    never = str(stage.folder / "never")
    calls = [lease.link.ask("tools/call", {"name": "wait", "arguments": {"until": never}}) for lease in leases]
    await until(lambda: stage.log.methods.count("tools/call") == 3)
    os.kill(stage.log.pids[0], signal.SIGKILL)
    async with asyncio.timeout(1):
        replies = [await call.future for call in calls]
    for reply in replies:
        assert isinstance(reply, LostRefusal)
        assert (reply.details or {})["outcome"] == "unknown"
        assert "SIGKILL" in reply.detail
    for lease in leases:
        lease.release()
    lease = await lend_link(provider)
    assert (await call_tool(lease))["pid"] == stage.log.pids[1]
    assert provider.state is DriverState.READY
    lease.release()


@pytest.mark.req("AIP-front-7")
async def test_a_server_that_never_answers_fails_after_the_time_of_its_connection(stage: DriverStage) -> None:
    loop = asyncio.get_running_loop()
    began = loop.time()
    options = {"timeout_ms": 300, "max_retries": 0}
    provider = await wait_until_settled(stage.provider("--mute", connection_options=options))
    assert 0.3 <= loop.time() - began < 3
    assert provider.state is DriverState.UNAVAILABLE
    assert "no answer" in (provider.reason or "")


async def test_the_first_caller_may_leave_without_ending_what_was_started_for_them(stage: DriverStage) -> None:
    provider = await wait_until_settled(stage.provider())
    instance = provider._instances.find(None)  # type: ignore[union-attr]
    assert instance is not None
    provider._instances.rest(instance)  # type: ignore[union-attr]
    await until(lambda: stage.node.calls.keepers["driven-mcp@1"].link.pid is None, 5)
    slow = stage.log.path.with_name("slow")
    slow.touch()
    leaving = asyncio.create_task(provider.acquire(caller()))
    await until(lambda: len(stage.log.starts) == 2)
    assert not leaving.done()
    leaving.cancel()
    slow.unlink()
    lease = await lend_link(provider, "bob")
    assert len(stage.log.starts) == 2
    lease.release()


@pytest.mark.req("AIP-30.install-1")
async def test_a_driver_that_cannot_be_installed_names_every_reason_and_is_tried_again(
    stage: DriverStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(provider_module, "INSTALL_AGAIN_S", 3600)
    attempts = (Attempt(method="npm", reason="no registry"), Attempt(method="pip", reason="no index"))
    stage.failing = InstallFailed(code="install_failed", attempts=attempts)
    provider = await wait_until_settled(stage.provider())
    assert (provider.state, provider.code) == (DriverState.UNAVAILABLE, "install_failed")
    assert provider.reason == "npm: no registry; pip: no index"
    error = await provider.acquire(caller())
    assert isinstance(error, DriverRefusal)
    assert error.code == "tool_unavailable"
    assert stage.installs == 1  # no call installs anything
    await provider.stop()
    monkeypatch.setattr(provider_module, "INSTALL_AGAIN_S", 0.05)
    provider = await wait_until_settled(stage.provider())
    stage.failing = None
    await until(lambda: provider.state is DriverState.READY)
    before = stage.installs
    (await lend_link(provider)).release()
    assert stage.installs == before


async def test_an_operator_who_restarts_it_is_not_held_up_by_anything(
    stage: DriverStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeping, "FIRST_S", 0.02)
    provider = await wait_until_settled(stage.provider("--exit", "3", connection_options={"max_retries": 10}))
    assert provider.state is DriverState.UNAVAILABLE
    await stage.node.operations.links.restart("driven-mcp@1")
    await until(lambda: len(stage.log.starts) > 5)


async def test_many_drivers_start_side_by_side_and_no_more_than_a_few_at_a_time(
    stage: DriverStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_once = most = 0
    launch = connector.Connector._launch
    stock = keeping.Keeper._publish

    async def counted(self: connector.Connector, *arguments: Any) -> None:
        nonlocal at_once, most
        at_once += 1
        most = max(most, at_once)
        await launch(self, *arguments)

    async def listed(self: keeping.Keeper, *arguments: Any) -> None:
        nonlocal at_once
        at_once -= 1
        await stock(self, *arguments)

    monkeypatch.setattr(connector.Connector, "_launch", counted)
    monkeypatch.setattr(keeping.Keeper, "_publish", listed)
    monkeypatch.setattr(limits, "STARTS_MAX", 3)
    parts = msgspec.structs.replace(stage.environment.connector_parts, limits=limits.StartLimits())
    stage.environment = msgspec.structs.replace(stage.environment, connector_parts=parts)
    providers = [stage.provider(id=f"driven-{number}") for number in range(8)]
    for provider in providers:
        assert (await wait_until_settled(provider)).state is DriverState.READY
    assert most == 3
