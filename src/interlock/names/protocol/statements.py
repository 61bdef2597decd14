"""Statements that a change controller signs: one action on one name or prefix, for one registry, used once.

A statement is a JWS of type names-statement+jwt whose claims contain the whole request, so that a client that carries
it cannot change it. Keys in the token are ignored. The signature is checked by the keys of the controller's record, or
for a first request by the key that the request names. A statement counts for ten minutes and once: its `jti` is part of
the step in the log. It names the registry as its audience, so that another registry cannot replay it.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec
from msgspec import Raw
from msgspec.structs import asdict

from interlock.crypto import jose
from interlock.wire.jsontext.canonical import AmbiguousJson, read_untrusted

TYP: Final = "names-statement+jwt"
STATEMENT_S_MAX: Final = 600.0  # how long after it was made a statement is taken
CHARS_MAX: Final = 1024 * 1024
JTI_CHARS_MAX: Final = 255

_TYPES: Final = frozenset((TYP, f"application/{TYP}"))
Verify = Callable[[jose.Jwt, jose.Jwk], jose.InvalidToken | None]


class _Claims(msgspec.Struct, frozen=True, rename={"controller": "iss", "registry": "aud"}):
    """The claims of a statement, as they are signed."""

    controller: str
    registry: str
    jti: str
    iat: float
    exp: float
    action: str
    subject: str
    body: Raw = Raw(b"{}")


class Statement(_Claims, frozen=True, kw_only=True):
    """A signed statement. Who signed it is determined by the key that verifies its signature."""

    jwt: jose.Jwt


class BadStatement(Exception):
    """Error for a statement that cannot be accepted.

    `code` is for programs: statement_invalid, statement_expired or wrong_registry.
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


def read_statement_untrusted(token: str, *, registry: str, now: float) -> Statement:
    """Read a statement without verifying its signature. Raise BadStatement if it is malformed, expired, or for another
    registry.
    """
    if len(token) > CHARS_MAX:
        raise BadStatement("statement_invalid", f"a statement has at most {CHARS_MAX} characters")
    jwt = jose.read_jwt_untrusted(token.strip(), _TYPES)
    if isinstance(jwt, jose.InvalidToken):
        raise BadStatement("statement_invalid", f"this is no JWS of type {TYP}: {jwt.reason.value}")
    payload = jose.decode_base64url(token.strip().split(".")[1]) or b""
    try:
        read_untrusted(payload)  # refuses duplicate claims, of which readers may see different ones
        claims = msgspec.json.decode(payload, type=_Claims)
    except (AmbiguousJson, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise BadStatement("statement_invalid", "the claims of the statement cannot be read") from None
    if claims.registry != registry:
        raise BadStatement("wrong_registry", f"the statement is for {claims.registry[:200]}, not for {registry}")
    if not (0 < len(claims.jti) <= JTI_CHARS_MAX):
        raise BadStatement("statement_invalid", f"jti has 1 to {JTI_CHARS_MAX} characters")
    if claims.iat > now + jose.SKEW_S or now >= claims.exp + jose.SKEW_S or claims.exp > claims.iat + STATEMENT_S_MAX:
        limit = int(STATEMENT_S_MAX)
        raise BadStatement("statement_expired", f"a statement counts from iat to exp, for {limit} seconds at most")
    return Statement(**asdict(claims) | {"body": claims.body.copy(), "jwt": jwt})


def is_signed_by(statement: Statement, keys: tuple[str, ...], verify: Verify) -> bool:
    """Return whether one of the controller's keys signed the statement."""
    for text in keys:
        try:
            candidates = jose.read_key_untrusted(text)
        except jose.BadKey:
            continue
        if any(key.fits(statement.jwt.alg) and verify(statement.jwt, key) is None for key in candidates):
            return True
    return False


def statement_claims(
    controller: str, action: str, subject: str, body: Mapping[str, Any], *, registry: str, jti: str, now: float
) -> dict[str, Any]:
    """Return the claims of a statement, which the controller signs as a JWS of type TYP."""
    return {
        "iss": controller,
        "aud": registry,
        "jti": jti,
        "iat": int(now),
        "exp": int(now) + int(STATEMENT_S_MAX),
        "action": action,
        "subject": subject,
        "body": body,
    }
