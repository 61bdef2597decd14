"""The JSON Schema says what the loader does; the starter file satisfies both; the plan as shown holds no secret."""

import json
import tomllib
from pathlib import Path
from typing import Annotated, Any, Literal

import jsonschema
import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.config.config_project import Project
from tests.support.scale import examples

from interlock.config.effective import MASK, effective
from interlock.config.keys import Key, Section, StructTable, keys_of
from interlock.config.load import ConfigInvalid, load
from interlock.config.plan import (
    AccessRule,
    Address,
    AnchorPlan,
    AuthPlan,
    AxPlan,
    DegradedPlan,
    GatePlan,
    LimitsPlan,
    McpPlan,
    NodePlan,
    Plan,
    Spawn,
    StorePlan,
)
from interlock.config.schema import SERVER_KEYS, TOP, json_schema, sections
from interlock.config.toml_text import toml_text
from interlock.config.value_types import Choice, Flag, Text
from interlock.node.cli.init import EXAMPLES, starter_toml

VALIDATOR = jsonschema.Draft202012Validator(json_schema())
PLANS: dict[str, type[msgspec.Struct]] = {
    "node": NodePlan,
    "auth": AuthPlan,
    "mcp": McpPlan,
    "ax": AxPlan,
    "degraded": DegradedPlan,
    "gate": GatePlan,
    "limits": LimitsPlan,
    "store": StorePlan,
}
EVERY_KEY = [(None, key) for key in TOP.values()] + [
    (section, key) for section in sections().values() for key in section.keys.values()
]


def named(value: object) -> str:
    return value.name if isinstance(value, Key | Section) else "top"


def document(section: Section | None, key: Key, *value: Any) -> dict[str, Any]:
    """The smallest valid document in which the key has the value, or in which it could stand."""
    written = dict.fromkeys((key.name,), *value) if value else {}
    if section is None:
        return written
    table: dict[str, Any] = {each.name: each.example for each in section.keys.values() if each.required}
    if section.shape == "segments" and key.name not in SERVER_KEYS:
        reach = next(reach for reach, keys in SERVER_KEYS.items() if key.name in keys)
        table[reach] = section.keys[reach].example
    if key.name in ("tls_cert", "tls_key", "client_ca", "crl"):
        table |= {"tls_cert": "c", "tls_key": "k"}
    if key.name == "crl":
        table["client_ca"] = "a"
    if section.one_of and key.name not in section.one_of:
        table[section.one_of[0]] = section.keys[section.one_of[0]].example
    table |= written
    match section.shape:
        case "table":
            return {section.name: table}
        case "list":
            return {section.name: [table]}
        case "segments":
            return {section.name: {"s": table}}


def as_toml(tree: dict[str, Any]) -> str:
    return "".join(f"{json.dumps(name)} = {toml_text(value)}\n" for name, value in tree.items())


def test_the_schema_is_a_schema() -> None:
    jsonschema.Draft202012Validator.check_schema(json_schema())
    assert json.loads(json.dumps(json_schema())) == json_schema()


@pytest.mark.parametrize(("section", "key"), EVERY_KEY, ids=named)
def test_every_key_is_accepted_by_loader_and_schema_with_its_example(
    project: Project, section: Section | None, key: Key
) -> None:
    tree = document(section, key, key.example)
    text = as_toml(tree)
    assert tomllib.loads(text) == tree
    VALIDATOR.validate(tree)
    project.load(text, {"MAIL_PASSWORD": "x"})
    assert key.help.endswith(".")


@pytest.mark.parametrize(("section", "key"), EVERY_KEY, ids=named)
def test_every_default_may_be_written_out_and_changes_nothing(
    project: Project, section: Section | None, key: Key
) -> None:
    if key.default is None or key.name == "transport":  # a server's transport has one default per way to reach it
        return
    tree = document(section, key, key.default)
    VALIDATOR.validate(tree)
    assert project.load(as_toml(tree)).plan == project.load(as_toml(document(section, key))).plan


@pytest.mark.parametrize("name", PLANS)
def test_the_table_of_keys_and_the_plan_hold_the_same_names(name: str) -> None:
    assert list(sections()[name].keys) == [field.name for field in msgspec.structs.fields(PLANS[name])]


def test_access_rules_hold_the_keys_of_the_table() -> None:
    assert list(sections()["access"].keys) == [field.name for field in msgspec.structs.fields(AccessRule)]
    assert list(sections()["anchor"].keys) == [field.name for field in msgspec.structs.fields(AnchorPlan)]


def test_every_field_of_the_plan_is_a_section_or_a_key_of_the_top() -> None:
    fields = [field.name for field in msgspec.structs.fields(Plan)]
    assert fields == [*TOP, *(section.field for section in sections().values()), "withheld_secrets"]  # computed


class _Small(msgspec.Struct, frozen=True, kw_only=True):
    """A section with few keys.

    Keys:
        mode: Which
            of them.
        loud: Whether.
    """

    mode: Annotated[Literal["one", "two"], Key("one")] = "two"
    loud: Annotated[bool, Key(True)] = False
    named: Annotated[str, Key("x", "What.")]
    computed: int = 0


def test_a_key_takes_its_type_and_default_from_the_field_that_declares_it() -> None:
    keys = keys_of(_Small)
    assert list(keys) == ["mode", "loud", "named"]
    assert (keys["mode"].kind, keys["mode"].default) == (Choice(values=("one", "two")), "two")
    assert (keys["loud"].kind, keys["loud"].default) == (Flag(), False)
    assert (keys["named"].kind, keys["named"].required, keys["named"].default) == (Text(), True, None)


def test_the_help_of_a_key_is_in_the_docstring_of_its_class() -> None:
    assert {name: key.help for name, key in keys_of(_Small).items()} == {
        "mode": "Which of them.",
        "loud": "Whether.",
        "named": "What.",
    }


class _Unclear(msgspec.Struct, frozen=True, kw_only=True):
    amount: Annotated[int, Key(1, "How many, without bounds.")] = 0


def test_a_field_whose_type_does_not_say_how_it_is_read_is_refused() -> None:
    with pytest.raises(TypeError, match="the type of amount does not say how it is read"):
        keys_of(_Unclear)
    with pytest.raises(TypeError, match="the type of amount does not say how it is read"):
        _ = StructTable(make=_Unclear, what="unclear").fields


@pytest.mark.parametrize(("section", "key"), EVERY_KEY, ids=named)
def test_every_key_is_described_in_the_schema(section: Section | None, key: Key) -> None:
    part = json_schema()["properties"]
    if section is not None:
        part = part[section.name]
        part = {"table": part, "list": part.get("items"), "segments": part.get("additionalProperties")}[section.shape]
        part = part["properties"]
    assert part[key.name]["description"] == key.help
    assert part[key.name]["examples"] == [key.example]
    assert part[key.name].get("default") == key.default


@pytest.mark.parametrize(
    "tree",
    [
        {"lisen": 1},
        {"node": {"lisen": "x"}},
        {"node": {"listen": 7411}},
        {"node": {"listen": ":7411"}},
        {"auth": {"anonymous": "Any"}},
        {"auth": {"token_days": 0}},
        {"access": [{"scope": "read"}]},
        {"access": {"who": ["x"]}},
        {"anchor": [{"name": "a"}]},
        {"anchor": [{"name": "a", "key": "k.pem", "jwks": "k.json"}]},
        {"anchor": [{"name": "a", "key": "k.pem", "speaks_for": ["*.example.com"]}]},
        {"servers": {"GitHub": {"pypi": "x"}}},
        {"servers": {"rooms": {"pypi": "x"}}},
        {"servers": {"s": {}}},
        {"servers": {"s": {"pypi": "x", "npm": "x"}}},
        {"servers": {"s": {"url": "http://h", "args": []}}},
        {"servers": {"s": {"command": "x", "headers": {}}}},
        {"servers": {"s": {"command": "x", "transport": "sse"}}},
        {"servers": {"s": {"url": "http://h", "transport": "stdio"}}},
        {"servers": {"s": {"npm": "--x"}}},
        {"tool": [{"hide": True}]},
        {"tool": [{"match": "x", "latency_class": "Fast"}]},
        {"ax": {"root_segment": "tools"}},
        {"limits": {"message_bytes": "16MB"}},
    ],
)
def test_an_editor_with_the_schema_shows_the_mistakes_the_loader_refuses(
    project: Project, tree: dict[str, Any]
) -> None:
    assert not VALIDATOR.is_valid(tree)
    project.problems(as_toml(tree))


def test_the_starter_file_loads_without_a_word_and_satisfies_the_schema(project: Project) -> None:
    text = starter_toml()
    VALIDATOR.validate(tomllib.loads(text))
    loaded = project.load(text)
    assert loaded.warnings == ()
    assert [server.segment for server in loaded.plan.servers] == ["time", "memory", "files"]
    spawned = [server.reach for server in loaded.plan.servers if isinstance(server.reach, Spawn)]
    assert [reach.sandbox is not None and not reach.sandbox.egress for reach in spawned] == [True] * 3
    assert loaded.plan.node == NodePlan()
    assert loaded.plan.auth == AuthPlan()


def test_further_ways_to_reach_a_server_are_comments_in_the_starter() -> None:
    uncommented = starter_toml().replace("\n# [servers.", "\n[servers.")
    assert set(tomllib.loads(uncommented)["servers"]) == {*EXAMPLES, "mine", "remote"}


def test_the_comments_of_the_starter_are_valid_when_uncommented(project: Project) -> None:
    tail = starter_toml().partition("# More ways to reach a server:\n")[2]
    text = "\n".join(line.removeprefix("#").removeprefix(" ") for line in tail.splitlines())
    plan = project.load(text, {"MY_API_KEY": "k", "REMOTE_TOKEN": "t"}).plan
    assert [server.segment for server in plan.servers] == ["mine", "remote"]


def test_the_effective_plan_has_the_shape_of_the_file_and_every_key(project: Project) -> None:
    shown = effective(project.load(starter_toml()).plan)
    assert json.loads(json.dumps(shown)) == shown
    assert list(shown) == [*TOP, *sections()]
    for name in PLANS:
        assert list(shown[name]) == list(sections()[name].keys)
    assert shown["node"]["listen"] == "127.0.0.1:7411"
    assert shown["data"] == str(project.home / ".local/share/interlock")
    assert shown["servers"]["files"]["npm"] == "@modelcontextprotocol/server-filesystem"
    assert shown["servers"]["files"]["args"] == ["files"]


def test_the_effective_plan_shows_no_secret(project: Project) -> None:
    text = (
        "[node]\ntls_cert = 'c'\ntls_key = 'k'\n"
        "[[tool]]\nmatch = 'x'\nmutable = true\n"
        "[servers.a]\ncommand = 'x --token=${env:SECRET}'\nargs = ['${env:LONGER}', 'plain']\nenv.K = 's3cret'\n"
        "[servers.b]\nurl = 'https://h.example/${env:SECRET}/mcp?key=s3cret'\nheaders.Authorization = 's3cret'\n"
        "[servers.c]\npypi = 'x'\nargs = ['${env:SECRET}']\n"
        "[servers.d]\nurl = 'https://h.example/mcp'\n"
    )
    shown = effective(project.load(text, {"SECRET": "s3cret", "LONGER": "s3cret-and-more", "OTHER": "plain"}).plan)
    assert "s3cret" not in json.dumps(shown)
    assert "and-more" not in json.dumps(shown)
    assert shown["servers"]["a"]["command"] == ["x", f"--token={MASK}", MASK, "plain"]
    assert shown["servers"]["a"]["env"] == {"K": MASK}
    assert shown["servers"]["b"]["url"] == f"https://h.example/{MASK}/mcp?{MASK}"
    assert shown["servers"]["b"]["headers"] == {"Authorization": MASK}
    assert shown["servers"]["c"] == {
        "pypi": "x",
        "args": [MASK],
        "env": {},
        "cwd": str(project.folder),
        "transport": "stdio",
        "share": "auto",
        "max_processes": 16,
        "idle_timeout_s": 1800,
        "timeout_s": 300,
        "definitions": "accept",
        "tools": {},
    }
    assert shown["servers"]["d"]["url"] == "https://h.example/mcp"
    assert shown["tool"] == [{"match": "x", "hide": False, "pin": False, "mutable": True}]


def test_a_plan_made_by_hand_is_shown_too() -> None:
    plan = Plan(workspace=Path("/w"), data=Path("/d"), node=NodePlan(listen=Address("::1", 1)))
    assert effective(plan)["node"]["listen"] == "[::1]:1"


SCALARS = st.one_of(
    st.booleans(),
    st.integers(-5, 5000),
    st.floats(allow_nan=False, allow_infinity=False, width=32),
    st.text(max_size=6),
    st.sampled_from([key.example for _, key in EVERY_KEY] + [key.default for _, key in EVERY_KEY if key.default]),
    st.sampled_from(["", "a", "http://h", "https://h:80/", "127.0.0.1:80", "1Mi", "1.0.0", "stdio", "x\n", "*"]),
)
ANYTHING = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=5,
)


@given(choice=st.sampled_from(EVERY_KEY), value=ANYTHING)
@settings(max_examples=examples(100, 4000), suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_the_loader_accepts_nothing_that_the_schema_refuses(
    project: Project, choice: tuple[Section | None, Key], value: Any
) -> None:
    tree = document(*choice, value)
    project.file.write_text(as_toml(tree))
    try:
        load(None, project.env, {})
    except ConfigInvalid as refused:
        assert all(problem.line is not None and problem.file == "interlock.toml" for problem in refused.problems)
    else:
        VALIDATOR.validate(tree)
