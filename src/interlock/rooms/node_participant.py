"""The participant `interlock`: tools of this node for the full participants of a room (X-N-5, X-1-2).

It answers `mcp` requests that name it: `initialize`, `tools/list` and `tools/call`, with the tools that
`interlock_tools` lists and no others. A call goes through the dispatcher as the principal behind the participant, hence
through guard, gate, budgets and audit. Tools of rooms are never offered: one room does not lead into another.

A request is answered by the replica at which it was sent; the others see an empty `principal` in the delivery and leave
it. The reply is published like any envelope. If it is larger than an envelope may be, a refusal is published in its
place, so that the requester does not wait in vain.

Callers are told apart by participant and principal. A `Caller` carries the calls under way, so that a cancellation
finds its call, and a second request with the same id is refused.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Final

from msgspec import Raw

from interlock.catalog.catalog import place_of
from interlock.catalog.routes import Route
from interlock.core.calls.caller import Caller, ClientRequest, Principal, ViewKey
from interlock.core.calls.check import NOT_FOUND
from interlock.dispatch.dispatch import Dispatch
from interlock.links.connected_link import OUR_INFO
from interlock.mcp import methods
from interlock.mcp.items import decode_cursor_untrusted, encode_cursor
from interlock.rooms.protocol.envelope import MCP, Envelope, EnvelopeRefusal
from interlock.rooms.protocol.participants import OWN, Participant, Privilege
from interlock.rooms.room import Connected, Room
from interlock.rooms.rooms import RoomRegistry
from interlock.rooms.timeline import Delivery
from interlock.wire.jsonrpc import codec
from interlock.wire.jsonrpc.oversized import result_too_large
from interlock.wire.refusal import INVALID_PARAMS, INVALID_REQUEST, METHOD_NOT_FOUND, Refusal

log = logging.getLogger("interlock.rooms")

CALLERS_MAX: Final = 1000  # remembered callers, idle ones included
NODE: Final = Participant(
    id=OWN, privilege=Privilege.FULL, name=OUR_INFO["title"], kind="robot", mcp_version=methods.LATEST_LEGACY
)
_PROGRESS: Final = b'"method":"%b"' % methods.PROGRESS.encode()


class NodeParticipant(Connected):
    """The participant `interlock`, as which the node itself takes part in one room."""

    def __init__(self, room: Room, node: "NodeParticipants") -> None:
        self.id = room.stamp().id
        self._room = room
        self._node = node
        self._callers: dict[tuple[str, str], Caller] = {}

    def close(self, code: int, reason: str) -> None:
        self._room.leave(self, OWN)

    def deliver(self, delivery: Delivery) -> None:
        """Handle an envelope if it is a request or a cancellation addressed to the node."""
        envelope = delivery.envelope
        if not delivery.principal:
            return  # the replica at which it was published answers it
        if not delivery.sequence or envelope.kind != MCP or OWN not in (envelope.to or ()) or envelope.sender == OWN:
            return
        try:
            message = codec.decode_untrusted(envelope.payload)
        except codec.CodecError:
            return  # whom to answer, and under which id, cannot be told
        if isinstance(message, codec.Request):
            self._on_request(message, envelope, delivery.principal)
        elif isinstance(message, codec.Notification) and message.method == methods.CANCELLED:
            caller = self._callers.get((envelope.sender or "", delivery.principal))
            params = codec.decode_object(message.params) or {}
            call = (caller.calls or {}).get(bytes(params.get("requestId", b""))) if caller is not None else None
            if call is not None:
                call.cancel(codec.find_string(params.get("reason")) or "cancelled by the participant")

    def _on_request(self, request: codec.Request, envelope: Envelope, principal: str) -> None:
        """Answer an MCP request, or start the tool call that it asks for."""
        # The reply goes to the requester, and for a fulfilment also to the proposer (X-4.2.1-4).
        sender = envelope.sender or ""
        proposal = self._node.rooms.proposals.index.find(self._room.topic, envelope.correlation_id or "")
        proposer = None if proposal is None else proposal.agent
        to = (sender,) if proposer is None or proposer == sender else (sender, proposer)
        sink = _RoomReply(self._room, envelope, to)
        params = codec.decode_object(request.params) if request.params else {}
        if params is None:
            sink.refusal(request.id, Refusal(INVALID_PARAMS, "params must be an object"))
        elif request.method == methods.TOOLS_CALL:
            self._call(request.id, params, sink, self._caller(sender, principal))
        elif request.method == methods.TOOLS_LIST:
            self._list(request.id, params, sink, self._caller(sender, principal))
        elif request.method == methods.INITIALIZE:
            version = methods.negotiate_legacy(codec.find_string(params.get("protocolVersion")) or "")
            result = {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": OUR_INFO}
            sink.answer(codec.encode_result(request.id, codec.encode_value(result)))
        elif request.method == methods.PING:
            sink.answer(codec.encode_result(request.id, b"{}"))
        else:
            sink.refusal(request.id, Refusal(METHOD_NOT_FOUND, "Method not found", {"method": request.method[:100]}))

    def _caller(self, sender: str, name: str) -> Caller:
        """Return the object that represents a participant as a caller in the dispatcher. Create a new one when the
        rights of its principal or the room's `interlock_tools` have changed.
        """
        principal, listed = self._node.find_principal(name), self._room.settings.interlock_tools
        key = ViewKey(scope=principal.scope, tools=listed, full=False)
        earlier = self._callers.get((sender, name))
        if earlier is not None and earlier.principal == principal and earlier.key == key:
            return earlier
        if len(self._callers) >= CALLERS_MAX:
            self._callers = {who: each for who, each in self._callers.items() if each.calls}
        caller = self._callers[sender, name] = Caller(principal, methods.Era.LEGACY, "rooms", key)
        caller.version = methods.LATEST_LEGACY
        caller.calls = {} if earlier is None else earlier.calls
        return caller

    def _call(self, id: bytes, params: dict[str, Any], sink: "_RoomReply", caller: Caller) -> None:
        """Start a tool call. If the call carries out an approved proposal, pass its approval to the gate, so that the
        gate does not hold the call again.
        """
        if caller.calls is not None and id in caller.calls:
            sink.refusal(id, Refusal(INVALID_REQUEST, "this id is in use by a request under way"))
            return
        meta = codec.decode_object(params["_meta"]) if "_meta" in params else {}
        if meta is None:
            sink.refusal(id, Refusal(INVALID_PARAMS, "params._meta must be an object"))
            return
        name = codec.find_string(params.get("name"))
        route = self._node.dispatch.view(caller.key).find_tool(name) if name is not None else None
        if route is not None and not _may_use(caller.principal, route):
            sink.refusal(id, NOT_FOUND)
            return
        released = self._node.rooms.proposals.find_released_approval(sink.request.id)
        request = ClientRequest(caller, id, methods.TOOLS_CALL, params, meta, sink)
        self._node.dispatch.call_tool(request, released_by=released)

    def _list(self, id: bytes, params: dict[str, Raw], sink: "_RoomReply", caller: Caller) -> None:
        """Answer tools/list with one page of tools, whose definitions take at most half the size of an envelope, and
        with a cursor if there are more tools.
        """
        try:
            after = decode_cursor_untrusted(codec.decode_string(params["cursor"])) if "cursor" in params else ""
        except codec.CodecError:
            after = None
        if after is None:
            sink.refusal(id, Refusal(INVALID_PARAMS, "this cursor is not one of ours; list again from the start"))
            return
        view, size, last, more = self._node.dispatch.view(caller.key), 0, "", b""
        page: list[bytes] = []
        most = self._room.settings.max_envelope_bytes // 2
        for route in view.tool_routes_after(after):
            if not _may_use(caller.principal, route):
                continue
            shown = view.show_tool(route, methods.Era.LEGACY)
            size += len(shown)
            if size > most and page:
                more = b',"nextCursor":%b' % codec.encode_value(encode_cursor(last))
                break
            last = place_of(route)
            page.append(shown)
        sink.answer(codec.encode_result(id, b'{"tools":[%b]%b}' % (b",".join(page), more)))


@dataclass(frozen=True, slots=True)
class _RoomReply:
    """The receiver of the dispatcher's answer to one request. It publishes the answer in the room."""

    room: Room
    request: Envelope
    to: tuple[str, ...]

    def emit(self, message: bytes) -> None:
        if _PROGRESS in message:  # everyone sees it: only what was asked for is said
            self._publish(message)

    def answer(self, message: bytes, status: int = 200) -> None:
        if self._publish(message) is None:
            return
        members = codec.decode_object(message) or {}
        self.refusal(bytes(members.get("id", b"null")), result_too_large(self.room.settings.max_envelope_bytes))

    def refusal(self, id: bytes, refusal: Refusal) -> None:
        self._publish(codec.encode_refusal(id, refusal, draft=True))

    def drop(self) -> None:
        """Do nothing, because a cancelled request gets no answer."""

    def _publish(self, message: bytes) -> EnvelopeRefusal | None:
        envelope = self.room.compose(MCP, OWN, self.to, message, self.request.id)
        if isinstance(envelope, EnvelopeRefusal):
            return envelope

        def settle(failure: EnvelopeRefusal | None) -> None:
            if failure is not None:
                log.warning("room %s: the answer to %s was lost: %s", self.room.topic, self.request.id, failure.message)

        return self.room.receive(envelope, NODE, OWN, settle, is_guarded=True)


def _may_use(principal: Principal, route: Route) -> bool:
    """Return whether the [[access]] rules let a principal use the tool of a route. Tools of participants are never
    allowed. Rules of `interlock_tools` were applied before.
    """
    if route.link.members is not None:
        return False
    return principal.tools == ("*",) or any(fnmatchcase(route.qualified, pattern) for pattern in principal.tools)


class NodeParticipants:
    """The participants named `interlock`, one in each room whose settings offer tools of this node."""

    def __init__(self, rooms: RoomRegistry, dispatch: Dispatch, find_principal: Callable[[str], Principal]) -> None:
        """Create the participants. `find_principal` returns the principal with this name, including its rights."""
        self.rooms = rooms
        self.dispatch = dispatch
        self.find_principal = find_principal
        self._by_room: dict[Room, NodeParticipant] = {}
        rooms.changed.subscribe(self._update_participants)

    async def open(self) -> None:
        self._update_participants(None)

    async def close(self) -> None:
        """Do nothing, because the rooms have already closed all connections."""

    def _update_participants(self, _: None) -> None:
        for room in list(self._by_room):
            if self.rooms.by_topic.get(room.topic) is not room or not room.settings.interlock_tools:
                self._by_room.pop(room).close(0, "")
        for room in self.rooms.by_topic.values():
            if room.settings.interlock_tools and room not in self._by_room:
                self._by_room[room] = NodeParticipant(room, self)
                room.join(self._by_room[room], NODE, OWN, "configuration")
