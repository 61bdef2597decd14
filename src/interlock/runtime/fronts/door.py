"""The public door: who may come in, and which desk serves them (rungs 1 and 2 of the guard's order).

Credential, Origin, Host and size first; then the envelope and the era; then the desk of that era. No credential of the
operator door opens this one.
"""

import asyncio
import logging
import secrets
from typing import Final, Protocol
from urllib.parse import parse_qs, unquote, urlsplit

import msgspec

from interlock.config.plan import NameForm, Plan
from interlock.protocol.jsonrpc.codec import decode_untrusted, encode_fault
from interlock.protocol.jsonrpc.errors import INVALID_REQUEST, UNAVAILABLE, CodecError, Fault
from interlock.protocol.jsonrpc.messages import Notification, Request, Response
from interlock.protocol.mcp.eras import LEGACY_VERSIONS, MODERN_VERSIONS
from interlock.protocol.mcp.ladder import H_VERSION, HTTP_STATUS, climb, unsupported
from interlock.protocol.mcp.methods import INITIALIZE
from interlock.protocol.mcp.sse import encode_event
from interlock.runtime.callers import Caller, Principal, principal_for
from interlock.runtime.calls import Call, internal
from interlock.runtime.fronts.exchange import Exchange, Head, Refusal
from interlock.runtime.fronts.http import McpProtocol
from interlock.runtime.fronts.legacy import LegacyDesk
from interlock.runtime.fronts.modern import ModernDesk
from interlock.runtime.fronts.sessions import Session

log = logging.getLogger("interlock.door")

REQUEST_S: Final = 30.0  # from a request's first byte to its last
STUCK_S: Final = 30.0  # how long a client may leave our bytes unread
IDLE_S: Final = 75.0
HEARTBEAT_S: Final = 15.0  # a comment on quiet streams, so that proxies keep them and the dead are found
SWEEP_S: Final = 1.0
WAITING_BYTES_MAX: Final = 64 * 1024 * 1024  # bodies of requests whose access token is being looked at

H_SESSION: Final = b"mcp-session-id"
_LEGACY_HEADERS: Final = frozenset(version.encode() for version in LEGACY_VERSIONS)
_MODERN_HEADERS: Final = frozenset(version.encode() for version in MODERN_VERSIONS)
_LOOPBACK_NAMES: Final = frozenset(("localhost", "127.0.0.1", "::1"))


class Tokens(Protocol):
    def principal(self, authorization: bytes) -> Principal | None: ...

    def stands(self, principal: str) -> bool:
        """Whether a principal that came in may still be here."""

    def lapsed(self, principal: str) -> bool:
        """Whether it must show a newer credential before it is told more."""


class Bearers(Protocol):
    """Access tokens of authorization servers, where there are any."""

    without: Refusal  # of a request without a credential
    in_url: Refusal

    async def admit(self, authorization: bytes) -> Principal | Refusal: ...

    def beyond(self, caller: Caller, request: Request) -> Refusal | None:
        """The refusal of a tool for which the caller needs a token with a wider scope."""


class Endpoint(msgspec.Struct, frozen=True):
    """What a URL asks for."""

    kind: str  # "mcp", "sse" or "messages"
    only: str | None = None
    names: NameForm = "auto"
    session: str | None = None


class Passport(msgspec.Struct, frozen=True):
    """What a request's head alone decides; made once per distinct head. Who it is from is asked every time."""

    endpoint: Endpoint | None
    modern: bool
    extra: bytes = b""  # header lines of the answer
    streams_only: bool = False
    at_once: Refusal | None = None  # whoever it is
    once_known: Refusal | None = None  # after the credential was looked at


class PublicDoor:
    def __init__(self, plan: Plan, tokens: Tokens, legacy: LegacyDesk, modern: ModernDesk) -> None:
        self._plan = plan
        self._tokens = tokens
        self._legacy = legacy
        self._modern = modern
        self.max_body_bytes = plan.limits.message_bytes
        self._anonymous = plan.auth.anonymous
        self._local = principal_for("local", None, plan.access)
        self._names: NameForm = plan.mcp.names
        self.known_heads: dict[bytes, tuple[Head, int]] = {}
        self._segments = frozenset(server.segment for server in plan.servers)
        self._own_hosts = _own_hosts(plan)
        self.protocols: set[McpProtocol] = set()
        self.sse_streams: dict[str, SseStream] = {}
        self.bearers: Bearers | None = None
        self._waiting: set[asyncio.Task[None]] = set()
        self._waiting_bytes = 0

    # Rung 1: the door

    def serve(self, exchange: Exchange) -> None:
        try:
            self._serve(exchange)
        except Exception:
            _fail(exchange)

    def _serve(self, exchange: Exchange) -> None:
        head = exchange.head
        passport: Passport | None = head.passport
        if passport is None:
            passport = head.passport = self._inspect(head)
        if passport.extra:
            exchange.extra = passport.extra
        if passport.at_once is not None:
            _refuse(exchange, passport.at_once)
            return
        principal = self._authenticate(exchange)
        if principal is not None:
            self._admit(exchange, passport, principal)
        elif self.bearers is not None:
            self._ask_about(exchange, passport, self.bearers)
        else:
            _refuse(exchange, _UNAUTHORISED)

    def _ask_about(self, exchange: Exchange, passport: Passport, bearers: Bearers) -> None:
        """A credential that nobody here knows (yet): the request waits, with its body, until somebody has judged it."""
        credential = exchange.head.headers.get(b"authorization")
        if credential is None:
            _refuse(exchange, bearers.without)
        elif self._waiting_bytes + len(exchange.body) > WAITING_BYTES_MAX:
            _refuse(exchange, _BUSY)
        else:
            self._waiting_bytes += len(exchange.body)
            waiting = self._admit_later(exchange, passport, bearers, credential)
            task = asyncio.get_running_loop().create_task(waiting)
            self._waiting.add(task)
            task.add_done_callback(self._waiting.discard)

    async def _admit_later(self, exchange: Exchange, passport: Passport, bearers: Bearers, credential: bytes) -> None:
        try:
            who = await bearers.admit(credential)
            if isinstance(who, Principal):
                self._admit(exchange, passport, who)
            else:
                _refuse(exchange, who)
        except Exception:
            _fail(exchange)
        finally:
            self._waiting_bytes -= len(exchange.body)

    def _admit(self, exchange: Exchange, passport: Passport, principal: Principal) -> None:
        head, endpoint = exchange.head, passport.endpoint
        if exchange.ended:  # the client did not wait
            return
        if passport.once_known is not None or endpoint is None:
            _refuse(exchange, passport.once_known or _NOT_FOUND)
        elif endpoint.kind == "sse":
            self._sse(exchange, endpoint, principal)
        elif endpoint.kind == "messages":
            self._sse_post(exchange, endpoint, principal)
        elif head.method == b"POST":
            exchange.streams_only = passport.streams_only
            if passport.modern:
                self._modern_post(exchange, endpoint, principal)
            else:
                self._legacy_post(exchange, endpoint, principal)
        else:
            self._legacy_other(exchange, principal)

    def _inspect(self, head: Head) -> Passport:
        headers = head.headers
        version = headers.get(H_VERSION)
        modern = version is not None and version not in _LEGACY_HEADERS
        endpoint = _read_url(head.url, self._names, self._segments)
        if b"host" not in headers or head.doubled(_ONCE) is not None:
            return Passport(endpoint, modern, at_once=_BAD_HEADERS)
        if not self._host_ok(headers[b"host"]):
            return Passport(endpoint, modern, at_once=_BAD_HOST)
        extra = b""
        origin = headers.get(b"origin")
        if origin is not None:
            if not self._origin_ok(origin):
                return Passport(endpoint, modern, at_once=_BAD_ORIGIN)
            extra = b"access-control-allow-origin: %b\r\nvary: origin\r\n" % origin + _EXPOSE
            if head.method == b"OPTIONS":
                return Passport(endpoint, modern, extra + _PREFLIGHT, at_once=Refusal(204, "", ""))
        if _has_token(head.url):
            return Passport(endpoint, modern, extra, at_once=self.bearers.in_url if self.bearers else _UNAUTHORISED)
        if endpoint is None:
            return Passport(None, modern, extra, once_known=_NOT_FOUND)
        allowed = _ALLOWED[endpoint.kind] if not modern else b"POST"
        if head.method not in allowed.split(b", "):
            refusal = Refusal(405, "method_not_allowed", "this path takes another method", b"allow: %b\r\n" % allowed)
            return Passport(endpoint, modern, extra, once_known=refusal)
        if head.method == b"POST" and not _is_json(headers.get(b"content-type", b"")):
            return Passport(endpoint, modern, extra, once_known=_NOT_JSON)
        accept = headers.get(b"accept", b"*/*").lower()
        json = any(kind in accept for kind in (b"application/json", b"application/*", b"*/*"))
        stream = any(kind in accept for kind in (b"text/event-stream", b"text/*", b"*/*"))
        if not (json or stream) or (head.method == b"GET" and not stream):
            return Passport(endpoint, modern, extra, once_known=_NOT_ACCEPTABLE)
        return Passport(endpoint, modern, extra, streams_only=not json)

    def _authenticate(self, exchange: Exchange) -> Principal | None:
        credential = exchange.head.headers.get(b"authorization")
        if credential is not None:
            return self._tokens.principal(credential)
        if self._anonymous == "any":
            return self._local
        if self._anonymous == "loopback" and exchange.protocol.is_loopback and not _was_forwarded(exchange):
            return self._local
        return None

    def _host_ok(self, host: bytes) -> bool:
        return self._own_hosts is None or _host_name(host.decode("latin-1")) in self._own_hosts

    def _origin_ok(self, origin: bytes) -> bool:
        text = origin.decode("latin-1")
        if text in self._plan.node.origins:
            return True
        try:
            parts = urlsplit(text)
            hostname = parts.hostname
        except ValueError:
            return False
        own = _LOOPBACK_NAMES if self._own_hosts is None else self._own_hosts
        return parts.scheme in ("http", "https") and hostname is not None and hostname in own

    # Rung 2: envelope and era

    def _legacy_other(self, exchange: Exchange, principal: Principal) -> None:
        session = self._session_of(exchange, principal)
        if session is None:
            return
        if exchange.head.method == b"DELETE":
            self._legacy.sessions.close(session, "closed by the client")
            exchange.reply(204)
            return
        exchange.open_stream()
        exchange.on_gone = lambda: session.detach(exchange)
        session.attach(exchange)

    def _modern_post(self, exchange: Exchange, endpoint: Endpoint, principal: Principal) -> None:
        try:
            message = decode_untrusted(exchange.body)
        except CodecError as error:
            exchange.answer(encode_fault(error.message_id, error.fault), 400)
            return
        if type(message) is Notification:
            version = exchange.head.headers.get(H_VERSION, b"")
            if version in _MODERN_HEADERS:
                exchange.reply(202)
            else:
                exchange.answer(encode_fault(b"null", unsupported(version.decode("latin-1"))), 400)
            return
        if type(message) is not Request:
            fault = Fault(INVALID_REQUEST, "a client sends no responses in 2026-07-28")
            exchange.answer(encode_fault(b"null", fault), 400)
            return
        climbed = climb(message, exchange.head.headers, exchange.head.doubled_routing())
        if isinstance(climbed, Fault):
            exchange.answer(encode_fault(message.id, climbed), HTTP_STATUS.get(climbed.code, 400))
            return
        caller = self._modern.caller(principal, "http", endpoint.only, endpoint.names)
        if self._is_beyond(caller, message, exchange):
            return
        running = self._modern.handle(caller, message, climbed, exchange, exchange.head.headers, endpoint.names)
        if exchange.ended:
            return
        if isinstance(running, Call):
            exchange.running = running
        elif running is not None:
            exchange.on_gone = lambda: self._modern.stop_listening(running)

    def _legacy_post(self, exchange: Exchange, endpoint: Endpoint, principal: Principal) -> None:
        try:
            message = decode_untrusted(exchange.body)
        except CodecError as error:
            exchange.answer(encode_fault(error.message_id, error.fault), 400)
            return
        if type(message) is Request and message.method == INITIALIZE and H_SESSION not in exchange.head.headers:
            opened = self._legacy.initialize(message, principal, "http", endpoint.only, endpoint.names)
            if isinstance(opened, Fault):
                exchange.answer(encode_fault(message.id, opened), 503 if opened.code == UNAVAILABLE else 400)
                return
            exchange.extra += b"mcp-session-id: %b\r\n" % opened.id.encode()
            self._legacy.welcome(opened, message, exchange)
            return
        session = self._session_of(exchange, principal)
        if session is None:
            return
        if type(message) is Request:
            if self._is_beyond(session.caller, message, exchange):
                return
            call = self._legacy.handle(session, message, exchange)
            if not exchange.ended:
                exchange.running = call
        elif type(message) is Response and not session.answered(message):
            fault = Fault(INVALID_REQUEST, "no server asked for this answer, or it came too late")
            exchange.answer(encode_fault(message.id, fault), 400)
        else:
            if type(message) is Notification:
                self._legacy.handle(session, message, exchange)
            exchange.reply(202)

    def _session_of(self, exchange: Exchange, principal: Principal) -> Session | None:
        said = exchange.head.headers.get(H_SESSION)
        if said is None:
            fault = Fault(INVALID_REQUEST, "the header Mcp-Session-Id is missing; send initialize first")
            exchange.answer(encode_fault(b"null", fault), 400)
            return None
        session = self._legacy.sessions.find(said.decode("latin-1"), principal.name)
        if session is None:
            fault = Fault(INVALID_REQUEST, "this session is unknown or has ended; send initialize again")
            exchange.answer(encode_fault(b"null", fault), 404)
        elif session.caller.principal is not principal:
            session.caller.act_as(principal)
        return session

    def _is_beyond(self, caller: Caller, request: Request, exchange: Exchange) -> bool:
        if caller.principal.ceiling is None or self.bearers is None:
            return False
        refusal = self.bearers.beyond(caller, request)
        if refusal is not None:
            _refuse(exchange, refusal)
        return refusal is not None

    # HTTP+SSE (2024-11-05)

    def _sse(self, exchange: Exchange, endpoint: Endpoint, principal: Principal) -> None:
        stream = SseStream(self, exchange, endpoint, principal)
        self.sse_streams[stream.id] = stream
        exchange.on_gone = stream.gone
        exchange.open_stream()
        exchange.send_chunk(encode_event(b"/messages?session=" + stream.id.encode(), event=b"endpoint"))

    def _sse_post(self, exchange: Exchange, endpoint: Endpoint, principal: Principal) -> None:
        stream = self.sse_streams.get(endpoint.session or "")
        if stream is None or stream.principal.name != principal.name:
            _refuse(exchange, Refusal(404, "session_unknown", "this session is unknown or has ended; open /sse again"))
            return
        try:
            message = decode_untrusted(exchange.body)
        except CodecError as error:
            exchange.answer(encode_fault(error.message_id, error.fault), 400)
            return
        caller = stream.caller_as(principal)
        if caller is not None and type(message) is Request and self._is_beyond(caller, message, exchange):
            return
        exchange.reply(202)
        stream.receive(message, self._legacy)

    # The sweep

    async def sweep_forever(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(SWEEP_S)
            now = loop.time()
            for protocol in list(self.protocols):
                self._sweep(protocol, now)
            self._legacy.sessions.expire()
            self.dismiss_unwelcome()

    def _sweep(self, protocol: McpProtocol, now: float) -> None:
        exchange = protocol.exchange
        if protocol.paused_since is not None and now - protocol.paused_since > STUCK_S:
            protocol.transport.abort()
        elif protocol.busy_since is not None:
            if now - protocol.busy_since > REQUEST_S:
                if exchange is None and protocol.url:
                    protocol.time_out()
                else:
                    protocol.transport.close()
        elif exchange is not None:
            if exchange.streaming and now - protocol.written_at > HEARTBEAT_S:
                exchange.send_chunk(b": \n\n")
        elif protocol.is_idle and now - protocol.idle_since > IDLE_S:
            protocol.transport.close()

    def end_streams(self) -> None:
        """A drain: streams that carry no answers and would never end by themselves are ended in order."""
        self._end_listening(None)
        for session in list(self._legacy.sessions.by_id.values()):
            for stream in list(session.streams):
                if isinstance(stream, Exchange):
                    session.detach(stream)
                    stream.end_stream()

    def end_sse(self) -> None:
        """The older transport's streams carry the answers, so they end last."""
        for stream in list(self.sse_streams.values()):
            stream.exchange.end_stream()
            stream.gone()

    def dismiss_unwelcome(self) -> None:
        """Whoever may no longer come in may not stay either: its sessions, streams and calls end."""
        for name in self._present():
            if not self._tokens.stands(name):
                self._dismiss(name, "the credential was revoked")
            elif self._tokens.lapsed(name):
                self._dismiss(name, None)

    def _dismiss(self, principal: str, ending: str | None) -> None:
        """Without an `ending` the sessions stay: a client that brings a newer token goes on where it was."""
        self._end_listening(principal)
        for session in list(self._legacy.sessions.by_id.values()):
            if session.caller.principal.name == principal:
                streams = [stream for stream in session.streams if isinstance(stream, Exchange)]
                if ending is not None:
                    self._legacy.sessions.close(session, ending)
                for stream in streams:
                    session.detach(stream)
                    stream.end_stream()
        for sse in list(self.sse_streams.values()):
            if sse.principal.name == principal:
                sse.exchange.end_stream()
                sse.gone()

    def _end_listening(self, principal: str | None) -> None:
        for listener in list(self._modern.listeners):
            if principal is None or listener.caller.principal.name == principal:
                listener.finish()
                self._modern.stop_listening(listener)

    def _present(self) -> set[str]:
        """Who has something open here."""
        names = {listener.caller.principal.name for listener in self._modern.listeners}
        names |= {session.caller.principal.name for session in self._legacy.sessions.by_id.values()}
        return names | {stream.principal.name for stream in self.sse_streams.values()}


class SseStream:
    """One client of the older transport: a stream down, POSTs up."""

    def __init__(self, door: PublicDoor, exchange: Exchange, endpoint: Endpoint, principal: Principal) -> None:
        self.id = secrets.token_urlsafe(24)
        self.exchange = exchange
        self.principal = principal
        self._door = door
        self._endpoint = endpoint
        self._session: Session | None = None

    # Sink: everything goes down the one stream

    def emit(self, message: bytes) -> None:
        self.exchange.emit(message)

    def answer(self, message: bytes, status: int = 200) -> None:
        self.exchange.emit(message)

    def drop(self) -> None:
        pass

    def caller_as(self, principal: Principal) -> Caller | None:
        """The client with the credential of its newest POST; None before it has a session."""
        self.principal = principal
        caller = None if self._session is None else self._session.caller
        if caller is not None and caller.principal is not principal:
            caller.act_as(principal)
        return caller

    def receive(self, message: Request | Notification | Response, desk: LegacyDesk) -> None:
        if self._session is None:
            if not isinstance(message, Request) or message.method != INITIALIZE:
                if isinstance(message, Request):
                    self.answer(encode_fault(message.id, Fault(INVALID_REQUEST, "send initialize first")))
                return
            opened = desk.initialize(message, self.principal, "sse", self._endpoint.only, self._endpoint.names)
            if isinstance(opened, Fault):
                self.answer(encode_fault(message.id, opened))
                return
            self._session = opened
            opened.attach(self)
            desk.welcome(opened, message, self)
            return
        desk.handle(self._session, message, self)

    def gone(self) -> None:
        self._door.sse_streams.pop(self.id, None)
        if self._session is not None:
            self._session.detach(self)
            self._door._legacy.sessions.close(self._session, "the stream ended")


def _fail(exchange: Exchange) -> None:
    ref = secrets.token_hex(6)
    log.exception("internal error %s", ref)
    try:
        message = decode_untrusted(exchange.body)
        message_id = b"null" if isinstance(message, Notification) else message.id
    except CodecError:
        message_id = b"null"
    exchange.answer(encode_fault(message_id, internal(ref)), 200)


def _refuse(exchange: Exchange, refusal: Refusal) -> None:
    if refusal.extra:
        exchange.extra += refusal.extra
    if refusal.status == 204:
        exchange.reply(204)
        return
    body = {"error": refusal.error, "message": refusal.message, "details": {}}
    exchange.reply(refusal.status, msgspec.json.encode(body))


def _has_token(url: bytes) -> bool:
    """RFC 6750 2.3, which MCP forbids: URLs end up in logs and histories."""
    query = url.partition(b"?")[2].decode("latin-1")
    return bool(query) and "access_token" in parse_qs(query, keep_blank_values=True)


def _is_json(content_type: bytes) -> bool:
    return content_type == b"application/json" or content_type.split(b";")[0].strip().lower() == b"application/json"


def _was_forwarded(exchange: Exchange) -> bool:
    """A proxy on this machine makes the world look like loopback."""
    return not _PROXY_HEADERS.isdisjoint(exchange.head.headers)


def _host_name(host: str) -> str:
    if host.startswith("["):
        return host[1:].partition("]")[0].lower()
    return host.partition(":")[0].lower()


def _own_hosts(plan: Plan) -> frozenset[str] | None:
    """The names this node answers to; None for any (a node on all addresses without a public URL)."""
    hosts = set(_LOOPBACK_NAMES)
    listen = plan.node.listen.host
    if plan.node.public_url is not None:
        hosts.add(urlsplit(plan.node.public_url).hostname or "")
    elif listen in ("0.0.0.0", "::"):  # noqa: S104  (compared, not bound)
        return None
    hosts.add(listen.lower())
    return frozenset(hosts)


def _read_url(url: bytes, names: NameForm, segments: frozenset[str]) -> Endpoint | None:
    try:
        parts = urlsplit(url.decode("ascii"))
    except (UnicodeDecodeError, ValueError):
        return None
    query = parse_qs(parts.query)
    asked = query.get("names", [""])[0]
    form: NameForm = "qualified" if asked == "qualified" else "safe" if asked == "safe" else names
    head, *rest = [unquote(part) for part in parts.path.strip("/").split("/")]
    if head == "messages" and not rest:
        return Endpoint("messages", session=query.get("session", [""])[0])
    if head in ("mcp", "sse"):
        if not rest or rest == ["flat"]:
            return Endpoint(head, names=form)
        if len(rest) == 2 and rest[0] == "only" and rest[1] in segments:
            return Endpoint(head, only=rest[1], names=form)
    return None


_PROXY_HEADERS: Final = frozenset(
    (
        b"forwarded",
        b"via",
        b"x-forwarded-for",
        b"x-forwarded-host",
        b"x-forwarded-proto",
        b"x-real-ip",
        b"x-client-ip",
        b"cf-connecting-ip",
        b"true-client-ip",
    )
)
_ALLOWED: Final = {"mcp": b"GET, POST, DELETE", "sse": b"GET", "messages": b"POST"}
_ONCE: Final = frozenset((b"host", b"origin", b"authorization", b"content-type", b"mcp-session-id"))
_BAD_HEADERS: Final = Refusal(400, "bad_headers", "Host must be sent, and headers that decide must be sent once")
_BAD_HOST: Final = Refusal(421, "bad_host", "this node does not answer to that Host; set node.public_url")
_BAD_ORIGIN: Final = Refusal(403, "bad_origin", "this Origin is not allowed; add it to node.origins")
_NOT_FOUND: Final = Refusal(404, "not_found", "there is no such path here; MCP is at /mcp")
_NOT_JSON: Final = Refusal(415, "unsupported_media_type", "send application/json")
_NOT_ACCEPTABLE: Final = Refusal(406, "not_acceptable", "accept application/json and text/event-stream")
_UNAUTHORISED: Final = Refusal(
    401,
    "unauthorised",
    "a valid bearer token is needed; see interlock access token",
    b"www-authenticate: Bearer\r\n",
)
_BUSY: Final = Refusal(
    503, "unavailable", "too many access tokens are being verified; try again", b"retry-after: 5\r\n"
)
_EXPOSE: Final = b"access-control-expose-headers: mcp-session-id, www-authenticate\r\n"
_PREFLIGHT: Final = (
    b"access-control-allow-methods: GET, POST, DELETE, OPTIONS\r\naccess-control-allow-headers: authorization, "
    b"content-type, accept, mcp-protocol-version, mcp-session-id, mcp-method, mcp-name, last-event-id\r\n"
    b"access-control-max-age: 600\r\n"
)
