"""Tokens and documents from outside: whatever they hold, they are read or refused, and refused in one way."""

import json
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.servers.minting import b64, key, mint
from tests.wire.json_texts import VALUES, damaged_text, json_text

from interlock.credentials.protocol.oauth_client import (
    BadAnswer,
    BadRegistration,
    covers,
    error_code_untrusted,
    is_issuer,
    read_authorization_server_untrusted,
    read_callback_untrusted,
    read_protected_resource_untrusted,
    read_registration_untrusted,
    read_token_untrusted,
)
from interlock.credentials.protocol.resource import (
    BadIntrospection,
    BadMetadata,
    challenge,
    distinct_scopes,
    find_bearer,
    is_protected,
    read_challenge_untrusted,
    read_introspection_untrusted,
    read_metadata_untrusted,
    request_body,
)
from interlock.crypto.jose import (
    BadKeySet,
    InvalidToken,
    Jwt,
    check,
    principal_name,
    read_jwks_untrusted,
    read_jwt_untrusted,
    role_principals,
    select,
)
from interlock.crypto.jwt_verification import check_signature

NAMES = st.sampled_from(["iss", "sub", "aud", "exp", "nbf", "iat", "client_id", "azp", "scope", "scp", "roles", "cnf"])
SIGNER = key("EdDSA", "k")
GOOD = mint(SIGNER, {"iss": "i", "sub": "s", "aud": "a", "exp": 2e9})
KEYS = read_jwks_untrusted(b'{"keys":[%b]}' % json.dumps(SIGNER.jwk()).encode())


def judged(token: str) -> bool:
    """The whole way; True when it comes through."""
    jwt = read_jwt_untrusted(token)
    if isinstance(jwt, InvalidToken):
        return False
    found = select(KEYS, jwt.alg, jwt.kid)
    if isinstance(found, InvalidToken) or check_signature(jwt, found) is not None:
        return False
    return check(jwt.claims, issuer="i", audience="a", now=1.9e9) is None


@given(st.dictionaries(NAMES, VALUES))
def test_any_claims_are_read_or_refused_and_make_a_printable_name(claims: dict[str, object]) -> None:
    jwt = read_jwt_untrusted(mint(SIGNER, claims))
    if isinstance(jwt, Jwt):
        check(jwt.claims, issuer="i", audience="a", now=1.9e9)
        names = (
            principal_name("corp", jwt.claims),
            *role_principals("corp", jwt.claims),
            *map(repr, jwt.claims.scopes),
        )
        assert all(name.isprintable() for name in names)
        assert names[0].count("@") == 1


@given(st.integers(0, 2**32))
def test_a_damaged_token_never_comes_through(seed: int) -> None:
    assert judged(GOOD)
    broken = damaged_text(GOOD.encode(), random.Random(seed)).decode("latin-1")
    assert broken == GOOD or not judged(broken)


@given(st.lists(json_text(), min_size=3, max_size=3))
def test_any_three_parts_are_read_or_refused(parts: list[bytes]) -> None:
    assert not judged(".".join(b64(part) for part in parts))


@given(st.text(), st.binary())
def test_any_header_and_any_text_in_an_answer_do_no_harm(text: str, header: bytes) -> None:
    token = find_bearer(header)
    assert token is None or request_body(token).isascii()
    is_protected(text)
    said = challenge("https://h", error="invalid_token", description=text, scope=text)
    assert said.isascii() and said.isprintable() and "\\" not in said and said.count('"') in (4, 8)


@given(
    json_text()
    | st.integers(0, 2**32).map(lambda seed: damaged_text(b'{"active":true,"keys":[]}', random.Random(seed)))
)
def test_any_document_is_read_or_raises_its_one_error(data: bytes) -> None:
    for read, error in (
        (read_jwks_untrusted, BadKeySet),
        (lambda data: read_metadata_untrusted(data, "i"), BadMetadata),
        (lambda data: read_introspection_untrusted(data, "i"), BadIntrospection),
        (lambda data: read_protected_resource_untrusted(data, "https://h/mcp"), BadMetadata),
        (lambda data: read_authorization_server_untrusted(data, "i"), BadMetadata),
        (lambda data: read_registration_untrusted(data, "i", "none", "https://h"), BadRegistration),
        (read_token_untrusted, BadAnswer),
    ):
        try:
            read(data)  # type: ignore[operator]
        except error:
            continue
        except Exception as other:
            pytest.fail(f"{other!r} instead of {error.__name__}")


GRANTED = b'{"access_token":"abc","token_type":"Bearer","expires_in":3600,"refresh_token":"r","scope":"a b"}'


@given(st.integers(0, 2**32))
def test_a_damaged_token_answer_never_makes_a_header_that_ends_early(seed: int) -> None:
    try:
        token = read_token_untrusted(damaged_text(GRANTED, random.Random(seed)))
    except BadAnswer:
        return
    assert token.access_token.isascii() and token.access_token.isprintable() and " " not in token.access_token


@given(
    st.lists(
        st.binary() | st.text(alphabet='Bearer,="\\ scope_ resource_metadata').map(lambda text: text.encode("latin-1"))
    )
)
def test_any_challenge_is_read_and_its_scopes_are_scopes(values: list[bytes]) -> None:
    scopes = read_challenge_untrusted(values).scope
    assert distinct_scopes(scopes) == scopes


@given(st.text(), st.lists(st.tuples(st.sampled_from(["state", "code", "error", "iss"]), st.text())))
def test_any_url_and_any_callback_do_no_harm(text: str, parameters: list[tuple[str, str]]) -> None:
    is_issuer(text)
    assert covers(text, "https://h/mcp") is False or text.lower().startswith("https://h")
    returned = read_callback_untrusted(parameters)
    assert returned is None or returned.error is None or returned.error.isprintable()
    code = error_code_untrusted(text.encode("utf-8", "surrogatepass"))
    assert code is None or code.isascii()
