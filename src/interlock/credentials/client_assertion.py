"""private_key_jwt: the node proves itself to an authorization server by a signature (RFC 7523). By `cryptography`.

The key's own kind decides the algorithm; with RSA, what the authorization server says it takes.
"""

import secrets
from pathlib import Path
from typing import Final

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ec import ECDSA, SECP256R1, EllipticCurvePrivateKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.padding import MGF1, PSS, PKCS1v15
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from interlock.credentials.errors import Unobtainable
from interlock.credentials.protocol.client import Client
from interlock.credentials.protocol.token_request import AssertionAlgorithm, assertion_to_sign
from interlock.crypto.jose import encode

KEY_BYTES_MAX: Final = 64 * 1024
P256_BYTES: Final = 32

Key = EllipticCurvePrivateKey | Ed25519PrivateKey | RSAPrivateKey


def client_assertion(path: Path, client: Client, accepted: tuple[str, ...] | None, now: float) -> str:
    """Sign a client assertion. The key is read each time, because it may have been replaced. Raise Unobtainable."""
    key = _key(path)
    alg = _algorithm(key, accepted)
    signed = assertion_to_sign(client, alg, secrets.token_urlsafe(16), now)
    return f"{signed.decode()}.{encode(_sign(key, alg, signed))}"


def _key(path: Path) -> Key:
    try:
        with path.open("rb") as file:
            key = load_pem_private_key(file.read(KEY_BYTES_MAX), password=None)
    except OSError as error:
        raise Unobtainable(f"the private_key in 'auth' cannot be read ({error.strerror})") from None
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise Unobtainable("the private_key in 'auth' is not a PEM key without a passphrase") from None
    if isinstance(key, EllipticCurvePrivateKey) and isinstance(key.curve, SECP256R1):
        return key
    if isinstance(key, Ed25519PrivateKey | RSAPrivateKey):
        return key
    raise Unobtainable("the private_key in 'auth' is of no kind that is used here: P-256, Ed25519 or RSA")


def _algorithm(key: Key, accepted: tuple[str, ...] | None) -> AssertionAlgorithm:
    able: tuple[AssertionAlgorithm, ...]
    match key:
        case EllipticCurvePrivateKey():
            able = ("ES256",)
        case RSAPrivateKey():
            able = ("RS256", "PS256")
        case _:
            able = ("EdDSA",)
    algorithm = next((alg for alg in able if accepted is None or alg in accepted), None)
    if algorithm is None:
        raise Unobtainable(f"its authorization server does not take signatures of our private_key ({', '.join(able)})")
    return algorithm


def _sign(key: Key, alg: AssertionAlgorithm, data: bytes) -> bytes:
    match key:
        case EllipticCurvePrivateKey():
            r, s = decode_dss_signature(key.sign(data, ECDSA(SHA256())))
            return r.to_bytes(P256_BYTES) + s.to_bytes(P256_BYTES)  # RFC 7518 3.4
        case RSAPrivateKey():
            pss = PSS(mgf=MGF1(SHA256()), salt_length=PSS.DIGEST_LENGTH)
            return key.sign(data, pss if alg == "PS256" else PKCS1v15(), SHA256())
        case _:
            return key.sign(data)
