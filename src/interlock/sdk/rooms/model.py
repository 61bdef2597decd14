"""The values that a participant receives from a room, and the errors that it can raise.

RoomInvalid             the arguments of the participant cannot work; raised before anything is dialled
RoomError
  RoomUnreachable       no connection now; another try may succeed
  RoomRefused           the gateway does not accept this participant, or no longer; another try is of no use
  EnvelopeRefused       the gateway did not publish an envelope
  NoAnswer              no reply in time, or nobody is present who could reply
  CallFailed            the called participant replied with an error
  ProposalEnded         a proposal was rejected or withdrawn, or it expired
"""

import json
from typing import Any, Final, Literal

import msgspec

from interlock.rooms.protocol.envelope import Envelope
from interlock.wire.jsonrpc.codec import CodecError, decode_value

# The messages of ends that no participant caused.
MESSAGES: Final = {
    "expired": "the proposal has expired",
    "void": "the proposal is no longer valid",
    "unknown": "the proposal was performed, and no answer came",
}


class RoomInvalid(ValueError):
    """Exception for invalid arguments of a participant."""


class RoomError(Exception):
    """Base class of the exceptions that using a room can raise."""


class RoomUnreachable(RoomError):
    """Exception for a room that cannot be reached at the moment. Another attempt may succeed."""


class RoomRefused(RoomError):
    """Exception for a participant that the gateway does not accept, or no longer accepts. Another attempt is
    useless.
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"{message} ({code})")
        self.code, self.message = code, message


class EnvelopeRefused(RoomError):
    """Exception for an envelope that the gateway did not publish."""

    def __init__(self, code: str, message: str, details: dict[str, Any] | None = None) -> None:
        super().__init__(f"{message} ({code})")
        self.code, self.message, self.details = code, message, details or {}


class NoAnswer(RoomError):
    """Exception for a request that was not answered in time, or whose recipient is not present."""


class CallFailed(RoomError):
    """Exception for a request that the called participant answered with an error."""

    def __init__(self, code: int, message: str, data: Any = None) -> None:
        super().__init__(f"{message} ({code})")
        self.code, self.message, self.data = code, message, data


class ProposalEnded(RoomError):
    """Exception for a proposal that ended without an answer.

    `status` is rejected, withdrawn, expired, void or unknown; `by` is the participant who ended it, if one did.
    """

    def __init__(self, status: str, by: str | None = None, reason: str | None = None) -> None:
        message = MESSAGES.get(status, f"the proposal was {status}")
        super().__init__(message + (f" by {by}" if by else "") + (f": {reason}" if reason else ""))
        self.status, self.by, self.reason = status, by, reason


DIGITS_MAX: Final = 4000  # of an integer; Python itself reads 4,300

Status = Literal["pending", "claimed", "fulfilled", "failed", "rejected", "withdrawn", "expired", "void", "unknown"]


def _value(raw: bytes) -> Any:
    """Decode JSON that another participant sent. Unpaired surrogates are replaced, and numbers with thousands of digits
    remain text.
    """
    try:
        return decode_value(raw)
    except CodecError:
        read = json.loads(raw, parse_int=lambda digits: int(digits) if len(digits) < DIGITS_MAX else digits)
        return json.loads(json.dumps(read, ensure_ascii=False).encode("utf-8", "replace"))


class Peer(msgspec.Struct, frozen=True, kw_only=True):
    """A participant that is present in the room, as described by the gateway."""

    id: str
    privilege: Literal["full", "restricted"]
    name: str | None = None
    kind: str | None = None


class Heard(msgspec.Struct, frozen=True, kw_only=True):
    """An envelope that was received. `sequence` is its number in the order of the room, or None for messages of the
    gateway.
    """

    envelope: Envelope
    sequence: int | None = None
    is_old: bool = False  # it was published before we joined, or while we were away

    @property
    def id(self) -> str:
        return self.envelope.id

    @property
    def sender(self) -> str:
        return self.envelope.sender or ""

    @property
    def to(self) -> tuple[str, ...]:
        return self.envelope.to or ()

    @property
    def kind(self) -> str:
        return self.envelope.kind

    @property
    def ts(self) -> str:
        return self.envelope.ts or ""

    @property
    def correlation_id(self) -> str | None:
        return self.envelope.correlation_id

    @property
    def payload(self) -> Any:
        """Return the decoded payload. The original bytes are in `envelope.payload`."""
        return _value(self.envelope.payload)

    @property
    def text(self) -> str:
        """Return the text of a chat message, or an empty text for other kinds."""
        text = self.payload.get("text") if self.kind == "chat" else None
        return text if isinstance(text, str) else ""


class Proposal(msgspec.Struct, frozen=True):
    """A request that a participant has proposed. `target` is the participant that would receive it, or None if the
    proposal names none or several.
    """

    id: str
    proposer: str
    target: str | None
    method: str
    params: bytes  # as they came
    reason: str | None = None
    ts: str = ""
    status: Status = "pending"
    expires_at: str | None = None  # once the gateway was asked

    @property
    def tool(self) -> str | None:
        """Return the tool name if the proposal is a tools/call, otherwise None."""
        params = _value(self.params) if self.method == "tools/call" else None
        name = params.get("name") if isinstance(params, dict) else None
        return name if isinstance(name, str) else None

    @property
    def arguments(self) -> Any:
        params = _value(self.params)
        return params.get("arguments", {}) if isinstance(params, dict) else {}


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a request, and the participant (`sender`) that returned it."""

    sender: str
    raw: bytes

    @property
    def result(self) -> Any:
        return _value(self.raw)

    @property
    def is_error(self) -> bool:
        """Return whether the tool reported a failure. `text` then contains the reason."""
        result = self.result
        return isinstance(result, dict) and result.get("isError") is True

    @property
    def structured(self) -> Any:
        result = self.result
        return result.get("structuredContent") if isinstance(result, dict) else None

    @property
    def text(self) -> str:
        """Return the text contents of a tool's result, joined by line feeds."""
        result = self.result
        content = result.get("content") if isinstance(result, dict) else None
        blocks = content if isinstance(content, list) else []
        return "\n".join(str(block["text"]) for block in blocks if isinstance(block, dict) and "text" in block)
