"""JOSE: base64url, JSON Web Keys and key sets (RFC 7517), JSON Web Tokens (RFC 7519) and the claims of a token.

A token is judged in steps, each of which returns a value or an `InvalidToken` with a reason:

    read_jwt_untrusted   the three parts, a header that we accept, the claims
    select               the key of the issuer's key set that the token names
    check_signature      the signature (`jwt_verification`, which needs `cryptography`)
    check                issuer, audience, times, subject (RFC 9068 4)

Algorithms are a closed list, and the kind of key decides which of them it may verify: a public key is never used as a
shared secret (RFC 8725 3.1). Keys that a token itself brings (jwk, jku, x5c, x5u) are not even read. Reasons are the
same for every client and repeat nothing of the token.

Public keys are also read as persons write them into a configuration: `ed25519:BASE64`, a JWK, or a set of JWKs.
"""

import base64
import binascii
import contextlib
import enum
import hashlib
import re
from collections.abc import Sequence, Set
from typing import Any, Final, Literal, get_args
from urllib.parse import quote

import msgspec

from interlock.net.protocol.uri import same_resource

# Base64url without padding, the one spelling of it (RFC 7515 2). Python's own decoder skips what it does not know.

_ALPHABET = re.compile(r"[A-Za-z0-9_-]*", re.ASCII)


def decode_base64url(text: str) -> bytes | None:
    """Decode base64url. Return None if the text is invalid or not the canonical encoding of its bytes."""
    if not _ALPHABET.fullmatch(text) or len(text) % 4 == 1:
        return None
    data = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    return data if encode(data) == text else None


def encode(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode("ascii")


# Why a bearer token opens nothing here, as values.
#
#     InvalidToken(reason)   the client's fault; it gets another token from its authorization server
#
# Every reason is answered with HTTP 401 and `error="invalid_token"` (RFC 6750 3.1). The text is the same for everybody
# and repeats nothing of the token.


class Reason(enum.Enum):
    """The reason why a token is invalid. Its value is sent to the client as `error_description`, so it contains no
    quotation marks and no backslashes (RFC 6750 3).
    """

    UNKNOWN = "the token is unknown, has expired or was revoked"
    MALFORMED = "the token cannot be read"
    UNSUPPORTED = "the token asks for something this resource does not support"
    ALGORITHM = "the token is signed with an algorithm that is not accepted"
    TYPE = "the token is not an access token"
    ISSUER = "the token comes from an authorization server that is not accepted"
    AUDIENCE = "the token was issued for another resource"
    EXPIRED = "the token has expired"
    NOT_YET = "the token is not valid yet"
    SUBJECT = "the token does not say who it is for"
    BOUND = "the token is bound to a key or certificate and is no bearer token"
    KEY_UNKNOWN = "the token is signed with an unknown key"
    KEY_UNFIT = "the key of the token must not be used like this"
    SIGNATURE = "the signature of the token is wrong"
    INACTIVE = "the token is not active"
    UNCLEAR = "the authorization server gives no clear answer about the token"


class InvalidToken(msgspec.Struct, frozen=True):
    """The refusal of a token, with its reason. Functions return it instead of raising an exception."""

    reason: Reason


# What a token says about itself, whether its own JWT says it or its authorization server, and what must be true of it.
#
# The signature, or the authorization server's word, is somebody else's business; here it is taken as given.

SKEW_S: Final = 30.0  # how far the clocks of two machines may be apart
SUBJECT_MAX: Final = 255  # OpenID Connect Core 2
CLIENT_ID_MAX: Final = 2048  # it may be a URL (OAuth Client ID Metadata Document)
# "@" parts the two halves of a principal's name, so neither half may hold one; "%" escapes.
_NAME_SAFE: Final = "!$&'()*+,-./:;=?[]_|~#"


class TokenClaims(msgspec.Struct, frozen=True, kw_only=True):
    """Claims of an access token (RFC 9068 2.2, RFC 7662 2.2). Claims that Interlock does not use are not read."""

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


def check(claims: TokenClaims, *, issuer: str, audience: str, now: float) -> InvalidToken | None:
    """Check the claims of a token against the expected issuer, audience and time (RFC 9068 4). Return why the token is
    invalid, or None if it is valid.
    """
    if claims.iss != issuer:  # RFC 3986 6.2.1: as strings
        return InvalidToken(Reason.ISSUER)
    audiences = (claims.aud,) if isinstance(claims.aud, str) else claims.aud
    if not any(same_resource(resource, audience) for resource in audiences):
        return InvalidToken(Reason.AUDIENCE)
    if claims.exp is None or now >= claims.exp + SKEW_S:
        return InvalidToken(Reason.EXPIRED)
    if any(begun is not None and begun > now + SKEW_S for begun in (claims.nbf, claims.iat)):
        return InvalidToken(Reason.NOT_YET)
    if not claims.sub or len(claims.sub) > SUBJECT_MAX or len(_client(claims)) > CLIENT_ID_MAX:
        return InvalidToken(Reason.SUBJECT)
    if claims.cnf is not None:  # RFC 9449 7.2: a bound token presented as a bearer token is a stolen one
        return InvalidToken(Reason.BOUND)
    return None


def principal_name(issuer_name: str, claims: TokenClaims) -> str:
    """Return the name of the token's owner as a principal: `client:ISSUER/SUBJECT@CLIENT_ID`. Special characters are
    escaped, so that two different owners never have the same name.
    """
    subject, client = (quote(part, safe=_NAME_SAFE) for part in (claims.sub or "", _client(claims)))
    return f"client:{issuer_name}/{subject}@{client}"


def role_principals(issuer_name: str, claims: TokenClaims) -> tuple[str, ...]:
    """Return a principal `role:ISSUER/ROLE` for each role in the token. Entries of [[access]] in the configuration can
    name these principals. Roles that are not text are ignored.
    """
    roles = claims.roles if isinstance(claims.roles, list) else ()
    return tuple(f"role:{issuer_name}/{quote(role, safe=_NAME_SAFE)}" for role in roles if isinstance(role, str))


def _client(claims: TokenClaims) -> str:
    return claims.client_id or claims.azp or ""


# A JWT, such as a client's access token: bytes that may be anything -> a header we accept, claims, what was signed.
#
# Nothing in it is trusted before its signature is verified. Keys that the token itself brings (jwk, jku, x5c, x5u) are
# not even read.

# RFC 8725 3.1: a closed list. Nothing unsigned, nothing symmetric: a public key must never serve as a secret.
Algorithm = Literal["EdDSA", "ES256", "RS256", "PS256"]
ALGORITHMS: Final[frozenset[str]] = frozenset(get_args(Algorithm))
TYPES: Final = frozenset(("at+jwt", "application/at+jwt", "jwt"))  # RFC 9068 4; "JWT" from servers that are older


class Jwt(msgspec.Struct, frozen=True, kw_only=True):
    """A signed JSON Web Token (JWT) with an acceptable header. Its signature has not been checked."""

    alg: Algorithm
    kid: str | None
    claims: TokenClaims
    signed: bytes
    signature: bytes


class _Header(msgspec.Struct, frozen=True):
    alg: str
    typ: str | None = None
    kid: str | None = None
    crit: Any = None


_decode_header = msgspec.json.Decoder(_Header).decode
_decode_claims = msgspec.json.Decoder(TokenClaims).decode


def is_jose(token: str) -> bool:
    """Return whether a token has the format of a signed or encrypted JOSE token (RFC 7515 7.1, RFC 7516 7.1)."""
    return token.count(".") in (2, 4)


def read_jwt_untrusted(token: str, types: Set[str] = TYPES) -> Jwt | InvalidToken:
    """Parse a signed token without checking its signature.

    `types` are the accepted values of the `typ` header in lower case. An empty string in `types` accepts a token
    without `typ`.
    """
    parts = token.split(".")
    if len(parts) != 3:  # five would be an encrypted one
        return InvalidToken(Reason.MALFORMED)
    header, payload, signature = (decode_base64url(part) for part in parts)
    if header is None or payload is None or signature is None:
        return InvalidToken(Reason.MALFORMED)
    try:
        jose_header, claims = _decode_header(header), _decode_claims(payload)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return InvalidToken(Reason.MALFORMED)
    if jose_header.alg not in ALGORITHMS or not signature:
        return InvalidToken(Reason.ALGORITHM)
    if jose_header.crit is not None:  # RFC 7515 4.1.11: we understand no extension
        return InvalidToken(Reason.UNSUPPORTED)
    if (jose_header.typ or "").lower() not in types:
        return InvalidToken(Reason.TYPE)
    signed = token.rpartition(".")[0].encode("ascii")
    alg: Algorithm = jose_header.alg  # type: ignore[assignment]  # one of ALGORITHMS
    return Jwt(alg=alg, kid=jose_header.kid, claims=claims, signed=signed, signature=signature)


# An authorization server's key set (RFC 7517), and which of its keys, if any, verifies a token.

KEYS_MAX: Final = 100  # of one set
KEY_TYPES: Final[dict[Algorithm, tuple[str, str | None]]] = {  # RFC 7518 3.1, RFC 8037 3.1
    "EdDSA": ("OKP", "Ed25519"),
    "ES256": ("EC", "P-256"),
    "RS256": ("RSA", None),
    "PS256": ("RSA", None),
}


class Jwk(msgspec.Struct, frozen=True, kw_only=True):
    """A public key in the format JWK (RFC 7517). Whether its numbers form a valid key is checked when the key is
    used.
    """

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
        """Return whether this key may verify signatures of the algorithm `alg`."""
        return (
            (self.kty, self.crv) == KEY_TYPES[alg]
            and self.use in (None, "sig")
            and (self.key_ops is None or "verify" in self.key_ops)
            and self.alg in (None, alg)
            and self.d is None  # a private key that was published is everybody's
        )


# The members of a key that its thumbprint covers (RFC 7638 3.2).
_REQUIRED: Final = {"OKP": ("crv", "kty", "x"), "EC": ("crv", "kty", "x", "y"), "RSA": ("e", "kty", "n")}


def thumbprint(key: Jwk) -> str:
    """Return the thumbprint of a key (RFC 7638), which serves as its id if it has no `kid`. The type of the key must be
    in KEY_TYPES.
    """
    members = {name: getattr(key, name) for name in _REQUIRED[key.kty]}
    return encode(hashlib.sha256(msgspec.json.encode(members)).digest())


class BadKeySet(Exception):
    """Error for a document that is not a key set. Only `read_jwks_untrusted` raises it."""


class _KeySet(msgspec.Struct):
    keys: list[Any]


def read_jwks_untrusted(data: bytes) -> tuple[Jwk, ...]:
    """Read a JSON Web Key Set. Keys in an unknown format are skipped (RFC 7517 5). Raise BadKeySet if the data is not a
    key set, or has more than KEYS_MAX keys.
    """
    try:
        members = msgspec.json.decode(data, type=_KeySet).keys
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise BadKeySet("the answer is not a JSON Web Key Set") from None
    if len(members) > KEYS_MAX:
        raise BadKeySet(f"the key set has more than {KEYS_MAX} keys")
    keys: list[Jwk] = []
    for each in members:
        with contextlib.suppress(msgspec.ValidationError):
            keys.append(msgspec.convert(each, Jwk))
    return tuple(keys)


def select(keys: Sequence[Jwk], alg: Algorithm, kid: str | None) -> Jwk | InvalidToken:
    """Select the key that verifies a token: the key with the id `kid` or, if `kid` is None, the only key that fits the
    algorithm. Return InvalidToken if there is no such key or more than one.

    The reason KEY_UNKNOWN means that a newer key set may contain the key.
    """
    candidates = [key for key in keys if (key.fits(alg) if kid is None else key.kid == kid)]
    if not candidates:
        return InvalidToken(Reason.KEY_UNKNOWN)
    is_usable = len(candidates) == 1 and candidates[0].fits(alg)
    return candidates[0] if is_usable else InvalidToken(Reason.KEY_UNFIT)


# A public key as a person writes it into a configuration or a file: `ed25519:BASE64`, a JWK, or a set of JWKs.
#
# PEM is only recognised here; `crypto.signing` reads it. A key without an id gets its thumbprint as id (RFC 7638), so
# that a signer can always say which key it used.

ED25519: Final = "ed25519:"
ED25519_BYTES: Final = 32
_PEM: Final = re.compile(r"-----BEGIN ([A-Z0-9 ]+)-----")


class BadKey(Exception):
    """Error for a text that is not a usable public key. The message does not repeat the text."""


def find_pem_label(text: str) -> str | None:
    """Return the label of the PEM block in a text, such as PUBLIC KEY, or None if the text is not PEM."""
    return match[1] if (match := _PEM.search(text)) is not None else None


def is_key_text(text: str) -> bool:
    """Return whether a text is itself a key. Any other text is the name of a file that contains a key."""
    return text.startswith((ED25519, "{")) or find_pem_label(text) is not None


def read_key_untrusted(text: str) -> tuple[Jwk, ...]:
    """Read a public key, or a set of public keys of which at least one is usable. Raise BadKey if the text is
    neither.
    """
    text = text.strip()
    if text.startswith(ED25519):
        standard = text.removeprefix(ED25519).replace("-", "+").replace("_", "/").rstrip("=")
        try:
            public = base64.b64decode(standard + "=" * (-len(standard) % 4), validate=True)
        except (binascii.Error, ValueError):
            raise BadKey("the text after ed25519: is not base64") from None
        if len(public) != ED25519_BYTES:
            raise BadKey(f"behind ed25519: stand {ED25519_BYTES} bytes in base64, not {len(public)}")
        return (ed25519_key(public),)
    try:
        members = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        members = None
    if not isinstance(members, dict):
        raise BadKey("it is neither ed25519:BASE64 nor a JWK nor PEM")
    try:
        keys = read_jwks_untrusted(text.encode()) if "keys" in members else (msgspec.convert(members, Jwk),)
    except BadKeySet as bad:
        raise BadKey(str(bad)) from None
    except msgspec.ValidationError:
        raise BadKey("it is JSON, and not a JWK") from None
    if any(key.d is not None for key in keys) or members.get("kty") == "oct":
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


def format_key(key: Jwk) -> str:
    """Return a key as text, in the form in which configuration files contain it."""
    public = decode_base64url(key.x) if key.crv == "Ed25519" else None
    if public is not None:
        return ED25519 + base64.b64encode(public).decode("ascii")
    members = {name: value for name, value in msgspec.to_builtins(key).items() if value}
    return msgspec.json.encode(members).decode()
