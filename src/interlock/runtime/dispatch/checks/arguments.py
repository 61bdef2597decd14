"""Check 7: are the arguments what the tool's contract wants, and can they be named exactly where a person confirms?

A contract is asked before any driver is chosen, and before anybody is asked to agree to what cannot be sent. What a
plain tool is sent is its server's to judge.
"""

from interlock.runtime.calls.call import Call, CallLink
from interlock.runtime.calls.caller import Principal
from interlock.runtime.calls.check import CheckNumber, Refuse, Verdict
from interlock.runtime.catalog.routes import Route


class ArgumentsCheck:
    number = CheckNumber.ARGUMENTS
    name = "arguments"
    is_common = False

    def applies_to(self, route: Route) -> bool:
        return route.gate is not None or route.link.checks_input

    def check(self, call: Call, link: CallLink) -> Refuse | None:
        fault = call.argument_fault()
        if fault is None and call.hold is not None:
            fault = call.hold.identify(call)
        return None if fault is None else Refuse(self.number, fault)

    def explain(self, route: Route, caller: Principal) -> Verdict:
        strict = route.is_held  # for `Hold.identify` names the call, whatever it waits for
        has_contract = route.link.maybe_outlook(route.original) is not None
        reason = "must mean the same to every reader: they are part of what is confirmed" if strict else "the server's"
        if has_contract:
            reason = "checked against the contract" + (f"; {reason}" if strict else "")
        return Verdict(
            check=self.number, name=self.name, verdict="later" if strict or has_contract else "pass", reason=reason
        )
