"""Check 8: is the link there, has it room, and could a driver serve the call where one has to be chosen?"""

from interlock.runtime.calls.call import Call, CallLink
from interlock.runtime.calls.caller import Principal
from interlock.runtime.calls.check import CheckNumber, Refuse, Said, Verdict
from interlock.runtime.calls.refusals import BUSY, maybe_unusable
from interlock.runtime.catalog.routes import Route


class AvailabilityCheck:
    number = CheckNumber.AVAILABILITY
    name = "availability"
    is_common = True

    def __init__(self, calls_max: int) -> None:
        """`calls_max`: under way at one link."""
        self._calls_max = calls_max

    def applies_to(self, route: Route) -> bool:
        return True

    def check(self, call: Call, link: CallLink) -> Refuse | None:
        refused = maybe_unusable(link.standing)
        if refused is not None:
            return refused
        if call.booked is not link and self._is_full(link):
            return Refuse(self.number, BUSY)
        if call.hold is None or not call.hold.is_waiting:
            return None  # what no person is asked about chooses its driver on its way
        fault = call.availability_fault()
        return None if fault is None else Refuse(self.number, fault)

    def explain(self, route: Route, caller: Principal) -> Verdict:
        link = route.link
        verdict: Said
        standing, outlook = link.standing, link.maybe_outlook(route.original)
        if maybe_unusable(standing) is not None:
            verdict, reason = "refuse", standing.reason or standing.state.value
        elif self._is_full(link):
            verdict, reason = "refuse", f"link_busy: {link.booked} calls are under way"
        elif outlook is not None:
            verdict, reason = "pass" if outlook.available else "refuse", outlook.reason
        else:
            verdict, reason = "pass", standing.reason or standing.state.value
        return Verdict(check=self.number, name=self.name, verdict=verdict, reason=reason)

    def _is_full(self, link: CallLink) -> bool:
        return link.booked >= self._calls_max
