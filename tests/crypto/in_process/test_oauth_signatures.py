"""Signatures: those of another implementation are accepted, and no other bytes are."""

import itertools
from typing import Any

import jwt as pyjwt
import msgspec
import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from tests.servers.minting import SigningKey, b64, key, mint, number, tampered, unb64

from interlock.crypto.jose import InvalidToken, Jwk, Jwt, Reason, read_jwt_untrusted
from interlock.crypto.jwt_verification import check_signature

ALGORITHMS = ["EdDSA", "ES256", "RS256", "PS256"]
CLAIMS = {"sub": "alice"}


def public(signer: SigningKey, **changes: Any) -> Jwk:
    return msgspec.convert(signer.jwk(**changes), Jwk)


def judged(token: str, signer: Jwk) -> Reason | None:
    jwt = read_jwt_untrusted(token)
    assert isinstance(jwt, Jwt)
    fault = check_signature(jwt, signer)
    assert fault is None or isinstance(fault, InvalidToken)
    return None if fault is None else fault.reason


@pytest.mark.parametrize("alg", ALGORITHMS)
def test_a_signature_of_an_independent_implementation_is_accepted(alg: str) -> None:
    signer = key(alg, "k")
    token = pyjwt.encode(CLAIMS, signer.private, alg, headers={"kid": "k", "typ": "at+jwt"})
    assert judged(token, public(signer)) is None
    assert judged(mint(signer, CLAIMS), public(signer)) is None


@pytest.mark.parametrize("alg", ALGORITHMS)
def test_one_changed_bit_anywhere_is_noticed(alg: str) -> None:
    signer = key(alg, "k")
    token = mint(signer, CLAIMS)
    assert judged(tampered(token, sub="mallory"), public(signer)) is Reason.SIGNATURE
    signed, _, signature = token.rpartition(".")
    raw = unb64(signature)
    for place in (0, len(raw) // 2, len(raw) - 1):
        broken = raw[:place] + bytes((raw[place] ^ 1,)) + raw[place + 1 :]
        assert judged(f"{signed}.{b64(broken)}", public(signer)) is Reason.SIGNATURE
    for odd in (raw[:-1], raw + b"\0", b"\0", b"\0" * len(raw), raw * 2):
        assert judged(f"{signed}.{b64(odd)}", public(signer)) is Reason.SIGNATURE


@pytest.mark.parametrize(("alg", "other"), list(itertools.permutations(ALGORITHMS, 2)))
def test_a_key_verifies_only_its_own_algorithm(alg: str, other: str) -> None:
    """Even if somebody asked it to."""
    assert judged(mint(key(alg, "k"), CLAIMS, alg=other), public(key(alg, "k"))) in (
        Reason.SIGNATURE,
        Reason.KEY_UNFIT,
    )


def test_the_key_of_somebody_else_verifies_nothing() -> None:
    for alg in ALGORITHMS:
        assert judged(mint(key(alg, "k"), CLAIMS), public(key(alg, "other"))) is Reason.SIGNATURE


@pytest.mark.parametrize(
    ("alg", "changes"),
    [
        ("EdDSA", {"x": ""}),
        ("EdDSA", {"x": b64(b"\0" * 31)}),
        ("EdDSA", {"x": "***"}),
        ("ES256", {"x": number(5, 32), "y": number(5, 32)}),  # not on the curve
        ("ES256", {"x": number(0, 32), "y": number(0, 32)}),
        ("ES256", {"y": None}),
        ("ES256", {"x": b64(b"\1" * 33)}),
        ("RS256", {"n": ""}),
        ("RS256", {"n": number(2**1023 + 1)}),  # too small to be safe
        ("RS256", {"n": number(2**9000 + 1)}),  # so large that verifying it is an attack
        ("RS256", {"e": number(2**64 + 1)}),
        ("RS256", {"e": number(2)}),
        ("PS256", {"e": ""}),
    ],
    ids=str,
)
def test_numbers_that_make_no_key_verify_nothing(alg: str, changes: dict[str, Any]) -> None:
    assert judged(mint(key(alg, "k"), CLAIMS), public(key(alg, "k"), **changes)) is Reason.KEY_UNFIT


def test_a_short_rsa_key_is_not_enough() -> None:
    weak = key("RS256", "weak", 1024)
    assert judged(mint(weak, CLAIMS), public(weak)) is Reason.KEY_UNFIT


def test_an_ecdsa_signature_in_the_other_encoding_is_refused() -> None:
    """RFC 7518 3.4 wants the two numbers side by side, not DER."""
    signer = key("ES256", "k")
    signed = mint(signer, CLAIMS).rpartition(".")[0]
    der = signer.private.sign(signed.encode(), ec.ECDSA(hashes.SHA256()))
    assert judged(f"{signed}.{b64(der)}", public(signer)) is Reason.SIGNATURE
