"""A contract behaves the same whatever its server is reached by, and a server that dies fails its calls at once."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from tests.drivers.contract_node import (
    ANY,
    FEATURES,
    ContractNode,
    LendingProvider,
    binding,
    contract,
    contract_node,
    driver,
)
from tests.servers.start import raw, serving

pytestmark = pytest.mark.asyncio(loop_scope="module")

PLAY = {"type": "object", "properties": {"act": ANY, "label": {"type": "string"}}}
WAYS = {
    "pipe": {"server": {"kind": "binary", "path": "/bin/server"}, "transport": "stdio"},
    "web": {"server": {"kind": "remote", "url": "https://x.example/mcp"}, "transport": "http"},
    "stream": {"server": {"kind": "remote", "url": "https://x.example/sse"}, "transport": "sse"},
}
DIFFERENT = {"at", "transport", "server_kind", "duration_ms"}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def here(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ContractNode]:
    with serving(raw(FEATURES, "--era", "legacy")) as url, serving(raw(FEATURES, "--era", "modern")) as modern:
        sse = url.removesuffix("/mcp") + "/sse"
        servers = {
            "pipe": "legacy",
            "web": {"url": url},
            "stream": {"url": sse, "transport": "sse"},
            "mortal": "modern",
            "fresh": {"url": modern},
        }
        async with contract_node(tmp_path_factory.mktemp("transports"), servers) as here:
            yield here


async def serve(here: ContractNode, way: str, made: Any) -> LendingProvider:
    declared = driver("only-mcp", binding(made.id, "play"), **WAYS[way])
    lending = LendingProvider(here.node, way, declared, [made])
    await here.offer([made], lending)
    return lending


def bare(message: Any) -> Any:
    """Without the ids that are made anew for each call."""
    result = message.get("result", message.get("error"))
    (result.get("_meta", {}).get("dev.interlock/error") or {}).pop("ref", None)
    return result


@pytest.mark.req("AIP-transport-11")
@pytest.mark.parametrize(
    ("act", "code"),
    [
        ({}, "ok"),
        ({"result": {"content": [{"type": "text", "text": "no"}], "isError": True}}, "upstream_error"),
        ({"error": {"code": -32001, "message": "no"}}, "upstream_error"),
        ({"wait": True}, "timeout"),
        ({"wait": True, "cancel": True}, "cancelled"),
    ],
)
async def test_values_errors_and_records_are_the_same_over_every_transport(
    here: ContractNode, act: Any, code: str
) -> None:
    made = contract("test.play", inputs=PLAY, timeout_ms=400)
    outcomes, records = [], []
    for way in WAYS:
        lending = await serve(here, way, made)
        await here.node.stores.recorder.flush()
        after = await here.node.stores.audit.last()
        asked = here.call("test__play", {"act": act})
        if "cancel" in act:
            asked.running.cancel("enough")
        else:
            outcomes.append(bare(await asked.message()))
        rows = [row for row in await here.rows(after) if row["method"] == "driver.invoked"]
        records.append([{key: value for key, value in row.items() if key not in DIFFERENT} for row in rows])
        assert [row["outcome"] for row in rows] == [code]
        assert (rows[0]["transport"], lending.lent) == (WAYS[way]["transport"], 0)
    assert all(each == outcomes[0] for each in outcomes)
    assert records[0] == records[1] == records[2]


@pytest.mark.req("AIP-transport-13")
async def test_a_server_that_dies_fails_its_open_calls_and_the_next_call_runs_on_a_new_process(
    here: ContractNode, caplog: pytest.LogCaptureFixture
) -> None:
    lending = await here.serve("mortal", contract("test.play", inputs=PLAY), "play")
    earlier = len([row for row in await here.rows() if row["method"] == "driver.invoked"])
    open_calls = [here.call("test__play", {"act": {"wait": True}}) for _ in range(3)]
    before = asyncio.get_running_loop().time()
    here.call("mortal__play", {"act": {"exit": 3}})
    errors = [await one.error() for one in open_calls]
    assert asyncio.get_running_loop().time() - before < 1.0
    for error in errors:
        assert (error["code"], error["message"], error["data"]["outcome"]) == (32002, "tool_degraded", "unknown")
        (noted,) = [each for each in caplog.messages if error["data"]["ref"] in each]
        assert "upstream_error" in noted
        assert "3" in noted
    recorded = [row["outcome"] for row in await here.rows() if row["method"] == "driver.invoked"]
    assert recorded[earlier:] == ["upstream_error"] * 3
    assert lending.lent == 0
    await here.node.calls.keepers["mortal"].usable_within(10)
    assert (await here.call("test__play", {"label": "after"}).result())["structuredContent"]["done"] == "after"


async def test_a_dead_server_is_no_reason_to_send_again_what_may_have_happened(here: ContractNode) -> None:
    made = contract("test.play", inputs=PLAY)
    one = driver("one-mcp", binding("test.play", "play", cost_override={"cost_units_per_call": 1}))
    other = driver("two-mcp", binding("test.play", "play", cost_override={"cost_units_per_call": 2}), **WAYS["pipe"])
    for idempotent, label in ((False, "not again"), (True, "again")):
        made = contract("test.play", inputs=PLAY, idempotent=idempotent)
        await here.node.calls.keepers["mortal"].usable_within(10)
        lending = LendingProvider(here.node, "mortal", one, [made]), LendingProvider(here.node, "pipe", other, [made])
        await here.offer([made], *lending)
        asked = here.call("test__play", {"act": {"progress": 0, "result": {"content": []}}, "label": label})
        lending[0].link.on_pipe_lost("cut")
        answer = await asked.message()
        assert ("result" in answer) is idempotent
        times = (await here.call("pipe__played").result())["structuredContent"]
        assert times.get(label, 0) == (1 if idempotent else 0)


@pytest.mark.req("AIP-30.errors-2")
@pytest.mark.parametrize("segment", ["pipe", "web", "stream", "fresh"])
async def test_a_cancelled_call_ends_at_the_server_too_over_every_transport(here: ContractNode, segment: str) -> None:
    lending = await here.serve(segment, contract("test.play", inputs=PLAY), "play")

    async def told(tool: str) -> Any:
        return (await here.call(f"{segment}__{tool}").result())["structuredContent"]

    label = f"waits at {segment}"
    before = len((await told("cancelled"))["ids"])
    asked, other = (here.call("test__play", {"act": {"wait": True}, "label": label}) for _ in range(2))
    async with asyncio.timeout(5):
        while (await told("played")).get(label, 0) < 2:
            pass
        asked.running.cancel("enough")
        assert (asked.running.done, lending.lent) == (True, 1)
        while len((await told("cancelled"))["ids"]) == before:
            pass
    assert not other.running.done
    other.running.cancel("as well")
