"""Is a person at a terminal shown every tool with its class, and does what they answer count?"""

import json
import os
import pty
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import yaml
from tests.cli.program import Interlock

SERVER = Path(__file__).resolve().parents[2] / "servers" / "driven.py"
TEXT = {"type": "object", "properties": {"text": {"type": "string"}}}
TOOLS = [{"name": name, "inputSchema": TEXT, "outputSchema": {"type": "object"}} for name in ("read_note", "do_note")]

pytestmark = pytest.mark.skipif(shutil.which("bwrap") is None, reason="NO BUBBLEWRAP HERE: interlock add is not shown")


def answered(interlock: Interlock, folder: Path, answers: bytes) -> tuple[int, str]:
    """Exit code and what was shown, of `interlock add` at a terminal on which this is typed."""
    log, tools = folder / "driven.log", folder / "tools.json"
    log.touch()
    tools.write_text(json.dumps(TOOLS))
    command = ("--", sys.executable, str(SERVER), "--log", str(log), "--tools", str(tools))
    return typed(interlock, answers, "add", "--as", "notes-mcp", *command)


def typed(interlock: Interlock, answers: bytes, *words: str) -> tuple[int, str]:
    ours, theirs = pty.openpty()
    shown: list[bytes] = []

    def read() -> None:
        while True:
            try:
                data = os.read(ours, 65536)
            except OSError:
                return
            if not data:
                return
            shown.append(data)

    reader = threading.Thread(target=read)
    reader.start()
    os.write(ours, answers)
    done = subprocess.run(
        [sys.executable, "-m", "interlock", *words],
        cwd=interlock.folder,
        env=interlock.env,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        timeout=60,
        check=False,
    )
    os.close(theirs)
    reader.join(10)
    os.close(ours)
    return done.returncode, b"".join(shown).decode()


def front(file: Path) -> dict[str, object]:
    made: dict[str, object] = yaml.safe_load(file.read_text().split("---")[1])
    return made


def test_accepted_and_changed_classes_are_written(
    interlock: Interlock, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("notes")
    code, shown = answered(interlock, folder, b"do_note=harmless\nno_tool=read_only\ndo_note=reversible\nyes\n")
    assert code == 0, shown
    for words in ("its name suggests it", "is not TOOL=CLASS", "there is no tool no_tool", "you say so"):
        assert words in shown
    tools = interlock.folder / ".drivers" / "notes-mcp" / "tools"
    assert front(tools / "notes.do-note" / "TOOL.md")["approval"] == "policy:gate"
    assert front(tools / "notes.do-note" / "TOOL.md")["risk_level"] == 2
    assert front(tools / "notes.read-note" / "TOOL.md")["approval"] == "auto"


def test_no_writes_nothing(interlock: Interlock, tmp_path_factory: pytest.TempPathFactory) -> None:
    code, shown = answered(interlock, tmp_path_factory.mktemp("notes"), b"no\n")
    assert (code, "nothing was written" in shown) == (3, True)
    assert not (interlock.folder / ".drivers").exists()


def test_a_read_only_class_that_the_name_contradicts_is_asked_about(
    interlock: Interlock, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = [{**TOOLS[0], "name": name, "annotations": {"readOnlyHint": True}} for name in ("delete_note", "addNote")]
    monkeypatch.setattr(f"{__name__}.TOOLS", said)
    folder = tmp_path_factory.mktemp("notes")
    code, shown = answered(interlock, folder, b"delete_note=read_only\nn\naddNote=read_only\ny\nyes\n")
    assert code == 0, shown
    assert "it is said to only read, and its name says 'delete'" in " ".join(shown.split())
    tools = interlock.folder / ".drivers" / "notes-mcp" / "tools"
    assert front(tools / "notes.delete-note" / "TOOL.md")["risk_level"] == 3
    assert front(tools / "notes.add-note" / "TOOL.md")["approval"] == "auto"


def test_an_import_asks_once_about_the_tools_of_all_servers(
    interlock: Interlock, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("notes")
    servers = {}
    for name in ("one", "two"):
        log, tools = folder / f"{name}.log", folder / f"{name}.json"
        log.touch()
        tools.write_text(
            json.dumps([*TOOLS, {**TOOLS[0], "name": f"send_{name}", "annotations": {"readOnlyHint": True}}])
        )
        arguments = [str(SERVER), "--log", str(log), "--tools", str(tools)]
        servers[name] = {"command": sys.executable, "args": arguments}
    file = interlock.folder / ".cursor" / "mcp.json"
    file.parent.mkdir()
    file.write_text(json.dumps({"mcpServers": {**servers, "away": {"command": "/nowhere/at-all"}}}))
    # No hosts for three programs, a start of each; then one table for all.
    answers = b"\n\n\n\n\n\ndo_note=reversible\none.do_note=reversible\nyes\n"
    code, shown = typed(interlock, answers, "import", "--from", "cursor")
    assert code == 0, shown
    assert shown.count("Write all of them?") == 3
    assert "which tools they have is not known yet" not in shown
    assert "there is no tool do_note" in shown  # both servers have one
    drivers = interlock.folder / ".drivers"
    assert front(drivers / "one-mcp/tools/one.do-note/TOOL.md")["risk_level"] == 2
    assert front(drivers / "two-mcp/tools/two.do-note/TOOL.md")["risk_level"] == 3
    assert front(drivers / "two-mcp/tools/two.read-note/TOOL.md")["approval"] == "auto"
    assert front(drivers / "two-mcp/tools/two.send-two/TOOL.md")["risk_level"] == 3  # whatever its server says
    assert (drivers / "away-mcp" / "DRIVER.draft.md").exists()
