"""`_meta` as the server of a call reads it: what a client may say to it, in the words of the server's era."""

from typing import Any

from msgspec import Raw

from interlock.core.calls.call import Call
from interlock.mcp.eras import Era
from interlock.mcp.meta import ERA_KEYS, PROGRESS_TOKEN, crossing_keys, stamp_modern
from interlock.mcp.methods import META_CAPABILITIES, META_CLIENT, META_LOG_LEVEL, META_TASK
from interlock.wire.jsonrpc.codec import encode_value


def rewrite_meta(call: Call, upstream_id: int, *, modern: bool, vendor: bool, task: Any) -> None:
    """Write `call.params["_meta"]` anew. `modern`: the server's era; `vendor`: whether keys of others cross too;
    `task`: what the call says it belongs to, as the server knows it, or None."""
    if not call.meta:
        if modern:
            call.params["_meta"] = call.caller.stamped()
        else:
            call.params.pop("_meta", None)
        return
    meta: dict[str, Raw] = {}
    if not ERA_KEYS.issuperset(call.meta):
        meta = crossing_keys(call.meta, vendor=vendor)
        if task is not None:
            meta[META_TASK] = Raw(encode_value(task))
    if modern:
        _stamp(call, meta)
    elif call.caller.era is Era.MODERN and call.hold is None and bytes(call.meta[META_CAPABILITIES]) != b"{}":
        # The link is shared and declared what any client may have; this says what the one that asks can do. A call that
        # a person agrees to carries nothing beside what was shown.
        meta[META_CAPABILITIES] = call.meta[META_CAPABILITIES]
    if call.progress_token is not None:
        meta[PROGRESS_TOKEN] = Raw(b"%d" % upstream_id)
    if meta:
        call.params["_meta"] = meta
    else:
        call.params.pop("_meta", None)


def _stamp(call: Call, meta: dict[str, Raw]) -> None:
    caller = call.caller
    if caller.era is not Era.MODERN:
        caller.stamp(meta)
        return
    said = call.meta
    stamp_modern(
        meta, capabilities=said[META_CAPABILITIES], client=said.get(META_CLIENT), log_level=said.get(META_LOG_LEVEL)
    )
