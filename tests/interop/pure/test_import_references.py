"""What a person names on the command line: what is it, and what is the driver called?"""

import pytest

from interlock.interop.protocol.drafts import driver_id
from interlock.interop.protocol.launchers import UnknownReference, entry_of


@pytest.mark.parametrize(
    ("reference", "args", "expected"),
    [
        ("npm:@modelcontextprotocol/server-filesystem", ("/srv",), "filesystem-mcp"),
        ("npm:@modelcontextprotocol/server-filesystem@2026.8.31", (), "filesystem-mcp"),
        ("npm:@playwright/mcp@latest", (), "playwright-mcp"),
        ("npm:@acme/mcp-server", (), "acme-mcp"),
        ("npm:mcp-server", (), "mcp-server-mcp"),
        ("pypi:mcp-server-git", (), "git-mcp"),
        ("pypi:mcp-server-time==2026.10.19", (), "time-mcp"),
        ("pypi:notes-mcp[extra]>=1", (), "notes-mcp"),
        ("docker:mcp/postgres:latest", (), "postgres-mcp"),
        ("docker:ghcr.io/acme/weather-mcp-server@sha256:00", (), "weather-mcp"),
        ("https://mcp.linear.app/mcp", (), "linear-mcp"),
        ("https://api.example.com", (), "example-mcp"),
        ("http://127.0.0.1:7000/mcp", (), "server-127-0-0-1-mcp"),
        ("http://localhost:7000/mcp", (), "localhost-mcp"),
        ("/srv/bin/weather", (), "weather-mcp"),
        ("", ("python3", "-m", "notes_server"), "notes-mcp"),
        ("", ("node", "/srv/weather/server.js"), "weather-mcp"),
        ("", ("uvx", "mcp-server-git"), "git-mcp"),
        ("", ("npx", "-y", "@modelcontextprotocol/server-memory"), "memory-mcp"),
    ],
)
def test_a_driver_is_called_after_what_it_drives(reference: str, args: tuple[str, ...], expected: str) -> None:
    assert driver_id(entry_of(reference, args).name) == expected


def test_a_package_with_its_arguments_is_a_server_block() -> None:
    entry = entry_of("npm:notes@1.2.3", ("/srv", "--all"))
    assert entry.server == {"kind": "npm", "package": "notes@1.2.3", "args": ["/srv", "--all"]}


@pytest.mark.parametrize(
    ("reference", "args"),
    [
        ("", ()),
        (" ", ()),
        ("npm:", ()),
        ("pypi:", ("x",)),
        ("gem:thing", ()),
        ("word", ()),
        ("https://a.example/mcp", ("argument",)),
    ],
)
def test_an_invalid_reference_is_refused_with_valid_forms(reference: str, args: tuple[str, ...]) -> None:
    with pytest.raises(UnknownReference):
        entry_of(reference, args)
