"""Do the rules of a standing grant let through what a person said, and nothing that only looks like it?"""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from interlock.approvals.grant_terms import (
    PATH_CHARS_MAX,
    BadRules,
    check_rules,
    completed_rules,
    find_folder,
    find_parent,
    find_violation,
    is_below,
    pointer_of,
    proposed_rules,
    rule_text,
)
from interlock.approvals.grants_api import GrantRule
from interlock.wire.jsontext.canonical import AmbiguousJson, read_untrusted


def rule(at: str, kind: Any, value: Any = None, **more: Any) -> GrantRule:
    return GrantRule(at=at, kind=kind, value=value, **more)


BELOW = (rule("/path", "below", "/srv/reports"),)


@pytest.mark.parametrize(
    "path",
    [
        "/srv/reports/a",
        "/srv/reports/a/b.txt",
        "/srv/reports//a",
        "/srv/reports/./a",
        "/srv/./reports/a",
        "/srv/reports/é.txt",
        "/srv/reports/a/",
        "/srv/reports/R&D (old).txt",
        "/srv/reports/.hidden",
        "/srv/reports/a b",
    ],
)
def test_a_path_inside_the_folder_passes(path: str) -> None:
    assert find_violation(BELOW, {"path": path}) is None


@pytest.mark.parametrize(
    "path",
    [
        *("/srv/reports", "/srv/reports/", "/srv/reports/.", "/srv/reports2/a", "/srv/report", "/srv", "/", ""),
        *("/srv/reports/../x", "/srv/reports/a/../../x", "/srv/reports/..", "../srv/reports/a", "/srv/reports/a..b"),
        *("srv/reports/a", "./srv/reports/a", "//srv/reports/a", " /srv/reports/a", "~/srv/reports/a"),
        *("/SRV/reports/a", "/srv/Reports/a", "/srv/r\u0435ports/a"),  # a Cyrillic e
        *("/srv/reports/%2e%2e/x", "/srv/reports/%252e%252e/x", "/srv%2freports/a", "/srv/reports/a%00"),
        *("/srv/reports/a\0", "/srv/reports/\0/../x", "/srv/reports/a\nb", "/srv/reports/\x7f", "/srv/reports/\x85"),
        *("/srv/reports\\a", "/srv/reports/..\\x", "C:\\srv\\reports\\a", "file:///srv/reports/a"),
        *("/srv/reports/\uff0e\uff0e/x", "/srv/reports/\u2025/x", "/srv/reports\uff0fa", "/srv/reports/a\u2024b"),
        *("/srv/reports/\u200b", "/srv/reports/a\u202eb", "/srv/reports/\ufeffa", "/srv/reports/\u00a0"),
        *("/srv/reports/ ", "/srv/reports/. ", "/srv/reports/.../x", "/srv/reports/. ./x", "/srv/reports/\ue000"),
        *("/srv/reports/$HOME", "/srv/reports/`id`", "/srv/reports/*", "/srv/reports/{a,b}", "/srv/reports/?"),
        "/srv/reports/" + "a" * PATH_CHARS_MAX,
    ],
)
def test_a_path_that_may_leave_the_folder_is_refused(path: str) -> None:
    assert find_violation(BELOW, {"path": path}) == "/path must be a path below /srv/reports"


@pytest.mark.parametrize("value", [None, True, 1, 1.5, ["/srv/reports/a"], {"path": "/srv/reports/a"}, []])
def test_only_a_text_is_a_path(value: Any) -> None:
    assert find_violation(BELOW, {"path": value}) is not None


def test_each_path_of_a_list_is_judged() -> None:
    rules = (rule("/paths", "below", "/srv", each=True),)
    assert find_violation(rules, {"paths": ["/srv/a", "/srv/b"]}) is None
    for paths in (["/srv/a", "/etc/b"], [], "/srv/a", [["/srv/a"]], {"0": "/srv/a"}, ["/srv/a", None]):
        assert find_violation(rules, {"paths": paths}) is not None, paths


@pytest.mark.parametrize(
    "folder", ["/", "", ".", "..", "/srv/..", "/srv/*", "~", "//srv", "file:///srv", "/%41", " ", "/srv/"]
)
def test_a_folder_that_is_too_wide_or_not_plain_is_not_signed(folder: str) -> None:
    with pytest.raises(BadRules):
        check_rules([rule("/path", "below", folder)])


def test_relative_paths_are_below_relative_folders() -> None:
    rules = (rule("/path", "below", "reports"),)
    assert find_violation(rules, {"path": "reports/a"}) is None
    assert find_violation(rules, {"path": "./reports/a"}) is None
    for path in ("/reports/a", "reports", "a/reports/b", "reports/../a"):
        assert find_violation(rules, {"path": path}) is not None, path


_NAMES = st.text(st.characters(min_codepoint=32, max_codepoint=0x2FFF), min_size=1, max_size=12)


@given(st.lists(_NAMES, min_size=1, max_size=4), st.lists(_NAMES, min_size=1, max_size=4))
def test_a_path_below_a_folder_begins_with_it_however_it_is_resolved(folder: list[str], rest: list[str]) -> None:
    import posixpath
    import unicodedata
    from urllib.parse import unquote

    text = "/" + "/".join(folder)
    signed = find_folder(text)
    path = f"{text}/{'/'.join(rest)}"
    if signed is None or not is_below(path, signed):
        return
    readings = (path, unquote(path), unicodedata.normalize("NFKC", path), path.replace("\\", "/"))
    bases = (signed, unquote(signed), unicodedata.normalize("NFKC", signed), signed)
    for reading, base in zip(readings, bases, strict=True):
        assert posixpath.normpath(reading).startswith(f"{posixpath.normpath(base)}/"), (path, reading)


@given(st.text(max_size=40))
def test_a_parent_is_a_folder_that_its_path_is_below(path: str) -> None:
    parent = find_parent(path)
    assert parent is None or (find_folder(parent) == parent and is_below(path, parent))


@pytest.mark.parametrize(
    ("value", "passes"),
    [
        (0, True),
        (5, True),
        (5.0, True),
        (2.5, True),
        (5.0001, False),
        (-1, False),
        (6, False),
        (True, False),
        ("3", False),
        (None, False),
        ([3], False),
        ({"n": 3}, False),
        (float("nan"), False),
        (float("inf"), False),
    ],
)
def test_a_number_lies_in_its_range(value: Any, passes: bool) -> None:
    assert (find_violation([rule("/n", "range", [0, 5])], {"n": value}) is None) is passes


@pytest.mark.parametrize(("text", "passes"), [(b"1e3", True), (b"1000", True), (b"1.0e3", True), (b"1001", False)])
def test_numbers_are_compared_by_their_value_however_they_are_written(text: bytes, passes: bool) -> None:
    arguments = read_untrusted(b'{"n":%b}' % text)
    assert (find_violation([rule("/n", "range", [0, 1000])], arguments) is None) is passes
    assert (find_violation([rule("/n", "equals", 1000)], arguments) is None) is passes


@pytest.mark.parametrize(
    "text",
    [
        b'{"n":1,"n":2}',
        b'{"n":9007199254740993}',
        b'{"n":1e400}',
        b'{"n":NaN}',
        b'{"n":-0}',
        b'{"a":{"n":1,"\\u006e":2}}',
    ],
)
def test_arguments_that_readers_take_differently_are_not_judged_at_all(text: bytes) -> None:
    with pytest.raises(AmbiguousJson):
        read_untrusted(text)


def test_an_enumeration_compares_values_and_their_types() -> None:
    rules = [rule("/mode", "one_of", ["a", 1, None])]
    for passes in ("a", 1, 1.0, None):
        assert find_violation(rules, {"mode": passes}) is None
    for fails in ("A", "a ", "1", True, False, "b", ["a"], {"a": 1}):
        assert find_violation(rules, {"mode": fails}) is not None, fails
    assert find_violation(rules, {}) == "/mode is missing"


def test_an_argument_without_a_rule_is_refused() -> None:
    assert find_violation(BELOW, {"path": "/srv/reports/a", "force": True}) == "/force is not among its arguments"
    assert find_violation((), {}) is None
    assert find_violation((), {"a": None}) is not None


def test_an_argument_that_may_be_anything_may_also_be_absent() -> None:
    rules = [*BELOW, rule("/note", "any")]
    for more in ({}, {"note": None}, {"note": {"deep": [1]}}):
        assert find_violation(rules, {"path": "/srv/reports/a", **more}) is None
    assert find_violation([rule("", "any")], {"whatever": [1, {"x": 2}]}) is None


def test_nested_arguments_are_named_by_pointers() -> None:
    rules = [rule("/options/mode", "one_of", ["fast"]), rule("/options/a~1b", "any"), rule("/n", "equals", {"x": [1]})]
    assert find_violation(rules, {"options": {"mode": "fast", "a/b": 1}, "n": {"x": [1.0]}}) is None
    for wrong in (
        {"options": {"mode": "slow"}, "n": {"x": [1]}},
        {"options": {"mode": "fast", "force": True}, "n": {"x": [1]}},
        {"options": "fast", "n": {"x": [1]}},
        {"options": [{"mode": "fast"}], "n": {"x": [1]}},
        {"options": {"mode": "fast"}, "n": {"x": [1], "y": 2}},
        {"options": {}, "n": {"x": [1]}},
        {"options/mode": "fast", "n": {"x": [1]}},
    ):
        assert find_violation(rules, wrong) is not None, wrong


@pytest.mark.parametrize(
    "rules",
    [
        [rule("/a", "any"), rule("/a", "any")],
        [rule("/a", "any"), rule("/a/b", "equals", 1)],
        [rule("/a/b", "equals", 1), rule("/a", "any")],
        [rule("", "any"), rule("/a", "any")],
        [rule("", "equals", {})],
        [rule("a", "any")],
        [rule("/a~2", "any")],
        [rule("/a~", "any")],
        [rule("/a", "any", 1)],
        [rule("/a", "one_of", [])],
        [rule("/a", "one_of", "abc")],
        [rule("/a", "one_of", [[1]])],
        [rule("/a", "one_of", list(range(101)))],
        [rule("/a", "range", [5, 0])],
        [rule("/a", "range", [0, True])],
        [rule("/a", "range", 5)],
        [rule("/a", "range", [0, 2**60])],
        [rule("/a", "equals", 2**60)],
        [rule("/a", "equals", float("nan"))],
        [rule("/a", "equals", 1, each=True)],
        [rule(f"/{n}", "any") for n in range(101)],
        [rule("/" + "a" * 1000, "any")],
    ],
)
def test_rules_that_say_nothing_clear_are_refused(rules: list[GrantRule]) -> None:
    with pytest.raises(BadRules):
        check_rules(rules)


def test_from_a_call_everything_else_stays_as_it_is() -> None:
    arguments = {"path": "/srv/reports/a", "mode": "fast", "options": {"x": 1, "y": {"z": 2}}}
    rules = completed_rules([rule("/path", "below", "/srv/reports"), rule("/options/x", "any")], arguments)
    assert find_violation(rules, arguments) is None
    assert find_violation(rules, {**arguments, "path": "/srv/reports/b", "options": {"y": {"z": 2}}}) is None
    for changed in ({"mode": "slow"}, {"options": {"x": 1, "y": {"z": 3}}}, {"extra": 1}, {"path": "/etc/a"}):
        assert find_violation(rules, {**arguments, **changed}) is not None, changed
    for absent in arguments:
        assert find_violation(rules, {key: arguments[key] for key in arguments if key != absent}) is not None


def test_a_grant_covers_the_call_it_comes_from_or_is_not_made() -> None:
    with pytest.raises(BadRules, match="the call itself"):
        completed_rules([rule("/path", "below", "/srv")], {"path": "/etc/a"})
    with pytest.raises(BadRules, match="the call itself"):
        completed_rules([rule("/nothing", "equals", 1)], {"path": "/etc/a"})
    with pytest.raises(BadRules, match="the call itself"):
        completed_rules([rule("/path/x", "equals", 1)], {"path": "/etc/a"})


def test_proposed_rules_are_narrow() -> None:
    arguments = {
        "path": "/srv/a/b",
        "paths": ["/srv/x", "/srv/y"],
        "n": 3,
        "low": -3,
        "root": "/x",
        "to": "a@b",
        "f": True,
    }
    assert {one.at: rule_text(one) for one in proposed_rules(arguments)} == {
        "/path": "a path below /srv/a",
        "/paths": "a list, each of it a path below /srv",
        "/n": "a number from 0 to 3",
    }
    assert find_violation(completed_rules(proposed_rules(arguments), arguments), arguments) is None


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-1000, 1000) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=12,
)
_OBJECTS = st.dictionaries(st.text(max_size=5), _JSON, max_size=5)


@given(_OBJECTS, _OBJECTS)
def test_without_rules_a_grant_covers_the_same_call_and_no_other(signed: dict[str, Any], other: dict[str, Any]) -> None:
    rules = completed_rules((), signed)
    assert find_violation(rules, signed) is None
    is_same = json.dumps(signed, sort_keys=True) == json.dumps(other, sort_keys=True)
    assert (find_violation(rules, other) is None) is is_same


@given(_OBJECTS)
def test_proposed_rules_cover_their_call(arguments: dict[str, Any]) -> None:
    rules = completed_rules(proposed_rules(arguments), arguments)
    assert find_violation(rules, arguments) is None


def test_names_become_pointers() -> None:
    assert [pointer_of(name) for name in ("path", "a/b", "/a/b", "a~b")] == ["/path", "/a~1b", "/a/b", "/a~0b"]


def test_signed_values_are_shown_in_full_and_shortened_values_say_so() -> None:
    long = "a" * 500
    shown = rule_text(rule("/text", "equals", long))
    assert shown == f'"{long}"'
    assert len(rule_text(rule("/text", "one_of", [long, "b"]))) > 500
    rules = (rule("/text", "equals", long),)
    violation = find_violation(rules, {"text": "b"})
    assert violation is not None and violation.endswith("… (502 characters)") and len(violation) < 200
    strange = find_violation(rules, {"text": long, long: 1})
    assert strange == f"/{'a' * 120}… (500 characters) is not among its arguments"
