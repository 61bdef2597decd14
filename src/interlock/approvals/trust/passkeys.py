"""Passkeys at the operator endpoint: requests to sign a decision, and the creation of passkeys by invited persons.

To make a passkey takes an invitation: a ticket in an address, good once and for ten minutes, which an operator asks for
and opens in a browser. The result is the text of an [[anchor]] and nothing else. The node believes a passkey when it is
enrolled: as an anchor of the configuration, or as one that an operator with a browser added. Invitations are in memory
alone, so none outlives the process that gave it.
"""

import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from interlock.approvals.api import Invitation as InvitationView
from interlock.approvals.api import PasskeyCreation, PasskeyRequest
from interlock.approvals.trust.anchors import Anchors
from interlock.core.audit_record import AuditRecord
from interlock.core.clock import Clock, rfc3339
from interlock.core.recorder import Recorder
from interlock.crypto import webauthn
from interlock.crypto.jose import Jwk, encode, thumbprint
from interlock.crypto.webauthn import Party, Wrong
from interlock.gate.protocol.proofs import ENTROPY_BYTES, ProofQuestion, challenge, invalid, passkeys_for
from interlock.store.ports import StoreError
from interlock.wire.refusal import Refusal

PATH: Final = "/passkeys"
INVITATION_S: Final = 600.0
INVITATIONS_MAX: Final = 16  # the oldest gives way
TICKET_BYTES: Final = 32
TIMEOUT_MS: Final = 120_000  # how long a browser waits for a person
NO_PARTY: Final = (
    "browsers use passkeys only over https at a name, or on this machine: set node.operator_url to such an address;"
    " and on this machine no other program may listen at the same port of 127.0.0.1 or ::1"
)
GONE: Final = Wrong("invitation", "the invitation was used, or its ten minutes are over; ask for another")


class PasskeyInvitation(msgspec.Struct, frozen=True, kw_only=True):
    """Invitation to create a passkey. `challenge` and `user` are the bytes that the browser must sign and store."""

    ticket: str
    name: str
    by: str
    party: Party
    challenge: bytes
    user: bytes
    expires_at: float
    key: Jwk | None = None  # once the browser has made the passkey


@dataclass(eq=False)
class PasskeyService:
    """The WebAuthn relying party of this node, with its open invitations and its requests to passkeys."""

    anchors: Anchors
    recorder: Recorder
    clock: Clock
    operator_url: Callable[[], str]  # the URL of the operator endpoint
    _invitations: dict[str, PasskeyInvitation] = field(default_factory=dict, init=False)
    _is_shadowed: bool = field(default=False, init=False)  # another program answers to `localhost` at our port

    def on_shadowed(self) -> None:
        """Stop using passkeys at `localhost`, because another program answers at the address where browsers look for
        this node.
        """
        self._is_shadowed = True

    def find_relying_party(self) -> Party | None:
        party = webauthn.find_relying_party(self.operator_url())
        return None if self._is_shadowed and party is not None and party.is_local else party

    def url(self) -> str:
        """Return the URL of the operator endpoint for use in links. If the node has passkeys, the host of the URL is a
        name, because passkeys do not work at a local IP address.
        """
        party = self.find_relying_party()
        has_passkeys = any(anchor.source == "passkey" for anchor in self.anchors.known())
        moved = party is not None and has_passkeys and not self.operator_url().lower().startswith(party.origin)
        return party.origin if party is not None and moved else self.operator_url()

    def browser_url(self) -> str:
        """Return the URL at which a person logs in. If browsers can create passkeys at a URL of this node, return that
        URL.
        """
        party = self.find_relying_party()
        return self.operator_url() if party is None else party.origin

    # Deciding

    def find_origin(self, tool: str) -> str | None:
        """Return the origin at which a passkey can approve a call of the tool, or None if no passkey can."""
        party = self.find_relying_party()
        return party.origin if party is not None and passkeys_for(tool, self.anchors.known()) else None

    def request(self, question: ProofQuestion) -> PasskeyRequest | Refusal:
        """Return the options with which a browser asks a passkey for a signature (WebAuthn 5.5). Byte strings are in
        base64url.
        """
        party, keys = self.find_relying_party(), passkeys_for(question.tool, self.anchors.known())
        if party is None:
            return invalid("party", NO_PARTY)
        if not keys:
            return invalid("not_entitled", f"no passkey may approve {question.tool}")
        entropy = secrets.token_bytes(ENTROPY_BYTES)
        return PasskeyRequest(
            challenge=encode(challenge(question, now=self.clock.wall(), entropy=entropy)),
            rp_id=party.id,
            credentials=tuple(key.kid for key in keys if key.kid is not None),
            timeout=TIMEOUT_MS,
        )

    # Making one

    def invite(self, name: str, by: str) -> PasskeyInvitation | None:
        """Invite a person to create a passkey. Return None if browsers use no passkeys at this operator endpoint."""
        party = self.find_relying_party()
        if party is None:
            return None
        now = self.clock.wall()
        live = [earlier for earlier in self._invitations.values() if now < earlier.expires_at]
        invitation = PasskeyInvitation(
            ticket=secrets.token_urlsafe(TICKET_BYTES),
            name=name,
            by=by,
            party=party,
            challenge=secrets.token_bytes(TICKET_BYTES),
            user=secrets.token_bytes(ENTROPY_BYTES),
            expires_at=now + INVITATION_S,
        )
        self._invitations = {each.ticket: each for each in (*live[1 - INVITATIONS_MAX :], invitation)}
        return invitation

    def find_invitation(self, ticket: str) -> PasskeyInvitation | None:
        invitation = self._invitations.get(ticket)
        return invitation if invitation is not None and self.clock.wall() < invitation.expires_at else None

    def creation(self, invitation: PasskeyInvitation) -> PasskeyCreation:
        """Return the options with which a browser creates a passkey (WebAuthn 5.4), bytes in base64url."""
        passkeys = (anchor for anchor in self.anchors.known() if anchor.source == "passkey")
        existing = tuple(key.kid for anchor in passkeys for key in anchor.keys if key.kid is not None)
        return PasskeyCreation(
            challenge=encode(invitation.challenge),
            rp_id=invitation.party.id,
            user=encode(invitation.user),
            name=invitation.name,
            algorithms=tuple(webauthn.OFFERED_ALGORITHMS),
            exclude=existing,
            timeout=TIMEOUT_MS,
        )

    async def enrol(self, ticket: str, client_data: bytes, attestation: bytes) -> PasskeyInvitation | Wrong:
        """Accept the passkey that a browser created for an invitation. An invalid passkey leaves the invitation open.
        Raise StoreError if the audit record cannot be written.
        """
        invitation = self.find_invitation(ticket)
        if invitation is None or invitation.key is not None:
            return GONE
        registration = webauthn.read_registration_untrusted(
            client_data, attestation, challenge=invitation.challenge, party=invitation.party
        )
        if isinstance(registration, Wrong):
            return registration
        done = self._invitations[ticket] = msgspec.structs.replace(invitation, key=registration.key)
        try:
            # The record says that a passkey was made; the node trusts it only once it is enrolled.
            facts: dict[str, Any] = {"anchor": done.name, "keys": [thumbprint(registration.key)]}
            now = self.clock.wall()
            record = AuditRecord.event(now, done.by, "operator", "passkeys/make", verdict="made", **facts)
            await self.recorder.append_now(record)
        except StoreError:
            self._invitations[ticket] = invitation
            raise
        return done


def invitation_view(invitation: PasskeyInvitation) -> InvitationView:
    key = invitation.key
    return InvitationView(
        name=invitation.name,
        url=f"{invitation.party.origin}{PATH}/{invitation.ticket}",
        expires_at=rfc3339(invitation.expires_at),
        status="waiting" if key is None else "made",
        passkey=None if key is None else webauthn.format_passkey(key),
        thumbprint=None if key is None else thumbprint(key),
    )
