"""docs/conformance.md from the ledger and the tests' req markers.

Reads spec/*.yaml and the source of tests/ (nothing is imported or run), so the page depends on committed files alone.
Writing it also reads what the last full test run left in .cache/requirements.json, if there was one, and refuses to
name a test that failed there. `--check` compares and writes nothing.
"""

import argparse
import ast
import json
import re
import sys
from collections.abc import Iterable, Iterator
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

import yaml

ROOT = Path(__file__).resolve().parent.parent
PAGE = Path("docs/conformance.md")
LAST_RUN = Path(".cache/requirements.json")

STATEMENT_MAX = 160  # characters of an entry on the page; the ledger holds the rest
STATES = ("shown", "failing", "not yet")


class LedgerError(Exception):
    """The ledger or a marker is wrong; the message says where."""


class Entry(NamedTuple):
    id: str
    level: str
    says: str

    @property
    def clause(self) -> str:
        return self.id.rpartition("-")[0]


class Specification(NamedTuple):
    name: str
    source: str
    entries: list[Entry]


class Tie(NamedTuple):
    """One test that names one entry. `expected_to_fail`: marked skip or xfail, so it shows nothing."""

    id: str
    test: str
    expected_to_fail: bool


def ledger(root: Path = ROOT) -> list[Specification]:
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    specifications: list[Specification] = []
    seen: set[str] = set()
    for path in sorted((root / "spec").glob("*.yaml")):
        document = yaml.load(path.read_text(encoding="utf-8"), Loader=loader)  # noqa: S506 (both loaders are safe)
        entries: list[Entry] = []
        for item in document["requirements"]:
            identifier = item["id"]
            if identifier in seen:
                raise LedgerError(f"{path.name}: {identifier} is there twice")
            seen.add(identifier)
            entries.append(Entry(identifier, item["level"], " ".join(item["says"].split())))
        specifications.append(Specification(document["spec"], " ".join(document["source"].split()), entries))
    return specifications


def ledger_ids(root: Path = ROOT) -> frozenset[str]:
    return frozenset(entry.id for specification in ledger(root) for entry in specification.entries)


def ties(root: Path = ROOT) -> list[Tie]:
    found: list[Tie] = []
    for path in sorted((root / "tests").rglob("*.py")):
        name = path.relative_to(root).as_posix()
        tree = ast.parse(path.read_text(encoding="utf-8"), name)
        above = [
            node.value
            for node in tree.body
            if isinstance(node, ast.Assign)
            and any(isinstance(t, ast.Name) and t.id == "pytestmark" for t in node.targets)
        ]
        found.extend(_ties_in(tree.body, name, name, above))
    return found


def _ties_in(body: Iterable[ast.stmt], file: str, prefix: str, above: list[ast.expr]) -> Iterator[Tie]:
    for node in body:
        if isinstance(node, ast.ClassDef):
            yield from _ties_in(node.body, file, f"{prefix}::{node.name}", [*above, *node.decorator_list])
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            is_test = node.name.startswith("test")
            own = list(_marker_ids(node.decorator_list, file))
            if own and not is_test:
                raise LedgerError(f"{file}:{node.lineno}: {node.name} has a req marker but is no test")
            if not is_test:
                continue
            marks = [*above, *node.decorator_list]
            expected_to_fail = any(_mark_name(mark) in {"skip", "xfail"} for mark in _parts(marks))
            for identifier in dict.fromkeys([*_marker_ids(above, file), *own]):
                yield Tie(identifier, f"{prefix}::{node.name}", expected_to_fail)


def _marker_ids(marks: Iterable[ast.expr], file: str) -> Iterator[str]:
    for mark in marks:
        for call in ast.walk(mark):
            if not isinstance(call, ast.Call) or _mark_name(call) != "req":
                continue
            for argument in call.args:
                if not isinstance(argument, ast.Constant) or not isinstance(argument.value, str):
                    raise LedgerError(f"{file}:{call.lineno}: write the ids of a req marker out as strings")
                yield argument.value


def _parts(marks: Iterable[ast.expr]) -> Iterator[ast.expr]:
    """Marks that hold for the whole test: a list of marks counts, marks of single parameters do not."""
    for mark in marks:
        yield from mark.elts if isinstance(mark, ast.List | ast.Tuple) else [mark]


def _mark_name(node: ast.expr) -> str | None:
    """`name` of pytest.mark.name or pytest.mark.name(...)."""
    target = node.func if isinstance(node, ast.Call) else node
    if isinstance(target, ast.Attribute) and isinstance(target.value, ast.Attribute) and target.value.attr == "mark":
        return target.attr
    return None


def page(specifications: list[Specification], found: list[Tie]) -> str:
    by_id: dict[str, list[Tie]] = {}
    for tie in found:
        by_id.setdefault(tie.id, []).append(tie)
    known = {entry.id for specification in specifications for entry in specification.entries}
    if unknown := sorted(set(by_id) - known):
        raise LedgerError(
            "\n".join(f"{by_id[one][0].test} names {one}, which the ledger does not have" for one in unknown)
        )
    lines = [
        "# Conformance",
        "",
        "Written by `python tools/conformance.py` from the ledger in [spec](../spec/README.md) and the tests.",
        "An entry is *shown* when a test that would fail without it names it; *failing* when every such test is",
        "marked as skipped or expected to fail; otherwise *not yet*. SHAPE is as binding as MUST.",
        "What the official MCP suite finds stands in [conformance-suite.md](conformance-suite.md).",
        "",
        "| specification | entries | " + " | ".join(STATES) + " | MUST and SHAPE shown |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for specification in specifications:
        lines.append(_totals(specification.name, specification.entries, by_id))
    lines.append(_totals("all", [entry for one in specifications for entry in one.entries], by_id))
    for specification in specifications:
        lines += ["", f"## {specification.name}", "", specification.source]
        for clause, entries in groupby(specification.entries, key=lambda entry: entry.clause):
            lines += ["", f"### {clause}", "", "| entry | level | says | state | test |", "|---|---|---|---|---|"]
            for entry in entries:
                tests = "<br>".join(f"`{tie.test}`" for tie in by_id.get(entry.id, []))
                state = _state(entry, by_id)
                lines.append(f"| {entry.id} | {entry.level} | {_statement(entry.says)} | {state} | {tests} |")
    return "\n".join(lines) + "\n"


def _totals(name: str, entries: list[Entry], by_id: dict[str, list[Tie]]) -> str:
    states = [_state(entry, by_id) for entry in entries]
    binding = [state for entry, state in zip(entries, states, strict=True) if entry.level in {"MUST", "SHAPE"}]
    counts = " | ".join(str(states.count(state)) for state in STATES)
    return f"| {name} | {len(entries)} | {counts} | {binding.count('shown')} of {len(binding)} |"


def _state(entry: Entry, by_id: dict[str, list[Tie]]) -> str:
    named_by = by_id.get(entry.id, [])
    if not named_by:
        return "not yet"
    return "failing" if all(tie.expected_to_fail for tie in named_by) else "shown"


def _statement(says: str) -> str:
    sentence = re.split(r"(?<=[^.\s])\. (?=[A-Z(`])", says)[0].rstrip(".")
    if len(sentence) > STATEMENT_MAX:
        sentence = sentence[:STATEMENT_MAX].rpartition(" ")[0].rstrip(",;:") + " …"
    if sentence.count("`") % 2:
        sentence += "`"
    parts = sentence.split("`")
    parts[::2] = [part.replace("<", "&lt;").replace("*", "\\*") for part in parts[::2]]  # outside code spans
    return "`".join(parts).replace("|", "\\|")


def _last_run(root: Path) -> dict[str, dict[str, object]]:
    path = root / LAST_RUN
    if not path.exists():
        print("no full test run is recorded here; the page rests on the markers alone", file=sys.stderr)
        return {}
    tests: dict[str, dict[str, object]] = json.loads(path.read_text(encoding="utf-8"))
    return tests


def main(arguments: list[str] | None = None, root: Path = ROOT) -> int:
    parser = argparse.ArgumentParser(prog="tools/conformance.py", description="Write docs/conformance.md.")
    parser.add_argument("--check", action="store_true", help="fail if the page is out of date; write nothing")
    check = parser.parse_args(arguments).check
    try:
        text = page(ledger(root), ties(root))
    except LedgerError as error:
        print(error, file=sys.stderr)
        return 2
    if check:
        if (root / PAGE).exists() and (root / PAGE).read_text(encoding="utf-8") == text:
            return 0
        print(f"{PAGE} is out of date; run: python tools/conformance.py", file=sys.stderr)
        return 1
    last_run = _last_run(root)
    for test, record in last_run.items():
        if record["outcome"] == "skipped":
            print(f"skipped in the last full run: {test}", file=sys.stderr)
    if failed := [test for test, record in last_run.items() if record["outcome"] == "failed"]:
        for test in failed:
            print(f"failed in the last full run: {test}", file=sys.stderr)
        print(f"{PAGE} is left as it was: mend these tests and run all tests again", file=sys.stderr)
        return 1
    (root / PAGE).parent.mkdir(exist_ok=True)
    (root / PAGE).write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
