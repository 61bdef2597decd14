"""Bytes <-> JSON-RPC messages, with everything that matters to the ends kept as the bytes it came in.

`decode_untrusted` takes bytes from outside and raises only CodecError. The `encode_*` functions join bytes; they never
re-encode a payload.
"""

from typing import Any, Literal

import msgspec
from msgspec import Raw

from interlock.wire.jsonrpc.deep import DEPTH_MAX, decode_deep
from interlock.wire.jsonrpc.errors import CodecError, error_body
from interlock.wire.jsonrpc.messages import ABSENT, Message, Notification, Request, Response
from interlock.wire.jsonrpc.outline import HOLE, maybe_outline
from interlock.wire.jsonrpc.pieces import LargeParams
from interlock.wire.jsonrpc.surrogates import hide
from interlock.wire.refusal import INVALID_REQUEST, PARSE_ERROR, Refusal


class _Strict(msgspec.Struct):
    """What a well-formed message looks like; whatever fails this is looked at again to say what is wrong."""

    jsonrpc: Literal["2.0"]
    id: Raw = ABSENT
    method: str = ""
    params: Raw = ABSENT
    result: Raw = ABSENT
    error: Raw = ABSENT


class _Whole(msgspec.Struct):
    """A request with the members of its params, in one reading."""

    jsonrpc: Literal["2.0"]
    id: Raw
    method: str
    params: dict[str, Raw]


class _Bulk(msgspec.Struct):
    """The members of params that may be large; they are kept raw and never looked into."""

    arguments: Raw = ABSENT
    inputResponses: Raw = ABSENT  # noqa: N815
    requestState: Raw = ABSENT  # noqa: N815

    @property
    def size(self) -> int:
        return len(self.arguments) + len(self.inputResponses) + len(self.requestState)


class _Large(msgspec.Struct):
    """What may be large in a request: the rest is judged before an object is made of each of its members."""

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
_encode = msgspec.json.Encoder().encode

_UNKNOWN_ID = b"null"
_UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)  # what msgspec raises
_ID_START = frozenset(b'"-0123456789')
_FRACTION = frozenset(b".eE")
ID_BYTES_MAX = 64 * 1024  # an id is echoed and kept per call
_UTF8_PIECE_BYTES = 256 * 1024
_QUOTES_FEW = 1000  # twice the names and strings that a large message may have to count as few
_UTF8_TAIL_MAX = 3  # bytes of a character after its first
PARAMS_REST_BYTES_MAX = 256 * 1024  # of params beside what may be large: each member costs an object


def _check_utf8(data: bytes) -> None:
    """Raises UnicodeDecodeError. msgspec passes over raw strings without decoding them, so without this, invalid UTF-8
    would reach the other side. A large text is decoded piece by piece, because the whole takes room."""
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
    """Whether a large message is large because of what is in its strings: then it has few members."""
    at = 0
    for _ in range(_QUOTES_FEW):
        at = data.find(b'"', at) + 1
        if not at:
            return True
    return False


def decode_untrusted(data: bytes) -> Message:
    """One message. An array is refused: where batches are allowed, `batch` takes them apart first."""
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


def maybe_plain_request(data: bytes) -> tuple[bytes, str, dict[str, Raw]] | None:
    """The id, method and params of an ordinary request; None for everything that wants a closer look."""
    try:
        if not data.isascii():
            _check_utf8(data)
        if len(data) > PARAMS_REST_BYTES_MAX:
            whole = _maybe_whole_large(data)
            if whole is None:
                return None
        else:
            whole = _decode_whole(data)
    except _UNREADABLE:
        return None
    message_id = bytes(whole.id)
    if whole.method and ((message_id.isdigit() and len(message_id) <= ID_BYTES_MAX) or is_id(message_id)):
        return message_id, whole.method, whole.params
    return None


def _maybe_whole_large(data: bytes) -> _Whole | None:
    """None where it has too much beside what may be large. Raises what msgspec raises."""
    size = len(data)
    if not _has_few_strings(data) and size - _decode_large(data).params.size > PARAMS_REST_BYTES_MAX:
        return None
    whole = _decode_whole(data)
    if size - _bulk_size(whole.params) > PARAMS_REST_BYTES_MAX:
        return None
    whole.params = LargeParams(whole.params)
    return whole


def _decode_carefully(data: bytes) -> Message:
    """The slow way, which knows what is wrong."""
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
    if maybe_string(envelope.jsonrpc) != "2.0":
        raise CodecError(INVALID_REQUEST, 'the member "jsonrpc" must be "2.0"', _echo(message_id))
    method = _method(envelope.method, message_id)
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
    """Raises what msgspec raises for text that is not JSON, and CodecError for JSON that is not an object."""
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
        found = _envelope(hidden.data)
        return _Envelope(*(hidden.show(getattr(found, name)) for name in _Envelope.__struct_fields__))


def _envelope(data: bytes) -> _Envelope:
    try:
        return _decode_envelope(data)
    except RecursionError:
        return decode_deep(_decode_envelope, data, DEPTH_MAX)


def is_id(raw: bytes) -> bool:
    """MCP ids are strings or integers, of which some clients write 1 as 1.0; null, fractions and containers are not."""
    if len(raw) > ID_BYTES_MAX or raw[0] not in _ID_START:
        return False
    return raw.isdigit() or raw[0] == 0x22 or _FRACTION.isdisjoint(raw) or float(raw).is_integer()


def _echo(message_id: bytes) -> bytes:
    return message_id if message_id and is_id(message_id) else _UNKNOWN_ID


def _method(raw: Raw, message_id: bytes) -> str:
    """An empty name is no method."""
    method = maybe_string(raw) if raw else ""
    if method is None:
        raise CodecError(INVALID_REQUEST, 'the member "method" must be a string', _echo(message_id))
    return method


def decode_object(raw: Raw | bytes) -> dict[str, Raw] | None:
    """A JSON object with its values kept raw and its keys in order, or None if it is not an object."""
    try:
        return _decode_object(raw)
    except msgspec.ValidationError:
        return None
    except RecursionError:
        return _deep_object(bytes(raw))
    except _UNREADABLE:
        return _object_around_halves(bytes(raw))


def is_deep(raw: Raw | bytes) -> bool:
    """Whether it is nested too deeply to be made into a value."""
    try:
        _decode_raw(raw)
    except RecursionError:
        return True
    except _UNREADABLE:
        return False
    return False


def _deep_object(raw: bytes) -> dict[str, Raw] | None:
    try:
        return decode_deep(_decode_object, raw)
    except _UNREADABLE:
        return _object_around_halves(raw)


def _object_around_halves(raw: bytes) -> dict[str, Raw] | None:
    hidden = hide(raw)
    try:
        members = decode_deep(_decode_object, hidden.data) if hidden is not None else None
    except _UNREADABLE:
        return None
    # A key is a decoded text: one with half a pair could not be written again.
    if hidden is None or members is None or any(map(hidden.may_be_in, members)):
        return None
    return {key: hidden.show(value) for key, value in members.items()}


def decode_params_untrusted(raw: Raw | bytes, message: bytes = b"") -> dict[str, Raw] | None:
    """The members of params, or None if it is no object or has too much beside its arguments. `message`: the whole one,
    where it is large, which spares a second reading."""
    size = len(raw)
    if size > PARAMS_REST_BYTES_MAX:
        members = _maybe_outlined_params(message)
        if members is not None:
            return members if size - _bulk_size(members) <= PARAMS_REST_BYTES_MAX else None
        try:
            large = decode_deep(_decode_bulk, raw).size
        except _UNREADABLE:
            return None
        if size - large > PARAMS_REST_BYTES_MAX:
            return None
    return decode_object(raw)


def _maybe_outlined_params(message: bytes) -> dict[str, Raw] | None:
    """None where the message has no outline, or its outline is no JSON, because it was cut between strings, or the name
    of a member was cut out."""
    outline = maybe_outline(message)
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
    try:
        return _decode_array(raw)
    except msgspec.ValidationError:
        return None
    except RecursionError:
        return _deep_array(bytes(raw))
    except _UNREADABLE:
        return _array_around_halves(bytes(raw))


def _deep_array(raw: bytes) -> list[Raw] | None:
    try:
        return decode_deep(_decode_array, raw)
    except _UNREADABLE:
        return _array_around_halves(raw)


def _array_around_halves(raw: bytes) -> list[Raw] | None:
    hidden = hide(raw)
    try:
        return [hidden.show(one) for one in decode_deep(_decode_array, hidden.data)] if hidden is not None else None
    except _UNREADABLE:
        return None


def decode_string(raw: Raw | bytes) -> str:
    """Raises CodecError: the caller has already seen that it begins like a string."""
    try:
        return _decode_string(raw)
    except _UNREADABLE:
        raise CodecError(INVALID_REQUEST, "a string was expected") from None


def maybe_string(raw: Raw | bytes | None) -> str | None:
    if raw is None:
        return None
    try:
        return _decode_string(raw)
    except _UNREADABLE:
        return None


def decode_value(raw: Raw | bytes) -> Any:
    """The value itself, for the few places that look inside. Big integers stay integers."""
    try:
        return _decode_any(raw)
    except _UNREADABLE:
        raise CodecError(INVALID_REQUEST, "a JSON value was expected") from None


def encode_value(value: Any) -> bytes:
    """Compact JSON; `Raw` values inside are copied byte for byte."""
    return _encode(value)


def encode_request(message_id: bytes, method: bytes, params: bytes) -> bytes:
    if not params:
        return b'{"jsonrpc":"2.0","id":%b,"method":"%b"}' % (message_id, method)
    return b'{"jsonrpc":"2.0","id":%b,"method":"%b","params":%b}' % (message_id, method, params)


def encode_call(message_id: int, method: str, params: dict[str, Any]) -> bytes:
    """A request of ours with these params, whose raw values are copied once."""
    return _encode(_Outgoing("2.0", message_id, method, params))


def encode_notification(method: bytes, params: bytes) -> bytes:
    if not params:
        return b'{"jsonrpc":"2.0","method":"%b"}' % method
    return b'{"jsonrpc":"2.0","method":"%b","params":%b}' % (method, params)


def encode_result(message_id: bytes, result: Raw | bytes) -> bytes:
    return b"".join((b'{"jsonrpc":"2.0","id":', message_id, b',"result":', result, b"}"))  # one copy


def encode_result_pieces(message_id: bytes, result: tuple[bytes, memoryview]) -> bytes:
    return b"".join((b'{"jsonrpc":"2.0","id":', message_id, b',"result":', *result, b"}"))


def encode_error(message_id: bytes, error: Raw | bytes) -> bytes:
    return b'{"jsonrpc":"2.0","id":%b,"error":%b}' % (message_id, bytes(error))


def encode_refusal(message_id: bytes, refusal: Refusal, *, draft: bool = False) -> bytes:
    return encode_error(message_id, error_body(refusal, draft=draft))
