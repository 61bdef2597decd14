"""What a client hears of a call through a contract: its value, or how it failed, as a tools/call result of 2026-07-28.

Bringing it to the client's own era is done where every result is brought there.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from msgspec import Raw

from interlock.drivers.protocol.errors import DriverRefusal
from interlock.wire.jsonrpc.codec import decode_object, encode_value, find_string

ERROR_KEY: Final = "dev.interlock/error"
_HEAD: Final = b'{"resultType":"complete",'


def value_result(value: Any) -> bytes:
    """The value as structured content, and as text for those who read only that."""
    structured = encode_value(value)
    text = value if isinstance(value, str) else structured.decode()
    content = encode_value([{"type": "text", "text": text}])
    return _HEAD + b'"content":%b,"structuredContent":%b,"isError":false}' % (content, structured)


def with_structured(result: Raw, value: Any) -> bytes:
    """The server's result with the value as its structured content; every other member keeps its bytes."""
    written = bytes(result)
    if written.startswith(b'{"'):
        return b'{"structuredContent":%b,%b' % (encode_value(value), written[1:])
    return encode_value({**(decode_object(result) or {}), "structuredContent": value})


def error_result(error: DriverRefusal, ref: str, content: Sequence[Raw] = ()) -> bytes:
    """AIP-tools-13: the text begins with the code. `content` are the blocks of a server that reports the error itself:
    they are kept, the first that has a text in front and with the code before it, so that nothing is said twice. The
    cause stays here."""
    first = next((block for block in content if _maybe_text(block) is not None), None)
    members = decode_object(first) if first is not None else None
    text = _maybe_text(first) if first is not None else error.message
    head = {"type": "text", **(members or {}), "text": f"{error.code}: {text}"}  # AIP-tools-13
    said = [head, *(block for block in content if block is not first)]
    meta: Mapping[str, Any] = {ERROR_KEY: {"code": error.code, "retryable": error.retryable, "ref": ref}}
    return _HEAD + b'"content":%b,"isError":true,"_meta":%b}' % (encode_value(said), encode_value(meta))


def _maybe_text(block: Raw) -> str | None:
    members = decode_object(block) or {}
    return find_string(members.get("text")) if find_string(members.get("type")) == "text" else None
