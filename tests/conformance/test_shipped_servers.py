"""The driver folders that come with Interlock, against the servers they describe: does every contract still fit?"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.conformance.driver_places import HOME, installed, running
from tests.conformance.shipping import DRIVERS, PLACE, SHIPPED, Shipped, files_of
from tests.conformance.toolbox import run

from interlock.drivers.protocol.binding.match import Bound, match
from interlock.drivers.protocol.files.contract import read_contract
from interlock.drivers.protocol.files.driver import read_driver
from interlock.drivers.protocol.model import Driver

_LISTED: dict[str, list[Mapping[str, Any]]] = {}


def declared(shipped: Shipped) -> Driver:
    """As it is shipped, or, for writing it the first time, as it will be."""
    file = SHIPPED / shipped.id / "DRIVER.md"
    tool = {"name": "any", "inputSchema": {"type": "object"}}
    text = file.read_bytes() if file.exists() else files_of(shipped, [tool])["DRIVER.md"].encode()
    reading = read_driver(text, str(file), folder=shipped.id)
    assert reading.value is not None, reading.problems
    return reading.value


async def listed(shipped: Shipped) -> list[Mapping[str, Any]]:
    """What the server says to tools/list, in a folder of its own."""
    if shipped.id not in _LISTED:
        place = HOME / "places" / shipped.id
        place.mkdir(parents=True, exist_ok=True)
        run(["git", "init", "--quiet", str(place)], cwd=place)
        driver = declared(shipped)
        arguments = [each.replace(PLACE, str(place)) for each in driver.server.args]  # type: ignore[union-attr]
        async with running(await installed(driver), arguments) as talk:
            _LISTED[shipped.id] = (await talk.ask("tools/list", {}))["tools"]
    return _LISTED[shipped.id]


@pytest.mark.timeout(300)
@pytest.mark.req("AIP-compat-3")
@pytest.mark.parametrize("shipped", DRIVERS, ids=lambda each: each.id)
async def test_every_tool_of_the_real_server_fits_its_shipped_contract(shipped: Shipped) -> None:
    tools = {tool["name"]: tool for tool in await listed(shipped)}
    driver = declared(shipped)
    assert [binding.tool_name for binding in driver.implements] == list(tools)
    for binding in driver.implements:
        file = SHIPPED / shipped.id / binding.tool
        contract = read_contract(file.read_bytes(), str(file)).value
        assert contract is not None
        bound = match(driver, binding, contract, tools[binding.tool_name])
        assert isinstance(bound, Bound), (binding.tool_name, bound)
        # A server that says nothing of its results is checked at every call instead.
        unsaid = "outputSchema" not in tools[binding.tool_name]
        assert {each.code for each in bound.warnings} <= ({"contract_unverified"} if unsaid else set())


@pytest.mark.timeout(300)
@pytest.mark.parametrize("shipped", DRIVERS, ids=lambda each: each.id)
async def test_the_shipped_files_are_those_the_server_gives(shipped: Shipped) -> None:
    expected = files_of(shipped, await listed(shipped))
    folder = SHIPPED / shipped.id
    found = {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}
    assert found == expected
    assert Path(folder / "DRIVER.md").is_file()
