"""Bringing one result or error from the era of a server to the era of a client.

Same era: nothing here is called and the bytes pass. Across eras only the fields that differ are touched; every other
member keeps its bytes and its place.
"""

import re
from typing import Final

from msgspec import Raw

from interlock.mcp.ax_errors import maybe_for_modern_edge
from interlock.mcp.eras import Era
from interlock.mcp.methods import CACHEABLE, RESOURCES_READ
from interlock.mcp.tasks import requires_tasks, tool_across_eras
from interlock.wire.jsonrpc.codec import decode_array, decode_object, decode_value, encode_value, maybe_string
from interlock.wire.jsonrpc.errors import CodecError, error_body
from interlock.wire.refusal import (
    FORMS,
    HEADER_MISMATCH,
    INTERNAL_ERROR,
    INVALID_PARAMS,
    INVALID_REQUEST,
    MISSING_CAPABILITY,
    RESOURCE_NOT_FOUND,
    UNSUPPORTED_VERSION,
    URL_ELICITATION_REQUIRED,
    Refusal,
    RefusalCode,
    find_code,
)

_OBJECT: Final = ord("{")
_COMPLETE: Final = Raw(b'"complete"')
_MODERN_ONLY_MEMBERS: Final = ("resultType", "ttlMs", "cacheScope")
_MODERN_CODES: Final[dict[RefusalCode, RefusalCode]] = {
    HEADER_MISMATCH: INVALID_REQUEST,
    MISSING_CAPABILITY: INVALID_REQUEST,
    UNSUPPORTED_VERSION: INVALID_REQUEST,
}
_INPUT_REQUIRED: Final = Refusal(
    INTERNAL_ERROR,
    "the server needs an answer from the client in a form this client's MCP revision does not have",
    {"reason": "input_required_across_eras"},
)
_UNKNOWN_KIND: Final = Refusal(
    INTERNAL_ERROR,
    "the server's result is of a kind this client's MCP revision does not have",
    {"reason": "result_type_unknown"},
)


_TASK: Final = tool_across_eras(Era.LEGACY)
# Most results need only their first member written or taken away, which costs no reading. An escape could hide a name.
_begins_with_a_member = re.compile(rb'\{\s*"').match
_MODERN_HEAD: Final = b'{"resultType":"complete",'
_NAMES_HIDE: Final = b"\\u"
_NOT_PLAINLY_LEGACY: Final = frozenset(("ttlMs", "cacheScope", "structuredContent"))


def large_to_modern(result: Raw, method: str, names: frozenset[str]) -> tuple[bytes, memoryview] | None:
    """A large result in pieces, where only its beginning differs; `names`: of its members."""
    view = memoryview(result)
    if method in CACHEABLE or "resultType" in names or bytes(view[:2]) != b'{"':
        return None
    return _MODERN_HEAD, view[1:]


def large_to_legacy(result: Raw, names: frozenset[str]) -> tuple[bytes, memoryview] | None:
    """The same of a complete result."""
    view = memoryview(result)
    if not names.isdisjoint(_NOT_PLAINLY_LEGACY) or bytes(view[: len(_MODERN_HEAD)]) != _MODERN_HEAD:
        return None
    return b"{", view[len(_MODERN_HEAD) :]


def result_to_modern(result: Raw, method: str) -> bytes | Refusal:
    written = bytes(result)
    if (
        method not in CACHEABLE
        and b'"resultType"' not in written
        and _NAMES_HIDE not in written
        and _begins_with_a_member(written)
    ):
        return _MODERN_HEAD + written[1:]
    members = decode_object(result)
    if members is None:
        return Refusal(INTERNAL_ERROR, "the server's result is not an object")
    if "resultType" not in members:
        members = {"resultType": _COMPLETE, **members}
    if method in CACHEABLE:
        members.setdefault("ttlMs", Raw(b"0"))
        members.setdefault("cacheScope", Raw(b'"private"'))
    return encode_value(members)


def result_to_legacy(result: Raw) -> bytes | Refusal:
    written = bytes(result)
    if (
        written.startswith(_MODERN_HEAD)
        and written.find(b'"resultType"', len(_MODERN_HEAD)) < 0
        and b'"ttlMs"' not in written
        and b'"cacheScope"' not in written
        and b'"structuredContent"' not in written
        and _NAMES_HIDE not in written
    ):
        return b"{" + written[len(_MODERN_HEAD) :]
    members = decode_object(result)
    if members is None:
        return Refusal(INTERNAL_ERROR, "the server's result is not an object")
    kind = maybe_string(members.get("resultType")) if "resultType" in members else "complete"
    if kind == "task":
        return _TASK
    if kind != "complete":
        return _INPUT_REQUIRED if kind == "input_required" else _UNKNOWN_KIND
    for name in _MODERN_ONLY_MEMBERS:
        members.pop(name, None)
    structured = members.get("structuredContent")
    if structured is not None and memoryview(structured)[0] != _OBJECT:
        del members["structuredContent"]  # illegal before 2026-07-28
        members["content"] = _with_text(members.get("content"), bytes(structured))
    return encode_value(members)


def _with_text(content: Raw | None, value: bytes) -> Raw:
    """The content of a result with a text block that says this value, added where none does."""
    blocks = (decode_array(content) if content is not None else None) or []
    block = encode_value({"type": "text", "text": value.decode()})
    said = (decode_object(one) or {} for one in blocks)
    if any(_is_same(maybe_string(one.get("text")), value) for one in said):
        return Raw(encode_value(blocks))
    return Raw(encode_value([*blocks, Raw(block)]))


def _is_same(text: str | None, value: bytes) -> bool:
    """Whether a text says the value: as JSON, or a string as it is."""
    try:
        structured = decode_value(value)
        return text is not None and (text == structured or decode_value(text.encode()) == structured)
    except (CodecError, UnicodeEncodeError, RecursionError):  # two values are compared as deep as they are nested
        return False


def error_to_modern(error: Raw) -> bytes:
    return maybe_for_modern_edge(error) or _recode(
        error, {RESOURCE_NOT_FOUND: INVALID_PARAMS, URL_ELICITATION_REQUIRED: INTERNAL_ERROR}
    )


def error_to_legacy(error: Raw, method: str) -> bytes:
    if requires_tasks(error):
        return error_body(_TASK)
    codes = dict(_MODERN_CODES)
    if method == RESOURCES_READ:
        codes[INVALID_PARAMS] = RESOURCE_NOT_FOUND
    return _recode(error, codes)


def _recode(error: Raw, codes: dict[RefusalCode, RefusalCode]) -> bytes:
    members = decode_object(error)
    if members is None:
        return error_body(Refusal(INTERNAL_ERROR, "the server's error is not an object"))
    try:
        code = find_code(decode_value(members["code"]))
    except (KeyError, CodecError):
        return bytes(error)
    if code is not None and code in codes:
        members["code"] = Raw(str(FORMS[codes[code]].number).encode())
        return encode_value(members)
    return bytes(error)
