"""Removal of claims that only aggregators may make from results: reserved `_meta` keys, and structured content that
describes a held call.

Otherwise a plain server could copy the confirmation of another caller's held call into a result, and a program that
signs whatever it is shown would release that call. Reserved claims are therefore removed from every result that is not
relayed from a proved aggregator.
"""

import re
from typing import Any, Final

from msgspec import Raw

from interlock.gate.protocol.held_call import CONFIRMATION
from interlock.wire.jsonrpc.codec import decode_array, decode_object, encode_value

# A result without any of these makes no claim: the key of all metadata, a held call's own member, and the escape with
# which a letter of either could be written otherwise.
META_MARK: Final = b'_meta"'
DIGEST_MARK: Final = b"call_digest"
ESCAPE_MARK: Final = b"\\u00"
RESERVED: Final = ("x-mcpax-", "dev.interlock/")
# Lists of tools/call, resources/read and prompts/get: each member has metadata of its own, and so has what is in it.
_BLOCKS: Final = ("content", "contents", "messages")
_IN_BLOCK: Final = ("resource",)
_IN_MESSAGE: Final = ("content", "resource")
_SIGNED_MEMBERS: Final = ("confirmation_id", "call_digest")  # without them there is nothing to sign
UNREADABLE: Final = (
    b'{"content":[{"type":"text","text":"The result of the server cannot be read, and may claim what only an '
    b'aggregator may say: a name in it has half a surrogate pair, or it is nested too deeply."}],"isError":true}'
)
_search_escaped_letter = re.compile(rb"\\u00[2-7]").search


def without_claims(result: Raw | bytes, *, is_aggregator: bool = False) -> bytes:
    """Return the result of a server without the claims that only aggregators may make, such as reserved `_meta` keys.
    With `is_aggregator`, only claims about a held call are removed.

    A result that contains no reserved name is returned unchanged. Otherwise the result is encoded again, which removes
    duplicate keys, because parsers treat duplicate keys differently. A result that cannot be parsed here, but perhaps
    by the client, is replaced completely.
    """
    written = bytes(result)
    # `find` takes a third of the time of `in`, which first takes what it looks for as a number.
    if (
        written.find(b"x-mcpax-") < 0
        and written.find(b"dev.interlock") < 0  # without the slash, which may be escaped
        and written.find(DIGEST_MARK) < 0
        and _search_escaped_letter(written) is None
    ):
        return written
    try:
        members = _find_members(written)
        if members is None:
            return written
        _drop_claims(members, is_aggregator=is_aggregator)
        task_result = _find_members(members["result"]) if "result" in members else None  # of a task that ended
        if task_result is not None:
            _drop_claims(task_result, is_aggregator=is_aggregator)
            members["result"] = task_result
    except UnreadableResult:
        return UNREADABLE
    return encode_value(members)


class UnreadableResult(Exception):
    """Raised for a JSON object that cannot be parsed, because a name contains half a surrogate pair or the nesting is
    too deep.
    """


def _find_members(raw: Raw | bytes) -> dict[str, Any] | None:
    """Decode an object. Return None if the value is not an object. Raise UnreadableResult if it cannot be parsed."""
    members = decode_object(raw)
    if members is None and bytes(raw).lstrip()[:1] == b"{":
        raise UnreadableResult
    return members


def _drop_claims(members: dict[str, Any], *, is_aggregator: bool) -> None:
    reserved = (CONFIRMATION,) if is_aggregator else RESERVED
    _drop_keys(members, reserved)
    for name in _BLOCKS:
        written = bytes(members.get(name, b""))
        may_name = META_MARK in written or _search_escaped_letter(written) is not None
        blocks = decode_array(written) if may_name else None
        if blocks is not None:
            inner = _IN_MESSAGE if name == "messages" else _IN_BLOCK
            members[name] = [_without_keys(block, reserved, inner) for block in blocks]
    shown = _find_members(members["structuredContent"]) if "structuredContent" in members else None
    # A program might sign what has the members of a held call.
    if shown is not None and (all(member in shown for member in _SIGNED_MEMBERS) or CONFIRMATION in shown):
        del members["structuredContent"]


def _drop_keys(members: dict[str, Any], reserved: tuple[str, ...]) -> None:
    meta = _find_members(members["_meta"]) if "_meta" in members else None
    if meta is None:
        return
    allowed = {key: value for key, value in meta.items() if not key.lower().startswith(reserved)}
    if allowed or not meta:
        members["_meta"] = allowed
    else:
        del members["_meta"]


def _without_keys(block: Raw, reserved: tuple[str, ...], inner: tuple[str, ...]) -> Any:
    """Return a JSON value without the reserved keys. `inner` names the member to descend into at each level."""
    members = _find_members(block)
    name = inner[0] if inner else "_meta"
    if members is None or not ("_meta" in members or name in members):
        return block
    _drop_keys(members, reserved)
    if inner and name in members:
        members[name] = _without_keys(members[name], reserved, inner[1:])
    return members
