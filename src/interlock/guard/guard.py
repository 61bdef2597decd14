"""The guard: links accept only `Admitted` commands, and only the guard creates them.

The checks run in the order of SURFACE 8; the first refusal wins and names its check. Which checks apply to a tool is
determined when the tool is listed (`checks_for`). A call over a route without checks to a ready link therefore passes
after a single test, without disk access or await. A call that needs a person's approval passes only through `release`,
which marks the approval as used on disk before the command is created.
"""

from collections.abc import Iterable
from typing import Final, Generic, TypeVar

from interlock.catalog.api import CheckVerdict
from interlock.core.calls.call import Call, CallLink
from interlock.core.calls.caller import Principal
from interlock.core.calls.check import (
    _ADMISSION_KEY,
    CONFIRMATION_REQUIRED,
    HELD,
    Admitted,
    Check,
    CheckNumber,
    CheckRefusal,
    Explained,
    Held,
    find_unusable,
)
from interlock.core.link_state import LinkState
from interlock.guard.budgets import Budgets
from interlock.guard.checks import GuardChecks
from interlock.wire.refusal import CONFIRMATION_EXPIRED, CONFIRMATION_USED, CONFIRMATION_VOID, unavailable

RELEASES_MAX: Final = 3  # approvals that others use first, before a call is told to come again

R = TypeVar("R")

_READY: Final = LinkState.READY  # a name of its own, as in `protocol.mcp.eras`
_TAKEN: Final = frozenset((CONFIRMATION_USED, CONFIRMATION_EXPIRED, CONFIRMATION_VOID))
_CONTENDED: Final = CheckRefusal(
    CheckNumber.COMMIT, unavailable("contended", "its approval keeps changing; make the call again")
)


class Guard(Generic[R]):
    """The guard of a node: runs the checks on a call in order, and admits, refuses or holds the call."""

    __slots__ = ("_budgets", "_calls_max", "_commit", "_common", "_explained_later", "_own", "_quick_max", "checks")

    def __init__(self, checks: GuardChecks[R], *, budgets: Budgets, calls_max: int) -> None:
        """Create the guard. `calls_max` limits the calls in progress on one link, so an unresponsive server cannot
        block calls to other servers.
        """
        self.checks: tuple[Check[R], ...] = ()
        self._list(checks.admission())
        self._commit = checks.commit
        self._explained_later = checks.explained_later
        self._budgets = budgets
        self._calls_max = self._quick_max = calls_max

    def _list(self, checks: Iterable[Check[R]]) -> None:
        self.checks = tuple(sorted(checks, key=lambda check: check.number))
        self._common = tuple(check for check in self.checks if check.is_common)
        self._own = tuple(check for check in self.checks if not check.is_common)

    def include(self, check: Check[R], *, is_included: bool) -> None:
        """Add a check to the guard's list, or remove it. Afterwards `checks_for` must be called again
        for each route.
        """
        others = [other for other in self.checks if other is not check]
        self._list([*others, check] if is_included else others)

    def watch(self, *, is_needed: bool) -> None:
        """Set whether every call has to pass the checks. If not, a call whose route lists no checks is admitted at once
        while its link is ready.
        """
        self._quick_max = 0 if is_needed else self._calls_max

    def checks_for(self, route: R) -> tuple[Check[R], ...]:
        """Return the checks for calls over a route, in order. Return an empty tuple if no special check applies; then
        the guard runs only the common checks.
        """
        if not any(check.applies_to(route) for check in self._own):
            return ()
        return tuple(check for check in self.checks if check.is_common or check.applies_to(route))

    def explain(self, route: R, caller: Principal) -> tuple[CheckVerdict, ...]:
        """Return the verdict that each check would give now on a call over this route by this caller."""
        every: tuple[Explained[R], ...] = (*self.checks, *self._explained_later)
        return tuple(check.explain(route, caller) for check in every)

    def admit(self, call: Call, link: CallLink) -> Admitted[Call] | CheckRefusal | Held:
        """Admit a call and charge it, refuse it, or hold it until `release` is called."""
        route = call.route
        if (
            call.hold is None
            and (route is None or not route.checks)
            and link.standing.state is _READY
            and link.booked < self._quick_max
            and not self._budgets.is_enforced
        ):
            return Admitted(call, _ADMISSION_KEY)
        verdict = self._find_verdict(call, link, CheckNumber.COMMIT)
        if verdict is None and call.hold is not None:
            if call.hold.is_waiting:
                return HELD  # whatever its route carries
            verdict = call.hold.acknowledge(call)
        return Admitted(call, _ADMISSION_KEY) if verdict is None else verdict

    def find_refusal(self, call: Call, link: CallLink, before: CheckNumber) -> CheckRefusal | None:
        """Run the checks whose number is lower than `before`, and return the first refusal, or None. `before` may be at
        most the number of the gate.
        """
        verdict = self._find_verdict(call, link, before)
        return verdict if isinstance(verdict, CheckRefusal) else None

    def _find_verdict(self, call: Call, link: CallLink, before: CheckNumber) -> CheckRefusal | Held | None:
        for check in (call.route.checks if call.route is not None else ()) or self._common:
            if check.number >= before:
                return None
            verdict = check.check(call, link)
            if verdict is not None:
                return verdict
        return None

    async def release(self, call: Call, link: CallLink) -> Admitted[Call] | CheckRefusal:
        """Admit a held call that an approval or a standing grant releases. The checks before the gate run again; the
        refusal says which one fails, or that nothing releases the call.

        One approval admits one call. The checks run again because conditions may have changed since the call arrived.
        """
        hold = call.hold
        if hold is None:
            return CONFIRMATION_REQUIRED
        for _ in range(RELEASES_MAX):
            release = await hold.find_release(call)
            if isinstance(release, CheckRefusal):
                return release
            refused = self.find_refusal(call, link, CheckNumber.GATE)
            if refused is None:
                refused = await self._commit(call, link, release)
            if refused is None:
                # The link, or the caller, may have gone meanwhile: nothing is sent, and the approval is spent.
                refused = CONFIRMATION_REQUIRED if call.done else find_unusable(link.standing)
                return Admitted(call, _ADMISSION_KEY) if refused is None else refused
            if refused.check is not CheckNumber.COMMIT or refused.refusal.code not in _TAKEN:
                return refused
        return _CONTENDED

    def derive(self, admitted: Admitted[Call], link: CallLink) -> Admitted[Call] | CheckRefusal:
        """Admit a command again for another link, which the link it was admitted for has selected.

        The command has already passed and paid for every check; only the readiness of the selected link is checked.
        This method cannot admit a call that was not admitted before.
        """
        standing = link.standing
        if standing.state is not _READY:
            refused = find_unusable(standing)
            if refused is not None:
                return refused
        return Admitted(admitted.command, _ADMISSION_KEY)
