"""The hash chain that makes the audit log tamper-evident. Pure: records in, a verdict out.

Each record's hash covers its sequence, its bytes and the hash before it, so a record that is changed, removed,
inserted or moved breaks the chain at that place. What a chain alone cannot show is a missing end; therefore the log's
owner keeps the head, the mark of the last record, in another place, and moves it only after the records are on disk:
a log that ends before its head has lost its tail. Likewise a log may begin late only after a mark that was kept when
its first records were given up (retention); the rest stays provable from there.

What stays undetectable: the chain holds no secret, so a program that can write the log and the place of the head can
compute a new history for both, or put an older state of both back. Only a copy of a head kept elsewhere (an export, a
mark in another system) shows that. Records appended after the head was last kept can be cut off unseen, which is the
moment between two writes of one append, or what the disk had not yet taken of the head when the power failed.
"""

import hashlib
import struct
from collections.abc import Iterable, Sequence
from enum import StrEnum

import msgspec

_TAG = b"interlock audit record 1\n"  # no other hash of ours begins with it
_LENGTHS = struct.Struct(">QQQ")

HASH_BYTES = hashlib.sha256().digest_size
GENESIS = bytes(HASH_BYTES)  # the hash before the first record


class ChainedRecord(msgspec.Struct, frozen=True):
    """A record of a hash-chained log, with its sequence number and its hash."""

    sequence: int
    data: bytes
    hash: bytes


class Mark(msgspec.Struct, frozen=True):
    """A position in a log: the sequence number and the hash of one record."""

    sequence: int
    hash: bytes


ORIGIN = Mark(0, GENESIS)


class Flaw(StrEnum):
    """The kinds of damage that can be found in a hash-chained log."""

    CHANGED = "changed"  # a record's bytes are not those that were chained
    WRONG_HASH = "wrong_hash"  # the bytes are right, the stored hash is not
    REMOVED = "removed"
    REORDERED = "reordered"
    START_REMOVED = "start_removed"  # the log begins late and no mark was kept for that place
    TAIL_REMOVED = "tail_removed"
    REWRITTEN = "rewritten"  # consistent in itself, but not the log whose head was kept
    HEAD_MISSING = "head_missing"  # nothing proves that the last record is the last


class Break(msgspec.Struct, frozen=True):
    """The first damage that was found in a log: its position, its kind and an explanation."""

    sequence: int
    flaw: Flaw
    reason: str


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """The result of checking a log: how many records are intact, and the first damage if there is any."""

    records: int  # how many were found intact before the break, or to the end
    last: Mark  # the last of them
    start: Mark = ORIGIN  # the last record that was given up; the origin while all are kept
    broken: Break | None = None

    @property
    def intact(self) -> bool:
        """Return whether no damage was found."""
        return self.broken is None


def link(previous: bytes, sequence: int, data: bytes) -> bytes:
    """Return the hash of a record. It covers the sequence number, the data and `previous`, the hash of the record
    before.
    """
    return hashlib.sha256(_TAG + _LENGTHS.pack(sequence, len(previous), len(data)) + previous + data).digest()


def chain(after: Mark, records: Sequence[bytes]) -> list[bytes]:
    """Return the hashes that `records` get when they are appended after the mark `after`."""
    previous = after.hash
    return [previous := link(previous, sequence, data) for sequence, data in enumerate(records, after.sequence + 1)]


class ChainCheck:
    """A check of a hash-chained log that is read page by page. Call `add` for each record until it returns False, then
    `finish`.
    """

    def __init__(self, start: Mark = ORIGIN, head: Mark | None = None, stored_marks: Iterable[Mark] = ()) -> None:
        """Prepare a check of the records after the mark `start`, which must reach the mark `head`. The log must also
        agree with `stored_marks`, marks of records that were stored elsewhere.
        """
        self.records = 0
        self._start = self._last = start
        self._kept: dict[int, bytes] = {}
        for mark in (*stored_marks, *(() if head is None else (head,))):
            self._kept.setdefault(mark.sequence, mark.hash)
        self._suspect: ChainedRecord | None = None
        self._broken: Break | None = None

    def add(self, record: ChainedRecord) -> bool:
        """Check the next record. Return False if damage was found, so that no further records are needed."""
        if self._suspect is not None:
            # Only its neighbour shows what happened to a record that does not fit.
            self._broken = self._explain(self._suspect, record)
            self._suspect = None
        if self._broken is not None:
            return False
        sequence = self._last.sequence + 1
        if record.sequence != sequence or link(self._last.hash, sequence, record.data) != record.hash:
            self._suspect = record
            return True
        reached = Mark(sequence, record.hash)
        if self._kept.get(sequence, record.hash) != record.hash:
            self._broken = Break(
                sequence,
                Flaw.REWRITTEN,
                f"the log was rewritten: its record {sequence} is not the one whose hash was kept",
            )
            return False
        self._last = reached
        self.records += 1
        return True

    def finish(self) -> Verdict:
        """Return the verdict on the log. Call this after the last record was added."""
        if self._suspect is not None:
            self._broken = self._explain(self._suspect, None)
            self._suspect = None
        written = max(self._kept, default=0)
        if self._broken is None and written > self._last.sequence:
            self._broken = Break(
                self._last.sequence + 1,
                Flaw.TAIL_REMOVED,
                f"the log ends after record {self._last.sequence}, but record {written} was written",
            )
        return Verdict(records=self.records, last=self._last, start=self._start, broken=self._broken)

    def _explain(self, record: ChainedRecord, following: ChainedRecord | None) -> Break:
        """Return what happened to a record that does not fit the chain, for example that it was moved or changed.
        `following` is the record after it, or None at the end.

        The cases are tried from the most certain to the least: a record in the wrong place proves a move, a gap in the
        sequences proves a removal, and only a record in its place can have been changed.
        """
        sequence = self._last.sequence + 1
        if following is not None and (
            following.sequence < record.sequence or link(self._last.hash, sequence, following.data) == following.hash
        ):
            return Break(
                sequence, Flaw.REORDERED, f"record {sequence} is not in its place: the records around it were reordered"
            )
        if record.sequence < sequence:
            return Break(sequence, Flaw.REORDERED, f"record {record.sequence} is in the place of record {sequence}")
        if record.sequence > sequence:
            missing = f"the records from {sequence} to {record.sequence - 1} are missing"
            if self.records:
                return Break(sequence, Flaw.REMOVED, missing)
            return Break(sequence, Flaw.START_REMOVED, f"{missing}, and no mark was kept for a later start")
        # If later evidence confirms the bytes of the record, only its stored hash can be wrong.
        true_hash = link(self._last.hash, sequence, record.data)
        is_vouched = self._kept.get(sequence) == true_hash
        if following is not None and following.sequence == sequence + 1:
            is_vouched = link(true_hash, following.sequence, following.data) == following.hash
        if is_vouched:
            return Break(sequence, Flaw.WRONG_HASH, f"the stored hash of record {sequence} was changed")
        return Break(sequence, Flaw.CHANGED, f"record {sequence} was changed after it was written")
