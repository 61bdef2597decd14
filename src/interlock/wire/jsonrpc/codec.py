"""JSON-RPC messages and their bytes. Payloads stay the bytes in which they came.

`decode_untrusted` takes bytes from outside and raises only CodecError. The `encode_*` functions join bytes; they never
encode a payload again. `error_body` is the only place where a refusal becomes a JSON-RPC error.
"""

import re
from collections.abc import Callable
from functools import cache
from sys import getrecursionlimit, setrecursionlimit
from typing import Any, Final, Literal, TypeVar

import msgspec
from msgspec import Raw

from interlock.wire.refusal import FORMS, INVALID_REQUEST, PARSE_ERROR, Refusal, RefusalCode


class CodecError(Exception):
    """Error for bytes that cannot be decoded: not a JSON-RPC message, not a batch, or not the JSON value that was
    expected.
    """

    def __init__(self, code: RefusalCode, message: str, message_id: bytes = b"null") -> None:
        super().__init__(message)
        self.refusal = Refusal(code, message)
        self.message_id = message_id


_encode = msgspec.json.Encoder().encode


def error_body(refusal: Refusal, *, draft: bool = False) -> bytes:
    """Return the error object of a JSON-RPC response for a refusal.

    `draft` is True for legacy clients and for MCP-AX links. Two codes then have the numbers of the MCP-AX draft (13.2,
    11.4), and the details do not repeat these numbers.
    """
    forms, details = FORMS[refusal.code], refusal.details
    number = forms.number
    if draft and forms.draft_number is not None:
        number = forms.draft_number
        if details is not None:
            details = {key: value for key, value in details.items() if key != "mcpax_code"}
    body: dict[str, Any] = {"code": number, "message": refusal.message}
    if details is not None:
        body["data"] = details
    return _encode(body)


# The three JSON-RPC messages. What routing does not need stays `msgspec.Raw`: bytes in, the same bytes out.

ABSENT = Raw(b"")


class Request(msgspec.Struct, frozen=True):
    """A JSON-RPC request."""

    id: bytes  # the JSON text of the id: a string or an integer
    method: str
    params: Raw  # ABSENT when there are none
    text: bytes = b""  # the whole message as it came, where it came from outside


class Notification(msgspec.Struct, frozen=True):
    """A JSON-RPC notification: a message without an id, which is not answered."""

    method: str
    params: Raw


class Response(msgspec.Struct, frozen=True):
    """A JSON-RPC response. It has either `result` or `error`, never both."""

    id: bytes
    result: Raw
    error: Raw
    text: bytes = b""  # the whole message as it came, where it came from outside


Message = Request | Notification | Response


# Reading around nesting that is deeper than Python lets C code go by itself.
#
# The decoder takes 32 bytes of the stack for each level that it only skips over (measured, msgspec 0.22 on x86-64), but
# CPython 3.11 counts every level against the limit that protects Python's own recursion: 1,000, less what is on the
# stack already. JavaScript reads what is nested any deeper, and so must what stands between. Values are skipped here,
# never made: what makes objects of them (`decode_value`) keeps the usual limit.

DEPTH_MAX: Final = 10_000  # levels of a message from outside; as many as CPython 3.12 and newer let C code go
_ROOM: Final = DEPTH_MAX + 1000  # of what is inside one: no part of a message that was read may be too deep later

_T = TypeVar("_T")


def decode_deep(decode: Callable[[Any], _T], data: Raw | bytes, depth: int = _ROOM) -> _T:
    """Return `decode(data)`, with a higher recursion limit during the call, so that deeply nested JSON can be decoded.

    `decode` must be C code that calls none of our Python code, because nothing else may recurse that deeply.
    """
    usual = getrecursionlimit()
    setrecursionlimit(usual + depth)
    try:
        return decode(data)
    finally:
        setrecursionlimit(usual)


# Reading around half a surrogate pair.
#
# `"\ud83d"` is legal JSON (RFC 8259 8.2) and what JavaScript writes for a text that was cut inside an emoji, but it is
# no text, so the parser refuses the whole message. `hide` turns each half into a harmless escape of the same length and
# `Hidden.show` turns it back, in bytes that need not be understood here.

HALVES_MAX: Final = 1000  # cut texts have a few; a message of nothing else costs time

# An escape after another backslash is left alone: then it is mostly text, and at worst the message is refused.
_ALONE: Final = rb"(?<!\\\\u.)(?=[89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F])|(?<!\\u[dD][89abAB]..\\u.)[c-fC-F])"
_LOWER: Final = re.compile(rb"\\ud" + _ALONE, re.DOTALL)
_UPPER: Final = re.compile(rb"\\uD" + _ALONE, re.DOTALL)


class Hidden(msgspec.Struct, frozen=True):
    """A message in which each unpaired surrogate escape, such as `\\ud83d`, is replaced by a harmless escape of the
    same length, so that the message can be decoded.
    """

    data: bytes
    digit: bytes  # what stands for the d of \ud800 to \udfff; before, no escape of the message began with it

    def show(self, raw: Raw) -> Raw:
        """Return a value of this message with the surrogate escapes of the original message."""
        shown = re.sub(rb"\\u%b(?=[89a-fA-F])" % self.digit, rb"\\ud", bytes(raw))
        return Raw(re.sub(rb"\\u%b(?=[89a-fA-F])" % self.digit.upper(), rb"\\uD", shown))

    def may_be_in(self, text: str) -> bool:
        """Return whether a text from this message may contain a character that replaces a surrogate escape."""
        first = int(self.digit, 16) << 12
        return any(first + 0x800 <= ord(character) < first + 0x1000 for character in text)


def hide(data: bytes) -> Hidden | None:
    """Replace every unpaired surrogate escape in a message, so that the message can be decoded. Return None if there is
    none, or if they cannot be replaced, for example because there are more than HALVES_MAX.
    """
    for digit in (b"e", b"c", b"b", b"a"):
        if re.search(rb"\\u[%b%b][89a-fA-F]" % (digit, digit.upper()), data) is None:
            hidden, lower = _LOWER.subn(rb"\\u%b" % digit, data, HALVES_MAX + 1)
            hidden, upper = _UPPER.subn(rb"\\u%b" % digit.upper(), hidden, HALVES_MAX + 1)
            return Hidden(hidden, digit) if 0 < lower + upper <= HALVES_MAX else None
    return None


# The outline of a large message: the message without what is in its longest string.
#
# Large messages are mostly one long string: a file, an image, a page. What else stands in one that was read before
# is read a second time in its outline, which costs nothing, and what the outline holds is found in the message again.

OUTLINED_BYTES_MIN: Final = 64 * 1024
OUTLINE_BYTES_MAX: Final = 64 * 1024
HOLE: Final = "<\x7fhole\x7f>"
_HOLE: Final = HOLE.encode()
_BACKSLASH: Final = ord("\\")


class Outline:
    """A large JSON message with a short mark in place of its longest string, so that the other parts can be decoded
    cheaply.
    """

    __slots__ = ("_data", "_end", "_start", "text")

    def __init__(self, data: bytes, start: int, end: int) -> None:
        self._data, self._start, self._end = data, start, end
        self.text = data[:start] + _HOLE + data[end:]

    def whole(self, raw: Raw) -> Raw:
        """Return the original text of a value in the outline. If the value contains the long string, the result is a
        memory view and not a copy.
        """
        at = bytes(raw).find(_HOLE)
        if at < 0:
            return raw
        after = len(raw) - at - len(_HOLE)
        return Raw(memoryview(self._data)[self._start - at : self._end + after])


def find_outline(data: bytes) -> Outline | None:
    """Return the outline of a large JSON text: the text with a short mark in place of its longest string. Return None
    if the text is not mostly one string.

    The cut reaches from one quotation mark to the next one that is not escaped. If the text between them is not a
    string, the mark is placed between values, and no JSON reader accepts the outline.
    """
    size = len(data)
    if size < OUTLINED_BYTES_MIN + OUTLINE_BYTES_MAX:
        return None
    middle = size // 2
    start, end = data.rfind(b'"', 0, middle) + 1, data.find(b'"', middle)
    if not 0 < start < end or size - (end - start) > OUTLINE_BYTES_MAX or data[end - 1] == _BACKSLASH:
        return None
    outline = Outline(data, start, end)
    return outline if outline.text.count(_HOLE) == 1 else None


# A message in pieces that are written one after the other: what is large in it is sent from where it was read.

LARGE_VALUE_BYTES: Final = 64 * 1024  # from here on a copy costs more than another piece


class LargeParams(dict[str, Any]):
    """The params of a large message. `call_pieces` encodes them without copying large values."""


def call_pieces(message_id: int, method: str, params: LargeParams) -> tuple[bytes | memoryview, ...]:
    """Encode a request as several pieces, so that large values are not copied. Together the pieces are the message that
    `encode_call` returns.
    """
    parts: list[bytes | memoryview] = []
    text = b'{"jsonrpc":"2.0","id":%d,"method":%b,"params":{' % (message_id, _encode(method))
    for name, value in params.items():
        text += b"%b:" % _encode(name)
        if isinstance(value, msgspec.Raw) and len(value) > LARGE_VALUE_BYTES:
            parts += text, memoryview(value)
            text = b","
        else:
            text += b"%b," % _encode(value)
    return *parts, b"%b}}" % text.removesuffix(b",")


# Batches: several JSON-RPC messages in one array, as MCP 2025-03-26 alone has them.
#
# `split_batch_untrusted` takes the array apart and reads no message: each part is for `decode_untrusted`.

PARTS_MAX: Final = 10_000

_BEGIN: Final = re.compile(rb"[ \t\r\n]*\[")


def is_batch(data: bytes) -> bool:
    """Return whether a message begins like a JSON array."""
    return _BEGIN.match(data) is not None


def split_batch_untrusted(data: bytes) -> list[bytes]:
    """Split a batch into its messages without changing their bytes. Raise CodecError if the batch is malformed, too
    large or empty.
    """
    try:
        if not data.isascii():
            data.decode()
        parts = [bytes(part) for part in msgspec.structs.astuple(decode_deep(_decoder(), data, DEPTH_MAX)) if part]
    except UnicodeDecodeError:
        raise CodecError(PARSE_ERROR, "the batch is not valid UTF-8") from None
    except msgspec.ValidationError:
        raise CodecError(INVALID_REQUEST, f"a batch has at most {PARTS_MAX} messages") from None
    except RecursionError:
        raise CodecError(PARSE_ERROR, "the batch is nested too deeply") from None
    except msgspec.DecodeError:
        raise CodecError(PARSE_ERROR, "the batch is not valid JSON") from None
    if not parts:
        raise CodecError(INVALID_REQUEST, "an empty batch asks for nothing")  # JSON-RPC 2.0, 6
    return parts


@cache
def _decoder() -> Any:
    """Return the decoder of batches. It is created when the first batch arrives.

    The decoder reads into a structure with a fixed number of fields and not into a list, because it then stops at the
    first message beyond the limit. A list of sixteen megabytes could have five million objects.
    """
    fields: Any = [(f"part_{number}", Raw, ABSENT) for number in range(PARTS_MAX)]
    return msgspec.json.Decoder(
        msgspec.defstruct("Batch", fields, array_like=True, forbid_unknown_fields=True, gc=False)
    ).decode


class _Strict(msgspec.Struct):
    """The type of a well-formed JSON-RPC message. A message that cannot be decoded to this type is decoded again step
    by step, to find out what is wrong.
    """

    jsonrpc: Literal["2.0"]
    id: Raw = ABSENT
    method: str = ""
    params: Raw = ABSENT
    result: Raw = ABSENT
    error: Raw = ABSENT


class _Whole(msgspec.Struct):
    """A request whose envelope and params are decoded together in one pass."""

    jsonrpc: Literal["2.0"]
    id: Raw
    method: str
    params: dict[str, Raw]


class _Bulk(msgspec.Struct):
    """The members of params that are allowed to be large. They are not decoded."""

    arguments: Raw = ABSENT
    inputResponses: Raw = ABSENT  # noqa: N815
    requestState: Raw = ABSENT  # noqa: N815

    @property
    def size(self) -> int:
        return len(self.arguments) + len(self.inputResponses) + len(self.requestState)


class _Large(msgspec.Struct):
    """A request of which only the large members of the params are decoded, in order to find out their size."""

    params: _Bulk


class _Outgoing(msgspec.Struct):
    jsonrpc: str
    id: int
    method: str
    params: dict[str, Any]


class _Envelope(msgspec.Struct):
    jsonrpc: Raw = ABSENT
    id: Raw = ABSENT
    method: Raw = ABSENT
    params: Raw = ABSENT
    result: Raw = ABSENT
    error: Raw = ABSENT


_decode_strict = msgspec.json.Decoder(_Strict).decode
_decode_whole = msgspec.json.Decoder(_Whole).decode
_decode_envelope = msgspec.json.Decoder(_Envelope).decode
_decode_bulk = msgspec.json.Decoder(_Bulk).decode
_decode_large = msgspec.json.Decoder(_Large).decode
_decode_object = msgspec.json.Decoder(dict[str, Raw]).decode
_decode_array = msgspec.json.Decoder(list[Raw]).decode
_decode_string = msgspec.json.Decoder(str).decode
_decode_any = msgspec.json.Decoder().decode
_decode_raw = msgspec.json.Decoder(Raw).decode

_UNKNOWN_ID = b"null"
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)  # what msgspec raises
_ID_START = frozenset(b'"-0123456789')
_FRACTION = frozenset(b".eE")
ID_BYTES_MAX = 64 * 1024  # an id is echoed and kept per call
_UTF8_PIECE_BYTES = 256 * 1024
_QUOTES_FEW = 1000  # twice the names and strings that a large message may have to count as few
_UTF8_TAIL_MAX = 3  # bytes of a character after its first
PARAMS_REST_BYTES_MAX = 256 * 1024  # of params beside what may be large: each member costs an object


def _check_utf8(data: bytes) -> None:
    """Raise UnicodeDecodeError if the bytes are not UTF-8.

    msgspec does not decode strings that it skips. Without this check, invalid UTF-8 would be forwarded to the other
    side. A large text is decoded in pieces to save memory.
    """
    if len(data) <= _UTF8_PIECE_BYTES:
        data.decode()
        return
    start, size = 0, len(data)
    while start < size:
        end = min(start + _UTF8_PIECE_BYTES, size)
        for _ in range(_UTF8_TAIL_MAX):
            if end < size and data[end] & 0xC0 == 0x80:  # within a character
                end -= 1
        data[start:end].decode()
        start = end


def _bulk_size(params: dict[str, Raw]) -> int:
    return sum(len(params[name]) for name in _Bulk.__struct_fields__ if name in params)


def _has_few_strings(data: bytes) -> bool:
    """Return whether a large message contains few strings, and therefore few members."""
    at = 0
    for _ in range(_QUOTES_FEW):
        at = data.find(b'"', at) + 1
        if not at:
            return True
    return False


def decode_untrusted(data: bytes) -> Message:
    """Decode one JSON-RPC message. Raise CodecError if it is malformed or an array; arrays are split by
    `split_batch_untrusted` first.
    """
    try:
        if not data.isascii():
            _check_utf8(data)
        strict = _decode_strict(data)
        message_id = bytes(strict.id)
        if (message_id.isdigit() and len(message_id) <= ID_BYTES_MAX) or (message_id and is_id(message_id)):
            if strict.method:
                return Request(message_id, strict.method, strict.params, data)
            if bool(strict.result) != bool(strict.error):
                return Response(message_id, strict.result, strict.error, data)
        elif not message_id and strict.method:
            return Notification(strict.method, strict.params)
    except _UNREADABLE:
        pass
    return _decode_carefully(data)


def find_plain_request(data: bytes) -> tuple[bytes, str, dict[str, Raw]] | None:
    """Return the id, method and params of an ordinary request. Return None for every other message, which
    `decode_untrusted` must decode.
    """
    try:
        if not data.isascii():
            _check_utf8(data)
        whole = _find_large_request(data) if len(data) > PARAMS_REST_BYTES_MAX else _decode_whole(data)
    except _UNREADABLE:
        return None
    if whole is None:
        return None
    message_id = bytes(whole.id)
    if whole.method and ((message_id.isdigit() and len(message_id) <= ID_BYTES_MAX) or is_id(message_id)):
        return message_id, whole.method, whole.params
    return None


def _find_large_request(data: bytes) -> _Whole | None:
    """Decode a large request. Return None if its params are too large apart from the members that may be large. Raise
    the errors of msgspec for invalid JSON.
    """
    size = len(data)
    if not _has_few_strings(data) and size - _decode_large(data).params.size > PARAMS_REST_BYTES_MAX:
        return None
    whole = _decode_whole(data)
    if size - _bulk_size(whole.params) > PARAMS_REST_BYTES_MAX:
        return None
    whole.params = LargeParams(whole.params)
    return whole


def _decode_carefully(data: bytes) -> Message:
    """Decode a message step by step, and raise a CodecError that says what is wrong with it.

    A byte order mark before the message is ignored, as RFC 8259 section 8.1 allows.
    """
    if data.startswith(_BYTE_ORDER_MARK) and not data.startswith(_BYTE_ORDER_MARK * 2):
        return decode_untrusted(data[len(_BYTE_ORDER_MARK) :])
    try:
        if not data.isascii():
            _check_utf8(data)
        envelope = _read_envelope(data)
    except UnicodeDecodeError:
        raise CodecError(PARSE_ERROR, "the message is not valid UTF-8") from None
    except RecursionError:
        raise CodecError(PARSE_ERROR, f"the message is nested too deeply: at most {DEPTH_MAX} levels") from None
    except msgspec.DecodeError:
        raise CodecError(PARSE_ERROR, "the message is not valid JSON") from None
    message_id = bytes(envelope.id)
    if find_string(envelope.jsonrpc) != "2.0":
        raise CodecError(INVALID_REQUEST, 'the member "jsonrpc" must be "2.0"', _echo(message_id))
    method = find_string(envelope.method) if envelope.method else ""  # an empty one counts as none
    if method is None:
        raise CodecError(INVALID_REQUEST, 'the member "method" must be a string', _echo(message_id))
    # An error about a message whose id could not be read has the id null (JSON-RPC 5) or none (MCP 2025-11-25).
    if envelope.error and not method and message_id in (b"", b"null"):
        message_id = _UNKNOWN_ID
    elif message_id and not is_id(message_id):
        reason = f'the member "id" must be a string or a whole number of at most {ID_BYTES_MAX} bytes'
        raise CodecError(INVALID_REQUEST, reason)
    if method:
        if not message_id:
            return Notification(method, envelope.params)
        return Request(message_id, method, envelope.params)
    has_result, has_error = bytes(envelope.result) != b"", bytes(envelope.error) != b""
    if not message_id or has_result == has_error:
        raise CodecError(
            INVALID_REQUEST, "a message has a method, or an id with either a result or an error", _echo(message_id)
        )
    return Response(message_id, envelope.result, envelope.error)


def _read_envelope(data: bytes) -> _Envelope:
    """Split a JSON-RPC message into its members, whose values are not decoded. Raise CodecError if the text is JSON but
    no object, and the errors of msgspec if it is not JSON.
    """
    try:
        return _envelope(data)
    except msgspec.ValidationError:
        if bytes(decode_deep(_decode_raw, data))[:1] == b"[":
            raise CodecError(INVALID_REQUEST, "only MCP 2025-03-26 has batches: send one message at a time") from None
        raise CodecError(INVALID_REQUEST, "a JSON-RPC message is a JSON object") from None
    except msgspec.DecodeError:
        hidden = hide(data)
        if hidden is None:
            raise
        envelope = _envelope(hidden.data)
        return _Envelope(*(hidden.show(getattr(envelope, name)) for name in _Envelope.__struct_fields__))


def _envelope(data: bytes) -> _Envelope:
    try:
        return _decode_envelope(data)
    except RecursionError:
        return decode_deep(_decode_envelope, data, DEPTH_MAX)


def is_id(raw: bytes) -> bool:
    """Return whether a JSON text is an id that MCP allows: a string or an integer of limited length. The integer may be
    written as 1.0.
    """
    if len(raw) > ID_BYTES_MAX or raw[0] not in _ID_START:
        return False
    return raw.isdigit() or raw[0] == 0x22 or _FRACTION.isdisjoint(raw) or float(raw).is_integer()


def _echo(message_id: bytes) -> bytes:
    return message_id if message_id and is_id(message_id) else _UNKNOWN_ID


def decode_object(raw: Raw | bytes) -> dict[str, Raw] | None:
    """Return the members of a JSON object as raw values, in their order. Return None if the text is not an object."""
    try:
        return _decode_object(raw)
    except msgspec.ValidationError:
        return None
    except _UNREADABLE:
        hidden, members = _decode_again(_decode_object, bytes(raw))
    # A key is a decoded text: one with half a pair could not be written again.
    if hidden is None or members is None or any(map(hidden.may_be_in, members)):
        return members if hidden is None else None
    return {key: hidden.show(value) for key, value in members.items()}


def is_deep(raw: Raw | bytes) -> bool:
    """Return whether a JSON text is nested too deeply for the usual decoder."""
    try:
        _decode_raw(raw)
    except RecursionError:
        return True
    except _UNREADABLE:
        return False
    return False


def _decode_again(decode: Callable[[Any], _T], raw: bytes) -> tuple[Hidden | None, _T | None]:
    """Decode a value that the usual decoder cannot read, because it is nested deeply or contains unpaired surrogate
    escapes. Return the decoded value, or None if this fails too. If escapes had to be replaced, also return the text
    with the replacements.
    """
    try:
        return None, decode_deep(decode, raw)
    except _UNREADABLE:
        hidden = hide(raw)
    try:
        return hidden, decode_deep(decode, hidden.data) if hidden is not None else None
    except _UNREADABLE:
        return hidden, None


def decode_params_untrusted(raw: Raw | bytes, message: bytes = b"") -> dict[str, Raw] | None:
    """Return the members of a request's params. Return None if the params are no object, or if they are too large apart
    from the members that may be large.

    `message` is the complete message if it is large. If it is given, less has to be decoded.
    """
    size = len(raw)
    if size > PARAMS_REST_BYTES_MAX:
        members = _find_outlined_params(message)
        if members is not None:
            return members if size - _bulk_size(members) <= PARAMS_REST_BYTES_MAX else None
        try:
            large = decode_deep(_decode_bulk, raw).size
        except _UNREADABLE:
            return None
        if size - large > PARAMS_REST_BYTES_MAX:
            return None
    return decode_object(raw)


def _find_outlined_params(message: bytes) -> dict[str, Raw] | None:
    """Decode the params of a large message quickly, by decoding the message without its longest string.

    Return None if the message has no outline, if the outline is not JSON because the cut was between strings, or if the
    cut removed the name of a member.
    """
    outline = find_outline(message)
    if outline is None:
        return None
    try:
        params = _decode_whole(outline.text).params
    except _UNREADABLE:
        return None
    if any(HOLE in name for name in params):
        return None
    return LargeParams((name, outline.whole(value)) for name, value in params.items())


def decode_array(raw: Raw | bytes) -> list[Raw] | None:
    """Return the items of a JSON array as raw values. Return None if the text is not an array."""
    try:
        return _decode_array(raw)
    except msgspec.ValidationError:
        return None
    except _UNREADABLE:
        hidden, items = _decode_again(_decode_array, bytes(raw))
    return items if hidden is None or items is None else [hidden.show(item) for item in items]


def decode_string(raw: Raw | bytes) -> str:
    """Return the text of a JSON string. Raise CodecError if the value is not a string."""
    try:
        return _decode_string(raw)
    except _UNREADABLE:
        raise CodecError(INVALID_REQUEST, "a string was expected") from None


def find_string(raw: Raw | bytes | None) -> str | None:
    """Return the text of a JSON string, or None if the value is absent or not a string."""
    if raw is None:
        return None
    try:
        return _decode_string(raw)
    except _UNREADABLE:
        return None


def decode_value(raw: Raw | bytes) -> Any:
    """Decode a JSON value to Python objects. Large integers keep all digits. Raise CodecError if it is not readable."""
    try:
        return _decode_any(raw)
    except _UNREADABLE:
        raise CodecError(INVALID_REQUEST, "a JSON value was expected") from None


def encode_value(value: Any) -> bytes:
    """Encode a value as compact JSON. Raw values in it are used as they are."""
    return _encode(value)


def encode_request(message_id: bytes, method: bytes, params: bytes) -> bytes:
    if not params:
        return b'{"jsonrpc":"2.0","id":%b,"method":"%b"}' % (message_id, method)
    return b'{"jsonrpc":"2.0","id":%b,"method":"%b","params":%b}' % (message_id, method, params)


def encode_call(message_id: int, method: str, params: dict[str, Any]) -> bytes:
    """Encode a JSON-RPC request with this id, method and params. Raw values in the params are not encoded again."""
    return _encode(_Outgoing("2.0", message_id, method, params))


def encode_notification(method: bytes, params: bytes) -> bytes:
    if not params:
        return b'{"jsonrpc":"2.0","method":"%b"}' % method
    return b'{"jsonrpc":"2.0","method":"%b","params":%b}' % (method, params)


def encode_result(message_id: bytes, result: Raw | bytes) -> bytes:
    return b"".join((b'{"jsonrpc":"2.0","id":', message_id, b',"result":', result, b"}"))  # one copy


def encode_result_pieces(message_id: bytes, result: tuple[bytes, memoryview]) -> bytes:
    """Encode a response with a result that consists of two pieces, such as a translated result of a large call."""
    return b"".join((b'{"jsonrpc":"2.0","id":', message_id, b',"result":', *result, b"}"))


def encode_error(message_id: bytes, error: Raw | bytes) -> bytes:
    return b'{"jsonrpc":"2.0","id":%b,"error":%b}' % (message_id, bytes(error))


def encode_refusal(message_id: bytes, refusal: Refusal, *, draft: bool = False) -> bytes:
    return encode_error(message_id, error_body(refusal, draft=draft))
