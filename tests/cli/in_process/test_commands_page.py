"""Does docs/commands.md say what the command line says, and is a difference found?"""

import re
from pathlib import Path

import pytest
from tools import commands_reference

from interlock.cli.app import VERBS

ROOT = Path(__file__).resolve().parents[3]


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr("sys.argv", ["commands_reference.py", *arguments])
    return commands_reference.main()


def test_every_verb_has_a_section_with_examples() -> None:
    sections = commands_reference.page().split("\n## ")[1:]
    assert {section.split()[1] for section in sections} == set(VERBS)
    assert [section.split("\n")[0] for section in sections if "Examples:" not in section] == []


def test_the_page_is_written_and_a_change_to_it_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commands_reference, "ROOT", tmp_path)
    (tmp_path / "docs").mkdir()
    assert run(monkeypatch) == 0
    assert run(monkeypatch, "--check") == 0
    page = tmp_path / commands_reference.PAGE
    page.write_text(page.read_text("utf-8").replace("interlock deny", "interlock refuse"), "utf-8")
    assert run(monkeypatch, "--check") == 1


def test_every_variable_that_the_program_reads_is_documented_once() -> None:
    sources = "\n".join(path.read_text() for path in (ROOT / "src").rglob("*.py"))
    read = set(re.findall(r'"((?:INTERLOCK|MCP_?AQL)_[A-Z_]*[A-Z])"', sources))
    assert {"INTERLOCK_PROGRAM", "INTERLOCK_PASSPHRASE", "INTERLOCK_AX", "MCP_AQL_TOOL_PREFIX"} <= read
    page = (ROOT / "docs" / "commands.md").read_text()
    table = page[page.index("| variable of the environment") :].partition("\n\n")[0]
    assert {name for name in read if table.count(f"`{name}`") != 1} == set()
    surface = (ROOT / "spec" / "SURFACE.md").read_text()
    (line,) = [each for each in surface.splitlines() if each.startswith("Environment: ")]
    assert {
        name for name in read if name.startswith("INTERLOCK") and name.removeprefix("INTERLOCK") not in line
    } == set()
