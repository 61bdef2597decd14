"""Does a TOOL.md give a contract, or every fault in it?"""

from typing import Any

import msgspec
import pytest
from tests.drivers.driver_texts import MISSING, as_contract, contract, text, told

from interlock.drivers.protocol.files.contract import MOVED, REFERENCE_URI, read_contract
from interlock.drivers.protocol.model import Contract, Retry
from interlock.wire.schemas.validators import compile_schema


def loaded(data: dict[str, Any]) -> Contract:
    reading = as_contract(data)
    assert reading.value is not None, reading.problems
    return reading.value


def errors(data: dict[str, Any]) -> list[tuple[str, str]]:
    reading = as_contract(data)
    assert (reading.value is None) == bool(reading.errors)
    assert all(each.hint and each.line for each in reading.errors)
    return told(reading.errors)


@pytest.mark.req("AIP-14.front-1")
@pytest.mark.parametrize("field", ["name", "id", "description", "version", "inputs", "outputs"])
def test_each_required_field_is_asked_for(field: str) -> None:
    assert errors(contract(**{field: MISSING})) == [("schema_invalid", f"/{field}")]


@pytest.mark.req("AIP-14.front-1")
def test_an_unknown_key_is_refused_with_its_pointer() -> None:
    assert errors(contract(more=1)) == [("schema_invalid", "/more")]
    assert errors(contract(requires={"disk": []})) == [("schema_invalid", "/requires/disk")]
    reading = as_contract(contract(implements="action.read"))
    assert told(reading.errors) == [("schema_invalid", "/implements")]
    assert "drivers" in reading.errors[0].hint


@pytest.mark.req("AIP-14.front-1")
@pytest.mark.parametrize("field", ["inputs", "outputs"])
@pytest.mark.parametrize(
    "schema",
    [
        {"type": "strin"},
        {"properties": []},
        {"required": "path"},
        {"pattern": "("},
        {"$ref": "https://example.com/other.json"},
        {"$ref": "#/nowhere"},
        {"minimum": "1"},
        [],
        "object",
        None,
    ],
)
def test_inputs_and_outputs_are_self_contained_json_schemas(field: str, schema: Any) -> None:
    found = errors(contract(**{field: schema}))
    assert found
    assert all(code == "schema_invalid" and pointer.startswith(f"/{field}") for code, pointer in found)


@pytest.mark.req("AIP-14.front-1")
def test_a_contract_with_only_the_required_fields_has_the_defaults() -> None:
    plain = loaded(contract())
    assert (plain.idempotent, plain.mutates, plain.approval, plain.risk_level) == (False, (), "auto", 0)
    assert (plain.cost_class, plain.timeout_ms, plain.default_implementation, plain.retry) == (
        "trivial",
        30000,
        None,
        None,
    )
    said = {"idempotent": True, "approval": "always", "cost_class": "metered", "timeout_ms": 7, "risk_level": 2}
    written = loaded(contract(**said))
    assert {name: getattr(written, name) for name in said} == said


@pytest.mark.req("AIP-14.front-1")
@pytest.mark.parametrize(
    ("field", "valid", "invalid"),
    [
        ("id", ["ab", "image.create", "a" * 80], ["a", "a" * 81, "A-b", "a_b", "-ab", "ab-", ".ab"]),
        ("risk_level", [0, 3], [-1, 4, "1", 1.5]),
        ("cost_class", ["metered"], ["free", None]),
        ("timeout_ms", [1], [0, "1"]),
        (
            "retry",
            [{"max_attempts": 20, "backoff": "fixed"}],
            [{"max_attempts": 1}, {"max_attempts": 21, "backoff": "fixed"}],
        ),
        ("default_implementation", [None, "fs-mcp"], ["X", 3]),
        ("driver_constraints", [{"forbid": ["cli"]}], [{"forbid": ["soap"]}, {"forbid": ["cli", "cli"]}]),
        ("approval", ["always", "on-mutate", "policy:a/b"], ["never", "policy:", "policy:a b", None]),
        ("examples", [[{"name": "a", "input": {}}]], [[{"name": "a"}], [{"name": "a", "input": {}, "more": 1}]]),
        ("tags", [["a"]], [["A"], ["a", "a"]]),
        ("idempotent", [True], ["yes", 1]),
    ],
)
def test_the_optional_fields_are_bounded(field: str, valid: list[Any], invalid: list[Any]) -> None:
    for value in valid:
        assert errors(contract(**{field: value})) == [], value
    for value in invalid:
        found = errors(contract(**{field: value}))
        assert found, value
        assert all(pointer.startswith(f"/{field}") for _, pointer in found), value


@pytest.mark.req("AIP-14.front-2")
@pytest.mark.parametrize("approval", [MISSING, "auto"])
def test_a_mutating_contract_cannot_have_approval_auto(approval: Any) -> None:
    reading = as_contract(contract(mutates=["workspace:/x"], approval=approval))
    (problem,) = reading.errors
    assert (problem.code, problem.field) == ("schema_invalid", "/mutates" if approval is MISSING else "/approval")
    assert all(word in problem.hint for word in ("always", "on-mutate", "policy:<ref>"))


@pytest.mark.req("AIP-14.front-2")
def test_a_mutating_contract_loads_with_each_other_approval() -> None:
    for approval in ("always", "on-mutate", "policy:gate"):
        assert loaded(contract(mutates=["workspace:/x"], approval=approval)).approval == approval
    assert loaded(contract(mutates=[])).approval == "auto"
    for entry in ("workspace", "Workspace:/x", ":x", "workspace:", "workspace:a b"):
        found = errors(contract(mutates=[entry], approval="always"))
        assert found == [("schema_invalid", "/mutates/0")]


@pytest.mark.req("AIP-14.front-3")
@pytest.mark.parametrize("field", ["code", "run", "runner", "secrets", "network", "entry", "execute"])
def test_a_field_that_moved_is_refused_with_where_it_moved_to(field: str) -> None:
    (problem,) = as_contract(contract(**{field: "x"})).errors
    assert (problem.code, problem.field) == ("schema_invalid", f"/{field}")
    assert MOVED[field] in problem.hint
    assert "DRIVER.md (AIP-30)" in problem.hint
    beside = as_contract(contract(**{field: "x", "name": ""})).errors
    assert [each.field for each in beside if "moved to" in each.hint] == [f"/{field}"]


@pytest.mark.req("AIP-compat-2")
@pytest.mark.parametrize(("written", "meant"), [("inputSchema", "inputs"), ("outputSchema", "outputs")])
def test_the_names_of_the_code_are_refused_with_the_names_of_the_file(written: str, meant: str) -> None:
    problems = as_contract(contract(**{meant: MISSING, written: {"type": "object"}})).errors
    hints = {each.field: each.hint for each in problems}
    assert hints[f"/{written}"] == f"write {meant}"
    assert not hints[f"/{meant}"].startswith("write ")
    assert loaded(contract()).inputs == contract()["inputs"]


def test_the_inputs_are_an_object() -> None:
    assert errors(contract(inputs={"type": "array"})) == [("schema_invalid", "/inputs/type")]
    assert errors(contract(outputs={"type": "array"})) == []


def test_our_extensions_of_a_contract_are_read_and_checked() -> None:
    ours = {"name": "filesystem.read_file", "context_schema": {"type": "object", "required": ["tenant"]}}
    extended = loaded(contract(metadata={"interlock": ours}))
    assert (extended.listed_as, extended.context_schema) == (ours["name"], ours["context_schema"])
    for name in ("read_file", "a..b", "", "a.b c"):
        assert errors(contract(metadata={"interlock": {"name": name}})) == [
            ("schema_invalid", "/metadata/interlock/name")
        ]
    assert errors(contract(metadata={"interlock": {"context_schema": {"type": 1}}})) == [
        ("schema_invalid", "/metadata/interlock/context_schema/type")
    ]
    assert errors(contract(metadata={"interlock": {"more": 1}})) == [("schema_invalid", "/metadata/interlock/more")]


def test_everything_of_a_contract_is_read() -> None:
    whole = loaded(
        contract(
            idempotent=True,
            mutates=["network:*"],
            approval="always",
            risk_level=2,
            retry={"max_attempts": 3, "backoff": "exponential", "initial_ms": 10},
            requires={"network": ["*"]},
            examples=[{"name": "one", "input": {"path": "a"}, "output": None}, {"name": "two", "input": {}}],
        )
    )
    assert whole.retry == Retry(max_attempts=3, backoff="exponential", initial_ms=10)
    assert whole.requires.network == ("*",)
    assert [each.output for each in whole.examples] == [None, msgspec.UNSET]


def test_line_and_file_of_a_fault_are_named() -> None:
    content = text(contract()).replace(b"version: 1.0.0", b"version: 1.0")
    (problem,) = read_contract(content, ".tools/fs-read/TOOL.md").errors
    assert (problem.file, problem.line) == (".tools/fs-read/TOOL.md", 5)
    assert str(problem).startswith(".tools/fs-read/TOOL.md:5: /version: ")
    assert "three parts" in problem.hint


GOOD_REFERENCES = [
    "local:engagements/acme/proposal.md",
    "github:agentik/studio@main:packages/foo",
    {"kind": "local", "path": "a/..b/c.md", "sha256": "ab" * 32, "tags": ["x"], "description": "d"},
    {"kind": "url", "href": "https://example.com/x.pdf"},
    {"kind": "git", "url": "https://gitlab.example/team/repo.git", "ref": "v1.2.3", "path": "src"},
    {"kind": "github", "owner": "agentik", "repo": "studio"},
    {"kind": "ipfs", "cid": "bafy"},
    {"kind": "email", "address": "ada@example.com"},
    {"kind": "operator", "slug": "atlas", "workspace": "acme"},
    {"kind": "user", "id": "7"},
    {"kind": "persona", "id": "p"},
    {"kind": "eth_tx", "chainId": 1, "txHash": "0x" + "0" * 64},
    {"kind": "ots", "proof": {"kind": "local", "path": "a.ots"}},
]
BAD_REFERENCES = [
    "engagements/acme/proposal.md",
    "planet:mars",
    "local:",
    "local:/etc/passwd",
    "local:../x",
    "local:a/../../x",
    "ots:local:/etc/passwd",
    {"kind": "local", "path": "/etc/passwd"},
    {"kind": "local", "path": "a/../../x"},
    {"kind": "local", "path": ".."},
    {"kind": "local", "path": "a\\b"},
    {"kind": "url", "href": "ftp://example.com"},
    {"kind": "url"},
    {"kind": "planet", "path": "a"},
    {"kind": "eth_tx", "chainId": "1", "txHash": "0x"},
    {"kind": "ots", "proof": {"kind": "email", "address": "a@b"}},
    {"path": "a"},
    7,
]


@pytest.mark.req("AIP-14.front-1", "AIP-compat-1")
def test_a_reference_to_the_schema_of_references_is_known_and_nothing_is_fetched() -> None:
    """As the published examples of AIP-14 write it."""
    reference = {"$ref": REFERENCE_URI}
    properties = {"one": reference, "more": {"type": "array", "items": {"anyOf": [{"type": "null"}, reference]}}}
    inputs = {"type": "object", "properties": properties, "required": ["one"], "$defs": {"mine": {"type": "string"}}}
    read = loaded(contract(inputs=inputs, outputs={"type": "object", "properties": {"ref": reference}}))
    assert REFERENCE_URI not in str(read.inputs) + str(read.outputs)
    assert set(read.inputs["$defs"]) == {"mine", "agentref-v1"}
    compiled = compile_schema(read.inputs)
    assert compiled is not None
    assert compiled.is_whole
    for good in GOOD_REFERENCES:
        assert compiled.accepts({"one": good, "more": [None, good]}), good
    for bad in BAD_REFERENCES:
        assert not compiled.accepts({"one": bad}), bad
        assert not compiled.accepts({"one": GOOD_REFERENCES[0], "more": [bad]}), bad
    assert "$defs" not in loaded(contract()).inputs


@pytest.mark.req("AIP-14.front-1")
def test_only_that_reference_is_known_and_only_in_its_place() -> None:
    for other in (f"{REFERENCE_URI}#/x", "https://agentproto.sh/docs/aip-27/OTHER.schema.json"):
        assert errors(contract(inputs={"type": "object", "properties": {"a": {"$ref": other}}})) == [
            ("schema_invalid", "/inputs")
        ]
    taken = {"type": "object", "properties": {"a": {"$ref": REFERENCE_URI}}, "$defs": {"agentref-v1": {}}}
    assert errors(contract(inputs=taken)) == [("schema_invalid", "/inputs")]
    inputs = {"type": "object", "properties": {"a": {"const": {"$ref": REFERENCE_URI}}}}
    assert loaded(contract(inputs=inputs)).inputs == inputs


@pytest.mark.req("AIP-14.front-1")
def test_an_unenforced_requirement_of_a_contract_is_reported() -> None:
    for key in ("network", "secrets", "tools"):
        (note,) = as_contract(contract(requires={key: ["x"]})).problems
        assert (note.code, note.field, note.severity) == ("not_enforced", "/requires", "note")
        assert as_contract(contract(requires={key: []})).problems == ()
