"""Public keys in PEM, by `cryptography`, as the JWKs that everything else knows."""

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, EllipticCurvePublicKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from cryptography.hazmat.primitives.serialization import load_pem_public_key

from interlock.protocol.oauth.base64url import encode
from interlock.protocol.oauth.jwks import Jwk
from interlock.protocol.oauth.public_key import PRIVATE, UNFIT, BadKey, ed25519_key, maybe_pem_label, named
from interlock.runtime.oauth.signatures import P256_BYTES


def read_pem_untrusted(text: str) -> Jwk:
    """Raises BadKey."""
    label = maybe_pem_label(text) or ""
    if "PRIVATE" in label:
        raise BadKey(PRIVATE)
    if label not in ("PUBLIC KEY", "RSA PUBLIC KEY"):
        raise BadKey(f"it is PEM with {label}, and PUBLIC KEY is needed")
    try:
        key = load_pem_public_key(text.encode())
    except (ValueError, UnsupportedAlgorithm):
        raise BadKey("its PEM block cannot be read") from None
    return jwk_of(key)


def jwk_of(key: object) -> Jwk:
    """Raises BadKey."""
    match key:
        case Ed25519PublicKey():
            return ed25519_key(key.public_bytes_raw())
        case EllipticCurvePublicKey() if isinstance(key.curve, SECP256R1):
            at = key.public_numbers()
            x, y = (encode(number.to_bytes(P256_BYTES)) for number in (at.x, at.y))
            return named(Jwk(kty="EC", crv="P-256", x=x, y=y))
        case RSAPublicKey():
            made = key.public_numbers()
            n, e = (encode(number.to_bytes((number.bit_length() + 7) // 8)) for number in (made.n, made.e))
            return named(Jwk(kty="RSA", n=n, e=e))
        case _:
            raise BadKey(UNFIT)
