"""What is sent of a call that a person released: what they were shown and signed, and nothing else of its client's.

That is the name of the tool and the arguments. `_meta` keeps what the protocol itself needs, and answers go only to the
questions that the server asked in the round before. Members that MCP does not know, keys of others in `_meta`, traces
included, and what a client wants of its task were decided by no person: they stay here.
"""

from typing import Any, Final

from interlock.core.calls.call import Call
from interlock.gate.rounds import Pass
from interlock.links.link import Link
from interlock.mcp.meta import PROGRESS_TOKEN, RAW_EMPTY
from interlock.mcp.methods import META_CAPABILITIES, META_CLIENT, META_LOG_LEVEL, META_VERSION, Era
from interlock.mcp.mrtr import request_digest
from interlock.wire.jsonrpc.codec import decode_object

_SHOWN: Final = ("name", "arguments")
_META: Final = frozenset((META_VERSION, META_CAPABILITIES, META_CLIENT, META_LOG_LEVEL, PROGRESS_TOKEN))


def keep_confirmed(call: Call, link: Link, before: Pass | None) -> None:
    """Drop everything from a released call that no person approved. `before`: the round that the call goes on from."""
    request_params = call.params
    if call.wished is not None:  # a call that is parked is taken up again by the whole request
        call.open_dialogue().request_digest = request_digest(call.method, call.as_wished())
    params: dict[str, Any] = {member: request_params[member] for member in _SHOWN if member in request_params}
    if before is not None and before.state:
        responses = decode_object(request_params.get("inputResponses", RAW_EMPTY)) or {}
        params["inputResponses"] = {key: answer for key, answer in responses.items() if key in before.questions}
        params["requestState"] = request_params["requestState"]
    if "task" in request_params and call.caller.era is Era.LEGACY and link.tasks and not link.modern:
        params["task"] = RAW_EMPTY  # how the answer comes; how long it is kept is the server's to say
    meta = {key: value for key, value in call.meta.items() if key in _META}
    if "_meta" in request_params:
        params["_meta"] = meta
    call.send_only(params, meta)
