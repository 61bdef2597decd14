"""The parent as a client: its requests on the link that we opened are served like those of all clients (MCP-AX 5).

Each request is served in the era that it declares. A request that declares none is served in the session that the
parent opened with `initialize`, or, as the draft shows it, without a greeting at all. Names are dotted and without a
root segment: the parent puts our segment in front. Unasked, the front sends changes of lists, notices of the tree below
and logs.

The number of requests under way is limited (RUNNING_MAX, LISTENS_MAX), because each keeps memory here until the parent
cancels it or hangs up.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from msgspec import Raw

from interlock.ax.protocol.messages import CONFIRM
from interlock.config.plan import NameForm
from interlock.core.calls.call import Call
from interlock.core.calls.caller import VIA_AX, Hop, Principal
from interlock.core.calls.check import BUSY
from interlock.fronts.audience import Audience
from interlock.fronts.legacy import LegacyFront
from interlock.fronts.modern import EVENTS, ListenStream, ModernFront
from interlock.fronts.sessions import CHANGED, ClientSession
from interlock.mcp.methods import CANCELLED, INITIALIZE, LATEST_LEGACY, LISTEN, LOG_MESSAGE, META_VERSION
from interlock.mcp.modern_requests import ValidatedRequest, validate_request, validate_request_without_headers
from interlock.wire.jsonrpc import codec as jsonrpc
from interlock.wire.refusal import INVALID_REQUEST, METHOD_NOT_FOUND, UNAVAILABLE, Refusal

NAMES: Final[NameForm] = "qualified"
RUNNING_MAX: Final = 10_000  # calls and streams of one parent under way
LISTENS_MAX: Final = 16  # a parent needs one, and another one while it replaces it
AX_PREFIX: Final = "mcpax/"

_NO_GREETING: Final = Raw(jsonrpc.encode_value({"protocolVersion": LATEST_LEGACY}))
_STOPPING: Final = Refusal(UNAVAILABLE, "unavailable", {"reason": "node_stopping"})


@dataclass(eq=False)
class UpwardFront:
    """Front for the parent of one registration: serves the parent's requests like those of a client.

    It is the Tenant of the uplink, a Member of the audience, and the Sink of messages that belong to no request.
    """

    _legacy: LegacyFront
    _modern: ModernFront
    _audience: Audience
    _principal: Principal
    segment: str  # that the parent assigned to this node
    _send: Callable[[bytes], bool] | None
    _only: str | None = None  # the only link that the parent sees, with the names that the link itself uses

    def __post_init__(self) -> None:
        self._hop = Hop(self.segment)
        self._session: ClientSession | None = None
        self._plain: ClientSession | None = None  # for requests of a parent that sends no greeting
        self._running: dict[bytes, Call | ListenStream] = {}
        self._listens = 0
        self._closing = False
        self.caller = self._modern.caller(self._principal, VIA_AX, self._only, NAMES)
        self.caller.hop = self._hop
        self._audience.join(self)

    def close(self) -> None:
        """Accept no new requests, because the node stops. Requests under way are still answered."""
        self._closing = True

    # Tenant

    def take(self, data: bytes) -> bool:
        """Serve a request of the modern era. Return False, without serving it, if `data` is any other message.

        Return False also for a request of MCP-AX, and for every message once the node stops.
        """
        request = None if self._closing else validate_request_without_headers(data)
        if request is None or request.method.startswith(AX_PREFIX):
            return False
        self._serve_modern(request)
        return True

    def serve(self, request: jsonrpc.Request) -> None:
        if self._closing:
            self._refuse(request.id, _STOPPING)
            return
        if request.method.startswith(AX_PREFIX) and request.method != CONFIRM:
            refusal = Refusal(METHOD_NOT_FOUND, "Method not found", {"method": request.method[:100]})
            self._refuse(request.id, refusal)
            return
        validated = validate_request(request, None)
        if not isinstance(validated, Refusal):
            self._serve_modern(validated)
        elif self._session is not None:
            self._legacy.handle(self._session, request, self)
        elif request.method == INITIALIZE:
            if (session := self._open_session(request, request.params)) is not None:
                session.knows_tree = True
                self._session = session
                self._legacy.welcome(session, request, self)
        elif _declares_no_era(request):  # as the draft shows: lists and calls without `initialize` (MCP-AX 5.1, 5.2)
            self._plain = self._plain or self._open_session(request, _NO_GREETING)
            if self._plain is not None:
                self._legacy.handle(self._plain, request, self)
        else:
            self._refuse(request.id, validated)

    def hear(self, notification: jsonrpc.Notification) -> None:
        if notification.method == CANCELLED:
            params = jsonrpc.decode_object(notification.params) or {}
            running = self._running.pop(bytes(params.get("requestId", b"")), None)
            if running is not None:
                self._stop(running, jsonrpc.find_string(params.get("reason")))
                return
        session = self._session or self._plain
        if session is not None:
            self._legacy.handle(session, notification, self)

    def hear_answer(self, response: jsonrpc.Response) -> None:
        if self._session is not None:
            self._legacy.handle(self._session, response, self)

    def leave(self) -> None:
        self._send = None
        self._audience.leave(self)
        for session in (self._session, self._plain):
            if session is not None:
                self._legacy.sessions.close(session, "the parent went away")
        running, self._running = self._running, {}
        for request in running.values():
            self._stop(request, "the parent went away")

    # The eras

    def _open_session(self, request: jsonrpc.Request, greeting: Raw) -> ClientSession | None:
        """Open a session for the parent. Return None if the request was refused."""
        initialize = jsonrpc.Request(request.id, INITIALIZE, greeting)
        opened = self._legacy.initialize(initialize, self._principal, VIA_AX, self._only, NAMES)
        if isinstance(opened, Refusal):
            self._refuse(request.id, opened)
            return None
        opened.caller.hop = self._hop
        opened.attach(self)
        return opened

    def _serve_modern(self, request: ValidatedRequest) -> None:
        if request.id in self._running:
            self._refuse(request.id, Refusal(INVALID_REQUEST, "this id is in use by a request under way"))
            return
        is_listen = request.method == LISTEN
        if len(self._running) >= RUNNING_MAX or (is_listen and self._listens >= LISTENS_MAX):
            self._refuse(request.id, BUSY)
            return
        if is_listen and EVENTS in request.meta:  # this front sends the events already: not twice
            meta = {key: value for key, value in request.meta.items() if key != EVENTS}
            request = ValidatedRequest(request.id, request.method, request.params, meta)
        reply = _Reply(self, request.id)
        running = self._modern.handle(self.caller, request, reply, None, NAMES)
        if running is not None and not reply.is_over:
            self._running[request.id] = running
            self._listens += is_listen

    def _stop(self, running: Call | ListenStream, reason: str | None) -> None:
        if isinstance(running, ListenStream):
            self._listens -= 1
            self._modern.stop_listening(running)
        else:
            running.cancel(reason or "cancelled by the parent")

    def over(self, request_id: bytes) -> None:
        """Forget a request that was answered, or that will never be answered."""
        if isinstance(self._running.pop(request_id, None), ListenStream):
            self._listens -= 1

    # Sink

    def emit(self, message: bytes) -> None:
        if self._send is not None:
            self._send(message)

    def answer(self, message: bytes, status: int = 200) -> None:
        self.emit(message)

    def drop(self) -> None:
        pass

    def _refuse(self, request_id: bytes, refusal: Refusal) -> None:
        self.emit(jsonrpc.encode_refusal(request_id, refusal, draft=True))

    # Member of the audience. A legacy session and a modern stream are members themselves, and get the events there.

    def on_lists_changed(self, kind: str) -> None:
        if self._session is None and not self._listens:
            self.emit(jsonrpc.encode_notification(CHANGED[kind].encode(), b""))

    def on_resource_updated(self, params: bytes) -> None:
        pass

    def on_log(self, params: Raw) -> None:
        if self._session is None:
            self.emit(jsonrpc.encode_notification(LOG_MESSAGE.encode(), bytes(params)))

    def tell_legacy(self, message: bytes) -> None:
        pass

    def on_vendor_notification(self, notification: jsonrpc.Notification) -> None:
        """Ignore the notification.

        A parent receives vendor-specific notifications of registered subservers only (MCP-AX 12). Those of configured
        servers are meant for clients.
        """

    def on_notice(self, notice: jsonrpc.Notification) -> None:
        if self._session is None:
            self.emit(jsonrpc.encode_notification(notice.method.encode(), bytes(notice.params)))


def _declares_no_era(request: jsonrpc.Request) -> bool:
    """Return whether a request lacks the declaration of the modern era."""
    params = jsonrpc.decode_object(request.params) if request.params else {}
    meta = jsonrpc.decode_object(params.get("_meta", Raw(b"{}"))) if params is not None else None
    return meta is not None and META_VERSION not in meta


class _Reply:
    """Sink that sends the answer to one request of the parent."""

    __slots__ = ("_front", "_id", "is_over")

    def __init__(self, front: UpwardFront, request_id: bytes) -> None:
        self._front = front
        self._id = request_id
        self.is_over = False

    def emit(self, message: bytes) -> None:
        self._front.emit(message)

    def answer(self, message: bytes, status: int = 200) -> None:
        self.drop()
        self._front.emit(message)

    def drop(self) -> None:
        self.is_over = True
        self._front.over(self._id)
