"""The guard: nothing reaches a link but an `Admitted` command, and only the guard makes one.

The checks are asked in the order of SURFACE 8; the first refusal wins and names its check. Which of them apply to a
tool is settled when it is listed (`checks_for`): a call over a route without checks, to a link that is ready, passes
with one test, no disk and no await. A call that a person has to agree to passes `release` and no other way: its
approval is used, on disk, before the command exists.
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
    Explained,
    Held,
    Refused,
    find_unusable,
)
from interlock.core.link_state import LinkState
from interlock.guard.budgets import Budgets
from interlock.guard.checks import GuardChecks
from interlock.wire.refusal import CONFIRMATION_EXPIRED, CONFIRMATION_USED, CONFIRMATION_VOID, UNAVAILABLE, Refusal

RELEASES_MAX: Final = 3  # approvals that others use first, before a call is told to come again

R = TypeVar("R")

_READY: Final = LinkState.READY  # a name of its own, as in `protocol.mcp.eras`
_TAKEN: Final = frozenset((CONFIRMATION_USED, CONFIRMATION_EXPIRED, CONFIRMATION_VOID))
_CONTENDED: Final = Refused(
    CheckNumber.COMMIT,
    Refusal(
        UNAVAILABLE,
        "unavailable",
        {"reason": "contended", "detail": "its approval keeps changing; make the call again"},
    ),
)


class Guard(Generic[R]):
    """The guard of a node: passes a call through the checks in their order, and admits, refuses or holds it."""

    __slots__ = ("_budgets", "_calls_max", "_commit", "_common", "_explained_later", "_own", "_quick_max", "checks")

    def __init__(self, checks: GuardChecks[R], *, budgets: Budgets, calls_max: int) -> None:
        """Create the guard; `calls_max` limits the calls under way per link, so that a silent server cannot starve
        others.
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
        """Put a check on the list, or take it off. Routes that carry checks have to be listed again."""
        others = [other for other in self.checks if other is not check]
        self._list([*others, check] if is_included else others)

    def watch(self, *, is_needed: bool) -> None:
        """Set whether every call passes the checks, also a call over a route without checks of its own."""
        self._quick_max = 0 if is_needed else self._calls_max

    def checks_for(self, route: R) -> tuple[Check[R], ...]:
        """Return the checks that a route carries, in order, or nothing if only the common checks apply to it."""
        if not any(check.applies_to(route) for check in self._own):
            return ()
        return tuple(check for check in self.checks if check.is_common or check.applies_to(route))

    def explain(self, route: R, caller: Principal) -> tuple[CheckVerdict, ...]:
        """Return what each check would say of a call over this route by this caller now."""
        every: tuple[Explained[R], ...] = (*self.checks, *self._explained_later)
        return tuple(check.explain(route, caller) for check in every)

    def admit(self, call: Call, link: CallLink) -> Admitted[Call] | Refused | Held:
        """Admit a call and charge it, refuse it, or hold it until `release`."""
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

    def find_refusal(self, call: Call, link: CallLink, before: CheckNumber) -> Refused | None:
        """Return the first refusal of the checks that are numbered below `before`, which is at most the gate's."""
        verdict = self._find_verdict(call, link, before)
        return verdict if isinstance(verdict, Refused) else None

    def _find_verdict(self, call: Call, link: CallLink, before: CheckNumber) -> Refused | Held | None:
        for check in (call.route.checks if call.route is not None else ()) or self._common:
            if check.number >= before:
                return None
            verdict = check.check(call, link)
            if verdict is not None:
                return verdict
        return None

    async def release(self, call: Call, link: CallLink) -> Admitted[Call] | Refused:
        """Admit a held call once a person has approved it: pass the checks before the gate again, then commit.

        One approval admits one call. The checks are passed again because time has passed since the call came in.
        """
        hold = call.hold
        if hold is None:
            return CONFIRMATION_REQUIRED
        for _ in range(RELEASES_MAX):
            release = await hold.find_release(call)
            if isinstance(release, Refused):
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

    def derive(self, admitted: Admitted[Call], link: CallLink) -> Admitted[Call] | Refused:
        """Admit a command to the link that a choosing link chose for it.

        Every check is passed and charged already; only whether the chosen link is there is checked. Nothing that was
        not admitted before is admitted here.
        """
        standing = link.standing
        if standing.state is not _READY:
            refused = find_unusable(standing)
            if refused is not None:
                return refused
        return Admitted(admitted.command, _ADMISSION_KEY)
