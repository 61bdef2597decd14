"""Verification of JWT signatures and passkey assertions with `cryptography`. Imported only where one is verified.

`crypto.jose` has checked whether the key may be used with the algorithm; this module builds the key from its numbers
and verifies. A key with unusable numbers is KEY_UNFIT, and RSA keys are limited in size, because the time of a
verification grows with the square of it. Keys are built once and remembered: an issuer signs many tokens with one key.
"""

import functools
from collections.abc import Callable
from typing import Final, assert_never

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ec import ECDSA, SECP256R1, EllipticCurvePublicNumbers
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.padding import MGF1, PSS, PKCS1v15
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey, RSAPublicNumbers
from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature
from cryptography.hazmat.primitives.hashes import SHA256

from interlock.crypto.jose import Algorithm, InvalidToken, Jwk, Jwt, Reason, decode_base64url
from interlock.crypto.webauthn import Assertion, algorithm_of

RSA_BITS_MIN: Final = 2048  # RFC 7518 3.3
RSA_BITS_MAX: Final = 8192  # a verification takes longer with the square of it
RSA_EXPONENT_BYTES_MAX: Final = 4
P256_BYTES: Final = 32

Verify = Callable[[bytes, bytes], None]  # signature, what was signed


def check_signature(token: Jwt, key: Jwk) -> InvalidToken | None:
    """Verify the signature of a token. Return why it is invalid, or None if it is valid."""
    signature = token.signature
    if token.alg == "ES256":
        # Tokens have two numbers of fixed length (RFC 7518 3.4), and `cryptography` reads ASN.1.
        r, s = int.from_bytes(signature[:P256_BYTES]), int.from_bytes(signature[P256_BYTES:])
        signature = encode_dss_signature(r, s) if len(signature) == 2 * P256_BYTES else b""
    return _check(token.alg, key, signature, token.signed)


def check_assertion_signature(assertion: Assertion, key: Jwk) -> InvalidToken | None:
    """Verify the signature of a passkey assertion. Return why it is invalid, or None if it is valid.

    Authenticators encode ECDSA signatures as ASN.1 (WebAuthn 6.5.5), while tokens encode them as two numbers.
    """
    return _check(algorithm_of(key), key, assertion.signature, assertion.signed)


def _check(alg: Algorithm, key: Jwk, signature: bytes, signed: bytes) -> InvalidToken | None:
    if (verify := _verifier(key, alg)) is None:
        return InvalidToken(Reason.KEY_UNFIT)
    try:
        verify(signature, signed)
    except InvalidSignature:
        return InvalidToken(Reason.SIGNATURE)
    return None


@functools.lru_cache(maxsize=256)
def _verifier(key: Jwk, alg: Algorithm) -> Verify | None:
    """Return a function that verifies signatures with this key, or None if the key cannot be used with the
    algorithm.
    """
    try:
        match alg:
            case "EdDSA":
                return Ed25519PublicKey.from_public_bytes(_bytes(key.x)).verify
            case "ES256":
                point = EllipticCurvePublicNumbers(_number(key.x), _number(key.y), SECP256R1()).public_key()
                return lambda signature, signed: point.verify(signature, signed, ECDSA(SHA256()))
            case "RS256":
                rsa = _rsa(key)
                return lambda signature, signed: rsa.verify(signature, signed, PKCS1v15(), SHA256())
            case "PS256":
                rsa = _rsa(key)
                pss = PSS(mgf=MGF1(SHA256()), salt_length=PSS.DIGEST_LENGTH)  # RFC 7518 3.5
                return lambda signature, signed: rsa.verify(signature, signed, pss, SHA256())
            case _:
                assert_never(alg)
    except (ValueError, UnsupportedAlgorithm):
        return None


def _rsa(key: Jwk) -> RSAPublicKey:
    modulus, exponent = _bytes(key.n), _bytes(key.e)
    if len(modulus) * 8 > RSA_BITS_MAX or len(exponent) > RSA_EXPONENT_BYTES_MAX:
        raise ValueError("too large")
    public = RSAPublicNumbers(int.from_bytes(exponent), int.from_bytes(modulus)).public_key()
    if public.key_size < RSA_BITS_MIN:
        raise ValueError("too small")
    return public


def _number(text: str) -> int:
    data = _bytes(text)
    if len(data) != P256_BYTES:  # RFC 7518 6.2.1.2
        raise ValueError("not a coordinate")
    return int.from_bytes(data)


def _bytes(text: str) -> bytes:
    if (data := decode_base64url(text)) is None:
        raise ValueError("not base64url")
    return data
