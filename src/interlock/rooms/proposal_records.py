"""The records behind the tracker of proposals: index, fulfilments, refusals.

A proposal's lasting record is its approval in the inbox. The index holds what the inbox has no field for: what the room
was told, which envelope fulfils the proposal, and the answer to it. It is lost when the node stops; after a start it is
filled from the inbox. The index also knows which proposals wait, so that the limit of waiting proposals holds from the
moment of the check, before a proposal is published or in the inbox.

A fulfilment sends the proposed request once, as the approver; the target's reply ends the proposal. If the target does
not answer within ANSWER_S, it may have acted or not: the proposal ends as unknown, never as failed.

The functions at the top turn the refusals of one world into those of the other: the inbox has codes of approvals, rooms
have codes of envelopes.
"""

import asyncio
import logging
from bisect import bisect_left
from itertools import accumulate
from typing import Any, Final

import msgspec
from msgspec import Raw

from interlock.approvals.inbox import Inbox
from interlock.approvals.protocol.approval import Approval, Decision, Kind, Move, Status
from interlock.core.background import BackgroundTasks
from interlock.core.clock import rfc3339
from interlock.rooms.protocol import proposals as rules
from interlock.rooms.protocol.envelope import MCP, Envelope, EnvelopeRefusal
from interlock.rooms.protocol.participants import Participant, participant_of
from interlock.rooms.protocol.proposals import STATUS, ProposalStatus
from interlock.rooms.room import Room
from interlock.wire.refusal import CONFIRMATION_EXPIRED, CONFIRMATION_VOID, SCOPE_DENIED, UNAVAILABLE, Refusal


def refuse_own(approval: Approval, who: str, principal: str, id: str | None) -> EnvelopeRefusal | None:
    """Return a refusal if a proposer would decide on its own proposal, judged by participant and by principal.
    Otherwise return None.
    """
    if who != approval.agent and principal != approval.requested_by:
        return None
    return EnvelopeRefusal("self_approval", "a proposal is not carried out by its own proposer", id=id)


def refuse_over(approval: Approval, id: str) -> EnvelopeRefusal | None:
    """Return a refusal if the proposal is no longer pending, otherwise None."""
    if approval.status is Status.PENDING:
        return None
    status = STATUS[approval.status].value
    if approval.status is Status.EXPIRED:
        return EnvelopeRefusal("proposal_expired", "the time of the proposal is over", {"status": status}, id=id)
    return EnvelopeRefusal("already_claimed", f"the proposal is {status} already", {"status": status}, id=id)


def approval_refusal(refusal: EnvelopeRefusal) -> Refusal:
    """Convert a refusal by the room for an operator who decides on a proposal in the inbox."""
    is_barred = refusal.code in ("self_approval", "privilege_violation")
    details = {"reason": refusal.code, "detail": refusal.message}
    return Refusal(SCOPE_DENIED if is_barred else CONFIRMATION_VOID, refusal.code, details)


def envelope_refusal(refusal: Refusal, id: str) -> EnvelopeRefusal:
    """Convert a refusal by the inbox to the refusal of the envelope `id`, with the codes of rooms."""
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
NAMES_MAX: Final = 10_000
WAIT_BOUNDS_S: Final = (1, 5, 15, 60, 300, 1800, 7200, 86_400)

Key = tuple[str, str]  # topic, id of the envelope


class Tracked(msgspec.Struct):
    """The data that the tracker keeps in memory about one proposal."""

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
    """An index of tracked and waiting proposals by room and id. Tasks can wait until a proposal changes."""

    def __init__(self, inbox: Inbox) -> None:
        self._inbox = inbox
        self._tracked: dict[Key, Tracked] = {}
        self._waiting: dict[str, dict[str, set[str]]] = {}  # topic -> proposer -> ids that are admitted or pending
        self._names: dict[Key, str] = {}  # topic and principal -> what it is called in the room
        self._watchers: dict[Key, set[asyncio.Future[None]]] = {}
        self.waits: dict[str, DecisionTimes] = {}  # by topic
        self.counts: dict[tuple[str, str], int] = {}  # topic and status -> how many proposals reached it

    def load(self) -> None:
        """Add the proposals in the inbox. An edited proposal has several approvals; the last one counts."""
        # One that was edited has several, of which the last counts.
        for approval in sorted(self._inbox.listed(kind=Kind.PROPOSAL), key=lambda each: each.created_at):
            topic, id = key_of(approval)
            self._tracked[topic, id] = Tracked(approval.id, approval.agent or "")
            if approval.status is Status.PENDING:
                self.add_waiting(topic, approval.agent or "", id)

    def add(self, key: Key, tracked: Tracked) -> None:
        self._tracked[key] = tracked
        self.count(key[0], ProposalStatus.PENDING)
        self._notify(key)

    def count(self, topic: str, status: ProposalStatus) -> None:
        self.counts[topic, status.value] = self.counts.get((topic, status.value), 0) + 1

    def name(self, topic: str, principal: str, participant: str) -> None:
        if len(self._names) >= NAMES_MAX:
            self._names.clear()
        self._names[topic, principal] = participant

    # Looking

    def find_decider(self, approval: Approval) -> str | None:
        """Return the participant that decided on the proposal, or None if it is undecided. A principal without a known
        name in the room is shown with the id that it would have there.
        """
        if approval.decision is None:
            return None
        principal = decider(approval.decision)
        return self._names.get((approval.room or "", principal)) or participant_of(principal)

    def __contains__(self, key: Key) -> bool:
        return key in self._tracked

    def find_tracked(self, key: Key) -> Tracked | None:
        return self._tracked.get(key)

    def find(self, topic: str, proposal_id: str) -> Approval | None:
        tracked = self._tracked.get((topic, proposal_id))
        if tracked is None:
            return None
        approval = self._inbox.get(tracked.approval_id)
        if approval is None:  # it ended long ago
            del self._tracked[topic, proposal_id]
        return approval

    def all_of(self, topic: str) -> list[Approval]:
        """Return the approvals of a room's proposals, newest first."""
        ids = [id for room, id in self._tracked if room == topic]
        proposals = [proposal for id in ids if (proposal := self.find(topic, id)) is not None]
        return sorted(proposals, key=lambda proposal: proposal.created_at, reverse=True)

    # Those that wait

    def has_waiting(self, topic: str) -> bool:
        return topic in self._waiting

    def is_waiting(self, topic: str, id: str) -> bool:
        """Return whether a proposal is admitted and undecided. It may not have reached the inbox yet."""
        return any(id in ids for ids in self._waiting.get(topic, {}).values())

    def pending(self, topic: str) -> list[Approval]:
        ids = [id for each in self._waiting.get(topic, {}).values() for id in each]
        approvals = [approval for id in ids if (approval := self.find(topic, id)) is not None]
        return [approval for approval in approvals if approval.status is Status.PENDING]

    def waiting_ids(self, topic: str, proposer: str) -> set[str]:
        return self._waiting.get(topic, {}).get(proposer, set())

    def add_waiting(self, topic: str, proposer: str, id: str) -> None:
        self._waiting.setdefault(topic, {}).setdefault(proposer, set()).add(id)

    def remove_waiting(self, topic: str, proposer: str, id: str) -> None:
        """Stop counting a proposal as waiting, and wake the tasks that wait for its change."""
        ids = self.waiting_ids(topic, proposer)
        ids.discard(id)
        if not ids and proposer in self._waiting.get(topic, {}):
            del self._waiting[topic][proposer]
            if not self._waiting[topic]:
                del self._waiting[topic]
        self._notify((topic, id))

    # Changes

    async def wait_for_change(self, key: Key) -> None:
        """Wait until the proposal is tracked, changes its status, or stops waiting."""
        changed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        watchers = self._watchers.setdefault(key, set())
        watchers.add(changed)
        try:
            await changed
        finally:
            watchers.discard(changed)
            if not watchers and self._watchers.get(key) is watchers:
                del self._watchers[key]

    async def wait_until_tracked(self, key: Key) -> None:
        """Wait at most TRACKED_WAIT_S until a recently published proposal is in the inbox."""
        try:
            async with asyncio.timeout(TRACKED_WAIT_S):
                while key not in self._tracked and self.is_waiting(*key):
                    await self.wait_for_change(key)
        except TimeoutError:
            log.warning("room %s: the proposal %s is not in the inbox after %g s", *key, TRACKED_WAIT_S)

    async def wait_until_all_tracked(self, topic: str) -> None:
        """Wait until every recently published proposal of a room is in the inbox."""
        ids = [id for each in self._waiting.get(topic, {}).values() for id in each]
        untracked = [(topic, id) for id in ids if (topic, id) not in self._tracked]
        if untracked:
            await asyncio.gather(*map(self.wait_until_tracked, untracked))

    def _notify(self, key: Key) -> None:
        for changed in self._watchers.pop(key, ()):
            if not changed.done():
                changed.set_result(None)

    # As a room lists them

    async def described(self, room: Room, approval: Approval) -> dict[str, Any]:
        """Return the description of a proposal that MCPx 10.2 defines. Raise StoreError if reading fails."""
        tracked = self._tracked.get(key_of(approval))
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
            more |= {
                "fulfilment": tracked.fulfilment,
                "matched_by": tracked.matched_by,
                "modified": True if tracked.sent_params is not None else None,
                "sent_params": tracked.sent_params,
            }
        return description | {name: value for name, value in more.items() if value is not None}


def key_of(approval: Approval) -> Key:
    return approval.room or "", approval.proposal_id or ""


def decider(decision: Decision) -> str:
    """Return the principal that made a decision: the signer of the proof or, without a proof, the recorded
    principal.
    """
    return decision.by if decision.proof is None else f"operator:{decision.proof.anchor}"


ANSWER_S: Final = 300.0  # how long the answer of a target may take; then it is not known what happened


class _Claim(msgspec.Struct, frozen=True):
    """A fulfilment that waits for its reply."""

    approval_id: str
    target: str
    rpc_id: bytes
    timer: asyncio.TimerHandle
    is_gated: bool = False  # the gate uses the approval, and ends it


class FulfilmentOutcome(msgspec.Struct, frozen=True):
    """The result of a fulfilment, taken from the reply of its target."""

    approval_id: str
    end: Move
    text: str
    is_gated: bool  # the gate finishes the approval itself


class Fulfilments:
    """The requests that carry out proposals. Each is tracked from its publication until the target replies, at
    most for ANSWER_S.
    """

    def __init__(self, inbox: Inbox) -> None:
        self._inbox = inbox
        self._claims: dict[str, _Claim] = {}  # by the id of the envelope
        self._work = BackgroundTasks()

    async def close(self) -> None:
        for claim in self._claims.values():
            claim.timer.cancel()
        await self._work.close()

    def __contains__(self, envelope_id: str | None) -> bool:
        return envelope_id in self._claims

    def begin(self, envelope_id: str, approval_id: str, target: str, rpc_id: bytes, *, is_gated: bool = False) -> None:
        """Start waiting for the reply to a fulfilment, for at most ANSWER_S."""
        timer = asyncio.get_running_loop().call_later(ANSWER_S, self._on_silence, envelope_id)
        self._claims[envelope_id] = _Claim(approval_id, target, rpc_id, timer, is_gated)

    def find_released_approval(self, envelope_id: str) -> str | None:
        """Return the approval with which the gate releases the call of this fulfilment, or None if the gate does not
        hold the call.
        """
        claim = self._claims.get(envelope_id)
        return claim.approval_id if claim is not None and claim.is_gated else None

    async def send(
        self, room: Room, approval: Approval, who: Participant, principal: str, *, is_gated: bool
    ) -> Envelope | EnvelopeRefusal | Refusal:
        """Publish the proposed request unchanged. With `is_gated` the gate consumes the approval, otherwise this method
        does.
        """
        if not is_gated:
            used = await self._inbox.use(approval.id)
            if isinstance(used, Refusal):
                return used
            approval = used
        stamp, target = room.stamp(), approval.target or ""
        envelope = Envelope(
            id=stamp.id,
            ts=stamp.ts,
            kind=MCP,
            sender=who.id,  # X-4.2.1-1
            to=(target,),
            correlation_id=approval.proposal_id,
            payload=rules.fulfilment_payload(approval.method or "", approval.params, stamp.id),
        )
        self.begin(envelope.id, approval.id, target, b'"%b"' % stamp.id.encode(), is_gated=is_gated)
        refusal = await room.publish(envelope, who, principal)
        if refusal is None:
            return envelope
        self._forget(envelope.id)
        if is_gated:
            await self._inbox.void(approval.id, refusal.code)
        else:
            await self._inbox.finish(approval.id, Move.FAIL, refusal.code)
        return refusal

    def take_reply(self, envelope: Envelope) -> FulfilmentOutcome | None:
        """Return the outcome that a reply reports, or None if the envelope does not reply to a fulfilment."""
        id = envelope.correlation_id or ""
        claim = self._claims.get(id)
        end = None if claim is None else rules.read_outcome(envelope.payload, claim.rpc_id)
        if claim is None or end is None or envelope.sender != claim.target:
            return None
        self._forget(id)
        return FulfilmentOutcome(claim.approval_id, *end, claim.is_gated)

    def _forget(self, envelope_id: str) -> None:
        claim = self._claims.pop(envelope_id, None)
        if claim is not None:
            claim.timer.cancel()

    def _on_silence(self, envelope_id: str) -> None:
        claim = self._claims.pop(envelope_id, None)
        if claim is not None and not claim.is_gated:
            self._work.begin(self._inbox.finish(claim.approval_id, Move.LOSE, "the target did not answer"))
