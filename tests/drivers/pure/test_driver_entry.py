"""What a driver.py says: does it fit the file beside it, and is what its hooks return read or refused?"""

from typing import Any

import pytest
from tests.drivers.driver_bindings import STRING, bound, entry, giving, input_schema, promising, refused
from tests.drivers.driver_texts import as_driver, binding, driver, told

from interlock.drivers.hooks import DriverHandle, DriverRefused, define_driver, defineDriver
from interlock.drivers.protocol.binding.match import (
    STANDARD,
    HookEntry,
    HookInvalid,
    check_entry,
    read_driver_result,
)
from interlock.drivers.protocol.model import Driver
from interlock.drivers.protocol.problems import DriverRefusal


def read(**changed: Any) -> Driver:
    reading = as_driver({**changed, **{key: value for key, value in driver().items() if key not in changed}})
    assert reading.value is not None, reading.problems
    return reading.value


# define_driver


@pytest.mark.req("AIP-define-1")
def test_the_manifest_of_a_handle_is_valid_exactly_where_the_file_would_be() -> None:
    whole = driver(protocol_version="2025-11-25", connection_options={"timeout_ms": 2000}, prompts=[], resources=[])
    handle = define_driver(**whole)
    assert handle.manifest == whole
    assert as_driver(handle.manifest).value == read(**{key: whole[key] for key in handle.manifest})
    wrong = define_driver(**{**whole, "transport": "pigeon"})
    assert told(as_driver(wrong.manifest).problems) == [("schema_invalid", "/transport")]


@pytest.mark.req("AIP-define-1")
def test_a_handle_is_frozen_and_what_is_taken_from_it_is_a_copy() -> None:
    server = {"kind": "binary", "path": "x"}
    handle = define_driver(server=server)
    with pytest.raises(AttributeError, match="cannot assign to field 'build_arguments'"):
        handle.build_arguments = dict  # type: ignore[misc]
    server["path"] = handle.manifest["server"]["path"] = "another"
    assert handle.manifest == {"kind": "mcp", "server": {"kind": "binary", "path": "x"}}


@pytest.mark.req("AIP-define-1")
def test_the_names_of_other_hosts_work_too() -> None:
    def build(args: Any) -> dict[str, Any]:
        return {}

    def parse(args: Any) -> dict[str, Any]:
        return {}

    handle = defineDriver(
        buildArguments=build,
        parseToolResult=parse,
        protocolVersion="2025-11-25",
        connectionOptions={"keepalive": True},
    )
    assert isinstance(handle, DriverHandle)
    assert (handle.build_arguments, handle.parse_tool_result) == (build, parse)
    given = {"kind": "mcp", "protocol_version": "2025-11-25", "connection_options": {"keepalive": True}}
    assert handle.manifest == given


@pytest.mark.req("AIP-define-1")
@pytest.mark.parametrize(
    "wrong",
    [
        {"buildarguments": dict},
        {"protocol_version": "1", "protocolVersion": "1"},
        {"build_arguments": "no function"},
        {"server": {"kind": object()}},
        {"hooks": {}},
    ],
)
def test_an_unknown_keyword_or_value_is_a_type_error(wrong: dict[str, Any]) -> None:
    with pytest.raises(TypeError):
        define_driver(**wrong)


@pytest.mark.req("AIP-define-1")
def test_functions_for_other_contracts_than_are_bound_are_refused() -> None:
    implements = [binding(tool="fs-read"), binding(tool="fs-write")]
    with pytest.raises(DriverRefused, match="fs-other") as caught:
        define_driver(implements=implements, execute={"fs-read": dict, "fs-other": dict})
    assert caught.value.code == "execute_binding_mismatch"
    assert define_driver(implements=implements, execute={"fs-read": dict, "fs-write": dict}).execute is not None


# Against the file


@pytest.mark.req("AIP-define-4")
def test_a_field_that_differs_is_a_warning_that_names_it() -> None:
    file = driver()
    entry = HookEntry(manifest={**file, "transport": "http", "version": "9.0.0", "network": {"egress": ["*"]}})
    problems = check_entry(read(), entry, file, {"fs-read"})
    assert [(each.code, each.field, each.severity) for each in problems] == [
        ("entry_conflict", "/version", "warning"),
        ("entry_conflict", "/transport", "warning"),
        ("entry_conflict", "/network", "warning"),
    ]
    assert tuple(check_entry(read(), HookEntry(manifest=file), file, {"fs-read"})) == ()


@pytest.mark.req("AIP-define-1")
@pytest.mark.parametrize(
    ("execute", "codes"),
    [
        (("fs-read",), []),
        (("./tools/fs-read/TOOL.md",), []),
        (None, []),
        ((), ["execute_binding_mismatch"]),
        (("fs-read", "fs-write"), ["execute_binding_mismatch"]),
    ],
)
def test_execute_names_the_contracts_of_the_file(execute: Any, codes: list[str]) -> None:
    problems = check_entry(read(), HookEntry(execute=execute), driver(), {"fs-read"})
    assert [each.code for each in problems if each.severity == "error"] == codes


@pytest.mark.req("AIP-tools-2", "AIP-tools-5", "AIP-tools-8")
def test_output_of_a_hook_is_not_compared_in_advance_and_is_checked_at_the_call() -> None:
    tool = giving({"type": "object", "properties": {"t": STRING}}, inputs=input_schema("q", q=STRING))
    promise = promising(
        {"type": "object", "required": ["x"], "properties": {"x": {"type": "integer"}}}, input_schema(a=STRING)
    )
    assert {each.code for each in refused(entry("$.t"), promise, tool)} == {"contract_mismatch"}
    assert {each.code for each in refused(entry("$.t"), promise, tool, entry=HookEntry(builds=True))} >= {
        "contract_mismatch"
    }
    both = bound(entry("$.t"), promise, tool, entry=HookEntry(builds=True, parses=True))
    assert {each.code for each in both.warnings} == {"contract_unverified"}
    assert isinstance(both.check_arguments({"a": "1"}), DriverRefusal)
    assert isinstance(both.satisfying({"x": "no"}), DriverRefusal)
    assert both.satisfying({"x": 1}) == {"x": 1}


# What parse_tool_result returns


@pytest.mark.req("AIP-define-3", "AIP-30.errors-1")
def test_an_error_code_without_prefix_that_is_no_standard_code_gets_the_drivers_id() -> None:
    def code(written: str) -> str:
        made = read_driver_result(read(), {"ok": False, "error": {"code": written, "message": "m"}})
        assert isinstance(made, DriverRefusal)
        return made.code

    assert code("card_declined") == "filesystem-mcp:card_declined"
    assert code("upstream_error") == "filesystem-mcp:upstream_error"
    assert code("stripe:card_declined") == "stripe:card_declined"
    assert [code(each) for each in STANDARD] == list(STANDARD)
    assert sorted(STANDARD) == [
        "auth_failed",
        "auth_required",
        "cancelled",
        "execute_binding_mismatch",
        "input_unsupported",
        "install_failed",
        "internal",
        "output_parse_failed",
        "pinned_provider_unavailable",
        "policy_violation",
        "region_mismatch",
        "timeout",
        "tool_unavailable",
        "version_mismatch",
    ]


@pytest.mark.req("AIP-define-3")
def test_a_value_may_be_anything_and_an_error_says_whether_it_may_pass() -> None:
    assert read_driver_result(read(), {"ok": True, "value": None}) is None
    made = read_driver_result(read(), {"ok": False, "error": {"code": "x", "message": "m" * 9999, "retryable": True}})
    assert (made.retryable, len(made.message)) == (True, 4096)


@pytest.mark.req("AIP-define-3")
@pytest.mark.parametrize(
    "returned",
    [
        {},
        {"ok": True},
        {"ok": 1, "value": 1},
        {"ok": False},
        {"ok": False, "error": "x"},
        {"ok": False, "error": {"code": "x"}},
        {"ok": False, "error": {"code": "", "message": ""}},
        {"ok": False, "error": {"code": "a b\n", "message": ""}},
        {"ok": False, "error": {"code": "x" * 129, "message": ""}},
        {"ok": False, "error": {"code": "x", "message": 1}},
        {"ok": False, "error": {"code": "x", "message": "", "retryable": "yes"}},
    ],
)
def test_nonsense_is_refused(returned: dict[str, Any]) -> None:
    with pytest.raises(HookInvalid):
        read_driver_result(read(), returned)
