"""The announcement of a self-describing device (AX-B.2-5, AX-8.N-1): frames collected, and swapped in whole.

Frames are numbered from 0, and each but the last says that more follow. A frame out of its turn, an id twice or more
than 64 tools give up the announcement: DeviceFault is raised, the tools from before stay, and it is asked for again.
"""

from interlock.devices.protocol.description import TOOLS_MAX
from interlock.devices.protocol.messages import Announced, DeviceFault, Registration


class Announcement:
    def __init__(self) -> None:
        self._tools: dict[int, Announced] = {}
        self._next_part = 0

    def add(self, registration: Registration) -> tuple[Announced, ...] | None:
        """All tools, once the last frame is here. Raises DeviceFault (malformed, unexpected)."""
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
        """The connection is new, or the device began again."""
        self._tools.clear()
        self._next_part = 0
