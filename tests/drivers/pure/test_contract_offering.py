"""Under which name, as which tool and with which capability is a contract offered?"""

from typing import Any

import msgspec
import pytest
from msgspec import Raw
from tests.drivers.driver_texts import as_contract, contract, told

from interlock.ax.protocol.capability import Capability, LatencyClass, read_capability, safety
from interlock.drivers.protocol.binding.effects import (
    effects_of,
    exposed_item,
    needs_confirmation,
    offer,
    qualified_name,
    tool_item,
)
from interlock.drivers.protocol.model import Contract
from interlock.drivers.protocol.problems import FileProblem
from interlock.drivers.protocol.server_name import exposed_segment
from interlock.gate.protocol.policy import says_its_effect
from interlock.mcp import items
from interlock.mcp.methods import Era
from interlock.wire.jsonrpc.codec import decode_object, encode_value

CAPABILITY = "x-mcpax-capability"


def of(file: str = "TOOL.md", **changed: Any) -> Contract:
    value = as_contract(contract(**changed)).value
    assert value is not None
    return msgspec.structs.replace(value, places=msgspec.structs.replace(value.places, file=file))


def named(name: str, **changed: Any) -> Contract:
    return of(metadata={"interlock": {"name": name}}, **changed)


def capability(contract: Contract) -> Capability:
    read = read_capability(tool_item(contract)["_meta"][CAPABILITY])
    assert isinstance(read, Capability)
    return read


@pytest.mark.req("AIP-tools-15")
@pytest.mark.parametrize(
    ("contract", "name"),
    [
        (of(id="image.create"), ("image", "create")),
        (of(id="image.create.large"), ("image", "create_large")),
        (of(id="fs-read"), ("tools", "fs-read")),
        (named("filesystem.read_file"), ("filesystem", "read_file")),
        (named("filesystem.read_file", id="image.create"), ("filesystem", "read_file")),
    ],
)
def test_the_name_is_the_declared_name_else_the_id_before_its_first_dot_else_a_name_below_tools(
    contract: Contract, name: tuple[str, str]
) -> None:
    assert qualified_name(contract) == name
    assert tool_item(contract)["name"] == name[1]


def test_long_parts_are_cut_with_a_hash_so_that_two_stay_two() -> None:
    first, second = qualified_name(of(id="a" * 79 + "b")), qualified_name(of(id="a" * 80))
    assert not isinstance(first, FileProblem)
    assert not isinstance(second, FileProblem)
    assert first != second
    assert len(first[1]) == len(second[1]) == 63
    segment = qualified_name(of(id="a" * 70 + ".go"))
    assert not isinstance(segment, FileProblem)
    assert len(segment[0]) == 63


@pytest.mark.req("AIP-tools-15")
@pytest.mark.parametrize(
    ("contract", "code", "field"),
    [
        (of(id="rooms.list"), "name_collision", "/id"),
        (named("names.check"), "name_collision", "/metadata/interlock/name"),
        (named("files.deep.read"), "name_invalid", "/metadata/interlock/name"),
    ],
)
def test_a_name_that_belongs_to_the_node_or_lies_too_deep_is_refused(contract: Contract, code: str, field: str) -> None:
    found = offer([contract])
    assert found.offered == ()
    assert told(found.problems) == [(code, field)]


def test_two_contracts_of_one_name_are_both_refused_and_each_names_both() -> None:
    taken = [of("a/TOOL.md", id="fs.read"), named("fs.read", id="other")]
    for order in (taken, taken[::-1]):
        found = offer([*order, of(id="fs.write")])
        assert [(each.segment, each.local) for each in found.offered] == [("fs", "write")]
        assert sorted(told(found.problems)) == [
            ("name_collision", "/id"),
            ("name_collision", "/metadata/interlock/name"),
        ]
        assert all("a/TOOL.md" in each.message and "'TOOL.md'" in each.message for each in found.problems)


@pytest.mark.req("AIP-tools-15")
def test_the_definition_comes_from_the_contract_alone() -> None:
    inputs = {"properties": {"path": {"type": "string"}}}
    made = of(id="fs.read", inputs=inputs, outputs={"type": "array"}, version="1.4.2")
    item = tool_item(made)
    meta = item.pop("_meta")
    assert item == {
        "name": "read",
        "title": "Read a file",
        "description": "Reads one file.",
        "inputSchema": {"type": "object", **inputs},
        "outputSchema": {"type": "array"},
    }
    assert meta["dev.interlock/contract"] == "fs.read@1.4.2"
    assert set(meta) == {CAPABILITY, "dev.interlock/contract"}


def test_outputs_that_are_no_object_are_listed_for_modern_clients_only() -> None:
    raw = {key: Raw(encode_value(value)) for key, value in tool_item(of(outputs={"type": "array"})).items()}

    def listed(client: Era) -> dict[str, Raw]:
        shown = items.tool_item(raw, name="n", meta={}, hints={}, server=Era.MODERN, client=client)
        return decode_object(Raw(shown)) or {}

    assert "outputSchema" in listed(Era.MODERN)
    assert "outputSchema" not in listed(Era.LEGACY)


@pytest.mark.parametrize(
    ("timeout_ms", "expected"),
    [
        (1, LatencyClass.REALTIME),
        (500, LatencyClass.REALTIME),
        (501, LatencyClass.FAST),
        (5000, LatencyClass.FAST),
        (30_000, LatencyClass.STANDARD),
        (120_000, LatencyClass.SLOW),
        (120_001, LatencyClass.BATCH),
    ],
)
def test_the_time_a_contract_takes_is_its_latency_class(timeout_ms: int, expected: LatencyClass) -> None:
    assert capability(of(timeout_ms=timeout_ms)).latency_class is expected


@pytest.mark.parametrize(
    ("given", "expected"), [("trivial", "free"), ("metered", "metered"), ("expensive", "expensive")]
)
def test_the_cost_class_has_an_equal_in_ax(given: str, expected: str) -> None:
    assert capability(of(cost_class=given)).cost_class.value == expected


CHANGES = ["workspace:/x"]


@pytest.mark.req("AIP-14.rules-1")
@pytest.mark.parametrize(
    ("changed", "mutable", "reversible", "asked"),
    [
        ({}, False, True, False),
        ({"approval": "always"}, False, True, True),
        ({"approval": "on-mutate"}, False, True, False),
        ({"approval": "policy:gate"}, False, True, False),
        ({"approval": "policy:finance/large"}, False, True, True),
        ({"approval": "always", "mutates": CHANGES}, True, True, True),
        ({"approval": "on-mutate", "mutates": CHANGES}, True, True, True),
        ({"approval": "policy:gate", "mutates": CHANGES, "risk_level": 2}, True, True, False),
        ({"approval": "policy:gate", "mutates": CHANGES, "risk_level": 3}, True, False, False),
        ({"approval": "policy:other", "mutates": CHANGES}, True, True, True),
        ({"risk_level": 3}, True, False, False),
    ],
)
def test_effects_become_the_class_and_approval_says_who_is_asked(
    changed: dict[str, Any], mutable: bool, reversible: bool, asked: bool
) -> None:
    made = of(**changed)
    read = capability(made)
    assert (read.mutable, read.reversible, needs_confirmation(made)) == (mutable, reversible, asked)
    assert safety(read) == ("irreversible_mutable" if mutable and not reversible else None)
    assert says_its_effect(tool_item(made)["_meta"][CAPABILITY], tool_item(made).get("annotations"))


@pytest.mark.req("AIP-14.rules-1")
def test_an_unannotated_contract_is_open_and_counts_as_irreversible() -> None:
    made = of(approval="policy:unannotated", mutates=["external:x-mcp"], risk_level=2)
    read = capability(made)
    assert safety(read) == "irreversible_mutable"
    assert not says_its_effect(tool_item(made)["_meta"][CAPABILITY], None)
    assert not needs_confirmation(made)


def test_a_version_that_is_no_strict_semver_is_not_claimed() -> None:
    assert capability(of(version="1.2.3")).schema_version == "1.2.3"
    assert capability(of(version="01.2.3")).schema_version == "0.0.0"


@pytest.mark.req("AIP-tools-16")
@pytest.mark.parametrize(("id", "segment"), [("git-mcp", "git"), ("git", "git"), ("my.files-mcp", "my_files")])
def test_unbound_tools_are_under_the_driver_without_its_suffix(id: str, segment: str) -> None:
    assert exposed_segment(id) == segment


@pytest.mark.req("AIP-tools-16")
def test_an_unbound_tool_is_marked_and_cannot_class_itself() -> None:
    tool = {
        "name": "drop",
        "inputSchema": {"type": "object"},
        "annotations": {"readOnlyHint": False},
        "_meta": {CAPABILITY: {"mutable": False}, "X-MCPAX-safety": "x", "dev.interlock/contract": "a@1", "v/x": 1},
    }
    item = exposed_item(tool, "db-mcp")
    assert item["_meta"].keys() == {CAPABILITY, "dev.interlock/contract", "v/x"}
    assert item["_meta"]["dev.interlock/contract"] == "none"
    read = read_capability(item["_meta"][CAPABILITY], annotations=item["annotations"])
    assert isinstance(read, Capability)
    assert safety(read) == "irreversible_mutable"


def test_an_unbound_tool_without_annotations_stays_open() -> None:
    item = exposed_item({"name": "read_query"}, "db-mcp")
    assert not says_its_effect(item["_meta"][CAPABILITY], item.get("annotations"))


@pytest.mark.parametrize(
    ("annotations", "mutates", "approval", "risk", "idempotent"),
    [
        ({"readOnlyHint": True}, (), "auto", 0, False),
        ({"readOnlyHint": True, "idempotentHint": True}, (), "auto", 0, True),
        ({"readOnlyHint": True, "destructiveHint": True}, ("external:x-mcp",), "policy:gate", 3, False),
        ({"destructiveHint": False}, ("external:x-mcp",), "policy:gate", 2, False),
        ({"destructiveHint": False, "openWorldHint": True}, ("external:x-mcp",), "policy:gate", 2, False),
        ({"destructiveHint": False, "openWorldHint": False}, ("external:x-mcp",), "policy:gate", 1, False),
        ({"destructiveHint": True, "idempotentHint": True}, ("external:x-mcp",), "policy:gate", 3, True),
        ({"readOnlyHint": False}, ("external:x-mcp",), "policy:gate", 3, False),
        ({"readOnlyHint": False, "destructiveHint": False}, ("external:x-mcp",), "policy:gate", 2, False),
        (None, ("external:x-mcp",), "policy:unannotated", 2, False),
        ({}, ("external:x-mcp",), "policy:unannotated", 2, False),
        ({"title": "T"}, ("external:x-mcp",), "policy:unannotated", 2, False),
        ({"idempotentHint": True, "openWorldHint": False}, ("external:x-mcp",), "policy:unannotated", 2, False),
        ({"readOnlyHint": "true"}, ("external:x-mcp",), "policy:unannotated", 2, False),
        ("read-only", ("external:x-mcp",), "policy:unannotated", 2, False),
    ],
)
def test_annotations_are_read_in_the_cautious_direction(
    annotations: object, mutates: tuple[str, ...], approval: str, risk: int, idempotent: bool
) -> None:
    found = effects_of(annotations, "x-mcp")
    assert (found.mutates, found.approval, found.risk_level, found.idempotent) == (mutates, approval, risk, idempotent)
