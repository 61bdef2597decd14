"""Messages of Profile B (AX-8.2-3): one CBOR map each, as docs/devices.cddl defines.

    call          {1: tool id, 2: id, 3: {position: argument}}
    answer        {2: id, 4: result} or {2: id, 5: code}
    heartbeat     {1: "h", 2: id}, answered {2: id, 4: {}}
    registration  {1: "r"} asks for the tools; {1: "r", 3: [entry]} announces them
    event         {1: event id, 3: {...}}

An announcement of several frames has 6: true in each frame but the last, and 7 as the number of the frame. Messages are
written in the deterministic encoding of RFC 8949, which small parsers can rely on. They are read with our own reader
(`wire.cbor`), which bounds nesting and lengths: the message comes from a device that may be faulty or hostile.
"""

import base64
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeGuard

from interlock.ax.protocol.names import is_segment
from interlock.devices.protocol import messages
from interlock.devices.protocol.description import TOOL_ID_MAX, DeviceDescription, Field, ToolDescription
from interlock.devices.protocol.layouts import INTEGERS, bytes_of, enum_name, sent_value, shown_number
from interlock.devices.protocol.messages import Codec, DeviceAnswer, DeviceFault, EventMessage, without_metadata
from interlock.wire.cbor import NESTING_MAX, CborError, read_item_untrusted

INTEGER_MAX: Final = 2**64 - 1
INTEGER_MIN: Final = -(2**64)


def encoded(value: Any) -> bytes:
    """Encode a value as deterministic CBOR (RFC 8949, 4.2): with the shortest forms and sorted keys."""
    import cbor2  # an extra, which devices of Profile A do without

    return cbor2.dumps(value, canonical=True)


def read_untrusted(data: bytes) -> Any:
    """Decode the single CBOR item in `data`. Raise DeviceFault (malformed) if `data` is anything else."""
    try:
        value, rest = read_item_untrusted(data)
    except CborError as error:
        raise DeviceFault("malformed", str(error)) from None
    if rest:
        raise DeviceFault("malformed", f"{len(rest)} bytes after the CBOR item")
    return value


JSONRPC: Final = 0
METHOD: Final = 1
ID: Final = 2
PARAMS: Final = 3
RESULT: Final = 4
ERROR: Final = 5
MORE: Final = 6
PART: Final = 7

REGISTRATION: Final = "r"
HEARTBEAT: Final = "h"

ID_MAX: Final = 255
ARGUMENTS_MAX: Final = 4  # arg_types[4]
PARTS_MAX: Final = 64
MAJOR_TYPES: Final = frozenset({0, 1, 2, 3, 4, 5, 7})  # AX-8.2-7: no tags
BYTES: Final = 2
MAP: Final = 5
STATUS_MAX: Final = 2**31  # of either sign


class CborCodec(Codec):
    """The codec of Profile B, whose messages are CBOR maps. Request ids fit into one byte, so that small devices can
    store them.
    """

    id_max = ID_MAX

    def __init__(self, description: DeviceDescription, *, max_bytes: int | None = None) -> None:
        self._max_bytes = description.link.max_frame if max_bytes is None else max_bytes
        self._emits_jsonrpc = description.link.emit_jsonrpc
        self._allows_values = description.link.allow_values
        self._events = {event.id: event for event in description.events}

    def encode_call(self, request_id: int, tool: ToolDescription, arguments: Mapping[str, Any]) -> bytes:
        params = _positional(tool, without_metadata(arguments))
        message = self._encoded({METHOD: tool.id, ID: request_id, PARAMS: params})
        messages.check_size("call", message, self._max_bytes)
        return message

    def encode_heartbeat(self, request_id: int) -> bytes:
        return self._encoded({METHOD: HEARTBEAT, ID: request_id})

    def encode_registration_request(self) -> bytes:
        return self._encoded({METHOD: REGISTRATION})

    def decode_untrusted(self, message: bytes) -> messages.Received:
        messages.check_size("message", message, self._max_bytes)
        members = read_untrusted(message)
        if not isinstance(members, dict):
            raise DeviceFault("malformed", "no CBOR map")  # AX-B.2-3
        if members.get(JSONRPC, 2) not in (2, "2.0") or isinstance(members.get(JSONRPC), bool):
            raise DeviceFault("malformed", "another version of JSON-RPC")
        if METHOD in members:
            method = members[METHOD]
            if method == REGISTRATION:
                entries, more, part = members.get(PARAMS), members.get(MORE, False), members.get(PART, 0)
                is_part = _is_integer(part, 0, PARTS_MAX - 1)
                if not (isinstance(entries, list) and isinstance(more, bool) and is_part):
                    raise DeviceFault("malformed", "a registration without its list")
                try:
                    return messages.AnnouncementFrame(tools=tuple(map(_announced, entries)), more=more, part=part)
                except DeviceFault as fault:
                    raise messages.AnnouncementFault(fault.code, fault.detail) from fault
            if ID in members or method == HEARTBEAT:
                raise DeviceFault("unexpected", "a request from a device")
            if not _is_integer(method, 0, TOOL_ID_MAX) or not isinstance(members.get(PARAMS), dict):
                raise DeviceFault("malformed", "neither an answer, a registration nor an event")
            return EventMessage(event_id=method, payload=members[PARAMS])
        request_id = members.get(ID)
        if not _is_integer(request_id, 1, ID_MAX):
            raise DeviceFault("malformed", "an answer without an id")
        if (RESULT in members) == (ERROR in members):
            raise DeviceFault("malformed", "an answer needs either a result or an error")
        if RESULT in members:
            return DeviceAnswer(request_id=request_id, payload=members[RESULT])
        if not _is_integer(members[ERROR], -STATUS_MAX, STATUS_MAX) or members[ERROR] == 0:
            raise DeviceFault("malformed", "an error without a number")
        return DeviceAnswer(request_id=request_id, status=members[ERROR])

    def result(self, tool: ToolDescription, payload: Any) -> dict[str, Any]:
        if tool.ret_type is not None and not _is_of_major_type(payload, tool.ret_type):
            raise DeviceFault("response_invalid", f"not of the announced CBOR type {tool.ret_type}")
        if isinstance(payload, dict):
            return _named(tool.response, payload)
        if not self._allows_values:
            raise DeviceFault("response_invalid", "no map")
        return {"value": _json(payload, "value")}

    def notice(self, event_id: int, payload: Any) -> dict[str, Any] | None:
        event = self._events.get(event_id)
        return None if event is None else _named(event.response, payload)

    def _encoded(self, members: dict[int, Any]) -> bytes:
        return encoded({JSONRPC: 2, **members} if self._emits_jsonrpc else members)


def _announced(entry: Any) -> messages.Announced:
    if not isinstance(entry, dict):
        raise DeviceFault("malformed", "an entry that is no map")
    tool_id, types, ret, name = entry.get(0), entry.get(1), entry.get(2), entry.get(3)
    if not _is_integer(tool_id, 0, TOOL_ID_MAX):
        raise DeviceFault("malformed", "a tool without an id from 0 to 255")
    if not isinstance(types, list) or len(types) > ARGUMENTS_MAX or not all(_is_major_type(each) for each in types):
        raise DeviceFault("malformed", f"tool {tool_id}: argument types")
    if not _is_major_type(ret):
        raise DeviceFault("malformed", f"tool {tool_id}: return type")
    if name is not None and not (isinstance(name, str) and is_segment(name)):
        what = f"the name {str(name)[:64]!r} is not 1 to 63 characters of a-z, 0-9, _ and -"
        raise DeviceFault("malformed", f"tool {tool_id}: {what}")
    return messages.Announced(id=tool_id, arg_types=tuple(types), ret_type=ret, name=name)


def _is_major_type(value: Any) -> TypeGuard[int]:
    return _is_integer(value, 0, 7) and value in MAJOR_TYPES


def _is_integer(value: Any, least: int, greatest: int) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= greatest


def argument_names(tool: ToolDescription) -> tuple[str, ...]:
    """Return the argument names of a tool in the order of their positions. Arguments that the description does not name
    are called arg0 to arg3.
    """
    named = tuple(field.name for field in tool.request)
    count = len(named) if tool.arg_types is None else len(tool.arg_types)
    return named[:count] + tuple(f"arg{position}" for position in range(len(named), count))


def named_arguments(tool: ToolDescription, params: Mapping[Any, Any]) -> dict[str, Any]:
    """Return the arguments of a call by name. `params` contains them by position. Raise DeviceFault if they do not fit
    the tool.
    """
    names = argument_names(tool)
    arguments = {}
    for position, value in params.items():
        if not _is_integer(position, 0, len(names) - 1):
            raise DeviceFault("argument_invalid", f"there is no argument {str(position)[:64]!r}")
        is_described = position < len(tool.request)
        name = names[position]
        arguments[name] = _received(tool.request[position], value) if is_described else _json(value, name)
    return arguments


def _positional(tool: ToolDescription, arguments: Mapping[str, Any]) -> dict[int, Any]:
    names = argument_names(tool)
    if len(names) > ARGUMENTS_MAX:
        raise DeviceFault("argument_invalid", f"more than {ARGUMENTS_MAX} arguments")
    messages.check_names(arguments, names)
    params = {}
    for position, name in enumerate(names):
        if name not in arguments:
            if position < len(tool.request) and tool.request[position].optional:
                continue
            raise DeviceFault("argument_invalid", f"the argument {name!r} is missing", name)
        value = arguments[name]
        if position < len(tool.request):
            value = sent_value(tool.request[position], value)
        if tool.arg_types is not None:
            major = tool.arg_types[position]
            if major == BYTES and isinstance(value, str):
                value = bytes_of(Field(name=name), value)
            elif major in (0, 1) and isinstance(value, float) and value.is_integer():
                value = int(value)
            elif major == 7 and isinstance(value, int) and not isinstance(value, bool):
                try:
                    number = float(value)
                except OverflowError:
                    raise DeviceFault("argument_invalid", "out of range", name) from None
                if int(number) != value:
                    raise DeviceFault("argument_invalid", "an integer that no floating-point number holds", name)
                value = number
            if not _is_of_major_type(value, major):
                raise DeviceFault("argument_invalid", f"not of CBOR type {major}", name)
        _check_sendable(value, name, depth=2)  # the message and its params
        params[position] = value
    return params


def _received(field: Field, value: Any) -> Any:
    """Convert a received member of a result into a JSON value. Raise DeviceFault if it does not fit the field."""
    if field.type in INTEGERS:
        if not _is_integer(value, INTEGERS[field.type][1], INTEGERS[field.type][2]):
            raise DeviceFault("response_invalid", f"no {field.type}", field.name)
        return shown_number(field, value)
    if field.type in ("f32", "enum"):
        if isinstance(value, bool) or not isinstance(value, int | float if field.type == "f32" else int):
            raise DeviceFault("response_invalid", "not a number", field.name)
        return shown_number(field, value) if field.type == "f32" else enum_name(field, value)
    wanted = {"bool": bool, "bytes": bytes, "text": str}[field.type]
    if not isinstance(value, wanted):
        raise DeviceFault("response_invalid", f"no {field.type}", field.name)
    if field.size is not None and field.type != "bool":
        length = len(value if isinstance(value, bytes) else str(value).encode())
        if length > field.size or (field.type == "bytes" and length != field.size):
            raise DeviceFault("response_invalid", f"{length} bytes instead of {field.size}", field.name)
    return _json(value, field.name)


def _named(fields: Sequence[Field], payload: Any) -> dict[str, Any]:
    """Return the members of a result by name. An integer key in `payload` is the position of a field in `fields`."""
    if not isinstance(payload, dict):
        raise DeviceFault("response_invalid", "no map")
    described = {field.name: field for field in fields}
    members: dict[str, Any] = {}
    for key, value in payload.items():
        name = fields[key].name if isinstance(key, int) and 0 <= key < len(fields) else str(key)
        if name in members:
            raise DeviceFault("response_invalid", f"{name[:64]!r} twice", name[:64])
        if fields and name not in described:
            raise DeviceFault("response_invalid", f"{name[:64]!r} is not described", name[:64])
        members[name] = _received(described[name], value) if fields else _json(value, name)
    for field in fields:
        if field.name not in members and not field.optional:
            raise DeviceFault("response_invalid", f"{field.name!r} is missing", field.name)
    return members


def _json(value: Any, path: str) -> Any:
    """Convert a CBOR value into a JSON value: bytes become base64, and keys become text. `path` names the value in
    errors.
    """
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, list):
        return [_json(member, path) for member in value]
    if isinstance(value, dict):
        members = {str(key): _json(member, path) for key, member in value.items()}
        if len(members) != len(value):
            raise DeviceFault("response_invalid", "a key twice", path)
        return members
    return value


_PYTHON_TYPES: Final[dict[int, type]] = {2: bytes, 3: str, 4: list, 5: dict}


def _is_of_major_type(value: Any, major: int) -> bool:
    """Return whether a value has this CBOR major type. Type 1 accepts all integers, and type 7 all numbers, booleans
    and null (AX-8.2-7).
    """
    if isinstance(value, bool) or value is None or isinstance(value, float):
        return major == 7
    if isinstance(value, int):
        return major in (1, 7) or (major == 0 and value >= 0)
    return major in _PYTHON_TYPES and isinstance(value, _PYTHON_TYPES[major])


def _check_sendable(value: Any, path: str, depth: int) -> None:
    if isinstance(value, dict | list):
        if depth == NESTING_MAX:
            raise DeviceFault("argument_invalid", "nested too deeply", path)
        for member in value.values() if isinstance(value, dict) else value:
            _check_sendable(member, path, depth + 1)
        if isinstance(value, dict):
            for key in value:
                _check_sendable(key, path, depth)
    elif isinstance(value, int) and not INTEGER_MIN <= value <= INTEGER_MAX:
        raise DeviceFault("argument_invalid", "an integer of more than 64 bits", path)
    elif isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:  # half a surrogate pair
            raise DeviceFault("argument_invalid", "not Unicode text", path) from None
