"""Refusals as JSON-RPC errors: the only place where one becomes bytes."""

from typing import Any

import msgspec

from interlock.wire.refusal import FORMS, Refusal, RefusalCode


class CodecError(Exception):
    """Bytes from outside that are not one JSON-RPC message. The only error `codec` raises."""

    def __init__(self, code: RefusalCode, message: str, message_id: bytes = b"null") -> None:
        super().__init__(message)
        self.refusal = Refusal(code, message)
        self.message_id = message_id


_encode = msgspec.json.Encoder().encode


def error_body(refusal: Refusal, *, draft: bool = False) -> bytes:
    """Return the JSON-RPC error object.

    `draft`: it is for a legacy client or an MCP-AX link. Two codes have the number of the MCP-AX draft there
    (13.2, 11.4), which the details then do not repeat.
    """
    forms, details = FORMS[refusal.code], refusal.details
    number = forms.number
    if draft and forms.draft_number is not None:
        number = forms.draft_number
        if details is not None:
            details = {key: value for key, value in details.items() if key != "mcpax_code"}
    body: dict[str, Any] = {"code": number, "message": refusal.message}
    if details is not None:
        body["data"] = details
    return _encode(body)
