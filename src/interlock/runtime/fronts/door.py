"""The public door: who may come in, and which desk serves them (rungs 1 and 2 of the guard's order).

Credential, Origin, Host and size first; then the envelope and the era; then the desk of that era. No credential of the
operator door opens this one.
"""

import asyncio
import logging
import secrets
from collections.abc import Callable
from typing import Final, Protocol, TypeVar
from urllib.parse import parse_qs, unquote, urlsplit

import msgspec

from interlock.config.plan import NameForm, Plan
from interlock.protocol.jsonrpc.codec import decode_untrusted, encode_fault
from interlock.protocol.jsonrpc.errors import INVALID_REQUEST, CodecError, Fault
from interlock.protocol.jsonrpc.messages import Notification, Request, Response
from interlock.protocol.mcp.eras import LEGACY_VERSIONS, MODERN_VERSIONS
from interlock.protocol.mcp.ladder import H_VERSION, HTTP_STATUS, ROUTING_HEADERS, climb, unsupported
from interlock.protocol.mcp.methods import INITIALIZE
from interlock.protocol.mcp.sse import encode_event
from interlock.runtime.callers import LOCAL, Principal
from interlock.runtime.calls import Call, internal
from interlock.runtime.fronts.exchange import Exchange
from interlock.runtime.fronts.http import McpProtocol
from interlock.runtime.fronts.legacy import LegacyDesk
from interlock.runtime.fronts.modern import Listener, ModernDesk
from interlock.runtime.fronts.sessions import Session

T = TypeVar("T")

log = logging.getLogger("interlock.door")

REQUEST_S: Final = 30.0  # from a request's first byte to its last
STUCK_S: Final = 30.0  # how long a client may leave our bytes unread
IDLE_S: Final = 75.0
HEARTBEAT_S: Final = 15.0  # a comment on quiet streams, so that proxies keep them and the dead are found
SWEEP_S: Final = 1.0

H_SESSION: Final = b"mcp-session-id"
_LEGACY_HEADERS: Final = frozenset(version.encode() for version in LEGACY_VERSIONS)
_MODERN_HEADERS: Final = frozenset(version.encode() for version in MODERN_VERSIONS)
_LOOPBACK_NAMES: Final = frozenset(("localhost", "127.0.0.1", "::1"))


class Tokens(Protocol):
    def principal(self, bearer: bytes) -> Principal | None: ...


class Endpoint(msgspec.Struct, frozen=True):
    """What a URL asks for."""

    kind: str  # "mcp", "sse" or "messages"
    only: str | None = None
    names: NameForm = "auto"
    session: str | None = None


class PublicDoor:
    def __init__(self, plan: Plan, tokens: Tokens, legacy: LegacyDesk, modern: ModernDesk) -> None:
        self._plan = plan
        self._tokens = tokens
        self._legacy = legacy
        self._modern = modern
        self.max_body_bytes = plan.limits.message_bytes
        self._anonymous = plan.auth.anonymous
        self._names: NameForm = plan.mcp.names
        self._endpoints: dict[bytes, Endpoint | None] = {}
        self._hosts: dict[bytes, bool] = {}
        self._origins: dict[bytes, bool] = {}
        self._segments = frozenset(server.segment for server in plan.servers)
        self._own_hosts = _own_hosts(plan)
        self.protocols: set[McpProtocol] = set()
        self.sse_streams: dict[str, SseStream] = {}
        self.draining = False

    # Rung 1: the door

    def serve(self, exchange: Exchange) -> None:
        try:
            self._serve(exchange)
        except Exception:
            ref = secrets.token_hex(6)
            log.exception("internal error %s", ref)
            exchange.answer(encode_fault(b"null", internal(ref)), 200)

    def _serve(self, exchange: Exchange) -> None:
        headers = exchange.headers
        if not self._host_ok(headers.get(b"host", b"")):
            _refuse(exchange, 421, "bad_host", "this node does not answer to that Host; set node.public_url")
            return
        origin = headers.get(b"origin")
        if origin is not None:
            if not self._origin_ok(origin):
                _refuse(exchange, 403, "bad_origin", "this Origin is not allowed; add it to node.origins")
                return
            exchange.extra = b"access-control-allow-origin: %b\r\nvary: origin\r\n" % origin + _EXPOSE
            if exchange.method == b"OPTIONS":
                exchange.extra += _PREFLIGHT
                exchange.reply(204)
                return
        principal = self._authenticate(exchange)
        if principal is None:
            exchange.extra += b"www-authenticate: Bearer\r\n"
            _refuse(exchange, 401, "unauthorised", "a valid bearer token is needed; see interlock access token")
            return
        endpoint = self._endpoint(exchange.url)
        if endpoint is None:
            _refuse(exchange, 404, "not_found", "there is no such path here; MCP is at /mcp")
        elif endpoint.kind == "mcp":
            self._mcp(exchange, endpoint, principal)
        elif endpoint.kind == "sse":
            self._sse(exchange, endpoint, principal)
        else:
            self._sse_post(exchange, endpoint, principal)

    def _authenticate(self, exchange: Exchange) -> Principal | None:
        credential = exchange.headers.get(b"authorization")
        if credential is not None:
            scheme, _, bearer = credential.partition(b" ")
            return self._tokens.principal(bearer.strip()) if scheme.lower() == b"bearer" else None
        if self._anonymous == "any":
            return LOCAL
        if self._anonymous == "loopback" and exchange.protocol.is_loopback and not _was_forwarded(exchange):
            return LOCAL
        return None

    def _host_ok(self, host: bytes) -> bool:
        known = self._hosts.get(host)
        if known is None:
            name = _host_name(host.decode("latin-1"))
            known = self._own_hosts is None or name in self._own_hosts
            _remember(self._hosts, host, known)
        return known

    def _origin_ok(self, origin: bytes) -> bool:
        known = self._origins.get(origin)
        if known is None:
            text = origin.decode("latin-1")
            parts = urlsplit(text) if "://" in text else None
            known = text in self._plan.node.origins or (
                parts is not None
                and parts.scheme in ("http", "https")
                and parts.hostname is not None
                and (parts.hostname in _LOOPBACK_NAMES or parts.hostname in (self._own_hosts or ()))
            )
            _remember(self._origins, origin, known)
        return known

    def _endpoint(self, url: bytes) -> Endpoint | None:
        if url in self._endpoints:
            return self._endpoints[url]
        endpoint = _read_url(url, self._names, self._segments)
        if endpoint is None or endpoint.session is None:
            _remember(self._endpoints, url, endpoint)
        return endpoint

    # Rung 2: envelope and era

    def _mcp(self, exchange: Exchange, endpoint: Endpoint, principal: Principal) -> None:
        version = exchange.headers.get(H_VERSION)
        legacy = version is None or version in _LEGACY_HEADERS
        if exchange.method == b"POST":
            if not _is_json(exchange.headers.get(b"content-type", b"")):
                _refuse(exchange, 415, "unsupported_media_type", "send application/json")
            elif not _negotiate(exchange):
                _refuse(exchange, 406, "not_acceptable", "accept application/json and text/event-stream")
            elif legacy:
                self._legacy_post(exchange, endpoint, principal)
            else:
                self._modern_post(exchange, endpoint, principal)
        elif not legacy or exchange.method not in (b"GET", b"DELETE"):
            exchange.extra += b"allow: POST\r\n" if not legacy else b"allow: GET, POST, DELETE\r\n"
            _refuse(exchange, 405, "method_not_allowed", "use POST")
        else:
            session = self._session_of(exchange, principal)
            if session is None:
                return
            if exchange.method == b"DELETE":
                self._legacy.sessions.close(session, "closed by the client")
                exchange.reply(204)
            else:
                self._open_stream(exchange, session)

    def _modern_post(self, exchange: Exchange, endpoint: Endpoint, principal: Principal) -> None:
        try:
            message = decode_untrusted(exchange.body)
        except CodecError as error:
            exchange.answer(encode_fault(error.message_id, error.fault), 400)
            return
        if type(message) is Notification:
            version = exchange.headers.get(H_VERSION, b"")
            if version in _MODERN_HEADERS:
                exchange.reply(202)
            else:
                exchange.answer(encode_fault(b"null", unsupported(version.decode("latin-1"))), 400)
            return
        if type(message) is not Request:
            fault = Fault(INVALID_REQUEST, "a client sends no responses in 2026-07-28")
            exchange.answer(encode_fault(b"null", fault), 400)
            return
        climbed = climb(message, exchange.headers, exchange.doubled(ROUTING_HEADERS))
        if isinstance(climbed, Fault):
            exchange.answer(encode_fault(message.id, climbed), HTTP_STATUS.get(climbed.code, 400))
            return
        caller = self._modern.caller(principal, "http", endpoint.only, endpoint.names)
        running = self._modern.handle(caller, message, climbed, exchange, exchange.headers, endpoint.names)
        if running is not None and not exchange.ended:
            exchange.on_gone = _stopper(running, self._modern)

    def _legacy_post(self, exchange: Exchange, endpoint: Endpoint, principal: Principal) -> None:
        try:
            message = decode_untrusted(exchange.body)
        except CodecError as error:
            exchange.answer(encode_fault(error.message_id, error.fault), 400)
            return
        if type(message) is Request and message.method == INITIALIZE and H_SESSION not in exchange.headers:
            opened = self._legacy.initialize(message, principal, "http", endpoint.only, endpoint.names)
            if isinstance(opened, Fault):
                exchange.answer(encode_fault(message.id, opened), 400)
                return
            exchange.extra += b"mcp-session-id: %b\r\n" % opened.id.encode()
            self._legacy.welcome(opened, message, exchange)
            return
        session = self._session_of(exchange, principal)
        if session is None:
            return
        if type(message) is Request:
            call = self._legacy.handle(session, message, exchange)
            if call is not None and not exchange.ended:
                exchange.on_gone = _stopper(call, self._modern)
        elif type(message) is Response and not session.answered(message):
            fault = Fault(INVALID_REQUEST, "no server asked for this answer, or it came too late")
            exchange.answer(encode_fault(message.id, fault), 400)
        else:
            if type(message) is Notification:
                self._legacy.handle(session, message, exchange)
            exchange.reply(202)

    def _session_of(self, exchange: Exchange, principal: Principal) -> Session | None:
        said = exchange.headers.get(H_SESSION)
        if said is None:
            fault = Fault(INVALID_REQUEST, "the header Mcp-Session-Id is missing; send initialize first")
            exchange.answer(encode_fault(b"null", fault), 400)
            return None
        session = self._legacy.sessions.find(said.decode("latin-1"), principal.name)
        if session is None:
            fault = Fault(INVALID_REQUEST, "this session is unknown or has ended; send initialize again")
            exchange.answer(encode_fault(b"null", fault), 404)
        return session

    def _open_stream(self, exchange: Exchange, session: Session) -> None:
        if b"text/event-stream" not in exchange.headers.get(b"accept", b"*/*") and not _accepts_any(exchange):
            _refuse(exchange, 406, "not_acceptable", "accept text/event-stream")
            return
        exchange.open_stream()
        exchange.on_gone = lambda: session.detach(exchange)
        session.attach(exchange)

    # HTTP+SSE (2024-11-05)

    def _sse(self, exchange: Exchange, endpoint: Endpoint, principal: Principal) -> None:
        if exchange.method != b"GET":
            exchange.extra += b"allow: GET\r\n"
            _refuse(exchange, 405, "method_not_allowed", "use GET; messages go to the endpoint it names")
            return
        stream = SseStream(self, exchange, endpoint, principal)
        self.sse_streams[stream.id] = stream
        exchange.on_gone = stream.gone
        exchange.open_stream()
        exchange.send_chunk(encode_event(b"/messages?session=" + stream.id.encode(), event=b"endpoint"))

    def _sse_post(self, exchange: Exchange, endpoint: Endpoint, principal: Principal) -> None:
        stream = self.sse_streams.get(endpoint.session or "")
        if exchange.method != b"POST":
            exchange.extra += b"allow: POST\r\n"
            _refuse(exchange, 405, "method_not_allowed", "use POST")
            return
        if stream is None or stream.principal.name != principal.name:
            _refuse(exchange, 404, "session_unknown", "this session is unknown or has ended; open /sse again")
            return
        try:
            message = decode_untrusted(exchange.body)
        except CodecError as error:
            exchange.answer(encode_fault(error.message_id, error.fault), 400)
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

    def _sweep(self, protocol: McpProtocol, now: float) -> None:
        exchange = protocol.exchange
        if protocol.paused_since is not None and now - protocol.paused_since > STUCK_S:
            protocol.transport.abort()
        elif protocol.busy_since is not None and now - protocol.busy_since > REQUEST_S:
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
        """A drain: streams that would never end by themselves are ended in order."""
        self.draining = True
        for listener in list(self._modern.listeners):
            listener.finish()
            self._modern.stop_listening(listener)
        for session in list(self._legacy.sessions.by_id.values()):
            for stream in list(session.streams):
                session.detach(stream)
                if isinstance(stream, Exchange):
                    stream.end_stream()
        for stream in list(self.sse_streams.values()):
            stream.exchange.end_stream()


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


def _stopper(running: Call | Listener, desk: ModernDesk) -> Callable[[], None]:
    if isinstance(running, Listener):
        return lambda: desk.stop_listening(running)
    return lambda: running.cancel("the client disconnected")


def _refuse(exchange: Exchange, status: int, error: str, message: str) -> None:
    exchange.reply(status, msgspec.json.encode({"error": error, "message": message, "details": {}}))


def _remember(cache: dict[bytes, T], key: bytes, value: T) -> None:
    if len(cache) >= 1024:
        cache.clear()
    cache[key] = value


def _is_json(content_type: bytes) -> bool:
    return content_type == b"application/json" or content_type.split(b";")[0].strip().lower() == b"application/json"


def _accepts_any(exchange: Exchange) -> bool:
    return b"*/*" in exchange.headers.get(b"accept", b"*/*")


def _negotiate(exchange: Exchange) -> bool:
    accept = exchange.headers.get(b"accept")
    if accept is None or b"application/json" in accept or b"*/*" in accept or b"application/*" in accept:
        return True
    exchange.streams_only = b"text/event-stream" in accept or b"text/*" in accept
    return exchange.streams_only


def _was_forwarded(exchange: Exchange) -> bool:
    """A proxy on this machine makes the world look like loopback."""
    return b"x-forwarded-for" in exchange.headers or b"forwarded" in exchange.headers


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


_EXPOSE: Final = b"access-control-expose-headers: mcp-session-id, www-authenticate\r\n"
_PREFLIGHT: Final = (
    b"access-control-allow-methods: GET, POST, DELETE, OPTIONS\r\naccess-control-allow-headers: authorization, "
    b"content-type, accept, mcp-protocol-version, mcp-session-id, mcp-method, mcp-name, last-event-id\r\n"
    b"access-control-max-age: 600\r\n"
)
