"""Requests of MCP-AQL (4): from the raw `arguments` of a tools/call to an operation with its parameters, or a failure.

Only names are read here. Values stay the text in which they arrived, so that a call whose names need no mapping sends
the very bytes of its `params`. A request of a common wrong shape is answered with the right shape.

First the text is measured: the payload limits of 4.7.5, exact at every boundary, and what a text may contain (4.7.1).
Limits are checked in the order request, nesting, array, string (X-16), and encoding after them. Nothing recurses, so
that a deeply nested text costs one pass. Small ordinary texts, which are nearly all, pass by counting alone.
"""

import re
from collections.abc import Mapping
from typing import Final

import msgspec
from msgspec import Raw

from interlock.aql.protocol import errors
from interlock.aql.protocol.errors import AqlFailure, Code
from interlock.wire.jsonrpc.codec import decode_array, decode_object, find_string
from interlock.wire.jsontext.canonical import STRING, find_doubled_keys, nesting_depth

KEYS: Final[Mapping[str, str]] = {  # our setting -> its name in `_protocol.limits`
    "request_bytes": "max_request_size",  # AQL-4.7.5-8
    "response_bytes": "max_response_size",
    "string_bytes": "max_string_length",
    "array_elements": "max_array_elements",
    "nesting_depth": "max_nesting_depth",  # AQL-4.7.5-8
    "batch_operations": "max_batch_operations",
}
KI: Final = 1024
RANGES: Final[Mapping[str, tuple[int, int]]] = {
    "request_bytes": (64 * KI, 10 * KI * KI),
    "response_bytes": (KI * KI, 100 * KI * KI),
    "string_bytes": (64 * KI, 10 * KI * KI),
    "array_elements": (100, 100_000),
    "nesting_depth": (8, 64),
    "batch_operations": (1, 1000),
}
_INNERMOST: Final = re.compile(rb"\[,*\]|\{,*\}")
_NO_STRUCTURE: Final = bytes(byte for byte in range(256) if byte not in b"[]{},")
_ESCAPE: Final = re.compile(rb"\\(?:u([0-9a-fA-F]{4})|.)", re.DOTALL)
_SUSPECT: Final = re.compile(rb"\\u(?:0000|[dD][89a-fA-F])")


class PayloadLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The limits on requests and answers (4.7.5). `RANGES` contains the values that may be configured."""

    request_bytes: int = KI * KI
    response_bytes: int = 10 * KI * KI
    string_bytes: int = KI * KI
    array_elements: int = 10_000
    nesting_depth: int = 32
    batch_operations: int = 50

    def shown(self) -> dict[str, int]:
        """Return the limits as clients see them in `_protocol.limits`."""
        return {name: getattr(self, key) for key, name in KEYS.items()}


def check_request(text: bytes, limits: PayloadLimits, *, nul_allowed: bool = False) -> AqlFailure | None:
    """Check the size and the text of a request, independent of its operation. Return the failure, or None."""
    size = len(text)
    if size > limits.request_bytes:  # AQL-4.7.5-1
        return errors.too_large("request_size", limits.request_bytes, size)
    if (
        size >= 2 * limits.array_elements
        or size > limits.string_bytes
        or text.count(b"{") + text.count(b"[") > limits.nesting_depth
    ):
        fault = _measure(text, limits)
        if fault is not None:
            return fault
    if text.find(b"\\u") >= 0 and _SUSPECT.search(text):
        # Reject surrogate halves and U+0000, however they are escaped.
        for token in STRING.finditer(text):
            if b"\\u" not in token[0]:
                continue
            high_ends: int | None = None
            for escape in _ESCAPE.finditer(token[0]):
                point = -1 if escape[1] is None else int(escape[1], 16)
                is_low = 0xDC00 <= point < 0xE000
                if high_ends is not None and not (is_low and escape.start() == high_ends):  # AQL-4.7.1-2
                    return errors.invalid_encoding("request", token.start() + high_ends - 6)
                if (is_low and high_ends is None) or (point == 0 and not nul_allowed):  # AQL-4.7.1-2
                    return errors.invalid_encoding("request", token.start() + escape.start())
                high_ends = escape.end() if 0xD800 <= point < 0xDC00 else None
            if high_ends is not None:  # AQL-4.7.1-2
                return errors.invalid_encoding("request", token.start() + high_ends - 6)
    return None


def _measure(text: bytes, limits: PayloadLimits) -> AqlFailure | None:
    """Compare the nesting, the arrays and the strings of a JSON text with the limits. Return the failure, or None.

    The largest value of each kind is compared, so that the order in which limits are checked does not depend on the
    text. The work is done by a few passes in C, so that a text of brackets costs hardly more than one string.
    """
    structure = STRING.sub(b"", text).translate(None, _NO_STRUCTURE)
    deepest = nesting_depth(structure)
    if deepest > limits.nesting_depth:  # AQL-4.7.5-1
        return errors.too_large("nesting_depth", limits.nesting_depth, deepest)
    widest = 0
    if structure.count(b",") >= limits.array_elements:
        # Only commas are inside of the innermost arrays. They are counted and taken out, level by level.
        wide = re.compile(rb"\[(,{%d,})\]" % limits.array_elements)
        for _ in range(deepest):
            widest = max(widest, *map(len, wide.findall(structure)), 0)
            structure = _INNERMOST.sub(b"", structure)
    if widest >= limits.array_elements:  # AQL-4.7.5-1
        return errors.too_large("array_elements", limits.array_elements, widest + 1)
    longest = 0
    if len(text) > limits.string_bytes:
        long = (each for each in STRING.findall(text) if len(each) - 2 > limits.string_bytes)
        longest = max((_string_bytes(each[1:-1]) for each in long), default=0)
    if longest > limits.string_bytes:  # AQL-4.7.5-1
        return errors.too_large("string_length", limits.string_bytes, longest)
    return None


def _string_bytes(inner: bytes) -> int:
    """Return the UTF-8 size of a string. `inner` is its JSON text without the quotes."""
    if b"\\" not in inner:
        return len(inner)
    size = len(inner)
    for escape in _ESCAPE.finditer(inner):
        unit = escape[1]
        if unit is None:
            size -= 1
        else:
            point = int(unit, 16)
            # An escape has six bytes. Each half of a surrogate pair is counted as two of the four bytes of the pair.
            size -= 6 - (1 if point < 0x80 else 2 if point < 0x800 or 0xD800 <= point < 0xE000 else 3)
    return size


SHAPE: Final = 'Send {"operation":"NAME","params":{...}}; ' + errors.HELP
PROTOCOL_NAMES: Final = frozenset({"operation", "params", "operations"})
CONFIRMATION: Final = "_confirmation"
REQUEST_ID: Final = "_request_id"
# Names that begin with an underscore are for the protocol and reach no handler. This one is not taken out but refused
# as an unknown parameter: only a hostile client sends it, to change the prototype of objects in JavaScript servers.
PROTO: Final = "__proto__"
NAME_CHARS_MAX: Final = 255
_BLANKS: Final = b" \t\r\n"
_TYPES: Final = {ord("{"): "object", ord("["): "array", ord('"'): "string", ord("t"): "boolean", ord("f"): "boolean"}


class OperationRequest(msgspec.Struct, kw_only=True):
    """A request for one operation.

    `members` are the parameters by name, without underscore names. `text` is the text of `params`, if it contains all
    the parameters and nothing else.
    """

    operation: str
    members: dict[str, Raw]
    text: Raw | None = None
    request_id: str | None = None
    confirmation: Raw | None = None  # `_confirmation`, as it came
    meta: Raw | None = None  # `_meta` of the arguments


class BatchRequest(msgspec.Struct, frozen=True):
    """A request for several operations. Each operation is still unparsed text."""

    items: tuple[Raw, ...]


def raw_type(raw: Raw | bytes) -> str:
    """Return the JSON type of a JSON text."""
    first = bytes(raw).lstrip()[:1]
    if first == b"n":
        return "null"
    return _TYPES.get(first[0] if first else 0, "number")


def read_request(
    arguments: Raw | bytes | None, limits: PayloadLimits, *, has_batch: bool = True
) -> OperationRequest | BatchRequest | AqlFailure:
    """Read the request in a tools/call. `arguments` are the raw arguments, or None if there were none."""
    text = b"{}" if arguments is None else bytes(arguments)
    wrong = check_request(text, limits, nul_allowed=True)
    if wrong is not None:  # AQL-4.7.5-1
        return wrong
    if text[:1] != b"{":
        return _no_object(text)
    members = decode_object(text)
    if members is None:
        return errors.invalid_encoding("request")
    if "operations" in members and has_batch:
        # Read a batch. Its items are read when their turn comes, so that one bad item does not spoil the others.
        def invalid(message: str) -> AqlFailure:
            return errors.failure(Code.BATCH_VALIDATION_ERROR, message)

        if "operation" in members:
            return invalid("Send either 'operation' or 'operations', not both")
        others = [name for name in members if name != "operations" and not name.startswith("_")]
        if others:
            return invalid(f"A batch has no member beside 'operations': {', '.join(others)}")
        items = decode_array(members["operations"]) if raw_type(members["operations"]) == "array" else None
        if items is None:
            return invalid('\'operations\' must be an array of {"operation":"NAME","params":{...}}')
        if not items:
            return invalid("'operations' must hold an item")
        if len(items) > limits.batch_operations:
            most = limits.batch_operations
            oversized = errors.too_large("batch_operations", most, len(items))
            return AqlFailure(oversized.code, f"{oversized.message}: a batch has up to {most} operations")
        if find_duplicate(members, text) is not None:
            return invalid("'operations' occurs twice")
        for item in items:
            if b'"operations"' in bytes(item) and "operations" in (decode_object(item) or {}):
                return invalid("A batch cannot hold a batch")
        return BatchRequest(tuple(items))
    return _read_members(members, text)


def read_item(raw: Raw) -> OperationRequest | AqlFailure:
    """Read one item of a batch. Its size is not checked, because the size of the whole batch was."""
    text = bytes(raw)
    members = decode_object(text) if text[:1] == b"{" else None
    if members is None:
        return _no_object(text)
    return _read_members(members, text)


def _no_object(text: bytes) -> AqlFailure:
    return errors.invalid_type("arguments", "object", raw_type(text), hint=SHAPE)


def _read_members(members: dict[str, Raw], text: bytes) -> OperationRequest | AqlFailure:
    """Read a request for one operation. Parameters may be inside `params` or beside it (4.2)."""
    name = members.get("operation")
    if name is None:  # AQL-4.1-1
        message = f"Missing required parameter 'operation'. Expected: string (the operation to call). {SHAPE}"
        if "tool" in members or "name" in members:
            message = f"{message}. 'tool' and 'args' are not read here"
        return errors.failure(Code.VALIDATION_MISSING_PARAM, message, {"param_name": "operation"})  # AQL-4.1-1
    operation = find_string(name)
    if operation is None:  # AQL-4.1-1
        return errors.invalid_type("operation", "string", raw_type(name), hint=SHAPE)
    if not operation or len(operation) > NAME_CHARS_MAX:  # AQL-4.1-1
        why = f"it must be the name of an operation, of up to {NAME_CHARS_MAX} characters. {SHAPE}"
        return msgspec.structs.replace(errors.invalid_value("operation", why), code=Code.VALIDATION_INVALID_TYPE.value)
    doubled = find_duplicate(members, text)
    if doubled is not None:
        return doubled
    raw = members.get("params")
    if raw is None:
        params: dict[str, Raw] = {}
    else:
        decoded = decode_object(raw) if bytes(raw)[:1] == b"{" else None
        if decoded is None:
            actual = raw_type(raw)
            hint = "Send an object, not JSON inside a text" if actual == "string" else SHAPE
            return errors.invalid_type("params", "object", actual, hint=hint)
        params = decoded
        doubled = find_duplicate(params, bytes(raw), "params")
        if doubled is not None:
            return doubled
    request = OperationRequest(operation=operation, members=params, text=raw)
    if text.find(b'"_') >= 0 or text.find(b"\\u") >= 0:
        for table in (members, params):
            _take_underscored(request, table)
    if len(members) > 1 + (raw is not None):
        beside = {key: value for key, value in members.items() if key not in PROTOCOL_NAMES and not _is_own(key)}
        if beside:
            request.members = {**beside, **request.members}  # AQL-4.6.1-1: the value in params takes precedence (4.2)
            request.text = None
    return request


def _is_own(key: str) -> bool:
    return key[:1] == "_" and key != PROTO


def _take_underscored(request: OperationRequest, members: dict[str, Raw]) -> None:
    """Remove the members whose names begin with an underscore, and store those that the protocol defines in the
    request.
    """
    names = [key for key in members if _is_own(key)]
    if not names:
        return
    if members is request.members:
        request.members = {key: value for key, value in members.items() if not _is_own(key)}
        request.text = None
    for key in names:
        if key == REQUEST_ID:
            request.request_id = find_string(members[key]) or request.request_id
        elif key == CONFIRMATION:
            request.confirmation = members[key]
        elif key == "_meta":
            request.meta = members[key]


def find_duplicate(members: dict[str, Raw], text: bytes, where: str = "arguments") -> AqlFailure | None:
    """Return a failure if a key occurs twice in an object, because JSON parsers differ in the value that they use.
    Return None if no key does.

    Most texts pass by a comparison of lengths: their size equals that of their members, quotes, colons, commas and
    braces, apart from blanks.
    """
    if not members:
        return None
    inside = b"".join(("".join(members).encode(), *members.values()))
    around = 4 * len(members) + 1
    if len(text) == len(inside) + around:
        return None
    if len(text.translate(None, _BLANKS)) == len(inside.translate(None, _BLANKS)) + around:
        return None
    try:
        doubled = find_doubled_keys(text)
    except (ValueError, RecursionError):
        return errors.invalid_encoding(where)
    if not doubled:
        return None
    return errors.invalid_value(where, f"the key '{doubled[0][:100]}' occurs twice in one object; send each key once")
