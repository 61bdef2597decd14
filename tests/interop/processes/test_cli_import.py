"""Does `interlock import` do what it says, tell places and slugs, and never a value?"""

import asyncio
import json
import os
import pty
import select
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from tests.cli.program import Inline, Interlock
from tests.operator.fake_node import FakeOperations

from interlock.store.sqlite.secrets import SealedSecrets

MARKER = "m4rk3rS3cr3tV4lu3x0123456789"


def cursor(folder: Path, servers: dict[str, Any]) -> Path:
    path = folder / ".cursor" / "mcp.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({"mcpServers": servers}))
    return path


def revealed(data: Path, slug: str) -> str | None:
    async def get() -> bytes | None:
        secrets = SealedSecrets(data)
        await secrets.open()
        try:
            return await secrets.get("secret", slug, time.time())
        finally:
            await secrets.close()

    value = asyncio.run(get())
    return None if value is None else value.decode()


def everything_written(folder: Path, *but: Path) -> bytes:
    return b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file() and path not in but)


SERVERS = {
    "My Files": {
        "command": "npx",
        "args": ["-y", "fs", "--api-key", f"arg{MARKER}", f"postgres://u:dsn{MARKER}@db.example/x"],
        "env": {"API_TOKEN": f"env{MARKER}"},
    },
    "far": {
        "url": f"https://a.example/mcp?key=url{MARKER}",
        "headers": {"Authorization": f"Bearer head{MARKER}"},
    },
    "both": {"command": "x", "url": "https://a.example"},
}


@pytest.mark.req("AIP-import-6", "AIP-import-13")
def test_secrets_of_every_place_are_in_the_store_and_in_no_file(interlock: Interlock) -> None:
    source = cursor(interlock.folder, SERVERS)
    before = source.read_bytes()
    dry = interlock("import", "--dry-run")
    assert dry.code == 0
    assert not (interlock.folder / ".drivers").exists()
    assert "my-files-mcp/api-token" in dry.out
    done = interlock("import", "--no-connect")
    assert (done.code, done.err.count("error")) == (0, 0)
    heads = [line for line in done.out.splitlines() if line.startswith("new ")]
    assert "new far (Cursor)" in heads  # by its one name: the id is in the paths
    assert not [head for head in heads if "-mcp" in head]
    assert "interlock add my-files asks the server" in done.err
    kept = {
        "my-files-mcp/api-key": f"arg{MARKER}",
        "my-files-mcp/postgres-url": f"postgres://u:dsn{MARKER}@db.example/x",
        "my-files-mcp/api-token": f"env{MARKER}",
        "far-mcp/key": f"url{MARKER}",
        "far-mcp/authorization": f"head{MARKER}",
    }
    for slug, value in kept.items():
        assert revealed(interlock.data, slug) == value
        assert slug in done.out
    assert MARKER.encode() not in everything_written(interlock.folder, source)
    assert MARKER not in dry.out + dry.err + done.out + done.err
    assert "skipped both (Cursor)" in done.out
    assert source.read_bytes() == before
    again = interlock("import")
    assert again.out.count("unchanged") == 2
    assert "nothing to do" in again.err


@pytest.mark.req("AIP-import-8")
def test_without_connecting_nothing_is_started_and_helpers_never_run(interlock: Interlock) -> None:
    ran = interlock.folder / "ran"
    touch = {"command": "touch", "args": [str(ran)]}
    cursor(interlock.folder, {"local": touch, "far": {"url": "https://a.example", "headersHelper": f"touch {ran}"}})
    done = interlock("import", "--no-connect", "--json").json
    assert [each["draft"] for each in done["drivers"]] == [True, True]
    assert done["drivers"][1]["notes"] == [
        {"code": "helper_not_run", "text": "headersHelper is code to run and is not imported"}
    ]
    assert not ran.exists()
    assert (interlock.folder / ".drivers/local-mcp/DRIVER.draft.md").exists()
    assert not (interlock.folder / ".drivers/local-mcp/DRIVER.md").exists()


@pytest.mark.req("AIP-import-1")
def test_the_list_shows_client_scope_count_and_path(inline: Inline, interlock: Interlock) -> None:
    cursor(interlock.folder, SERVERS)
    (interlock.folder / ".claude.json").write_text("{")
    (interlock.folder / ".mcp.json").write_text('{"mcpServers": {"a": {"command": "x"}}}')
    listed = inline("import", "--list", "--json").json["files"]
    there = {
        (each["client"], each["scope"], each["state"], each["servers"]) for each in listed if each["state"] != "absent"
    }
    assert there >= {
        ("cursor", "global", "read", 3),
        ("claude-code", "global", "unreadable", 0),
        ("claude-code", "project", "read", 1),
    }
    assert any(each["state"] == "absent" and each["client"] == "zed" for each in listed)
    shown = inline("import", "--list").out
    assert "Cursor" in shown
    assert "mcp.json" in shown
    only = inline("import", "--list", "--from", "cursor", "--json").json["files"]
    assert {each["client"] for each in only} == {"cursor"}


def test_the_list_does_not_count_interlock_itself(inline: Inline, interlock: Interlock) -> None:
    own = {"command": "interlock", "args": ["serve", "--stdio"]}
    cursor(interlock.folder, {"a": {"command": "x"}, "interlock": own})
    (listed,) = [
        each
        for each in inline("import", "--list", "--from", "cursor", "--json").json["files"]
        if each["state"] == "read"
    ]
    assert listed["servers"] == 1


def test_the_report_says_that_secrets_are_copied_and_where_they_still_are(inline: Inline, interlock: Interlock) -> None:
    path = cursor(interlock.folder, {"a": {"command": "x", "env": {"DB_PASS": "hunter"}}})
    shown = inline("import", "--no-connect").out
    assert "copied to the store" in shown
    assert "still hold the values" in shown
    assert path.name in shown.partition("still hold the values")[2]
    assert "hunter" not in shown
    assert b"hunter" not in everything_written(interlock.folder, path)


@pytest.mark.req("AIP-import-1")
def test_any_file_can_be_read_as_any_client_s(inline: Inline, interlock: Interlock) -> None:
    file = interlock.folder / "old.txt"
    file.write_text('{"context_servers": {"a": {"command": "x"}}}')
    done = inline("import", "--file", "old.txt", "--as", "zed", "--dry-run", "--json").json
    assert [each["id"] for each in done["drivers"]] == ["a-mcp"]
    unknown = inline("import", "--file", "old.txt", "--as", "nobody")
    assert (unknown.code, "cursor" in unknown.err) == (2, True)
    missing = inline("import", "--file", "none.json", "--as", "zed")
    assert (missing.code, "there is no such file" in missing.err) == (1, True)
    file.write_text("[]")
    assert inline("import", "--file", "old.txt").code == 2


@pytest.mark.req("AIP-import-12")
def test_the_description_of_a_package_is_recognised_by_its_form(inline: Inline, interlock: Interlock) -> None:
    server = {
        "name": "a/weather",
        "description": "d",
        "version": "1",
        "packages": [{"registryType": "npm", "identifier": "w"}],
    }
    (interlock.folder / "server.json").write_text(json.dumps(server))
    done = inline("import", "--file", "server.json", "--dry-run", "--json").json
    assert [(each["id"], each["command"]) for each in done["drivers"]] == [("weather-mcp", ["npx", "w"])]
    (interlock.folder / "catalog.yaml").write_text("registry:\n  a: {image: 'mcp/a:1'}\n  b: {image: 'mcp/b:1'}\n")
    done = inline("import", "b", "--file", "catalog.yaml", "--dry-run", "--json").json
    assert [each["id"] for each in done["drivers"]] == ["b-mcp"]


def test_a_running_node_keeps_the_secrets(inline: Inline, node: FakeOperations, interlock: Interlock) -> None:
    cursor(interlock.folder, {"far": {"url": "https://a.example", "headers": {"X-Key": MARKER}}})
    done = inline("import", "--json").json
    assert done["drivers"][0]["secrets"] == [{"place": "headers.X-Key", "slug": "far-mcp/x-key", "state": "kept"}]
    assert node.kept["secret", "far-mcp/x-key"] == MARKER
    node.kept["secret", "far-mcp/x-key"] = "rotated"
    done = inline("import", "--json").json
    assert done["drivers"][0]["secrets"][0]["state"] == "differs"
    assert node.kept["secret", "far-mcp/x-key"] == "rotated"


@pytest.mark.req("AIP-import-11")
def test_hosts_are_closed_unless_the_network_is_trusted(interlock: Interlock) -> None:
    cursor(interlock.folder, {"a": {"command": "x"}})
    interlock("import", "--trust-network")
    assert 'egress: ["*"]' in (interlock.folder / ".drivers/a-mcp/DRIVER.draft.md").read_text()
    cursor(interlock.folder, {"b": {"command": "y"}})
    interlock("import")
    assert "egress: []" in (interlock.folder / ".drivers/b-mcp/DRIVER.draft.md").read_text()


@pytest.mark.req("AIP-import-11", "AIP-import-8")
def test_a_person_is_asked_about_each_new_program_s_hosts(interlock: Interlock) -> None:
    cursor(interlock.folder, {"a": {"command": "x"}, "b": {"command": "y"}, "far": {"url": "https://a.example"}})
    ours, theirs = pty.openpty()
    os.write(ours, b"no host!\napi.example.com, *.b.example\n\nn\n\nn\n")
    done = subprocess.run(
        [sys.executable, "-m", "interlock", "import"],
        cwd=interlock.folder,
        env=interlock.env,
        stdin=theirs,
        stderr=theirs,
        stdout=subprocess.PIPE,
        timeout=30,
        check=False,
    )
    told = _read_all(ours)
    os.close(theirs)
    os.close(ours)
    assert done.returncode == 0, told
    assert told.count("which hosts may it reach?") == 3
    assert told.count("Start it to ask for its tools?") == 3
    tried = [one for one in ("a", "b", "far") if f"{one} stays a draft: the server could not be" in told]
    assert tried == ["b"]  # Enter agrees
    drafts = {
        each: (interlock.folder / f".drivers/{each}-mcp/DRIVER.draft.md").read_text() for each in ("a", "b", "far")
    }
    assert 'egress: [api.example.com, "*.b.example"]' in drafts["a"]
    assert "egress: []" in drafts["b"]
    assert "egress" not in drafts["far"]
    assert interlock("import").out.count("unchanged") == 3
    assert "api.example.com" in (interlock.folder / ".drivers/a-mcp/DRIVER.draft.md").read_text()


def test_an_empty_home_has_nothing_to_import(inline: Inline) -> None:
    done = inline("import")
    assert (done.code, done.out) == (0, "")
    assert "no servers found" in done.err


FETCH = {"web": {"command": "uvx", "args": ["mcp-server-fetch"]}, "own": {"command": "x"}}


@pytest.mark.req("AIP-import-11")
def test_the_hosts_that_a_known_server_needs_are_suggested(inline: Inline, interlock: Interlock) -> None:
    cursor(interlock.folder, FETCH)
    told = inline("import", "--no-connect").err
    assert "web is known to need *, and may reach no host: interlock drivers allow web '*'" in told
    assert "own is known" not in told
    assert "egress: []" in (interlock.folder / ".drivers/web-mcp/DRIVER.draft.md").read_text()


@pytest.mark.req("AIP-import-11")
@pytest.mark.parametrize(("answer", "written"), [("\n", 'egress: ["*"]'), ("-\n", "egress: []")])
def test_a_person_is_offered_the_hosts_that_a_known_server_needs(
    interlock: Interlock, answer: str, written: str
) -> None:
    cursor(interlock.folder, {"web": FETCH["web"]})
    ours, theirs = pty.openpty()
    os.write(ours, answer.encode())
    done = subprocess.run(
        [sys.executable, "-m", "interlock", "import", "--no-connect"],
        cwd=interlock.folder,
        env=interlock.env,
        stdin=theirs,
        stderr=theirs,
        stdout=subprocess.PIPE,
        timeout=30,
        check=False,
    )
    told = _read_all(ours)
    os.close(theirs)
    os.close(ours)
    assert done.returncode == 0, told
    assert "it is known to need *" in told
    assert written in (interlock.folder / ".drivers/web-mcp/DRIVER.draft.md").read_text()


@pytest.mark.req("AIP-import-8")
def test_yes_asks_nothing_on_a_terminal_and_lists_the_hosts_that_are_left(interlock: Interlock) -> None:
    cursor(interlock.folder, {"web": FETCH["web"]})
    ours, theirs = pty.openpty()
    done = subprocess.run(
        [sys.executable, "-m", "interlock", "import", "--no-connect", "--yes"],
        cwd=interlock.folder,
        env=interlock.env,
        stdin=theirs,
        stderr=theirs,
        stdout=subprocess.PIPE,
        timeout=30,
        check=False,
    )
    told = _read_all(ours)
    os.close(theirs)
    os.close(ours)
    assert done.returncode == 0, told
    assert "which hosts may it reach?" not in told
    left = told.partition("left to do:")[2]
    assert "interlock drivers allow web '*'" in left
    assert "interlock add web" in left


def _read_all(terminal: int) -> str:
    """What was written to a terminal that nothing writes to any more; one read gives a part of it."""
    told = b""
    while select.select([terminal], [], [], 0.2)[0]:
        told += os.read(terminal, 65536)
    return told.decode()


def test_a_server_whose_name_the_configuration_uses_gets_another_and_import_says_so(interlock: Interlock) -> None:
    (interlock.folder / "interlock.toml").write_text('[servers.far]\nurl = "https://far.example/mcp"\n')
    cursor(interlock.folder, {"far": {"url": "https://a.example/mcp"}})
    done = interlock("import", "--no-connect", "--json")
    assert done.code == 0, done.err
    (driver,) = done.json["drivers"]
    assert driver["id"] == "far-2-mcp"
    assert [note["text"] for note in driver["notes"] if note["code"] == "name_taken"] == [
        "far is [servers.far], so this server is named far-2"
    ]
    again = interlock("import", "--no-connect", "--json").json["drivers"]
    assert [(each["id"], each["status"]) for each in again] == [("far-2-mcp", "unchanged")]
