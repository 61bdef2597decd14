"""Results that a client gets from a call through a contract: its value, how it failed, or what the server asks.

All are tools/call results of MCP 2026-07-28. The front converts them to the era of the client, as it does with every
result.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from msgspec import Raw

from interlock.drivers.protocol.problems import DriverRefusal
from interlock.wire.jsonrpc.codec import decode_object, encode_value, find_string

ERROR_KEY: Final = "dev.interlock/error"
_HEAD: Final = b'{"resultType":"complete",'


def value_result(value: Any) -> bytes:
    """Return a result with the value as structured content, and as text for clients that read only text."""
    structured = encode_value(value)
    text = value if isinstance(value, str) else structured.decode()
    content = encode_value([{"type": "text", "text": text}])
    return _HEAD + b'"content":%b,"structuredContent":%b,"isError":false}' % (content, structured)


def with_structured(result: Raw, value: Any) -> bytes:
    """Return the server's result with the value as its structured content; all other members keep their bytes."""
    written = bytes(result)
    if written.startswith(b'{"'):
        return b'{"structuredContent":%b,%b' % (encode_value(value), written[1:])
    return encode_value({**(decode_object(result) or {}), "structuredContent": value})


def error_result(error: DriverRefusal, ref: str, content: Sequence[Raw] = ()) -> bytes:
    """Return the result of a failed call; its text begins with the error's code (AIP-tools-13).

    `content` are the blocks of a server that reports the error itself. They are passed on, but the first text block
    moves to the front and receives the code, so that nothing is repeated. The error's cause is not sent.
    """
    first = next((block for block in content if _maybe_text(block) is not None), None)
    members = decode_object(first) if first is not None else None
    text = _maybe_text(first) if first is not None else error.message
    head = {"type": "text", **(members or {}), "text": f"{error.code}: {text}"}  # AIP-tools-13
    blocks = [head, *(block for block in content if block is not first)]
    meta: Mapping[str, Any] = {ERROR_KEY: {"code": error.code, "retryable": error.retryable, "ref": ref}}
    return _HEAD + b'"content":%b,"isError":true,"_meta":%b}' % (encode_value(blocks), encode_value(meta))


def _maybe_text(block: Raw) -> str | None:
    members = decode_object(block) or {}
    return find_string(members.get("text")) if find_string(members.get("type")) == "text" else None


PREFIX: Final = "ild1."
_END: Final = " "  # in no driver's key


def seal_state(result: Raw, driver: str) -> Raw:
    """Return an input_required result whose requestState names the driver that asked, in front of the driver's own
    state.
    """
    members: dict[str, Any] = decode_object(result) or {}
    state = find_string(members.get("requestState"))
    members["requestState"] = f"{PREFIX}{driver}{_END}{'' if state is None else '=' + state}"
    return Raw(encode_value(members))


def pin(driver: str) -> str:
    """Return a request state that sends a call to this driver or to none, without a question before it."""
    return f"{PREFIX}{driver}{_END}"


def open_state_untrusted(raw: Raw) -> tuple[str, Raw | None] | None:
    """Return the driver that asked and its state, or None if `raw` is not a state that this node sealed."""
    text = find_string(raw)
    if text is None or not text.startswith(PREFIX):
        return None
    driver, end, state = text.removeprefix(PREFIX).partition(_END)
    if not driver or not end or (state and not state.startswith("=")):
        return None
    return driver, Raw(encode_value(state[1:])) if state else None
