"""Enforcement: which envelopes of a restricted participant are blocked, and the rates of all (MCPx 3.2, 5.3, 7.3).

Kinds and privileges: one kind and one privilege give one verdict, whatever the payload says (X-2.1-1). Tools are
unknown here. There is one exception, which a room opts into: with `restricted_replies = "allow"`, a restricted
participant may answer a request that was sent to it (X-3.1-5).

Rates: how many envelopes a participant may send in a minute. Time is an argument.
"""

import json
from collections import Counter, deque
from typing import Any, Final, Literal

import msgspec
from msgspec import Raw

import interlock.rooms.protocol.envelope as envelopes
from interlock.rooms.protocol.envelope import CHAT, MCP, PROPOSAL, Envelope, EnvelopeRefusal
from interlock.rooms.protocol.participants import Privilege
from interlock.rooms.protocol.proposals import MEMBERS
from interlock.rooms.protocol.settings import Rates, RoomSettings

CHAT_BYTES_MAX: Final = 64 * 1024
CHAT_PAYLOAD_BYTES_MAX: Final = 512 * 1024  # the other members and the escapes of the text included
RPC_ID_BYTES_MAX: Final = 128  # of what is kept of a request
REASON_CHARS_MAX: Final = 2000
_RESERVED: Final = frozenset((envelopes.PRESENCE, envelopes.SYSTEM))
_KINDS: Final = frozenset((MCP, PROPOSAL, CHAT, envelopes.PRESENCE, envelopes.SYSTEM))
_LATER: Final = "it is a kind of the released v0.1 or of MEW, which speak another protocol than mcpx/v0.1"
_FORMATS: Final = ("plain", "markdown")


class OpenRequest(msgspec.Struct):
    """An `mcp` request in a room, to which other participants may still reply."""

    by: str
    to: tuple[str, ...]
    rpc_id: bytes  # as it is written in the payload
    answered_by: tuple[str, ...] = ()

    def awaits(self, participant: str) -> bool:
        """Return whether the request still expects a reply of this participant. It expects none of its own sender."""
        return participant in self.to and participant != self.by and participant not in self.answered_by


def protocol_refusal(envelope: Envelope, *, is_needed: bool = True) -> EnvelopeRefusal | None:
    """Return a refusal if an envelope names a protocol that this gateway does not support (X-4-2). With `is_needed`, a
    missing name is refused too.
    """
    protocol = envelope.protocol
    if protocol in envelopes.PROTOCOLS or (protocol is None and not is_needed):  # X-4-2
        return None
    why = f"'protocol' is {envelopes.V01!r}; {envelopes.V0!r} is understood too"
    return EnvelopeRefusal("unsupported_protocol", why, {"supported": list(envelopes.PROTOCOLS)}, id=envelope.id)


def sender_refusal(envelope: Envelope, sender: str) -> EnvelopeRefusal | None:
    if envelope.sender is None or envelope.sender == sender:  # X-4-6, X-7.1-1
        return None
    message = f"'from' is the id of your credential: {sender!r}"
    return EnvelopeRefusal("from_mismatch", message, {"expected": sender}, id=envelope.id)


def kind_refusal(envelope: Envelope, settings: RoomSettings) -> EnvelopeRefusal | None:
    """Return a refusal if a room does not allow the kind of an envelope, otherwise None.

    The comparison is exact and case-sensitive, and the list is closed: a kind that the gateway does not know could pass
    for another one at a receiver (X-3.2-4).
    """
    kind = envelope.kind
    if kind in _RESERVED:
        return EnvelopeRefusal("reserved_kind", f"only the gateway sends {kind!r}", id=envelope.id)
    if kind in _KINDS:  # X-4-9, X-3.1-3
        return None
    if kind in settings.extra_kinds or is_decision(kind, settings):
        return None
    details: dict[str, Any] = {"kinds": [MCP, PROPOSAL, CHAT, *settings.extra_kinds]}
    if kind.startswith(("mcp/", "reasoning/", "capability/", "space/", "system/")):
        details["hint"] = _LATER
    why = f"the kind {kind[:100]!r} is not one of this room's"
    return EnvelopeRefusal("unknown_kind", why, details, id=envelope.id)


def is_decision(kind: str, settings: RoomSettings) -> bool:
    """Return whether envelopes of this kind are decisions on proposals. These go to the tracker and are not published,
    unless the room lists the kind in `extra_kinds`.
    """
    return kind in (envelopes.REJECT, envelopes.WITHDRAW) and settings.tracker and kind not in settings.extra_kinds


def privilege_refusal(
    envelope: Envelope, sender: str, privilege: Privilege, settings: RoomSettings, request: OpenRequest | None
) -> EnvelopeRefusal | None:
    """Return a refusal if a restricted participant sends an envelope that requires full privilege (MCPx 5.3), otherwise
    None.

    These are `mcp`, decisions to reject, the kinds for which `extra_kinds` says so, and `chat` if the room's settings
    do not allow it. An `mcp` envelope passes if it answers `request` and the room allows that. `request` is the request
    that `correlation_id` names, if any.
    """
    if privilege is Privilege.FULL:  # X-3.1-2, X-3.2-3: whatever it holds
        return None
    if envelope.kind == CHAT and not settings.restricted_chat:
        return EnvelopeRefusal("kind_not_allowed", "restricted participants do not chat in this room", id=envelope.id)
    takes_full = settings.extra_kinds.get(envelope.kind) is Privilege.FULL
    if takes_full or (envelope.kind == envelopes.REJECT and is_decision(envelopes.REJECT, settings)):
        why = f"{envelope.kind!r} takes full privilege in this room"
        return EnvelopeRefusal("kind_not_allowed", why, id=envelope.id)
    if envelope.kind != MCP:  # X-3.1-6
        return None
    if settings.restricted_replies == "allow" and is_answer(envelope, sender, request):
        return None
    # X-3.1-4, X-4.2-1
    return EnvelopeRefusal(
        "privilege_violation", envelopes.VIOLATION_MESSAGE, id=envelope.id, answers=rpc_id(envelope.payload)
    )


def is_answer(envelope: Envelope, sender: str, request: OpenRequest | None) -> bool:
    """Return whether an envelope is a response to a request from which a response by this sender is still missing."""
    if envelope.kind != MCP or request is None or not request.awaits(sender):
        return False
    members = _decode_members_or_empty(envelope.payload)
    is_response = "method" not in members and ("result" in members) != ("error" in members)
    return is_response and bytes(members.get("id", Raw(b""))) == request.rpc_id != b"null"


def is_request(payload: bytes) -> bool:
    """Return whether a payload is a request that expects a reply. Only its top-level keys are examined."""
    members = _decode_members_or_empty(payload)
    return "method" in members and "id" in members


def rpc_id(payload: bytes) -> bytes:
    """Return the JSON-RPC id in a payload exactly as it is written, or `null` if there is none that a reply could use
    (X-4.4.2-3).
    """
    raw = bytes(_decode_members_or_empty(payload).get("id", Raw(b"null")))
    if len(raw) > RPC_ID_BYTES_MAX:  # X-4.4.2-3
        return b"null"
    return raw if raw[:1] == b'"' or raw[:1].isdigit() or raw[:1] == b"-" else b"null"  # X-4.4.2-3


def payload_refusal(envelope: Envelope) -> EnvelopeRefusal | None:
    """Return a refusal if a payload violates MCPx. Payloads of kind `mcp` are not checked, because only the receiver
    reads them (X-3.2-3).
    """
    if envelope.kind not in (PROPOSAL, CHAT):
        return None
    members = _decode_members_or_empty(envelope.payload)
    wrong: str | None = None
    if envelope.kind == PROPOSAL:
        if "jsonrpc" in members or "id" in members:  # X-4.2-5: a careless target must not take it for a call
            wrong = "a proposal is no MCP message: it has neither 'jsonrpc' nor 'id'"
        elif (doubled := _find_doubled_key(envelope.payload)) is not None:  # X-4.2-7
            wrong = f"the key {doubled[:100]!r} occurs twice in a proposal; readers may take either"
        elif not envelopes.decode_text(members.get("method")):
            wrong = "a proposal has a 'method', the MCP method that it proposes"
        elif "params" in members and bytes(members["params"])[:1] != b"{":
            wrong = "the 'params' of a proposal are an object"
        elif "reason" in members:
            reason = envelopes.decode_text(members["reason"])
            if reason is None or len(reason) > REASON_CHARS_MAX:
                wrong = f"the 'reason' of a proposal is a string of at most {REASON_CHARS_MAX} characters"
        return None if wrong is None else EnvelopeRefusal("invalid_proposal", wrong, id=envelope.id)
    if (text := envelopes.decode_text(members.get("text"))) is None:  # X-4.3-1
        wrong = "a chat message has a 'text', a string"
    elif len(text.encode()) > CHAT_BYTES_MAX:  # X-4.3-1
        wrong = f"the text of a chat message has at most {CHAT_BYTES_MAX} bytes"
    elif len(envelope.payload) > CHAT_PAYLOAD_BYTES_MAX:
        wrong = f"a chat message has at most {CHAT_PAYLOAD_BYTES_MAX} bytes"
    elif "format" in members and envelopes.decode_text(members["format"]) not in _FORMATS:
        wrong = "the 'format' of a chat message is 'plain' or 'markdown'"
    return None if wrong is None else EnvelopeRefusal("invalid_chat", wrong, id=envelope.id)


def _find_doubled_key(payload: bytes) -> str | None:
    """Return a key that occurs twice in one object of a proposal, at any depth, or None. Also return a top-level key
    that equals a member of MCPx except for upper and lower case.
    """
    doubled: list[str] = []

    def look(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        members = dict(pairs)
        if len(members) < len(pairs):
            counts = Counter(key for key, _ in pairs)
            doubled.extend(key for key, count in counts.items() if count > 1)
        return members

    members = json.loads(payload, object_pairs_hook=look, parse_int=str, parse_float=str)
    doubled.extend(key for key in members if key not in MEMBERS and key.casefold() in MEMBERS)
    return doubled[0] if doubled else None


def _decode_members_or_empty(payload: bytes) -> dict[str, Raw]:
    try:
        return envelopes.decode_members(payload)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return {}


SPAN_S: Final = 60.0
RECORDED_MAX: Final = 60  # refusals of one participant in SPAN_S that are recorded in the audit log

What = Literal["proposals", "chat", "envelopes"]


class RateWindow:
    """The envelopes that one participant has sent to one room in the last minute. They are still counted when its
    connections end.
    """

    def __init__(self) -> None:
        self._sent: dict[What, deque[float]] = {"proposals": deque(), "chat": deque(), "envelopes": deque()}
        self._sizes: deque[int] = deque()  # of the envelopes in `_sent`
        self._bytes = 0
        self._recorded: deque[float] = deque(maxlen=RECORDED_MAX)  # when refusals were recorded

    def refused(
        self, what: tuple[What, ...], rates: Rates, now: float, id: str, size: int = 0
    ) -> EnvelopeRefusal | None:
        """Return a refusal if one more envelope of `size` bytes would exceed a rate limit. Otherwise count the envelope
        and return None. The first envelope of a minute may be larger than the limit on bytes.
        """
        for kind in what:
            sent, most = self._recent(kind, now), getattr(rates, kind)
            if len(sent) >= most:
                wait_ms = max(1, int((sent[0] + SPAN_S - now) * 1000)) if sent else int(SPAN_S * 1000)
                message = f"at most {most} {kind} a minute; wait {wait_ms} ms"
                return EnvelopeRefusal("rate_limited", message, {"limit": most, "retry_after_ms": wait_ms}, id=id)
        sent, most = self._recent("envelopes", now), rates.sent_bytes
        if sent and self._bytes + size > most:
            wait_ms = max(1, int((sent[0] + SPAN_S - now) * 1000))
            message = f"at most {most} bytes of envelopes a minute; wait {wait_ms} ms, and send large data as resources"
            return EnvelopeRefusal("rate_limited", message, {"limit": most, "retry_after_ms": wait_ms}, id=id)
        self.count(what, now, size)
        return None

    def count(self, what: tuple[What, ...], now: float, size: int = 0) -> None:
        for kind in what:
            self._sent[kind].append(now)
        self._sizes.append(size)
        self._bytes += size

    def may_record(self, now: float) -> bool:
        """Return whether one more refusal may be written to the audit log, and count it if so."""
        if len(self._recorded) == RECORDED_MAX and self._recorded[0] > now - SPAN_S:
            return False
        self._recorded.append(now)
        return True

    def used(self, now: float) -> dict[What, int]:
        return {what: len(self._recent(what, now)) for what in self._sent}

    def resets_in(self, now: float) -> float:
        firsts = [sent[0] for what in self._sent if (sent := self._recent(what, now))]
        return max(0.0, min(firsts, default=now - SPAN_S) + SPAN_S - now)

    def is_idle(self, now: float) -> bool:
        is_recorded = bool(self._recorded) and self._recorded[-1] > now - SPAN_S
        return not is_recorded and not any(self._recent(what, now) for what in self._sent)

    def _recent(self, what: What, now: float) -> deque[float]:
        sent = self._sent[what]
        while sent and sent[0] <= now - SPAN_S:
            sent.popleft()
            if what == "envelopes":
                self._bytes -= self._sizes.popleft()
        return sent
