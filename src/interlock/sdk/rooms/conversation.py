"""What a participant is made of: the proposals that it follows, its listeners, and the service of its tools.

A `Listener` that is not read holds the connection back. The gateway then closes the connection, and it is resumed where
it stopped as soon as the listener can take more: nothing is left out, and nothing piles up (X-5.2-6).

Proposals are followed from published envelopes alone (MCPx 10.2). A proposal is fulfilled by an `mcp` request that
names it in `correlation_id`, and done when its target has answered that request. Events of the gateway report proposals
that were rejected, withdrawn, or have expired.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, Final, cast, get_args

import msgspec

from interlock.rooms.protocol.envelope import Envelope
from interlock.sdk.rooms import model
from interlock.sdk.subserver.mcp_server import McpServer, ToolOffer, cancelled_request
from interlock.wire.jsonrpc import codec

KEPT_MAX: Final = 1000  # proposals; the oldest are forgotten
ANSWERS_MAX: Final = 100  # answers of which the gateway may still say that they fulfil a proposal
EVENT: Final = "proposal_"
STATUSES: Final[frozenset[str]] = frozenset(get_args(model.Status))
WITHOUT_ANSWER: Final = frozenset(("rejected", "withdrawn", "expired", "void", "unknown"))


class ListedProposal(msgspec.Struct, frozen=True, rename="camel"):
    """A proposal as it appears in the gateway's list (MCPx 10.2)."""

    proposal_id: str
    proposer: str
    method: str
    status: model.Status
    created_at: str
    target: str | None = None
    params: msgspec.Raw = msgspec.Raw(b"{}")
    reason: str | None = None
    expires_at: str | None = None


class FollowedProposals:
    """The proposals of a room, as far as this participant has seen them, and the futures for their outcomes."""

    def __init__(self) -> None:
        self._by_id: dict[str, model.Proposal] = {}
        self._fulfilments: dict[str, tuple[str, tuple[str, ...]]] = {}  # a request -> its proposal, and who is asked
        self._outcomes: dict[str, asyncio.Future[tuple[str, codec.Response]]] = {}  # that we wait for
        self._answers: dict[str, tuple[str, codec.Response]] = {}  # the newest, by the request's envelope

    def pending(self) -> list[model.Proposal]:
        """Return the pending proposals in the order in which this participant learned of them."""
        return [proposal for proposal in self._by_id.values() if proposal.status == "pending"]

    def find(self, id: str | None) -> model.Proposal | None:
        """Return the proposal with this id, or None."""
        return None if id is None else self._by_id.get(id)

    def on_proposal(self, envelope: Envelope) -> None:
        """Add a proposal that was published in the room."""
        members = envelope.members()
        to = envelope.to or ()
        proposer, target = envelope.sender or "", to[0] if len(to) == 1 else None
        method = msgspec.json.decode(members["method"], type=str)
        params = bytes(members.get("params", msgspec.Raw(b"{}")))
        reason = msgspec.json.decode(members["reason"], type=str) if "reason" in members else None
        proposal = model.Proposal(envelope.id, proposer, target, method, params, reason, envelope.ts or "")
        self._by_id[proposal.id] = proposal
        while len(self._by_id) > KEPT_MAX:
            oldest = next(iter(self._by_id))
            del self._by_id[oldest]
            self._outcomes.pop(oldest, None)
            fulfilments = self._fulfilments.items()
            self._fulfilments = {request: entry for request, entry in fulfilments if entry[0] != oldest}

    def on_listed(self, listed: list[ListedProposal]) -> None:
        """Update the proposals from the gateway's list. It has the status of each, and includes proposals from before
        this participant joined.
        """
        for entry in reversed(listed):  # the newest comes first
            id, params = entry.proposal_id, bytes(entry.params) if entry.params != b"null" else b"{}"
            proposal = self._by_id.get(id) or model.Proposal(
                id, entry.proposer, entry.target, entry.method, params, entry.reason, entry.created_at
            )
            changes = {"status": entry.status, "expires_at": entry.expires_at}
            self._by_id[proposal.id] = msgspec.structs.replace(proposal, **changes)

    def on_request(self, envelope: Envelope) -> None:
        """Mark a proposal as claimed if another participant's request carries it out."""
        proposal = self.find(envelope.correlation_id)
        if proposal is not None and proposal.status == "pending":
            self._fulfilments[envelope.id] = proposal.id, envelope.to or ()
            self._set(proposal, "claimed")

    def on_answer(self, envelope: Envelope, response: codec.Response) -> None:
        """Handle the reply to a request. If the request carried out a proposal, the reply ends the proposal."""
        request, sender = envelope.correlation_id or "", envelope.sender or ""
        id, recipients = self._fulfilments.get(request, (None, ()))
        if (proposal := self.find(id)) is None:
            self._answers[request] = sender, response
            while len(self._answers) > ANSWERS_MAX:
                del self._answers[next(iter(self._answers))]
        elif sender in recipients:
            del self._fulfilments[request]
            self._set(proposal, "failed" if response.error else "fulfilled")
            self._settle(proposal.id, (sender, response))

    def on_event(self, envelope: Envelope, payload: dict[str, Any]) -> None:
        """Update the status of a proposal after the gateway has reported a change of it. The report also covers
        requests that carried out a proposal without naming the proposal.
        """
        status = str(payload.get("event")).removeprefix(EVENT)
        proposal = self.find(envelope.correlation_id)
        if status not in STATUSES or proposal is None:
            return
        self._set(proposal, cast(model.Status, status))
        if status in WITHOUT_ANSWER:
            self._settle(proposal.id, model.ProposalEnded(status, payload.get("by"), payload.get("reason")))
        elif (answer := self._answers.get(str(payload.get("fulfilment")))) is not None:
            self._settle(proposal.id, answer)

    def _settle(self, id: str, how: tuple[str, codec.Response] | model.ProposalEnded) -> None:
        """Complete the future of a proposal's outcome, with the reply or with the reason why there is none."""
        waiting = self._outcomes.get(id)
        if waiting is None or waiting.done():
            return
        if isinstance(how, model.ProposalEnded):
            fail(waiting, how)
        else:
            waiting.set_result(how)

    def outcome(self, id: str) -> "asyncio.Future[tuple[str, codec.Response]]":
        """Return a future for the outcome of a proposal: the participant that replied, and its reply. The future raises
        ProposalEnded if the proposal ends without a reply.

        The future is created before the proposal is sent, so that no reply can be missed. It is kept as long as the
        proposal.
        """
        waiting = self._outcomes.setdefault(id, asyncio.get_running_loop().create_future())
        proposal = self.find(id)
        if proposal is not None and proposal.status in WITHOUT_ANSWER:
            self._settle(id, model.ProposalEnded(proposal.status))
        return waiting

    def forget(self, id: str) -> None:
        """Remove the future of a proposal that was not sent."""
        self._outcomes.pop(id, None)

    def fail(self, why: Exception) -> None:
        for waiting in self._outcomes.values():
            fail(waiting, why)
        self._outcomes.clear()

    def _set(self, proposal: model.Proposal, status: model.Status) -> None:
        self._by_id[proposal.id] = msgspec.structs.replace(proposal, status=status)


HEARD_MAX: Final = 1000  # envelopes that wait to be read, before the connection is held back


class Listener:
    """An async iterator over received envelopes: `async for heard in listener`.

    The iteration ends when the participant closes. If the room is lost permanently, the iterator raises the reason.
    """

    def __init__(self, on_change: Callable[[], None]) -> None:
        """Create a listener. `on_change` is called when it becomes full, has room again, or is closed."""
        self._on_change = on_change
        self._waiting: deque[model.Heard] = deque()
        self._news = asyncio.Event()
        self._is_over = False
        self._why: Exception | None = None

    @property
    def is_full(self) -> bool:
        return len(self._waiting) >= HEARD_MAX and not self._is_over

    @property
    def is_over(self) -> bool:
        return self._is_over

    def put(self, heard: model.Heard) -> None:
        """Queue an envelope. When HEARD_MAX envelopes are queued, the connection stops reading."""
        if self._is_over:
            return
        self._waiting.append(heard)
        self._news.set()
        if len(self._waiting) == HEARD_MAX:
            self._on_change()

    def end(self, why: Exception | None = None) -> None:
        """End the iteration after the queued envelopes were read. If `why` is given, raise it then."""
        if not self._is_over:
            self._is_over, self._why = True, why
            self._news.set()

    def close(self) -> None:
        """Stop receiving envelopes and end the iteration."""
        self._waiting.clear()
        self.end()
        self._on_change()

    def __aiter__(self) -> "Listener":
        return self

    async def __anext__(self) -> model.Heard:
        while not self._waiting:
            if self._is_over:
                if self._why is not None:
                    raise self._why
                raise StopAsyncIteration
            self._news.clear()
            await self._news.wait()
        heard = self._waiting.popleft()
        if len(self._waiting) == HEARD_MAX // 2:
            self._on_change()
        return heard


RUNNING_MAX: Final = 1000  # requests that may still be cancelled

Reply = Callable[[Envelope, bytes], bool]


class ToolService:
    """The service that runs this participant's tools for the other participants."""

    def __init__(self, offer: ToolOffer, reply: Reply) -> None:
        """Create the service. `reply` sends a payload to the sender of an envelope."""
        self._offer = offer
        self._reply = reply
        self._running: dict[tuple[str, bytes], McpServer] = {}  # by sender and JSON-RPC id

    def serve(self, envelope: Envelope, request: codec.Request) -> None:
        """Serve a request of another participant. Each request gets a separate MCP server, because JSON-RPC ids are
        unique only within one sender (X-4.1-4).
        """
        key = (envelope.sender or "", request.id)

        def send(message: bytes) -> bool:
            if not message.startswith(_NOTIFIES):
                self._running.pop(key, None)
            return self._reply(envelope, message)

        server = McpServer(self._offer, send, "")
        if len(self._running) >= RUNNING_MAX:
            del self._running[next(iter(self._running))]
        self._running[key] = server
        server.serve(request)

    def hear(self, envelope: Envelope, notification: codec.Notification) -> None:
        key = (envelope.sender or "", cancelled_request(notification))
        if (server := self._running.pop(key, None)) is not None:
            server.hear(notification)


_NOTIFIES: Final = b'{"jsonrpc":"2.0","method":'


def fail(future: "asyncio.Future[Any]", why: Exception) -> None:
    if not future.done():
        future.set_exception(why)
        future.exception()  # asyncio would log an exception that is never retrieved
