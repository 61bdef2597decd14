"""`make mutation`: which lines cite which entries, which changes are made, and that tests run against the change."""

import json
import sys
from pathlib import Path

import pytest
from tests.mutation import __main__ as mutation
from tests.mutation.citations import citations, cited_entries
from tests.mutation.mutants import mutants
from tests.mutation.tree import ROOT, Tree
from tests.mutation.uncited import packages_with_tests, staged_tests, uncited_mutants

sys.path.insert(0, str(ROOT / "tools"))
from conformance import ledger, ledger_ids

# What they say is carried out by no line of its own: a process that lives on, a tree of nodes, what is never done.
UNCITED = {
    *("AX-1.1-2", "AX-1.1-3", "AX-1.1-4", "AX-1.1-5", "AX-1.1-8", "AX-12-7", "AX-12-9", "AIP-server-2"),
    *("AIP-transport-2", "AIP-transport-11", "AIP-security-9", "AIP-30.identity-1", "AIP-30.load-1", "AQL-7.2-1"),
    *("AQL-10.1-1", "AQL-10.1-2", "AQL-10.3-1", "AQL-8.8.4-1", "AQL-8.8.4-2", "AQL-8.8.4-3", "AX-8.3-1"),
}

SOURCE = b'''\
LIMIT = 7  # AX-1-1


def judge(size, names):
    """Says no."""
    log.warning("judging %s", size)
    if size > 10 and "a" in names:  # AX-1-2: the size
        raise ValueError("too_large")
    # It is kept (AX-1-3 and -4).
    names["last"] = size
    note(size)
    return size == 3
'''


def changes() -> dict[str, str]:
    made = mutants(SOURCE, "judge.py")
    return {each.change: each.applied(SOURCE).decode().splitlines()[each.line - 1].strip() for each in made}


def test_conditions_statements_words_and_limits_are_changed_one_at_a_time() -> None:
    assert changes() == {
        "7 -> 8": "LIMIT = 8  # AX-1-1",
        'size > 10 and "a" in names -> False': "if False:  # AX-1-2: the size",
        'size > 10 and "a" in names -> True': "if True:  # AX-1-2: the size",
        'without `and "a" in names`': "if (size > 10):  # AX-1-2: the size",
        "without `and size > 10`": "if ('a' in names):  # AX-1-2: the size",
        "> -> >=": 'if size >= 10 and "a" in names:  # AX-1-2: the size',
        "10 -> 11": 'if size > 11 and "a" in names:  # AX-1-2: the size',
        '"a" -> "ax"': "if size > 10 and 'ax' in names:  # AX-1-2: the size",
        'without `raise ValueError("too_large")`': "pass",
        '"too_large" -> "too_largex"': "raise ValueError('too_largex')",
        'without `names["last"] = size`': "pass",
        '"last" -> "lastx"': "names['lastx'] = size",
        "without `note(size)`": "pass",
        "not (size == 3)": "return (not (size == 3))",
        "3 -> 4": "return size == 4",
    }
    (told,) = mutants(b"def judge(size):\n    return tell(is_full=size == LIMIT)\n", "judge.py")
    assert told.change == "not (size == LIMIT)"
    source = b"def judge(a, b, c, d):\n    x = (a or b) and c and d\n"
    dropped = {each.applied(source).decode().splitlines()[1].strip() for each in mutants(source, "judge.py")}
    assert dropped == {"x = ((b)) and c and d", "x = ((a)) and c and d"} | {
        f"x = ({kept})" for kept in ("c and d", "(a or b) and d", "(a or b) and c")
    }
    (default,) = mutants(b"class Judge:\n    size: int = field(default=7, init=False)\n", "judge.py")
    assert default.change == "7 -> 8"
    (option,) = mutants(b'APART = ("--unshare-net", "--", "all of it")', "judge.py")
    assert option.applied(b'APART = ("--unshare-net", "--", "all of it")') == b'APART = (*(), "--", "all of it")'


def test_a_comment_applies_to_its_statement_and_a_docstring_to_none() -> None:
    found = {(one.entry, one.first, one.last) for one in citations(SOURCE)}
    assert found == {("AX-1-1", 1, 1), ("AX-1-2", 7, 8), ("AX-1-3", 10, 10), ("AX-1-4", 10, 10)}
    assert not citations(b'"""AX-1-1."""\n\n\ndef several():\n    """AX-1-2."""\n    return 7\n')
    table = b'TABLE = {\n    "a": 7,  # AX-1-1\n    # AX-1-2\n    "b": 8,\n}\n'
    assert [(one.entry, one.first, one.last) for one in citations(table)] == [("AX-1-1", 2, 2), ("AX-1-2", 4, 4)]
    long = b"if a:  # AX-1-1\n" + b"    b()\n" * 20
    assert [(one.first, one.last) for one in citations(long)] == [(1, 1)]


def test_entries_are_cited_alone_in_a_row_and_as_a_range() -> None:
    assert list(cited_entries("AX-4.1-2 and AIP-19.file-3")) == ["AX-4.1-2", "AIP-19.file-3"]
    assert list(cited_entries("AIP-tools-4, -7 and -8")) == ["AIP-tools-4", "AIP-tools-7", "AIP-tools-8"]
    assert list(cited_entries("(AIP-import-9 to -11)")) == ["AIP-import-9", "AIP-import-10", "AIP-import-11"]
    assert not list(cited_entries("AIP-30, MCP-AX 4.1 and AX-peers"))


def test_every_entry_that_the_program_cites_is_in_the_ledger() -> None:
    cited = {one.entry for of_file in mutation.all_citations().values() for one in of_file}
    assert cited <= ledger_ids()


def test_every_tied_must_of_three_specifications_is_cited_where_it_is_carried_out() -> None:
    entries = [entry for one in ledger() if one.name in {"MCP-AX", "AIP-32", "MCP-AQL"} for entry in one.entries]
    must = {entry.id for entry in entries if entry.level == "MUST"}
    tied, cited = set(mutation.tied_tests()), {entry for entry, lines in mutation.guarded_mutants().items() if lines}
    assert must & tied >= UNCITED, "they are tied to no test that is run here: take them out of UNCITED"
    assert not (must & tied) - cited - UNCITED, "cite them beside the lines that carry out what shown_by says"
    assert not cited & UNCITED, "they are cited by now: take them out of UNCITED"


def test_the_same_seed_gives_the_same_mutants_and_each_line_once_before_any_twice() -> None:
    guarded = mutation.guarded_mutants()
    by_line = guarded["AX-4.1-3"]
    chosen = mutation.sample(by_line, 3, "1")
    assert chosen == mutation.sample(by_line, 3, "1") != mutation.sample(by_line, 3, "2")
    assert len({(each.file, each.line) for each in chosen}) == 3
    every = [each for of_line in by_line for each in of_line]
    assert sorted(mutation.sample(by_line, 1000, "1")) == sorted(every)
    assert mutation.is_asked("AX-4.1-2", "AX-4.1") and not mutation.is_asked("AX-4.1-2", "AX-4.1-20")


@pytest.mark.timeout(180)
def test_a_mutant_is_met_by_every_process_a_test_starts_and_the_checkout_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = tmp_path / "small"
    (small / "src/interlock").mkdir(parents=True)
    (small / "src/interlock/__init__.py").write_text("def answer():\n    return 7 > 3\n")
    (small / "tests").mkdir()
    (small / "tests/test_small.py").write_text(
        "import subprocess, sys, pytest\n"
        "ASK = 'import interlock; print(interlock.answer())'\n"
        "def test_elsewhere():\n"
        "    said = subprocess.run([sys.executable, '-c', ASK], env={}, capture_output=True, text=True).stdout\n"
        "    assert said == 'True\\n'\n"
        "def test_here():\n"
        "    import interlock\n"
        "    assert interlock.answer()\n"
        "def test_skipped():\n"
        "    pytest.skip('nothing is seen')\n"
    )
    monkeypatch.setattr("tests.mutation.tree.ROOT", small)
    monkeypatch.setenv("PYTHONPATH", str(small / "src"))
    tree = Tree(tmp_path)
    tests = ["tests/test_small.py::test_elsewhere"]
    assert tree.run(tests, 60) is True
    assert tree.run(["tests/test_small.py::test_skipped"], 60) is False
    file = "src/interlock/__init__.py"
    source = (small / file).read_bytes()
    negated = next(each for each in mutants(source, file) if each.change.startswith("not"))
    with tree.mutated(negated):
        assert tree.run(tests, 60) is False
        assert tree.run(["tests/test_small.py::test_here"], 60) is False
    assert tree.run(tests, 60) is True
    assert tree.run(tests, 0.01) is None
    assert (small / file).read_bytes() == source


def package_of(root: Path) -> None:
    """A package whose line 7 is cited and whose line 6 is tested in a process alone."""
    (root / "src/interlock/judge").mkdir(parents=True)
    (root / "src/interlock/__init__.py").write_text("")
    (root / "src/interlock/judge/size.py").write_text(
        "def is_large(size):\n"
        "    return size > 10\n"
        "\n"
        "\n"
        "def is_small(size):\n"
        "    return size < 3\n"
        "def is_odd(size): return size == 7  # AX-1-1: it is odd\n"
    )
    for folder, test in (("pure", "is_large(11) and not size.is_large(10)"), ("processes", "is_small(2)")):
        (root / "tests/judge" / folder).mkdir(parents=True)
        (root / "tests/judge" / folder / f"test_{folder}.py").write_text(
            f"from interlock.judge import size\ndef test_it():\n    assert size.{test}\n"
        )


def test_lines_that_no_entry_cites_are_sampled_by_package(tmp_path: Path) -> None:
    package_of(tmp_path)
    assert packages_with_tests(tmp_path) == ["judge"]
    by_line = uncited_mutants("judge", tmp_path)
    assert {(each.file, each.line) for of_line in by_line for each in of_line} == {
        ("src/interlock/judge/size.py", 2),
        ("src/interlock/judge/size.py", 6),
    }
    pure, processes = ["tests/judge/pure/test_pure.py"], ["tests/judge/processes/test_processes.py"]
    assert staged_tests("judge", quick=False, root=tmp_path) == [pure, processes]
    assert staged_tests("judge", quick=True, root=tmp_path) == [pure]
    first, again = (mutation.sampled_packages(["guard"], 5, 1)[0].mutants for _ in range(2))
    assert first == again != mutation.sampled_packages(["guard"], 5, 2)[0].mutants


def test_tests_that_name_the_changed_module_run_first() -> None:
    near, far = "tests/wire/pure/test_jsonrpc_raw.py", "tests/wire/pure/test_schema_inclusion.py"
    processes = "tests/guard/processes/test_budgets.py"
    assert mutation.ordered([processes, far, near], "src/interlock/wire/jsonrpc/codec.py") == [near, far, processes]
    assert mutation.ordered([processes, near, far], "src/interlock/guard/budgets.py") == [near, far, processes]


@pytest.mark.timeout(180)
def test_a_package_is_measured_with_its_quick_tests_and_then_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    small = tmp_path / "small"
    package_of(small)
    for module in ("tree", "uncited", "__main__"):
        monkeypatch.setattr(f"tests.mutation.{module}.ROOT", small)
    mutation._text.cache_clear()
    monkeypatch.setattr(mutation, "packages_with_tests", lambda: packages_with_tests(small))
    monkeypatch.setattr(mutation, "uncited_mutants", lambda package: uncited_mutants(package, small))
    monkeypatch.setattr(mutation, "staged_tests", lambda *names, quick: staged_tests(*names, quick=quick, root=small))
    assert mutation.main(["--uncited", "judge", "--mutants", "20", "--jobs", "1", "--json"]) == 1
    mutation._text.cache_clear()
    (package,) = json.loads(capsys.readouterr().out)["packages"]
    assert (package["id"], package["tests"], package["left_out"]) == ("judge", 2, None)
    outcomes = {each["change"]: each["is"] for each in package["mutants"]}
    assert outcomes == {
        "not (size > 10)": "killed",
        "> -> >=": "killed",
        "10 -> 11": "killed",
        "not (size < 3)": "killed",
        "< -> <=": "SURVIVED",
        "3 -> 4": "SURVIVED",
    }
    with pytest.raises(SystemExit):
        mutation.main(["--uncited", "nothing"])


def test_the_report_counts_what_survived_and_says_what_was_left_out() -> None:
    mutant = mutants(SOURCE, "src/interlock/judge.py")[0]
    tried = [mutation.Tried(mutant, each) for each in ("killed", "timeout", "killed", "SURVIVED")]
    measured = [mutation.Measured("AX-1-1", 2, tried), mutation.Measured("AX-1-2", 1, [], "its tests do not pass")]
    rate = mutation.survival(measured)
    assert rate == 25.0
    said = mutation._as_table(measured, rate)
    assert "AX-1-2                 1       0        0  left out: its tests do not pass" in said
    assert "judge.py:1" in said
    assert said.endswith("4 mutants of 1 entries: 2 killed, 1 timeout, 1 survived; 25.0 % survived")
    assert mutation.survival([]) is None
