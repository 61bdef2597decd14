"""A public key as a person writes it into a configuration or a file: `ed25519:BASE64`, a JWK, or a set of JWKs.

PEM is only recognised here; `keys.pem` reads it. A key without a name of
its own is named by its thumbprint (RFC 7638), so that a signer can always say which key it used.
"""

import base64
import binascii
import re
from typing import Any, Final

import msgspec

from interlock.crypto.jose.base64url import decode_base64url, encode
from interlock.crypto.jose.jwks import KEY_TYPES, BadKeySet, Jwk, read_jwks_untrusted, thumbprint

ED25519: Final = "ed25519:"
ED25519_BYTES: Final = 32
_PEM: Final = re.compile(r"-----BEGIN ([A-Z0-9 ]+)-----")


class BadKey(Exception):
    """The text is no public key that signatures can be verified with. The message does not repeat it."""


def find_pem_label(text: str) -> str | None:
    """Return the label of a PEM block, such as PUBLIC KEY, or None if the text is not PEM."""
    match = _PEM.search(text)
    return match[1] if match is not None else None


def is_key_text(text: str) -> bool:
    """Return whether the text is a key itself rather than the name of a file that contains one."""
    return text.startswith((ED25519, "{")) or find_pem_label(text) is not None


def read_key_untrusted(text: str) -> tuple[Jwk, ...]:
    """Read one key or a key set with at least one usable key. Raise BadKey otherwise."""
    text = text.strip()
    if text.startswith(ED25519):
        return (_ed25519(text.removeprefix(ED25519)),)
    try:
        members = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        members = None
    if not isinstance(members, dict):
        raise BadKey("it is neither ed25519:BASE64 nor a JWK nor PEM")
    if "keys" not in members:
        return (named(_jwk(members)),)
    try:
        keys = read_jwks_untrusted(text.encode())
    except BadKeySet as bad:
        raise BadKey(str(bad)) from None
    if any(key.d is not None for key in keys):
        raise BadKey(PRIVATE)
    fitting = tuple(named(key) for key in keys if (key.kty, key.crv) in KEY_TYPES.values())
    if not fitting:
        raise BadKey(UNFIT)
    return fitting


PRIVATE: Final = "it is a private key; give the public one, and take the private one for known to others"
UNFIT: Final = "only Ed25519, P-256 and RSA keys verify signatures here"


def named(key: Jwk) -> Jwk:
    return key if key.kid is not None else msgspec.structs.replace(key, kid=thumbprint(key))


def ed25519_key(public: bytes) -> Jwk:
    return named(Jwk(kty="OKP", crv="Ed25519", x=encode(public)))


def written(key: Jwk) -> str:
    """Format a key as it is written in a configuration file."""
    public = decode_base64url(key.x) if key.crv == "Ed25519" else None
    if public is not None:
        return ED25519 + base64.b64encode(public).decode("ascii")
    members = {name: value for name, value in msgspec.to_builtins(key).items() if value}
    return msgspec.json.encode(members).decode()


def _ed25519(text: str) -> Jwk:
    standard = text.replace("-", "+").replace("_", "/").rstrip("=")
    try:
        public = base64.b64decode(standard + "=" * (-len(standard) % 4), validate=True)
    except (binascii.Error, ValueError):
        raise BadKey("what stands behind ed25519: is not base64") from None
    if len(public) != ED25519_BYTES:
        raise BadKey(f"behind ed25519: stand {ED25519_BYTES} bytes in base64, not {len(public)}")
    return ed25519_key(public)


def _jwk(members: dict[str, Any]) -> Jwk:
    try:
        key = msgspec.convert(members, Jwk)
    except msgspec.ValidationError:
        raise BadKey("it is JSON, and not a JWK") from None
    if key.d is not None or key.kty == "oct":
        raise BadKey(PRIVATE)
    if (key.kty, key.crv) not in KEY_TYPES.values():
        raise BadKey(UNFIT)
    return key
