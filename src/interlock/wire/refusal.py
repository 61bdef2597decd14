"""The one way to say no: `Refusal`, the closed set of its codes, and the table of how each code is written outside.

A refusal is a value. Inside the node it has a code, which is a name. The JSON-RPC number, the HTTP status and the other
forms of a code are in `FORMS` and nowhere else, so that one refusal looks the same to every kind of client.

    Refusal        a refused request, as a value
    HttpRefusal    a refused HTTP request, before any message in it is read
    Refused        the same as an exception, where the function that refuses is far from the one that answers
    UpstreamError  an error that a server or an MCP-AX parent sent; not a refusal of this node

A room and the operator endpoint send the code itself. The exit status of a command follows from the class of the
exception (`cli/terminal/errors.py`), because the same code may be the fault of the command line or of the node.

An error of an upstream server passes through as raw JSON, or as an `UpstreamError` where the node has to read it.

Messages and details are sent to peers. They never contain a path, a class name or a trace.
"""

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, Final, NamedTuple, NewType, Self

import msgspec

NAME_CHARS_MAX: Final = 128  # of a name that a refusal repeats

RefusalCode = NewType("RefusalCode", str)


class Forms(NamedTuple):
    """The forms in which one refusal code is sent, such as its JSON-RPC number and its HTTP status."""

    number: int = -32600  # of a JSON-RPC error; by default that of INVALID_REQUEST
    mcp_status: int = 200  # of an HTTP response to a 2026-07-28 request
    draft_number: int | None = None  # of a JSON-RPC error to a legacy client or over an MCP-AX link
    http_status: int = 409  # of any other HTTP response
    aql: str = "INTERNAL_ERROR"  # in the envelope of an MCP-AQL operation


_CALL_FORMS: Final[dict[RefusalCode, Forms]] = {}


def _define(name: str, number: int, mcp_status: int = 200, **others: Any) -> RefusalCode:
    """Add a refusal code to the table of codes that may be sent as JSON-RPC errors, with its forms, and return the
    code.
    """
    code = RefusalCode(name)
    _CALL_FORMS[code] = Forms(number, mcp_status, **others)
    return code


# Our own numbers are positive, because -32000..-32019 is closed to new codes. The MCP-AX draft names some of its errors
# and numbers only two of them.

# JSON-RPC and MCP
PARSE_ERROR: Final = _define("parse_error", -32700, 400)
INVALID_REQUEST: Final = _define("invalid_request", -32600, 400)
METHOD_NOT_FOUND: Final = _define("method_not_found", -32601, 404, aql="NOT_FOUND_OPERATION")
INVALID_PARAMS: Final = _define("invalid_params", -32602, 400, aql="VALIDATION_INVALID_TYPE")
INTERNAL_ERROR: Final = _define("internal_error", -32603)
RESOURCE_NOT_FOUND: Final = _define("resource_not_found", -32002)  # legacy MCP only; 2026-07-28 says INVALID_PARAMS
URL_ELICITATION_REQUIRED: Final = _define("url_elicitation_required", -32042)  # 2025-11-25 only
HEADER_MISMATCH: Final = _define("header_mismatch", -32020, 400)  # 2026-07-28
MISSING_CAPABILITY: Final = _define("missing_capability", -32021, 400)
UNSUPPORTED_VERSION: Final = _define("unsupported_version", -32022, 400)

# calls
TOOL_DEGRADED: Final = _define("tool_degraded", 32002, draft_number=-32002)  # AX-13.2-3
# AX-13.2-3, AX-11.4-3
BUDGET_EXCEEDED: Final = _define("budget_exceeded", 32003, draft_number=-32003, aql="RATE_LIMIT_EXCEEDED")
CALL_TIMEOUT: Final = _define("call_timeout", 32130)  # AX-7.3-1
UNAVAILABLE: Final = _define("unavailable", 32131, http_status=503)
RESULT_TOO_LARGE: Final = _define("result_too_large", 32132)
SURFACE_MISMATCH: Final = _define("surface_mismatch", 32140, aql="PERMISSION_DENIED")  # by the registry of names
SPECIFICATION_DRIFT: Final = _define("specification_drift", 32141, aql="PERMISSION_DENIED")
EXECUTION_REFUSED: Final = _define(
    "execution_refused", 32150, http_status=403, aql="PERMISSION_DENIED"
)  # by the safety loop of MCP-AQL

# MCP-AX links
NAMESPACE_CONFLICT: Final = _define("namespace_conflict", 32110)  # AX-4.2-2
NAMESPACE_INVALID: Final = _define("namespace_invalid", 32111)  # AX-4.1-2
REGISTRATION_CYCLE: Final = _define("registration_cycle", 32112)  # AX-5.3-3
SPLIT_BRAIN: Final = _define("split_brain", 32113)  # AX-13.4-2
AUTHORITY_UNVERIFIED: Final = _define("authority_unverified", 32114)  # AX-4.2-6, AX-4.2-8
AUTHORITY_CONFLICT: Final = _define("authority_conflict", 32115)  # AX-4.2-5
SESSION_UNKNOWN: Final = _define("session_unknown", 32116, http_status=404)  # AX-6.2-2
SCOPE_DENIED: Final = _define("scope_denied", 32117, http_status=403, aql="PERMISSION_DENIED")  # AX-10.2-2
ROUTE_MISMATCH: Final = _define("route_mismatch", 32118)  # AX-7.2-1
LINK_INSECURE: Final = _define("link_insecure", 32119)  # AX-10.4-1

# confirmations
CONFIRMATION_UNKNOWN: Final = _define("confirmation_unknown", 32120)  # AX-11.3-3
CONFIRMATION_EXPIRED: Final = _define("confirmation_expired", 32121)  # AX-11.3-4
CONFIRMATION_USED: Final = _define("confirmation_used", 32122)  # AX-11.3-15
PROOF_INVALID: Final = _define("proof_invalid", 32123)  # AX-11.3-5
CONFIRMATION_VOID: Final = _define("confirmation_void", 32124)  # AX-11.3-14
CONFIRMATION_DENIED: Final = _define("confirmation_denied", 32125)

# Codes that are answered outside MCP. A code without a row has the defaults of `Forms`, such as the HTTP status 409.
_HTTP_STATUSES: Final[Mapping[int, str]] = {
    204: "preflight",
    400: "bad_headers bad_request invalid_body invalid_query topic_required statement_invalid"
    " invalid_json invalid_envelope invalid_proposal invalid_chat unsupported_protocol"
    " unknown_kind one_recipient target_absent input_invalid secret_found",
    401: "unauthorised",
    403: "bad_origin insufficient_scope"
    " wrong_topic history_hidden removed room_full from_mismatch kind_not_allowed"
    " reserved_kind not_proposer self_approval privilege_violation"
    " not_change_controller statement_required statement_replayed statement_expired wrong_registry",
    404: "not_found unknown_topic unknown_proposal history_gap",
    405: "method_not_allowed",
    406: "not_acceptable",
    408: "request_timeout",
    413: "body_too_large envelope_too_large",
    415: "unsupported_media_type",
    421: "bad_host",
    426: "protocol_required upgrade_required",
    429: "rate_limited too_many_actions",
    431: "headers_too_large",
    503: "too_many_bytes too_many_connections too_many_pipelined",
}
_AQL_CODES: Final[Mapping[str, str]] = {
    "VALIDATION_INVALID_TYPE": "input_invalid input_unsupported",
    "RATE_LIMIT_EXCEEDED": "rate_limited",
    "PERMISSION_DENIED": "auth_required auth_failed access_denied policy_violation egress_denied",
}
_HTTP_FORMS: Final[dict[str, Forms]] = {
    code: Forms(http_status=status) for status, codes in _HTTP_STATUSES.items() for code in codes.split()
}
for _aql, _codes in _AQL_CODES.items():
    _HTTP_FORMS.update({code: _HTTP_FORMS.get(code, Forms())._replace(aql=_aql) for code in _codes.split()})

FORMS: Final[Mapping[str, Forms]] = {**{str(code): forms for code, forms in _CALL_FORMS.items()}, **_HTTP_FORMS}
_DEFAULT: Final = Forms()

_CODES: Final[dict[int, RefusalCode]] = {forms.number: code for code, forms in _CALL_FORMS.items()}
_DRAFT_CODES: Final[Mapping[int, RefusalCode]] = _CODES | {
    forms.draft_number: code for code, forms in _CALL_FORMS.items() if forms.draft_number is not None
}


def forms_of(code: str) -> Forms:
    return FORMS.get(code, _DEFAULT)


class Refusal(msgspec.Struct, frozen=True):
    """A refusal of a request: a code for programs and a message for people.

    `details` contains only JSON values. `message` and `details` never contain a path, a trace or a class name.
    """

    code: str  # a RefusalCode where it may be sent as a JSON-RPC error
    message: str
    details: dict[str, Any] | None = None
    hint: str | None = None  # the next step for a person; not sent to MCP clients

    @property
    def number(self) -> int:
        """The JSON-RPC error code."""
        return forms_of(self.code).number

    @property
    def mcp_status(self) -> int:
        """The status of an HTTP response to a 2026-07-28 request."""
        return forms_of(self.code).mcp_status

    @property
    def http_status(self) -> int:
        """The HTTP status of a response that is no MCP message."""
        return forms_of(self.code).http_status


class HttpRefusal(Refusal, frozen=True, kw_only=True):
    """A refusal of an HTTP request before any message in it was read."""

    headers: bytes = b""  # lines of the response
    status: int = 0  # of the response; that of the code unless it is given
    mcp: Refusal | None = None  # what MCP clients are sent instead, as a JSON-RPC error

    def __post_init__(self) -> None:
        if not self.status:
            msgspec.structs.force_setattr(self, "status", self.http_status)


class Refused(Exception):
    """An exception that carries a refusal to the function that sends the response.

    `status` is the HTTP status of the operator endpoint's response.
    """

    exit_status: ClassVar[int] = 1  # of a command that ends with it

    def __init__(
        self,
        code: str,
        message: str,
        details: dict[str, Any] | None = None,
        *,
        hint: str | None = None,
        status: int = 409,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.details = details or {}
        self.hint = hint
        self.status = status

    @property
    def refusal(self) -> Refusal:
        return Refusal(self.code, self.message, self.details, self.hint)

    def with_hint(self, hint: str) -> Self:
        """Set what a person can do next, and return this exception."""
        self.hint = hint
        return self


def quoted_text(name: str) -> str:
    """Return a name that another party chose for use in a message: in quotes, escaped and shortened."""
    return msgspec.json.encode(name if len(name) <= NAME_CHARS_MAX else name[: NAME_CHARS_MAX - 1] + "…").decode()


class NotFound(Refused):
    """Refusal because no thing has a given name. Its details contain up to three similar names of those in `existing`.

    If `few` is True, the details list all existing names.
    """

    def __init__(self, what: str, name: str, existing: Iterable[str] = (), *, few: bool = False) -> None:
        from difflib import get_close_matches  # here, because an idle node needs it for nothing

        names = list(existing)
        self.what = what
        self.name = name
        self.known = names if few else []
        self.nearest = get_close_matches(name, names, n=3)
        details: dict[str, Any] = {what: name, "nearest": self.nearest}
        if self.known:
            details["known"] = self.known
        super().__init__("not_found", f"there is no {what} {quoted_text(name)}", details, status=404)


class UpstreamError(msgspec.Struct, frozen=True):
    """A JSON-RPC error that a server or an MCP-AX parent sent. Its number may be one that this node does not use."""

    number: int
    message: str
    details: dict[str, Any] | None = None

    @property
    def code(self) -> RefusalCode | None:
        """The refusal code that has this error number, or None if this node does not use the number."""
        return _CODES.get(self.number)


def find_code(number: object, *, draft: bool = False) -> RefusalCode | None:
    """Return the refusal code that has a JSON-RPC error number, or None if no code has it.

    `draft` also accepts the numbers of the MCP-AX draft. By default they are ignored, because MCP uses -32002 for a
    missing resource.
    """
    return (_DRAFT_CODES if draft else _CODES).get(number) if type(number) is int else None


def unavailable(reason: str, detail: str | None = None) -> Refusal:
    """Return the refusal of a request that cannot be served now, with a reason for programs. `detail` is the text for
    people.
    """
    return Refusal(
        UNAVAILABLE, "unavailable", {"reason": reason} if detail is None else {"reason": reason, "detail": detail}
    )


def ax_refusal(code: RefusalCode, detail: str, **details: Any) -> Refusal:
    """Return a refusal as MCP-AX requires it: its message is the code, which programs compare, and `detail` is the text
    for people.
    """
    return Refusal(code, code, {"mcpax_error": code, "detail": detail, **details})  # AX-6.2-5
