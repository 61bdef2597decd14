"""The standing grants of a node: signing, storage, counting of uses, and revocation.

A grant is on disk with the proof that was signed for it, and that proof is verified again when the node starts: a grant
that somebody writes into the store without a key has no effect. Each use is counted on disk, over the revision that was
read, before the call leaves: if two calls compete for the last use, only one succeeds. A grant ends when its time is
over, its calls are used, a person revokes it, or its signer may no longer approve. An ended grant stays visible for
some time and releases no calls.

An approval that a grant gave does not release a call by itself: the grant may have ended, and each use is counted.
"""

import logging
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Final

import msgspec
from msgspec import Raw
from msgspec.structs import replace

from interlock.approvals.grant_terms import KIND, BadRules, check_grant, check_rules, find_violation, grant_digest
from interlock.approvals.grants_api import GrantTerms
from interlock.approvals.inbox import Inbox
from interlock.approvals.protocol.approval import UNAVAILABLE_NOW, Approval, Decision, Kind, Proof, What
from interlock.approvals.trust.approval_proofs import ANCHOR_GONE, ProofVerifier, stored_proof
from interlock.core.audit_record import AuditRecord
from interlock.core.clock import Clock
from interlock.core.recorder import Recorder
from interlock.gate.protocol.held_call import Presented
from interlock.gate.protocol.proofs import ProofQuestion, invalid
from interlock.mcp.meta import RAW_EMPTY
from interlock.store.ports import Change, Conflict, Entry, KeyValue, StoreError
from interlock.wire import refusal
from interlock.wire.jsontext.canonical import AmbiguousJson, read_untrusted
from interlock.wire.refusal import CONFIRMATION_VOID, INVALID_PARAMS, Refusal, ax_refusal

log = logging.getLogger("interlock.approvals")

BUCKET: Final = "grants"
GRANTS_MAX: Final = 1000  # that let something pass, at one node
KEPT_S: Final = 30 * 86_400.0  # after its end
TRIES_MAX: Final = 20  # against calls that use the same grant at the same moment
DECIDED_BY: Final = "grant:"  # and the id of a grant: who decided a call that it let pass
PERSONAL: Final = "operator_signature"
UNKNOWN: Final = ax_refusal(refusal.CONFIRMATION_UNKNOWN, "there is no such grant, or it ended long ago")
# The codes of an approval that an identical call used, or that lapsed.
_TAKEN: Final = (refusal.CONFIRMATION_USED, refusal.CONFIRMATION_EXPIRED)


class StoredGrant(msgspec.Struct, frozen=True, kw_only=True):
    """Stored form of a grant with its proof. `ended` is the reason why it was ended early, if it was."""

    grant: GrantTerms
    token: str  # the proof as it was signed; its jti is spent, so that it proves nothing else
    proof: Proof
    signed_at: float
    signed_by: str  # who brought it
    used: int = 0
    used_at: float | None = None
    ended: str | None = None
    ended_at: float | None = None


class _Entry(msgspec.Struct, frozen=True):
    stored: StoredGrant
    revision: int
    due: float | None  # by the monotonic clock, which cannot be set back


class Uncovered(msgspec.Struct, frozen=True):
    """Reason why no standing grant of a caller covers its call."""

    grant_id: str
    why: str


@dataclass(eq=False)
class StandingGrants:
    """The grants of a node: every use and every end is on disk before it counts."""

    kv: KeyValue
    clock: Clock
    judge: ProofVerifier
    recorder: Recorder
    _: KW_ONLY
    aggregator_id: str
    _entries: dict[str, _Entry] = field(default_factory=dict, init=False)
    _proved: set[str] = field(default_factory=set, init=False)  # whose signatures were verified since the start

    # Life

    async def open(self) -> None:
        """Read the stored grants and verify their signatures. Raise StoreError if they cannot be read."""
        for entry in await self.kv.entries(BUCKET, self.clock.wall()):
            self._take(entry.key, entry)
            stored = self.get(entry.key)
            if stored is not None and stored.ended is None and not self._is_proved(stored):
                log.error("the signature of the standing grant %s does not hold: it lets nothing pass", entry.key)

    async def close(self) -> None:
        """Do nothing: this object holds no resources."""

    def _is_proved(self, stored: StoredGrant) -> bool:
        """Return whether the stored proof is a valid signature over exactly this grant.

        Success is remembered, failure is not: the address for which a passkey is valid may become known later.
        """
        grant, proof = stored.grant, stored.proof
        if grant.id in self._proved:
            return True
        try:
            check_rules(grant.rules)
            question = self._question(grant)
        except BadRules:
            return False
        verified = self.judge.verify_again(question, Presented(token=stored.token), stored.signed_at)
        if isinstance(verified, Refusal) or (verified.anchor, verified.key) != (proof.anchor, proof.key):
            return False
        self._proved.add(grant.id)
        return True

    # Looking

    def all(self) -> list[StoredGrant]:
        """Return all grants, the newest last."""
        grants = [entry.stored for entry in self._entries.values()]
        return sorted(grants, key=lambda stored: (stored.signed_at, stored.grant.id))

    def get(self, id: str) -> StoredGrant | None:
        entry = self._entries.get(id)
        return None if entry is None else entry.stored

    def find_end_reason(self, id: str) -> str | None:
        """Return why a grant no longer allows any call, or None if it still does."""
        entry = self._entries.get(id)
        if entry is None:
            return "is not known here"
        stored, grant = entry.stored, entry.stored.grant
        if stored.ended is not None:
            return stored.ended if stored.ended.startswith("was ") else f"is void: {stored.ended}"
        if grant.calls is not None and stored.used >= grant.calls:
            return f"is used up ({grant.calls} calls)"
        is_late = grant.until is not None and self.clock.wall() >= grant.until
        if is_late or (entry.due is not None and self.clock.now() >= entry.due):
            return "has expired"
        if not self.judge.stands_behind(grant.tool, stored.proof):
            return f"is void: {ANCHOR_GONE}"
        return None if self._is_proved(stored) else "is void: its signature does not hold"

    def has_any(self, tool: str, who: str) -> bool:
        """Return whether a grant for this tool and caller exists or existed, even if it has ended."""
        grants = (entry.stored.grant for entry in self._entries.values())
        return any((grant.tool, grant.who) == (tool, who) for grant in grants)

    def find(
        self, tool: str, tool_digest: str, who: str, arguments: Mapping[str, Any] | None
    ) -> StoredGrant | Uncovered | None:
        """Return the grant that covers a call with these arguments; of several, the one that ends first. If none covers
        the call, return Uncovered with the reason, or None if the caller has no grant for the tool.
        """
        near: Uncovered | None = None
        over: Uncovered | None = None
        matches: list[StoredGrant] = []
        for id, entry in self._entries.items():
            grant = entry.stored.grant
            if (grant.tool, grant.who) != (tool, who):
                continue
            if (why := self.find_end_reason(id)) is not None:
                over = Uncovered(id, why)  # the newest
            elif grant.tool_digest != tool_digest:
                near = Uncovered(id, "is for another definition of the tool")
            elif arguments is None:
                near = Uncovered(id, "does not cover it: the arguments are not an object")
            elif (wrong := find_violation(grant.rules, arguments)) is not None:
                near = Uncovered(id, f"does not cover it: {wrong}")
            else:
                matches.append(entry.stored)
        never = float("inf")
        ends: list[tuple[float, float]] = []
        for stored in matches:
            left = never if stored.grant.calls is None else stored.grant.calls - stored.used
            ends.append((never if stored.grant.until is None else stored.grant.until, left))
        return matches[ends.index(min(ends))] if matches else near or over

    # Signing

    def question(self, grant: GrantTerms) -> ProofQuestion | Refusal:
        """Return the facts that a person's proof must sign to make this grant valid, or a refusal if the grant cannot
        be signed.
        """
        try:
            check_grant(grant, self.clock.wall())
        except BadRules as bad:
            return Refusal(INVALID_PARAMS, "bad_grant", {"detail": str(bad)})
        if grant.aggregator_id != self.aggregator_id:
            return Refusal(INVALID_PARAMS, "bad_grant", {"detail": "it names another node"})
        return self._question(grant)

    async def sign(self, grant: GrantTerms, proof: Presented, *, by: str) -> StoredGrant | Refusal:
        """Verify the proof of a grant and store the grant. The signer must be a person who may approve calls of the
        tool.
        """
        question = self.question(grant)
        if isinstance(question, Refusal):
            return question
        if grant.id in self._entries:
            return Refusal(INVALID_PARAMS, "bad_grant", {"detail": "there is a grant of this id"})
        if sum(self.find_end_reason(id) is None for id in self._entries) >= GRANTS_MAX:
            return Refusal(INVALID_PARAMS, "bad_grant", {"detail": f"there are {GRANTS_MAX} grants; revoke some"})
        at = self.clock.wall()
        verified = await self.judge.judge(question, proof)
        if isinstance(verified, Refusal):
            return verified
        if verified.type != PERSONAL:
            return invalid("kind", "a person's own key signs a standing grant")
        stored = StoredGrant(grant=grant, token=proof.token, proof=stored_proof(verified), signed_at=at, signed_by=by)
        try:
            await self._record(stored, "grants/sign", "signed", who=by)
            self._proved.add(grant.id)
            self._keep(stored, await self._write(stored, None))
        except StoreError as error:
            log.error("a standing grant cannot be written: %s", error)
            return UNAVAILABLE_NOW
        return stored

    # Using and ending

    async def use(self, id: str) -> StoredGrant | Refusal:
        """Count one use of a grant, and write the count to disk. A grant for N calls can therefore be used at most N
        times.
        """
        try:
            for _ in range(TRIES_MAX):
                over = self.find_end_reason(id)
                if over is not None:
                    return ax_refusal(CONFIRMATION_VOID, f"the standing grant {id} {over}", reason="grant_over")
                entry = self._entries[id]
                used = replace(entry.stored, used=entry.stored.used + 1, used_at=self.clock.wall())
                if await self._replace(entry, used):
                    return used
        except StoreError as error:
            log.error("the use of a standing grant cannot be written: %s", error)
            return UNAVAILABLE_NOW
        return ax_refusal(CONFIRMATION_VOID, "others use the standing grant; make the call again", reason="contended")

    async def release(self, id: str, approval_id: str, question: Approval, inbox: Inbox) -> Approval | Refusal:
        """Use a grant for one call. Return the approval of the call, which is marked as used, or a refusal.

        The use is counted first, so if two calls compete for the last use, one of them is held. `approval_id` is the
        call's existing approval, or empty. `question` is the approval that a person would otherwise have been asked to
        decide.
        """
        used = await self.use(id)
        if isinstance(used, Refusal):
            return used
        decision = _decision(used, self.clock.wall())
        if approval_id:
            approval = inbox.get(approval_id)
            is_decided = approval is not None and is_granted(approval)
            decided = None if is_decided else await inbox.decide(approval_id, decision)
            taken = decided if isinstance(decided, Refusal) else await inbox.use(approval_id)
            if not isinstance(taken, Refusal) or taken.code not in _TAKEN:  # an operator may have denied it meanwhile
                return taken
        return await inbox.raise_used(question, decision)

    async def revoke(self, id: str, *, by: str) -> StoredGrant | Refusal:
        """End a grant now, for an operator. Return the grant, or a refusal. A grant that has already ended stays
        unchanged.
        """
        if id not in self._entries:
            return UNKNOWN
        try:
            return await self._end(id, f"was revoked by {by}", by=by) or UNKNOWN
        except StoreError as error:
            log.error("a standing grant cannot be revoked: %s", error)
            return UNAVAILABLE_NOW

    async def void_unfounded(self) -> list[StoredGrant]:
        """End the grants whose signers are no longer allowed to approve the tool, and return these grants. Raise
        StoreError if the store fails.
        """
        gone = [
            stored.grant.id
            for stored in self.all()
            if stored.ended is None and not self.judge.stands_behind(stored.grant.tool, stored.proof)
        ]
        ended = [await self._end(id, ANCHOR_GONE, by="node") for id in gone]
        return [stored_grant for stored_grant in ended if stored_grant is not None]

    async def _end(self, id: str, why: str, *, by: str) -> StoredGrant | None:
        """End a grant and return it, or return None if another process removed it meanwhile."""
        for _ in range(TRIES_MAX):
            entry = self._entries.get(id)
            if entry is None:
                return None
            if entry.stored.ended is not None:
                return entry.stored
            ended = replace(entry.stored, ended=why, ended_at=self.clock.wall())
            await self._record(ended, "grants/end", "ended", who=by, reason=why)
            if await self._replace(entry, ended):
                return ended
        raise Conflict(f"others keep using the standing grant {id}")

    # Inside

    def _question(self, grant: GrantTerms) -> ProofQuestion:
        digest, node = grant_digest(grant), self.aggregator_id
        return ProofQuestion(confirmation_id=grant.id, call_digest=digest, tool=grant.tool, aggregator_id=node)

    async def _replace(self, entry: _Entry, stored: StoredGrant) -> bool:
        """Store a changed grant. Return False if another process changed the grant first, and load that change."""
        try:
            self._keep(stored, await self._write(stored, entry.revision))
        except Conflict:
            self._take(stored.grant.id, await self.kv.get(BUCKET, stored.grant.id, self.clock.wall()))
            return False
        return True

    async def _write(self, stored: StoredGrant, revision: int | None) -> int:
        now, until = self.clock.wall(), stored.grant.until
        is_over = stored.ended is not None or stored.used == stored.grant.calls
        ttl_s = KEPT_S if is_over else None if until is None else until - now + KEPT_S
        encoded = msgspec.json.encode(stored)
        if revision is None:
            return await self.kv.create(BUCKET, stored.grant.id, encoded, now, ttl_s=ttl_s)
        return await self.kv.update(BUCKET, stored.grant.id, encoded, revision, now, ttl_s=ttl_s)

    def take_change(self, change: Change) -> None:
        """Apply a grant that another replica signed, used or ended."""
        current = self._entries.get(change.key)
        if current is None or change.entry is None or current.revision < change.entry.revision:
            self._take(change.key, change.entry)

    def _take(self, id: str, entry: Entry | None) -> None:
        stored = None
        if entry is not None:
            try:
                stored = msgspec.json.decode(entry.value, type=StoredGrant)
            except msgspec.DecodeError as error:
                # The calls that the grant covered are held instead.
                log.error("the standing grant %s cannot be read and is left out: %s", id, error)
        if entry is None or stored is None:
            self._entries.pop(id, None)
        else:
            self._keep(stored, entry.revision)

    def _keep(self, stored: StoredGrant, revision: int) -> None:
        grant, before = stored.grant, self._entries.get(stored.grant.id)
        due = None if grant.until is None else self.clock.now() + grant.until - self.clock.wall()
        self._entries[grant.id] = _Entry(stored, revision, due if before is None else before.due)

    async def _record(self, stored: StoredGrant, method: str, verdict: str, *, who: str, **more: str) -> None:
        grant = stored.grant
        details = {"grant": grant.id, "kind": KIND, "requested_by": grant.who, "digest": grant_digest(grant)}
        details |= {"tool_digest": grant.tool_digest, **stored.proof.facts, **more}
        now, tool = self.clock.wall(), grant.tool
        record = AuditRecord.event(now, who, "approvals", method, tool, verdict=verdict, **details)
        await self.recorder.append_now(record)


def is_granted(approval: Approval) -> bool:
    """Return whether a standing grant, instead of a person, approved this call."""
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
            arguments = find_arguments(approval.params)
            if arguments is not None and find_violation(grant.rules, arguments) is None:
                covered.append(approval)
    for approval in covered[: grant.calls]:
        await inbox.decide(approval.id, _decision(signed, now))


def find_arguments(raw: Raw | None) -> dict[str, Any] | None:
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
