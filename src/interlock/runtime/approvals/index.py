"""Approvals in memory: by id, by what they are for, by whose they are, and when they lapse. It follows the disk.

Knows no moves: it is told how an approval now stands, and shows it as of this moment, whether or not the lapse of one
whose time is over has been written down already.
"""

import asyncio
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Final

from msgspec.structs import replace

from interlock.protocol.approvals.messages import Approval, Kind
from interlock.protocol.approvals.state import ENDS, LIVE, Status
from interlock.runtime.approvals.drawer import Filed
from interlock.runtime.clock import Clock

ENDED_MAX: Final = 10_000  # remembered, to answer late questions
DEFINITIONS: Final = "\0definitions"  # whose they are; no principal is called so
_TOOL: Final = "\0tool:"

Key = tuple[str, str]


def key_of(approval: Approval) -> Key:
    """Two servers may define a tool alike, word for word; what is said of one of them holds for it alone."""
    if approval.kind is Kind.DEFINITION:
        return definition_key(approval.tool, approval.digest)
    return approval.requested_by, approval.digest


def definition_key(tool: str, digest: str) -> Key:
    return f"{_TOOL}{tool}", digest


class Index:
    def __init__(self, clock: Clock) -> None:
        self.lapsing = asyncio.Event()  # there is one that lapses by itself
        self._clock = clock
        self._filed: dict[str, Filed] = {}
        self._dues: dict[str, float] = {}  # live ones that lapse, by the monotonic clock
        self._by_key: dict[Key, str] = {}
        self._pending: dict[str, dict[str, int]] = {}  # principal -> ids and the bytes they hold
        self._ended: deque[str] = deque()

    # Looking

    def filed(self, id: str) -> Filed | None:
        return self._filed.get(id)

    def all(self) -> Iterator[Approval]:
        return map(self.seen, self._filed.values())

    def get(self, id: str) -> Approval | None:
        filed = self._filed.get(id)
        return None if filed is None else self.seen(filed)

    def find(self, key: Key) -> Approval | None:
        """Pending, approved and not used, or denied and still to be told so."""
        id = self._by_key.get(key)
        approval = None if id is None else self.get(id)
        if approval is None or approval.status in LIVE:
            return approval
        is_told = approval.expires_at is None or self._clock.wall() < approval.expires_at
        return approval if approval.status is Status.DENIED and is_told else None

    def seen(self, filed: Filed) -> Approval:
        if self._has_lapsed(filed):
            return replace(filed.approval, status=Status.EXPIRED, params=None)
        return filed.approval

    def lapsed(self) -> list[str]:
        if not self._dues:
            self.lapsing.clear()
        return [id for id in self._dues if self._has_lapsed(self._filed[id])]

    def held_by(self, principal: str) -> dict[str, int]:
        return self._pending.get(principal, {})

    @property
    def pending_count(self) -> int:
        return sum(map(len, self._pending.values()))

    def next_lapse_ms(self, ids: Iterable[str]) -> int | None:
        dues = [due for id in ids if (due := self._dues.get(id)) is not None]
        return max(0, round((min(dues) - self._clock.now()) * 1000)) if dues else None

    def _has_lapsed(self, filed: Filed) -> bool:
        deadline = filed.approval.deadline
        if deadline is None:
            return False
        due = self._dues.get(filed.approval.id)
        return self._clock.wall() >= deadline or (due is not None and self._clock.now() >= due)

    # Following

    def keep(self, filed: Filed) -> None:
        approval = filed.approval
        before = self._filed.get(approval.id)
        self._filed[approval.id] = filed
        if approval.status is Status.PENDING:
            self.hold(approval)
        else:
            self.release(approval)
        deadline = approval.deadline
        if deadline is None:
            self._dues.pop(approval.id, None)
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
        self._pending.setdefault(_whose(approval), {})[approval.id] = len(approval.params or b"")

    def release(self, approval: Approval) -> None:
        held = self._pending.get(_whose(approval))
        if held is not None and held.pop(approval.id, None) is not None and not held:
            del self._pending[_whose(approval)]

    def forget(self, id: str) -> None:
        filed = self._filed.pop(id, None)
        if filed is None:
            return
        self._dues.pop(id, None)
        self.release(filed.approval)
        if self._by_key.get(key_of(filed.approval)) == id:
            del self._by_key[key_of(filed.approval)]

    def forget_old(self) -> None:
        """What ended so long ago that the store has given it up, and the oldest where they are very many."""
        wall = self._clock.wall()
        while self._ended:
            filed = self._filed.get(self._ended[0])
            if filed is not None and len(self._ended) <= ENDED_MAX and (filed.kept_until or wall + 1) > wall:
                return
            self.forget(self._ended.popleft())


def _whose(approval: Approval) -> str:
    return DEFINITIONS if approval.kind is Kind.DEFINITION else approval.requested_by
