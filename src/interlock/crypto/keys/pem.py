"""Public keys in PEM, by `cryptography`, as the JWKs that everything else knows."""

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import load_pem_public_key

from interlock.crypto.jose import PRIVATE, BadKey, Jwk, find_pem_label
from interlock.crypto.keys.signing import jwk_of


def read_pem_untrusted(text: str) -> Jwk:
    """Read a public key in PEM. Raise BadKey on failure."""
    label = find_pem_label(text) or ""
    if "PRIVATE" in label:
        raise BadKey(PRIVATE)
    if label not in ("PUBLIC KEY", "RSA PUBLIC KEY"):
        raise BadKey(f"it is PEM with {label}, and PUBLIC KEY is needed")
    try:
        key = load_pem_public_key(text.encode())
    except (ValueError, UnsupportedAlgorithm):
        raise BadKey("its PEM block cannot be read") from None
    return jwk_of(key)
