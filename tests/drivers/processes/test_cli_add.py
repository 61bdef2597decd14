"""Does `interlock add` make a driver of a server, whole or not at all, without calling a tool or leaving anything?"""

import json
import os
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.cli.program import Finished, Inline, Interlock
from tests.drivers.driver_files import text
from tests.servers.start import raw, serving

SERVER = Path(__file__).resolve().parents[2] / "servers" / "driven.py"
SECONDS = 30.0
TEXT = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
OBJECT = {"type": "object"}
TOOLS: list[dict[str, Any]] = [
    {"name": "read_note", "inputSchema": TEXT, "outputSchema": OBJECT, "annotations": {"readOnlyHint": True}},
    {"name": "drop_note", "inputSchema": TEXT, "outputSchema": OBJECT, "annotations": {"destructiveHint": True}},
    {"name": "noteList", "inputSchema": OBJECT, "outputSchema": OBJECT},
]

pytestmark = pytest.mark.skipif(shutil.which("bwrap") is None, reason="NO BUBBLEWRAP HERE: interlock add is not shown")


class Notes:
    """A server to be added, that writes down what it is told."""

    def __init__(self, folder: Path, inline: Inline, workspace: Path) -> None:
        self.log, self.list = folder / "driven.log", folder / "tools.json"
        self.log.touch()
        self.tell(TOOLS)
        self._inline, self.workspace = inline, workspace

    def tell(self, tools: list[dict[str, Any]]) -> None:
        self.list.write_text(json.dumps(tools))

    def add(self, *options: str, more: tuple[str, ...] = (), **env: str) -> Finished:
        command = (sys.executable, str(SERVER), "--log", str(self.log), "--tools", str(self.list), *more)
        said = () if {"--yes", "--no-trust"} & set(options) else ("--yes",)
        return self._inline("add", *options, *said, "--as", "notes-mcp", "--", *command, **env)

    @property
    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.log.read_text().splitlines()]

    @property
    def folder(self) -> Path:
        return self.workspace / ".drivers" / "notes-mcp"

    def front(self, name: str) -> Any:
        return yaml.safe_load((self.folder / name).read_text().split("---")[1])


@pytest.fixture
def notes(tmp_path_factory: pytest.TempPathFactory, interlock: Interlock, inline: Inline) -> Notes:
    (interlock.folder / "interlock.toml").write_text(
        '[node]\nlisten = "127.0.0.1:0"\noperator_listen = "127.0.0.1:0"\n'
    )
    return Notes(tmp_path_factory.mktemp("notes"), inline, interlock.folder)


def everything(workspace: Path) -> dict[str, tuple[bytes, int]]:
    """Every file of the workspace with its content and the time of its last change; not the node's own data."""
    paths = [each for each in workspace.rglob("*") if not each.is_relative_to(workspace / "data")]
    return {
        str(each): (each.read_bytes() if each.is_file() else b"", each.stat().st_mtime_ns)
        for each in paths
        if each != workspace
    }


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.req("AIP-author-1")
def test_named_tools_are_wrapped_under_the_named_contracts_and_nothing_else(notes: Notes) -> None:
    done = notes.add("--tools", "read_note:note-read,drop_note:note-drop")
    assert done.code == 0, done.err
    driver = notes.front("DRIVER.md")
    assert [(each["tool"], each["metadata"]["mcp"]["tool_name"]) for each in driver["implements"]] == [
        ("./tools/note-read/TOOL.md", "read_note"),
        ("./tools/note-drop/TOOL.md", "drop_note"),
    ]
    assert notes.front("tools/note-read/TOOL.md")["id"] == "note-read"


@pytest.mark.req("AIP-author-1")
def test_without_names_every_tool_is_wrapped(notes: Notes) -> None:
    assert notes.add().code == 0
    bound = [each["metadata"]["mcp"]["tool_name"] for each in notes.front("DRIVER.md")["implements"]]
    assert bound == ["read_note", "drop_note", "noteList"]


@pytest.mark.req("AIP-author-1", "AIP-author-6")
def test_an_unknown_tool_stops_before_anything_is_written(notes: Notes) -> None:
    before = everything(notes.workspace)
    done = notes.add("--tools", "raed_note:note-read", "--json")
    assert (done.code, done.json["error"]) == (1, "tool_unknown")
    assert everything(notes.workspace) == before


@pytest.mark.req("AIP-author-2")
def test_the_server_is_greeted_and_listed_never_called_and_nothing_of_it_remains(notes: Notes) -> None:
    done = notes.add()
    assert done.code == 0, done.err
    methods = [line["got"]["method"] for line in notes.lines if "got" in line]
    assert set(methods) <= {"server/discover", "initialize", "notifications/initialized", "tools/list"}
    assert "tools/list" in methods
    mark = str(notes.log).encode()
    left = [pid for pid in Path("/proc").iterdir() if pid.name.isdigit() and mark in _command(pid)]
    assert [pid for pid in left if int(pid.name) != os.getpid() and alive(int(pid.name))] == []


def _command(process: Path) -> bytes:
    try:
        return (process / "cmdline").read_bytes()
    except OSError:
        return b""


@pytest.mark.req("AIP-author-3")
def test_a_new_contract_keeps_the_schemas_binds_without_a_warning_and_has_a_name(notes: Notes) -> None:
    done = notes.add("--json")
    assert [each for each in done.json["problems"] if each["severity"] != "note"] == []
    contract = notes.front("tools/notes.read-note/TOOL.md")
    assert (contract["inputs"], contract["outputs"]) == (TEXT, OBJECT)
    assert contract["metadata"] == {"interlock": {"name": "notes.read_note"}}
    assert notes.front("tools/notes.note-list/TOOL.md")["metadata"]["interlock"]["name"] == "notes.note_list"
    binding = notes.front("DRIVER.md")["implements"][0]
    assert binding["metadata"]["mcp"] == {"tool_name": "read_note"}


def _existing(workspace: Path, inputs: dict[str, Any]) -> None:
    folder = workspace / ".tools" / "note-read"
    folder.mkdir(parents=True)
    data = {"name": "Read", "id": "note-read", "description": "Reads.", "version": "2.1.0"}
    (folder / "TOOL.md").write_text(text({**data, "inputs": inputs, "outputs": OBJECT}))


@pytest.mark.req("AIP-author-3")
def test_a_contract_that_is_there_is_reused_where_the_tool_keeps_it(notes: Notes) -> None:
    _existing(notes.workspace, TEXT)
    done = notes.add("--tools", "read_note:note-read", "--json")
    assert done.code == 0, done.out
    assert done.json["tools"][0]["new"] is False
    binding = notes.front("DRIVER.md")["implements"][0]
    assert (binding["tool"], binding["version"]) == ("note-read", "^2.1.0")
    assert "argument_mapping" not in binding["metadata"]["mcp"]
    assert not (notes.folder / "tools").exists()


@pytest.mark.req("AIP-author-3")
def test_an_argument_of_another_name_is_proposed_where_its_type_matches_and_marked_for_review(notes: Notes) -> None:
    _existing(notes.workspace, {"type": "object", "properties": {"words": {"type": "string"}}, "required": ["words"]})
    done = notes.add("--tools", "read_note:note-read")
    assert done.code == 0, done.err
    binding = notes.front("DRIVER.md")["implements"][0]
    assert binding["metadata"]["mcp"]["argument_mapping"] == {"words": "text"}
    assert "review: note-read is bound to read_note with words to text" in done.out
    assert "Review: note-read" in (notes.folder / "DRIVER.md").read_text()


@pytest.mark.req("AIP-author-3", "AIP-author-6")
def test_a_contract_that_the_tool_does_not_keep_is_reported_and_nothing_written(notes: Notes) -> None:
    _existing(notes.workspace, {"type": "object", "properties": {"count": {"type": "integer"}}, "required": ["count"]})
    before = everything(notes.workspace)
    done = notes.add("--tools", "read_note:note-read", "--json")
    assert (done.code, done.json["error"]) == (1, "contract_mismatch")
    assert everything(notes.workspace) == before


@pytest.mark.req("AIP-author-6")
def test_a_server_that_does_not_come_up_leaves_the_workspace_as_it_was(notes: Notes) -> None:
    before = everything(notes.workspace)
    done = notes.add(more=("--exit", "3"))
    assert done.code == 1
    assert "the server did not come up" in done.err
    assert everything(notes.workspace) == before


@pytest.mark.req("AIP-author-6")
def test_an_address_where_nobody_answers_leaves_the_workspace_as_it_was(notes: Notes, inline: Inline) -> None:
    before = everything(notes.workspace)
    done = inline("add", "http://127.0.0.1:9/mcp", "--yes", "--json")
    hint = "check the address, and that an MCP server answers there; nothing was written"
    assert (done.code, done.json["details"]["hint"]) == (1, hint)
    assert everything(notes.workspace) == before


def test_nothing_is_written_through_a_link(notes: Notes, tmp_path_factory: pytest.TempPathFactory) -> None:
    outside = tmp_path_factory.mktemp("outside")
    notes.folder.mkdir(parents=True)
    (notes.folder / "tools").symlink_to(outside)
    done = notes.add("--json")
    assert (done.code, done.json["error"]) == (1, "path_escape")
    assert list(outside.iterdir()) == []


def test_folders_of_drivers_that_are_elsewhere_are_left_alone(
    notes: Notes, tmp_path_factory: pytest.TempPathFactory
) -> None:
    outside = tmp_path_factory.mktemp("outside")
    (notes.workspace / ".drivers").symlink_to(outside)
    done = notes.add("--json")
    assert (done.code, done.json["error"]) == (1, "workspace_unusable")
    assert list(outside.iterdir()) == []


@pytest.mark.parametrize("id", ["../up", "Has Spaces", "-", "a" * 200])
def test_an_id_that_is_none_is_refused(inline: Inline, notes: Notes, id: str) -> None:
    before = everything(notes.workspace)
    assert inline("add", f"--as={id}", "--yes", "--", sys.executable, str(SERVER)).code in (1, 2)
    assert everything(notes.workspace) == before


@pytest.mark.req("AIP-author-6", "AIP-security-13")
def test_success_prints_the_path_the_warnings_and_the_sandbox(notes: Notes) -> None:
    done = notes.add("--egress", "api.example.com")
    assert done.code == 0, done.err
    assert f"wrote {notes.folder} (4 files)" in done.out
    assert f"sandbox: writes {notes.log}" in done.out
    assert "reaches api.example.com" in done.out
    assert "is trusted and starts with the node" in done.out


@pytest.mark.req("AIP-author-6")
def test_run_again_on_an_unchanged_server_it_changes_no_file(notes: Notes) -> None:
    assert notes.add("--yes").code == 0
    before = everything(notes.workspace)
    again = notes.add("--json")
    assert (again.code, again.json["files"], again.json["state"]) == (0, [], "stopped")
    assert everything(notes.workspace) == before


def test_a_driver_that_says_something_else_is_not_overwritten_unasked(notes: Notes) -> None:
    assert notes.add().code == 0
    before = everything(notes.workspace)
    other = notes.add("--egress", "api.example.com", "--json")
    assert (other.code, other.json["error"]) == (1, "exists")
    assert everything(notes.workspace) == before
    (notes.folder / "README.md").write_text("mine")
    assert notes.add("--egress", "api.example.com", "--replace").code == 0
    assert notes.front("DRIVER.md")["network"] == {"egress": ["api.example.com"]}
    assert (notes.folder / "README.md").read_text() == "mine"


def test_a_class_that_only_the_name_suggests_stays_open_until_a_person_decides(notes: Notes) -> None:
    done = notes.add("--no-trust")
    assert "1 tool without a class" in done.out
    assert notes.front("tools/notes.note-list/TOOL.md")["approval"] == "policy:unannotated"
    assert notes.front("tools/notes.drop-note/TOOL.md")["risk_level"] == 3


def test_yes_accepts_what_is_proposed_and_class_says_it_otherwise(notes: Notes) -> None:
    done = notes.add("--yes", "--class", "drop_note=reversible", "--json")
    assert {each["tool"]: (each["class"], each["by"]) for each in done.json["tools"]} == {
        "read_note": ("read_only", "annotations"),
        "drop_note": ("reversible", "person"),
        "noteList": ("read_only", "person"),
    }
    assert notes.front("tools/notes.drop-note/TOOL.md")["risk_level"] == 2
    assert notes.front("tools/notes.note-list/TOOL.md")["approval"] == "auto"


@pytest.mark.parametrize(
    "said", [("--class", "drop_note"), ("--class", "drop_note=harmless"), ("--tools", ","), ("--header", "X")]
)
def test_options_that_say_nothing_are_refused(notes: Notes, said: tuple[str, ...]) -> None:
    assert notes.add(*said).code == 2


@pytest.mark.parametrize("reference", ["nothing-here", "npm:", "dns:", "gem:thing"])
def test_a_reference_that_names_nothing_is_refused(inline: Inline, notes: Notes, reference: str) -> None:
    done = inline("add", reference, "--yes")
    assert done.code == 2, done.err


def test_left_untrusted_it_is_not_started_by_a_node(notes: Notes, inline: Inline) -> None:
    done = notes.add("--no-trust", "--json")
    assert (done.json["trusted"], done.json["state"]) == (False, "untrusted")
    [listed] = inline("drivers", "list", "--json").json["drivers"]
    assert listed["state"] == "untrusted"


def test_tools_that_would_have_one_contract_are_refused_by_name(notes: Notes) -> None:
    notes.tell([{**TOOLS[0], "name": name} for name in ("read-note", "read_note")])
    done = notes.add("--json")
    assert (done.code, done.json["error"]) == (1, "id_collision")
    assert not notes.folder.exists()


def test_a_server_without_tools_makes_no_driver(notes: Notes) -> None:
    notes.tell([])
    done = notes.add("--json")
    assert (done.code, done.json["error"]) == (1, "no_tools")


def test_a_draft_is_completed_with_what_its_source_says_about_tools(notes: Notes, inline: Inline) -> None:
    folder = notes.folder
    folder.mkdir(parents=True)
    server = {"kind": "binary", "path": sys.executable}
    server["args"] = [str(SERVER), "--log", str(notes.log), "--tools", str(notes.list)]  # type: ignore[assignment]
    draft = {
        "name": "Notes",
        "id": "notes-mcp",
        "description": "Notes.",
        "version": "1.0.0",
        "kind": "mcp",
        "server": server,
        "transport": "stdio",
        "implements": [],
        "sandbox": {"fs": {"write": [str(notes.log)], "read": [str(notes.list)]}},
    }
    (folder / "DRIVER.draft.md").write_text(text(draft))
    record = {"sources": ["cursor/notes"], "base": draft, "hints": {"without_tools": ["noteList"], "asks": True}}
    (folder / "import.json").write_text(json.dumps(record))
    done = inline("add", "notes", "--yes")
    assert done.code == 0, done.err
    assert not (folder / "DRIVER.draft.md").exists()
    assert (folder / "import.json").exists()
    assert [each["metadata"]["mcp"]["tool_name"] for each in notes.front("DRIVER.md")["implements"]] == [
        "read_note",
        "drop_note",
    ]
    assert notes.front("tools/notes.read-note/TOOL.md")["approval"] == "always"


@pytest.mark.req("AIP-transport-9")
@pytest.mark.parametrize(("path", "transport"), [("/mcp", "http"), ("/sse", "sse")])
def test_a_remote_server_is_written_with_the_transport_it_speaks(
    inline: Inline, notes: Notes, path: str, transport: str
) -> None:
    with serving(raw("echo", "--era", "legacy")) as url:
        done = inline("add", url.replace("/mcp", path), "--as", "far-mcp", "--yes", "--json")
        assert done.code == 0, done.out
        assert done.json["sandbox"]["kind"] == "none"
    folder = notes.workspace / ".drivers" / "far-mcp"
    assert yaml.safe_load((folder / "DRIVER.md").read_text().split("---")[1])["transport"] == transport
    said = [each["code"] for each in inline("drivers", "show", "far-mcp", "--json").json["problems"]]
    assert ("transport_deprecated" in said) is (transport == "sse")


@pytest.mark.req("AIP-transport-9", "AIP-file-3")
def test_a_local_server_is_written_with_stdio(notes: Notes) -> None:
    assert notes.add().code == 0
    assert notes.front("DRIVER.md")["id"] == "notes-mcp"
    assert notes.front("DRIVER.md")["transport"] == "stdio"


@pytest.mark.req("AIP-import-8", "AIP-import-9", "AIP-import-10", "AIP-file-3", "AIP-security-13")
def test_an_import_starts_what_was_agreed_to_and_the_driver_is_ready(
    notes: Notes, interlock: Interlock, inline: Inline
) -> None:
    command = {"command": sys.executable, "args": [str(SERVER), "--log", str(notes.log), "--tools", str(notes.list)]}
    away = {"command": "/nowhere/at-all"}
    file = interlock.folder / ".cursor" / "mcp.json"
    file.parent.mkdir()
    servers = {"My Notes": {**command, "disabledTools": ["noteList"]}, "away": away}
    file.write_text(json.dumps({"mcpServers": servers}))
    unasked = inline("import", "--from", "cursor", "--json")
    assert ("no server was started" in unasked.err, notes.lines) == (True, [])
    done = inline("import", "--from", "cursor", "--yes", "--json")
    assert done.code == 0, done.out
    assert f"\nmy-notes: {sys.executable} {SERVER}" in f"\n{done.err}"
    assert [(each["id"], each["state"]) for each in done.json["connected"]] == [
        ("my-notes-mcp", "ready"),
        ("away-mcp", "failed"),
    ]
    folder = interlock.folder / ".drivers" / "my-notes-mcp"
    contracts = sorted(each.parent.name for each in folder.rglob("TOOL.md"))
    assert contracts == ["my-notes.drop-note", "my-notes.read-note"]
    assert (interlock.folder / ".drivers" / "away-mcp" / "DRIVER.draft.md").exists()
    listed = {one["id"]: one["state"] for one in inline("drivers", "list", "--json").json["drivers"]}
    assert listed == {"my-notes-mcp": "stopped"}
    again = inline("import", "--from", "cursor", "--json").json
    assert [each["status"] for each in again["drivers"]] == ["unchanged", "unchanged"]


@pytest.mark.req("AIP-import-9")
@pytest.mark.parametrize(
    ("client", "said", "wrapped"),
    [
        ("cursor", {}, ["drop-note", "note-list", "read-note"]),
        ("codex", {"enabled_tools": ["read_note", "drop_note"]}, ["drop-note", "read-note"]),
        ("codex", {"disabled_tools": ["drop_note"]}, ["note-list", "read-note"]),
        ("codex", {"enabled_tools": ["read_note", "drop_note"], "disabled_tools": ["drop_note"]}, ["read-note"]),
        ("gemini-cli", {"includeTools": ["read_note"]}, ["read-note"]),
        ("gemini-cli", {"excludeTools": ["read_note"]}, ["drop-note", "note-list"]),
        ("copilot-cli", {"tools": ["noteList"]}, ["note-list"]),
        ("copilot-cli", {"tools": ["*"]}, ["drop-note", "note-list", "read-note"]),
    ],
)
def test_an_imported_server_has_a_contract_for_each_tool_that_its_source_lets_it_have(
    notes: Notes, interlock: Interlock, inline: Inline, client: str, said: dict[str, Any], wrapped: list[str]
) -> None:
    server = {"command": sys.executable, "args": [str(SERVER), "--log", str(notes.log), "--tools", str(notes.list)]}
    if client == "codex":
        file = interlock.folder / "config.toml"
        lines = [f"{key} = {json.dumps(value)}\n" for key, value in {**server, **said}.items()]
        file.write_text('[mcp_servers."My Files"]\n' + "".join(lines))
    else:
        file = interlock.folder / "settings.json"
        file.write_text(json.dumps({"mcpServers": {"My Files": {**server, **said}}}))
    done = inline("import", "--file", str(file), "--as", client, "--yes", "--json")
    assert done.code == 0, done.out
    assert [(each["id"], each["state"]) for each in done.json["connected"]] == [("my-files-mcp", "ready")]
    folder = interlock.folder / ".drivers" / "my-files-mcp"
    assert sorted(each.parent.name for each in folder.rglob("TOOL.md")) == [f"my-files.{each}" for each in wrapped]


@pytest.mark.req("AIP-import-9")
def test_a_server_that_could_not_be_reached_is_finished_later(
    notes: Notes, interlock: Interlock, inline: Inline
) -> None:
    notes.list.unlink()  # without its file it ends at once
    server = {"command": sys.executable, "args": [str(SERVER), "--log", str(notes.log), "--tools", str(notes.list)]}
    file = interlock.folder / "mcp.json"
    file.write_text(json.dumps({"mcpServers": {"later": server}}))
    first = inline("import", "--file", str(file), "--as", "cursor", "--yes", "--json")
    assert [(each["id"], each["state"]) for each in first.json["connected"]] == [("later-mcp", "failed")]
    folder = interlock.folder / ".drivers" / "later-mcp"
    assert [each.name for each in folder.rglob("*.md")] == ["DRIVER.draft.md"]
    assert inline("drivers", "list", "--json").json["drivers"] == []  # a draft is not loaded
    notes.tell(TOOLS)
    done = inline("add", "later-mcp", "--yes", "--json")
    assert (done.code, done.json.get("trusted")) == (0, True), done.out
    assert [each["id"] for each in inline("drivers", "list", "--json").json["drivers"]] == ["later-mcp"]
    assert not (folder / "DRIVER.draft.md").exists()
    assert len(list(folder.rglob("TOOL.md"))) == 3


def test_without_a_node_the_trial_and_the_addition_are_on_record_too(notes: Notes, inline: Inline) -> None:
    done = notes.add("--yes", "--json")
    assert done.code == 0, done.out
    rows = [json.loads(row) for row in inline("audit", "export").lines]
    assert [row["method"] for row in rows] == ["drivers/try", "drivers/add", "drivers/trust"]
    assert {row["who"] for row in rows} == {"local"}


def test_a_running_node_tries_the_server_out_and_takes_the_driver_up(
    notes: Notes, interlock: Interlock, inline: Inline
) -> None:
    with interlock.start("serve", COLUMNS="80", TZ="Asia/Tokyo") as running:
        while "Ctrl-C stops the node" not in running.next_line():
            pass
        # The node itself has none of these variables.
        variables = {"NOTES_LEVEL": "level-of-the-caller", "NOTES_TOKEN": "token-of-the-caller"}
        options = ("--env", "NOTES_LEVEL", "--secret", "NOTES_TOKEN")
        done = notes.add("--yes", "--json", *options, **variables)
        assert (done.code, done.json["state"]) == (0, "ready"), done.out
        assert "starting it, and asking for its tools\n" in done.err
        started = next(line["env"] for line in notes.lines if "env" in line)
        assert {name: started[name] for name in variables} == variables
        assert started["TZ"] == "Asia/Tokyo"  # the process that started it is the node, not the command
        audit = inline("audit", "export").out
        rows = [json.loads(row) for row in audit.splitlines() if f'"driver":"{done.json["key"]}"' in row]
        decided = [row["method"] for row in rows if row.get("via") == "operator"]
        assert decided == ["drivers/try", "drivers/add", "drivers/trust"]
        until(lambda: "notes.read_note" in _tools(inline))
        called = inline("tools", "call", "notes.read_note", "--arg", "text=hello", "--json")
        assert (called.code, called.json["structuredContent"]["text"]) == (0, "hello")
        node = running.interrupt()
        assert not [value for value in variables.values() if value in audit + node.out + node.err]


def _tools(inline: Inline) -> list[str]:
    return [one["name"] for one in inline("tools", "list", "--json").json["tools"]]


def until(check: Callable[[], Any]) -> None:
    end = time.monotonic() + SECONDS
    while not check():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.05)


def test_a_server_whose_name_another_server_has_is_not_added(notes: Notes) -> None:
    configuration = notes.workspace / "interlock.toml"
    configuration.write_text(configuration.read_text() + f'[servers.notes]\ncommand = ["{sys.executable}"]\n')
    before = everything(notes.workspace)
    refused = notes.add("--json")
    assert (refused.code, refused.json["error"]) == (1, "name_collision")
    assert "notes is [servers.notes] already" in refused.json["message"]
    assert "--as ID" in refused.json["details"]["hint"]
    assert notes.lines == [], "the server was not even started"
    assert everything(notes.workspace) == before
