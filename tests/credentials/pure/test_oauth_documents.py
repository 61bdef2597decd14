"""Key sets, metadata, introspection, scopes: which key is taken, which document believed, what a scope stands for."""

import base64
import json
from typing import Any

import pytest
from tests.servers.minting import key

from interlock.credentials.protocol.resource import (
    DEFAULT_SCOPES,
    BadIntrospection,
    BadMetadata,
    basic,
    discovery_urls,
    granted_scope,
    is_protected,
    metadata_document,
    metadata_paths,
    metadata_url,
    read_introspection_untrusted,
    read_metadata_untrusted,
    request_body,
    request_headers,
    resource_of,
    scope_to_ask,
)
from interlock.crypto.jose import KEYS_MAX, Algorithm, BadKeySet, InvalidToken, Jwk, Reason, read_jwks_untrusted, select
from interlock.net.protocol.uri import same_resource

ISSUER = "https://login.example.com"


# Keys


def keys(*jwks: Any) -> tuple[Jwk, ...]:
    return read_jwks_untrusted(json.dumps({"keys": list(jwks)}).encode())


def chosen(found: Jwk | InvalidToken) -> str | Reason | None:
    return found.reason if isinstance(found, InvalidToken) else found.kid


ED, EC, RSA = (key(alg, kid).jwk() for alg, kid in (("EdDSA", "ed"), ("ES256", "ec"), ("RS256", "rsa")))
ANY_RSA = RSA | {"alg": None}


@pytest.mark.parametrize(("alg", "kid"), [("EdDSA", "ed"), ("ES256", "ec"), ("RS256", "rsa")])
def test_the_key_is_the_named_key_or_the_only_key_that_fits(alg: Algorithm, kid: str) -> None:
    published = keys(ED, EC, RSA)
    assert chosen(select(published, alg, kid)) == kid
    assert chosen(select(published, alg, None)) == kid


@pytest.mark.parametrize(
    ("published", "alg", "kid", "why"),
    [
        ([], "EdDSA", "ed", Reason.KEY_UNKNOWN),
        ([], "EdDSA", None, Reason.KEY_UNKNOWN),
        ([ED], "EdDSA", "other", Reason.KEY_UNKNOWN),
        ([ED], "EdDSA", "", Reason.KEY_UNKNOWN),
        ([EC], "EdDSA", None, Reason.KEY_UNKNOWN),
        ([ED], "ES256", "ed", Reason.KEY_UNFIT),
        ([RSA], "PS256", "rsa", Reason.KEY_UNFIT),
        ([EC | {"crv": "P-384", "alg": None}], "ES256", "ec", Reason.KEY_UNFIT),
        ([ED | {"crv": "X25519"}], "EdDSA", "ed", Reason.KEY_UNFIT),
        ([ED | {"use": "enc"}], "EdDSA", "ed", Reason.KEY_UNFIT),
        ([ED | {"key_ops": ["sign"]}], "EdDSA", "ed", Reason.KEY_UNFIT),
        ([ED | {"d": "AAAA"}], "EdDSA", "ed", Reason.KEY_UNFIT),
        ([{"kty": "oct", "kid": "ed", "k": "AAAA"}], "EdDSA", "ed", Reason.KEY_UNFIT),
        ([ED, ED], "EdDSA", "ed", Reason.KEY_UNFIT),
        ([ED, RSA | {"kid": "ed"}], "EdDSA", "ed", Reason.KEY_UNFIT),
        ([ED, key("EdDSA", "two").jwk()], "EdDSA", None, Reason.KEY_UNFIT),
    ],
)
def test_no_key_is_used_for_what_it_is_not_for(published: Any, alg: Algorithm, kid: str | None, why: Reason) -> None:
    assert chosen(select(keys(*published), alg, kid)) is why


def test_a_key_that_names_no_use_serves() -> None:
    bare = key("PS256", "any").jwk(use=None, alg=None)
    for alg in ("RS256", "PS256"):
        assert chosen(select(keys(bare | {"key_ops": ["verify"]}), alg, "any")) == "any"


def test_keys_of_unknown_form_are_left_out() -> None:
    assert [
        one.kid for one in keys(7, None, {}, {"kty": 7}, {"kty": "AKP", "kid": "new"}, ED, {"kty": "EC", "x": 7})
    ] == [
        "new",
        "ed",
    ]


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"{}",
        b'{"keys":{}}',
        b'{"keys":[}',
        b"\xff",
        b'{"keys":' + b"[" * 9000 + b"]" * 9000 + b"}",
        json.dumps({"keys": [{}] * (KEYS_MAX + 1)}).encode(),
    ],
    ids=lambda data: str(data[:20]),
)
def test_an_invalid_key_set_raises_its_own_error(data: bytes) -> None:
    with pytest.raises(BadKeySet):
        read_jwks_untrusted(data)


# This node


@pytest.mark.parametrize(
    ("public_url", "resource", "metadata"),
    [
        (
            "https://Example.com",
            "https://example.com/mcp",
            "https://example.com/.well-known/oauth-protected-resource/mcp",
        ),
        ("http://[::1]:7411/", "http://[::1]:7411/mcp", "http://[::1]:7411/.well-known/oauth-protected-resource/mcp"),
        ("https://h/A/b", "https://h/A/b/mcp", "https://h/.well-known/oauth-protected-resource/A/b/mcp"),
    ],
)
def test_the_resource_is_the_endpoint_and_its_metadata_lies_before_the_path(
    public_url: str, resource: str, metadata: str
) -> None:
    assert resource_of(public_url) == resource
    assert metadata_url(resource) == metadata
    paths = metadata_paths(resource)
    assert {"/.well-known/oauth-protected-resource", "/.well-known/oauth-protected-resource/mcp"} <= paths
    assert len(paths) == (3 if "/A/" in resource else 2)


def test_a_resource_is_the_same_in_capitals_of_its_host_only() -> None:
    assert same_resource("HTTPS://A.b/mcp", "https://a.B/mcp")
    assert same_resource("api://x", "api://x")
    for other in (
        "https://a.b/MCP",
        "https://a.b/mcp/",
        "https://a.b/mcp?",
        "https://a.b/mcp#",
        "mcp",
        "",
        "https://[",
    ):
        assert not same_resource(other, "https://a.b/mcp")


def test_the_metadata_document_names_the_servers_and_the_scopes() -> None:
    made = json.loads(metadata_document("https://h/mcp", "Interlock", [ISSUER], ["read"]))
    assert made["authorization_servers"] == [ISSUER] and made["scopes_supported"] == ["read"]
    assert made["bearer_methods_supported"] == ["header"]
    assert "scopes_supported" not in json.loads(metadata_document("https://h/mcp", "Interlock", [ISSUER], []))


# Authorization servers


def test_metadata_is_looked_for_where_mcp_says_and_in_its_order() -> None:
    assert discovery_urls("https://h.example") == (
        "https://h.example/.well-known/oauth-authorization-server",
        "https://h.example/.well-known/openid-configuration",
    )
    assert discovery_urls("https://h.example/") == discovery_urls("https://h.example")
    assert discovery_urls("https://h.example/tenant1/") == (
        "https://h.example/.well-known/oauth-authorization-server/tenant1",
        "https://h.example/.well-known/openid-configuration/tenant1",
        "https://h.example/tenant1/.well-known/openid-configuration",
    )


@pytest.mark.parametrize(
    "said",
    [
        None,
        [],
        {},
        {"issuer": ISSUER},
        {"issuer": ISSUER, "jwks_uri": 7},
        {"issuer": ISSUER + "/", "jwks_uri": "https://h/jwks"},
        {"issuer": ISSUER, "jwks_uri": "http://h/jwks"},
        {"issuer": ISSUER, "jwks_uri": "jwks"},
        {"issuer": ISSUER, "jwks_uri": "https://u:p@h/jwks"},
    ],
)
def test_metadata_of_another_server_or_with_unprotected_keys_is_refused(said: Any) -> None:
    with pytest.raises(BadMetadata):
        read_metadata_untrusted(json.dumps(said).encode(), ISSUER)


def test_metadata_of_the_server_is_taken() -> None:
    data = json.dumps({"issuer": ISSUER, "jwks_uri": "https://keys.example/jwks?p=1", "more": [1]}).encode()
    assert read_metadata_untrusted(data, ISSUER).jwks_uri == "https://keys.example/jwks?p=1"


def test_only_https_and_this_machine_are_protected() -> None:
    for url in ("https://h", "https://h:1/x?y", "http://127.0.0.1:9", "http://[::1]/x", "http://localhost"):
        assert is_protected(url), url
    for url in ("", "h", "http://h", "http://127.0.0.1.example", "http://localhost.example", "ftp://h", "https://"):
        assert not is_protected(url), url
    for url in ("https://u@h", "https://h#x", "https://h:x", "https://h h", "https://é", "https://[::1", "file:///x"):
        assert not is_protected(url), url


# Introspection


def test_the_request_carries_the_clients_name_and_the_token_encoded() -> None:
    headers = request_headers("a:b", "c d%é").decode()
    pair = base64.b64decode(headers.partition("Basic ")[2].strip()).decode()
    assert pair == "a%3Ab:c+d%25%C3%A9"
    assert headers.endswith("\r\n") and "content-type: application/x-www-form-urlencoded\r\n" in headers
    assert request_body("a+b/c=") == b"token=a%2Bb%2Fc%3D&token_type_hint=access_token"


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ({"active": False}, Reason.INACTIVE),
        ({"active": False, "sub": "alice", "exp": 9e9}, Reason.INACTIVE),
        ({"active": True, "token_type": "DPoP"}, Reason.BOUND),
        ({"active": True, "token_type": "N_A"}, Reason.BOUND),
    ],
)
def test_a_token_the_server_does_not_vouch_for_is_refused(said: Any, why: Reason) -> None:
    assert read_introspection_untrusted(json.dumps(said).encode(), ISSUER) == InvalidToken(why)


def test_an_answer_need_not_repeat_who_gives_it() -> None:
    for said in ({}, {"iss": None}, {"iss": ISSUER}):
        found = read_introspection_untrusted(json.dumps({"active": True, **said}).encode(), ISSUER)
        assert not isinstance(found, InvalidToken) and found.iss == ISSUER
    other = read_introspection_untrusted(b'{"active":true,"iss":"https://other.example"}', ISSUER)
    assert not isinstance(other, InvalidToken) and other.iss == "https://other.example"


@pytest.mark.parametrize(
    "data", [b"", b"[]", b"{}", b'{"active":1}', b'{"active":"true"}', b"<html>", b'{"active":true,']
)
def test_an_invalid_introspection_answer_raises_its_own_error(data: bytes) -> None:
    with pytest.raises(BadIntrospection, match="the answer is not a token introspection answer"):
        read_introspection_untrusted(data, ISSUER)


# Scopes


@pytest.mark.parametrize(
    ("scopes", "ours"),
    [
        ([], None),
        (["openid"], None),
        ([""], None),
        (["Read"], None),
        (["read"], "read"),
        (["admin", "read"], "admin"),
        (["interlock:write", "openid"], "write"),
    ],
)
def test_the_widest_scope_counts(scopes: list[str], ours: str | None) -> None:
    assert granted_scope(scopes, DEFAULT_SCOPES) == ours


def test_the_scope_to_ask_for_is_the_first_that_is_wide_enough() -> None:
    assert [scope_to_ask(ours, DEFAULT_SCOPES) for ours in ("read", "write", "admin")] == ["read", "write", "admin"]
    assert scope_to_ask("read", {"all": "admin", "use": "write"}) == "use"
    assert scope_to_ask("admin", {"use": "write"}) is None
    assert basic(DEFAULT_SCOPES) == ("read", "write")
    assert basic({"use": "write"}) == ("use",)
    assert basic({}) == ()
