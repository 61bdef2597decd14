"""Cursors and templates on inputs nobody thought of."""

import re

from hypothesis import given
from hypothesis import strategies as st
from mcp.shared.uri_template import UriTemplate

from interlock.mcp.items import EXPRESSIONS_MAX, decode_cursor_untrusted, encode_cursor, matches

CURSORS = st.text(max_size=40) | st.text("aWwxOmEtXy8rPQ=-_", max_size=24)


@given(CURSORS | st.text("AQgwR-_=", max_size=6).map("aWwxO".__add__))
def test_only_a_cursor_that_we_issued_is_accepted(cursor: str) -> None:
    key = decode_cursor_untrusted(cursor)
    assert key is None or encode_cursor(key) == cursor


LITERALS = st.text("ab/.?#;&", max_size=3)
EXPRESSIONS = st.sampled_from(["{x}", "{+x}", "{#x}", "{.x}", "{/x}", "{;x}", "{?x}", "{&x}", "{", "}", "{}"])
TEMPLATES = st.lists(LITERALS | EXPRESSIONS, max_size=6).map("".join)
URIS = st.text("ab/.?#;&{}\n", max_size=8)

SLOW = {"": "[^/?#]*", "+": ".*", "#": "(?:#.*)?", ".": r"(?:\.[^/?#]*)?", "/": "(?:/[^?#]*)?", ";": "(?:;[^/?#]*)?"}
SLOW |= {"?": r"(?:\?[^#]*)?", "&": "(?:&[^#]*)?"}


@given(TEMPLATES, URIS)
def test_a_template_matches_what_its_regular_expression_matches(template: str, uri: str) -> None:
    pattern, at = "", 0
    for found in re.finditer(r"\{([+#./;?&]?)[^{}]*\}", template):
        pattern += re.escape(template[at : found.start()]) + SLOW[found[1]]
        at = found.end()
    pattern += re.escape(template[at:])
    assert matches(template, uri) == (re.fullmatch(pattern, uri, re.DOTALL) is not None)


OPERATORS = st.permutations(["", "+", ".", "/", ";", "?", "&"])
VALUES = st.none() | st.text("a é/?#&;.%\0", max_size=6)


@given(OPERATORS, st.integers(1, 4), st.lists(VALUES, min_size=4, max_size=4))
def test_a_uri_the_sdk_makes_from_a_template_is_found_by_it(
    operators: list[str], count: int, values: list[str | None]
) -> None:
    template = "".join(f"a{{{operator}v{number}}}" for number, operator in enumerate(operators[:count]))
    named = {f"v{number}": value for number, value in enumerate(values) if value is not None}
    assert matches(template, UriTemplate.parse(template).expand(named))


@given(st.lists(EXPRESSIONS | st.text("ab", max_size=1), max_size=3 * EXPRESSIONS_MAX), st.text("ab/?#", min_size=1))
def test_no_template_and_uri_make_a_match_explode(parts: list[str], unit: str) -> None:
    """A matcher that tried every way would not come back from these within the time a test has."""
    matches("".join(parts), (unit * 4000)[:4000])
    matches("".join(parts) + "!", (unit * 4000)[:4000] + "!")
