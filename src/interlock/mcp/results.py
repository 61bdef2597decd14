"""The translation of one result or error from the era of a server to the era of a client.

Within one era nothing here is called and the bytes pass. Across eras only the fields that differ are changed; every
other member keeps its bytes and its place. Most results differ only in their first member, which is added or removed
without reading the rest.

Errors of the MCP-AX draft have numbers that mean something else in MCP, so they are recognised by message and reason
(`find_modern_error`). `find_result_facts` reads the members of a large result once, instead of searching its bytes for
each mark. `with_note` appends a remark of the gateway to the content of an answer.
"""

import re
from typing import Any, Final

import msgspec
from msgspec import Raw

from interlock.mcp.methods import CACHEABLE, RESOURCES_READ, Era
from interlock.mcp.tasks import requires_tasks, tool_across_eras
from interlock.wire import refusal
from interlock.wire.jsonrpc import codec
from interlock.wire.jsonrpc.codec import CodecError, Response, decode_object, decode_value, encode_value, find_string
from interlock.wire.refusal import FORMS, INTERNAL_ERROR, INVALID_PARAMS, INVALID_REQUEST, Refusal, RefusalCode

# Error numbers of MCP-AX as a 2026-07-28 client reads them (MCP-AX 13.2).

_DRAFT_CODES: Final[dict[tuple[str, int], RefusalCode]] = {
    ("tool_degraded", -32002): refusal.TOOL_DEGRADED,  # AX-13.2-3
    ("budget_exceeded", -32003): refusal.BUDGET_EXCEEDED,  # AX-13.2-3, AX-11.4-3
}


_DRAFT_MARKS: Final = (b"-32002", b"-32003")


def find_modern_error(error: Raw) -> bytes | None:
    """Translate an error with an error number of the MCP-AX draft to the form for a modern client (13.2). Return None
    for any other error.

    The message and the reason identify the error, because a legacy server may use the number -32002 for a missing
    resource.
    """
    if not any(mark in bytes(error) for mark in _DRAFT_MARKS):
        return None
    members: dict[str, Any] | None = decode_object(error)
    try:
        fields = {name: decode_value(members[name]) for name in ("code", "message", "data")} if members else {}
    except (KeyError, CodecError):
        return None
    data, message, number = fields.get("data"), fields.get("message"), fields.get("code")
    if members is None or not isinstance(data, dict) or data.keys().isdisjoint(("reason", "budget")):
        return None
    code = _DRAFT_CODES.get((message, number)) if isinstance(message, str) and type(number) is int else None
    if code is None:
        return None
    # AX-13.2-3
    return encode_value({**members, "code": FORMS[code].number, "data": {**data, "mcpax_code": number}})


# What is in a large result: read once, where a small one is searched for each of its marks.

LARGE_BYTES: Final = 64 * 1024
_CLAIMING: Final = ("_meta", "structuredContent", "result", "messages")  # in which a server could make a claim
_BLOCKS: Final = ("content", "contents")  # lists whose members may have metadata of their own


_TRUE: Final = Raw(b"true")
_COMPLETE: Final = Raw(b'"complete"')


class _Block(msgspec.Struct, rename={"meta": "_meta"}):
    meta: Raw | msgspec.UnsetType = msgspec.UNSET
    resource: Raw | msgspec.UnsetType = msgspec.UNSET  # with metadata of its own


_decode_blocks = msgspec.json.Decoder(list[_Block]).decode


class ResultFacts(msgspec.Struct, frozen=True):
    """Properties of a large result that decide how the gateway forwards it."""

    may_claim: bool
    is_typed: bool  # it has a resultType
    is_error: bool
    names: frozenset[str] = frozenset()  # of its members
    is_complete: bool = False  # its resultType says so


def find_result_facts(result: Raw, message: bytes = b"") -> ResultFacts | None:
    """Read the members of a large result once. Return None if names may be duplicated or escaped, so that the bytes
    must be searched instead.

    `message` is the message that contains the result. If it is given, less has to be read.
    """
    if (outline := codec.find_outline(message)) is not None:
        result = (decode_object(outline.text) or {}).get("result", result)
    if (members := decode_object(result)) is None or _size(members) != len(result):
        return None
    may_claim = any(name in members for name in _CLAIMING)
    may_claim = may_claim or any(name in members and _may_have_metadata(members[name]) for name in _BLOCKS)
    kind, is_error = members.get("resultType"), members.get("isError") == _TRUE
    return ResultFacts(may_claim, kind is not None, is_error, frozenset(members), kind == _COMPLETE)


def _size(members: dict[str, Raw]) -> int:
    """Return the size of the encoded JSON object with these members, without blanks: names, values, and a colon for
    each name.
    """
    return len(encode_value(list(members))) + len(members) + sum(map(len, members.values()))


def _may_have_metadata(blocks: Raw) -> bool:
    """Return whether one of the content blocks may have `_meta`.

    The blocks are decoded and not searched as text, because a key may be written with escapes. The answer is True if
    `blocks` is not a list of objects.
    """
    try:
        read = _decode_blocks(blocks)
        return any(block.meta is not msgspec.UNSET or block.resource is not msgspec.UNSET for block in read)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return True


# A note of the gateway in the answer to a call: one more text for the model, the rest as its server wrote it.


def with_note(message: bytes, text: str) -> bytes:
    """Append a text to the content of a response, or to the message of its error. A response with neither stays
    unchanged.
    """
    try:
        answer = codec.decode_untrusted(message)
    except CodecError:
        return message
    if not isinstance(answer, Response):
        return message
    members: dict[str, Any] | None = decode_object(answer.error or answer.result)
    if members is None:
        return message
    if answer.error:
        error_text = find_string(members.get("message"))
        members["message"] = f"{error_text} ({text})" if error_text else text
        return codec.encode_error(answer.id, encode_value(members))
    content = codec.decode_array(members["content"]) if "content" in members else None
    if content is None:
        return message
    members["content"] = [*content, Raw(encode_value({"type": "text", "text": text}))]
    return codec.encode_result(answer.id, encode_value(members))


_OBJECT: Final = ord("{")
_MODERN_ONLY_MEMBERS: Final = ("resultType", "ttlMs", "cacheScope")
_MODERN_CODES: Final = (refusal.HEADER_MISMATCH, refusal.MISSING_CAPABILITY, refusal.UNSUPPORTED_VERSION)
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
    """Translate a large result for a modern client without copying it. `names` are the names of the result's members.

    Return the new beginning and the unchanged rest, or None if more than the beginning must change.
    """
    view = memoryview(result)
    if method in CACHEABLE or "resultType" in names or bytes(view[:2]) != b'{"':
        return None
    return _MODERN_HEAD, view[1:]


def large_to_legacy(result: Raw, names: frozenset[str]) -> tuple[bytes, memoryview] | None:
    """Translate a large complete result for a legacy client without copying it. `names` are the names of the result's
    members.

    Return the new beginning and the unchanged rest, or None if more than the beginning must change.
    """
    view = memoryview(result)
    if not names.isdisjoint(_NOT_PLAINLY_LEGACY) or bytes(view[: len(_MODERN_HEAD)]) != _MODERN_HEAD:
        return None
    return b"{", view[len(_MODERN_HEAD) :]


def result_to_modern(result: Raw, method: str) -> bytes | Refusal:
    """Translate a result of a legacy server for a modern client. Return the refusal if that is impossible."""
    written = bytes(result)
    if (
        method not in CACHEABLE
        and b'"resultType"' not in written
        and _NAMES_HIDE not in written
        and _begins_with_a_member(written)
    ):
        return _MODERN_HEAD + written[1:]
    if (members := decode_object(result)) is None:
        return Refusal(INTERNAL_ERROR, "the server's result is not an object")
    if "resultType" not in members:
        members = {"resultType": _COMPLETE, **members}
    if method in CACHEABLE:
        members.setdefault("ttlMs", Raw(b"0"))
        members.setdefault("cacheScope", Raw(b'"private"'))
    return encode_value(members)


def result_to_legacy(result: Raw) -> bytes | Refusal:
    """Translate a result of a modern server for a legacy client. Return the refusal if that is impossible."""
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
    if (members := decode_object(result)) is None:
        return Refusal(INTERNAL_ERROR, "the server's result is not an object")
    kind = find_string(members.get("resultType")) if "resultType" in members else "complete"
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
    """Return the content of a result with a text block of this value. If a block with this text exists already, none is
    added.
    """
    blocks = (codec.decode_array(content) if content is not None else None) or []
    block = encode_value({"type": "text", "text": value.decode()})
    decoded = (decode_object(block_members) or {} for block_members in blocks)
    if any(_is_same(find_string(block_members.get("text")), value) for block_members in decoded):
        return Raw(encode_value(blocks))
    return Raw(encode_value([*blocks, Raw(block)]))


def _is_same(text: str | None, value: bytes) -> bool:
    """Return whether a text represents an encoded value: as its JSON, or as the plain string if the
    value is a string.
    """
    try:
        structured = decode_value(value)
        return text is not None and (text == structured or decode_value(text.encode()) == structured)
    except (CodecError, UnicodeEncodeError, RecursionError):  # two values are compared as deep as they are nested
        return False


def error_to_modern(error: Raw) -> bytes:
    """Translate an error of a legacy server for a modern client."""
    codes = {refusal.RESOURCE_NOT_FOUND: INVALID_PARAMS, refusal.URL_ELICITATION_REQUIRED: INTERNAL_ERROR}
    return find_modern_error(error) or _recode(error, codes)


def error_to_legacy(error: Raw, method: str) -> bytes:
    """Translate an error of a modern server for a legacy client."""
    if requires_tasks(error):
        return codec.error_body(_TASK)
    codes = dict.fromkeys(_MODERN_CODES, INVALID_REQUEST)
    if method == RESOURCES_READ:
        codes[INVALID_PARAMS] = refusal.RESOURCE_NOT_FOUND
    return _recode(error, codes)


def _recode(error: Raw, codes: dict[RefusalCode, RefusalCode]) -> bytes:
    """Return an encoded error with another number if `codes` maps its code to another one. Any other error is returned
    unchanged.
    """
    if (members := decode_object(error)) is None:
        return codec.error_body(Refusal(INTERNAL_ERROR, "the server's error is not an object"))
    try:
        code = refusal.find_code(decode_value(members["code"]))
    except (KeyError, CodecError):
        return bytes(error)
    if code is not None and code in codes:
        members["code"] = Raw(str(FORMS[codes[code]].number).encode())
        return encode_value(members)
    return bytes(error)
