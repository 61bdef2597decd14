"""Held calls that a standing grant releases: which grant covers a call, and its use, on disk before the call leaves.

What a contract asks for is asked each time (AIP-14.rules-1), what no operator has classified has no definition to sign,
and what a hop below holds is asked there: a grant of this node is about this node's gate alone.
"""

from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from interlock.approvals.inbox import Inbox
from interlock.approvals.protocol.approval import Approval, Decision, Kind, What
from interlock.approvals.protocol.standing_grant import KIND, StandingGrant, maybe_violation
from interlock.approvals.standing_grants import DECIDED_BY, StandingGrants, StoredGrant, Uncovered
from interlock.catalog.routes import Route
from interlock.core.calls.check import Release
from interlock.core.clock import Clock
from interlock.gate.protocol.policy import Hold
from interlock.mcp.meta import RAW_EMPTY
from interlock.wire.jsontext.unambiguous import AmbiguousJson, read_untrusted
from interlock.wire.refusal import CONFIRMATION_EXPIRED, CONFIRMATION_USED, Refusal

if TYPE_CHECKING:
    from interlock.gate.hold import GateHold

_TAKEN: Final = (CONFIRMATION_USED, CONFIRMATION_EXPIRED)  # an approval that an identical call used, or that lapsed


def may_be_granted(route: Route) -> bool:
    """Return whether a standing grant can replace a person's approval of each call of the tool."""
    return route.gate is not None and route.gate.hold is Hold.CALL and not route.gate.by_contract


class GrantedCalls:
    def __init__(self, grants: StandingGrants, inbox: Inbox, clock: Clock) -> None:
        self._grants = grants
        self._inbox = inbox
        self._clock = clock

    def release(self, hold: "GateHold", waiting: Approval | None) -> Release | str:
        """Return the release of a call that a standing grant covers, or why no grant does; empty if its caller has
        none.

        `waiting`: the approval that the call waits for already, or that a grant has approved.
        """
        route = hold.route
        if not may_be_granted(route) or not self._grants.has_any(route.qualified, hold.requester):
            return ""
        try:
            decoded = read_untrusted(bytes(hold.arguments or RAW_EMPTY))
        except AmbiguousJson:
            decoded = None
        arguments = decoded if isinstance(decoded, dict) else None
        grant = self._grants.find(route.qualified, route.digest, hold.requester, arguments)
        if grant is None:
            return ""
        if isinstance(grant, Uncovered):
            return f"The standing grant {grant.grant_id} {grant.why}."
        return Release(waiting.id if waiting is not None else "", grant_id=grant.grant.id)

    async def use(self, release: Release, question: Approval) -> Approval | Refusal:
        """Count a use of the grant, then record the call's approval and return it.

        The use is counted first: of two calls that race for the last use, the other is held. `question`: what a person
        would have been asked.
        """
        grant_id = release.grant_id or ""
        used = await self._grants.use(grant_id)
        if isinstance(used, Refusal):
            return used
        decision = _decision(used, self._clock.wall())
        if release.approval_id:
            taken = await self._take(release.approval_id, decision)
            if not isinstance(taken, Refusal) or taken.code not in _TAKEN:  # somebody may have said no meanwhile
                return taken
        return await self._inbox.raise_used(question, decision)

    async def _take(self, approval_id: str, decision: Decision) -> Approval | Refusal:
        approval = self._inbox.get(approval_id)
        if approval is None or not self.is_granted(approval):
            decided = await self._inbox.decide(approval_id, decision)
            if isinstance(decided, Refusal):
                return decided
        return await self._inbox.use(approval_id)

    def is_granted(self, approval: Approval) -> bool:
        """Return whether a grant approved this: each call under a grant is counted, and the grant may be over by
        then.
        """
        proof = approval.decision.proof if approval.decision is not None else None
        return proof is not None and proof.type == KIND


async def approve_waiting(signed: StoredGrant, inbox: Inbox, now: float) -> None:
    """Approve the held calls that a newly signed grant covers, so that no person is asked again.

    A use is counted when such a call is made again, as for every call under the grant.
    """
    grant = signed.grant
    for approval in _covered(grant, inbox.waiting(Kind.CALL))[: grant.calls]:
        await inbox.decide(approval.id, _decision(signed, now))


def _covered(grant: StandingGrant, waiting: list[Approval]) -> list[Approval]:
    covered = []
    for approval in waiting:
        if (approval.tool, approval.tool_digest, approval.requested_by) != (grant.tool, grant.tool_digest, grant.who):
            continue
        try:
            decoded = read_untrusted(bytes(approval.params or RAW_EMPTY))
        except AmbiguousJson:
            continue
        if isinstance(decoded, dict) and maybe_violation(grant.rules, decoded) is None:
            covered.append(approval)
    return covered


def _decision(signed: StoredGrant, now: float) -> Decision:
    proof = replace(signed.proof, type=KIND, jti=signed.grant.id)
    return Decision(what=What.APPROVED, by=f"{DECIDED_BY}{signed.grant.id}", at=now, proof=proof)
