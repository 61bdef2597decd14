"""Verification of approval proofs (MCP-AX 11.3): the signature, the anchor of its key, and single use.

A proof names what it is for (`ProofQuestion`) and is signed by a key of an anchor that may approve the tool. It is
accepted once: its id is on disk, until after it expires, before the approval counts. A passkey also has a counter; a
counter that goes back means that there is a copy of the passkey.

Keys of people can be revoked. The revocation is on disk, and counts from its moment on whatever the configuration still
says: the key proves nothing any more, and its approvals that were not used yet end.
"""

import hashlib
import logging
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec

from interlock.approvals.protocol.approval import UNAVAILABLE_NOW, Approval, Proof
from interlock.approvals.trust.anchors import Anchors
from interlock.ax.protocol.registration.authority import Anchor
from interlock.core.audit_record import AuditRecord
from interlock.core.clock import Clock
from interlock.crypto.jose import InvalidToken, Jwk, Jwt, thumbprint
from interlock.crypto.webauthn import Assertion, Party, is_assertion
from interlock.gate.protocol import proofs
from interlock.gate.protocol.held_call import Presented
from interlock.gate.protocol.proofs import ProofQuestion, Verified, invalid
from interlock.store.ports import Change, Conflict, KeyValue, StoreError
from interlock.wire.refusal import Refusal

log = logging.getLogger("interlock.approvals")

USED: Final = "proofs-confirm"
REVOKED: Final = "keys-revoked"
COUNTERS: Final = "passkey-counters"  # thumbprint -> how often the passkey had signed when it was last believed
ANCHOR_GONE: Final = "who approved it may no longer do so"
_THUMBPRINT: Final = re.compile("[A-Za-z0-9_-]{43}")  # SHA-256 in base64url
USED_MARGIN_S: Final = 3600.0  # a clock that is set back does not make an old proof good again


@dataclass(eq=False)
class ProofVerifier:
    """The verifier of approval proofs. `party` returns the WebAuthn relying party that passkeys must be made for, or
    None if passkeys cannot be used.
    """

    kv: KeyValue
    clock: Clock
    anchors: Anchors
    party: Callable[[], Party | None] = lambda: None
    _revoked: frozenset[str] = field(default_factory=frozenset, init=False)  # thumbprints

    async def open(self) -> None:
        """Load the revoked keys, and warn about anchors that still contain one. Raise StoreError if the store fails."""
        self._revoked = frozenset(entry.key for entry in await self.kv.entries(REVOKED, self.clock.wall()))
        for anchor in self.anchors.known():
            if any(thumbprint(key) in self._revoked for key in _own_keys(anchor)):
                message = "the key of anchor %s was revoked; remove its [[anchor]] from the configuration"
                log.warning(message, anchor.name)

    async def judge(self, question: ProofQuestion, proof: Presented) -> Verified | Refusal:
        """Verify a proof and use it up: the same proof is never accepted again."""
        judged = await self._judge_signature(question, proof)
        return judged if isinstance(judged, Refusal) else await self._use_up(judged)

    async def judge_for_any(
        self, question: ProofQuestion, tools: Sequence[str], proof: Presented
    ) -> Verified | Refusal:
        """Verify one proof about several tools, and use it up. The signer must be allowed to approve at least one of
        the tools. Call `stands_behind` for each tool afterwards.

        Tools with the same approvers are verified only once.
        """
        tried: set[frozenset[str]] = set()
        judged: Verified | Refusal = invalid("not_entitled", "the signer may approve none of these tools")
        for tool in tools:
            names = frozenset(anchor.name for anchor in proofs.approvers(tool, self.anchors.known()))
            if names in tried:
                continue
            tried.add(names)
            judged = await self._judge_signature(msgspec.structs.replace(question, tool=tool), proof)
            if isinstance(judged, Verified):
                return await self._use_up(judged)
        return judged

    async def _judge_signature(self, question: ProofQuestion, proof: Presented) -> Verified | Refusal:
        return await self.anchors.judge_signature(
            lambda anchor: bool(proofs.approvers(question.tool, (anchor,))),
            lambda anchors: self._judge(question, proof, anchors),
        )

    async def _use_up(self, judged: Verified) -> Verified | Refusal:
        """Use up a proof: store its id, so that it is never accepted again, and the counter of its passkey."""
        if judged.key in self._revoked:
            return invalid("revoked", "the key of the proof was revoked")
        now = self.clock.wall()
        key = hashlib.sha256(f"{judged.anchor}/{judged.jti}".encode()).hexdigest()
        try:
            await self.kv.create(USED, key, b"", now, ttl_s=judged.expires_at - now + USED_MARGIN_S)
        except Conflict:
            return proofs.replay_refusal()
        except StoreError as error:
            log.error("a used proof cannot be written down: %s", error)
            return UNAVAILABLE_NOW
        return await self._count(judged) or judged

    def verify_again(self, question: ProofQuestion, proof: Presented, at: float) -> Verified | Refusal:
        """Verify a stored proof once more, as of the time `at` at which it was accepted, with the personal keys that
        are valid now.
        """
        personal = [anchor for anchor in self.anchors.known() if anchor.source != "jwks"]
        judged = self._judge(question, proof, personal, at)
        revoked = invalid("revoked", "the key of the proof was revoked")
        return revoked if isinstance(judged, Verified) and judged.key in self._revoked else judged

    def _judge(
        self, question: ProofQuestion, proof: Presented, anchors: Sequence[Anchor], at: float | None = None
    ) -> Verified | Refusal:
        now = self.clock.wall() if at is None else at
        if is_assertion(proof.token):
            party = self.party()
            verify = _verify_assertion
            return proofs.judge_passkey(proof, question, anchors=anchors, party=party, now=now, verify=verify)
        return proofs.judge_confirmation(proof, question, anchors=anchors, now=now, verify=verify_token)

    def stands(self, approval: Approval) -> bool:
        """Return whether the person who gave this approval is still allowed to do so. An approval without a proof stays
        valid.
        """
        proof = approval.decision.proof if approval.decision is not None else None
        return proof is None or self.stands_behind(approval.tool, proof)

    def stands_behind(self, tool: str, proof: Proof) -> bool:
        """Return whether the signer of a proof may approve calls of this tool now: the anchor exists, covers the tool
        and still has the key.

        For a key set the anchor is enough: the set may not have been fetched since the start, and a service renews its
        keys.
        """
        for anchor in proofs.approvers(tool, self.anchors.known()):
            if anchor.name != proof.anchor:
                continue
            prints = {thumbprint(key) for key in anchor.keys} - self._revoked
            has_key = bool(prints) if proof.key is None else proof.key in prints
            if anchor.source == "jwks" or has_key:  # AX-11.3-9
                return True
        return False

    async def close(self) -> None:
        """Do nothing: this object holds no resources."""

    def take_change(self, change: Change) -> None:
        """Apply the revocation of a key at another replica. Revocations are never undone."""
        self._revoked |= {change.key}

    async def revoke(self, name: str) -> tuple[str, ...]:
        """Revoke the keys of the anchor `name`, or the key with the thumbprint `name`, and return the thumbprints.
        Raise StoreError.
        """
        keys = [key for anchor in self.anchors.known() for key in _own_keys(anchor) if name == anchor.name]
        prints = tuple(map(thumbprint, keys)) or ((name,) if _THUMBPRINT.fullmatch(name) else ())
        for key_print in prints:
            await self.kv.put(REVOKED, key_print, b"", self.clock.wall())
        self._revoked |= frozenset(prints)
        return prints

    async def _count(self, verified: Verified) -> Refusal | None:
        """Compare the signature counter of a passkey with the stored one (WebAuthn 6.1.1), and store it. Return a
        refusal if the passkey may have been copied, otherwise None.
        """
        if verified.counter is None:
            return None
        now, counter = self.clock.wall(), b"%d" % verified.counter
        try:
            last = await self.kv.get(COUNTERS, verified.key, now)
            before = int(last.value) if last is not None else 0
            if verified.counter == before == 0:
                return None  # it does not count at all, as most that are kept by an account
            if verified.counter <= before:
                log.warning("the passkey of anchor %s counts backwards: it may have been copied", verified.anchor)
                return invalid("counter", "the passkey counts backwards, so there may be a copy of it; revoke it")
            if last is None:
                await self.kv.create(COUNTERS, verified.key, counter, now)
            else:
                await self.kv.update(COUNTERS, verified.key, counter, last.revision, now)
        except Conflict:  # the same passkey, at the same moment
            return await self._count(verified)
        except StoreError as error:
            log.error("how often a passkey has signed cannot be written down: %s", error)
            return UNAVAILABLE_NOW
        return None


def revocation_line(prints: Sequence[str], ref: str, by: str, now: float) -> bytes:
    """Return the audit log record for revoked keys."""
    return AuditRecord.event(now, by, "operator", "keys/revoke", verdict="revoked", anchor=ref, keys=list(prints))


def _own_keys(anchor: Anchor) -> tuple[Jwk, ...]:
    """Return the keys of an anchor that can be revoked at this node. The keys of a key set cannot, because the service
    that publishes the set revokes them.
    """
    return () if anchor.source == "jwks" else anchor.keys


def stored_proof(verified: Verified) -> Proof:
    """Return the facts about an accepted proof that are stored with the decision."""
    return Proof(type=verified.type, anchor=verified.anchor, jti=verified.jti, key=verified.key)


def verify_token(token: Jwt, key: Jwk) -> InvalidToken | None:
    """Return why the signature of a token is invalid, or None if it is valid."""
    from interlock.crypto.jwt_verification import check_signature  # here, because `cryptography` takes 10 MiB

    return check_signature(token, key)


def _verify_assertion(assertion: Assertion, key: Jwk) -> InvalidToken | None:
    from interlock.crypto.jwt_verification import check_assertion_signature

    return check_assertion_signature(assertion, key)
