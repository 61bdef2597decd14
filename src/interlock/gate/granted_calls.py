"""Release of held calls by standing grants: find the grant that covers a call, and count its use on disk before the
call is sent.

Some held calls cannot be released by a grant: a contract may demand a confirmation of every call (AIP-14.rules-1), an
unclassified tool has no definition that a person could sign, and a call that an aggregator below holds must be
confirmed at that aggregator.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from msgspec import Raw
from msgspec.structs import replace

from interlock.approvals.grant_terms import KIND, find_violation
from interlock.approvals.inbox import Inbox
from interlock.approvals.protocol.approval import Approval, Decision, Kind, What
from interlock.approvals.standing_grants import DECIDED_BY, StandingGrants, StoredGrant, Uncovered
from interlock.catalog.routes import Route
from interlock.core.calls.check import Release
from interlock.core.clock import Clock
from interlock.gate.protocol.policy import Hold
from interlock.mcp.meta import RAW_EMPTY
from interlock.wire.jsontext.canonical import AmbiguousJson, read_untrusted
from interlock.wire.refusal import CONFIRMATION_EXPIRED, CONFIRMATION_USED, Refusal

if TYPE_CHECKING:
    from interlock.gate.gate import GateHold

_TAKEN: Final = (CONFIRMATION_USED, CONFIRMATION_EXPIRED)  # an approval that an identical call used, or that lapsed


def may_be_granted(route: Route) -> bool:
    """Return whether a standing grant can replace a person's approval of each call of the tool."""
    return route.gate is not None and route.gate.hold is Hold.CALL and not route.gate.by_contract


@dataclass(eq=False)
class GrantedCalls:
    """The part of the gate that finds the standing grant for a held call, and counts its use."""

    grants: StandingGrants
    inbox: Inbox
    clock: Clock

    def find_release(self, hold: "GateHold", waiting: Approval | None) -> Release | str:
        """Return the release of a held call that a standing grant covers. If no grant covers it, return a sentence that
        explains why.

        The sentence is empty if the caller has no grant for the tool, or no grant can cover its calls. `waiting` is the
        existing approval of the call, if there is one: pending, or approved by a grant.
        """
        route = hold.route
        if not may_be_granted(route) or not self.grants.has_any(route.qualified, hold.requester):
            return ""
        grant = self.grants.find(route.qualified, route.offered_digest, hold.requester, _find_arguments(hold.arguments))
        if grant is None:
            return ""
        if isinstance(grant, Uncovered):
            return f"The standing grant {grant.grant_id} {grant.why}."
        return Release(waiting.id if waiting is not None else "", grant_id=grant.grant.id)

    async def use(self, release: Release, question: Approval) -> Approval | Refusal:
        """Count one use of a standing grant, and return the approval that records the call.

        The use is counted first, so if two calls compete for the last use, one of them is held. `question` is the
        approval that a person would otherwise have been asked to decide.
        """
        grant_id = release.grant_id or ""
        used = await self.grants.use(grant_id)
        if isinstance(used, Refusal):
            return used
        decision = _decision(used, self.clock.wall())
        if release.approval_id:
            taken = await self._take(release.approval_id, decision)
            if not isinstance(taken, Refusal) or taken.code not in _TAKEN:  # an operator may have denied it meanwhile
                return taken
        return await self.inbox.raise_used(question, decision)

    async def _take(self, approval_id: str, decision: Decision) -> Approval | Refusal:
        approval = self.inbox.get(approval_id)
        if approval is None or not self.is_granted(approval):
            decided = await self.inbox.decide(approval_id, decision)
            if isinstance(decided, Refusal):
                return decided
        return await self.inbox.use(approval_id)

    def is_granted(self, approval: Approval) -> bool:
        """Return whether a standing grant, instead of a person, approved this call.

        An approval by a grant does not release a call by itself: the grant may have ended, and each use must be
        counted.
        """
        proof = approval.decision.proof if approval.decision is not None else None
        return proof is not None and proof.type == KIND


async def approve_waiting(signed: StoredGrant, inbox: Inbox, now: float) -> None:
    """Approve the waiting calls that a newly signed standing grant covers, so that no person is asked about them. At
    most as many calls are approved as the grant allows.

    The use of the grant is counted later, when the client makes the call again.
    """
    grant, covered = signed.grant, []
    for approval in inbox.waiting(Kind.CALL):
        if (approval.tool, approval.tool_digest, approval.requested_by) == (grant.tool, grant.tool_digest, grant.who):
            arguments = _find_arguments(approval.params)
            if arguments is not None and find_violation(grant.rules, arguments) is None:
                covered.append(approval)
    for approval in covered[: grant.calls]:
        await inbox.decide(approval.id, _decision(signed, now))


def _find_arguments(raw: Raw | None) -> dict[str, Any] | None:
    """Decode the arguments. Return None if they are ambiguous JSON or not an object, because no
    grant covers such a call.
    """
    try:
        arguments = read_untrusted(bytes(raw or RAW_EMPTY))
    except AmbiguousJson:
        return None
    return arguments if isinstance(arguments, dict) else None


def _decision(signed: StoredGrant, now: float) -> Decision:
    proof = replace(signed.proof, type=KIND, jti=signed.grant.id)
    return Decision(what=What.APPROVED, by=f"{DECIDED_BY}{signed.grant.id}", at=now, proof=proof)
