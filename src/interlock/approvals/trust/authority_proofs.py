"""Whether a claim of authority is proved (MCP-AX 4.2): the signature, and that each proof is used once."""

from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Final

from interlock.approvals.trust.anchors import Anchors
from interlock.ax.protocol.messages import Register
from interlock.ax.protocol.registration.authority import Proved, judge_proof, replay_refusal
from interlock.core.clock import Clock
from interlock.crypto.jose import Invalid, Jwk, Jwt
from interlock.store.ports import Conflict, KeyValue
from interlock.wire.refusal import Refusal

USED: Final = "proofs-ax"


@dataclass(eq=False)
class Proofs:
    """The judge of authority proofs. `audiences`: the URL (once it listens) and the id of this aggregator."""

    kv: KeyValue
    clock: Clock
    anchors: Anchors
    _: KW_ONLY
    audiences: Callable[[], Sequence[str]]

    async def judge(self, request: Register) -> Proved | Refusal | None:
        """Verify the authority proof of a registration, or return None if it has none. The proof is valid only once
        it is spent.
        """
        proof, authority = request.authority_proof, request.authority
        if proof is None or authority is None:
            return None
        return await self.anchors.judge_signature(
            lambda anchor: authority in anchor.speaks_for,
            lambda anchors: judge_proof(
                proof,
                authority,
                audiences=self.audiences(),
                anchors=anchors,
                now=self.clock.wall(),
                verify=_verify,
            ),
        )

    async def spend(self, proved: Proved) -> Refusal | None:
        """Mark a proof as used. Return a refusal if it was used before, or None. Raise StoreError."""
        now = self.clock.wall()
        key = f"{proved.anchor}/{proved.jti}"
        try:
            await self.kv.create(USED, key, b"", now, ttl_s=max(1.0, proved.expires_at - now))
        except Conflict:
            return replay_refusal()
        return None


def _verify(token: Jwt, key: Jwk) -> Invalid | None:
    from interlock.crypto.jwt_verification import check_signature  # here, because `cryptography` takes 10 MiB

    return check_signature(token, key)
