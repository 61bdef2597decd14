"""Processes of a driver that serves several tenants: whose is whose, how many there may be, and who has to wait."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from tests.drivers.driver_stage import (
    DriverStage,
    alive,
    call_tool,
    caller,
    driver_stage,
    lend_link,
    until,
    wait_until_settled,
)
from tests.drivers.driver_texts import as_driver, driver

from interlock.config.plan import Spawn
from interlock.drivers.driver_state import DriverState
from interlock.drivers.install.installation import Installed, Locked
from interlock.drivers.kinds import kind_of
from interlock.drivers.protocol.problems import DriverRefusal
from interlock.drivers.provider import keeper

KEY = "driven-mcp@1"


@pytest_asyncio.fixture
async def stage(tmp_path: Path) -> AsyncIterator[DriverStage]:
    async with driver_stage(tmp_path) as stage:
        yield stage


async def pid_of(stage: DriverStage, provider: object, who: str) -> int:
    lease = await lend_link(provider, who)  # type: ignore[arg-type]
    pid: int = (await call_tool(lease))["pid"]
    lease.release()
    return pid


@pytest.mark.req("AIP-tenant-1")
async def test_three_tenants_run_three_processes_and_each_keeps_its_own(stage: DriverStage) -> None:
    provider = await wait_until_settled(stage.provider(metadata={"isolation": "tenant"}))
    pids = {who: await pid_of(stage, provider, who) for who in ("ada", "bob", "cyd")}
    assert len(set(pids.values())) == 3
    assert {who: await pid_of(stage, provider, who) for who in ("ada", "bob", "cyd")} == pids
    (looked_at, *others) = stage.log.pids
    assert looked_at not in pids.values()
    assert set(others) == set(pids.values())
    await until(lambda: not alive(looked_at))


@pytest.mark.req("AIP-tenant-1")
async def test_without_isolation_all_share_one_process(stage: DriverStage) -> None:
    provider = await wait_until_settled(stage.provider())
    assert {await pid_of(stage, provider, who) for who in ("ada", "bob", "cyd")} == set(stage.log.pids)
    assert len(stage.log.pids) == 1


@pytest.mark.req("AIP-tenant-1")
def test_each_tenant_has_a_private_home(tmp_path: Path) -> None:
    read = as_driver(driver(server={"kind": "binary", "path": "/bin/true"}))
    assert read.value is not None
    installed = Installed(command=("/bin/true",), version=None, lock=Locked(asked="", method="present"))
    homes = set()
    for who in (None, "ada", "bob"):
        plan = kind_of(read.value.server).compile_plan(
            read.value, installed, folder=tmp_path, data=tmp_path, tenant=who
        )
        assert isinstance(plan.reach, Spawn)
        assert plan.reach.sandbox is not None
        homes.add(plan.reach.sandbox.home)
    assert len(homes) == 3
    assert not any(one.is_relative_to(other) for one in homes for other in homes if one != other)


@pytest.mark.req("AIP-tenant-2")
async def test_the_process_idle_longest_makes_room_for_another_tenant(stage: DriverStage) -> None:
    provider = await wait_until_settled(stage.provider(metadata={"isolation": "tenant", "max_processes": 2}))
    ada = await pid_of(stage, provider, "ada")
    bob = await pid_of(stage, provider, "bob")
    assert await pid_of(stage, provider, "ada") == ada
    cyd = await pid_of(stage, provider, "cyd")
    assert cyd not in (ada, bob)
    assert not alive(bob)
    assert alive(ada)


@pytest.mark.req("AIP-tenant-2")
async def test_a_tenant_above_the_limit_waits_and_is_then_refused(stage: DriverStage) -> None:
    provider = await wait_until_settled(stage.provider(metadata={"isolation": "tenant", "max_processes": 2}))
    held = [await lend_link(provider, "ada"), await lend_link(provider, "bob")]
    loop = asyncio.get_running_loop()
    began = loop.time()
    error = await provider.acquire(caller("cyd"), 0.2)
    assert isinstance(error, DriverRefusal)
    assert (error.code, error.retryable) == ("rate_limited", True)
    assert 0.2 <= loop.time() - began < 5
    waiting = asyncio.create_task(lend_link(provider, "cyd"))
    await asyncio.sleep(0)
    held[0].release()
    lease = await waiting
    assert (await call_tool(lease))["pid"] == stage.log.pids[-1]
    assert provider.find_ready_lease(caller("ada")) is None
    lease.release()
    held[1].release()


async def test_the_room_of_the_node_holds_for_tenants_of_all_drivers(
    stage: DriverStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stage.node.links.connector_parts.process_limit, "_most", lambda: 1)
    provider = await wait_until_settled(stage.provider(metadata={"isolation": "tenant", "max_processes": 8}))
    ada = await pid_of(stage, provider, "ada")
    error = await provider.acquire(caller("bob"), 0.2)
    assert isinstance(error, DriverRefusal)
    assert error.code == "rate_limited"
    monkeypatch.setattr(keeper, "SETTLED_S", 0.0)  # as if the minute were over
    await pid_of(stage, provider, "bob")
    await until(lambda: not alive(ada))


async def test_a_tenants_process_is_gone_when_it_was_idle_and_the_driver_stays_ready(stage: DriverStage) -> None:
    provider = await wait_until_settled(stage.provider(metadata={"isolation": "tenant", "idle_timeout_ms": 1000}))
    pid = await pid_of(stage, provider, "ada")
    assert len(stage.node.calls.keepers) == 2
    await until(lambda: not alive(pid), 5)
    await until(lambda: list(stage.node.calls.keepers) == [KEY])
    assert provider.state is DriverState.READY
    assert await pid_of(stage, provider, "ada") != pid


async def test_a_fault_of_one_tenants_server_affects_no_other_tenant(stage: DriverStage) -> None:
    provider = await wait_until_settled(stage.provider(*stage.tools({"name": "echo"}), metadata={"isolation": "user"}))
    (await lend_link(provider, "ada")).release()
    stage.tools({"name": "other"})
    error = await provider.acquire(caller("bob"))
    assert isinstance(error, DriverRefusal)
    assert error.code == "contract_mismatch"
    assert provider.state is DriverState.READY
    lease = provider.find_ready_lease(caller("ada"))
    assert lease is not None
    lease.release()


@pytest.mark.req("AIP-proto-6")
async def test_only_a_users_own_process_that_may_ask_for_roots_receives_that_users(stage: DriverStage) -> None:
    for metadata, owner in (
        ({"isolation": "user", "client_capabilities": ["roots"]}, "client:ada"),
        ({"isolation": "user", "client_capabilities": ["sampling"]}, None),
        ({"isolation": "tenant", "client_capabilities": ["sampling"]}, None),
        ({}, None),
    ):
        provider = await wait_until_settled(stage.provider(metadata=metadata))
        lease = await lend_link(provider, "ada")
        assert lease.link.owner == owner
        lease.release()
        await provider.stop()
