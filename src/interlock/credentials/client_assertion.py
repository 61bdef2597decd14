"""private_key_jwt: the node authenticates to an authorization server with a signature (RFC 7523).

The kind of the key decides the algorithm; with RSA, the authorization server chooses between two. This module imports
`cryptography`, which takes long to load, so it is imported only when a configuration has a `private_key`.
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

from interlock.credentials.protocol.oauth_client import AssertionAlgorithm, Client, assertion_to_sign
from interlock.credentials.secret_references import Unobtainable
from interlock.crypto.jose import encode

KEY_BYTES_MAX: Final = 64 * 1024
P256_BYTES: Final = 32


def client_assertion(path: Path, client: Client, accepted: tuple[str, ...] | None, now: float) -> str:
    """Return a signed client assertion. Raise Unobtainable if the key cannot be used.

    The key file is read each time, because it may have been replaced.
    """
    try:
        with path.open("rb") as file:
            key = load_pem_private_key(file.read(KEY_BYTES_MAX), password=None)
    except OSError as error:
        raise Unobtainable(f"the private_key in 'auth' cannot be read ({error.strerror})") from None
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise Unobtainable("the private_key in 'auth' is not a PEM key without a passphrase") from None
    supported: tuple[AssertionAlgorithm, ...]
    match key:
        case EllipticCurvePrivateKey(curve=SECP256R1()):
            supported = ("ES256",)
        case RSAPrivateKey():
            supported = ("RS256", "PS256")
        case Ed25519PrivateKey():
            supported = ("EdDSA",)
        case _:
            raise Unobtainable("the private_key in 'auth' has an unsupported type: use P-256, Ed25519 or RSA")
    alg = next((alg for alg in supported if accepted is None or alg in accepted), None)
    if alg is None:
        names = ", ".join(supported)
        raise Unobtainable(f"its authorization server does not take signatures of our private_key ({names})")
    data = assertion_to_sign(client, alg, secrets.token_urlsafe(16), now)
    match key:
        case EllipticCurvePrivateKey():
            # RFC 7518 3.4: two numbers of fixed length instead of DER.
            r, s = decode_dss_signature(key.sign(data, ECDSA(SHA256())))
            signature = r.to_bytes(P256_BYTES) + s.to_bytes(P256_BYTES)
        case RSAPrivateKey():
            pss = PSS(mgf=MGF1(SHA256()), salt_length=PSS.DIGEST_LENGTH)
            signature = key.sign(data, pss if alg == "PS256" else PKCS1v15(), SHA256())
        case Ed25519PrivateKey():
            signature = key.sign(data)
    return f"{data.decode()}.{encode(signature)}"
