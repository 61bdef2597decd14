"""Is the YAML between two --- lines read as YAML 1.2, with the line of every field, whatever the bytes?"""

import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.drivers.driver_texts import as_driver, driver
from tests.support.scale import quick_or

from interlock.drivers.protocol.files.frontmatter import (
    DEPTH_MAX,
    FILE_BYTES_MAX,
    FRONTMATTER_BYTES_MAX,
    VALUES_MAX,
    read_frontmatter,
)
from interlock.drivers.protocol.problems import FileProblem

LARGE = quick_or(40_000, 200_000)
HOSTILE_S_MAX = 20.0  # a parser that grows with the square of the depth takes minutes for these


def fenced(text: str) -> bytes:
    return f"---\n{text}\n---\n".encode()


def data(text: str) -> dict[str, Any]:
    reading = read_frontmatter(fenced(text), "DRIVER.md")
    assert reading.value is not None, reading.problems
    return reading.value.data


def refusal(content: bytes) -> FileProblem:
    reading = read_frontmatter(content, "DRIVER.md")
    assert reading.value is None
    (problem,) = reading.problems
    assert problem.code == "frontmatter_invalid"
    assert problem.hint
    return problem


@pytest.mark.req("AIP-front-10")
def test_a_date_and_a_norwegian_stay_text() -> None:
    assert data("protocol_version: 2025-03-26\nregion: [no]") == {"protocol_version": "2025-03-26", "region": ["no"]}


def test_scalars_have_the_types_of_the_core_schema() -> None:
    written = "[1, -2, 0o17, 0x1f, 1.5, .5, 1e3, ~, null, true, FALSE, yes, 1_000, 1:30, '3', !!str 4, 0b1]"
    expected = [1, -2, 15, 31, 1.5, 0.5, 1000.0, None, None, True, False, "yes", "1_000", "1:30", "3", "4", "0b1"]
    assert data(f"a: {written}") == {"a": expected}


@pytest.mark.req("AIP-front-10")
def test_a_version_of_two_parts_is_refused_with_the_hint_to_write_three() -> None:
    (problem,) = as_driver(driver(version=1.0)).errors
    assert (problem.code, problem.field, problem.line) == ("schema_invalid", "/version", 5)
    assert "three parts" in problem.hint
    assert "three parts" not in as_driver(driver(version="one")).errors[0].hint
    beside = as_driver(driver(version=1.0, name="")).errors
    assert [each.field for each in beside if "three parts" in each.hint] == ["/version"]


@pytest.mark.req("AIP-front-10")
@pytest.mark.parametrize(
    ("content", "line"),
    [
        (fenced("a: 1\nb: 2\na: 3"), 4),
        (fenced("a: {x: 1, x: 2}"), 2),
        (b"---\na: 1\nb: 2\n", 3),
        (b"---\na: 1\n----\n", 3),
    ],
)
def test_a_key_written_twice_and_a_missing_end_are_refused_with_their_line(content: bytes, line: int) -> None:
    assert refusal(content).line == line


@pytest.mark.req("AIP-front-10")
def test_more_than_256_kib_of_frontmatter_are_refused_with_the_line_where_they_are_reached() -> None:
    line = b"# " + b"x" * 1021 + b"\n"
    assert len(line) == 1024
    assert refusal(b"---\n" + line * 257 + b"---\n").line == 258
    assert read_frontmatter(b"---\na: 1\n" + line * 255 + b"---\n", "D").value is not None
    assert FRONTMATTER_BYTES_MAX == 256 * 1024


@pytest.mark.req("AIP-front-10")
def test_a_byte_order_mark_and_dos_line_ends_are_accepted() -> None:
    reading = read_frontmatter(b"\xef\xbb\xbf---\r\na: 1\r\nb: |\r\n  x\r\n  y\r\n---\r\nbody\r\n", "D")
    assert reading.value is not None
    assert reading.value.data == {"a": 1, "b": "x\ny\n"}
    assert reading.value.places.lines["/b"] == 3


@pytest.mark.req("AIP-front-10")
def test_keys_are_case_sensitive() -> None:
    assert data("Kind: a\nkind: b") == {"Kind": "a", "kind": "b"}


def test_every_field_has_its_line_and_an_absent_field_the_line_of_its_parent() -> None:
    text = "a:\n  b: [1,\n    2]\n  c/d~: {e: 1}\nf:\n  - g: 1\n  - h: 2"
    reading = read_frontmatter(fenced(text), "D")
    assert reading.value is not None
    places = reading.value.places
    fields = ["/a", "/a/b", "/a/b/1", "/a/c~1d~0/e", "/f/0/g", "/f/1"]
    assert [places.line(field) for field in fields] == [2, 3, 4, 5, 7, 8]
    assert places.line("/f/1/absent/more") == 8
    assert places.line("/absent") == 1


def test_an_alias_means_what_it_replaces() -> None:
    assert data("a: &x {k: [1]}\nb: *x\nc: &y t\nd: *y") == {"a": {"k": [1]}, "b": {"k": [1]}, "c": "t", "d": "t"}


def test_aliases_are_bounded_by_the_names_they_replace() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 30)]
    problem = refusal(fenced("\n".join(lines)))
    assert str(VALUES_MAX) in problem.message


@pytest.mark.parametrize("text", ["a: &a [*a]", "a: &a {b: *a}", "a: *nowhere", "*x : 1", "&k a: 1"])
def test_an_alias_of_itself_or_of_nothing_is_refused(text: str) -> None:
    assert refusal(fenced(text)).line == 2


@pytest.mark.parametrize(
    "text",
    [
        "a: !!python/object/apply:os.system [x]",
        "a: !thing {b: 1}",
        "a: !!int x",
        "a: !!binary aGk=",
        "a: !!timestamp 2025-01-01",
        "!!set {a, b}",
        "a: !!bool 1",
    ],
)
def test_a_tag_that_is_not_of_the_core_schema_is_refused(text: str) -> None:
    refusal(fenced(text))


@pytest.mark.parametrize(
    "text",
    [
        "true: a",
        "0x10: a",
        "01: a",
        "9999999999999999999: a",
        "~: a",
        "[a]: b",
        "{a: 1}: b",
        "? [a]\n: b",
        "<<: {a: 1}",
        "1.5: x",
    ],
)
def test_a_key_that_is_not_text_is_refused(text: str) -> None:
    assert refusal(fenced(text)).line == 2


@pytest.mark.req("AIP-front-10")
def test_a_whole_number_as_key_is_its_text() -> None:
    """As the published examples write tables of exit codes."""
    assert data("codes:\n  0: ok\n  4: {x: 1}\n  -1: lost") == {"codes": {"0": "ok", "4": {"x": 1}, "-1": "lost"}}
    assert refusal(fenced('0: ok\n"0": again')).line == 3


@pytest.mark.parametrize("number", [".inf", "-.INF", ".nan", "1e999", "9" * 41, "0x" + "f" * 60])
def test_a_number_that_json_has_not_is_refused(number: str) -> None:
    refusal(fenced(f"a: {number}"))


@pytest.mark.parametrize(
    ("content", "line"),
    [
        (b"", 1),
        (b"---", 1),
        (b"\n---\na: 1\n---\n", 1),
        (b"a: 1\n", 1),
        (fenced(""), 1),
        (fenced("- 1"), 1),
        (fenced("text"), 1),
        (fenced("a: 1\n...\nb: 2"), 4),
        (fenced("a:\n\tb: 1"), 3),
        (fenced("a: 1\n\tb: 2"), 3),
        (fenced('a: "open'), 3),
        (fenced("a: b: c"), 2),
        (fenced("a: [1"), 3),
        (fenced("a: 1\n b: 2"), 3),
        (fenced("x: 1\na: \0"), 3),
        (fenced("a: \x1b[31m"), 2),
        (fenced('a: "\\0"'), 2),
        (fenced('a: "\\ud800"'), 2),
        (fenced('a: "\\U00110000"'), 2),
        (b"---\nb: 1\na: \xff\n---\n", 3),
        ("---\na: 1\n---\n".encode("utf-16"), 1),
    ],
)
def test_invalid_frontmatter_is_refused_with_its_line(content: bytes, line: int) -> None:
    assert refusal(content).line == line


@pytest.mark.parametrize("secret", ["a: 'ghp_hidden", "a: hidden: hidden", "a: !hidden x", "a: &b hidden\nb: *hidden"])
def test_a_refusal_repeats_nothing_of_the_values(secret: str) -> None:
    assert "hidden" not in str(refusal(fenced(secret)))


def test_tabs_are_named_as_what_is_wrong() -> None:
    assert "tabs" in refusal(fenced("a:\n\tb: 1")).hint


@pytest.mark.parametrize("opening", ["[", "{a: ", "- ", "? "])
def test_nesting_is_bounded(opening: str) -> None:
    refusal(fenced(opening * 2000))
    assert DEPTH_MAX < 2000


def test_a_file_of_ten_megabytes_is_refused_without_reading_it() -> None:
    assert len(b"---\n" + b"x" * 10_000_000) > FILE_BYTES_MAX
    assert "KiB" in refusal(b"---\na: 1\n---\n" + b"x" * 10_000_000).message
    assert "KiB" in refusal(b"x" * 10_000_000).message


@pytest.mark.parametrize(
    "text",
    [
        "[" * LARGE,
        "{" * LARGE,
        "- " * (LARGE // 2),
        "a: [" + "1," * (LARGE // 2),
        "".join(f"k{i}: v\n" for i in range(LARGE // 10)),
        "a: [" + "!!str x," * (LARGE // 10),
        "!" * LARGE,
        "&" * LARGE,
        'a: "' + "\\n" * (LARGE // 2),
        "\n".join(" " * i + "a:" for i in range(500)),
    ],
    ids=lambda text: text[:8],
)
def test_a_hostile_file_is_done_with_in_bounded_time(text: str) -> None:
    before = time.process_time()
    read_frontmatter(fenced(text), "D")
    assert time.process_time() - before < HOSTILE_S_MAX


@given(st.binary(max_size=300))
def test_no_bytes_raise(content: bytes) -> None:
    for tried in (content, b"---\n" + content + b"\n---\n"):
        reading = read_frontmatter(tried, "D")
        assert (reading.value is None) == bool(reading.problems)


@given(st.text(alphabet="ab:-[]{}&*!|>'\"#?,%@`~ \n\t\\0x1.<", max_size=80))
def test_no_text_of_yaml_signs_raises(text: str) -> None:
    reading = read_frontmatter(fenced(text), "D")
    assert (reading.value is None) == bool(reading.problems)
