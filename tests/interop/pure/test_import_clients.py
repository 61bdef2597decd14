"""Is every client's file read as that client means it?"""

import pytest
from tests.interop.foreign_files import drafted_from, entry, read

from interlock.interop.protocol.clients import CLIENTS, find_client
from interlock.interop.protocol.model import ServerEntry

SERVER = '"command": "npx", "args": ["-y", "fs"], "env": {"LEVEL": "info"}'
COMMON = f'{{"mcpServers": {{"files": {{{SERVER}}}}}}}'
STDIO = ServerEntry(name="files", command=("npx", "-y", "fs"), env={"LEVEL": "info"})

# One file per client, as it writes them.
FILES = {
    "claude-desktop": COMMON,
    "claude-code": '{"mcpServers": {"files": {"type": "stdio", ' + SERVER + "}}}",
    "cursor": COMMON,
    "vscode": '// mine\n{"servers": {"files": {"type": "stdio", ' + SERVER + ",}},}",
    "copilot-cli": '{"mcpServers": {"files": {"type": "local", ' + SERVER + ', "tools": ["*"]}}}',
    "windsurf": COMMON,
    "antigravity": COMMON,
    "gemini-cli": COMMON,
    "codex": '[mcp_servers.files]\ncommand = "npx"\nargs = ["-y", "fs"]\n[mcp_servers.files.env]\nLEVEL = "info"\n',
    "cline": COMMON,
    "roo": COMMON,
    "zed": '{"context_servers": {"files": {"source": "custom", ' + SERVER + "}}}",
    "opencode": '{"mcp": {"files": {"type": "local", "command": ["npx", "-y", "fs"],'
    '"environment": {"LEVEL": "info"}, "enabled": true}}}',
    "goose": "extensions:\n  files:\n    type: stdio\n    cmd: npx\n    args: [-y, fs]\n"
    "    envs: {LEVEL: info}\n    enabled: true\n",
    "continue": "mcpServers:\n  - name: files\n    command: npx\n    args: [-y, fs]\n    env:\n      LEVEL: info\n",
    "lm-studio": COMMON,
    "kiro": COMMON,
    "amazon-q": COMMON,
    "crush": '{"mcp": {"files": {"type": "stdio", ' + SERVER + "}}}",
    "mcporter": COMMON,
}


def test_there_is_a_file_of_every_client() -> None:
    assert set(FILES) == {client.name for client in CLIENTS}


@pytest.mark.req("AIP-import-2")
@pytest.mark.parametrize("client", FILES)
def test_each_client_s_file_yields_its_server(client: str) -> None:
    reading = read(client, FILES[client])
    (found,) = reading.entries
    assert (reading.notes, found.refused, found.disabled) == ((), None, None)
    assert (found.name, found.command, dict(found.env)) == ("files", STDIO.command, {"LEVEL": "info"})
    assert (found.transport, found.notes) == ("stdio", ())


REMOTES = {
    "claude-code": ({"type": "http", "url": "U", "headers": {"X": "1"}}, "http"),
    "cursor": ({"url": "U", "headers": {"X": "1"}}, "http"),
    "vscode": ({"type": "sse", "url": "U", "headers": {"X": "1"}}, "sse"),
    "windsurf": ({"serverUrl": "U", "headers": {"X": "1"}}, "http"),
    "antigravity": ({"serverUrl": "U", "headers": {"X": "1"}}, "http"),
    "cline": ({"type": "streamableHttp", "url": "U", "headers": {"X": "1"}}, "http"),
    "roo": ({"type": "streamable-http", "url": "U", "headers": {"X": "1"}}, "http"),
    "opencode": ({"type": "remote", "url": "U", "headers": {"X": "1"}}, "http"),
    "crush": ({"type": "http", "url": "U", "headers": {"X": "1"}}, "http"),
}


@pytest.mark.req("AIP-import-3")
@pytest.mark.parametrize("client", REMOTES)
def test_addresses_are_found_under_each_client_s_key(client: str) -> None:
    raw, transport = REMOTES[client]
    found = entry(client, {key: "https://a.example/mcp" if value == "U" else value for key, value in raw.items()})
    assert (found.url, found.transport, dict(found.headers)) == ("https://a.example/mcp", transport, {"X": "1"})


@pytest.mark.req("AIP-import-3")
def test_gemini_means_sse_by_url_and_http_by_http_url() -> None:
    assert entry("gemini-cli", {"url": "https://a.example/sse"}).transport == "sse"
    assert entry("gemini-cli", {"httpUrl": "https://a.example/mcp"}).transport == "http"


@pytest.mark.req("AIP-import-3")
@pytest.mark.parametrize("spelling", ["streamable-http", "streamableHttp", "streamable_http", "http", "remote"])
def test_every_spelling_of_streamable_http_is_known(spelling: str) -> None:
    assert entry("cursor", {"type": spelling, "url": "https://a.example"}).transport == "http"


@pytest.mark.req("AIP-import-3")
@pytest.mark.parametrize(
    ("raw", "code"),
    [
        ({"command": "x", "url": "https://a.example"}, "ambiguous"),
        ({"url": "https://a.example", "httpUrl": "https://b.example"}, "ambiguous"),
        ({"type": "stdio", "url": "https://a.example"}, "ambiguous"),
        ({"type": "http", "command": "x"}, "ambiguous"),
        ({"type": "carrier-pigeon", "url": "https://a.example"}, "transport_unknown"),
        ({"args": ["x"]}, "nothing_to_start"),
        ({"command": "  "}, "nothing_to_start"),
    ],
)
def test_an_entry_that_says_two_things_or_nothing_is_not_imported(raw: dict[str, object], code: str) -> None:
    found = entry("cursor", raw)
    assert found.refused is not None
    assert found.refused.code == code


@pytest.mark.req("AIP-import-3")
def test_a_command_that_is_a_list_is_program_and_arguments() -> None:
    found = drafted_from("opencode", {"type": "local", "command": ["node", "server.js", "--x"]})
    assert found.data["server"] == {"kind": "binary", "path": "node", "args": ["server.js", "--x"]}


@pytest.mark.req("AIP-import-2")
def test_opencode_of_the_second_version_has_servers_below_mcp() -> None:
    reading = read("opencode", {"mcp": {"servers": {"a": {"type": "local", "command": ["x"]}}}})
    assert [each.name for each in reading.entries] == ["a"]


@pytest.mark.req("AIP-import-2")
def test_claude_code_has_servers_of_projects_too() -> None:
    reading = read(
        "claude-code",
        {"mcpServers": {"a": {"command": "x"}}, "projects": {"/srv/p": {"mcpServers": {"b": {"command": "y"}}}}},
    )
    assert [(each.name, each.project) for each in reading.entries] == [("a", None), ("b", "/srv/p")]


@pytest.mark.req("AIP-import-2")
def test_a_file_of_vs_code_with_the_common_key_is_read_with_a_note() -> None:
    reading = read("vscode", {"mcpServers": {"a": {"command": "x"}}})
    assert [each.name for each in reading.entries] == ["a"]
    assert [note.code for note in reading.notes] == ["root_key"]
    own = read("vscode", {"mcp": {"servers": {"b": {"command": "x"}}}, "mcpServers": {"a": {"command": "x"}}})
    assert ([each.name for each in own.entries], own.notes) == (["b"], ())


@pytest.mark.req("AIP-import-2")
@pytest.mark.parametrize("said", [{"disabled": True}, {"enabled": False}, {"bundled": True}])
def test_disabled_and_bundled_entries_are_marked(said: dict[str, bool]) -> None:
    assert entry("cursor", {"command": "x", **said}).disabled is not None
    assert entry("cursor", {"command": "x", "disabled": False, "enabled": True}).disabled is None


def test_builtin_extensions_of_goose_are_no_servers() -> None:
    (found,) = read("goose", "extensions:\n  developer:\n    type: builtin\n    enabled: true\n").entries
    assert found.refused is not None
    assert found.refused.code == "built_in"


def test_zed_as_it_was_had_the_command_in_a_block() -> None:
    found = entry("zed", {"command": {"path": "x", "args": ["a"], "env": {"K": "v"}}})
    assert (found.command, dict(found.env)) == (("x", "a"), {"K": "v"})
    extension = entry("zed", {"source": "extension", "settings": {}})
    assert extension.refused is not None
    assert extension.refused.code == "built_in"


@pytest.mark.req("AIP-import-10")
def test_timeouts_are_carried_over_in_milliseconds() -> None:
    codex = read("codex", '[mcp_servers.a]\ncommand = "x"\nstartup_timeout_sec = 2.5\ntool_timeout_sec = 60\n').entries[
        0
    ]
    assert (codex.connect_timeout_ms, codex.call_timeout_ms) == (2500, 60_000)
    goose = read("goose", "extensions:\n  a:\n    type: stdio\n    cmd: x\n    timeout: 300\n").entries[0]
    assert (goose.connect_timeout_ms, goose.call_timeout_ms) == (None, 300_000)
    assert entry("gemini-cli", {"command": "x", "timeout": 5000}).call_timeout_ms == 5000
    both = entry("opencode", {"command": ["x"], "timeout": {"startup": 1000, "request": 2000}})
    assert (both.connect_timeout_ms, both.call_timeout_ms) == (1000, 2000)
    draft = drafted_from("opencode", {"command": ["x"], "timeout": {"startup": 1000, "request": 2000}})
    assert draft.data["connection_options"] == {"timeout_ms": 1000}
    assert draft.data["timeout_override_ms"] == 2000


@pytest.mark.req("AIP-import-10")
@pytest.mark.parametrize(
    ("raw", "egress"),
    [
        ({"sandbox": {"network": {"allowedDomains": ["a.example", "*.b.example"]}}}, ["a.example", "*.b.example"]),
        ({"allowHosts": ["a.example:443", "b.example"]}, ["a.example", "b.example"]),
        ({"disableNetwork": True, "allowHosts": ["a.example"]}, []),
        ({}, []),
    ],
)
def test_only_hosts_that_a_source_allows_are_open(raw: dict[str, object], egress: list[str]) -> None:
    assert drafted_from("vscode", {"command": "x", "cwd": "/srv/x", **raw}).data["network"] == {"egress": egress}
    assert drafted_from("vscode", {"command": "x", "cwd": "/srv/x", **raw}).data["server"]["cwd"] == "/srv/x"


@pytest.mark.req("AIP-import-10")
@pytest.mark.parametrize(
    "relaxing",
    [{"trust": True}, {"alwaysAllow": ["a"]}, {"autoApprove": ["*"]}, {"default_tools_approval_mode": "approve"}],
)
def test_settings_that_would_relax_an_approval_are_reported_and_ignored(relaxing: dict[str, object]) -> None:
    found = drafted_from("cursor", {"command": "x", **relaxing})
    assert [note.code for note in found.notes] == ["approval_ignored"]
    assert found.hints == {}
    assert drafted_from("cursor", {"command": "x", "alwaysAllow": [], "trust": False}).notes == ()


@pytest.mark.req("AIP-import-10", "AIP-import-9")
def test_tool_filters_of_a_source_are_kept() -> None:
    raw = '[mcp_servers.a]\ncommand = "x"\nenabled_tools = ["r", "w"]\ndisabled_tools = ["w"]\n'
    raw += '[mcp_servers.a.tools.r]\napproval_mode = "prompt"\n'
    (found,) = read("codex", raw).entries
    assert (found.only_tools, found.without_tools, found.asks_tools, found.asks) == (("r", "w"), ("w",), ("r",), False)
    assert entry("gemini-cli", {"command": "x", "includeTools": ["a"], "excludeTools": ["b"]}).only_tools == ("a",)
    assert entry("copilot-cli", {"command": "x", "tools": ["a"]}).only_tools == ("a",)
    assert entry("copilot-cli", {"command": "x", "tools": ["*"]}).only_tools is None
    assert entry("cursor", {"command": "x", "default_tools_approval_mode": "prompt"}).asks is True


@pytest.mark.req("AIP-import-8")
def test_code_in_a_file_is_reported_and_left_out() -> None:
    found = drafted_from("claude-code", {"type": "http", "url": "https://a.example/mcp", "headersHelper": "touch ran"})
    assert [note.code for note in found.notes] == ["helper_not_run"]
    assert "touch" not in str(found.data)


def test_keys_nobody_knows_are_named() -> None:
    (note,) = entry("cursor", {"command": "x", "color": "red", "empty": None}).notes
    assert (note.code, note.text) == ("key_ignored", "not carried over: 'color'")


def test_an_oauth_client_is_kept_and_its_secret_moved() -> None:
    raw = {"url": "https://a.example/mcp", "auth": {"CLIENT_ID": "me", "CLIENT_SECRET": "hush", "scopes": ["a", "b"]}}
    found = drafted_from("cursor", raw)
    assert found.data["server"]["auth"] == {
        "type": "oauth",
        "client_id": "me",
        "scopes": ["a", "b"],
        "secret": "CLIENT_SECRET",
    }
    assert [(each.slug, each.value) for each in found.secrets] == [("it-mcp/client-secret", "hush")]


def test_clients_are_known_by_their_usual_names() -> None:
    assert [
        find_client(each) and find_client(each).name for each in ("Cursor", "VS Code", "claude", "gemini", "nobody")
    ] == [  # type: ignore[union-attr]
        "cursor",
        "vscode",
        "claude-desktop",
        "gemini-cli",
        None,
    ]
