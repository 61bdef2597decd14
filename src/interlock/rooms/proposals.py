"""The tracker of proposals: each is an approval in the one inbox, from its publication to its end (X-10.2).

Theory of operation. The tracker receives what a room has published, in its order, and knows nothing else. A proposal
becomes an approval of kind `proposal`, which is its only record: the inbox stores it, expires it, and lets exactly one
person decide. It is carried out in one of three ways: a person approves it in the inbox, a full participant asks for it
(`fulfil`), or a participant sends the request into the room itself. In the first two cases the request is sent here, as
the approver; the reply of its target ends the proposal in all three. Every change is announced in the room as a
`system` event `proposal_STATUS`.

If the proposed call is a call of this node's tools that is held for a person, the gate releases it with the proof of
the same decision: one item, one action (X-10.2-3).

Two queues keep the order. `_follow_envelopes` handles what rooms publish, one envelope after the other: an answer must
not overtake the fulfilment that it answers. `_follow_inbox` announces what the inbox decided. Neither polls.

A fulfilment sends the proposed request once, as the approver; the target's reply ends the proposal. If the target does
not answer within ANSWER_S, it may have acted or not: the proposal ends as unknown, never as failed.

With several replicas, the one at which a proposal was sent puts it into the inbox, and each announces the changes that
it makes itself. If the first replica stops too early, another one adopts the proposal after ADOPTED_S. A claim in the
shared store makes sure that only one of them does (`_is_first`).
"""

import asyncio
import logging
import secrets
from collections.abc import Callable
from typing import Any, Final

import msgspec
from msgspec import Raw

from interlock.approvals.decisions import DecisionReceiver
from interlock.approvals.inbox import Inbox
from interlock.approvals.protocol.approval import Approval, Decision, Kind, Move, Source, Status, What
from interlock.approvals.protocol.digests import proposal_digest
from interlock.catalog.routes import Route
from interlock.core.background import BackgroundTasks
from interlock.core.clock import Clock
from interlock.core.feed import Feed
from interlock.core.recorder import Recorder
from interlock.core.replicas import LEASE_S, Replicas
from interlock.rooms import proposal_records as records
from interlock.rooms.protocol import proposals as rules
from interlock.rooms.protocol.envelope import MCP, PROPOSAL, REJECT, WITHDRAW, Envelope, EnvelopeRefusal
from interlock.rooms.protocol.participants import OWN, Participant, Privilege, participant_of
from interlock.rooms.protocol.proposals import STATUS, ProposalStatus, Proposed
from interlock.rooms.room import Room, RoomAudit
from interlock.store.ports import StoreError
from interlock.wire.refusal import BUDGET_EXCEEDED, Refusal

log = logging.getLogger("interlock.rooms")

LISTED_MAX: Final = 100  # proposals in one answer, the newest
ADOPTED_S: Final = 5.0  # a proposal that its own replica did not put into the inbox until then is put there here
CARRIED_OUT_MAX: Final = 10_000  # requests of other replicas whose answer is awaited; some are never answered
NAMES_MAX: Final = 10_000  # principals whose participant is remembered
ANSWER_S: Final = 300.0  # how long the answer of a target may take; then it is not known what happened
NONCE_BYTES: Final = 24
IN_THE_ROOM: Final = "carried out in the room"
_UNDER_WAY: Final = (ProposalStatus.PENDING, ProposalStatus.CLAIMED)


class SettledProposal(msgspec.Struct, frozen=True):
    """The approval of a proposal, and the reply of its target if the proposal was carried out."""

    approval: Approval
    answer: Envelope | None = None


class _Claim(msgspec.Struct, frozen=True):
    """A proposal that is being carried out: its request was published, and the reply is awaited."""

    approval_id: str
    target: str
    rpc_id: bytes
    timer: asyncio.TimerHandle
    is_gated: bool  # the gate uses the approval, and ends it


class ProposalTracker(DecisionReceiver):
    """A tracker that follows the proposals of all rooms, from their publication to their end.

    A proposal waits from `admit` on. It is tracked after it has an approval, and it ends when its approval in the inbox
    ends.
    """

    def __init__(
        self, inbox: Inbox, recorder: Recorder, clock: Clock, tool: Callable[[str], Route | None], replicas: Replicas
    ) -> None:
        """Create the tracker. `tool` returns the route of a tool of this node by name, or None."""
        self.index = records.ProposalIndex(inbox)
        self.judged = Feed[tuple[str, str, str, ProposalStatus]]()  # room, proposer, method, and what it came to
        self._inbox = inbox
        self._audit = RoomAudit(recorder, clock)
        self._clock = clock
        self._find_tool = tool
        self.rooms: dict[str, Room] = {}  # those that are open
        self._claims: dict[str, _Claim] = {}  # the fulfilments that wait for a reply, by the id of the envelope
        self._expected: set[str] = set()  # fulfilments that are yet to be looked at
        self._published: asyncio.Queue[tuple[Room, Envelope, str, float]] = asyncio.Queue()
        self._work = BackgroundTasks()
        # From now on, and not from `start`: the inbox opens first, and ends what was left behind.
        self._changes = inbox.listen(only_own=True)
        self._replicas = replicas
        # The fulfilments that another replica sent, by the id of the envelope.
        self._carried_out: dict[str, records.Key] = {}
        inbox.heard.subscribe(self._apply_remote_change)

    # Life

    def start(self) -> None:
        """Start to process envelopes and changes of the inbox. Call this after the rooms are open, because ended
        proposals are announced there.
        """
        self._work.begin(self._follow_envelopes(), "proposals of rooms")
        self._work.begin(self._follow_inbox(), "proposals in the inbox")

    async def close(self) -> None:
        self._changes.close()
        for claim in self._claims.values():
            claim.timer.cancel()
        await self._work.close()

    # What a room tells

    def admit(self, room: Room, envelope: Envelope, who: Participant) -> EnvelopeRefusal | None:
        """Count a new proposal as waiting. Refuse it if too many proposals of its sender are waiting (X-7.3-3)."""
        if not room.settings.tracker:
            return None
        waiting = [id for id, proposer in self.index.waiting[room.topic].items() if proposer == who.id]
        most = room.settings.proposals_pending
        if len(waiting) < most:
            self.index.waiting[room.topic][envelope.id] = who.id
            return None
        ends = [approval.expires_at for id in waiting if (approval := self.index.find(room.topic, id)) is not None]
        left_s = min((end for end in ends if end is not None), default=self._clock.wall()) - self._clock.wall()
        message = f"at most {most} proposals of yours wait at a time; withdraw one, or wait until one is decided"
        details = {"limit": most, "retry_after_ms": max(1000, int(left_s * 1000))}
        return EnvelopeRefusal("rate_limited", message, details, id=envelope.id)

    def recover(self, room: Room, envelope: Envelope, received_at: float, principal: str = "") -> None:
        """Put a proposal into the inbox because the replica that published it may have stopped before doing so. Do
        nothing if the proposal is in the inbox already. If it has expired, only stop counting it as waiting.
        `principal` is the name of the proposer's principal, or empty if unknown.
        """
        if (room.topic, envelope.id) in self.index.tracked:
            return
        is_over = received_at + room.settings.proposal_ttl_s <= self._clock.wall()
        if is_over or not room.settings.tracker:
            self.index.stop_waiting(room.topic, envelope.id)
            return
        self.index.waiting[room.topic][envelope.id] = envelope.sender or ""
        principal = principal or f"participant:{envelope.sender}"
        self._published.put_nowait((room, envelope, principal, received_at))

    def on_published(self, room: Room, envelope: Envelope, principal: str) -> None:
        """Queue an envelope that was published through this replica, if the tracker has to process it."""
        if room.settings.tracker and self._is_relevant(room, envelope):
            self._published.put_nowait((room, envelope, principal, self._clock.wall()))

    def on_replicated(self, room: Room, envelope: Envelope, received_at: float) -> None:
        """Note an envelope that was published through another replica. If it replies to a request of this replica,
        queue it.
        """
        if not room.settings.tracker:
            return
        answers = envelope.correlation_id or ""
        if envelope.kind == PROPOSAL:
            # Its replica puts it into the inbox, unless that replica stops before.
            self.index.waiting[room.topic][envelope.id] = envelope.sender or ""
            asyncio.get_running_loop().call_later(ADOPTED_S, self.recover, room, envelope, received_at)
        elif envelope.kind == MCP and (answers in self._claims or answers in self._expected):
            self._published.put_nowait((room, envelope, "", received_at))
        elif envelope.kind == MCP and (tracked := self.index.tracked.get((room.topic, answers))) is not None:
            tracked.fulfilment = envelope.id
            self._carried_out[envelope.id] = (room.topic, answers)
            if len(self._carried_out) > CARRIED_OUT_MAX:
                del self._carried_out[next(iter(self._carried_out))]
        elif (key := self._carried_out.pop(answers, None)) is not None:
            tracked = self.index.tracked.get(key)
            if tracked is not None and tracked.answer is None:
                tracked.answer = envelope

    def _apply_remote_change(self, approval: Approval) -> None:
        """Update the index after another replica has created or changed a proposal. That replica announces the change
        in the room.
        """
        if approval.kind is not Kind.PROPOSAL:
            return
        key, status = records.key_of(approval), STATUS[approval.status]
        tracked = self.index.tracked.get(key)
        if status is ProposalStatus.PENDING:
            if tracked is None:
                self.index.add(key, records.Tracked(approval.id, approval.agent or ""))
            elif tracked.approval_id != approval.id:  # it was edited
                tracked.approval_id, tracked.sent_params = approval.id, approval.params
            self.index.waiting[key[0]][key[1]] = approval.agent or ""
        elif tracked is not None and tracked.approval_id == approval.id and tracked.announced is not status:
            self._note_status(approval, tracked, status)

    def _is_relevant(self, room: Room, envelope: Envelope) -> bool:
        """Return whether the tracker has to process an envelope. Remember a request that may carry out a proposal. This
        check is cheap, because most envelopes are irrelevant.
        """
        if envelope.kind != MCP:
            return envelope.kind in (PROPOSAL, REJECT, WITHDRAW)
        answers = envelope.correlation_id or ""
        if envelope.id in self._claims:  # it was sent here
            return False
        if answers in self._claims or answers in self._expected:
            return True
        is_named = (room.topic, answers) in self.index.tracked
        if not is_named and (not self.index.waiting[room.topic] or len(envelope.to or ()) != 1):
            return False
        self._expected.add(envelope.id)
        return True

    async def _follow_envelopes(self) -> None:
        """Process published envelopes in order. If one fails, log the error and continue with the next."""
        while True:
            room, envelope, principal, received_at = await self._published.get()
            try:
                if envelope.kind == PROPOSAL:
                    await self._raise_approval(room, envelope, principal, received_at)
                elif envelope.kind in (REJECT, WITHDRAW):
                    # The room has published a rejection or withdrawal, whose sender may have left meanwhile.
                    id = envelope.sender or ""
                    seat, privilege = room.seats.get(id), room.find_recorded_privilege(id) or Privilege.RESTRICTED
                    who = Participant(id=id, privilege=privilege) if seat is None else seat.participant
                    if (refusal := await self.decide(room, envelope, who, principal)) is not None:
                        room.tell(id, refusal)
                elif envelope.correlation_id in self._claims:
                    await self._take_answer(envelope)
                else:
                    await self._take_fulfilment(room, envelope, principal)
            except Exception:
                log.exception("room %s: the tracker failed over the envelope %s", room.topic, envelope.id)
            finally:
                self._expected.discard(envelope.id)

    async def _raise_approval(self, room: Room, envelope: Envelope, principal: str, received_at: float) -> None:
        """Create the approval of a published proposal in the inbox. If that is impossible, tell the proposer why."""
        proposer, proposed = envelope.sender or "", rules.read_proposed(envelope.payload)
        if proposed is None:
            message = "its params cannot be shown to a person as everyone would read them; it is not tracked"
            refusal = EnvelopeRefusal("invalid_proposal", message, id=envelope.id)
        elif not await self._is_first(room, envelope, principal, received_at):
            return
        else:
            raised = await self._inbox.raise_(self._draft(room, envelope, proposed, principal, received_at))
            if isinstance(raised, Approval):
                self.index.add((room.topic, envelope.id), records.Tracked(raised.id, proposer))
                self.judged.publish((room.topic, proposer, raised.method or "", ProposalStatus.PENDING))
                return
            code: Any = "rate_limited" if raised.code == BUDGET_EXCEEDED else "unavailable"
            refusal = EnvelopeRefusal(code, "the inbox does not take it; it is not tracked", id=envelope.id)
        self.index.stop_waiting(room.topic, envelope.id)
        room.tell(proposer, refusal)

    def _draft(
        self, room: Room, envelope: Envelope, proposed: Proposed, principal: str, received_at: float
    ) -> Approval:
        """Return an approval for a proposal, which is not in the inbox yet."""
        to = envelope.to or ()
        target = to[0] if len(to) == 1 else None
        name, params = proposed.tool, proposed.params
        own = self._find_tool(name) if target == OWN and name is not None else None
        place = f"rooms.{room.topic}.{target or '*'}"
        visible_params = b"null" if params is None else bytes(params)
        return self._inbox.draft(
            Kind.PROPOSAL,
            Source.ROOMS,
            requested_by=principal,
            tool=own.qualified if own is not None else f"{place}.{name}" if name is not None else place,
            digest=proposal_digest(room.topic, envelope.id, envelope.sender, target, proposed.method, visible_params),
            agent=envelope.sender,
            room=room.topic,
            proposal_id=envelope.id,
            target=target,
            method=proposed.method,
            params=params,
            tool_digest=own.offered_digest if own is not None else None,
            nonce=secrets.token_urlsafe(NONCE_BYTES),
            reason=proposed.reason,
            expires_at=received_at + room.settings.proposal_ttl_s,
        )

    def _is_held(self, approval: Approval) -> bool:
        """Return whether the proposal asks for a tool of this node whose calls a person has to approve."""
        tool = self._find_tool(approval.tool) if approval.target == OWN else None
        return tool is not None and tool.is_held

    async def _is_first(self, room: Room, envelope: Envelope, principal: str, received_at: float) -> bool:
        """Claim a proposal among all replicas. Return whether this replica was the first and therefore puts it into the
        inbox.
        """
        try:
            is_first = await self._replicas.claim(f"proposal\n{room.topic}\n{envelope.id}")
        except StoreError as away:
            log.warning("room %s: the proposal %s is tried again: %s", room.topic, envelope.id, away)
            is_first = False
        raised = self.index.find(room.topic, envelope.id)
        if not is_first and (raised is None or raised.status is not Status.PENDING):
            self.index.stop_waiting(room.topic, envelope.id)
        if not is_first and raised is None:  # who claimed it may be no more before it is in the inbox
            asyncio.get_running_loop().call_later(LEASE_S, self.recover, room, envelope, received_at, principal)
        return is_first

    # Fulfilments that came through the room

    async def _take_fulfilment(self, room: Room, envelope: Envelope, principal: str) -> None:
        """Process a request that may carry out a proposal. The request belongs to the proposal that its
        `correlation_id` names, or to the only pending proposal with the same content.

        The request is already published and cannot be undone. If it is not allowed to fulfil the proposal, the sender
        is informed and the audit log records it.
        """
        sent, sender = rules.read_fulfilment(envelope.payload), envelope.sender or ""
        if sent is None:
            return
        approval, matched_by = self.index.find(room.topic, envelope.correlation_id or ""), "correlation_id"
        if approval is None:
            # The only pending proposal with exactly this content. Two identical ones are ambiguous (X-4.2.1-3).
            to = (envelope.to or ("",))[0]
            matches = [
                pending
                for pending in self.index.pending(room.topic)
                if pending.target == to
                and pending.agent != sender
                and rules.is_as_proposed(pending.method or "", pending.params, sent)
            ]
            if len(matches) != 1:
                return
            approval, matched_by = matches[0], "content"
        refusal = records.refuse_own(approval, sender, principal, envelope.id)
        refusal = refusal or records.refuse_over(approval, envelope.id)
        if refusal is None:
            # Of several attempts to claim a proposal exactly one succeeds.
            claimed = await self._decide(approval, What.APPROVED, sender, principal, IN_THE_ROOM)
            if not isinstance(claimed, Refusal):
                claimed = await self._inbox.use(approval.id)
            refusal = records.envelope_refusal(claimed, envelope.id) if isinstance(claimed, Refusal) else None
        if refusal is not None:
            outcomes = {"proposal_expired": "late_fulfilment", "already_claimed": "duplicate_fulfilment"}
            outcome = outcomes.get(refusal.code, refusal.code)
            self._audit.add("fulfil", room.topic, principal, outcome, envelope, participant=sender)
            room.tell(sender, refusal)
            return
        if (tracked := self.index.tracked.get(records.key_of(approval))) is not None:
            tracked.matched_by, tracked.fulfilment = matched_by, envelope.id
            if not rules.is_as_proposed(approval.method or "", approval.params, sent):
                tracked.sent_params = (sent.params or Raw(b"{}")).copy()  # without the rest of the payload
        self._await_reply(envelope, approval.id, bytes(sent.id))
        self._audit.add("fulfil", room.topic, principal, "ok", envelope, participant=sender, approval=approval.id)

    def _await_reply(self, envelope: Envelope, approval_id: str, rpc_id: bytes, *, is_gated: bool = False) -> None:
        """Start to wait for the reply to a request that carries out a proposal, for at most ANSWER_S."""
        timer = asyncio.get_running_loop().call_later(ANSWER_S, self._on_silence, envelope.id)
        self._claims[envelope.id] = _Claim(approval_id, (envelope.to or ("",))[0], rpc_id, timer, is_gated)

    def _on_silence(self, envelope_id: str) -> None:
        claim = self._claims.pop(envelope_id, None)
        if claim is not None and not claim.is_gated:
            self._work.begin(self._inbox.finish(claim.approval_id, Move.LOSE, "the target did not answer"))

    async def _take_answer(self, envelope: Envelope) -> None:
        """Finish a proposal when its target has replied to the request. For a call that the gate releases, the gate
        finishes the approval; make it void if the gate never used it.
        """
        claim = self._claims[envelope.correlation_id or ""]
        outcome = rules.read_outcome(envelope.payload, claim.rpc_id)
        if outcome is None or envelope.sender != claim.target:
            return
        del self._claims[envelope.correlation_id or ""]
        claim.timer.cancel()
        approval = self._inbox.get(claim.approval_id)
        tracked = None if approval is None else self.index.tracked.get(records.key_of(approval))
        if tracked is not None:
            tracked.answer = envelope
        if not claim.is_gated:
            await self._inbox.finish(claim.approval_id, *outcome)
        elif approval is not None and approval.status is Status.APPROVED:  # a check before the gate refused the call
            await self._inbox.void(claim.approval_id, "refused before it was sent")

    # What people decide in the inbox

    def find_obstacle(self, approval: Approval) -> Refusal | None:
        """Return why a proposal cannot be carried out now, or None if it can."""
        refusal = self._find_obstacle(approval)
        return None if refusal is None else records.approval_refusal(refusal)

    def find_refusal(self, approval: Approval, decision: Decision, key: str | None) -> Refusal | None:
        """Return why the person or program that made a decision is not allowed to decide on this proposal, or None if
        they are.
        """
        room, principal = self.rooms.get(approval.room or ""), records.decider(decision)
        participant = participant_of(principal)
        refusal = records.refuse_own(approval, participant, principal, approval.proposal_id)
        if refusal is None and room is not None and room.granted(participant) is Privilege.RESTRICTED:
            refusal = records.restricted(approval.proposal_id)
        return None if refusal is None else records.approval_refusal(refusal)

    async def settle(self, approval: Approval) -> Approval | Refusal:
        """Send the request of an approved proposal in the name of the approver, who need not be connected (X-N-1).
        Return any other approval unchanged.
        """
        if approval.status is not Status.APPROVED or approval.decision is None:
            return approval
        principal = records.decider(approval.decision)
        who = Participant(id=participant_of(principal), privilege=Privilege.FULL)
        sent = await self._send(approval, who, principal)
        return records.approval_refusal(sent) if isinstance(sent, EnvelopeRefusal) else sent

    # What participants decide

    async def fulfil(
        self, topic: str, proposal_id: str, who: Participant, principal: str
    ) -> Approval | EnvelopeRefusal:
        """Carry out a proposal on behalf of a full participant."""
        approval = await self._find_decidable(topic, proposal_id, who)
        if isinstance(approval, EnvelopeRefusal):
            return approval
        refusal = records.refuse_own(approval, who.id, principal, proposal_id)
        refusal = refusal or records.refuse_over(approval, proposal_id)
        if refusal is None and self._is_held(approval):
            message = "a person has to approve it in the inbox, with a proof"
            refusal = EnvelopeRefusal("kind_not_allowed", message, id=proposal_id)
        refusal = refusal or self._find_obstacle(approval)
        if refusal is not None:
            return refusal
        decided = await self._decide(approval, What.APPROVED, who.id, principal, IN_THE_ROOM)
        if isinstance(decided, Refusal):
            return records.envelope_refusal(decided, proposal_id)
        sent = await self._send(decided, who, principal)
        return records.envelope_refusal(sent, proposal_id) if isinstance(sent, Refusal) else sent

    async def reject(
        self, topic: str, proposal_id: str, who: Participant, principal: str, reason: str | None
    ) -> Approval | EnvelopeRefusal:
        """Reject a proposal on behalf of a full participant."""
        approval = await self._find_decidable(topic, proposal_id, who)
        if isinstance(approval, EnvelopeRefusal):
            return approval
        decided = await self._decide(approval, What.DENIED, who.id, principal, reason)
        return records.envelope_refusal(decided, proposal_id) if isinstance(decided, Refusal) else decided

    async def withdraw(self, topic: str, proposal_id: str, who: Participant) -> Approval | EnvelopeRefusal:
        """Withdraw a proposal on behalf of its proposer."""
        if (approval := await self.find(topic, proposal_id)) is None:
            return records.unknown(proposal_id)
        if who.id != approval.agent:
            return EnvelopeRefusal("not_proposer", "only its proposer withdraws a proposal", id=proposal_id)
        withdrawn = await self._inbox.withdraw(approval.id)
        return records.envelope_refusal(withdrawn, proposal_id) if isinstance(withdrawn, Refusal) else withdrawn

    async def decide(self, room: Room, envelope: Envelope, who: Participant, principal: str) -> EnvelopeRefusal | None:
        """Reject or withdraw the proposal that an envelope names. Return a refusal if that is not allowed, otherwise
        None.
        """
        proposal_id = envelope.correlation_id or ""
        if envelope.kind == WITHDRAW:
            done = await self.withdraw(room.topic, proposal_id, who)
        else:
            done = await self.reject(room.topic, proposal_id, who, principal, rules.read_reason(envelope.payload))
        return msgspec.structs.replace(done, id=envelope.id) if isinstance(done, EnvelopeRefusal) else None

    async def edit(self, approval_id: str, params: bytes, by: str) -> Approval | EnvelopeRefusal:
        """Replace the params of a proposal. The new approval of the proposal is undecided.

        The old approval is voided first, so that no decision on it can apply to the new params (X-4.2.1-2, X-10.2-3).
        """
        old = self._inbox.get(approval_id)
        if old is None or old.kind is not Kind.PROPOSAL:
            return EnvelopeRefusal("unknown_proposal", "it is no proposal of a room", id=approval_id)
        topic, id = records.key_of(old)
        room, tracked = self.rooms.get(topic), self.index.tracked.get((topic, id))
        if room is None or tracked is None or tracked.approval_id != old.id or old.status is not Status.PENDING:
            return records.refuse_over(old, id) or EnvelopeRefusal("already_claimed", "it no longer waits", id=id)
        payload = b'{"method":%b,"params":%b}' % (msgspec.json.encode(old.method), params)
        if (proposed := rules.read_proposed(payload)) is None:
            why = "params are ambiguous JSON (duplicate keys or unsafe numbers)"
            return EnvelopeRefusal("invalid_proposal", why, id=id)
        to = (old.target,) if old.target else None
        envelope = Envelope(id=id, kind=PROPOSAL, sender=old.agent, to=to, payload=payload)
        draft = self._draft(room, envelope, proposed, old.requested_by, old.created_at)
        draft = msgspec.structs.replace(draft, reason=old.reason, expires_at=old.expires_at)
        # From now on the end of the old approval is not announced as an end of the proposal.
        tracked.approval_id = draft.id
        voided = await self._inbox.void(old.id, f"edited: {draft.id}")
        raised = voided if isinstance(voided, Refusal) else await self._inbox.raise_(draft)
        if isinstance(raised, Refusal):
            tracked.approval_id = old.id
            if not isinstance(voided, Refusal):
                self._announce_status(voided)
            return records.envelope_refusal(raised, id)
        tracked.sent_params = proposed.params
        self._audit.add("edit", topic, by, "ok", participant=old.agent, approval=raised.id, instead_of=old.id)
        return raised

    async def find(self, topic: str, proposal_id: str) -> Approval | None:
        """Return the approval of a proposal, or None. If the proposal was just published, wait until it is tracked."""
        await self.index.wait_until_tracked(topic, (proposal_id,))
        return self.index.find(topic, proposal_id)

    async def _find_decidable(self, topic: str, proposal_id: str, who: Participant) -> Approval | EnvelopeRefusal:
        """Return the approval of a proposal, or a refusal if this participant may not decide on it."""
        if (approval := await self.find(topic, proposal_id)) is None:
            return records.unknown(proposal_id)
        return approval if who.privilege is Privilege.FULL else records.restricted(proposal_id)

    async def _decide(
        self, approval: Approval, what: What, by: str, principal: str, reason: str | None
    ) -> Approval | Refusal:
        decision = Decision(what=what, by=principal, at=self._clock.wall(), reason=reason)
        if len(self.index.names) >= NAMES_MAX:
            self.index.names.clear()
        self.index.names[approval.room or "", principal] = by
        return await self._inbox.decide(approval.id, decision)

    # Sending

    def _find_obstacle(self, approval: Approval) -> EnvelopeRefusal | None:
        """Return why the proposed request cannot be sent now, or None if it can."""
        room, id = self.rooms.get(approval.room or ""), approval.proposal_id
        if room is None:
            return EnvelopeRefusal("unavailable", "its room no longer exists; deny it", id=id)
        if approval.target is None:
            message = "it names no single target; deny it, or send the request in the room"
            return EnvelopeRefusal("one_recipient", message, id=id)
        if approval.target in room.seats:
            return None
        message = f"{approval.target} is not in the room {room.topic}; approve it when it is back, or deny it"
        return EnvelopeRefusal("target_absent", message, id=id)

    async def _send(self, approval: Approval, who: Participant, principal: str) -> Approval | Refusal:
        """Publish the request of an approved proposal and return the approval. Mark the approval as used first, except
        when the gate does that during the call. Make the approval void if the request can no longer be sent.
        """
        refusal, is_gated = self._find_obstacle(approval), self._is_held(approval)
        if refusal is not None:  # since it was decided
            await self._inbox.void(approval.id, refusal.code)
            return refusal
        # Found before anything is awaited, because the room may be closed meanwhile.
        room = self.rooms[approval.room or ""]
        if not is_gated:
            used = await self._inbox.use(approval.id)
            if isinstance(used, Refusal):
                return used
            approval = used
        stamp, to, proposal_id = room.stamp(), (approval.target or "",), approval.proposal_id
        text = rules.fulfilment_payload(approval.method or "", approval.params, stamp.id)
        # X-4.2.1-1
        envelope = Envelope(
            id=stamp.id, ts=stamp.ts, kind=MCP, sender=who.id, to=to, correlation_id=proposal_id, payload=text
        )
        self._await_reply(envelope, approval.id, b'"%b"' % stamp.id.encode(), is_gated=is_gated)
        if (refusal := await room.publish(envelope, who, principal, is_guarded=True)) is not None:
            if (claim := self._claims.pop(envelope.id, None)) is not None:
                claim.timer.cancel()
            if is_gated:
                await self._inbox.void(approval.id, refusal.code)
            else:
                await self._inbox.finish(approval.id, Move.FAIL, refusal.code)
            return refusal
        if (tracked := self.index.tracked.get(records.key_of(approval))) is not None:
            tracked.fulfilment = envelope.id
        return self._inbox.get(approval.id) or approval

    def find_released_approval(self, envelope_id: str) -> str | None:
        """Return the approval with which the gate releases the call in this envelope, or None if the gate does not hold
        the call.
        """
        claim = self._claims.get(envelope_id)
        return claim.approval_id if claim is not None and claim.is_gated else None

    # What the inbox tells

    async def _follow_inbox(self) -> None:
        """Announce each change that this replica makes to a proposal in the inbox."""
        async for approval in self._changes:
            if approval.kind is Kind.PROPOSAL:
                self._announce_status(approval)

    def _announce_status(self, approval: Approval) -> None:
        """Announce the new status of a proposal in its room."""
        topic, proposal_id = records.key_of(approval)
        status, tracked = STATUS[approval.status], self.index.tracked.get((topic, proposal_id))
        if (
            tracked is None
            or tracked.approval_id != approval.id
            or status in (tracked.announced, ProposalStatus.PENDING)
        ):
            return
        self._note_status(approval, tracked, status)
        self.judged.publish((topic, tracked.proposer, approval.method or "", status))
        room, decision = self.rooms.get(topic), approval.decision
        if room is None:
            return
        details = {
            "proposer": tracked.proposer,
            "by": tracked.proposer if status is ProposalStatus.WITHDRAWN else self.index.find_decider(approval),
            "reason": decision.reason if decision is not None and status is ProposalStatus.REJECTED else None,
            "fulfilment": tracked.fulfilment,
            "modified": True if tracked.sent_params is not None else None,
            "outcome": approval.outcome,
        }
        event: dict[str, Any] = {"event": f"proposal_{status.value}", "proposalId": proposal_id}
        event |= {name: value for name, value in details.items() if value is not None}
        room.announce(event, answers=proposal_id)

    def _note_status(self, approval: Approval, tracked: records.Tracked, status: ProposalStatus) -> None:
        """Record that the status of a proposal was announced, and stop counting the proposal as waiting."""
        topic, proposal_id = records.key_of(approval)
        self.index.stop_waiting(topic, proposal_id)
        self.index.counts[topic, status.value] += 1
        if tracked.announced is None and approval.decision is not None:
            waited_s = max(0.0, approval.decision.at - approval.created_at)
            self.index.waits[topic].add(waited_s)
        tracked.announced = status

    # Looking

    async def wait_until_settled(self, topic: str, proposal_id: str, wait_s: float) -> SettledProposal | None:
        """Wait until a proposal has ended, but at most `wait_s`. Return its state then, or None if the proposal is
        unknown.
        """
        key = (topic, proposal_id)
        try:
            async with asyncio.timeout(wait_s):
                # A proposal that was published a moment ago has no approval yet.
                while (approval := self.index.find(*key)) is None or STATUS[approval.status] in _UNDER_WAY:
                    await self.index.changed.wait()
        except TimeoutError:
            pass
        approval, tracked = self.index.find(*key), self.index.tracked.get(key)
        return None if approval is None else SettledProposal(approval, None if tracked is None else tracked.answer)

    async def list_readable(
        self, room: Room, participant: str, after: int, limit: int = LISTED_MAX
    ) -> list[dict[str, Any]]:
        """Return the proposals of a room as MCPx 10.2 describes them, newest first: those that were published after the
        sequence number `after`, and the participant's own. Raise StoreError if reading fails.
        """
        await self.index.wait_until_tracked(room.topic, [*self.index.waiting[room.topic]])
        find_sequence, proposals = room.timeline.known.find_sequence, self.index.all_of(room.topic)
        if after:  # X-4.4.1-6: else all are readable, also those that are no longer kept
            proposals = [
                each
                for each in proposals
                if each.agent == participant or (find_sequence(each.proposal_id or "") or 0) > after
            ]
        return [await self.index.described(room, approval) for approval in proposals[:limit]]
