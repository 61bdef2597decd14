"""Check 5: a call of an agent inside the safety loop passes only if the agent reported it and may go on.

It is on the list only while the loop is not disabled, and asked only while there is something to watch (`Guard.watch`).
"""

from interlock.catalog.api import CheckVerdict
from interlock.catalog.routes import Route
from interlock.core.calls.call import Call, CallLink
from interlock.core.calls.caller import Principal
from interlock.core.calls.check import CheckNumber, Refused
from interlock.safety.watch import Watch


class AgentCheck:
    number = CheckNumber.AGENT
    name = "agent"
    is_common = True

    def __init__(self, watch: Watch) -> None:
        self._watch = watch

    def applies_to(self, route: Route) -> bool:
        return True

    def check(self, call: Call, link: CallLink) -> Refused | None:
        refusal = self._watch.maybe_refusal(call)
        return None if refusal is None else Refused(self.number, refusal)

    def use(self, call: Call) -> None:
        """Use up the grant or release that lets a released call pass, when the call is sent."""
        self._watch.use(call)

    def explain(self, route: Route, caller: Principal) -> CheckVerdict:
        loop = self._watch.loop
        if not loop.is_enforcing:
            return CheckVerdict(
                number=self.number, name=self.name, verdict="pass", reason=f"the loop is {loop.plan.mode}"
            )
        running = [execution for execution in loop.executions.live() if execution.agent.principal == caller.name]
        if running:
            reason = "inside an execution: it passes if it was reported"
            return CheckVerdict(number=self.number, name=self.name, verdict="later", reason=reason)
        if loop.blocks.of_principal(caller.name):
            return CheckVerdict(number=self.number, name=self.name, verdict="refuse", reason="agent_blocked")
        if caller.name in loop.plan.require:
            reason = "execution_required: safety.require names this caller"
            return CheckVerdict(number=self.number, name=self.name, verdict="refuse", reason=reason)
        return CheckVerdict(
            number=self.number, name=self.name, verdict="pass", reason="no agent of this caller is running"
        )
