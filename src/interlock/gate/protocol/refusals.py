"""The other answers of a gate (MCP-AX 11.3): the tool without a class, the call that a person refused.

Both have the form of confirmation_required, so that one reader reads all of them.
"""

from typing import Any, Final

from interlock.gate.protocol.held_call import CONFIRMATION, ConfirmationDemand, as_object
from interlock.gate.protocol.relay import DENIED
from interlock.wire.jsonrpc.codec import encode_value

KIND: Final = "kind"  # why it is held, where it is not for this one call


def denied_result(held: ConfirmationDemand, said: str | None, *, has_output_schema: bool, modern: bool) -> bytes:
    """`said`: the reason the person gave."""
    why = f" The reason given: {said.rstrip('.')}." if said else ""
    text = f"Nothing was executed. A person was asked about this call of {held.tool} and refused it.{why}"
    until = f" The answer stands until {held.expires_at}." if held.expires_at is not None else ""
    shown = {**as_object(held), "status": DENIED} | ({"reason": said} if said else {})  # AX-11.3-11: denied
    return _result(shown, f"{text}{until} Do not try the same in another way.", has_output_schema, modern)


def open_result(held: ConfirmationDemand, *, has_output_schema: bool, modern: bool) -> bytes:
    """For a tool that does not say what it does."""
    text = (
        f"Nothing was executed. {held.tool} does not say whether it changes anything, so its calls wait until an "
        f"operator has said it, once: {held.approval_url} or `interlock approve {held.confirmation_id} --class "
        "read_only`, `reversible` or `irreversible`. Then make the same call again."
    )
    return _result({**as_object(held), KIND: "definition"}, text, has_output_schema, modern)


def _result(shown: dict[str, Any], text: str, has_output_schema: bool, modern: bool) -> bytes:
    result: dict[str, Any] = {"resultType": "complete"} if modern else {}
    result["content"] = [{"type": "text", "text": text}]
    if not has_output_schema:
        result["structuredContent"] = shown
    return encode_value({**result, "isError": True, "_meta": {CONFIRMATION: shown}})
