"""A client's capabilities, said in the other era: the client's own travel, never the gateway's."""

from typing import Any

from msgspec import Raw

from interlock.protocol.jsonrpc.codec import decode_object, encode_value


def capabilities_to_modern(offered: dict[str, Raw]) -> Raw:
    """What a legacy client declared at `initialize`, for the `_meta` of a 2026-07-28 request."""
    said: dict[str, Any] = {}
    for name in ("sampling", "experimental"):
        if name in offered:
            said[name] = offered[name]
    if "roots" in offered:
        said["roots"] = {}  # listChanged has no meaning without a session
    if "elicitation" in offered:
        modes = decode_object(offered["elicitation"]) or {}
        said["elicitation"] = modes or {"form": {}}  # before 2025-11-25 there was only the form
    return Raw(encode_value(said))


def declares(capabilities: Raw, name: str, mode: str | None = None) -> bool:
    """Whether a modern client declared `name` (and, for elicitation, the mode)."""
    offered = decode_object(capabilities) or {}
    if name not in offered:
        return False
    if name != "elicitation" or mode is None:
        return True
    modes = decode_object(offered[name]) or {}
    return mode in modes or (mode == "form" and not modes)
