"""Is a package for which a driver ships added with what that driver knows, unless the person says otherwise?"""

from pathlib import Path
from typing import Any

from interlock.drivers.add import ShippedTemplate, with_shipped

DATA = Path("/srv/node")
MEMORY = "@modelcontextprotocol/server-memory"


def taken(kind: str, package: str, args: tuple[str, ...] = (), **more: Any) -> ShippedTemplate | None:
    server = {"kind": kind, "package": package, "env": more.pop("env", {}), "args": list(args)}
    data = {"name": "Mine", "id": "mine-mcp", "description": "Mine.", "version": "1.0.0", "kind": "mcp"}
    block = {"network": {"egress": []}, **more}
    return with_shipped({**data, "server": server, "transport": "stdio", "implements": [], **block}, DATA)


def test_a_template_that_names_a_file_puts_it_in_the_private_home() -> None:
    found = taken("npm", f"{MEMORY}@2026.8.31")
    assert found is not None
    assert found.data["server"]["env"] == {"MEMORY_FILE_PATH": "/srv/node/homes/mine-mcp/memory.jsonl"}
    assert (found.shipped, found.what) == ("memory-mcp", ("MEMORY_FILE_PATH",))
    assert "sandbox" not in found.data


def test_choices_of_the_person_override_a_shipped_driver() -> None:
    found = taken("npm", MEMORY, env={"MEMORY_FILE_PATH": "/x/mem.jsonl"})
    assert found is not None
    assert (found.data["server"]["env"], found.what) == ({"MEMORY_FILE_PATH": "/x/mem.jsonl"}, ())
    install = [{"method": "pip", "package": "mcp-server-sqlite", "with": ["mcp<1.9"]}]
    beside = taken("pypi", "mcp-server-sqlite", ("--db-path", "/x/d.db"), install=install)
    assert beside is not None
    assert (beside.data["install"], beside.data["server"]["args"]) == (install, ["--db-path", "/x/d.db"])
    hosts = taken("pypi", "mcp-server-fetch", network={"egress": ["example.com"]})
    assert hosts is not None
    assert hosts.data["network"] == {"egress": ["example.com"]}


def test_extra_packages_arguments_and_sandbox_of_a_shipped_driver_are_used() -> None:
    sqlite = taken("pypi", "mcp_server_sqlite==2025.4.25")
    assert sqlite is not None
    assert sqlite.data["install"] == [{"method": "pip", "package": "mcp_server_sqlite==2025.4.25", "with": ["mcp<2"]}]
    assert sqlite.data["server"]["args"] == ["--db-path", "/srv/node/homes/mine-mcp/data.db"]
    git = taken("pypi", "mcp-server-git", ("--repository", "/x"), sandbox={"fs": {"write": ["/x"]}})
    assert git is not None
    assert git.data["sandbox"] == {"fs": {"write": ["/x"]}, "exec": {"allow": False, "spawn": ["git"]}}
    fetch = taken("pypi", "mcp-server-fetch")
    assert fetch is not None
    assert fetch.data["network"] == {"egress": ["*"]}


def test_a_folder_of_the_template_is_not_guessed() -> None:
    git = taken("pypi", "mcp-server-git")
    assert git is not None
    assert git.data["server"]["args"] == []


def test_another_package_or_registry_gets_nothing() -> None:
    assert taken("npm", "server-memory") is None
    assert taken("pypi", "mcp-server-memory") is None
