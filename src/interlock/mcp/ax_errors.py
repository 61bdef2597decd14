"""Error numbers of MCP-AX as a 2026-07-28 client reads them (MCP-AX 13.2)."""

from typing import Any, Final

from msgspec import Raw

from interlock.wire.jsonrpc.codec import decode_object, decode_value, encode_value
from interlock.wire.jsonrpc.errors import CodecError
from interlock.wire.refusal import BUDGET_EXCEEDED, FORMS, TOOL_DEGRADED, RefusalCode

_DRAFT_CODES: Final[dict[tuple[str, int], RefusalCode]] = {
    ("tool_degraded", -32002): TOOL_DEGRADED,  # AX-13.2-3
    ("budget_exceeded", -32003): BUDGET_EXCEEDED,  # AX-13.2-3, AX-11.4-3
}


_DRAFT_MARKS: Final = (b"-32002", b"-32003")


def maybe_for_modern_edge(error: Raw) -> bytes | None:
    """An error with a number of the draft's own, as a 2026-07-28 client reads it (13.2); None for every other.

    It is known by its message and reason: -32002 alone may be a legacy server's word for a missing resource.
    """
    if not any(mark in bytes(error) for mark in _DRAFT_MARKS):
        return None
    members: dict[str, Any] | None = decode_object(error)
    try:
        said = {name: decode_value(members[name]) for name in ("code", "message", "data")} if members else {}
    except (KeyError, CodecError):
        return None
    data = said.get("data")
    if (
        members is None
        or not isinstance(data, dict)
        or data.keys().isdisjoint(("reason", "budget"))
        or type(said["code"]) is not int
    ):
        return None
    message = said["message"]
    code = _DRAFT_CODES.get((message, said["code"])) if isinstance(message, str) else None
    if code is None:
        return None
    # AX-13.2-3
    return encode_value({**members, "code": FORMS[code].number, "data": {**data, "mcpax_code": said["code"]}})
