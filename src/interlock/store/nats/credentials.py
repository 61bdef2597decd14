"""How a node says who it is to a NATS server: what its secret holds, as options of a connection.

a credentials file      the text of it: a JWT and the seed that signs for it
SU...                   the seed of an nkey
user:password
anything else           a token
"""

import base64
import binascii
import re
from collections.abc import Callable
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from interlock.store.ports import StoreRefused

_SEED = re.compile(r"SU[A-Z2-7]{56}")
_JWT = re.compile(r"-+BEGIN NATS USER JWT-+\s+(\S+)\s+-+END NATS USER JWT-+")
_USER_PREFIX = 20 << 3  # nkeys: the byte that becomes the U of a user's public key


def options_of(secret: str) -> dict[str, Any]:
    """What `Client.connect` is given; the public key of an nkey beside it, as `public_nkey`."""
    secret = secret.strip()
    jwt, seed = _JWT.search(secret), _SEED.search(secret)
    if jwt is not None:
        if seed is None:
            raise StoreRefused("The NATS credentials that store.nats_secret names hold no user seed (SU...).")
        token = jwt[1].encode()
        return {"user_jwt_cb": lambda: bytearray(token), "signature_cb": _signer(_key(seed[0]))}
    if seed is not None and seed[0] == secret:
        key = _key(secret)
        return {"signature_cb": _signer(key), "public_nkey": _public(key)}
    if ":" in secret:
        user, _, password = secret.partition(":")
        return {"user": user, "password": password}
    return {"token": secret} if secret else {}


def _key(seed: str) -> Ed25519PrivateKey:
    raw = base64.b32decode(seed + "=" * (-len(seed) % 8))
    if binascii.crc_hqx(raw[:-2], 0) != int.from_bytes(raw[-2:], "little"):
        raise StoreRefused("The nkey seed that store.nats_secret names is not complete: its checksum is wrong.")
    return Ed25519PrivateKey.from_private_bytes(raw[2:34])


def _signer(key: Ed25519PrivateKey) -> Callable[[str], bytes]:
    return lambda nonce: base64.b64encode(key.sign(nonce.encode()))


def _public(key: Ed25519PrivateKey) -> str:
    raw = bytes([_USER_PREFIX]) + key.public_key().public_bytes_raw()
    return base64.b32encode(raw + binascii.crc_hqx(raw, 0).to_bytes(2, "little")).decode().rstrip("=")
