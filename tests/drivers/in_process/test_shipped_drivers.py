"""Do the driver folders that come with Interlock load, from declarations alone?"""

from pathlib import Path

import pytest
from tests.drivers.driver_texts import of_severity

import interlock
from interlock.drivers.protocol.binding.effects import offer
from interlock.drivers.protocol.binding.match import check_binding
from interlock.drivers.protocol.files.contract import read_contract
from interlock.drivers.protocol.files.driver import read_driver
from interlock.drivers.protocol.model import Contract, Driver

SHIPPED = Path(interlock.__file__).parent / "shipped" / "drivers"
TOOLS = {
    "filesystem-mcp": 14,
    "memory-mcp": 9,
    "everything-mcp": 13,
    "sequential-thinking-mcp": 1,
    "git-mcp": 12,
    "time-mcp": 2,
    "fetch-mcp": 1,
    "sqlite-mcp": 6,
}


def read(identifier: str) -> tuple[Driver, list[Contract]]:
    folder = SHIPPED / identifier
    reading = read_driver((folder / "DRIVER.md").read_bytes(), "DRIVER.md", folder=identifier)
    assert reading.value is not None, reading.problems
    expected = ["egress_open"] if identifier == "fetch-mcp" else []
    assert [problem.code for problem in of_severity(reading, "warning")] == expected
    contracts = []
    for binding in reading.value.implements:
        found = read_contract((folder / binding.tool).read_bytes(), binding.tool)
        assert found.value is not None, found.problems
        assert of_severity(found, "warning") == ()
        contracts.append(found.value)
    return reading.value, contracts


def test_the_eight_reference_servers_are_shipped() -> None:
    assert {path.name for path in SHIPPED.iterdir()} == set(TOOLS)


@pytest.mark.req("AIP-compat-3")
@pytest.mark.parametrize("identifier", TOOLS)
def test_a_shipped_folder_holds_declarations_only_and_loads_without_a_fault(identifier: str) -> None:
    files = [path for path in (SHIPPED / identifier).rglob("*") if path.is_file()]
    assert {path.name for path in files} == {"DRIVER.md", "TOOL.md"}
    driver, contracts = read(identifier)
    assert len(driver.implements) == TOOLS[identifier] == len(files) - 1
    for binding, contract in zip(driver.implements, contracts, strict=True):
        assert [each for each in check_binding(driver, binding, contract) if each.severity == "error"] == []
    assert driver.secret_names == ()


def test_all_shipped_contracts_can_be_offered_together() -> None:
    offering = offer([contract for identifier in TOOLS for contract in read(identifier)[1]])
    assert offering.problems == ()
    assert len(offering.offered) == sum(TOOLS.values())
    assert "filesystem.read_file" in {f"{each.segment}.{each.local}" for each in offering.offered}


def test_a_shipped_tool_that_destroys_is_never_automatic() -> None:
    loose = {
        contract.id
        for identifier in TOOLS
        for contract in read(identifier)[1]
        if contract.approval == "auto" and contract.mutates
    }
    assert loose == set()
    by_id = {contract.id: contract for identifier in TOOLS for contract in read(identifier)[1]}
    assert by_id["sqlite.write-query"].risk_level == 3
    assert by_id["filesystem.write-file"].approval == "policy:gate"
