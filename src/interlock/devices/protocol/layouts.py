"""Layouts of Profile A (AX-B.1-6): from arguments to the bytes that a device knows, and from its bytes to a result.

A payload is a fixed struct, TLV (tag, length, value; one byte each for tag and length) or raw bytes. A number on the
wire is the number that a person reads, less `offset`, divided by `scale`; bytes are base64 in JSON.

Values that do not fit exactly are refused and never rounded, cut or wrapped: a valve that is opened to a value that
no person wrote is worse than an error. Before sending, the fault is argument_invalid, after receiving response_invalid.
Scaled numbers are computed with decimals, so that 0.1 is one step of a scale of 0.1.
"""

import base64
import math
import struct
from collections.abc import Mapping, Sequence
from decimal import Decimal, InvalidOperation
from typing import Any, Final, Literal

from interlock.devices.protocol.description import Field, Order
from interlock.devices.protocol.messages import DeviceFault, check_names

Kind = Literal["struct", "tlv", "raw"]
Code = Literal["argument_invalid", "response_invalid"]

INTEGERS: Final[dict[str, tuple[int, int, int]]] = {  # bytes, least, greatest
    **{f"u{8 * size}": (size, 0, 2 ** (8 * size) - 1) for size in (1, 2, 4)},
    **{f"i{8 * size}": (size, -(2 ** (8 * size - 1)), 2 ** (8 * size - 1) - 1) for size in (1, 2, 4)},
}
TLV_VALUE_MAX: Final = 255
_F32_DIGITS: Final = 9  # enough for every f32
_OUT_OF_TEN: Final = Decimal(10) ** -6  # how far a scaled number may lie from a whole one: what floats do to decimals


def is_number(field: Field) -> bool:
    return field.type in INTEGERS or field.type == "f32"


def is_whole(field: Field) -> bool:
    """Return whether the values of a field are whole numbers for clients in all cases."""
    return field.type in INTEGERS and float(field.scale).is_integer() and float(field.offset).is_integer()


def size_of(field: Field) -> int | None:
    """Return the size of a field in bytes, or None if the size depends on the value."""
    if field.type in INTEGERS:
        return INTEGERS[field.type][0]
    return {"f32": 4, "bool": 1, "enum": field.size or 1}.get(field.type, field.size)


def layout_size(kind: Kind, fields: Sequence[Field]) -> int | None:
    """Return the size of a payload in bytes, or None if it has no fixed size."""
    sizes = [size for field in fields if (size := size_of(field)) is not None]
    return sum(sizes) if len(sizes) == len(fields) and (kind != "tlv" or not fields) else None


def limits(field: Field) -> tuple[float | None, float | None]:
    """Return the smallest and largest number that a client may write to a field, according to its type and
    description.
    """
    low, high = type_limits(field)
    least = [number for number in (field.minimum, low) if number is not None]
    greatest = [number for number in (field.maximum, high) if number is not None]
    return max(least, default=None), min(greatest, default=None)


def type_limits(field: Field) -> tuple[float | None, float | None]:
    """Return the smallest and largest number that the field's type can hold, in the unit that clients see."""
    if field.type not in INTEGERS:
        return None, None
    _, low, high = INTEGERS[field.type]
    ends = sorted((_shown(field, low), _shown(field, high)))
    return ends[0], ends[1]


def encode_payload(kind: Kind, order: Order, fields: Sequence[Field], arguments: Mapping[str, Any]) -> bytes:
    """Encode the arguments of a call. Raise DeviceFault (argument_invalid) if an argument does not fit its field."""
    check_names(arguments, {field.name for field in fields})
    out = bytearray()
    for field in fields:
        if field.name not in arguments:
            if field.optional and kind == "tlv":
                continue
            raise DeviceFault("argument_invalid", f"the argument {field.name!r} is missing", field.name)
        value = _packed(field, order, arguments[field.name])
        if kind == "tlv":
            if len(value) > TLV_VALUE_MAX:
                raise DeviceFault("argument_invalid", f"longer than {TLV_VALUE_MAX} bytes", field.name)
            out += bytes((field.tag or 0, len(value)))
        out += value
    return bytes(out)


def decode_payload(kind: Kind, order: Order, fields: Sequence[Field], payload: bytes) -> dict[str, Any]:
    """Decode the members of a result. Raise DeviceFault (response_invalid) if the payload does not fit the layout."""
    if kind == "tlv":
        return _decode_tlv(order, fields, payload)
    members = {}
    at = 0
    for field in fields:
        size = size_of(field)
        end = len(payload) if size is None else at + size
        if end > len(payload):
            raise DeviceFault("response_invalid", f"{len(payload)} bytes are too few", field.name)
        members[field.name] = _unpacked(field, order, payload[at:end])
        at = end
    if at != len(payload):
        raise DeviceFault("response_invalid", f"{len(payload)} bytes instead of {at}")
    return members


def _decode_tlv(order: Order, fields: Sequence[Field], payload: bytes) -> dict[str, Any]:
    by_tag = {field.tag: field for field in fields}
    members: dict[str, Any] = {}
    at = 0
    while at < len(payload):
        if (field := by_tag.get(payload[at])) is None:
            raise DeviceFault("response_invalid", f"unknown tag {payload[at]}")
        if field.name in members:
            raise DeviceFault("response_invalid", f"tag {payload[at]} twice", field.name)
        end = at + 2 + payload[at + 1] if at + 1 < len(payload) else len(payload) + 1
        if end > len(payload):
            raise DeviceFault("response_invalid", "a length beyond the payload", field.name)
        members[field.name] = _unpacked(field, order, payload[at + 2 : end])
        at = end
    for field in fields:
        if field.name not in members and not field.optional:
            raise DeviceFault("response_invalid", f"the tag {field.tag} is missing", field.name)
    return members


def wire_number(field: Field, value: Any) -> int | float:
    """Convert a number from a client into the number that is sent to the device. Raise DeviceFault if the number is out
    of range, or if an integer field cannot hold it exactly.
    """
    number = _check_number(field, value, "argument_invalid")
    if field.type == "f32":
        try:
            scaled = (number - field.offset) / field.scale
            if math.isinf(scaled):
                raise OverflowError
            struct.pack("<f", scaled)
        except OverflowError:
            raise DeviceFault("argument_invalid", f"{field.name} is out of range", field.name) from None
        return scaled
    try:
        exact = (Decimal(repr(number)) - Decimal(repr(field.offset))) / Decimal(repr(field.scale))
        whole = int(exact.to_integral_value())
    except InvalidOperation:
        raise DeviceFault("argument_invalid", f"{number} is out of range", field.name) from None
    if abs(exact - whole) > _OUT_OF_TEN:
        step = "a whole number" if field.scale == 1 else f"a multiple of {field.scale:g}"
        raise DeviceFault("argument_invalid", f"{number} is not {step}", field.name)
    _, low, high = INTEGERS[field.type]
    if not low <= whole <= high:
        raise DeviceFault("argument_invalid", f"{number} is out of range", field.name)
    return whole


def shown_number(field: Field, number: int | float) -> int | float:
    """Convert a received number into the number that clients see. Raise DeviceFault if it is not finite, or outside the
    limits in the description.
    """
    return _check_number(field, _shown(field, number), "response_invalid")


def _check_number(field: Field, value: Any, code: Code) -> int | float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise DeviceFault(code, "not a number", field.name)
    if isinstance(value, float) and not math.isfinite(value):
        raise DeviceFault(code, "not a finite number", field.name)
    if field.minimum is not None and value < field.minimum:
        raise DeviceFault(code, f"{value} is below {field.minimum}", field.name)
    if field.maximum is not None and value > field.maximum:
        raise DeviceFault(code, f"{value} is above {field.maximum}", field.name)
    return value


def enum_name(field: Field, number: Any) -> str:
    name = next((name for name, named_number in field.values.items() if named_number == number), None)
    if name is None:
        raise DeviceFault("response_invalid", f"{number!r} has no name", field.name)
    return name


def bytes_of(field: Field, value: Any) -> bytes:
    """Decode base64 text from a client. Raise DeviceFault if the value is not valid base64."""
    try:
        if isinstance(value, str):
            return base64.b64decode(value, validate=True)
    except ValueError:
        pass
    raise DeviceFault("argument_invalid", "not base64", field.name)


def _shown(field: Field, number: int | float) -> int | float:
    if field.scale == 1 and field.offset == 0:
        return number
    if field.type == "f32":
        return number * field.scale + field.offset
    exact = Decimal(int(number)) * Decimal(repr(field.scale)) + Decimal(repr(field.offset))
    return int(exact) if is_whole(field) else float(exact)


def sent_value(field: Field, value: Any) -> Any:
    """Convert an argument into the value that is sent: a number, bytes, text or a boolean. Raise DeviceFault if the
    argument does not fit the field.
    """
    fault = None
    if is_number(field):
        return wire_number(field, value)
    if field.type == "enum":
        if isinstance(value, str) and value in field.values:
            return field.values[value]
        fault = f"not one of {', '.join(field.values)}"
    elif field.type == "bytes":
        value = bytes_of(field, value)
        if field.size is not None and len(value) != field.size:
            fault = f"{len(value)} bytes instead of {field.size}"
    elif field.type == "bool":
        fault = None if isinstance(value, bool) else "neither true nor false"
    elif not isinstance(value, str):
        fault = "not text"
    elif field.size is not None and len(value.encode(errors="replace")) > field.size:
        fault = f"longer than {field.size} bytes"
    if fault is not None:
        raise DeviceFault("argument_invalid", fault, field.name)
    return value


def _packed(field: Field, order: Order, argument: Any) -> bytes:
    value = sent_value(field, argument)
    if field.type in INTEGERS:
        return int(value).to_bytes(INTEGERS[field.type][0], order, signed=field.type[0] == "i")
    match field.type:
        case "f32":
            return struct.pack("<f" if order == "little" else ">f", value)
        case "bool":
            return bytes((value,))
        case "enum":
            return int(value).to_bytes(field.size or 1, order)
        case "bytes":
            return bytes(value)
    try:
        data = str(value).encode()
    except UnicodeEncodeError:  # half a surrogate pair
        raise DeviceFault("argument_invalid", "not Unicode text", field.name) from None
    if field.size is not None and b"\0" in data:  # which ends the text within its field
        raise DeviceFault("argument_invalid", "a NUL within the text", field.name)
    return data.ljust(field.size or 0, b"\0")


def _unpacked(field: Field, order: Order, data: bytes) -> Any:
    if (size := size_of(field)) is not None and len(data) != size:
        raise DeviceFault("response_invalid", f"{len(data)} bytes instead of {size}", field.name)
    if field.type in INTEGERS:
        return shown_number(field, int.from_bytes(data, order, signed=field.type[0] == "i"))
    if field.type == "f32":
        return shown_number(field, _shortest_f32(struct.unpack("<f" if order == "little" else ">f", data)[0]))
    if field.type == "bool":
        if data not in (b"\0", b"\1"):
            raise DeviceFault("response_invalid", "neither true nor false", field.name)
        return data == b"\1"
    if field.type == "enum":
        return enum_name(field, int.from_bytes(data, order))
    if field.type == "bytes":
        return base64.b64encode(data).decode()
    if field.size is not None:
        data = data.rstrip(b"\0")
        if b"\0" in data:
            raise DeviceFault("response_invalid", "a NUL within the text", field.name)
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise DeviceFault("response_invalid", "not UTF-8", field.name) from None


def _shortest_f32(value: float) -> float:
    """Return the shortest decimal number that has this f32 value: 0.1, and not 0.10000000149011612."""
    if not math.isfinite(value) or value.is_integer():
        return value
    packed = struct.pack("<f", value)
    for digits in range(1, _F32_DIGITS):
        shorter = float(f"{value:.{digits}g}")
        if struct.pack("<f", shorter) == packed:
            return shorter
    return float(f"{value:.{_F32_DIGITS}g}")
