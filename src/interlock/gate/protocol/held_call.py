"""A held call (MCP-AX 11.3): what exactly is to be confirmed, how a client is told, what it sends to have it released.

`call_digest` names the call: two calls have one digest only if every reader takes them for the same call. Arguments
that cannot be named so are refused with -32602 before anybody is asked. `held_result` is the answer
confirmation_required, for clients that know nothing of MCP-AX. `read_confirm_untrusted` reads mcpax/confirm; whether
its proof is good is judged in `jws_proof`.
"""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec import Raw

from interlock.wire.jsonrpc.codec import decode_object, decode_value, encode_value, find_string
from interlock.wire.jsonrpc.errors import CodecError
from interlock.wire.jsontext.canonical import NotCanonical, canonical
from interlock.wire.jsontext.unambiguous import AmbiguousJson, read_untrusted
from interlock.wire.refusal import INVALID_PARAMS, Refusal

CONFIRMATION: Final = "x-mcpax-confirmation"
REQUIRED: Final = "confirmation_required"  # AX-11.3-2
VERSION: Final = 1  # of what a digest is made of
ARGUMENTS_BYTES_MAX: Final = 1_048_576  # they are kept, and shown to a person
ID_CHARS_MAX: Final = 64  # ours are UUIDs; a hop below may name its own


class ConfirmationDemand(msgspec.Struct, frozen=True, kw_only=True):
    """The members of confirmation_required, beside its status. What `call_digest` is made of is among them."""

    tool: str
    arguments: Raw  # as they were sent
    capability: Any  # the annotation as listed
    route: tuple[str, ...]
    caller: str
    tool_digest: str
    confirmation_id: str
    expires_at: str | None  # RFC 3339; None: it does not expire
    approval_url: str
    nonce: str
    call_digest: str
    aggregator_id: str  # the audience of a proof


class Presented(msgspec.Struct, frozen=True, kw_only=True):
    """A proof as it was sent. `type` is the sender's word for it; None: it came as a bare token."""

    token: str
    type: str | None = None


class Confirm(msgspec.Struct, frozen=True, kw_only=True):
    """`dispatch` and `redeem` are ours, between aggregators."""

    confirmation_id: str
    proof: Presented | None  # None where it is redeemed
    dispatch: bool = True  # false takes the proof and leaves the call to its caller
    redeem: bool = False  # the caller asks for the call that is held, decided or not; it proves nothing


def call_digest(
    arguments: Raw | bytes | None, *, aggregator_id: str, tool: str, route: Sequence[str], caller: str, tool_digest: str
) -> str | Refusal:
    """SHA-256 in hex over the canonical JSON of the call (11.3, ours). No arguments and an empty object are the same.

    `_meta` has no part in it: progress tokens and trace ids change from one sending to the next.
    """
    raw = b"{}" if arguments is None else bytes(arguments)
    if len(raw) > ARGUMENTS_BYTES_MAX:
        return _not_nameable("size", f"they are longer than {ARGUMENTS_BYTES_MAX} bytes")
    try:
        members = read_untrusted(raw)
        if not isinstance(members, dict):
            return _not_nameable("malformed", "they are not an object")
        text = canonical(  # AX-11.3-13
            {
                "v": VERSION,
                "aggregator_id": aggregator_id,
                "tool": tool,
                "arguments": members,
                "route": list(route),
                "caller": caller,
                "tool_digest": tool_digest,
            }
        )
    except AmbiguousJson as error:
        return _not_nameable(error.reason, str(error))  # AX-11.3-13
    except NotCanonical as error:
        return _not_nameable("malformed", str(error))
    return hashlib.sha256(text).hexdigest()


def _not_nameable(reason: str, why: str) -> Refusal:
    return Refusal(
        INVALID_PARAMS,
        f"the arguments of a call that a person confirms must mean the same to every reader: {why}",
        {"reason": reason},
    )


def as_object(held: ConfirmationDemand) -> dict[str, Any]:
    return {"status": REQUIRED, **msgspec.structs.asdict(held)}  # AX-11.3-2


def as_text(held: ConfirmationDemand, *, has_approvers: bool, more: str = "") -> str:
    """What a model reads. `has_approvers`: whether there is anybody whose proof would release the call. `more`:
    further sentences, each after a space."""
    how = (
        f"Ask the person you work for to decide: {held.approval_url} or `interlock approve {held.confirmation_id}`, "
        f"until {held.expires_at}."
        if has_approvers
        else "No one may approve at this node yet; `interlock status` tells its operator what to do about it."
    )
    return (
        f"Not executed yet. {held.tool} can't be undone, so a person must approve this call first "
        f"(confirmation_id {held.confirmation_id}). {how} "
        "Once it is approved, make exactly the same call again to run it and get its result. "
        f"You cannot approve it yourself, and a changed call needs its own approval.{more}"
    )


def held_result(
    held: ConfirmationDemand, *, has_approvers: bool, has_output_schema: bool, modern: bool, more: str = ""
) -> bytes:
    """A CallToolResult; isError, so that no model takes it for success. `more`: as `as_text` has it.

    Clients validate structuredContent of a tool with an outputSchema even on errors, so there it is left out.
    """
    shown = as_object(held)
    result: dict[str, Any] = {"resultType": "complete"} if modern else {}
    text = as_text(held, has_approvers=has_approvers, more=more)
    result["content"] = [{"type": "text", "text": text}]  # AX-11.3-2: what to do
    if not has_output_schema:
        result["structuredContent"] = shown  # AX-11.3-2
    return encode_value({**result, "isError": True, "_meta": {CONFIRMATION: shown}})


def read_confirm_untrusted(params: Raw | bytes) -> Confirm | Refusal:
    """The params of mcpax/confirm. A proof is {"type","token"} or a bare token; what is no token at all is -32602."""
    members = decode_object(params) if params else None
    if members is None:
        return _unreadable("params of mcpax/confirm must be an object with confirmation_id and proof")
    confirmation_id = find_string(members.get("confirmation_id"))
    if not confirmation_id or len(confirmation_id) > ID_CHARS_MAX:
        return _unreadable(f"confirmation_id must be a string of 1 to {ID_CHARS_MAX} characters")
    dispatch = _maybe_value(members.get("dispatch", Raw(b"true")))
    redeem = _maybe_value(members.get("redeem", Raw(b"false")))
    if redeem is True and "proof" not in members and dispatch is True:
        return Confirm(confirmation_id=confirmation_id, proof=None, redeem=True)
    proof = read_proof_untrusted(members.get("proof"))
    if isinstance(proof, Refusal):
        return proof
    if not isinstance(dispatch, bool) or redeem is not False:
        return _unreadable("dispatch must be true or false, and a proof is not redeemed")
    return Confirm(confirmation_id=confirmation_id, proof=proof, dispatch=dispatch)


def redeeming_params(confirmation_id: str, said: Mapping[str, Any]) -> dict[str, Any]:
    """The params of mcpax/confirm by which an aggregator asks a hop below for a call that it held before.

    `said`: the params of the call, of which only `_meta` is sent again.
    """
    params: dict[str, Any] = {"confirmation_id": Raw(encode_value(confirmation_id)), "redeem": Raw(b"true")}
    return {**params, "_meta": said["_meta"]} if "_meta" in said else params


def read_proof_untrusted(raw: Raw | bytes | None) -> Presented | Refusal:
    proof = _maybe_value(raw)
    kind, token = (proof.get("type"), proof.get("token")) if isinstance(proof, dict) else (None, proof)
    if not isinstance(token, str) or not token or not isinstance(kind, str | None):  # AX-11.3-5
        return _unreadable('proof must be a signed token, or {"type", "token"} with one')
    return Presented(type=kind, token=token)


def _maybe_value(raw: Raw | bytes | None) -> Any:
    try:
        return decode_value(raw) if raw is not None else None
    except CodecError:
        return None


def _unreadable(why: str) -> Refusal:
    return Refusal(INVALID_PARAMS, why)
