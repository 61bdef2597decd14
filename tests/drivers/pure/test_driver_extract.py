"""Does result_extract find what its path says, miss what is not there, and refuse what is no path?"""

import string
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.drivers.driver_bindings import entry
from tests.drivers.driver_texts import as_driver, driver
from tests.support.scale import quick_or

from interlock.drivers.protocol.result_path import PATH_CHARS_MAX, STEPS_MAX, Miss, PathFault, ResultPath, read_path

FIXTURE: dict[str, Any] = {
    "foo": {"bar": 7, "none": None},
    "e": [{"name": "a", "kind": "X"}, {"name": "b", "kind": "Y"}, {"kind": "X"}],
    "rows": [[1, 2], [3]],
    "odd key.with dots": {"it's": 1, 'a "b"': 2, "back\\slash": 3},
    "empty": [],
    "text": "word",
}


def path(text: str) -> ResultPath:
    read = read_path(text)
    assert isinstance(read, ResultPath), read
    return read


def find(text: str, value: Any = FIXTURE) -> Any:
    return path(text).find(value)


@pytest.mark.req("AIP-extract-1")
@pytest.mark.parametrize("value", [{"a": 1}, [1], "text", None], ids=str)
def test_the_path_that_is_left_out_is_the_whole_value(value: Any) -> None:
    left_out = as_driver(driver(implements=[entry()])).value
    written = as_driver(driver(implements=[entry("$")])).value
    assert left_out is not None and written is not None
    for each in (left_out, written):
        assert find(each.implements[0].result_extract, value) is value


@pytest.mark.req("AIP-extract-1")
@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("$.foo", FIXTURE["foo"]),
        ("$.foo.bar", 7),
        ("$.e[0]", FIXTURE["e"][0]),
        ("$.e[*].kind", ["X", "Y", "X"]),
        ("$.e[?(@.kind=='X')]", [FIXTURE["e"][0], FIXTURE["e"][2]]),
        ("$['odd key.with dots']['it\\'s']", 1),
        ('$["odd key.with dots"]["a \\"b\\""]', 2),
        ("$['odd key.with dots']['back\\\\slash']", 3),
        ("$['foo'].bar", 7),
    ],
)
def test_a_path_leads_where_it_says(text: str, found: Any) -> None:
    assert find(text) == found


@pytest.mark.req("AIP-extract-1")
def test_a_filter_passes_over_what_has_no_members() -> None:
    assert find("$[?(@.kind=='X')]", ["X", None, 7, ["kind"], {"kind": "X"}]) == [{"kind": "X"}]


@pytest.mark.req("AIP-extract-2", "AIP-extract-6")
@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("$.e[*].name", ["a", "b"]),
        ("$.e[?(@.kind=='Z')]", []),
        ("$.e[?(@.kind=='Z')].name", []),
        ("$.e[?(@.kind=='X')].name", ["a"]),
        ("$.e[?(@.name=='a')].kind", ["X"]),
        ("$.rows[*][0]", [1, 3]),
        ("$.rows[*][1]", [2]),
        ("$.rows[*][*]", [[1, 2], [3]]),
        ("$.empty[*].name", []),
    ],
)
def test_the_steps_after_a_star_or_a_filter_apply_to_each_element(text: str, found: Any) -> None:
    assert find(text) == found


def test_a_filter_compares_texts_alone() -> None:
    value = [{"n": 1}, {"n": "1"}, {"n": None}, "n", {"n": "it's"}]
    assert find("$[?(@.n=='1')]", value) == [{"n": "1"}]
    assert find("$[?(@.n=='it\\'s')]", value) == [{"n": "it's"}]


@pytest.mark.req("AIP-extract-2")
def test_a_star_on_an_object_is_a_miss() -> None:
    assert isinstance(find("$.foo[*]"), Miss)


@pytest.mark.req("AIP-extract-6")
@pytest.mark.parametrize(
    ("text", "step"),
    [
        ("$.rows[9]", "[9]"),
        ("$.text.name", ".name"),
        ("$.foo.nothing.more", ".nothing"),
        ("$.e[*].nothing", ".nothing"),
        ("$.foo[0]", "[0]"),
        ("$.text[0]", "[0]"),
        ("$.foo.none.more", ".more"),
        ("$.e[?(@.kind=='X')].nothing", ".nothing"),
    ],
)
def test_a_path_that_leads_nowhere_is_a_miss_that_names_its_first_missing_step(text: str, step: str) -> None:
    found = find(text)
    assert isinstance(found, Miss)
    assert str(found.step) == step


@pytest.mark.req("AIP-extract-6")
def test_a_miss_names_the_keys_that_are_there() -> None:
    assert str(find("$.rows", {"items": [], "count": 0})) == ".rows leads nowhere: there are 'items', 'count'"


def test_a_miss_among_very_many_keys_stays_short() -> None:
    found = find("$.rows", {f"key-{number}": 0 for number in range(1000)})
    assert len(str(found)) < 500
    assert "980 more" in str(found)


@pytest.mark.req("AIP-extract-6")
def test_a_null_that_is_there_is_a_value() -> None:
    assert find("$.foo.none") is None
    assert find("$.a[1]", {"a": [1, None]}) is None


@pytest.mark.req("AIP-extract-3")
@pytest.mark.parametrize(
    ("text", "position"),
    [
        ("$..a", 2),
        ("$.a[1:2]", 4),
        ("$.a[-1]", 4),
        ("$.a[0,1]", 4),
        ("$.a[?(@.n>1)]", 4),
        ("$.a.length()", 11),
        ("not a path !!", 1),
        ("a", 1),
        ("", 1),
        ("$.a[01]", 4),
        ("$.a[ 0 ]", 4),
        ("$.a[?(@.n=='a' || @.m=='b')]", 4),
        ("$.a[?(@.n=='a\\n')]", 4),
        ('$.a[?(@.n=="a")]', 4),
        ("$.0", 2),
        ("$.ä", 2),
        ("$.a ", 4),
        ("$.a['b]", 4),
        ("$.a\n", 4),
        (" $.a", 1),
        ("$" + ".a" * 5000, PATH_CHARS_MAX + 1),
    ],
    ids=lambda value: str(value)[:30],
)
def test_an_invalid_path_is_refused_with_the_file_at_its_character(text: str, position: int) -> None:
    reading = as_driver(driver(implements=[entry(text)]))
    assert reading.value is None
    (problem,) = reading.problems
    assert (problem.code, problem.field) == ("extract_path_invalid", "/implements/0/metadata/mcp/result_extract")
    assert problem.message.startswith(f"at character {position}: ")


@pytest.mark.req("AIP-extract-3")
def test_a_path_has_at_most_1024_characters_and_is_read_with_its_file() -> None:
    longest = "$." + "a" * 1022
    assert as_driver(driver(implements=[entry(longest)])).value is not None
    assert as_driver(driver(implements=[entry(longest + "a")])).value is None


def test_a_path_of_very_many_steps_is_refused() -> None:
    assert isinstance(read_path("$" + "[*]" * STEPS_MAX), ResultPath)
    assert isinstance(read_path("$" + "[*]" * (STEPS_MAX + 1)), PathFault)


@pytest.mark.req("AIP-extract-3")
def test_ten_times_the_result_takes_about_ten_times_as_long() -> None:
    nested: Any = "x"
    for _ in range(STEPS_MAX - 1):
        nested = [nested]

    def seconds(count: int) -> float:
        value = [nested] * count
        best = 1e9
        for _ in range(3):
            started = time.process_time()
            find("$" + "[*]" * STEPS_MAX, value)
            best = min(best, time.process_time() - started)
        return best

    count = quick_or(40, 200)
    assert seconds(10 * count) < 60 * max(seconds(count), 1e-4)


NAMES = st.text(string.ascii_letters + "_", min_size=1, max_size=3)
KEYS = st.text(string.ascii_letters + "' .\\\"é", max_size=3)
STEPS = st.one_of(
    st.tuples(st.just("name"), NAMES),
    st.tuples(st.just("key"), KEYS),
    st.tuples(st.just("index"), st.integers(0, 3)),
    st.tuples(st.just("each"), st.none()),
    st.tuples(st.just("where"), st.tuples(NAMES, st.sampled_from(["a", "it's", "\\", ""]))),
)


def written(step: tuple[str, Any]) -> str:
    kind, what = step
    if kind == "name":
        return f".{what}"
    if kind == "index":
        return f"[{what}]"
    if kind == "each":
        return "[*]"
    if kind == "key":
        return "['" + what.replace("\\", "\\\\").replace("'", "\\'") + "']"
    name, text = what
    return f"[?(@.{name}=='" + text.replace("\\", "\\\\").replace("'", "\\'") + "')]"


def reached(value: Any, steps: list[tuple[str, Any]]) -> list[Any]:
    """Another way to find it: what is found, in a list of one; nothing found, an empty list."""
    if not steps:
        return [value]
    (kind, what), rest = steps[0], steps[1:]
    if kind in ("name", "key"):
        return reached(value[what], rest) if type(value) is dict and what in value else []
    if type(value) is not list:
        return []
    if kind == "index":
        return reached(value[what], rest) if len(value) > what else []
    if kind == "where":
        name, text = what
        value = [each for each in value if type(each) is dict and name in each and each[name] == text]
    ends = [end for each in value for end in reached(each, rest)]
    return [ends] if ends or not value else []


@st.composite
def values_with_paths(draw: st.DrawFn) -> tuple[Any, list[tuple[str, Any]]]:
    """A path, and a value that has been built to be reached by it, more or less."""
    steps = draw(st.lists(STEPS, max_size=5))
    value: Any = draw(st.one_of(st.none(), st.integers(), st.text(max_size=3), st.just({}), st.just([])))
    for kind, what in reversed(steps):
        if draw(st.integers(0, 9)) == 0:
            continue
        if kind in ("name", "key"):
            value = {what: value, **draw(st.dictionaries(NAMES, st.integers(), max_size=2))}
        elif kind == "index":
            value = [0] * draw(st.integers(0, what)) + [value]
        elif kind == "each":
            value = draw(st.permutations([value, value, 1][: draw(st.integers(0, 3))]))
        else:
            name, text = what
            one = {**value, name: text} if isinstance(value, dict) else {name: text, "value": value}
            value = [one, {name: "other"}, 5][: draw(st.integers(0, 3))]
    return value, steps


@pytest.mark.req("AIP-extract-1")
@given(values_with_paths())
def test_every_path_finds_what_another_evaluator_finds(case: tuple[Any, list[tuple[str, Any]]]) -> None:
    value, steps = case
    found = find("$" + "".join(map(written, steps)), value)
    expected = reached(value, steps)
    if expected:
        assert found == expected[0]
    else:
        assert isinstance(found, Miss)


@given(st.text(alphabet="$.[]*?@()='\\\"ab01-_ \n", max_size=30))
def test_no_text_makes_the_reader_of_paths_fall_over(text: str) -> None:
    read = read_path(text)
    if isinstance(read, PathFault):
        assert 1 <= read.position <= max(len(text), 1)
    else:
        assert read_path(str(read)) == read
