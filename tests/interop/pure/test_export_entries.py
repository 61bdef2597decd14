"""Is an entry put into each client's file as that client reads it, and everything else left to the letter?"""

import pytest

from interlock.interop.protocol.client_files import http_entry, read_client_file, stdio_entry
from interlock.interop.protocol.clients import BY_NAME, CLIENTS, ClientProgram
from interlock.interop.protocol.launchers import is_own
from interlock.interop.protocol.text_edits import CannotEdit, UnreadableFile, with_entry

COMMAND = ["/srv/bin/interlock", "serve", "--stdio", "--config", "/srv/my tree/interlock.toml"]
URL = "http://127.0.0.1:7411/mcp"
NAMES = [client.name for client in CLIENTS]


def entries(text: str, client: ClientProgram) -> dict[str, tuple[tuple[str, ...], str | None, str]]:
    reading = read_client_file(text.encode(), client)
    return {each.name: (each.command, each.url, each.transport) for each in reading.entries}


@pytest.mark.req("AIP-export-1")
@pytest.mark.parametrize("name", NAMES)
def test_each_client_gets_an_entry_that_its_own_reader_reads_and_import_knows_as_us(name: str) -> None:
    client = BY_NAME[name]
    text = with_entry("", client, "interlock", stdio_entry(client, "interlock", COMMAND, {}))
    assert entries(text, client) == {"interlock": (tuple(COMMAND), None, "stdio")}
    (found,) = read_client_file(text.encode(), client).entries
    assert (found.refused, found.disabled, found.notes) == (None, None, ())
    assert is_own(found, [])
    if client.stdio_only:
        return
    text = with_entry("", client, "interlock", http_entry(client, "interlock", URL, {}))
    assert entries(text, client) == {"interlock": ((), URL, "http")}
    (found,) = read_client_file(text.encode(), client).entries
    assert (found.refused, found.disabled, found.notes) == (None, None, ())
    assert is_own(found, ["http://127.0.0.1:7411"])


@pytest.mark.req("AIP-export-1")
@pytest.mark.parametrize(
    ("name", "root", "mark"),
    [
        ("claude-desktop", '"mcpServers"', '"command"'),
        ("vscode", '"servers"', '"type": "stdio"'),
        ("zed", '"context_servers"', '"source": "custom"'),
        ("opencode", '"mcp"', '"type": "local"'),
        ("crush", '"mcp"', '"type": "stdio"'),
        ("copilot-cli", '"mcpServers"', '"type": "local"'),
        ("codex", "[mcp_servers.interlock]", "command ="),
        ("goose", "extensions:", "cmd:"),
        ("continue", "mcpServers:", "- name: interlock"),
    ],
)
def test_root_key_and_spelling_are_the_client_s(name: str, root: str, mark: str) -> None:
    client = BY_NAME[name]
    text = with_entry("", client, "interlock", stdio_entry(client, "interlock", COMMAND, {}))
    assert root in text
    assert mark in text


def put(name: str, text: str) -> str:
    client = BY_NAME[name]
    return with_entry(text, client, "interlock", stdio_entry(client, "interlock", ["interlock", "serve"], {}))


JSON_FILES = [
    '{"mcpServers": {"a": {"command": "x"}}}',
    '{\n  // my servers\n  "mcpServers": {\n    "a": {"command": "x"}, // keep\n  },\n}\n',
    '{\n\t"other": [1, {"mcpServers": "}"}],\n\t"mcpServers": {\n\t\t"a": {\n\t\t\t'
    '"command": "x" /* { */\n\t\t}\n\t}\n}\n',
    '{"a": "\\"{", "mcpServers": {}}',
    '{\n  "mcpServers": {\n    // nothing yet\n  }\n}\n',
    '{"theme": "dark"}',
    "{}",
    "",
    "  \n",
    "// only a comment\n{}\n",
    '{\n  "mcpServers": {\n    "interlock": {"command": "old"},\n    "b": {"command": "y"} // last\n  }\n}\n',
    '{\r\n  "mcpServers": {\r\n    "a": {"command": "x"}\r\n  }\r\n}\r\n',
]


@pytest.mark.req("AIP-export-1")
@pytest.mark.parametrize("text", JSON_FILES)
def test_json_keeps_its_content_and_comments(text: str) -> None:
    edited = put("cursor", text)
    before = entries(text or "{}", BY_NAME["cursor"])
    assert entries(edited, BY_NAME["cursor"]) == {**before, "interlock": (("interlock", "serve"), None, "stdio")}
    for comment in ("// my servers", "// keep", "/* { */", "// nothing yet", "// only a comment", "// last"):
        assert (comment in edited) == (comment in text)
    assert put("cursor", edited) == edited
    for line in text.replace('"command": "old"', "").splitlines():
        for word in line.replace("{", " ").replace("}", " ").replace(",", " ").split():
            assert word in edited


@pytest.mark.req("AIP-export-1")
def test_only_the_new_lines_are_new() -> None:
    text = '{\n  // mine\n  "mcpServers": {\n    "a": {"command": "x"} // keep\n  }, "z": 1\n}\n'
    assert put("cursor", text) == (
        '{\n  // mine\n  "mcpServers": {\n    "a": {"command": "x"}, // keep\n'
        '    "interlock": {\n      "command": "interlock",\n      "args": [\n        "serve"\n      ]\n    }\n'
        '  }, "z": 1\n}\n'
    )


TOML_FILES = [
    "",
    'model = "x" # keep\n',
    'model = "x"\n\n[mcp_servers.a]\ncommand = "y" # keep\n\n[mcp_servers.a.env]\nK = "v"\n',
    '[mcp_servers.interlock]\ncommand = "old"\n[mcp_servers.interlock.env]\nOLD = "1"\n\n[profiles.x] # keep\na = 1\n',
    '[mcp_servers."inter.lock"]\ncommand = "z"',
]


@pytest.mark.req("AIP-export-1")
@pytest.mark.parametrize("text", TOML_FILES)
def test_toml_keeps_its_content_and_comments(text: str) -> None:
    edited = put("codex", text)
    before = entries(text, BY_NAME["codex"])
    assert entries(edited, BY_NAME["codex"]) == {**before, "interlock": (("interlock", "serve"), None, "stdio")}
    assert ("# keep" in edited) == ("# keep" in text)
    assert "OLD" not in edited
    assert put("codex", edited) == edited
    if "interlock]" not in text:
        assert edited.startswith(text)


YAML_FILES = [
    "",
    "GOOSE_MODE: auto # keep\n",
    "extensions:\n  a:\n    type: stdio\n    cmd: x # keep\nother: 1\n",
    "extensions:\n    a:\n        type: stdio\n        cmd: x\n    # keep\n\nother: 1",
    "extensions: {}\nother: 1 # keep\n",
    "extensions:\nother: 1\n",
    "extensions:\n  interlock:\n    cmd: old\n    type: stdio\n  # keep\n  b:\n    type: stdio\n    cmd: y\n",
]


@pytest.mark.req("AIP-export-1")
@pytest.mark.parametrize("text", YAML_FILES)
def test_yaml_keeps_its_content_and_comments(text: str) -> None:
    edited = put("goose", text)
    before = entries(text, BY_NAME["goose"])
    assert entries(edited, BY_NAME["goose"]) == {**before, "interlock": (("interlock", "serve"), None, "stdio")}
    assert ("# keep" in edited) == ("# keep" in text)
    assert ("other: 1" in edited) == ("other: 1" in text)
    assert "cmd: old" not in edited
    assert put("goose", edited) == edited


LISTS = [
    "name: mine\nmcpServers:\n  - name: a\n    command: x # keep\nmodels: []\n",
    "mcpServers:\n- name: a\n  command: x # keep\n- name: interlock\n  command: old\nmodels: []\n",
    "mcpServers:\n  - command: old\n    name: interlock\n  - name: a # keep\n    command: x\n",
    "mcpServers: []\n# keep\n",
    "# keep\n",
]


@pytest.mark.req("AIP-export-1")
@pytest.mark.parametrize("text", LISTS)
def test_a_list_of_servers_keeps_the_others(text: str) -> None:
    edited = put("continue", text)
    before = entries(text, BY_NAME["continue"])
    assert entries(edited, BY_NAME["continue"]) == {**before, "interlock": (("interlock", "serve"), None, "stdio")}
    assert "# keep" in edited
    assert ("models: []" in edited) == ("models: []" in text)
    assert put("continue", edited) == edited


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("cursor", '{"mcpServers": []}'),
        ("cursor", '{"mcpServers": "x"}'),
        ("cursor", "[]"),
        ("cursor", "{"),
        ("codex", 'mcp_servers = { a = { command = "x" } }'),
        ("codex", "["),
        ("goose", "extensions: {a: {cmd: x}}\n"),
        ("goose", "extensions: [a]\n"),
        ("goose", "\ta"),
        ("goose", "- a\n"),
    ],
)
def test_a_file_that_cannot_be_changed_safely_is_refused(name: str, text: str) -> None:
    with pytest.raises((CannotEdit, UnreadableFile)):
        put(name, text)


def test_opencode_of_the_second_version_gets_it_below_servers() -> None:
    edited = put("opencode", '{"mcp": {"servers": {"a": {"type": "local", "command": ["x"]}}}}')
    assert set(entries(edited, BY_NAME["opencode"])) == {"a", "interlock"}
    assert "enabled" not in edited
