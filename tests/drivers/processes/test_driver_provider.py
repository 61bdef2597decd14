"""A driver's server from its file to a call: is it started, checked, kept, put to sleep and woken as AIP-32 says?"""

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

from interlock.core.link_state import LinkState
from interlock.drivers.driver_state import DriverState
from interlock.drivers.protocol.problems import DriverRefusal
from interlock.wire.refusal import NotFound


@pytest_asyncio.fixture
async def stage(tmp_path: Path) -> AsyncIterator[DriverStage]:
    async with driver_stage(tmp_path) as stage:
        yield stage


async def test_a_driver_whose_server_keeps_its_contract_is_ready_and_lends_its_link(stage: DriverStage) -> None:
    provider = await wait_until_settled(stage.provider())
    assert (provider.state, provider.reason) == (DriverState.READY, None)
    assert provider.contract_ids == {"echoes"}
    lease = await lend_link(provider)
    assert (await call_tool(lease, text="hello"))["text"] == "hello"
    lease.release()
    again = provider.find_ready_lease(caller())
    assert again is not None
    assert again.link is lease.link
    again.release()


async def test_a_driver_is_among_the_links_under_the_segment_of_its_tools(stage: DriverStage) -> None:
    await wait_until_settled(stage.provider())
    shown = stage.node.operations.links.list_all().links
    assert [(link.segment, link.driver, link.state) for link in shown] == [("driven", "driven-mcp@1", "ready")]


async def test_an_operator_names_a_link_by_segment_or_by_driver_if_that_is_unambiguous(stage: DriverStage) -> None:
    await wait_until_settled(stage.provider(metadata={"isolation": "tenant"}))
    links = stage.node.operations.links
    for name in ("driven", "driven-mcp", "driven-mcp@1"):
        assert links.get(name).segment == "driven"
    await wait_until_settled(stage.provider(version="2.0.0"))
    assert {link.segment for link in links.list_all().links} == {"driven-mcp@1", "driven-mcp@2"}
    assert links.get("driven-mcp@2").driver == "driven-mcp@2"
    for name in ("driven", "driven-mcp"):
        with pytest.raises(NotFound, match=name):
            links.get(name)


@pytest.mark.req("AIP-transport-3")
async def test_an_idle_server_ends_and_the_next_call_starts_another(stage: DriverStage) -> None:
    provider = await wait_until_settled(stage.provider(metadata={"idle_timeout_ms": 1000}))
    (pid,) = stage.log.pids
    keeper = stage.node.calls.keepers["driven-mcp@1"]
    await until(lambda: keeper.link.standing.state is LinkState.ASLEEP, 3)
    assert not alive(pid)
    assert provider.state is DriverState.READY
    assert provider.find_ready_lease(caller()) is None
    lease = await lend_link(provider)
    assert (await call_tool(lease))["pid"] == stage.log.pids[1] != pid
    lease.release()


@pytest.mark.req("AIP-tools-2", "AIP-tools-3")
async def test_a_tool_that_does_not_fit_rejects_the_driver_before_anything_is_called(stage: DriverStage) -> None:
    needs_more = {"type": "object", "required": ["other"], "properties": {"other": {"type": "string"}}}
    provider = await wait_until_settled(stage.provider(*stage.tools({"name": "echo", "inputSchema": needs_more})))
    assert (provider.state, provider.code) == (DriverState.REJECTED, "contract_mismatch")
    assert provider.contract_ids == frozenset()
    assert isinstance(await provider.acquire(caller()), DriverRefusal)
    assert "tools/call" not in stage.log.methods


@pytest.mark.req("AIP-tools-1", "AIP-tools-3")
async def test_a_tool_the_server_does_not_list_rejects_the_driver_and_the_nearest_name_is_shown(
    stage: DriverStage,
) -> None:
    provider = await wait_until_settled(stage.provider(tools={"ecko": "echoes"}))
    assert provider.state is DriverState.REJECTED
    assert provider.code == "mcp_tool_missing"
    assert "echo" in provider.problems[0].hint
    assert provider.contract_ids == frozenset()
    refused = await provider.acquire(caller())
    assert isinstance(refused, DriverRefusal)
    assert refused.code == "contract_mismatch"
    assert "tools/call" not in stage.log.methods
