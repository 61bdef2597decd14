"""The conversation of a participant: who is present, requests that wait for a reply, and requests of others.

A request of another participant is served if its `to` names us; a broadcast is read, but neither performed nor
answered. Replies carry the id of the request's envelope in `correlation_id`, and if the request fulfils a proposal they
also go to the proposer (X-1-2, X-4.2.1-4).

A `Listener` that is not read holds the connection back. The gateway then closes the connection, and it is resumed where
it stopped as soon as the listener can take more: nothing is left out, and nothing piles up (X-5.2-6).

Proposals are followed from published envelopes alone (MCPx 10.2). A proposal is fulfilled by an `mcp` request that
names it in `correlation_id`, and done when its target has answered that request. Events of the gateway report proposals
that were rejected, withdrawn, or have expired.
"""

import asyncio
import itertools
import logging
import uuid
from collections import deque
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final, cast, get_args

import msgspec
from msgspec import Raw

from interlock.mcp.methods import CANCELLED, INITIALIZE, INITIALIZED, LATEST_LEGACY
from interlock.rooms.protocol.envelope import MCP, PRESENCE, PROPOSAL, Envelope, encode
from interlock.sdk.rooms.connection import GatewayConnection, RoomAddress
from interlock.sdk.rooms.model import (
    Answer,
    CallFailed,
    Heard,
    NoAnswer,
    Peer,
    Proposal,
    ProposalEnded,
    RoomError,
    Status,
)
from interlock.sdk.subserver.mcp_server import McpServer, ToolOffer
from interlock.wire.jsonrpc import codec

KEPT_MAX: Final = 1000  # proposals; the oldest are forgotten
ANSWERS_MAX: Final = 100  # answers of which the gateway may still say that they fulfil a proposal
EVENT: Final = "proposal_"
STATUSES: Final[frozenset[str]] = frozenset(get_args(Status))
WITHOUT_ANSWER: Final = frozenset(("rejected", "withdrawn", "expired", "void", "unknown"))


class ListedProposal(msgspec.Struct, frozen=True, rename="camel"):
    """A proposal as it appears in the gateway's list (MCPx 10.2)."""

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
    """The proposals of a room, followed from the envelopes that this participant received, and the futures for their
    outcomes.
    """

    def __init__(self) -> None:
        self._by_id: dict[str, Proposal] = {}
        self._fulfilments: dict[str, tuple[str, tuple[str, ...]]] = {}  # a request -> its proposal, and who is asked
        self._outcomes: dict[str, asyncio.Future[tuple[str, codec.Response]]] = {}  # that we wait for
        self._answers: dict[str, tuple[str, codec.Response]] = {}  # the newest, by the request's envelope

    def pending(self) -> list[Proposal]:
        """Return the pending proposals in the order in which this participant learned of them."""
        return [proposal for proposal in self._by_id.values() if proposal.status == "pending"]

    def find(self, id: str | None) -> Proposal | None:
        """Return the proposal with this id, or None."""
        return None if id is None else self._by_id.get(id)

    def on_proposal(self, envelope: Envelope) -> None:
        """Add a published proposal."""
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
            oldest = next(iter(self._by_id))
            del self._by_id[oldest]
            self._outcomes.pop(oldest, None)
            self._fulfilments = {
                request: fulfilled for request, fulfilled in self._fulfilments.items() if fulfilled[0] != oldest
            }

    def on_listed(self, listed: list[ListedProposal]) -> None:
        """Update from the gateway's list, which contains the status of each proposal and includes proposals from before
        this participant joined.
        """
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
        proposal = self.find(envelope.correlation_id)
        if proposal is not None and proposal.status == "pending":
            self._fulfilments[envelope.id] = proposal.id, envelope.to or ()
            self._set(proposal, "claimed")

    def on_answer(self, envelope: Envelope, response: codec.Response) -> None:
        """Handle a reply, which may end a proposal."""
        request, sender = envelope.correlation_id or "", envelope.sender or ""
        id, recipients = self._fulfilments.get(request, (None, ()))
        proposal = self.find(id)
        if proposal is None:
            self._answers[request] = sender, response
            while len(self._answers) > ANSWERS_MAX:
                del self._answers[next(iter(self._answers))]
        elif sender in recipients:
            del self._fulfilments[request]
            self._set(proposal, "failed" if response.error else "fulfilled")
            self._settle(proposal.id, (sender, response))

    def on_event(self, envelope: Envelope, payload: dict[str, Any]) -> None:
        """Handle an event about a proposal. The gateway also reports fulfilments that do not name their proposal."""
        status = str(payload.get("event")).removeprefix(EVENT)
        proposal = self.find(envelope.correlation_id)
        if status not in STATUSES or proposal is None:
            return
        self._set(proposal, cast(Status, status))
        if status in WITHOUT_ANSWER:
            self._settle(proposal.id, ProposalEnded(status, payload.get("by"), payload.get("reason")))
        elif (answer := self._answers.get(str(payload.get("fulfilment")))) is not None:
            self._settle(proposal.id, answer)

    def _settle(self, id: str, how: tuple[str, codec.Response] | ProposalEnded) -> None:
        """Complete the future of a proposal's outcome, with the reply or with the reason why there is none."""
        waiting = self._outcomes.get(id)
        if waiting is None or waiting.done():
            return
        if isinstance(how, ProposalEnded):
            _fail(waiting, how)
        else:
            waiting.set_result(how)

    def outcome(self, id: str) -> "asyncio.Future[tuple[str, codec.Response]]":
        """Return the future outcome of a proposal of this participant: the replying participant and its reply. It may
        raise ProposalEnded.

        The future is created before the proposal is sent, so that no reply can be missed. It is kept as long as the
        proposal.
        """
        waiting = self._outcomes.setdefault(id, asyncio.get_running_loop().create_future())
        proposal = self.find(id)
        if proposal is not None and proposal.status in WITHOUT_ANSWER:
            self._settle(id, ProposalEnded(proposal.status))
        return waiting

    def forget(self, id: str) -> None:
        """Remove the future of a proposal that was not sent."""
        self._outcomes.pop(id, None)

    def fail(self, why: Exception) -> None:
        for waiting in self._outcomes.values():
            _fail(waiting, why)
        self._outcomes.clear()

    def _set(self, proposal: Proposal, status: Status) -> None:
        self._by_id[proposal.id] = msgspec.structs.replace(proposal, status=status)


HEARD_MAX: Final = 1000  # envelopes that wait to be read, before the connection is held back


class Listener:
    """An async iterator over received envelopes: `async for heard in listener`.

    The iteration ends when the participant closes. If the room is lost permanently, the iterator raises the reason.
    """

    def __init__(self, on_change: Callable[[], None]) -> None:
        """Create a listener. `on_change` is called when it becomes full, has room again, or is closed."""
        self._on_change = on_change
        self._waiting: deque[Heard] = deque()
        self._news = asyncio.Event()
        self._is_over = False
        self._why: Exception | None = None

    @property
    def is_full(self) -> bool:
        return len(self._waiting) >= HEARD_MAX and not self._is_over

    @property
    def is_over(self) -> bool:
        return self._is_over

    def put(self, heard: Heard) -> None:
        """Queue an envelope. When HEARD_MAX envelopes are queued, the connection stops reading."""
        if self._is_over:
            return
        self._waiting.append(heard)
        self._news.set()
        if len(self._waiting) == HEARD_MAX:
            self._on_change()

    def end(self, why: Exception | None = None) -> None:
        """End the iteration after the queued envelopes were read. Then raise `why`, if it is given."""
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

    async def __anext__(self) -> Heard:
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
        """Serve a request with a separate MCP server, because JSON-RPC ids are unique only within one sender, unlike
        envelope ids (X-4.1-4).
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
        if notification.method != CANCELLED or not notification.params:
            return
        id = bytes((codec.decode_object(notification.params) or {}).get("requestId", b""))
        server = self._running.pop((envelope.sender or "", id), None)
        if server is not None:
            server.hear(notification)


_NOTIFIES: Final = b'{"jsonrpc":"2.0","method":'


log = logging.getLogger("interlock.rooms")

MISSED_S: Final = 30.0  # a request that came while we were away for longer is not performed: nobody waits for it
TAKEN_S: Final = 30.0  # for the gateway to take an envelope


class _PendingRequest(msgspec.Struct):
    """A request of this participant that waits for its reply."""

    to: str
    rpc_id: bytes
    answer: "asyncio.Future[codec.Response]"


class Conversation:
    """The state of a participant in a room: who is present, its pending requests, and requests by others that it
    serves.

    The connection calls the `on_...` methods with everything that it reads.
    """

    def __init__(
        self, place: RoomAddress, offer: ToolOffer, *, history: int, after: int | None, answers_while_restricted: bool
    ) -> None:
        self.connection = GatewayConnection(place, self, history=history, after=after)
        self.id = ""
        self.privilege = ""
        self.peers: dict[str, Peer] = {}
        self.proposals = FollowedProposals()
        self._offer = offer
        self._service = ToolService(offer, self._reply)
        self._answers_while_restricted = answers_while_restricted
        self._listeners: list[Listener] = []
        self._pending: dict[str, _PendingRequest] = {}  # by the envelope's id
        self._meetings: dict[str, asyncio.Task[None]] = {}  # peers that we have greeted
        self._missed: list[tuple[Envelope, codec.Request]] = []
        self._numbers = itertools.count(1)

    def listen(self) -> Listener:
        """Return a new listener that receives every envelope from now on."""
        listener = Listener(self._hold)
        self._listeners.append(listener)
        return listener

    def end(self, why: Exception | None) -> None:
        """End everything that waits, with the error `why` or, if it is None, because the participant leaves."""
        over = why or RoomError("the participant has left the room")
        for listener in self._listeners:
            listener.end(why)
        self.connection.fail(over)
        self.proposals.fail(over)
        for request in list(self._pending.values()):
            _fail(request.answer, over)
        for meeting in self._meetings.values():
            meeting.cancel()

    def _hold(self) -> None:
        self._listeners = [listener for listener in self._listeners if not listener.is_over]
        self.connection.hold(any(listener.is_full for listener in self._listeners))

    # Sending

    async def publish(
        self, kind: str, payload: bytes, *, to: tuple[str, ...] = (), answers: str | None = None, id: str | None = None
    ) -> str:
        """Publish an envelope. Return its id after the gateway has published it. Raise EnvelopeRefused if it was
        refused, or NoAnswer if the gateway does not respond in time.
        """
        id = id or str(uuid.uuid4())
        taken = self._send(id, kind, payload, to, answers)
        try:
            async with asyncio.timeout(TAKEN_S):
                await taken
        except TimeoutError:
            raise NoAnswer(f"the gateway did not take the message within {TAKEN_S:g} s") from None
        finally:
            self.connection.forget(id)
        return id

    async def propose(self, payload: bytes, to: str) -> str:
        """Publish a proposal and return its id. `outcome` can be awaited from now on."""
        id = str(uuid.uuid4())
        self.proposals.outcome(id)
        try:
            return await self.publish(PROPOSAL, payload, to=(to,), id=id)
        except (RoomError, asyncio.CancelledError):
            self.proposals.forget(id)
            raise

    def _send(
        self, id: str, kind: str, payload: bytes, to: tuple[str, ...], answers: str | None
    ) -> "asyncio.Future[None]":
        """Send an envelope of this participant. Raise RoomError if it has not joined the room yet."""
        if not self.id:
            raise RoomError("the participant is not in the room yet: open it, or use async with")
        envelope = Envelope(
            id=id,
            ts=datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            sender=self.id,
            to=to or None,
            kind=kind,
            correlation_id=answers,
            payload=payload,
        )
        return self.connection.send(id, encode(envelope))

    def _reply(self, request: Envelope, payload: bytes) -> bool:
        """Send a reply without waiting until it is published. It is resent if the connection is lost."""
        proposal = self.proposals.find(request.correlation_id)
        to: tuple[str, ...] = (request.sender or "",)
        if proposal is not None and proposal.proposer not in to:
            to += (proposal.proposer,)
        try:
            taken = self._send(str(uuid.uuid4()), MCP, payload, to, request.id)  # X-4.1-4
        except RoomError as refused:
            log.warning("an answer to %s was dropped: %s", to[0], refused)
            return False
        taken.add_done_callback(_log_refused)
        return True

    # Asking

    async def request(
        self, to: str, method: str, params: bytes, timeout_s: float, *, answers: str | None = None
    ) -> Answer:
        """Send a request and return the reply. Raise NoAnswer if none arrives in time, CallFailed if it is an error, or
        EnvelopeRefused if the request was refused.
        """
        if method != INITIALIZE:
            await self._meet(to, timeout_s)
        id, rpc_id = str(uuid.uuid4()), b"%d" % next(self._numbers)
        answer: asyncio.Future[codec.Response] = asyncio.get_running_loop().create_future()
        self._pending[id] = _PendingRequest(to, rpc_id, answer)
        try:
            async with asyncio.timeout(timeout_s):
                await self.publish(MCP, request_payload(rpc_id, method, params), to=(to,), answers=answers, id=id)
                return read_answer(to, await answer)
        except TimeoutError:
            self._cancel(to, rpc_id)
            raise NoAnswer(f"{to} did not answer {method} within {timeout_s:g} s") from None
        except (asyncio.CancelledError, NoAnswer):
            self._cancel(to, rpc_id)  # a peer that returns later must not perform a request without a listener
            raise
        finally:
            del self._pending[id]

    def _cancel(self, to: str, rpc_id: bytes) -> None:
        """Notify a participant that this one no longer waits for its reply."""
        params = codec.encode_value({"requestId": Raw(rpc_id), "reason": "nobody waits for it"})
        try:
            taken = self._send(
                str(uuid.uuid4()), MCP, codec.encode_notification(CANCELLED.encode(), params), (to,), None
            )
        except RoomError:
            return
        taken.add_done_callback(_log_refused)

    async def _meet(self, peer: str, timeout_s: float) -> None:
        """Perform the MCP handshake with a peer, once for as long as the peer is present (X-1-2)."""

        async def greet() -> None:
            params = {"protocolVersion": LATEST_LEGACY, "capabilities": {}, "clientInfo": self._offer.info}
            try:
                await self.request(peer, INITIALIZE, codec.encode_value(params), timeout_s)
            except CallFailed as failed:
                log.info("%s answers initialize with %s; it is asked anyway", peer, failed)
            await self.publish(MCP, codec.encode_notification(INITIALIZED.encode(), b""), to=(peer,))

        if peer not in self._meetings:
            greeting = asyncio.get_running_loop().create_task(greet(), name=f"meet {peer}")
            # Whoever awaits the task gets its exception; asyncio need not log it.
            greeting.add_done_callback(lambda task: None if task.cancelled() else task.exception())
            self._meetings[peer] = greeting
        meeting = self._meetings[peer]
        try:
            await asyncio.shield(meeting)
        except RoomError:
            if self._meetings.get(peer) is meeting:
                del self._meetings[peer]
            raise

    # Hearing

    def on_welcome(self, payload: dict[str, Any]) -> None:
        """Store this participant's identity and the list of present participants. Each connect ends with this."""
        own = msgspec.convert(payload["participant"], Peer)
        self.id, self.privilege = own.id, own.privilege
        self.peers = {peer.id: peer for peer in msgspec.convert(payload["participants"], list[Peer])}
        self._forget_absent()

    def on_stored(self, envelope: Envelope, sequence: int, *, is_old: bool) -> None:
        """Handle an envelope from a participant. `is_old` means that it was published while this one was not
        connected.
        """
        try:
            if envelope.kind == PROPOSAL:  # X-3.1-7
                self.proposals.on_proposal(envelope)
            elif envelope.kind == MCP:
                self._on_mcp(envelope, codec.decode_untrusted(envelope.payload), is_old)
        except (codec.CodecError, msgspec.DecodeError, UnicodeDecodeError):
            log.info("%s sent %s that cannot be read", envelope.sender, envelope.kind)
        self._pass_on(Heard(envelope=envelope, sequence=sequence, is_old=is_old))

    def _on_mcp(
        self, envelope: Envelope, message: codec.Request | codec.Notification | codec.Response, is_old: bool
    ) -> None:
        """Handle an MCP message. Old requests wait until all missed envelopes were read, because some may already have
        a reply.
        """
        is_ours = self.id in (envelope.to or ()) and envelope.sender != self.id
        match message:
            case codec.Response():
                self._on_answer(envelope, message)
            case codec.Request():
                self.proposals.on_request(envelope)
                if is_ours and is_old:
                    self._missed.append((envelope, message))
                elif is_ours:
                    self._serve(envelope, message)
            case codec.Notification():
                if is_ours and message.method == CANCELLED:
                    params = (codec.decode_object(message.params) if message.params else None) or {}
                    cancelled = (envelope.sender, bytes(params.get("requestId", b"")))
                    self._missed = [entry for entry in self._missed if (entry[0].sender, entry[1].id) != cancelled]
                    self._service.hear(envelope, message)

    def _on_answer(self, envelope: Envelope, response: codec.Response) -> None:
        """Find the request for a reply by `correlation_id`, and check that the JSON-RPC ids are equal (X-4.1-4)."""
        self.proposals.on_answer(envelope, response)
        request = self._pending.get(envelope.correlation_id or "")
        if request is not None and (envelope.sender, response.id) == (request.to, request.rpc_id):  # X-4.1-4
            if not request.answer.done():
                request.answer.set_result(response)
        else:
            self._missed = [missed for missed in self._missed if missed[0].id != envelope.correlation_id]

    def _serve(self, envelope: Envelope, request: codec.Request) -> None:
        """Serve a request for a tool of this participant. A restricted participant serves it only if the room allows
        that.
        """
        if self.privilege != "full" and not self._answers_while_restricted:
            log.info("%s asks for %s; a restricted participant cannot answer", envelope.sender, request.method)
            return
        self._service.serve(envelope, request)

    def on_caught_up(self, away_s: float | None) -> None:
        """Serve the requests that were missed, unless the absence of `away_s` seconds was too long. None means that
        this is the first connection.
        """
        missed, self._missed = self._missed, []
        if away_s is None or away_s > MISSED_S:
            return  # the callers no longer wait (X-4.4.1-6)
        for envelope, request in missed:
            self._serve(envelope, request)

    def on_event(self, envelope: Envelope, *, is_old: bool = False) -> None:
        """Handle a gateway message. Some are stored in the room, such as the outcome of a proposal."""
        payload = codec.decode_value(envelope.payload)
        event = payload.get("event")
        if envelope.kind == PRESENCE:
            peer = msgspec.convert(payload["participant"], Peer)
            if event == "leave":
                self.peers.pop(peer.id, None)
                self._forget_absent()
            else:
                self.peers[peer.id] = peer
        elif event == "privilege_changed":
            peer = msgspec.convert(payload["participant"], Peer)
            if peer.id == self.id:
                self.privilege = peer.privilege
            elif peer.id in self.peers:
                self.peers[peer.id] = msgspec.structs.replace(self.peers[peer.id], privilege=peer.privilege)
        elif event in ("recipient_absent", "recipient_cannot_answer"):
            pending = self._pending.get(envelope.correlation_id or "")
            if pending is not None:
                why = "is not in the room" if event == "recipient_absent" else "is restricted and cannot answer"
                _fail(pending.answer, NoAnswer(f"{pending.to} {why}"))
        else:
            self.proposals.on_event(envelope, payload)
        self._pass_on(Heard(envelope=envelope, is_old=is_old))

    def _forget_absent(self) -> None:
        for gone in [peer for peer in self._meetings if peer not in self.peers and self._meetings[peer].done()]:
            del self._meetings[gone]

    def _pass_on(self, heard: Heard) -> None:
        for listener in self._listeners:
            listener.put(heard)


def request_payload(rpc_id: bytes, method: str, params: bytes) -> bytes:
    """Return the JSON-RPC payload of a request. The method may come from another participant, so it is encoded as a
    JSON string.
    """
    return b'{"jsonrpc":"2.0","id":%b,"method":%b,"params":%b}' % (rpc_id, codec.encode_value(method), params or b"{}")


def read_answer(sender: str, response: codec.Response) -> Answer:
    """Return the result of a response. Raise CallFailed if the response is an error."""
    if response.error:
        error = codec.decode_value(response.error)
        members: dict[str, Any] = error if isinstance(error, dict) else {}
        code = members.get("code")
        raise CallFailed(code if isinstance(code, int) else 0, str(members.get("message", "")), members.get("data"))
    return Answer(sender=sender, raw=bytes(response.result))


def _fail(future: "asyncio.Future[Any]", why: Exception) -> None:
    if not future.done():
        future.set_exception(why)
        future.exception()  # asyncio would log an exception that is never retrieved


def _log_refused(taken: "asyncio.Future[None]") -> None:
    if not taken.cancelled() and (why := taken.exception()) is not None:
        log.warning("the gateway did not publish a message: %s", why)
