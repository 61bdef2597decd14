"""Proposals as a participant follows them, from published envelopes alone (MCPx 10.2).

A proposal is fulfilled by an `mcp` request that names it in `correlation_id`, and done when its target has answered
that request. The gateway's events tell of those that were rejected, withdrawn, or have expired.
"""

import asyncio
from typing import Any, Final

import msgspec

from interlock.protocol.jsonrpc.messages import Response
from interlock.protocol.rooms.envelope import Envelope
from interlock.rooms.errors import ProposalEnded
from interlock.rooms.model import Proposal, Status

KEPT_MAX: Final = 1000  # the newest
ENDED: Final[dict[str, Status]] = {
    "proposal_rejected": "rejected",
    "proposal_withdrawn": "withdrawn",
    "proposal_expired": "expired",
}


class Proposals:
    def __init__(self) -> None:
        self._by_id: dict[str, Proposal] = {}
        self._fulfilments: dict[str, tuple[str, tuple[str, ...]]] = {}  # a request -> its proposal, and who is asked
        self._outcomes: dict[str, asyncio.Future[tuple[str, Response]]] = {}  # that we wait for

    def pending(self) -> list[Proposal]:
        return [one for one in self._by_id.values() if one.status == "pending"]

    def maybe(self, id: str | None) -> Proposal | None:
        return None if id is None else self._by_id.get(id)

    def on_proposal(self, envelope: Envelope) -> None:
        members = envelope.members()
        to = envelope.to or ()
        self._by_id[envelope.id] = Proposal(
            id=envelope.id,
            proposer=envelope.sender or "",
            target=to[0] if len(to) == 1 else None,
            method=msgspec.json.decode(members["method"], type=str),
            params=bytes(members.get("params", msgspec.Raw(b"{}"))),
            reason=msgspec.json.decode(members["reason"], type=str) if "reason" in members else None,
            ts=envelope.ts or "",
        )
        while len(self._by_id) > KEPT_MAX:
            self._drop(next(iter(self._by_id)))

    def on_request(self, envelope: Envelope) -> None:
        """It may be the fulfilment of one."""
        proposal = self.maybe(envelope.correlation_id)
        if proposal is not None and proposal.status == "pending":
            self._fulfilments[envelope.id] = proposal.id, envelope.to or ()
            self._set(proposal, "claimed")

    def on_answer(self, envelope: Envelope, response: Response) -> None:
        id, asked = self._fulfilments.get(envelope.correlation_id or "", (None, ()))
        proposal, sender = self.maybe(id), envelope.sender or ""
        if proposal is None or sender not in asked:
            return
        del self._fulfilments[envelope.correlation_id or ""]
        self._set(proposal, "failed" if response.error else "fulfilled")
        waiting = self._outcomes.pop(proposal.id, None)
        if waiting is not None and not waiting.done():
            waiting.set_result((sender, response))

    def on_event(self, envelope: Envelope, payload: dict[str, Any]) -> None:
        status = ENDED.get(str(payload.get("event")))
        proposal = self.maybe(envelope.correlation_id)
        if status is None or proposal is None:
            return
        self._set(proposal, status)
        waiting = self._outcomes.pop(proposal.id, None)
        if waiting is not None and not waiting.done():
            waiting.set_exception(ProposalEnded(status, payload.get("by"), payload.get("reason")))
            waiting.exception()  # retrieved: whoever waited may have gone

    def outcome(self, id: str) -> "asyncio.Future[tuple[str, Response]]":
        """What becomes of a proposal that is about to be sent: who answered, and what. Raises ProposalEnded."""
        return self._outcomes.setdefault(id, asyncio.get_running_loop().create_future())

    def fail(self, why: Exception) -> None:
        for waiting in self._outcomes.values():
            if not waiting.done():
                waiting.set_exception(why)
                waiting.exception()
        self._outcomes.clear()

    def _set(self, proposal: Proposal, status: Status) -> None:
        self._by_id[proposal.id] = msgspec.structs.replace(proposal, status=status)

    def _drop(self, id: str) -> None:
        del self._by_id[id]
        self._fulfilments = {request: of for request, of in self._fulfilments.items() if of[0] != id}
