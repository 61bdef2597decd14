"""Multi-round-trip requests of 2026-07-28: a server that needs an answer of the client replies `input_required`, and
the client repeats its request with the answers and the server's state.

This module reads and writes such replies. It also makes request states of our own, for a call that is parked at a
legacy server while its client answers (`Ticket`). A ticket names the parked call and is bound to the principal, to the
digest of the request and to a deadline, so that no other client and no other request can use it. It contains no secret
and is therefore signed, not encrypted; the signature is an HMAC with a key of this process.
"""

import base64
import binascii
import hashlib
import hmac
from typing import Any, Final

import msgspec
from msgspec import Raw

from interlock.mcp.methods import PROMPTS_GET, RESOURCES_READ, TOOLS_CALL
from interlock.wire.jsonrpc.codec import CodecError, decode_object, decode_value, encode_value, find_string

# Only these may be answered with `input_required`.
RESUMABLE: Final = frozenset((TOOLS_CALL, PROMPTS_GET, RESOURCES_READ))
ROUNDS_MAX: Final = 10
QUESTIONS_MAX: Final = 32  # in one round

_PREFIX: Final = "il1."
_NOT_THE_REQUEST: Final = ("_meta", "inputResponses", "requestState", "task")  # a task: 2026-07-28 overlooks it
_sorted_json = msgspec.json.Encoder(order="sorted").encode


class Question(msgspec.Struct, frozen=True):
    """A request that a server sends to a client, such as an elicitation."""

    method: str
    params: Raw


class InputRequired(msgspec.Struct, frozen=True):
    """The reply of a server that needs answers of the client before it can continue."""

    questions: dict[str, Question]
    state: Raw | None


def read_input_required(result: Raw) -> InputRequired | str | None:
    """Read a server's `input_required` reply. Return a text with the reason if the reply is malformed, or None if the
    result is not such a reply.
    """
    members = decode_object(result)
    if members is None or find_string(members.get("resultType")) != "input_required":
        return None
    state = members.get("requestState")
    raw = decode_object(members["inputRequests"]) if "inputRequests" in members else {}
    if raw is None or len(raw) > QUESTIONS_MAX:
        return f"inputRequests is not an object of at most {QUESTIONS_MAX} questions"
    if not raw and state is None:
        return "it asks nothing and has no requestState"
    questions = {}
    for key, value in raw.items():
        question = decode_object(value)
        method = find_string(question.get("method")) if question is not None else None
        if question is None or method is None:
            return "a question has no method"
        params = question.get("params", Raw(b"{}"))
        if bytes(params)[:1] != b"{":
            return "the params of a question are no object"
        questions[key] = Question(method, params)
    return InputRequired(questions, state)


def encode_input_required(questions: dict[str, Question], state: str) -> bytes:
    """Encode an `input_required` reply with these questions and this request state."""
    requests: dict[str, dict[str, Any]] = {}
    for key, question in questions.items():
        requests[key] = {"method": question.method}
        if bytes(question.params)[:1] == b"{":  # roots/list may come without
            requests[key]["params"] = question.params
    return encode_value({"resultType": "input_required", "inputRequests": requests, "requestState": state})


def request_digest(method: str, params: dict[str, Any]) -> bytes:
    """Return a digest of the parts of a request that a retry must repeat: everything except its answers, its state and
    its `_meta`.
    """
    repeated = {key: raw for key, raw in params.items() if key not in _NOT_THE_REQUEST}
    try:
        body = _sorted_json({key: decode_value(raw) for key, raw in repeated.items()})
    except CodecError:  # JSON that we cannot read into values (half a surrogate pair): then its bytes count
        body = _sorted_json(repeated)
    return hashlib.sha256(method.encode() + b"\n" + body).digest()[:16]


class Ticket(msgspec.Struct, frozen=True, array_like=True):
    """The content of a `requestState` that this gateway gives to a client. The client sends it back when it repeats its
    request.
    """

    handle: str  # names the parked call; empty when the request is simply to be sent again
    round: int
    principal: str
    digest: bytes
    expires_at: float


def seal(ticket: Ticket, key: bytes) -> str:
    """Encode and sign a ticket as a request state."""
    return seal_bytes(_PREFIX, msgspec.json.encode(ticket), key)


def is_ours(state: str) -> bool:
    """Return whether this gateway may have issued the request state. Its signature is not checked."""
    return state.startswith(_PREFIX)


def unseal_untrusted(state: str, key: bytes) -> Ticket | None:
    """Verify and decode a request state. Return None if it was not signed with this key."""
    body = unseal_bytes_untrusted(_PREFIX, state, key)
    return None if body is None else msgspec.json.decode(body, type=Ticket)


def seal_bytes(prefix: str, body: bytes, key: bytes) -> str:
    """Return `body` as text with a prefix and a signature."""
    mark = hmac.digest(key, body, "sha256")
    return prefix + base64.urlsafe_b64encode(mark + body).decode().rstrip("=")


def unseal_bytes_untrusted(prefix: str, state: str, key: bytes) -> bytes | None:
    """Return the body of a text that `seal_bytes` wrote, or None if the signature does not match. The prefix is not
    covered by the signature, and may be missing.
    """
    text = state.removeprefix(prefix)
    try:
        raw = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        return None
    mark, body = raw[:32], raw[32:]
    return body if hmac.compare_digest(mark, hmac.digest(key, body, "sha256")) else None
