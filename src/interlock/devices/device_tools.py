"""The tools of a device: what its description, or its own announcement, makes of its command numbers."""

from collections import deque
from typing import Any, Final

import msgspec

from interlock.ax.protocol.capability import Invalid, hints, read_capability
from interlock.ax.protocol.hop_metadata import CAPABILITY
from interlock.ax.protocol.transport_classes import NATIVE, TRANSPORT_CLASSES
from interlock.devices.protocol.description import DeviceDescription, Tool
from interlock.devices.protocol.messages import Announced, DeviceFault, Registration
from interlock.devices.protocol.tool_schemas import Announcement, announced_tool, input_schema, output_schema
from interlock.wire.jsonrpc.codec import encode_value
from interlock.wire.schemas.validators import Compiled, compile_schema

_CLASSES = frozenset(one.id for one in TRANSPORT_CLASSES)


class DeviceTool(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """A tool of a device with its compiled schemas and its entry in tools/list."""

    tool: Tool
    input: Compiled
    output: Compiled | None
    item: bytes  # its entry in tools/list

    @property
    def may_repeat(self) -> bool:
        """Return whether sending the call twice has the same effect as sending it once."""
        return self.tool.mutable is False or self.tool.idempotent


def transport_class(description: DeviceDescription) -> str:
    """Return the transport class of MCP-AX. Modbus has none: such a device counts as a native leaf (AX-C.2-1)."""
    transport = description.link.transport
    return transport if transport in _CLASSES else NATIVE


def device_tool(segment: str, description: DeviceDescription, tool: Tool) -> DeviceTool:
    """Build a tool from its description. Raises ValueError for an invalid schema or capability."""
    takes, gives = input_schema(tool), output_schema(tool)
    compiled = compile_schema(takes)
    output = None if gives is None else compile_schema(gives)
    if compiled is None or (gives is not None and output is None):
        raise ValueError(f"a schema of {tool.name} is no JSON Schema")
    item: dict[str, Any] = {
        "name": tool.name,
        "description": tool.description or f"Command {tool.id} of the device {segment}.",
        "inputSchema": takes,
    }
    if gives is not None:
        item["outputSchema"] = gives
    capability = _capability(description, tool)
    if tool.mutable is not None:  # else a person is asked what it does
        read = read_capability(capability, private=None)
        if isinstance(read, Invalid):
            raise ValueError(f"the capability of {tool.name} is wrong: {read.reason}")
        item["annotations"] = hints(read)
    item["_meta"] = {CAPABILITY: capability}
    return DeviceTool(tool=tool, input=compiled, output=output, item=encode_value(item))


def _capability(description: DeviceDescription, tool: Tool) -> dict[str, Any]:
    declared: dict[str, Any] = {"transport": transport_class(description)}
    for key in ("mutable", "reversible", "latency_class"):
        value = getattr(tool, key)
        if value is not None:
            declared[key] = value
    if tool.idempotent or tool.mutable is False:
        declared["idempotent"] = True
    return {**tool.capability, **declared}


CHANGES_MAX: Final = 3  # announcements that differ from the last one, within
CHANGES_S: Final = 3.0


class TooOften(Exception):
    """The device announces other tools faster than they are taken: what its numbers mean is not known."""


class Announcements:
    """The tools that a device announced, under the names of its description (AX-B.3-4)."""

    def __init__(self, segment: str, description: DeviceDescription) -> None:
        self._segment = segment
        self._description = description
        self._announcement = Announcement()
        self._described = {tool.id: tool for tool in description.tools}
        self.missing: tuple[str, ...] = ()  # described and not announced
        self._announced: tuple[Announced, ...] | None = None  # last, and taken
        self._tools: dict[str, DeviceTool] = {}
        self._changes: deque[float] = deque(maxlen=CHANGES_MAX)

    def take(self, registration: Registration, now: float) -> dict[str, DeviceTool] | None:
        """Add a frame of an announcement. Return the tools by name once the last frame is here, otherwise None.

        Raises DeviceFault if the announcement is invalid, and TooOften; the previous tools stay.
        """
        announced = self._announcement.add(registration)
        if announced is None:
            return None
        if announced == self._announced:
            return self._tools
        if len(self._changes) == CHANGES_MAX and now - self._changes[0] < CHANGES_S:
            raise TooOften
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
        self._announced, self._tools = announced, tools
        return tools

    def reset(self) -> None:
        """Forget an incomplete announcement, because the connection is new."""
        self._announcement.reset()
