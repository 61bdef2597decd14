"""Which URIs may a server be given, and which strings of an input are URIs?"""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from interlock.drivers.protocol.binding.uri_access import Reach, UriWatch, denial, schemes_of

LINKS = {"/workspace/out": "/etc", "/workspace/in": "/workspace/deep/er", "/workspace/hidden": "/workspace/secret"}
REACH = Reach(
    roots=("/workspace", "/data"),
    denied=("/workspace/secret",),
    egress=("api.foo.com", "*.bar.com"),
    schemes=schemes_of(["demo://{x}", "NOTES:///{id}", "{nothing}", "file:///{path}"]),
)


def resolve(path: str) -> str | None:
    """Symlinks of a small file system, followed before the dots, as the kernel does."""
    done = "/"
    for part in path.split("/"):
        if part in {"", "."}:
            continue
        if part == "..":
            done = done.rsplit("/", 1)[0] or "/"
            continue
        done = f"{done.rstrip('/')}/{part}"
        done = LINKS.get(done, done)
    return None if "unreadable" in done else done


def refused(uri: str) -> str | None:
    found = denial(uri, REACH, resolve)
    if found is None:
        return None
    assert found.code == "resource_uri_denied"
    assert not found.retryable
    assert uri not in str(found)
    return str(found.cause["reason"])


@pytest.mark.req("AIP-security-6")
@pytest.mark.parametrize(
    "uri",
    [
        "file:///workspace/a",
        "file:///workspace",
        "file:/workspace/a",
        "FILE:///workspace/a",
        "file:///workspace/a%20b%23.txt",
        "file:///workspace/b/../a",
        "file:///workspace/in/a",
        "file:///data/x",
        "https://api.foo.com/x?y=1#z",
        "http://a.bar.com:8080/",
        "HTTPS://API.FOO.COM/x",
        "demo://anything/at/all",
        "notes:///1",
        "relative/path",
        "My Documents/a b",
        "folder\\file",
        "/etc/passwd",
    ],
)
def test_uris_inside_the_folder_are_accepted(uri: str) -> None:
    assert refused(uri) is None


@pytest.mark.req("AIP-security-6")
@pytest.mark.parametrize(
    "uri",
    [
        "file:///workspace/../etc/passwd",
        "file:///workspace/%2e%2e/etc/passwd",
        "file:///workspace/%2E%2E%2fetc/passwd",
        "file:///workspace/%252e%252e/etc/passwd",
        "file:///workspace/%252E",
        "file://host/x",
        "file://localhost/workspace/a",
        "file://workspace/a",
        "file:////workspace/a",
        "file:workspace/a",
        "file:///workspace/a\0b",
        "file:///workspace/a%00b",
        "file:///workspace/a\\..\\b",
        "file:///workspace/a%5c..%5cb",
        "file:///workspace/a\nb",
        " file:///workspace/a",
        "fi\tle:///workspace/a",
        "file:///workspace/out/passwd",
        "file:///workspace/in/../../x/../../etc/passwd",
        "file:///workspace/out/../a",
        "file:///workspace/in/../../x",
        "file:///workspace/secret/key",
        "file:///workspace/hidden/key",
        "file:///workspace/unreadable",
        "file:///workspacex/a",
        "file:///workspace/a?/../../../etc/passwd",
        "file:///workspace/a#/../../../etc/passwd",
        "file:///workspace/a#part",
        "file:///workspace/%ff",
        "https://api.foo.com/a b",
        "demo://a\\b",
        "file:///etc/passwd",
        "file:///workspace/" + "a" * 9000,
        "http://api.bar.org/",
        "http://bar.com/",
        "https://api.foo.com@evil.example/",
        "https://user:pass@api.foo.com/",
        "https://api.foo.com.evil.example/",
        "https://evil.example/api.foo.com",
        "https://%61pi.foo.com/",
        "https:///x",
        "https://[::1/x",
        "https://[::1]/x",
        "//evil.example/x",
        "\\\\evil.example\\x",
        "/\\evil.example/x",
        "ftp://api.foo.com/x",
        "data:text/plain,x",
        "C:\\x",
        "c:/x",
        "javascript:alert(1)",
    ],
)
def test_uris_that_lead_out_or_are_ambiguous_are_refused(uri: str) -> None:
    assert refused(uri)


def test_a_host_that_two_readers_read_differently_is_refused_even_where_all_are_open() -> None:
    anywhere = Reach(egress=("*",))
    assert denial("https://api.foo.com/", anywhere, resolve) is None
    assert denial("https://%61pi.foo.com/", anywhere, resolve) is not None


@pytest.mark.parametrize(
    ("host", "passes"),
    [
        ("8.8.8.8", True),
        ("[2606:4700::1111]", True),
        ("name.example", True),
        ("127.0.0.1", False),
        ("10.0.0.1.", False),
        ("169.254.169.254", False),
        ("[::1]", False),
        ("[::ffff:127.0.0.1]", False),
        ("2130706433", False),
        ("0x7f.1", False),
        ("0x7f000001", False),
        ("localhost", False),
        ("a.localhost", False),
    ],
)
def test_a_wildcard_reaches_no_private_address_and_a_name_does(host: str, passes: bool) -> None:
    uri = f"http://{host}/x"
    assert (denial(uri, Reach(egress=("*",)), resolve) is None) is passes
    assert denial(uri, Reach(egress=("*", host.strip("[].").lower())), resolve) is None


def test_a_server_without_a_sandbox_of_files_gets_no_file() -> None:
    assert denial("file:///workspace/a", Reach(), resolve) is not None


@given(st.text(max_size=80), st.sampled_from(["", "file:///workspace/", "https://", "file:"]))
def test_any_text_has_a_verdict_and_a_file_that_passes_is_inside(text: str, head: str) -> None:
    uri = head + text
    if denial(uri, REACH, resolve) is None and uri.lower().startswith("file:"):
        resolved = resolve(uri[5:].replace("//", "", 1) if uri[5:].startswith("//") else uri[5:])
        assert resolved is not None
        assert resolved.startswith(("/workspace", "/data"))


SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "uri": {"type": "string", "format": "uri"},
        "ref": {"format": "uri-reference"},
        "path": {"type": "string"},
        "many": {"type": "array", "items": {"$ref": "#/$defs/place"}},
        "pair": {"prefixItems": [{"type": "string"}, {"format": "uri"}], "items": False},
        "either": {"anyOf": [{"type": "integer"}, {"format": "uri"}]},
        "when": {"if": {"type": "string"}, "then": {"format": "uri"}},
        "tree": {"$ref": "#/$defs/tree"},
    },
    "additionalProperties": {"type": "object", "additionalProperties": {"format": "uri"}},
    "$defs": {
        "place": {"type": "object", "properties": {"at": {"allOf": [{"format": "uri"}]}}},
        "tree": {"properties": {"self": {"$ref": "#/$defs/tree"}, "leaf": {"format": "uri"}}, "$ref": "#/$defs/tree"},
    },
}


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ({"uri": "a:b", "path": "c:d"}, ["a:b"]),
        ({"ref": "x", "path": "file:///x"}, ["x", "file:///x"]),
        ({"path": " FILE:///x"}, [" FILE:///x"]),
        ({"path": "fi\nle:///x"}, ["fi\nle:///x"]),
        ({"path": "a file: yes"}, []),
        ({"many": [{"at": "a:1"}, {"at": "a:2", "note": "a:3"}]}, ["a:1", "a:2"]),
        ({"pair": ["a:1", "a:2"]}, ["a:2"]),
        ({"either": "a:1"}, ["a:1"]),
        ({"when": "a:1"}, ["a:1"]),
        ({"other": {"deep": "a:1"}}, ["a:1"]),
        ({"tree": {"self": {"self": {"leaf": "a:1"}}}}, ["a:1"]),
        ({"uri": None, "many": 3}, []),
        ({"path": {"deep": ["file:///y"]}}, ["file:///y"]),
    ],
)
def test_the_strings_that_are_checked_are_those_the_schema_calls_uris_and_files(
    value: Any, expected: list[str]
) -> None:
    assert list(UriWatch(SCHEMA).uris(value)) == expected


@pytest.mark.parametrize(
    "schema",
    [True, None, {}, {"$ref": "#"}, {"$ref": "http://x/y"}, {"$ref": "#/nowhere"}, {"properties": 3, "items": [1]}],
)
def test_a_schema_that_says_little_still_leaves_files_to_be_checked(schema: Any) -> None:
    assert list(UriWatch(schema).uris({"a": ["file:///x", "b:c"]})) == ["file:///x"]


def test_a_value_that_nests_deeply_is_looked_through() -> None:
    value: Any = "file:///x"
    for _ in range(20_000):
        value = [value]
    assert list(UriWatch({"items": {"$ref": "#"}}).uris(value)) == ["file:///x"]
