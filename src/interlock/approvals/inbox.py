"""The inbox: everything that waits for a decision, from the request until its end.

Theory of operation. An approval is a record with a status; `protocol.approval.TABLE` has every move between statuses.
A caller raises an approval, and a decision approves or denies it. What was approved is carried out in two moves: the
approval is used before anything happens, and finished afterwards. The inbox does not judge: the decision service has
made sure beforehand that the person may decide and that the proof holds.

Every move is made in the same order. The new record is written over the revision that was read, then the index in
memory follows the disk, then the move is recorded and published to the listeners. When several callers use one
approval at the same moment, the store accepts one write and answers the others with a conflict; they read the record
again and learn that it is used. A decision is in the audit log before it counts, so that no decision is in effect
without a record. Moves run in tasks of their own: a caller that is cancelled leaves memory and disk the same.

An approval lapses when either of two clocks reaches its deadline. The monotonic clock cannot be set back; only the wall
clock continues while a machine sleeps. `sweep` stores the status of lapsed approvals, but an approval is expired from
its deadline on, stored or not.

If several replicas share the store, each applies the changes of the others (`take_change`), acts only on its own
approvals, and ends approvals that a lost replica was using. The waiting approvals of a caller are limited in number and
bytes (AX-11.3-4), because callers determine how many approvals there are.
"""

import asyncio
import contextlib
import logging
import uuid
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, Self

import msgspec
from msgspec import Raw
from msgspec.structs import replace

from interlock.approvals.audit import ApprovalAudit
from interlock.approvals.protocol import approval as records
from interlock.approvals.protocol.approval import Approval, Decision, Kind, Move, Source, Status, What
from interlock.ax.protocol.budget import ExceededLimit, budget_exceeded
from interlock.config.plan import ApprovalsPlan
from interlock.core.background import BackgroundTasks
from interlock.core.clock import Clock
from interlock.core.feed import Feed
from interlock.core.replicas import LEASE_S, Replicas
from interlock.store.ports import Change, Conflict, Entry, KeyValue, StoreError
from interlock.wire.refusal import Refusal

log = logging.getLogger("interlock.approvals")

BUCKET: Final = "approvals"
KEPT_S: Final = 86_400.0  # an ended one

_NULL: Final = Raw(b"null")


class StoredApproval(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Stored form of an approval. `params` is a separate member because raw JSON cannot be in a union type."""

    approval: Approval
    params: Raw
    replica: str | None = None  # that wrote it, where several share the store


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(StoredApproval).decode


class ApprovalEntry(msgspec.Struct, frozen=True):
    """An approval as it is stored, with the revision that an update must name."""

    approval: Approval
    revision: int
    kept_until: float | None = None  # by the wall clock, once it has ended
    replica: str | None = None  # that moved it last; None: there is only one


@dataclass(eq=False)
class ApprovalStore:
    """Reader and writer of approvals on disk. Methods raise StoreError, and Conflict if another writer was first.

    An ended approval is kept for a day, so that a late question gets the right refusal; then the store forgets it.

    `replica` is the id of this replica if several share the store.
    """

    kv: KeyValue
    clock: Clock
    replica: str | None = None

    async def all(self) -> list[ApprovalEntry]:
        entries = await self.kv.entries(BUCKET, self.clock.wall())
        return [approval for entry in entries if (approval := decode_entry(entry)) is not None]

    async def find(self, id: str) -> ApprovalEntry | None:
        entry = await self.kv.get(BUCKET, id, self.clock.wall())
        return None if entry is None else decode_entry(entry)

    async def create(self, approval: Approval) -> ApprovalEntry:
        revision = await self.kv.create(BUCKET, approval.id, self._encode(approval), self.clock.wall())
        return ApprovalEntry(approval, revision, None, self.replica)

    async def update(self, approval: Approval, revision: int) -> ApprovalEntry:
        now = self.clock.wall()
        ttl_s = KEPT_S if approval.status in records.ENDS else None
        revision = await self.kv.update(BUCKET, approval.id, self._encode(approval), revision, now, ttl_s=ttl_s)
        return ApprovalEntry(approval, revision, None if ttl_s is None else now + ttl_s, self.replica)

    def _encode(self, approval: Approval) -> bytes:
        params = approval.params or _NULL
        return _encode(StoredApproval(approval=replace(approval, params=None), params=params, replica=self.replica))


def decode_entry(entry: Entry) -> ApprovalEntry | None:
    """Decode a stored approval. Log an unreadable record and return None for it."""
    try:
        stored = _decode(entry.value)
    except msgspec.DecodeError as error:
        # What cannot be read cannot be decided; the call it was for is made again.
        log.error("approval %s cannot be read and is left out: %s", entry.key, error)
        return None
    approval = stored.approval
    if stored.params != _NULL:
        approval = replace(approval, params=stored.params.copy())
    return ApprovalEntry(approval, entry.revision, entry.expires_at, stored.replica)


ENDED_MAX: Final = 2_000  # remembered, to answer late questions; a few kilobytes each
DEFINITIONS: Final = "\0definitions"  # whose they are; no principal is called so
_TOOL: Final = "\0tool:"

Key = tuple[str, str]


def key_of(approval: Approval) -> Key:
    """Return the key under which approvals of the same subject are found: of the same call or the same definition. At
    most one live approval has a given key.

    The key of a definition includes the tool, because two servers may define a tool alike, word for word.
    """
    if approval.kind in (Kind.DEFINITION, Kind.ENROLMENT, Kind.CONFIGURATION):
        return definition_key(approval.tool, approval.digest)
    return approval.requested_by, approval.digest


def definition_key(tool: str, digest: str) -> Key:
    return f"{_TOOL}{tool}", digest


@dataclass(eq=False)
class Index:
    """Approvals in memory, by id, by key and by principal. The inbox passes every change that is on disk to the index.

    The index does not validate moves. It returns approvals with their present status, even if a lapse is not stored
    yet.
    """

    clock: Clock
    # Set while an approval with a deadline exists.
    lapsing: asyncio.Event = field(default_factory=asyncio.Event, init=False)
    # The arguments of everything that is pending, except definitions.
    held_bytes: int = field(default=0, init=False)
    _entries: dict[str, ApprovalEntry] = field(default_factory=dict, init=False)
    _dues: dict[str, float] = field(default_factory=dict, init=False)  # live ones that lapse, by the monotonic clock
    _by_key: dict[Key, str] = field(default_factory=dict, init=False)
    # By principal: the ids of its pending approvals, and the bytes that each holds.
    _pending: dict[str, dict[str, int]] = field(default_factory=dict, init=False)
    # By principal: until when each withdrawn approval still counts as pending.
    _taken_back: dict[str, list[float]] = field(default_factory=dict, init=False)
    _ended: deque[str] = field(default_factory=deque, init=False)

    # Looking

    def find_entry(self, id: str) -> ApprovalEntry | None:
        return self._entries.get(id)

    def all(self) -> Iterator[Approval]:
        return map(self.current, self._entries.values())

    def get(self, id: str) -> Approval | None:
        entry = self._entries.get(id)
        return None if entry is None else self.current(entry)

    def find(self, key: Key) -> Approval | None:
        """Return the approval with this key if it is pending, approved but unused, or denied; otherwise None. A denied
        approval counts until the time at which it would have expired.
        """
        id = self._by_key.get(key)
        approval = self.get(id or "")
        if approval is None or approval.status in records.LIVE:
            return approval
        is_told = approval.expires_at is None or self.clock.wall() < approval.expires_at
        return approval if approval.status is Status.DENIED and is_told else None

    def current(self, entry: ApprovalEntry) -> Approval:
        if self._has_lapsed(entry):
            return replace(entry.approval, status=Status.EXPIRED, params=None)
        return entry.approval

    def lapsed_ids(self) -> list[str]:
        if not self._dues:
            self.lapsing.clear()
        return [id for id in self._dues if self._has_lapsed(self._entries[id])]

    def held_counts(self, principal: str) -> dict[str, int]:
        return self._pending.get(principal, {})

    def withdrawal_times(self, principal: str) -> list[float]:
        """Return one time of the monotonic clock for each approval that a principal withdrew. Until then, the approval
        still counts against the limit on waiting approvals.
        """
        now = self.clock.now()
        left = [due for due in self._taken_back.get(principal, ()) if due > now]
        if left:
            self._taken_back[principal] = left
        else:
            self._taken_back.pop(principal, None)
        return left

    @property
    def pending_count(self) -> int:
        return sum(map(len, self._pending.values()))

    def next_lapse_ms(self, ids: Iterable[str], others: Iterable[float] = ()) -> int | None:
        dues = [*others, *(due for id in ids if (due := self._dues.get(id)) is not None)]
        return max(0, round((min(dues) - self.clock.now()) * 1000)) if dues else None

    def _has_lapsed(self, entry: ApprovalEntry) -> bool:
        deadline = entry.approval.deadline
        if deadline is None:
            return False
        due = self._dues.get(entry.approval.id)
        return self.clock.wall() >= deadline or (due is not None and self.clock.now() >= due)

    # Following

    def keep(self, entry: ApprovalEntry) -> None:
        approval = entry.approval
        before = self._entries.get(approval.id)
        self._entries[approval.id] = entry
        if approval.status is Status.PENDING:
            self.hold(approval)
        else:
            self.release(approval)
        deadline = approval.deadline
        if deadline is None:
            due = self._dues.pop(approval.id, None)
            if due is not None and approval.status is Status.WITHDRAWN:
                self._taken_back[approval.requested_by] = [*self.withdrawal_times(approval.requested_by), due]
        else:
            self._dues[approval.id] = self.clock.now() + deadline - self.clock.wall()
            self.lapsing.set()
        key = key_of(approval)
        standing = self.get(self._by_key.get(key, ""))
        if approval.status in records.LIVE:
            self._by_key[key] = approval.id
        elif approval.status is Status.DENIED:
            if standing is None or not standing.is_live:
                self._by_key[key] = approval.id
        elif standing is not None and standing.id == approval.id:
            del self._by_key[key]
        if approval.status in records.ENDS and (before is None or before.approval.status not in records.ENDS):
            self._ended.append(approval.id)

    def hold(self, approval: Approval) -> None:
        """Count an approval against the limits before it is on disk, so that concurrent requests cannot exceed them."""
        held = self._pending.setdefault(_whose(approval), {})
        size = len(approval.params or b"")
        self._count(approval, size - held.get(approval.id, 0))
        held[approval.id] = size

    def release(self, approval: Approval) -> None:
        held = self._pending.get(_whose(approval))
        size = held.pop(approval.id, None) if held is not None else None
        if size is not None:
            self._count(approval, -size)
            if not held:
                del self._pending[_whose(approval)]

    def _count(self, approval: Approval, size: int) -> None:
        if approval.kind is not Kind.DEFINITION:
            self.held_bytes += size

    def forget(self, id: str) -> None:
        entry = self._entries.pop(id, None)
        if entry is None:
            return
        self._dues.pop(id, None)
        self.release(entry.approval)
        if self._by_key.get(key_of(entry.approval)) == id:
            del self._by_key[key_of(entry.approval)]

    def forget_old(self) -> None:
        """Remove ended approvals whose storage time is over, and the oldest ended ones if there are too many."""
        for principal in list(self._taken_back):
            self.withdrawal_times(principal)
        wall = self.clock.wall()
        while self._ended:
            entry = self._entries.get(self._ended[0])
            if entry is not None and len(self._ended) <= ENDED_MAX and (entry.kept_until or wall + 1) > wall:
                return
            self.forget(self._ended.popleft())


def _whose(approval: Approval) -> str:
    return DEFINITIONS if approval.kind is Kind.DEFINITION else approval.requested_by


QUEUE_MAX: Final = 1024  # changes waiting for one listener


@dataclass(eq=False)
class ApprovalListener:
    """An async iterator of changed approvals. After it is closed, it yields the changes that have already arrived, and
    then ends.
    """

    forget: Callable[["ApprovalListener"], object]
    dropped: int = field(default=0, init=False)
    _waiting: deque[Approval] = field(default_factory=lambda: deque(maxlen=QUEUE_MAX), init=False)
    _changed: asyncio.Event = field(default_factory=asyncio.Event, init=False)
    _closed: bool = field(default=False, init=False)

    def deliver(self, approval: Approval) -> None:
        if len(self._waiting) == QUEUE_MAX:
            self.dropped += 1
        self._waiting.append(approval)
        self._changed.set()

    def close(self) -> None:
        self._closed = True
        self._changed.set()
        self.forget(self)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Approval:
        while not self._waiting:
            if self._closed:
                raise StopAsyncIteration
            self._changed.clear()
            await self._changed.wait()
        return self._waiting.popleft()


class ApprovalFeed:
    """The feed of approvals: delivers every change, in order, to all present listeners.

    A listener that reads too slowly loses the oldest changes, which are counted. It does not delay other listeners.
    """

    def __init__(self) -> None:
        self._listeners: dict[ApprovalListener, bool] = {}  # and whether it hears own changes alone
        self._closed = False

    def listen(self, *, only_own: bool = False) -> ApprovalListener:
        """Add a listener. With `only_own`, it gets only changes by this replica, so that one replica acts on each."""
        listener = ApprovalListener(lambda closed: self._listeners.pop(closed, None))
        if self._closed:
            listener.close()
        else:
            self._listeners[listener] = only_own
        return listener

    def tell(self, approval: Approval, *, is_own: bool = True) -> None:
        for listener, only_own in self._listeners.items():
            if is_own or not only_own:
                listener.deliver(approval)

    def close(self) -> None:
        self._closed = True
        for listener in list(self._listeners):
            listener.close()


SWEEP_EVERY_S: Final = 1.0  # how late an expiry may be written down; it counts from its moment on
TRIES_MAX: Final = 5  # against writers that were first
HELD_BYTES_MAX: Final = 16 * 1024 * 1024  # of arguments that wait, per principal: room for one of the largest messages
AGENT_CHARS_MAX: Final = 100
HELD_BYTES_IN_ALL_MAX: Final = 256 * 1024 * 1024  # of all principals: an issuer may let anybody make many of them
LIVE_MAX: Final = 50_000  # of all principals and kinds together

_WITHOUT_EXPIRY: Final = frozenset((Kind.DEFINITION, Kind.REQUEST, Kind.ENROLMENT, Kind.CONFIGURATION))
_OF_ONE_REPLICA: Final = frozenset((Kind.START, Kind.STEP, Kind.VERIFY, Kind.CONFIGURATION))
_LOST: Final = "the node stopped before the end was known"
_UNSENT: Final = "the caller left before anything was sent"


@dataclass(eq=False)
class Inbox:
    """The approvals of a node. Every change of status is on disk before the method that makes it returns.

    Methods return the approval after the move, or the refusal that says why the move is not possible.
    """

    store: ApprovalStore
    audit: ApprovalAudit
    clock: Clock
    rules: ApprovalsPlan
    replicas: Replicas | None = None  # that share the store, if there may be several
    heard: Feed[Approval] = field(default_factory=Feed, init=False)  # what another replica raised or moved
    _feed: ApprovalFeed = field(default_factory=ApprovalFeed, init=False)
    _raising: dict[Key, asyncio.Task[Approval | Refusal]] = field(default_factory=dict, init=False)
    _work: BackgroundTasks = field(default_factory=BackgroundTasks, init=False)

    def __post_init__(self) -> None:
        self._index = Index(self.clock)

    # Life

    async def open(self) -> None:
        """Load the stored approvals, and end those in use by a lost replica. Raise StoreError if the store fails."""
        for entry in sorted(await self.store.all(), key=lambda stored: stored.approval.created_at):
            self._index.keep(entry)  # the newest last: it is the one that stands for its digest
        await self.end_lost()

    async def end_lost(self) -> None:
        """End the approvals that a lost replica was using."""
        for approval in self.listed((Status.USED,)):
            entry = self._index.find_entry(approval.id)
            if entry is not None and not self._is_alive(entry.replica):
                await self.finish(approval.id, Move.LOSE, _LOST)

    def _is_alive(self, replica: str | None) -> bool:
        return self.replicas is not None and replica is not None and self.replicas.is_alive(replica)

    def is_elsewhere(self, id: str) -> bool:
        """Return whether another live replica raised this approval or changed it last."""
        entry = self._index.find_entry(id)
        return entry is not None and not self._is_own(entry) and self._is_alive(entry.replica)

    def take_change(self, change: Change) -> None:
        """Apply a change from the shared store: a change by another replica, or one by this replica whose write seemed
        to fail.
        """
        entry = None if change.entry is None else decode_entry(change.entry)
        current = self._index.find_entry(change.key)
        if change.entry is None:
            self._index.forget(change.key)
        elif entry is None or (current is not None and current.revision > entry.revision):
            return
        elif not self._is_own(entry):
            self._take(entry)
        else:
            self._index.keep(entry)
            self._feed.tell(entry.approval)
            if entry.approval.status is Status.USED:  # not really: who wanted to was refused
                self._work.begin(self._move(change.key, Move.FAIL, outcome=_UNSENT), "approvals")

    def _take(self, entry: ApprovalEntry) -> None:
        """Add an approval that another replica wrote to the index, and publish it to listeners unless this change was
        published before.
        """
        current = self._index.find_entry(entry.approval.id)
        self._index.keep(entry)
        if current is None or current.revision < entry.revision:
            self._feed.tell(entry.approval, is_own=False)
            self.heard.publish(entry.approval)

    def _is_own(self, entry: ApprovalEntry) -> bool:
        replicas = self.replicas
        return replicas is None or replicas.is_alone or entry.replica == replicas.own_id

    def replan(self, rules: ApprovalsPlan) -> None:
        """Apply new rules to approvals that are raised from now on. Waiting approvals keep their deadlines."""
        self.rules = rules

    def end_listening(self) -> None:
        """End all listeners of changes. Approvals can still change afterwards."""
        self._feed.close()

    async def close(self) -> None:
        await self._work.finish()
        self._feed.close()

    # Looking

    def get(self, id: str) -> Approval | None:
        return self._index.get(id)

    def find_by_prefix(self, prefix: str) -> list[Approval]:
        """Return the approvals whose id starts with this text. Ids are random, so that a few characters identify
        one.
        """
        return [approval for approval in self._index.all() if approval.id.startswith(prefix)]

    def waiting(self, kind: Kind | None = None) -> list[Approval]:
        """Return the undecided approvals, the oldest first."""
        return self.listed((Status.PENDING,), kind)

    @property
    def waiting_count(self) -> int:
        return self._index.pending_count

    def waiting_definitions(self) -> list[Approval]:
        """Return the undecided approvals of definitions, unordered, because this runs for each list
        that a server sends.
        """
        approvals = map(self._index.get, self._index.held_counts(DEFINITIONS))
        return [approval for approval in approvals if approval is not None]

    def listed(self, statuses: Iterable[Status] = Status, kind: Kind | None = None) -> list[Approval]:
        wanted = frozenset(statuses)
        every = self._index.all()
        approvals = [approval for approval in every if approval.status in wanted and kind in (None, approval.kind)]
        return sorted(approvals, key=lambda approval: (approval.created_at, approval.id))

    def find(self, requested_by: str, digest: str) -> Approval | None:
        """Return the approval that applies to this call of `requested_by`. It is pending, approved but unused, or
        denied and not expired.
        """
        return self._index.find((requested_by, digest))

    def has_expired(self, requested_by: str, digest: str) -> bool:
        """Return whether an approval of this call expired within the last day."""
        return any(
            (approval.requested_by, approval.digest) == (requested_by, digest)
            for approval in self.listed((Status.EXPIRED,), Kind.CALL)
        )

    def find_definition(self, tool: str, digest: str) -> Approval | None:
        """Return the approval about this definition of a tool, or None. It does not depend on a caller."""
        return self._index.find(definition_key(tool, digest))

    def listen(self, *, only_own: bool = False) -> ApprovalListener:
        """Add a listener for later changes; close it when done. With `only_own`, it gets only those of this replica."""
        return self._feed.listen(only_own=only_own)

    def remind(self, id: str) -> None:
        """Publish an approval to every listener once more if it still waits."""
        approval = self.get(id)
        if approval is not None and approval.status is Status.PENDING:
            self._feed.tell(approval)

    # Moving

    def draft(
        self, kind: Kind, source: Source, *, requested_by: str, tool: str, digest: str, **members: Any
    ) -> Approval:
        """Create an approval with an id and its times, without storing it. `raise_` stores it."""
        now = self.clock.wall()
        # The agent is a client's word for itself.
        if (agent := members.get("agent")) is not None:
            members["agent"] = agent[:AGENT_CHARS_MAX].encode("utf-8", "replace").decode()
        members |= {"kind": kind, "source": source, "requested_by": requested_by, "tool": tool, "digest": digest}
        expires_at = None if kind in _WITHOUT_EXPIRY else now + self.rules.expiry_s
        return Approval(id=str(uuid.uuid4()), created_at=now, **{"expires_at": expires_at, **members})

    async def raise_(self, approval: Approval, *, anew: bool = False) -> Approval | Refusal:
        """Store a new approval and return it. If there is already one for the same digest, return that one without
        extending it.

        With `anew`, an existing denied approval is ignored, because an operator wants to decide again.
        """
        key = key_of(approval)
        if (standing := self._index.find(key)) is not None and not (anew and standing.status is Status.DENIED):
            return standing
        under_way = self._raising.get(key)
        if under_way is None:
            if (refusal := self._find_limit_refusal(approval)) is not None:
                return refusal
            self._index.hold(approval)
            under_way = self._raising[key] = self._begin(self._raise(key, approval))
        return await asyncio.shield(under_way)

    async def raise_used(self, approval: Approval, decision: Decision) -> Approval | Refusal:
        """Store an approval that a standing grant decided in advance, and use it at once. The caller must call `finish`
        when its call has ended.
        """
        return await self._use(approval.id, self._raise_used(approval, decision))

    async def decide(self, id: str, decision: Decision, *, redeem_until: float | None = None) -> Approval | Refusal:
        """Record a decision in the audit log, then apply it. `redeem_until` is when the proof of the decision
        expires.
        """
        return await asyncio.shield(self._begin(self._decide(id, decision, redeem_until)))

    async def use(self, id: str) -> Approval | Refusal:
        """Mark an approval as used, and return it with its arguments, which are erased in the store. The caller must
        call `finish` later.
        """
        standing = self.get(id)
        used = await self._use(id, self._move(id, Move.USE))
        return used if isinstance(used, Refusal) or standing is None else replace(used, params=standing.params)

    async def finish(self, id: str, end: Move, outcome: str | None = None) -> Approval | Refusal:
        """End a used approval. `end` is Move.SUCCEED, FAIL or LOSE, and `outcome` describes the result."""
        return await asyncio.shield(self._begin(self._move(id, end, outcome=outcome)))

    async def carry_out(self, id: str) -> Approval | Refusal:
        """Mark an approval as used and finished, because its decision has already taken effect."""
        used = await self.use(id)
        return used if isinstance(used, Refusal) else await self.finish(id, Move.SUCCEED)

    async def void(self, id: str, why: str) -> Approval | Refusal:
        return await asyncio.shield(self._begin(self._move(id, Move.VOID, outcome=why)))

    async def void_where(self, why: str, test: Callable[[Approval], bool]) -> list[Approval]:
        """End all live approvals for which `test` returns True, for example because their anchor was removed."""
        approvals = [approval for approval in self._index.all() if approval.is_live and test(approval)]
        voided = [await self.void(approval.id, why) for approval in approvals]
        return [outcome for outcome in voided if isinstance(outcome, Approval)]

    async def withdraw(self, id: str) -> Approval | Refusal:
        """Withdraw an approval for the principal that raised it. Callers must check the principal."""
        return await asyncio.shield(self._begin(self._move(id, Move.WITHDRAW)))

    async def sweep(self) -> None:
        """Mark approvals whose time is over as expired, erase their arguments, and forget approvals that ended long
        ago.
        """
        for id in self._index.lapsed_ids():
            await self._move(id, Move.EXPIRE)
        self._index.forget_old()

    # Inside

    async def sweep_forever(self) -> None:
        while True:
            await self._index.lapsing.wait()
            await self.sweep()
            await asyncio.sleep(SWEEP_EVERY_S)

    async def end_lost_forever(self) -> None:
        while True:
            await asyncio.sleep(LEASE_S)
            await self.end_lost()

    def _begin(self, work: Coroutine[Any, Any, Approval | Refusal]) -> asyncio.Task[Approval | Refusal]:
        """Start a task that changes an approval. It continues even if the task that waits for it is cancelled, so that
        memory and disk stay consistent.
        """
        return self._work.begin_awaited(work)

    async def _use(self, id: str, work: Coroutine[Any, Any, Approval | Refusal]) -> Approval | Refusal:
        using = self._begin(work)
        try:
            return await asyncio.shield(using)
        except asyncio.CancelledError:
            self._work.begin(self._mark_unsent(id, using))
            raise

    async def _raise(self, key: Key, approval: Approval) -> Approval | Refusal:
        try:
            entry = await self.store.create(approval)
        except StoreError as refused:
            self._index.release(approval)
            return _unavailable(refused)
        finally:
            del self._raising[key]
        self._index.keep(entry)
        self._tell(entry.approval, None)
        return entry.approval

    async def _raise_used(self, approval: Approval, decision: Decision) -> Approval | Refusal:
        try:
            await self.audit.record_decision(approval, decision)
            entry = await self.store.create(replace(approval, status=Status.USED, decision=decision, params=None))
        except StoreError as refused:
            return _unavailable(refused)
        self._index.keep(entry)
        self._feed.tell(entry.approval)
        return entry.approval

    async def _decide(self, id: str, decision: Decision, redeem_until: float | None) -> Approval | Refusal:
        approval = self.get(id)
        if approval is None:
            return records.UNKNOWN
        move = Move.APPROVE if decision.what is What.APPROVED else Move.DENY
        if records.find_next_status(approval.status, move) is None:
            return records.refusal_of(approval)
        # Only the replica that raised these can carry them out.
        is_of_one_replica = approval.kind in _OF_ONE_REPLICA or approval.source is Source.DRIVERS
        if is_of_one_replica and self.is_elsewhere(id):
            return records.OF_ANOTHER_REPLICA
        changes: dict[str, Any] = {"decision": decision}
        if move is Move.APPROVE and approval.expires_at is not None:
            redeem_by = self.clock.wall() + self.rules.redeem_s
            changes["redeem_by"] = redeem_by if redeem_until is None else min(redeem_by, redeem_until)
        try:
            await self.audit.record_decision(approval, decision)
        except StoreError as refused:
            return _unavailable(refused)
        decided = await self._move(id, move, **changes)
        if isinstance(decided, Refusal):
            with contextlib.suppress(StoreError):  # the refusal stands either way
                await self.audit.record_decision(approval, decision, outcome=decided.message)
        return decided

    async def _mark_unsent(self, id: str, using: "asyncio.Task[Approval | Refusal]") -> Approval | Refusal:
        used = await using
        return used if isinstance(used, Refusal) else await self._move(id, Move.FAIL, outcome=_UNSENT)

    async def _move(self, id: str, move: Move, **changes: Any) -> Approval | Refusal:
        try:
            for _ in range(TRIES_MAX):
                entry = self._index.find_entry(id)
                if entry is None:
                    return records.UNKNOWN
                approval = entry.approval if move is Move.EXPIRE else self._index.current(entry)
                after = records.find_next_status(approval.status, move)
                if after is None:
                    return records.refusal_of(approval)
                params = approval.params if after in records.LIVE else None
                changed = replace(approval, status=after, params=params, **changes)
                try:
                    moved = await self.store.update(changed, entry.revision)
                except Conflict:
                    current = await self.store.find(id)
                    if current is None:
                        self._index.forget(id)
                    elif self._is_own(current):
                        self._index.keep(current)
                    else:
                        self._take(current)
                    continue
                self._index.keep(moved)
                self._tell(moved.approval, approval)
                return moved.approval
        except StoreError as refused:
            return _unavailable(refused)
        return _unavailable("others keep changing it")

    def _tell(self, approval: Approval, before: Approval | None) -> None:
        if before is None or approval.decision == before.decision:  # a decision is on record already
            self.audit.record_move(approval, self.clock.wall(), before)
        self._feed.tell(approval)

    def _find_limit_refusal(self, approval: Approval) -> Refusal | None:
        if self.waiting_count >= LIVE_MAX:
            return _too_many("max_pending_in_all", LIVE_MAX, self.waiting_count, None)
        if approval.kind is Kind.DEFINITION:  # one for each tool there is
            return None
        held = self._index.held_counts(approval.requested_by)
        taken_back = self._index.withdrawal_times(approval.requested_by)
        used = len(held) + len(taken_back)
        if used >= self.rules.max_pending:
            wait_ms = self._index.next_lapse_ms(held, taken_back)
            return _too_many("max_pending_confirmations", self.rules.max_pending, used, wait_ms)
        size = sum(held.values()) + len(approval.params or b"")
        if size > HELD_BYTES_MAX:
            return _too_many("max_pending_bytes", HELD_BYTES_MAX, size, self._index.next_lapse_ms(held))
        size = self._index.held_bytes + len(approval.params or b"")
        if size > HELD_BYTES_IN_ALL_MAX:
            return _too_many("max_pending_bytes_in_all", HELD_BYTES_IN_ALL_MAX, size, None)
        return None


def _too_many(budget: str, limit: int, used: int, retry_after_ms: int | None) -> Refusal:
    """Return the refusal of a caller that has too many waiting approvals (AX-11.3-4)."""
    exceeded = ExceededLimit(budget=budget, limit=limit, used=used, retry_after_ms=retry_after_ms)
    return budget_exceeded(exceeded, "caller")


def _unavailable(why: object) -> Refusal:
    log.error("an approval cannot be written: %s", why)
    return records.UNAVAILABLE_NOW


@dataclass(eq=False)
class Expiry:
    """The task that ends approvals whose time is over. It starts after all stored decisions have been applied."""

    inbox: Inbox
    replicas: Replicas
    _work: BackgroundTasks = field(default_factory=BackgroundTasks, init=False)

    async def open(self) -> None:
        self._work.begin(self.inbox.sweep_forever(), "approvals")
        if not self.replicas.is_alone:
            self._work.begin(self.inbox.end_lost_forever(), "approvals of lost replicas")

    async def close(self) -> None:
        await self._work.close()
