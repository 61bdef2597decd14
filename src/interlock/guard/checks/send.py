"""Check 12: the link is still there when a released call is about to leave, and such a call never leaves twice."""

from interlock.catalog.routes import Route
from interlock.core.calls.call import Call, CallLink
from interlock.core.calls.caller import Principal
from interlock.core.calls.check import CheckNumber, Refuse, Verdict
from interlock.core.calls.refusals import maybe_unusable
from interlock.links.link import Link


class SendCheck:
    number = CheckNumber.SEND
    name = "send"

    def check(self, call: Call, link: CallLink) -> Refuse | None:
        return maybe_unusable(link.standing)

    def explain(self, route: Route, caller: Principal) -> Verdict:
        outlook = route.link.maybe_outlook(route.original)
        timeout_s = route.timeout_s if outlook is None else outlook.timeout_s
        reason = f"timeout {timeout_s:g} s" if timeout_s is not None else "no timeout (batch)"
        return Verdict(check=self.number, name=self.name, verdict="later", reason=reason)


def forbid_resending(call: Call, link: Link) -> None:
    """A released call was sent: whatever its server says of sessions and credentials, it is not sent again."""
    if link.modern:
        call.renewed = True  # the ticket stays for the next round of a question
    else:
        call.ticket = None
    if call.hold is not None:
        call.hold.on_sent(call)
