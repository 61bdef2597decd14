"""What the node asks of a store, shaped so that SQLite and NATS JetStream can both serve it.

Key-value with revision and expiry, append-only streams, and replication where several nodes share the store; beside
them the audit log. Every call is async and returns only when what it promised is durable; a call that was cancelled may
have happened. `now` is wall-clock seconds and is passed in: a store has no clock.

    StoreError
      Conflict          another writer was first: read again, then decide
      Unavailable       disk full, locked, closed, away: nothing was done, the same call may be tried again; only
                        where a server fell silent in the middle of a call may it have been done
      Refused           the store cannot be used as it stands: the operator acts, the message says how
        NewerSchema     written by a newer Interlock
        Damaged         not a database of ours, or no longer readable
        FolderUnusable  the data folder cannot be created or written
"""

from collections.abc import Callable, Sequence
from typing import Protocol, Self, TypeVar

import msgspec

from interlock.store.audit_chain import ChainedRecord, Mark, Verdict


class Entry(msgspec.Struct, frozen=True):
    key: str
    value: bytes
    revision: int
    expires_at: float | None = None


class Change(msgspec.Struct, frozen=True):
    """What became of a key."""

    key: str
    entry: Entry | None  # None: it is gone


class Record(msgspec.Struct, frozen=True):
    sequence: int
    data: bytes


class NamedRecord(msgspec.Struct, frozen=True):
    """A record of the log of the registry of names."""

    name: str  # the surface name it is about; empty: none
    data: bytes


class StoreError(Exception):
    """The root of the tree above."""


class Conflict(StoreError):
    """The revision asked for is not the current one, or the key to be created exists."""


class Unavailable(StoreError):
    """The store cannot answer; nothing was done."""


class StoreRefused(StoreError):
    """The store cannot be used as it stands; the message says what the operator does next."""


class NewerSchema(StoreRefused):
    """A newer Interlock wrote this store."""


class Damaged(StoreRefused):
    """The store is not one of ours, or can no longer be read."""


class FolderUnusable(StoreRefused):
    """The data folder cannot be created, or does not let us write."""


class KeyValue(Protocol):
    """Revisions grow with every write and are never used again, not even after a delete."""

    async def get(self, bucket: str, key: str, now: float) -> Entry | None: ...

    async def entries(self, bucket: str, now: float) -> list[Entry]:
        """All live entries of a bucket, sorted by key."""

    async def put(self, bucket: str, key: str, value: bytes, now: float, *, ttl_s: float | None = None) -> int:
        """Write whatever is there. Returns the new revision."""

    async def create(self, bucket: str, key: str, value: bytes, now: float, *, ttl_s: float | None = None) -> int:
        """Write only if there is no live entry; otherwise Conflict."""

    async def update(
        self, bucket: str, key: str, value: bytes, revision: int, now: float, *, ttl_s: float | None = None
    ) -> int:
        """Write only over that revision, if it still lives; otherwise Conflict."""

    async def delete(self, bucket: str, key: str) -> bool:
        """True if there was an entry; an expired one may count."""


class Streams(Protocol):
    async def append(self, stream: str, records: Sequence[bytes]) -> int:
        """Append in order, all or nothing, at most 1000. Returns the last sequence (the first record is 1)."""

    async def read(self, stream: str, after: int = 0, limit: int = 1000) -> list[Record]: ...

    async def last(self, stream: str) -> int:
        """The last sequence, 0 for an empty stream."""

    async def trim(self, stream: str, upto: int) -> None:
        """Forget the records up to that sequence; the last one stays, so that no sequence is given twice."""


T_co = TypeVar("T_co", covariant=True)


class Following(Protocol[T_co]):
    """An async iterator that ends when it or the store is closed. It outlives times without the store: what came
    meanwhile follows, in its order, once it is back."""

    def __aiter__(self) -> Self: ...

    async def __anext__(self) -> T_co: ...

    def close(self) -> None: ...


class Replication(Protocol):
    """How replicas of a node that share one store hear of each other."""

    @property
    def is_reachable(self) -> bool:
        """Whether the store answered a moment ago."""

    def watch(self, bucket: str) -> Following[Change]:
        """Every write and delete of others in a bucket after the call, in order of revision.

        Left out are this store's own writes and what is older than its own last write to the same key; a write that
        ended with Unavailable and was done after all is told. Of a key that was written several times before the
        watcher came to it, only the last may come. An entry that expires need not be told.
        """

    def follow(self, stream: str, after: int) -> Following[Record]:
        """Every record of a stream after that sequence, by any node, once and in order."""

    async def append_new(self, stream: str, records: Sequence[tuple[str, bytes]]) -> list[int]:
        """Append those, in order, whose id was not appended by anyone within the last two minutes.

        Returns the sequence of each, 0 for one that was left out. Unavailable: some of them may have been appended,
        and `follow` tells which.
        """


class Store(Protocol):
    """One store, one life cycle; `close` works after a failed `open`."""

    @property
    def kv(self) -> KeyValue: ...

    @property
    def streams(self) -> Streams: ...

    @property
    def replication(self) -> Replication | None:
        """None where no other node uses the store."""

    async def open(self) -> None: ...

    async def close(self) -> None: ...


class AuditReader(Protocol):
    """The hash-chained log of `store.audit`, to look at. Same life cycle as a store."""

    async def open(self) -> None: ...

    async def read(self, after: int = 0, limit: int = 1000) -> list[ChainedRecord]: ...

    async def last(self) -> int:
        """The sequence of the last record, 0 for an empty log."""

    async def verify(self, progress: Callable[[int], None] | None = None) -> Verdict:
        """Check the whole chain; `progress` is told from time to time how many records were found intact."""

    async def close(self) -> None: ...


class AuditLog(AuditReader, Protocol):
    """The log, to write to as well; several processes may append to one."""

    async def append(self, records: Sequence[bytes]) -> int:
        """Chain the records in order, all or nothing, and return the last sequence once they are on disk."""

    async def give_up(self, sequence: int) -> int:
        """Remove records from the start, up to about `sequence` and never beyond, and say how many.

        What is left stays provable: the mark of the last one removed is kept.
        """


class NamesLog(Protocol):
    """The hash-chained log of the registry of names; several processes may append to one."""

    @property
    def is_begun(self) -> bool:
        """Whether anything may have been appended."""

    async def open(self) -> None: ...

    async def close(self) -> None: ...

    async def read(self, after: int = 0, limit: int = 10_000) -> list[ChainedRecord]: ...

    async def read_of(self, name: str, limit: int = 1000) -> list[ChainedRecord]:
        """The last records about a name, in order."""

    async def append(self, after: Mark, records: Sequence[NamedRecord]) -> Mark:
        """Chains the records right after that mark, all or nothing; Conflict where it is not the last one."""

    def watch(self) -> Following[None] | None:
        """Tells when there may be more to read; None where no other node appends."""
