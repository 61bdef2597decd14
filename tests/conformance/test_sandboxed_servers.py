"""Do the reference servers work in a sandbox without a network, and hold to what it says?"""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.conformance.toolbox import ToolMissing, npm_server, pypi_server
from tests.servers.caging import is_installed, needs_sandbox
from tests.support.node_process import RunningNode, Wire, running_node

pytestmark = [needs_sandbox, pytest.mark.timeout(600)]

NOT_SHOWN = "/var/opt/interlock-test/t.db"
SEGMENTS = ("files", "memory", "everything", "time", "git", "sqlite", "shut")


class Scene:
    def __init__(self, node: RunningNode, folder: Path) -> None:
        self.node = node
        self.folder = folder

    def call(self, name: str, **arguments: Any) -> str:
        with Wire(self.node) as wire:
            message = wire.modern("tools/call", {"name": name, "arguments": arguments}).message
        return json.dumps(message.get("result", message))


def servers(folder: Path) -> dict[str, dict[str, Any]]:
    shared, repository, data = folder / "shared", folder / "repository", folder / "data-of-it"
    for each in (shared, repository, data):
        each.mkdir()
    (shared / "note.txt").write_text("a note")
    (folder / "private.txt").write_text("private")
    if is_installed("git"):
        subprocess.run(["git", "init", "--quiet", str(repository)], check=True)
    database = ("--db-path", str(data / "t.db"))
    return {
        "files": {"command": npm_server("filesystem", str(shared)), "egress": []},
        "memory": {
            "command": npm_server("memory"),
            "env": {"MEMORY_FILE_PATH": str(data / "memory.jsonl")},
            "files": [str(data)],
        },
        "everything": {"command": npm_server("everything"), "egress": [], "env": {"DECLARED": "yes"}},
        "time": {"command": pypi_server("time", "--local-timezone", "UTC"), "egress": []},
        "git": {"command": pypi_server("git", "--repository", str(repository)), "egress": []},
        "sqlite": {"command": pypi_server("sqlite", *database), "files": [str(data)]},
        "shut": {"command": pypi_server("sqlite", "--db-path", NOT_SHOWN), "files": []},
    }


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    folder = tmp_path_factory.mktemp("sandboxed")
    try:
        tables = servers(folder)
    except (ToolMissing, subprocess.SubprocessError) as missing:
        pytest.skip(f"THE REFERENCE SERVERS CANNOT BE HAD: {missing}")
    with running_node(folder, tables, env={"OPENAI_API_KEY": "sk-host"}) as node:
        for segment in SEGMENTS[:-1]:
            node.wait_link(segment, {"state": "ready", "sandbox": True}, 60)
        yield Scene(node, folder)


@pytest.mark.req("AIP-security-2")
def test_filesystem_reads_and_writes_the_folder_among_its_arguments(scene: Scene) -> None:
    note, made = scene.folder / "shared" / "note.txt", scene.folder / "shared" / "made.txt"
    assert "a note" in scene.call("files.read_text_file", path=str(note))
    scene.call("files.write_file", path=str(made), content="written")
    assert made.read_text() == "written"


@pytest.mark.req("AIP-security-2")
def test_memory_remembers(scene: Scene) -> None:
    entity = {"name": "Ada", "entityType": "person", "observations": ["wrote programs"]}
    scene.call("memory.create_entities", entities=[entity])
    assert "wrote programs" in scene.call("memory.read_graph")


@pytest.mark.req("AIP-security-2")
def test_time_tells_the_time(scene: Scene) -> None:
    assert "Asia/Tokyo" in scene.call("time.get_current_time", timezone="Asia/Tokyo")


@pytest.mark.req("AIP-security-2")
@pytest.mark.skipif(not is_installed("git"), reason="git is not installed: its server is not shown")
def test_git_sees_the_repository_among_its_arguments(scene: Scene) -> None:
    assert "branch" in scene.call("git.git_status", repo_path=str(scene.folder / "repository"))


@pytest.mark.req("AIP-security-2", "AIP-security-5")
def test_sqlite_works_on_the_folder_it_may_write(scene: Scene) -> None:
    scene.call("sqlite.create_table", query="create table t (a text)")
    scene.call("sqlite.write_query", query="insert into t values ('kept')")
    assert "kept" in scene.call("sqlite.read_query", query="select a from t")
    assert (scene.folder / "data-of-it" / "t.db").exists()


@pytest.mark.req("AIP-security-5")
def test_sqlite_without_its_folder_fails_and_the_path_is_named(scene: Scene) -> None:
    link = scene.node.wait_link("shut", {"state": "failed"})
    assert f"its sandbox does not show {NOT_SHOWN}" in link["reason"]
    assert not Path(NOT_SHOWN).exists()


@pytest.mark.req("AIP-security-14")
def test_everything_sees_the_environment_that_is_declared(scene: Scene) -> None:
    said = json.loads(scene.call("everything.get-env"))["content"][0]["text"]
    assert set(json.loads(said)) - {"TZ"} == {"PATH", "HOME", "TMPDIR", "LANG", "PWD", "DECLARED"}
    assert "sk-host" not in said
