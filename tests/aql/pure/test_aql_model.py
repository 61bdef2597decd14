"""MCP-AQL: declarations, families, codes, envelopes and limits, each exact at its boundary."""

import json
import re
from typing import Any

import msgspec
import pytest
from msgspec import Raw
from tests.support.scale import quick_or

from interlock.aql.protocol import search as search_module
from interlock.aql.protocol.envelope import AnswerWarning, Halted, batch, failed, success, tool_result
from interlock.aql.protocol.errors import (
    CATEGORIES,
    CODES,
    AqlFailure,
    Code,
    code_of_status,
    confirmation_required,
    endpoint_mismatch,
    failure,
    invalid_type,
    missing_params,
    unknown_operation,
    unknown_params,
)
from interlock.aql.protocol.families import PREFIX, PROFILES, AqlEndpoints, Profile, custom_profile
from interlock.aql.protocol.model import (
    PERMISSIONS,
    RESERVED_BY_VERSION,
    SPEC_VERSION,
    AqlOperation,
    AqlParameter,
    Category,
    Danger,
    TypeDeclaration,
    check_operation,
)
from interlock.aql.protocol.requests import RANGES, PayloadLimits, check_request
from interlock.aql.protocol.search import nearest

LIMITS = PayloadLimits()


def operation(name: str = "get_user", **more: Any) -> AqlOperation:
    return AqlOperation(**{"name": name, "category": Category.READ, "description": "Gets a user.", **more})


# Declarations


@pytest.mark.req("AQL-2.1-1")
def test_the_categories_are_exactly_five() -> None:
    assert [category.value for category in Category] == ["CREATE", "READ", "UPDATE", "DELETE", "EXECUTE"]
    for wrong in ("create", "QUERY", None):
        assert "category" in (check_operation(operation(category=wrong)) or "")
    for right in Category:
        assert check_operation(operation(category=right)) is None


def test_a_declaration_without_a_part_is_refused_by_name() -> None:
    assert "'get_user': the description" in (check_operation(operation(description=" ")) or "")
    assert "the name must match" in (check_operation(operation("")) or "")


@pytest.mark.req("AQL-8.5.2-1")
@pytest.mark.parametrize("name", ["CreateUser", "create-user", "9create", "create.user", "", "a\n", "créer"])
def test_a_name_that_is_no_operation_name_is_refused(name: str) -> None:
    assert check_operation(operation(name)) is not None


@pytest.mark.req("AQL-4.3-1")
@pytest.mark.parametrize("name", ["userId", "_x", "9a", "a-b"])
def test_a_parameter_name_that_is_not_snake_case_is_refused(name: str) -> None:
    declared = operation(parameters=(AqlParameter(name=name, type="string"),))
    assert repr(name) in (check_operation(declared) or "")


@pytest.mark.req("AQL-8.5.4-1")
def test_a_reserved_name_is_refused_with_its_clause() -> None:
    assert len(RESERVED_BY_VERSION[SPEC_VERSION]) == 7
    assert check_operation(operation("get_agent")) is None
    for name in RESERVED_BY_VERSION[SPEC_VERSION]:
        assert "8.5.4" in (check_operation(operation(name)) or "")
        assert check_operation(operation(name), may_be_reserved=True) is None


def test_the_permissions_of_each_category() -> None:
    said = {c.value: (p.read_only, p.destructive) for c, p in PERMISSIONS.items()}
    true_true = dict.fromkeys(("UPDATE", "DELETE", "EXECUTE"), (False, True))
    assert said == {"CREATE": (False, False), "READ": (True, False), **true_true}


@pytest.mark.req("AQL-C.danger-1")
def test_the_danger_levels_and_their_defaults() -> None:
    assert [(d.word, int(d)) for d in Danger] == [
        ("safe", 0),
        ("reversible", 1),
        ("destructive", 2),
        ("dangerous", 3),
        ("forbidden", 4),
    ]
    expected = {"READ": 0, "CREATE": 1, "UPDATE": 1, "DELETE": 2, "EXECUTE": 1}
    for category in Category:
        assert operation(category=category).danger_level == expected[category.value]


def test_parameter_info_has_no_other_keys() -> None:
    every = AqlParameter(
        name="page",
        type="integer",
        required=True,
        description="Which.",
        default=1,
        enum=(1, 2),
        minimum=1,
        maximum=2,
        min_length=1,
        max_length=2,
        pattern="x",
        format="uri",
        items={"type": "string"},
        sensitive=True,
        original="pageNo",
    )
    constraints = {"enum", "minimum", "maximum", "minLength", "maxLength", "pattern", "format", "items"}
    assert set(every.info()) == constraints | {"name", "type", "required", "description", "default", "sensitive"}
    assert AqlParameter(name="a", type="string | null").value_schema() == {"type": ["string", "null"]}


def test_type_details_by_kind() -> None:
    field = AqlParameter(name="id", type="string", required=True)
    assert TypeDeclaration(name="T", kind="object", fields=(field,)).details() == {
        "name": "T",
        "kind": "object",
        "fields": [{"name": "id", "type": "string", "required": True}],
    }
    assert TypeDeclaration(name="T", kind="enum", values=("a",)).details()["values"] == ["a"]
    assert TypeDeclaration(name="T", kind="union", members=("A",)).details()["members"] == ["A"]
    assert set(TypeDeclaration(name="T", kind="scalar", description="x").details()) == {"name", "kind", "description"}


# Families


def names(endpoints: AqlEndpoints) -> list[str]:
    return [tool.name for tool in endpoints.tools]


def test_the_standard_profile_lists_five_tools_in_order() -> None:
    five = [f"mcp_aql_{family}" for family in ("create", "read", "update", "delete", "execute")]
    assert names(AqlEndpoints()) == five
    assert names(AqlEndpoints(mode="single")) == ["mcp_aql"]
    assert names(AqlEndpoints(mode="all")) == [*five, "mcp_aql"]
    assert names(AqlEndpoints(mode="single", prefix="github_")) == ["github_mcp_aql"]


def test_the_alternative_profile() -> None:
    profile = PROFILES["discover_query_manage_operate"]
    assert names(AqlEndpoints(profile=profile)) == [f"mcp_aql_{f}" for f in ("discover", "query", "manage", "operate")]
    by = {category.value: profile.family_of(operation(category=category)) for category in Category}
    assert by == {"READ": "query", "CREATE": "manage", "UPDATE": "manage", "DELETE": "manage", "EXECUTE": "operate"}
    assert profile.family_of(operation("introspect")) == "discover"
    assert profile.permissions("query").read_only and profile.permissions("discover").read_only
    assert profile.permissions("manage").destructive


@pytest.mark.req("AQL-6.2-2")
def test_custom_families_are_checked_by_name() -> None:
    made = custom_profile("mine", {"look": ["READ"], "touch": ["CREATE", "UPDATE", "DELETE", "EXECUTE", "ping"]})
    assert isinstance(made, Profile)
    assert made.family_of(operation("introspect")) == "look"
    assert made.family_of(operation("ping")) == "touch"
    for families, said in (
        ({"look": ["READ"]}, "no family takes CREATE"),
        ({"Look": ["READ"]}, "'Look'"),
        ({"a": ["READ", "op"], "b": ["op"]}, "operation 'op' stands in two families"),
        ({"a": ["READ"], "b": ["READ"]}, "category READ stands in two"),
        ({"a": ["READ", "x-y"]}, "'x-y'"),
    ):
        assert said in str(custom_profile("mine", families))


def test_prefixes() -> None:
    for good in ("github_", "a1_", "x_" * 9 + "_"):
        assert PREFIX.fullmatch(good)
    for bad in ("GitHub_", "git-hub_", "github", "a" * 19 + "_", ""):
        assert not PREFIX.fullmatch(bad)


@pytest.mark.req("AQL-6.2-2")
def test_an_operation_has_one_family_in_every_profile() -> None:
    for profile in PROFILES.values():
        for category in Category:
            assert profile.family_of(operation(category=category)) in profile.families
            assert profile.family_of(operation(category=category, family="of another")) in profile.families
        for family in profile.families:
            assert profile.family_of(operation(family=family)) == family


# Codes and envelopes


@pytest.mark.req("AQL-C.err-6")
def test_every_status_has_its_code() -> None:
    own = {401: "PERMISSION_DENIED", 403: "PERMISSION_DENIED", 404: "NOT_FOUND_RESOURCE"}
    own |= {409: "CONFLICT_ALREADY_EXISTS", 429: "RATE_LIMIT_EXCEEDED"}
    for status in range(400, 600):
        default = "INTERNAL_ERROR" if status >= 500 else "VALIDATION_INVALID_TYPE"
        assert code_of_status(status).value == own.get(status, default)


@pytest.mark.req("AQL-C.err-1")
def test_codes_have_the_form_of_their_categories() -> None:
    alone = {"CONFIRMATION_REQUIRED", "INVALID_QUERY_TYPE", "INTROSPECTION_ERROR", "BATCH_VALIDATION_ERROR"}
    for code in CODES:
        assert re.fullmatch(r"[A-Z][A-Z0-9_]*", code)
        assert code in alone or code.startswith(CATEGORIES)


@pytest.mark.req("AQL-C.tool-6")
def test_only_what_the_caller_cannot_repair_is_an_error() -> None:
    for code in Code:
        expected = code in (Code.INTERNAL_ERROR, Code.INTROSPECTION_ERROR)
        assert failure(code, "x").is_error is expected


@pytest.mark.req("AQL-C.err-3", "AQL-4.6-2", "AQL-6.2-3")
def test_messages_follow_the_templates() -> None:
    assert (
        invalid_type("per_page", "integer", "string").message == "Parameter 'per_page' expected 'integer', got 'string'"
    )
    assert unknown_operation("create_widget").message.startswith("Unknown operation: 'create_widget'")
    assert "introspect" in unknown_operation("create_widget").message
    said = missing_params("create_document", [("title", "string", "Its title")])
    assert said.message.startswith(
        "Missing required parameter 'title' for operation 'create_document'. Expected: string (Its title)"
    )
    assert said.details == {"param_name": "title", "operation": "create_document", "missing_params": ["title"]}
    unknown = unknown_params("list_users", ["a", "b"], ["limit"], {"a": "limit"})
    assert unknown.message.startswith("Unknown parameter(s) for operation 'list_users': a, b")
    wrong = endpoint_mismatch("list_users", "read", "mcp_aql_read", "create", "mcp_aql_create")
    assert wrong.message == "Operation 'list_users' must be called via mcp_aql_read, not mcp_aql_create"


@pytest.mark.req("AQL-5.1-1")
def test_envelopes_are_a_union_on_success() -> None:
    for data in ({"a": 1}, [1], "x", 5, False, None):
        assert json.loads(success(data)) == {"success": True, "data": data}
    assert success(Raw(b'{"b":9007199254740993,"a":1}')) == b'{"success":true,"data":{"b":9007199254740993,"a":1}}'
    assert json.loads(failed(AqlFailure("INTERNAL_ERROR", "x"))) == {
        "success": False,
        "error": {"code": "INTERNAL_ERROR", "message": "x"},
    }
    required = confirmation_required("x", "destructive", token="conf_a", expires_at="2026-01-01T00:00:00Z", message="?")
    said = json.loads(failed(required))
    assert said["confirmation"]["token"] == said["error"]["details"]["confirmation_token"] == "conf_a"
    assert set(json.loads(failed(required, bare=True))["error"]) == {"code", "message"}
    assert json.loads(success(1, request_id="r"))["_meta"] == {"request_id": "r"}


def test_at_most_ten_distinct_warnings_the_least_severe_dropped() -> None:
    def warn(number: int, severity: Any = None) -> AnswerWarning:
        return AnswerWarning(code="DEPRECATION_WARNING", message=f"m{number}", severity=severity)

    many = [warn(0, "low"), *(warn(n, "medium") for n in range(1, 10)), warn(10, "high"), warn(10, "high")]
    kept = json.loads(success(1, many))["warnings"]
    assert [each["message"] for each in kept] == [f"m{n}" for n in range(1, 11)]
    assert set(kept[0]) == {"code", "message", "severity"}


def test_a_halted_batch_says_where_and_what_is_left() -> None:
    required = failure(Code.CONFIRMATION_REQUIRED, "This operation requires confirmation")
    halted = Halted(index=1, operation="b", failure=required, pending=({"index": 2, "operation": "c"},))
    said = json.loads(batch([("a", success(1), True)], halted))
    assert said["summary"] == {"total": 3, "succeeded": 1, "failed": 0, "halted": 1, "pending": 1}
    assert said["halted_at"]["operation"] == "b" and said["pending_operations"] == [{"index": 2, "operation": "c"}]
    assert said["success"] is True and said["data"] is None


def test_the_tool_result_carries_the_envelope_twice() -> None:
    envelope = success({"x": 'a "quoted" \n text', "n": 12345678901234567890})
    said = json.loads(tool_result(envelope, is_error=False, is_modern=True))
    assert json.loads(said["content"][0]["text"]) == said["structuredContent"] == json.loads(envelope)
    assert said["isError"] is False and said["resultType"] == "complete"
    assert "structuredContent" not in json.loads(
        tool_result(envelope, is_error=True, is_modern=False, is_structured=False)
    )


# Limits


def refused(text: bytes, limits: PayloadLimits = LIMITS) -> tuple[str, int, int] | None:
    found = check_request(text, limits)
    if found is None:
        return None
    details = found.details or {}
    return (details["limit_type"], details["limit_value"], details["actual_value"])


@pytest.mark.req("AQL-4.7.5-6", "AQL-4.7.5-1", "AQL-4.7.5-7")
def test_the_depth_of_the_literal_example_is_four() -> None:
    for depth, expected in ((3, ("nesting_depth", 3, 4)), (4, None)):
        assert refused(b'{"a":{"b":{"c":{}}}}', msgspec.structs.replace(LIMITS, nesting_depth=depth)) == expected
    assert refused(b'{"a":"{{{["}', msgspec.structs.replace(LIMITS, nesting_depth=1)) is None
    assert refused(b'{"a":' * 31 + b"{}" + b"}" * 31) is None
    assert refused(b'{"b":{},"a":' * 31 + b"{}" + b"}" * 31) is None
    assert refused(b'{"a":' * 32 + b"{}" + b"}" * 32) == ("nesting_depth", 32, 33)
    assert refused(b"[" * 100_000 + b"]" * 100_000) == ("nesting_depth", 32, 100_000)
    assert check_request(b"[" * 100_000 + b"]" * 100_000, LIMITS).details["unit"] == "levels"  # type: ignore[union-attr, index]


@pytest.mark.req("AQL-4.7.5-1", "AQL-4.7.5-7", "AQL-4.7.5-5")
def test_an_array_at_its_limit_passes_and_one_more_item_does_not() -> None:
    def inner(count: int) -> bytes:
        return b'{"a":{"b":[%b]}}' % b",".join([b"1"] * count)

    assert refused(inner(10_000)) is None
    assert refused(inner(10_001)) == ("array_elements", 10_000, 10_001)
    assert refused(b'{"a":[%b]}' % b",".join([b'"x"'] * 10_001)) == ("array_elements", 10_000, 10_001)
    small = PayloadLimits(array_elements=100)
    assert refused(b'{"a":[%b]}' % b" , ".join([b"1"] * 100), small) is None
    assert refused(b'{"a":[%b]}' % b" , ".join([b"1"] * 101), small) == ("array_elements", 100, 101)
    assert refused(b'{"a":[' + b" " * 500 + b"]}", small) is None


@pytest.mark.req("AQL-4.7.5-4", "AQL-4.7.5-1", "AQL-4.7.5-7")
def test_a_string_is_measured_in_utf_8_bytes() -> None:
    limits = PayloadLimits(request_bytes=10 * 1024 * 1024)
    two = "\u00e9".encode()
    assert refused(b'{"a":"%b"}' % (two * 524_288), limits) is None
    assert refused(b'{"a":"%b"}' % (two * 524_289), limits) == ("string_length", 1_048_576, 1_048_578)
    size = quick_or(65_536, 1_048_576)
    limits = PayloadLimits(request_bytes=10 * 1024 * 1024, string_bytes=size)
    assert refused(b'{"a":"%b"}' % (b"\\u00e9" * (size // 2)), limits) is None
    assert refused(b'{"a":"%b"}' % (b"\\u00e9" * (size // 2 + 1)), limits) == ("string_length", size, size + 2)
    assert refused(b'{"a":"%b"}' % (b"\\ud83d\\ude00" * (size // 4)), limits) is None
    assert refused(b'{"a":"%b"}' % (b"\\n" * (size + 1)), limits) == ("string_length", size, size + 1)
    assert refused(b'{"%b":1}' % (b"k" * (size + 1)), limits) == ("string_length", size, size + 1)
    assert check_request(b'{"%b":1}' % (b"k" * (size + 1)), limits).details["unit"] == "bytes"  # type: ignore[union-attr, index]


@pytest.mark.req("AQL-4.7.5-1", "AQL-4.7.5-7", "AQL-4.7.5-2")
def test_a_request_at_its_limit_passes_and_one_byte_more_does_not() -> None:
    def sized(size: int) -> bytes:
        start = b'{"a":"' + b"x" * 1000 + b'","b":"'
        return start + b"x" * (size - len(start) - 2) + b'"}'

    assert refused(sized(1_048_576)) is None
    assert refused(sized(1_048_577)) == ("request_size", 1_048_576, 1_048_577)


@pytest.mark.req("AQL-4.7.5-1", "AQL-X-16")
def test_of_two_broken_limits_the_first_in_order_is_reported() -> None:
    limits = PayloadLimits(request_bytes=3 * 1024 * 1024, array_elements=100, nesting_depth=8, string_bytes=64 * 1024)
    deep, wide, long = b"[" * 9 + b"]" * 9, b"[%b]" % b",".join([b"1"] * 101), b'"%b"' % (b"x" * 65_537)
    huge = b'"%b"' % (b"y" * 3_200_000)
    for parts, expected in (
        ((huge, deep), "request_size"),
        ((long, wide, deep), "nesting_depth"),
        ((long, wide), "array_elements"),
        ((wide, long), "array_elements"),
        ((long,), "string_length"),
    ):
        text = b"{%b}" % b",".join(b'"k%d":%b' % pair for pair in enumerate(parts))
        assert (refused(text, limits) or ("",))[0] == expected


@pytest.mark.req("AQL-4.7.1-1", "AQL-4.7.1-2")
@pytest.mark.parametrize(
    ("text", "offset"),
    [
        (rb'{"a":"\ud800"}', 6),
        (rb'{"a":"x\udc00"}', 7),
        (rb'{"\ud800":1}', 2),
        (rb'{"a":"\ud83dx\ude00"}', 6),
        (rb'{"a":"\ud83d\ud83d\ude00"}', 6),
        (rb'{"a":"a\u0000b"}', 7),
    ],
)
def test_unpaired_surrogates_and_nul_are_refused_at_their_place(text: bytes, offset: int) -> None:
    found = check_request(text, LIMITS)
    assert found is not None and found.code == "VALIDATION_INVALID_ENCODING"
    assert found.details == {"location": "request", "byte_offset": offset}


@pytest.mark.req("AQL-4.7.1-2")
def test_whole_pairs_and_escaped_backslashes_pass() -> None:
    for text in (rb'{"a":"\ud83d\ude00"}', rb'{"a":"\\ud800"}', rb'{"a":"\\u0000"}', rb'{"a":"\u00e9"}'):
        assert check_request(text, LIMITS) is None
    assert check_request(rb'{"a":"\u0000"}', LIMITS, nul_allowed=True) is None


@pytest.mark.req("AQL-4.7.5-9", "AQL-4.7.5-8")
def test_the_limits_as_introspection_shows_them() -> None:
    assert LIMITS.shown() == {
        "max_request_size": 1_048_576,
        "max_response_size": 10_485_760,
        "max_string_length": 1_048_576,
        "max_array_elements": 10_000,
        "max_nesting_depth": 32,
        "max_batch_operations": 50,
    }
    assert RANGES["request_bytes"] == (65_536, 10_485_760)


@pytest.mark.parametrize(("written", "meant"), [("lst_item_250", "list_item_250"), ("listItem7", "list_item_7")])
def test_the_name_that_was_meant_is_found_among_many_alike(written: str, meant: str) -> None:
    known = [f"{verb}_item_{number}" for number in range(100) for verb in ("list", "get", "drop")][:299]
    assert nearest(written, [*known, meant])[0] == meant


def test_a_batch_of_unknown_names_compares_few_of_them_letter_by_letter(monkeypatch: pytest.MonkeyPatch) -> None:
    compared = []
    monkeypatch.setattr("difflib.get_close_matches", lambda name, among, **bounds: compared.append(len(among)) or [])
    nearest("unknown", [f"name_{number}" for number in range(300)])
    assert compared == [search_module.COMPARED_MAX]
