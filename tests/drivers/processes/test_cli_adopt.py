"""Does `interlock secrets adopt` move credentials out of a driver's file, and leave the rest of it as it was?"""

import asyncio
import json
import time
from pathlib import Path

import pytest
from tests.cli.program import Interlock
from tests.drivers.driver_files import driver, text, write

from interlock.store.sqlite.secrets import SealedSecrets

MARKER = "m4rk3rS3cr3tV4lu3x0123456789"
TOKEN = f"ghp_{MARKER}"
SERVER = {
    "kind": "binary",
    "path": "/usr/bin/true",
    "args": [
        "--api-key",
        f"sk-{MARKER}",
        f"--token=t{MARKER}",
        "--root",
        "/srv",
        f"postgres://u:{MARKER}@db.example/x",
    ],
    "env": {"GITHUB_TOKEN": TOKEN, "LEVEL": "info"},
}
REMOTE = {"kind": "remote", "url": "https://a.example/mcp", "headers": {"Authorization": f"Bearer {MARKER}"}}


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


@pytest.mark.req("AIP-19.plain-2")
def test_credentials_are_refused_by_key_and_adopted_they_are_in_the_store_alone(interlock: Interlock) -> None:
    folder = write(interlock.folder, driver(server=SERVER))
    path = folder / "DRIVER.md"
    path.write_text(path.read_text().replace("transport: stdio", "transport: stdio  # as it is") + "\nA body.\n")
    refused = interlock("check")
    assert refused.code != 0
    said = refused.out + refused.err
    assert said.count("plaintext_secret") == 4
    assert "GITHUB_TOKEN" in said
    assert MARKER not in said
    done = interlock("secrets", "adopt", "files-mcp", "--json")
    assert done.code == 0, done.err
    slugs = [each["slug"] for each in json.loads(done.out)["adopted"]]
    assert slugs == ["files-mcp/github-token", "files-mcp/api-key", "files-mcp/token", "files-mcp/argument"]
    assert MARKER not in done.out + done.err
    data = interlock.data
    kept = [revealed(data, slug) for slug in slugs]
    assert kept == [TOKEN, f"sk-{MARKER}", f"t{MARKER}", f"postgres://u:{MARKER}@db.example/x"]
    written = b"".join(each.read_bytes() for each in interlock.folder.rglob("*") if each.is_file())
    assert MARKER.encode() not in written
    now = path.read_text()
    assert "GITHUB_TOKEN: ${secrets.GITHUB_TOKEN}" in now
    assert "--token=${secrets.TOKEN}" in now
    assert "# as it is" in now
    assert now.endswith("\nA body.\n")
    after = interlock("check")
    assert after.code == 0, after.out + after.err
    again = interlock("secrets", "adopt", "files-mcp", "--json")
    assert json.loads(again.out)["adopted"] == []
    assert path.read_text() == now


@pytest.mark.req("AIP-19.plain-2")
def test_the_scheme_of_a_header_stays_and_an_inventory_is_added_to(interlock: Interlock) -> None:
    folder = write(interlock.folder, driver(server=REMOTE, transport="http", auth={"ref": "./SECRETS.md"}))
    entry = {"slug": "files-mcp/authorization", "name": "Old", "description": "Another one."}
    (folder / "SECRETS.md").write_text(text({"secrets": [entry]}))
    done = interlock("secrets", "adopt", "files-mcp")
    assert (done.code, done.out.splitlines()[0]) == (
        0,
        "server.headers.Authorization is kept as files-mcp/authorization-2",
    )
    assert "Authorization: Bearer ${secrets.AUTHORIZATION_2}" in (folder / "DRIVER.md").read_text()
    inventory = (folder / "SECRETS.md").read_text()
    assert "files-mcp/authorization\n" in inventory
    assert "files-mcp/authorization-2\n" in inventory
    assert interlock("check").code == 0


@pytest.mark.req("AIP-19.plain-2")
def test_keys_that_are_named_no_secret_pass_and_are_left(interlock: Interlock) -> None:
    server = {**SERVER, "args": [], "env": {"GITHUB_TOKEN": TOKEN}}
    folder = write(interlock.folder, driver(server=server, metadata={"interlock": {"not_secret": ["GITHUB_TOKEN"]}}))
    before = (folder / "DRIVER.md").read_bytes()
    assert interlock("check").code == 0
    done = interlock("secrets", "adopt", "files-mcp")
    assert done.code == 0
    assert "the file has no credential" in done.err
    assert (folder / "DRIVER.md").read_bytes() == before


def test_another_value_in_the_store_is_not_overwritten(interlock: Interlock) -> None:
    folder = write(interlock.folder, driver(server={**SERVER, "args": []}))
    assert interlock("secrets", "set", "files-mcp/github-token", stdin="another-value\n").code == 0
    before = (folder / "DRIVER.md").read_bytes()
    done = interlock("secrets", "adopt", "files-mcp")
    assert done.code != 0
    assert "interlock secrets remove files-mcp/github-token" in done.err
    assert TOKEN not in done.err
    assert (folder / "DRIVER.md").read_bytes() == before
    assert not (folder / "SECRETS.md").exists()


@pytest.mark.parametrize(
    "body", ["", "no frontmatter", "---\n- a list\n---\n", "---\nid: [1]\n---\n", "---\n\x00\n---\n"]
)
def test_a_file_that_is_no_driver_is_reported_and_left_alone(interlock: Interlock, body: str) -> None:
    folder = write(interlock.folder, driver())
    (folder / "DRIVER.md").write_text(body)
    done = interlock("secrets", "adopt", "files-mcp")
    assert done.code != 0
    assert "Traceback" not in done.err
    assert (folder / "DRIVER.md").read_text() == body


def test_a_credential_in_a_url_is_named_for_a_person_to_move(interlock: Interlock) -> None:
    server = {"kind": "remote", "url": f"https://u:{MARKER}@a.example/mcp"}
    write(interlock.folder, driver(server=server, transport="http"))
    done = interlock("secrets", "adopt", "files-mcp")
    assert "server.url" in done.err
    assert MARKER not in done.out + done.err


def test_an_unknown_driver_is_reported(interlock: Interlock) -> None:
    done = interlock("secrets", "adopt", "nothing")
    assert done.code != 0
    assert "no driver nothing" in done.err


def test_where_a_secret_comes_from_is_shown_before_a_driver_is_trusted(interlock: Interlock) -> None:
    server = {**SERVER, "args": [], "env": {"TOKEN": "${secrets.TOKEN}"}}
    folder = write(interlock.folder, driver(server=server, auth={"ref": "./SECRETS.md"}))
    entry = {"slug": "token", "name": "T", "description": "T", "backend": "file:///srv/keys/id"}
    (folder / "SECRETS.md").write_text(text({"secrets": [entry]}))
    shown = interlock("drivers", "show", "files-mcp")
    assert "token from file:///srv/keys/id" in " ".join(shown.out.split())
