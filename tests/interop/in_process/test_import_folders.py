"""Does an import write what it should, once, and leave the person's edits and the source alone?"""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from interlock.config.plan import Spawn
from interlock.drivers.add import NotAdded, ServerAdder
from interlock.drivers.install.installation import Installed, Locked
from interlock.drivers.kinds import kind_of
from interlock.drivers.protocol.files.driver import read_driver
from interlock.drivers.protocol.files.frontmatter import frontmatter_text
from interlock.drivers.workspace.folder import WorkspaceUnusable
from interlock.interop.importer import ImportReport, ImportRequest, carry_out, collect_sources, connect, plan
from interlock.interop.protocol.clients import BY_NAME
from interlock.interop.protocol.drafts import PENDING, ImportChoices
from interlock.interop.source_files import ClientMachine, read_source

MARKER = "m4rk3rS3cr3tV4lu3x0123456789"


class Desk:
    """A person's machine: files of clients, a workspace, a store."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.workspace = folder / "workspace"
        self.workspace.mkdir()
        self.store: dict[str, str] = {}

    def write(self, servers: dict[str, Any], client: str = "cursor", **more: Any) -> Path:
        path = self.folder / f"{client}.json"
        path.write_text(json.dumps({BY_NAME[client].root[0]: servers, **more}))
        return path

    def run(self, *clients: str, dry: bool = False, **asked: Any) -> ImportReport:
        scope: Any = asked.pop("scope", "global")
        files = [read_source(BY_NAME[each], self.folder / f"{each}.json", scope) for each in clients or ("cursor",)]
        machine = ClientMachine(system="linux", home=self.folder, project=self.workspace, env={})
        importing = ImportRequest(machine=machine, workspace=self.workspace, **asked)

        def keep(slug: str, value: str) -> Any:
            before = self.store.setdefault(slug, value)
            return "new" if slug not in known else "same" if before == value else "differs"

        known = set(self.store)
        return carry_out(plan(collect_sources(files, machine), files, importing), importing, None if dry else keep)

    def files(self) -> dict[str, str]:
        return {
            str(path.relative_to(self.workspace)): path.read_text()
            for path in sorted(self.workspace.rglob("*"))
            if path.is_file()
        }

    def draft(self, identifier: str) -> Path:
        return self.workspace / ".drivers" / identifier / "DRIVER.draft.md"


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


FILES = {"command": "npx", "args": ["-y", "fs", "/srv/data"], "env": {"API_KEY": MARKER}}


@pytest.mark.req("AIP-import-6")
def test_a_server_becomes_a_draft_its_secret_goes_to_the_store(desk: Desk) -> None:
    desk.write({"My Files": FILES})
    (driver,) = desk.run().drivers
    assert (driver.id, driver.status, driver.draft) == ("my-files-mcp", "new", True)
    assert desk.store == {"my-files-mcp/api-key": MARKER}
    assert set(desk.files()) == {
        f".drivers/my-files-mcp/{name}" for name in ("DRIVER.draft.md", "SECRETS.md", "import.json")
    }
    assert MARKER not in str(desk.files())
    assert [(each.place, each.slug, each.state) for each in driver.secrets] == [
        ("env.API_KEY", "my-files-mcp/api-key", "kept")
    ]


@pytest.mark.req("AIP-import-6")
def test_the_record_of_an_import_contains_no_secret_value(desk: Desk) -> None:
    desk.write({"It": {"command": "x", "args": ["hunter-arg"], "env": {"LEVEL": "hunter-env", "MY_TOKEN": "hunter"}}})
    desk.run(wishes=ImportChoices(not_secret=frozenset({"MY_TOKEN"})))
    files = desk.files()
    assert "hunter-env" in files[".drivers/it-mcp/DRIVER.draft.md"]
    assert "hunter" not in files[".drivers/it-mcp/import.json"]


def test_a_record_that_an_earlier_import_wrote_with_values_is_understood_and_loses_them(desk: Desk) -> None:
    desk.write({"It": {"command": "x", "env": {"LEVEL": "hunter", "OTHER": "a"}}})
    desk.run()
    record = desk.workspace / ".drivers/it-mcp/import.json"
    old = json.loads(record.read_text())
    old["base"]["server"]["env"] = {"LEVEL": "hunter", "OTHER": "a"}
    record.write_text(json.dumps(old))
    assert [each.status for each in desk.run().drivers] == ["unchanged"]
    desk.write({"It": {"command": "x", "env": {"LEVEL": "hunter", "OTHER": "b"}}})
    (driver,) = desk.run().drivers
    assert (driver.status, driver.changed, driver.conflicts) == ("updated", ("/server/env/OTHER",), ())
    assert "hunter" not in record.read_text()


def test_the_report_names_every_file_that_still_holds_a_value(desk: Desk) -> None:
    (desk.workspace / ".env").write_text("API_KEY=abc\n")
    desk.write({"a": FILES, "plain": {"command": "y"}})
    desk.write({"a": FILES, "b": {"command": "x", "envFile": ".env"}}, client="vscode")
    told = {each.id: each.left_in for each in desk.run("cursor", "vscode").drivers}
    cursor, vscode = str(desk.folder / "cursor.json"), str(desk.folder / "vscode.json")
    assert told == {"a-mcp": (cursor, vscode), "plain-mcp": (), "b-mcp": (vscode, str(desk.workspace / ".env"))}


@pytest.mark.req("AIP-import-13")
def test_a_dry_run_tells_files_and_slugs_and_writes_nothing(desk: Desk) -> None:
    desk.write({"My Files": FILES})
    (driver,) = desk.run(dry=True).drivers
    assert driver.files == tuple(
        f".drivers/my-files-mcp/{name}" for name in ("SECRETS.md", "import.json", "DRIVER.draft.md")
    )
    assert [each.slug for each in driver.secrets] == ["my-files-mcp/api-key"]
    assert (desk.files(), desk.store) == ({}, {})


@pytest.mark.req("AIP-import-13")
def test_the_second_time_nothing_is_written_and_the_source_is_as_it_was(desk: Desk) -> None:
    path = desk.write({"My Files": FILES, "far": {"url": "https://a.example/mcp"}})
    before = path.read_bytes()
    desk.run()
    written = {path: path.stat().st_mtime_ns for path in desk.workspace.rglob("*")}
    report = desk.run()
    assert [(each.status, each.files) for each in report.drivers] == [("unchanged", ()), ("unchanged", ())]
    assert [each.state for each in report.drivers[0].secrets] == ["same"]
    assert {path: path.stat().st_mtime_ns for path in desk.workspace.rglob("*")} == written
    assert path.read_bytes() == before


@pytest.mark.req("AIP-import-13")
def test_a_changed_source_updates_its_fields_and_keeps_the_persons_edits(desk: Desk) -> None:
    desk.write({"fs": {"command": "npx", "args": ["fs@1.0.0", "/srv/a"], "cwd": "/srv/x"}})
    desk.run()
    draft = desk.draft("fs-mcp")
    text = (
        draft.read_text()
        .replace("description: The MCP server fs.", "description: Mine.  # my words")
        .replace("cwd: /srv/x", "cwd: /srv/mine")
    )
    draft.write_text(text + "\nMy own notes.\n")
    desk.write({"fs": {"command": "npx", "args": ["fs@1.0.1", "/srv/b"], "cwd": "/srv/y"}})
    (driver,) = desk.run().drivers
    assert driver.status == "updated"
    assert set(driver.changed) == {"/server/package", "/server/args", "/sandbox/fs/write"}
    assert driver.conflicts == ("/server/cwd",)
    now = draft.read_text()
    assert "# my words" in now
    assert "My own notes." in now
    assert "fs@1.0.1" in now
    assert "cwd: /srv/mine" in now
    assert "/srv/b" in now
    assert "/srv/a" not in now
    assert '"1.0.1"' in now or "version: 1.0.1" in now
    again = desk.run().drivers[0]
    assert (again.status, again.conflicts) == ("unchanged", ("/server/cwd",))


@pytest.mark.req("AIP-import-13")
def test_a_variable_added_in_the_source_is_added_with_its_secret(desk: Desk) -> None:
    desk.write({"fs": {"command": "x", "env": {"API_KEY": MARKER}}})
    desk.run()
    desk.write({"fs": {"command": "x", "env": {"API_KEY": MARKER, "OTHER_KEY": "hush-hush"}}})
    (driver,) = desk.run().drivers
    assert driver.changed == ("/server/env/OTHER_KEY",)
    inventory = desk.files()[".drivers/fs-mcp/SECRETS.md"]
    assert "fs-mcp/api-key" in inventory
    assert "fs-mcp/other-key" in inventory
    assert desk.store == {"fs-mcp/api-key": MARKER, "fs-mcp/other-key": "hush-hush"}


def test_another_server_behind_the_name_is_a_new_major(desk: Desk) -> None:
    desk.write({"fs": {"command": "npx", "args": ["one"]}})
    desk.run()
    desk.write({"fs": {"command": "npx", "args": ["two"]}})
    assert desk.run().drivers[0].status == "updated"
    assert "2.0.0" in desk.draft("fs-mcp").read_text()


def test_a_secret_that_the_person_changed_stays(desk: Desk) -> None:
    desk.write({"fs": FILES})
    desk.run()
    desk.store["fs-mcp/api-key"] = "rotated"
    assert [each.state for each in desk.run().drivers[0].secrets] == ["differs"]
    assert desk.store["fs-mcp/api-key"] == "rotated"


@pytest.mark.req("AIP-import-13")
def test_one_server_in_two_clients_is_one_driver(desk: Desk) -> None:
    desk.write({"fs": FILES})
    desk.write({"fs": FILES}, "windsurf")
    report = desk.run("cursor", "windsurf")
    assert [(each.id, each.sources) for each in report.drivers] == [("fs-mcp", ("Cursor", "Windsurf"))]
    assert [each.status for each in desk.run("windsurf").drivers] == ["unchanged"]


@pytest.mark.req("AIP-import-13")
def test_two_servers_of_one_name_are_two_drivers_each_time(desk: Desk) -> None:
    desk.write({"fs": FILES})
    desk.write({"fs": {"command": "other", "env": {"API_KEY": "hush-hush"}}}, "windsurf")
    report = desk.run("cursor", "windsurf")
    assert [each.id for each in report.drivers] == ["fs-mcp", "fs-2-mcp"]
    assert desk.store == {"fs-mcp/api-key": MARKER, "fs-2-mcp/api-key": "hush-hush"}
    before = desk.files()
    assert [(each.id, each.status) for each in desk.run("windsurf", "cursor").drivers] == [
        ("fs-2-mcp", "unchanged"),
        ("fs-mcp", "unchanged"),
    ]
    assert desk.files() == before


def test_files_of_a_project_are_named_from_where_they_are(desk: Desk) -> None:
    (desk.workspace / "bin").mkdir()
    (desk.workspace / "bin/server.js").touch()
    (desk.workspace / "run").touch()
    raw = {"command": "node", "args": ["bin/server.js", "other.js", "--in=bin", "@scope/bin"]}
    desk.write({"a": raw, "b": {"command": "./run"}})
    report = desk.run(dry=True, scope="project")
    script = str(desk.workspace / "bin/server.js")
    assert [each.command for each in report.drivers] == [
        ("node", script, "other.js", "--in=bin", "@scope/bin"),
        (str(desk.workspace / "run"),),
    ]
    assert desk.run(dry=True).drivers[0].command[1] == "bin/server.js"
    desk.write({"a": {**raw, "cwd": str(desk.workspace)}})
    assert desk.run(dry=True).drivers[0].command[1] == script


def test_a_folder_that_a_person_made_is_not_written_to(desk: Desk) -> None:
    own = desk.workspace / ".drivers" / "fs-mcp" / "DRIVER.md"
    own.parent.mkdir(parents=True)
    own.write_text("---\nid: fs-mcp\n---\n")
    desk.write({"fs": {"command": "x"}})
    assert [each.id for each in desk.run().drivers] == ["fs-2-mcp"]
    assert own.read_text() == "---\nid: fs-mcp\n---\n"


@pytest.mark.req("AIP-import-2")
def test_disabled_entries_are_skipped_unless_all_are_requested(desk: Desk) -> None:
    desk.write({"a": {"command": "x", "disabled": True}, "b": {"command": "y", "bundled": True}, "c": {"command": "z"}})
    report = desk.run(dry=True)
    assert [each.id for each in report.drivers] == ["c-mcp"]
    assert [(each.name, each.code) for each in report.skipped] == [("a", "disabled"), ("b", "disabled")]
    assert len(desk.run(dry=True, wishes=ImportChoices(everything=True)).drivers) == 3
    assert [each.id for each in desk.run(dry=True, wishes=ImportChoices(only=frozenset({"c"}))).drivers] == ["c-mcp"]


@pytest.mark.req("AIP-export-1")
@pytest.mark.parametrize(
    "raw",
    [
        {"command": "interlock", "args": ["serve", "--stdio"]},
        {"command": "/srv/bin/interlock", "args": ["serve", "--stdio", "--config", "x"]},
        {"command": "python3", "args": ["-m", "interlock", "serve", "--stdio"]},
        {"command": "uvx", "args": ["interlock", "serve", "--stdio"]},
        {"url": "http://127.0.0.1:7411/mcp"},
        {"url": "http://localhost:7411/mcp/only/x"},
        {"command": "npx", "args": ["mcp-remote", "http://127.0.0.1:7411/mcp"]},
    ],
)
def test_interlock_itself_is_not_imported(desk: Desk, raw: dict[str, Any]) -> None:
    desk.write({"interlock": raw, "other": {"url": "http://127.0.0.1:9/mcp"}})
    report = desk.run(dry=True, own_addresses=["http://127.0.0.1:7411"])
    assert [(each.name, each.code) for each in report.skipped] == [("interlock", "interlock_itself")]
    assert [each.id for each in report.drivers] == ["other-mcp"]


def test_nothing_is_written_outside_of_the_workspace(desk: Desk, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (desk.workspace / ".drivers").symlink_to(outside)
    desk.write({"fs": {"command": "x"}})
    with pytest.raises(WorkspaceUnusable, match="leads out of the workspace"):
        desk.run()
    assert list(outside.iterdir()) == []


async def test_each_start_is_announced_first_and_a_declined_start_is_skipped(desk: Desk) -> None:
    desk.write(
        {
            "yes": {"command": "npx", "args": ["a"]},
            "no": {"command": "npx", "args": ["b"]},
            "away": {"url": "https://a.example"},
        }
    )
    report = desk.run()
    told: list[tuple[str, ...]] = []
    asked: list[str] = []

    def agreed(driver: Any) -> bool:
        told.append(driver.command)
        return bool(driver.id != "no-mcp")

    decided: list[dict[str, Any]] = []

    def decide(proposed: Any) -> Any:
        assert asked == ["yes-mcp", "away-mcp"]  # every server was tried before
        decided.append(dict(proposed))
        return {id: (*proposals, *proposals) for id, proposals in proposed.items()}

    class Adder:
        """Servers that come up, but for one that is away."""

        plan = SimpleNamespace(workspace=desk.workspace)

        async def __aenter__(self) -> None: ...

        async def __aexit__(self, *error: object) -> None: ...

        def read_draft(self, folder: Path) -> Path:
            return folder

        async def try_out(self, folder: Path) -> Any:
            assert len(told) > len(asked)
            asked.append(folder.name)
            if folder.name == "away-mcp":
                raise NotAdded("unavailable", "it does not answer")
            return SimpleNamespace(folder=folder, proposals=("proposal",))

        async def write(self, tried: Any, proposals: Any) -> Any:
            assert proposals == ("proposal", "proposal")
            return SimpleNamespace(key=f"{tried.folder.name}@1", files=("DRIVER.md",), reviews=())

    done = await connect(report.drivers, cast("ServerAdder", Adder()), agreed, decide)
    assert decided == [{"yes-mcp": ("proposal",)}]
    assert told == [("npx", "a"), ("npx", "b"), ("https://a.example",)]
    assert asked == ["yes-mcp", "away-mcp"]
    assert [(each.id, each.state, each.reason) for each in done] == [
        ("yes-mcp", "ready", None),
        ("no-mcp", "declined", None),
        ("away-mcp", "failed", "it does not answer"),
    ]
    assert [each.key for each in done] == ["yes-mcp@1", None, None]


def test_any_host_is_open_only_to_those_who_asked_for_it(desk: Desk) -> None:
    desk.write({"fs": {"command": "x"}})
    desk.run(wishes=ImportChoices(trust_network=True))
    assert 'egress: ["*"]' in desk.draft("fs-mcp").read_text()
    assert [each.status for each in desk.run().drivers] == ["unchanged"]
    assert 'egress: ["*"]' in desk.draft("fs-mcp").read_text()


@pytest.mark.req("AIP-import-7")
def test_a_default_is_used_where_the_host_has_no_value(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    data = {"name": "x", "id": "x-mcp", "description": "d", "version": "1.0.0", "kind": "mcp", "transport": "stdio"}
    sandbox = {"env": {"pass": ["IMPORTED_LEVEL"], "set": {"IMPORTED_LEVEL": "info", "OTHER": "1"}}}
    text = frontmatter_text(
        {**data, "server": {"kind": "binary", "path": "x"}, "implements": [PENDING], "sandbox": sandbox}
    )
    driver = read_driver(text.encode(), "DRIVER.md").value
    assert driver is not None
    installed = Installed(command=("x",), version=None, lock=Locked(asked="", method="present"))

    def env() -> dict[str, str]:
        reach = kind_of(driver.server).compile_plan(driver, installed, folder=tmp_path, data=tmp_path).reach
        assert isinstance(reach, Spawn)
        return dict(reach.env)

    monkeypatch.delenv("IMPORTED_LEVEL", raising=False)
    assert env() == {"IMPORTED_LEVEL": "info", "OTHER": "1"}
    monkeypatch.setenv("IMPORTED_LEVEL", "debug")
    assert env() == {"OTHER": "1"}
