"""The templates of MCP-AQL's messages, one per code: what is dynamic is in single quotes, as the details have it."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec import Raw
from tests.support.call_count import count_calls

from interlock.aql.protocol import errors
from interlock.aql.protocol.errors import AqlFailure, Code, OperationFailed
from interlock.aql.protocol.introspection import read_query
from interlock.aql.protocol.model import Danger, Lifecycle
from interlock.aql.protocol.requests import BatchRequest, OperationRequest, PayloadLimits, read_request
from interlock.aql.protocol.results import read_error
from interlock.aql.protocol.tokens import ConfirmationTokens, TokenLives
from interlock.sdk.aql import values
from interlock.sdk.aql.executions import Execution

SOURCES = Path(__file__).parents[3] / "src" / "interlock"
# Of the registry, and never sent by us.
NOT_SENT = {Code.PERMISSION_TRUST_LEVEL_INSUFFICIENT, Code.INTROSPECTION_ERROR}


def raised(fail: Any, *words: Any) -> AqlFailure:
    with pytest.raises(OperationFailed) as found:
        fail(*words)
    return found.value.failure


def refused(tokens: ConfirmationTokens, token: str, operation: str = "drop") -> AqlFailure:
    said = tokens.redeem(token, "session", "who", operation, "digest")
    assert said is not None
    return said


def token_failures() -> Iterator[AqlFailure]:
    now = [0.0]
    tokens = ConfirmationTokens(lambda: now[0], iter("abcdef").__next__, TokenLives(), lambda note: None)
    made = [tokens.issue("session", "who", "drop", "digest", Danger.DESTRUCTIVE)[0] for _ in range(3)]
    yield refused(tokens, "conf_none")
    yield refused(tokens, made[0], "other")
    assert tokens.redeem(made[1], "session", "who", "drop", "digest") is None
    yield refused(tokens, made[1])
    now[0] = 301.0
    yield refused(tokens, made[2])


def over(data: bytes) -> AqlFailure:
    return read_error(b'{"code":-32003,"message":"budget_exceeded","data":%b}' % data, tool="t", operation="o")


def queried(query: bytes) -> AqlFailure:
    request = read_request(b'{"operation":"introspect","params":{"query":%b}}' % query, PayloadLimits())
    assert isinstance(request, OperationRequest)
    said = read_query(request)
    assert isinstance(said, AqlFailure)
    return said


def batched() -> AqlFailure:
    said = read_request(Raw(b'{"operations":[],"operation":"x"}'), PayloadLimits())
    assert not isinstance(said, OperationRequest | BatchRequest)
    return said


def invalid_state() -> AqlFailure:
    return Execution("execute_job", "local", Lifecycle(()), {}, None).invalid_state("running")  # type: ignore[arg-type]


CASES: list[tuple[AqlFailure, str]] = [
    (errors.missing_params("create_x", [("title", "string", "Its title")]),
     r"Missing required parameter 'title' for operation 'create_x'\. Expected: string \(Its title\)"),
    (errors.invalid_type("per_page", "integer", "string"), r"Parameter 'per_page' expected 'integer', got 'string'$"),
    (errors.invalid_value("per_page", "it is too large"), r"Parameter 'per_page': it is too large$"),
    (errors.unknown_params("list_x", ["a", "b"], ["c"]), r"Unknown parameter\(s\) for operation 'list_x': a, b$"),
    (errors.unknown_fields("update_x", ["a"], ["c"]), r"Unknown field\(s\) in input of operation 'update_x': a$"),
    (errors.invalid_encoding("arguments", 3), r"Invalid character encoding in request$"),
    (errors.too_large("request_size", 10, 11), r"Payload exceeds request_size limit of 10$"),
    (errors.endpoint_mismatch("list_x", "read", "mcp_aql_read", "create", "mcp_aql_create"),
     r"Operation 'list_x' must be called via mcp_aql_read, not mcp_aql_create$"),
    (errors.unknown_operation("create_widget"), r"Unknown operation: 'create_widget'\. "),
    (errors.resource_not_found("user", "7"), r"Resource 'user' not found: '7'$"),
    (errors.permission_denied("scope"), r"Permission denied: 'scope'$"),
    (errors.danger_denied("drop_x", "forbidden", "low", "high"),
     r"Operation 'drop_x' \(danger: forbidden\) denied for adapter trust level 'low'$"),
    (errors.confirmation_required("drop_x", "destructive", token="conf_a", expires_at="later", message="?"),
     r"This operation requires confirmation$"),
    (errors.confirmation_by_person("drop_x", "destructive", "7"),
     r"This operation requires confirmation by a person\."),
    (raised(values.already_exists, "user", "7"), r"Resource 'user' exists already: '7'$"),
    (invalid_state(), r"Execution '[^']+' is 'pending' and cannot become 'running'$"),
    (over(b'{"limit":5,"used":5,"retry_after_ms":900}'), r"API rate limit exceeded$"),
    (over(b'{"limit":5,"used":5,"budget":"calls"}'), r"Quota exhausted$"),
    *zip(token_failures(), (
        r"Invalid confirmation token$",
        r"Confirmation token scope mismatch\. It was issued for operation 'drop';",
        r"Confirmation token has already been used$",
        r"Confirmation token has expired$",
    ), strict=True),
    (errors.internal_error("the store is away"), r"Internal error: 'the store is away'$"),
    (queried(b'"widgets"'), r"Unknown query 'widgets'\. Valid: 'operations', 'types'$"),
    (batched(), r"Send either 'operation' or 'operations', not both$"),
]  # fmt: skip
# Their errors are bare: no details to compare with (AQL-0-1, and the batch schema).
BARE = {"INVALID_QUERY_TYPE", "BATCH_VALIDATION_ERROR", "INTERNAL_ERROR"}


def flat(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for one in value.values():
            yield from flat(one)
    elif isinstance(value, list):
        for one in value:
            yield from flat(one)
    else:
        yield str(value)


@pytest.mark.req("AQL-C.err-3")
@pytest.mark.parametrize(("said", "template"), CASES, ids=[said.code for said, _ in CASES])
def test_a_message_follows_its_template_and_quotes_what_the_details_say(said: AqlFailure, template: str) -> None:
    assert re.match(template, said.message), said.message
    if said.code not in BARE:
        quoted = re.findall(r"'([^']*)'", said.message.partition(" See ")[0])
        assert set(quoted) <= set(flat(said.details)), (quoted, said.details)


@pytest.mark.req("AQL-C.err-3")
def test_every_code_that_is_sent_has_its_template() -> None:
    elsewhere = {Code.CONFLICT_VERSION_MISMATCH}  # tests/sdk/in_process/test_updates.py
    assert {said.code for said, _ in CASES} == {code.value for code in set(Code) - NOT_SENT - elsewhere}
    sources = "".join(path.read_text("utf-8") for path in SOURCES.rglob("*.py"))
    for code in NOT_SENT:
        assert f"(Code.{code.name}" not in sources and f"(AqlCode.{code.name}" not in sources


LARGE = 900_000


def _fill(unit: str, around: str = "[%s]") -> str:
    return around % ",".join([unit] * (LARGE // (len(unit) + 1)))


NESTED = {
    "objects in objects": _fill("[" + ",".join(['{"a":' * 25 + "1" + "}" * 25] * 1000) + "]"),
    "empty objects": _fill("[" + ",".join(["{}"] * 5000) + "]"),
    "arrays": _fill("[" + ",".join(["[[]]"] * 5000) + "]"),
    "short texts": _fill("[" + ",".join(['"\\""'] * 5000) + "]"),
    "members": "{" + ",".join(f'"key{number}":{{}}' for number in range(60_000)) + "}",
}


@pytest.mark.parametrize("name", NESTED)
def test_a_nested_request_of_900_kb_takes_no_more_steps_than_a_flat_one(name: str) -> None:
    """Nothing is done for each bracket, text or item: the passes over the text are made in C."""

    def steps(value: str) -> int:
        text = Raw(b'{"operation":"x","params":{"p":%b}}' % value.encode())
        assert isinstance(read_request(text, PayloadLimits()), OperationRequest)
        return count_calls(lambda: read_request(text, PayloadLimits()))

    assert steps(NESTED[name]) <= steps('"' + "a" * LARGE + '"') + 100


@pytest.mark.parametrize("length", [25_000, 100_000])
def test_a_batch_of_nested_requests_takes_steps_for_each_item_alone(length: int) -> None:
    item = b'{"operation":"x","params":{"p":[%b]}}' % b",".join([b'{"a":{}}'] * (length // 9))
    batch = Raw(b'{"operations":[%b]}' % b",".join([item] * 8))
    assert isinstance(read_request(batch, PayloadLimits(array_elements=100_000)), BatchRequest)
    assert count_calls(lambda: read_request(batch, PayloadLimits(array_elements=100_000))) < 200


def test_a_text_that_nothing_ends_is_looked_at_once() -> None:
    """A search that began again at every quotation mark would take minutes."""
    assert isinstance(read_request(b'{"operation":"' + b'\\"' * 450_000, PayloadLimits()), AqlFailure)
