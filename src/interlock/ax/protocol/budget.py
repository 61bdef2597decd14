"""Budgets (MCP-AX 11.4): the limits of a session, its usage, and the refusal of a call that exceeds a limit.

`BudgetLimits` are declared, `Price` is what one call counts for, and `BudgetUsage` counts without knowing limits. Time
comes in as monotonic seconds. The caller decides who is charged, and when. Between `exceeded` and `charge` nothing else
may be charged, otherwise both charges together could exceed the limit.

Calls of the last minute are counted in slices of SLICE_S, not one by one, so that memory does not grow with the rate.
"""

from collections import deque
from math import ceil
from typing import Any, Final, Literal

import msgspec

from interlock.wire.refusal import BUDGET_EXCEEDED, Refusal

WINDOW_S: Final = 60.0  # AX-11.4-1
SLICE_S: Final = 0.01  # calls of one slice leave the window together, when the last of them does
LIMIT_MAX: Final = 2**53 - 1  # beyond it, JSON numbers mean different things to different readers

Scope = Literal["subserver", "caller", "tool"]


class Price(msgspec.Struct, frozen=True, kw_only=True):
    """Price of one call, in budget units. `limits` are the limits of the tool itself, shared by all callers."""

    mutable: bool = False
    units: int = 0
    limits: "BudgetLimits | None" = None


class ExceededLimit(msgspec.Struct, frozen=True, kw_only=True):
    """Limit that a call would exceed, with its present usage."""

    budget: str  # the name of the limit
    limit: int
    used: int
    retry_after_ms: int | None = None  # None: waiting does not help


class BudgetLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits on the calls of a session. None means unlimited."""

    max_calls_per_minute: int | None = None
    max_mutable_calls_per_session: int | None = None
    max_cost_units_per_session: int | None = None

    @property
    def is_unlimited(self) -> bool:
        return self == UNLIMITED

    def as_object(self) -> dict[str, int]:
        """Return the limits as a JSON object that leaves out the unlimited ones (6.2)."""
        return {name: limit for name, limit in msgspec.structs.asdict(self).items() if limit is not None}  # AX-6.2-4

    def within(self, other: "BudgetLimits") -> "BudgetLimits":
        """Return new limits that are, for each kind of limit, the stricter of these and `other` (11.4).

        A budget that is handed down never exceeds the one granted here.
        """
        theirs = other.as_object()
        both = {name: min(limit, theirs.get(name, limit)) for name, limit in self.as_object().items()}
        return BudgetLimits(**{**theirs, **both})

    def completed_by(self, usual: "BudgetLimits") -> "BudgetLimits":
        """Return these limits. A limit that is not set here is taken from `usual`."""
        return BudgetLimits(**{**usual.as_object(), **self.as_object()})

    def exceeded(self, usage: "BudgetUsage", price: Price, now: float) -> ExceededLimit | None:
        """Return the limit that one more call of this price would exceed, or None if there is none.

        If several are exceeded, a limit that does not reset with time comes first.
        """
        most = self.max_mutable_calls_per_session
        if most is not None and price.mutable and usage.mutable_calls >= most:  # AX-11.4-1
            return ExceededLimit(budget="max_mutable_calls_per_session", limit=most, used=usage.mutable_calls)
        most = self.max_cost_units_per_session
        if most is not None and price.units and usage.cost_units + price.units > most:  # AX-11.4-1
            return ExceededLimit(budget="max_cost_units_per_session", limit=most, used=usage.cost_units)
        most = self.max_calls_per_minute
        if most is not None and (used := usage.calls(now)) >= most:  # AX-11.4-1
            wait_ms = usage.retry_after_ms(most, now)
            return ExceededLimit(budget="max_calls_per_minute", limit=most, used=used, retry_after_ms=wait_ms)
        return None

    def shown(self, usage: "BudgetUsage", now: float) -> dict[str, dict[str, int]]:
        """Return each limit by name, together with its present usage."""
        used = dict(zip(KEYS, (usage.calls(now), usage.mutable_calls, usage.cost_units), strict=True))
        return {name: {"limit": limit, "used": used[name]} for name, limit in self.as_object().items()}


UNLIMITED: Final = BudgetLimits()
KEYS: Final = BudgetLimits.__struct_fields__


class Slice:
    """Group of calls that were made at almost the same time. Their charges leave the window of one minute together."""

    __slots__ = ("calls", "ended", "last", "opened")

    def __init__(self, now: float) -> None:
        self.opened = self.last = now
        self.calls = 0
        self.ended = False  # it has left the window


class BudgetUsage:
    """Usage of one session. The totals never shrink, except by a refund; the calls of the last minute expire."""

    __slots__ = ("_calls", "_slices", "cost_units", "mutable_calls")

    def __init__(self) -> None:
        self.mutable_calls = 0
        self.cost_units = 0
        self._calls = 0
        self._slices: deque[Slice] = deque()

    def calls(self, now: float) -> int:
        """Return the number of calls within the last minute."""
        slices = self._slices
        while slices and slices[0].last + WINDOW_S <= now:  # AX-11.4-1: after the window
            gone = slices.popleft()
            gone.ended = True
            self._calls -= gone.calls
        return self._calls

    def charge(self, price: Price, now: float) -> Slice:
        """Charge one call. Return the slice to pass to `refund` if the charge is taken back."""
        current = self._slices[-1] if self._slices else None
        if current is None or now - current.opened >= SLICE_S:
            self.calls(now)  # forgets old slices, also if `calls` is never called otherwise
            current = Slice(now)
            self._slices.append(current)
        current.last = now
        current.calls += 1
        self._calls += 1
        if price.mutable:
            self.mutable_calls += 1
        self.cost_units += price.units  # AX-11.4-1
        return current

    def refund(self, price: Price, charged: Slice) -> None:
        """Take back a charge. Call this at most once for each charge."""
        self.mutable_calls -= price.mutable  # AX-11.4-4: refunded
        self.cost_units -= price.units  # AX-11.4-4: refunded
        if not charged.ended:  # AX-11.4-4: refunded
            charged.calls -= 1
            self._calls -= 1

    def retry_after_ms(self, limit: int, now: float) -> int | None:
        """Return the milliseconds until the one-minute window allows another call, or None if it never will."""
        left = self.calls(now)
        for interval in self._slices if limit > 0 else ():
            left -= interval.calls
            if left < limit:  # AX-11.4-3: retry_after_ms
                return ceil((interval.last + WINDOW_S - now) * 1000)
        return None


def budget_exceeded(over: ExceededLimit, scope: Scope) -> Refusal:
    """Return the refusal of a call that exceeds a budget."""
    # AX-11.4-3. `mcpax_code` is the draft's own number, which 2026-07-28 does not let us send as the code.
    data: dict[str, Any] = {**msgspec.structs.asdict(over), "scope": scope, "mcpax_code": -32003}
    return Refusal(BUDGET_EXCEEDED, "budget_exceeded", data)  # AX-11.4-3
