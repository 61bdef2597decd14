"""The envelopes of a room that are still known by their id: none is published twice (X-4-4)."""

import hashlib
from typing import Final

import msgspec

from interlock.rooms.protocol.enforcement import MCP, Asked, is_request, rpc_id
from interlock.rooms.protocol.envelope import Envelope
from interlock.rooms.protocol.errors import Refusal

KNOWN_MIN: Final = 10_000


class _Known(msgspec.Struct):
    digest: bytes
    sequence: int = 0  # 0: accepted, and not stored yet
    by: str = ""
    to: tuple[str, ...] = ()  # of a request
    rpc_id: bytes = b""
    answered_by: tuple[str, ...] = ()


class KnownEnvelopes:
    def __init__(self, most: int = KNOWN_MIN) -> None:
        self._most = max(most, KNOWN_MIN)
        self._by_id: dict[str, _Known] = {}

    def duplicate(self, envelope: Envelope, sender: str) -> Refusal | None:
        """The refusal of an id that the room knows."""
        known = self._by_id.get(envelope.id)
        if known is None:
            return None
        identical = known.digest == _digest(envelope, sender)
        said = "this id was published before; each envelope has an id of its own"
        if identical:
            said = "this envelope was published before: the first one arrived"
        return Refusal("duplicate_id", said, {"identical": identical}, envelope.id)

    def add(self, envelope: Envelope, sender: str, sequence: int = 0) -> None:
        known = _Known(_digest(envelope, sender), sequence)
        if envelope.kind == MCP and envelope.to and is_request(envelope.payload):
            known.by, known.to, known.rpc_id = sender, envelope.to, rpc_id(envelope.payload)
        self._by_id[envelope.id] = known
        asked = self._by_id.get(envelope.correlation_id or "")
        if asked is not None and envelope.kind == MCP and sender in asked.to and sender not in asked.answered_by:
            asked.answered_by += (sender,)
        if len(self._by_id) > self._most:
            del self._by_id[next(iter(self._by_id))]

    def place(self, id: str, sequence: int) -> None:
        known = self._by_id.get(id)
        if known is not None:
            known.sequence = sequence

    def forget(self, id: str) -> None:
        self._by_id.pop(id, None)

    def maybe_sequence(self, id: str) -> int | None:
        known = self._by_id.get(id)
        return known.sequence if known is not None and known.sequence else None

    def maybe_asked(self, id: str | None, by: str) -> Asked | None:
        """The request that `id` names, as the one who would answer it sees it."""
        known = self._by_id.get(id or "")
        if known is None or not known.to:
            return None
        return Asked(known.by, known.to, known.rpc_id, by in known.answered_by)


def _digest(envelope: Envelope, sender: str) -> bytes:
    said = hashlib.sha256()
    for part in (sender, envelope.kind, envelope.correlation_id or "", *(envelope.to or ())):
        said.update(part.encode("utf-8", "surrogatepass"))
        said.update(b"\0")
    said.update(envelope.payload)
    said.update(envelope.extra)
    return said.digest()[:16]
