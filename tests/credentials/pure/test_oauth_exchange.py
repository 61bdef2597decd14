"""The requests by which a token is had, their answers, and what a browser brings back."""

import base64
import json
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest

from interlock.credentials.protocol.oauth_client import (
    AuthorizationServer,
    BadAnswer,
    BadRegistration,
    Client,
    Method,
    Returned,
    assertion_to_sign,
    authorization_url,
    client_document,
    client_metadata,
    code_form,
    credentials_form,
    error_code_untrusted,
    find_auth_method,
    find_method_to_register,
    is_from,
    pkce_challenge,
    read_callback_untrusted,
    read_registration_untrusted,
    read_token_untrusted,
    refresh_form,
    scopes_to_ask,
    token_request,
)

ISSUER = "https://login.example.com"
GOOD: dict[str, Any] = {"access_token": "abc.DEF-_~+/==", "token_type": "bearer"}


def test_the_challenge_is_that_of_the_specification() -> None:
    # RFC 7636 appendix B
    assert (
        pkce_challenge("dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk") == "E9Melhoa2OwvFrEMTJguCHaoeK1t8URWbuGJSstw-cM"
    )


@pytest.mark.req("AX-10.1-2")
def test_the_page_keeps_the_query_that_its_address_has() -> None:
    url = authorization_url(
        "https://login.example.com/a?tenant=x&y",
        client_id="https://node.example/oauth/client.json",
        redirect_uri="http://127.0.0.1:1/oauth/callback",
        state="s&t",
        challenge="c",
        resource="https://mcp.example.com/mcp",
        scopes=("a", "offline_access"),
    )
    assert url.startswith("https://login.example.com/a?tenant=x&y&")
    asked = dict(parse_qsl(urlsplit(url).query))
    assert asked["state"] == "s&t" and asked["scope"] == "a offline_access" and asked["prompt"] == "consent"
    assert asked["code_challenge_method"] == "S256" and asked["resource"] == "https://mcp.example.com/mcp"


@pytest.mark.req("AX-10.1-2")
def test_every_request_for_a_token_names_the_server_that_it_is_for() -> None:
    resource = "https://mcp.example.com/mcp"
    assert code_form("c", "v", "http://127.0.0.1:1/cb", resource) == {
        "grant_type": "authorization_code",
        "code": "c",
        "code_verifier": "v",
        "redirect_uri": "http://127.0.0.1:1/cb",
        "resource": resource,
    }
    renewal = {"grant_type": "refresh_token", "refresh_token": "r", "resource": resource}
    assert refresh_form("r", resource) == renewal
    alone = {"grant_type": "client_credentials", "resource": resource}
    assert credentials_form((), resource) == alone
    assert credentials_form(("a", "b"), resource) == {**alone, "scope": "a b"}


def test_a_refresh_token_is_asked_for_where_it_can_be_and_never_alone() -> None:
    server = AuthorizationServer(issuer=ISSUER, token_endpoint=ISSUER, scopes_supported=("offline_access",))
    without = AuthorizationServer(issuer=ISSUER, token_endpoint=ISSUER)
    assert scopes_to_ask(("a",), server) == ("a", "offline_access")
    assert scopes_to_ask((), server) == ()
    assert scopes_to_ask(("a",), without) == ("a",)


def parsed(client: Client, assertion: str | None = None) -> tuple[dict[str, str], str]:
    headers, body = token_request({"grant_type": "x"}, client, assertion)
    lines = dict(line.split(": ", 1) for line in headers.decode().splitlines())
    return dict(parse_qsl(body.decode())), lines.get("authorization", "")


def test_a_client_proves_itself_in_the_way_that_was_chosen_and_in_no_other() -> None:
    odd = {"issuer": ISSUER, "client_id": "a:b c", "secret": "s%/é"}
    form, authorization = parsed(Client(**odd, method="client_secret_basic"))
    assert base64.b64decode(authorization.removeprefix("Basic ")).decode() == "a%3Ab+c:s%25%2F%C3%A9"
    assert form == {"grant_type": "x"}
    form, authorization = parsed(Client(**odd, method="client_secret_post"))
    assert (form["client_id"], form["client_secret"], authorization) == ("a:b c", "s%/é", "")
    form, authorization = parsed(Client(**odd, method="none"))
    assert (form, authorization) == ({"grant_type": "x", "client_id": "a:b c"}, "")
    form, authorization = parsed(Client(**odd, method="private_key_jwt"), "h.c.s")
    assert form["client_assertion"] == "h.c.s" and "client_secret" not in form and not authorization


def test_an_assertion_is_for_the_issuer_alone_and_for_a_moment() -> None:
    signed = assertion_to_sign(Client(issuer=ISSUER, client_id="node"), "ES256", "j", 1000.5)
    claims = json.loads(base64.urlsafe_b64decode(signed.decode().split(".")[1] + "=="))
    assert claims == {"iss": "node", "sub": "node", "aud": ISSUER, "jti": "j", "iat": 1000, "exp": 1060}


@pytest.mark.parametrize(
    ("supported", "secret", "key", "method"),
    [
        (None, False, False, "none"),
        (("client_secret_basic",), False, False, "none"),
        (None, True, False, "client_secret_basic"),
        (("client_secret_post", "client_secret_basic"), True, False, "client_secret_basic"),
        (("client_secret_post",), True, False, "client_secret_post"),
        (("private_key_jwt", "none"), True, False, None),
        ((), True, False, None),
        (("private_key_jwt",), False, True, "private_key_jwt"),
        (None, False, True, "private_key_jwt"),
        (("client_secret_basic",), False, True, None),
    ],
)
def test_which_proof_is_given(supported: Any, secret: bool, key: bool, method: str | None) -> None:
    assert find_auth_method(supported, secret=secret, key=key) == method


@pytest.mark.parametrize(
    ("supported", "method"),
    [
        (("client_secret_basic", "none"), "none"),
        (None, "client_secret_basic"),
        (("client_secret_post",), "client_secret_post"),
        (("private_key_jwt",), None),
    ],
)
def test_which_proof_is_registered_for(supported: Any, method: str | None) -> None:
    assert find_method_to_register(supported) == method


@pytest.mark.parametrize(
    ("said", "asked", "method", "secret"),
    [
        ({"client_id": "c"}, "none", "none", None),
        ({"client_id": "c", "client_secret": "s"}, "none", "none", None),
        ({"client_id": "c", "client_secret": "s"}, "client_secret_basic", "client_secret_basic", "s"),
        (
            {"client_id": "c", "client_secret": "s", "token_endpoint_auth_method": "client_secret_post"},
            "none",
            "client_secret_post",
            "s",
        ),
    ],
)
def test_a_registration_is_read(said: Any, asked: Method, method: str, secret: str | None) -> None:
    client = read_registration_untrusted(json.dumps(said).encode(), ISSUER, asked, "http://127.0.0.1/cb")
    assert (client.issuer, client.client_id, client.method, client.secret) == (ISSUER, "c", method, secret)
    assert client.expires_at is None


@pytest.mark.parametrize(
    "said",
    [
        {},
        {"client_id": ""},
        {"client_id": "c", "token_endpoint_auth_method": "client_secret_basic"},
        {"client_id": "c", "token_endpoint_auth_method": "private_key_jwt"},
        {"client_id": "c", "token_endpoint_auth_method": "magic", "client_secret": "s"},
        {"client_id": "c", "client_secret": "s" * 5000},
        {"client_id": 7},
        [],
    ],
)
def test_a_malformed_registration_raises_exactly_one_error(said: Any) -> None:
    with pytest.raises(BadRegistration):
        read_registration_untrusted(json.dumps(said).encode(), ISSUER, "none", "http://127.0.0.1/cb")


def test_the_document_names_its_own_address_and_where_people_come_back() -> None:
    metadata = client_metadata("https://ops.example/oauth/callback", "Interlock x", "none", native=False)
    document = json.loads(client_document("https://node.example/oauth/client.json", metadata))
    assert document["client_id"] == "https://node.example/oauth/client.json"
    assert document["application_type"] == "web" and "refresh_token" in document["grant_types"]


@pytest.mark.parametrize(
    ("parameters", "expected"),
    [
        ([("state", "s"), ("code", "c")], Returned(state="s", code="c")),
        ([("state", "s"), ("code", "c"), ("iss", "i"), ("x", "y")], Returned(state="s", code="c", iss="i")),
        ([("state", "s"), ("error", "access_denied")], Returned(state="s", error="access_denied")),
        ([("state", "s"), ("error", "<b>")], Returned(state="s", error="an error without a name")),
        ([("state", "s")], None),
        ([("code", "c")], None),
        ([("state", ""), ("code", "c")], None),
        ([("state", "s"), ("code", "c"), ("error", "e")], None),
        ([("state", "s"), ("code", "c"), ("code", "c")], None),
        ([("state", "s"), ("code", "c"), ("iss", "i"), ("iss", "j")], None),
        ([("state", "s"), ("code", "c" * 5000)], None),
    ],
)
def test_callback_parameters_are_a_valid_answer_or_rejected(
    parameters: list[tuple[str, str]], expected: Returned | None
) -> None:
    assert read_callback_untrusted(parameters) == expected


@pytest.mark.parametrize(
    ("iss", "always_says", "believed"),
    [
        (ISSUER, True, True),
        (None, True, False),
        (ISSUER, False, True),
        (None, False, True),
        (ISSUER + "/", True, False),
        (ISSUER.upper(), False, False),
        ("https://evil.example", False, False),
        ("", True, False),
    ],
)
def test_the_issuer_of_an_answer_is_compared_exactly(iss: str | None, always_says: bool, believed: bool) -> None:
    returned = Returned(state="s", code="c", iss=iss)
    assert is_from(returned, ISSUER, always_says=always_says) is believed


@pytest.mark.parametrize(
    ("said", "lifetime"),
    [
        ({}, None),
        ({"expires_in": 60}, 60.0),
        ({"expires_in": "60"}, 60.0),
        ({"expires_in": "nan"}, None),
        ({"expires_in": "later"}, None),
        ({"expires_in": -1}, None),
        ({"expires_in": 1e300}, 315_360_000.0),
    ],
)
def test_a_token_is_read(said: dict[str, Any], lifetime: float | None) -> None:
    token = read_token_untrusted(json.dumps(GOOD | said).encode())
    assert (token.access_token, token.lifetime_s, token.scopes) == (GOOD["access_token"], lifetime, None)
    assert read_token_untrusted(json.dumps(GOOD | {"scope": "a b"}).encode()).scopes == ("a", "b")


@pytest.mark.parametrize(
    "changes",
    [
        {"access_token": "a\nb"},
        {"access_token": "a\0"},
        {"access_token": "é"},
        {"access_token": ""},
        {"access_token": "x" * 10_000},
        {"token_type": "mac"},
        {"token_type": None},
        {"refresh_token": "x" * 10_000},
        {"refresh_token": []},
        {"scope": ["a"]},
    ],
)
def test_a_malformed_token_raises_exactly_one_error(changes: dict[str, Any]) -> None:
    with pytest.raises(BadAnswer):
        read_token_untrusted(json.dumps(GOOD | changes).encode())


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b'{"error":"invalid_grant","error_description":"secret"}', "invalid_grant"),
        (b'{"error":"<script>"}', None),
        (b'{"error":7}', None),
        (b'["error"]', None),
        (b"<html>", None),
        (b"", None),
    ],
)
def test_of_an_error_only_its_name_is_taken(body: bytes, code: str | None) -> None:
    assert error_code_untrusted(body) == code
