"""The requests by which a client gets a token, and their answers read: OAuth 2.1 4, RFC 7636, RFC 8707, RFC 9207,
RFC 7523.

Bytes and values only. No answer's own words leave but its error code: what an authorization server writes may repeat
what it was sent.
"""

import base64
import hashlib
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal
from urllib.parse import quote_plus, urlencode, urlsplit, urlunsplit

import msgspec

from interlock.credentials.protocol.client import Client
from interlock.credentials.protocol.discovery import AuthorizationServer
from interlock.credentials.protocol.www_authenticate import TOKEN_BYTES_MAX, scopes
from interlock.crypto.jose import encode

VERIFIER_BYTES: Final = 32  # RFC 7636 4.1
LIFETIME_S_MAX: Final = 10 * 365 * 86_400.0
ASSERTION_S: Final = 60.0  # it is used at once
CALLBACK_VALUE_MAX: Final = 4096
OFFLINE: Final = "offline_access"
ASSERTION_TYPE: Final = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"
_FORM: Final = b"content-type: application/x-www-form-urlencoded\r\naccept: application/json\r\n"
_ACCESS_TOKEN = re.compile(r"[A-Za-z0-9._~+/-]+=*", re.ASCII)  # RFC 6750 2.1: it becomes a header
_ERROR_CODE = re.compile(r"[a-zA-Z0-9_.-]{1,64}", re.ASCII)

AssertionAlgorithm = Literal["ES256", "EdDSA", "RS256", "PS256"]


class Token(msgspec.Struct, frozen=True, kw_only=True):
    access_token: str  # never shown
    refresh_token: str | None = None  # never shown
    lifetime_s: float | None = None
    scopes: tuple[str, ...] | None = None  # None: those that were asked for (RFC 6749 5.1)


class BadAnswer(Exception):
    """The answer is not a token. Raised only by `read_token_untrusted`."""


# The person's way: the page, and back


def pkce_challenge(verifier: str) -> str:
    return encode(hashlib.sha256(verifier.encode("ascii")).digest())


def scopes_to_ask(wanted: Sequence[str], server: AuthorizationServer) -> tuple[str, ...]:
    """MCP, Refresh Tokens: offline_access where the authorization server has it; never as the only scope."""
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
    """Return the URL of the page to open. A query that the endpoint has already is preserved (RFC 6749 3.1)."""
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
    """Parameters with which a browser returns to the callback."""

    state: str
    code: str | None = None
    error: str | None = None
    iss: str | None = None


def read_callback_untrusted(parameters: Sequence[tuple[str, str]]) -> Returned | None:
    """Read the parameters of the callback. Return None if they are no answer, or a parameter occurs twice (RFC 6749
    3.1).
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


def came_from(returned: Returned, issuer: str, *, always_says: bool) -> bool:
    """RFC 9207 2.4 with MCP's table: compared as strings, and a server that says it names itself must."""
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
    """RFC 6749 6: without a scope it is the one the token was given for."""
    return {"grant_type": "refresh_token", "refresh_token": refresh_token, "resource": resource}  # AX-10.1-2


def credentials_form(wanted: Sequence[str], resource: str) -> dict[str, str]:
    form = {"grant_type": "client_credentials", "resource": resource}  # AX-10.1-2
    return form | ({"scope": " ".join(wanted)} if wanted else {})


def token_request(form: Mapping[str, str], client: Client, assertion: str | None = None) -> tuple[bytes, bytes]:
    """Return the headers and the body of a token request, with the client's authentication (RFC 6749 2.3, RFC 7523
    2.2).
    """
    headers, sent = _FORM, dict(form)
    match client.method:
        case "client_secret_basic":
            pair = f"{quote_plus(client.client_id)}:{quote_plus(client.secret or '')}".encode()
            headers += b"authorization: Basic %b\r\n" % base64.b64encode(pair)
        case "client_secret_post":
            sent |= {"client_id": client.client_id, "client_secret": client.secret or ""}
        case "private_key_jwt":
            sent |= {"client_id": client.client_id, "client_assertion_type": ASSERTION_TYPE}
            sent["client_assertion"] = assertion or ""
        case "none":
            sent["client_id"] = client.client_id
    return headers, urlencode(sent).encode()


def assertion_to_sign(client: Client, alg: AssertionAlgorithm, jti: str, now: float) -> bytes:
    """RFC 7523 3: the audience is the issuer itself, so that no other server can use the assertion."""
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


def read_token_untrusted(data: bytes) -> Token:
    """Read the answer to a token request. Raise BadAnswer."""
    try:
        answer = msgspec.json.decode(data, type=_Granted)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise BadAnswer("the answer is not a token") from None
    if answer.token_type.lower() != "bearer":
        raise BadAnswer("the token is of a type other than Bearer")
    if len(answer.access_token) > TOKEN_BYTES_MAX or not _ACCESS_TOKEN.fullmatch(answer.access_token):
        raise BadAnswer("the token is too long for a header, or has characters that no header may carry")
    if len(answer.refresh_token or "") > TOKEN_BYTES_MAX:
        raise BadAnswer("the refresh token is too long")
    return Token(
        access_token=answer.access_token,
        refresh_token=answer.refresh_token or None,
        lifetime_s=_lifetime(answer.expires_in),
        scopes=None if answer.scope is None else scopes(answer.scope),
    )


def error_code_untrusted(data: bytes) -> str | None:
    """Return the name of the error of an authorization server (RFC 6749 5.2), or None if it gives none."""
    try:
        answer = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    code = answer.get("error") if isinstance(answer, dict) else None
    return code if isinstance(code, str) and _ERROR_CODE.fullmatch(code) else None


def _lifetime(value: float | str | None) -> float | None:
    try:
        seconds = float(value) if value is not None else 0.0  # some servers write the number as a string
    except ValueError:
        return None
    return min(seconds, LIFETIME_S_MAX) if seconds > 0 else None
