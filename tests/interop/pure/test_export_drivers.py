"""Is a driver given away whole, without its secrets, and does it come back as the same driver?"""

import json
from typing import Any

import jsonschema_rs
import pytest
from tests.drivers.driver_texts import driver as driver_data
from tests.interop.foreign_files import wrap_servers

from interlock.drivers.protocol.authoring import driver_upstream
from interlock.drivers.protocol.files.driver import check_published, read_driver
from interlock.drivers.protocol.files.frontmatter import frontmatter_text
from interlock.drivers.protocol.files.inventory import read_secrets
from interlock.drivers.protocol.model import Driver, SecretInventory
from interlock.interop.protocol.client_files import driver_entry, read_client_file
from interlock.interop.protocol.clients import BY_NAME, CLIENTS
from interlock.interop.protocol.drafts import ImportChoices, draft_entry
from interlock.interop.protocol.model import DriverDraft
from interlock.interop.protocol.package_files import read_driver_entry, read_registry, registry_description
from interlock.interop.protocol.text_edits import with_entry

INVENTORY = b"---\nsecrets:\n  - {slug: files-mcp/level, name: L, description: d, backend: 'env://MY_LEVEL'}\n---\n"
EXPANDING = [client.name for client in CLIENTS if client.expands]
LITERAL = [client.name for client in CLIENTS if not client.expands]

SPAWNED: dict[str, Any] = {
    "args": ["--key", "${secrets.API_KEY}", "/srv/data"],
    "env": {"API_KEY": "${secrets.API_KEY}", "LEVEL": "${secrets.LEVEL}", "MODE": "fast", "TEXT": "a {b} c"},
}
SERVERS: dict[str, dict[str, Any]] = {
    "npm": {"kind": "npm", "package": "@scope/files", "version": "1.2.3", **SPAWNED},
    "pypi": {"kind": "pypi", "package": "files==2.0", **SPAWNED},
    "docker": {"kind": "docker", "image": "example/files:1.0", "volumes": ["/srv/a:/a"], **SPAWNED},
    "binary": {"kind": "binary", "path": "/srv/bin/files", **SPAWNED},
    "remote": {
        "kind": "remote",
        "url": "https://a.example/mcp",
        "headers": {"Authorization": "Bearer ${secrets.API_KEY}", "X-Plain": "1"},
        "query": {"level": "${secrets.LEVEL}"},
    },
}


def made(kind: str, **changed: Any) -> tuple[Driver, dict[str, Any]]:
    transport = "http" if kind == "remote" else "stdio"
    data = driver_data(id="files-mcp", name="Files", server=SERVERS[kind], transport=transport, **changed)
    reading = read_driver(frontmatter_text(data).encode(), "DRIVER.md")
    assert reading.value is not None, reading.errors
    return reading.value, data


def inventory() -> SecretInventory | None:
    return read_secrets(INVENTORY, "SECRETS.md").value


def same_server(one: Any, other: Any) -> bool:
    return bool(one == other)


@pytest.mark.req("AIP-export-2")
@pytest.mark.parametrize("client", EXPANDING)
@pytest.mark.parametrize("kind", SERVERS)
def test_a_client_that_expands_variables_gets_their_names(client: str, kind: str) -> None:
    driver, _ = made(kind)
    known = BY_NAME[client]
    exported = driver_entry(driver, inventory(), known, "files")
    assert exported is not None
    written, variables = exported
    assert set(variables) == {"API_KEY", "MY_LEVEL"}
    text = with_entry("", known, "files", written)
    assert (known.expands or "").replace("VAR", "API_KEY") in text
    assert "secrets." not in text
    (entry,) = read_client_file(text.encode(), known).entries
    again = draft_entry(entry, wrap_servers(), ImportChoices())
    assert isinstance(again, DriverDraft), again
    assert again.data["server"]["kind"] == kind
    assert {each.backend for each in again.secrets} == {"env://API_KEY", "env://MY_LEVEL"}


@pytest.mark.req("AIP-export-2")
@pytest.mark.parametrize("client", LITERAL)
def test_a_client_that_expands_none_gets_no_direct_entry_for_a_driver_with_secrets(client: str) -> None:
    for kind in SERVERS:
        assert driver_entry(made(kind)[0], inventory(), BY_NAME[client], "files") is None


@pytest.mark.req("AIP-export-2")
def test_a_driver_without_secrets_is_direct_everywhere() -> None:
    data = driver_data(server={"kind": "npm", "package": "files", "entry": "run"}, id="files-mcp")
    driver = read_driver(frontmatter_text(data).encode(), "DRIVER.md").value
    assert driver is not None
    exported = driver_entry(driver, None, BY_NAME["claude-desktop"], "files")
    assert exported == ({"command": "npx", "args": ["-y", "-p", "files", "run"]}, ())
    remote = driver_data(server={"kind": "remote", "url": "https://a.example/sse"}, transport="sse", id="files-mcp")
    dialled = read_driver(frontmatter_text(remote).encode(), "DRIVER.md").value
    assert dialled is not None
    assert driver_entry(dialled, None, BY_NAME["claude-desktop"], "files") is None
    exported = driver_entry(dialled, None, BY_NAME["gemini-cli"], "files")
    assert exported == ({"url": "https://a.example/sse"}, ())


# What the published schema of 2025-12-11 demands of the parts that are written here.
TEXT = {"type": "string"}
INPUT: dict[str, Any] = {
    "type": "object",
    "properties": {
        "description": TEXT,
        "isRequired": {"type": "boolean"},
        "isSecret": {"type": "boolean"},
        "value": TEXT,
        "default": TEXT,
        "variables": {
            "type": "object",
            "additionalProperties": {"type": "object", "properties": {"isSecret": {"type": "boolean"}}},
        },
    },
}
NAMED = {**INPUT, "required": ["name"], "properties": {**INPUT["properties"], "name": TEXT}}
ARGUMENT = {
    "anyOf": [
        {
            **INPUT,
            "required": ["type"],
            "anyOf": [{"required": ["valueHint"]}, {"required": ["value"]}],
            "properties": {**INPUT["properties"], "type": {"enum": ["positional"]}},
        },
        {**NAMED, "required": ["type", "name"], "properties": {**NAMED["properties"], "type": {"enum": ["named"]}}},
    ]
}
REGISTRY_SCHEMA = {
    "type": "object",
    "required": ["name", "description", "version"],
    "properties": {
        "$schema": TEXT,
        "name": {"type": "string", "minLength": 3, "maxLength": 200, "pattern": "^[a-zA-Z0-9.-]+/[a-zA-Z0-9._-]+$"},
        "description": {"type": "string", "minLength": 1, "maxLength": 100},
        "title": {"type": "string", "minLength": 1, "maxLength": 100},
        "version": {"type": "string", "maxLength": 255},
        "packages": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["registryType", "identifier", "transport"],
                "properties": {
                    "registryType": TEXT,
                    "identifier": TEXT,
                    "version": {"type": "string", "minLength": 1, "not": {"const": "latest"}},
                    "transport": {"type": "object", "required": ["type"], "properties": {"type": {"enum": ["stdio"]}}},
                    "packageArguments": {"type": "array", "items": ARGUMENT},
                    "runtimeArguments": {"type": "array", "items": ARGUMENT},
                    "environmentVariables": {"type": "array", "items": NAMED},
                },
            },
        },
        "remotes": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["type", "url"],
                "properties": {
                    "type": {"enum": ["streamable-http", "sse"]},
                    "url": {"type": "string", "pattern": "^https?://[^\\s]+$"},
                    "headers": {"type": "array", "items": NAMED},
                    "variables": {"type": "object"},
                },
            },
        },
    },
}


@pytest.mark.req("AIP-export-3")
@pytest.mark.parametrize("kind", ["npm", "pypi", "docker", "remote"])
def test_a_registry_s_description_is_valid_and_comes_back_as_the_same_driver(kind: str) -> None:
    driver, data = made(kind, description="Long. " * 50)
    description = registry_description(driver, data)
    assert description is not None
    server_json, _ = description
    assert [str(error) for error in jsonschema_rs.Draft7Validator(REGISTRY_SCHEMA).iter_errors(server_json)] == []
    text = json.dumps(server_json)
    assert text.count('"isSecret": true') >= 2
    assert "secrets." not in text
    (entry,) = read_registry(text.encode()).entries
    again = draft_entry(entry, wrap_servers(), ImportChoices())
    assert isinstance(again, DriverDraft), again
    back = read_driver(frontmatter_text({**again.data, "implements": data["implements"]}).encode(), "DRIVER.md").value
    assert back is not None
    assert same_server(back.server, driver.server)
    assert (back.id, back.transport, set(back.secret_names)) == (driver.id, driver.transport, set(driver.secret_names))


@pytest.mark.req("AIP-export-3")
def test_settings_that_a_registry_cannot_express_are_reported() -> None:
    driver, data = made("npm", network={"egress": []}, sandbox={"fs": {"read": ["/srv"]}})
    description = registry_description(driver, data, "io.github.me/files")
    assert description is not None
    server_json, lost = description
    assert server_json["name"] == "io.github.me/files"
    assert set(lost) >= {"network", "sandbox", "implements"}
    assert registry_description(*made("binary")) is None


@pytest.mark.req("AIP-export-3")
@pytest.mark.parametrize("kind", SERVERS)
def test_a_driver_without_our_extensions_passes_the_published_schemas_and_comes_back(kind: str) -> None:
    extended = {"sandbox": {"fs": {"read": ["/srv"]}}, "metadata": {"interlock": {"expose": "all"}}}
    driver, data = made(kind, **extended)
    found = driver_upstream(data)
    text = frontmatter_text(found.data)
    assert check_published(text.encode(), "DRIVER.md") == ()
    assert set(found.lost) >= {"sandbox", "metadata.interlock.expose"}
    (entry,) = read_driver_entry(text.encode()).entries
    again = draft_entry(entry, wrap_servers(), ImportChoices())
    assert isinstance(again, DriverDraft), again
    back = read_driver(frontmatter_text({**again.data, "implements": data["implements"]}).encode(), "DRIVER.md").value
    assert back is not None
    if kind == "pypi":
        assert found.data["server"]["kind"] == "binary"
    if kind in {"npm", "pypi", "binary"}:
        assert same_server(back.server, driver.server)
    elif kind == "docker":
        assert "server.volumes" in found.lost
    else:
        assert {"server.headers", "server.query"} <= set(found.lost)
    assert (back.id, back.transport) == (driver.id, driver.transport)
