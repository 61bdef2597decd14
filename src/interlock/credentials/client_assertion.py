"""private_key_jwt: the node authenticates to an authorization server with a signature (RFC 7523).

The kind of the key decides the algorithm; with RSA, the authorization server chooses between two. This module imports
`cryptography`, which takes long to load, so it is imported only when a configuration has a `private_key`.
"""

import secrets
from pathlib import Path
from typing import Final

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, EllipticCurvePrivateKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from interlock.credentials.protocol.oauth_client import Client, assertion_to_sign
from interlock.credentials.secret_references import Unobtainable
from interlock.crypto.jose import Algorithm, encode
from interlock.crypto.signing import make_signature

KEY_BYTES_MAX: Final = 64 * 1024


def client_assertion(path: Path, client: Client, accepted: tuple[str, ...] | None, now: float) -> str:
    """Return a signed assertion with which the node authenticates to an authorization server. Raise Unobtainable if the
    private key in `path` cannot be used.

    The key file is read each time, because it may have been replaced.
    """
    try:
        with path.open("rb") as file:
            key = load_pem_private_key(file.read(KEY_BYTES_MAX), password=None)
    except OSError as error:
        raise Unobtainable(f"the private_key in 'auth' cannot be read ({error.strerror})") from None
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise Unobtainable("the private_key in 'auth' is not a PEM key without a passphrase") from None
    supported: tuple[Algorithm, ...]
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
    return f"{data.decode()}.{encode(make_signature(key, alg, data))}"
