"""Does `check` say which servers are in a sandbox, and whether this machine has one?"""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cli.program import Inline, Interlock
from tests.servers.caging import needs_sandbox

from interlock.process.sandbox.mounts import bubblewrap

TEXT = """
[servers.open]
command = "true"

[servers.caged]
command = "true"
egress = ["api.example.com"]

[servers.filed]
command = "true"
files = ["notes", "gone"]

[servers.remote]
url = "https://mcp.example.com/mcp"
"""


@pytest.fixture
def config(interlock: Interlock) -> Path:
    folder = interlock.folder / "project"
    folder.mkdir()
    (folder / "notes").mkdir()
    (folder / "interlock.toml").write_text(TEXT)
    return folder / "interlock.toml"


@needs_sandbox
def test_check_says_who_is_in_a_sandbox_and_which_files_are_missing(inline: Inline, config: Path) -> None:
    done = inline("check", str(config))
    assert done.code == 0
    assert "in a sandbox: caged, filed; without a sandbox: open (egress or files puts a server into one)" in done.out
    told = inline("check", str(config), "--json").json
    assert told["sandboxed"] == {"open": False, "caged": True, "filed": True}
    (warning,) = told["warnings"]
    assert (warning["key"], warning["message"]) == ("servers.filed.files[1]", f"there is no {config.parent / 'gone'}")


@needs_sandbox
def test_check_says_that_a_server_could_write_the_program_of_another(inline: Inline, config: Path) -> None:
    script = config.parent / "server.py"
    script.write_text("")
    config.write_text(
        '[servers.filed]\ncommand = "true"\nfiles = ["."]\n[servers.other]\ncommand = "python3"\nargs = ["server.py"]\n'
    )
    (warning,) = inline("check", str(config), "--json").json["warnings"]
    assert (warning["key"], warning["message"]) == (
        "servers.filed.files",
        f"it could write {script}, a program of other, and is not started",
    )


@pytest.fixture
def no_bubblewrap(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    find = shutil.which
    monkeypatch.setattr(shutil, "which", lambda name, **options: None if name == "bwrap" else find(name, **options))
    bubblewrap.cache_clear()
    yield
    bubblewrap.cache_clear()


@pytest.mark.usefixtures("no_bubblewrap")
def test_a_machine_without_bubblewrap_is_named_where_a_server_needs_it(inline: Inline, config: Path) -> None:
    warnings = inline("check", str(config), "--json").json["warnings"]
    said = [one["message"] for one in warnings if one["message"].startswith("sandbox_unavailable: bubblewrap is not")]
    assert len(said) == 2


@pytest.mark.req("AIP-security-1")
@pytest.mark.usefixtures("no_bubblewrap")
def test_on_a_machine_without_sandboxes_a_server_that_needs_a_sandbox_is_not_started(
    inline: Inline, config: Path, tmp_path: Path
) -> None:
    trace = tmp_path / "started"
    config.write_text(f"[servers.caged]\ncommand = ['touch', '{trace}']\negress = []\n")
    (link,) = inline("check", str(config), "--upstream", "--json").json["links"]
    assert link["state"] == "failed"
    assert link["reason"].startswith("sandbox_unavailable: bubblewrap is not installed")
    assert not trace.exists()
