"""How long a call took, written into the metadata of its result (MCP-AX 7.2). Every other member keeps its bytes."""

from typing import Final

from msgspec import Raw

from interlock.wire.jsonrpc.codec import decode_object, encode_value

LATENCY_MS: Final = "x-mcpax-latency-ms"  # AX-7.2-8


def with_latency(result: bytes, milliseconds: int) -> bytes:
    """The result with the time as this hop saw it; what a hop below wrote is overwritten. One without a place for it
    (a `_meta` that is no object) stays as it is."""
    members = decode_object(result)
    meta = decode_object(members.get("_meta", b"{}")) if members is not None else None
    if members is None or meta is None:  # AX-7.2-8
        return result
    return encode_value({**members, "_meta": {**meta, LATENCY_MS: Raw(b"%d" % max(0, milliseconds))}})
