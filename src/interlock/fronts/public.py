"""The public endpoint, which admits requests and passes them to the front of their era. The checks of the guard follow
later.

First it checks size, Host, Origin and credential; then it reads the envelope and finds the era; then the front of that
era serves the message. Credentials of the operator endpoint are not admitted.

`public_app` serves what is not MCP: /healthz, /readyz, and the public documents about the node (RFC 9728).
"""

import logging
import secrets
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, InitVar, dataclass, field
from typing import TYPE_CHECKING, Any, Final

import msgspec

from interlock.access.tokens import TokenRegistry
from interlock.config.plan import Plan
from interlock.core.background import BackgroundTasks
from interlock.core.calls.call import Call, internal
from interlock.core.calls.caller import Caller, Principal, principal_for
from interlock.core.recorder import Refusals
from interlock.fronts.connections import ConnectionTable, TrustedProxies, source_of
from interlock.fronts.exchange import NOT_FOUND, Exchange, Head, HeadDecision, HeadInspector, UrlTarget
from interlock.fronts.http_protocol import EndpointConnection, McpProtocol
from interlock.fronts.legacy import LegacyFront, SseStream, serve_batch
from interlock.fronts.modern import ModernFront
from interlock.fronts.sessions import ClientSession
from interlock.fronts.surfaces import SurfaceChooser
from interlock.mcp import modern_requests
from interlock.mcp.methods import INITIALIZE, MODERN_VERSIONS
from interlock.mcp.modern_requests import H_VERSION, ValidatedRequest, validate_plain_request
from interlock.net.http.messages import VaryingLines
from interlock.net.protocol.address_scope import is_loopback
from interlock.process.limits import descriptor_limit
from interlock.wire.jsonrpc import codec
from interlock.wire.jsonrpc.codec import CodecError, Request, decode_untrusted, encode_refusal, find_plain_request
from interlock.wire.jsonrpc.oversized import message_too_large
from interlock.wire.refusal import INVALID_REQUEST, UNAVAILABLE, HttpRefusal, Refusal
from interlock.wire.sse import encode_event

if TYPE_CHECKING:
    from interlock.access.oauth import AccessTokens  # which loads `cryptography`

log = logging.getLogger("interlock.public")

CONNECTIONS_SHARE: Final = 0.5  # of the files this process may open; servers and stores need theirs
TURN_BYTES: Final = 1024 * 1024  # a message that is longer is read in one turn of the loop and sent on in the next

H_SESSION: Final = b"mcp-session-id"
_MODERN_HEADERS: Final = frozenset(version.encode() for version in MODERN_VERSIONS)


Serve = Callable[[Exchange, UrlTarget, Principal], None]


@dataclass(eq=False)
class PublicEndpoint:
    """The endpoint that clients of both eras connect to over HTTP."""

    plan: InitVar[Plan]
    _: KW_ONLY
    tokens: TokenRegistry
    bearers: "AccessTokens | None"  # access tokens of authorization servers, where one is configured
    legacy: LegacyFront
    modern: ModernFront
    surfaces: SurfaceChooser
    refusals: Refusals
    dismiss_others: Callable[[], None]  # dismisses subservers whose credential is no longer valid
    has_segment: Callable[[str], bool]  # looks a segment up in the current namespace
    # Key of a head -> what it means, or None: seen once, and perhaps never again.
    known_heads: dict[bytes, Head | None] = field(default_factory=dict)
    varying: VaryingLines = ()  # of the head learnt last: most clients of a node are of one kind
    sse_streams: dict[str, SseStream] = field(default_factory=dict)

    def __post_init__(self, plan: Plan) -> None:
        self.proxies = TrustedProxies(plan.node.trusted_proxies)
        self.max_body_bytes = plan.limits.message_bytes
        too_large = message_too_large(self.max_body_bytes)
        self.body_too_large = HttpRefusal("body_too_large", too_large.message, mcp=too_large)
        self._who_needs_none = plan.auth.anonymous
        self._admit_by(plan)
        self.connections = ConnectionTable(
            most=int(descriptor_limit() * CONNECTIONS_SHARE),
            message_bytes=plan.limits.message_bytes,
            note_refusal=self.note_refusal,
            is_shared=lambda peer: is_loopback(peer) or self.proxies.trusts(peer),
        )
        self._waiting = BackgroundTasks()

    def replan(self, plan: Plan) -> None:
        """Apply changed servers and rules, and discard decisions that were cached for request heads."""
        self._admit_by(plan)
        self.known_heads.clear()
        if self.bearers is not None:
            self.bearers.replan(plan.access)

    def _admit_by(self, plan: Plan) -> None:
        self._inspector = HeadInspector(plan)
        self._local = principal_for("local", None, plan.access)
        self._stranger = msgspec.structs.replace(self._local, stranger=True)

    # Admission

    def serve(self, exchange: Exchange) -> None:
        """Answer a complete request: identify its sender, then pass it to the front of its era."""
        head = exchange.head
        decision: HeadDecision | None = head.decision
        try:
            if decision is None:
                decision = self._inspect(head)
            if decision.extra:
                exchange.extra = decision.extra
            if decision.at_once is not None:
                self._turn_away(exchange, decision.at_once)
                return
            credential = head.credential
            principal = (
                self._anonymous(exchange.protocol, head) if credential is None else self.tokens.principal(credential)
            )
            if principal is not None:
                self._admit(exchange, decision, principal)
            elif self.bearers is not None:
                self._verify_credential(exchange, decision, self.bearers)
            else:
                self._turn_away(exchange, _UNAUTHORISED)
        except Exception:
            _fail(exchange)

    def _inspect(self, head: Head) -> HeadDecision:
        in_url = self.bearers.in_url if self.bearers is not None else _UNAUTHORISED
        decision = head.decision = self._inspector.inspect(head, in_url)
        return decision

    def admits(self, protocol: McpProtocol, head: Head) -> bool:
        """Return whether the sender of a request is known to be admitted without further verification."""
        decision: HeadDecision = head.decision or self._inspect(head)
        return decision.at_once is None and self._principal(protocol, head) is not None

    def _principal(self, protocol: McpProtocol, head: Head) -> Principal | None:
        credential = head.credential
        return self._anonymous(protocol, head) if credential is None else self.tokens.principal(credential)

    def judge(self, protocol: McpProtocol, head: Head) -> None:
        """Decide whether to accept a request whose body has not arrived yet. The decision goes to `protocol.decide`,
        now or later.

        Only a head that is refused for every caller, or a sender that is not admitted, is refused here. `serve` reports
        all other faults.
        """
        decision: HeadDecision = head.decision or self._inspect(head)
        refusal, credential, bearers = decision.at_once, head.credential, self.bearers
        if refusal is None and self._principal(protocol, head) is None:
            if bearers is not None and credential is not None:
                protocol.flow.pause_reading()

                async def judge_later() -> None:
                    who = await bearers.admit(credential, source_of(protocol.sender(head)))
                    refused = None if isinstance(who, Principal) else who
                    protocol.decide(head, _with_lines(refused, decision.extra))

                self._waiting.begin(judge_later())
                return
            refusal = bearers.without if bearers is not None else _UNAUTHORISED
        elif refusal is not None and refusal.status < 400:
            refusal = None
        protocol.decide(head, _with_lines(refusal, decision.extra))

    def _verify_credential(self, exchange: Exchange, decision: HeadDecision, bearers: "AccessTokens") -> None:
        """Hold a request whose credential is unknown until the credential has been verified, then serve or refuse the
        request.
        """
        if (credential := exchange.head.credential) is None:
            self._turn_away(exchange, bearers.without)
            return
        source = source_of(exchange.protocol.sender(exchange.head))
        held = self.connections.unknown.hold(source, len(exchange.body))
        if held is None:
            self._turn_away(exchange, _BUSY)
            return

        async def admit_later() -> None:
            try:
                if not isinstance(who := await bearers.admit(credential, source), Principal):
                    self._turn_away(exchange, who)
                elif not exchange.ended:  # the client may not have waited
                    self._admit(exchange, decision, who)
            except Exception:
                _fail(exchange)
            finally:
                held.release()

        self._waiting.begin(admit_later())

    def _admit(self, exchange: Exchange, decision: HeadDecision, principal: Principal) -> None:
        post = decision.post or self._serve_unless_message(exchange, decision, principal)
        if post is None:
            return
        exchange.streams_only = decision.streams_only
        if decision.modern:
            self._modern_post(exchange, post, principal)
        else:
            self._legacy_post(exchange, post, principal)

    def _postpone(self, serve: Serve, exchange: Exchange, endpoint: UrlTarget, principal: Principal) -> bool:
        """Postpone a request if the client's surface depends on servers that are still connecting. Return False if
        there is no need to wait.
        """
        if (waits := self.surfaces.maybe_wait(endpoint.surface, principal, endpoint.only)) is None:
            return False

        async def serve_later() -> None:
            await waits
            try:
                if not exchange.ended:
                    serve(exchange, endpoint, principal)
            except Exception:
                _fail(exchange)

        self._waiting.begin(serve_later())
        return True

    def _serve_unless_message(
        self, exchange: Exchange, decision: HeadDecision, principal: Principal
    ) -> UrlTarget | None:
        """Serve a request that is no ordinary MCP message, such as a GET or DELETE, or one for an unknown endpoint.

        Return None if the request was served. If it is an ordinary message, return its endpoint and leave it to the
        caller of this method.
        """
        endpoint, head = decision.endpoint, exchange.head
        # A session continues to work while the driver or subserver behind its endpoint is temporarily absent.
        if endpoint is None or not (
            endpoint.only is None
            or endpoint.is_configured
            or H_SESSION in head.headers
            or self.has_segment(endpoint.only)
        ):
            _refuse(exchange, NOT_FOUND)
        elif decision.once_known is not None:
            _refuse(exchange, decision.once_known)
        elif endpoint.kind == "sse":
            self._sse(exchange, endpoint, principal)
        elif endpoint.kind == "messages":
            self._sse_post(exchange, endpoint, principal)
        elif exchange.head.method == b"POST":
            return endpoint
        else:
            self._legacy_other(exchange, principal)
        return None

    def _anonymous(self, protocol: McpProtocol, head: Head) -> Principal | None:
        """Return the principal of a request without a credential, or None if a credential is required."""
        if self._who_needs_none == "never":
            return None
        # Behind a proxy on this machine, every client looks like loopback.
        if protocol.is_loopback and PROXY_HEADERS.isdisjoint(head.headers):
            return self._local
        # A trusted proxy on this machine may forward a request of a program on this machine, if it names that client.
        if protocol.is_proxy and protocol.peer is not None and is_loopback(protocol.peer):
            client = self.proxies.client(head.raw_headers)
            if client is not None and is_loopback(client):
                return self._local
        return self._stranger if self._who_needs_none == "any" else None

    # Refusals

    def _turn_away(self, exchange: Exchange, refusal: HttpRefusal) -> None:
        if refusal.status >= 400:
            self.note_refusal(exchange.protocol, exchange.head, refusal.code)
        _refuse(exchange, refusal)

    def note_refusal(self, connection: EndpointConnection, head: Head, reason: str) -> None:
        self.refusals.note(f"peer:{connection.sender(head)}", "http", head.method.decode("ascii") or "-", reason)

    # Envelope and era

    def _legacy_other(self, exchange: Exchange, principal: Principal) -> None:
        if (session := self._session_of(exchange, principal)) is None:
            return
        if exchange.head.method == b"DELETE":
            self.legacy.sessions.close(session, "closed by the client")
            exchange.reply(204)
            return
        had = session.logs.find_after(session.id, exchange.head.headers.get(b"last-event-id", b""))
        if had is not None:
            exchange.keep = False  # the connection is for this stream alone, and may be given up with it
            exchange.extra += b"connection: close\r\n"
            exchange.open_stream()
            had[0].resume(exchange, had[1])
            return
        exchange.open_stream()
        exchange.on_gone = lambda: session.detach(exchange)
        session.attach(exchange)

    def _modern_post(
        self, exchange: Exchange, endpoint: UrlTarget, principal: Principal, request: ValidatedRequest | None = None
    ) -> None:
        head = exchange.head
        if request is None:
            if head.routing is not None:
                request = validate_plain_request(exchange.body, head.routing)
            if request is None and (request := self._read_modern(exchange, endpoint, principal)) is None:
                return
            if len(exchange.body) > TURN_BYTES:  # to read it took a while: others have their turn before it is sent on
                exchange.protocol.loop.call_soon(self._modern_post, exchange, endpoint, principal, request)
                return
        elif exchange.ended:
            return
        if (caller := head.caller) is None or caller.principal is not principal:
            if self._postpone(self._modern_post, exchange, endpoint, principal):
                return
            fronts, _ = self.surfaces.choose(endpoint.surface, principal, endpoint.only)
            caller = head.caller = fronts.modern.caller(principal, "http", endpoint.only, endpoint.names)
        if principal.ceiling is not None and self._is_beyond(caller, request.method, request.params, exchange):
            return
        running = caller.front.handle(caller, request, exchange, head.headers, endpoint.names)
        if exchange.ended:
            return
        if isinstance(running, Call):
            exchange.running = running
        elif running is not None:
            exchange.on_gone = lambda: self.modern.stop_listening(running)

    def _read_modern(self, exchange: Exchange, endpoint: UrlTarget, principal: Principal) -> ValidatedRequest | None:
        """Decode and validate a request of a modern client. Send a refusal if it is invalid.

        Return the request, or None if it was already answered.
        """
        head = exchange.head
        try:
            message = decode_untrusted(exchange.body)
        except CodecError as error:
            fronts, _ = self.surfaces.choose(endpoint.surface, principal, endpoint.only)
            answer = fronts.modern.stock.find_unreadable_answer(exchange.body, is_modern=True)
            if answer is not None:
                exchange.answer(answer)
            else:
                exchange.answer(encode_refusal(error.message_id, error.refusal), 400)
            return None
        if type(message) is codec.Notification:
            version = head.headers.get(H_VERSION, b"")
            if version in _MODERN_HEADERS:
                exchange.reply(202)
            else:
                unsupported = modern_requests.unsupported_version(version.decode("latin-1"))
                exchange.answer(encode_refusal(b"null", unsupported), 400)
            return None
        if type(message) is not Request:
            fault = Refusal(INVALID_REQUEST, "a client sends no responses in 2026-07-28")
            exchange.answer(encode_refusal(b"null", fault), 400)
            return None
        climbed = modern_requests.validate_request(message, head.headers, head.doubled_routing)
        if isinstance(climbed, Refusal):
            exchange.answer(encode_refusal(message.id, climbed), climbed.mcp_status)
            return None
        return climbed

    def _legacy_post(self, exchange: Exchange, endpoint: UrlTarget, principal: Principal) -> None:
        plain = find_plain_request(exchange.body) if H_SESSION in exchange.head.headers else None
        if plain is not None and principal.ceiling is None:
            if (session := self._session_of(exchange, principal)) is not None:
                exchange.session = session
                call = session.front.request(session, *plain, exchange)
                if not exchange.ended:
                    exchange.running = call
            return
        try:
            message = decode_untrusted(exchange.body)
        except CodecError as error:
            session_id = exchange.head.headers.get(H_SESSION, b"").decode("latin-1")
            open_session = self.legacy.sessions.find(session_id, principal.name) if session_id else None
            stock = None if open_session is None else open_session.front.stock
            answer = None if stock is None else stock.find_unreadable_answer(exchange.body, is_modern=False)
            if answer is not None:
                exchange.answer(answer)
            elif H_SESSION not in exchange.head.headers or not codec.is_batch(exchange.body):
                exchange.answer(encode_refusal(error.message_id, error.refusal), 400)
            elif (session := self._session_of(exchange, principal)) is not None:
                serve_batch(session.front, session, exchange, error)
            return
        if type(message) is Request and message.method == INITIALIZE and H_SESSION not in exchange.head.headers:
            if self._postpone(self._legacy_post, exchange, endpoint, principal):
                return
            fronts, surface = self.surfaces.choose(endpoint.surface, principal, endpoint.only)
            opened = fronts.legacy.initialize(message, principal, "http", endpoint.only, endpoint.names)
            if isinstance(opened, Refusal):
                exchange.answer(encode_refusal(message.id, opened), 503 if opened.code == UNAVAILABLE else 400)
                return
            exchange.extra += b"mcp-session-id: %b\r\n" % opened.id.encode()
            opened.surface = surface
            opened.front.welcome(opened, message, exchange)
            return
        if (session := self._session_of(exchange, principal)) is None:
            return
        if type(message) is Request:
            if principal.ceiling is not None:
                params = codec.decode_object(message.params) or {}
                if self._is_beyond(session.caller, message.method, params, exchange):
                    return
            exchange.session = session
            call = session.front.handle(session, message, exchange)
            if not exchange.ended:
                exchange.running = call
        elif type(message) is codec.Response and not session.take_answer(message):
            fault = Refusal(INVALID_REQUEST, "no server asked for this answer, or it came too late")
            exchange.answer(encode_refusal(message.id, fault), 400)
        else:
            if type(message) is codec.Notification:
                session.front.handle(session, message, exchange)
            exchange.reply(202)

    def _session_of(self, exchange: Exchange, principal: Principal) -> ClientSession | None:
        if (session_id := exchange.head.headers.get(H_SESSION)) is None:
            fault = Refusal(INVALID_REQUEST, "the header Mcp-ClientSession-Id is missing; send initialize first")
            exchange.answer(encode_refusal(b"null", fault), 400)
            return None
        if (session := self.legacy.sessions.find(session_id.decode("latin-1"), principal.name)) is None:
            fault = Refusal(INVALID_REQUEST, "this session is unknown or has ended; send initialize again")
            exchange.answer(encode_refusal(b"null", fault), 404)
        elif session.caller.principal is not principal:
            session.caller.act_as(principal)
        return session

    def _is_beyond(self, caller: Caller, method: str, params: dict[str, Any], exchange: Exchange) -> bool:
        refusal = None if self.bearers is None else self.bearers.beyond(caller, method, params)
        if refusal is not None:
            _refuse(exchange, refusal)
        return refusal is not None

    # HTTP+SSE (2024-11-05)

    def _sse(self, exchange: Exchange, endpoint: UrlTarget, principal: Principal) -> None:
        if self._postpone(self._sse, exchange, endpoint, principal):
            return
        fronts, surface = self.surfaces.choose(endpoint.surface, principal, endpoint.only)
        stream = SseStream(fronts.legacy, exchange, endpoint, principal, self.sse_streams, surface)
        self.sse_streams[stream.id] = stream
        exchange.on_gone = stream.on_lost
        exchange.open_stream()
        exchange.send_chunk(encode_event(b"/messages?session=" + stream.id.encode(), event=b"endpoint"))

    def _sse_post(self, exchange: Exchange, endpoint: UrlTarget, principal: Principal) -> None:
        stream = self.sse_streams.get(endpoint.session or "")
        if stream is None or stream.principal.name != principal.name:
            _refuse(exchange, HttpRefusal("session_unknown", "this session is unknown or has ended; open /sse again"))
            return
        try:
            message = decode_untrusted(exchange.body)
        except CodecError as error:
            stream.caller_as(principal)
            try:
                stream.receive_batch(exchange.body, error)
                exchange.reply(202)
            except CodecError as refused:
                exchange.answer(encode_refusal(refused.message_id, refused.refusal), 400)
            return
        caller = stream.caller_as(principal)
        if caller is not None and type(message) is Request and principal.ceiling is not None:
            params = codec.decode_object(message.params) or {}
            if self._is_beyond(caller, message.method, params, exchange):
                return
        exchange.reply(202)
        stream.receive(message)

    # Ends

    def sweep(self, now: float) -> None:
        """End sessions, streams and connections that were idle or slow for too long, or would no longer be admitted."""
        self.connections.sweep(now)
        self.legacy.sessions.expire()
        self.dismiss_unwelcome()
        self.refusals.settle()

    def end_streams(self, principal: str | None = None, ending: str | None = None) -> None:
        """End the streams that carry only notifications. They would otherwise keep a node that is shutting down open.

        With `principal`, end only the streams of this principal. If `ending` is given, also end the sessions, with this
        text as the reason; otherwise they stay, so that a client with a newer token can continue.
        """
        for listener in list(self.modern.listeners):
            if principal in (None, listener.caller.principal.name):
                listener.finish()
                self.modern.stop_listening(listener)
        for session in list(self.legacy.sessions.by_id.values()):
            if principal in (None, session.caller.principal.name):
                streams = [stream for stream in session.streams if isinstance(stream, Exchange)]
                if ending is not None:
                    self.legacy.sessions.close(session, ending)
                for stream in streams:
                    session.detach(stream)
                    stream.end_stream()

    def end_sse(self, principal: str | None = None) -> None:
        """End the streams of the HTTP+SSE transport and their sessions, of one principal or of all.

        A draining node ends them last, because they carry answers.
        """
        for stream in list(self.sse_streams.values()):
            if principal in (None, stream.principal.name):
                stream.exchange.end_stream()
                stream.on_lost()

    def dismiss_unwelcome(self) -> None:
        """End the notification streams of principals that are no longer admitted. If their token was revoked, end their
        sessions too.

        If an access token of an authorization server has expired, its sessions stay.
        """

        names = {listener.caller.principal.name for listener in self.modern.listeners}
        names |= {session.caller.principal.name for session in self.legacy.sessions.by_id.values()}
        for name in names | {stream.principal.name for stream in self.sse_streams.values()}:
            is_revoked = not self.tokens.stands(name)
            if is_revoked or self.tokens.has_lapsed(name):
                self.end_streams(name, "the credential was revoked" if is_revoked else None)
                self.end_sse(name)
        self.dismiss_others()


def _fail(exchange: Exchange) -> None:
    ref = secrets.token_hex(6)
    log.exception("internal error %s", ref)
    try:
        message = decode_untrusted(exchange.body)
        message_id = b"null" if isinstance(message, codec.Notification) else message.id
    except CodecError:
        message_id = b"null"
    exchange.answer(encode_refusal(message_id, internal(ref)), 200)


def _refuse(exchange: Exchange, refusal: HttpRefusal) -> None:
    if refusal.headers:
        exchange.extra += refusal.headers
    if refusal.status == 204:
        exchange.reply(204)
        return
    body = {"error": refusal.code, "message": refusal.message, "details": {}}
    exchange.reply(refusal.status, msgspec.json.encode(body))


def _with_lines(refusal: HttpRefusal | None, lines: bytes) -> HttpRefusal | None:
    return (
        msgspec.structs.replace(refusal, headers=lines + refusal.headers) if refusal is not None and lines else refusal
    )


PROXY_HEADERS: Final = frozenset(
    (
        *(b"forwarded", b"via", b"x-forwarded-for", b"x-forwarded-host", b"x-forwarded-proto"),
        *(b"x-real-ip", b"x-client-ip", b"cf-connecting-ip", b"true-client-ip"),
    )
)
_UNAUTHORISED: Final = HttpRefusal(
    "unauthorised",
    "a valid bearer token is needed; interlock access token --for client --name NAME makes one",
    headers=b"www-authenticate: Bearer\r\n",
)
_BUSY: Final = HttpRefusal(
    "unavailable", "too many access tokens are being verified; try again", headers=b"retry-after: 5\r\n"
)


# What is not MCP

App = Callable[..., Any]
Header = tuple[bytes, bytes]

_JSON: Final[Header] = (b"content-type", b"application/json")
_OPEN: Final[list[Header]] = [  # web pages look for these documents before they have any credential
    (b"access-control-allow-origin", b"*"),
    (b"access-control-allow-methods", b"GET"),
    (b"access-control-allow-headers", b"*"),
    (b"cache-control", b"max-age=300"),
]


def public_app(settled: Callable[[], bool], documents: Mapping[str, bytes], apps: Mapping[str, App]) -> App:
    """Return an ASGI application that serves /healthz, /readyz, and `documents` by path.

    `apps` serve other paths: a path that ends in a slash includes all paths that begin with it.
    """
    by_path = {path: app for path, app in apps.items() if not path.endswith("/")}
    by_start = tuple((path, app) for path, app in apps.items() if path.endswith("/"))

    async def app(scope: dict[str, Any], receive: Callable[..., Any], send: Callable[..., Any]) -> None:
        other = by_path.get(scope["path"]) or next(
            (app for start, app in by_start if scope["path"].startswith(start)), None
        )
        if other is not None:
            await other(scope, receive, send)
            return
        path, method = scope["path"], scope["method"]
        document = documents.get(path)
        headers: list[Header] = [] if document is None else list(_OPEN)
        if document is not None and method == "OPTIONS":
            status, body = 204, b""
        elif document is None and path not in ("/healthz", "/readyz"):
            status, body = 404, b'{"error":"not_found","message":"MCP is at /mcp","details":{}}'
        elif method not in ("GET", "HEAD"):
            status, body = 405, b'{"error":"method_not_allowed","message":"use GET","details":{}}'
            headers.append((b"allow", b"GET, HEAD"))
        elif document is not None:
            status, body = 200, document
        elif path == "/readyz" and not settled():
            status, body = 503, b'{"status":"starting","program":"interlock"}'
        else:
            status, body = 200, b'{"status":"ok","program":"interlock"}'
        if body:
            headers += [_JSON, (b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": b"" if method == "HEAD" else body})

    return app
