"""The definition of a tool at this moment, and its state compared with what was accepted before."""

import enum
import hashlib
from functools import cached_property
from typing import Any, Final

import msgspec
from msgspec import Raw

from interlock.ax.protocol.hop_metadata import as_declared
from interlock.gate.protocol.policy import ToolClaims, read_claims
from interlock.mcp.items import Item, maybe_value
from interlock.wire.jsonrpc.codec import encode_value
from interlock.wire.jsontext.canonical import tool_digest

_MEMBERS: Final = ("description", "inputSchema", "outputSchema", "annotations")  # what `tool_digest` is made of
FINGERPRINT_BYTES: Final = 16
SHOWN_BYTES_MAX: Final = 256 * 1024  # as much text as a book


class DefinitionState(enum.Enum):
    SAME = "same"
    NEW = "new"
    REWORDED = "reworded"  # other bytes, the same meaning
    ACCEPTED = "accepted"  # changed, and an operator has accepted exactly this
    CHANGED = "changed"
    DENIED = "denied"


class DefinitionSnapshot:
    """A definition as it was listed.

    The digest takes canonical JSON; the fingerprint is cheap, and enough to see that nothing changed.
    """

    __slots__ = ("__dict__", "_declared", "_item", "_said", "is_flagged", "is_open", "original", "tool")

    def __init__(
        self,
        tool: str,
        original: str,
        item: Item,
        stated: Raw | None,
        declared: dict[str, object],
        *,
        is_open: bool = False,
        is_flagged: bool = False,
    ) -> None:
        self.tool = tool
        self.original = original
        self.is_open = is_open  # neither server nor operator says whether it changes anything
        self.is_flagged = is_flagged  # by x-mcpax-safety, now or, of the same definition, before
        self._item = item
        self._said = stated
        self._declared = declared

    @cached_property
    def fingerprint(self) -> str:
        hashed = hashlib.blake2b(self.original.encode("utf-8", "surrogatepass"), digest_size=FINGERPRINT_BYTES)
        for member in _MEMBERS:
            hashed.update(b"\0%b\0" % bytes(self._item.get(member, b"")))
        hashed.update(bytes(self._said or b""))
        return hashed.hexdigest()

    @cached_property
    def digest(self) -> str:
        declared = as_declared(self._said, self._declared)
        return tool_digest(self._item, downstream_name=self.original, declared=declared)

    def keep_flag(self) -> None:
        """Flag it as what was accepted is."""
        self.is_flagged = True

    @cached_property
    def claims(self) -> ToolClaims:
        declared = as_declared(self._said, self._declared)
        return read_claims(declared, maybe_value(self._item, "annotations"), is_flagged=self.is_flagged)

    def definition(self) -> bytes:
        """Return the definition that a person is shown, as JSON: everything the digest covers (`digests.shown_digest`).

        It is null if it is too long to be read: a person does not sign what they cannot have read, and [[tool]] can
        still decide. A member that not every reader can decode is shown as its hash, as in the digest.
        """
        shown: dict[str, Any] = {"name": self.original}
        shown |= {member: _readable(self._item[member]) for member in _MEMBERS if member in self._item}
        declared = as_declared(self._said, self._declared)
        if declared is not None:
            shown["capability"] = declared
        definition = encode_value(shown)
        is_shown = len(definition) <= SHOWN_BYTES_MAX and _is_readable(definition)
        return definition if is_shown else b"null"


def _readable(raw: Raw) -> Raw | dict[str, str]:
    return raw if _is_readable(raw) else {"sha256": hashlib.sha256(raw).hexdigest()}


def _is_readable(raw: Raw | bytes) -> bool:
    try:
        msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    return True
