"""The scaffold of a device: from one description, its table and handlers in C, and the description for the gateway.

The C file is for the stub of firmware/ and compiles as it is. Until its handlers are filled in, tools that only read
answer zeros, and tools that may change something fail: a board that does nothing must not say that it acted. The
description is the same as the source, completed with the lengths or types of the table, so that the two cannot differ.
"""

import json
from collections.abc import Iterator
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from interlock.devices.protocol.cbor_codec import ARGUMENTS_MAX, MAP
from interlock.devices.protocol.description import DeviceDescription, Field, ToolDescription
from interlock.devices.protocol.device_tools import FIELD_TYPES
from interlock.devices.protocol.layouts import layout_size, size_of

UNFINISHED: Final = 252  # the greatest status that is not the stub's own (firmware/mcpax.h)
FRAME_MAX: Final = 96  # MCPAX_B_FRAME_MAX of firmware/mcpax.h
_C_TYPES: Final = {
    number: f"CBOR_{name}"
    for number, name in ((0, "UINT"), (1, "INT"), (2, "BYTES"), (3, "TEXT"), (4, "ARRAY"), (MAP, "MAP"), (7, "SIMPLE"))
}

# The draft's, with the words of firmware/mcpax.h that are empty but on an 8051
_PARAMETERS_B: Final = "const uint8_t MCPAX_IN_RAM *args, uint8_t MCPAX_IN_RAM *resp, uint16_t MCPAX_IN_RAM *resp_len"


class CannotScaffold(Exception):
    """Error for a description from which no stub can be generated. The message says why."""


def scaffold(segment: str, description: DeviceDescription) -> dict[str, str]:
    """Return the files of a new stub by path: its C code, and its description. Raise CannotScaffold if no stub can
    serve the description.
    """
    link = description.link
    if description.profile not in ("a", "b"):
        raise CannotScaffold(f"there is no stub for a device of profile '{description.profile}'")
    if not description.tools:
        raise CannotScaffold("it describes no tools")
    if description.profile == "a" and (link.len == 2 or link.crc == "crc16" or link.status == "first"):
        raise CannotScaffold("the stub has a LEN of one byte, CRC-8 and the status last: leave out len, crc and status")
    if description.profile == "b" and link.framing == "frame":
        raise CannotScaffold("the stub of profile 'b' has COBS frames: leave out framing")
    for entries in (description.tools, description.events):
        names: dict[str, str] = {}
        for entry in entries:
            other = names.setdefault(_identifier(entry.name), entry.name)
            if other != entry.name:
                raise CannotScaffold(f"{other!r} and {entry.name!r} have one name in C")
    # Complete the description with the lengths or types of the table, so that the table and the description agree.
    tools = []
    for tool in description.tools:
        if description.profile == "a":
            lengths = _length(tool, tool.request, "req_len"), _length(tool, tool.response, "resp_len")
            tools.append(replace(tool, req_len=lengths[0], resp_len=lengths[1]))
        elif len(tool.request) > ARGUMENTS_MAX:
            raise CannotScaffold(f"{tool.name!r} has more than {ARGUMENTS_MAX} arguments")
        else:
            arg_types = tool.arg_types or tuple(FIELD_TYPES[field.type][0] for field in tool.request)
            tools.append(replace(tool, arg_types=arg_types, ret_type=MAP if tool.ret_type is None else tool.ret_type))
    if description.profile == "b":
        link = replace(link, max_frame=min(link.max_frame, FRAME_MAX))
    written = replace(description, link=link, tools=tuple(tools))
    return {f"{_identifier(segment)}.c": _source(segment, written), f".devices/{segment}.toml": toml(written)}


def _length(tool: ToolDescription, fields: tuple[Field, ...], key: str) -> int:
    declared: int | None = getattr(tool, key)
    length = declared if declared is not None else layout_size(tool.payload, fields)
    if length is None:
        raise CannotScaffold(f"{tool.name!r} has no fixed length: write {key}, or a size for each field")
    return length


def _identifier(name: str) -> str:
    plain = name.replace("-", "_")
    return f"tool_{plain}" if plain[0].isdigit() else plain


def _constants(description: DeviceDescription) -> Iterator[str]:
    """Yield lines of C that define the ids of the events, and the status that unfinished handlers return."""
    profile = description.profile
    for event in description.events:
        text = f"The event {event.name}: {event.description or 'no description'}; sent by mcpax_{profile}_event"
        layout = _layout("out", event.response, event.order if profile == "a" else None)
        yield from ("", *_commented([text, *layout]))
        yield f"#define EVENT_{event.name.replace('-', '_').upper()} 0x{event.id:02X}"
    if any(tool.mutable is not False for tool in description.tools):
        taken = {int(number) for tool in description.tools for number in tool.status}
        unfinished = next(number for number in range(UNFINISHED, 0, -1) if number not in taken)
        yield from ("", "/* Goes when every handler is filled in. */", f"#define UNFINISHED {unfinished}")


def _source(segment: str, description: DeviceDescription) -> str:
    """Return the C file of a stub: its handlers, the table of them, and a main function."""
    profile, link = description.profile, description.link
    if profile == "a":
        table, row_type = "commands", "mcpax_cmd_t"
        longest = max(max(tool.req_len or 0, tool.resp_len or 0) for tool in description.tools)
        demands = {"MCPAX_A_SOF": ("!=", f"0x{link.sof:02X}"), "MCPAX_A_PAYLOAD_MAX": ("<", str(longest))}
    else:
        table, row_type = "tools", "mcpax_tool_t"
        bits = {"crc8": 8, "crc16": 16}.get(link.crc, 0)
        demands = {"MCPAX_B_CRC": ("!=", str(bits)), "MCPAX_B_FRAME_MAX": ("<", str(link.max_frame))}
    what = f"{table} of Profile {profile.upper()}"
    lines = [f"/* {segment}: {what}. A scaffold for firmware/mcpax.h: the handlers are yours. */"]
    lines += ['#include "mcpax.h"', ""]
    for macro, (operator, value) in demands.items():
        lines += [f"#if {macro} {operator} {value}", f'#error "build with -D{macro}={value}"', "#endif"]
    lines += _constants(description)
    rows = []
    for tool in description.tools:
        handler = f"{_identifier(tool.name)}_handler"
        lines += ["", *_comment(tool), *(_handler_a if profile == "a" else _handler_b)(tool, handler)]
        if tool.mutable is False:
            lines.append("    return 0; /* TODO: write what was read in place of the zeros */")
        else:
            todo = "do it, write the answer, and return 0 once it is done, or the status of what failed."
            lines += [f"    /* TODO: {todo} */", "    return UNFINISHED;"]
        lines.append("}")
        types = [_C_TYPES[major] for major in tool.arg_types or ()]
        returned = _C_TYPES[MAP if tool.ret_type is None else tool.ret_type]
        of_b = f"{len(types)}, {{{', '.join(types) or '0'}}}, {returned}"
        row = f"{tool.req_len}, {tool.resp_len}" if profile == "a" else of_b
        rows.append(f"    {{ 0x{tool.id:02X}, {row}, {handler} }},")
    size = table.upper()
    lines += ["", f"static const {row_type} {table}[] MCPAX_ROM = {{", *rows, "};"]
    lines += [f"#define {size} (sizeof {table} / sizeof {table}[0])", ""]
    lines += ["int main(void)", "{", "    mcpax_port_init();"]
    if profile == "b":
        lines.append(f"    mcpax_b_announce({table}, {size});")
    lines += ["    for (;;) {", f"        mcpax_{profile}_poll({table}, {size});", "    }", "}", ""]
    return "\n".join(lines)


def _handler_a(tool: ToolDescription, handler: str) -> Iterator[str]:
    """Yield the first lines of a C handler for Profile A. They fill the response with zeros."""
    yield from (f"static int {handler}(const uint8_t *req, uint8_t *resp)", "{", "    (void)req;")
    if tool.resp_len:
        loop = f"    for (at = 0; at < {tool.resp_len}; at++) {{"
        yield from ("    uint8_t at;", loop, "        resp[at] = 0;", "    }")
    else:
        yield "    (void)resp;"


def _handler_b(tool: ToolDescription, handler: str) -> Iterator[str]:
    """Yield the first lines of a C handler for Profile B. They write a CBOR map of zeros as the response."""
    yield from (f"static int {handler}(", f"    {_PARAMETERS_B}) MCPAX_HANDLER", "{")
    yield from ("    uint8_t MCPAX_IN_RAM *at = resp;", "    (void)args;")
    yield f"    *at++ = (uint8_t)(CBOR_MAP << 5 | {len(tool.response)});"
    for position, field in enumerate(tool.response):
        yield f"    at = mcpax_put_head(at, CBOR_UINT, {position}); /* {field.name} */"
        match field.type:
            case "bool":
                yield "    *at++ = 0xF4; /* false */"
            case "f32":
                yield from ("    *at++ = 0xF9; /* 0.0, of 16 bits */", "    *at++ = 0;", "    *at++ = 0;")
            case "enum":
                yield f"    at = mcpax_put_head(at, CBOR_UINT, {next(iter(field.values.values()))});"
            case "text":
                yield "    at = mcpax_put_head(at, CBOR_TEXT, 0);"
            case "bytes":
                yield f"    at = mcpax_put_head(at, CBOR_BYTES, {field.size or 0});"
                yield from ["    *at++ = 0;"] * (field.size or 0)
            case _:
                yield "    at = mcpax_put_head(at, CBOR_UINT, 0);"
    yield "    *resp_len = (uint16_t)(at - resp);"


def _comment(tool: ToolDescription) -> list[str]:
    order = tool.order if tool.payload == "struct" and tool.arg_types is None else None
    lines = [f"{tool.name}: {tool.description or 'no description'}"]
    lines += [*_layout("in", tool.request, order), *_layout("out", tool.response, order)]
    return _commented([*lines, *(f"status {number}: {name}" for number, name in tool.status.items())])


def _layout(word: str, fields: tuple[Field, ...], order: str | None) -> Iterator[str]:
    """Yield a line for each field of a message layout. The line has the byte offset of the field if `order` names a
    byte order, otherwise the position of the field.
    """
    at = 0
    for position, field in enumerate(fields):
        scaled = f", times {field.scale:g}" if field.scale != 1 else ""
        place = f"byte {at}, {order}-endian" if order else f"{position}"
        yield f"{word}, {place}: {field.name}, {field.type}{scaled}"
        at += size_of(field) or 0


def _commented(lines: list[str]) -> list[str]:
    """Return lines as a C comment. No text in the lines can end the comment early."""
    plain = [" ".join(line.replace("*/", "* /").replace("/*", "/ *").split()) for line in lines]
    return [f"/* {plain[0]}", *(f" * {line}" for line in plain[1:]), " */"]


def toml(description: DeviceDescription) -> str:
    """Return a description as TOML. Members with their default values are left out."""
    tables = msgspec.to_builtins(description)
    lines = [f"profile = {_value(description.profile)}"]
    if description.description is not None:
        lines.append(f"description = {_value(description.description)}")
    lines += ["", "[link]", *_pairs(tables["link"], _defaults(type(description.link)))]
    for kind, entries in (("tool", tables["tool"]), ("event", tables["event"])):
        for entry in entries:
            fields = {key: entry.pop(key) for key in ("request", "response") if key in entry}
            entry.pop("registers", None)
            lines += ["", f"[[{kind}]]", *_pairs(entry, _defaults(ToolDescription))]
            for key, many in fields.items():
                for each in many:
                    lines += ["", f"[[{kind}.{key}]]", *_pairs(each, _defaults(Field))]
    return "\n".join([*lines, ""])


def _defaults(kind: type[msgspec.Struct]) -> dict[str, Any]:
    defaults = {}
    for field in msgspec.structs.fields(kind):
        if not field.required:
            is_constructed = callable(field.default_factory)
            defaults[field.encode_name] = field.default_factory() if is_constructed else field.default
    return defaults


def _pairs(table: dict[str, Any], defaults: dict[str, Any]) -> Iterator[str]:
    for key, value in table.items():
        if value is not None and not (key in defaults and defaults[key] == value):
            yield f"{key} = {_value(value)}"


def _value(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{json.dumps(key)} = {_value(each)}" for key, each in value.items()) + " }"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_value(each) for each in value) + "]"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return json.dumps(value)
