"""Requests and replies of the operator endpoint: bodies are validated strictly, replies are JSON, and refusals have a
name.

Everything that a peer sends has a size limit. A browser form is accepted only from a page of this endpoint and with the
key of the session. A cookie alone is not enough, because browsers attach it to requests from any page.
"""

from typing import Any, TypeVar
from urllib.parse import parse_qsl

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from interlock.access.logins import is_browser, is_session_key
from interlock.core.operator_errors import refused_as
from interlock.operator.api import ErrorAnswer
from interlock.operator.operation import (
    BODY_TOO_LARGE,
    FOREIGN_PAGE,
    INVALID_BODY,
    INVALID_JSON,
    INVALID_PARAMETER,
    SESSION_KEY,
    UNSUPPORTED_MEDIA_TYPE,
)
from interlock.wire.refusal import quoted_text

Shape = TypeVar("Shape")

KEY_HEADER = "x-interlock-session"
KEY_FIELD = "session_key"
FORM = "application/x-www-form-urlencoded"
BODY_BYTES_MAX = 64 * 1024  # a secret may be a key; a token's request stays below 1 KiB


def json_answer(value: object, status: int = 200) -> Response:
    return Response(msgspec.json.encode(value), status, media_type="application/json")


def error_answer(
    status: int, error: str, message: str, details: dict[str, Any] | None = None, headers: Any | None = None
) -> Response:
    body = msgspec.json.encode(ErrorAnswer(error=error, message=message, details=details or {}))
    return Response(body, status, headers=headers, media_type="application/json")


def refuse_unknown_parameters(request: Request, allowed: tuple[str, ...]) -> None:
    for name in request.query_params:
        if name not in allowed:
            hint = f"it takes {', '.join(allowed)}" if allowed else "it takes none"
            message = f"unknown query parameter {quoted_text(name)}; {hint}"
            raise refused_as(INVALID_PARAMETER, message, {"parameter": name})


async def json_body(request: Request, shape: type[Shape]) -> Shape:
    if media_type(request) != "application/json":
        raise refused_as(UNSUPPORTED_MEDIA_TYPE, "send JSON with Content-Type: application/json")
    try:
        return msgspec.json.decode(await _read_bounded(request), type=shape)
    except msgspec.ValidationError as error:
        raise refused_as(INVALID_BODY, str(error)) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise refused_as(INVALID_JSON, "the body is not JSON") from None


async def form_body(request: Request, shape: type[Shape]) -> Shape:
    """Return the fields of a form that a page of this endpoint sent. Raise Refused if the form is invalid or its key is
    wrong.

    The middleware has already refused changes by other pages. A form must also come with an Origin or
    Sec-Fetch-Site header.
    """
    if "sec-fetch-site" not in request.headers and "origin" not in request.headers:
        raise refused_as(FOREIGN_PAGE, "a form is taken only from the operator endpoint's own page")
    try:
        pairs = parse_qsl((await _read_bounded(request)).decode(), strict_parsing=True, max_num_fields=20)
        fields = {name: text for name, text in pairs if text.strip()}
        check_key(request, fields.pop(KEY_FIELD, ""))
        return msgspec.convert(fields, shape)
    except msgspec.ValidationError as error:
        raise refused_as(INVALID_BODY, str(error)) from None
    except ValueError:
        raise refused_as(INVALID_BODY, "the form cannot be read") from None


def check_key(request: Request, key_untrusted: str) -> None:
    """Raise Refused if the request uses a browser session without sending the key of that session.

    The cookie alone is not enough, because browsers send it with requests from any page and to every port of this
    machine.
    """
    if not is_browser(request.scope.get("state", {}).get("principal", "")):
        return
    if not is_session_key(key_untrusted, request.headers.get("host", ""), request.cookies):
        raise refused_as(SESSION_KEY, f"a browser's session sends its key as {KEY_HEADER}; interlock open logs in anew")


def media_type(request: Request) -> str:
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


def wants_page(request: Request) -> bool:
    """Return whether the reply should be an HTML page, because the client, a browser, prefers HTML."""
    accept = request.headers.get("accept", "")
    return "text/html" in accept and "application/json" not in accept


async def _read_bounded(request: Request) -> bytes:
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > BODY_BYTES_MAX:
            raise refused_as(
                BODY_TOO_LARGE, f"the body is larger than {BODY_BYTES_MAX} bytes", {"limit": BODY_BYTES_MAX}
            )
    return bytes(body)
