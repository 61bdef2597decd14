"""The tools that a device announced, under the names of its description (AX-B.3-4)."""

from collections import deque
from typing import Final

from interlock.devices.device_tools import DeviceTool, device_tool
from interlock.devices.protocol.announcement import Announcement
from interlock.devices.protocol.description import DeviceDescription
from interlock.devices.protocol.messages import Announced, DeviceFault, Registration
from interlock.devices.protocol.tool_schemas import announced_tool

CHANGES_MAX: Final = 3  # announcements that differ from the last one, within
CHANGES_S: Final = 3.0


class TooOften(Exception):
    """The device announces other tools faster than they are taken: what its numbers mean is not known."""


class Announcements:
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
        """The tools by name, once the last part came. Raises DeviceFault: the former ones stay; or TooOften."""
        announced = self._announcement.add(registration)
        if announced is None:
            return None
        if announced == self._announced:
            return self._tools
        if len(self._changes) == CHANGES_MAX and now - self._changes[0] < CHANGES_S:
            raise TooOften
        self._changes.append(now)
        link = self._description.link
        found: dict[str, DeviceTool] = {}
        for one in announced:
            tool = announced_tool(one, self._described.get(one.id), link)
            if tool.name in found:
                raise DeviceFault("malformed", f"two tools have the name {tool.name}")
            try:
                found[tool.name] = device_tool(self._segment, self._description, tool)
            except ValueError as error:
                raise DeviceFault("malformed", str(error)) from error
        ids = {one.id for one in announced}
        self.missing = tuple(tool.name for tool in self._description.tools if tool.id not in ids)
        self._announced, self._tools = announced, found
        return found

    def reset(self) -> None:
        """The connection is new."""
        self._announcement.reset()
