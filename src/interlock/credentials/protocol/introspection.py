"""Asking the authorization server about a token (RFC 7662): the request's bytes, and the answer read."""

import base64
from typing import Final
from urllib.parse import quote_plus, urlencode

import msgspec

from interlock.crypto.jose.claims import Claims
from interlock.crypto.jose.errors import Invalid, Reason

_FORM: Final = b"content-type: application/x-www-form-urlencoded\r\naccept: application/json\r\n"


class Introspected(Claims, frozen=True, kw_only=True):
    active: bool
    token_type: str | None = None


class BadIntrospection(Exception):
    """The answer is not an introspection answer. Raised only by `read_introspection_untrusted`."""


def request_headers(client_id: str, client_secret: str) -> bytes:
    """RFC 6749 2.3.1: both halves are form-encoded before they are joined."""
    pair = f"{quote_plus(client_id)}:{quote_plus(client_secret)}".encode()
    return _FORM + b"authorization: Basic %b\r\n" % base64.b64encode(pair)


def request_body(token: str) -> bytes:
    return urlencode({"token": token, "token_type_hint": "access_token"}).encode()


def read_introspection_untrusted(data: bytes, issuer: str) -> Claims | Invalid:
    """The claims of an active token. An answer need not repeat who answers, so a missing issuer is filled in."""
    try:
        said = msgspec.json.decode(data, type=Introspected)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise BadIntrospection("the answer is not a token introspection answer") from None
    if not said.active:
        return Invalid(Reason.INACTIVE)
    if said.token_type is not None and said.token_type.lower() not in ("bearer", "access_token"):
        return Invalid(Reason.BOUND)
    return said if said.iss is not None else msgspec.structs.replace(said, iss=issuer)
