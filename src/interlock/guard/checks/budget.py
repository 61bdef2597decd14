"""Check 9: is there room in every budget the call counts against? What is not held is charged in the same step."""

from interlock.catalog.routes import Route
from interlock.core.calls.call import Call, CallLink
from interlock.core.calls.caller import Principal
from interlock.core.calls.check import CheckNumber, Refuse, Verdict
from interlock.guard.budgets import Budgets


class BudgetCheck:
    number = CheckNumber.BUDGET
    name = "budget"
    is_common = True

    def __init__(self, budgets: Budgets) -> None:
        self._budgets = budgets

    def applies_to(self, route: Route) -> bool:
        return True

    def check(self, call: Call, link: CallLink) -> Refuse | None:
        is_held = call.hold is not None and call.hold.is_waiting
        fault = self._budgets.room(call, link) if is_held else self._budgets.charge(call, link)
        return None if fault is None else Refuse(self.number, fault)

    def explain(self, route: Route, caller: Principal) -> Verdict:
        over = self._budgets.outlook(route.link, route.qualified, route.price, caller)
        if over is not None:
            reason = f"{over.budget}: {over.used} of {over.limit} used"
            return Verdict(check=self.number, name=self.name, verdict="refuse", reason=reason)
        costs = f"costs {route.price.units} units" + (", changes something" if route.price.mutable else "")
        return Verdict(check=self.number, name=self.name, verdict="pass", reason=costs)
