"""Does `interlock export` point clients at the node, keep what they had, and give no secret away?"""

import json
import stat
import sys
from pathlib import Path

import pytest
from tests.cli.program import Inline, Interlock

from interlock.interop.protocol.clients import CLIENTS

MARKER = "m4rk3rS3cr3tV4lu3x0123456789"
OLD = (
    '{\n  // mine\n  "mcpServers": {\n    "old": {"command": "x", "env": {"API_TOKEN": "'
    + MARKER
    + '"}} // keep\n  }\n}\n'
)
DRIVER = """---
name: Files
id: files-mcp
description: Files.
version: 1.0.0
kind: mcp
server:
  kind: pypi
  package: files
  env:
    API_KEY: ${secrets.API_KEY}
transport: stdio
implements:
  - {tool: fs-read, version: ^1.0.0, metadata: {mcp: {tool_name: read_file}}}
network:
  egress: []
sandbox:
  fs: {read: [/srv/data]}
auth:
  ref: ./SECRETS.md
---
"""


@pytest.fixture
def workspace(interlock: Interlock, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(sys, "argv", ["interlock"])  # however the tests themselves were started
    (interlock.folder / "interlock.toml").write_text('data = "data"\n')
    folder = interlock.folder / ".drivers" / "files-mcp"
    folder.mkdir(parents=True)
    (folder / "DRIVER.md").write_text(DRIVER)
    (folder / "SECRETS.md").write_text("---\nsecrets:\n  - {slug: files-mcp/api-key, name: K, description: d}\n---\n")
    return interlock.folder


@pytest.mark.req("AIP-export-1")
def test_writing_keeps_the_rest_and_a_backup_that_only_its_owner_reads(inline: Inline, workspace: Path) -> None:
    path = workspace / ".cursor" / "mcp.json"
    path.parent.mkdir()
    path.write_text(OLD)
    path.chmod(0o644)
    done = inline("export", "client", "--for", "cursor", "--write")
    assert done.code == 0
    backup = workspace / ".cursor" / "mcp.json.interlock-backup"
    assert backup.read_text() == OLD
    assert stat.S_IMODE(backup.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    assert "still holds whatever secrets" in done.err
    assert "still configured in Cursor beside interlock: old\n" in done.out
    text = path.read_text()
    assert "// mine" in text
    assert "// keep" in text
    assert '"old": {"command": "x"' in text
    assert '"interlock"' in text
    assert '"--stdio"' in text
    assert MARKER not in done.out + done.err
    again = inline("export", "client", "--for", "cursor", "--write")
    assert "has it already" in again.out
    assert list(path.parent.iterdir()) in ([path, backup], [backup, path])
    imported = inline("import", "--dry-run", "--json").json
    assert [(each["name"], each["code"]) for each in imported["skipped"]] == [("interlock", "interlock_itself")]
    assert [each["id"] for each in imported["drivers"]] == ["old-mcp"]


@pytest.mark.req("AIP-export-1")
@pytest.mark.parametrize("client", [client.name for client in CLIENTS])
def test_every_client_can_be_pointed_here_and_is_known_again(inline: Inline, workspace: Path, client: str) -> None:
    printed = inline("export", "client", "--for", client, "--json").json
    assert printed["written"] is False
    assert not Path(printed["path"]).exists()
    done = inline("export", "client", "--for", client, "--write", "--json").json
    path = Path(done["path"])
    assert (done["written"], done["backup"]) == (True, None)
    assert path.read_text() == printed["text"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    imported = inline("import", "--from", client, "--dry-run", "--json").json
    assert [each["code"] for each in imported["skipped"]] == ["interlock_itself"]
    assert imported["drivers"] == []
    if client != "claude-desktop":
        http = inline("export", "client", "--for", client, "--http", "--write", "--json").json
        assert "http://127.0.0.1:7411/mcp" in path.read_text()
        assert http["backup"] is not None
        imported = inline("import", "--from", client, "--dry-run", "--json").json
        assert [each["code"] for each in imported["skipped"]] == ["interlock_itself"]


def test_the_address_is_that_of_the_running_node(interlock: Interlock) -> None:
    (interlock.folder / "interlock.toml").write_text(
        '[node]\nlisten = "127.0.0.1:0"\noperator_listen = "127.0.0.1:0"\n'
    )
    with interlock.start("serve", "--json") as running:
        url = json.loads(running.next_line())["node"]["mcp_url"]
        done = interlock("export", "client", "--for", "claude-code", "--http", "--json")
        assert done.json["entry"]["url"] == url
        assert f"the node runs at {url}" in interlock("export", "client", "--for", "claude-code").err


@pytest.mark.req("AIP-export-2")
def test_a_node_that_asks_for_a_token_is_dialled_with_a_token_of_the_environment(
    inline: Inline, workspace: Path
) -> None:
    (workspace / "interlock.toml").write_text('data = "data"\n[auth]\nanonymous = "never"\n')
    entry = inline("export", "client", "--for", "claude-code", "--http", "--json").json["entry"]
    assert entry["headers"] == {"Authorization": "Bearer ${INTERLOCK_TOKEN}"}
    entry = inline("export", "client", "--for", "codex", "--http", "--json").json["entry"]
    assert entry["bearer_token_env_var"] == "INTERLOCK_TOKEN"
    refused = inline("export", "client", "--for", "zed", "--http")
    assert (refused.code, "leave out --http" in refused.err) == (1, True)


def test_a_file_that_cannot_be_changed_safely_is_left_alone(inline: Inline, workspace: Path) -> None:
    path = workspace / ".cursor" / "mcp.json"
    path.parent.mkdir()
    path.write_text('{"mcpServers": []}')
    done = inline("export", "client", "--for", "cursor", "--write")
    assert (done.code, "paste" in done.err) == (1, True)
    assert path.read_text() == '{"mcpServers": []}'
    assert list(path.parent.iterdir()) == [path]


def test_a_file_that_is_a_link_stays_a_link(inline: Inline, workspace: Path) -> None:
    real = workspace / "dotfiles.json"
    real.write_text("{}")
    path = workspace / ".cursor" / "mcp.json"
    path.parent.mkdir()
    path.symlink_to(real)
    assert inline("export", "client", "--for", "cursor", "--write").code == 0
    assert path.is_symlink()
    assert "interlock" in real.read_text()
    path.unlink()
    path.symlink_to(path)
    assert inline("export", "client", "--for", "cursor", "--write").code == 1


@pytest.mark.req("AIP-export-2")
def test_no_export_holds_a_secret(interlock: Interlock, workspace: Path) -> None:
    assert interlock("secrets", "set", "files-mcp/api-key", stdin=MARKER).code == 0
    outputs = [interlock("export", "driver", "files-mcp", "--for", client.name) for client in CLIENTS[:12]]
    outputs += [interlock("export", "driver", "files-mcp", flag) for flag in ("--upstream", "--server-json")]
    for done in outputs:
        assert done.code == 0, done.err
        assert MARKER not in done.out + done.err


@pytest.mark.req("AIP-export-2")
def test_a_driver_goes_to_a_client_by_variables_or_through_interlock(inline: Inline, workspace: Path) -> None:
    direct = inline("export", "driver", "files-mcp", "--for", "claude-code", "--json")
    assert direct.json["entry"] == {
        "type": "stdio",
        "command": "uvx",
        "args": ["files"],
        "env": {"API_KEY": "${API_KEY}"},
    }
    assert "API_KEY" in direct.err
    through = inline("export", "driver", "files-mcp", "--for", "claude-desktop", "--json")
    assert through.json["entry"]["args"][-2:] == ["--only", "files"]
    assert "serve" in through.json["entry"]["args"]
    assert "through Interlock" in through.err


@pytest.mark.req("AIP-export-3", "AIP-server-10")
def test_a_driver_is_printed_for_other_hosts_and_registries(inline: Inline, workspace: Path) -> None:
    upstream = inline("export", "driver", "files-mcp", "--upstream")
    assert "path: uvx" in upstream.out
    assert "lost: sandbox" in upstream.err
    (workspace / "DRIVER.md").write_text(upstream.out)
    imported = inline("import", "--file", "DRIVER.md", "--dry-run", "--json").json
    assert [(each["id"], each["status"]) for each in imported["drivers"]] == [("files-mcp", "unchanged")]
    described = inline("export", "driver", "files-mcp", "--server-json", "--name", "io.github.me/files")
    assert json.loads(described.out)["packages"][0]["environmentVariables"] == [
        {"name": "API_KEY", "isRequired": True, "isSecret": True}
    ]
    assert "lost: sandbox" in described.err


def test_a_folder_without_a_driver_is_reported(inline: Inline, workspace: Path) -> None:
    assert inline("export", "driver", "none-mcp", "--upstream").code == 1
    assert inline("export", "driver", "../x", "--upstream").code == 1
    assert inline("export", "driver", "files-mcp").code == 2
    assert inline("export", "client").code == 2
    assert inline("export", "client", "--for", "nobody").code == 2
    assert inline("export", "client", "--for", "claude-desktop", "--http").code == 2
    draft = workspace / ".drivers" / "draft-mcp" / "DRIVER.draft.md"
    draft.parent.mkdir()
    draft.write_text(DRIVER)
    done = inline("export", "driver", "draft-mcp", "--upstream")
    assert (done.code, "a draft" in done.err) == (1, True)
