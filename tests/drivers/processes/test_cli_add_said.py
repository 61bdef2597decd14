"""Does `interlock add` ask before it writes, say its steps and why it failed, and open what is to be written?"""

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.cli.program import Inline, Interlock

SERVER = Path(__file__).resolve().parents[2] / "servers" / "driven.py"
TOOL = {"name": "read_note", "inputSchema": {"type": "object"}, "annotations": {"readOnlyHint": True}}

pytestmark = pytest.mark.skipif(shutil.which("bwrap") is None, reason="NO BUBBLEWRAP HERE: interlock add is not shown")


@pytest.fixture
def command(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    folder = tmp_path_factory.mktemp("notes")
    log, tools = folder / "driven.log", folder / "tools.json"
    log.touch()
    tools.write_text(json.dumps([TOOL]))
    return (sys.executable, str(SERVER), "--log", str(log), "--tools", str(tools))


def front(interlock: Interlock) -> Any:
    return yaml.safe_load((interlock.folder / ".drivers/notes-mcp/DRIVER.md").read_text().split("---")[1])


@pytest.mark.parametrize("more", [(), ("--json",)])
def test_with_nobody_to_ask_and_without_yes_nothing_is_started_or_written(
    interlock: Interlock, inline: Inline, command: tuple[str, ...], more: tuple[str, ...]
) -> None:
    done = inline("add", "--as", "notes-mcp", *more, "--", *command)
    assert done.code == 1
    assert "there is no terminal to confirm on, and nothing was done" in done.out + done.err
    assert not (interlock.folder / ".drivers").exists()
    assert Path(command[3]).read_text() == ""


def test_add_refuses_with_the_code_and_the_words_of_drivers_trust(inline: Inline, command: tuple[str, ...]) -> None:
    refused = inline("add", "--as", "notes-mcp", "--json", "--", *command)
    assert inline("add", "--as", "notes-mcp", "--no-trust", "--", *command).code == 0
    trust = inline("drivers", "trust", "notes-mcp", "--json")
    assert (refused.code, refused.json["error"], refused.json["message"]) == (
        trust.code,
        trust.json["error"],
        trust.json["message"],
    )


def test_each_step_is_one_line_on_stderr_without_a_terminal(inline: Inline, command: tuple[str, ...]) -> None:
    done = inline("add", "--as", "notes-mcp", "--yes", "--", *command)
    assert done.code == 0, done.err
    assert done.err.splitlines() == ["starting it, and asking for its tools", "registering it"]


def test_the_folder_of_a_file_that_a_variable_names_and_that_is_not_there_yet_may_be_written(
    interlock: Interlock, inline: Inline, command: tuple[str, ...], tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("kept")
    there = folder / "settings.json"
    there.touch()
    named = ("--env", f"SETTINGS={there}", "--env", f"MEMORY_FILE_PATH={folder / 'mem.jsonl'}")
    done = inline("add", "--as", "notes-mcp", "--yes", *named, "--", *command)
    assert done.code == 0, done.err
    files = front(interlock)["sandbox"]["fs"]
    assert str(folder) in files["write"]
    assert str(folder / "mem.jsonl") not in files.get("read", [])
    assert str(there) in files["read"]


def test_a_folder_is_opened_with_write(
    interlock: Interlock, inline: Inline, command: tuple[str, ...], tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("kept")
    done = inline("add", "--as", "notes-mcp", "--yes", "--write", str(folder), "--", *command)
    assert done.code == 0, done.err
    assert str(folder) in front(interlock)["sandbox"]["fs"]["write"]


@pytest.mark.parametrize("path", ["/", "/etc", "/nowhere/at/all", __file__])
def test_a_missing_or_too_wide_folder_is_not_opened(
    interlock: Interlock, inline: Inline, command: tuple[str, ...], path: str
) -> None:
    done = inline("add", "--as", "notes-mcp", "--yes", "--write", path, "--", *command)
    assert done.code == 2, done.out
    assert not (interlock.folder / ".drivers").exists()


def test_write_is_refused_for_a_server_somewhere_else(
    interlock: Interlock, inline: Inline, tmp_path_factory: pytest.TempPathFactory
) -> None:
    done = inline("add", "http://127.0.0.1:9/mcp", "--yes", "--write", str(tmp_path_factory.mktemp("kept")))
    assert (done.code, "runs here" in done.err) == (2, True)


def test_a_script_that_is_not_there_is_named(interlock: Interlock, inline: Inline) -> None:
    script = interlock.folder / "missing.py"
    done = inline("add", "--as", "notes-mcp", "--yes", "--", sys.executable, str(script))
    assert done.code == 1
    assert f"hint: {script} is not there: check the path" in done.err


def test_a_missing_program_is_reported_as_missing(inline: Inline) -> None:
    done = inline("add", "--as", "notes-mcp", "--yes", "--", "/nowhere/at-all", "x")
    assert done.code == 1
    assert "hint: there is no such program here" in done.err


def test_where_an_approver_has_to_sign_and_no_node_runs_it_is_written_and_says_what_is_next(
    interlock: Interlock, inline: Inline, command: tuple[str, ...]
) -> None:
    anchor = inline("access", "key", "ada", INTERLOCK_PASSPHRASE="correct horse").out
    listen = '[node]\nlisten = "127.0.0.1:0"\noperator_listen = "127.0.0.1:0"\n'
    (interlock.folder / "interlock.toml").write_text(anchor + listen)
    with interlock.start("serve") as running:  # from now on that key signs
        while "Ctrl-C stops the node" not in running.next_line():
            pass
    done = inline("add", "--as", "notes-mcp", "--yes", "--", *command)
    assert (done.code, "error" in done.err) == (0, False), done.err
    said = done.out.splitlines()[-1]
    assert said.startswith("notes is written, and waits for an approver's signature: ")
    assert "interlock serve, then interlock drivers trust notes" in said
    again = inline("add", "--as", "notes-mcp", "--yes", "--json", "--", *command)
    assert (again.code, again.json["trusted"], again.json["state"]) == (0, False, "untrusted")
    refused = inline("drivers", "trust", "notes", "--yes")
    assert (refused.code, "interlock serve" in refused.err) == (1, True)
    with interlock.start("serve") as running:
        while "Ctrl-C stops the node" not in running.next_line():
            pass
        signed = inline("drivers", "trust", "notes", "--yes", INTERLOCK_PASSPHRASE="correct horse")
        assert (signed.code, "notes is trusted" in signed.out) == (0, True), signed.err
