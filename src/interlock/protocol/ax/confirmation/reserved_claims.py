"""Claims in a result that only aggregators may make: reserved `_meta` keys, and structured content that is a held call.

A plain server could show a confirmation that it copied from another caller's held call; a program that signs what it is
shown would release that call. So claims are taken out of every result that is not relayed from a proved aggregator.
"""

import re
from collections.abc import Container
from typing import Any, Final

from msgspec import Raw

from interlock.protocol.ax.confirmation.held_call import CONFIRMATION
from interlock.protocol.jsonrpc.codec import decode_array, decode_object, encode_value

# A result without any of these makes no claim: the key of all metadata, a held call's own member, and the escape with
# which a letter of either could be written otherwise.
META_MARK: Final = b'_meta"'
DIGEST_MARK: Final = b"call_digest"
ESCAPE_MARK: Final = b"\\u00"
RESERVED: Final = ("x-mcpax-", "dev.interlock/")
_BLOCKS: Final = ("content", "contents")  # of tools/call and of resources/read, each with metadata of its own
_SIGNED_MEMBERS: Final = ("confirmation_id", "call_digest")  # without them there is nothing to sign
_search_escaped_letter = re.compile(rb"\\u00[2-7]").search
_NAMES: Final = (*(one.encode() for one in RESERVED), DIGEST_MARK)


def without_claims(result: Raw | bytes, *, is_aggregator: bool = False) -> bytes:
    """The result without its claims. `is_aggregator`: it comes from a proved one, which may claim all but a held call.

    A result that names none is returned as it came. One that does is written anew: readers differ about a key that
    stands there twice, and the first one is gone then.
    """
    written = bytes(result)
    if not any(name in written for name in _NAMES) and _search_escaped_letter(written) is None:
        return written
    members: dict[str, Any] | None = decode_object(written)
    if members is None:
        return written
    _drop_claims(members, is_aggregator=is_aggregator)
    task_result = decode_object(members["result"]) if "result" in members else None  # of a task that is over
    if task_result is not None:
        _drop_claims(task_result, is_aggregator=is_aggregator)
        members["result"] = task_result
    return encode_value(members)


def is_held_call(content: Container[str]) -> bool:
    """Whether these members could be signed as a held call's."""
    return all(member in content for member in _SIGNED_MEMBERS)


def _drop_claims(members: dict[str, Any], *, is_aggregator: bool) -> None:
    reserved = (CONFIRMATION,) if is_aggregator else RESERVED
    _drop_keys(members, reserved)
    for name in _BLOCKS:
        written = bytes(members.get(name, b""))
        may_name = META_MARK in written or _search_escaped_letter(written) is not None
        blocks = decode_array(written) if may_name else None
        if blocks is not None:
            members[name] = [_without_keys(block, reserved) for block in blocks]
    shown = decode_object(members["structuredContent"]) if "structuredContent" in members else None
    if shown is not None and (is_held_call(shown) or CONFIRMATION in shown):
        del members["structuredContent"]


def _drop_keys(members: dict[str, Any], reserved: tuple[str, ...]) -> None:
    meta = decode_object(members["_meta"]) if "_meta" in members else None
    if meta is None:
        return
    kept = {key: value for key, value in meta.items() if not key.lower().startswith(reserved)}
    if kept or not meta:
        members["_meta"] = kept
    else:
        del members["_meta"]


def _without_keys(block: Raw, reserved: tuple[str, ...]) -> Any:
    members: dict[str, Any] | None = decode_object(block)
    if members is None or "_meta" not in members:
        return block
    _drop_keys(members, reserved)
    return members
