"""Why a bearer token opens nothing here, as values.

    Invalid(reason)   the client's fault; it gets another token from its authorization server

Every reason is answered alike: HTTP 401 and `error="invalid_token"` (RFC 6750 3.1). The text is the same for everybody
and holds nothing of the token.
"""

import enum

import msgspec


class Reason(enum.Enum):
    """The value is the `error_description`; RFC 6750 3 allows it neither quotation marks nor backslashes."""

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


class Invalid(msgspec.Struct, frozen=True):
    reason: Reason
