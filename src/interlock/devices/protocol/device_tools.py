"""The tools of a device: what its description, or its own announcement, makes of its command numbers.

A tool of Profile A is the description's. A tool of Profile B is announced by the device as a number with CBOR types;
the description, if there is one, gives it a name, field names and a capability, and must not contradict the
announcement. From either, `device_tool` builds the entry of tools/list with its JSON Schemas and its capability
annotation, and compiles the schemas, because arguments and results are checked by them.

`Announcements` applies announcements of one device: each as a whole, and only a few changes within a time, because a
changed list of tools makes every client read the list again.
"""

from collections import deque
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from interlock.ax.protocol.capability import NATIVE, TRANSPORT_CLASSES, InvalidAnnotation, hints, read_capability
from interlock.ax.protocol.hop_metadata import CAPABILITY
from interlock.devices.protocol.cbor_codec import MAP, argument_names
from interlock.devices.protocol.description import TOOLS_MAX, DeviceDescription, Field, LinkDescription, ToolDescription
from interlock.devices.protocol.layouts import is_number, is_whole, limits
from interlock.devices.protocol.messages import Announced, AnnouncementFrame, DeviceFault
from interlock.wire.jsonrpc.codec import encode_value
from interlock.wire.schemas.validators import Compiled, compile_schema

_MAJOR_TYPES: Final[dict[int, dict[str, Any]]] = {
    0: {"type": "integer", "minimum": 0},
    1: {"type": "integer"},
    2: {"type": "string", "contentEncoding": "base64"},
    3: {"type": "string"},
    4: {"type": "array"},
    5: {"type": "object"},
    7: {"type": ["number", "boolean", "null"]},
}
# Which major types a described field may have: what it is on the wire.
FIELD_TYPES: Final[dict[str, tuple[int, ...]]] = {
    **dict.fromkeys(("u8", "u16", "u32", "enum"), (0, 1)),
    **dict.fromkeys(("i8", "i16", "i32"), (1,)),
    "f32": (7,),
    "bool": (7,),
    "bytes": (2,),
    "text": (3,),
}


def field_schema(field: Field) -> dict[str, Any]:
    """Return the JSON Schema of a field, for the values that clients write and read. The unit is in the schema's
    description.
    """
    schema: dict[str, Any] = {}
    if is_number(field):
        least, greatest = limits(field)
        schema["type"] = "integer" if is_whole(field) else "number"
        ends = {"minimum": least, "maximum": greatest}
        schema |= {key: end for key, end in ends.items() if end is not None}
    elif field.type == "bool":
        schema["type"] = "boolean"
    elif field.type == "enum":
        schema |= {"type": "string", "enum": list(field.values)}
    elif field.type == "bytes":
        schema |= {"type": "string", "contentEncoding": "base64"}
        if field.size is not None:
            length = (field.size + 2) // 3 * 4
            schema |= {"minLength": length, "maxLength": length}
    else:
        schema["type"] = "string"
        if field.size is not None:
            schema["maxLength"] = field.size
    texts = [text for text in (field.description, field.unit and f"in {field.unit}") if text]
    if texts:
        schema["description"] = ", ".join(texts)
    return schema


def input_schema(tool: ToolDescription) -> dict[str, Any]:
    """Return the input schema of a tool: the one in its description, or one that follows from its layout or its
    announced types.
    """
    if tool.input_schema is not None:
        return tool.input_schema
    if tool.arg_types is None:
        written = tuple(register.field for register in tool.registers if register.write)
        return object_schema(tool.request or written)
    properties = {
        name: field_schema(tool.request[position]) if position < len(tool.request) else _MAJOR_TYPES[major]
        for position, (name, major) in enumerate(zip(argument_names(tool), tool.arg_types, strict=True))
    }
    optional = {field.name for field in tool.request if field.optional}
    return _closed(properties, [name for name in properties if name not in optional])


def output_schema(tool: ToolDescription) -> dict[str, Any] | None:
    """Return the output schema of a tool, or None if nothing is known of its result except that it is a map
    (AX-10.4-3).
    """
    if tool.output_schema is not None:
        return tool.output_schema
    if tool.arg_types is None or tool.response:
        read = tuple(register.field for register in tool.registers if not register.write)
        return object_schema(tool.response or read)
    if tool.ret_type in (None, MAP):
        return None
    return _closed({"value": _MAJOR_TYPES[tool.ret_type or 0]}, ["value"])


def announced_tool(announced: Announced, described: ToolDescription | None, link: LinkDescription) -> ToolDescription:
    """Combine what a Profile B device announced about a tool with the tool's description (AX-B.2-5).

    The description adds names and narrows types. Raise DeviceFault (unexpected) if the two contradict each other, or if
    the results are not maps (AX-B.2-3).
    """
    if announced.ret_type != MAP and not link.allow_values:
        raise DeviceFault("unexpected", f"tool {announced.id} returns no map, and allow_values is not set")
    tool = described or ToolDescription(id=announced.id, name=announced.name or f"tool_{announced.id}")
    for described_types, types in ((tool.arg_types, announced.arg_types), (tool.ret_type, announced.ret_type)):
        if described_types is not None and described_types != types:
            detail = f"tool {tool.id} announces {types}; its description has {described_types}"
            raise DeviceFault("unexpected", detail)
    count = len(announced.arg_types)
    if len(tool.request) > count:
        detail = f"tool {tool.id} takes {count} arguments; its description has {len(tool.request)}"
        raise DeviceFault("unexpected", detail)
    for field, major in zip(tool.request, announced.arg_types, strict=False):
        if major not in FIELD_TYPES[field.type]:
            raise DeviceFault("unexpected", f"tool {tool.id} takes {field.name!r} as CBOR type {major}", field.name)
    return msgspec.structs.replace(tool, arg_types=announced.arg_types, ret_type=announced.ret_type)


def object_schema(fields: Sequence[Field]) -> dict[str, Any]:
    required = [field.name for field in fields if not field.optional]
    return _closed({field.name: field_schema(field) for field in fields}, required)


def _closed(properties: dict[str, Any], required: list[str]) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "object", "properties": properties, "additionalProperties": False}
    if required:
        schema["required"] = required
    return schema


class Announcement:
    """A list of tools that a device sends in several frames (AX-B.2-5, AX-8.N-1). It takes effect once all its frames
    have arrived.

    Frames are numbered from 0, and each except the last says that more follow. A frame out of order, a repeated id or
    more than 64 tools end the announcement with a DeviceFault. The device then keeps its previous tools and is asked
    again.
    """

    def __init__(self) -> None:
        self._tools: dict[int, Announced] = {}
        self._next_part = 0

    def add(self, registration: AnnouncementFrame) -> tuple[Announced, ...] | None:
        """Add a frame. Return all tools after the last frame, and None before it. Raise DeviceFault (malformed,
        unexpected) if the frame is invalid.
        """
        part = registration.part
        tools, next_part = ({}, 0) if part == 0 else (self._tools, self._next_part)
        self.reset()  # what came before is dropped if this frame is invalid, and not needed if it is the last one
        if part != next_part:
            raise DeviceFault("unexpected", f"frame {part} of an announcement out of its turn")
        for tool in registration.tools:
            if tool.id in tools:
                raise DeviceFault("malformed", f"tool {tool.id} twice")
            tools[tool.id] = tool
        if len(tools) > TOOLS_MAX:
            raise DeviceFault("malformed", f"more than {TOOLS_MAX} tools")
        if not registration.more:
            return tuple(tools.values())
        self._tools, self._next_part = tools, part + 1
        return None

    def reset(self) -> None:
        """Discard an incomplete announcement, because the connection is new or the device has started again."""
        self._tools = {}
        self._next_part = 0


_CLASSES = frozenset(transport.id for transport in TRANSPORT_CLASSES)


class DeviceTool(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """A tool of a device, with its compiled schemas and its entry in tools/list."""

    tool: ToolDescription
    input: Compiled
    output: Compiled | None
    item: bytes  # its entry in tools/list


def transport_class(description: DeviceDescription) -> str:
    """Return the MCP-AX transport class of a device. Modbus has no such class: a Modbus device counts as native
    (AX-C.2-1).
    """
    transport = description.link.transport
    return transport if transport in _CLASSES else NATIVE


def declared_class(tool: ToolDescription) -> dict[str, Any]:
    """Return the values of `mutable`, `reversible` and `latency_class` that the description of a tool sets."""
    values = {key: getattr(tool, key) for key in ("mutable", "reversible", "latency_class")}
    return {key: value for key, value in values.items() if value is not None}


def device_tool(segment: str, description: DeviceDescription, tool: ToolDescription) -> DeviceTool:
    """Build a tool from its description. Raise ValueError if a schema or the capability is invalid."""
    takes, gives = input_schema(tool), output_schema(tool)
    compiled = compile_schema(takes)
    output = None if gives is None else compile_schema(gives)
    if compiled is None or (gives is not None and output is None):
        raise ValueError(f"a schema of {tool.name} is no JSON Schema")
    text = tool.description or f"Command {tool.id} of the device {segment}."
    item: dict[str, Any] = {"name": tool.name, "description": text, "inputSchema": takes}
    if gives is not None:
        item["outputSchema"] = gives
    capability = {**tool.capability, "transport": transport_class(description), **declared_class(tool)}
    if tool.idempotent or tool.mutable is False:
        capability["idempotent"] = True
    if tool.mutable is not None:  # else a person is asked what it does
        read = read_capability(capability, private=None)
        if isinstance(read, InvalidAnnotation):
            raise ValueError(f"the capability of {tool.name} is wrong: {read.reason}")
        item["annotations"] = hints(read)
    item["_meta"] = {CAPABILITY: capability}
    return DeviceTool(tool=tool, input=compiled, output=output, item=encode_value(item))


CHANGES_MAX: Final = 3  # announcements that differ from the last one, within
CHANGES_S: Final = 3.0


class AnnouncedTooOften(Exception):
    """Error for a device that changes its list of tools too often, so that the meaning of its tool numbers is
    unknown.
    """


class Announcements(Announcement):
    """The tools that one device has announced, under the names that its description gives them (AX-B.3-4)."""

    def __init__(self, segment: str, description: DeviceDescription) -> None:
        super().__init__()
        self._segment = segment
        self._description = description
        self._described = {tool.id: tool for tool in description.tools}
        self.missing: tuple[str, ...] = ()  # described and not announced
        self._announced: tuple[Announced, ...] | None = None  # last, and taken
        self._named: dict[str, DeviceTool] = {}
        self._changes: deque[float] = deque(maxlen=CHANGES_MAX)

    def take(self, registration: AnnouncementFrame, now: float) -> dict[str, DeviceTool] | None:
        """Add one frame of an announcement. Return all tools by name after the last frame, and None before it.

        Raise DeviceFault if the announcement is invalid, or AnnouncedTooOften if the tools change too often. The
        previous tools are kept in both cases.
        """
        if (announced := self.add(registration)) is None:
            return None
        if announced == self._announced:
            return self._named
        if len(self._changes) == CHANGES_MAX and now - self._changes[0] < CHANGES_S:
            raise AnnouncedTooOften
        self._changes.append(now)
        link = self._description.link
        tools: dict[str, DeviceTool] = {}
        for entry in announced:
            tool = announced_tool(entry, self._described.get(entry.id), link)
            if tool.name in tools:
                raise DeviceFault("malformed", f"two tools have the name {tool.name}")
            try:
                tools[tool.name] = device_tool(self._segment, self._description, tool)
            except ValueError as error:
                raise DeviceFault("malformed", str(error)) from error
        ids = {entry.id for entry in announced}
        self.missing = tuple(tool.name for tool in self._description.tools if tool.id not in ids)
        self._announced, self._named = announced, tools
        return tools
