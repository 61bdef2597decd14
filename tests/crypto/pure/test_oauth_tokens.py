"""What of an access token is accepted before anybody looks at its signature, and what must be true of its claims."""

import itertools
import json
from typing import Any

import pytest
from tests.servers.minting import b64, confused, join, key, mint, unsigned

from interlock.credentials.protocol.resource import TOKEN_BYTES_MAX, challenge, find_bearer, is_bearer
from interlock.crypto.jose import (
    InvalidToken,
    Jwt,
    Reason,
    TokenClaims,
    check,
    decode_base64url,
    encode,
    principal_name,
    read_jwt_untrusted,
    role_principals,
)

ISSUER = "https://login.example.com"
AUDIENCE = "https://mcp.example.com/mcp"
NOW = 1_800_000_000.0
GOOD: dict[str, Any] = {"iss": ISSUER, "sub": "alice", "aud": AUDIENCE, "exp": NOW + 300, "client_id": "app"}
ED = key("EdDSA", "ed")


def read(token: str) -> Jwt:
    jwt = read_jwt_untrusted(token)
    assert isinstance(jwt, Jwt), jwt
    return jwt


def reason(token: str) -> Reason:
    refused = read_jwt_untrusted(token)
    assert isinstance(refused, InvalidToken), refused
    return refused.reason


def claims(**changes: Any) -> TokenClaims:
    made = {name: value for name, value in (GOOD | changes).items() if value is not None}
    return read(mint(ED, made)).claims


def judged(**changes: Any) -> Reason | None:
    fault = check(claims(**changes), issuer=ISSUER, audience=AUDIENCE, now=NOW)
    return None if fault is None else fault.reason


@pytest.mark.parametrize("alg", ["EdDSA", "ES256", "RS256", "PS256"])
@pytest.mark.parametrize("typ", ["at+jwt", "AT+JWT", "application/at+jwt", "JWT", "jwt"])
def test_an_access_token_is_read(alg: str, typ: str) -> None:
    token = mint(key(alg, "k"), GOOD, typ=typ)
    jwt = read(token)
    assert (jwt.alg, jwt.kid, jwt.claims.sub, jwt.claims.aud) == (alg, "k", "alice", AUDIENCE)
    assert jwt.signed + b"." + encode(jwt.signature).encode() == token.encode()


HEAD = {"alg": "EdDSA", "typ": "at+jwt"}
FORGED: list[tuple[str, str, Reason]] = [
    ("nothing", "", Reason.MALFORMED),
    ("dots", "..", Reason.MALFORMED),
    ("one part", "x", Reason.MALFORMED),
    ("four parts", mint(ED, GOOD) + ".x", Reason.MALFORMED),
    ("five parts, as if encrypted", "e30.e30.e30.e30.e30", Reason.MALFORMED),
    ("padded", mint(ED, GOOD).replace(".", "=.", 1), Reason.MALFORMED),
    ("of the other base64", f"{b64(b'{}')}.+/+/.{b64(b'x')}", Reason.MALFORMED),
    ("a space in it", mint(ED, GOOD).replace(".", " .", 1), Reason.MALFORMED),
    ("a header that is no object", f"{b64(b'[]')}.{b64(b'{}')}.{b64(b'x')}", Reason.MALFORMED),
    ("a header with more behind it", join(json.dumps(HEAD).encode() + b"{}", GOOD) + ".eA", Reason.MALFORMED),
    ("claims that are no object", mint(ED, b"7"), Reason.MALFORMED),
    ("claims that are no text", mint(ED, b'{"sub":"\xff"}'), Reason.MALFORMED),
    ("claims without a bottom", mint(ED, b'{"x":' + b"[" * 5000 + b"]" * 5000 + b"}"), Reason.MALFORMED),
    ("half a character", mint(ED, b'{"sub":"\\ud83d"}'), Reason.MALFORMED),
    ("a number for a subject", mint(ED, GOOD | {"sub": 7}), Reason.MALFORMED),
    ("text for a time", mint(ED, GOOD | {"exp": "never"}), Reason.MALFORMED),
    ("true for a time", mint(ED, GOOD | {"exp": True}), Reason.MALFORMED),
    ("a time without an end", mint(ED, b'{"exp":1e999}'), Reason.MALFORMED),
    ("a list in the audience", mint(ED, GOOD | {"aud": [[AUDIENCE]]}), Reason.MALFORMED),
    ("no algorithm", mint(ED, GOOD, alg=None), Reason.MALFORMED),
    ("a number for a key", mint(ED, GOOD, kid=7), Reason.MALFORMED),
    ("unsigned", unsigned(GOOD), Reason.ALGORITHM),
    ("unsigned, in capitals", unsigned(GOOD, "NONE"), Reason.ALGORITHM),
    ("unsigned, with something behind", unsigned(GOOD, "nOnE") + "eA", Reason.ALGORITHM),
    ("without its signature", mint(ED, GOOD).rpartition(".")[0] + ".", Reason.ALGORITHM),
    ("symmetric", confused(key("RS256", "r"), GOOD, key("RS256", "r").pem()), Reason.ALGORITHM),
    ("HS512", mint(ED, GOOD, alg="HS512"), Reason.ALGORITHM),
    ("a weaker relative", mint(ED, GOOD, alg="RS1"), Reason.ALGORITHM),
    ("our algorithm in other letters", mint(ED, GOOD, alg="es256"), Reason.ALGORITHM),
    ("a critical extension", mint(ED, GOOD, crit=["b64"], b64=False), Reason.UNSUPPORTED),
    ("an empty critical list", mint(ED, GOOD, crit=[]), Reason.UNSUPPORTED),
    ("no type", mint(ED, GOOD, typ=None), Reason.TYPE),
    ("a proof of possession", mint(ED, GOOD, typ="dpop+jwt"), Reason.TYPE),
    ("a logout token", mint(ED, GOOD, typ="logout+jwt"), Reason.TYPE),
]


@pytest.mark.parametrize(("token", "why"), [row[1:] for row in FORGED], ids=[row[0] for row in FORGED])
def test_a_token_of_another_form_is_refused(token: str, why: Reason) -> None:
    assert reason(token) is why


def test_bytes_have_one_spelling() -> None:
    for data in (b"", b"a", b"ab", b"abc", bytes(range(256))):
        assert decode_base64url(encode(data)) == data
    for text in ("a", "YR", "YQ==", "Y Q", "Y\nQ", "Y+", "Yé", "YQ.", "AAB"):
        assert decode_base64url(text) is None, text


# TokenClaims


def test_good_claims_are_good() -> None:
    assert judged() is None
    assert judged(aud=["https://other.example", AUDIENCE], nbf=NOW - 5, iat=NOW - 5) is None
    assert judged(aud="HTTPS://MCP.Example.com/mcp") is None


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"iss": None}, Reason.ISSUER),
        ({"iss": ISSUER + "/"}, Reason.ISSUER),
        ({"iss": ISSUER.upper()}, Reason.ISSUER),
        ({"aud": None}, Reason.AUDIENCE),
        ({"aud": []}, Reason.AUDIENCE),
        ({"aud": ""}, Reason.AUDIENCE),
        ({"aud": "https://mcp.example.com"}, Reason.AUDIENCE),
        ({"aud": AUDIENCE + "/"}, Reason.AUDIENCE),
        ({"aud": AUDIENCE + "/only/x"}, Reason.AUDIENCE),
        ({"aud": "https://mcp.example.com/MCP"}, Reason.AUDIENCE),
        ({"aud": "http://mcp.example.com/mcp"}, Reason.AUDIENCE),
        ({"aud": "https://mcp.example.com.evil.example/mcp"}, Reason.AUDIENCE),
        ({"aud": "https://[broken/mcp"}, Reason.AUDIENCE),
        ({"exp": None}, Reason.EXPIRED),
        ({"exp": NOW - 30}, Reason.EXPIRED),
        ({"exp": 0}, Reason.EXPIRED),
        ({"exp": -1e300}, Reason.EXPIRED),
        ({"nbf": NOW + 31}, Reason.NOT_YET),
        ({"iat": NOW + 31}, Reason.NOT_YET),
        ({"nbf": 2**70}, Reason.NOT_YET),
        ({"sub": None}, Reason.SUBJECT),
        ({"sub": ""}, Reason.SUBJECT),
        ({"sub": "x" * 256}, Reason.SUBJECT),
        ({"client_id": "x" * 2049}, Reason.SUBJECT),
        ({"cnf": {"jkt": "x"}}, Reason.BOUND),
        ({"cnf": False}, Reason.BOUND),
    ],
    ids=str,
)
def test_claims_that_do_not_hold_here_are_refused(changes: dict[str, Any], why: Reason) -> None:
    assert judged(**changes) is why


def test_clocks_may_differ_by_thirty_seconds() -> None:
    assert judged(exp=NOW - 29) is None
    assert judged(nbf=NOW + 29, iat=NOW + 29) is None


def test_scopes_are_read_in_every_way_servers_write_them() -> None:
    for written in ({"scope": "a b"}, {"scope": ["a", "b"]}, {"scp": "a b"}, {"scp": ["a", "b"]}):
        assert list(claims(**written).scopes) == ["a", "b"]
    assert list(claims(scope="a", scp="b").scopes) == ["a"]
    assert "a" not in claims(scope="a\tb").scopes


def test_roles_of_any_form_are_taken_or_left() -> None:
    assert role_principals("corp", claims(roles=["a b", 7, "c"])) == ("role:corp/a%20b", "role:corp/c")
    for odd in ("a", {"x": 1}, 7, False):
        assert role_principals("corp", claims(roles=odd)) == ()


# Names


def test_a_principal_is_named_by_issuer_subject_and_client() -> None:
    assert principal_name("corp", claims()) == "client:corp/alice@app"
    assert principal_name("corp", claims(client_id=None, azp="web")) == "client:corp/alice@web"
    assert principal_name("corp", claims(client_id=None)) == "client:corp/alice@"
    assert principal_name("corp", claims(sub="bob@x.example")) == "client:corp/bob%40x.example@app"
    assert principal_name("corp", claims(client_id="https://a.example/c.json")).endswith("@https://a.example/c.json")


def test_no_two_pairs_of_subject_and_client_share_a_name() -> None:
    words = ["a", "b", "a@b", "@", "a@", "@b", "%40", "a%40b", "%", "a/b", "é", "a b", "a\nb", "A", "", "a:b"]
    pairs = [(sub, client) for sub, client in itertools.product(words, words) if sub]
    names = {principal_name("corp", claims(sub=sub, client_id=client)) for sub, client in pairs}
    assert len(names) == len(pairs)
    assert all(name.isascii() and name.isprintable() and " " not in name for name in names)


# The header


@pytest.mark.parametrize("value", [b"Bearer abc", b"bearer abc", b"BEARER  abc ", b"Bearer abc=="])
def test_a_bearer_is_found_in_the_header(value: bytes) -> None:
    assert is_bearer(value)
    assert str(find_bearer(value)).startswith("abc")


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"Bearer",
        b"Bearer ",
        b"Bearer a b",
        b"Bearer a\xe9",
        b'Bearer "a"',
        b"Bearer =",
        b"Bearer a,b",
        b"Basic abc",
        b"Bearera",
        b"Bearer " + b"a" * (TOKEN_BYTES_MAX + 1),
        b"Bearer a\x00",
    ],
)
def test_malformed_authorization_headers_contain_no_bearer_token(value: bytes) -> None:
    assert find_bearer(value) is None


def test_a_challenge_names_the_metadata_first_and_cannot_be_broken_out_of() -> None:
    url = "https://mcp.example.com/.well-known/oauth-protected-resource/mcp"
    assert challenge(url) == f'Bearer resource_metadata="{url}"'
    assert challenge(url, error="invalid_token") == f'Bearer resource_metadata="{url}", error="invalid_token"'
    full = challenge(url, error="insufficient_scope", description='a"\r\nx: y\\', scope="write")
    assert full.endswith(', error="insufficient_scope", error_description="ax: y", scope="write"')


@pytest.mark.parametrize("why", Reason)
def test_every_reason_fits_into_a_header(why: Reason) -> None:
    assert f'error_description="{why.value}"' in challenge("https://x.example", description=why.value)
