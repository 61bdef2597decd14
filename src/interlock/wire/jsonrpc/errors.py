"""JSON-RPC and MCP error codes, the error as a value, and its one wire form.

An error answers two questions: whose fault, and what next. `Fault` is what travels inside the program; `error_body` is
the only place where it becomes bytes.
"""

from typing import Any, Final

import msgspec

PARSE_ERROR: Final = -32700
INVALID_REQUEST: Final = -32600
METHOD_NOT_FOUND: Final = -32601
INVALID_PARAMS: Final = -32602
INTERNAL_ERROR: Final = -32603

RESOURCE_NOT_FOUND: Final = -32002  # legacy MCP only; 2026-07-28 says INVALID_PARAMS
URL_ELICITATION_REQUIRED: Final = -32042  # 2025-11-25 only

HEADER_MISMATCH: Final = -32020  # 2026-07-28
MISSING_CAPABILITY: Final = -32021
UNSUPPORTED_VERSION: Final = -32022

# Ours. Positive, because -32000..-32019 is closed to new codes; the legacy forms are the draft's own numbers.
TOOL_DEGRADED: Final = 32002  # AX-13.2-3
BUDGET_EXCEEDED: Final = 32003  # AX-11.4-3
CALL_TIMEOUT: Final = 32130  # AX-7.3-1
UNAVAILABLE: Final = 32131
RESULT_TOO_LARGE: Final = 32132
SURFACE_MISMATCH: Final = 32140  # by the registry of names
SPECIFICATION_DRIFT: Final = 32141
EXECUTION_REFUSED: Final = 32150  # by the safety loop of MCP-AQL


class Fault(msgspec.Struct, frozen=True):
    """An error to be answered. `data` holds JSON-able values only, never a path, a trace or a class name."""

    code: int
    message: str
    data: dict[str, Any] | None = None


class CodecError(Exception):
    """Bytes from outside that are not one JSON-RPC message. The only error `codec` raises."""

    def __init__(self, code: int, message: str, message_id: bytes = b"null") -> None:
        super().__init__(message)
        self.fault = Fault(code, message)
        self.message_id = message_id


# On legacy edges and AX links these two have the numbers the MCP-AX draft gives them (13.2, 11.4).
_LEGACY_CODES: Final = {
    TOOL_DEGRADED: -32002,  # AX-13.2-3
    BUDGET_EXCEEDED: -32003,  # AX-13.2-3, AX-11.4-3
}


def for_legacy(fault: Fault) -> Fault:
    """As the draft writes it: its number is the code, so it is not repeated in the data."""
    code = _LEGACY_CODES.get(fault.code)
    if code is None:
        return fault
    if fault.data is None:
        return Fault(code, fault.message)
    data = {key: value for key, value in fault.data.items() if key != "mcpax_code"}
    return Fault(code, fault.message, data)


_encode = msgspec.json.Encoder().encode


def error_body(fault: Fault) -> bytes:
    body: dict[str, Any] = {"code": fault.code, "message": fault.message}
    if fault.data is not None:
        body["data"] = fault.data
    return _encode(body)
