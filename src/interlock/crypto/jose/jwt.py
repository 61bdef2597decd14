"""A JWT, such as a client's access token: bytes that may be anything -> a header we accept, claims, what was signed.

Nothing it says is true before its signature is verified. Keys that the token itself brings (jwk, jku, x5c, x5u) are not
even read.
"""

from collections.abc import Set
from typing import Any, Final, Literal, get_args

import msgspec

from interlock.crypto.jose.base64url import maybe_decode
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
    """Whether a token has the form of a signed or encrypted one (RFC 7515 7.1, RFC 7516 7.1), readable or not."""
    return token.count(".") in (2, 4)


def read_jwt_untrusted(token: str, types: Set[str] = TYPES) -> Jwt | Invalid:
    """`types` are what its `typ` may be, in lower case; "" stands for none."""
    parts = token.split(".")
    if len(parts) != 3:  # five would be an encrypted one
        return Invalid(Reason.MALFORMED)
    header, payload, signature = (maybe_decode(part) for part in parts)
    if header is None or payload is None or signature is None:
        return Invalid(Reason.MALFORMED)
    try:
        said, claims = _decode_header(header), _decode_claims(payload)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return Invalid(Reason.MALFORMED)
    if said.alg not in ALGORITHMS or not signature:
        return Invalid(Reason.ALGORITHM)
    if said.crit is not None:  # RFC 7515 4.1.11: we understand no extension
        return Invalid(Reason.UNSUPPORTED)
    if (said.typ or "").lower() not in types:
        return Invalid(Reason.TYPE)
    signed = token.rpartition(".")[0].encode("ascii")
    alg: Algorithm = said.alg  # type: ignore[assignment]  # one of ALGORITHMS
    return Jwt(alg=alg, kid=said.kid, claims=claims, signed=signed, signature=signature)
