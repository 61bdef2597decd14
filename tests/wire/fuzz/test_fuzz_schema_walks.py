"""Does every walk over a schema from a server end after a number of steps that the budget gives, whatever the schema?

Steps are counted, not timed: every call of a function, of Python or of C. A walk that takes the double for one level
more would take billions.
"""

import contextlib
from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw
from tests.support.call_count import count_calls
from tests.wire.hostile_schemas import hostile_schemas, random_schema

from interlock.aql.protocol.introspection import example_of
from interlock.aql.protocol.tool_operations import ToolFacts, classify_tool, declare_tool
from interlock.aql.protocol.validation import Validator
from interlock.catalog.cli.tools import arguments_of
from interlock.drivers.protocol.authoring import draft_contract
from interlock.drivers.protocol.binding.effects import proposed_class
from interlock.drivers.protocol.binding.match import declared_names
from interlock.drivers.protocol.binding.results import path_type
from interlock.drivers.protocol.binding.uri_access import UriWatch
from interlock.drivers.protocol.result_path import ResultPath, read_path
from interlock.mcp.modern_requests import mirrored_arguments
from interlock.names.protocol.criteria import imprecise_places, schema_digest
from interlock.names.protocol.judgement import SchemaPair
from interlock.wire.jsonrpc.codec import CodecError
from interlock.wire.schemas.budget import Effort, EffortSpent
from interlock.wire.schemas.digest import normalised
from interlock.wire.schemas.inclusion import exclusions, includes
from interlock.wire.schemas.shapes import Side
from interlock.wire.schemas.validators import AS_OBJECT, compile_schema, find_excess_of_text, read_schema

CALLS_MAX = 150_000  # comparing two schemas of as many values as the budget allows takes half of it

VALUE = {"p": {"a": {"a": {"a": "file:///x"}}, "b": ["x"]}}
OTHER = {"type": "object", "properties": {"p": {"type": "object"}}}


def count_walk(walk: Callable[[], object]) -> int:
    with contextlib.suppress(CodecError, EffortSpent):  # what these walks raise by their docstrings
        return count_calls(walk, CALLS_MAX)
    return 0


def declare(schema: Any) -> object:
    facts = ToolFacts(name="update_it", local="update_it", description="", schema=schema, is_read_only=False)
    classify_tool(facts)
    operation = declare_tool(facts)
    shown = [parameter.info() for parameter in operation.parameters]
    return shown, example_of(operation), Validator(operation)._check(Raw(b'{"p":{"a":{}}}'), [])


def follow(schema: Any) -> object:
    path = read_path("$.p.a.b")
    assert isinstance(path, ResultPath)
    return path_type(Side(schema), schema, path)


# Of a schema that is decoded for a walk.
WALKS: dict[str, Callable[[Any], object]] = {
    "an operation of MCP-AQL": declare,
    "the validator": lambda schema: (made := compile_schema(schema)) and made.find_fault(VALUE),
    "marked arguments": mirrored_arguments,
    "what is inferred of the class": lambda schema: proposed_class({"name": "get_it", "inputSchema": schema}),
    "the normal form": normalised,
    "inclusion in another": lambda schema: includes(Side(OTHER), OTHER, Side(schema), schema),
    "inclusion of another": lambda schema: includes(Side(schema), schema, Side(OTHER), OTHER),
    "inclusion in itself": lambda schema: includes(Side(schema), schema, Side({**schema}), {**schema}),
    "exclusion": lambda schema: exclusions(Side(schema), schema, Side(dict(schema)), dict(schema)),
    "all names": lambda schema: declared_names(Side(schema), Side(schema).shape(schema)),
    "the way of a result": follow,
    "URIs": lambda schema: list(UriWatch(schema).uris(VALUE)),
    "arguments at a terminal": arguments_of,
}
# Of the text as it came.
TEXT_WALKS: dict[str, Callable[[bytes], object]] = {
    "the budget": find_excess_of_text,
    "precision": lambda text: imprecise_places(Raw(text), is_argument=True),
    "the digest": lambda text: schema_digest(Raw(text)),
    "the registered pair": lambda text: SchemaPair(Raw(text), Raw(text), Effort()),
}
HOSTILE = dict(hostile_schemas())


@pytest.mark.parametrize("name", HOSTILE)
def test_a_walk_over_a_hostile_schema_ends_within_the_budget(name: str) -> None:
    text = HOSTILE[name].encode()
    for about, walk in WALKS.items():
        schema = read_schema(text)
        assert count_walk(lambda walk=walk, schema=schema: walk(schema)) < CALLS_MAX, about  # type: ignore[misc]
    for about, walk_text in TEXT_WALKS.items():
        assert count_walk(lambda walk=walk_text: walk(text)) < CALLS_MAX, about  # type: ignore[misc]


@given(st.integers(min_value=0, max_value=2**32))
def test_a_walk_over_definitions_that_refer_to_each_other_ends_within_the_budget(seed: int) -> None:
    text = random_schema(Random(seed)).encode()
    for about, walk in WALKS.items():
        schema = read_schema(text)
        assert count_walk(lambda walk=walk, schema=schema: walk(schema)) < CALLS_MAX, about  # type: ignore[misc]
    for about, walk_text in TEXT_WALKS.items():
        assert count_walk(lambda walk=walk_text: walk(text)) < CALLS_MAX, about  # type: ignore[misc]


def test_a_schema_beyond_the_budget_is_read_as_object_and_the_reason_is_named() -> None:
    reasons = {name: find_excess_of_text(HOSTILE[name].encode()) for name in HOSTILE}
    assert "2000 schemas for one value" in (reasons["doubled 20 times by anyOf"] or "")
    assert "65536 bytes" in (reasons["20000 properties"] or "")
    assert "200 levels" in (reasons["150 levels of not"] or "")
    assert "500 characters" in (reasons["a pointer of 3,000 steps"] or "")
    assert all(read_schema(HOSTILE[name].encode()) is AS_OBJECT for name, reason in reasons.items() if reason)
    assert reasons["doubled 30 times by properties"] is None  # one level is small


def test_the_drafting_of_a_contract_refuses_a_schema_beyond_the_budget() -> None:
    tool = {"name": "get_it", "inputSchema": {"type": "object", "enum": ["x"] * 3000}}
    (problem,) = draft_contract(tool, "x-mcp")  # type: ignore[misc]
    assert "2000 values" in problem.message and "--tools" in problem.hint
