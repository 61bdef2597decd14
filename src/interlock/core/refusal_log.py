"""Refused requests in the audit log: one entry per caller, reason and target, however often the request is repeated.

A refusal at an endpoint is a decision like any other and belongs into the audit log, but refused callers could fill the
disk with it. So the first refusal of a caller for a reason is written, the others of the same minute are counted and
written as one (of a caller that was recognised, by method); and no more than a few entries are written per second
altogether, with the number of refusals that have no entry. An admitted call touches nothing of this.
"""

from collections.abc import Callable
from typing import Final

import msgspec

from interlock.core.audit_record import AuditRecord
from interlock.core.clock import Clock

ENTRIES_PER_S: Final = 5  # a flood costs 100 MB a day at most
REPEATS_S: Final = 60.0  # how long refusals of one caller for one reason are one matter
CALLERS_MAX: Final = 1024  # callers and reasons kept apart at a time
ANY_PEER: Final = "peer:*"  # of refusals that are not written one by one


class RefusalPlace(msgspec.Struct, frozen=True):
    """Place where a recognised caller was refused: an existing room, and the caller's participant there."""

    room: str
    participant: str


# Who, reason, target; of a caller that was recognised also where, and the method, of which it has few.
_Key = tuple[str, str, str, RefusalPlace | None, str]


class _Repeats:
    """The repetitions of a refusal that is written already."""

    __slots__ = ("count", "method", "since", "via")

    def __init__(self, since: float, via: str, method: str) -> None:
        self.since = since
        self.via = via
        self.method = method
        self.count = 0  # after the first, which is written


class Refusals:
    """The refused requests of all endpoints, on their way to the audit log."""

    def __init__(self, add: Callable[[AuditRecord], None], clock: Clock) -> None:
        """Create an empty log; `add` appends a record to the audit log."""
        self.total = 0
        self._add = add
        self._clock = clock
        self._repeats: dict[_Key, _Repeats] = {}  # the oldest first
        self._left = ENTRIES_PER_S
        self._left_since = clock.now()
        self._unwritten = 0

    def note(
        self, who: str, via: str, method: str, reason: str, target: str = "", *, place: RefusalPlace | None = None
    ) -> None:
        """Record a refusal.

        `method` is one of HTTP or MCP-AX, `reason` is one of our own words and `target` is a segment, so that a
        stranger controls the length of none of them.
        """
        self.total += 1
        key = (who, reason, target, place, method if place is not None else "")
        repeats = self._repeats.get(key)
        if repeats is not None:
            repeats.count += 1
            return
        now = self._clock.now()
        if not self._may_write(now) or len(self._repeats) >= CALLERS_MAX:
            self._unwritten += 1
            return
        self._repeats[key] = _Repeats(now, via, method)
        self._write(who, via, method, reason, target, place)

    async def open(self) -> None:
        """Do nothing: there is nothing to start."""

    async def close(self) -> None:
        self.settle(closing=True)

    def settle(self, *, closing: bool = False) -> None:
        """Write the refusals that were only counted. This is called about once a second."""
        now = self._clock.now()
        if self._unwritten and (closing or self._may_write(now)):
            count, self._unwritten = self._unwritten, 0
            self._write(ANY_PEER, "http", "-", f"{count} refusals that are not written one by one")
        for key, repeats in list(self._repeats.items()):
            if not closing and now - repeats.since < REPEATS_S:
                break
            if repeats.count and not (closing or self._may_write(now)):
                break
            del self._repeats[key]
            if repeats.count:
                who, reason, target, place, _ = key
                self._write(who, repeats.via, repeats.method, f"{reason}, {repeats.count} times more", target, place)

    def _may_write(self, now: float) -> bool:
        if now - self._left_since >= 1.0:
            self._left, self._left_since = ENTRIES_PER_S, now
        return self._left > 0

    def _write(
        self, who: str, via: str, method: str, reason: str, target: str = "", place: RefusalPlace | None = None
    ) -> None:
        self._left -= 1
        at, details = self._clock.wall(), None if place is None else msgspec.structs.asdict(place)
        self._add(AuditRecord(at, who, via, method, target, None, "refused", "refused", 0.0, reason, details))
