"""The keys of people, taken back by an operator."""

from interlock.approvals.api import RevokedKeys
from interlock.approvals.enrolments import KeyRevocation
from interlock.approvals.trust.anchors import Anchors
from interlock.core.operator_errors import NotFound


class KeyOperations:
    def __init__(self, revocation: KeyRevocation, anchors: Anchors) -> None:
        self._revocation = revocation
        self._anchors = anchors

    async def revoke(self, ref: str, by: str) -> RevokedKeys:
        """Of a person: the name of an anchor, or a key's thumbprint. Raises NotFound."""
        prints = await self._revocation.revoke(ref, by)
        if not prints:
            raise NotFound("anchor", ref, [anchor.name for anchor in self._anchors.known()], few=True)
        voided = await self._revocation.void_unfounded()
        return RevokedKeys(revoked=tuple(prints), voided=tuple(approval.id for approval in voided))
