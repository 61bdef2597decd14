"""What a token says about itself, whether its own JWT says it or its authorization server, and what must be true of it.

The signature, or the authorization server's word, is somebody else's business; here it is taken as given.
"""

from collections.abc import Sequence
from typing import Any, Final
from urllib.parse import quote

import msgspec

from interlock.crypto.jose.errors import Invalid, Reason
from interlock.net.protocol.resource_uri import same_resource

SKEW_S: Final = 30.0  # how far the clocks of two machines may be apart
SUBJECT_MAX: Final = 255  # OpenID Connect Core 2
CLIENT_ID_MAX: Final = 2048  # it may be a URL (OAuth Client ID Metadata Document)
# "@" parts the two halves of a principal's name, so neither half may hold one; "%" escapes.
_NAME_SAFE: Final = "!$&'()*+,-./:;=?[]_|~#"


class Claims(msgspec.Struct, frozen=True, kw_only=True):
    """RFC 9068 2.2, RFC 7662 2.2. Claims that nothing here needs are not read."""

    iss: str | None = None
    sub: str | None = None
    aud: str | tuple[str, ...] = ()
    exp: float | None = None
    nbf: float | None = None
    iat: float | None = None
    client_id: str | None = None
    azp: str | None = None  # what OpenID Connect calls the client
    scope: str | tuple[str, ...] | None = None
    scp: str | tuple[str, ...] = ()  # what some authorization servers call the scope
    roles: Any = ()  # RFC 9068 2.2.3.1; elsewhere it may be anything
    cnf: Any = None  # RFC 7800
    jti: Any = None  # RFC 7519 4.1.7; what it is matters only where a token is used once

    @property
    def scopes(self) -> Sequence[str]:
        scope = self.scp if self.scope is None else self.scope
        return scope.split(" ") if isinstance(scope, str) else scope

    @property
    def role_names(self) -> tuple[str, ...]:
        roles = self.roles if isinstance(self.roles, list) else ()
        return tuple(role for role in roles if isinstance(role, str))


def check(claims: Claims, *, issuer: str, audience: str, now: float) -> Invalid | None:
    """Return why a token with these claims cannot be used here now (RFC 9068 4), or None if it can."""
    if claims.iss != issuer:  # RFC 3986 6.2.1: as strings
        return Invalid(Reason.ISSUER)
    audiences = (claims.aud,) if isinstance(claims.aud, str) else claims.aud
    if not any(same_resource(resource, audience) for resource in audiences):
        return Invalid(Reason.AUDIENCE)
    if claims.exp is None or now >= claims.exp + SKEW_S:
        return Invalid(Reason.EXPIRED)
    if any(begun is not None and begun > now + SKEW_S for begun in (claims.nbf, claims.iat)):
        return Invalid(Reason.NOT_YET)
    if not claims.sub or len(claims.sub) > SUBJECT_MAX or len(_client(claims)) > CLIENT_ID_MAX:
        return Invalid(Reason.SUBJECT)
    if claims.cnf is not None:  # RFC 9449 7.2: a bound token presented as a bearer token is a stolen one
        return Invalid(Reason.BOUND)
    return None


def principal_name(issuer_name: str, claims: Claims) -> str:
    """Return `client:ISS/SUB@CLIENT_ID`. Different pairs of subject and client never share a name."""
    subject, client = (quote(part, safe=_NAME_SAFE) for part in (claims.sub or "", _client(claims)))
    return f"client:{issuer_name}/{subject}@{client}"


def role_principals(issuer_name: str, claims: Claims) -> tuple[str, ...]:
    """Return a principal `role:ISS/ROLE` for each role, which [[access]] entries can name."""
    return tuple(f"role:{issuer_name}/{quote(role, safe=_NAME_SAFE)}" for role in claims.role_names)


def _client(claims: Claims) -> str:
    return claims.client_id or claims.azp or ""
