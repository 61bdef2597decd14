"""Whether a claim of authority is proved (MCP-AX 4.2): the signature, and that each proof is used once."""

from collections.abc import Callable, Sequence
from typing import Final

from interlock.protocol.ax.authority import Anchor, judge_proof, replayed
from interlock.protocol.ax.messages import Register
from interlock.protocol.jsonrpc.errors import Fault
from interlock.protocol.oauth.errors import Invalid
from interlock.protocol.oauth.jwks import Jwk
from interlock.protocol.oauth.jwt import Jwt
from interlock.runtime.clock import Clock
from interlock.store.ports import Conflict, KeyValue

USED: Final = "proofs-ax"


class Proofs:
    def __init__(
        self, kv: KeyValue, clock: Clock, *, audiences: Callable[[], Sequence[str]], anchors: Sequence[Anchor] = ()
    ) -> None:
        """`audiences`: what this aggregator is called, by URL (once it listens) and by aggregator_id."""
        self._kv = kv
        self._clock = clock
        self._audiences = audiences
        self._anchors = anchors

    async def judge(self, request: Register) -> bool | Fault:
        """False: no proof was sent. Raises StoreError."""
        if request.authority_proof is None or request.authority is None:
            return False
        now = self._clock.wall()
        proved = judge_proof(
            request.authority_proof,
            request.authority,
            audiences=self._audiences(),
            anchors=self._anchors,
            now=now,
            verify=_verify,
        )
        if isinstance(proved, Fault):
            return proved
        key = f"{proved.anchor}/{proved.jti}"
        try:
            await self._kv.create(USED, key, b"", now, ttl_s=max(1.0, proved.expires_at - now))
        except Conflict:
            return replayed()
        return True


def _verify(token: Jwt, key: Jwk) -> Invalid | None:
    from interlock.runtime.oauth.signatures import check_signature  # here, because `cryptography` takes 10 MiB

    return check_signature(token, key)
