"""The tools of a participant, called by the others inside `mcp` envelopes (X-1-2).

A request is served where its `to` names us; a broadcast is seen, and neither performed nor answered. Answers carry the
request's envelope in `correlation_id`, and where it fulfils a proposal they go to the proposer too (X-4.2.1-4).
"""

import logging
from collections.abc import Callable
from typing import Final

from interlock.mcp.methods import CANCELLED
from interlock.rooms.protocol.envelope import Envelope
from interlock.sdk.subserver.mcp_server import McpServer, Offer
from interlock.wire.jsonrpc.codec import decode_object
from interlock.wire.jsonrpc.messages import Notification, Request

log = logging.getLogger("interlock.rooms")

RUNNING_MAX: Final = 1000  # requests that may still be cancelled

Reply = Callable[[Envelope, bytes], bool]


class ToolService:
    def __init__(self, offer: Offer, reply: Reply) -> None:
        """`reply` sends a payload to whoever sent that envelope."""
        self._offer = offer
        self._reply = reply
        self._running: dict[tuple[str, bytes], McpServer] = {}  # by sender and JSON-RPC id

    def serve(self, envelope: Envelope, request: Request) -> None:
        """One server for each request: JSON-RPC ids repeat between participants, envelope ids do not (X-4.1-4)."""
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

    def hear(self, envelope: Envelope, notification: Notification) -> None:
        if notification.method != CANCELLED or not notification.params:
            return
        id = bytes((decode_object(notification.params) or {}).get("requestId", b""))
        server = self._running.pop((envelope.sender or "", id), None)
        if server is not None:
            server.hear(notification)


_NOTIFIES: Final = b'{"jsonrpc":"2.0","method":'
