"""Is a version inside an npm range as node-semver says, and which MCP version does a driver mean?"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from interlock.drivers.protocol.files.versions import is_range, parse_version, protocol_version, satisfies

VERSIONS = [
    "0.0.3",
    "0.2.3",
    "0.2.9",
    "0.5.0",
    "1.0.0",
    "1.0.0-rc.1",
    "1.2.3",
    "1.2.3-beta.2",
    "1.2.3-beta.4",
    "1.2.4-beta.2",
    "1.4.2",
    "1.9.9",
    "2.0.0",
    "2.0.0-rc.1",
    "2.3.4",
    "2.40.1",
    "2026.8.31",
    "3.0.0",
    "1.2.3+build.5",
    "0.7.9",
]

# Which of VERSIONS each range holds, as node-semver 7 answers.
INSIDE = {
    "^1.0.0": "1.0.0 1.2.3 1.4.2 1.9.9 1.2.3+build.5",
    "^1.2.3": "1.2.3 1.4.2 1.9.9 1.2.3+build.5",
    "^0.2.3": "0.2.3 0.2.9",
    "^0.0.3": "0.0.3",
    "^1.x": "1.0.0 1.2.3 1.4.2 1.9.9 1.2.3+build.5",
    "^0.x": "0.0.3 0.2.3 0.2.9 0.5.0 0.7.9",
    "^1": "1.0.0 1.2.3 1.4.2 1.9.9 1.2.3+build.5",
    "^0": "0.0.3 0.2.3 0.2.9 0.5.0 0.7.9",
    "~1.2.3": "1.2.3 1.2.3+build.5",
    "~1.2": "1.2.3 1.2.3+build.5",
    "~1": "1.0.0 1.2.3 1.4.2 1.9.9 1.2.3+build.5",
    "~0.2.3": "0.2.3 0.2.9",
    "1.x": "1.0.0 1.2.3 1.4.2 1.9.9 1.2.3+build.5",
    "1.2.x": "1.2.3 1.2.3+build.5",
    "1.X": "1.0.0 1.2.3 1.4.2 1.9.9 1.2.3+build.5",
    "1.*": "1.0.0 1.2.3 1.4.2 1.9.9 1.2.3+build.5",
    "*": "0.0.3 0.2.3 0.2.9 0.5.0 1.0.0 1.2.3 1.4.2 1.9.9 2.0.0 2.3.4 2.40.1 2026.8.31 3.0.0 1.2.3+build.5 0.7.9",
    "": "0.0.3 0.2.3 0.2.9 0.5.0 1.0.0 1.2.3 1.4.2 1.9.9 2.0.0 2.3.4 2.40.1 2026.8.31 3.0.0 1.2.3+build.5 0.7.9",
    "x": "0.0.3 0.2.3 0.2.9 0.5.0 1.0.0 1.2.3 1.4.2 1.9.9 2.0.0 2.3.4 2.40.1 2026.8.31 3.0.0 1.2.3+build.5 0.7.9",
    "1": "1.0.0 1.2.3 1.4.2 1.9.9 1.2.3+build.5",
    "1.2": "1.2.3 1.2.3+build.5",
    "1.2.3": "1.2.3 1.2.3+build.5",
    "=1.2.3": "1.2.3 1.2.3+build.5",
    "v1.2.3": "1.2.3 1.2.3+build.5",
    ">=0.5": "0.5.0 1.0.0 1.2.3 1.4.2 1.9.9 2.0.0 2.3.4 2.40.1 2026.8.31 3.0.0 1.2.3+build.5 0.7.9",
    ">=2.40 <3": "2.40.1",
    ">1": "2.0.0 2.3.4 2.40.1 2026.8.31 3.0.0",
    ">1.2": "1.4.2 1.9.9 2.0.0 2.3.4 2.40.1 2026.8.31 3.0.0",
    "<2": "0.0.3 0.2.3 0.2.9 0.5.0 1.0.0 1.2.3 1.4.2 1.9.9 1.2.3+build.5 0.7.9",
    "<=1.2": "0.0.3 0.2.3 0.2.9 0.5.0 1.0.0 1.2.3 1.2.3+build.5 0.7.9",
    "<1.2.3": "0.0.3 0.2.3 0.2.9 0.5.0 1.0.0 0.7.9",
    ">=1.2.3": "1.2.3 1.4.2 1.9.9 2.0.0 2.3.4 2.40.1 2026.8.31 3.0.0 1.2.3+build.5",
    ">= 1.2.3": "1.2.3 1.4.2 1.9.9 2.0.0 2.3.4 2.40.1 2026.8.31 3.0.0 1.2.3+build.5",
    "1.2.3 - 2.3.4": "1.2.3 1.4.2 1.9.9 2.0.0 2.3.4 1.2.3+build.5",
    "1.2 - 2.3.4": "1.2.3 1.4.2 1.9.9 2.0.0 2.3.4 1.2.3+build.5",
    "1.2.3 - 2.3": "1.2.3 1.4.2 1.9.9 2.0.0 2.3.4 1.2.3+build.5",
    "1.2.3 - 2": "1.2.3 1.4.2 1.9.9 2.0.0 2.3.4 2.40.1 1.2.3+build.5",
    "^1.0.0 || ^2.0.0": "1.0.0 1.2.3 1.4.2 1.9.9 2.0.0 2.3.4 2.40.1 1.2.3+build.5",
    "1.x || >=2.5.0 || 5.0.0 - 7.2.3": "1.0.0 1.2.3 1.4.2 1.9.9 2.40.1 2026.8.31 3.0.0 1.2.3+build.5",
    "^1.2.3-beta.2": "1.2.3 1.2.3-beta.2 1.2.3-beta.4 1.4.2 1.9.9 1.2.3+build.5",
    "~1.2.3-beta.2": "1.2.3 1.2.3-beta.2 1.2.3-beta.4 1.2.3+build.5",
    ">=1.0.0-rc.1": "1.0.0 1.0.0-rc.1 1.2.3 1.4.2 1.9.9 2.0.0 2.3.4 2.40.1 2026.8.31 3.0.0 1.2.3+build.5",
    ">=1.0.0-rc.1 <2.0.0": "1.0.0 1.0.0-rc.1 1.2.3 1.4.2 1.9.9 1.2.3+build.5",
    "^0.0.3-beta": "0.0.3",
    ">1.2.3-alpha.3": "1.2.3 1.2.3-beta.2 1.2.3-beta.4 1.4.2 1.9.9 2.0.0 2.3.4 2.40.1 2026.8.31 3.0.0 1.2.3+build.5",
    "1.2.3-rc.1": "",
    "<=0.7.x": "0.0.3 0.2.3 0.2.9 0.5.0 0.7.9",
    ">=1.2.x": "1.2.3 1.4.2 1.9.9 2.0.0 2.3.4 2.40.1 2026.8.31 3.0.0 1.2.3+build.5",
    "^ 1.2.3": "1.2.3 1.4.2 1.9.9 1.2.3+build.5",
    "~ 1.2": "1.2.3 1.2.3+build.5",
    "~>1.2": "1.2.3 1.2.3+build.5",
    "> 1.0.0 < 2.0.0": "1.2.3 1.4.2 1.9.9 1.2.3+build.5",
    "^1.2.3+build": "1.2.3 1.4.2 1.9.9 1.2.3+build.5",
    ">=1.0.0 <1.0.0": "",
    "5 ||": "0.0.3 0.2.3 0.2.9 0.5.0 1.0.0 1.2.3 1.4.2 1.9.9 2.0.0 2.3.4 2.40.1 2026.8.31 3.0.0 1.2.3+build.5 0.7.9",
    ">X": "",
    "<X": "",
    "^1.2.3 ^1.4.0": "1.4.2 1.9.9",
}


@pytest.mark.req("AIP-30.implements-3")
@pytest.mark.parametrize("range_text", INSIDE)
def test_a_range_holds_the_versions_that_node_semver_puts_in_it(range_text: str) -> None:
    assert [each for each in VERSIONS if satisfies(each, range_text)] == INSIDE[range_text].split()


@pytest.mark.req("AIP-30.implements-3")
def test_the_table_of_ranges_has_more_than_200_cases() -> None:
    assert len(INSIDE) * len(VERSIONS) > 200


@pytest.mark.req("AIP-30.implements-3")
@pytest.mark.parametrize(
    "range_text",
    [
        "banana",
        "1.2.3.4",
        ">=",
        "^^1",
        "1.2.3 -",
        "not a range",
        "latest",
        ">=1.a",
        "workspace:*",
        "1..2",
        "^1.0.0 or ^2.0.0",
        "git+https://x",
        "1" * 300,
    ],
)
def test_an_invalid_range_is_distinguished_from_an_empty_range(range_text: str) -> None:
    assert satisfies("1.2.3", range_text) is None
    assert not is_range(range_text)


@pytest.mark.parametrize(
    "text", ["", "1", "1.2", "01.2.3", "1.2.3.4", "1.2.3-", "1.2.3-01", "banana", "1.2.3 x", "9" * 300]
)
def test_an_invalid_version_is_in_no_range(text: str) -> None:
    assert parse_version(text) is None
    assert satisfies(text, "*") is False


def test_versions_are_ordered_as_semantic_versioning_orders_them() -> None:
    ordered = [
        "1.0.0-alpha",
        "1.0.0-alpha.1",
        "1.0.0-alpha.beta",
        "1.0.0-beta",
        "1.0.0-beta.2",
        "1.0.0-beta.11",
        "1.0.0-rc.1",
        "1.0.0",
    ]
    parsed = [version for each in ordered if (version := parse_version(each))]
    assert len(parsed) == len(ordered)
    assert [each.order for each in parsed] == sorted(each.order for each in parsed)


@given(st.text(max_size=40), st.text(max_size=40))
def test_no_text_is_too_strange_to_be_compared(version: str, range_text: str) -> None:
    assert satisfies(version, range_text) in {True, False, None}


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("2025-03", "2025-03-26"),
        ("2024-11", "2024-11-05"),
        ("2025-06", "2025-06-18"),
        ("2025-11", "2025-11-25"),
        ("2026-07", "2026-07-28"),
        ("2026-07-28", "2026-07-28"),
        ("2025", None),
        ("2025-04", None),
        ("v1", None),
        ("", None),
    ],
)
def test_a_year_and_month_mean_the_protocol_version_that_begins_with_them(written: str, meant: str | None) -> None:
    assert protocol_version(written) == meant
