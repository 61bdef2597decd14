"""Proposals: their content, their status, and which envelopes fulfil or answer them (MCPx 4.2, 10.2).

A tracked proposal is an approval of kind `proposal`; `STATUS` maps each state of an approval to its name in a room.

A fulfilment is compared with the proposal by canonical JSON, so that the order of keys and the spelling of numbers do
not matter (X-4.2.1-2). Text that cannot be compared counts as different.

The second half of the module looks for secrets in the arguments of a proposal, which everyone in the room will see
(X-7.2-1).
"""

import enum
import re
from collections.abc import Mapping
from fnmatch import fnmatchcase
from itertools import islice
from typing import Any, Final, TypeVar

import msgspec
from msgspec import Raw

from interlock.approvals.protocol.approval import Move, Status
from interlock.drivers.protocol.files.plaintext import is_plaintext
from interlock.rooms.protocol.envelope import EnvelopeRefusal
from interlock.wire.jsontext.canonical import AmbiguousJson, NotCanonical, canonical, read_untrusted

TOOLS_CALL: Final = "tools/call"
REASON_CHARS_MAX: Final = 2000


class ProposalStatus(enum.Enum):
    """The status of a proposal, in the words of MCPx 10.2. Every status except pending and claimed is final."""

    PENDING = "pending"
    CLAIMED = "claimed"
    FULFILLED = "fulfilled"
    FAILED = "failed"  # the target answered with an error
    UNKNOWN = "unknown"  # it was sent, and no answer came
    REJECTED = "rejected"
    WITHDRAWN = "withdrawn"
    EXPIRED = "expired"
    VOID = "void"


# The states of an approval that have another name in a room.
_RENAMED: Final = {"APPROVED": "CLAIMED", "USED": "CLAIMED", "DONE": "FULFILLED", "DENIED": "REJECTED"}
STATUS: Final[Mapping[Status, ProposalStatus]] = {
    status: ProposalStatus[_RENAMED.get(status.name, status.name)] for status in Status
}


class Proposed(msgspec.Struct, frozen=True, kw_only=True):
    """The payload of a proposal. `params` holds the original bytes, or None if there are none."""

    method: str
    params: Raw | None = None
    reason: str | None = None

    @property
    def tool(self) -> str | None:
        """Return the tool name if the proposal is a tools/call, otherwise None."""
        params = _decode(self.params, _ToolParams) if self.method == TOOLS_CALL and self.params is not None else None
        return None if params is None else params.name


class Fulfilment(msgspec.Struct, frozen=True, kw_only=True):
    """The JSON-RPC request in an `mcp` envelope that may fulfil a proposal."""

    method: str
    id: Raw
    params: Raw = Raw(b"")  # empty: there are none


class _Proposed(msgspec.Struct):
    """The JSON members of a proposal's payload, into which it is decoded."""

    method: str
    params: Raw = Raw(b"")
    reason: str | None = None


MEMBERS: Final = frozenset(_Proposed.__struct_fields__)


class _ToolParams(msgspec.Struct):
    """The params of a tools/call, for decoding."""

    name: str
    arguments: Raw = Raw(b"{}")


class _Response(msgspec.Struct):
    """A JSON-RPC response, for decoding. It contains either `result` or `error`."""

    id: Raw
    result: Raw = Raw(b"")
    error: Raw = Raw(b"")


class _ToolResult(msgspec.Struct):
    is_error: bool = msgspec.field(name="isError", default=False)


_T = TypeVar("_T")


def _decode(data: bytes | Raw, shape: type[_T]) -> _T | None:
    """Decode JSON of this shape, or return None if the data is something else."""
    try:
        return msgspec.json.decode(data, type=shape)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def read_proposed(payload: bytes) -> Proposed | None:
    """Decode the payload of a proposal. Return None if it is no proposal, or if another parser could read something
    else than the approving person is shown. That is the case if a key occurs twice, or equals a member of MCPx except
    for upper and lower case.
    """
    if (decoded := _decode(payload, _Proposed)) is None:
        return None
    try:
        members = read_untrusted(payload, exact=False)
    except AmbiguousJson:
        return None
    # Readers who ignore case take "Params" for "params".
    if any(key not in MEMBERS and key.casefold() in MEMBERS for key in members):
        return None
    # What was decoded points into the whole payload; this is kept for longer.
    params = decoded.params.copy() if decoded.params else None
    return Proposed(method=decoded.method, params=params, reason=decoded.reason)


def arguments_of(params: Raw | None) -> Raw:
    """Return the tool arguments in the params of a tools/call, or an empty object if there are none."""
    decoded = _decode(params or b"{}", _ToolParams)
    return Raw(b"{}") if decoded is None else decoded.arguments


def fulfilment_payload(method: str, params: Raw | None, rpc_id: str) -> bytes:
    """Return the JSON-RPC request that fulfils a proposal: the proposed method and params, `jsonrpc` and `id`, and
    nothing else (X-4.2.1-2).
    """
    member = b"" if params is None else b',"params":%b' % bytes(params)
    return b'{"jsonrpc":"2.0","id":%b,"method":%b%b}' % (_encode(rpc_id), _encode(method), member)


def read_fulfilment(payload: bytes) -> Fulfilment | None:
    """Decode a request that may fulfil a proposal, or return None if the payload is no request."""
    return _decode(payload, Fulfilment)


def is_as_proposed(method: str, params: Raw | None, sent: Fulfilment) -> bool:
    """Return whether a request has exactly the proposed content. The formatting of its JSON does not matter."""
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
    """Decode the reply to the request `rpc_id`. Return the move that ends the approval, and a word for the outcome:
    `ok`, `tool_error` or `error`. Return None if the payload is no reply to that request.
    """
    response = _decode(payload, _Response)
    if response is None or bytes(response.id) != rpc_id or bool(response.result) == bool(response.error):
        return None
    if response.error:
        return Move.FAIL, "error"
    result = _decode(response.result, _ToolResult)
    return Move.SUCCEED, "tool_error" if result is not None and result.is_error else "ok"


def read_reason(payload: bytes) -> str | None:
    """Return the reason that the payload of a rejection or withdrawal gives, or None."""
    reason = (_decode(payload, dict[str, Any]) or {}).get("reason")
    return reason[:REASON_CHARS_MAX] if isinstance(reason, str) else None


_encode = msgspec.json.Encoder().encode


FOUND_MAX: Final = 10  # places that are named
TEXT_CHARS_MAX: Final = 16 * 1024  # of one text that are looked at
VALUES_MAX: Final = 5000  # that are looked at, and
CHARS_MAX: Final = 128 * 1024  # of all texts among them: what is more is no call that a person would read
_BETWEEN: Final = re.compile(r"[\s\"'`=,;&?()<>\[\]{}]+")


def secret_refusal(arguments: bytes, patterns: tuple[str, ...]) -> EnvelopeRefusal | None:
    """Return a refusal if the arguments of a call seem to contain a secret, otherwise None. Call this before anything
    is published.
    """
    places = secret_places(arguments, patterns)
    if not places:
        return None
    message = (
        "nothing was sent: the arguments seem to hold a secret, and everyone in the room would see it, now and in its"
        " history; leave it out, or use rooms.propose with despite_secrets if everyone may know it"
    )
    return EnvelopeRefusal("secret_found", message, {"at": places})


def secret_places(arguments: bytes, patterns: tuple[str, ...]) -> list[str]:
    """Return the places of possible secrets in the arguments, as JSON pointers.

    The search stops after VALUES_MAX values, CHARS_MAX characters or FOUND_MAX places, because the arguments come from
    a participant and may be as large as an envelope.
    """
    try:
        value = msgspec.json.decode(arguments)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return []  # what is no JSON is refused elsewhere
    places: list[str] = []
    waiting: list[tuple[str, str, Any]] = [("", "", value)]
    values, chars = VALUES_MAX, CHARS_MAX
    while waiting and len(places) < FOUND_MAX and values > 0 and chars > 0:
        pointer, name, item = waiting.pop()
        values -= 1
        if isinstance(item, dict):
            members = reversed([*islice(item.items(), VALUES_MAX)])
            waiting += [(f"{pointer}/{_escaped(key)}", key, each) for key, each in members]
        elif isinstance(item, list):
            waiting += [(f"{pointer}/{at}", name, each) for at, each in reversed([*enumerate(item[:VALUES_MAX])])]
        elif isinstance(item, str):
            chars -= min(len(item), TEXT_CHARS_MAX)
            text = item[:TEXT_CHARS_MAX]
            words = _BETWEEN.split(text) if patterns else []
            if is_plaintext(name, text) or any(fnmatchcase(word, each) for word in words for each in patterns):
                places.append(pointer)
    return places


def _escaped(key: str) -> str:
    """Escape a key as one step of a JSON pointer (RFC 6901)."""
    return key[:100].replace("~", "~0").replace("/", "~1")
