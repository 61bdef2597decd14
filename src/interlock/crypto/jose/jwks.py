"""An authorization server's key set (RFC 7517), and which of its keys, if any, verifies a token."""

import hashlib
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from interlock.crypto.jose.base64url import encode
from interlock.crypto.jose.errors import Invalid, Reason
from interlock.crypto.jose.jwt import Algorithm

KEYS_MAX: Final = 100  # of one set
KEY_TYPES: Final[dict[Algorithm, tuple[str, str | None]]] = {  # RFC 7518 3.1, RFC 8037 3.1
    "EdDSA": ("OKP", "Ed25519"),
    "ES256": ("EC", "P-256"),
    "RS256": ("RSA", None),
    "PS256": ("RSA", None),
}


class Jwk(msgspec.Struct, frozen=True, kw_only=True):
    """A public key as it was published. Whether its numbers are a key at all is found out when it is used."""

    kty: str
    kid: str | None = None
    use: str | None = None
    key_ops: tuple[str, ...] | None = None
    alg: str | None = None
    crv: str | None = None
    n: str = ""
    e: str = ""
    x: str = ""
    y: str = ""
    d: str | None = None

    def fits(self, alg: Algorithm) -> bool:
        return (
            (self.kty, self.crv) == KEY_TYPES[alg]
            and self.use in (None, "sig")
            and (self.key_ops is None or "verify" in self.key_ops)
            and self.alg in (None, alg)
            and self.d is None  # a private key that was published is everybody's
        )


_REQUIRED: Final = {
    "OKP": ("crv", "kty", "x"),
    "EC": ("crv", "kty", "x", "y"),
    "RSA": ("e", "kty", "n"),
}  # RFC 7638 3.2


def thumbprint(key: Jwk) -> str:
    """RFC 7638: what the key is called when it was given no name. Only for the kinds of KEY_TYPES."""
    members = {name: getattr(key, name) for name in _REQUIRED[key.kty]}
    return encode(hashlib.sha256(msgspec.json.encode(members)).digest())


class BadKeySet(Exception):
    """The document is not a key set. Raised only by `read_jwks_untrusted`."""


class _KeySet(msgspec.Struct):
    keys: list[Any]


def read_jwks_untrusted(data: bytes) -> tuple[Jwk, ...]:
    """Read a key set. Keys of an unknown form are left out (RFC 7517 5)."""
    try:
        keys = msgspec.json.decode(data, type=_KeySet).keys
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise BadKeySet("the answer is not a JSON Web Key Set") from None
    if len(keys) > KEYS_MAX:
        raise BadKeySet(f"the key set has more than {KEYS_MAX} keys")
    return tuple(key for each in keys if (key := _read_key(each)) is not None)


def _read_key(each: object) -> Jwk | None:
    try:
        return msgspec.convert(each, Jwk)
    except msgspec.ValidationError:
        return None


def select(keys: Sequence[Jwk], alg: Algorithm, kid: str | None) -> Jwk | Invalid:
    """Return the key with that id, or without an id the only key that fits. Several candidates are refused.

    KEY_UNKNOWN means that a newer key set may contain the key.
    """
    if kid is None:
        fitting = [key for key in keys if key.fits(alg)]
        if not fitting:
            return Invalid(Reason.KEY_UNKNOWN)
        return fitting[0] if len(fitting) == 1 else Invalid(Reason.KEY_UNFIT)
    named = [key for key in keys if key.kid == kid]
    if not named:
        return Invalid(Reason.KEY_UNKNOWN)
    return named[0] if len(named) == 1 and named[0].fits(alg) else Invalid(Reason.KEY_UNFIT)
