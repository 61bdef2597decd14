"""HTTP+SSE of 2024-11-05 at the front: one client is a stream down and POSTs up."""

import secrets
from collections.abc import Callable

from interlock.core.calls.caller import Caller, Principal
from interlock.fronts.batch import begin_batch_untrusted
from interlock.fronts.exchange import Exchange
from interlock.fronts.legacy import LegacyFront
from interlock.fronts.request_head import UrlTarget
from interlock.fronts.sessions import ClientSession
from interlock.mcp.methods import INITIALIZE
from interlock.wire.jsonrpc.codec import CodecError, Notification, Request, Response, encode_refusal
from interlock.wire.refusal import INVALID_REQUEST, Refusal


class SseStream:
    """The stream of one client. It is the sink of every answer to the client."""

    def __init__(
        self,
        front: LegacyFront,
        exchange: Exchange,
        endpoint: UrlTarget,
        principal: Principal,
        on_gone: Callable[["SseStream"], None],
        surface: str = "",
    ) -> None:
        """Create a stream; `surface` says which surface the client gets, and why."""
        self._surface = surface
        self.id = secrets.token_urlsafe(24)
        self.exchange = exchange
        self.principal = principal
        self._front = front
        self._on_gone = on_gone
        self._endpoint = endpoint
        self._session: ClientSession | None = None

    # Sink: everything goes down the one stream

    def emit(self, message: bytes) -> None:
        self.exchange.emit(message)

    def answer(self, message: bytes, status: int = 200) -> None:
        self.exchange.emit(message)

    def drop(self) -> None:
        pass

    def caller_as(self, principal: Principal) -> Caller | None:
        """Return the client with the credential of its newest POST, or None before it has a session."""
        self.principal = principal
        caller = None if self._session is None else self._session.caller
        if caller is not None and caller.principal is not principal:
            caller.act_as(principal)
        return caller

    def receive(self, message: Request | Notification | Response) -> None:
        front = self._front
        if self._session is None:
            if not isinstance(message, Request) or message.method != INITIALIZE:
                if isinstance(message, Request):
                    self.answer(encode_refusal(message.id, Refusal(INVALID_REQUEST, "send initialize first")))
                return
            opened = front.initialize(message, self.principal, "sse", self._endpoint.only, self._endpoint.names)
            if isinstance(opened, Refusal):
                self.answer(encode_refusal(message.id, opened))
                return
            self._session = opened
            opened.surface = self._surface
            opened.attach(self)
            front.welcome(opened, message, self)
            return
        front.handle(self._session, message, self)

    def receive_batch(self, data: bytes, unreadable: CodecError) -> None:
        """Serve a batch of the client's session. Raises CodecError."""
        if self._session is None:
            raise unreadable
        begin_batch_untrusted(self._front, self._session, data, unreadable, self)

    def on_lost(self) -> None:
        self._on_gone(self)
        if self._session is not None:
            self._session.detach(self)
            self._front.sessions.close(self._session, "the stream ended")
