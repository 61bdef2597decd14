"""Revocation of a person's key: it proves nothing from now on; its unused approvals and its grants are void."""

from interlock.approvals.inbox import Inbox
from interlock.approvals.protocol.approval import Approval
from interlock.approvals.standing_grants import StandingGrants
from interlock.approvals.trust.approval_proofs import ANCHOR_GONE, ProofVerifier, revocation_line
from interlock.core.clock import Clock
from interlock.core.recorder import Recorder


class KeyRevocation:
    def __init__(
        self, inbox: Inbox, grants: StandingGrants, judge: ProofVerifier, recorder: Recorder, clock: Clock
    ) -> None:
        self._inbox = inbox
        self._grants = grants
        self._judge = judge
        self._recorder = recorder
        self._clock = clock

    async def open(self) -> None:
        """An anchor may have left the configuration while the node was not running. Raises StoreError."""
        await self.void_unfounded()  # AX-11.3-9: an anchor that left

    async def close(self) -> None:
        """Holds nothing open."""

    async def revoke(self, ref: str, by: str) -> tuple[str, ...]:
        """Revokes by the name of an anchor or a thumbprint; gives the thumbprints, none where there is no such key."""
        prints = await self._judge.revoke(ref)
        if prints:
            await self._recorder.append_now(revocation_line(prints, ref, by, self._clock.wall()))
        return prints

    async def void_unfounded(self) -> list[Approval]:
        """Voids unused approvals and standing grants of anchors that may no longer approve (MCP-AX 11.3); gives the
        approvals. Raises StoreError."""
        await self._grants.void_unfounded()
        return await self._inbox.void_where(ANCHOR_GONE, lambda approval: not self._judge.stands(approval))
