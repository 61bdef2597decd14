"""What a server says when it refuses a request for its token: the WWW-Authenticate header of a 401 or 403, read.

RFC 9110 11.6.1 for the form, RFC 6750 3 and RFC 9728 5.1 for what stands in it. Whatever cannot be read says nothing.
"""

import re
from collections.abc import Iterable, Iterator
from typing import Final

import msgspec

# The Authorization header of a request, and the WWW-Authenticate header that answers it (RFC 6750, RFC 9728).

TOKEN_BYTES_MAX: Final = 8192  # the largest that common servers and proxies carry in a header
_BEARER_TOKEN = re.compile(r"[A-Za-z0-9._~+/-]+=*", re.ASCII)  # RFC 6750 2.1
_UNQUOTABLE = re.compile(r"[^\x20-\x21\x23-\x5b\x5d-\x7e]")  # RFC 6750 3


def is_bearer(authorization: bytes) -> bool:
    return authorization.partition(b" ")[0].lower() == b"bearer"


def maybe_bearer(authorization: bytes) -> str | None:
    """Return the token of an Authorization header, or None if there is no valid one."""
    token = authorization.partition(b" ")[2]
    if not is_bearer(authorization) or len(token) > TOKEN_BYTES_MAX:
        return None
    text = token.strip(b" ").decode("latin-1")
    return text if _BEARER_TOKEN.fullmatch(text) else None


def challenge(
    metadata_url: str, *, error: str | None = None, description: str | None = None, scope: str | None = None
) -> str:
    """Return a WWW-Authenticate challenge. A request without a credential gets no error code (RFC 6750 3.1)."""
    parameters = {"resource_metadata": metadata_url, "error": error, "error_description": description, "scope": scope}
    return "Bearer " + ", ".join(f'{name}="{_UNQUOTABLE.sub("", text)}"' for name, text in parameters.items() if text)


CHALLENGE_BYTES_MAX: Final = 8192
SCOPES_MAX: Final = 64  # of one challenge, one document, one token
_HTTP_TOKEN: Final = r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"  # noqa: S105  (RFC 9110 5.6.2)
_PARAMETER = re.compile(rf'({_HTTP_TOKEN})[ \t]*=[ \t]*(?:"((?:[^"\\]|\\.)*)"|({_HTTP_TOKEN})(?=[ \t]*(?:,|$)))')
_SCHEME = re.compile(rf"({_HTTP_TOKEN})(?=[ \t]|,|$)")
_SKIPPED = re.compile(r"[ \t,]*")
_TO_COMMA = re.compile(r"[^,]*")
_SCOPE = re.compile(r"[\x21\x23-\x5b\x5d-\x7e]+")  # RFC 6749 3.3

INSUFFICIENT_SCOPE: Final = "insufficient_scope"


class Challenge(msgspec.Struct, frozen=True, kw_only=True):
    resource_metadata: str | None = None
    scope: tuple[str, ...] = ()
    error: str | None = None


NO_CHALLENGE: Final = Challenge()


def read_challenge_untrusted(values: Iterable[bytes]) -> Challenge:
    """Return the first Bearer challenge among all challenges of a server."""
    for value in values:
        for scheme, parameters in _challenges(value[:CHALLENGE_BYTES_MAX].decode("latin-1")):
            if scheme == "bearer":
                return Challenge(
                    resource_metadata=parameters.get("resource_metadata"),
                    scope=scopes(parameters.get("scope", "")),
                    error=parameters.get("error"),
                )
    return NO_CHALLENGE


def scopes(text: str) -> tuple[str, ...]:
    """Split a scope string into its scopes, each once. Invalid scopes are left out."""
    return tuple(dict.fromkeys(scope for scope in text.split(" ") if _SCOPE.fullmatch(scope)))[:SCOPES_MAX]


def is_scope(text: str) -> bool:
    return _SCOPE.fullmatch(text) is not None


def _challenges(text: str) -> Iterator[tuple[str, dict[str, str]]]:
    scheme, parameters = "", dict[str, str]()
    at = 0
    while at < len(text):
        at = _end(_SKIPPED.match(text, at), at)
        parameter = _PARAMETER.match(text, at)
        if parameter is not None:
            quoted = parameter[2]
            value = parameter[3] if quoted is None else re.sub(r"\\(.)", r"\1", quoted)
            parameters.setdefault(parameter[1].lower(), value)
            at = parameter.end()
            continue
        begun = _SCHEME.match(text, at)
        if begun is None:  # a token68, or nothing that could be read
            at = max(at + 1, _end(_TO_COMMA.match(text, at), at))
            continue
        if scheme:
            yield scheme, parameters
        scheme, parameters = begun[1].lower(), {}
        at = begun.end()
    if scheme:
        yield scheme, parameters


def _end(match: re.Match[str] | None, otherwise: int) -> int:
    return otherwise if match is None else match.end()
