"""The client side of OAuth 2.1, as MCP uses it: discovery, registration, and token requests.

In the order in which a client needs them:

1. The metadata of the MCP server says which authorization servers give tokens for it (RFC 9728), and the metadata of
   the authorization server where its endpoints are (RFC 8414, OpenID Connect Discovery).
2. The node has to be known to the authorization server: by configuration, by the URL of a document that the node
   publishes (Client ID Metadata Document), or by a registration (RFC 7591).
3. A person opens `authorization_url` and comes back with a code (RFC 7636, RFC 9207), which is exchanged for a token
   (OAuth 2.1 4, RFC 8707, RFC 7523). Or the node gets a token with its own credentials.

Values and bytes only; nothing is fetched here. A document that does not belong to its request is rejected as a whole.
Of an error answer only the error code is used, because other text may repeat secrets of the request.
"""

import hashlib
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, get_args
from urllib.parse import SplitResult, urlencode, urlsplit, urlunsplit

import msgspec

from interlock.credentials.protocol.resource import (
    BEARER_TOKEN,
    FORM_HEADERS,
    TOKEN_BYTES_MAX,
    WELL_KNOWN,
    BadMetadata,
    distinct_scopes,
    is_protected,
    read_document,
    request_headers,
)
from interlock.crypto.jose import Algorithm, encode

# Discovery

# A server may list more authorization servers; only the first ones are tried.
ISSUERS_MAX: Final = 3
_DEFAULT_PORTS: Final = {"http": 80, "https": 443}


class ProtectedResource(msgspec.Struct, frozen=True):
    """Metadata of an MCP server as a protected resource (RFC 9728)."""

    resource: str
    authorization_servers: tuple[str, ...] = ()
    scopes_supported: tuple[str, ...] = ()


class AuthorizationServer(msgspec.Struct, frozen=True):
    """The metadata of an authorization server (RFC 8414), with the members that a client needs.

    A list that is absent from the metadata is None, which differs from an empty list.
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
    """Return the resource identifier of the MCP server at `url` (MCP, Canonical Server URI)."""
    parts = urlsplit(url)
    return urlunsplit(_normal(parts)._replace(path=parts.path.rstrip("/") if parts.path == "/" else parts.path))


def resource_metadata_urls(url: str) -> tuple[str, ...]:
    """Return the URLs at which an MCP server may publish its metadata, in the order in which to try them. They are used
    if the server does not name a URL itself.
    """
    parts = _normal(urlsplit(url))
    path = parts.path.rstrip("/")
    places = (WELL_KNOWN + path, WELL_KNOWN) if path else (WELL_KNOWN,)
    return tuple(urlunsplit(parts._replace(path=place)) for place in places)


def origin_of(url: str) -> str:
    """Return the origin of a URL (scheme, host and port), normalized."""
    return urlunsplit(_normal(urlsplit(url))._replace(path=""))


def read_protected_resource_untrusted(data: bytes, url: str) -> ProtectedResource:
    """Read the protected resource metadata of the MCP server at `url`.

    Raise BadMetadata if it is invalid, or if its resource is neither the server at `url` nor a path above it.
    """
    metadata = read_document(data, ProtectedResource, BadMetadata("the answer is not protected resource metadata"))
    if not covers(metadata.resource, url):  # RFC 9728 3.3
        raise BadMetadata("the resource metadata is that of another resource")
    if not metadata.authorization_servers:  # MCP: at least one
        raise BadMetadata("the resource metadata names no authorization server")
    return msgspec.structs.replace(metadata, scopes_supported=distinct_scopes(metadata.scopes_supported))


def covers(resource: str, url: str) -> bool:
    """Return whether a token for `resource` may be used at `url`: both are equal, or `resource` is a path above
    `url`.
    """
    try:
        whole = urlsplit(resource)
        ours, theirs = _normal(urlsplit(url)), _normal(whole)
    except ValueError:
        return False
    if whole.query or whole.fragment or whole.username is not None or ours[:2] != theirs[:2]:
        return False
    above, path = theirs.path.rstrip("/"), ours.path.rstrip("/")
    return path == above or path.startswith(above + "/")


def read_authorization_server_untrusted(data: bytes, issuer: str) -> AuthorizationServer:
    """Read authorization server metadata. Raise BadMetadata if it is invalid or describes another issuer."""
    metadata = read_document(data, AuthorizationServer, BadMetadata("the answer is not authorization server metadata"))
    if metadata.issuer != issuer:  # RFC 8414 3.3, to the letter
        raise BadMetadata("the metadata names another issuer")
    for endpoint in (metadata.token_endpoint, metadata.authorization_endpoint, metadata.registration_endpoint):
        if endpoint is not None and not is_protected(endpoint):  # OAuth 2.1 1.5
            raise BadMetadata("the metadata names an endpoint that is not https")
    return msgspec.structs.replace(metadata, scopes_supported=distinct_scopes(metadata.scopes_supported))


def is_issuer(url: str) -> bool:
    """Return whether a URL can identify an issuer: it has https, or http to this machine, and neither query nor
    fragment (RFC 8414 2).
    """
    return is_protected(url) and "?" not in url


def _normal(parts: SplitResult) -> SplitResult:
    """Normalize a URL: lower-case scheme and host, no default port, no query and no fragment."""
    host = parts.hostname or ""
    host = f"[{host}]" if ":" in host else host
    port = parts.port
    place = host if port is None or port == _DEFAULT_PORTS.get(parts.scheme) else f"{host}:{port}"
    return SplitResult(parts.scheme, place, parts.path, "", "")


# Registration

Method = Literal["none", "client_secret_basic", "client_secret_post", "private_key_jwt"]
METHODS: Final[frozenset[str]] = frozenset(get_args(Method))
CLIENT_ID_MAX: Final = 2048
SECRET_MAX: Final = 4096
DOCUMENT_PATH: Final = "/oauth/client.json"
CALLBACK_PATH: Final = "/oauth/callback"
GRANTS: Final = ("authorization_code", "refresh_token")
_BY_SECRET: Final[tuple[Method, ...]] = ("client_secret_basic", "client_secret_post")


class Client(msgspec.Struct, frozen=True, kw_only=True):
    """The identity of the node as an OAuth client at one issuer. Its credentials are sent to no other issuer."""

    issuer: str
    client_id: str
    method: Method = "none"
    secret: str | None = None  # never shown
    redirect_uri: str | None = None  # set if the node registered itself
    expires_at: float | None = None  # wall clock


class BadRegistration(Exception):
    """Exception for an invalid answer to a client registration. Only `read_registration_untrusted` raises it."""


def find_auth_method(supported: tuple[str, ...] | None, *, secret: bool, key: bool) -> Method | None:
    """Return the authentication method for a client that has a secret (`secret`), a private key (`key`) or neither.

    Return None if no method fits.
    """
    if key:
        return "private_key_jwt" if supported is None or "private_key_jwt" in supported else None
    if not secret:
        return "none"
    accepted = ("client_secret_basic",) if supported is None else supported  # RFC 8414 2: the default
    return next((method for method in _BY_SECRET if method in accepted), None)


def find_method_to_register(supported: tuple[str, ...] | None) -> Method | None:
    """Return the authentication method with which to register the node, or None if no method is supported by both
    sides.

    A public client is preferred, because PKCE protects it without a secret.
    """
    if supported is not None and "none" in supported:
        return "none"
    return find_auth_method(supported, secret=True, key=False)


def client_metadata(redirect_uri: str, name: str, method: Method, *, native: bool) -> dict[str, Any]:
    """Return the metadata that describes the node in a registration (RFC 7591 2).

    `native` is true if browsers return to an address of this machine.
    """
    return {
        "client_name": name,
        "redirect_uris": [redirect_uri],
        "grant_types": list(GRANTS),
        "response_types": ["code"],
        "token_endpoint_auth_method": method,
        "application_type": "native" if native else "web",  # MCP, Application Type
    }


def client_document(client_id: str, metadata: Mapping[str, Any]) -> bytes:
    """Return the metadata document of the node as JSON. The node publishes it at the URL `client_id`."""
    return msgspec.json.encode({"client_id": client_id, **metadata})


class _Registered(msgspec.Struct):
    client_id: str
    client_secret: str | None = None
    client_secret_expires_at: float = 0
    token_endpoint_auth_method: str | None = None


def read_registration_untrusted(data: bytes, issuer: str, requested: Method, redirect_uri: str) -> Client:
    """Read the answer to a client registration. Raise BadRegistration if it is invalid."""
    registered = read_document(data, _Registered, BadRegistration("the answer is not a client registration"))
    method = registered.token_endpoint_auth_method or requested
    if not 0 < len(registered.client_id) <= CLIENT_ID_MAX or len(registered.client_secret or "") > SECRET_MAX:
        raise BadRegistration("the registration has no client_id that could be used")
    if method not in METHODS or method == "private_key_jwt" or (method != "none" and not registered.client_secret):
        raise BadRegistration("the registration wants a way of authentication it gives nothing for")
    expires_at = registered.client_secret_expires_at
    return Client(
        issuer=issuer,
        client_id=registered.client_id,
        method=method,  # type: ignore[arg-type]  # one of METHODS
        secret=registered.client_secret if method != "none" else None,
        redirect_uri=redirect_uri,
        expires_at=expires_at if expires_at > 0 else None,
    )


VERIFIER_BYTES: Final = 32  # RFC 7636 4.1
LIFETIME_S_MAX: Final = 10 * 365 * 86_400.0
# A client assertion is used at once.
ASSERTION_S: Final = 60.0
CALLBACK_VALUE_MAX: Final = 4096
OFFLINE: Final = "offline_access"
ASSERTION_TYPE: Final = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"
_ERROR_CODE = re.compile(r"[a-zA-Z0-9_.-]{1,64}", re.ASCII)


class IssuedTokens(msgspec.Struct, frozen=True, kw_only=True):
    """The tokens in a successful answer of an authorization server."""

    access_token: str  # never shown
    refresh_token: str | None = None  # never shown
    lifetime_s: float | None = None
    scopes: tuple[str, ...] | None = None  # None: those that were asked for (RFC 6749 5.1)


class BadAnswer(Exception):
    """Exception for an answer that does not contain a token. Only `read_token_untrusted` raises it."""


# Authorization by a person


def pkce_challenge(verifier: str) -> str:
    """Return the S256 challenge for a code verifier (RFC 7636 4.2)."""
    return encode(hashlib.sha256(verifier.encode("ascii")).digest())


def scopes_to_ask(wanted: Sequence[str], server: AuthorizationServer) -> tuple[str, ...]:
    """Return the scopes to request from an authorization server: the wanted ones and, if it helps, offline_access.

    offline_access is added if the server supports it and other scopes are requested (MCP, Refresh Tokens).
    """
    if wanted and OFFLINE in server.scopes_supported:
        return tuple(dict.fromkeys((*wanted, OFFLINE)))
    return tuple(wanted)


def authorization_url(
    endpoint: str,
    *,
    client_id: str,
    redirect_uri: str,
    state: str,
    challenge: str,
    resource: str,
    scopes: Sequence[str],
) -> str:
    """Return the URL of the page on which a person agrees to a token. The query of `endpoint` is preserved (RFC 6749
    3.1).
    """
    parameters = {
        "response_type": "code",
        "client_id": client_id,
        "redirect_uri": redirect_uri,
        "state": state,
        "code_challenge": challenge,
        "code_challenge_method": "S256",
        "resource": resource,  # AX-10.1-2
    }
    if scopes:
        parameters["scope"] = " ".join(scopes)
    if OFFLINE in scopes:
        parameters["prompt"] = "consent"  # OpenID Connect Core 11: without it no refresh token is given
    parts = urlsplit(endpoint)
    return urlunsplit(parts._replace(query="&".join(filter(None, (parts.query, urlencode(parameters))))))


class Returned(msgspec.Struct, frozen=True, kw_only=True):
    """The parameters with which a browser returns from the authorization server."""

    state: str
    code: str | None = None
    error: str | None = None
    iss: str | None = None


def read_callback_untrusted(parameters: Sequence[tuple[str, str]]) -> Returned | None:
    """Read the parameters with which a browser returns from the authorization server.

    Return None if they are not the answer to an authorization request, or if a parameter occurs twice (RFC 6749 3.1).
    """
    values: dict[str, str] = {}
    for name, value in parameters:
        if name in values or len(value) > CALLBACK_VALUE_MAX:
            return None
        values[name] = value
    if not values.get("state") or ("code" in values) == ("error" in values):
        return None
    error = values.get("error")
    if error is not None and not _ERROR_CODE.fullmatch(error):
        error = "an error without a name"
    return Returned(state=values["state"], code=values.get("code"), error=error, iss=values.get("iss"))


def is_from(returned: Returned, issuer: str, *, always_says: bool) -> bool:
    """Return whether the parameters of a returning browser come from the authorization server `issuer` (RFC 9207 2.4,
    and the table of MCP).

    `always_says` is true if the server announces the parameter `iss`; an answer without it is then rejected.
    """
    return returned.iss == issuer if returned.iss is not None else not always_says


# The token endpoint


def code_form(code: str, verifier: str, redirect_uri: str, resource: str) -> dict[str, str]:
    return {
        "grant_type": "authorization_code",
        "code": code,
        "code_verifier": verifier,
        "redirect_uri": redirect_uri,
        "resource": resource,  # AX-10.1-2
    }


def refresh_form(refresh_token: str, resource: str) -> dict[str, str]:
    """Return the form of a request that renews a token.

    It requests no scope, so the new token has the scope of the old one (RFC 6749 6).
    """
    return {"grant_type": "refresh_token", "refresh_token": refresh_token, "resource": resource}  # AX-10.1-2


def credentials_form(wanted: Sequence[str], resource: str) -> dict[str, str]:
    form = {"grant_type": "client_credentials", "resource": resource}  # AX-10.1-2
    return form | ({"scope": " ".join(wanted)} if wanted else {})


def token_request(form: Mapping[str, str], client: Client, assertion: str | None = None) -> tuple[bytes, bytes]:
    """Return the headers and the body of a token request, including the client's authentication (RFC 6749 2.3, RFC 7523
    2.2).
    """
    headers, sent = FORM_HEADERS, dict(form)
    match client.method:
        case "client_secret_basic":
            headers = request_headers(client.client_id, client.secret or "")
        case "client_secret_post":
            sent |= {"client_id": client.client_id, "client_secret": client.secret or ""}
        case "private_key_jwt":
            sent |= {"client_id": client.client_id, "client_assertion_type": ASSERTION_TYPE}
            sent["client_assertion"] = assertion or ""
        case "none":
            sent["client_id"] = client.client_id
    return headers, urlencode(sent).encode()


def assertion_to_sign(client: Client, alg: Algorithm, jti: str, now: float) -> bytes:
    """Return the bytes of a client assertion that have to be signed.

    Its audience is the issuer, so that no other server can use the assertion (RFC 7523 3).
    """
    claims: dict[str, Any] = {
        "iss": client.client_id,
        "sub": client.client_id,
        "aud": client.issuer,
        "jti": jti,
        "iat": int(now),
        "exp": int(now + ASSERTION_S),
    }
    parts = (msgspec.json.encode(part) for part in ({"alg": alg, "typ": "JWT"}, claims))
    return ".".join(encode(part) for part in parts).encode("ascii")


class _Granted(msgspec.Struct):
    access_token: str
    token_type: str
    expires_in: float | str | None = None
    refresh_token: str | None = None
    scope: str | None = None


def read_token_untrusted(data: bytes) -> IssuedTokens:
    """Read the answer to a token request. Raise BadAnswer if it contains no valid token."""
    answer = read_document(data, _Granted, BadAnswer("the answer is not a token"))
    if answer.token_type.lower() != "bearer":
        raise BadAnswer("the token is of a type other than Bearer")
    if len(answer.access_token) > TOKEN_BYTES_MAX or not BEARER_TOKEN.fullmatch(answer.access_token):
        raise BadAnswer("the token is too long for a header, or has characters that no header may carry")
    if len(answer.refresh_token or "") > TOKEN_BYTES_MAX:
        raise BadAnswer("the refresh token is too long")
    try:
        # Some servers write the number as a string.
        seconds = float(answer.expires_in or 0)
    except ValueError:
        seconds = 0.0
    return IssuedTokens(
        access_token=answer.access_token,
        refresh_token=answer.refresh_token or None,
        lifetime_s=min(seconds, LIFETIME_S_MAX) if seconds > 0 else None,
        scopes=None if answer.scope is None else distinct_scopes(answer.scope.split(" ")),
    )


def error_code_untrusted(data: bytes) -> str | None:
    """Return the error code in an authorization server's answer (RFC 6749 5.2), or None if it contains none."""
    try:
        answer = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    code = answer.get("error") if isinstance(answer, dict) else None
    return code if isinstance(code, str) and _ERROR_CODE.fullmatch(code) else None
