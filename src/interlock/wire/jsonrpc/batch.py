"""Batches: several JSON-RPC messages in one array, as MCP 2025-03-26 alone has them.

`parts_untrusted` takes the array apart and reads no message: each part is for `decode_untrusted`.
"""

import re
from functools import cache
from typing import Any, Final

import msgspec
from msgspec import Raw

from interlock.wire.jsonrpc.deep import DEPTH_MAX, decode_deep
from interlock.wire.jsonrpc.errors import CodecError
from interlock.wire.jsonrpc.messages import ABSENT
from interlock.wire.refusal import INVALID_REQUEST, PARSE_ERROR

PARTS_MAX: Final = 10_000

_BEGIN: Final = re.compile(rb"[ \t\r\n]*\[")


def is_batch(data: bytes) -> bool:
    return _BEGIN.match(data) is not None


def parts_untrusted(data: bytes) -> list[bytes]:
    """The messages of a batch as they were written, at least one. Raises CodecError."""
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
    """Made when the first batch comes. A structure and not a list, because it ends at the first part too many: a list
    of sixteen million bytes is five million objects."""
    fields: Any = [(f"part_{number}", Raw, ABSENT) for number in range(PARTS_MAX)]
    return msgspec.json.Decoder(
        msgspec.defstruct("Batch", fields, array_like=True, forbid_unknown_fields=True, gc=False)
    ).decode
