"""Does a configuration whose node has approvers start only that node, until a person accepts another?"""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.cli.program import Finished, Interlock

PASSPHRASE = {"INTERLOCK_PASSPHRASE": "correct horse battery"}
NODE = '[node]\nlisten = "127.0.0.1:0"\noperator_listen = "127.0.0.1:0"\n'
REFUSED = "the configuration belongs to a node that has approvers"


class Project:
    """A user's project whose file names its data folder, with the approver `ada`, before its first start."""

    def __init__(self, interlock: Interlock) -> None:
        self.interlock = interlock
        del interlock.env["INTERLOCK_DATA"]
        self.home = interlock.folder
        self.folder = interlock.folder = self.home / "project"
        self.folder.mkdir()
        self.file = self.folder / "interlock.toml"
        self.anchor = ""
        self.write("own")

    def make_key(self, name: str = "ada") -> str:
        return self.interlock("access", "key", name, **PASSPHRASE).out

    def with_approver(self) -> "Project":
        self.anchor = self.make_key()
        self.write("own")
        self.start()
        return self

    def write(self, data: str | None, more: str = "", mode: str = "gated") -> None:
        place = "" if data is None else f'data = "{self.home / data}"\n'
        self.file.write_text(f'{place}{NODE}{self.anchor}[gate]\nmode = "{mode}"\n{more}')

    def start(self, *flags: str, **env: str) -> dict[str, Any]:
        """Start the node, and return the status that it prints."""
        with self.interlock.start("serve", "--json", *flags, **env) as running:
            shown: dict[str, Any] = json.loads(running.next_line())
            running.interrupt()
        return shown

    def refused(self, *flags: str, **env: str) -> Finished:
        done = self.interlock("serve", *flags, **env)
        assert (done.code, REFUSED in done.err) == (1, True), done.err
        return done

    @property
    def records(self) -> list[Path]:
        return sorted((self.home / ".local" / "share" / "interlock-guarded").glob("*.json"))


@pytest.fixture
def project(interlock: Interlock) -> Project:
    return Project(interlock)


@pytest.mark.req("AX-11.N-11")
@pytest.mark.parametrize("data", ["another", None])
def test_another_data_folder_is_refused_with_the_ways_out(project: Project, data: str | None) -> None:
    project.with_approver().write(data, mode="open")
    refused = project.refused()
    other = project.home / (data or ".local/share/interlock")
    assert f"data: {project.home / 'own'} -> {other}" in refused.err
    assert "interlock serve --accept-configuration" in refused.err
    assert str(project.records[0]) in refused.err
    assert not (other / "run" / "admin.sock").exists()
    problems = [one["problem"] for one in project.interlock("doctor", "--json").json["findings"]]
    assert any(f"{project.home / 'own'} -> {other}" in problem for problem in problems), problems
    project.write("own")
    assert "other data" not in project.interlock("doctor").out
    project.start()


@pytest.mark.req("AX-11.N-11")
def test_a_data_folder_that_lost_its_approvers_is_refused(project: Project) -> None:
    project.with_approver()
    identity = (project.home / "own" / "identity.json").read_bytes()
    shutil.rmtree(project.home / "own")
    (project.home / "own").mkdir(mode=0o700)
    (project.home / "own" / "identity.json").write_bytes(identity)
    assert "an approver -> none" in project.refused().err


@pytest.mark.req("AX-11.N-11")
def test_another_kind_of_store_is_refused_also_if_the_command_line_names_the_data_folder(project: Project) -> None:
    project.with_approver()
    flags = ("--data", str(project.home / "own"))
    (record,) = project.records
    record.unlink()  # what the data folder itself holds is enough
    shutil.rmtree(record.parent)
    state = project.home / "own" / "store.db"
    assert state.is_file()
    project.write("own", '[store]\nbackend = "nats"\nnats_url = ["nats://127.0.0.1:9"]\n')
    done = project.interlock("serve", *flags)
    assert done.code == 1
    assert "store.backend: sqlite -> nats" in done.err


@pytest.mark.req("AX-11.N-11")
def test_links_and_files_that_are_gone_are_no_way_around(project: Project, tmp_path: Path) -> None:
    real = project.folder / "real.toml"
    project.file.rename(real)
    project.file.symlink_to(real)
    project.file = real
    project.with_approver()
    project.write("another")
    project.refused()
    project.refused("--config", str(real))  # the file that the link led to
    link = project.folder / "interlock.toml"
    link.unlink()
    project.refused()  # without a file, the usual data folder
    project.file = link
    project.write("another")
    project.refused()  # another file in its place


@pytest.mark.req("AX-11.N-11")
def test_the_key_of_an_approver_lets_another_node_start_and_no_other_key_does(project: Project) -> None:
    project.with_approver().write("another")
    accept = ("--accept-configuration",)
    assert "cannot be opened" in project.interlock("serve", *accept, INTERLOCK_PASSPHRASE="wrong horse battery").err
    keys = project.home / ".config" / "interlock" / "keys"
    kept = {path: path.read_bytes() for path in keys.iterdir()}
    for path in kept:
        path.unlink()
    eve = project.make_key("eve")
    project.anchor, ada = eve, project.anchor
    project.write("another")
    refused = project.interlock("serve", *accept, **PASSPHRASE)
    assert (refused.code, "is enrolled as an approver" in refused.err) == (1, True)
    assert str(project.records[0]) in refused.err
    for path, text in kept.items():
        path.write_bytes(text)
        path.chmod(0o600)
    project.anchor = ada
    project.write("another")
    project.start(*accept, **PASSPHRASE)
    project.start()
    records = [json.loads(line) for line in project.interlock("audit", "export").lines]
    (accepted,) = [each for each in records if each.get("method") == "config/accept"]
    assert (accepted["who"], accepted["outcome"]) == ("ada", "in effect")
    assert any(line.startswith("data: ") for line in accepted["lines"])
    project.write("own")
    project.refused()  # now the file belongs to the other node


@pytest.mark.req("AX-11.N-11")
def test_the_key_for_one_record_does_not_remove_the_record_of_another_node(project: Project) -> None:
    project.with_approver()
    ada, project.anchor = project.anchor, project.make_key("eve")
    flags = ("--data", str(project.home / "eves"))
    project.write(None)
    project.start(*flags)  # eve's node, with a record in its data folder
    project.anchor = ada
    # Both records differ from what would start: the one in the folder by the store, and the one of the file.
    project.write("eves", '[store]\nbackend = "nats"\nnats_url = ["nats://127.0.0.1:9"]\n')
    keys = project.home / ".config" / "interlock" / "keys"
    for path in keys.glob("ada*"):
        path.unlink()
    refused = project.interlock("serve", "--accept-configuration", **PASSPHRASE)
    assert (refused.code, len(project.records)) == (1, 1), refused.err
    assert "is enrolled as an approver" in refused.err
    project.write("eves")
    project.refused()


@pytest.mark.req("AX-11.N-11")
def test_a_store_with_other_approvers_is_refused_also_with_the_identity_of_the_node(project: Project) -> None:
    project.with_approver()
    ada, project.anchor = project.anchor, project.make_key("eve")
    flags = ("--data", str(project.home / "eves"))
    (project.home / "eves").mkdir(mode=0o700)
    shutil.copy(project.home / "own" / "identity.json", project.home / "eves")
    project.write(None)
    project.start(*flags)
    project.anchor = f"{ada}{project.anchor}"
    project.write("eves", mode="open")
    assert "an approver -> other approvers" in project.refused().err


@pytest.mark.req("AX-11.N-11")
def test_init_enrols_no_one_in_the_place_of_another_node(project: Project) -> None:
    project.with_approver().write("another")
    refused = project.interlock("init", **PASSPHRASE)
    assert (refused.code, REFUSED in refused.err) == (1, True), refused.err
    project.refused()
    project.write("own")
    project.start()


@pytest.mark.req("AX-11.N-11")
def test_removing_the_record_lets_another_node_start(project: Project) -> None:
    project.with_approver().write("another")
    project.refused()
    for record in project.records:
        record.unlink()
    project.start()


@pytest.mark.req("AX-11.N-11")
def test_a_record_that_cannot_be_read_opens_no_way(project: Project) -> None:
    project.with_approver()
    for damaged in (b"{", b'{"node":"\xff"}'):
        project.records[0].write_bytes(damaged)
        assert "cannot be read" in project.refused().err


@pytest.mark.req("AX-11.N-11")
def test_what_is_honest_starts_as_before(project: Project) -> None:
    project.with_approver()
    (project.home / "own").rename(project.home / "moved")
    project.write("moved")
    project.start()  # moved
    shutil.copytree(project.home / "moved", project.home / "backup")
    shutil.rmtree(project.home / "moved")
    shutil.copytree(project.home / "backup", project.home / "moved")
    project.start()  # restored
    project.start("--data", str(project.home / "by-flag"))
    project.start(INTERLOCK_DATA=str(project.home / "by-variable"))
    project.start("--data", str(project.home / "moved"))
    assert len(project.records) == 1
    copy = project.home / "copy"
    shutil.copytree(project.folder, copy)
    project.file = copy / "interlock.toml"
    project.write("of-the-copy")
    project.interlock.folder = copy
    project.start()
    project.interlock.folder = project.folder
    project.file = project.folder / "interlock.toml"
    project.write("another")
    project.refused()
    project.start(HOME=str(project.home / "a-fresh-home"))


@pytest.mark.req("AX-11.N-11")
def test_without_an_approver_nothing_is_recorded(project: Project) -> None:
    project.start()
    assert project.records == []
    project.write("another")
    project.start()


@pytest.mark.req("AX-11.N-12")
def test_edits_between_init_and_the_first_start_are_held_back(project: Project) -> None:
    project.file.unlink()
    place = f'data = "{project.home / "own"}"\n'
    project.file.write_text(place + NODE)
    made = project.interlock("init", "--key", "ada", "--json", **PASSPHRASE)
    assert made.json["enrolled"] == ["ada"], made.err
    assert len(project.records) == 1
    text = project.file.read_text()
    project.file.write_text(f'{text}\n[gate]\nmode = "open"\n[servers.new]\ncommand = "true"\n')
    shown = project.start()
    assert [line for line in shown["loosened"] if "gate.mode" in line]
    assert any(link["segment"] == "new" for link in shown["links"])
    project.file.write_text(text.replace('/own"', '/another"'))
    project.refused()
