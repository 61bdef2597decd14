"""Who this node is to an authorization server: registered before, known by the URL of its document, or registered now.

Client ID Metadata Document for the second, RFC 7591 for the third. Credentials belong to the issuer that gave them, and
are shown to no other.
"""

from collections.abc import Mapping
from typing import Any, Final, Literal, get_args

import msgspec

Method = Literal["none", "client_secret_basic", "client_secret_post", "private_key_jwt"]
METHODS: Final[frozenset[str]] = frozenset(get_args(Method))
CLIENT_ID_MAX: Final = 2048
SECRET_MAX: Final = 4096
DOCUMENT_PATH: Final = "/oauth/client.json"
CALLBACK_PATH: Final = "/oauth/callback"
GRANTS: Final = ("authorization_code", "refresh_token")
_BY_SECRET: Final[tuple[Method, ...]] = ("client_secret_basic", "client_secret_post")


class Client(msgspec.Struct, frozen=True, kw_only=True):
    issuer: str
    client_id: str
    method: Method = "none"
    secret: str | None = None  # never shown
    redirect_uri: str | None = None  # what was registered with it, when we registered it
    expires_at: float | None = None  # wall clock


class BadRegistration(Exception):
    """The answer is not a registration. Raised only by `read_registration_untrusted`."""


def method_for(supported: tuple[str, ...] | None, *, secret: bool, key: bool) -> Method | None:
    """Return how a client with a secret, a key or neither authenticates, or None if it cannot."""
    if key:
        return "private_key_jwt" if supported is None or "private_key_jwt" in supported else None
    if not secret:
        return "none"
    accepted = ("client_secret_basic",) if supported is None else supported  # RFC 8414 2: the default
    return next((method for method in _BY_SECRET if method in accepted), None)


def method_to_register(supported: tuple[str, ...] | None) -> Method | None:
    """Return the authentication method to register: a public client if possible, because PKCE protects it without a
    secret.
    """
    if supported is not None and "none" in supported:
        return "none"
    return method_for(supported, secret=True, key=False)


def client_metadata(redirect_uri: str, name: str, method: Method, *, native: bool) -> dict[str, Any]:
    return {
        "client_name": name,
        "redirect_uris": [redirect_uri],
        "grant_types": list(GRANTS),
        "response_types": ["code"],
        "token_endpoint_auth_method": method,
        "application_type": "native" if native else "web",  # MCP, Application Type
    }


def client_document(client_id: str, metadata: Mapping[str, Any]) -> bytes:
    """Encode the document behind a client_id that is a URL."""
    return msgspec.json.encode({"client_id": client_id, **metadata})


class _Registered(msgspec.Struct):
    client_id: str
    client_secret: str | None = None
    client_secret_expires_at: float = 0
    token_endpoint_auth_method: str | None = None


def read_registration_untrusted(data: bytes, issuer: str, requested: Method, redirect_uri: str) -> Client:
    """Read the answer to a client registration. Raise BadRegistration."""
    try:
        registered = msgspec.json.decode(data, type=_Registered)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise BadRegistration("the answer is not a client registration") from None
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
