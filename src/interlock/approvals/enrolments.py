"""Enrolment of approvers: a new approver must be approved with the proof of an existing one.

The configuration, or a person with a browser, can add a key, passkey or key set. It may approve nothing until an
approval of kind enrolment allows it. There are two exceptions without a proof, and both are recorded: the anchors in
the configuration when this data folder is first used, and the setup code as long as there is no approver. The node
shows that code only on its terminal. An agent with a shell can edit the configuration and ask anything at admin.sock,
but it sees no code, and what it adds waits in the inbox.

`KeyRevocation` removes trust: after its revocation, a key is never accepted again, even if the configuration still
contains it. Its unused approvals and its standing grants end.
"""

import hashlib
import logging
import secrets
from dataclasses import dataclass
from typing import Any, Final

import msgspec
from msgspec import Raw

from interlock.approvals.api import Approver
from interlock.approvals.decisions import DecisionReceiver
from interlock.approvals.inbox import Inbox
from interlock.approvals.protocol.approval import Approval, Kind, Proof, Source, Status, What
from interlock.approvals.protocol.digests import enrolment_digest
from interlock.approvals.standing_grants import StandingGrants
from interlock.approvals.trust.anchors import Anchors
from interlock.approvals.trust.approval_proofs import ANCHOR_GONE, REVOKED, ProofVerifier, revocation_line
from interlock.config.plan import AnchorPlan
from interlock.core.audit_record import AuditRecord
from interlock.core.clock import Clock, rfc3339
from interlock.core.feed import AsyncFeed
from interlock.core.recorder import Recorder
from interlock.gate.protocol.proofs import invalid
from interlock.store.ports import Change, Entry, KeyValue, StoreError
from interlock.wire.refusal import Refusal

# Revocation of a person's key: it proves nothing from now on; its unused approvals and its grants are void.


@dataclass(eq=False)
class KeyRevocation:
    """The service that revokes keys of approvers, and ends unused approvals and grants that were signed with them."""

    inbox: Inbox
    grants: StandingGrants
    judge: ProofVerifier
    recorder: Recorder
    clock: Clock

    async def open(self) -> None:
        """End the approvals and grants whose approver's anchor was removed from the configuration while the node was
        stopped. Raise StoreError if the store fails.
        """
        await self.void_unfounded()  # AX-11.3-9: an anchor that left

    async def close(self) -> None:
        """Do nothing: there is nothing to close."""

    async def revoke(self, ref: str, by: str) -> tuple[str, ...]:
        """Revoke a key by the name of its anchor or by its thumbprint. Return the revoked thumbprints.

        Approvals and grants end only when `void_unfounded` is called.
        """
        prints = await self.judge.revoke(ref)
        if prints:
            await self.recorder.append_now(revocation_line(prints, ref, by, self.clock.wall()))
        return prints

    async def void_unfounded(self) -> list[Approval]:
        """End the unused approvals and the standing grants of approvers that are no longer allowed to approve them
        (MCP-AX 11.3).

        Return the approvals that were ended. Raise StoreError if the store fails.
        """
        await self.grants.void_unfounded()
        return await self.inbox.void_where(ANCHOR_GONE, lambda approval: not self.judge.stands(approval))


log = logging.getLogger("interlock.approvals")

BUCKET: Final = "approvers"
STATE: Final = "approvers-state"
STARTED: Final = "started"  # in STATE: this data folder was used before
CONFIGURED: Final = "configured"  # a factor: the configuration names it
CODE_DIGITS: Final = 8
CODE_ALPHABET: Final = "23456789ABCDEFGHJKLMNPQRSTUVWXYZ"  # 40 bits, and nothing that looks alike
CODE_TRIES: Final = 5
NODE: Final = "node"
SETUP_CODE: Final = "setup_code"  # in place of a proof
_REASON: Final = "with this, somebody could approve what agents may not do alone"


class EnrolledApprover(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Stored record of an approver."""

    name: str
    identity: str  # of its keys
    approves: tuple[str, ...]
    at: float
    how: str  # first_start, setup_code or proof
    by: str | None = None  # whose proof it was
    key: str | None = None  # of one that the configuration does not name
    passkey: str | None = None


async def find_approver_prints(kv: KeyValue, anchors: Anchors, now: float) -> frozenset[str]:
    """Return the thumbprints of the keys of all approvers that are enrolled, not removed from the configuration and not
    revoked. The anchors have to be loaded. Raise StoreError if the store fails.
    """
    configured = {anchors.identity(plan) for plan in anchors.configured if plan.approves}
    enrolled = [msgspec.json.decode(entry.value, type=EnrolledApprover) for entry in await kv.entries(BUCKET, now)]
    revoked = {entry.key for entry in await kv.entries(REVOKED, now)}
    return frozenset(
        key_print
        for approver in enrolled
        if approver.key is not None or approver.identity in configured
        for key_print in approver.identity.split(",")
        if key_print not in revoked
    )


async def find_enrolled_prints(kv: KeyValue, now: float) -> frozenset[str]:
    """Return the thumbprints of the keys of all approvers that were ever enrolled. Raise StoreError if the store
    fails.
    """
    enrolled = [msgspec.json.decode(entry.value, type=EnrolledApprover) for entry in await kv.entries(BUCKET, now)]
    return frozenset(key_print for approver in enrolled for key_print in approver.identity.split(","))


class Enrolments(DecisionReceiver):
    """The approvers of a node. Every enrolment is in the audit log and on disk before the anchor may approve."""

    def __init__(self, kv: KeyValue, inbox: Inbox, anchors: Anchors, recorder: Recorder, clock: Clock) -> None:
        self._kv = kv
        self._inbox = inbox
        self._anchors = anchors
        self._recorder = recorder
        self._clock = clock
        self._enrolled: dict[str, EnrolledApprover] = {}  # by identity
        self._code = "".join(secrets.choice(CODE_ALPHABET) for _ in range(CODE_DIGITS))
        self._tries_left = CODE_TRIES
        # Published when an approver was enrolled.
        self.enrolled = AsyncFeed[None]()
        anchors.believe({}, ())

    async def open(self) -> None:
        """Load the approvers. On the first start, enrol the anchors of the configuration. Apply approved enrolments
        that are not stored yet. Raise StoreError if the store fails.
        """
        for entry in await self._kv.entries(BUCKET, self._clock.wall()):
            self._take(entry)
        await self.enrol_first()
        self._believe()
        for approval in self._inbox.listed((Status.APPROVED,), Kind.ENROLMENT):
            await self.settle(approval)
        await self.ask()

    async def enrol_first(self) -> tuple[str, ...]:
        """Enrol the anchors of the configuration, unless this data folder was used before. Return their names.

        `interlock init` does this before the first start, so that no one else can be the first in between. Raise
        StoreError if the store fails.
        """
        now = self._clock.wall()
        # AX-11.N-7: only once
        if await self._kv.get(STATE, STARTED, now) is not None:
            return ()
        approvers = [plan for plan in self._anchors.configured if plan.approves]
        for plan in approvers:
            name, identity, how = plan.name, self._anchors.identity(plan), "first_start"
            first = EnrolledApprover(name=name, identity=identity, approves=plan.approves, at=now, how=how)
            await self._enrol(first)
        await self._kv.put(STATE, STARTED, b"", now)
        return tuple(plan.name for plan in approvers)

    async def close(self) -> None:
        """Do nothing: there is nothing to close."""

    def take_change(self, change: Change) -> None:
        """Apply the enrolment of an approver at another replica."""
        if change.entry is not None:
            self._take(change.entry)
            self._believe()

    def _take(self, entry: Entry) -> None:
        approver = msgspec.json.decode(entry.value, type=EnrolledApprover)
        self._enrolled[approver.identity] = approver

    async def replan(self) -> None:
        """Apply the anchors of a changed configuration."""
        self._believe()
        named = {(_tool(plan.name), enrolment_digest(self._params(plan))) for plan in self._anchors.unbelieved()}
        await self._inbox.void_where(
            "the configuration no longer names it",
            lambda approval: (
                approval.kind is Kind.ENROLMENT
                and CONFIGURED in approval.factors
                and (approval.tool, approval.digest) not in named
                and not self._inbox.is_elsewhere(approval.id)
            ),
        )
        await self.ask()

    # Looking

    @property
    def has_approver(self) -> bool:
        """Return whether an approver was ever enrolled, even if it has been removed from the configuration."""
        return bool(self._enrolled)

    @property
    def prints(self) -> tuple[str, ...]:
        """Return the thumbprints of the keys of all approvers that were ever enrolled."""
        return tuple(each for identity in self._enrolled for each in identity.split(","))

    @property
    def setup_code(self) -> str | None:
        """Return the setup code, with which the first approver is enrolled. Return None once there is an approver, or
        after too many wrong attempts. The code is shown only on the terminal of this node.

        Removing all approvers from the configuration does not bring the code back, because otherwise a user who can
        edit the file and start a node could enrol themselves. A new data folder has a new code, but does not contain
        the data of this one.
        """
        has_one = bool(self._enrolled) or any(anchor.approves for anchor in self._anchors.known())
        return None if has_one or not self._tries_left else self._code

    def shown(self) -> tuple[Approver, ...]:
        """Return every approver, and every configured anchor that still waits to be enrolled."""
        waiting = {approval.tool: approval.id for approval in self._inbox.waiting(Kind.ENROLMENT)}
        held = {anchor.name: anchor.approves for anchor in self._anchors.known()}
        approvers = []
        for plan in self._anchors.plans:
            if not plan.approves:
                continue
            approves = held.get(plan.name, ())
            record = self._enrolled.get(self._anchors.identity(plan))
            approvers.append(
                Approver(
                    name=plan.name,
                    kind="passkey" if plan.passkey is not None else "key" if plan.key is not None else "jwks",
                    approves=approves,
                    wants=tuple(glob for glob in plan.approves if glob not in approves),
                    enrolled_at=None if record is None else rfc3339(record.at),
                    how=None if record is None else record.how,
                    by=None if record is None else record.by,
                    approval_id=waiting.get(_tool(plan.name)),
                )
            )
        return tuple(approvers)

    # Asking

    async def ask(self) -> None:
        """Request an enrolment approval for every configured anchor that is not enrolled, once for each."""
        for plan in self._anchors.unbelieved():
            log.warning("anchor %s approves nothing before it is enrolled: interlock approvals", plan.name)
            await self._raise(plan, by=NODE, factors=(CONFIGURED,))

    async def request(self, plan: AnchorPlan, by: str) -> Approval | Refusal | None:
        """Request an enrolment approval for an anchor that is not in the configuration. Return None if another anchor
        has the same name.
        """
        is_taken = any(anchor.name == plan.name for anchor in self._anchors.plans)
        return None if is_taken else await self._raise(plan, by=by, factors=())

    async def _raise(self, plan: AnchorPlan, *, by: str, factors: tuple[str, ...]) -> Approval | Refusal:
        shown = self._params(plan)
        members = {"params": Raw(shown), "reason": _REASON, "factors": factors, "method": "approvers/enrol"}
        kind, tool, digest = Kind.ENROLMENT, _tool(plan.name), enrolment_digest(shown) or ""
        draft = self._inbox.draft(kind, Source.NODE, requested_by=by, tool=tool, digest=digest, **members)
        return await self._inbox.raise_(draft)

    def _params(self, plan: AnchorPlan) -> bytes:
        """Return the encoded facts about an anchor that a person is shown before its enrolment, including the
        thumbprints of its keys.
        """
        identity = self._anchors.identity(plan)
        is_url = isinstance(plan.jwks, str)
        shown = _Shown(
            name=plan.name,
            approves=plan.approves,
            thumbprints=() if is_url else tuple(identity.split(",")),
            jwks=identity if is_url else None,
            key=plan.key if isinstance(plan.key, str) else None,
            passkey=plan.passkey,
        )
        return msgspec.json.encode(shown)

    # Deciding

    def judge_code(self, code: str) -> Proof | Refusal:
        """Check the setup code that a person typed, which replaces a proof as long as the node has no approver. Return
        the proof to store with the decision, or a refusal.
        """
        right = self.setup_code
        if right is None:
            return invalid("code", "the setup code is for the first approver, or was wrong too often; restart the node")
        typed = code.replace("-", "").replace(" ", "").upper()
        if not secrets.compare_digest(typed.encode(), right.encode()):
            self._tries_left -= 1
            log.warning("a wrong setup code was given; %d more are taken", self._tries_left)
            return invalid("code", "the setup code is another; the terminal of the node shows it")
        return Proof(type=SETUP_CODE, anchor="", jti="")

    async def settle(self, approval: Approval) -> Approval | Refusal:
        """Enrol an approver after a person has approved the enrolment. If the store fails, this is repeated at the next
        start.
        """
        decision = approval.decision
        if decision is None or decision.what is not What.APPROVED or approval.params is None:
            return approval
        proof = decision.proof
        shown = msgspec.json.decode(approval.params, type=_Shown)
        enrolled = EnrolledApprover(
            name=shown.name,
            identity=shown.jwks or ",".join(shown.thumbprints),
            approves=shown.approves,
            at=self._clock.wall(),
            how="setup_code" if proof is not None and proof.type == SETUP_CODE else "proof",
            by=proof.anchor if proof is not None and proof.anchor else decision.by,
            key=None if CONFIGURED in approval.factors else shown.key,
            passkey=None if CONFIGURED in approval.factors else shown.passkey,
        )
        try:
            await self._enrol(enrolled)
        except StoreError as refused:
            log.error("the approver %s cannot be written down: %s", shown.name, refused)
            return approval
        self._believe()
        return await self._inbox.carry_out(approval.id)

    async def _enrol(self, approver: EnrolledApprover) -> None:
        before = self._enrolled.get(approver.identity)
        if before is not None:
            both, key = tuple(dict.fromkeys((*before.approves, *approver.approves))), before.key or approver.key
            approver = msgspec.structs.replace(approver, approves=both, key=key, passkey=before.passkey)
        now = self._clock.wall()
        facts: dict[str, Any] = {"anchor": approver.name, "keys": approver.identity.split(",")}
        facts["approves"] = list(approver.approves)
        who, how, method = approver.by or NODE, approver.how, "approvers/enrol"
        record = AuditRecord.event(now, who, "operator", method, verdict=how, outcome="enrolled", **facts)
        await self._recorder.append_now(record)
        tools = ", ".join(approver.approves)
        log.warning("approver %s is enrolled (%s); it approves %s", approver.name, approver.how, tools)
        key = hashlib.sha256(approver.identity.encode()).hexdigest()
        await self._kv.put(BUCKET, key, msgspec.json.encode(approver), now)
        self._enrolled[approver.identity] = approver
        await self.enrolled.publish(None)

    def _believe(self) -> None:
        own = [
            AnchorPlan(name=approver.name, key=approver.key, passkey=approver.passkey, approves=approver.approves)
            for approver in self._enrolled.values()
            if approver.key is not None or approver.passkey is not None
        ]
        self._anchors.believe({approver.identity: approver.approves for approver in self._enrolled.values()}, own)


class _Shown(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The facts about an anchor that a person is shown before approving its enrolment, as they are encoded."""

    name: str
    approves: tuple[str, ...]
    thumbprints: tuple[str, ...] = ()
    key: str | None = None
    passkey: str | None = None
    jwks: str | None = None


def _tool(name: str) -> str:
    return f"approvers.{name}"
