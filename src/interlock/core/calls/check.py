"""The checks of the guard: their numbers, their verdicts on a call, the budgets of calls, and shared refusals.

The order and the numbers are those of SURFACE 8. A verdict is a value: a call is `Admitted`, refused by a named check
(`CheckRefusal`), or `Held` until a person agrees. Only the guard has the key that makes an `Admitted`, and links send
nothing else, so no part of the node can send a call past the guard.

The type of routes is a parameter, because the catalog, which makes routes, imports this module.
"""

from collections.abc import Awaitable, Callable
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, TypeVar, assert_never

import msgspec

from interlock.ax.protocol.budget import BudgetLimits, BudgetUsage, Price, Scope, Slice
from interlock.catalog.api import CheckVerdict
from interlock.core.clock import rfc3339
from interlock.core.link_state import LinkState, Standing
from interlock.guard.api import Spent
from interlock.wire.refusal import METHOD_NOT_FOUND, TOOL_DEGRADED, UNAVAILABLE, Refusal

if TYPE_CHECKING:
    from interlock.core.calls.call import Call, CallLink
    from interlock.core.calls.caller import Principal


class CheckNumber(IntEnum):
    """The steps of the guard in their order.

    The fronts perform steps 1 and 2, which check the endpoint and the envelope.
    """

    OPERATION = 3  # operation, family and parameters of MCP-AQL, checked by its surfaces
    ROUTE = 4
    AGENT = 5  # blocked, paused or unreported agents (MCP-AQL 8.6)
    NAMES = 6  # verdict and pin of the registry of names
    ARGUMENTS = 7
    AVAILABILITY = 8
    BUDGET = 9
    GATE = 10
    COMMIT = 11
    SEND = 12


class CheckRefusal(msgspec.Struct, frozen=True):
    """The refusal of a call by one check of the guard.

    `result` is the answer where the caller gets the result of a tool instead of an error.
    """

    check: CheckNumber
    refusal: Refusal
    result: bytes | None = None


class Held(msgspec.Struct, frozen=True):
    """The verdict on a call that waits until a person agrees. Only `Guard.release` can send the call afterwards."""


HELD: Final = Held()
CONFIRMATION_REQUIRED: Final = CheckRefusal(
    CheckNumber.GATE, Refusal(UNAVAILABLE, "unavailable", {"reason": "confirmation_required"})
)


class Release(msgspec.Struct, frozen=True):
    """The permission to send a held call, by a person's approval or by a standing grant."""

    approval_id: str
    is_used: bool = False  # by an earlier round of the same call
    grant_id: str | None = None  # of the standing grant that applies, if no person approved this very call


C = TypeVar("C")
_ADMISSION_KEY: Final = object()  # only `guard.guard` imports it


class Admitted(Generic[C]):
    """A call that passed every check. Only the guard can create an instance."""

    __slots__ = ("command",)

    def __init__(self, command: C, key: object) -> None:
        if key is not _ADMISSION_KEY:
            raise TypeError("only the guard admits commands")
        self.command = command


R_contra = TypeVar("R_contra", contravariant=True)


class Explained(Protocol[R_contra]):
    """Interface of a step of the guard that can tell an operator its verdict on a call before the call is made."""

    @property
    def number(self) -> CheckNumber: ...

    @property
    def name(self) -> str: ...

    def explain(self, route: R_contra, caller: "Principal") -> CheckVerdict:
        """Return the verdict that a call over this route by this caller would get now.

        The same predicate decides real calls.
        """


class Check(Explained[R_contra], Protocol[R_contra]):
    """A check of the guard that is made when a call arrives (steps 4 to 10)."""

    @property
    def is_common(self) -> bool:
        """Return whether the check applies to every request, including requests for prompts and resources."""

    def applies_to(self, route: R_contra) -> bool:
        """Return whether the check could refuse or hold calls over this route.

        Called once, when the route is listed.
        """

    def check(self, call: "Call", link: "CallLink") -> CheckRefusal | Held | None:
        """Return the verdict of this check on a call."""


# Step 11: use up the approval of a call and charge the call. Exactly one call wins, and that is on disk.
Commit = Callable[["Call", "CallLink", Release], Awaitable[CheckRefusal | None]]


# Budgets (MCP-AX 11.4)


class Account(msgspec.Struct, eq=False):
    """A budget, and the amount of it that is used."""

    scope: Scope
    limits: BudgetLimits
    used_at: float
    usage: BudgetUsage = msgspec.field(default_factory=BudgetUsage)

    def shown(self, now: float) -> dict[str, Spent]:
        limits = self.limits.shown(self.usage, now)
        return {name: Spent(limit=spent["limit"], used=spent["used"]) for name, spent in limits.items()}


class Charge(msgspec.Struct, frozen=True):
    """The price of a call, and the budgets from which it was taken."""

    price: Price
    parts: list[tuple[BudgetUsage, Slice]]

    def refund(self) -> None:
        """Return the price to the budgets."""
        for usage, charged in self.parts:
            usage.refund(self.price, charged)


# Refusals that several parts of a node make: a link that cannot be used, a name that is not listed.

_REASONS: Final = {
    LinkState.UNAUTHORISED: "unauthorised",
    LinkState.CONNECTING: "relisting",  # AX-13.2-5
}

# MCP-AX 5.2: -32601, though MCP itself would say -32602.
NOT_FOUND: Final = Refusal(METHOD_NOT_FOUND, "tool_not_found", {"reason": "tool_not_found"})  # AX-5.2-2


def not_found_refusal(near: list[str]) -> Refusal:
    """Return the refusal of a call to an unknown tool. `near` lists similar names that the caller may use."""
    if not near:
        return NOT_FOUND
    message = f"tool_not_found: did you mean {' or '.join(near)}?"
    return Refusal(METHOD_NOT_FOUND, message, {"reason": "tool_not_found", "did_you_mean": near})


def is_not_found(refusal: Refusal) -> bool:
    return (refusal.details or {}).get("reason") == "tool_not_found"


BUSY: Final = Refusal(
    TOOL_DEGRADED, "tool_degraded", {"reason": "link_busy", "outcome": "not_sent", "retry_after_ms": 1000}
)


def own_links_full(most: int) -> Refusal:
    """Return the refusal of a call that needs a connection for its client alone. The limit on such connections, `most`,
    is reached.

    `most` is the limit of such links, for one server or for all.
    """
    data = {"reason": "own_links_full", "limit": most, "outcome": "not_sent", "retry_after_ms": 60_000}
    return Refusal(TOOL_DEGRADED, "tool_degraded", data)


RELISTED: Final = Refusal(
    TOOL_DEGRADED, "tool_degraded", {"reason": "relisting", "outcome": "not_sent", "retry_after_ms": 0}
)


def find_unusable(standing: Standing) -> CheckRefusal | None:
    """Return the refusal of a call to a link in this state, or None if the link accepts calls."""
    match standing.state:
        case LinkState.READY | LinkState.SLOW:
            return None
        case LinkState.CONNECTING | LinkState.DEGRADED | LinkState.UNAUTHORISED | LinkState.FAILED:
            return CheckRefusal(CheckNumber.AVAILABILITY, degraded_refusal(standing))
        case LinkState.STOPPED | LinkState.ASLEEP:
            return CheckRefusal(CheckNumber.AVAILABILITY, degraded_refusal(standing))
        case _:
            assert_never(standing.state)


def degraded_refusal(standing: Standing) -> Refusal:
    """Return the refusal of a call to a link that is not usable now, with the time after which the caller may retry."""
    unauthorised = standing.state is LinkState.UNAUTHORISED
    data: dict[str, Any] = {
        "reason": _REASONS.get(standing.state, standing.gone),
        "since": rfc3339(standing.since_wall),
        "retry_after_ms": standing.retry_after_ms,
        "mcpax_code": -32002,  # the draft's own number, which 2026-07-28 does not let us send as the code
    }
    if unauthorised:  # why exactly is for the operator: it may name hosts
        data["next"] = "an operator looks at it: interlock status"
    return Refusal(TOOL_DEGRADED, "tool_degraded", data)  # AX-13.2-2
