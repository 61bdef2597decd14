"""Whatever stands in a driver's files, problems come out and nothing is raised; no value is repeated."""

import copy
import json
from typing import Any

import msgspec
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.scale import examples

from interlock.drivers.protocol.files.contract import read_contract
from interlock.drivers.protocol.files.driver import check_published, read_driver
from interlock.drivers.protocol.files.inventory import read_secrets
from interlock.drivers.protocol.problems import ParsedFile

DRIVER: dict[str, Any] = {
    "name": "Files",
    "id": "files-mcp",
    "description": "Files.",
    "version": "1.0.0",
    "kind": "mcp",
    "server": {"kind": "remote", "url": "https://a.example/x", "headers": {"A": "b"}, "auth": {"type": "none"}},
    "transport": "http",
    "protocol_version": "2025-03",
    "implements": [
        {
            "tool": "./tools/a/TOOL.md",
            "version": "^1.0.0",
            "schema_narrowing": {"drop_inputs": ["a"]},
            "mapping": {"a": "b", "c": {"from": "d"}},
            "cost_override": {"cost_units_per_call": 1},
            "timeout_override_ms": 100,
            "retry_override": {"max_attempts": 1},
            "metadata": {
                "mcp": {"tool_name": "a", "argument_mapping": {"a": "b"}, "result_extract": "$"},
                "interlock": {"result_parse": {"as": "json"}, "argument_defaults": {"a": 1}},
            },
        }
    ],
    "install": [{"method": "npm", "package": "x"}],
    "version_check": {"cmd": "a", "parse": "(.)", "range": "1", "timeout_ms": 100},
    "auth": {
        "ref": "./SECRETS.md",
        "state": {"paths": ["a"], "env": ["A"]},
        "login": {"completes_when": {"http": {"method": "GET", "url": "https://x", "expect_status": 200}}},
        "refresh": {"every": "PT5M"},
        "expiry": {"detect": "http_status:401"},
    },
    "network": {"egress": ["a.example"]},
    "sandbox": {"fs": {"read": ["/a"]}, "env": {"pass": ["A"], "set": {"B": "c"}}, "tty": {"required": False}},
    "runner": {"engine": "subprocess", "limits": {"memory_mb": 64}},
    "health_check": {"method": "http", "http": {"method": "GET", "url": "https://x"}, "every": "P1D"},
    "requires": {"os": ["linux"], "min_disk_mb": 1},
    "prompts": [{"name": "a", "integrate_as": "skill_block", "skill_ref": "./s/SKILL.md"}],
    "resources": [{"uri_template": "f:{a}", "integrate_as": "ref_kind", "ref_kind_id": "a"}],
    "connection_options": {"timeout_ms": 100},
    "examples": [{"goal": "x"}],
    "tags": ["a"],
    "metadata": {"interlock": {"isolation": "user", "protocol_versions": ["2025-11-25"], "not_secret": ["A"]}},
}
REQUIRED = ("name", "id", "description", "version", "kind", "server", "transport", "implements")
CONTRACT: dict[str, Any] = {
    "name": "a",
    "id": "ab",
    "description": "a",
    "version": "1.0.0",
    "inputs": {"type": "object", "properties": {"a": {"type": "string"}}},
    "outputs": {"$defs": {"x": {"type": "string"}}, "$ref": "#/$defs/x"},
    "retry": {"max_attempts": 1, "backoff": "fixed"},
    "requires": {"network": ["*"]},
    "driver_constraints": {"forbid": ["cli"]},
    "examples": [{"name": "a", "input": {"a": "b"}, "output": 1}],
    "metadata": {"interlock": {"name": "a.b", "context_schema": {"type": "object"}}},
}
SECRETS: dict[str, Any] = {
    "secrets": [
        {
            "slug": "a-b",
            "name": "a",
            "description": "a",
            "access": {"bind": [{"tool": "x"}]},
            "audit": {"retention": "7y", "classification": ["x"]},
            "exposures": [{"kind": "file", "path": "~/x", "mode": 384}],
            "metadata": {"bindings": {"env": ["A"]}},
        }
    ]
}

words = st.one_of(
    st.text(max_size=12),
    st.sampled_from(
        ["${secrets.X}", "${", "npm", "pypi", "docker", "remote", "binary", "stdio", "$ref", "-m x", "*", "a/b:c"]
    ),
)
values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), words),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(words, inner, max_size=3)),
    max_leaves=6,
)


def spots(value: Any) -> list[tuple[Any, Any]]:
    """Every place in the data: what holds it, and its key or index."""
    keys = list(value) if isinstance(value, dict) else list(range(len(value))) if isinstance(value, list) else []
    return [(value, key) for key in keys] + [spot for key in keys for spot in spots(value[key])]


@st.composite
def damaged(draw: st.DrawFn, whole: dict[str, Any]) -> dict[str, Any]:
    data = copy.deepcopy(whole)
    for _ in range(draw(st.integers(1, 3))):
        holder, key = draw(st.sampled_from(spots(data) or [(data, "id")]))
        match draw(st.integers(0, 2)):
            case 0 if isinstance(holder, dict):
                holder.pop(key, None)
            case 1 if isinstance(holder, dict):
                holder[draw(words)] = draw(values)
            case _:
                holder[key] = draw(values)
    return data


def content(data: Any) -> bytes:
    return f"---\n{json.dumps(data, ensure_ascii=True)}\n---\n".encode()


def sound(reading: ParsedFile[Any]) -> None:
    assert (reading.value is None) == bool(reading.errors)
    for problem in reading.problems:
        assert problem.code
        assert problem.message
        assert problem.hint
        assert problem.line
        assert problem.field == "" or problem.field.startswith("/")
        msgspec.json.encode(problem)


def test_the_whole_files_load() -> None:
    assert read_driver(content(DRIVER), "D").errors == ()
    assert read_contract(content(CONTRACT), "T").errors == ()
    assert read_secrets(content(SECRETS), "S").errors == ()


@given(damaged(DRIVER))
def test_a_damaged_driver_gives_a_driver_or_errors(data: dict[str, Any]) -> None:
    sound(read_driver(content(data), "DRIVER.md", folder="files-mcp", beside={"driver.ts"}))
    check_published(content(data), "DRIVER.md")


@given(damaged({**DRIVER, "server": {"kind": "npm", "package": "x", "args": ["--a", "b"], "env": {"A": "b"}}}))
def test_a_damaged_server_gives_a_driver_or_errors(data: dict[str, Any]) -> None:
    sound(read_driver(content({**data, "transport": "stdio"}), "DRIVER.md"))


@settings(max_examples=examples(30, 500))
@given(values, st.sampled_from(["stdio", "http"]))
def test_any_json_may_be_in_server_json(data: Any, transport: str) -> None:
    bare = {key: DRIVER[key] for key in REQUIRED if key != "server"} | {"transport": transport}
    for written in (
        data,
        {"packages": data},
        {"remotes": [data]},
        {"packages": [{"registryType": "npm", "identifier": data}]},
    ):
        sound(read_driver(content(bare), "DRIVER.md", server_json=json.dumps(written).encode()))


@given(damaged(CONTRACT))
def test_a_damaged_contract_gives_a_contract_or_errors(data: dict[str, Any]) -> None:
    sound(read_contract(content(data), "TOOL.md"))


@given(damaged(SECRETS))
def test_a_damaged_inventory_gives_an_inventory_or_errors(data: dict[str, Any]) -> None:
    sound(read_secrets(content(data), "SECRETS.md"))


@given(st.text(alphabet=st.characters(codec="ascii", categories=["L", "N"]), min_size=24, max_size=24))
def test_a_value_under_a_secret_name_is_never_repeated(value: str) -> None:
    for server in (
        {"kind": "npm", "package": "x", "env": {"API_TOKEN": value}, "args": ["--password", value]},
        {"kind": "npm", "package": "x", "env": {"API_TOKEN": [value]}},
        {"kind": value, "package": value},
    ):
        data = {**{key: DRIVER[key] for key in REQUIRED}, "server": server, "transport": "stdio", "version": value}
        assert value.encode() not in msgspec.json.encode(read_driver(content(data), "D").problems)


@given(st.dictionaries(st.text(max_size=10), values, max_size=5))
def test_any_yaml_mapping_gives_problems(data: dict[str, Any]) -> None:
    written = f"---\n{yaml.safe_dump(data)}---\n".encode()
    sound(read_driver(written, "D"))
    sound(read_contract(written, "T"))
    sound(read_secrets(written, "S"))
