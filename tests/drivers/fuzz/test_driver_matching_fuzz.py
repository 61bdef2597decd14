"""Whatever a server lists or answers: a binding is bound or refused, a result gives a value or an error, and nothing
raises."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from tests.drivers.driver_bindings import bound, entry, giving, input_schema, matched, promising

from interlock.drivers.protocol.binding.match import Bound
from interlock.drivers.protocol.problems import DriverRefusal

WORDS = st.sampled_from(
    [
        *("$ref", "$defs", "$schema", "allOf", "anyOf", "oneOf", "not", "if", "then", "type", "enum", "const"),
        *("properties", "required", "additionalProperties", "items", "prefixItems", "minimum", "pattern", "format"),
        *("dependentSchemas", "patternProperties", "multipleOf", "default", "path"),
    ]
)
TEXTS = st.sampled_from(
    [
        *("string", "object", "array", "integer", "null", "#", "#/$defs/path", "#/properties/path", "elsewhere.json"),
        *("path", "^a", "(", "http://json-schema.org/draft-07/schema#", "\ud800", ""),
    ]
)
JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), TEXTS),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(WORDS, inner, max_size=4)),
    max_leaves=12,
)
SCHEMAS = st.dictionaries(WORDS, JSON, max_size=5)
CONTRACT = promising({"type": "object"}, input_schema("path", path={"type": "string"}, more={"enum": ["a", 1]}))
BINDINGS = [entry(), entry("$.path"), entry("$.path[*].a", mapping={"path": "x"}), entry(result_wrap="it")]


@given(st.sampled_from(BINDINGS), st.one_of(SCHEMAS, JSON), st.one_of(SCHEMAS, JSON), JSON)
def test_any_listed_tool_is_bound_or_refused(one: dict[str, Any], inputs: Any, outputs: Any, hints: Any) -> None:
    tool = {"name": "tool", "inputSchema": inputs, "outputSchema": outputs, "annotations": hints}
    found = matched(one, CONTRACT, tool)
    if isinstance(found, Bound):
        found.arguments({"path": "/a", "more": "a"}, {})
        found.value({"structuredContent": {"path": "x"}})
    else:
        assert any(each.severity == "error" for each in found)


READERS = [
    bound(entry(extract, **ours), promising({"type": "array"}), giving())
    for extract, ours in [
        ("$.rows", {}),
        (None, {"result_parse": {"as": "lines"}}),
        (None, {"result_parse": {"as": "python_literal"}}),
        (None, {"result_parse": {"as": "records", "pattern": "(?P<a>.*)"}}),
        ("$.a", {"result_parse": {"from": "content", "into": "a"}}),
    ]
]
BLOCKS = st.one_of(JSON, st.fixed_dictionaries({"type": st.just("text"), "text": st.one_of(JSON, st.text())}))
RESULTS = st.fixed_dictionaries(
    {}, optional={"content": st.one_of(JSON, st.lists(BLOCKS, max_size=3)), "structuredContent": JSON, "isError": JSON}
)


@given(st.sampled_from(READERS), RESULTS)
def test_any_answer_gives_an_array_or_an_error(reader: Bound, result: dict[str, Any]) -> None:
    value = reader.value(result)
    assert isinstance(value, list | DriverRefusal)
