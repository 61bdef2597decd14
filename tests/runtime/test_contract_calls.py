"""Calls of contracts, from a client to a real server and back."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from tests.runtime.contracts_here import ContractPlace, contract, contract_place

pytestmark = pytest.mark.asyncio(loop_scope="module")

PATH = {
    "type": "object",
    "properties": {"path": {"type": "string"}},
    "required": ["path"],
    "additionalProperties": False,
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def here(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ContractPlace]:
    servers = {"new": "modern", "old": "legacy"}
    async with contract_place(tmp_path_factory.mktemp("contracts"), servers) as here:
        yield here


def error_of(result: Any) -> tuple[str, str]:
    assert result["isError"] is True
    said = result["_meta"]["dev.interlock/error"]
    text = result["content"][0]["text"]
    assert text.startswith(f"{said['code']}: ")
    return said["code"], text.partition(": ")[2]


async def listed(here: ContractPlace) -> dict[str, Any]:
    tools = (await here.ask("tools/list", {}).result())["tools"]
    return {each["name"]: each for each in tools}


@pytest.mark.parametrize("segment", ["new", "old"])
async def test_a_contract_is_listed_under_its_own_name_and_called_through_the_servers_tool(
    here: ContractPlace, segment: str
) -> None:
    read = contract("fs.read", inputs=PATH, name="Read", description="Reads a file.")
    lending = await here.serve(segment, read, "keep", mcp={"argument_mapping": {"path": "file"}})
    shown = (await listed(here))["fs__read"]
    assert (shown["title"], shown["description"]) == ("Read", "Reads a file.")
    assert shown["inputSchema"] == PATH
    assert shown["_meta"]["dev.interlock/contract"] == "fs.read@1.0.0"
    result = await here.call("fs__read", {"path": "/a"}).result()
    assert result["structuredContent"] == {"got": {"file": "/a"}}
    asked = [each for each in await here.seen(segment) if each["name"] == "keep"]
    assert asked[-1]["arguments"] == {"file": "/a"}
    assert lending.lent == 0
