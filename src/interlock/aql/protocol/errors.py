"""The closed list of error codes (C.err-1), and functions that construct failures.

A failure is the content of a failure envelope: code, message, details. Each function below returns a failure with the
message of the published template; values are in single quotes and are repeated in the details. A native handler raises
`OperationFailed` to answer with a failure.
"""

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any, Final

import msgspec

from interlock.wire.refusal import Refusal

AVAILABLE_MAX: Final = 10  # names offered for one that is unknown
VALUE_CHARS_MAX: Final = 200  # of a value that is repeated in an error


class Code(Enum):
    """The error codes of MCP-AQL. A native operation may declare additional codes in the same categories."""

    VALIDATION_MISSING_PARAM = "VALIDATION_MISSING_PARAM"
    VALIDATION_INVALID_TYPE = "VALIDATION_INVALID_TYPE"
    VALIDATION_INVALID_VALUE = "VALIDATION_INVALID_VALUE"
    VALIDATION_UNKNOWN_PARAM = "VALIDATION_UNKNOWN_PARAM"
    VALIDATION_UNKNOWN_FIELD = "VALIDATION_UNKNOWN_FIELD"
    VALIDATION_INVALID_ENCODING = "VALIDATION_INVALID_ENCODING"
    VALIDATION_PAYLOAD_TOO_LARGE = "VALIDATION_PAYLOAD_TOO_LARGE"
    VALIDATION_ENDPOINT_MISMATCH = "VALIDATION_ENDPOINT_MISMATCH"
    NOT_FOUND_OPERATION = "NOT_FOUND_OPERATION"
    NOT_FOUND_RESOURCE = "NOT_FOUND_RESOURCE"
    PERMISSION_DENIED = "PERMISSION_DENIED"
    PERMISSION_TRUST_LEVEL_INSUFFICIENT = "PERMISSION_TRUST_LEVEL_INSUFFICIENT"
    PERMISSION_DANGER_LEVEL_DENIED = "PERMISSION_DANGER_LEVEL_DENIED"
    CONFIRMATION_REQUIRED = "CONFIRMATION_REQUIRED"
    CONFLICT_ALREADY_EXISTS = "CONFLICT_ALREADY_EXISTS"
    CONFLICT_VERSION_MISMATCH = "CONFLICT_VERSION_MISMATCH"
    CONFLICT_INVALID_STATE = "CONFLICT_INVALID_STATE"
    RATE_LIMIT_EXCEEDED = "RATE_LIMIT_EXCEEDED"
    RATE_LIMIT_QUOTA_EXHAUSTED = "RATE_LIMIT_QUOTA_EXHAUSTED"
    TOKEN_INVALID = "TOKEN_INVALID"  # noqa: S105
    TOKEN_EXPIRED = "TOKEN_EXPIRED"  # noqa: S105
    TOKEN_ALREADY_USED = "TOKEN_ALREADY_USED"  # noqa: S105
    TOKEN_SCOPE_MISMATCH = "TOKEN_SCOPE_MISMATCH"  # noqa: S105
    INTERNAL_ERROR = "INTERNAL_ERROR"
    INVALID_QUERY_TYPE = "INVALID_QUERY_TYPE"
    INTROSPECTION_ERROR = "INTROSPECTION_ERROR"
    BATCH_VALIDATION_ERROR = "BATCH_VALIDATION_ERROR"


CODES: Final = frozenset(code.value for code in Code)
FATAL: Final = frozenset({Code.INTERNAL_ERROR.value, Code.INTROSPECTION_ERROR.value})  # isError true (C.tool-6)
CATEGORIES: Final = ("VALIDATION_", "NOT_FOUND_", "PERMISSION_", "CONFLICT_", "RATE_LIMIT_", "TOKEN_", "INTERNAL_")

UNITS: Final[Mapping[str, str]] = {
    "request_size": "bytes",  # AQL-4.7.5-7
    "response_size": "bytes",
    "string_length": "bytes",
    "array_elements": "elements",  # AQL-4.7.5-7
    "nesting_depth": "levels",  # AQL-4.7.5-7
    "batch_operations": "elements",
}
HELP: Final = 'introspect tells more: {"operation":"introspect","params":{"query":"operations"}}'


class AqlFailure(Refusal, frozen=True, kw_only=True):
    """A failed operation, as the client sees it. Its code is a `Code`, or an additional code that a native operation
    declared.
    """

    confirmation: dict[str, Any] | None = None  # beside `error` in the envelope (C.token-3)

    @property
    def is_error(self) -> bool:
        """Return whether the MCP result is marked `isError`. Failures that a caller can correct are not (C.tool-6)."""
        return self.code in FATAL


class OperationFailed(Exception):
    """Exception that a native handler raises to answer with a failure."""

    def __init__(self, failure: AqlFailure) -> None:
        super().__init__(failure.message)
        self.failure = failure


def failure(code: Code, message: str, details: Mapping[str, Any] | None = None) -> AqlFailure:
    return AqlFailure(code.value, message, None if details is None else dict(details))


def missing_params(
    operation: str,
    missing: Sequence[tuple[str, str, str]],
    unknown: Sequence[str] = (),
    suggestion: str = "",
    *,
    of_type: str | None = None,
) -> AqlFailure:
    """Return one failure for all missing parameters. Each is listed with its type and description.

    If fields of an object are missing, `of_type` is the name of its type.
    """
    message = "; ".join(
        f"Missing required parameter '{name}' for operation '{operation}'. Expected: {of}{f' ({what})' if what else ''}"
        for name, of, what in missing
    )
    details: dict[str, Any] = {
        "param_name": missing[0][0],
        "operation": operation,
        "missing_params": [name for name, _, _ in missing],
    }
    if unknown:
        details["unknown_params"] = list(unknown)  # AQL-4.5.3-1
    # The request shows how to call the operation, or the fields of the type.
    query, name = ("operations", operation) if of_type is None else ("types", of_type)
    see = f'See {{"operation":"introspect","params":{{"query":"{query}","name":"{name}"}}}}'
    return failure(Code.VALIDATION_MISSING_PARAM, f"{message}. {suggestion}{see}", details)


def invalid_type(param: str, expected: str, actual: str, value: Any = msgspec.UNSET, *, hint: str = "") -> AqlFailure:
    details: dict[str, Any] = {"param_name": param, "expected_type": expected, "actual_type": actual}
    if value is not msgspec.UNSET and len(str(value)) <= VALUE_CHARS_MAX:
        details["value"] = value
    message = f"Parameter '{param}' expected '{expected}', got '{actual}'"
    return failure(Code.VALIDATION_INVALID_TYPE, f"{message}. {hint}" if hint else message, details)


def invalid_value(param: str, why: str, details: Mapping[str, Any] | None = None) -> AqlFailure:
    members = {"param_name": param, **(details or {})}
    return failure(Code.VALIDATION_INVALID_VALUE, f"Parameter '{param}': {why}", members)


def _did_you_mean(near: Mapping[str, str] | None, details: dict[str, Any]) -> str:
    """Return a question that suggests similar names, and add the names to `details`. Return "" if there are none."""
    if not near:
        return ""
    details["did_you_mean"] = dict(near)
    return ". Did you mean " + ", ".join(f"'{name}'" for name in near.values()) + "?"


def unknown_params(
    operation: str, unknown: Sequence[str], valid: Sequence[str], near: Mapping[str, str] | None = None
) -> AqlFailure:
    # AQL-4.6-2
    details: dict[str, Any] = {"operation": operation, "unknown_params": list(unknown), "valid_params": list(valid)}
    message = f"Unknown parameter(s) for operation '{operation}': {', '.join(unknown)}"
    return failure(Code.VALIDATION_UNKNOWN_PARAM, message + _did_you_mean(near, details), details)


def unknown_fields(
    operation: str, unknown: Sequence[str], valid: Sequence[str], near: Mapping[str, str] | None = None, note: str = ""
) -> AqlFailure:
    details: dict[str, Any] = {"operation": operation, "unknown_fields": list(unknown), "valid_fields": list(valid)}
    message = f"Unknown field(s) in input of operation '{operation}': {', '.join(unknown)}"
    message += _did_you_mean(near, details)
    return failure(Code.VALIDATION_UNKNOWN_FIELD, f"{message}. {note}" if note else message, details)


def invalid_encoding(location: str | None = None, byte_offset: int | None = None) -> AqlFailure:
    details: dict[str, Any] = {}
    if location is not None:
        details["location"] = location  # AQL-4.7.1-1
    if byte_offset is not None:
        details["byte_offset"] = byte_offset  # AQL-4.7.1-1
    return failure(Code.VALIDATION_INVALID_ENCODING, "Invalid character encoding in request", details)


def find_invalid_encoding(request: bytes) -> AqlFailure | None:
    """Return the failure for a request that is not UTF-8 (4.7.1), or None if it is."""
    try:
        request.decode()
    except UnicodeDecodeError as error:
        return invalid_encoding("request", error.start)  # AQL-4.7.1-1
    return None


def too_large(limit_type: str, limit: int, actual: int, **more: Any) -> AqlFailure:
    # AQL-4.7.5-7
    details = {"limit_type": limit_type, "limit_value": limit, "actual_value": actual, "unit": UNITS[limit_type]}
    message = f"Payload exceeds {limit_type} limit of {limit}"
    return failure(Code.VALIDATION_PAYLOAD_TOO_LARGE, message, {**details, **more})


def unknown_operation(operation: str, available: Sequence[str] = (), *, because: str = "") -> AqlFailure:
    details: dict[str, Any] = {"operation": operation}
    message = f"Unknown operation: '{operation}'"
    if available:
        details["available"] = list(available[:AVAILABLE_MAX])
        message += f". Did you mean '{available[0]}'?"
    if because:
        message += f". {because}"
    message += f" {HELP}" if message[-1] == "?" else f". {HELP}"
    return failure(Code.NOT_FOUND_OPERATION, message, details)


def endpoint_mismatch(
    operation: str, expected: str, expected_tool: str, actual: str | None, actual_tool: str
) -> AqlFailure:
    details = {
        "operation": operation,
        "expected_endpoint": expected,
        "actual_endpoint": actual,
        "expected_tool": expected_tool,  # AQL-6.2-3
    }
    message = f"Operation '{operation}' must be called via {expected_tool}, not {actual_tool}"
    return failure(Code.VALIDATION_ENDPOINT_MISMATCH, message, details)


def resource_not_found(resource_type: str, resource_id: str) -> AqlFailure:
    details = {"resource_type": resource_type, "resource_id": resource_id}
    return failure(Code.NOT_FOUND_RESOURCE, f"Resource '{resource_type}' not found: '{resource_id}'", details)


def permission_denied(reason: str, **more: Any) -> AqlFailure:
    return failure(Code.PERMISSION_DENIED, f"Permission denied: '{reason}'", {"reason": reason, **more})


def internal_error(description: str, **details: Any) -> AqlFailure:
    """Return an internal error. `description` is a neutral sentence without exceptions, classes or paths."""
    return failure(Code.INTERNAL_ERROR, f"Internal error: '{description}'", details or None)


def danger_denied(operation: str, danger: str, trust: str, minimum: str, reasons: Sequence[str] = ()) -> AqlFailure:
    details: dict[str, Any] = {
        "operation": operation,
        "danger_level": danger,
        "adapter_trust": trust,
        "minimum_trust_required": minimum,
    }
    if reasons:
        details["reasons"] = list(reasons)
    message = f"Operation '{operation}' (danger: {danger}) denied for adapter trust level '{trust}'"
    return failure(Code.PERMISSION_DANGER_LEVEL_DENIED, message, details)


def confirmation_required(
    operation: str, danger: str, *, token: str, expires_at: str, message: str, reasons: Sequence[str] = ()
) -> AqlFailure:
    """Return the failure that asks for a confirmation.

    It contains the token twice, in the details and beside the error, because clients may read either (C.token-3).
    """
    details: dict[str, Any] = {"operation": operation, "danger_level": danger}
    confirmation: dict[str, Any] = {"token": token, "expires_at": expires_at, "message": message}
    if reasons:
        details["reasons"] = confirmation["reasons"] = list(reasons)
    details |= {"confirmation_message": message, "confirmation_token": token, "expires_at": expires_at}
    code, text = Code.CONFIRMATION_REQUIRED.value, "This operation requires confirmation"
    return AqlFailure(code, text, details, confirmation=confirmation)


def confirmation_by_person(operation: str, danger: str, id: str, reasons: Sequence[str] = ()) -> AqlFailure:
    """Return the failure that tells an agent that a person must confirm its operation first.

    It contains no token, only the id of the pending confirmation (8.7.3).
    """
    details: dict[str, Any] = {"operation": operation, "danger_level": danger, "confirmation_id": id}
    if reasons:
        details["reasons"] = list(reasons)
    message = "This operation requires confirmation by a person. When they agreed, send exactly the same call again."
    return failure(Code.CONFIRMATION_REQUIRED, message, details)


HTTP_CODES: Final = {
    401: Code.PERMISSION_DENIED,
    403: Code.PERMISSION_DENIED,
    404: Code.NOT_FOUND_RESOURCE,
    409: Code.CONFLICT_ALREADY_EXISTS,
    429: Code.RATE_LIMIT_EXCEEDED,
}


def code_of_status(status: int) -> Code:
    """Return the error code for an HTTP status of 400 or more (C.err-6)."""
    return Code.INTERNAL_ERROR if status >= 500 else HTTP_CODES.get(status, Code.VALIDATION_INVALID_TYPE)
