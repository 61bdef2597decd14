"""Are the files of other clients found on three systems, and is nothing else ever touched?"""

import os
from pathlib import Path
from typing import Any

import pytest

from interlock.interop.protocol.clients import BY_NAME, CLIENTS
from interlock.interop.source_files import ClientMachine, SourceFile, look, places, read_source

SERVERS = {
    "mcpServers": '{"mcpServers": {"one": {"command": "x"}, "two": {"url": "https://a.example"}}}',
    "servers": '{"servers": {"one": {"command": "x"}, "two": {"url": "https://a.example"}}}',
    "context_servers": '{"context_servers": {"one": {"command": "x"}, "two": {"url": "https://a.example"}}}',
    "mcp": '{"mcp": {"one": {"type": "local", "command": ["x"]}, "two": {"type": "remote", "url": "https://a.example"}}}',
    "mcp_servers": '[mcp_servers.one]\ncommand = "x"\n[mcp_servers.two]\nurl = "https://a.example"\n',
    "extensions": "extensions:\n  one: {type: stdio, cmd: x}\n  two: {type: sse, uri: https://a.example}\n",
    "continue": "mcpServers:\n  - {name: one, command: x}\n  - {name: two, url: https://a.example}\n",
}

# Relative to the home, as the requirement lists them; after a bar below the project.
LINUX = """
claude-desktop .config/Claude/claude_desktop_config.json
claude-desktop .config/claude/claude_desktop_config.json
claude-code .claude.json | .mcp.json
cursor .cursor/mcp.json | .cursor/mcp.json
vscode .config/Code/User/mcp.json | .vscode/mcp.json
copilot-cli .copilot/mcp-config.json
windsurf .codeium/windsurf/mcp_config.json
antigravity .gemini/antigravity/mcp_config.json
gemini-cli .gemini/settings.json | .gemini/settings.json
codex .codex/config.toml | .codex/config.toml
cline .config/Code/User/globalStorage/saoudrizwan.claude-dev/settings/cline_mcp_settings.json
cline .config/Cursor/User/globalStorage/saoudrizwan.claude-dev/settings/cline_mcp_settings.json
roo .config/Code/User/globalStorage/rooveterinaryinc.roo-cline/settings/mcp_settings.json
roo .config/Cursor/User/globalStorage/rooveterinaryinc.roo-cline/settings/mcp_settings.json
zed .config/zed/settings.json | .zed/settings.json
opencode .config/opencode/opencode.json | opencode.json
opencode .config/opencode/opencode.jsonc
goose .config/goose/config.yaml
continue .continue/config.yaml
lm-studio .lmstudio/mcp.json
lm-studio .cache/lm-studio/mcp.json
kiro .kiro/settings/mcp.json | .kiro/settings/mcp.json
amazon-q .aws/amazonq/mcp.json
crush .config/crush/crush.json | .crush.json
mcporter .mcporter/mcporter.json | config/mcporter.json
mcporter .mcporter/mcporter.jsonc
"""
MAC = (
    LINUX.replace("claude-desktop .config/claude/claude_desktop_config.json\n", "")
    .replace(".config/Claude/", "Library/Application Support/Claude/")
    .replace(".config/Code/", "Library/Application Support/Code/")
    .replace(".config/Cursor/", "Library/Application Support/Cursor/")
)
WINDOWS = (
    LINUX.replace("claude-desktop .config/claude/claude_desktop_config.json\n", "")
    .replace(".config/Claude/", "AppData/Roaming/Claude/")
    .replace(".config/Code/", "AppData/Roaming/Code/")
    .replace(".config/Cursor/", "AppData/Roaming/Cursor/")
    .replace(".config/goose/", "AppData/Roaming/Block/goose/config/")
    .replace(".config/crush/", "AppData/Local/crush/")
) + "zed AppData/Roaming/Zed/settings.json\n"
SYSTEMS = {"linux": LINUX, "darwin": MAC, "win32": WINDOWS}


def listed(table: str, home: Path, project: Path) -> list[tuple[str, str, Path]]:
    found = []
    for line in table.strip().splitlines():
        client, _, rest = line.partition(" ")
        own, _, below = rest.partition(" | ")
        found.append((client, "global", home / own))
        found += [(client, "project", project / below)] if below else []
    return found


def content(client: str) -> str:
    return SERVERS["continue" if client == "continue" else BY_NAME[client].root[0]]


def machine(system: Any, home: Path, **env: str) -> ClientMachine:
    return ClientMachine(system=system, home=home, project=home / "project", env=env)


@pytest.mark.req("AIP-import-1", "AIP-import-2")
@pytest.mark.parametrize("system", SYSTEMS)
def test_every_file_of_a_home_is_listed_with_client_scope_and_count(system: str, tmp_path: Path) -> None:
    expected = listed(SYSTEMS[system], tmp_path, tmp_path / "project")
    for client, _, path in expected:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content(client))
    found = look(machine(system, tmp_path))
    assert {(each.client, each.scope, each.path) for each in found} == set(expected)
    assert len(found) == len(expected)
    assert {each.client for each in found} == {client.name for client in CLIENTS}
    for each in found:
        assert (each.state, len(each.reading.entries)) == ("read", 2), each


@pytest.mark.req("AIP-import-1")
def test_absent_and_unreadable_files_are_reported_and_skipped(tmp_path: Path) -> None:
    (tmp_path / ".cursor").mkdir()
    (tmp_path / ".cursor/mcp.json").write_text('{"mcpServers":\n x}')
    (tmp_path / ".claude.json").write_text(content("claude-code"))
    states = {(each.client, each.scope): each for each in look(machine("linux", tmp_path))}
    assert states["cursor", "global"].state == "unreadable"
    assert states["cursor", "global"].reason == "it is not JSON (line 2)"
    assert states["claude-code", "global"].state == "read"
    assert states["zed", "global"].state == "absent"


@pytest.mark.req("AIP-import-1")
@pytest.mark.parametrize(
    ("variable", "client", "file"),
    [
        ("CLAUDE_CONFIG_DIR", "claude-code", ".claude.json"),
        ("CODEX_HOME", "codex", "config.toml"),
        ("COPILOT_HOME", "copilot-cli", "mcp-config.json"),
        ("XDG_CONFIG_HOME", "zed", "zed/settings.json"),
        ("APPDATA", "claude-desktop", "Claude/claude_desktop_config.json"),
        ("LOCALAPPDATA", "crush", "crush/crush.json"),
    ],
)
def test_the_environment_says_where_some_keep_theirs(variable: str, client: str, file: str, tmp_path: Path) -> None:
    system = "win32" if "APPDATA" in variable else "linux"
    elsewhere = tmp_path / "elsewhere"
    found = [
        path
        for known, _, path in places(machine(system, tmp_path, **{variable: str(elsewhere)}))
        if known.name == client
    ]
    assert elsewhere / file in found
    relative = [
        path for known, _, path in places(machine(system, tmp_path, **{variable: "rel"})) if known.name == client
    ]
    assert all(path.is_relative_to(tmp_path) for path in relative)


def source(path: Path) -> SourceFile:
    return read_source(BY_NAME["cursor"], path)


def test_links_in_a_circle_pipes_and_folders_are_no_files(tmp_path: Path) -> None:
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    assert source(loop).state == "unreadable"
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    assert source(pipe).reason == "it is not a regular file"
    assert source(tmp_path).reason == "it is not a regular file"
    assert source(tmp_path / "mcp\0.json").state == "unreadable"
    (tmp_path / "plain").write_text("")
    assert source(tmp_path / "plain" / "below").state == "absent"


def test_a_huge_file_is_not_read(tmp_path: Path) -> None:
    huge = tmp_path / "mcp.json"
    with huge.open("wb") as file:
        file.truncate(40 * 1024 * 1024)
    assert "larger than" in (source(huge).reason or "")
    deep = tmp_path / "deep.json"
    deep.write_text('{"mcpServers":' + "[" * 100_000)
    assert source(deep).state == "unreadable"
    broken = tmp_path / "broken.json"
    broken.write_bytes(b'{"mcpServers": {\n"\xff": {}}}')
    assert source(broken).reason == "line 2 is not UTF-8"


def test_a_file_with_a_byte_order_mark_and_comments_is_read(tmp_path: Path) -> None:
    marked = tmp_path / "mcp.json"
    marked.write_bytes(
        b'\xef\xbb\xbf// "mine"\n{"mcpServers": {"a": {"command": "x // y", /* "b" */ "args": ["/*",],},},}\n'
    )
    (found,) = source(marked).reading.entries
    assert found.command == ("x // y", "/*")


def test_an_empty_file_has_no_servers(tmp_path: Path) -> None:
    empty = tmp_path / "mcp.json"
    empty.write_text("")
    assert (source(empty).state, source(empty).reading.entries) == ("read", ())
