"""Servers that ask in the middle of a contract's call, and whom the answer reaches (AIP-proto-7)."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from tests.drivers.contract_node import ANY, ContractNode, LendingProvider, binding, contract, contract_node, driver
from tests.support.budget_node import Client
from tests.support.node_with_clock import FILLED, FORM, filled_answers

from interlock.drivers.driver_state import DriverState

pytestmark = pytest.mark.asyncio(loop_scope="module")

PLAY = {"type": "object", "properties": {"act": ANY, "label": {"type": "string"}}}
ASK = {"ask": {"method": "elicitation/create", "params": FORM}}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def here(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ContractNode]:
    servers = {"new": "modern", "also": "modern", "old": "legacy"}
    async with contract_node(tmp_path_factory.mktemp("rounds"), servers) as here:
        yield here


def play() -> Any:
    return contract("test.play", inputs=PLAY)


def failure(result: Any) -> tuple[str, str]:
    assert result["isError"] is True
    return result["_meta"]["dev.interlock/error"]["code"], result["content"][0]["text"]


async def played(here: ContractNode, segment: str, label: str) -> int:
    return (await here.call(f"{segment}__played").result())["structuredContent"].get(label, 0)


@pytest.mark.req("AIP-proto-7")
async def test_a_question_passes_to_a_client_that_can_answer_and_the_retry_reaches_the_same_driver(
    here: ContractNode,
) -> None:
    made = play()
    first = driver("one-mcp", binding("test.play", "play", cost_override={"cost_units_per_call": 1}))
    other = driver("two-mcp", binding("test.play", "play", cost_override={"cost_units_per_call": 2}))
    one, two = LendingProvider(here.node, "new", first, [made]), LendingProvider(here.node, "also", other, [made])
    await here.offer([made], one, two)
    arguments = {"act": ASK, "label": "asked"}
    one.state = DriverState.UNAVAILABLE
    said = await here.call("test__play", arguments).result()
    assert said["resultType"] == "input_required"
    assert said["inputRequests"] == {"one": ASK["ask"]}
    one.state = DriverState.READY  # and now preferred again
    result = await here.again("test__play", arguments, said, filled_answers(said)).result()
    assert result["structuredContent"] == {"done": "asked", "state": "state of asked"}
    assert (await played(here, "also", "asked"), await played(here, "new", "asked")) == (2, 0)
    two.state = DriverState.UNAVAILABLE
    refused = await here.again("test__play", arguments, said, filled_answers(said)).result()
    assert failure(refused)[0] == "pinned_provider_unavailable"
    assert (one.lent, two.lent) == (0, 0)


@pytest.mark.req("AIP-proto-7")
async def test_a_question_to_a_client_that_cannot_answer_is_upstream_error(here: ContractNode) -> None:
    await here.serve("new", play(), "play")
    code, text = failure(await here.call("test__play", {"act": ASK}, capabilities={}).result())
    assert (code, "input_required" in text) == ("upstream_error", True)
    client = Client(here, "legacy", "local", None, {})
    code, text = failure(await client.call("test__play", {"act": ASK}).result())
    assert (code, "input_required" in text) == ("upstream_error", True)


@pytest.mark.req("AIP-proto-7")
async def test_a_result_of_an_unknown_kind_is_upstream_error(here: ContractNode) -> None:
    await here.serve("new", play(), "play")
    for kind in ("task", "novel"):
        code, text = failure(await here.call("test__play", {"act": {"kind": kind}}).result())
        assert (code, "of a kind not known" in text) == ("upstream_error", True)


async def test_a_handshake_client_is_asked_in_its_own_way(here: ContractNode) -> None:
    lending = await here.serve("new", play(), "play")
    client = Client(here, "legacy", "local", None, {"elicitation": {"form": {}}})
    asked = client.call("test__play", {"act": ASK, "label": "by session"})
    await here.until(lambda: bool(asked.emitted or client.stream.emitted))
    (question,) = asked.emitted or client.stream.emitted
    assert question["method"] == "elicitation/create"
    client.answer(question["id"], FILLED)
    assert (await asked.result())["structuredContent"]["done"] == "by session"
    assert lending.lent == 0


@pytest.mark.parametrize("state", ["x", "ild1.", "ild1.one-mcp@1", "ild1. =x", 7, None, {"a": 1}])
async def test_a_state_that_is_not_ours_is_refused(here: ContractNode, state: Any) -> None:
    await here.serve("new", play(), "play")
    params = {"name": "test__play", "arguments": {}, "requestState": state, "inputResponses": {}}
    assert (await here.ask("tools/call", params).error())["data"]["reason"] == "state_invalid"


async def test_a_state_that_names_a_driver_without_this_contract_reaches_nobody(here: ContractNode) -> None:
    await here.serve("new", play(), "play")
    params = {"name": "test__play", "arguments": {"label": "forged"}, "requestState": "ild1.other-mcp@1 =x"}
    assert failure(await here.ask("tools/call", params).result())[0] == "pinned_provider_unavailable"
    assert await played(here, "new", "forged") == 0


async def test_a_legacy_server_asks_a_modern_client_and_the_call_goes_on(here: ContractNode) -> None:
    lending = await here.serve("old", play(), "play")
    arguments = {"act": ASK, "label": "parked"}
    said = await here.call("test__play", arguments).result()
    assert said["resultType"] == "input_required"
    assert lending.lent == 1
    changed = await here.again("test__play", {**arguments, "label": "other"}, said, filled_answers(said)).error()
    assert changed["data"]["reason"] == "state_foreign"
    result = await here.again("test__play", arguments, said, filled_answers(said)).result()
    assert result["structuredContent"] == {"done": "parked", "state": FILLED}
    assert (lending.lent, here.held()["in flight"]) == (0, 0)
