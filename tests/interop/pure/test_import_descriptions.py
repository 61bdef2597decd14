"""Do packages' descriptions become drivers: registries, Docker, bundles, server cards?"""

import json
from contextlib import suppress
from functools import partial
from typing import Any

import pytest
from tests.interop.foreign_files import wrap_servers

from interlock.drivers.protocol.files.driver import read_driver
from interlock.drivers.protocol.files.frontmatter import frontmatter_text
from interlock.drivers.protocol.model import Driver
from interlock.interop.protocol.drafts import PENDING, ImportChoices, draft_entry
from interlock.interop.protocol.model import DriverDraft, FileReading, ImportNote
from interlock.interop.protocol.package_files import is_docker_data, read_docker, read_manifest, read_registry
from interlock.interop.protocol.text_edits import UnreadableFile

SHA = "ab" * 32


def only(reading: FileReading, **surroundings: Any) -> DriverDraft | ImportNote:
    (entry,) = reading.entries
    return draft_entry(entry, wrap_servers(**surroundings), ImportChoices())


def described(**parts: Any) -> FileReading:
    whole = {"name": "io.example/weather", "description": "Tells the weather.", "version": "1.0.0", **parts}
    return read_registry(json.dumps(whole).encode())


def driver_of(draft: DriverDraft | ImportNote) -> Driver:
    assert isinstance(draft, DriverDraft), draft
    reading = read_driver(frontmatter_text({**draft.data, "implements": [PENDING]}).encode(), "DRIVER.md")
    assert reading.errors == ()
    assert reading.value is not None
    return reading.value


NPM = {
    "registryType": "npm",
    "identifier": "@example/weather",
    "version": "1.2.3",
    "transport": {"type": "stdio"},
    "runtimeHint": "npx",
    "fileSha256": SHA,
    "packageArguments": [
        {"type": "positional", "value": "serve"},
        {"type": "named", "name": "--units", "default": "metric"},
        {"type": "named", "name": "--verbose"},
        {"type": "positional", "valueHint": "city", "isRequired": True, "description": "Where"},
    ],
    "environmentVariables": [
        {"name": "WEATHER_KEY", "isSecret": True, "isRequired": True, "description": "From the site"},
        {"name": "LEVEL", "default": "info"},
        {"name": "EXTRA"},
    ],
}


@pytest.mark.req("AIP-import-12")
def test_an_npm_package_of_a_registry_is_a_driver_with_its_inputs_as_slugs() -> None:
    draft = only(described(packages=[NPM]))
    driver = driver_of(draft)
    assert isinstance(draft, DriverDraft)
    assert draft.data["server"] == {
        "kind": "npm",
        "package": "@example/weather@1.2.3",
        "args": ["serve", "--units", "metric", "--verbose", "${secrets.CITY}"],
        "env": {"WEATHER_KEY": "${secrets.WEATHER_KEY}", "LEVEL": "info"},
    }
    assert driver.id == "weather-mcp"
    assert driver.description == "Tells the weather."
    assert draft.data["install"] == [{"method": "npm", "package": "@example/weather@1.2.3", "verify_sha256": SHA}]
    assert [(each.slug, each.description, each.value) for each in draft.secrets] == [
        ("weather-mcp/city", "Where", None),
        ("weather-mcp/weather-key", "From the site", None),
    ]


@pytest.mark.req("AIP-import-12")
def test_pypi_and_oci_packages_are_drivers() -> None:
    pypi = only(
        described(
            packages=[
                {"registryType": "pypi", "identifier": "weather", "version": "2.0", "transport": {"type": "stdio"}}
            ]
        )
    )
    assert isinstance(pypi, DriverDraft)
    assert pypi.data["server"] == {"kind": "pypi", "package": "weather==2.0"}
    driver_of(pypi)
    oci = {
        "registryType": "oci",
        "identifier": "docker.example/weather:1.0",
        "runtimeArguments": [
            {"type": "named", "name": "-v", "value": "/srv/data:/data"},
            {"type": "named", "name": "--network", "value": "host"},
        ],
        "environmentVariables": [{"name": "KEY", "isSecret": True}],
    }
    draft = only(described(packages=[oci]))
    assert isinstance(draft, DriverDraft)
    assert draft.data["server"] == {
        "kind": "docker",
        "image": "docker.example/weather:1.0",
        "volumes": ["/srv/data:/data"],
        "env": {"KEY": "${secrets.KEY}"},
    }
    assert [note.code for note in draft.notes] == ["docker_flag_dropped"]
    driver_of(draft)


@pytest.mark.req("AIP-import-12")
def test_a_remote_has_its_variables_filled_left_unset_or_refused() -> None:
    remote = {
        "type": "streamable-http",
        "url": "https://{region}.example.com/mcp",
        "variables": {"region": {"default": "eu"}},
        "headers": [
            {
                "name": "Authorization",
                "value": "Bearer {token}",
                "variables": {"token": {"isSecret": True, "description": "T"}},
            },
            {"name": "X-Literal", "value": "{unknown}"},
        ],
    }
    draft = only(described(remotes=[remote]))
    assert isinstance(draft, DriverDraft)
    assert draft.data["server"] == {
        "kind": "remote",
        "url": "https://eu.example.com/mcp",
        "headers": {"Authorization": "Bearer ${secrets.TOKEN}", "X-Literal": "{unknown}"},
    }
    assert draft.data["transport"] == "http"
    assert [(each.slug, each.value) for each in draft.secrets] == [("weather-mcp/token", None)]
    driver_of(draft)
    unset = only(described(remotes=[{**remote, "variables": {"region": {}}}]))
    assert isinstance(unset, ImportNote)
    assert unset.code == "variable_unset"


@pytest.mark.req("AIP-import-12")
def test_the_older_spelling_is_read_too() -> None:
    package = {
        "registry_type": "npm",
        "identifier": "weather",
        "version": "1.0.0",
        "runtime_hint": "npx",
        "package_arguments": [{"type": "named", "name": "--units", "value": "metric", "is_required": True}],
        "environment_variables": [{"name": "API_KEY", "is_secret": True, "is_required": True}],
    }
    draft = only(described(packages=[package]))
    assert isinstance(draft, DriverDraft)
    assert draft.data["server"] == {
        "kind": "npm",
        "package": "weather@1.0.0",
        "args": ["--units", "metric"],
        "env": {"API_KEY": "${secrets.API_KEY}"},
    }


@pytest.mark.req("AIP-import-12")
@pytest.mark.parametrize("kind", ["nuget", "cargo", "mcpb", "elsewhere"])
def test_other_types_are_reported_and_not_guessed(kind: str) -> None:
    note = only(described(packages=[{"registryType": kind, "identifier": "https://x.example/a.mcpb", "version": "1"}]))
    assert isinstance(note, ImportNote)
    assert note.code == "unsupported"
    both = only(described(packages=[{"registryType": kind, "identifier": "x"}, NPM]))
    assert isinstance(both, DriverDraft)


def test_a_package_of_another_registry_is_not_taken_from_the_usual_registry() -> None:
    note = only(described(packages=[{**NPM, "registryBaseUrl": "https://packages.example.com"}]))
    assert isinstance(note, ImportNote)
    assert "another registry" in note.text


def test_a_package_that_serves_http_itself_is_reported() -> None:
    note = only(described(packages=[{**NPM, "transport": {"type": "streamable-http", "url": "http://localhost:1/"}}]))
    assert isinstance(note, ImportNote)
    assert "serves HTTP" in note.text


@pytest.mark.req("AIP-import-12")
def test_the_answer_of_a_registry_and_a_server_card_are_read() -> None:
    whole = {"server": {"name": "a/b", "description": "d", "version": "1", "packages": [NPM]}, "_meta": {}}
    wrapped = read_registry(json.dumps(whole).encode())
    assert [each.name for each in wrapped.entries] == ["b"]
    listed = read_registry(json.dumps({"servers": [whole, whole]}).encode())
    assert len(listed.entries) == 2
    card = {
        "$schema": "https://static.modelcontextprotocol.io/schemas/v1/server-card.schema.json",
        "name": "com.example/weather",
        "version": "1.0.0",
        "description": "d",
        "remotes": [{"type": "sse", "url": "https://a.example/sse", "supportedProtocolVersions": ["2025-11-25"]}],
    }
    draft = only(read_registry(json.dumps(card).encode()))
    assert isinstance(draft, DriverDraft)
    assert (draft.data["server"]["url"], draft.data["transport"]) == ("https://a.example/sse", "sse")


SERVER_YAML = """
name: weather
image: mcp/weather:1.0
type: server
about: {title: Weather, description: Tells the weather.}
run:
  command: [--transport, stdio]
  volumes: ["{{weather.path|volume|into}}", "/srv/data:/data"]
  allowHosts: ["api.example.com:443"]
  env: {MODE: fast}
config:
  secrets:
    - {name: weather.key, env: WEATHER_KEY, example: x, description: From the site}
  env:
    - {name: CITY, value: "{{weather.city}}"}
"""


@pytest.mark.req("AIP-import-12")
def test_docker_s_description_is_a_driver_with_its_hosts() -> None:
    draft = only(read_docker(SERVER_YAML.encode()))
    assert isinstance(draft, DriverDraft)
    assert draft.data["name"] == "Weather"
    assert draft.data["server"] == {
        "kind": "docker",
        "image": "mcp/weather:1.0",
        "volumes": ["/srv/data:/data"],
        "args": ["--transport", "stdio"],
        "env": {"MODE": "fast", "CITY": "${secrets.WEATHER_CITY}", "WEATHER_KEY": "${secrets.WEATHER_KEY}"},
    }
    assert draft.data["network"] == {"egress": ["api.example.com"]}
    assert [note.code for note in draft.notes] == ["volume_unset"]
    assert [(each.slug, each.value) for each in draft.secrets] == [
        ("weather-mcp/weather-city", None),
        ("weather-mcp/weather-key", None),
    ]
    driver_of(draft)


CATALOG = """
name: docker-mcp
registry:
  weather:
    title: Weather
    image: mcp/weather@sha256:{digest}
    secrets: [{{name: weather.key, env: WEATHER_KEY}}]
    env: [{{name: MODE, value: fast}}]
    command: [serve]
    disableNetwork: true
    tools: [{{name: now}}]
  far:
    type: remote
    remote:
      transport_type: streamable-http
      url: https://far.example/mcp
      headers: {{Authorization: "Bearer $FAR_TOKEN"}}
    secrets: [{{name: far.token, env: FAR_TOKEN}}]
  odd:
    type: poci
""".format(digest="c" * 64)


@pytest.mark.req("AIP-import-12")
def test_a_catalog_of_docker_s_gateway_gives_each_of_its_servers() -> None:
    reading = read_docker(CATALOG.encode())
    weather, far, odd = (draft_entry(each, wrap_servers(), ImportChoices()) for each in reading.entries)
    assert isinstance(weather, DriverDraft)
    assert weather.data["network"] == {"egress": []}
    assert weather.data["server"]["env"] == {"MODE": "fast", "WEATHER_KEY": "${secrets.WEATHER_KEY}"}
    driver_of(weather)
    assert isinstance(far, DriverDraft)
    assert far.data["server"] == {
        "kind": "remote",
        "url": "https://far.example/mcp",
        "headers": {"Authorization": "Bearer ${secrets.FAR_TOKEN}"},
    }
    driver_of(far)
    assert isinstance(odd, ImportNote)
    assert odd.code == "unsupported"


@pytest.mark.req("AIP-import-8")
def test_code_of_smithery_is_reported_and_never_looked_at() -> None:
    text = "startCommand:\n  type: stdio\n  commandFunction: |-\n    (config) => ({command: 'touch', args: ['ran']})\n"
    note = only(read_docker(text.encode()))
    assert isinstance(note, ImportNote)
    assert (note.code, "touch" in note.text) == ("helper_not_run", False)


MANIFEST: dict[str, Any] = {
    "manifest_version": "0.3",
    "name": "weather",
    "display_name": "Weather",
    "version": "1.0.0",
    "description": "Tells the weather.",
    "author": {"name": "Ada"},
    "server": {
        "type": "node",
        "entry_point": "server/index.js",
        "mcp_config": {
            "command": "node",
            "args": ["${__dirname}/server/index.js", "${user_config.folders}", "--units=${user_config.units}"],
            "env": {"KEY": "${user_config.key}", "LOGS": "${HOME}/logs"},
            "platform_overrides": {"win32": {"command": "node.exe"}},
        },
    },
    "user_config": {
        "key": {"type": "string", "title": "Key", "description": "From the site", "sensitive": True, "required": True},
        "units": {"type": "string", "title": "Units", "default": "metric"},
        "folders": {"type": "directory", "title": "F", "multiple": True, "default": ["/srv/a", "/srv/b"]},
    },
}


def manifest(**changed: Any) -> bytes:
    return json.dumps({**MANIFEST, **changed}).encode()


@pytest.mark.req("AIP-import-12")
def test_a_bundle_s_manifest_is_a_driver_in_its_unpacked_folder() -> None:
    draft = only(read_manifest(manifest(), "linux"), folder="/srv/bundles/abc")
    assert isinstance(draft, DriverDraft)
    assert draft.data["server"] == {
        "kind": "binary",
        "path": "node",
        "args": ["/srv/bundles/abc/server/index.js", "/srv/a", "/srv/b", "--units=metric"],
        "env": {"KEY": "${secrets.KEY}", "LOGS": "/srv/ada/logs"},
    }
    assert [(each.slug, each.value, each.description) for each in draft.secrets] == [
        ("weather-mcp/key", None, "From the site")
    ]
    assert draft.data["sandbox"]["fs"] == {"read": ["/srv/bundles/abc", "/srv/ada/logs"], "write": ["/srv/a", "/srv/b"]}
    driver_of(draft)


@pytest.mark.req("AIP-import-12")
@pytest.mark.parametrize("version", ["0.1", "0.2", "0.3", "0.4"])
def test_each_version_of_the_manifest_is_read(version: str) -> None:
    named = {"manifest_version": version} if version != "0.1" else {"dxt_version": "0.1"}
    data = {key: value for key, value in MANIFEST.items() if key != "manifest_version"} | named
    assert isinstance(only(read_manifest(json.dumps(data).encode(), "linux"), folder="/srv/b"), DriverDraft)


def test_a_bundle_says_where_it_runs() -> None:
    windows = read_manifest(manifest(), "win32").entries[0]
    assert windows.command[0] == "node.exe"
    note = only(read_manifest(manifest(compatibility={"platforms": ["darwin"]}), "linux"))
    assert isinstance(note, ImportNote)
    assert "darwin" in note.text
    for broken in ({"manifest_version": "9"}, {"server": {"type": "node", "entry_point": "x"}}):
        assert isinstance(only(read_manifest(manifest(**broken), "linux")), ImportNote)
    uv = read_manifest(manifest(server={"type": "uv", "entry_point": "main.py"}), "linux").entries[0]
    assert uv.command == ("uv", "run", "--directory", "${__dirname}", "main.py")


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"{}",
        b'{"server": 1}',
        b'{"packages": 1}',
        b"\xff",
        b"{" * 9999,
        b'{"servers": [1, {}]}',
        b'{"remotes": {}}',
    ],
)
def test_nonsense_is_an_unreadable_file_or_nothing_and_raises_no_other_error(data: bytes) -> None:
    for read in (read_registry, read_docker, partial(read_manifest, system="linux")):
        with suppress(UnreadableFile):
            for entry in read(data).entries:
                assert isinstance(draft_entry(entry, wrap_servers(), ImportChoices()), DriverDraft | ImportNote)
    assert not is_docker_data(7)
