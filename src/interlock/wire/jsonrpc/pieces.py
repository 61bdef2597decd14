"""A message in pieces that are written one after the other: what is large in it is sent from where it was read."""

from typing import Any, Final

import msgspec

LARGE_VALUE_BYTES: Final = 64 * 1024  # from here on a copy costs more than another piece

_encode = msgspec.json.Encoder().encode


class LargeParams(dict[str, Any]):
    """The params of a large message: worth sending in pieces."""


def call_pieces(message_id: int, method: str, params: LargeParams) -> tuple[bytes | memoryview, ...]:
    """The same bytes as of `codec.encode_call`."""
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
