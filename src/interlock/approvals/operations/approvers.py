"""Operations on approvers: list and add them, revoke their keys, and invite a person to make a passkey.

Every addition ends as a question in the inbox, which takes the proof of an approver or, for the first one, the setup
code that the terminal of the node shows.
"""

from dataclasses import dataclass

from interlock.approvals.api import (
    ENROL_PASSKEY,
    EXISTS,
    GET_INVITATION,
    INVITE_PASSKEY,
    LIST_APPROVERS,
    MAKE_OPERATOR_KEY,
    NO_PASSKEYS,
    OFFER_PASSKEY,
    PASSKEY_INVALID,
    PASSKEY_INVITATION_OVER,
    REVOKE_KEY,
    TAKE_PASSKEY,
    VISIT_INVITATION,
    Approvers,
    EnrolPasskey,
    InvitePasskey,
    MakeKey,
    PasskeyCreation,
    PasskeyOffer,
    RevokedKeys,
)
from interlock.approvals.api import Approval as ApprovalView
from interlock.approvals.api import Invitation as InvitationView
from interlock.approvals.enrolments import Enrolments, KeyRevocation
from interlock.approvals.operations.inbox import InboxOperations
from interlock.approvals.protocol.approval import Approval
from interlock.approvals.trust.anchors import Anchors
from interlock.approvals.trust.operator_keys import OperatorKeyService
from interlock.approvals.trust.passkeys import GONE, NO_PARTY, PasskeyInvitation, PasskeyService, invitation_view
from interlock.config.plan import AnchorPlan
from interlock.core.operator_errors import refused_as
from interlock.crypto.jose import decode_base64url
from interlock.crypto.webauthn import Wrong, format_passkey
from interlock.operator.operation import INVALID_BODY, handles
from interlock.wire.refusal import NotFound, Refusal, Refused

EVERYTHING = ("*",)


@dataclass(eq=False)
class ApproverOperations:
    """Handlers of the operations on approvers and their keys."""

    enrolments: Enrolments
    anchors: Anchors
    keys: OperatorKeyService
    passkeys: PasskeyService
    revocation: KeyRevocation
    approvals: InboxOperations

    @handles(LIST_APPROVERS)
    def list_all(self) -> Approvers:
        party, approvers = self.passkeys.find_relying_party(), self.enrolments.shown()
        return Approvers(
            approvers=approvers,
            needs_first=not any(approver.approves for approver in approvers),
            keys=self.keys.names(),
            passkey_origin=None if party is None else party.origin,
        )

    @handles(MAKE_OPERATOR_KEY)
    async def make_key(self, body: MakeKey, by: str) -> ApprovalView:
        """Create an operator key on this machine, and return the approval that must be granted before the key may
        approve.

        Raises Refused.
        """
        self._refuse_taken(body.name)
        public = await self.keys.make(body.name, body.passphrase)
        if isinstance(public, Refusal):
            raise _refused(public)
        return await self._request(AnchorPlan(name=body.name, key=public, approves=EVERYTHING), by)

    @handles(OFFER_PASSKEY)
    def offer_passkey(self, body: InvitePasskey, by: str) -> PasskeyOffer:
        """Return a ticket and the options with which a browser creates a passkey. Raise Refused if browsers cannot use
        passkeys here, or the name is taken.
        """
        self._refuse_taken(body.name)
        invitation = self._invite(body.name, by)
        return PasskeyOffer(ticket=invitation.ticket, creation=self.passkeys.creation(invitation))

    @handles(TAKE_PASSKEY)
    async def take_passkey(self, ticket: str, body: EnrolPasskey, by: str) -> ApprovalView:
        """Accept the passkey that a browser created, and return the approval that must be granted before it may
        approve.

        Raises Refused, StoreError.
        """
        invitation = await self._enrol(ticket, body)
        if invitation.key is None:
            raise _invalid_passkey(GONE)
        plan = AnchorPlan(name=invitation.name, passkey=format_passkey(invitation.key), approves=EVERYTHING)
        return await self._request(plan, by)

    @handles(REVOKE_KEY)
    async def revoke_key(self, ref: str, by: str) -> RevokedKeys:
        """Revoke keys by the name of an anchor or the thumbprint of a key. Raise NotFound if `ref` is neither
        an anchor with keys of its own nor has the form of a thumbprint.
        """
        thumbprints = await self.revocation.revoke(ref, by)
        if not thumbprints:
            raise NotFound("anchor", ref, [anchor.name for anchor in self.anchors.known()], few=True)
        voided = await self.revocation.void_unfounded()
        return RevokedKeys(revoked=tuple(thumbprints), voided=tuple(approval.id for approval in voided))

    # Invitations: the passkey counts once its lines are in the configuration.

    @handles(INVITE_PASSKEY)
    def invite(self, body: InvitePasskey, by: str) -> InvitationView:
        """Invite a person to create a passkey. Raise Refused if browsers cannot use passkeys here."""
        return invitation_view(self._invite(body.name, by))

    @handles(GET_INVITATION)
    def get_invitation(self, ticket: str) -> InvitationView:
        invitation = self.passkeys.find_invitation(ticket)
        if invitation is None:
            raise NotFound("invitation", "")
        return invitation_view(invitation)

    @handles(VISIT_INVITATION)
    def visit_invitation(self, ticket: str) -> tuple[PasskeyInvitation, PasskeyCreation | None] | None:
        """Return an invitation, and the options with which a browser creates its passkey if that is still to be done.
        Return None if the invitation has expired.
        """
        invitation = self.passkeys.find_invitation(ticket)
        if invitation is None:
            return None
        return invitation, None if invitation.key is not None else self.passkeys.creation(invitation)

    @handles(ENROL_PASSKEY)
    async def enrol(self, ticket: str, body: EnrolPasskey) -> InvitationView:
        """Accept the passkey that the browser of an invited person created. Raise Refused if it is invalid."""
        return invitation_view(await self._enrol(ticket, body))

    async def _enrol(self, ticket: str, body: EnrolPasskey) -> PasskeyInvitation:
        client_data, attestation = decode_base64url(body.client_data), decode_base64url(body.attestation)
        if client_data is None or attestation is None:
            raise refused_as(INVALID_BODY, "client_data and attestation are base64url")
        invitation = await self.passkeys.enrol(ticket, client_data, attestation)
        if isinstance(invitation, Wrong):
            raise _invalid_passkey(invitation)
        return invitation

    def _invite(self, name: str, by: str) -> PasskeyInvitation:
        invitation = self.passkeys.invite(name, by)
        if invitation is None:
            raise refused_as(NO_PASSKEYS, NO_PARTY)
        return invitation

    def _refuse_taken(self, name: str) -> None:
        if any(approver.name == name for approver in self.enrolments.shown()):
            raise refused_as(EXISTS, f"there is an approver {name} already; choose another name")

    async def _request(self, plan: AnchorPlan, by: str) -> ApprovalView:
        """Request an enrolment approval for an anchor, and return the approval."""
        question = await self.enrolments.request(plan, by)
        if isinstance(question, Approval):
            return self.approvals.get(question.id)
        if question is None:
            raise refused_as(EXISTS, f"there is an approver {plan.name} already; choose another name")
        raise _refused(question)


def _invalid_passkey(wrong: Wrong) -> Refused:
    case = PASSKEY_INVITATION_OVER if wrong is GONE else PASSKEY_INVALID
    return refused_as(case, wrong.why, {"reason": wrong.reason})


def _refused(refusal: Refusal) -> Refused:
    data = refusal.details or {}
    return Refused(str(data.get("reason", refusal.message)), str(data.get("detail", refusal.message)))
