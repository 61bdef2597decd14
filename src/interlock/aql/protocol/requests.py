"""Requests of MCP-AQL (4): from the raw `arguments` of a tools/call to an operation with its parameters, or a failure.

Only names are read here. Values stay the text they came in, so that a call whose names need no mapping sends the very
bytes of its `params`. Common wrong shapes are answered with the right one.
"""

import json
from typing import Any, Final

import msgspec
from msgspec import Raw

from interlock.aql.protocol.errors import (
    HELP,
    Code,
    Failure,
    failure,
    invalid_encoding,
    invalid_type,
    invalid_value,
    too_large,
)
from interlock.aql.protocol.limits import Limits, check_request
from interlock.wire.jsonrpc.codec import decode_array, decode_object, maybe_string

SHAPE: Final = 'Send {"operation":"NAME","params":{...}}; ' + HELP
PROTOCOL_NAMES: Final = frozenset({"operation", "params", "operations"})
CONFIRMATION: Final = "_confirmation"
REQUEST_ID: Final = "_request_id"
PROTO: Final = "__proto__"  # no name that begins with an underscore reaches anybody; this one is refused (hostile)
NAME_CHARS_MAX: Final = 255
_BLANKS: Final = b" \t\r\n"
_TYPES: Final = {ord("{"): "object", ord("["): "array", ord('"'): "string", ord("t"): "boolean", ord("f"): "boolean"}


class Request(msgspec.Struct, kw_only=True):
    """`members`: the parameters by name, without underscore names. `text`: the text of `params`, where that holds all
    the parameters and nothing else."""

    operation: str
    members: dict[str, Raw]
    text: Raw | None = None
    request_id: str | None = None
    confirmation: Raw | None = None  # `_confirmation`, as it came
    meta: Raw | None = None  # `_meta` of the arguments


class Batch(msgspec.Struct, frozen=True):
    items: tuple[Raw, ...]


def raw_type(raw: Raw | bytes) -> str:
    """The JSON type of a text."""
    first = bytes(raw).lstrip()[:1]
    if first == b"n":
        return "null"
    return _TYPES.get(first[0] if first else 0, "number")


def read_request(arguments: Raw | bytes | None, limits: Limits, *, has_batch: bool = True) -> Request | Batch | Failure:
    """What a tools/call asks for. `arguments` as they came; None: there were none."""
    text = b"{}" if arguments is None else bytes(arguments)
    wrong = check_request(text, limits, nul_allowed=True)
    if wrong is not None:  # AQL-4.7.5-1
        return wrong
    if text[:1] != b"{":
        return _no_object(text)
    members = decode_object(text)
    if members is None:
        return invalid_encoding("request")
    if "operations" in members and has_batch:
        return _read_batch(members, text, limits)
    return _read_members(members, text)


def read_item(raw: Raw) -> Request | Failure:
    """One item of a batch, whose text was measured with the whole."""
    text = bytes(raw)
    members = decode_object(text) if text[:1] == b"{" else None
    if members is None:
        return _no_object(text)
    return _read_members(members, text)


def _no_object(text: bytes) -> Failure:
    return invalid_type("arguments", "object", raw_type(text), hint=SHAPE)


def _read_batch(members: dict[str, Raw], text: bytes, limits: Limits) -> Batch | Failure:
    def invalid(message: str) -> Failure:
        return failure(Code.BATCH_VALIDATION_ERROR, message)

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
        said = too_large("batch_operations", limits.batch_operations, len(items))
        return Failure(said.code, f"{said.message}: a batch has up to {limits.batch_operations} operations")
    if maybe_duplicate(members, text) is not None:
        return invalid("'operations' stands twice")
    for item in items:
        if b'"operations"' in bytes(item) and "operations" in (decode_object(item) or {}):
            return invalid("A batch cannot hold a batch")
    return Batch(tuple(items))


def _read_members(members: dict[str, Raw], text: bytes) -> Request | Failure:
    name = members.get("operation")
    if name is None:  # AQL-4.1-1
        return _missing_operation(members)
    operation = maybe_string(name)
    if operation is None:  # AQL-4.1-1
        return invalid_type("operation", "string", raw_type(name), hint=SHAPE)
    if not operation or len(operation) > NAME_CHARS_MAX:  # AQL-4.1-1
        why = f"it must be the name of an operation, of up to {NAME_CHARS_MAX} characters. {SHAPE}"
        said = invalid_value("operation", why)
        return failure(Code.VALIDATION_INVALID_TYPE, said.message, said.details)
    doubled = maybe_duplicate(members, text)
    if doubled is not None:
        return doubled
    raw = members.get("params")
    if raw is None:
        params: dict[str, Raw] = {}
    else:
        found = decode_object(raw) if bytes(raw)[:1] == b"{" else None
        if found is None:
            actual = raw_type(raw)
            hint = "Send an object, not JSON inside a text" if actual == "string" else SHAPE
            return invalid_type("params", "object", actual, hint=hint)
        params = found
        doubled = maybe_duplicate(params, bytes(raw), "params")
        if doubled is not None:
            return doubled
    request = Request(operation=operation, members=params, text=raw)
    if text.find(b'"_') >= 0 or text.find(b"\\u") >= 0:
        for one in (members, params):
            _take_underscored(request, one)
    if len(members) > 1 + (raw is not None):
        beside = {key: value for key, value in members.items() if key not in PROTOCOL_NAMES and not _is_own(key)}
        if beside:
            request.members = {**beside, **request.members}  # AQL-4.6.1-1: the value in params takes precedence (4.2)
            request.text = None
    return request


def _is_own(key: str) -> bool:
    return key[:1] == "_" and key != PROTO


def _take_underscored(request: Request, members: dict[str, Raw]) -> None:
    names = [key for key in members if key[:1] == "_" and key != PROTO]
    if not names:
        return
    if members is request.members:
        request.members = {key: value for key, value in members.items() if not _is_own(key)}
        request.text = None
    for key in names:
        if key == REQUEST_ID:
            request.request_id = maybe_string(members[key]) or request.request_id
        elif key == CONFIRMATION:
            request.confirmation = members[key]
        elif key == "_meta":
            request.meta = members[key]


def _missing_operation(members: dict[str, Raw]) -> Failure:
    message = f"Missing required parameter 'operation'. Expected: string (the operation to call). {SHAPE}"
    if "tool" in members or "name" in members:
        message = f"{message}. 'tool' and 'args' are not read here"
    return failure(Code.VALIDATION_MISSING_PARAM, message, {"param_name": "operation"})  # AQL-4.1-1


def maybe_duplicate(members: dict[str, Raw], text: bytes, where: str = "arguments") -> Failure | None:
    """A key that stands twice: readers differ in which one they take.

    Nearly all texts are passed by their length: the members, their quotes, colons, commas and braces are all there is,
    apart from blanks.
    """
    if not members:
        return None
    inside = b"".join(("".join(members).encode(), *members.values()))
    around = 4 * len(members) + 1
    if len(text) == len(inside) + around:
        return None
    if len(text.translate(None, _BLANKS)) == len(inside.translate(None, _BLANKS)) + around:
        return None
    doubled: list[str] = []

    def look(pairs: list[tuple[str, Any]]) -> None:
        """Called for inner objects first, and last for the one that is asked about."""
        known: set[str] = set()
        doubled[:] = [key for key, _ in pairs if key in known or known.add(key)]  # type: ignore[func-returns-value]

    try:
        json.loads(text, object_pairs_hook=look, parse_int=str, parse_float=str)
    except (ValueError, RecursionError):
        return invalid_encoding(where)
    if not doubled:
        return None
    return invalid_value(where, f"the key '{doubled[0][:100]}' stands twice in one object; send each key once")
