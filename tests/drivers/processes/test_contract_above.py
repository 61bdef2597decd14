"""Contracts seen from a node above, and what their calls cost."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from tests.drivers.contract_node import OPEN, ContractNode, contract, contract_node
from tests.support.frozen_node import FrozenNode

from interlock.drivers.protocol.problems import DriverRefusal

pytestmark = pytest.mark.asyncio(loop_scope="module")

PATH = {"type": "object", "properties": {"path": {"type": "string"}}, "additionalProperties": False}
LIMITED = '[[tool]]\nmatch = "test.dear"\nbudget = { max_calls_per_minute = 2 }\n'


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def here(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ContractNode]:
    async with contract_node(tmp_path_factory.mktemp("above"), {"new": "modern"}, OPEN + LIMITED) as here:
        yield here


async def test_a_node_above_lists_and_calls_contracts_as_any_tool(here: ContractNode) -> None:
    lending = await here.serve("new", contract("test.keep", inputs=PATH), "keep")
    parent = FrozenNode(here.node).parent()
    shown = (await parent.tools())["test.keep"]
    assert shown["_meta"]["x-mcpax-capability"]["mutable"] is False
    assert shown["_meta"]["dev.interlock/contract"] == "test.keep@1.0.0"

    async def called(arguments: Any) -> Any:
        async with asyncio.timeout(10):
            return await parent.begin("tools/call", {"name": "test.keep", "arguments": arguments})

    assert (await called({"path": "x"}))["result"]["structuredContent"] == {"got": {"path": "x"}}
    assert (await called({"path": 7}))["result"]["_meta"]["dev.interlock/error"]["code"] == "input_invalid"
    lending.refusal = DriverRefusal(code="tool_unavailable", message="away", retryable=True)
    assert (await called({}))["error"]["code"] == -32002


async def test_only_calls_that_left_are_charged(here: ContractNode) -> None:
    lending = await here.serve("new", contract("test.dear", inputs=PATH), "keep")
    for _ in range(3):
        assert (await here.call("test__dear", {"path": 7}).result())["isError"] is True
    lending.refusal = DriverRefusal(code="auth_required", message="log in")
    for _ in range(3):
        assert (await here.call("test__dear").result())["isError"] is True
    lending.refusal = DriverRefusal(code="tool_unavailable", message="away", retryable=True)
    for _ in range(3):
        assert (await here.call("test__dear").error())["code"] == 32002
    lending.refusal = None
    for _ in range(2):
        assert (await here.call("test__dear").result())["structuredContent"] == {"got": {}}
    assert (await here.call("test__dear").error())["code"] == 32003
