"""Budgets as quotas of MCP-AQL (C.err-7): a warning when one is nearly used up, and when a limit opens again."""

from collections.abc import Iterator
from typing import Final

import msgspec

from interlock.aql.operation_index import Entry
from interlock.aql.protocol.envelope import Warn
from interlock.aql.protocol.errors import Code, Failure
from interlock.core.calls.caller import Caller
from interlock.core.calls.charge import Account
from interlock.core.clock import Clock, rfc3339
from interlock.guard.budgets import Budgets

WARN_FROM: Final = 0.8  # of a limit


class Quotas:
    def __init__(self, budgets: Budgets, clock: Clock) -> None:
        self._budgets = budgets
        self._clock = clock

    @property
    def is_needed(self) -> bool:
        return self._budgets.is_enforced

    def warnings(self, caller: Caller, entry: Entry) -> tuple[Warn, ...]:
        """Of what a call of this operation counts against."""
        route = entry.route
        if route is None or not self._budgets.is_enforced:
            return ()
        price = route.price
        counted = {
            "max_mutable_calls_per_session": price.mutable,
            "max_cost_units_per_session": price.units > 0,
        }
        now = self._clock.now()
        return tuple(
            _nearly_used_up(name, spent.used, spent.limit)
            for account in self._accounts(caller, entry)
            for name, spent in account.shown(now).items()
            if counted.get(name) and spent.used >= WARN_FROM * spent.limit
        )

    def _accounts(self, caller: Caller, entry: Entry) -> Iterator[Account]:
        route, budgets = entry.route, self._budgets
        if route is None:
            return
        account = getattr(route.link, "account", None)
        for one in (account, budgets.callers.get(caller.principal.name), budgets.tools.get(route.qualified)):
            if one is not None:
                yield one

    def with_time(self, failure: Failure) -> Failure:
        """A rate that was exceeded, with when it is free again."""
        details = failure.details or {}
        wait_s = details.get("retry_after_seconds")
        if failure.code != Code.RATE_LIMIT_EXCEEDED.value or not isinstance(wait_s, int):
            return failure
        resets_at = rfc3339(self._clock.wall() + wait_s)
        return msgspec.structs.replace(failure, details={**details, "resets_at": resets_at})


def _nearly_used_up(metric: str, current: int, limit: int) -> Warn:
    return Warn(
        code="RATE_LIMIT_QUOTA_WARNING",
        message="Approaching quota limit",
        details={"metric": metric, "current": current, "warn_threshold": int(WARN_FROM * limit)},
        severity="medium",
    )
