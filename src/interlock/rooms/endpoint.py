"""The endpoint for participants of rooms: WS /v0/ws, and the paths below /v0 for those without a WebSocket (MCPx 5.2).

Theory of operation. This is an ASGI application. Every request passes three steps before anything is accepted. First
the head is inspected as at any endpoint of the node (host, origin). Then the caller is verified: by a ticket, by a
token for one room, as a client by its token or certificate, or as a local program without a credential. Then `_join`
finds the room and the privilege of the caller in it. Only then is a WebSocket accepted or a request answered.

Time passes between these steps and the moment when a connection joins: a body is read, a WebSocket is accepted, history
is waited for. So what could have changed meanwhile is checked again at the end: the privilege, a removal, and whether
the room still exists (X-5.1-5, X-5.1-6).

A browser cannot send a token with a WebSocket. It fetches a ticket with its token, which is good for one connection to
one room from the same origin (X-5.2-3).

Refusals are values (`HttpRefusal`, `EnvelopeRefusal`); `_turn_away` answers them and notes those that concern access.
"""

import contextlib
import re
import secrets
from collections.abc import Callable, Coroutine, Iterable, MutableMapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal
from urllib.parse import parse_qs, unquote
from weakref import WeakKeyDictionary

import msgspec
from msgspec import Raw

from interlock.access.tokens import TokenRegistry
from interlock.approvals.protocol.approval import Approval
from interlock.approvals.trust.registrant import ClientCertificate
from interlock.config.plan import Plan
from interlock.core.clock import Clock, rfc3339, rfc3339_ms
from interlock.core.recorder import RefusalPlace, Refusals
from interlock.fronts.connections import TrustedProxies, address_of, find_client_certificate, source_of
from interlock.fronts.exchange import Head, HeadInspector
from interlock.fronts.http_protocol import UPGRADED
from interlock.fronts.public import PROXY_HEADERS
from interlock.net.protocol.address_scope import is_loopback
from interlock.rooms.connections import Admission, ConnectionOptions, ParticipantConnection
from interlock.rooms.protocol import envelope as envelopes
from interlock.rooms.protocol import participants
from interlock.rooms.protocol.envelope import PROTOCOLS, V0, V01, EnvelopeRefusal
from interlock.rooms.protocol.participants import Participant, Privilege, participant_of
from interlock.rooms.protocol.proposals import STATUS, read_reason
from interlock.rooms.room import REMOVED, Room
from interlock.rooms.rooms import CREDENTIAL_ENDED, CREDENTIAL_WHY, REMOVED_HINT, REMOVED_WHY, SHUTDOWN, RoomRegistry
from interlock.rooms.timeline import StoredEnvelope, limit_bytes
from interlock.store.ports import StoreError
from interlock.wire.refusal import HttpRefusal

if TYPE_CHECKING:
    from interlock.access.oauth import AccessTokens
    from interlock.approvals.trust.client_certificates import Certificates


PREFIX: Final = "/v0/"
TICKET_S: Final = 30.0
TICKETS_MAX: Final = 1000
TICKETS_EACH_MAX: Final = 50  # of one principal: it leaves room for others
HISTORY_ANSWER_BYTES: Final = 8 * 1024 * 1024
SWEEP_S: Final = 5.0
WAIT_MAX_S: Final = 25.0
TICKET_BYTES: Final = 4096
DECISION_BYTES: Final = 16 * 1024

Scope = MutableMapping[str, Any]
Receive = Callable[[], Coroutine[Any, Any, MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Coroutine[Any, Any, None]]
Json = dict[str, Any]
Readable = Literal["participants", "history", "rate-limit", "proposals"]


class RoomCaller(msgspec.Struct, frozen=True, kw_only=True):
    """The verified sender of a request about rooms. It has a token for one room, or is a client of the node, or is a
    local program without a credential.
    """

    principal: str
    topic: str | None = None  # the one its token is for
    participant: str | None = None
    privilege: Privilege | None = None
    protocol: str | None = None
    certificate: ClientCertificate | None = None  # by which it came


class SocketTicket(msgspec.Struct, frozen=True):
    """A ticket for one WebSocket. It names the caller, its credential, the room, the origin and the expiry."""

    caller: RoomCaller
    credential: bytes | None
    topic: str
    origin: bytes | None
    ends: float


@dataclass(eq=False)
class RoomsEndpoint:
    """The web application that serves rooms below the path /v0. It stores only unused tickets and the certificates of
    connections; everything else belongs to the rooms.
    """

    _plan: Plan
    _tokens: TokenRegistry
    _rooms: RoomRegistry
    _refusals: Refusals
    _bearers: "AccessTokens | None"
    _clock: Clock
    _certificates: "Certificates | None" = None
    _by_certificate: WeakKeyDictionary[ParticipantConnection, ClientCertificate] = field(
        default_factory=WeakKeyDictionary
    )
    _tickets: dict[str, SocketTicket] = field(default_factory=dict)
    _swept: float = 0.0

    def __post_init__(self) -> None:
        self._proxies = TrustedProxies(self._plan.node.trusted_proxies)
        self._inspector = HeadInspector(self._plan)

    def replan(self, plan: Plan) -> None:
        self._plan = plan
        self._inspector = HeadInspector(plan)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_socket = scope["type"] == "websocket"
        query = {name: values[-1] for name, values in parse_qs(scope["query_string"].decode("latin-1")).items()}
        caller = await self._admit(scope, query)
        if is_socket:
            await receive()  # websocket.connect
        if isinstance(caller, HttpRefusal):
            await self._turn_away(scope, send, caller)
        elif is_socket:
            await self._socket(scope, send, caller, query)
        else:
            await self._http(scope, receive, send, caller, query)

    def sweep(self, now: float) -> None:
        """Close the connections whose credential is no longer valid. Do nothing if the last check was less than SWEEP_S
        before the time `now`.
        """
        if now - self._swept >= SWEEP_S:
            self._swept = now
            self._rooms.dismiss(lambda name: self._tokens.stands(name) and not self._tokens.has_lapsed(name))
            for connection, certificate in list(self._by_certificate.items()):
                if self._certificates is None or not self._certificates.stands(certificate):
                    connection.close(CREDENTIAL_ENDED, CREDENTIAL_WHY)

    # Who asks

    async def _admit(self, scope: Scope, query: dict[str, str]) -> RoomCaller | HttpRefusal:
        """Verify who sent a request. Return the caller, or the refusal to answer with. A token for one room also
        determines the privilege of the caller.
        """
        head = Head(scope.get("method", "GET").encode(), scope["path"].encode(), list(scope["headers"]), False, True)
        if (stranger := self._inspector.stranger(head)) is not None:
            return stranger
        peer = address_of(scope["client"][0] if scope.get("client") else None)
        if "ticket" in query and scope["type"] == "websocket":
            # A ticket is redeemed once, in time, for one topic and one origin (X-5.2-3).
            issued = self._tickets.pop(query["ticket"], None)
            if issued is None or issued.ends < self._clock.now():
                return _BAD_TICKET
            if (issued.topic, issued.origin) != (query.get("topic"), head.headers.get(b"origin")):
                return _BAD_TICKET
            return await self._redeem(issued, source_of(peer))
        credential = head.credential
        if credential is None:
            shown = find_client_certificate(self._certificates, self._proxies, scope, head)
            name = shown.principal if isinstance(shown, ClientCertificate) else None
            if isinstance(shown, ClientCertificate) and name is not None and self._rooms.is_listed(name):  # X-5.1-2
                return RoomCaller(principal=name, certificate=shown)
            local = peer is not None and is_loopback(peer) and PROXY_HEADERS.isdisjoint(head.headers)
            return RoomCaller(principal="local") if local and self._plan.auth.anonymous != "never" else _UNAUTHORISED
        return await self._identify(credential, source_of(peer))

    async def _redeem(self, issued: SocketTicket, source: str) -> RoomCaller | HttpRefusal:
        """Return the caller of a ticket, if the credential with which it was fetched is still valid (X-5.2-3)."""
        if issued.credential is not None:
            caller = await self._identify(issued.credential, source)
            return caller if isinstance(caller, RoomCaller) else _BAD_TICKET
        certificate = issued.caller.certificate
        if certificate is not None and not (self._certificates and self._certificates.stands(certificate)):
            return _BAD_TICKET
        return issued.caller

    async def _identify(self, credential: bytes, source: str) -> RoomCaller | HttpRefusal:
        """Return the caller that an Authorization header identifies, or a refusal. `source` is where the request came
        from.
        """
        record = self._tokens.room(credential)
        if record is not None and record.room is not None:
            return RoomCaller(
                principal=f"room:{record.name}",
                topic=record.room.topic,
                participant=record.room.participant,
                privilege=None if record.room.privilege is None else Privilege(record.room.privilege),
                protocol=record.room.protocol,
            )
        if (client := self._tokens.principal(credential)) is not None:
            return RoomCaller(principal=client.name)
        if self._bearers is None:
            return _UNKNOWN_TOKEN
        vouched = await self._bearers.admit(credential, source)
        return vouched if isinstance(vouched, HttpRefusal) else RoomCaller(principal=vouched.name)

    async def _join(self, caller: RoomCaller, topic: str | None) -> Admission | HttpRefusal:
        """Find the room of a topic, and determine who the caller is there and which privilege it has now (X-5.1-4)."""
        if not topic:
            return HttpRefusal("topic_required", "say which room: ?topic=NAME")  # X-5.2-1
        if caller.topic is not None and caller.topic != topic:
            return HttpRefusal("wrong_topic", "this token is for another room")
        room = await self._rooms.find_or_create_room(topic, caller.principal) if participants.is_topic(topic) else None
        if room is None:
            return _UNKNOWN_TOPIC
        if caller.topic is None and not self._rooms.is_member(room, caller.principal):
            return HttpRefusal("wrong_topic", "this room does not have you among its members")
        id = caller.participant or participant_of(caller.principal)
        if self._rooms.find_removal(room, id) is not None:
            return _REMOVED
        settled = self._rooms.determine_privilege(room, id, caller.principal, caller.privilege)
        try:
            readable_after = await self._rooms.readable_after(room, id, caller.principal)
        except StoreError:
            return HttpRefusal("unavailable", "the room cannot be read at the moment")
        who = Participant(id=id, privilege=settled.privilege)
        return Admission(room, who, caller.principal, settled.origin, readable_after, settled.is_observed)

    # WebSocket

    async def _socket(self, scope: Scope, send: Send, caller: RoomCaller, query: dict[str, str]) -> None:
        """Accept a WebSocket and serve it until it is closed."""
        joined = await self._join(caller, query.get("topic"))
        if self._rooms.is_stopping:
            joined = HttpRefusal("unavailable", "the node stops")
        if isinstance(joined, Admission):
            joined = _apply_options(joined, query, caller.protocol)
        if isinstance(joined, HttpRefusal):
            await self._turn_away(scope, send, joined, caller, query.get("topic"))
            return
        room, id = joined.room, joined.who.id
        with room.reserve(id):
            await send({"type": "websocket.accept", "headers": []})
            # The privilege is determined again: an admin may have changed it since the request. From here on nothing
            # is awaited, so that what is checked still holds when the connection joins.
            settled = self._rooms.determine_privilege(room, id, joined.principal, caller.privilege)
            privilege = settled.privilege
            if (joined.options.protocol or room.settings.undeclared_protocol) == V0:
                privilege = room.settings.find_v0_privilege(settled.origin) or privilege
            who = msgspec.structs.replace(joined.who, privilege=privilege)
            joined = msgspec.structs.replace(joined, who=who, source=settled.origin, is_observed=settled.is_observed)
            connection = ParticipantConnection(joined, self._clock)
            pipe = scope["extensions"][UPGRADED].room_pipe(connection, connection.on_binary)
            is_attached = pipe.attach()
            if is_attached:
                if caller.certificate is not None:
                    self._by_certificate[connection] = caller.certificate
                connection.begin(pipe)
                if self._rooms.by_topic.get(room.topic) is not room or self._rooms.is_stopping:
                    connection.close(SHUTDOWN, "the room is closed")
                elif self._rooms.find_removal(room, id) is not None:
                    connection.close(REMOVED, REMOVED_WHY)
        if is_attached:
            await pipe.run()

    # HTTP

    async def _http(
        self, scope: Scope, receive: Receive, send: Send, caller: RoomCaller, query: dict[str, str]
    ) -> None:
        """Answer an HTTP request according to its method and path."""
        parts = [unquote(part) for part in scope["raw_path"].decode("latin-1").partition("?")[0].split("/")[2:]]
        named = parts[1] if len(parts) > 1 else None  # the topic that the request is about
        status = 200
        sender: RoomCaller | None = caller
        match (scope["method"], *parts):
            case ("GET", "topics"):
                every = self._rooms.by_topic.items()
                if caller.topic is not None:
                    topics = [id for id, _ in every if id == caller.topic]
                else:
                    topics = [id for id, room in every if self._rooms.may_join(room, caller.principal)]
                answer: Json | HttpRefusal | EnvelopeRefusal = {"topics": topics}
            case ("POST", "ws-ticket"):
                body, _ = await _read(receive, TICKET_BYTES)
                named = None
                with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError):
                    named = msgspec.json.decode(body, type=_TicketRequest).topic
                answer = await self._issue_ticket(scope, named, caller)
            case ("POST", "topics", topic, "messages"):
                answer, sender = await self._post(scope, receive, caller, topic)
                status = 202
            case ("GET", "topics", topic, ("participants" | "history" | "rate-limit" | "proposals") as what):
                answer = await self._read_room(caller, topic, what, query)
            case ("POST", "topics", topic, "proposals", id, ("fulfil" | "reject" | "withdraw") as what):
                body, _ = await _read(receive, DECISION_BYTES)
                answer = await self._decide(caller, topic, id, what, body)
            case (_, "ws"):
                answer = HttpRefusal("upgrade_required", "open a WebSocket", headers=b"upgrade: websocket\r\n")
            case _:
                answer = HttpRefusal("not_found", "there is no such path; rooms are at /v0/topics")
        if isinstance(answer, HttpRefusal):
            await self._turn_away(scope, send, answer, sender, named)
        elif not isinstance(answer, EnvelopeRefusal):
            await _say(send, status, answer)
        elif answer.code == "privilege_violation":
            await _say(send, 403, {"jsonrpc": "2.0", "id": Raw(answer.answers), "error": envelopes.violation_error()})
        else:
            error = {"error": answer.code, "message": answer.message, "details": answer.details or {}}
            await _say(send, answer.http_status, error)

    async def _issue_ticket(self, scope: Scope, topic: str | None, caller: RoomCaller) -> Json | HttpRefusal:
        """Create a WebSocket ticket for a caller that may join the room now."""
        if topic is None:
            return HttpRefusal("topic_required", 'send {"topic": NAME}')
        joined = await self._join(caller, topic)
        if isinstance(joined, HttpRefusal):
            return joined
        now = self._clock.now()
        for old in [key for key, ticket in self._tickets.items() if ticket.ends < now]:
            del self._tickets[old]
        own = sum(ticket.caller.principal == caller.principal for ticket in self._tickets.values())
        if own >= TICKETS_EACH_MAX or len(self._tickets) >= TICKETS_MAX:
            return HttpRefusal("rate_limited", "too many tickets wait to be used", headers=b"retry-after: 30\r\n")
        ticket = secrets.token_urlsafe(32)
        headers = dict(scope["headers"])
        origin, credential = headers.get(b"origin"), headers.get(b"authorization")
        self._tickets[ticket] = SocketTicket(caller, credential, topic, origin, now + TICKET_S)
        return {"ticket": ticket, "expires_in": int(TICKET_S)}

    async def _read_room(
        self, caller: RoomCaller, topic: str, what: Readable, query: dict[str, str]
    ) -> Json | HttpRefusal:
        """Answer a read request for participants, history, the rate limit or proposals."""
        joined = await self._join(caller, topic)
        if isinstance(joined, HttpRefusal):
            return joined
        room = joined.room
        try:
            match what:
                case "participants":
                    return {"participants": [participant.described() for participant in room.present()]}
                case "rate-limit":
                    window, now = room.rate(joined.who.id), self._clock.now()
                    used, resets_at = window.used(now), rfc3339(self._clock.wall() + window.resets_in(now))
                    counts = {"messages": used["envelopes"], "chatMessages": used["chat"]}
                    return {**counts, "proposals": used["proposals"], "resetTime": resets_at}
                case "proposals":
                    limit = _parse_limit(query)
                    if isinstance(limit, HttpRefusal):
                        return limit
                    after, who = joined.readable_after, joined.who.id
                    return {"proposals": await self._rooms.proposals.list_readable(room, who, after, limit)}
                case "history":
                    history = await self._read_history(room, joined.readable_after, query)
                    # The request may have waited long, and an admin may have removed the participant meanwhile.
                    return history if self._rooms.find_removal(room, joined.who.id) is None else _REMOVED
        except StoreError:
            return HttpRefusal("unavailable", f"{what} cannot be read at the moment")

    async def _decide(
        self, caller: RoomCaller, topic: str, id: str, what: Literal["fulfil", "reject", "withdraw"], body: bytes
    ) -> Json | HttpRefusal | EnvelopeRefusal:
        """Fulfil, reject or withdraw a proposal for a participant without a WebSocket (X-N-6)."""
        joined = await self._join(caller, topic)
        if isinstance(joined, HttpRefusal):
            return joined
        if (refusal := joined.room.find_execution_refusal(joined.principal, id)) is not None:
            return refusal
        seat = joined.room.seats.get(joined.who.id)
        who, proposals = joined.who if seat is None else seat.participant, self._rooms.proposals
        decided: Approval | EnvelopeRefusal
        if what == "fulfil":  # X-4.2.1-5: at most once, also when another decides at the same moment
            decided = await proposals.fulfil(topic, id, who, joined.principal)
        elif what == "withdraw":
            decided = await proposals.withdraw(topic, id, who)
        else:
            decided = await proposals.reject(topic, id, who, joined.principal, read_reason(body))
        if isinstance(decided, EnvelopeRefusal):
            return decided
        return {"proposalId": id, "status": STATUS[decided.status].value}

    async def _read_history(self, room: Room, readable_after: int, query: dict[str, str]) -> Json | HttpRefusal:
        """Return envelopes of a room: those after the position `after`, oldest first; without it, those before `before`
        or the newest ones, newest first, as in v0.

        Raise StoreError if reading fails.
        """
        timeline = room.timeline
        if room.settings.history_visibility == "none":
            return HttpRefusal("history_hidden", "this room does not show its history")
        limit = _parse_limit(query)
        if isinstance(limit, HttpRefusal):
            return limit
        if (wait_s := _parse_number(query.get("wait_s", "0"), int(WAIT_MAX_S))) is None:
            return HttpRefusal("invalid_query", f"wait_s is a number from 0 to {WAIT_MAX_S:g}")
        after, before, upto = query.get("after"), query.get("before"), timeline.delivered
        if after is not None:
            position = timeline.find_position(after)
        elif before is None:
            position = upto + 1
        else:
            moment = envelopes.parse_moment(before)
            position = timeline.find_position(before) if moment is None else 1 + await timeline.count_before(moment)
        if position is None:
            return HttpRefusal("history_gap", "no envelope of that id or number is kept here")
        if after is None:
            upto = position - 1
            records = await timeline.read(max(readable_after, upto - limit), upto, limit)
            return {"history": _describe_records(reversed(records))}
        await timeline.wait_beyond(position, wait_s)
        records = await timeline.read(max(readable_after, position), timeline.delivered, limit)
        records = limit_bytes(records, HISTORY_ANSWER_BYTES)
        has_more = bool(records) and records[-1].sequence < timeline.delivered
        return {"history": _describe_records(records), "more": has_more}

    async def _post(
        self, scope: Scope, receive: Receive, caller: RoomCaller, topic: str
    ) -> tuple[Json | HttpRefusal | EnvelopeRefusal, RoomCaller | None]:
        """Publish the envelope in the body of a POST request. Return the answer and the sender. The sender is verified
        again after the body was read, and is None if that fails.
        """
        body, size = b"", 0
        joined = await self._join(caller, topic)
        if isinstance(joined, Admission):
            body, size = await _read(receive, joined.room.settings.max_envelope_bytes)
        # A body may take its time: what the sender may do is what it may do now.
        again = await self._admit(scope, {})
        if isinstance(again, HttpRefusal):
            return again, None
        joined = await self._join(again, topic)
        if isinstance(joined, HttpRefusal):
            return joined, again
        room = joined.room
        seat, most = room.seats.get(joined.who.id), room.settings.max_envelope_bytes
        if size > most:
            message = f"an envelope has at most {most} bytes"
            return EnvelopeRefusal("envelope_too_large", message, {"limit": most, "size": size}), again
        envelope = envelopes.decode_untrusted(body, most)
        if isinstance(envelope, EnvelopeRefusal):
            return envelope, again
        stamped = msgspec.structs.replace(envelope, ts=envelope.ts or rfc3339_ms(self._clock.wall()))
        who = joined.who if seat is None else seat.participant
        refusal = await room.publish(stamped, who, joined.principal, needs_protocol=False)
        return refusal or {"id": stamped.id, "status": "accepted", "ts": stamped.ts}, again

    async def _turn_away(
        self, scope: Scope, send: Send, refusal: HttpRefusal, caller: RoomCaller | None = None, topic: str | None = None
    ) -> None:
        """Answer a request with a refusal. Record the refusal if it concerns access."""
        if refusal.status in (401, 403, 421):
            method, more = str(scope.get("method", "GET"))[:20], dict[str, Any]()
            peer = scope["client"][0] if scope["client"] else None
            who = f"peer:{peer}" if caller is None else caller.principal
            # A name that is none is not written: callers have any number of them.
            if caller is not None and topic in self._rooms.by_topic:
                place = RefusalPlace(topic, caller.participant or participant_of(caller.principal))
                more = {"target": f"rooms.{topic}", "place": place}
            self._refusals.note(who, "rooms", method, refusal.code, **more)
        kind = "websocket.http.response" if scope["type"] == "websocket" else "http.response"
        body = {"error": refusal.code, "message": refusal.message, "details": {}}
        await _say(send, refusal.status, body, kind, refusal.headers)


class _TicketRequest(msgspec.Struct):
    topic: str


def _describe_records(records: Iterable[StoredEnvelope]) -> list[Json]:
    return [
        {"seq": record.sequence, "received_at": rfc3339_ms(record.received_at), "envelope": Raw(record.data)}
        for record in records
    ]


def _apply_options(joined: Admission, query: dict[str, str], token_protocol: str | None) -> Admission | HttpRefusal:
    """Return the admission with the options in the query of the URL, or a refusal if the room does not allow them."""
    room, who = joined.room, joined.who
    protocol = query.get("protocol", token_protocol)
    if protocol is not None and protocol not in PROTOCOLS:
        return HttpRefusal("unsupported_protocol", f"protocol is one of {', '.join(PROTOCOLS)}")
    if (history := _parse_number(query.get("history", "0"), envelopes.HISTORY_MAX)) is None:
        return HttpRefusal("invalid_query", f"history is a number up to {envelopes.HISTORY_MAX}")
    name, version, requested_kind = query.get("name"), query.get("mcp"), query.get("kind")
    if name is not None and not (1 <= len(name) <= 64 and name.isprintable()):
        return HttpRefusal("invalid_query", "name is 1 to 64 characters, none of them a control character")
    if version is not None and _VERSION.fullmatch(version) is None:
        return HttpRefusal("invalid_query", "mcp is a version of MCP, such as 2025-11-25")
    kind = next((each for each in participants.PARTICIPANT_KINDS if each == requested_kind), None)
    if requested_kind is not None and kind is None:
        return HttpRefusal("invalid_query", f"kind is one of {', '.join(participants.PARTICIPANT_KINDS)}")
    if not room.has_free_seat(who.id):
        return HttpRefusal("room_full", f"at most {room.settings.max_participants} participants")
    if room.replaces_too_often(who.id):
        return HttpRefusal("id_in_use", "connections of this participant replace each other; use one token each")
    if (protocol or room.settings.undeclared_protocol) == V0 and room.settings.v0_clients == "refuse":
        return HttpRefusal("protocol_required", f"this room takes clients of {V01} alone")
    options = ConnectionOptions(
        protocol=protocol,
        echo=query.get("echo") != "0",
        directed=query.get("deliver") == "directed",
        sequences=query.get("sequences") == "1",
        history=history,
        after=query.get("after"),
    )
    who = msgspec.structs.replace(who, name=name, kind=kind, mcp_version=version)
    return msgspec.structs.replace(joined, who=who, options=options)


def _parse_limit(query: dict[str, str]) -> int | HttpRefusal:
    limit = _parse_number(query.get("limit", str(envelopes.HISTORY_DEFAULT)), envelopes.HISTORY_MAX)
    return limit or HttpRefusal("invalid_query", f"limit is a number from 1 to {envelopes.HISTORY_MAX}")


def _parse_number(text: str, most: int) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 and int(text) <= most else None


async def _read(receive: Receive, most: int) -> tuple[bytes, int]:
    """Read a request body. Return the body and its size. A body of more than `most` bytes is returned as empty."""
    body, size = bytearray(), 0
    while True:
        message = await receive()
        part = message.get("body", b"")
        size += len(part)
        if size <= most:
            body += part
        if not message.get("more_body", False):
            return (bytes(body) if size <= most else b""), size


async def _say(send: Send, status: int, answer: Json, kind: str = "http.response", extra: bytes = b"") -> None:
    body = msgspec.json.encode(answer)
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    headers.append((b"cache-control", b"no-store"))
    headers += [(name, value) for name, _, value in (line.partition(b": ") for line in extra.splitlines())]
    await send({"type": f"{kind}.start", "status": status, "headers": headers})
    await send({"type": f"{kind}.body", "body": body})


_VERSION: Final = re.compile(r"\d{4}-\d\d-\d\d")
_UNAUTHORISED: Final = HttpRefusal(
    "unauthorised",
    "a token is needed; interlock access token --for room --name NAME --topic TOPIC --participant ID makes one",
    headers=b"www-authenticate: Bearer\r\n",
)
_UNKNOWN_TOKEN: Final = msgspec.structs.replace(  # which of them is not for its holder to know
    _UNAUTHORISED,
    message="this token is unknown, over or revoked; interlock access token --for room --name NAME --topic TOPIC"
    " --participant ID makes another",
)
_BAD_TICKET: Final = msgspec.structs.replace(
    _UNAUTHORISED,
    message=f"this ticket is unknown, used, older than {TICKET_S:g} s, for another room or origin, or its token ended;"
    " POST /v0/ws-ticket gives another",
)
_REMOVED: Final = HttpRefusal("removed", REMOVED_HINT)  # X-5.1-6
_UNKNOWN_TOPIC: Final = HttpRefusal(
    "unknown_topic", "there is no room of that topic; interlock rooms create TOPIC makes one"
)
