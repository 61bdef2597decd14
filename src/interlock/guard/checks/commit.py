"""Check 11: the call is charged, and its approval used, on disk, before the first byte leaves."""

from interlock.catalog.routes import Route
from interlock.core.calls.call import Call, CallLink
from interlock.core.calls.caller import Principal
from interlock.core.calls.check import CheckNumber, Refuse, Release, Verdict
from interlock.gate.gate import Gate
from interlock.guard.budgets import Budgets
from interlock.guard.checks.agent import AgentCheck


class CommitCheck:
    number = CheckNumber.COMMIT
    name = "commit"

    def __init__(self, gate: Gate, budgets: Budgets, agent: AgentCheck) -> None:
        self._gate = gate
        self._agent = agent
        self._budgets = budgets

    async def check(self, call: Call, link: CallLink, release: Release) -> Refuse | None:
        fault = self._budgets.charge(call, link)
        if fault is not None:
            return Refuse(CheckNumber.BUDGET, fault)
        fault = await self._gate.use(call, release)
        if fault is not None:
            call.refund()
            return Refuse(self.number, fault)
        self._agent.use(call)
        return None

    def explain(self, route: Route, caller: Principal) -> Verdict:
        reason = "the approval is used up, on disk, before the first byte" if route.is_held else "nothing to use up"
        return Verdict(check=self.number, name=self.name, verdict="later" if route.is_held else "pass", reason=reason)
