"""Which programs of a channel may be given the verification code of an agent."""

import json
import os
import shutil
from pathlib import Path

import pytest

from interlock.approvals import notifier
from interlock.approvals.notifier import ChannelFailed, CommandChannel, DesktopChannel, Notice, find_code_program

NOTICE = Notice(
    event="approval_waiting", id="3f9c0a1b", kind="verify", tool="agent.coder", name="coder", requested_by="client:a",
    created_at="", expires_at=None, url="", node="office", code="AAAA-BBBB",
)  # fmt: skip
TEE = shutil.which("tee") or "/usr/bin/tee"


def script(path: Path, received: Path) -> str:
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\ncat > {received}\n")
    path.chmod(0o755)
    return str(path)


def of_user(path: Path, received: Path) -> str:
    """A program that does not belong to root, whoever runs the tests."""
    program = script(path, received)
    if os.getuid() == 0:
        os.chown(program, 1000, 1000)
    return program


@pytest.mark.req("AX-11.N-4")
async def test_a_program_of_the_user_is_told_that_something_waits_but_no_code(tmp_path: Path) -> None:
    received = tmp_path / "received"
    command = of_user(tmp_path / "own" / "tell", received)
    await CommandChannel([command]).send(NOTICE)
    notice = json.loads(received.read_text())
    assert notice["id"] == NOTICE.id
    assert "code" not in notice


@pytest.mark.req("AX-11.N-4")
def test_a_script_behind_an_interpreter_and_a_name_in_a_folder_of_the_user_count_as_the_users(tmp_path: Path) -> None:
    own = of_user(tmp_path / "own" / "tell", tmp_path / "received")
    assert find_code_program(["/bin/sh", own]) is None
    assert find_code_program(["own/tell"]) is None
    link = tmp_path / "link"
    link.symlink_to(own)
    assert find_code_program([str(link)]) is None
    assert find_code_program(["/bin/sh", "-c", "cat"]) == "/bin/sh"


@pytest.mark.req("AX-11.N-4")
def test_a_folder_that_others_may_write_spoils_what_is_in_it(tmp_path: Path) -> None:
    program = script(tmp_path / "open" / "tell", tmp_path / "received")
    (tmp_path / "open").chmod(0o777)
    assert find_code_program([program]) is None


@pytest.mark.req("AX-11.N-4")
async def test_path_does_not_choose_the_program_that_shows_a_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    received = tmp_path / "received"
    script(tmp_path / "bin" / "zenity", received)
    script(tmp_path / "bin" / "tee", received)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    monkeypatch.setattr(notifier, "PROGRAM_FOLDERS", ("/nowhere",))
    with pytest.raises(ChannelFailed, match="belong to root"):
        await DesktopChannel("linux").send(NOTICE)
    assert not received.exists()
    monkeypatch.undo()
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    written = tmp_path / "written"
    await CommandChannel(["tee", str(written)]).send(NOTICE)
    assert not received.exists()
    assert json.loads(written.read_text())["code"] == NOTICE.code
