"""Approvals in memory: by id, by what they are for, by whose they are, and when they lapse. It follows the disk.

Knows no moves: it is told how an approval now stands, and shows it as of this moment, whether or not the lapse of one
whose time is over has been written down already.
"""

import asyncio
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Final

from msgspec.structs import replace

from interlock.approvals.protocol.approval import Approval, Kind
from interlock.approvals.protocol.state import ENDS, LIVE, Status
from interlock.approvals.storage import ApprovalEntry
from interlock.core.clock import Clock

ENDED_MAX: Final = 2_000  # remembered, to answer late questions; a few kilobytes each
DEFINITIONS: Final = "\0definitions"  # whose they are; no principal is called so
_TOOL: Final = "\0tool:"

Key = tuple[str, str]


def key_of(approval: Approval) -> Key:
    """Two servers may define a tool alike, word for word; what is said of one of them holds for it alone."""
    if approval.kind in (Kind.DEFINITION, Kind.ENROLMENT, Kind.CONFIGURATION):
        return definition_key(approval.tool, approval.digest)
    return approval.requested_by, approval.digest


def definition_key(tool: str, digest: str) -> Key:
    return f"{_TOOL}{tool}", digest


class Index:
    def __init__(self, clock: Clock) -> None:
        self.lapsing = asyncio.Event()  # there is one that lapses by itself
        self.held_bytes = 0  # of all that is pending, but for definitions
        self._clock = clock
        self._entries: dict[str, ApprovalEntry] = {}
        self._dues: dict[str, float] = {}  # live ones that lapse, by the monotonic clock
        self._by_key: dict[Key, str] = {}
        self._pending: dict[str, dict[str, int]] = {}  # principal -> ids and the bytes they hold
        self._taken_back: dict[str, list[float]] = {}  # principal -> until when each counts as if it were pending
        self._ended: deque[str] = deque()

    # Looking

    def maybe_filed(self, id: str) -> ApprovalEntry | None:
        return self._entries.get(id)

    def all(self) -> Iterator[Approval]:
        return map(self.current, self._entries.values())

    def get(self, id: str) -> Approval | None:
        entry = self._entries.get(id)
        return None if entry is None else self.current(entry)

    def find(self, key: Key) -> Approval | None:
        """Pending, approved and not used, or denied and still to be told so."""
        id = self._by_key.get(key)
        approval = None if id is None else self.get(id)
        if approval is None or approval.status in LIVE:
            return approval
        is_told = approval.expires_at is None or self._clock.wall() < approval.expires_at
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
        """When those lapse that it raised and withdrew: asking people in a circle is asking too often."""
        now = self._clock.now()
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
        return max(0, round((min(dues) - self._clock.now()) * 1000)) if dues else None

    def _has_lapsed(self, entry: ApprovalEntry) -> bool:
        deadline = entry.approval.deadline
        if deadline is None:
            return False
        due = self._dues.get(entry.approval.id)
        return self._clock.wall() >= deadline or (due is not None and self._clock.now() >= due)

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
            self._dues[approval.id] = self._clock.now() + deadline - self._clock.wall()
            self.lapsing.set()
        self._place(approval)
        if approval.status in ENDS and (before is None or before.approval.status not in ENDS):
            self._ended.append(approval.id)

    def _place(self, approval: Approval) -> None:
        key = key_of(approval)
        standing = self.get(self._by_key.get(key, ""))
        if approval.status in LIVE:
            self._by_key[key] = approval.id
        elif approval.status is Status.DENIED:
            if standing is None or not standing.is_live:
                self._by_key[key] = approval.id
        elif standing is not None and standing.id == approval.id:
            del self._by_key[key]

    def hold(self, approval: Approval) -> None:
        """Counted from now on, also before it is on disk, so that many at once cannot overshoot."""
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
        """What ended so long ago that the store has given it up, and the oldest where they are very many."""
        for principal in list(self._taken_back):
            self.withdrawal_times(principal)
        wall = self._clock.wall()
        while self._ended:
            entry = self._entries.get(self._ended[0])
            if entry is not None and len(self._ended) <= ENDED_MAX and (entry.kept_until or wall + 1) > wall:
                return
            self.forget(self._ended.popleft())


def _whose(approval: Approval) -> str:
    return DEFINITIONS if approval.kind is Kind.DEFINITION else approval.requested_by
