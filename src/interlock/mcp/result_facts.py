"""What is in a large result: read once, where a small one is searched for each of its marks."""

from typing import Final

import msgspec
from msgspec import Raw

from interlock.wire.jsonrpc.codec import decode_object, encode_value
from interlock.wire.jsonrpc.outline import maybe_outline

LARGE_BYTES: Final = 64 * 1024
_CLAIMING: Final = ("_meta", "structuredContent", "result", "messages")  # in which a server could make a claim
_BLOCKS: Final = ("content", "contents")  # lists whose members may have metadata of their own


_TRUE: Final = Raw(b"true")
_COMPLETE: Final = Raw(b'"complete"')


class _Block(msgspec.Struct, rename={"meta": "_meta"}):
    meta: Raw | msgspec.UnsetType = msgspec.UNSET
    resource: Raw | msgspec.UnsetType = msgspec.UNSET  # with metadata of its own


_decode_blocks = msgspec.json.Decoder(list[_Block]).decode


class ResultFacts(msgspec.Struct, frozen=True):
    may_claim: bool
    is_typed: bool  # it has a resultType
    is_error: bool
    names: frozenset[str] = frozenset()  # of its members
    is_complete: bool = False  # its resultType says so


def maybe_facts(result: Raw, message: bytes = b"") -> ResultFacts | None:
    """None where names may stand in it twice or spelled otherwise, so that its bytes must be searched. `message`: the
    one whose result it is, which spares a second reading."""
    outline = maybe_outline(message)
    if outline is not None:
        result = (decode_object(outline.text) or {}).get("result", result)
    members = decode_object(result)
    if members is None or _size(members) != len(result):
        return None
    may_claim = any(name in members for name in _CLAIMING) or any(
        name in members and _may_have_metadata(members[name]) for name in _BLOCKS
    )
    return ResultFacts(
        may_claim,
        "resultType" in members,
        members.get("isError") == _TRUE,
        frozenset(members),
        members.get("resultType") == _COMPLETE,
    )


def _size(members: dict[str, Raw]) -> int:
    """Of the object, written without blanks: its names, a colon for each, and its values."""
    return len(encode_value(list(members))) + len(members) + sum(map(len, members.values()))


def _may_have_metadata(blocks: Raw) -> bool:
    """Read rather than searched for: a key may be spelled with escapes. What is no list of objects may have any."""
    try:
        read = _decode_blocks(blocks)
        return any(block.meta is not msgspec.UNSET or block.resource is not msgspec.UNSET for block in read)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return True
