"""Protected resources in OAuth: the documents, requests and challenges of a resource server.

The node is a resource server itself: it publishes metadata (RFC 9728), asks an authorization server about tokens (RFC
7662), maps the scopes of tokens to its own scopes, and challenges clients (RFC 6750). It is also a client of other
resource servers, and reads the challenges in their WWW-Authenticate headers (RFC 9110 11.6.1). The module works on
values and bytes only; it fetches nothing.
"""

import base64
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Literal, TypeVar
from urllib.parse import SplitResult, quote_plus, urlencode, urlsplit, urlunsplit

import msgspec

from interlock.crypto.jose import InvalidToken, Reason, TokenClaims
from interlock.net.protocol.address_scope import is_loopback
from interlock.net.protocol.uri import canonical_uri

T = TypeVar("T")

# Token introspection (RFC 7662)

FORM_HEADERS: Final = b"content-type: application/x-www-form-urlencoded\r\naccept: application/json\r\n"


def read_document(data: bytes, shape: type[T], failure: Exception) -> T:
    """Decode a JSON document that a peer sent. Raise `failure` if it does not have the type `shape`."""
    try:
        return msgspec.json.decode(data, type=shape)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise failure from None


class Introspected(TokenClaims, frozen=True, kw_only=True):
    active: bool
    token_type: str | None = None


class BadIntrospection(Exception):
    """Exception for an unreadable answer to a token introspection. Only `read_introspection_untrusted` raises it."""


def request_headers(client_id: str, client_secret: str) -> bytes:
    """Return the header lines of a form request in which a client authenticates with Basic authentication.

    Client id and secret are form-encoded first (RFC 6749 2.3.1).
    """
    pair = f"{quote_plus(client_id)}:{quote_plus(client_secret)}".encode()
    return FORM_HEADERS + b"authorization: Basic %b\r\n" % base64.b64encode(pair)


def request_body(token: str) -> bytes:
    return urlencode({"token": token, "token_type_hint": "access_token"}).encode()


def read_introspection_untrusted(data: bytes, issuer: str) -> TokenClaims | InvalidToken:
    """Read the answer to a token introspection. Return the claims of an active token, or InvalidToken for any other
    token.

    If the answer names no issuer, `issuer` is filled in, because an answer need not repeat it. Raise BadIntrospection
    if the answer cannot be read.
    """
    answer = read_document(data, Introspected, BadIntrospection("the answer is not a token introspection answer"))
    if not answer.active:
        return InvalidToken(Reason.INACTIVE)
    if answer.token_type is not None and answer.token_type.lower() not in ("bearer", "access_token"):
        return InvalidToken(Reason.BOUND)
    return answer if answer.iss is not None else msgspec.structs.replace(answer, iss=issuer)


# Scopes: any scope strings are mapped to the three of the node. Each of these includes the ones before it.

OurScope = Literal["read", "write", "admin"]
RANK: Final[tuple[OurScope, ...]] = ("read", "write", "admin")
BASIC: Final[tuple[OurScope, ...]] = ("read", "write")  # what a client asks for at first; more when a tool needs it

DEFAULT_SCOPES: Final[Mapping[str, OurScope]] = {
    "read": "read",
    "write": "write",
    "admin": "admin",
    "interlock:read": "read",
    "interlock:write": "write",
    "interlock:admin": "admin",
}


def granted_scope(scopes: Iterable[str], table: Mapping[str, OurScope]) -> OurScope | None:
    """Return the widest scope of this node that `table` gives to one of the token's scopes, or None if there is
    none.
    """
    ours = [table[scope] for scope in scopes if scope in table]
    return max(ours, key=RANK.index, default=None)


def scope_to_ask(needed: str, table: Mapping[str, OurScope]) -> str | None:
    """Return the OAuth scope that a client should request to get the node's scope `needed`, or None if there is none.

    It is the first scope that `table` maps to `needed`, otherwise the first that it maps to the next wider scope.
    """
    for ours in RANK[RANK.index(needed) :]:
        for scope, stands_for in table.items():
            if stands_for == ours:
                return scope
    return None


def basic(table: Mapping[str, OurScope]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(scope for ours in BASIC if (scope := scope_to_ask(ours, table)) is not None))


ENDPOINT: Final = "/mcp"
WELL_KNOWN: Final = "/.well-known/oauth-protected-resource"
_OAUTH: Final = "/.well-known/oauth-authorization-server"
_OPENID: Final = "/.well-known/openid-configuration"
_VISIBLE = re.compile(r"[!-~]+", re.ASCII)
_HOST = re.compile(r"[A-Za-z0-9._-]+|[0-9A-Fa-f:.]+", re.ASCII)


def resource_of(public_url: str) -> str:
    """Return the OAuth resource identifier of this node, which clients reach at `public_url`."""
    return canonical_uri(public_url.rstrip("/") + ENDPOINT)


def metadata_url(resource: str) -> str:
    """Return the URL of the metadata of a protected resource. The well-known segment is between host and path (RFC 9728
    3.1).
    """
    parts = urlsplit(resource)
    return urlunsplit(parts._replace(path=WELL_KNOWN + parts.path))


def metadata_paths(resource: str) -> frozenset[str]:
    """Return the paths at which this node serves its resource metadata: at the root, for its endpoint, and for a proxy
    that adds a path.
    """
    return frozenset((WELL_KNOWN, WELL_KNOWN + ENDPOINT, urlsplit(metadata_url(resource)).path))


def metadata_document(resource: str, name: str, issuers: Sequence[str], scopes: Sequence[str]) -> bytes:
    document: dict[str, Any] = {
        "resource": resource,
        "resource_name": name,
        "authorization_servers": list(issuers),
        "bearer_methods_supported": ["header"],
    }
    return msgspec.json.encode(document | ({"scopes_supported": list(scopes)} if scopes else {}))


def discovery_urls(issuer: str) -> tuple[str, ...]:
    """Return the URLs at which an authorization server may publish its metadata, in the order of MCP (RFC 8414 3.1 and
    5).
    """
    parts = urlsplit(issuer)
    path = parts.path.rstrip("/")
    paths = (_OAUTH + path, _OPENID + path, path + _OPENID) if path else (_OAUTH, _OPENID)
    return tuple(urlunsplit(parts._replace(path=each)) for each in paths)


class BadMetadata(Exception):
    """Exception for a document that is not the expected metadata of an authorization server or a protected resource."""


class ServerMetadata(msgspec.Struct, frozen=True):
    issuer: str
    jwks_uri: str


def read_metadata_untrusted(data: bytes, issuer: str) -> ServerMetadata:
    failure = BadMetadata("the answer is not authorization server metadata with issuer and jwks_uri")
    metadata = read_document(data, ServerMetadata, failure)
    if metadata.issuer != issuer:  # RFC 8414 3.3
        raise BadMetadata("the metadata names another issuer")
    if not is_protected(metadata.jwks_uri):
        raise BadMetadata("the metadata names a jwks_uri that is not https")
    return metadata


def is_protected(url: str) -> bool:
    """Return whether the traffic with a URL cannot be changed on its way: it uses https, or http to this machine."""
    parts = find_url_parts(url) if _VISIBLE.fullmatch(url) else None  # `urlsplit` drops line breaks
    host = (parts.hostname if parts is not None else None) or ""
    if parts is None or not _HOST.fullmatch(host) or parts.username is not None or "#" in url:
        return False
    return parts.scheme == "https" or (parts.scheme == "http" and is_loopback(host))


def is_loopback_url(url: str) -> bool:
    parts = find_url_parts(url)
    return parts is not None and is_loopback(parts.hostname or "")


def find_url_parts(url: str) -> SplitResult | None:
    """Split a URL into its parts, or return None if its host or port is malformed."""
    try:
        parts = urlsplit(url)
        _ = parts.port  # raises when it is no port
    except ValueError:
        return None
    return parts


# The Authorization header of a request, and the WWW-Authenticate header of a refusal (RFC 6750, RFC 9728 5.1).

# The largest header that common servers and proxies accept.
TOKEN_BYTES_MAX: Final = 8192
BEARER_TOKEN: Final = re.compile(r"[A-Za-z0-9._~+/-]+=*", re.ASCII)  # RFC 6750 2.1
_UNQUOTABLE = re.compile(r"[^\x20-\x21\x23-\x5b\x5d-\x7e]")  # RFC 6750 3


def is_bearer(authorization: bytes) -> bool:
    return authorization.partition(b" ")[0].lower() == b"bearer"


def find_bearer(authorization: bytes) -> str | None:
    """Return the token in an Authorization header, or None if the header has no valid bearer token."""
    token = authorization.partition(b" ")[2]
    if not is_bearer(authorization) or len(token) > TOKEN_BYTES_MAX:
        return None
    text = token.strip(b" ").decode("latin-1")
    return text if BEARER_TOKEN.fullmatch(text) else None


def challenge(
    metadata_url: str, *, error: str | None = None, description: str | None = None, scope: str | None = None
) -> str:
    """Return a WWW-Authenticate challenge for a client without a valid token. Leave out `error` if its request had no
    token at all (RFC 6750 3.1).
    """
    parameters = {"resource_metadata": metadata_url, "error": error, "error_description": description, "scope": scope}
    return "Bearer " + ", ".join(f'{name}="{_UNQUOTABLE.sub("", text)}"' for name, text in parameters.items() if text)


CHALLENGE_BYTES_MAX: Final = 8192
SCOPES_MAX: Final = 64  # of one challenge, one document, one token
_HTTP_TOKEN: Final = r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"  # noqa: S105  (RFC 9110 5.6.2)
_PARAMETER = re.compile(rf'({_HTTP_TOKEN})[ \t]*=[ \t]*(?:"((?:[^"\\]|\\.)*)"|({_HTTP_TOKEN})(?=[ \t]*(?:,|$)))')
_SCHEME = re.compile(rf"({_HTTP_TOKEN})(?=[ \t]|,|$)")
_SKIPPED = re.compile(r"[ \t,]*")

_SCOPE = re.compile(r"[\x21\x23-\x5b\x5d-\x7e]+")  # RFC 6749 3.3

INSUFFICIENT_SCOPE: Final = "insufficient_scope"


class Challenge(msgspec.Struct, frozen=True, kw_only=True):
    """The parameters of a Bearer challenge in a WWW-Authenticate header. A parameter that is missing or unreadable is
    empty.
    """

    resource_metadata: str | None = None
    scope: tuple[str, ...] = ()
    error: str | None = None


NO_CHALLENGE: Final = Challenge()


def read_challenge_untrusted(values: Iterable[bytes]) -> Challenge:
    """Return the first Bearer challenge in the WWW-Authenticate headers of a server."""
    for value in values:
        for scheme, parameters in _challenges(value[:CHALLENGE_BYTES_MAX].decode("latin-1")):
            if scheme == "bearer":
                return Challenge(
                    resource_metadata=parameters.get("resource_metadata"),
                    scope=distinct_scopes(parameters.get("scope", "").split(" ")),
                    error=parameters.get("error"),
                )
    return NO_CHALLENGE


def distinct_scopes(scopes: Iterable[str]) -> tuple[str, ...]:
    """Return the valid scopes without repetitions, at most SCOPES_MAX of them."""
    return tuple(dict.fromkeys(scope for scope in scopes if _SCOPE.fullmatch(scope)))[:SCOPES_MAX]


def _challenges(text: str) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield the scheme and the parameters of each challenge in a WWW-Authenticate header.

    Commas separate parameters as well as challenges, so a token without `=` after it starts a new challenge.
    """
    scheme, parameters = "", dict[str, str]()
    at = 0
    while at < len(text):
        skipped = _SKIPPED.match(text, at)
        at = skipped.end() if skipped is not None else at
        parameter = _PARAMETER.match(text, at)
        if parameter is not None:
            quoted = parameter[2]
            value = parameter[3] if quoted is None else re.sub(r"\\(.)", r"\1", quoted)
            parameters.setdefault(parameter[1].lower(), value)
            at = parameter.end()
            continue
        start = _SCHEME.match(text, at)
        if start is None:
            # A token68, or text that cannot be read: continue after the next comma.
            comma = text.find(",", at)
            at = max(at + 1, comma if comma >= 0 else len(text))
            continue
        if scheme:
            yield scheme, parameters
        scheme, parameters = start[1].lower(), {}
        at = start.end()
    if scheme:
        yield scheme, parameters
