"""Is the server of a driver one program or address, without a credential in clear and without a place for a trick?"""

from typing import Any

import msgspec
import pytest
from tests.drivers.driver_texts import MISSING, as_driver, driver, of_severity, remote, told

from interlock.drivers.protocol.kinds import SERVERS, BinaryServer, NpmServer, PypiServer, RemoteAuth, RemoteServer
from interlock.drivers.protocol.model import Driver

KINDS: dict[str, dict[str, Any]] = {
    "binary": {"kind": "binary", "path": "/usr/local/bin/mcp-filesystem"},
    "npm": {"kind": "npm", "package": "server-memory"},
    "pypi": {"kind": "pypi", "package": "mcp-server-time"},
    "docker": {"kind": "docker", "image": "a/b:1", "port": 8080},
    "remote": {"kind": "remote", "url": "https://mcp.example.com/v1"},
}
FITTING = {
    ("binary", "stdio"),
    ("npm", "stdio"),
    ("pypi", "stdio"),
    ("docker", "stdio"),
    ("docker", "http"),
    ("remote", "http"),
    ("remote", "sse"),
}


def of(kind: str, transport: str | None = None, **more: Any) -> dict[str, Any]:
    block = {key: value for key, value in {**KINDS[kind], **more}.items() if value is not MISSING}
    return driver(server=block, transport=transport or ("http" if kind == "remote" else "stdio"))


def loaded(data: dict[str, Any]) -> Driver:
    reading = as_driver(data)
    assert reading.value is not None, reading.problems
    return reading.value


def errors(data: dict[str, Any], **options: Any) -> list[tuple[str, str]]:
    return told(as_driver(data, **options).errors)


@pytest.mark.req("AIP-server-1")
def test_a_binary_has_a_path_and_lists_and_maps_of_strings() -> None:
    data = of("binary", args=["/workspace"])
    assert loaded(data).server == BinaryServer(path="/usr/local/bin/mcp-filesystem", args=("/workspace",))
    assert as_driver(of("binary", args=["/workspace"], env={"A": "1"}, cwd="x")).problems == ()
    assert errors(of("binary", path=MISSING)) == [("schema_invalid", "/server/path")]
    assert errors(of("binary", args="/workspace")) == [("schema_invalid", "/server/args")]
    assert errors(of("binary", env={"A": 1})) == [("schema_invalid", "/server/env/A")]


@pytest.mark.req("AIP-server-3")
def test_an_npm_package_is_pinned_by_its_suffix_or_by_version() -> None:
    name = "@modelcontextprotocol/server-filesystem"
    assert loaded(of("npm", package=name)).server == NpmServer(package=name)
    pinned = NpmServer(package=name, version="2026.8.31")
    assert loaded(of("npm", package=f"{name}@2026.8.31")).server == pinned
    assert loaded(of("npm", package=name, version="2026.8.31")).server == pinned
    assert loaded(of("npm", package=f"{name}@2026.8.31", version="2026.8.31")).server == pinned
    conflicting = of("npm", package=f"{name}@2026.8.31", version="2026.8.30")
    assert errors(conflicting) == [("version_conflict", "/server/version")]
    assert errors(of("npm", package=MISSING)) == [("schema_invalid", "/server/package")]


@pytest.mark.parametrize("package", ["", "--global", "a b", "../x", "a@", "http://x/y.tgz", "a;b", "git+ssh://x", "@a"])
def test_an_invalid_package_is_refused(package: str) -> None:
    assert errors(of("npm", package=package)) == [("schema_invalid", "/server/package")]
    assert errors(of("pypi", package=package)) == [("schema_invalid", "/server/package")]


@pytest.mark.req("AIP-server-10", "AIP-server-11")
def test_a_pypi_package_has_a_pin_an_entry_and_a_runner() -> None:
    read = loaded(of("pypi", package="mcp-server-git==2.0", entry="-m mcp_server_git", runner="uvx")).server
    assert read == PypiServer(package="mcp-server-git", version="2.0", entry="-m mcp_server_git", runner="uvx")
    assert errors(of("pypi", runner="conda")) == [("schema_invalid", "/server/runner")]
    for entry in ("-c print", "a;b", "-m a b", ""):
        assert errors(of("pypi", entry=entry)) == [("schema_invalid", "/server/entry")]


@pytest.mark.req("AIP-server-5")
@pytest.mark.parametrize("image", ["a/b", "a/b:latest", "registry.example:5000/a"])
def test_an_image_without_a_fixed_version_is_reported(image: str) -> None:
    reading = as_driver(of("docker", image=image))
    assert told(of_severity(reading, "warning")) == [("image_unpinned", "/server/image")]


@pytest.mark.req("AIP-server-5")
@pytest.mark.parametrize(
    "image", ["a/b:1.2", f"a/b@sha256:{'0' * 64}", f"a:latest@sha256:{'0' * 64}", "r.example:5000/a:1"]
)
def test_an_image_with_a_tag_or_digest_is_pinned(image: str) -> None:
    assert as_driver(of("docker", image=image)).problems == ()


@pytest.mark.req("AIP-server-5")
def test_an_image_is_a_name_and_http_needs_a_port() -> None:
    for image in (MISSING, "", "-v", "a b", "--privileged"):
        assert errors(of("docker", image=image)) == [("schema_invalid", "/server/image")]
    assert errors(of("docker", "http", port=MISSING)) == [("schema_invalid", "/server/port")]
    assert errors(of("docker", "http", port=70000)) == [("schema_invalid", "/server/port")]


@pytest.mark.req("AIP-server-7")
@pytest.mark.parametrize(
    ("url", "code"),
    [
        ("mcp.example.com", "url_invalid"),
        ("ftp://x", "url_invalid"),
        ("https://x/#frag", "url_invalid"),
        ("https://", "url_invalid"),
        ("https://x:port/", "url_invalid"),
        ("https://[::1/", "url_invalid"),
        ("https://x/a b", "url_invalid"),
        ("https://x/\tb", "url_invalid"),
        ("javascript:alert(1)", "url_invalid"),
        ("", "url_invalid"),
        ("https://user:password@x/", "plaintext_secret"),
        ("https://token@x/", "plaintext_secret"),
        ("http://mcp.example.com", "insecure_url"),
        ("http://127.0.0.1.example.com", "insecure_url"),
        ("https://${secrets.HOST}/", "placeholder_invalid"),
    ],
)
def test_an_address_that_cannot_be_used_is_refused(url: str, code: str) -> None:
    found = errors(remote(url))
    assert (code, "/server/url") in found
    assert {pointer for _, pointer in found} == {"/server/url"}
    if code == "plaintext_secret":
        refused = as_driver(remote(url)).errors
        assert {"'url' holds a credential in clear text"} == {one.message for one in refused if one.code == code}
        assert not any("password" in one.message + one.hint for one in refused)


@pytest.mark.req("AIP-server-7")
def test_install_of_a_remote_server_is_ignored_and_of_another_it_is_not() -> None:
    install = [{"method": "npm", "package": "p"}]
    assert ("install_ignored", "/install") in told(of_severity(as_driver({**remote(), "install": install}), "warning"))
    assert ("install_ignored", "/install") not in told(of_severity(as_driver(driver(install=install)), "warning"))


@pytest.mark.req("AIP-server-7")
@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:3911/mcp", "http://localhost", "http://[::1]/x", "https://a.example/?q=1"]
)
def test_loopback_and_https_load(url: str) -> None:
    assert errors(remote(url)) == []


def test_a_host_the_operator_names_may_be_plain_http_and_is_warned_of() -> None:
    reading = as_driver(remote("http://old.example"), insecure_hosts={"old.example"})
    assert told(of_severity(reading, "warning")) == [("insecure_url", "/server/url")]


@pytest.mark.req("AIP-server-7")
def test_a_remote_server_is_not_installed() -> None:
    data = remote() | {"install": [{"method": "npm", "package": "x"}]}
    assert told(of_severity(as_driver(data), "warning")) == [("install_ignored", "/install")]
    assert told(of_severity(as_driver(remote()), "warning")) == []


@pytest.mark.req("AIP-server-8")
def test_the_auth_of_a_remote_server_is_read() -> None:
    data = remote(auth={"type": "header", "header": "X-API-Key", "secret": "K"}, query={"a": "${secrets.Q}"})
    server = loaded(data).server
    assert isinstance(server, RemoteServer)
    assert server.auth == RemoteAuth(type="header", header="X-API-Key", secret="K")
    assert errors(remote(auth={"type": "bearer"})) == [("schema_invalid", "/server/auth/secret")]
    assert errors(remote(auth={"type": "header", "secret": "K"})) == [("schema_invalid", "/server/auth/header")]
    assert errors(remote(auth={"type": "basic"})) == [("schema_invalid", "/server/auth/type")]
    assert errors(remote(auth={"type": "oauth", "more": 1})) == [("schema_invalid", "/server/auth/more")]
    lower = remote(auth={"type": "bearer", "secret": "my secret"})
    assert errors(lower) == [("placeholder_invalid", "/server/auth/secret")]


@pytest.mark.req("AIP-server-9")
@pytest.mark.parametrize(
    ("server", "pointer", "named"),
    [
        ({"path": "x"}, "/server/kind", SERVERS),
        ({"kind": "python", "package": "x"}, "/server/kind", SERVERS),
        ({"kind": "npm", "url": "https://x"}, "/server/package", SERVERS["npm"].keys),
        ({"kind": "remote", "package": "x"}, "/server/url", SERVERS["remote"].keys),
        ({"kind": "docker"}, "/server/image", SERVERS["docker"].keys),
    ],
)
def test_a_server_is_one_shape_and_its_fault_one_message(server: dict[str, Any], pointer: str, named: Any) -> None:
    reading = as_driver(driver(server=server))
    (problem,) = reading.problems
    assert (problem.code, problem.field) == ("schema_invalid", pointer)
    assert all(key in problem.hint for key in named)
    (elsewhere,) = as_driver(of("npm", transport="pigeon")).problems
    assert elsewhere.field == "/transport" and "kind npm takes" not in elsewhere.hint


@pytest.mark.req("AIP-server-9")
def test_a_key_that_the_kind_does_not_have_is_reported() -> None:
    assert told(of_severity(as_driver(of("binary", arg=["x"])), "warning")) == [("unknown_key", "/server/arg")]


@pytest.mark.req("AIP-server-12")
@pytest.mark.parametrize("transport", ["stdio", "http", "sse"])
@pytest.mark.parametrize("kind", KINDS)
def test_kind_and_transport_fit(kind: str, transport: str) -> None:
    expected = [] if (kind, transport) in FITTING else [("transport_server_mismatch", "/transport")]
    assert errors(of(kind, transport)) == expected


@pytest.mark.req("AIP-server-12")
def test_seven_pairs_of_kind_and_transport_are_valid() -> None:
    assert len(FITTING) == 7


@pytest.mark.req("AIP-server-13")
@pytest.mark.parametrize(
    "text", ["${secret.X}", "${env.X}", "${secrets.X", "${", "${secrets.lower}", "${secrets.}", "${HOME}"]
)
def test_a_placeholder_that_is_none_of_ours_is_refused(text: str) -> None:
    assert errors(of("npm", env={"A": text})) == [("placeholder_invalid", "/server/env/A")]
    assert errors(of("npm", args=["x", text])) == [("placeholder_invalid", "/server/args/1")]


@pytest.mark.req("AIP-server-13")
@pytest.mark.parametrize(
    ("kind", "key"), [("binary", "path"), ("npm", "package"), ("docker", "image"), ("remote", "url")]
)
def test_no_secret_decides_what_is_started(kind: str, key: str) -> None:
    assert ("placeholder_invalid", f"/server/{key}") in errors(of(kind, **{key: "${secrets.X}"}))


@pytest.mark.req("AIP-tenant-1", "AIP-security-8")
@pytest.mark.parametrize("text", ["${context.tenant}", "a ${user.id}"])
def test_the_caller_is_not_bound_to_a_shared_server(text: str) -> None:
    assert errors(of("npm", env={"A": text})) == [("user_context_at_spawn", "/server/env/A")]
    assert errors(of("npm", args=[text])) == [("user_context_at_spawn", "/server/args/0")]
    assert errors(remote(headers={"A": text})) == [("user_context_at_spawn", "/server/headers/A")]


def test_a_secret_among_the_arguments_is_warned_of() -> None:
    assert told(of_severity(as_driver(of("npm", args=["--key", "${secrets.K}"])), "warning")) == [
        ("secret_in_argv", "/server/args/1")
    ]


PLAIN: list[tuple[dict[str, Any], str]] = [
    (of("npm", env={"GITHUB_TOKEN": "ghp_HIDDENhidden1234"}), "/server/env/GITHUB_TOKEN"),
    (of("npm", env={"STRIPE_API_KEY": "hidden"}), "/server/env/STRIPE_API_KEY"),
    (of("npm", env={"DATABASE_URL": "postgres://me:hidden@db/x"}), "/server/env/DATABASE_URL"),
    (of("npm", args=["--api-key", "sk-hidden"]), "/server/args/1"),
    (of("npm", args=["--api-key=hidden"]), "/server/args/0"),
    (of("npm", args=["--dsn", "postgresql://me:hidden@db/x"]), "/server/args/1"),
    (of("npm", args=["--header", "Authorization: Bearer hidden"]), "/server/args/1"),
    (of("npm", args=["postgresql://me:hidden@db/x"]), "/server/args/0"),
    (of("npm", args=["-e", "SECRET_KEY=hidden"]), "/server/args/1"),
    (remote(headers={"Authorization": "Bearer hidden"}), "/server/headers/Authorization"),
    (remote(headers={"X-API-Key": "hidden"}), "/server/headers/X-API-Key"),
    (remote(query={"token": "hidden"}), "/server/query/token"),
]


@pytest.mark.req("AIP-server-8", "AIP-19.plain-2")
@pytest.mark.parametrize(
    ("data", "pointer"), PLAIN, ids=[pointer + str(index) for index, (_, pointer) in enumerate(PLAIN)]
)
def test_a_credential_in_clear_is_refused_by_name_and_never_shown(data: dict[str, Any], pointer: str) -> None:
    reading = as_driver(data)
    assert told(reading.errors) == [("plaintext_secret", pointer)]
    assert (
        reading.errors[0].message.endswith("' holds a credential in clear text")
        and "''" not in reading.errors[0].message
    )
    assert b"hidden" not in msgspec.json.encode(reading.problems).lower()


@pytest.mark.req("AIP-19.plain-2")
@pytest.mark.parametrize("flag", ["map-key", "--map-key"])
def test_a_key_named_in_not_secret_passes(flag: str) -> None:
    data = of("npm", env={"CACHE_TOKEN": "blue"}, args=["--map-key", "grid"])
    assert len(errors(data)) == 2
    assert errors(data | {"metadata": {"interlock": {"not_secret": ["CACHE_TOKEN", flag]}}}) == []


@pytest.mark.req("AIP-19.plain-2")
@pytest.mark.parametrize(
    "env",
    [
        {"API_KEY": "${secrets.API_KEY}"},
        {"DATABASE_URL": "postgres://me:${secrets.PASSWORD}@db/x"},
        {"MAX_TOKENS": "4096"},
        {"TOKEN_URL": "https://auth.example.com/token"},
        {"SSH_KEY": "/run/keys/id.pem"},
        {"USE_AUTH": "true"},
        {"LOG_LEVEL": "debug"},
    ],
)
def test_metadata_without_credentials_passes(env: dict[str, str]) -> None:
    assert errors(of("npm", env=env)) == []


def test_names_that_no_process_or_request_can_carry_are_refused() -> None:
    for name in ("A B", "A=B", "1A", ""):
        assert errors(of("npm", env={name: "x"}))[0][0] == "schema_invalid"
    assert errors(remote(headers={"X Y": "x"})) == [("schema_invalid", "/server/headers/X Y")]
    assert errors(remote(headers={"X-Y": "a\r\nHost: b"})) == [("schema_invalid", "/server/headers/X-Y")]


SERVER_JSON = msgspec.json.encode(KINDS["npm"])
REGISTRY = {
    "name": "io.example/files",
    "packages": [
        {"registryType": "nuget", "identifier": "x", "transport": {"type": "stdio"}},
        {
            "registryType": "npm",
            "identifier": "@a/b",
            "version": "1.2.3",
            "transport": {"type": "stdio"},
            "packageArguments": [
                {"type": "positional", "value": "/w"},
                {"type": "named", "name": "--log", "default": "x"},
            ],
            "environmentVariables": [{"name": "A_KEY", "isSecret": True}, {"name": "B", "value": "b"}, {"name": "C"}],
        },
    ],
    "remotes": [{"type": "streamable-http", "url": "https://a.example/mcp"}],
}


@pytest.mark.req("AIP-file-5")
def test_a_server_json_can_replace_the_block() -> None:
    read = as_driver(driver(server=MISSING), server_json=SERVER_JSON)
    assert read.value is not None
    assert read.value.server == NpmServer(package="server-memory")
    both = as_driver(of("binary"), server_json=SERVER_JSON)
    assert told(of_severity(both, "warning")) == [("server_json_ignored", "/server")]
    assert both.value is not None
    assert isinstance(both.value.server, BinaryServer)


def test_a_registrys_description_gives_the_first_server_that_runs_here_and_fits() -> None:
    data = msgspec.json.encode(REGISTRY)
    read = as_driver(driver(server=MISSING), server_json=data)
    assert read.value is not None, read.problems
    env = {"A_KEY": "${secrets.A_KEY}", "B": "b"}
    assert read.value.server == NpmServer(package="@a/b", version="1.2.3", args=("/w", "--log", "x"), env=env)
    assert read.value.secret_names == ("A_KEY",)
    over_http = as_driver(driver(server=MISSING, transport="http"), server_json=data)
    assert over_http.value is not None
    assert over_http.value.server == RemoteServer(url="https://a.example/mcp")
    assert (
        told(as_driver(driver(server=MISSING, transport="ws"), server_json=data).errors)[0][0] == "server_json_invalid"
    )


@pytest.mark.req("AIP-file-5")
@pytest.mark.parametrize(
    "content",
    [b"", b"[]", b"{", b"{}", b'{"command": "npx"}', b'{"packages": 3}', b'{"packages": [1, {}]}', b'{"remotes": [{}]}',
     b'{"a":' * 5000, b"\xff", b" " * 300_000 + b"{}"],
    ids=lambda content: repr(content[:20]),
)  # fmt: skip
def test_a_server_json_of_neither_shape_is_refused(content: bytes) -> None:
    found = told(as_driver(driver(server=MISSING), server_json=content).errors)
    assert found[0] == ("server_json_invalid", "/server")


@pytest.mark.req("AIP-file-5")
def test_a_server_json_is_checked_like_the_block() -> None:
    content = msgspec.json.encode({"kind": "npm", "package": "x", "env": {"GITHUB_TOKEN": "ghp_hidden1234"}})
    assert told(as_driver(driver(server=MISSING), server_json=content).errors) == [
        ("plaintext_secret", "/server/env/GITHUB_TOKEN")
    ]
