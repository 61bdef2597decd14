"""The check of a device's description: the rules that no type can express, each fault with its place in the file.

`read_description` takes the table as a person wrote it and returns the description, or the faults in it, so that a
person can correct several at once. Unknown keys are reported first and alone: a misspelled key would otherwise show up
as a missing one. Places are paths into the table, from which a reader of the file finds the line.

The rules protect hardware. A tool that cannot be undone needs a link that detects wrong bytes (AX-8.1-2), a broker on
another machine needs TLS (AX-10.4-2), and a layout must fit the frames of the link.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from math import isfinite
from typing import Any, Final, get_args

import msgspec

from interlock.ax.protocol.capability import InvalidAnnotation, read_capability
from interlock.ax.protocol.names import is_segment
from interlock.devices.protocol.description import TOOLS_MAX, DeviceDescription, Event, Field, Profile, ToolDescription
from interlock.devices.protocol.device_tools import declared_class
from interlock.devices.protocol.frame_codec import HEAD_BYTES, STATUS_BYTES, message_max
from interlock.devices.protocol.framing import framing_name
from interlock.devices.protocol.layouts import is_number, layout_size, size_of, type_limits
from interlock.devices.protocol.modbus_codec import register_faults
from interlock.net.protocol.address_scope import is_loopback
from interlock.wire.schemas.validators import compile_schema

Path = tuple[str | int, ...]

BAUD_MIN_B: Final = 9600  # MCP-AX B.2
TLV_HEAD_BYTES: Final = 2

_EVERY: Final = ("transport", "max_frame", "heartbeat_ms", "timeout_ms", "retries", "in_flight", "allow_unchecked")
_CBOR: Final = ("emit_jsonrpc", "allow_values")
_LINE: Final = ("port", "baud", "parity")
_KEYS: Final[Mapping[str, tuple[str, ...]]] = {
    "uart_cbor": (
        *(*_CBOR, *_LINE, "framing", "sof", "len", "crc", "status", "gap_ms"),
        *("presence", "gpio", "reset_on_open"),
    ),
    "ble_cbor": (*_CBOR, "address", "service", "write", "notify"),
    "spi_cbor": (*_CBOR, "bus", "chip", "speed_hz", "poll_ms", "gpio"),
    "can_cbor": (*_CBOR, "interface", "channel", "rx_id", "tx_id"),
    "mqtt_json": ("host", "tcp_port", "username", "password", "tls", "topic", "allow_values"),
    "modbus_tcp": ("host", "tcp_port", "unit"),
    "modbus_rtu": (*_LINE, "unit", "echo"),
}
_NEEDS: Final[Mapping[str, tuple[tuple[str, str], ...]]] = {  # with an example of each
    "uart_cbor": (("port", '"/dev/ttyUSB0"'),),
    "ble_cbor": (("address", '"C0:FF:EE:00:00:01"'),),
    "can_cbor": (("channel", '"can0"'), ("rx_id", "0x123"), ("tx_id", "0x456")),
    "mqtt_json": (("host", '"localhost"'),),
    "modbus_tcp": (("host", '"192.168.0.10"'),),
    "modbus_rtu": (("port", '"/dev/ttyUSB0"'),),
}
_TRANSPORTS_OF: Final[Mapping[Profile, tuple[str, ...]]] = {
    "a": ("uart_cbor",),
    "b": ("uart_cbor", "ble_cbor", "spi_cbor", "can_cbor"),
    "json": ("mqtt_json",),
    "modbus": ("modbus_tcp", "modbus_rtu"),
}
_UUID: Final = re.compile(r"[0-9A-Fa-f]{4}|[0-9A-Fa-f]{8}|[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}")
_STEP: Final = re.compile(r"\.([A-Za-z_][A-Za-z0-9_]*)|\[(\d+|\.\.\.)\]")


class DescriptionFault(msgspec.Struct, frozen=True, kw_only=True):
    """A fault in a description, with its place and a hint how to correct it."""

    path: Path
    message: str
    hint: str | None = None
    unknown: str | None = None  # a key that does not exist
    existing: tuple[str, ...] = ()  # the keys that do


def read_description(table: Mapping[str, Any]) -> DeviceDescription | tuple[DescriptionFault, ...]:
    """Read the content of `.devices/SEGMENT.toml`. Return the description, or its faults.

    If there are unknown keys, only these are returned; if a value has the wrong type, only the first one.
    """
    unknown = tuple(_unknown_keys(table, DeviceDescription, ()))
    if unknown:
        return unknown
    try:
        description = msgspec.convert(table, DeviceDescription)
    except msgspec.ValidationError as error:
        return (_convert_error(str(error)),)
    link = table.get("link")
    faults = tuple(check_description(description, link if isinstance(link, dict) else {}))
    return faults or description


def is_checked(description: DeviceDescription) -> bool:
    """Return whether changed bytes on the link of a device are detected, by a checksum in the frames or by the bus
    itself.
    """
    link = description.link
    if link.transport == "uart_cbor":
        return link.crc in ("crc8", "crc16") or framing_name(link, description.profile) == "frame"
    return link.transport != "spi_cbor"


def check_description(description: DeviceDescription, written: Mapping[str, Any]) -> Iterator[DescriptionFault]:
    """Return the faults of a description. `written` contains the keys of [link] that are in the file, without
    defaults.
    """
    link, profile = description.link, description.profile
    may = _TRANSPORTS_OF[profile]
    if link.transport not in may:
        message = f"a device of profile '{profile}' has no transport {link.transport}"
        yield _fault(("link", "transport"), message, f"write one of {', '.join(may)}")
    for key in written:
        if key not in _EVERY and key not in _KEYS[link.transport]:
            homes = ", ".join(name for name, keys in _KEYS.items() if key in keys)
            yield _fault(("link", key), f"'{key}' is no key of {link.transport}", f"it belongs to {homes}")
    for key, example in _NEEDS.get(link.transport, ()):
        if getattr(link, key) is None:
            yield _fault(("link",), f"{link.transport} needs '{key}'", f"for instance {key} = {example}")
    if link.transport == "uart_cbor":
        yield from _check_line(description)
    if link.transport == "can_cbor" and link.rx_id is not None and link.rx_id == link.tx_id:
        yield _fault(("link", "tx_id"), "rx_id and tx_id are the same", "the device sends with rx_id and hears tx_id")
    for key in ("service", "write", "notify"):
        if (uuid := getattr(link, key)) is not None and _UUID.fullmatch(uuid) is None:
            hint = f'for instance {key} = "4d435041-5800-4b1e-9c52-7f0a6b1d3e20"'
            yield _fault(("link", key), f"{uuid[:64]!r} is no UUID of Bluetooth", hint)
    if link.transport == "mqtt_json" and link.host is not None and link.tls is None and not is_loopback(link.host):
        message = "a broker beyond this machine is reached with TLS"  # AX-10.4-2
        yield _fault(("link", "host"), message, "write tls = true, or tls = false where anybody may read and write")
    yield from _check_tools(description)
    yield from _check_names("event", description.events)


def _fault(path: Path, message: str, hint: str | None = None) -> DescriptionFault:
    return DescriptionFault(path=path, message=message, hint=hint)


def _check_line(description: DeviceDescription) -> Iterator[DescriptionFault]:
    link = description.link
    if description.profile == "b" and link.baud < BAUD_MIN_B:  # AX-B.2-2
        yield _fault(("link", "baud"), f"a device of profile 'b' has {BAUD_MIN_B} baud or more, not {link.baud}")
    elif link.baud < 1:
        yield _fault(("link", "baud"), f"no line has {link.baud} baud")
    if link.crc == "none" and framing_name(link, description.profile) == "frame":
        yield _fault(("link", "crc"), "a frame has a checksum", 'write crc = "crc8" or crc = "crc16", or leave it out')
    if description.profile == "a" and link.framing == "cobs":
        yield _fault(("link", "framing"), "a device of profile 'a' speaks in frames", "leave 'framing' out")
    if description.profile == "b" and link.presence not in ("poll", "assume"):
        message = f"presence = '{link.presence}' is for profile 'a': a device of profile 'b' announces itself"
        yield _fault(("link", "presence"), message, "leave it out, or write presence = 'assume'")
    if link.presence == "gpio" and link.gpio is None:
        hint = "name the file that reads 1 while it is there"
        yield _fault(("link", "presence"), "presence = 'gpio' needs 'gpio'", hint)
    if link.presence == "cts" and (link.port or "").startswith("socket://"):
        yield _fault(("link", "presence"), "a socket has no CTS", "write presence = 'poll'")


def _check_tools(description: DeviceDescription) -> Iterator[DescriptionFault]:
    if len(description.tools) > TOOLS_MAX:
        yield _fault(("tool",), f"a device has at most {TOOLS_MAX} tools, not {len(description.tools)}")
    if not description.tools and description.profile != "b":
        yield _fault((), "it has no tools", "write [[tool]] for each of its commands")
    yield from _check_names("tool", description.tools)
    for index, tool in enumerate(description.tools):
        at: Path = ("tool", index)
        yield from _check_class(description, tool, at)
        yield from _check_layout(tool, tool.request, "request", tool.req_len, at)
        yield from _check_layout(tool, tool.response, "response", tool.resp_len, at)
        if description.profile == "a":
            yield from _check_frame(description, tool, at)
        yield from _check_words(tool, at)
        if tool.registers and description.profile != "modbus":
            yield _fault((*at, "registers"), "registers belong to a device of profile 'modbus'")
        if not tool.registers and description.profile == "modbus":
            yield _fault(at, f"{tool.name!r} has no registers", "write registers = [{ table, address, field }]")
        for number, register in enumerate(tool.registers):
            for message in register_faults(register):
                yield _fault((*at, "registers", number), message)
        fields = tuple(register.field for register in tool.registers)
        yield from _check_fields(fields, (*at, "registers"), is_tlv=False, is_row=False)


def _check_class(description: DeviceDescription, tool: ToolDescription, at: Path) -> Iterator[DescriptionFault]:
    for key in ("mutable", "reversible"):  # AX-B.1-1: no default is safe for hardware
        if getattr(tool, key) is None and description.profile in ("a", "modbus"):
            hint = f"write {key} = true or {key} = false"
            yield _fault(at, f"{tool.name!r} does not say whether it is {key}", hint)
    is_final = tool.mutable is True and tool.reversible is False
    if is_final and not description.link.allow_unchecked and not is_checked(description):  # AX-8.1-2, AX-8.N-3
        message = f"{tool.name!r} cannot be undone, and nothing on this link finds a wrong byte"
        yield _fault(at, message, 'write crc = "crc16" in [link], or allow_unchecked = true')


def _check_words(tool: ToolDescription, at: Path) -> Iterator[DescriptionFault]:
    """Yield the faults in a tool's capability, status names and JSON Schemas."""
    capability = read_capability({**tool.capability, **declared_class(tool)}, private=None)
    if isinstance(capability, InvalidAnnotation):
        yield _fault(at, f"the capability of {tool.name!r} is wrong: {capability.reason}")
    for number in tool.status:
        if not number.removeprefix("-").isdecimal() or int(number) == 0:
            hint = 'for instance status = { "3" = "overheated" }'
            yield _fault((*at, "status"), f"{number[:64]!r} is no status", hint)
    for key in ("input_schema", "output_schema"):
        schema = getattr(tool, key)
        if schema is not None and (schema.get("type") != "object" or compile_schema(schema) is None):
            yield _fault((*at, key), f"{key} of {tool.name!r} is no JSON Schema of an object")


def _check_names(kind: str, entries: Sequence[ToolDescription | Event]) -> Iterator[DescriptionFault]:
    for key in ("id", "name"):
        values = [getattr(entry, key) for entry in entries]
        for index, value in enumerate(values):
            if (first := values.index(value)) < index:
                message = f"{key} {value!r} is that of {kind} number {first + 1} already"
                yield _fault((kind, index, key), message, "give each its own")
    for index, entry in enumerate(entries):
        if not is_segment(entry.name):
            message = f"the name {entry.name[:64]!r} is not 1 to 63 characters of a-z, 0-9, _ and -"
            yield _fault((kind, index, "name"), message)
        if isinstance(entry, Event):
            yield from _check_fields(entry.response, (kind, index, "response"), is_tlv=False)


def _check_layout(
    tool: ToolDescription, fields: tuple[Field, ...], side: str, length: int | None, at: Path
) -> Iterator[DescriptionFault]:
    path = (*at, side)
    yield from _check_fields(fields, path, is_tlv=tool.payload == "tlv")
    if length is None or tool.payload != "struct":
        return
    key = "req_len" if side == "request" else "resp_len"
    fixed, least = layout_size("struct", fields), sum(size_of(field) or 0 for field in fields)
    if least > length or (fixed is not None and fixed != length):
        some, size = (" at least", least) if fixed is None else ("", fixed)
        yield _fault((*at, key), f"the {side} of {tool.name!r} is{some} {size} bytes long, and {key} says {length}")


def _check_frame(description: DeviceDescription, tool: ToolDescription, at: Path) -> Iterator[DescriptionFault]:
    """Return the faults of a tool of Profile A: messages that are too large for a frame, and enum numbers that are too
    large for their field.
    """
    most = message_max(description)
    response_bytes = HEAD_BYTES + STATUS_BYTES
    for side, fields, beside in (("request", tool.request, HEAD_BYTES), ("response", tool.response, response_bytes)):
        needed = [field for field in fields if not field.optional]
        size = beside + sum((size_of(field) or 0) + TLV_HEAD_BYTES * (tool.payload == "tlv") for field in needed)
        if size > most:
            message = f"the {side} of {tool.name!r} makes a message of {size} bytes, and the link takes {most}"
            yield _fault((*at, side), message, "make 'max_frame' of [link] larger, or the fields shorter")
        for index, field in enumerate(fields):
            size = field.size or 1
            for name, number in field.values.items():
                if field.type == "enum" and (number < 0 or number.bit_length() > 8 * size):
                    message = f"{name[:64]!r} of {field.name!r} is {number}, which {size} bytes do not hold"
                    yield _fault((*at, side, index, "values"), message)


def _check_fields(
    fields: tuple[Field, ...], path: Path, *, is_tlv: bool, is_row: bool = True
) -> Iterator[DescriptionFault]:
    """Return the faults of fields. `is_row` means that the fields follow each other in one payload; otherwise each is
    in its own register.
    """
    names, tags = [field.name for field in fields], Counter(field.tag for field in fields)
    for index, field in enumerate(fields):
        at = (*path, index)
        if not field.name:
            yield _fault((*at, "name"), "a field needs a name")
        if field.name in names[:index]:
            yield _fault((*at, "name"), f"two fields have the name {field.name!r}", "give each its own")
        yield from _check_limits(field, at)
        if field.type == "enum" and not field.values:
            yield _fault(at, f"{field.name!r} is an enum without values", "for instance values = { off = 0, on = 1 }")
        if field.size is not None and field.type not in ("bytes", "text", "enum"):
            yield _fault((*at, "size"), f"only bytes, text and enum have a size of their own, not {field.type}")
        if (field.scale != 1.0 or field.offset != 0.0) and not is_number(field):
            yield _fault(at, f"only numbers have a scale or an offset, not {field.type}")
        if field.scale == 0:
            yield _fault((*at, "scale"), "a scale of 0 leaves nothing of the value")
        if is_tlv and (field.tag is None or tags[field.tag] > 1):
            yield _fault(at, f"{field.name!r} needs a tag of its own, as each field of a TLV")
        if not is_tlv and field.tag is not None:
            yield _fault((*at, "tag"), "tags belong to payload = 'tlv'")
        if not is_tlv and field.optional:
            yield _fault((*at, "optional"), "only a field of a TLV can be left out")
        is_open = field.type in ("bytes", "text") and field.size is None
        if is_row and not is_tlv and is_open and index < len(fields) - 1:
            yield _fault(at, f"{field.name!r} has no size, so that it must be the last", "write its size")


def _check_limits(field: Field, at: Path) -> Iterator[DescriptionFault]:
    """Yield the faults of a field: limits that its type does not allow, and numbers to which two names are assigned."""
    least, greatest = type_limits(field) if field.scale != 0 else (None, None)
    for key, limit in (("minimum", field.minimum), ("maximum", field.maximum)):
        if limit is None:
            continue
        is_beyond = least is not None and greatest is not None and not least <= limit <= greatest
        if is_beyond or not isfinite(limit):
            ends = "" if least is None else f", which has {least:.10g} to {greatest:.10g}"
            yield _fault((*at, key), f"{key} {limit:.10g} of {field.name!r} is no {field.type}{ends}")
    if field.minimum is not None and field.maximum is not None and field.minimum > field.maximum:
        message = f"minimum {field.minimum:.10g} of {field.name!r} is more than its maximum {field.maximum:.10g}"
        yield _fault((*at, "minimum"), message)
    names: dict[int, str] = {}
    for name, number in field.values.items():
        if (first := names.setdefault(number, name)) != name:
            message = f"{first[:64]!r} and {name[:64]!r} of {field.name!r} are both {number}"
            yield _fault((*at, "values"), message, "give each its own number")


def _unknown_keys(value: object, kind: type, path: Path) -> Iterator[DescriptionFault]:
    if isinstance(value, list):
        for index, entry in enumerate(value):
            yield from _unknown_keys(entry, kind, (*path, index))
    elif isinstance(value, dict):
        types = {field.encode_name: field.type for field in msgspec.structs.fields(kind)}
        for key, inside in value.items():
            if key not in types:
                message = f"unknown key {key[:64]!r}"
                yield DescriptionFault(path=(*path, key), message=message, unknown=key, existing=tuple(types))
                continue
            for inner in (types[key], *get_args(types[key])):  # a table, or a list of tables
                if isinstance(inner, type) and issubclass(inner, msgspec.Struct):
                    yield from _unknown_keys(inside, inner, (*path, key))


_EXPECTED: Final = re.compile(r"Expected `([^`]*)`, got `([^`]*)`")
_WORDS: Final = {
    "int": "a whole number",
    "float": "a number",
    "str": "a string",
    "bool": "true or false",
    "object": "a table",
    "array": "a list",
    "null": "nothing",
}


def _convert_error(error: str) -> DescriptionFault:
    """Convert an error message of msgspec into a fault with a text for a person who writes TOML."""
    message, _, place = error.partition(" - at `$")
    steps = [name or (int(index) if index.isdigit() else index) for name, index in _STEP.findall(place)]
    path = tuple(step for step in steps if step != "...")
    if (kinds := _EXPECTED.fullmatch(message)) is not None:
        wanted = " or ".join(_WORDS.get(kind.strip(), kind) for kind in kinds[1].split("|") if kind.strip() != "null")
        message = f"must be {wanted}, not {_WORDS.get(kinds[2], kinds[2])}"
    names, plain = [step for step in path if isinstance(step, str)], message.replace("`", "'")
    named = f"'{names[-1]}': " if names else ""
    return _fault(path, f"{named}{plain[:1].lower()}{plain[1:]}")
