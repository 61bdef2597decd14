"""The one door. Nothing reaches a link but an `Admitted` command, and only the guard makes one.

Rungs are asked in the order of SURFACE 8; the first refusal wins and names its rung. Rungs 1 to 3 belong to the front.
Refusals are values. A command that waits for a person's word passes `redeem` and no other way: the approval is used up,
on disk, before the command exists. For every other command the guard touches no disk and awaits nothing.
"""

from enum import IntEnum
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, TypeVar, assert_never

import msgspec

from interlock.protocol.jsonrpc.errors import METHOD_NOT_FOUND, TOOL_DEGRADED, UNAVAILABLE, Fault
from interlock.runtime.base.clock import rfc3339
from interlock.runtime.base.link_state import LinkState, Standing

if TYPE_CHECKING:
    from interlock.runtime.calls.budgets import Budgets
    from interlock.runtime.calls.call import Call
    from interlock.runtime.links.link import Link


class Rung(IntEnum):
    ROUTE = 4
    ARGUMENTS = 7
    AVAILABILITY = 8
    BUDGET = 9
    GATE = 10
    COMMIT = 11
    SEND = 12


class Refuse(msgspec.Struct, frozen=True):
    rung: Rung
    fault: Fault


class Approvals(Protocol):
    async def use(self, approval_id: str) -> object | Fault:
        """Exactly one caller wins, and what it won is on disk."""


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
    __slots__ = ("_underway", "budgets")

    def __init__(self) -> None:
        self.budgets: Budgets | None = None  # where nobody has one
        self._underway: set[str] = set()  # approvals that were used and whose calls are not over

    def admit(self, call: "Call", link: "Link | None") -> "Admitted[Call] | Refuse":
        """`link` is where the call's route leads; None when the name leads nowhere. What is admitted is charged."""
        if link is None:
            return Refuse(Rung.ROUTE, NOT_FOUND)
        standing = link.standing
        if standing.state is _READY and self.budgets is None and call.gate is None:
            return Admitted(call, _KEY)
        away = _maybe_away(standing)
        if away is not None:
            return away
        if call.gate is None:
            return self._maybe_over(call, link) or Admitted(call, _KEY)
        fault = self.budgets.room(call, link) if self.budgets is not None else None
        return HELD if fault is None else Refuse(Rung.BUDGET, fault)

    async def redeem(
        self, call: "Call", link: "Link", approvals: Approvals, approval_id: str
    ) -> "Admitted[Call] | Refuse":
        """Rungs 8, 9, 11 and 12 of a call that a person released. One approval admits one call."""
        refused = _maybe_away(link.standing) or self._maybe_over(call, link)
        if refused is not None:
            return refused
        used = await approvals.use(approval_id)
        if isinstance(used, Fault):
            call.refund()
            return Refuse(Rung.COMMIT, used)
        self._underway.add(approval_id)
        # The link may have gone meanwhile: then nothing is sent, and the approval is spent all the same.
        return _maybe_away(link.standing) or Admitted(call, _KEY)

    def resume(self, call: "Call", link: "Link", approval_id: str) -> "Admitted[Call] | Refuse":
        """The next round of a released call that its server, or a gate below, answered with a question."""
        if approval_id not in self._underway:
            return HELD
        return _maybe_away(link.standing) or self._maybe_over(call, link) or Admitted(call, _KEY)

    def derive(self, admitted: "Admitted[Call]", link: "Link") -> "Admitted[Call] | Refuse":
        """A command admitted to a link that only chooses, for the link it chose: every rung is passed and charged, and
        only whether that one is there is asked anew. Nothing that was not admitted comes this way."""
        standing = link.standing
        if standing.state is not _READY:
            away = _maybe_away(standing)
            if away is not None:
                return away
        return Admitted(admitted.command, _KEY)

    def over(self, approval_id: str) -> None:
        """The call has its answer, or will never have one."""
        self._underway.discard(approval_id)

    def _maybe_over(self, call: "Call", link: "Link") -> Refuse | None:
        fault = self.budgets.charge(call, link) if self.budgets is not None else None
        return None if fault is None else Refuse(Rung.BUDGET, fault)


def _maybe_away(standing: Standing) -> Refuse | None:
    match standing.state:
        case LinkState.READY | LinkState.SLOW:
            return None
        case LinkState.CONNECTING | LinkState.DEGRADED | LinkState.UNAUTHORISED | LinkState.FAILED:
            return Refuse(Rung.AVAILABILITY, degraded(standing))
        case LinkState.STOPPED | LinkState.ASLEEP:
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


BUSY: Final = Fault(
    TOOL_DEGRADED, "tool_degraded", {"reason": "link_busy", "outcome": "not_sent", "retry_after_ms": 1000}
)

RELISTED: Final = Fault(
    TOOL_DEGRADED, "tool_degraded", {"reason": "relisting", "outcome": "not_sent", "retry_after_ms": 0}
)

# Whoever is refused at this rung is told what it waits for (`gate`), not this.
HELD: Final = Refuse(Rung.GATE, Fault(UNAVAILABLE, "unavailable", {"reason": "confirmation_required"}))
