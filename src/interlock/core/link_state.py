"""The state of a link and the reason for it. People see this state, and the guard decides by it."""

from enum import Enum
from typing import Final

import msgspec

RETRY_AFTER_MS: Final = 5000  # MCP-AX 13.2
UNREACHABLE: Final = "subserver_unreachable"  # AX-13.2-2


class LinkState(Enum):
    """The health of a link."""

    CONNECTING = "connecting"  # first contact under way
    READY = "ready"
    SLOW = "slow"  # answers calls, but did not list in time
    UNAUTHORISED = "unauthorised"  # the server refuses our credential
    DEGRADED = "degraded"  # was ready, is gone, may come back: tools stay listed (MCP-AX 13.2)
    FAILED = "failed"
    STOPPED = "stopped"
    ASLEEP = "asleep"  # it was idle: there is no process, and the next request starts one


class Standing(msgspec.Struct, frozen=True):
    """The state of a link, the reason for it, and since when."""

    state: LinkState
    reason: str | None
    since_wall: float
    retry_after_ms: int = RETRY_AFTER_MS
    gone: str = UNREACHABLE  # what a caller hears of it while it is away


class Outlook(msgspec.Struct, frozen=True):
    """The availability of a tool that depends on more than its link, for example on a participant's
    presence in a room.
    """

    available: bool
    reason: str
    timeout_s: float


USABLE = frozenset((LinkState.READY, LinkState.SLOW))
AWAY = frozenset((LinkState.DEGRADED, LinkState.UNAUTHORISED))  # what it offers stays listed, as degraded
