"""Where the tokens for an MCP server come from: its resource metadata (RFC 9728), and that of its authorization server
(RFC 8414, OpenID Connect Discovery).

URLs and documents only; nothing is fetched. A document that does not fit what it was asked for is refused whole.
"""

from typing import Final
from urllib.parse import SplitResult, urlsplit, urlunsplit

import msgspec

from interlock.credentials.protocol.resource import WELL_KNOWN, BadMetadata, is_protected
from interlock.credentials.protocol.www_authenticate import SCOPES_MAX, is_scope

ISSUERS_MAX: Final = 3  # of those a server lists, how many are tried
_DEFAULT_PORTS: Final = {"http": 80, "https": 443}


class ProtectedResource(msgspec.Struct, frozen=True):
    resource: str
    authorization_servers: tuple[str, ...] = ()
    scopes_supported: tuple[str, ...] = ()


class AuthorizationServer(msgspec.Struct, frozen=True):
    """Metadata of an authorization server that a client needs. An absent list is None, which differs from an empty
    list.
    """

    issuer: str
    token_endpoint: str
    authorization_endpoint: str | None = None
    registration_endpoint: str | None = None
    scopes_supported: tuple[str, ...] = ()
    code_challenge_methods_supported: tuple[str, ...] | None = None
    token_endpoint_auth_methods_supported: tuple[str, ...] | None = None
    token_endpoint_auth_signing_alg_values_supported: tuple[str, ...] | None = None
    client_id_metadata_document_supported: bool = False
    authorization_response_iss_parameter_supported: bool = False


def server_resource(url: str) -> str:
    """Return the resource identifier of the server at `url` (MCP, Canonical Server URI)."""
    parts = urlsplit(url)
    return urlunsplit(_normal(parts)._replace(path=parts.path.rstrip("/") if parts.path == "/" else parts.path))


def resource_metadata_urls(url: str) -> tuple[str, ...]:
    """Return where a server may publish its metadata if it names no place, in the order that MCP gives."""
    parts = _normal(urlsplit(url))
    path = parts.path.rstrip("/")
    places = (WELL_KNOWN + path, WELL_KNOWN) if path else (WELL_KNOWN,)
    return tuple(urlunsplit(parts._replace(path=place)) for place in places)


def origin_of(url: str) -> str:
    return urlunsplit(_normal(urlsplit(url))._replace(path=""))


def read_protected_resource_untrusted(data: bytes, url: str) -> ProtectedResource:
    """Read protected resource metadata. The resource must be the server at `url`, or a path above it. Raise
    BadMetadata.
    """
    try:
        metadata = msgspec.json.decode(data, type=ProtectedResource)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise BadMetadata("the answer is not protected resource metadata") from None
    if not covers(metadata.resource, url):  # RFC 9728 3.3
        raise BadMetadata("the resource metadata is that of another resource")
    if not metadata.authorization_servers:  # MCP: at least one
        raise BadMetadata("the resource metadata names no authorization server")
    return msgspec.structs.replace(metadata, scopes_supported=_scopes(metadata.scopes_supported))


def covers(resource: str, url: str) -> bool:
    """Return whether a token for `resource` is valid for the server at `url`: the same resource, or a path above it."""
    try:
        ours, theirs = _normal(urlsplit(url)), _normal(urlsplit(resource))
        whole = urlsplit(resource)
    except ValueError:
        return False
    if whole.query or whole.fragment or whole.username is not None or ours[:2] != theirs[:2]:
        return False
    above, path = theirs.path.rstrip("/"), ours.path.rstrip("/")
    return path == above or path.startswith(above + "/")


def read_authorization_server_untrusted(data: bytes, issuer: str) -> AuthorizationServer:
    """Read authorization server metadata. Raise BadMetadata."""
    try:
        metadata = msgspec.json.decode(data, type=AuthorizationServer)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise BadMetadata("the answer is not authorization server metadata") from None
    if metadata.issuer != issuer:  # RFC 8414 3.3, to the letter
        raise BadMetadata("the metadata names another issuer")
    for endpoint in (metadata.token_endpoint, metadata.authorization_endpoint, metadata.registration_endpoint):
        if endpoint is not None and not is_protected(endpoint):  # OAuth 2.1 1.5
            raise BadMetadata("the metadata names an endpoint that is not https")
    return msgspec.structs.replace(metadata, scopes_supported=_scopes(metadata.scopes_supported))


def is_issuer(url: str) -> bool:
    """RFC 8414 2: https, no query, no fragment."""
    return is_protected(url) and "?" not in url


def _normal(parts: SplitResult) -> SplitResult:
    """Scheme and host in lower case, no default port, and nothing behind the path."""
    host = parts.hostname or ""
    host = f"[{host}]" if ":" in host else host
    port = parts.port
    place = host if port is None or port == _DEFAULT_PORTS.get(parts.scheme) else f"{host}:{port}"
    return SplitResult(parts.scheme, place, parts.path, "", "")


def _scopes(listed: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(scope for scope in listed if is_scope(scope)))[:SCOPES_MAX]
