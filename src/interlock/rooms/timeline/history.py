"""The history of one room: what was accepted, in its order, on disk.

A record is the time of receipt, a line feed, and the envelope as participants received it; where several replicas
append, a space and who did so stand after the time. The sequence of a record is the envelope's place in the one order
of the topic (X-1-3).
"""

import logging
import secrets
from collections.abc import Sequence
from typing import Final

import msgspec

from interlock.store.ports import Following, Record, Store

log = logging.getLogger("interlock.rooms")

READ_MAX: Final = 1000  # records in one reading
TOLD_BYTES: Final = 512 * 1024  # of records in one message


class Stored(msgspec.Struct, frozen=True):
    sequence: int
    received_at: float
    data: bytes
    by: bytes = b""  # which `History.own` appended it


class History:
    def __init__(self, store: Store, topic: str) -> None:
        self._streams = store.streams
        self._replication = store.replication
        self._stream = f"rooms/{topic}"
        self.own = secrets.token_hex(8).encode()  # marks what is appended here, where others append too
        self._forgotten = 0  # the store itself keeps the last record of a stream

    @property
    def is_shared(self) -> bool:
        """Whether other replicas append too: then what is to be delivered comes by `follow` alone."""
        return self._replication is not None

    async def append(self, accepted: Sequence[tuple[str, float, bytes]]) -> list[int]:
        """Id, time of receipt and envelope; returns the sequence of each, 0 for an id that another replica took.

        Raises StoreError; then none is kept, or `follow` tells which.
        """
        if self._replication is not None:
            each = [(id, b"%.3f %b\n%b" % (at, self.own, data)) for id, at, data in accepted]
            return await self._replication.append_new(self._stream, each)
        last = await self._streams.append(self._stream, [b"%.3f\n%b" % (at, data) for _, at, data in accepted])
        return list(range(last - len(accepted) + 1, last + 1))

    def follow(self, after: int) -> Following[Record] | None:
        """What any replica appends; None where there is only one."""
        return None if self._replication is None else self._replication.follow(self._stream, after)

    async def last(self) -> int:
        return await self._streams.last(self._stream)

    async def read(self, after: int, upto: int, limit: int = READ_MAX) -> list[Stored]:
        """Oldest first."""
        after = max(after, self._forgotten)
        records = await self._streams.read(self._stream, after, min(limit, max(0, upto - after)))
        return [stored(record) for record in records if record.sequence <= upto]

    async def trim(self, upto: int) -> None:
        """Forgets records up to that sequence."""
        await self._streams.trim(self._stream, upto)
        self._forgotten = max(upto, self._forgotten)


def within_bytes(records: list[Stored], most: int = TOLD_BYTES) -> list[Stored]:
    """As many of the first as fit into one message; one at least."""
    size = 0
    for number, record in enumerate(records):
        size += len(record.data)
        if size > most and number:
            return records[:number]
    return records


def stored(record: Record) -> Stored:
    """What cannot be read came at no time, and is no envelope."""
    head, _, data = record.data.partition(b"\n")
    at, _, by = head.partition(b" ")
    try:
        return Stored(record.sequence, float(at), data, by)
    except ValueError:
        log.error("the record %d of a room cannot be read", record.sequence)
        return Stored(record.sequence, 0.0, b"")
