"""`Participant`: the class with which a program takes part in a room.

The class checks arguments, offers the verbs, and matches replies with requests. `connection` keeps the WebSocket, calls
the `_on_` methods with everything that it reads, and repeats after a loss what the gateway has not confirmed.
`conversation` has what a participant is made of: followed proposals, listeners, and the service of its tools.

A request of another participant is served if its `to` names us; a broadcast is read, but neither performed nor
answered. Replies carry the id of the request's envelope in `correlation_id`, and if the request fulfils a proposal they
also go to the proposer (X-1-2, X-4.2.1-4).

A restricted participant uses the same verbs: `call` proposes what it may not send, and waits for the reply to whoever
carries it out (X-4.2-1).
"""

import asyncio
import itertools
import logging
import ssl
import sys
import uuid
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final, Literal, Self
from urllib.parse import urlsplit

import msgspec

from interlock.mcp import methods
from interlock.net.protocol.address_scope import is_loopback
from interlock.rooms.protocol.envelope import CHAT, ENVELOPE_BYTES_MAX, MCP, PRESENCE, PROPOSAL, Envelope, encode
from interlock.rooms.protocol.participants import is_topic
from interlock.sdk.rooms import model
from interlock.sdk.rooms.connection import GatewayConnection, RoomAddress, Ticket, send_request
from interlock.sdk.rooms.conversation import FollowedProposals, ListedProposal, Listener, ToolService, fail
from interlock.sdk.subserver.mcp_server import ToolOffer, cancelled_request
from interlock.sdk.subserver.tools import OfferedTools
from interlock.wire.jsonrpc import codec

log = logging.getLogger("interlock.rooms")

CALL_S: Final = 30.0
MISSED_S: Final = 30.0  # a request that came while we were away for longer is not performed: nobody waits for it
TAKEN_S: Final = 30.0  # for the gateway to take an envelope
OUTCOME_S: Final = 600.0  # a person decides; the room's own limit is shorter where it says so
RETRY_S: Final = 2.0  # between tries to come in for the first time
GRACE_S: Final = 5.0  # for calls under way when the participant is asked to end
PAGES_MAX: Final = 100  # of a list of tools
SCHEMES: Final = {"http": "ws", "https": "wss", "ws": "ws", "wss": "wss"}


class _PendingRequest(msgspec.Struct):
    """A request of this participant that waits for its reply."""

    to: str
    rpc_id: bytes
    answer: "asyncio.Future[codec.Response]"


class Participant(OfferedTools):
    """A program that takes part in a room, from `open` (or `async with`) until `close`. Programs that only offer tools
    can call `run` instead.
    """

    def __init__(
        self,
        address: str,
        topic: str,
        *,
        token: str | None = None,
        ticket: Ticket | None = None,
        history: int = 0,
        after: int | None = None,
        name: str | None = None,
        kind: Literal["human", "agent", "robot"] | None = None,
        version: str = "0.0.0",
        instructions: str | None = None,
        restricted_replies: bool = False,
        tls: ssl.SSLContext | None = None,
        secure_by: str | None = None,
    ) -> None:
        """Prepare to join the room `topic` of the node at `address`, such as ws://127.0.0.1:7411.

        `token` is a room token, or the token of a client that is a member. `ticket` is valid for one connection; it may
        be a function that fetches a new ticket for each connection. `history` is the number of newest envelopes to
        receive; `after` requests everything after a `position` of an earlier run. `name` and `kind` are shown to the
        other participants. `restricted_replies` says that the room lets restricted participants answer. `secure_by`
        says why a ws:// address outside this host is safe.
        """
        if not is_topic(topic):
            raise model.RoomInvalid(f"{topic!r} is not the name of a room")
        if token is not None and (not token.isascii() or not token.isprintable()):
            raise model.RoomInvalid("a token is printable ASCII; was a line break copied along?")
        self.topic = topic
        parts = urlsplit(address)
        if parts.scheme not in SCHEMES or not parts.hostname or parts.path.rstrip("/") or parts.query:
            raise model.RoomInvalid("an address is that of a node, such as ws://127.0.0.1:7411")
        if parts.username is not None or parts.password is not None:
            raise model.RoomInvalid("a credential does not belong into the address; give token=")
        scheme = SCHEMES[parts.scheme]
        if scheme == "ws" and not is_loopback(parts.hostname) and not secure_by:
            raise model.RoomInvalid(
                f"{parts.netloc} is not on this host and the connection not encrypted; use wss://,"
                ' or secure_by="REASON" where the network itself is safe'
            )
        address = f"{scheme}://{parts.netloc}"
        self._place = RoomAddress(address, topic, token=token, ticket=ticket, tls=tls, name=name, kind=kind)
        super().__init__()
        self._offer = ToolOffer(name or "participant", version, instructions, ENVELOPE_BYTES_MAX, self._tools)
        self.id = ""  # the credential of this participant determines it
        self.privilege = ""  # full or restricted
        self._connection = GatewayConnection(self._place, self, history=history, after=after)
        self._peers: dict[str, model.Peer] = {}
        self._followed = FollowedProposals()
        self._service = ToolService(self._offer, self._reply)
        self._answers_while_restricted = restricted_replies
        self._listeners: list[Listener] = []
        self._pending: dict[str, _PendingRequest] = {}  # by the envelope's id
        self._meetings: dict[str, asyncio.Task[None]] = {}  # peers that we have greeted
        self._missed: list[tuple[Envelope, codec.Request]] = []
        self._numbers = itertools.count(1)
        self._keeping: asyncio.Task[None] | None = None

    # Life

    async def open(self) -> None:
        """Join the room. Raise RoomUnreachable or RoomRefused if that fails. If the connection is lost later, it is
        restored in the background.
        """
        await self._connection.open()
        self._keeping = asyncio.get_running_loop().create_task(self._keep(), name=f"room {self.topic}")

    async def close(self) -> None:
        if self._keeping is None:
            return
        self._end(None)
        await self._connection.close()
        self._keeping.cancel()
        await asyncio.gather(self._keeping, return_exceptions=True)
        self._keeping = None

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def wait(self) -> None:
        """Wait until the room is lost permanently, and then raise RoomRefused. Return when this participant closes."""
        if self._keeping is not None:
            await asyncio.shield(self._keeping)

    async def _keep(self) -> None:
        try:
            await self._connection.keep()
        except model.RoomRefused as refused:
            self._end(refused)
            raise

    def run(self) -> None:
        """Serve the tools until the process is asked to end. If the node is not running yet, wait for it."""
        try:
            asyncio.run(self._serve_until_signal(self.serve))
        except model.RoomRefused as refused:
            log.error("room %s: %s", self.topic, refused)
            sys.exit(1)

    async def serve(self) -> None:
        """Serve the tools on the current event loop until `stop` is called. Raise RoomRefused if the room is lost
        permanently.
        """
        self._loop, self._stopping = asyncio.get_running_loop(), asyncio.Event()
        stopped = self._loop.create_task(self._stopping.wait())
        try:
            while not self._stopping.is_set():
                try:
                    await self.open()
                    break
                except model.RoomUnreachable as away:
                    log.info("room %s: %s", self.topic, away)
                    await asyncio.wait((stopped,), timeout=RETRY_S)
            if self._keeping is not None:
                await asyncio.wait((self._keeping, stopped), return_when=asyncio.FIRST_COMPLETED)
                if self._keeping.done():
                    self._keeping.result()
            if self._offer.calls:
                await asyncio.wait(self._offer.calls, timeout=GRACE_S)
        finally:
            stopped.cancel()
            await self.close()
            self._loop = self._stopping = None

    # Who is here

    @property
    def position(self) -> int:
        """Return the sequence number of the last received envelope. A later run can pass it as `after`."""
        return self._connection.position or 0

    @property
    def is_connected(self) -> bool:
        return self._connection.is_open

    def who(self) -> list[model.Peer]:
        """Return the other participants that are present in the room."""
        return list(self._peers.values())

    def listen(self) -> Listener:
        """Return a listener that receives all envelopes from now on, or from the beginning if called before `open`.

        Read every listener or close it, because a full listener stops the connection from reading.
        """
        listener = Listener(self._hold)
        self._listeners.append(listener)
        return listener

    # Taking part

    async def say(
        self, text: str, *, to: tuple[str, ...] = (), markdown: bool = False, about: str | None = None
    ) -> str:
        """Publish a chat message and return its id. All participants can see it, even if `to` names recipients.

        Raise EnvelopeRefused if the gateway refuses the message, or NoAnswer if it does not respond. The methods
        below that publish an envelope raise these too.
        """
        payload = {"text": text, "format": "markdown"} if markdown else {"text": text}
        return await self._publish(CHAT, codec.encode_value(payload), to=to, answers=about)

    async def notify(self, method: str, params: Mapping[str, Any] | None = None, *, to: tuple[str, ...] = ()) -> None:
        """Publish an MCP notification to the participants in `to`, or to everyone if `to` is empty."""
        written = b"" if params is None else codec.encode_value(params)
        await self._publish(MCP, codec.encode_notification(method.encode(), written), to=to)

    async def tools_changed(self) -> None:
        """Announce that the tools of this participant have changed."""
        await self.notify(methods.TOOLS_CHANGED)

    async def tools(self, peer: str, *, timeout_s: float = CALL_S) -> list[dict[str, Any]]:
        """Return the definitions of the tools that another participant offers."""
        tools: list[dict[str, Any]] = []
        params: dict[str, Any] = {}
        for _ in range(PAGES_MAX):
            page = (await self.request(peer, methods.TOOLS_LIST, params, timeout_s=timeout_s)).result
            tools += page["tools"]
            if not page.get("nextCursor"):
                break
            params = {"cursor": page["nextCursor"]}
        return tools

    async def call(
        self,
        peer: str,
        tool: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        reason: str | None = None,
        timeout_s: float | None = None,
    ) -> model.Answer:
        """Call a tool of another participant.

        If this participant is restricted, the call is published as a proposal with `reason`, and the result is the
        reply to whoever fulfils it (X-4.2-1). Raise CallFailed if the peer replies with an error, or ProposalEnded if
        the proposal ends without a reply.
        """
        if self.privilege != "full":  # X-4.2-1
            id = await self.propose(peer, tool, arguments, reason=reason)
            return await (self.outcome(id) if timeout_s is None else self.outcome(id, timeout_s=timeout_s))
        return await self.request(peer, methods.TOOLS_CALL, _tool_call(tool, arguments), timeout_s=timeout_s or CALL_S)

    async def request(
        self, peer: str, method: str, params: Mapping[str, Any] | None = None, *, timeout_s: float = CALL_S
    ) -> model.Answer:
        """Send an MCP request with any method to one participant (X-4.1-3)."""
        _check_recipient(peer)
        return await self._request(peer, method, codec.encode_value(params or {}), timeout_s)

    # Proposals

    @property
    def proposals(self) -> list[model.Proposal]:
        """Return the pending proposals that this participant knows, in the order in which it learned of them."""
        return self._followed.pending()

    async def read_proposals(self) -> list[model.Proposal]:
        """Fetch the pending proposals from the gateway, with their expiry. They include proposals from before this
        participant joined.
        """
        body = await asyncio.to_thread(send_request, self._place, "proposals")
        try:
            self._followed.on_listed(msgspec.json.decode(body, type=_Proposals).proposals)
        except msgspec.DecodeError as error:
            raise model.RoomUnreachable(f"the gateway's answer cannot be read: {error}") from None
        return self.proposals

    async def propose(
        self, peer: str, tool: str, arguments: Mapping[str, Any] | None = None, *, reason: str | None = None
    ) -> str:
        """Propose a tool call and return the proposal's id. Everyone in the room can see the arguments."""
        _check_recipient(peer)
        payload: dict[str, Any] = {"method": methods.TOOLS_CALL, "params": _tool_call(tool, arguments)}
        if reason is not None:
            payload["reason"] = reason
        id = str(uuid.uuid4())
        self._followed.outcome(id)  # `outcome` can be awaited from now on
        try:
            return await self._publish(PROPOSAL, codec.encode_value(payload), to=(peer,), id=id)
        except (model.RoomError, asyncio.CancelledError):
            self._followed.forget(id)
            raise

    async def outcome(self, proposal: str, *, timeout_s: float = OUTCOME_S) -> model.Answer:
        """Wait for the reply to a proposal of this participant. Raise ProposalEnded if it ends without one, CallFailed
        if the reply is an error, or NoAnswer after `timeout_s`.
        """
        try:
            async with asyncio.timeout(timeout_s):
                return read_answer(*await asyncio.shield(self._followed.outcome(proposal)))
        except TimeoutError:
            raise model.NoAnswer(f"the proposal was not answered within {timeout_s:g} s") from None

    async def fulfil(
        self,
        proposal: str,
        *,
        peer: str | None = None,
        arguments: Mapping[str, Any] | None = None,
        timeout_s: float = CALL_S,
    ) -> model.Answer:
        """Carry out a proposal: send the proposed request in the name of this participant. This requires full privilege
        (MCPx 4.2.1).

        A proposal is performed only once: if another participant decides first, raise EnvelopeRefused with
        already_claimed. This cannot be ensured if `peer` or `arguments` is given, or if the room does not track
        proposals; then the request is sent without asking. `peer` is required if the proposal does not name exactly one
        participant. `arguments` replace those of a proposed tool. Raise RoomInvalid if the proposal is unknown.
        """
        if (entry := self._followed.find(proposal)) is None:
            raise model.RoomInvalid(f"no proposal {proposal} was heard here")
        target = peer or entry.target
        if target is None:
            raise model.RoomInvalid("the proposal names no single participant; say which with peer=")
        if arguments is None and peer is None:
            self._followed.outcome(proposal)  # before deciding, so that no answer is missed
            try:
                await asyncio.to_thread(send_request, self._place, "proposals", proposal, "fulfil", body={})
            except model.EnvelopeRefused as refused:
                # A gateway that tracks no proposals does not know it; then it is fulfilled by a plain request.
                if refused.code != "unknown_proposal":
                    raise
            else:
                return await self.outcome(proposal, timeout_s=timeout_s)
        params = entry.params
        if arguments is not None:
            params = codec.encode_value({**(codec.decode_object(params) or {}), "arguments": arguments})
        return await self._request(target, entry.method, params, timeout_s, answers=entry.id)

    async def reject(self, proposal: str, *, reason: str | None = None) -> None:
        """Reject a proposal. This requires full privilege."""
        body = {} if reason is None else {"reason": reason}
        await asyncio.to_thread(send_request, self._place, "proposals", proposal, "reject", body=body)

    async def withdraw(self, proposal: str) -> None:
        """Withdraw a proposal of this participant."""
        await asyncio.to_thread(send_request, self._place, "proposals", proposal, "withdraw", body={})

    def _end(self, why: Exception | None) -> None:
        """Make everything fail that waits for the room: with the error `why` or, if it is None, because the participant
        leaves.
        """
        over = why or model.RoomError("the participant has left the room")
        for listener in self._listeners:
            listener.end(why)
        self._connection.fail(over)
        self._followed.fail(over)
        for request in list(self._pending.values()):
            fail(request.answer, over)
        for meeting in self._meetings.values():
            meeting.cancel()

    def _hold(self) -> None:
        self._listeners = [listener for listener in self._listeners if not listener.is_over]
        self._connection.hold(any(listener.is_full for listener in self._listeners))

    # Sending

    async def _publish(
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
            raise model.NoAnswer(f"the gateway did not take the message within {TAKEN_S:g} s") from None
        finally:
            self._connection.forget(id)
        return id

    def _send(
        self, id: str, kind: str, payload: bytes, to: tuple[str, ...], answers: str | None
    ) -> "asyncio.Future[None]":
        """Send an envelope of this participant. Raise RoomError if it has not joined the room yet."""
        if not self.id:
            raise model.RoomError("the participant is not in the room yet: open it, or use async with")
        ts = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        envelope = Envelope(
            id=id, ts=ts, sender=self.id, to=to or None, kind=kind, correlation_id=answers, payload=payload
        )
        return self._connection.send(id, encode(envelope))

    def _send_unwatched(self, payload: bytes, to: tuple[str, ...], answers: str | None) -> bool:
        """Send an MCP message without waiting until it is published. It is sent again if the connection is lost. Return
        False if it cannot be sent.
        """
        try:
            taken = self._send(str(uuid.uuid4()), MCP, payload, to, answers)
        except model.RoomError as refused:
            log.warning("a message to %s was dropped: %s", to[0], refused)
            return False
        taken.add_done_callback(_log_refused)
        return True

    def _reply(self, request: Envelope, payload: bytes) -> bool:
        """Send a reply to the sender of a request. If the request carries out a proposal, send the reply to the
        proposer too.
        """
        proposal = self._followed.find(request.correlation_id)
        to: tuple[str, ...] = (request.sender or "",)
        if proposal is not None and proposal.proposer not in to:
            to += (proposal.proposer,)
        return self._send_unwatched(payload, to, request.id)  # X-4.1-4

    # Asking

    async def _request(
        self, to: str, method: str, params: bytes, timeout_s: float, *, answers: str | None = None
    ) -> model.Answer:
        """Send a request and return the reply. Raise NoAnswer if none arrives in time, CallFailed if it is an error, or
        EnvelopeRefused if the request was refused.
        """
        if method != methods.INITIALIZE:
            await self._meet(to, timeout_s)
        id, rpc_id = str(uuid.uuid4()), b"%d" % next(self._numbers)
        # The method may come from another participant, so it is encoded as a JSON string.
        members = (rpc_id, codec.encode_value(method), params or b"{}")
        request = b'{"jsonrpc":"2.0","id":%b,"method":%b,"params":%b}' % members
        answer: asyncio.Future[codec.Response] = asyncio.get_running_loop().create_future()
        self._pending[id] = _PendingRequest(to, rpc_id, answer)
        try:
            async with asyncio.timeout(timeout_s):
                await self._publish(MCP, request, to=(to,), answers=answers, id=id)
                return read_answer(to, await answer)
        except TimeoutError:
            self._cancel(to, rpc_id)
            raise model.NoAnswer(f"{to} did not answer {method} within {timeout_s:g} s") from None
        except (asyncio.CancelledError, model.NoAnswer):
            self._cancel(to, rpc_id)  # a peer that returns later must not perform a request without a listener
            raise
        finally:
            del self._pending[id]

    def _cancel(self, to: str, rpc_id: bytes) -> None:
        """Notify a participant that this one no longer waits for its reply."""
        params = codec.encode_value({"requestId": msgspec.Raw(rpc_id), "reason": "nobody waits for it"})
        self._send_unwatched(codec.encode_notification(methods.CANCELLED.encode(), params), (to,), None)

    async def _meet(self, peer: str, timeout_s: float) -> None:
        """Perform the MCP handshake with a peer, once for as long as the peer is present (X-1-2)."""

        async def greet() -> None:
            params = {"protocolVersion": methods.LATEST_LEGACY, "capabilities": {}, "clientInfo": self._offer.info}
            try:
                await self._request(peer, methods.INITIALIZE, codec.encode_value(params), timeout_s)
            except model.CallFailed as failed:
                log.info("%s answers initialize with %s; it is asked anyway", peer, failed)
            await self._publish(MCP, codec.encode_notification(methods.INITIALIZED.encode(), b""), to=(peer,))

        if peer not in self._meetings:
            greeting = asyncio.get_running_loop().create_task(greet(), name=f"meet {peer}")
            # Whoever awaits the task gets its exception; asyncio need not log it.
            greeting.add_done_callback(lambda task: None if task.cancelled() else task.exception())
            self._meetings[peer] = greeting
        meeting = self._meetings[peer]
        try:
            await asyncio.shield(meeting)
        except model.RoomError:
            if self._meetings.get(peer) is meeting:
                del self._meetings[peer]
            raise

    # Hearing

    def _on_welcome(self, payload: dict[str, Any]) -> None:
        """Store the id and the privilege of this participant, and who is present. The gateway sends a welcome after
        each connect.
        """
        own = msgspec.convert(payload["participant"], model.Peer)
        self.id, self.privilege = own.id, own.privilege
        self._peers = {peer.id: peer for peer in msgspec.convert(payload["participants"], list[model.Peer])}
        self._forget_absent()

    def _on_stored(self, envelope: Envelope, sequence: int, *, is_old: bool) -> None:
        """Handle an envelope that a participant has published. `is_old` means that this participant was not connected
        at that time.
        """
        try:
            if envelope.kind == PROPOSAL:  # X-3.1-7
                self._followed.on_proposal(envelope)
            elif envelope.kind == MCP:
                self._on_mcp(envelope, codec.decode_untrusted(envelope.payload), is_old)
        except (codec.CodecError, msgspec.DecodeError, UnicodeDecodeError):
            log.info("%s sent %s that cannot be read", envelope.sender, envelope.kind)
        self._pass_on(model.Heard(envelope=envelope, sequence=sequence, is_old=is_old))

    def _on_mcp(
        self, envelope: Envelope, message: codec.Request | codec.Notification | codec.Response, is_old: bool
    ) -> None:
        """Handle an MCP message from the room. Requests that were missed wait until all missed envelopes are read,
        because some may already have a reply.
        """
        is_ours = self.id in (envelope.to or ()) and envelope.sender != self.id
        match message:
            case codec.Response():
                self._on_answer(envelope, message)
            case codec.Request():
                self._followed.on_request(envelope)
                if is_ours and is_old:
                    self._missed.append((envelope, message))
                elif is_ours:
                    self._serve_request(envelope, message)
            case codec.Notification():
                if is_ours:
                    cancelled = (envelope.sender, cancelled_request(message))
                    self._missed = [entry for entry in self._missed if (entry[0].sender, entry[1].id) != cancelled]
                    self._service.hear(envelope, message)

    def _on_answer(self, envelope: Envelope, response: codec.Response) -> None:
        """Pass a reply to the request that it answers. `correlation_id` names the request, and the JSON-RPC ids must be
        equal too (X-4.1-4).
        """
        self._followed.on_answer(envelope, response)
        request = self._pending.get(envelope.correlation_id or "")
        if request is not None and (envelope.sender, response.id) == (request.to, request.rpc_id):  # X-4.1-4
            if not request.answer.done():
                request.answer.set_result(response)
        else:
            self._missed = [missed for missed in self._missed if missed[0].id != envelope.correlation_id]

    def _serve_request(self, envelope: Envelope, request: codec.Request) -> None:
        """Serve a request for a tool of this participant. Ignore it if this participant is restricted and the room does
        not let it answer.
        """
        if self.privilege != "full" and not self._answers_while_restricted:
            log.info("%s asks for %s; a restricted participant cannot answer", envelope.sender, request.method)
            return
        self._service.serve(envelope, request)

    def _on_caught_up(self, away_s: float | None) -> None:
        """Serve the requests that were missed while the connection was lost for `away_s` seconds. Drop them if the
        connection was lost for too long. On the first connection `away_s` is None, and they are dropped too.
        """
        missed, self._missed = self._missed, []
        if away_s is None or away_s > MISSED_S:
            return  # the callers no longer wait (X-4.4.1-6)
        for envelope, request in missed:
            self._serve_request(envelope, request)

    def _on_event(self, envelope: Envelope, *, is_old: bool = False) -> None:
        """Handle a message of the gateway, for example about who is present or how a proposal ended."""
        payload = codec.decode_value(envelope.payload)
        event = payload.get("event")
        if envelope.kind == PRESENCE:
            peer = msgspec.convert(payload["participant"], model.Peer)
            if event == "leave":
                self._peers.pop(peer.id, None)
                self._forget_absent()
            else:
                self._peers[peer.id] = peer
        elif event == "privilege_changed":
            peer = msgspec.convert(payload["participant"], model.Peer)
            if peer.id == self.id:
                self.privilege = peer.privilege
            elif peer.id in self._peers:
                self._peers[peer.id] = msgspec.structs.replace(self._peers[peer.id], privilege=peer.privilege)
        elif event in ("recipient_absent", "recipient_cannot_answer"):
            if (pending := self._pending.get(envelope.correlation_id or "")) is not None:
                why = "is not in the room" if event == "recipient_absent" else "is restricted and cannot answer"
                fail(pending.answer, model.NoAnswer(f"{pending.to} {why}"))
        else:
            self._followed.on_event(envelope, payload)
        self._pass_on(model.Heard(envelope=envelope, is_old=is_old))

    def _forget_absent(self) -> None:
        for gone in [peer for peer in self._meetings if peer not in self._peers and self._meetings[peer].done()]:
            del self._meetings[gone]

    def _pass_on(self, heard: model.Heard) -> None:
        for listener in self._listeners:
            listener.put(heard)


class _Proposals(msgspec.Struct):
    """The gateway's response that lists proposals."""

    proposals: list[ListedProposal]


def _tool_call(tool: str, arguments: Mapping[str, Any] | None) -> dict[str, Any]:
    return {"name": tool, "arguments": dict(arguments or {})}


def _check_recipient(peer: str) -> None:
    if not isinstance(peer, str) or not peer:
        raise model.RoomInvalid("a request goes to one participant (one_recipient)")


def read_answer(sender: str, response: codec.Response) -> model.Answer:
    """Return the result of a response. Raise CallFailed if the response is an error."""
    if response.error:
        error = codec.decode_value(response.error)
        members: dict[str, Any] = error if isinstance(error, dict) else {}
        code = members.get("code")
        code = code if isinstance(code, int) else 0
        raise model.CallFailed(code, str(members.get("message", "")), members.get("data"))
    return model.Answer(sender=sender, raw=bytes(response.result))


def _log_refused(taken: "asyncio.Future[None]") -> None:
    if not taken.cancelled() and (why := taken.exception()) is not None:
        log.warning("the gateway did not publish a message: %s", why)
