"""A message that is too large to be stored: its kind and its id, found without storing it.

A peer that sends too much still waits for an answer, or holds up a call of somebody else. So the message is scanned as
it arrives, in pieces cut anywhere, for its id and for whether it is a response, a request or a notification. The caller
then answers the right request with `result_too_large` or `message_too_large`.

Only members of the outermost object count; the content of values is skipped. The scan takes linear time and constant
memory, and finds the id wherever it is. Text that is not JSON ends the scan. A large container is skipped in pieces of
growing size: within a piece only its brackets outside of strings are counted, and only if the container could end
within the piece is the piece read bracket by bracket.
"""

import re
from enum import Enum
from itertools import accumulate
from typing import Final

import msgspec

from interlock.wire.jsonrpc.codec import ID_BYTES_MAX, find_string, is_id
from interlock.wire.refusal import INVALID_REQUEST, RESULT_TOO_LARGE, Refusal

PIECE_BYTES_MIN: Final = 32  # of a container that is looked at as a whole; doubled while the container goes on
PIECE_BYTES_MAX: Final = 64 * 1024

_STRING_REST: Final = rb'(?:[^"\\]++|\\.)*+'  # up to the closing quote
_skip_string = re.compile(_STRING_REST, re.DOTALL).match
_skip_flat = re.compile(rb'(?:[^"\[\]{}]++|"' + _STRING_REST + rb'")*+', re.DOTALL).match  # up to the next bracket
_skip_blank = re.compile(rb"[ \t\r\n]*+").match
_skip_scalar = re.compile(rb"[^ \t\r\n,\]}\"\[{]*+").match

_QUOTE, _BACKSLASH, _COLON, _COMMA = b'"\\:,'
_OPENING: Final = frozenset(b"[{")
_STEPS: Final = bytes.maketrans(b"[{]}", b"\x01\x01\xff\xff")  # as signed bytes: what a bracket does to the depth
_NO_BRACKETS: Final = bytes(set(range(256)) - set(b"[{]}"))


class MessageKind(Enum):
    """The kind of an oversized message, as far as it could be recognised."""

    RESPONSE = "response"
    REQUEST = "request"
    NOTIFICATION = "notification"
    UNKNOWN = "unknown"  # no JSON-RPC message, or cut off before it said


class Oversized(msgspec.Struct, frozen=True):
    """A message that was too large to be read. Its kind and its id are known if they could be found."""

    limit: int  # in bytes
    kind: MessageKind
    id: bytes = b""  # as it was written; empty where there is none


def result_too_large(limit: int) -> Refusal:
    """Return the refusal for a server's response that is too large to be forwarded."""
    data = {
        "reason": "result_too_large",
        "limit_bytes": limit,
        "outcome": "unknown",
        "next": "ask for less at a time; the operator of this node sets the limit",
    }
    return Refusal(RESULT_TOO_LARGE, "result_too_large", data)


def message_too_large(limit: int) -> Refusal:
    """Return the refusal for a request or another incoming message that is too large to be read."""
    data = {
        "reason": "message_too_large",
        "limit_bytes": limit,
        "next": "send less at a time, or a reference to it; the operator of this node sets the limit",
    }
    return Refusal(INVALID_REQUEST, f"the message is larger than the limit of {limit} bytes", data)


class _State(Enum):
    START = "start"
    KEY = "key"  # or the end
    IN_KEY = "in_key"
    COLON = "colon"
    VALUE = "value"
    IN_STRING = "in_string"  # which is a value
    IN_SCALAR = "in_scalar"
    IN_CONTAINER = "in_container"
    END = "end"


class OversizedScanner:
    """Scanner for a message that is too large to be stored. It gets the message piece by piece and finds out its kind
    and its id.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._state = _State.START
        self._depth = 0  # of containers within the value
        self._piece_bytes = PIECE_BYTES_MIN
        self._in_string = False  # within the container
        self._is_escaped = False  # the last piece ended in the backslash of an escape
        self._kept: bytearray | None = None  # of a key, or of the id
        self._key = ""
        self._id = b""
        self._has_method = self._has_outcome = False

    @property
    def is_settled(self) -> bool:
        """Return whether the kind and the id are known, so that the rest of the message need not be scanned."""
        return self._state is _State.END or bool(self._id and (self._has_method or self._has_outcome))

    @property
    def found(self) -> Oversized:
        """Return the kind and the id of the message, as far as they are known by now."""
        if self._has_method:
            kind = MessageKind.REQUEST if self._id else MessageKind.NOTIFICATION
        else:
            kind = MessageKind.RESPONSE if self._id and self._has_outcome else MessageKind.UNKNOWN
        return Oversized(self._limit, kind, self._id)

    def feed(self, data: bytes | bytearray) -> None:
        at, end = 0, len(data)
        while at < end and not self.is_settled:
            match self._state:
                case _State.IN_CONTAINER:
                    at = self._pass_container(data, at)
                case _State.IN_STRING | _State.IN_KEY:
                    at = self._pass_string(data, at)
                case _State.IN_SCALAR:
                    stop = _skip_scalar(data, at).end()  # type: ignore[union-attr]
                    self._keep(data[at:stop])
                    at = stop
                    if at < end:
                        self._end_value()
                case _:
                    at = _skip_blank(data, at).end()  # type: ignore[union-attr]
                    if at < end:
                        at = self._take(data[at], at)

    def _take(self, byte: int, at: int) -> int:
        """Process the first byte of a token of JSON, at the index `at`. Return the index at which the
        scan continues.
        """
        match self._state:
            case _State.START if byte == 0x7B:
                self._state = _State.KEY
            case _State.KEY if byte == _QUOTE:
                self._state, self._kept = _State.IN_KEY, bytearray(b'"')
            case _State.KEY if byte == _COMMA:
                pass
            case _State.COLON if byte == _COLON:
                self._state = _State.VALUE
            case _State.VALUE:
                self._kept = bytearray() if self._key == "id" else None
                if byte == _QUOTE:
                    self._state = _State.IN_STRING
                    self._keep(b'"')
                elif byte in _OPENING:
                    self._state, self._depth, self._kept = _State.IN_CONTAINER, 1, None
                    self._piece_bytes = PIECE_BYTES_MIN
                else:
                    self._state = _State.IN_SCALAR
                    return at if byte not in b",]}" else self._stop(at)
            case _:
                return self._stop(at)
        return at + 1

    def _stop(self, at: int) -> int:
        """End the scan, because the message's object has ended or the text is not JSON. Return the index after the last
        scanned byte.
        """
        self._state = _State.END
        return at + 1

    def _pass_container(self, data: bytes | bytearray, at: int) -> int:
        """Skip an object or array, in pieces that grow. Return the index after the part that was skipped."""
        while at < len(data):
            piece = data[at : at + self._piece_bytes]
            if not self._pass_piece(piece):
                return self._pass_end(data, at)
            at += len(piece)
            self._piece_bytes = min(2 * self._piece_bytes, PIECE_BYTES_MAX)
        return at

    def _pass_piece(self, piece: bytes | bytearray) -> bool:
        """Skip one piece of an object or array and return True. If the object or array ends within the piece, skip
        nothing and return False.
        """
        text = piece[1:] if self._is_escaped else piece
        if _BACKSLASH in text:
            text = text.replace(b"\\\\", b"").replace(b'\\"', b"")
        parts = text.split(b'"')
        steps = b"".join(parts[1::2] if self._in_string else parts[::2]).translate(_STEPS, _NO_BRACKETS)
        closing = steps.count(b"\xff")
        if closing >= self._depth and self._depth + min(accumulate(memoryview(steps).cast("b"))) <= 0:
            return False
        self._depth += len(steps) - 2 * closing
        self._in_string ^= len(parts) % 2 == 0
        self._is_escaped = self._in_string and text.endswith(b"\\")
        return True

    def _pass_end(self, data: bytes | bytearray, at: int) -> int:
        """Skip the rest of an object or array by counting its brackets. Return the index after its end."""
        if self._in_string:
            at = _skip_string(data, at + self._is_escaped).end() + 1  # type: ignore[union-attr]
            self._in_string = self._is_escaped = False
        while self._depth:
            at = _skip_flat(data, at).end()  # type: ignore[union-attr]
            if at >= len(data) or data[at] == _QUOTE:  # no JSON: a backslash outside of strings
                return self._stop(at)
            self._depth += 1 if data[at] in _OPENING else -1
            at += 1
        self._end_value()
        return at

    def _pass_string(self, data: bytes | bytearray, at: int) -> int:
        """Skip a string, which is a key or a value. Return the index after the part that was skipped."""
        stop = _skip_string(data, at + self._is_escaped).end()  # type: ignore[union-attr]
        has_ended = stop < len(data) and data[stop] == _QUOTE
        self._is_escaped = stop < len(data) and not has_ended
        self._keep(data[at : stop + 1])
        if has_ended and self._state is _State.IN_KEY:
            buffer, self._kept = self._kept, None
            self._key = (find_string(bytes(buffer)) or "") if buffer is not None else ""
            self._has_method = self._has_method or self._key == "method"
            self._has_outcome = self._has_outcome or self._key in ("result", "error")
            self._state = _State.COLON
        elif has_ended:
            self._end_value()
        return stop + 1

    def _keep(self, piece: bytes | bytearray) -> None:
        buffer = self._kept
        if buffer is not None:
            if len(buffer) + len(piece) > ID_BYTES_MAX:
                self._kept = None
            else:
                buffer += piece

    def _end_value(self) -> None:
        buffer, self._kept = self._kept, None
        if buffer and is_id(bytes(buffer)):
            self._id = bytes(buffer)
        self._state = _State.KEY
