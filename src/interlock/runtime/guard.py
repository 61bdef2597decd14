"""The one door. Nothing reaches a link but an `Admitted` command, and only `Guard.admit` makes one.

Rungs are asked in the order of SURFACE 8; the first refusal wins and names its rung. Rungs 1 to 3 belong to the front.
Refusals are values. The guard touches no disk and awaits nothing.
"""

from enum import IntEnum
from typing import Any, Final, Generic, TypeVar, assert_never

import msgspec

from interlock.protocol.jsonrpc.errors import METHOD_NOT_FOUND, TOOL_DEGRADED, Fault
from interlock.runtime.clock import rfc3339
from interlock.runtime.links.state import LinkState, Standing


class Rung(IntEnum):
    ROUTE = 4
    AVAILABILITY = 8
    SEND = 12


class Refuse(msgspec.Struct, frozen=True):
    rung: Rung
    fault: Fault


C = TypeVar("C")

_KEY: Final = object()
_READY: Final = LinkState.READY  # a name of its own, as in `protocol.mcp.eras`


class Admitted(Generic[C]):
    """A command that passed every rung. Cannot be made anywhere else."""

    __slots__ = ("command",)

    def __init__(self, command: C, key: object) -> None:
        if key is not _KEY:
            raise TypeError("only the guard admits commands")
        self.command = command


class Guard:
    __slots__ = ()

    def admit(self, command: C, standing: Standing | None) -> Admitted[C] | Refuse:
        """`standing` is how the link of the command's route stands; None when the name leads nowhere."""
        if standing is None:
            return Refuse(Rung.ROUTE, NOT_FOUND)
        if standing.state is _READY:
            return Admitted(command, _KEY)
        match standing.state:
            case LinkState.READY | LinkState.SLOW:
                return Admitted(command, _KEY)
            case (
                LinkState.CONNECTING
                | LinkState.DEGRADED
                | LinkState.UNAUTHORISED
                | LinkState.FAILED
                | LinkState.STOPPED
            ):
                return Refuse(Rung.AVAILABILITY, degraded(standing))
            case _:
                assert_never(standing.state)


_REASONS: Final = {LinkState.UNAUTHORISED: "unauthorised", LinkState.CONNECTING: "relisting"}


def degraded(standing: Standing) -> Fault:
    unauthorised = standing.state is LinkState.UNAUTHORISED
    data: dict[str, Any] = {
        "reason": _REASONS.get(standing.state, "subserver_unreachable"),
        "since": rfc3339(standing.since_wall),
        "retry_after_ms": standing.retry_after_ms,
        "mcpax_code": -32002,  # the draft's own number, which 2026-07-28 does not let us send as the code
    }
    if unauthorised:  # why exactly is for the operator: it may name hosts
        data["next"] = "an operator looks at it: interlock status"
    return Fault(TOOL_DEGRADED, "tool_degraded", data)


# MCP-AX 5.2: -32601, though MCP itself would say -32602.
NOT_FOUND: Final = Fault(METHOD_NOT_FOUND, "tool_not_found", {"reason": "tool_not_found"})


BUSY: Final = Fault(TOOL_DEGRADED, "tool_degraded", {"reason": "link_busy", "retry_after_ms": 1000})
