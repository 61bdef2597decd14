"""Schemas of a device's tools: JSON Schema out of layouts (Profile A) or CBOR major types (Profile B, AX-8.2-7)."""

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from interlock.devices.protocol.cbor_codec import MAP, argument_names
from interlock.devices.protocol.description import TOOLS_MAX, Field, LinkDescription, Tool
from interlock.devices.protocol.layouts import is_number, is_whole, limits
from interlock.devices.protocol.messages import Announced, DeviceFault, Registration

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
    """Return the JSON Schema of a field as a person writes or reads it. The unit is in the description."""
    schema: dict[str, Any] = {}
    if is_number(field):
        least, greatest = limits(field)
        schema["type"] = "integer" if is_whole(field) else "number"
        if least is not None:
            schema["minimum"] = least
        if greatest is not None:
            schema["maximum"] = greatest
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


def input_schema(tool: Tool) -> dict[str, Any]:
    """Return the input schema: that of the description, otherwise one from its layout or the announced types."""
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


def output_schema(tool: Tool) -> dict[str, Any] | None:
    """Return the output schema, or None if only the announced type is known (AX-10.4-3)."""
    if tool.output_schema is not None:
        return tool.output_schema
    if tool.arg_types is None or tool.response:
        read = tuple(register.field for register in tool.registers if not register.write)
        return object_schema(tool.response or read)
    if tool.ret_type in (None, MAP):
        return None
    return _closed({"value": _MAJOR_TYPES[tool.ret_type or 0]}, ["value"])


def announced_tool(announced: Announced, described: Tool | None, link: LinkDescription) -> Tool:
    """Return a tool of Profile B: what the device announced, named and narrowed by its description (AX-B.2-5).

    Raises DeviceFault (unexpected) if the two contradict each other, or if results are no maps (AX-B.2-3).
    """
    if announced.ret_type != MAP and not link.allow_values:
        raise DeviceFault("unexpected", f"tool {announced.id} returns no map, and allow_values is not set")
    tool = described or Tool(id=announced.id, name=announced.name or f"tool_{announced.id}")
    for described_types, announced_types in (
        (tool.arg_types, announced.arg_types),
        (tool.ret_type, announced.ret_type),
    ):
        if described_types is not None and described_types != announced_types:
            raise DeviceFault(
                "unexpected", f"tool {tool.id} announces {announced_types}; its description has {described_types}"
            )
    if len(tool.request) > len(announced.arg_types):
        raise DeviceFault(
            "unexpected",
            f"tool {tool.id} takes {len(announced.arg_types)} arguments; its description has {len(tool.request)}",
        )
    for field, major in zip(tool.request, announced.arg_types, strict=False):
        if major not in FIELD_TYPES[field.type]:
            raise DeviceFault("unexpected", f"tool {tool.id} takes {field.name!r} as CBOR type {major}", field.name)
    return msgspec.structs.replace(tool, arg_types=announced.arg_types, ret_type=announced.ret_type)


def object_schema(fields: Sequence[Field]) -> dict[str, Any]:
    return _closed(
        {field.name: field_schema(field) for field in fields}, [field.name for field in fields if not field.optional]
    )


def _closed(properties: dict[str, Any], required: list[str]) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "object", "properties": properties, "additionalProperties": False}
    if required:
        schema["required"] = required
    return schema


class Announcement:
    """The announcement of a self-describing device (AX-B.2-5, AX-8.N-1), collected from its frames and applied as a
    whole.

    Frames are numbered from 0, and each but the last says that more follow. A frame out of order, a repeated id or more
    than 64 tools end the announcement with a DeviceFault; the previous tools stay, and the device is asked again.
    """

    def __init__(self) -> None:
        self._tools: dict[int, Announced] = {}
        self._next_part = 0

    def add(self, registration: Registration) -> tuple[Announced, ...] | None:
        """Add a frame. Return all tools once the last frame is here, otherwise None. Raises DeviceFault (malformed,
        unexpected).
        """
        if registration.part == 0:
            self.reset()
        if registration.part != self._next_part:
            self.reset()
            raise DeviceFault("unexpected", f"frame {registration.part} of an announcement out of its turn")
        for tool in registration.tools:
            if tool.id in self._tools:
                self.reset()
                raise DeviceFault("malformed", f"tool {tool.id} twice")
            self._tools[tool.id] = tool
        if len(self._tools) > TOOLS_MAX:
            self.reset()
            raise DeviceFault("malformed", f"more than {TOOLS_MAX} tools")
        self._next_part += 1
        if registration.more:
            return None
        tools = tuple(self._tools.values())
        self.reset()
        return tools

    def reset(self) -> None:
        """Forget the frames, because the connection is new or the device began again."""
        self._tools.clear()
        self._next_part = 0
