"""Requests to an adapter: the order of their handling, where parameters stand, and what is refused."""

import json
from typing import Any, cast

import pytest
from tests.sdk.aql_library import Library

from interlock.aql.protocol.requests import NAME_CHARS_MAX
from interlock.sdk.aql import Context
from interlock.sdk.aql.service import Service


@pytest.mark.req("AQL-4.4-1")
def test_the_three_printed_requests_are_valid() -> None:
    library = Library()
    assert library.ask("read", "list_users")["data"] == ["ada", "grace"]
    assert library.ask("create", "create_document", params={"title": "My Document"})["success"]
    assert library.ask("read", "get_user", user_id="u1")["data"] == {"user_id": "u1"}


@pytest.mark.req("AQL-4.2-1")
def test_a_parameter_is_in_params_or_beside_it_and_params_wins() -> None:
    library = Library()
    assert library.ask("read", "get_user", user_id="a") == library.ask("read", "get_user", params={"user_id": "a"})
    library.ask("read", "get_user", user_id="top", params={"user_id": "inside"})
    assert library.calls[-1] == "get_user inside"


@pytest.mark.req("AQL-3.2-1")
def test_the_first_wrong_step_is_reported_and_no_handler_is_called() -> None:
    library = Library()
    both = library.ask("create", "lst_users", params={"bogus": 1})
    assert both["error"]["code"] == "NOT_FOUND_OPERATION"
    elsewhere = library.ask("create", "get_user", params={"bogus": 1})
    assert elsewhere["error"]["code"] == "VALIDATION_ENDPOINT_MISMATCH"
    assert library.ask("read", "get_user", params={"bogus": 1})["error"]["code"] == "VALIDATION_MISSING_PARAM"
    assert library.calls == []


@pytest.mark.req("AQL-6.2-3")
def test_an_operation_at_another_endpoint_is_refused_in_the_printed_words() -> None:
    library = Library()
    error = library.ask("create", "list_users")["error"]
    assert error["code"] == "VALIDATION_ENDPOINT_MISMATCH"
    assert error["message"] == "Operation 'list_users' must be called via mcp_aql_read, not mcp_aql_create"
    assert error["details"] == {
        "operation": "list_users",
        "expected_endpoint": "read",
        "actual_endpoint": "create",
        "expected_tool": "mcp_aql_read",
    }
    assert library.calls == []


@pytest.mark.req("AQL-6.2-2")
def test_exactly_one_endpoint_takes_each_operation() -> None:
    library = Library()
    families = ("create", "read", "update", "delete", "execute")
    for name in ["introspect", *library.adapter.operations]:
        takers = [
            family
            for family in families
            if library.ask(family, name).get("error", {}).get("code") != "VALIDATION_ENDPOINT_MISMATCH"
        ]
        assert len(takers) == 1, name


@pytest.mark.req("AQL-4.6-1", "AQL-4.6-2", "AQL-4.6.1-1", "AQL-4.6.2-2")
def test_unknown_parameters_are_all_named_wherever_they_are() -> None:
    library = Library()
    error = library.ask("read", "get_user", params={"user_id": "a", "userId": 1, "bogus": 2})["error"]
    assert error["code"] == "VALIDATION_UNKNOWN_PARAM"
    assert error["message"].startswith("Unknown parameter(s) for operation 'get_user': userId, bogus")
    assert error["details"] == {
        "operation": "get_user",
        "unknown_params": ["userId", "bogus"],
        "valid_params": [parameter["name"] for parameter in library.details("get_user")["parameters"]],
        "did_you_mean": {"userId": "user_id"},
    }
    beside = library.ask("read", "get_user", user_id="a", bogus=1)["error"]
    assert beside["code"] == "VALIDATION_UNKNOWN_PARAM"
    assert library.calls == []


@pytest.mark.req("AQL-4.6.1-2")
def test_names_with_an_underscore_are_accepted_and_reach_nobody() -> None:
    library = Library()
    for place in ({"_meta": {"a": 1}, "_request_id": "r", "_anything": 2},):
        assert library.ask("read", "get_value", params={"value": 1, **place})["data"] == 1
        assert library.ask("read", "get_value", params={"value": 1}, **place)["data"] == 1


@pytest.mark.req("AQL-4.1-1", "AQL-4.1-2")
@pytest.mark.parametrize(
    ("request_text", "code", "param"),
    [
        ("{}", "VALIDATION_MISSING_PARAM", "operation"),
        ('{"operation":7}', "VALIDATION_INVALID_TYPE", "operation"),
        ('{"operation":null}', "VALIDATION_INVALID_TYPE", "operation"),
        ('{"operation":""}', "VALIDATION_INVALID_TYPE", "operation"),
        (f'{{"operation":"{"x" * (NAME_CHARS_MAX + 1)}"}}', "VALIDATION_INVALID_TYPE", "operation"),
        ('{"tool":"list_users","args":{}}', "VALIDATION_MISSING_PARAM", "operation"),
        ("[]", "VALIDATION_INVALID_TYPE", "arguments"),
        ('{"operation":"list_users","params":[]}', "VALIDATION_INVALID_TYPE", "params"),
        ('{"operation":"list_users","params":null}', "VALIDATION_INVALID_TYPE", "params"),
        ('{"operation":"list_users","params":"{}"}', "VALIDATION_INVALID_TYPE", "params"),
    ],
)
async def test_wrong_shapes_are_named_and_the_right_shape_is_shown(request_text: str, code: str, param: str) -> None:
    library = Library()
    found, _ = await library.send("read", request_text)
    assert found["error"]["code"] == code
    assert found["error"]["details"]["param_name"] == param
    if param != "params":
        assert "introspect" in found["error"]["message"]
    elif '"{}"' not in request_text:
        assert found["error"]["details"]["expected_type"] == "object"
    empty, absent = await library.call("read", "list_users", params={}), await library.call("read", "list_users")
    assert empty == absent
    assert library.calls == ["list_users"] * 2
    assert (await library.call("read", "x" * NAME_CHARS_MAX))["error"]["code"] == "NOT_FOUND_OPERATION"


@pytest.mark.req("AQL-5.3-1")
def test_a_missing_parameter_is_reported_with_its_operation() -> None:
    error = Library().ask("create", "create_document")["error"]
    assert error["code"] == "VALIDATION_MISSING_PARAM"
    expected = (
        "Missing required parameter 'title' for operation 'create_document'. Expected: string (What it is called.)"
    )
    assert error["message"].startswith(expected)
    assert error["details"]["param_name"] == "title"
    assert error["details"]["operation"] == "create_document"


@pytest.mark.req("AQL-5.2-1", "AQL-5.1-2")
def test_data_is_what_a_handler_returned() -> None:
    library = Library()
    reply = library.ask("create", "create_document", params={"title": "My Document"})
    assert set(reply) == {"success", "data"}
    assert set(reply["data"]) == {"id", "title", "created_at"}
    for value in ({"a": None}, [1], "text", 1.5, False, None):
        assert library.ask("read", "get_value", params={"value": value}) == {"success": True, "data": value}


@pytest.mark.req("AQL-5.1-1", "AQL-5.1-3")
async def test_a_handler_that_raises_is_an_internal_error_without_a_word_of_it() -> None:
    library = Library()
    found, is_error = await library.send("execute", '{"operation":"execute_crash"}')
    assert is_error
    assert found["error"]["code"] == "INTERNAL_ERROR"
    assert "secret" not in json.dumps(found)
    assert "RuntimeError" not in json.dumps(found)


async def test_a_duplicate_key_is_refused() -> None:
    library = Library()
    found, _ = await library.send("read", '{"operation":"get_user","params":{"user_id":"a","user_id":"b"}}')
    assert found["error"]["code"] == "VALIDATION_INVALID_VALUE"
    assert library.calls == []


@pytest.mark.req("AQL-C.batch-2", "AQL-C.batch-3", "AQL-C.batch-4", "AQL-C.batch-5")
def test_a_batch_runs_in_order_and_its_items_do_not_disturb_each_other() -> None:
    library = Library(mode="all")
    items = [
        {"operation": "get_user", "params": {"user_id": "1"}},
        {"operation": "nothing"},
        {"operation": "create_document", "params": {"title": "x"}},
        {"operation": "get_user", "params": {"user_id": "2"}},
    ]
    reply = library.ask("read", operations=items)
    assert (reply["success"], reply["data"]) == (True, None)
    assert [result["index"] for result in reply["results"]] == [0, 1, 2, 3]
    codes = [result["result"].get("error", {}).get("code") for result in reply["results"]]
    assert codes == [None, "NOT_FOUND_OPERATION", "VALIDATION_ENDPOINT_MISMATCH", None]
    assert reply["summary"] == {"total": 4, "succeeded": 2, "failed": 2}
    assert library.calls == ["get_user 1", "get_user 2"]
    mixed = library.ask("", operations=items)
    assert mixed["summary"] == {"total": 4, "succeeded": 3, "failed": 1}
    assert library.ask("read", operations=[{"operation": "nothing"}])["success"] is True


@pytest.mark.req("AQL-C.batch-1", "AQL-C.batch-8")
@pytest.mark.parametrize(
    "members",
    [
        {"operations": []},
        {"operations": {}},
        {"operations": [{"operation": "list_users"}], "operation": "list_users"},
        {"operations": [{"operation": "list_users"}], "params": {}},
        {"operations": [{"operations": [{"operation": "list_users"}]}]},
    ],
)
def test_a_malformed_batch_runs_nothing(members: dict[str, object]) -> None:
    library = Library()
    reply = library.ask("read", **members)
    assert set(reply["error"]) == {"code", "message"}
    assert reply["error"]["code"] == "BATCH_VALIDATION_ERROR"
    assert library.ask("read", operations=[{"operation": "list_users"}] * 50)["summary"]["succeeded"] == 50
    library.calls.clear()
    large = library.ask("read", operations=[{"operation": "list_users"}] * 51)
    assert large["error"]["code"] == "VALIDATION_PAYLOAD_TOO_LARGE"
    assert "50" in large["error"]["message"]
    assert library.calls == []


@pytest.mark.req("AQL-C.meta-1")
def test_a_request_id_is_echoed_and_else_there_is_no_meta() -> None:
    library = Library()
    assert library.ask("read", "list_users", _request_id="r1")["_meta"] == {"request_id": "r1"}
    assert "_meta" not in library.ask("read", "list_users")
    failed = library.ask("read", "get_user", _request_id="r2")
    assert failed["error"]["details"]["request_id"] == "r2"
    assert "_meta" not in library.ask("read", "introspect", params={"query": "operations"}, _request_id="r3")
    batch = library.ask("read", operations=[{"operation": "list_users", "_request_id": "r"}])
    assert "_meta" not in json.dumps(batch)


@pytest.mark.req("AQL-C.warn-1")
def test_warnings_are_on_successes_without_repeats() -> None:
    library = Library()
    reply = library.ask("execute", "execute_wait")
    assert reply["warnings"] == [{"code": "DEPRECATION_WARNING", "message": "old", "severity": "low"}]
    assert library.progress == [(1, 2, "half")]
    batch = library.ask("execute", operations=[{"operation": "execute_wait"}])
    assert set(batch["results"][0]["result"]) == {"success", "data"}

    @library.adapter.read
    def get_warned(context: Context) -> None:
        """Warns of much."""
        for number, severity in enumerate(("low", "high", "medium") * 4):
            context.warn("PERFORMANCE_SLOW_QUERY_WARNING", str(number), severity=cast(Any, severity))

    library.service = Service(library.adapter)
    warnings = [warning["message"] for warning in library.ask("read", "get_warned")["warnings"]]
    assert warnings == ["0", "1", "2", "3", "4", "5", "7", "8", "10", "11"]  # of the low ones the last went


@pytest.mark.req("AQL-8.1-4", "AQL-C.token-3", "AQL-C.token-4")
@pytest.mark.parametrize("name", ["_confirmation", "confirmation_token"])
async def test_a_removal_asks_first_and_runs_once_with_the_token(name: str) -> None:
    library = Library()
    await library.call("create", "create_document", params={"title": "x"})
    reply = await library.call("delete", "delete_document", params={"resource_id": "a"})
    details = reply["error"]["details"]
    assert reply["error"]["code"] == "CONFIRMATION_REQUIRED"
    assert details["confirmation_message"] == "Delete a?"
    assert reply["confirmation"]["token"] == details["confirmation_token"]
    assert "delete_document" not in library.calls
    token = details["confirmation_token"]

    async def code(**params: str) -> str:
        current_reply = await library.call("delete", "delete_document", params=params)
        return "" if current_reply["success"] else str(current_reply["error"]["code"])

    assert await code(resource_id="b", **{name: token}) == "TOKEN_SCOPE_MISMATCH"
    assert await code(resource_id="a", _confirmation=token, confirmation_token="conf_x") == "TOKEN_INVALID"
    assert await code(resource_id="a", **{name: token}) == ""
    assert library.documents == {}
    assert await code(resource_id="a", **{name: token}) == "TOKEN_ALREADY_USED"
    assert await code(resource_id="a", **{name: "conf_unknown"}) == "TOKEN_INVALID"
    assert library.calls.count("delete_document") == 1


@pytest.mark.req("AQL-C.batch-6", "AQL-C.batch-7")
async def test_a_batch_halts_where_it_is_asked_and_goes_on_with_the_token() -> None:
    library = Library(mode="single")
    items = [
        {"operation": "create_document", "params": {"title": "x"}},
        {"operation": "delete_document", "params": {"resource_id": "a"}},
        {"operation": "get_user", "params": {"user_id": "1"}},
    ]
    reply = await library.call("", operations=items)
    assert reply["success"] is True
    assert reply["summary"] == {"total": 3, "succeeded": 1, "failed": 0, "halted": 1, "pending": 1}
    assert (reply["halted_at"]["index"], reply["halted_at"]["operation"]) == (1, "delete_document")
    assert set(reply["halted_at"]["result"]) == {"success", "error"}
    assert reply["pending_operations"] == [{"index": 2, **items[2]}]
    assert "get_user 1" not in library.calls
    token = reply["halted_at"]["result"]["error"]["details"]["confirmation_token"]
    again = [{**items[1], "params": {"resource_id": "a", "confirmation_token": token}}, items[2]]
    wrong = [{**items[1], "params": {"resource_id": "z", "confirmation_token": token}}]
    refused = await library.call("", operations=wrong)
    assert refused["results"][0]["result"]["error"]["code"] == "TOKEN_SCOPE_MISMATCH"
    done = await library.call("", operations=again)
    assert done["summary"] == {"total": 2, "succeeded": 2, "failed": 0}
    assert library.calls[-1] == "get_user 1"


def test_without_danger_levels_a_removal_runs_at_once() -> None:
    library = Library(danger_levels=False)
    library.ask("create", "create_document", params={"title": "x"})
    assert library.ask("delete", "delete_document", params={"resource_id": "a"})["success"]
    shown = library.ask("read", "introspect", params={"query": "operations"})["data"]["_protocol"]
    assert shown["capabilities"]["confirmation"] is False


@pytest.mark.req("AQL-C.danger-4")
def test_danger_is_introspected() -> None:
    library = Library()
    assert "destructive" in library.details("delete_document")["description"]
    protocol = library.ask("read", "introspect", params={"query": "operations"})["data"]["_protocol"]
    assert protocol["danger_levels"] == {"delete_document": "destructive"}
    levels = library.ask("read", "introspect", params={"query": "types", "name": "DangerLevel"})["data"]["type"]
    assert levels["values"] == ["safe", "reversible", "destructive", "dangerous", "forbidden"]
