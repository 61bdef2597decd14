"""Operations on the inbox and on approvers: list and show approvals, decide on them, add approvers, revoke their keys.

Every operator credential may read approvals. The roles operator and admin may deny. Approving requires what the
approval states: usually a proof, which only the decision service verifies, or the role of an operator.

No credential is shown: an approval describes the proof for its decision, but does not contain the token. The arguments
of a held call are shown only in the full view of its approval, never in lists, events or notifications.

Every addition of an approver ends as a question in the inbox, which takes the proof of an approver or, for the first
one, the setup code that the terminal of the node shows.
"""

from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, Final, TypeVar

from msgspec import Raw

from interlock.approvals import api
from interlock.approvals.audit import subject_name
from interlock.approvals.decisions import DecisionService
from interlock.approvals.enrolments import Enrolments, KeyRevocation
from interlock.approvals.inbox import Inbox
from interlock.approvals.protocol.approval import Approval, Kind, Requires, Status
from interlock.approvals.protocol.digests import answers
from interlock.approvals.trust.anchors import Anchors
from interlock.approvals.trust.operator_keys import OperatorKeyService, TooOften
from interlock.approvals.trust.passkeys import GONE, NO_PARTY, PasskeyInvitation, PasskeyService, invitation_view
from interlock.config.plan import AnchorPlan
from interlock.core.clock import Clock
from interlock.core.operator_errors import refused_as
from interlock.core.views import view_of
from interlock.crypto.jose import decode_base64url
from interlock.crypto.webauthn import Wrong
from interlock.gate.protocol.held_call import Presented, read_proof_untrusted
from interlock.operator.operation import INVALID_BODY, ROLE_REQUIRED, handles
from interlock.wire import refusal as refusals
from interlock.wire.refusal import NotFound, Refusal, Refused

Outcome = TypeVar("Outcome")
Match = TypeVar("Match")

LISTED_MAX: Final = 1000
PREFIX_MIN: Final = 4  # characters of an id that may name it

# Errors about the body of a decision that have a name of their own.
_NAMED: Final = frozenset(["answer_needed", "reason_required", "self_approval", "not_returnable", "unknown_request"])
_STATUSES: Final[dict[str, int]] = {
    **{refusals.PROOF_INVALID: 403, refusals.SCOPE_DENIED: 403},
    **{refusals.INVALID_PARAMS: 400, refusals.CONFIRMATION_UNKNOWN: 404, refusals.UNAVAILABLE: 503},
}


@dataclass(eq=False)
class InboxOperations:
    """Handlers of the operations on the inbox. `ways_out` returns suggestions for being asked less
    often about a call.
    """

    inbox: Inbox
    decisions: DecisionService
    clock: Clock
    anchors: Anchors
    passkeys: PasskeyService
    keys: OperatorKeyService
    _: KW_ONLY
    aggregator_id: str
    ways_out: Callable[[Approval], tuple[str, ...]] = lambda _: ()

    @handles(api.LIST_APPROVALS)
    def list_all(self, kind: str | None, status: str) -> api.Approvals:
        """Return the newest approvals of this kind and status, at most LISTED_MAX."""
        statuses = frozenset(Status) if status == "all" else frozenset((Status(status),))
        approvals = self.inbox.listed(statuses, None if kind is None else Kind(kind))
        return api.Approvals(approvals=tuple(map(self._summary, approvals[-LISTED_MAX:])), total=len(approvals))

    @handles(api.FOLLOW_APPROVALS)
    async def follow(self) -> AsyncGenerator[api.ApprovalSummary, None]:
        """Yield all waiting approvals, then every approval that changes."""
        listener = self.inbox.listen()
        try:
            for approval in self.inbox.waiting()[-LISTED_MAX:]:
                yield self._summary(approval)
            async for approval in listener:
                yield self._summary(approval)
        finally:
            listener.close()

    @handles(api.GET_APPROVAL)
    def get(self, id: str) -> api.Approval:
        """Return an approval by its id or the first characters of the id. Raise NotFound if there is none, and Refused
        if several match.
        """
        return self._view(self._find(id))

    @handles(api.DECIDE_APPROVAL)
    async def decide(self, id: str, body: api.DecideApproval, by: str, roles: frozenset[str]) -> api.Approval:
        """Approve, deny or return what waits. Raises NotFound, Refused."""
        check_may_decide(roles)
        approval = self._find(id)
        if body.decision != "approve":
            answer = "return" if body.decision == "return" else None
            decided = await self.decisions.deny(approval.id, by=by, reason=body.reason, answer=answer)
        else:
            if approval.requires is Requires.ROLE and "operator" not in roles:
                raise refused_as(ROLE_REQUIRED, "to approve this takes an operator's token")
            proof = accepted(read_proof_untrusted(body.proof), id) if body.proof else None
            decided = await self.decisions.approve(
                approval.id, proof, by=by, reason=body.reason, answer=body.tool_class, code=body.code
            )
        return self._view(accepted(decided, id))

    @handles(api.REVEAL_CODE)
    async def reveal_code(self, id: str, body: api.RevealCode, by: str) -> api.RevealedCode:
        """Return the code of a challenge, or the token of a start or step. Raises NotFound, Refused."""
        approval = self._find(id)
        code = await self.decisions.reveal(approval.id, Presented(token=body.proof), by=by)
        return api.RevealedCode(approval_id=approval.id, code=accepted(code, id))

    @handles(api.ASK_PASSKEY)
    def ask_passkey(self, id: str, answer: str | None) -> api.PasskeyRequest:
        """Return the options with which a browser asks a passkey to sign an approval. Raise NotFound or Refused if it
        cannot be approved.
        """
        question = accepted(self.decisions.question(self._find(id).id, answer), id)
        return accepted(self.passkeys.request(question), id)

    @handles(api.SIGN_APPROVAL)
    async def sign(self, id: str, body: api.SignApproval, by: str) -> api.SignedProof:
        """Return a proof by an operator key of this machine. Raises NotFound, Refused."""
        question = accepted(self.decisions.question(self._find(id).id, body.answer), id)
        proof = await self.keys.sign(question, body.key, body.passphrase, by=by)
        return api.SignedProof(proof=accepted(proof, id))

    def _find(self, reference: str) -> Approval:
        exact = self.inbox.get(reference)
        if exact is not None:
            return exact
        matches = self.inbox.find_by_prefix(reference.lower())
        candidates = [approval for approval in matches if approval.is_live] or matches
        ids = [approval.id for approval in candidates[:10]]
        return only_match("approval", reference, candidates, details={"ids": ids})

    def _summary(self, approval: Approval) -> api.ApprovalSummary:
        return view_of(api.ApprovalSummary, approval, **self._summary_members(approval))

    def _summary_members(self, approval: Approval) -> dict[str, Any]:
        deadline, decision = approval.deadline, approval.decision
        proof = None if decision is None else decision.proof
        shown_proof = None if proof is None else view_of(api.ProofFacts, proof)
        return {
            "name": subject_name(approval),
            "left_s": None if deadline is None else max(0, round(deadline - self.clock.wall())),
            "decision": None if decision is None else view_of(api.Decision, decision, proof=shown_proof),
            "url": f"{self.passkeys.url()}/approvals/{approval.id}",
        }

    def _view(self, approval: Approval) -> api.Approval:
        return view_of(
            api.Approval,
            approval,
            **self._summary_members(approval),
            params=approval.params if approval.params is not None else Raw(b"null"),
            answers=answers(approval),
            approvers=self.anchors.approver_names(approval.tool),
            signing_keys=self.keys.names(),
            aggregator_id=self.aggregator_id,
            passkey_origin=self.passkeys.find_origin(approval.tool),
            ways_out=self.ways_out(approval) if approval.status is Status.PENDING else (),
        )


EVERYTHING: Final = ("*",)


@dataclass(eq=False)
class ApproverOperations:
    """Handlers of the operations on approvers and their keys."""

    enrolments: Enrolments
    revocation: KeyRevocation
    approvals: InboxOperations

    @handles(api.LIST_APPROVERS)
    def list_all(self) -> api.Approvers:
        party, approvers = self.approvals.passkeys.find_relying_party(), self.enrolments.shown()
        return api.Approvers(
            approvers=approvers,
            needs_first=not any(approver.approves for approver in approvers),
            keys=self.approvals.keys.names(),
            passkey_origin=None if party is None else party.origin,
        )

    @handles(api.MAKE_OPERATOR_KEY)
    async def make_key(self, body: api.MakeKey, by: str) -> api.Approval:
        """Create an operator key on this machine, and return the approval that must be granted before the key may
        approve.

        Raises Refused.
        """
        self._refuse_taken(body.name)
        public = _created(await self.approvals.keys.make(body.name, body.passphrase))
        return await self._request(AnchorPlan(name=body.name, key=public, approves=EVERYTHING), by)

    @handles(api.OFFER_PASSKEY)
    def offer_passkey(self, body: api.InvitePasskey, by: str) -> api.PasskeyOffer:
        """Return a ticket and the options with which a browser creates a passkey. Raise Refused if browsers cannot use
        passkeys here, or the name is taken.
        """
        self._refuse_taken(body.name)
        invitation = self._invite(body.name, by)
        return api.PasskeyOffer(ticket=invitation.ticket, creation=self.approvals.passkeys.creation(invitation))

    @handles(api.TAKE_PASSKEY)
    async def take_passkey(self, ticket: str, body: api.EnrolPasskey, by: str) -> api.Approval:
        """Accept the passkey that a browser created, and return the approval that must be granted before it may
        approve.

        Raises Refused, StoreError.
        """
        invitation = await self.enrol(ticket, body)
        plan = AnchorPlan(name=invitation.name, passkey=invitation.passkey, approves=EVERYTHING)
        return await self._request(plan, by)

    @handles(api.REVOKE_KEY)
    async def revoke_key(self, ref: str, by: str) -> api.RevokedKeys:
        """Revoke the keys of an anchor, or the key with a thumbprint. Raise NotFound if `ref` is neither the name of an
        anchor with keys nor a thumbprint.
        """
        thumbprints = await self.revocation.revoke(ref, by)
        if not thumbprints:
            raise NotFound("anchor", ref, [anchor.name for anchor in self.approvals.anchors.known()], few=True)
        voided = await self.revocation.void_unfounded()
        return api.RevokedKeys(revoked=tuple(thumbprints), voided=tuple(approval.id for approval in voided))

    # Invitations: the passkey counts once its lines are in the configuration.

    @handles(api.INVITE_PASSKEY)
    def invite(self, body: api.InvitePasskey, by: str) -> api.Invitation:
        """Invite a person to create a passkey. Raise Refused if browsers cannot use passkeys here."""
        return invitation_view(self._invite(body.name, by))

    @handles(api.GET_INVITATION)
    def get_invitation(self, ticket: str) -> api.Invitation:
        invitation = self.approvals.passkeys.find_invitation(ticket)
        if invitation is None:
            raise NotFound("invitation", "")
        return invitation_view(invitation)

    @handles(api.VISIT_INVITATION)
    def visit_invitation(self, ticket: str) -> tuple[PasskeyInvitation, api.PasskeyCreation | None] | None:
        """Return an invitation, and the options with which a browser creates its passkey if that is still to be done.
        Return None if the invitation has expired.
        """
        invitation = self.approvals.passkeys.find_invitation(ticket)
        if invitation is None:
            return None
        return invitation, None if invitation.key is not None else self.approvals.passkeys.creation(invitation)

    @handles(api.ENROL_PASSKEY)
    async def enrol(self, ticket: str, body: api.EnrolPasskey) -> api.Invitation:
        """Accept the passkey that the browser of an invited person created. Raise Refused if it is invalid."""
        client_data, attestation = decode_base64url(body.client_data), decode_base64url(body.attestation)
        if client_data is None or attestation is None:
            raise refused_as(INVALID_BODY, "client_data and attestation are base64url")
        invitation = await self.approvals.passkeys.enrol(ticket, client_data, attestation)
        if isinstance(invitation, Wrong):
            case = api.PASSKEY_INVITATION_OVER if invitation is GONE else api.PASSKEY_INVALID
            raise refused_as(case, invitation.why, {"reason": invitation.reason})
        return invitation_view(invitation)

    def _invite(self, name: str, by: str) -> PasskeyInvitation:
        invitation = self.approvals.passkeys.invite(name, by)
        if invitation is None:
            raise refused_as(api.NO_PASSKEYS, NO_PARTY)
        return invitation

    def _refuse_taken(self, name: str) -> None:
        if any(approver.name == name for approver in self.enrolments.shown()):
            raise refused_as(api.EXISTS, f"there is an approver {name} already; choose another name")

    async def _request(self, plan: AnchorPlan, by: str) -> api.Approval:
        """Request an enrolment approval for an anchor, and return the approval."""
        question = await self.enrolments.request(plan, by)
        if question is None:
            raise refused_as(api.EXISTS, f"there is an approver {plan.name} already; choose another name")
        return self.approvals.get(_created(question).id)


def _created(outcome: Outcome | Refusal) -> Outcome:
    """Return `outcome` if it is a new key or enrolment. Raise Refused if it is a refusal."""
    if isinstance(outcome, Refusal):
        data = outcome.details or {}
        raise Refused(str(data.get("reason", outcome.message)), str(data.get("detail", outcome.message)))
    return outcome


def only_match(
    noun: str, reference: str, matches: list[Match], names: Sequence[str] = (), details: dict[str, Any] | None = None
) -> Match:
    """Return the only one of `matches`, the objects whose id starts with `reference`. Raise NotFound if there is none,
    and Refused if there are several.
    """
    if len(reference) < PREFIX_MIN or not matches:
        raise NotFound(noun, reference, names)
    if len(matches) > 1:
        message = f"several {noun}s have an id that begins like this; give more of it"
        raise refused_as(api.AMBIGUOUS_ID, message, details)
    return matches[0]


def check_may_decide(roles: frozenset[str]) -> None:
    """Raise Refused unless one of the roles may decide on approvals."""
    if roles.isdisjoint(("operator", "admin")):
        raise refused_as(ROLE_REQUIRED, "this credential may look and not decide; use one of an operator's")


def accepted(outcome: Outcome | Refusal | TooOften, id: str | None = None) -> Outcome:
    """Return the outcome of an operation, or raise Refused if the outcome is a refusal. With `id`, the refusal is about
    the approval with this id, otherwise about the signature of a grant or of a list of classes.
    """
    if isinstance(outcome, TooOften):
        message = f"too many wrong passphrases; try again in {outcome.wait_s} s"
        raise refused_as(api.TOO_OFTEN, message, {"wait_s": outcome.wait_s})
    if isinstance(outcome, Refusal):
        if id is None:
            raise signature_refused(outcome)
        data = outcome.details or {}
        error = "proof_required" if data.get("reason") == "proof_required" else outcome.message
        if outcome.code == refusals.INVALID_PARAMS and error not in _NAMED:
            error = INVALID_BODY.name
        status, message = _STATUSES.get(outcome.code, 409), data.get("detail") or outcome.message
        details = {"approval": id, "code": outcome.number, **data}
        raise Refused(error, message, details, status=403 if error == "self_approval" else status)
    return outcome


def signature_refused(refusal: Refusal) -> Refused:
    """Return the exception for a grant or a list of classes whose signature was refused."""
    data = refusal.details or {}
    error = INVALID_BODY.name if refusal.code == refusals.INVALID_PARAMS and " " in refusal.message else refusal.message
    status = 409 if refusal.code == refusals.SCOPE_DENIED else _STATUSES.get(refusal.code, 409)
    return Refused(error, data.get("detail") or refusal.message, {"code": refusal.number, **data}, status=status)
