"""Envelopes: the one object around every message of a room, decoded and encoded (MCPx 4).

`decode_untrusted` takes bytes from outside and returns an Envelope or a Refusal, in linear time. The payload, and
members that MCPx does not define, stay the bytes that were received.

Two readers of one envelope must never see different things, because the gateway checks what participants act on. So
members that occur twice are refused, and members that differ from a known one only in case. Limits on size, nesting and
the number of brackets bound what a reader has to do.

Clients of v0 are served by conversion: `read_v0` before the checks, `encode_v0` when an envelope is delivered (MCPx
6.3).

The last section has the gateway's own messages: welcome, presence, errors, violations and events (MCPx 4.4). Each
function returns one envelope from `system:gateway`; the caller passes its id and time.
"""

import re
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any, Final, Literal

import msgspec
from msgspec import Raw

from interlock.rooms.protocol.participants import GATEWAY, Participant, Privilege
from interlock.wire.jsonrpc.codec import hide
from interlock.wire.jsontext.canonical import find_doubled_keys, nesting_depth
from interlock.wire.refusal import Refusal

# The codes of refused envelopes and of refused decisions on proposals.
CODES: Final = (
    "invalid_json invalid_envelope invalid_proposal invalid_chat unsupported_protocol unknown_kind kind_not_allowed"
    " reserved_kind from_mismatch duplicate_id envelope_too_large rate_limited one_recipient not_proposer"
    " already_claimed proposal_expired unknown_proposal self_approval target_absent privilege_violation unavailable"
    " unknown_topic room_full removed history_gap input_invalid secret_found execution_refused"
)

# MCPx 4.4.2, to the letter.
VIOLATION_CODE: Final = -32001  # X-4.4.2-2
VIOLATION_MESSAGE: Final = "Privilege violation"  # X-4.4.2-2
VIOLATION_REASON: Final = "Restricted participants cannot send MCP messages directly"
VIOLATION_SUGGESTION: Final = "Use kind: 'mcp/proposal' instead"


class EnvelopeRefusal(Refusal, frozen=True, kw_only=True):
    """The refusal of an envelope, or of a decision on a proposal. Its code is one of `CODES`."""

    id: str | None = None  # of the envelope, if it could be read
    answers: bytes = b"null"  # the JSON-RPC id that a privilege violation is answered under


def violation_error() -> dict[str, Any]:
    data = {"reason": VIOLATION_REASON, "suggestion": VIOLATION_SUGGESTION}
    return {"code": VIOLATION_CODE, "message": VIOLATION_MESSAGE, "data": data}


V01: Final = "mcpx/v0.1"
V0: Final = "mcp-x/v0"
PROTOCOLS: Final = (V01, V0)  # X-6.3-2

# The kinds of envelopes (MCPx 4). `mcp/reject` and `mcp/withdraw` are decisions for the tracker of proposals. They are
# not published: the room learns about them by an event (X-N-6). Their names are those of MEW.
MCP: Final = "mcp"
PROPOSAL: Final = "mcp/proposal"
CHAT: Final = "chat"
PRESENCE: Final = "presence"
SYSTEM: Final = "system"
REJECT: Final = "mcp/reject"
WITHDRAW: Final = "mcp/withdraw"

ENVELOPE_BYTES_MAX: Final = 1024 * 1024
NESTING_MAX: Final = 64
ID_CHARS_MAX: Final = 128
RECIPIENTS_MAX: Final = 100
KIND_CHARS_MAX: Final = 64
BRACKETS_MAX: Final = 100_000  # of arrays and objects: looking at each takes time

_KNOWN: Final = frozenset(("protocol", "id", "ts", "from", "to", "kind", "correlation_id", "payload"))
_STAMP: Final = re.compile(r"\d{4}-\d\d-\d\d[Tt]\d\d:\d\d:\d\d(\.\d{1,9})?([Zz]|[+-]\d\d:\d\d)")
_FRACTION: Final = re.compile(r"\.\d+")
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f]")

_decode_members = msgspec.json.Decoder(dict[str, Raw]).decode
_decode_string = msgspec.json.Decoder(str, strict=True).decode
_decode_ids = msgspec.json.Decoder(list[str], strict=True).decode
_encode = msgspec.json.Encoder().encode


class Envelope(msgspec.Struct, frozen=True, kw_only=True):
    """An envelope of a room. `payload` and `extra` are raw JSON. `sender` holds the member `from`."""

    id: str
    kind: str
    payload: bytes
    protocol: str | None = V01  # None: it was not said
    sender: str | None = None  # `from`
    to: tuple[str, ...] | None = None
    ts: str | None = None
    correlation_id: str | None = None
    extra: bytes = b""  # members without a meaning here, each with a comma before it

    def members(self) -> dict[str, Raw]:
        """Return the members of the payload, each as raw JSON. Do not call this for kind `mcp` (X-3.2-3)."""
        return _decode_members(self.payload)


def encode(envelope: Envelope, protocol: str = V01) -> bytes:
    """Return the JSON bytes that participants receive in this protocol version."""
    to = b"" if envelope.to is None else b',"to":%b' % _encode(envelope.to)
    answers = b"" if envelope.correlation_id is None else b',"correlation_id":%b' % _encode(envelope.correlation_id)
    return b'{"protocol":"%b","id":%b,"ts":"%b","from":%b%b,"kind":%b%b,"payload":%b%b}' % (
        protocol.encode(),
        _encode(envelope.id),
        (envelope.ts or "").encode(),
        _encode(envelope.sender),
        to,
        _encode(envelope.kind),
        answers,
        envelope.payload,
        envelope.extra,
    )


def decode_untrusted(data: bytes, max_bytes: int = ENVELOPE_BYTES_MAX) -> Envelope | EnvelopeRefusal:
    """Decode an envelope that was received, or return why it is invalid. Size, JSON and fields are checked in the order
    of X-5.3-1.
    """
    if len(data) > max_bytes:
        why = f"an envelope has at most {max_bytes} bytes, this one has {len(data)}; larger data is for MCP resources"
        return EnvelopeRefusal("envelope_too_large", why, {"limit": max_bytes, "size": len(data)})
    members = _members_untrusted(data)
    if isinstance(members, EnvelopeRefusal):
        return members
    if "id" not in members:
        return EnvelopeRefusal("invalid_envelope", "the member 'id' is missing")
    wrong: str | None
    id = decode_text(members["id"])
    if id is None or not 0 < len(id) <= ID_CHARS_MAX or _CONTROL.search(id) is not None:  # X-4-3
        wrong = f"'id' is a string of 1 to {ID_CHARS_MAX} characters without control characters"
        return EnvelopeRefusal("invalid_envelope", wrong)
    if "kind" not in members:
        return EnvelopeRefusal("invalid_envelope", "the member 'kind' is missing", id=id)
    kind = decode_text(members["kind"])
    if kind is None or len(kind) > KIND_CHARS_MAX:
        return EnvelopeRefusal("unknown_kind", f"'kind' is a string of at most {KIND_CHARS_MAX} characters", id=id)
    payload = bytes(members.get("payload", b""))  # X-4.1-1: as it came
    if payload[:1] != b"{":
        wrong = "'payload' is an object" if payload else "the member 'payload' is missing"
        return EnvelopeRefusal("invalid_envelope", wrong, id=id)
    recipients: tuple[str, ...] | None = None
    texts: dict[str, str] = {}
    for name in ("from", "to", "ts", "correlation_id"):
        raw = members.get(name)
        if raw is None or (name == "to" and bytes(raw) == b"null"):
            continue
        text = None if name == "to" else decode_text(raw)
        wrong = None
        if name == "to":
            try:
                recipients = tuple(_decode_ids(raw))
            except (msgspec.DecodeError, UnicodeDecodeError):
                wrong = "'to' is an array of participant ids"
            else:
                if len(recipients) > RECIPIENTS_MAX or max(map(len, recipients), default=0) > ID_CHARS_MAX:
                    wrong = f"'to' names at most {RECIPIENTS_MAX} participants, each by its id"
        elif text is None:
            wrong = f"{name!r} is a string"
        elif name == "ts" and (_STAMP.fullmatch(text) is None or not _is_date(text)):
            wrong = "'ts' is an RFC 3339 time with its zone, such as 2025-08-26T14:00:00Z"
        elif name == "correlation_id" and len(text) > ID_CHARS_MAX:
            wrong = f"'correlation_id' has at most {ID_CHARS_MAX} characters"
        else:
            texts[name] = text
        if wrong is not None:
            return EnvelopeRefusal("invalid_envelope", wrong, id=id)
    protocol = members.get("protocol")
    return Envelope(
        id=id,
        kind=kind,
        payload=payload,
        # A value that is no string becomes "". Enforcement refuses it later, as it does an unknown protocol.
        protocol=None if protocol is None else decode_text(protocol) or "",
        sender=texts.get("from"),
        to=recipients,
        ts=texts.get("ts"),
        correlation_id=texts.get("correlation_id"),
        extra=b"".join(b",%b:%b" % (_encode(key), value) for key, value in members.items() if key not in _KNOWN),
    )


def _members_untrusted(data: bytes) -> dict[str, Raw] | EnvelopeRefusal:
    """Decode the top-level members of an envelope. Return a refusal if two JSON parsers could read them differently."""
    try:
        data.decode()
        members = decode_members(data)
    except UnicodeDecodeError:
        return EnvelopeRefusal("invalid_json", "an envelope is UTF-8")
    except msgspec.ValidationError:
        return EnvelopeRefusal("invalid_envelope", "an envelope is one JSON object")
    except (msgspec.DecodeError, RecursionError):
        return EnvelopeRefusal("invalid_json", "an envelope is JSON, one object in each message")
    if data.count(b"{") + data.count(b"[") > BRACKETS_MAX:
        return EnvelopeRefusal("invalid_json", f"an envelope holds at most {BRACKETS_MAX} arrays and objects")
    if data.count(b"{") + data.count(b"[") > NESTING_MAX and nesting_depth(data) > NESTING_MAX:
        return EnvelopeRefusal("invalid_json", f"an envelope is nested at most {NESTING_MAX} levels deep")
    # Readers who ignore case take a member such as "KIND" for a member of MCPx.
    variant = next((key for key in members if key not in _KNOWN and key.casefold() in _KNOWN), None)
    doubled = _find_duplicate_member(members, data) or variant
    if doubled is not None:
        why = f"the member {doubled[:100]!r} occurs twice; readers may take either"
        return EnvelopeRefusal("invalid_envelope", why)
    return members


def decode_members(data: bytes) -> dict[str, Raw]:
    """Decode the top-level members of a JSON object, each as raw JSON. Text that msgspec cannot decode stays as it is
    written. Raise DecodeError or UnicodeDecodeError if the data is no object.
    """
    try:
        return _decode_members(data)
    except msgspec.ValidationError:
        raise
    except (msgspec.DecodeError, UnicodeDecodeError):
        if (hidden := hide(data)) is None:
            raise
        return {key: hidden.show(value) for key, value in _decode_members(hidden.data).items()}


def _find_duplicate_member(members: dict[str, Raw], data: bytes) -> str | None:
    """Return the name of a top-level member that occurs twice, or None. Compact JSON without duplicates is recognized
    by its length.
    """
    if data.isascii() and len(data) == 1 + sum(len(key) + len(value) + 4 for key, value in members.items()):
        return None
    return next(iter(find_doubled_keys(data)), None)


def decode_text(raw: Raw | None) -> str | None:
    """Return the text that raw JSON contains, or None if it is missing or no text."""
    try:
        return _decode_string(raw or b"")
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def parse_moment(text: str) -> float | None:
    """Convert an RFC 3339 time to UNIX seconds, or return None if the text is no such time."""
    if _STAMP.fullmatch(text) is None:
        return None
    text = _FRACTION.sub(lambda fraction: fraction[0][:7].ljust(7, "0"), text.upper())
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        return None


def _is_date(text: str) -> bool:
    try:
        datetime.fromisoformat(text[:19].upper())
    except ValueError:
        return text[17:19] == "60"  # a leap second
    return True


CHAT_METHOD: Final = "notifications/chat/message"


class _Notification(msgspec.Struct):
    """The members of a JSON-RPC message that show whether an `mcp` envelope of MCPx v0 contains a chat message."""

    method: str = ""
    params: Raw = Raw(b"")
    id: Raw = Raw(b"")


def read_v0(envelope: Envelope) -> Envelope:
    """Convert an envelope of a client with MCPx v0 before it is checked. Chat messages get the kind `chat`, so that
    restricted clients may send them.
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
    """Return the JSON bytes of an envelope for a client with MCPx v0."""
    payload, kind, sender = envelope.payload, envelope.kind, envelope.sender
    event: dict[str, Any]
    if kind == CHAT:
        kind, payload = MCP, b'{"jsonrpc":"2.0","method":"%b","params":%b}' % (CHAT_METHOD.encode(), payload)
    elif kind == PROPOSAL:
        event = {"event": "proposal", "type": "proposal", "proposer": sender, "proposal": Raw(payload)}
        kind, payload, sender = SYSTEM, _encode(event), GATEWAY
    elif kind == SYSTEM:
        # Only events that the gateway itself wrote are read: others may hold what participants sent.
        if payload.startswith((b'{"event":"welcome"', b'{"event":"error"')):
            # v0 and its published client use names for members of an event that differ from ours (X-6.3-4).
            event = msgspec.json.decode(payload)
            event["type"] = event["event"]
            if event["event"] == "welcome":
                event |= {"participant_id": event["participant"]["id"], "protocol": V0, "history": []}
            payload = _encode(event)
    elif kind not in (MCP, "presence"):
        event = {"event": "message", "type": "message", "kind": kind, "sender": sender, "payload": Raw(payload)}
        kind, payload, sender = SYSTEM, _encode(event), GATEWAY
    return encode(msgspec.structs.replace(envelope, kind=kind, payload=payload, sender=sender), V0)


# The gateway's own messages

HISTORY_DEFAULT: Final = 100
HISTORY_MAX: Final = 1000


class Stamp(msgspec.Struct, frozen=True):
    """The id and the timestamp of one message of the gateway."""

    id: str
    ts: str


def system_event(
    stamp: Stamp, payload: Any, *, to: str | None = None, answers: str | None = None, kind: str = SYSTEM
) -> Envelope:
    """Return an event of the gateway, for everyone or for the participant `to`. `answers` is the id of the envelope to
    which the event replies.
    """
    recipients, text = None if to is None else (to,), _encode(payload)
    return Envelope(
        id=stamp.id, ts=stamp.ts, sender=GATEWAY, to=recipients, kind=kind, correlation_id=answers, payload=text
    )


def welcome(
    stamp: Stamp, topic: str, who: Participant, others: Iterable[Participant], *, keeps_history: bool, last: int
) -> Envelope:
    """Return the first message on a new connection, which only this connection receives (X-4.4.1-1). `last` is the
    sequence number of the newest stored envelope.
    """
    payload = {
        "event": "welcome",
        "participant": who.described(),  # X-4.4.1-1
        "participants": [other.described() for other in others],
        "protocol": V01,  # X-4.4.1-1
        "topic": topic,
        "history": {"enabled": keeps_history, "limit": HISTORY_DEFAULT},
        "sequence": last,
    }
    return system_event(stamp, payload, to=who.id)


def sequence(stamp: Stamp, number: int, of: str) -> Envelope:
    """Return the event that reports the sequence number of the envelope with the id `of` (X-N-4)."""
    return system_event(stamp, {"event": "sequence", "sequence": number}, answers=of)


def presence(stamp: Stamp, event: Literal["join", "leave", "heartbeat"], who: Participant) -> Envelope:
    """Return the event that reports that a participant joined, left or is still present (X-4.4.1)."""
    return system_event(stamp, {"event": event, "participant": who.described()}, kind=PRESENCE)


def refusal(stamp: Stamp, to: str, refused: EnvelopeRefusal) -> Envelope:
    """Return the reply to a refused envelope: the violation of MCPx 4.4.2, or an error event (X-4-14)."""
    if refused.code == "privilege_violation":  # X-4.4.2-1
        # X-4.4.2-2, X-4.4.2-3
        body = {"jsonrpc": "2.0", "id": Raw(refused.answers), "error": violation_error()}
        return system_event(stamp, body, to=to, answers=refused.id, kind=MCP)
    payload = {"event": "error", "code": refused.code, "message": refused.message, "details": refused.details or {}}
    return system_event(stamp, payload, to=to, answers=refused.id)


def privilege_changed(stamp: Stamp, who: Participant, old: Privilege, by: str) -> Envelope:
    """Return the event that reports a participant's new privilege. `by` is the admin who changed it."""
    new = who.privilege.value
    payload = {"event": "privilege_changed", "participant": {"id": who.id, "privilege": new}}
    return system_event(stamp, {**payload, "oldPrivilege": old.value, "newPrivilege": new, "by": by})  # X-5.1-5


def history(stamp: Stamp, to: str, envelopes: Sequence[tuple[int, bytes]], *, more: bool) -> Envelope:
    """Return an event that contains old envelopes. Because they are wrapped in an event, no receiver mistakes an old
    call for a new one (X-4.4.1-6).
    """
    texts, sequences = [Raw(data) for _, data in envelopes], [sequence for sequence, _ in envelopes]
    payload = {"event": "history", "envelopes": texts, "sequences": sequences, "more": more}
    return system_event(stamp, payload, to=to)
