"""`Participant`: the class with which a program takes part in a room.

It has three layers. This class checks arguments and offers the verbs. `conversation` matches replies with requests and
follows proposals. `connection` keeps the WebSocket, and repeats after a loss what the gateway has not confirmed.

A restricted participant uses the same verbs: `call` proposes what it may not send, and waits for the reply to whoever
carries it out (X-4.2-1).
"""

import asyncio
import logging
import ssl
import sys
from collections.abc import Mapping
from typing import Any, Final, Literal, Self
from urllib.parse import urlsplit

import msgspec

from interlock.mcp.methods import TOOLS_CALL, TOOLS_CHANGED, TOOLS_LIST
from interlock.net.protocol.address_scope import is_loopback
from interlock.rooms.protocol.envelope import CHAT, ENVELOPE_BYTES_MAX, MCP
from interlock.rooms.protocol.participants import is_topic
from interlock.sdk.rooms.connection import RoomAddress, Ticket, get_json, post_json
from interlock.sdk.rooms.conversation import Conversation, ListedProposal, Listener, read_answer
from interlock.sdk.rooms.model import (
    Answer,
    EnvelopeRefused,
    NoAnswer,
    Peer,
    Proposal,
    RoomInvalid,
    RoomRefused,
    RoomUnreachable,
)
from interlock.sdk.subserver.mcp_server import ToolOffer
from interlock.sdk.subserver.tools import OfferedTools
from interlock.wire.jsonrpc.codec import decode_object, encode_notification, encode_value

log = logging.getLogger("interlock.rooms")

CALL_S: Final = 30.0
OUTCOME_S: Final = 600.0  # a person decides; the room's own limit is shorter where it says so
RETRY_S: Final = 2.0  # between tries to come in for the first time
GRACE_S: Final = 5.0  # for calls under way when the participant is asked to end
PAGES_MAX: Final = 100  # of a list of tools
SCHEMES: Final = {"http": "ws", "https": "wss", "ws": "ws", "wss": "wss"}


class Participant(OfferedTools):
    """A participant of a room, which is joined from `open` (or `async with`) until `close`. Programs that only offer
    tools can call `run` instead.
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
            raise RoomInvalid(f"{topic!r} is not the name of a room")
        if token is not None and (not token.isascii() or not token.isprintable()):
            raise RoomInvalid("a token is printable ASCII; was a line break copied along?")
        self.topic = topic
        self._place = RoomAddress(
            address=_check_address(address, secure_by),
            topic=topic,
            token=token,
            ticket=ticket,
            tls=tls,
            name=name,
            kind=kind,
        )
        super().__init__()
        self._offer = ToolOffer(
            name=name or "participant",
            version=version,
            instructions=instructions,
            max_bytes=ENVELOPE_BYTES_MAX,
            tools=self._tools,
        )
        self._conversation = Conversation(
            self._place, self._offer, history=history, after=after, answers_while_restricted=restricted_replies
        )
        self._keeping: asyncio.Task[None] | None = None

    # Life

    async def open(self) -> None:
        """Join the room. Raise RoomUnreachable or RoomRefused if that fails. If the connection is lost later, it is
        restored in the background.
        """
        await self._conversation.connection.open()
        self._keeping = asyncio.get_running_loop().create_task(self._keep(), name=f"room {self.topic}")

    async def close(self) -> None:
        if self._keeping is None:
            return
        self._conversation.end(None)
        await self._conversation.connection.close()
        self._keeping.cancel()
        await asyncio.gather(self._keeping, return_exceptions=True)
        self._keeping = None

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def wait(self) -> None:
        """Wait until the room is lost permanently, then raise RoomRefused. Return if the participant closes."""
        if self._keeping is not None:
            await asyncio.shield(self._keeping)

    async def _keep(self) -> None:
        try:
            await self._conversation.connection.keep()
        except RoomRefused as refused:
            self._conversation.end(refused)
            raise

    def run(self) -> None:
        """Serve the tools until the process is asked to end. If the node is not running yet, wait for it."""
        try:
            asyncio.run(self._serve_until_signal(self.serve))
        except RoomRefused as refused:
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
                except RoomUnreachable as away:
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
    def id(self) -> str:
        """The id of this participant. Its credential determines the id."""
        return self._conversation.id

    @property
    def privilege(self) -> str:
        """Return the current privilege: `full` or `restricted`."""
        return self._conversation.privilege

    @property
    def position(self) -> int:
        """Return the sequence number of the last received envelope. A later run can pass it as `after`."""
        return self._conversation.connection.position or 0

    @property
    def is_connected(self) -> bool:
        return self._conversation.connection.is_open

    def who(self) -> list[Peer]:
        """Return the other participants that are present in the room."""
        return list(self._conversation.peers.values())

    def listen(self) -> Listener:
        """Return a listener that receives all envelopes from now on, or from the beginning if called before `open`.

        Read every listener or close it, because a full listener stops the connection from reading.
        """
        return self._conversation.listen()

    # Taking part

    async def say(
        self, text: str, *, to: tuple[str, ...] = (), markdown: bool = False, about: str | None = None
    ) -> str:
        """Publish a chat message and return its id. All participants can see it, even if `to` names recipients.

        Raise EnvelopeRefused if the gateway refuses the message, or NoAnswer if it does not respond. The methods
        below that publish an envelope raise these too.
        """
        payload = {"text": text, "format": "markdown"} if markdown else {"text": text}
        return await self._conversation.publish(CHAT, encode_value(payload), to=to, answers=about)

    async def notify(self, method: str, params: Mapping[str, Any] | None = None, *, to: tuple[str, ...] = ()) -> None:
        """Publish an MCP notification to the participants in `to`, or to everyone if `to` is empty."""
        written = b"" if params is None else encode_value(params)
        await self._conversation.publish(MCP, encode_notification(method.encode(), written), to=to)

    async def tools_changed(self) -> None:
        """Announce that the tools of this participant have changed."""
        await self.notify(TOOLS_CHANGED)

    async def tools(self, peer: str, *, timeout_s: float = CALL_S) -> list[dict[str, Any]]:
        """Return the definitions of the tools that another participant offers."""
        tools: list[dict[str, Any]] = []
        params: dict[str, Any] = {}
        for _ in range(PAGES_MAX):
            page = (await self.request(peer, TOOLS_LIST, params, timeout_s=timeout_s)).result
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
    ) -> Answer:
        """Call a tool of another participant.

        If this participant is restricted, the call is published as a proposal with `reason`, and the result is the
        reply to whoever fulfils it (X-4.2-1). Raise CallFailed if the peer replies with an error, or ProposalEnded if
        the proposal ends without a reply.
        """
        if self.privilege != "full":  # X-4.2-1
            id = await self.propose(peer, tool, arguments, reason=reason)
            return await (self.outcome(id) if timeout_s is None else self.outcome(id, timeout_s=timeout_s))
        return await self.request(peer, TOOLS_CALL, _tool_call(tool, arguments), timeout_s=timeout_s or CALL_S)

    async def request(
        self, peer: str, method: str, params: Mapping[str, Any] | None = None, *, timeout_s: float = CALL_S
    ) -> Answer:
        """Send an MCP request with any method to one participant (X-4.1-3)."""
        _check_recipient(peer)
        return await self._conversation.request(peer, method, encode_value(params or {}), timeout_s)

    # Proposals

    @property
    def proposals(self) -> list[Proposal]:
        """Return the pending proposals that this participant knows, in the order in which it learned of them."""
        return self._conversation.proposals.pending()

    async def read_proposals(self) -> list[Proposal]:
        """Fetch the pending proposals from the gateway, with their expiry. They include proposals from before this
        participant joined.
        """
        answer = await get_json(self._place, "proposals", answer=_Proposals)
        self._conversation.proposals.on_listed(answer.proposals)
        return self.proposals

    async def propose(
        self, peer: str, tool: str, arguments: Mapping[str, Any] | None = None, *, reason: str | None = None
    ) -> str:
        """Propose a tool call and return the proposal's id. Everyone in the room can see the arguments."""
        _check_recipient(peer)
        payload: dict[str, Any] = {"method": TOOLS_CALL, "params": _tool_call(tool, arguments)}
        if reason is not None:
            payload["reason"] = reason
        return await self._conversation.propose(encode_value(payload), peer)

    async def outcome(self, proposal: str, *, timeout_s: float = OUTCOME_S) -> Answer:
        """Wait for the reply to a proposal of this participant. Raise ProposalEnded if it ends without one, CallFailed
        if the reply is an error, or NoAnswer after `timeout_s`.
        """
        try:
            async with asyncio.timeout(timeout_s):
                return read_answer(*await asyncio.shield(self._conversation.proposals.outcome(proposal)))
        except TimeoutError:
            raise NoAnswer(f"the proposal was not answered within {timeout_s:g} s") from None

    async def fulfil(
        self,
        proposal: str,
        *,
        peer: str | None = None,
        arguments: Mapping[str, Any] | None = None,
        timeout_s: float = CALL_S,
    ) -> Answer:
        """Send the request that another participant proposed, in the name of this participant. This requires full
        privilege (MCPx 4.2.1).

        A proposal is performed only once: if another participant decides first, raise EnvelopeRefused with
        already_claimed. This cannot be ensured if `peer` or `arguments` is given, or if the room does not track
        proposals; then the request is sent without asking. `peer` is required if the proposal does not name exactly one
        participant. `arguments` replace those of a proposed tool. Raise RoomInvalid if the proposal is unknown.
        """
        entry = self._conversation.proposals.find(proposal)
        if entry is None:
            raise RoomInvalid(f"no proposal {proposal} was heard here")
        target = peer or entry.target
        if target is None:
            raise RoomInvalid("the proposal names no single participant; say which with peer=")
        if arguments is None and peer is None:
            self._conversation.proposals.outcome(proposal)  # before deciding, so that no answer is missed
            try:
                await post_json(self._place, "proposals", proposal, "fulfil", body={})
            except EnvelopeRefused as refused:
                # A gateway that tracks no proposals does not know it; then it is fulfilled by a plain request.
                if refused.code != "unknown_proposal":
                    raise
            else:
                return await self.outcome(proposal, timeout_s=timeout_s)
        params = entry.params
        if arguments is not None:
            params = encode_value({**(decode_object(params) or {}), "arguments": arguments})
        return await self._conversation.request(target, entry.method, params, timeout_s, answers=entry.id)

    async def reject(self, proposal: str, *, reason: str | None = None) -> None:
        """Reject a proposal. This requires full privilege."""
        body = {} if reason is None else {"reason": reason}
        await post_json(self._place, "proposals", proposal, "reject", body=body)

    async def withdraw(self, proposal: str) -> None:
        """Withdraw a proposal of this participant."""
        await post_json(self._place, "proposals", proposal, "withdraw", body={})


class _Proposals(msgspec.Struct):
    """The gateway's response that lists proposals."""

    proposals: list[ListedProposal]


def _tool_call(tool: str, arguments: Mapping[str, Any] | None) -> dict[str, Any]:
    return {"name": tool, "arguments": dict(arguments or {})}


def _check_recipient(peer: str) -> None:
    if not isinstance(peer, str) or not peer:
        raise RoomInvalid("a request goes to one participant (one_recipient)")


def _check_address(address: str, secure_by: str | None) -> str:
    """Return the address of a node without its path. Raise RoomInvalid if it is not an address or not secure."""
    parts = urlsplit(address)
    if parts.scheme not in SCHEMES or not parts.hostname or parts.path.rstrip("/") or parts.query:
        raise RoomInvalid("an address is that of a node, such as ws://127.0.0.1:7411")
    if parts.username is not None or parts.password is not None:
        raise RoomInvalid("a credential does not belong into the address; give token=")
    scheme = SCHEMES[parts.scheme]
    if scheme == "ws" and not is_loopback(parts.hostname) and not secure_by:
        raise RoomInvalid(
            f"{parts.netloc} is not on this host and the connection not encrypted; use wss://,"
            ' or secure_by="REASON" where the network itself is safe'
        )
    return f"{scheme}://{parts.netloc}"
