"""Conversion of the answer of a tool to data or a failure of MCP-AQL (C.map-11 to -13).

`read_result` takes a CallToolResult, `read_error` a JSON-RPC error. The words of a server are passed on. Nothing is
guessed from prose, and nothing about the node itself (paths, classes, traces) is revealed.
"""

import re
from collections.abc import Mapping
from typing import Any, Final

import msgspec
from msgspec import Raw

from interlock.aql.protocol.envelope import AnswerWarning
from interlock.aql.protocol.errors import (
    CODES,
    AqlFailure,
    Code,
    code_of_status,
    failure,
    internal_error,
    permission_denied,
    unknown_operation,
)
from interlock.aql.protocol.model import Danger
from interlock.gate.protocol.held_call import CONFIRMATION
from interlock.wire import refusal
from interlock.wire.jsonrpc.codec import CodecError, decode_array, decode_object, decode_value, find_string

UPSTREAM_CHARS_MAX: Final = 4096
MESSAGE_CHARS_MAX: Final = 300
# The details of a refusal that help the client, and are passed on.
_PASSED_DETAILS: Final = ("detail", "url", "verification_id", "element_name", "autonomy")
_HOW: Final = "Nothing was executed. When the person has agreed, send exactly the same call again."
_INTERLOCK_ERROR: Final = "dev.interlock/error"
_STATUS_KEYS: Final = ("http_status", "status", "status_code", "statusCode")
_MILD: Final = frozenset({Danger.SAFE.word, Danger.REVERSIBLE.word})
# Errors of the operating system, as Node.js and Python name them: names, not prose (docs/decisions/0077).
_OS_ERROR: Final = re.compile(r"\b(ENOENT|EEXIST|EACCES|EPERM):|\[Errno (1|2|13|17)\]")
_ERRNO: Final = {"1": "EPERM", "2": "ENOENT", "13": "EACCES", "17": "EEXIST"}
_OS_CODES: Final[Mapping[str, Code]] = {
    "ENOENT": Code.NOT_FOUND_RESOURCE,
    "EEXIST": Code.CONFLICT_ALREADY_EXISTS,
    "EACCES": Code.PERMISSION_DENIED,
    "EPERM": Code.PERMISSION_DENIED,
}


class _Result(msgspec.Struct):
    """The members of a CallToolResult that are needed to answer an AQL operation. A missing member is UNSET."""

    content: Raw = Raw(b"[]")
    structured: Raw | msgspec.UnsetType = msgspec.field(default=msgspec.UNSET, name="structuredContent")
    is_error: bool = msgspec.field(default=False, name="isError")
    kind: str = msgspec.field(default="complete", name="resultType")
    raw_meta: Raw | msgspec.UnsetType = msgspec.field(default=msgspec.UNSET, name="_meta")

    @property
    def meta(self) -> Raw | None:
        return None if self.raw_meta is msgspec.UNSET else self.raw_meta


class OperationAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of one operation: data or a failure. An operation that is not finished has neither.

    It has neither if the result does not end the call, because the tool asks for input or started a task
    (`is_unfinished`). Such a result is passed to the client unchanged; `message` is then the complete JSON-RPC answer.
    """

    data: Any = None
    failure: AqlFailure | None = None
    blocks: tuple[Raw, ...] = ()  # content that stays content
    meta: Raw | None = None
    warnings: tuple[AnswerWarning, ...] = ()
    annotations: Raw | None = None  # of the text that became the data
    is_unfinished: bool = False
    message: bytes | None = None
    status: int = 200


_decode_result: Final = msgspec.json.Decoder(_Result).decode


def read_result(result: Raw | bytes, *, tool: str, operation: str, danger: str = "") -> OperationAnswer:
    """Convert the result of a tool call to the answer of an AQL operation. `danger`, the operation's danger level, is
    part of the answer if the call waits for approval.
    """
    try:
        decoded = _decode_result(result)
    except (msgspec.DecodeError, msgspec.ValidationError):
        return OperationAnswer(failure=internal_error("the server's result cannot be read", source_tool=tool))
    if decoded.kind != "complete":
        return OperationAnswer(is_unfinished=True)
    meta = decoded.meta
    if decoded.is_error:
        return OperationAnswer(failure=_tool_failure(decoded, tool, operation, danger), meta=meta)
    if decoded.structured is not msgspec.UNSET:
        content = bytes(decoded.content)
        # A structured result may also have content blocks that are not text, for example images. They are kept.
        kinds = content.count(b'"type"')
        typed = decode_array(decoded.content) if kinds and (kinds > 1 or b'"type":"text"' not in content) else None
        blocks = tuple(raw for raw in typed or () if find_string((decode_object(raw) or {}).get("type")) != "text")
        # Keep the annotations of the first content block if this block is text.
        raws = decode_array(decoded.content) if b'"annotations"' in content else None
        first = (decode_object(raws[0]) if raws else None) or {}
        annotations = first.get("annotations") if find_string(first.get("type")) == "text" else None
        return OperationAnswer(data=decoded.structured, blocks=blocks, meta=meta, annotations=annotations)
    return _content(decoded, meta)


def _content(result: _Result, meta: Raw | None) -> OperationAnswer:
    """Return the data of a tool's result: the text of its only content block, or a list of all blocks."""
    blocks = decode_array(result.content)
    if blocks is None:
        return OperationAnswer(failure=internal_error("the server's result cannot be read"), meta=meta)
    if len(blocks) == 1:
        block = decode_object(blocks[0]) or {}
        if find_string(block.get("type")) == "text":
            text = find_string(block.get("text")) or ""
            return OperationAnswer(data=_text_data(text), meta=meta, annotations=block.get("annotations"))
    if not blocks:
        return OperationAnswer(data=None, meta=meta)
    listed: list[dict[str, Any]] = []
    others: list[Raw] = []
    for raw in blocks:
        block = decode_object(raw) or {}
        kind = find_string(block.get("type")) or "unknown"
        if kind == "text":
            noted = {"annotations": block["annotations"]} if "annotations" in block else {}
            listed.append({"type": "text", "text": find_string(block.get("text")) or "", **noted})
            continue
        others.append(raw)
        summary: dict[str, Any] = {"type": kind}
        mime = find_string(block.get("mimeType"))
        if mime is None and "resource" in block:
            mime = find_string((decode_object(block["resource"]) or {}).get("mimeType"))
        if mime is not None:
            summary["mime_type"] = mime
        listed.append({**summary, "content_index": len(others)})
    return OperationAnswer(data={"content": listed}, blocks=tuple(others), meta=meta)


def _text_data(text: str) -> Raw | str:
    """Return a text as JSON if it contains a JSON object or array, otherwise as a plain string."""
    stripped = text.strip()
    if stripped[:1] in ("{", "["):
        try:
            return msgspec.json.decode(stripped.encode(), type=Raw)
        except (msgspec.DecodeError, UnicodeEncodeError):
            return text
    return text


def _tool_failure(result: _Result, tool: str, operation: str, danger: str) -> AqlFailure:
    """Return the failure for a tool result that is marked as an error.

    The most reliable source determines its code: a held call, a failure of MCP-AQL, an HTTP status, an error code of a
    node below, or the name of an operating system error. In all other cases the code is INTERNAL_ERROR.
    """
    texts = [
        find_string(block.get("text")) or ""
        for raw in decode_array(result.content) or ()
        if find_string((block := decode_object(raw) or {}).get("type")) == "text"
    ]
    first, text = (texts[0].strip() if texts else ""), "\n".join(texts).strip()
    held = _confirmation(result.meta, text, operation, danger)
    if held is not None:
        return held
    value = _decode_if_valid(result.structured if result.structured is not msgspec.UNSET else None)
    if value is None and text[:1] == "{":
        value = _decode_if_valid(Raw(text.encode("utf-8", "replace")))
    if isinstance(value, Mapping):
        own = _envelope_failure(value)
        if own is not None:
            return own
    details: dict[str, Any] = {"upstream_error": text[:UPSTREAM_CHARS_MAX], "source_tool": tool}
    line = (first.split("\n", 1)[0] or "the tool failed")[:MESSAGE_CHARS_MAX]
    status = _status(value)
    if status is not None:
        details = {"http_status": status, **details}
        return failure(code_of_status(status), line, details)
    below = result.meta if result.meta is not None and _INTERLOCK_ERROR.encode() in bytes(result.meta) else Raw(b"{}")
    error = decode_object((decode_object(below) or {}).get(_INTERLOCK_ERROR, Raw(b"null"))) or {}
    error_code = find_string(error.get("code"))
    if error_code is not None:
        details["reason"] = error_code
        return failure(Code(refusal.forms_of(error_code).aql), line, details)
    named = _OS_ERROR.search(line)
    if named is not None:
        errno = named[1] or _ERRNO[named[2]]
        return failure(_OS_CODES[errno], line, {"errno": errno, **details})
    return internal_error(line, **details)


def _decode_if_valid(raw: Raw | None) -> Any:
    if raw is None:
        return None
    try:
        return decode_value(raw)
    except CodecError:
        return None


def _envelope_failure(value: Mapping[str, Any]) -> AqlFailure | None:
    """Return the failure in a failure envelope of MCP-AQL, or None if the value is not such an envelope."""
    error = value.get("error")
    if value.get("success") is not False or not isinstance(error, Mapping):
        return None
    code, message = error.get("code"), error.get("message")
    if not isinstance(code, str) or not isinstance(message, str):
        return None
    details = error.get("details")
    members = dict(details) if isinstance(details, Mapping) else None
    return AqlFailure(code if code in CODES else Code.INTERNAL_ERROR.value, message or "the operation failed", members)


def find_envelope_data(data: Any) -> OperationAnswer | None:
    """Return the data or failure in the answer of a tool that itself supports MCP-AQL, or None for other answers."""
    value = _decode_if_valid(data) if isinstance(data, Raw) else data
    if not isinstance(value, Mapping) or not isinstance(value.get("success"), bool):
        return None
    if value["success"] and "data" in value:
        members = decode_object(data) if isinstance(data, Raw) else None
        return OperationAnswer(data=members["data"] if members is not None else value["data"])
    failed = _envelope_failure(value)
    return None if failed is None else OperationAnswer(failure=failed)


def _status(value: Any) -> int | None:
    """Return the HTTP error status that an object or its `error` member contains, or None."""
    for place in (value, value.get("error") if isinstance(value, Mapping) else None):
        if not isinstance(place, Mapping):
            continue
        for key in _STATUS_KEYS:
            status = place.get(key)
            if isinstance(status, int) and not isinstance(status, bool) and 400 <= status <= 599:
                return status
    return None


def _confirmation(meta: Raw | None, text: str, operation: str, danger: str) -> AqlFailure | None:
    """Return the failure for a call that waits for a person's confirmation or was denied by a person. Return None for
    other calls. `text` is the message for the clients of the tool.

    An AQL token cannot replace this confirmation (MCP-AX 11.3).
    """
    if meta is None or CONFIRMATION.encode() not in bytes(meta):
        return None
    held = decode_object((decode_object(meta) or {}).get(CONFIRMATION, Raw(b"null"))) or {}
    if find_string(held.get("status")) == "confirmation_denied":
        reason = find_string(held.get("reason"))
        return permission_denied("confirmation_denied", **({"note": reason} if reason else {}))
    # A call that is held because it is irreversible is at least destructive.
    capability = _decode_if_valid(held.get("capability"))
    is_irreversible = isinstance(capability, Mapping) and capability.get("reversible") is False
    level = Danger.DESTRUCTIVE.word if is_irreversible and danger in _MILD else danger
    details: dict[str, Any] = {"operation": operation, "danger_level": level}
    for key in ("confirmation_id", "approval_url", "expires_at"):
        value = find_string(held.get(key))
        if value is not None:
            details[key] = value
    # AQL-X-23: what to do next is said in the same words as to a client of the flat list
    message = f"This operation requires confirmation by a person. {text[:UPSTREAM_CHARS_MAX] or _HOW}"
    return failure(Code.CONFIRMATION_REQUIRED, message, details)


# JSON-RPC errors


def read_error(error: Raw | bytes, *, tool: str, operation: str) -> AqlFailure:
    """Return the failure for a JSON-RPC error that a call was answered with."""
    members = decode_object(error) or {}
    code = _decode_if_valid(members.get("code"))
    message = (find_string(members.get("message")) or "the call failed")[:MESSAGE_CHARS_MAX]
    data = _decode_if_valid(members.get("data"))
    data = data if isinstance(data, Mapping) else {}
    reason = data.get("reason")
    detail = reason if isinstance(reason, str) else message
    error_code = refusal.find_code(code, draft=True)
    if error_code == refusal.INVALID_PARAMS:
        return failure(Code.VALIDATION_INVALID_TYPE, message, {"param_name": "params", "upstream_error": message})
    if error_code == refusal.METHOD_NOT_FOUND:
        return unknown_operation(operation)
    if error_code == refusal.BUDGET_EXCEEDED:
        # A rate limit if the budget recovers by itself, otherwise a quota.
        limit, wait = data.get("limit"), data.get("retry_after_ms")
        if isinstance(wait, int):
            shown = {"limit": limit, "remaining": 0, "window": "minute", "retry_after_seconds": -(-wait // 1000)}
            return failure(Code.RATE_LIMIT_EXCEEDED, "API rate limit exceeded", shown)
        quota = {"metric": data.get("budget"), "current": data.get("used"), "hard_stop_threshold": limit}
        return failure(Code.RATE_LIMIT_QUOTA_EXHAUSTED, "Quota exhausted", {**quota, "resets_at": None})
    is_denied = error_code is not None and refusal.forms_of(error_code).aql == Code.PERMISSION_DENIED.value
    if detail == "auth_required" or is_denied:
        return permission_denied(detail, **{key: data[key] for key in _PASSED_DETAILS if key in data})
    if error_code in (refusal.MISSING_CAPABILITY, refusal.URL_ELICITATION_REQUIRED):
        text = "the tool asks for input, which this client cannot give here; in a batch, call it alone"
        return internal_error(text, reason="interaction_required")
    if error_code in (refusal.TOOL_DEGRADED, refusal.CALL_TIMEOUT):
        details: dict[str, Any] = {"reason": "timeout" if error_code == refusal.CALL_TIMEOUT else detail}
        if isinstance(data.get("retry_after_ms"), int):
            details["retry_after_ms"] = data["retry_after_ms"]
        return internal_error(f"the tool cannot be reached now: {details['reason']}", **details)
    more = {key: data[key] for key in ("ref", "limit_bytes", "outcome", "next") if isinstance(data.get(key), str | int)}
    return internal_error(message, upstream_error=message, source_tool=tool, **more)
