"""How a call to a device ends, as values."""

from typing import Any, Literal

import msgspec


class Succeeded(msgspec.Struct, frozen=True):
    content: dict[str, Any]


class Failed(msgspec.Struct, frozen=True):
    """The device said so, or what it said cannot be used. `fault` is the word of `_meta["x-mcpax-device"]`."""

    fault: Literal["status", "response_invalid", "argument_invalid", "too_large"]
    detail: str
    status: int | None = None
    name: str | None = None  # of the status
    path: str = ""  # of the argument or member at fault


class Lost(msgspec.Struct, frozen=True):
    """No answer. Where it was sent, the device may have acted."""

    detail: str
    was_sent: bool


class Busy(msgspec.Struct, frozen=True):
    """Too many calls wait already."""


CallOutcome = Succeeded | Failed | Lost | Busy
