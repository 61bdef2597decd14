"""`make mutation`: which changes are made, of which lines, and that the tests run against the change."""

from pathlib import Path

import pytest
from tests.mutation import __main__ as mutation
from tests.mutation.mutants import mutants, terms
from tests.mutation.tree import ROOT, Tree

SOURCE = b'''\
LIMIT = 7


def judge(size, names):
    """Says no."""
    log.warning("judging %s", size)
    if size > 10 and "a" in names:
        raise ValueError("too_large")
    names["last"] = size
    note(size)
    return size == 3
'''


def changes() -> dict[str, str]:
    made = mutants(SOURCE, "judge.py")
    return {each.change: each.applied(SOURCE).decode().splitlines()[each.line - 1].strip() for each in made}


def test_conditions_statements_codes_and_limits_of_a_function_are_changed_one_at_a_time() -> None:
    assert changes() == {
        'not (size > 10 and "a" in names)': 'if (not (size > 10 and "a" in names)):',
        'without `and "a" in names`': "if size > 10:",
        "without `and size > 10`": 'if "a" in names:',
        "> -> >=": 'if size >= 10 and "a" in names:',
        "10 -> 11": 'if size > 11 and "a" in names:',
        'without `raise ValueError("too_large")`': "pass",
        '"too_large" -> "too_largex"': "raise ValueError('too_largex')",
        'without `names["last"] = size`': "pass",
        "without `note(size)`": "pass",
        "not (size == 3)": "return (not (size == 3))",
        "3 -> 4": "return size == 4",
    }


def test_a_mutant_has_the_terms_of_its_line_and_a_condition_those_of_what_it_decides_about() -> None:
    assert terms("Too_Large TOO_LARGE too-large tooLarge large") == {"too_large"}
    about = {each.change: each.terms for each in mutants(SOURCE, "judge.py")}
    assert about["> -> >="] == about['without `raise ValueError("too_large")`'] == {"too_large"}
    assert not about["without `note(size)`"]


@pytest.mark.timeout(180)
def test_a_mutant_is_met_by_every_process_a_test_starts_and_the_checkout_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = tmp_path / "small"
    (small / "src/interlock").mkdir(parents=True)
    (small / "src/interlock/__init__.py").write_text("def answer():\n    return 7 > 3\n")
    (small / "tests").mkdir()
    (small / "tests/test_small.py").write_text(
        "import subprocess, sys\n"
        "ASK = 'import interlock; print(interlock.answer())'\n"
        "def test_elsewhere():\n"
        "    said = subprocess.run([sys.executable, '-c', ASK], env={}, capture_output=True, text=True).stdout\n"
        "    assert said == 'True\\n'\n"
    )
    (small / "tests/mutation").mkdir()
    (small / "tests/mutation/lines.py").write_bytes((ROOT / "tests/mutation/lines.py").read_bytes())
    monkeypatch.setattr("tests.mutation.tree.ROOT", small)
    tree = Tree(tmp_path)
    tests = ["tests/test_small.py::test_elsewhere"]
    assert tree.run(tests, 60) is True
    assert tree.executed(tests, 60) == {("src/interlock/__init__.py", 2)}
    file = "src/interlock/__init__.py"
    source = (small / file).read_bytes()
    negated = next(each for each in mutants(source, file) if each.change.startswith("not"))
    with tree.mutated(negated):
        assert tree.run(tests, 60) is False
    assert tree.run(tests, 60) is True
    assert tree.run(tests, 0.01) is None
    assert (small / file).read_bytes() == source


def test_lines_with_a_term_of_the_entry_are_chosen_and_what_all_execute_is_not() -> None:
    path = "src/interlock/protocol/ax/registration/codec.py"
    lines = {(path, each.line) for each in mutants((ROOT / path).read_bytes(), path)}
    everywhere = {(path, each.line) for each in mutants((ROOT / path).read_bytes(), path) if "raise" in each.change}
    said = "heartbeat_interval_ms is a number, else namespace_invalid"
    entries = [mutation.Case(f"X-{number}", said, [], 1.0, lines if number == 0 else everywhere) for number in range(6)]
    program = mutation.Program({**mutation._entries(), "X-0": said})
    chosen = program.chosen(entries, 3, 1)
    assert [case.entry for case, _ in chosen] == ["X-0"] * 3
    assert all(each.terms & {"heartbeat_interval_ms", "namespace_invalid"} for _, each in chosen)
    assert not {(each.file, each.line) for _, each in chosen} & everywhere
    assert chosen == program.chosen(entries, 3, 1)
