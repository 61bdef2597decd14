"""MCPx v0 (`mcp-x/v0`): translation of envelopes for connections that speak it (MCPx 6.3).

v0 has the kinds mcp, presence and system. In v0 a chat message is a broadcast MCP notification, a proposal a system
event.
"""

from typing import Any, Final

import msgspec
from msgspec import Raw

from interlock.rooms.protocol.enforcement import CHAT, MCP, PROPOSAL, SYSTEM
from interlock.rooms.protocol.envelope import V0, Envelope, encode
from interlock.rooms.protocol.participants import GATEWAY

CHAT_METHOD: Final = "notifications/chat/message"

_encode = msgspec.json.Encoder().encode


class _Notification(msgspec.Struct):
    method: str = ""
    params: Raw = Raw(b"")
    id: Raw = Raw(b"")


def read_v0(envelope: Envelope) -> Envelope:
    """Convert an envelope of a v0 client before it is checked: its chat gets the kind `chat`, so that restricted
    clients may chat.
    """
    if envelope.kind != MCP or envelope.to:
        return envelope
    try:
        notification = msgspec.json.decode(envelope.payload, type=_Notification)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return envelope
    if notification.method != CHAT_METHOD or notification.id or bytes(notification.params)[:1] != b"{":
        return envelope
    return msgspec.structs.replace(envelope, kind=CHAT, payload=bytes(notification.params))  # X-4.1-2


def encode_v0(envelope: Envelope) -> bytes:
    """Return the bytes that a v0 connection receives."""
    payload, kind, sender = envelope.payload, envelope.kind, envelope.sender
    if kind == CHAT:
        kind, payload = MCP, b'{"jsonrpc":"2.0","method":"%b","params":%b}' % (CHAT_METHOD.encode(), payload)
    elif kind == PROPOSAL:
        event = {"event": "proposal", "type": "proposal", "proposer": sender, "proposal": Raw(payload)}
        kind, payload, sender = SYSTEM, _encode(event), GATEWAY
    elif kind == SYSTEM:
        payload = _as_v0_event(payload)
    elif kind not in (MCP, "presence"):
        event = {"event": "message", "type": "message", "kind": kind, "sender": sender, "payload": Raw(payload)}
        kind, payload, sender = SYSTEM, _encode(event), GATEWAY
    return encode(msgspec.structs.replace(envelope, kind=kind, payload=payload, sender=sender), V0)


def _as_v0_event(payload: bytes) -> bytes:
    """Add the names that v0 and its published client use for members of an event, which differ from each other
    (X-6.3-4).
    """
    if not payload.startswith((b'{"event":"welcome"', b'{"event":"error"')):
        return payload  # as it is: what others sent may stand in it
    event: dict[str, Any] = msgspec.json.decode(payload)
    event["type"] = event["event"]
    if event["event"] == "welcome":
        event["participant_id"] = event["participant"]["id"]
        event["protocol"] = V0
        event["history"] = []
    return _encode(event)
