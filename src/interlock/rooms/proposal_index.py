"""The proposals that are tracked, in memory: by room and id, by whose they are, and as a room lists them.

The record of a proposal is its approval in the inbox; here is what the inbox has no place for, gone with the node.
"""

import asyncio
import logging
from bisect import bisect_left
from itertools import accumulate
from typing import Any, Final

import msgspec
from msgspec import Raw

from interlock.approvals.inbox import Inbox
from interlock.approvals.protocol.approval import Approval, Decision, Kind
from interlock.approvals.protocol.state import Status
from interlock.core.clock import rfc3339
from interlock.rooms.protocol import proposals as rules
from interlock.rooms.protocol.envelope import Envelope
from interlock.rooms.protocol.participants import participant_of
from interlock.rooms.protocol.proposals import STATUS, ProposalStatus
from interlock.rooms.room import Room

log = logging.getLogger("interlock.rooms")

# From the publication of a proposal until it is in the inbox. A replica that waits longer adopts it (ADOPTED_S).
TRACKED_WAIT_S: Final = 5.0
NAMES_MAX: Final = 10_000
WAIT_BOUNDS_S: Final = (1, 5, 15, 60, 300, 1800, 7200, 86_400)

Key = tuple[str, str]  # topic, id of the envelope


class Tracked(msgspec.Struct):
    approval_id: str
    proposer: str
    told: ProposalStatus | None = None  # to the room
    fulfilment: str | None = None
    matched_by: str | None = None  # correlation_id or content
    sent_params: Raw | None = None  # where they are not those that were proposed
    answer: Envelope | None = None


class Waits(msgspec.Struct):
    """How long proposals waited until they were decided, as a histogram."""

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
        told = zip(map(str, WAIT_BOUNDS_S), accumulate(self.counts), strict=True)
        return [*told, ("+Inf", self.count)]


class ProposalIndex:
    def __init__(self, inbox: Inbox) -> None:
        self._inbox = inbox
        self._tracked: dict[Key, Tracked] = {}
        self._waiting: dict[str, dict[str, set[str]]] = {}  # topic -> proposer -> ids that are admitted or pending
        self._names: dict[Key, str] = {}  # topic and principal -> what it is called in the room
        self._watchers: dict[Key, set[asyncio.Future[None]]] = {}
        self.waits: dict[str, Waits] = {}  # by topic
        self.counts: dict[tuple[str, str], int] = {}  # topic and status -> how many came to stand so

    def load(self) -> None:
        # One that was edited has several, of which the last counts.
        for approval in sorted(self._inbox.listed(kind=Kind.PROPOSAL), key=lambda one: one.created_at):
            topic, id = key_of(approval)
            self._tracked[topic, id] = Tracked(approval.id, approval.agent or "")
            if approval.status is Status.PENDING:
                self.hold(topic, approval.agent or "", id)

    def add(self, key: Key, tracked: Tracked) -> None:
        self._tracked[key] = tracked
        self.count(key[0], ProposalStatus.PENDING)
        self._notify(key)

    def count(self, topic: str, status: ProposalStatus) -> None:
        self.counts[topic, status.value] = self.counts.get((topic, status.value), 0) + 1

    def note_decided(self, approval: Approval, now: float) -> None:
        self.waits.setdefault(approval.room or "", Waits()).add(max(0.0, now - approval.created_at))

    def name(self, topic: str, principal: str, participant: str) -> None:
        if len(self._names) >= NAMES_MAX:
            self._names.clear()
        self._names[topic, principal] = participant

    # Looking

    def maybe_decider(self, approval: Approval) -> str | None:
        """The participant that decided."""
        if approval.decision is None:
            return None
        principal = decider(approval.decision)
        return self._names.get((approval.room or "", principal)) or participant_of(principal)

    def __contains__(self, key: Key) -> bool:
        return key in self._tracked

    def maybe_tracked(self, key: Key) -> Tracked | None:
        return self._tracked.get(key)

    def maybe(self, topic: str, proposal_id: str) -> Approval | None:
        tracked = self._tracked.get((topic, proposal_id))
        if tracked is None:
            return None
        approval = self._inbox.get(tracked.approval_id)
        if approval is None:  # it ended long ago
            del self._tracked[topic, proposal_id]
        return approval

    def all_of(self, topic: str) -> list[Approval]:
        """The newest first."""
        ids = [id for one, id in self._tracked if one == topic]
        found = [one for id in ids if (one := self.maybe(topic, id)) is not None]
        return sorted(found, key=lambda one: one.created_at, reverse=True)

    # Those that wait

    def has_waiting(self, topic: str) -> bool:
        return topic in self._waiting

    def is_waiting(self, topic: str, id: str) -> bool:
        """Whether it is admitted, and perhaps not in the inbox yet."""
        return any(id in ids for ids in self._waiting.get(topic, {}).values())

    def pending(self, topic: str) -> list[Approval]:
        ids = [id for each in self._waiting.get(topic, {}).values() for id in each]
        found = [one for id in ids if (one := self.maybe(topic, id)) is not None]
        return [one for one in found if one.status is Status.PENDING]

    def waiting_ids(self, topic: str, proposer: str) -> set[str]:
        return self._waiting.get(topic, {}).get(proposer, set())

    def hold(self, topic: str, proposer: str, id: str) -> None:
        self._waiting.setdefault(topic, {}).setdefault(proposer, set()).add(id)

    def release(self, topic: str, proposer: str, id: str) -> None:
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
        """Wait until a proposal that was just published is in the inbox, for at most TRACKED_WAIT_S."""
        try:
            async with asyncio.timeout(TRACKED_WAIT_S):
                while key not in self._tracked and self.is_waiting(*key):
                    await self.wait_for_change(key)
        except TimeoutError:
            log.warning("room %s: the proposal %s is not in the inbox after %g s", *key, TRACKED_WAIT_S)

    async def wait_until_all_tracked(self, topic: str) -> None:
        """Wait until every proposal that was just published to a room is in the inbox."""
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
        """In the words of MCPx 10.2. Raises StoreError."""
        tracked = self._tracked.get(key_of(approval))
        envelope = await room.timeline.maybe_envelope(approval.proposal_id or "")
        proposed = None if envelope is None else rules.maybe_proposed(envelope.payload)
        expires_at = approval.expires_at
        told = {
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
            "by": self.maybe_decider(approval),
            "outcome": approval.outcome,
        }
        if tracked is not None:
            more |= {
                "fulfilment": tracked.fulfilment,
                "matched_by": tracked.matched_by,
                "modified": True if tracked.sent_params is not None else None,
                "sent_params": tracked.sent_params,
            }
        return told | {name: value for name, value in more.items() if value is not None}


def key_of(approval: Approval) -> Key:
    return approval.room or "", approval.proposal_id or ""


def decider(decision: Decision) -> str:
    """Who decided, as a principal: the one who proved it, else the one who was asked for no proof."""
    return decision.by if decision.proof is None else f"operator:{decision.proof.anchor}"
