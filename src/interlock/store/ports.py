"""What the node asks of a store, shaped so that SQLite and NATS JetStream can both serve it.

Key-value with revision and expiry, append-only streams, and replication where several nodes share the store; beside
them the audit log. Every call is async and returns only when what it promised is durable; a call that was cancelled may
have happened. `now` is wall-clock seconds and is passed in: a store has no clock.

    StoreError
      Conflict          another writer was first: read again, then decide
      Unavailable       disk full, locked, closed, away: nothing was done, the same call may be tried again; only
                        where a server fell silent in the middle of a call may it have been done
      StoreRefused      the store cannot be used in its present state; the message tells the operator what to do
        NewerSchema     written by a newer Interlock
        Damaged         not a database of ours, or no longer readable
        FolderUnusable  the data folder cannot be created or written
"""

import math
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Protocol, Self, TypeVar
from urllib.parse import urlsplit

import msgspec

from interlock.store.audit_chain import ChainedRecord, Mark

if TYPE_CHECKING:
    from interlock.store.nats.store import NatsStore


T = TypeVar("T")


class Entry(msgspec.Struct, frozen=True):
    """A key with its value. Every write changes `revision`. After the time `expires_at` the entry no longer exists."""

    key: str
    value: bytes
    revision: int
    expires_at: float | None = None

    def decode(self, kind: type[T], what: str, remedy: str = "put a backup of the store in its place") -> T:
        """Decode the value as a record of this type. Raise Damaged if that is impossible. `what` names the record in
        the message, and `remedy` says how to repair it.
        """
        try:
            return msgspec.json.decode(self.value, type=kind)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            raise Damaged(f"{what} cannot be read; {remedy}") from None


class Change(msgspec.Struct, frozen=True):
    """A write or deletion of one key by another replica, as a watch of its bucket reports it."""

    key: str
    entry: Entry | None  # None: it is gone


class Record(msgspec.Struct, frozen=True):
    """A record of a stream, with its sequence number."""

    sequence: int
    data: bytes


class NamedRecord(msgspec.Struct, frozen=True):
    """A record to append to the log of the registry of names, with the name that it is about."""

    name: str  # the surface name it is about; empty: none
    data: bytes


class StoreError(Exception):
    """The base class of all errors of a store."""


class Conflict(StoreError):
    """Exception for a conditional write that another writer preceded: the entry has another revision, is gone or exists
    already, or another record was appended first.
    """


class Unavailable(StoreError):
    """Exception for a store that cannot answer now. In most cases nothing was written, and the same call may be tried
    again.
    """


class StoreRefused(StoreError):
    """Exception for a store that cannot be used in its present state. The message explains what the operator
    should do.
    """


class NewerSchema(StoreRefused):
    """Exception for a store that a newer version of Interlock has written."""


class Damaged(StoreRefused):
    """Exception for a store that was not created by Interlock, or that can no longer be read."""


class FolderUnusable(StoreRefused):
    """Exception for a data folder that cannot be created or written."""


class KeyValue(Protocol):
    """A key-value store with buckets. Every write gives its key a higher revision, and no revision is used twice."""

    async def get(self, bucket: str, key: str, now: float) -> Entry | None: ...

    async def entries(self, bucket: str, now: float) -> list[Entry]:
        """Return all entries of a bucket that have not expired, sorted by key."""

    async def put(self, bucket: str, key: str, value: bytes, now: float, *, ttl_s: float | None = None) -> int:
        """Write the value, whether or not the key exists, and return the new revision."""

    async def create(self, bucket: str, key: str, value: bytes, now: float, *, ttl_s: float | None = None) -> int:
        """Write the value if the key has no entry or an expired one. Raise Conflict otherwise."""

    async def update(
        self, bucket: str, key: str, value: bytes, revision: int, now: float, *, ttl_s: float | None = None
    ) -> int:
        """Replace the entry if it has not expired and has this revision. Raise Conflict otherwise."""

    async def delete(self, bucket: str, key: str) -> bool:
        """Delete an entry, and return whether there was one. An entry that has expired may still count."""


class Streams(Protocol):
    """Append-only streams of records, each identified by a name. The first record creates a stream."""

    async def append(self, stream: str, records: Sequence[bytes]) -> int:
        """Append up to 1000 records in order, all or none, and return the sequence of the last one. The first record of
        a stream has the sequence 1.
        """

    async def read(self, stream: str, after: int = 0, limit: int = 1000) -> list[Record]: ...

    async def last(self, stream: str) -> int:
        """Return the last sequence, or 0 for an empty stream."""

    async def trim(self, stream: str, upto: int) -> None:
        """Delete the records up to the sequence `upto`. The last record always stays, so that no sequence is used
        twice.
        """


T_co = TypeVar("T_co", covariant=True)


class Following(Protocol[T_co]):
    """An async iterator over changes or records, which ends when the iterator or the store is closed. If the store is
    unreachable for some time, the iteration later continues at the same place.
    """

    def __aiter__(self) -> Self: ...

    async def __anext__(self) -> T_co: ...

    def close(self) -> None: ...


class Store(Protocol):
    """A store with key-value entries and streams. `close` also works after a failed `open`."""

    @property
    def kv(self) -> KeyValue: ...

    @property
    def streams(self) -> Streams: ...

    @property
    def replication(self) -> "NatsStore | None":
        """Return the interface to the writes of other replicas, which is the store itself. Return None if only this
        node uses the store.
        """

    async def open(self) -> None: ...

    async def close(self) -> None: ...


class NamesLog(Protocol):
    """The log of the registry of names, whose records form a hash chain. Several processes may append to it."""

    @property
    def is_begun(self) -> bool:
        """Return whether the log may contain records."""

    async def open(self) -> None: ...

    async def close(self) -> None: ...

    async def read(self, after: int = 0, limit: int = 10_000) -> list[ChainedRecord]: ...

    async def read_of(self, name: str, limit: int = 1000) -> list[ChainedRecord]:
        """Return at most `limit` of the newest records about a name, oldest first."""

    async def append(self, after: Mark, records: Sequence[NamedRecord]) -> Mark:
        """Append the records after the mark `after`, either all of them or none. Raise Conflict if `after` is not the
        last record of the log.
        """

    def watch(self) -> Following[None] | None:
        """Return an iterator that yields when there are new records, or None if no other node appends to this log."""


# When an entry expires that may live for so long.


def expiry(now: float, ttl_s: float | None) -> float | None:
    """Return the time at which an entry with this lifetime expires, or None if it never does. Raise ValueError if
    `ttl_s` is not positive or not finite.
    """
    if ttl_s is None:
        return None
    if not (ttl_s > 0 and math.isfinite(now + ttl_s)):  # SQLite keeps NaN as NULL, which would mean for ever
        raise ValueError(f"a time to live must be a positive number of seconds, not {ttl_s}")
    return now + ttl_s


# Where the NATS servers of a store are, and the name under which replicas share their data. These values are here,
# beside the interfaces, because every node imports them and most nodes do not have the NATS library.


class NatsServers(msgspec.Struct, frozen=True, kw_only=True):
    """The addresses of the NATS servers that a store uses, with the credentials and the CA certificates for them."""

    urls: tuple[str, ...]
    secret: Callable[[], Awaitable[str | None]] | None = None  # what `credentials` reads
    ca_file: str | None = None  # who may vouch for a server, where the system's own do not

    def __str__(self) -> str:
        return ", ".join(address(url) for url in self.urls)


class SharedPlace(msgspec.Struct, frozen=True, kw_only=True):
    """The place of the data that all replicas of a node share: the NATS servers and the name of the node."""

    servers: NatsServers
    node: str  # their name
    replicas: int = 1  # on how many servers of a cluster each stream is


def address(url: str) -> str:
    """Return a URL with its credentials removed."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"
