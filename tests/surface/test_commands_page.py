"""Does docs/commands.md say what the command line says, and is a difference found?"""

from pathlib import Path

import pytest
from spec import commands_reference

from interlock.surface.cli.app import VERBS


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
