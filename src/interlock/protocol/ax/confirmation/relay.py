"""What a hop does with a confirmation that a hop below demands (MCP-AX 11.3, monotonicity).

The demand is carried up as it is: only the name of the tool and its route are written as this hop knows them. Every
other part of the result stays as it came.
"""

from collections.abc import Sequence
from typing import Any, Final

import msgspec
from msgspec import Raw

from interlock.protocol.ax.confirmation.held_call import CONFIRMATION, ID_CHARS_MAX, REQUIRED
from interlock.protocol.jsonrpc.codec import decode_object, encode_value, maybe_string

MARK: Final = b'"%b"' % CONFIRMATION.encode()
DENIED: Final = "confirmation_denied"
URL_CHARS_MAX: Final = 2048
BELOW: Final = "A node below the one you called asks for this: decide it on that node's page, or by the command there."


class Carried(msgspec.Struct, frozen=True, kw_only=True):
    result: bytes
    status: str
    confirmation_id: str
    approval_url: str | None
    text: str | None  # what a model is told


def maybe_carried(result: Raw | bytes, tool: str, route: Sequence[str]) -> Carried | None:
    """The result in our terms; None where it demands nothing, or nothing that can be carried."""
    members: dict[str, Any] | None = decode_object(result)
    meta: dict[str, Any] | None = decode_object(members["_meta"]) if members and "_meta" in members else None
    demand = decode_object(meta[CONFIRMATION]) if meta is not None and CONFIRMATION in meta else None
    if members is None or meta is None or demand is None:
        return None
    status, confirmation_id = maybe_string(demand.get("status")), maybe_string(demand.get("confirmation_id"))
    if status not in (REQUIRED, DENIED) or not confirmation_id or len(confirmation_id) > ID_CHARS_MAX:
        return None
    ours = Raw(encode_value({**demand, "tool": tool, "route": list(route)}))
    members["_meta"] = {**meta, CONFIRMATION: ours}
    if "content" in members:
        members["content"] = _in_our_terms(members["content"], maybe_string(demand.get("tool")), tool)
    shown = decode_object(members["structuredContent"]) if "structuredContent" in members else None
    if shown is not None and maybe_string(shown.get("confirmation_id")) == confirmation_id:
        members["structuredContent"] = ours
    return Carried(
        result=encode_value(members),
        status=status,
        confirmation_id=confirmation_id,
        approval_url=_maybe_url(demand.get("approval_url")),
        text=_maybe_text(members.get("content")),
    )


def _in_our_terms(content: Raw, their_name: str | None, our_name: str) -> Raw:
    """What a model is told names the tool as its caller knows it, and says where it is decided."""
    try:
        blocks = msgspec.json.decode(content, type=list[dict[str, Any]])
    except msgspec.DecodeError:
        return content
    for block in blocks:
        text = block.get("text")
        if isinstance(text, str) and their_name:
            said = text.replace(their_name, our_name, 1)
            block["text"] = said if BELOW in said else f"{said} {BELOW}"
            return Raw(encode_value(blocks))
    return content


def _maybe_url(raw: Raw | None) -> str | None:
    url = maybe_string(raw)
    return url if url is not None and url.startswith(("http://", "https://")) and len(url) <= URL_CHARS_MAX else None


def _maybe_text(raw: Raw | None) -> str | None:
    try:
        blocks = msgspec.json.decode(raw, type=list[dict[str, Any]]) if raw is not None else []
    except msgspec.DecodeError:
        return None
    return next((text for block in blocks if isinstance(text := block.get("text"), str)), None)
