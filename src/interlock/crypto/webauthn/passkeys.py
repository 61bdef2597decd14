"""A passkey as a configuration holds it: `ALGORITHM:CREDENTIAL:KEY`, everything a node must know to believe it.

    es256:CREDENTIAL:X Y        the 64 bytes of a point on P-256
    ed25519:CREDENTIAL:X        32 bytes
    rs256:CREDENTIAL:N          the modulus; the exponent is 65537

CREDENTIAL and KEY are base64url. None of it is secret. It becomes a Jwk whose `kid` is the credential's id.
"""

import hashlib
from functools import cached_property
from typing import Final
from urllib.parse import urlsplit

import msgspec

from interlock.crypto.jose import Algorithm, BadKey, Jwk, decode_base64url, encode
from interlock.net.protocol.address_scope import LOCALHOST, LOOPBACK_ADDRESSES, is_localhost
from interlock.net.protocol.dns_name import maybe_dns_name

# The relying party of WebAuthn: the name passkeys are made for, and the one origin whose pages may use them.
#
# A browser makes and uses passkeys only for a name and never for an address, and only over https or on the machine
# itself. So a node at 127.0.0.1 is `localhost` to its passkeys, at the same port.

_PORTS: Final = {"https": 443, "http": 80}


class Party(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    id: str
    origin: str  # as a browser writes it

    @property
    def is_local(self) -> bool:
        """Reached by a name that means this machine, without anything that proves which program answers."""
        return self.origin.startswith("http://")

    @cached_property
    def id_hash(self) -> bytes:
        return hashlib.sha256(self.id.encode()).digest()


def find_relying_party(url: str) -> Party | None:
    """Return the relying party of the operator endpoint at this URL, or None if browsers do not use passkeys there."""
    try:
        parts = urlsplit(url)
        scheme, host, port = parts.scheme.lower(), (parts.hostname or "").lower(), parts.port
    except ValueError:
        return None
    name = LOCALHOST if host in LOOPBACK_ADDRESSES else maybe_dns_name(host)
    if name is None or scheme not in _PORTS:
        return None
    if scheme == "http" and not is_localhost(name):
        return None
    where = name if port in (None, _PORTS[scheme]) else f"{name}:{port}"
    return Party(id=name, origin=f"{scheme}://{where}")


CREDENTIAL_BYTES_MAX: Final = 1023  # WebAuthn 3, 4: credential id
EXPONENT: Final = encode((65537).to_bytes(3))
RSA_BYTES: Final = range(256, 1025)  # 2048 to 8192 bits
TEXT_CHARS_MAX: Final = 3000
ALGORITHMS: Final[dict[str, Algorithm]] = {"es256": "ES256", "ed25519": "EdDSA", "rs256": "RS256"}
_POINT_BYTES: Final = 32
_NAMES: Final = {alg: name for name, alg in ALGORITHMS.items()}


def read_passkey_untrusted(text: str) -> Jwk:
    """Read a passkey from its text form. Raise BadKey on failure."""
    name, _, rest = text.strip().partition(":")
    credential, _, key_text = rest.partition(":")
    if name not in ALGORITHMS or len(text) > TEXT_CHARS_MAX:
        raise BadKey(f"it does not begin with {', '.join(f'{algorithm}:' for algorithm in ALGORITHMS)}")
    id_bytes, key = decode_base64url(credential), decode_base64url(key_text)
    if not id_bytes or len(id_bytes) > CREDENTIAL_BYTES_MAX:
        raise BadKey("what stands before the second colon is not the id of a credential in base64url")
    if key is None:
        raise BadKey("what stands behind the second colon is not base64url")
    return passkey(ALGORITHMS[name], credential, key)


def passkey(alg: Algorithm, credential: str, key: bytes) -> Jwk:
    """Build a passkey from the bytes of its key, in the layout described above. Raise BadKey on failure."""
    match alg:
        case "ES256" if len(key) == 2 * _POINT_BYTES:
            x, y = encode(key[:_POINT_BYTES]), encode(key[_POINT_BYTES:])
            return Jwk(kty="EC", crv="P-256", x=x, y=y, kid=credential, alg=alg)
        case "EdDSA" if len(key) == _POINT_BYTES:
            return Jwk(kty="OKP", crv="Ed25519", x=encode(key), kid=credential, alg=alg)
        case "RS256" if len(key) in RSA_BYTES and key[0] != 0:
            return Jwk(kty="RSA", n=encode(key), e=EXPONENT, kid=credential, alg=alg)
    raise BadKey(f"its key is no key of the kind {_NAMES.get(alg, alg)}: {len(key)} bytes")


def written(key: Jwk) -> str:
    """Format a passkey as it is written in a configuration file."""
    material = (
        key.n if key.kty == "RSA" else encode((decode_base64url(key.x) or b"") + (decode_base64url(key.y) or b""))
    )
    return f"{_NAMES[algorithm_of(key)]}:{key.kid}:{material}"


def algorithm_of(key: Jwk) -> Algorithm:
    return next(alg for alg in _NAMES if key.fits(alg))
