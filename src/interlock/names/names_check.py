"""Check 6 of the guard: is a tool with a registered name what the registry says of it?

It is judged when the list of its server arrives. A route carries this check only if its verdict refuses every call.
"""

from interlock.catalog.api import CheckVerdict
from interlock.catalog.routes import Route
from interlock.core.calls.call import Call, CallLink
from interlock.core.calls.caller import Principal
from interlock.core.calls.check import CheckNumber, Refused
from interlock.names.protocol.judgement import SurfaceVerdict


class NamesCheck:
    number = CheckNumber.NAMES
    name = "names"
    is_common = False

    def applies_to(self, route: Route) -> bool:
        return route.is_refused

    def check(self, call: Call, link: CallLink) -> Refused | None:
        refusal = call.route.refusal if call.route is not None else None
        return None if refusal is None else Refused(self.number, refusal)

    def explain(self, route: Route, caller: Principal) -> CheckVerdict:
        if route.refusal is not None:
            detail = (route.refusal.details or {}).get("detail", route.refusal.message)
            return CheckVerdict(number=self.number, name=self.name, verdict="refuse", reason=str(detail))
        return CheckVerdict(number=self.number, name=self.name, verdict="pass", reason=_explain_pass(route))


def _explain_pass(route: Route) -> str:
    surface = route.surface
    if surface is None:
        return "its name is not registered"
    if surface.judgement.verdict is SurfaceVerdict.IDENTICAL and not surface.warning:
        return "it is what the registry says of its name"
    return surface.warning or f"{surface.judgement.name}: {surface.judgement.verdict.value}"
