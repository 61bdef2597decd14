"""Approvers, as an operator sees and adds them: every addition ends as a question in the inbox."""

from interlock.approvals.api import Approvers, PasskeyOffer
from interlock.approvals.enrolments import Enrolments
from interlock.approvals.protocol.approval import Approval
from interlock.approvals.trust.anchors import Anchors
from interlock.approvals.trust.operator_keys import OperatorKeyService
from interlock.approvals.trust.passkeys import GONE, NO_PARTY, PasskeyService
from interlock.config.plan import AnchorPlan
from interlock.core.operator_errors import Refused
from interlock.crypto.webauthn.ceremonies import Wrong
from interlock.crypto.webauthn.passkeys import written
from interlock.wire.refusal import Refusal

EVERYTHING = ("*",)


class ApproverOperations:
    def __init__(
        self, enrolments: Enrolments, anchors: Anchors, keys: OperatorKeyService, passkeys: PasskeyService
    ) -> None:
        self._anchors = anchors
        self._enrolments = enrolments
        self._keys = keys
        self._passkeys = passkeys

    def list_all(self) -> Approvers:
        party, shown = self._passkeys.find_relying_party(), self._enrolments.shown()
        return Approvers(
            approvers=shown,
            needs_first=not any(one.approves for one in shown),
            keys=self._keys.names(),
            passkey_origin=None if party is None else party.origin,
        )

    def has_approver(self, tool: str) -> bool:
        """Whether anyone could sign for it."""
        return bool(self._anchors.approver_names(tool))

    async def make_key(self, name: str, passphrase: str, by: str) -> str:
        """A new operator key on this machine; gives the approval that decides whether it counts. Raises Refused."""
        self._refuse_taken(name)
        public = await self._keys.make(name, passphrase)
        if isinstance(public, Refusal):
            raise _refusal(public)
        return await self._request(AnchorPlan(name=name, key=public, approves=EVERYTHING), by)

    def offer_passkey(self, name: str, by: str) -> PasskeyOffer:
        """Raises Refused."""
        self._refuse_taken(name)
        invitation = self._passkeys.invite(name, by)
        if invitation is None:
            raise Refused("no_passkeys_here", NO_PARTY)
        return PasskeyOffer(ticket=invitation.ticket, creation=self._passkeys.creation(invitation))

    async def take_passkey(self, ticket: str, client_data: bytes, attestation: bytes, by: str) -> str | Wrong:
        """What a browser made; gives the approval that decides whether it counts. Raises Refused, StoreError."""
        done = await self._passkeys.enrol(ticket, client_data, attestation)
        if isinstance(done, Wrong):
            return done
        if done.made is None:
            return GONE
        return await self._request(AnchorPlan(name=done.name, passkey=written(done.made), approves=EVERYTHING), by)

    def _refuse_taken(self, name: str) -> None:
        if any(one.name == name for one in self._enrolments.shown()):
            raise Refused("exists", f"there is an approver {name} already; choose another name")

    async def _request(self, plan: AnchorPlan, by: str) -> str:
        asked = await self._enrolments.request(plan, by)
        if isinstance(asked, Approval):
            return asked.id
        if asked is None:
            raise Refused("exists", f"there is an approver {plan.name} already; choose another name")
        raise _refusal(asked)


def _refusal(refusal: Refusal) -> Refused:
    data = refusal.details or {}
    return Refused(str(data.get("reason", refusal.message)), str(data.get("detail", refusal.message)))
