"""Proposals: their content, their status, and which envelopes fulfil or answer them (MCPx 4.2, 10.2).

A tracked proposal is an approval of kind `proposal`; `STATUS` maps each state of an approval to its name in a room.
"""

import enum
from collections.abc import Mapping
from typing import Any, Final

import msgspec
from msgspec import Raw

from interlock.approvals.protocol.approval import Move, Status
from interlock.wire.jsontext.canonical import NotCanonical, canonical
from interlock.wire.jsontext.unambiguous import AmbiguousJson, read_untrusted

TOOLS_CALL: Final = "tools/call"
REASON_CHARS_MAX: Final = 2000


class ProposalStatus(enum.Enum):
    PENDING = "pending"
    CLAIMED = "claimed"
    FULFILLED = "fulfilled"
    FAILED = "failed"  # the target answered with an error
    UNKNOWN = "unknown"  # it was sent, and no answer came
    REJECTED = "rejected"
    WITHDRAWN = "withdrawn"
    EXPIRED = "expired"
    VOID = "void"


STATUS: Final[Mapping[Status, ProposalStatus]] = {
    Status.PENDING: ProposalStatus.PENDING,
    Status.APPROVED: ProposalStatus.CLAIMED,
    Status.USED: ProposalStatus.CLAIMED,
    Status.DONE: ProposalStatus.FULFILLED,
    Status.FAILED: ProposalStatus.FAILED,
    Status.UNKNOWN: ProposalStatus.UNKNOWN,
    Status.DENIED: ProposalStatus.REJECTED,
    Status.WITHDRAWN: ProposalStatus.WITHDRAWN,
    Status.EXPIRED: ProposalStatus.EXPIRED,
    Status.VOID: ProposalStatus.VOID,
}


class Proposed(msgspec.Struct, frozen=True, kw_only=True):
    """The payload of a proposal. `params` are as they were written; None: there are none."""

    method: str
    params: Raw | None = None
    reason: str | None = None

    @property
    def tool(self) -> str | None:
        """Return the tool that a proposed tools/call names, or None."""
        if self.method != TOOLS_CALL or self.params is None:
            return None
        try:
            return msgspec.json.decode(self.params, type=_Named).name
        except (msgspec.DecodeError, UnicodeDecodeError):
            return None


class Fulfilment(msgspec.Struct, frozen=True, kw_only=True):
    """The JSON-RPC request that an `mcp` envelope holds."""

    method: str
    id: Raw
    params: Raw | None = None


class _Proposed(msgspec.Struct):
    method: str
    params: Raw = Raw(b"")
    reason: str | None = None


class _Named(msgspec.Struct):
    name: str
    arguments: Raw = Raw(b"{}")


class _Request(msgspec.Struct):
    method: str
    id: Raw
    params: Raw = Raw(b"")


class _Response(msgspec.Struct):
    id: Raw
    result: Raw = Raw(b"")
    error: Raw = Raw(b"")


class _ToolResult(msgspec.Struct):
    is_error: bool = msgspec.field(name="isError", default=False)


def read_proposed(payload: bytes) -> Proposed | None:
    """Decode a proposal, or return None if its params are ambiguous: others could read them differently than a
    person sees them.
    """
    try:
        decoded = msgspec.json.decode(payload, type=_Proposed)
        if decoded.params:
            read_untrusted(bytes(decoded.params), exact=False)
    except (msgspec.DecodeError, UnicodeDecodeError, AmbiguousJson):
        return None
    # What was decoded points into the whole payload; this is kept for longer.
    return Proposed(
        method=decoded.method, params=decoded.params.copy() if decoded.params else None, reason=decoded.reason
    )


def arguments_of(params: Raw | None) -> Raw:
    """Return the arguments in the params of a tools/call."""
    try:
        return msgspec.json.decode(params or b"{}", type=_Named).arguments
    except (msgspec.DecodeError, UnicodeDecodeError):
        return Raw(b"{}")


def fulfilment_payload(method: str, params: Raw | None, rpc_id: str) -> bytes:
    """Return the proposed request with `jsonrpc` and `id`, and nothing else (X-4.2.1-2)."""
    member = b"" if params is None else b',"params":%b' % bytes(params)
    return b'{"jsonrpc":"2.0","id":%b,"method":%b%b}' % (_encode(rpc_id), _encode(method), member)


def read_fulfilment(payload: bytes) -> Fulfilment | None:
    """Decode a request that may fulfil a proposal, or return None if the payload is no request."""
    try:
        decoded = msgspec.json.decode(payload, type=_Request)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    return Fulfilment(
        method=decoded.method, id=decoded.id.copy(), params=decoded.params.copy() if decoded.params else None
    )


def is_as_proposed(method: str, params: Raw | None, sent: Fulfilment) -> bool:
    """Return whether a request asks for exactly what was proposed, however it is written."""
    if sent.method != method:
        return False
    if bytes(sent.params or b"{}") == bytes(params or b"{}"):
        return True
    try:
        ours, theirs = (canonical(read_untrusted(bytes(text or b"{}"))) for text in (params, sent.params))
    except (AmbiguousJson, NotCanonical):
        return False
    return ours == theirs


def read_outcome(payload: bytes, rpc_id: bytes) -> tuple[Move, str] | None:
    """Return how a fulfilment ended by its reply, or None if the payload does not reply to the request of this id."""
    try:
        response = msgspec.json.decode(payload, type=_Response)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    if bytes(response.id) != rpc_id or bool(response.result) == bool(response.error):
        return None
    if response.error:
        return Move.FAIL, "error"
    try:
        failed = msgspec.json.decode(response.result, type=_ToolResult).is_error
    except (msgspec.DecodeError, UnicodeDecodeError):
        failed = False
    return Move.SUCCEED, "tool_error" if failed else "ok"


def read_reason(payload: bytes) -> str | None:
    """Return the reason in the payload of a rejection or a withdrawal, or None."""
    try:
        reason = msgspec.json.decode(payload, type=dict[str, Any]).get("reason")
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    return reason[:REASON_CHARS_MAX] if isinstance(reason, str) else None


_encode = msgspec.json.Encoder().encode
