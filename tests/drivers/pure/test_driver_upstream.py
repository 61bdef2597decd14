"""A driver and a contract for hosts without our extensions: what stays, what is said otherwise, what is lost."""

from typing import Any

import pytest
from tests.drivers.driver_texts import as_driver, binding, driver, remote

from interlock.drivers.protocol.authoring import driver_upstream
from interlock.drivers.protocol.files.driver import check_published
from interlock.drivers.protocol.files.frontmatter import frontmatter_text
from interlock.drivers.protocol.files.schemas import EXTENSION_KEYS

EVERY_DRIVER_KEY = {
    "idle_timeout_ms": 1000,
    "isolation": "user",
    "max_processes": 2,
    "client_capabilities": ["roots"],
    "protocol_versions": ["2025-11-25"],
    "expose": "all",
    "not_secret": ["A"],
    "redact_results": False,
}
EVERY_BINDING_KEY = {
    "result_parse": {"as": "json"},
    "result_wrap": "text",
    "text_fallback": False,
    "argument_defaults": {"a": 1},
    "context_arguments": {"t": "context.tenant_id"},
}


def published(data: dict[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
    assert as_driver(data).value is not None, as_driver(data).problems
    found = driver_upstream(data)
    assert check_published(frontmatter_text(found.data).encode(), "DRIVER.md") == ()
    again = as_driver(found.data)
    assert again.value is not None
    assert again.value.extension_keys == ()
    return found.data, found.lost


def server(**block: Any) -> dict[str, Any]:
    transport = {"remote": "http"}.get(block["kind"], "stdio")
    return driver(server=block, transport=block.pop("transport", transport))


def test_a_driver_without_extensions_stays_as_it_is() -> None:
    data = driver(metadata={"other": 1}, install=[{"method": "npm", "package": "x"}], network={"egress": []})
    assert published(data) == (data, ())
    assert driver_upstream(data).changed == ()


@pytest.mark.parametrize(
    ("block", "expected", "lost"),
    [
        ({"kind": "npm", "package": "@a/b", "version": "1.2.3"}, {"kind": "npm", "package": "@a/b@1.2.3"}, ()),
        ({"kind": "npm", "package": "@a/b@1.2.3", "version": "1.2.3"}, {"kind": "npm", "package": "@a/b@1.2.3"}, ()),
        (
            {"kind": "npm", "package": "b", "entry": "x", "cwd": "/w", "env": {"A": "b"}},
            {"kind": "npm", "package": "b", "env": {"A": "b"}},
            ("server.entry", "server.cwd"),
        ),
        (
            {"kind": "pypi", "package": "mcp-server-git", "args": ["-r", "/w"], "env": {"A": "b"}},
            {
                "kind": "binary",
                "path": "uvx",
                "args": ["--from", "mcp-server-git", "mcp-server-git", "-r", "/w"],
                "env": {"A": "b"},
            },
            (),
        ),
        (
            {"kind": "pypi", "package": "a[x]==1.2", "runner": "venv", "cwd": "/w"},
            {"kind": "binary", "path": "uvx", "args": ["--from", "a[x]==1.2", "a"]},
            ("server.cwd", "server.runner"),
        ),
        (
            {"kind": "pypi", "package": "a", "version": "3", "entry": "-m a.b"},
            {"kind": "binary", "path": "uvx", "args": ["--from", "a==3", "python", "-m", "a.b"]},
            (),
        ),
        (
            {"kind": "docker", "image": "a/b:1", "port": 80, "path": "/x", "volumes": ["/a:/b"], "transport": "http"},
            None,
            ("server.port", "server.path", "server.volumes"),
        ),
        ({"kind": "binary", "path": "/bin/x", "cwd": "/"}, {"kind": "binary", "path": "/bin/x"}, ("server.cwd",)),
        (
            {
                "kind": "remote",
                "url": "https://a.example/mcp",
                "headers": {"X-Key": "${secrets.K}"},
                "query": {"a": "b"},
                "auth": {"type": "bearer", "secret": "K"},
            },
            {"kind": "remote", "url": "https://a.example/mcp"},
            ("server.headers", "server.query", "server.auth"),
        ),
    ],
)
def test_a_server_keeps_what_the_published_schema_has(
    block: dict[str, Any], expected: dict[str, Any] | None, lost: tuple[str, ...]
) -> None:
    if expected is None:  # such a server cannot be reached without its port: only what is lost is compared
        found = driver_upstream(server(**block))
        assert (found.data["server"], found.lost) == ({"kind": "docker", "image": "a/b:1"}, lost)
        return
    data, told = published(server(**block))
    assert (data["server"], told) == (expected, lost)


def test_every_extension_is_named_as_lost_or_expressed_otherwise() -> None:
    data = remote(headers={"X-A": "b"}, query={"a": "b"}, auth={"type": "none"}) | {
        "metadata": {"interlock": EVERY_DRIVER_KEY, "kept": {"a": 1}},
        "implements": [
            binding(),
            binding(tool="b", metadata={"mcp": {"tool_name": "t"}, "interlock": EVERY_BINDING_KEY}),
        ],
        "sandbox": {"fs": {"read": ["/a"]}},
    }
    written, lost = published(data)
    assert written["metadata"] == {"kept": {"a": 1}}
    assert "sandbox" not in written
    assert written["implements"][1]["metadata"] == {"mcp": {"tool_name": "t"}}
    named = {each.replace("implements[1]", "implements[]") for each in lost}
    servers = {f"server.{key}" for key in ("version", "cwd", "entry", "runner", "port", "volumes")}
    assert named == set(EXTENSION_KEYS) - servers


def test_metadata_that_held_nothing_else_is_gone() -> None:
    written, lost = published(driver(metadata={"interlock": {"expose": "all"}}))
    assert "metadata" not in written
    assert lost == ("metadata.interlock.expose",)


def test_a_way_to_install_that_is_ours_is_lost() -> None:
    ways = [{"method": "docker", "image": "a"}, {"method": "npm", "package": "b"}]
    written, lost = published(driver(install=ways))
    assert (written["install"], lost) == (ways[1:], ("install[0]",))


def test_changed_wording_is_reported_too() -> None:
    assert driver_upstream(server(kind="pypi", package="a")).changed == ("server.kind",)
    assert driver_upstream(server(kind="npm", package="a", version="1")).changed == ("server.version",)


def test_the_data_given_are_left_alone() -> None:
    data = server(kind="pypi", package="a", version="1", args=["x"])
    before = repr(data)
    driver_upstream(data)
    assert repr(data) == before
