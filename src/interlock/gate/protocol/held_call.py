"""A held call (MCP-AX 11.3): the digest that is confirmed, the results that its client receives, and the requests that
the client sends back.

`call_digest` identifies the call: two calls have the same digest only if every parser reads them as the same call.
Ambiguous arguments are refused with -32602 before any person is asked. `held_result`, `denied_result` and
`unclassified_result` are the replies, for clients that do not support MCP-AX; all three have the same form.
`read_confirm_untrusted` reads mcpax/confirm; `proofs` decides whether its proof is valid.

`Visit` is the content of the requestState of a 2026-07-28 client that was sent to an approval page. It is no proof of
approval. It identifies the call that the client waits for, so that the return from the page applies to no other call.
The state is signed because the client stores it, and it is bound to the principal, the call and a time.
"""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec import Raw

from interlock.mcp.mrtr import seal_bytes, unseal_bytes_untrusted
from interlock.wire.jsonrpc.codec import CodecError, decode_object, decode_value, encode_value, find_string
from interlock.wire.jsontext.canonical import AmbiguousJson, NotCanonical, canonical, read_untrusted
from interlock.wire.refusal import INVALID_PARAMS, Refusal

CONFIRMATION: Final = "x-mcpax-confirmation"
REQUIRED: Final = "confirmation_required"  # AX-11.3-2
DENIED: Final = "confirmation_denied"
DIGEST_VERSION: Final = 1  # of the members that a digest is made of
ARGUMENTS_BYTES_MAX: Final = 1_048_576  # they are stored, and shown to a person
ID_CHARS_MAX: Final = 64  # our ids are UUIDs; a hop below may have other ids
PREFIX: Final = "ilg1."  # of the states of the gate


class ConfirmationDemand(msgspec.Struct, frozen=True, kw_only=True):
    """The facts about a held call that a client and a signer need. They include every input of `call_digest`."""

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
    """A proof in the form in which it was sent. `type` is the proof type that the sender named, or
    None for a bare token.
    """

    token: str
    type: str | None = None


class Confirm(msgspec.Struct, frozen=True, kw_only=True):
    """The params of mcpax/confirm. `dispatch` and `redeem` are Interlock's extensions for aggregators."""

    confirmation_id: str
    proof: Presented | None  # None if the call is redeemed
    dispatch: bool = True  # False: decide with the proof, and let the caller make the call again
    redeem: bool = False  # the caller wants the result of the held call, decided or not; it proves nothing


# Naming a call


def call_digest(
    arguments: Raw | bytes | None, *, aggregator_id: str, tool: str, route: Sequence[str], caller: str, tool_digest: str
) -> str | Refusal:
    """Return the SHA-256 digest, in hex, of the canonical JSON of the call, or a refusal if the arguments are
    ambiguous, too long or not an object. Missing arguments and an empty object have the same digest.

    `_meta` is not part of the digest, because progress tokens and trace ids change each time the call is sent.
    """
    raw = b"{}" if arguments is None else bytes(arguments)
    if len(raw) > ARGUMENTS_BYTES_MAX:
        return _ambiguous_arguments("size", f"they are longer than {ARGUMENTS_BYTES_MAX} bytes")
    try:
        members = read_untrusted(raw)
        if not isinstance(members, dict):
            return _ambiguous_arguments("malformed", "they are not an object")
        text = canonical(  # AX-11.3-13
            {
                "v": DIGEST_VERSION,
                "aggregator_id": aggregator_id,
                "tool": tool,
                "arguments": members,
                "route": list(route),
                "caller": caller,
                "tool_digest": tool_digest,
            }
        )
    except AmbiguousJson as error:
        return _ambiguous_arguments(error.reason, str(error))  # AX-11.3-13
    except NotCanonical as error:
        return _ambiguous_arguments("malformed", str(error))
    return hashlib.sha256(text).hexdigest()


def _ambiguous_arguments(reason: str, why: str) -> Refusal:
    message = f"the arguments of a call that a person confirms must mean the same to every reader: {why}"
    return Refusal(INVALID_PARAMS, message, {"reason": reason})


# Replies to the call


def held_result(
    demand: ConfirmationDemand, *, has_approvers: bool, has_output_schema: bool, modern: bool, more: str = ""
) -> bytes:
    """Return the encoded result that tells a client that its call waits for the approval of a person.

    `has_approvers` tells whether any approver may approve the call. `more` holds additional sentences for the model,
    each preceded by a space.
    """
    how = (
        f"Ask the person you work for to decide: {demand.approval_url} or "
        f"`interlock approve {demand.confirmation_id}`, until {demand.expires_at}."
        if has_approvers
        else "No one may approve at this node yet; `interlock status` tells its operator what to do about it."
    )
    text = (
        f"Not executed yet. {demand.tool} can't be undone, so a person must approve this call first "
        f"(confirmation_id {demand.confirmation_id}). {how} "
        "Once it is approved, make exactly the same call again to run it and get its result. "
        f"You cannot approve it yourself, and a changed call needs its own approval.{more}"
    )
    return _result(_shown(demand), text, has_output_schema, modern)


def denied_result(demand: ConfirmationDemand, reason: str | None, *, has_output_schema: bool, modern: bool) -> bytes:
    """Return the encoded result for a call that a person denied. `reason` is the reason that the
    person gave, if any.
    """
    why = f" The reason given: {reason.rstrip('.')}." if reason else ""
    text = f"Nothing was executed. A person was asked about this call of {demand.tool} and refused it.{why}"
    until = f" The answer stands until {demand.expires_at}." if demand.expires_at is not None else ""
    shown = {**_shown(demand), "status": DENIED} | ({"reason": reason} if reason else {})  # AX-11.3-11: denied
    return _result(shown, f"{text}{until} Do not try the same in another way.", has_output_schema, modern)


def unclassified_result(demand: ConfirmationDemand, *, has_output_schema: bool, modern: bool) -> bytes:
    """Return the encoded result for a call of a tool that does not declare its effects."""
    text = (
        f"Nothing was executed. {demand.tool} does not say whether it changes anything, so its calls wait until an "
        f"operator has said it, once: {demand.approval_url} or `interlock approve {demand.confirmation_id} --class "
        "read_only`, `reversible` or `irreversible`. Then make the same call again."
    )
    return _result({**_shown(demand), "kind": "definition"}, text, has_output_schema, modern)


def _shown(demand: ConfirmationDemand) -> dict[str, Any]:
    return {"status": REQUIRED, **msgspec.structs.asdict(demand)}  # AX-11.3-2


def _result(shown: dict[str, Any], text: str, has_output_schema: bool, modern: bool) -> bytes:
    """Return an encoded CallToolResult that shows the state of a held call. It has isError set, so that no model takes
    it for success.

    structuredContent is omitted if the tool has an outputSchema, because clients validate it even for errors.
    """
    result: dict[str, Any] = {"resultType": "complete"} if modern else {}
    result["content"] = [{"type": "text", "text": text}]  # AX-11.3-2: what to do
    if not has_output_schema:
        result["structuredContent"] = shown  # AX-11.3-2
    return encode_value({**result, "isError": True, "_meta": {CONFIRMATION: shown}})


# mcpax/confirm


def read_confirm_untrusted(params: Raw | bytes) -> Confirm | Refusal:
    """Read the params of an mcpax/confirm request. The proof is an object {"type","token"} or a bare token; anything
    else is refused with the code -32602.
    """
    members = decode_object(params) if params else None
    if members is None:
        return Refusal(INVALID_PARAMS, "params of mcpax/confirm must be an object with confirmation_id and proof")
    confirmation_id = find_string(members.get("confirmation_id"))
    if not confirmation_id or len(confirmation_id) > ID_CHARS_MAX:
        return Refusal(INVALID_PARAMS, f"confirmation_id must be a string of 1 to {ID_CHARS_MAX} characters")
    dispatch = _find_value(members.get("dispatch", Raw(b"true")))
    redeem = _find_value(members.get("redeem", Raw(b"false")))
    if redeem is True and "proof" not in members and dispatch is True:
        return Confirm(confirmation_id=confirmation_id, proof=None, redeem=True)
    proof = read_proof_untrusted(members.get("proof"))
    if isinstance(proof, Refusal):
        return proof
    if not isinstance(dispatch, bool) or redeem is not False:
        return Refusal(INVALID_PARAMS, "dispatch must be true or false, and a proof is not redeemed")
    return Confirm(confirmation_id=confirmation_id, proof=proof, dispatch=dispatch)


def redeeming_params(confirmation_id: str, call_params: Mapping[str, Any]) -> dict[str, Any]:
    """Return the params of the mcpax/confirm request that asks an aggregator below for the result of a call held there.
    The request contains no proof.

    Of the params of the call, only `_meta` is sent again.
    """
    params: dict[str, Any] = {"confirmation_id": Raw(encode_value(confirmation_id)), "redeem": Raw(b"true")}
    return {**params, "_meta": call_params["_meta"]} if "_meta" in call_params else params


def read_proof_untrusted(raw: Raw | bytes | None) -> Presented | Refusal:
    """Read the member `proof` of an mcpax/confirm request. Return a refusal with the code -32602 if it contains no
    token.
    """
    proof = _find_value(raw)
    kind, token = (proof.get("type"), proof.get("token")) if isinstance(proof, dict) else (None, proof)
    if not isinstance(token, str) or not token or not isinstance(kind, str | None):  # AX-11.3-5
        return Refusal(INVALID_PARAMS, 'proof must be a signed token, or {"type", "token"} with one')
    return Presented(type=kind, token=token)


def _find_value(raw: Raw | bytes | None) -> Any:
    try:
        return decode_value(raw) if raw is not None else None
    except CodecError:
        return None


# The requestState


class Visit(msgspec.Struct, frozen=True, array_like=True):
    """Content of the requestState of a client that was sent to an approval page: which confirmation, of which call, and
    until when.
    """

    confirmation_id: str
    digest: str  # of the call; if a hop below holds the call, of the request
    principal: str
    expires_at: float


def is_visit(state: str) -> bool:
    """Return whether a requestState begins like those that `seal` makes. The signature is not checked."""
    return state.startswith(PREFIX)


def seal(visit: Visit, key: bytes) -> str:
    return seal_bytes(PREFIX, msgspec.json.encode(visit), key)


def unseal_untrusted(state: str, key: bytes) -> Visit | None:
    """Return the content of a requestState, or None if it was not signed with this key."""
    body = unseal_bytes_untrusted(PREFIX, state, key)
    return None if body is None else msgspec.json.decode(body, type=Visit)
