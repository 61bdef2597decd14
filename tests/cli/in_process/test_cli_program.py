"""Can a command that is named be pasted where the program was started?"""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.text import Text

from interlock.approvals.api import Approver
from interlock.cli.terminal import text
from interlock.cli.terminal.output import Output
from interlock.cli.terminal.text import as_typed, command_line, drawn_as_typed
from interlock.node.cli.tree import approver_step


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in (text.VARIABLE, "INTERLOCK_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    text.program.cache_clear()
    yield
    text.program.cache_clear()


def test_a_program_on_the_path_is_named_as_it_is() -> None:
    assert as_typed("interlock init makes a key") == "interlock init makes a key"
    assert command_line("status", "--watch", config=None, data=None) == "interlock status --watch"
    assert command_line("open", config="my node.toml", data="d") == "interlock open --config 'my node.toml' --data d"


def test_a_script_that_starts_it_is_named_instead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(text.VARIABLE, "./interlock")
    monkeypatch.setenv("INTERLOCK_CONFIG", "./.run/tree/interlock.toml")
    said = "run interlock init, then interlock approve ID; see interlock.toml, /srv/interlock data, an Interlock node"
    assert as_typed(said) == said.replace(" interlock init", " ./interlock init").replace(
        " interlock approve", " ./interlock approve"
    )
    drawn = Text.assemble(("wait: ", "dim"), ("interlock approvals", "bold"), " shows it")
    assert drawn_as_typed(drawn).plain == "wait: ./interlock approvals shows it"
    assert command_line("open", config=None, data=None) == "./interlock open"  # which has its configuration


def test_a_command_that_became_longer_is_not_cut(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(text.VARIABLE, "./interlock")
    monkeypatch.setenv("COLUMNS", "40")
    Output(as_json=False).draw(Text("so that it can be: interlock approvals x"), Text("y" * 50))
    first, second = capsys.readouterr().out.splitlines()
    assert first == "so that it can be: ./interlock approvals x"
    assert second == "y" * 39 + "…"


def test_a_program_that_no_shell_would_find_is_named_by_its_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = tmp_path / ".venv" / "bin" / "interlock"
    started.parent.mkdir(parents=True)
    started.write_text("#!/bin/sh\n")
    started.chmod(0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [str(started), "serve"])
    monkeypatch.setenv("PATH", "/usr/bin")
    monkeypatch.setenv("INTERLOCK_CONFIG", "team.toml")
    assert command_line("status", config=None, data=None) == ".venv/bin/interlock status --config team.toml"
    text.program.cache_clear()
    monkeypatch.setenv("PATH", str(started.parent))
    assert as_typed("interlock init") == "interlock init"


def approver(name: str, approval_id: str | None = None, *, approves: tuple[str, ...] = ()) -> Approver:
    return Approver(
        name=name,
        kind="key",
        approves=approves,
        wants=(),
        enrolled_at=None,
        how=None,
        by=None,
        approval_id=approval_id,
    )


def test_the_suggested_step_is_the_step_missing_for_an_approver() -> None:
    assert approver_step(()) == ("interlock init", "makes a key")
    waiting = approver("ada", "0fce8822-1111")
    code = "enrols ada, with the setup code on the terminal of the node"
    assert approver_step((waiting,)) == ("interlock approve 0fce8822 --code CODE", code)
    known = approver("bob", approves=("files.*",))
    assert approver_step((known, waiting)) == ("interlock approve 0fce8822", "enrols ada")
