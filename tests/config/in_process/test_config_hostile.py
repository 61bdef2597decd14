"""Input that nobody means well by: it ends in ConfigInvalid with file and line, soon, and in nothing else."""

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.config.config_project import Project
from tests.support.scale import examples, quick_or

from interlock.config.layers import FILE_BYTES_MAX, KEY_PARTS_MAX
from interlock.config.load import ConfigInvalid, Loaded, load
from interlock.config.schema import TOP, sections
from interlock.node.cli.init import starter_toml

HUGE = FILE_BYTES_MAX - 100


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"#" * (FILE_BYTES_MAX + 1), "larger than"),
        (b"[node]\nname = '\xff\xfe'\n", "not UTF-8"),
        ("[node]\nname = 'x'\n".encode("utf-16"), "not UTF-8"),
        (b"[node]\n\0", "not valid TOML"),
        (b'[node]\nname = "a\\u0000b"\n', "NUL"),
        (b"x = " + b"[" * 100_000, "nested too deeply"),
        (b"x = " + b"{a=" * 100_000, "nested too deeply"),
        (b".".join([b"a"] * 100_000) + b" = 1", f"more than {KEY_PARTS_MAX} parts"),
        (b"[" + b" . ".join([b'"a"'] * 100_000) + b"]", f"more than {KEY_PARTS_MAX} parts"),
        (b"x = {" + b".".join([b"'a'"] * 100_000) + b" = 1}", f"more than {KEY_PARTS_MAX} parts"),
        (b"a" * HUGE + b" = 1", "unknown key 'aaa"),
        (b"x = '" + b"a" * HUGE + b"'", "unknown key 'x'"),
        (b"x = [" + b"1," * quick_or(50_000, HUGE // 2) + b"]", "unknown key 'x'"),
        (b"[node]\nname = '" + b"a." * (HUGE // 4) + b"'", "parts"),
        (b"[node]\nname = '" + b"a" * HUGE + b"'", "1 to 63 of the characters"),
        (b"[[tool]]\n" * quick_or(10_000, HUGE // 9), "needs 'match'"),
        (b"".join(b"[servers.s%d]\n" % index for index in range(quick_or(5_000, 50_000))), "how to reach the server"),
        (
            b"[servers.s]\nurl='http://h'\n[servers.s.headers]\n"
            + b"".join(b"h%d=1\n" % n for n in range(quick_or(9_000, 90_000))),
            "quotes",
        ),
        (b"[servers.s]\ncommand = '" + b"a " * (HUGE // 4) + b" |'\n", "without a shell"),
        (b"[servers.s]\npypi='x'\nargs=['" + b"${env:" * (HUGE // 8) + b"']\n", "closing brace"),
        (b"[servers.s]\nurl = 'http://" + b"[" * 1000 + b"'\n", "valid URL"),
        (b"[node]\nlisten = '" + b"1" * HUGE + b"'\n", "a host and a port"),
        (b"[node]\norigins = ['" + b"a:" * (HUGE // 4) + b"']\n", "an origin"),
    ],
)
@pytest.mark.timeout(20)
def test_huge_and_broken_files_are_refused_soon(project: Project, data: bytes, said: str) -> None:
    problem = project.problems(data)[0]
    assert said in str(problem)
    assert problem.file == "interlock.toml"
    assert len(str(problem)) < 500


def test_the_line_of_a_bad_byte_is_reported(project: Project) -> None:
    assert project.problem(b"[node]\n# fine\nname = '\xff'\n").line == 3


def test_nesting_as_deep_as_the_parser_takes_never_breaks_the_search_for_lines(project: Project) -> None:
    for depth in range(1, 1200, 7):
        problem = project.problem("\nx = " + "[" * depth + "]" * depth)
        assert "unknown key 'x'" in problem.message or "nested too deeply" in problem.message


WRONG_VALUES: dict[str, Any] = {
    "an integer": "1234567",
    "a number": "0.5",
    "true or false": "true",
    "a string": '"§"',
    "a list": "[[]]",
    "a table": '{ "§" = [1] }',
    "a date or time": "1979-05-27",
    "not a number": "nan",
    "infinite": "-inf",
    "beyond 64 bits": "-" + "9" * 60,
}
EVERY_PLACE = [f"{name} = %s\n" for name in (*TOP, *sections())] + [
    {"table": f"[{section.name}]\n{key} = %s\n", "list": f"[[{section.name}]]\n{key} = %s\n"}.get(
        section.shape, f"[{section.name}.s]\n{key} = %s\n"
    )
    for section in sections().values()
    for key in section.keys
]


@pytest.mark.parametrize("place", EVERY_PLACE, ids=lambda place: place.replace("\n", " ").strip())
def test_a_value_of_the_wrong_kind_is_refused_on_its_line_everywhere(project: Project, place: str) -> None:
    refused = []
    for what, value in WRONG_VALUES.items():
        text = place % value
        try:
            project.load(text)
        except ConfigInvalid as invalid:
            lines = {problem.line for problem in invalid.problems}
            assert lines <= set(range(1, text.count("\n") + 1)), what
            refused.append(what)
    # Some key takes each of these; no key takes more than two of them.
    assert len(refused) >= len(WRONG_VALUES) - 2


GOOD = starter_toml() + '\n[[tool]]\nmatch = "*"\nhide = true\n[[access]]\nwho = ["a"]\ntools = ["x"]\n'


def outcome(project: Project, data: bytes) -> Loaded | ConfigInvalid:
    project.file.write_bytes(data)
    try:
        return load(None, project.env, {})
    except ConfigInvalid as refused:
        return refused


@given(
    st.lists(
        st.tuples(
            st.integers(0, len(GOOD) - 1), st.sampled_from([*"[]{}=\"'#.,\n\0\\ $x0", "\x7f", "é", "'''", '"""'])
        ),
        min_size=1,
        max_size=6,
    ),
    st.booleans(),
)
@settings(max_examples=examples(100, 3000), suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_damaged_file_is_read_or_refused_and_nothing_else_happens(
    project: Project, damage: list[tuple[int, str]], replace: bool
) -> None:
    text = GOOD
    for at, what in damage:
        text = text[:at] + what + text[at + 1 if replace else at :]
    result = outcome(project, text.encode())
    if isinstance(result, ConfigInvalid):
        assert all(problem.file == "interlock.toml" for problem in result.problems)
        assert all(problem.line is not None for problem in result.problems)


@given(st.binary(max_size=300))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_random_bytes_are_read_or_refused_and_nothing_else_happens(project: Project, data: bytes) -> None:
    outcome(project, data)


@given(
    st.dictionaries(
        st.one_of(
            st.text(st.characters(exclude_characters="\0="), max_size=8),
            st.sampled_from([f"{each.name}__{key}".upper() for each in sections().values() for key in each.keys]),
            st.sampled_from([name.upper() for name in (*TOP, *sections())]),
        ).map("INTERLOCK_".__add__),
        st.one_of(
            st.text(st.characters(exclude_characters="\0"), max_size=12), st.sampled_from(["[]", "{}", "1", "'x'"])
        ),
        max_size=4,
    )
)
@settings(max_examples=examples(100, 3000), suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_random_variables_are_read_or_refused_and_nothing_else_happens(project: Project, env: dict[str, str]) -> None:
    env.pop("INTERLOCK_CONFIG", None)
    try:
        load(None, project.env | env, {})
    except ConfigInvalid as refused:
        assert all(str(problem.file).startswith("environment variable ") for problem in refused.problems)
