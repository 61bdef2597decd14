"""Which MCP version is spoken with a driver's server: what the file declares, what it restricts, what is only said."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from tests.drivers.driver_stage import DriverStage, call_tool, driver_stage, lend_link, until, wait_until_settled

from interlock.drivers.driver_state import DriverState
from interlock.drivers.provider.provider import DriverProvider
from interlock.links import connector as greeting

KEY = "driven-mcp@1"


@pytest_asyncio.fixture
async def stage(tmp_path: Path) -> AsyncIterator[DriverStage]:
    async with driver_stage(tmp_path) as stage:
        yield stage


def spoken(stage: DriverStage) -> str | None:
    facts = stage.node.calls.keepers[KEY].link.facts
    return facts.version if facts is not None else None


def warnings(provider: DriverProvider) -> list[str]:
    return [problem.code for problem in provider.problems if problem.severity == "warning"]


@pytest.mark.req("AIP-front-4", "AIP-proto-1")
async def test_without_a_declared_version_a_modern_server_is_met_with_the_newest(stage: DriverStage) -> None:
    provider = await wait_until_settled(stage.provider("--era", "modern"))
    assert (provider.state, spoken(stage)) == (DriverState.READY, "2026-07-28")
    assert stage.log.methods[0] == "server/discover"
    lease = await lend_link(provider)
    assert (await call_tool(lease, n=1))["n"] == 1
    lease.release()


@pytest.mark.req("AIP-proto-1")
async def test_a_server_that_refuses_the_question_is_met_with_a_handshake(stage: DriverStage) -> None:
    provider = await wait_until_settled(stage.provider("--era", "legacy"))
    assert (provider.state, spoken(stage)) == (DriverState.READY, "2025-11-25")
    assert stage.log.methods[:2] == ["server/discover", "initialize"]


@pytest.mark.req("AIP-proto-1")
@pytest.mark.parametrize("how", ["params", "ends", "silent"])
async def test_however_a_server_takes_the_question_amiss_it_is_met_with_a_handshake(
    stage: DriverStage, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert greeting.PROBE_S == 3
    monkeypatch.setattr(greeting, "PROBE_S", 0.2)
    provider = await wait_until_settled(stage.provider("--discover", how))
    assert (provider.state, spoken(stage)) == (DriverState.READY, "2025-11-25")
    times = 2 if how == "ends" else 1  # what ends may have ended for another reason: it is asked the same way again
    assert stage.log.methods[: times + 1] == ["server/discover"] * times + ["initialize"]
    assert len(stage.log.starts) == (3 if how == "ends" else 1)
    await provider.stop()
    await wait_until_settled(stage.provider("--discover", how))
    assert stage.log.methods.count("server/discover") == times  # the era is remembered


@pytest.mark.req("AIP-proto-3")
async def test_a_declared_handshake_version_goes_first_and_offers_the_newest(stage: DriverStage) -> None:
    provider = await wait_until_settled(stage.provider("--answers", "2024-11-05", protocol_version="2025-03"))
    assert provider.state is DriverState.READY
    assert stage.log.methods[0] == "initialize"
    assert "server/discover" not in stage.log.methods
    assert stage.log.params("initialize")[0]["protocolVersion"] == "2025-11-25"
    assert warnings(provider) == ["protocol_below_target"]
    assert (provider.driver.protocol_version, provider.running().protocol_version) == ("2025-03-26", "2024-11-05")


@pytest.mark.req("AIP-proto-3")
async def test_a_server_that_only_speaks_the_newest_is_reached_whatever_is_declared(stage: DriverStage) -> None:
    provider = await wait_until_settled(stage.provider("--era", "modern", protocol_version="2025-03"))
    assert (provider.state, spoken(stage)) == (DriverState.READY, "2026-07-28")
    assert stage.log.methods[:2] == ["initialize", "server/discover"]
    assert warnings(provider) == []


@pytest.mark.req("AIP-proto-4")
async def test_the_handshake_comes_in_order_and_undeclared_lists_are_not_asked_for(stage: DriverStage) -> None:
    await wait_until_settled(stage.provider(protocol_version="2025-11-25"))
    await until(lambda: "tools/list" in stage.log.methods)
    assert stage.log.methods == ["initialize", "notifications/initialized", "tools/list"]
    assert set(stage.log.params("initialize")[0]) == {"protocolVersion", "capabilities", "clientInfo"}


@pytest.mark.req("AIP-proto-4")
async def test_declared_prompts_and_resources_are_asked_for_after_the_tools(stage: DriverStage) -> None:
    declared = {
        "prompts": [{"name": "simple", "integrate_as": "raw"}],
        "resources": [{"uri_template": "file:///{path}", "integrate_as": "raw"}],
    }
    await wait_until_settled(stage.provider("--lists", protocol_version="2025-11-25", **declared))
    order = ["initialize", "notifications/initialized", "tools/list", "prompts/list", "resources/list"]
    assert stage.log.methods[:5] == order


@pytest.mark.req("AIP-proto-4")
async def test_declared_prompts_are_not_asked_of_a_server_that_has_none(stage: DriverStage) -> None:
    prompts = [{"name": "simple", "integrate_as": "raw"}]
    provider = await wait_until_settled(stage.provider(protocol_version="2025-11-25", prompts=prompts))
    assert provider.state is DriverState.READY
    assert "prompts/list" not in stage.log.methods


@pytest.mark.req("AIP-proto-4")
async def test_an_answer_with_an_unknown_version_is_no_connection(stage: DriverStage) -> None:
    options: dict[str, Any] = {"max_retries": 0}
    provider = await wait_until_settled(stage.provider("--answers", "2031-01-01", connection_options=options))
    assert (provider.state, provider.code) == (DriverState.REJECTED, "protocol_unsupported")
    assert "tools/list" not in stage.log.methods
    assert len(stage.log.starts) == 1


@pytest.mark.req("AIP-proto-5")
@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_a_driver_may_support_both_eras_without_a_warning(stage: DriverStage, era: str) -> None:
    both = {"protocol_versions": ["2025-11-25", "2026-07-28"]}
    provider = await wait_until_settled(stage.provider("--era", era, metadata=both))
    assert (provider.state, warnings(provider)) == (DriverState.READY, [])


@pytest.mark.req("AIP-proto-5")
async def test_a_version_outside_the_drivers_list_is_refused(stage: DriverStage) -> None:
    only = {"protocol_versions": ["2025-11-25"]}
    provider = await wait_until_settled(stage.provider("--answers", "2025-06-18", metadata=only))
    assert (provider.state, provider.code) == (DriverState.REJECTED, "protocol_unsupported")
    assert "server/discover" not in stage.log.methods


@pytest.mark.req("AIP-proto-5")
async def test_a_server_of_an_era_outside_the_list_is_not_reached(stage: DriverStage) -> None:
    only = {"protocol_versions": ["2026-07-28"]}
    options: dict[str, Any] = {"max_retries": 0}
    provider = await wait_until_settled(stage.provider("--era", "legacy", metadata=only, connection_options=options))
    assert provider.state is not DriverState.READY
    assert "initialize" not in stage.log.methods


@pytest.mark.req("AIP-proto-6")
async def test_a_shared_server_is_offered_none_of_its_callers_abilities(stage: DriverStage) -> None:
    await wait_until_settled(stage.provider())
    assert stage.log.params("initialize")[0]["capabilities"] == {}


@pytest.mark.req("AIP-proto-6")
async def test_a_driver_may_ask_for_them(stage: DriverStage) -> None:
    await wait_until_settled(stage.provider(metadata={"client_capabilities": ["sampling", "elicitation"]}))
    assert set(stage.log.params("initialize")[0]["capabilities"]) == {"sampling", "elicitation"}
