"""Proposals as a participant follows them, from published envelopes alone (MCPx 10.2).

A proposal is fulfilled by an `mcp` request that names it in `correlation_id`, and done when its target has answered
that request. Events of the gateway report proposals that were rejected, withdrawn, or have expired.
"""

import asyncio
from typing import Any, Final, cast, get_args

import msgspec

from interlock.rooms.protocol.envelope import Envelope
from interlock.sdk.rooms.model import Proposal, ProposalEnded, Status
from interlock.wire.jsonrpc.codec import Response

KEPT_MAX: Final = 1000  # proposals; the oldest are forgotten
ANSWERS_MAX: Final = 100  # answers of which the gateway may still say that they fulfil a proposal
EVENT: Final = "proposal_"
STATUSES: Final[frozenset[str]] = frozenset(get_args(Status))
WITHOUT_ANSWER: Final = frozenset(("rejected", "withdrawn", "expired", "void", "unknown"))


class Listed(msgspec.Struct, frozen=True, rename="camel"):
    """A proposal in the list of the gateway (MCPx 10.2)."""

    proposal_id: str
    proposer: str
    method: str
    status: Status
    created_at: str
    target: str | None = None
    params: msgspec.Raw = msgspec.Raw(b"{}")
    reason: str | None = None
    expires_at: str | None = None


class FollowedProposals:
    """The proposals of a room as this participant has seen them, and the outcomes that it waits for."""

    def __init__(self) -> None:
        self._by_id: dict[str, Proposal] = {}
        self._fulfilments: dict[str, tuple[str, tuple[str, ...]]] = {}  # a request -> its proposal, and who is asked
        self._outcomes: dict[str, asyncio.Future[tuple[str, Response]]] = {}  # that we wait for
        self._answers: dict[str, tuple[str, Response]] = {}  # the newest, by the request's envelope

    def pending(self) -> list[Proposal]:
        return [proposal for proposal in self._by_id.values() if proposal.status == "pending"]

    def maybe(self, id: str | None) -> Proposal | None:
        return None if id is None else self._by_id.get(id)

    def on_proposal(self, envelope: Envelope) -> None:
        """Take over a published proposal."""
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

    def on_listed(self, listed: list["Listed"]) -> None:
        """Take over the gateway's list, which has proposals from before we joined and the status of each."""
        for entry in reversed(listed):  # the newest comes first
            proposal = self._by_id.get(entry.proposal_id) or Proposal(
                id=entry.proposal_id,
                proposer=entry.proposer,
                target=entry.target,
                method=entry.method,
                params=bytes(entry.params) if entry.params != b"null" else b"{}",
                reason=entry.reason,
                ts=entry.created_at,
            )
            self._by_id[proposal.id] = msgspec.structs.replace(
                proposal, status=entry.status, expires_at=entry.expires_at
            )

    def on_request(self, envelope: Envelope) -> None:
        """Handle a request that may fulfil a proposal."""
        proposal = self.maybe(envelope.correlation_id)
        if proposal is not None and proposal.status == "pending":
            self._fulfilments[envelope.id] = proposal.id, envelope.to or ()
            self._set(proposal, "claimed")

    def on_answer(self, envelope: Envelope, response: Response) -> None:
        """Handle an answer, which may be the outcome of a proposal."""
        request, sender = envelope.correlation_id or "", envelope.sender or ""
        id, recipients = self._fulfilments.get(request, (None, ()))
        proposal = self.maybe(id)
        if proposal is None:
            self._answers[request] = sender, response
            while len(self._answers) > ANSWERS_MAX:
                del self._answers[next(iter(self._answers))]
        elif sender in recipients:
            del self._fulfilments[request]
            self._set(proposal, "failed" if response.error else "fulfilled")
            self._settle(proposal.id, (sender, response))

    def on_event(self, envelope: Envelope, payload: dict[str, Any]) -> None:
        """Handle an event about a proposal. The gateway also knows fulfilments that do not name their proposal."""
        status = str(payload.get("event")).removeprefix(EVENT)
        proposal = self.maybe(envelope.correlation_id)
        if status not in STATUSES or proposal is None:
            return
        self._set(proposal, cast(Status, status))
        if status in WITHOUT_ANSWER:
            self._settle(proposal.id, ProposalEnded(status, payload.get("by"), payload.get("reason")))
        elif (answer := self._answers.get(str(payload.get("fulfilment")))) is not None:
            self._settle(proposal.id, answer)

    def _settle(self, id: str, how: tuple[str, Response] | ProposalEnded) -> None:
        waiting = self._outcomes.get(id)
        if waiting is None or waiting.done():
            return
        if isinstance(how, ProposalEnded):
            waiting.set_exception(how)
            waiting.exception()  # asyncio would log an exception that is never retrieved
        else:
            waiting.set_result(how)

    def outcome(self, id: str) -> "asyncio.Future[tuple[str, Response]]":
        """Return the future answer to a proposal of ours: who answered, and what. It may raise ProposalEnded.

        It is created before the proposal is sent, so that no answer comes too early, and kept as long as the proposal.
        """
        waiting = self._outcomes.setdefault(id, asyncio.get_running_loop().create_future())
        proposal = self.maybe(id)
        if proposal is not None and proposal.status in WITHOUT_ANSWER:
            self._settle(id, ProposalEnded(proposal.status))
        return waiting

    def forget(self, id: str) -> None:
        """Forget a proposal that was not sent."""
        self._outcomes.pop(id, None)

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
        self._outcomes.pop(id, None)
        self._fulfilments = {request: of for request, of in self._fulfilments.items() if of[0] != id}
