"""Checks 8 and 12 of the guard: is the link there and has it a place, when a call comes in and when it leaves?

Check 8 also asks whether a driver could serve the call where one has to be chosen. Check 12 is for released calls,
which are never sent twice.
"""

from collections.abc import Mapping

from interlock.catalog.api import CheckVerdict
from interlock.catalog.routes import Route
from interlock.core.calls.call import Call, CallLink
from interlock.core.calls.caller import Principal
from interlock.core.calls.check import CheckNumber, Refused
from interlock.core.calls.refusals import BUSY, maybe_unusable
from interlock.links.keeper import Keeper
from interlock.links.link import Link, Own


class AvailabilityCheck:
    """Check 8: is the link there, and has it capacity for another call?"""

    number = CheckNumber.AVAILABILITY
    name = "availability"
    is_common = True

    def __init__(self, calls_max: int, keepers: Mapping[str, Keeper]) -> None:
        """Create the check; `calls_max` limits the calls under way per link, `keepers` has every link's keeper by
        segment.
        """
        self.calls_max = calls_max
        self._keepers = keepers

    def applies_to(self, route: Route) -> bool:
        return True

    def check(self, call: Call, link: CallLink) -> Refused | None:
        refused = maybe_unusable(link.standing)
        if refused is not None:
            return refused
        if call.booked is not link and self.is_full(link):
            return Refused(self.number, BUSY)
        if call.hold is None or not call.hold.is_waiting:
            return None  # what no person is asked about chooses its driver on its way
        refusal = call.availability_refusal()
        return None if refusal is None else Refused(self.number, refusal)

    def may_wait(self, refused: Refused, link: CallLink) -> bool:
        """Return whether a call that this check refused should be held until its server is available again."""
        return refused.check is self.number and refused.refusal is not BUSY and self.may_return_soon(link)

    def may_return_soon(self, link: CallLink) -> bool:
        """Return whether the server may soon be back.

        A child process that ended is restarted on demand; one that keeps ending is not waited for.
        """
        keeper = self._keepers.get(link.segment)
        return keeper is not None and keeper.may_return_soon

    def wake(self, link: CallLink) -> None:
        """Wake the server of a refused call, so that the next call may find it available."""
        keeper = self._keepers.get(link.segment)
        if keeper is not None:
            keeper.wake()

    def explain(self, route: Route, caller: Principal) -> CheckVerdict:
        link = route.link
        own = link.own.find_usable(caller.name) if link.own is not None else None
        if own is not None:
            link = own
        standing, outlook = link.standing, link.find_outlook(route.original)
        if link.own is not None and not self.is_full(link):
            verdict, reason = "later", _explain_own(link.own, caller.name)
        elif maybe_unusable(standing) is not None:
            reason = standing.reason or standing.state.value
            verdict = "later" if self.may_return_soon(link) else "refuse"
            reason += "; a call waits a short while for it" if verdict == "later" else ""
        elif self.is_full(link):
            verdict, reason = "later", f"{link.booked} calls are under way; a call waits until one of them ends"
        elif outlook is not None:
            verdict, reason = "pass" if outlook.available else "refuse", outlook.reason
        else:
            verdict, reason = "pass", standing.reason or standing.state.value
        return CheckVerdict(number=self.number, name=self.name, verdict=verdict, reason=reason)

    def is_full(self, link: CallLink) -> bool:
        return link.booked >= self.calls_max


class SendCheck:
    """The explanation of check 12, whether the link is still there when a released call leaves. The guard asks it."""

    number = CheckNumber.SEND
    name = "send"

    def explain(self, route: Route, caller: Principal) -> CheckVerdict:
        outlook = route.link.find_outlook(route.original)
        timeout_s = route.timeout_s if outlook is None else outlook.timeout_s
        reason = f"timeout {timeout_s:g} s" if timeout_s is not None else "no timeout (batch)"
        return CheckVerdict(number=self.number, name=self.name, verdict="later", reason=reason)


def _explain_own(own: Own, caller: str) -> str:
    if not own.is_whole:
        return f"the call opens a connection of {caller}'s own, or asks for consent"
    because = f" ({own.reason})" if own.reason is not None else ""
    return f"the call goes over a link of the client's own{because}"


def forbid_resending(call: Call, link: Link) -> None:
    """Make sure that a released call is not sent again, whatever its server says of sessions and credentials."""
    if link.modern:
        call.renewed = True  # the ticket stays for the next round of a question
    else:
        call.ticket = None
    if call.hold is not None:
        call.hold.on_sent(call)
