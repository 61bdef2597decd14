"""A JWT, such as a client's access token: bytes that may be anything -> a header we accept, claims, what was signed.

Nothing it says is true before its signature is verified. Keys that the token itself brings (jwk, jku, x5c, x5u) are not
even read.
"""

from collections.abc import Set
from typing import Any, Final, Literal, get_args

import msgspec

from interlock.crypto.jose.base64url import decode_base64url
from interlock.crypto.jose.claims import Claims
from interlock.crypto.jose.errors import Invalid, Reason

# RFC 8725 3.1: a closed list. Nothing unsigned, nothing symmetric: a public key must never serve as a secret.
Algorithm = Literal["EdDSA", "ES256", "RS256", "PS256"]
ALGORITHMS: Final[frozenset[str]] = frozenset(get_args(Algorithm))
TYPES: Final = frozenset(("at+jwt", "application/at+jwt", "jwt"))  # RFC 9068 4; "JWT" from servers that are older


class Jwt(msgspec.Struct, frozen=True, kw_only=True):
    alg: Algorithm
    kid: str | None
    claims: Claims
    signed: bytes
    signature: bytes


class _Header(msgspec.Struct, frozen=True):
    alg: str
    typ: str | None = None
    kid: str | None = None
    crit: Any = None


_decode_header = msgspec.json.Decoder(_Header).decode
_decode_claims = msgspec.json.Decoder(Claims).decode


def is_jose(token: str) -> bool:
    """Return whether a token has the form of a signed or encrypted token (RFC 7515 7.1, RFC 7516 7.1)."""
    return token.count(".") in (2, 4)


def read_jwt_untrusted(token: str, types: Set[str] = TYPES) -> Jwt | Invalid:
    """Parse a signed token without checking its signature. `types` are the accepted values of `typ` in lower case;
    "" accepts a missing one.
    """
    parts = token.split(".")
    if len(parts) != 3:  # five would be an encrypted one
        return Invalid(Reason.MALFORMED)
    header, payload, signature = (decode_base64url(part) for part in parts)
    if header is None or payload is None or signature is None:
        return Invalid(Reason.MALFORMED)
    try:
        jose_header, claims = _decode_header(header), _decode_claims(payload)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return Invalid(Reason.MALFORMED)
    if jose_header.alg not in ALGORITHMS or not signature:
        return Invalid(Reason.ALGORITHM)
    if jose_header.crit is not None:  # RFC 7515 4.1.11: we understand no extension
        return Invalid(Reason.UNSUPPORTED)
    if (jose_header.typ or "").lower() not in types:
        return Invalid(Reason.TYPE)
    signed = token.rpartition(".")[0].encode("ascii")
    alg: Algorithm = jose_header.alg  # type: ignore[assignment]  # one of ALGORITHMS
    return Jwt(alg=alg, kid=jose_header.kid, claims=claims, signed=signed, signature=signature)
