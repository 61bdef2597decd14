"""Does a DRIVER.md give a driver, or every fault in it with line, field and what to do?"""

from pathlib import Path
from typing import Any

import pytest
from tests.drivers.driver_texts import MISSING, as_driver, binding, driver, of_severity, remote, text, told

from interlock.drivers.protocol.files.driver import check_published, read_driver
from interlock.drivers.protocol.files.frontmatter import read_frontmatter
from interlock.drivers.protocol.files.schemas import EXTENSION_KEYS, check_schema
from interlock.drivers.protocol.kinds import DockerServer, NpmServer, PypiServer, RemoteServer
from interlock.drivers.protocol.model import Driver, HealthCheck, Mapped, ResultParse, ServerConnection

EXAMPLES = Path(__file__).parents[1] / "aip32_examples"
PUBLISHED = ["specification", "filesystem-mcp", "postgres-mcp", "acme-remote-mcp", "github-mcp"]


def loaded(data: dict[str, Any], **options: Any) -> Driver:
    reading = as_driver(data, **options)
    assert reading.value is not None, reading.problems
    return reading.value


def errors(data: dict[str, Any], **options: Any) -> list[tuple[str, str]]:
    reading = as_driver(data, **options)
    assert (reading.value is None) == bool(reading.errors)
    assert all(each.hint and each.message and each.line for each in reading.problems)
    return told(reading.errors)


def warnings(data: dict[str, Any], **options: Any) -> list[tuple[str, str]]:
    reading = as_driver(data, **options)
    assert reading.value is not None, reading.problems
    return told(of_severity(reading, "warning"))


@pytest.mark.req("AIP-compat-1")
@pytest.mark.parametrize("name", PUBLISHED)
def test_the_published_examples_load_unchanged(name: str) -> None:
    content = (EXAMPLES / f"{name}.md").read_bytes()
    reading = read_driver(content, "DRIVER.md")
    assert reading.value is not None, reading.problems
    assert {each.code for each in of_severity(reading, "warning")} <= {
        "protocol_version_partial",
        "image_unpinned",
        "state_env_unused",
    }
    assert check_published(content, "DRIVER.md") == ()
    front = read_frontmatter(content, "DRIVER.md").value
    assert front is not None
    assert check_schema(front, "AIP-30") == () == check_schema(front, "AIP-32")


def test_the_example_of_the_specification_is_read_in_every_field() -> None:
    reading = read_driver((EXAMPLES / "specification.md").read_bytes(), "DRIVER.md", folder="filesystem-mcp")
    assert told(reading.problems) == [("protocol_version_partial", "/protocol_version")]
    example = reading.value
    assert example is not None
    assert example.key == "filesystem-mcp@1"
    assert example.server == NpmServer(package="@modelcontextprotocol/server-filesystem", args=("/workspace",))
    assert (example.transport, example.protocol_version) == ("stdio", "2025-03-26")
    assert [each.tool_name for each in example.implements] == ["read_file", "write_file", "list_directory"]
    assert [each.result_extract for each in example.implements] == ["$.contents", "$", "$.entries"]
    assert example.implements[1].argument_mapping == {"path": "path", "content": "content"}
    assert example.resources[0].ref_kind_id == "mcp_filesystem"
    assert example.network is not None
    assert example.network.egress == ()
    assert (example.region, example.policy_tags) == (("self-hosted",), ("self-hosted", "pii-safe"))
    assert example.version_check is not None
    assert (example.version_check.range, example.version_check.timeout_ms) == (">=0.5", 5000)
    assert example.install[0].method == "npm"
    assert example.install[0].options == {"package": "@modelcontextprotocol/server-filesystem", "global": False}


@pytest.mark.req("AIP-compat-1")
def test_faults_of_each_kind_are_reported_by_schema_and_in_order() -> None:
    data = driver(connection_options={"timeout_ms": 1}, requires={"os": ["beos"]})
    reading = as_driver(data)
    assert [(each.schema, each.field) for each in reading.errors] == [
        ("AIP-30", "/requires/os/0"),
        ("AIP-32", "/connection_options/timeout_ms"),
    ]


@pytest.mark.req("AIP-compat-1")
def test_the_older_form_is_refused_with_what_took_its_place() -> None:
    old = driver(
        server=MISSING,
        server_ref="./server.json",
        mcp_tools={"read_file": "fs-read"},
        implements=[binding(metadata=MISSING)],
    )
    reading = as_driver(old)
    assert told(reading.errors) == [("schema_invalid", "/server"), ("schema_invalid", "/implements/0/metadata")]
    assert "metadata.mcp.tool_name" in reading.errors[0].hint
    assert reading.errors[0].hint.count("server") > 1
    assert "became" not in reading.errors[1].hint
    for key in ("server_ref", "mcp_tools"):  # each alone
        alone = as_driver({name: value for name, value in old.items() if name != key})
        assert alone.errors[0].hint == reading.errors[0].hint
    neither = as_driver(driver(server=MISSING, implements=[binding(metadata=MISSING)]))
    assert "tool_name" not in neither.errors[0].hint
    assert neither.errors[1].hint != reading.errors[0].hint


@pytest.mark.req("AIP-front-1")
@pytest.mark.parametrize("kind", [MISSING, "MCP", "stdio", "", None, ["mcp"], 1])
def test_kind_is_mcp(kind: Any) -> None:
    assert ("schema_invalid", "/kind") in errors(driver(kind=kind))
    assert errors(driver(kind="mcp")) == []
    front = read_frontmatter(text(driver(kind=kind)), "DRIVER.md").value
    assert front is not None
    for schema in ("AIP-30", "AIP-32"):  # each by itself
        assert [each.field for each in check_schema(front, schema)] == ["/kind"]


@pytest.mark.req("AIP-30.front-2")
@pytest.mark.parametrize("kind", ["cli", "http", "sdk", "builtin"])
def test_a_driver_of_another_kind_is_unsupported_and_not_invalid(kind: str) -> None:
    other = driver(kind=kind, server=MISSING, transport=MISSING, implements=[binding(metadata=MISSING)])
    assert errors(other) == [("kind_unsupported", "/kind")]
    assert errors({**other, "kind": "mcp"})[0][0] == "schema_invalid"
    unknown = errors({**other, "kind": "soap"})  # whatever it is, what is wrong beside it is told too
    assert unknown[0] == ("schema_invalid", "/kind") and ("schema_invalid", "/server") in unknown


@pytest.mark.req("AIP-front-2")
@pytest.mark.parametrize("server", [MISSING, "npx thing", ["npx"], None, 3])
def test_server_is_required_and_an_object(server: Any) -> None:
    assert errors(driver(server=server)) == [("schema_invalid", "/server")]


@pytest.mark.req("AIP-front-3")
@pytest.mark.parametrize("transport", [MISSING, "Stdio", "streamable-http", "streamable_http", "ws", None])
def test_transport_is_one_of_three(transport: Any) -> None:
    reading = as_driver(driver(transport=transport))
    assert told(reading.errors) == [("schema_invalid", "/transport")]
    is_other_spelling = str(transport).startswith("streamable")
    assert reading.errors[0].hint.startswith("write http, which is Streamable HTTP") is is_other_spelling
    beside = as_driver(driver(transport=transport, requires={"os": ["beos"]})).errors
    assert [each.hint for each in beside if each.field != "/transport" and "http" in each.hint] == []


@pytest.mark.req("AIP-front-3")
def test_the_three_transports_pass() -> None:
    assert loaded(driver()).transport == "stdio"
    for transport in ("http", "sse"):
        assert (
            loaded(driver(server={"kind": "remote", "url": "https://a.example"}, transport=transport)).transport
            == transport
        )


@pytest.mark.req("AIP-front-4")
@pytest.mark.parametrize("version", [3, ["2025-03-26"], None, 2025.5])
def test_protocol_version_is_text(version: Any) -> None:
    assert errors(driver(protocol_version=version)) == [("schema_invalid", "/protocol_version")]
    assert loaded(driver()).protocol_version is None


@pytest.mark.req("AIP-proto-2")
@pytest.mark.parametrize("version", ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25", "2026-07-28"])
def test_the_month_of_a_protocol_version_means_that_version(version: str) -> None:
    assert warnings(driver(protocol_version=version)) == []
    short = driver(protocol_version=version[:7])
    assert warnings(short) == [("protocol_version_partial", "/protocol_version")]
    assert loaded(short).protocol_version == loaded(driver(protocol_version=version)).protocol_version == version
    assert of_severity(as_driver(short), "warning")


@pytest.mark.req("AIP-proto-2")
@pytest.mark.parametrize("version", ["2025", "2025-04", "v1", ""])
def test_an_unknown_protocol_version_is_reported_and_targets_the_latest(version: str) -> None:
    data = driver(protocol_version=version)
    assert warnings(data) == [("protocol_version_unknown", "/protocol_version")]
    assert loaded(data).protocol_version is None
    assert of_severity(as_driver(data), "warning")


@pytest.mark.req("AIP-front-5")
@pytest.mark.parametrize(
    ("prompt", "pointer"),
    [
        ({"integrate_as": "raw"}, "/prompts/0/name"),
        ({"name": "a", "integrate_as": "tool"}, "/prompts/0/integrate_as"),
        ({"name": "a", "integrate_as": "raw", "more": 1}, "/prompts/0/more"),
        ({"name": "a"}, "/prompts/0/integrate_as"),
    ],
)
def test_a_prompt_is_a_closed_object(prompt: dict[str, Any], pointer: str) -> None:
    assert errors(driver(prompts=[prompt])) == [("schema_invalid", pointer)]
    assert loaded(driver()).prompts == ()
    for way in ("skill_block", "raw"):
        offered = {"name": "a", "integrate_as": way, "skill_ref": "./SKILL.md"}
        assert loaded(driver(prompts=[offered])).prompts[0].integrate_as == way


@pytest.mark.req("AIP-prompts-3")
def test_a_skill_block_names_its_skill() -> None:
    assert errors(driver(prompts=[{"name": "a", "integrate_as": "raw"}])) == []
    block = {"name": "a", "integrate_as": "skill_block"}
    assert errors(driver(prompts=[block])) == [("skill_ref_invalid", "/prompts/0/skill_ref")]
    assert errors(driver(prompts=[{**block, "skill_ref": "/etc/SKILL.md"}])) == [
        ("skill_ref_invalid", "/prompts/0/skill_ref")
    ]
    assert loaded(driver(prompts=[{**block, "skill_ref": "./skills/a/SKILL.md"}])).prompts[0].name == "a"


@pytest.mark.req("AIP-front-6")
@pytest.mark.parametrize(
    ("resource", "pointer"),
    [
        ({"integrate_as": "raw"}, "/resources/0/uri_template"),
        ({"uri_template": "x:{a}", "integrate_as": "ref_kind", "ref_kind_id": "Mcp-FS"}, "/resources/0/ref_kind_id"),
        ({"uri_template": "x:{a}", "integrate_as": "ref_kind", "ref_kind_id": 7}, "/resources/0/ref_kind_id"),
        ({"uri_template": "x:{a}", "integrate_as": "raw", "more": 1}, "/resources/0/more"),
        ({"uri_template": "x:{a}", "integrate_as": "tool"}, "/resources/0/integrate_as"),
        ({"uri_template": "x:{a}"}, "/resources/0/integrate_as"),
    ],
)
def test_a_resource_is_a_closed_object(resource: dict[str, Any], pointer: str) -> None:
    assert errors(driver(resources=[resource])) == [("schema_invalid", pointer)]
    assert loaded(driver()).resources == ()
    for way in ("ref_kind", "raw"):
        offered = {"uri_template": "x:{a}", "integrate_as": way, "ref_kind_id": "my_files"}
        assert loaded(driver(resources=[offered])).resources[0].integrate_as == way


@pytest.mark.req("AIP-resources-2")
def test_a_ref_kind_has_an_id() -> None:
    resource = {"uri_template": "x:{a}", "integrate_as": "ref_kind"}
    assert errors(driver(resources=[resource])) == [("schema_invalid", "/resources/0/ref_kind_id")]
    assert errors(driver(resources=[{**resource, "integrate_as": "raw"}])) == []


@pytest.mark.req("AIP-front-7")
@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"timeout_ms": 99}, "timeout_ms"),
        ({"timeout_ms": "1000"}, "timeout_ms"),
        ({"max_retries": 1.5}, "max_retries"),
        ({"max_retries": 11}, "max_retries"),
        ({"max_retries": -1}, "max_retries"),
        ({"keepalive": "yes"}, "keepalive"),
        ({"idle_timeout": 1}, "idle_timeout"),
    ],
)
def test_connection_options_are_closed_and_bounded(options: dict[str, Any], field: str) -> None:
    assert errors(driver(connection_options=options)) == [("schema_invalid", f"/connection_options/{field}")]


@pytest.mark.req("AIP-front-7")
def test_connection_options_have_their_boundaries_and_defaults() -> None:
    assert loaded(driver()).connection == ServerConnection(timeout_ms=30000, max_retries=3, keepalive=False)
    for options in ({"timeout_ms": 100}, {"max_retries": 0}, {"max_retries": 10, "keepalive": True}):
        assert loaded(driver(connection_options=options)).connection == ServerConnection(**options)


@pytest.mark.req("AIP-front-8")
@pytest.mark.parametrize(
    ("mcp", "pointer"),
    [
        ({"tool_name": "a", "more": 1}, "more"),
        ({"tool_name": "a", "argument_mapping": {"x": 1}}, "argument_mapping/x"),
        ({"argument_mapping": {}}, "tool_name"),
    ],
)
def test_metadata_mcp_is_a_closed_object(mcp: dict[str, Any], pointer: str) -> None:
    data = driver(implements=[binding(metadata={"mcp": mcp})])
    assert errors(data) == [("schema_invalid", f"/implements/0/metadata/mcp/{pointer}")]


@pytest.mark.req("AIP-front-9")
@pytest.mark.parametrize("metadata", [MISSING, {}, {"http": {}}])
def test_an_entry_without_a_tool_name_is_refused_although_the_published_schemas_let_it_pass(metadata: Any) -> None:
    data = driver(implements=[binding(), binding(tool="./tools/other/TOOL.md", metadata=metadata)])
    assert check_published(text(data), "DRIVER.md") == ()
    reading = as_driver(data)
    assert [each.code for each in reading.errors] == ["schema_invalid"]
    assert reading.errors[0].field.startswith("/implements/1/metadata")
    assert "./tools/other/TOOL.md" in reading.errors[0].message
    (unnamed,) = [each for each in as_driver(driver(implements=[{"tool": 7}])).errors if "metadata" in each.field]
    assert unnamed.message.endswith("is missing")
    (wrong,) = as_driver(driver(implements=[binding(metadata={"mcp": {"tool_name": 7}})])).errors
    assert "TOOL.md" not in wrong.message and "name the server's tool" not in wrong.hint


EXTENDED = driver(
    server={"kind": "npm", "package": "p", "version": "1.0.0", "cwd": "x", "entry": "bin"},
    sandbox={"fs": {"read": ["/a"]}, "exec": {"allow": False, "spawn": ["git"]}, "env": {"pass": ["LANG"]}},
    metadata={
        "interlock": {
            "idle_timeout_ms": 1000,
            "isolation": "tenant",
            "max_processes": 2,
            "client_capabilities": ["sampling"],
            "protocol_versions": ["2025-11-25", "2026-07-28"],
            "expose": "all",
            "not_secret": ["X"],
            "redact_results": False,
        }
    },
    implements=[
        binding(
            metadata={
                "mcp": {"tool_name": "a"},
                "interlock": {
                    "result_parse": {"from": "text", "as": "records", "pattern": "(?P<a>.)", "into": "rows"},
                    "result_wrap": "text",
                    "text_fallback": False,
                    "argument_defaults": {"repo_path": "/w"},
                    "context_arguments": {"tenant": "context.tenant_id"},
                },
            }
        )
    ],
)


@pytest.mark.req("AIP-front-11")
def test_a_file_with_our_extensions_passes_the_published_schemas() -> None:
    assert check_published(text(EXTENDED), "DRIVER.md") == ()
    for more in ({"headers": {"A": "b"}, "query": {"a": "b"}, "auth": {"type": "bearer", "secret": "K"}},):
        assert check_published(text(remote(**more)), "DRIVER.md") == ()
    pypi = driver(server={"kind": "pypi", "package": "mcp-server-time"})
    assert told(check_published(text(pypi), "DRIVER.md")) == [("schema_invalid", "/server/kind")]


@pytest.mark.req("AIP-tenant-2")
def test_our_extensions_are_read_and_listed() -> None:
    extended = loaded(EXTENDED)
    assert (extended.interlock.max_processes, loaded(driver()).interlock.max_processes) == (2, 16)
    assert extended.interlock.isolation == "tenant"
    assert extended.interlock.client_capabilities == ("sampling",)
    assert extended.sandbox is not None
    assert extended.sandbox.env is not None
    assert extended.sandbox.env.passed == ("LANG",)
    assert extended.implements[0].result_parse == ResultParse(
        source="text", form="records", pattern="(?P<a>.)", into="rows"
    )
    assert set(extended.extension_keys) == set(EXTENSION_KEYS) - {
        f"server.{key}" for key in ("runner", "headers", "query", "auth", "port", "volumes")
    }
    assert loaded(driver()).extension_keys == ()


@pytest.mark.req("AIP-front-11", "AIP-proto-5")
@pytest.mark.parametrize(
    ("metadata", "pointer"),
    [
        ({"interlock": {"idle": 1}}, "/metadata/interlock/idle"),
        ({"interlock": {"idle_timeout_ms": 999}}, "/metadata/interlock/idle_timeout_ms"),
        ({"interlock": {"isolation": "room"}}, "/metadata/interlock/isolation"),
        ({"interlock": {"protocol_versions": ["2025-11-25", "2030-01-01"]}}, "/metadata/interlock/protocol_versions/1"),
        ({"interlock": {"client_capabilities": ["roots"]}}, "/metadata/interlock/client_capabilities"),
        ({"interlock": None}, "/metadata/interlock"),
    ],
)
def test_a_key_of_ours_that_is_unknown_or_wrong_is_refused(metadata: dict[str, Any], pointer: str) -> None:
    assert errors(driver(metadata=metadata)) == [("schema_invalid", pointer)]


def test_the_metadata_of_others_is_left_alone() -> None:
    assert loaded(driver(metadata={"acme": {"x": [1]}})).metadata == {"acme": {"x": [1]}}


@pytest.mark.req("AIP-30.front-1")
@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("name", [MISSING, "", "x" * 81, 3, None]),
        ("id", [MISSING, "", "a", "a" * 81, "file_mcp", "File-mcp", "-mcp", 3, "a-mcp\n"]),
        ("description", [MISSING, "", "x" * 2001, []]),
        ("version", [MISSING, "", "1.0", "v1.0.0", "1", "1.0.0.0", 1]),
        ("implements", [MISSING, [], {}, "x", None]),
    ],
)
def test_each_required_field_is_refused_when_absent_or_malformed(field: str, values: list[Any]) -> None:
    for value in values:
        assert errors(driver(**{field: value})) == [("schema_invalid", f"/{field}")], value
        assert as_driver(driver(**{field: value})).errors[0].schema == "AIP-30"


@pytest.mark.req("AIP-30.front-1")
def test_the_boundary_values_of_the_required_fields_pass() -> None:
    for changed in ({"name": "x"}, {"name": "x" * 80}, {"description": "x" * 2000}, {"version": "1.0.0-rc.1"}):
        loaded(driver(**changed))
    for identifier in ("ab", "0" + "a" * 79, "a.b-mcp"):
        assert loaded(driver(id=identifier)).id == identifier


@pytest.mark.req("AIP-30.front-3")
@pytest.mark.parametrize(
    "body",
    [b"", b"# Filesystem\nThis is kind: cli, transport: http.\n", b"---\nkind: cli\nid: other\n---\n", b"\xff\x00"],
)
def test_the_body_changes_nothing(body: bytes) -> None:
    reading = read_driver(text(driver()) + body, "DRIVER.md")
    assert reading.value is not None and reading == as_driver(driver())


UNIVERSAL: list[tuple[str, list[Any], list[Any]]] = [
    ("install", [[], [{"method": "npm", "package": "p"}]], ["npm", [1], {}]),
    (
        "version_check",
        [{"cmd": "a --version", "parse": "(.*)", "range": ">=1"}],
        [{"cmd": "a", "parse": "(.*)"}, {"cmd": "a", "parse": "(.)", "range": "1", "timeout_ms": 99}, "x"],
    ),
    ("auth", [{}, {"ref": "./SECRETS.md"}, {"state": {"env": ["A"]}}], [{"more": 1}, {"state": {"env": "A"}}, "x"]),
    ("network", [{}, {"egress": []}, {"egress": ["a.example"], "ingress": []}], [{"out": []}, {"egress": "*"}, []]),
    ("runner", ["./RUNNER.md", {"engine": "subprocess"}], [3, ["x"], None]),
    ("region", [[], ["eu", "no"]], ["eu", [1]]),
    ("policy_tags", [[], ["pii-safe"]], [["Pii"], ["a", "a"], ["x" * 65], ["-a"], "a"]),
    ("tags", [[], ["a", "b"]], [["A"], ["a", "a"], [""], [1]]),
    ("cost_override", [{}, {"cost_units_per_call": 0.5}], [{"cost_units_per_call": -1}, {"currency": "eur"}, {"x": 1}]),
    ("timeout_override_ms", [100, 60000], [99, "100", 100.5, None]),
    ("retry_override", [{"max_attempts": 10}], [{}, {"max_attempts": 11}, {"max_attempts": 1, "backoff": "linear"}]),
    ("health_check", [{"method": "ping", "every": "PT5M"}], [{}, {"method": "tcp"}, {"method": "noop", "every": "5m"}]),
    ("requires", [{}, {"os": ["linux"], "arch": ["arm64"], "min_disk_mb": 0}], [{"os": ["beos"]}, {"cpu": 1}]),
    ("examples", [[], [{"goal": "read"}]], [[{}], [{"goal": 1}], "x"]),
    ("metadata", [{}, {"a": 1}], [[], "x", None]),
]


@pytest.mark.req("AIP-30.front-4")
@pytest.mark.parametrize(("field", "valid", "invalid"), UNIVERSAL, ids=[field for field, *_ in UNIVERSAL])
def test_the_optional_universal_fields_have_the_published_shapes(
    field: str, valid: list[Any], invalid: list[Any]
) -> None:
    for value in valid:
        assert errors(driver(**{field: value})) == [], value
        assert check_published(text(driver(**{field: value})), "D") == ()
    for value in invalid:
        found = errors(driver(**{field: value}))
        assert found, value
        assert all(code == "schema_invalid" and where.startswith(f"/{field}") for code, where in found), value
        assert check_published(text(driver(**{field: value})), "D") != ()


@pytest.mark.req("AIP-30.front-4")
def test_an_unknown_key_at_the_top_passes_with_a_note() -> None:
    reading = as_driver(driver(x_acme=1, spec="agentdriver/v1"))
    assert told(of_severity(reading, "note")) == [("unknown_key", "/x_acme")]
    assert reading.value is not None
    assert of_severity(reading, "warning") == ()


@pytest.mark.req("AIP-30.front-4")
def test_the_optional_universal_fields_have_their_defaults() -> None:
    plain = loaded(driver())
    assert (plain.install, plain.region, plain.policy_tags, plain.tags) == ((), ("global",), (), ())
    assert (plain.version_check, plain.auth, plain.network, plain.runner) == (None, None, None, None)
    assert (plain.cost, plain.timeout_ms, plain.retry, plain.health_check) == (None, None, None, None)


@pytest.mark.req("AIP-30.version-1")
@pytest.mark.parametrize(
    ("check", "found"),
    [
        ({"cmd": "gh --version; rm -rf x", "parse": "(.)", "range": "1"}, [("command_invalid", "/version_check/cmd")]),
        ({"cmd": "gh $(x)", "parse": "(.)", "range": "1"}, [("command_invalid", "/version_check/cmd")]),
        ({"cmd": " ", "parse": "(.)", "range": "1"}, [("command_invalid", "/version_check/cmd")]),
        ({"cmd": "gh", "parse": "v.*", "range": "1"}, [("pattern_invalid", "/version_check/parse")]),
        ({"cmd": "gh", "parse": "(", "range": "1"}, [("pattern_invalid", "/version_check/parse")]),
        ({"cmd": "gh", "parse": "(.)", "range": "banana"}, [("range_invalid", "/version_check/range")]),
        ({"cmd": "gh --version", "parse": r"gh version (\S+)", "range": ">=2.40 <3"}, []),
    ],
)
def test_a_version_check_that_cannot_work_is_refused(check: dict[str, Any], found: list[tuple[str, str]]) -> None:
    assert errors(driver(version_check=check)) == found
    if not found:
        told = loaded(driver(version_check=check)).version_check
        assert told is not None
        assert told.timeout_ms == 5000


@pytest.mark.req("AIP-30.health-1")
@pytest.mark.parametrize(
    ("every", "seconds"),
    [("PT5M", 300.0), ("PT30S", 30.0), ("P1D", 86400.0), ("P1DT1H", 90000.0), ("P2W", 1209600.0), ("PT0.5S", 0.5)],
)
def test_durations_are_iso_8601(every: str, seconds: float) -> None:
    check = loaded(driver(health_check={"method": "ping", "every": every})).health_check
    assert check == HealthCheck(method="ping", every=every)
    assert check.every_s == seconds
    assert check.timeout_ms == 5000


@pytest.mark.req("AIP-30.health-1")
@pytest.mark.parametrize("every", ["5m", "P-1D", "P", "PT", "P1M", "P1Y", "PT1H1D", "PT0S", "P999999D", "P1DT", "P 1D"])
def test_an_invalid_duration_is_refused(every: str) -> None:
    assert errors(driver(health_check={"method": "ping", "every": every})) == [
        ("schema_invalid", "/health_check/every")
    ]
    assert errors(driver(auth={"refresh": {"every": every}})) == [("schema_invalid", "/auth/refresh/every")]


@pytest.mark.req("AIP-30.health-1")
def test_a_health_check_has_what_its_method_needs() -> None:
    assert errors(driver(health_check={"method": "exec"})) == [("schema_invalid", "/health_check/cmd")]
    assert errors(driver(health_check={"method": "http"})) == [("schema_invalid", "/health_check/http")]
    assert errors(driver(health_check={"method": "exec", "cmd": "a | b"})) == [("command_invalid", "/health_check/cmd")]


def test_an_unknown_way_of_expiry_is_reported() -> None:
    assert warnings(driver(auth={"expiry": {"detect": "moon:full"}})) == [("detect_unknown", "/auth/expiry/detect")]
    assert warnings(driver(auth={"expiry": {"detect": "http_status:401"}})) == []


@pytest.mark.parametrize(
    ("entry", "found"),
    [
        ({"method": "npm"}, [("schema_invalid", "/install/0/package")]),
        ({"package": "x"}, [("schema_invalid", "/install/0/method")]),
        ({"method": "teleport"}, [("schema_invalid", "/install/0/method")]),
        ({"method": "download", "url": "https://a.example/x", "extract_bin": "", "verify_sha256": "zz"},
         [("schema_invalid", "/install/0/verify_sha256")]),
        ({"method": "docker", "image": "a:1"}, []),
    ],
)  # fmt: skip
def test_a_way_of_installing_has_what_it_needs(entry: dict[str, Any], found: list[tuple[str, str]]) -> None:
    assert errors(driver(install=[entry])) == found


@pytest.mark.req("AIP-30.install-2")
def test_an_experimental_way_of_installing_is_skipped() -> None:
    data = driver(install=[{"method": "teleport", "experimental": True}])
    assert warnings(data) == [("install_method_unknown", "/install/0/method")]


@pytest.mark.req("AIP-30.implements-3")
def test_a_range_that_is_none_is_refused_although_the_schema_lets_it_pass() -> None:
    data = driver(implements=[binding(version="banana")])
    assert errors(data) == [("range_invalid", "/implements/0/version")]
    assert check_published(text(data), "D") == ()


@pytest.mark.req("AIP-30.implements-1", "AIP-30.implements-2")
def test_an_entry_is_closed_and_names_each_contract_once() -> None:
    assert errors(driver(implements=[binding(more=1)])) == [("schema_invalid", "/implements/0/more")]
    for mapped, place in (
        (3, ""),
        ({"transform": "t"}, ""),
        ({"from": 3}, "/from"),
        ({"from": "a", "more": 1}, "/more"),
    ):
        found = errors(driver(implements=[binding(mapping={"x": mapped})]))
        assert [(code, field.removesuffix("/from")) for code, field in found] == [
            ("schema_invalid", f"/implements/0/mapping/x{place.removesuffix('/from')}")
        ]
    twice = driver(implements=[binding(), binding(tool="tools//fs-read/TOOL.md")])
    assert errors(twice) == [("duplicate_binding", "/implements/1/tool")]
    for path in ("/etc/TOOL.md", "~/TOOL.md", "C:\\TOOL.md"):
        assert errors(driver(implements=[binding(tool=path)])) == [("path_escape", "/implements/0/tool")]


@pytest.mark.req("AIP-30.implements-1")
def test_everything_of_an_entry_is_read() -> None:
    entry = binding(
        schema_narrowing={"drop_inputs": ["a"], "drop_outputs": ["b"]},
        mapping={"a": "b", "c": {"from": "d", "transform": "t"}},
        cost_override={"cost_units_per_call": 0.5},
        timeout_override_ms=500,
        retry_override={"max_attempts": 2},
    )
    bound = loaded(driver(implements=[entry])).implements[0]
    assert bound.schema_narrowing.drop_inputs == ("a",)
    assert bound.mapping == {"a": "b", "c": Mapped(source="d", transform="t")}
    assert bound.cost is not None
    assert (bound.cost.cost_units_per_call, bound.timeout_ms) == (0.5, 500)
    assert bound.retry is not None
    assert (bound.pointer, bound.retry.max_attempts) == ("/implements/0", 2)


@pytest.mark.req("AIP-file-2", "AIP-file-3")
def test_the_folder_and_the_suffix_are_reported_as_warnings() -> None:
    assert warnings(driver(), folder="filesystem-mcp") == []
    named = as_driver(driver(), folder="fs")
    assert told(of_severity(named, "warning")) == [("folder_name", "/id")]
    assert "'fs'" in of_severity(named, "warning")[0].message
    assert "'filesystem-mcp'" in of_severity(named, "warning")[0].message
    assert warnings(driver(id="filesystem")) == [("id_suffix", "/id")]


@pytest.mark.req("AIP-file-4")
def test_an_entry_file_of_another_language_is_reported_as_not_run() -> None:
    assert warnings(driver(), beside={"DRIVER.md", "driver.ts"}) == [("entry_not_run", "")]
    assert warnings(driver(), beside={"DRIVER.md", "driver.ts", "driver.py"}) == []


def test_secrets_taken_are_listed_once_in_their_order() -> None:
    server = {
        "headers": {"X-A": "${secrets.B_KEY}", "X-B": "a ${secrets.A_KEY} ${secrets.B_KEY}"},
        "auth": {"type": "bearer", "secret": "C_KEY"},
    }
    assert loaded(remote(**server)).secret_names == ("B_KEY", "A_KEY", "C_KEY")


@pytest.mark.parametrize(
    ("egress", "found"),
    [
        (["api.foo.com", "*.foo.com", "localhost", "127.0.0.1"], []),
        (["api.foo.com:443", "*.foo.com:80"], []),
        (["*:443"], []),
        (["api.foo.com:0"], [("schema_invalid", "/network/egress/0")]),
        (["ok.com", "foo.com/x"], [("schema_invalid", "/network/egress/1")]),
        (["10.0.0.0/8"], [("schema_invalid", "/network/egress/0")]),
        (["a.*.com"], [("schema_invalid", "/network/egress/0")]),
        ([""], [("schema_invalid", "/network/egress/0")]),
    ],
)
@pytest.mark.req("AIP-security-3")
def test_egress_names_hosts_only(egress: list[str], found: list[tuple[str, str]]) -> None:
    assert errors(driver(network={"egress": egress})) == found
    for open_ in ("*", "*:443"):
        assert warnings(driver(network={"egress": [open_]})) == [("egress_open", "/network/egress/0")]
    assert warnings(driver(network={"egress": ["api.foo.com", "*.foo.com"]})) == []


@pytest.mark.req("AIP-security-3")
def test_the_url_of_a_remote_server_obeys_egress() -> None:
    assert told(of_severity(as_driver(remote()), "note")) == [("egress_implied", "/server/url")]
    denied = remote() | {"network": {"egress": ["other.example.com"]}}
    assert errors(denied) == [("egress_denied", "/server/url")]
    assert errors(remote() | {"network": {"egress": []}}) == [("egress_denied", "/server/url")]
    assert errors(remote() | {"network": {"egress": ["*.example.com"]}}) == []


def test_kinds_are_read_as_values() -> None:
    assert isinstance(loaded(remote()).server, RemoteServer)
    docker = driver(server={"kind": "docker", "image": "a/b:1", "port": 8080}, transport="http")
    assert loaded(docker).server == DockerServer(image="a/b:1", port=8080)
    pypi = driver(server={"kind": "pypi", "package": "mcp-server-git[x]==2026.8.31"})
    assert loaded(pypi).server == PypiServer(package="mcp-server-git[x]", version="2026.8.31", entry="mcp-server-git")


def test_nine_broken_files_do_not_affect_a_sound_file() -> None:
    sound = text(driver())
    broken = [
        b"",
        b"---",
        sound[4:],
        b"\xff" + sound,
        b"---\n\t\n---\n",
        sound.replace(b"---\nname", b"---\nid: x\nname"),
        sound.replace(b"transport: stdio", b"transport: ws"),
        sound.replace(b"kind: mcp", b"kind: cli"),
        sound.replace(b"1.0.0", b"1.0", 1),
    ]
    readings = [read_driver(each, f"{index}/DRIVER.md") for index, each in enumerate([*broken, sound])]
    assert [reading.value is not None for reading in readings] == [False] * 9 + [True]
    assert all(reading.errors for reading in readings if reading.value is None)
