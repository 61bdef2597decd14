"""A note of the gateway in the answer to a call: one more text for the model, the rest as its server wrote it."""

from typing import Any

from msgspec import Raw

from interlock.wire.jsonrpc.codec import (
    decode_array,
    decode_object,
    decode_untrusted,
    encode_error,
    encode_result,
    encode_value,
    maybe_string,
)
from interlock.wire.jsonrpc.errors import CodecError
from interlock.wire.jsonrpc.messages import Response


def with_note(message: bytes, text: str) -> bytes:
    """The whole answer with `text` behind its content, or behind what its error says; as it is where it has neither."""
    try:
        answer = decode_untrusted(message)
    except CodecError:
        return message
    if not isinstance(answer, Response):
        return message
    members: dict[str, Any] | None = decode_object(answer.error or answer.result)
    if members is None:
        return message
    if answer.error:
        said = maybe_string(members.get("message"))
        members["message"] = f"{said} ({text})" if said else text
        return encode_error(answer.id, encode_value(members))
    content = decode_array(members["content"]) if "content" in members else None
    if content is None:
        return message
    members["content"] = [*content, Raw(encode_value({"type": "text", "text": text}))]
    return encode_result(answer.id, encode_value(members))
