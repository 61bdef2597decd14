"""Is what is written what was meant, for our reader and for others?"""

from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from interlock.drivers.protocol.files.frontmatter import frontmatter_text, read_frontmatter

TEXTS = [
    "",
    " ",
    "plain words",
    "no",
    "Yes",
    "null",
    "~",
    "2025-03-26",
    "1.0",
    "1_000",
    ".5",
    "1e3",
    "0x1f",
    "12:30:45",
    "=",
    "<<",
    "---",
    "...",
    "- a",
    "a: b",
    "a #b",
    "#a",
    "@a",
    "`a",
    "!tag",
    "&anchor",
    "*alias",
    "%x",
    "'a'",
    '"a"',
    "a\\b",
    "[a]",
    "{a}",
    "a, b",
    "trailing ",
    "\ttab",
    "one\ntwo",
    "one\ntwo\n",
    "one\n\n  two\n",
    "one\n---\ntwo",
    "one\n\n",
    "one\n ",
    "\none",
    " one\ntwo",
    "one\r\ntwo",
    "grüße 日本 \U0001f600",
    "\U0001f600\n\x07",
    "\x7f\x85\u2028\ufeff",
    "${secrets.NAME}",
    "^1.0.0",
    "x" * 500,
]


def read_back(data: dict[str, Any], body: str = "") -> Any:
    reading = read_frontmatter(frontmatter_text(data, body).encode(), "TOOL.md")
    assert reading.value is not None, reading.problems
    return reading.value.data


@pytest.mark.parametrize("text", TEXTS)
def test_a_text_stays_that_text_for_readers_of_either_yaml(text: str) -> None:
    data = {"a": text, "list": [text, {"b": text, "c": [text, [text]]}], f"key {text[:100]}": {"deep": {"er": text}}}
    assert read_back(data) == data
    between = frontmatter_text(data).split("---\n", 1)[1].rsplit("---\n", 1)[0]
    assert yaml.safe_load(between) == data


def test_data_are_written_readably() -> None:
    data = {
        "id": "fs-read",
        "version": "1.0.0",
        "description": "Reads one file.\nAll of it.",
        "inputs": {"type": "object", "required": ["path"], "properties": {}, "additionalProperties": False},
        "examples": [{"name": "one", "input": {"n": 1.5, "m": None}}],
        "tags": [],
    }
    assert frontmatter_text(data, "# Notes\n") == (
        "---\n"
        "id: fs-read\n"
        'version: "1.0.0"\n'
        "description: |-\n"
        "  Reads one file.\n"
        "  All of it.\n"
        "inputs:\n"
        "  type: object\n"
        "  required: [path]\n"
        "  properties: {}\n"
        "  additionalProperties: false\n"
        "examples:\n"
        "  - name: one\n"
        "    input:\n"
        '      "n": 1.5\n'
        "      m: null\n"
        "tags: []\n"
        "---\n"
        "\n"
        "# Notes\n"
    )


def test_a_body_changes_nothing_of_the_data() -> None:
    assert read_back({"a": 1}, "---\nb: 2\n---\n") == {"a": 1}


USABLE = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=30).filter(
    lambda text: text != "<<"
)
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**30), 10**30)
    | st.floats(allow_nan=False, allow_infinity=False)
    | USABLE,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(USABLE, inner, max_size=4),
    max_leaves=20,
)


@given(st.dictionaries(USABLE, VALUES, max_size=4))
def test_any_data_are_read_back_as_they_were(data: dict[str, Any]) -> None:
    assert read_back({"first": 1, **data}) == {"first": 1, **data}
