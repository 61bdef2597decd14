"""The records behind the tracker of proposals, and its refusals.

A proposal's lasting record is its approval in the inbox. The index holds what the inbox has no field for: what the room
was told, which envelope fulfils the proposal, and the answer to it. It is lost when the node stops; after a start it is
filled from the inbox. The index also knows which proposals wait, so that the limit of waiting proposals holds from the
moment of the check, before a proposal is published or in the inbox.

The functions at the top turn the refusals of one world into those of the other: the inbox has codes of approvals, rooms
have codes of envelopes.
"""

import asyncio
import logging
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Sequence
from itertools import accumulate
from typing import Any, Final

import msgspec
from msgspec import Raw

from interlock.approvals.inbox import Inbox
from interlock.approvals.protocol.approval import Approval, Decision, Kind, Status
from interlock.core.clock import rfc3339
from interlock.rooms.protocol import proposals as rules
from interlock.rooms.protocol.envelope import Envelope, EnvelopeRefusal
from interlock.rooms.protocol.participants import participant_of
from interlock.rooms.protocol.proposals import STATUS, ProposalStatus
from interlock.rooms.room import Room
from interlock.wire.refusal import CONFIRMATION_EXPIRED, CONFIRMATION_VOID, SCOPE_DENIED, UNAVAILABLE, Refusal


def refuse_own(approval: Approval, who: str, principal: str, id: str | None) -> EnvelopeRefusal | None:
    """Return a refusal if a participant would decide on its own proposal, or one of the same principal. Otherwise
    return None.
    """
    if who != approval.agent and principal != approval.requested_by:
        return None
    return EnvelopeRefusal("self_approval", "a proposal is not carried out by its own proposer", id=id)


def refuse_over(approval: Approval, id: str) -> EnvelopeRefusal | None:
    """Return a refusal if a proposal is no longer pending, otherwise None. `id` is that of the envelope to refuse."""
    if approval.status is Status.PENDING:
        return None
    status = STATUS[approval.status].value
    if approval.status is Status.EXPIRED:
        return EnvelopeRefusal("proposal_expired", "the time of the proposal is over", {"status": status}, id=id)
    return EnvelopeRefusal("already_claimed", f"the proposal is {status} already", {"status": status}, id=id)


def approval_refusal(refusal: EnvelopeRefusal) -> Refusal:
    """Convert a refusal with a code of rooms to one with a code of approvals, for an operator who decides in the
    inbox.
    """
    is_barred = refusal.code in ("self_approval", "privilege_violation")
    details = {"reason": refusal.code, "detail": refusal.message}
    return Refusal(SCOPE_DENIED if is_barred else CONFIRMATION_VOID, refusal.code, details)


def envelope_refusal(refusal: Refusal, id: str) -> EnvelopeRefusal:
    """Convert a refusal of the approval inbox to the refusal of an envelope. `id` is the id of the envelope."""
    if isinstance(refusal, EnvelopeRefusal):
        return refusal
    if refusal.code == UNAVAILABLE:
        return EnvelopeRefusal("unavailable", "the inbox cannot be written; nothing was done", id=id)
    detail = str((refusal.details or {}).get("detail", refusal.message))
    code = "proposal_expired" if refusal.code == CONFIRMATION_EXPIRED else "already_claimed"
    return EnvelopeRefusal(code, detail, id=id)


def unknown(proposal_id: str) -> EnvelopeRefusal:
    return EnvelopeRefusal("unknown_proposal", "no proposal of that id is tracked in this room", id=proposal_id)


def restricted(proposal_id: str | None) -> EnvelopeRefusal:
    return EnvelopeRefusal("privilege_violation", "only full participants decide on proposals", id=proposal_id)


log = logging.getLogger("interlock.rooms")

# From the publication of a proposal until it is in the inbox. A replica that waits longer adopts it (ADOPTED_S).
TRACKED_WAIT_S: Final = 5.0
WAIT_BOUNDS_S: Final = (1, 5, 15, 60, 300, 1800, 7200, 86_400)

Key = tuple[str, str]  # topic, id of the envelope


class Tracked(msgspec.Struct):
    """The state of one proposal that has an approval: its last announced status, the request that carried it out, and
    the reply.
    """

    approval_id: str
    proposer: str
    announced: ProposalStatus | None = None  # the last status that was announced in the room
    fulfilment: str | None = None
    matched_by: str | None = None  # correlation_id or content
    sent_params: Raw | None = None  # where they are not those that were proposed
    answer: Envelope | None = None


class DecisionTimes(msgspec.Struct):
    """A histogram of the time that proposals waited for a decision."""

    counts: list[int] = msgspec.field(default_factory=lambda: [0] * len(WAIT_BOUNDS_S))
    count: int = 0
    total_s: float = 0.0

    def add(self, seconds: float) -> None:
        self.count += 1
        self.total_s += seconds
        place = bisect_left(WAIT_BOUNDS_S, seconds)
        if place < len(WAIT_BOUNDS_S):
            self.counts[place] += 1

    def cumulated(self) -> list[tuple[str, int]]:
        buckets = zip(map(str, WAIT_BOUNDS_S), accumulate(self.counts), strict=True)
        return [*buckets, ("+Inf", self.count)]


class ProposalIndex:
    """An index of the proposals of all rooms. It knows the approval of each proposal, and which proposals are still
    undecided. Tasks can wait until a proposal changes.
    """

    def __init__(self, inbox: Inbox) -> None:
        self._inbox = inbox
        self.tracked: dict[Key, Tracked] = {}
        # By topic: the ids of the proposals that are admitted or pending, each with its proposer.
        self.waiting: defaultdict[str, dict[str, str]] = defaultdict(dict)
        self.names: dict[Key, str] = {}  # topic and principal -> what it is called in the room
        self.changed = asyncio.Event()  # set and replaced when a proposal is tracked, changes, or stops waiting
        self.waits: defaultdict[str, DecisionTimes] = defaultdict(DecisionTimes)  # by topic
        self.counts: Counter[tuple[str, str]] = Counter()  # topic and status -> how many proposals reached it

    def load(self) -> None:
        """Read the proposals in the approval inbox. If a proposal was edited, only its newest approval is used. Call
        this before the rooms open.
        """
        for approval in sorted(self._inbox.listed(kind=Kind.PROPOSAL), key=lambda each: each.created_at):
            topic, id = key_of(approval)
            self.tracked[topic, id] = Tracked(approval.id, approval.agent or "")
            if approval.status is Status.PENDING:
                self.waiting[topic][id] = approval.agent or ""

    def add(self, key: Key, tracked: Tracked) -> None:
        self.tracked[key] = tracked
        self.counts[key[0], ProposalStatus.PENDING.value] += 1
        self._notify()

    def stop_waiting(self, topic: str, id: str) -> None:
        """Stop counting a proposal as waiting, and wake the tasks that wait for its change."""
        self.waiting[topic].pop(id, None)
        self._notify()

    def _notify(self) -> None:
        self.changed.set()
        self.changed = asyncio.Event()

    # Looking

    def find_decider(self, approval: Approval) -> str | None:
        """Return the id of the participant that decided on a proposal, or None if it is undecided. If the room does not
        know that principal, derive the id from the principal's name.
        """
        if approval.decision is None:
            return None
        principal = decider(approval.decision)
        return self.names.get((approval.room or "", principal)) or participant_of(principal)

    def find(self, topic: str, proposal_id: str) -> Approval | None:
        tracked = self.tracked.get((topic, proposal_id))
        approval = None if tracked is None else self._inbox.get(tracked.approval_id)
        if approval is None:  # it ended long ago
            self.tracked.pop((topic, proposal_id), None)
        return approval

    def all_of(self, topic: str) -> list[Approval]:
        """Return the approvals of a room's proposals, newest first."""
        ids = [id for room, id in self.tracked if room == topic]
        proposals = [proposal for id in ids if (proposal := self.find(topic, id)) is not None]
        return sorted(proposals, key=lambda proposal: proposal.created_at, reverse=True)

    def pending(self, topic: str) -> list[Approval]:
        approvals = [approval for id in self.waiting[topic] if (approval := self.find(topic, id)) is not None]
        return [approval for approval in approvals if approval.status is Status.PENDING]

    async def wait_until_tracked(self, topic: str, ids: Sequence[str]) -> None:
        """Wait until these proposals, which were just published, are in the approval inbox. Give up after
        TRACKED_WAIT_S.
        """
        missing = list(ids)
        try:
            async with asyncio.timeout(TRACKED_WAIT_S):
                while missing := [
                    id for id in missing if id in self.waiting[topic] and (topic, id) not in self.tracked
                ]:
                    await self.changed.wait()
        except TimeoutError:
            log.warning("room %s: proposals not in the inbox after %g s: %s", topic, TRACKED_WAIT_S, ", ".join(missing))

    async def described(self, room: Room, approval: Approval) -> dict[str, Any]:
        """Return a JSON object that describes a proposal as MCPx 10.2 requires. Raise StoreError if reading fails."""
        tracked = self.tracked.get(key_of(approval))
        envelope = await room.timeline.find_envelope(approval.proposal_id or "")
        proposed = None if envelope is None else rules.read_proposed(envelope.payload)
        expires_at = approval.expires_at
        description = {
            "proposalId": approval.proposal_id,
            "proposer": approval.agent,
            "target": approval.target,
            "method": approval.method,
            "params": approval.params if proposed is None else proposed.params,
            "status": STATUS[approval.status].value,
            "createdAt": rfc3339(approval.created_at),
            "expiresAt": None if expires_at is None else rfc3339(expires_at),
        }
        more: dict[str, Any] = {
            "targets": list(envelope.to) if envelope is not None and envelope.to and approval.target is None else None,
            "reason": approval.reason,
            "approval": approval.id,
            "by": self.find_decider(approval),
            "outcome": approval.outcome,
        }
        if tracked is not None:
            modified = True if tracked.sent_params is not None else None
            more |= {"fulfilment": tracked.fulfilment, "matched_by": tracked.matched_by}
            more |= {"modified": modified, "sent_params": tracked.sent_params}
        return description | {name: value for name, value in more.items() if value is not None}


def key_of(approval: Approval) -> Key:
    return approval.room or "", approval.proposal_id or ""


def decider(decision: Decision) -> str:
    """Return the principal that made a decision: the signer of its proof or, without a proof, the recorded
    principal.
    """
    return decision.by if decision.proof is None else f"operator:{decision.proof.anchor}"
