"""Identity and permissions of a subserver that registers at /ax (MCP-AX 4.2, 10.1, 10.4).

`RegistrantIdentity` is what the connection alone proves: a token, a client certificate or a user of this machine.
`AuthorityProofs` judges the signed proof with which a registration may claim an authority, and uses each proof once.
"""

from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass
from fnmatch import fnmatchcase
from typing import Final

import msgspec

from interlock.access.tokens import find_access_rule, registrant_scope
from interlock.approvals.trust.anchors import Anchors
from interlock.approvals.trust.approval_proofs import verify_token
from interlock.ax.protocol.capability import AuthScope
from interlock.ax.protocol.messages import Register
from interlock.ax.protocol.registration import authority as authorities
from interlock.ax.protocol.registration.authority import Anchor, Proved
from interlock.ax.protocol.registration.registrations import Peer
from interlock.config.plan import AccessRule, Scope
from interlock.core.clock import Clock
from interlock.net.protocol.dns import find_dns_name
from interlock.store.ports import Conflict, KeyValue
from interlock.wire.refusal import Refusal

TLS_1_3: Final = "TLSv1.3"
CERTIFICATE: Final = "certificate:"  # the beginning of a principal that was admitted by a certificate
USED: Final = "proofs-ax"
USER: Final = "uid:"  # of one that is a user of this machine, at ax.socket


class ClientCertificate(msgspec.Struct, frozen=True, kw_only=True):
    """The facts of a trusted client certificate that its admission and its revocation depend on."""

    names: tuple[str, ...]  # its DNS names, as they stand in it
    issuer: bytes  # which CA it is, as `Certificates` knows it
    serial: int
    expires_at: float

    @property
    def principal(self) -> str | None:
        """Return the principal under which a subserver with this certificate may register, or None if the certificate
        has no DNS name.
        """
        dns_name = next((name for name in map(find_dns_name, self.names) if name is not None), None)
        return f"{CERTIFICATE}{dns_name}" if dns_name is not None else None


class RegistrantIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """The verified identity of a subserver that registers, and the security of its connection.

    `encrypted` means that the connection is local, uses TLS, or is declared equivalent by the operator; a leaf needs at
    least this. `secure` means TLS 1.3 or an equivalent; an aggregator needs this.
    """

    principal: str  # "subserver:NAME", "certificate:NAME", "uid:NUMBER", "local" or "child:SEGMENT"
    scope: AuthScope = AuthScope.READ
    rule: AccessRule | None = None
    vouched: bool = False  # named in the operator's configuration
    segment: str | None = None  # the only one it may have; None: any
    encrypted: bool = True
    secure: bool = True
    on_this_machine: bool = True
    certificate: ClientCertificate | Refusal | None = None  # its client certificate, or why that is refused

    def peer(self, request: Register, link: str, *, proved: bool = False) -> Peer:
        is_proved = proved or self.vouched or self._speaks_for(request.authority)
        return Peer(principal=self.principal, link=link, scope=self.scope, proved=is_proved, secure=self.secure)

    def shows(self, request: Register) -> bool | Refusal:
        """Return whether the client certificate alone proves the authority that a registration claims. Return a refusal
        if the certificate is for another name or was refused itself.
        """
        if isinstance(self.certificate, Refusal):
            return self.certificate
        if self.certificate is None or request.authority is None:
            return False
        if self.vouched or self._speaks_for(request.authority):
            return False
        return authorities.check_certificate(request.authority, self.certificate.names) or True

    def _speaks_for(self, authority: str | None) -> bool:
        """Return whether the operator's configuration vouches for the authority. It never does for a registrant on
        another machine, whose token may have leaked.
        """
        authority_of_rule = self.rule.authority if self.rule is not None and self.on_this_machine else None
        if authority is None or authority_of_rule is None:
            return False
        return authorities.maybe_authority(authority_of_rule) == authority


def registrant_identity(
    principal: str,
    rules: tuple[AccessRule, ...],
    *,
    token_scope: Scope | None = None,
    on_this_machine: bool,
    tls: str | None,
    certificate: ClientCertificate | Refusal | None = None,
) -> RegistrantIdentity:
    rule = find_access_rule(principal, rules)
    trusted = on_this_machine or (rule is not None and rule.secure_by is not None)
    return RegistrantIdentity(
        principal=principal,
        scope=registrant_scope(principal, rules, token_scope),
        rule=rule,
        encrypted=trusted or tls is not None,
        secure=trusted or tls == TLS_1_3,
        on_this_machine=on_this_machine,
        certificate=certificate,
    )


def may_register(principal: str, rules: tuple[AccessRule, ...]) -> bool:
    """Return whether an [[access]] entry names this certificate or user explicitly.

    A certificate authority may vouch for more than subservers, and a machine has users that are not subservers.
    """
    kind = principal.partition(":")[0] + ":"
    patterns = (who for rule in rules for who in rule.who)
    return any(who.startswith(kind) and fnmatchcase(principal, who) for who in patterns)


@dataclass(eq=False)
class AuthorityProofs:
    """The verifier of the proofs with which subservers claim an authority (a DNS name). `audiences` returns the names
    of this aggregator that a proof may be addressed to: its id and, once it listens, its URL.
    """

    kv: KeyValue
    clock: Clock
    anchors: Anchors
    _: KW_ONLY
    audiences: Callable[[], Sequence[str]]

    async def judge(self, request: Register) -> Proved | Refusal | None:
        """Verify the proof with which a registration claims an authority, or return None if it has none. The proof
        counts only after `spend` has accepted it.
        """
        proof, authority = request.authority_proof, request.authority
        if proof is None or authority is None:
            return None

        def judge(anchors: Sequence[Anchor]) -> Proved | Refusal:
            audiences, now = self.audiences(), self.clock.wall()
            return authorities.judge_proof(
                proof, authority, audiences=audiences, anchors=anchors, now=now, verify=verify_token
            )

        return await self.anchors.judge_signature(lambda anchor: authority in anchor.speaks_for, judge)

    async def spend(self, proved: Proved) -> Refusal | None:
        """Mark a proof as used. Return a refusal if it was used before, or None. Raise StoreError."""
        now = self.clock.wall()
        key = f"{proved.anchor}/{proved.jti}"
        try:
            await self.kv.create(USED, key, b"", now, ttl_s=max(1.0, proved.expires_at - now))
        except Conflict:
            return authorities.replay_refusal()
        return None
