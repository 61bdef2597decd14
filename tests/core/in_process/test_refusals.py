"""Those who are turned away at the door: is each on record, and can they fill the disk with it?"""

import json
import re
from typing import Any

import pytest

from interlock.core.audit_record import AuditRecord
from interlock.core.recorder import ANY_PEER, CALLERS_MAX, ENTRIES_PER_S, REPEATS_S, RefusalPlace, Refusals


class FakeClock:
    def __init__(self) -> None:
        self.seconds = 1000.0

    def now(self) -> float:
        return self.seconds

    def wall(self) -> float:
        return 1_700_000_000.0 + self.seconds


class Kept:
    def __init__(self) -> None:
        self.entries: list[AuditRecord] = []
        self.lines: list[Any] = []  # of those who were recognised

    def add(self, record: AuditRecord) -> None:
        self.entries.append(record)
        if record.details is not None:
            self.lines.append(json.loads(record.encode()))

    def said(self) -> list[tuple[str, str | None]]:
        return [(entry.who, entry.reason) for entry in self.entries]

    def refusals(self) -> int:
        """How many refusals the entries speak of."""
        return sum(int(found[0]) if (found := re.search(r"\d+", reason or "")) else 1 for _, reason in self.said())


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def kept() -> Kept:
    return Kept()


@pytest.fixture
def refusals(kept: Kept, clock: FakeClock) -> Refusals:
    return Refusals(kept.add, clock)


def test_a_refusal_is_written_at_once(refusals: Refusals, kept: Kept, clock: FakeClock) -> None:
    refusals.note("peer:192.0.2.1", "http", "POST", "unauthorised")
    at = clock.wall()
    assert kept.entries == [
        AuditRecord(at, "peer:192.0.2.1", "http", "POST", "", None, "refused", "refused", reason="unauthorised"),
    ]


def test_repeats_of_a_refusal_are_written_as_one_record_when_the_minute_is_over(
    refusals: Refusals, kept: Kept, clock: FakeClock
) -> None:
    for _ in range(100):
        refusals.note("peer:a", "http", "POST", "unauthorised")
    refusals.note("peer:a", "http", "POST", "bad_host")
    clock.seconds += REPEATS_S - 1
    refusals.settle()
    assert kept.said() == [("peer:a", "unauthorised"), ("peer:a", "bad_host")]
    clock.seconds += 1
    refusals.settle()
    assert kept.said()[2:] == [("peer:a", "unauthorised, 99 times more")]
    refusals.note("peer:a", "http", "POST", "unauthorised")
    assert kept.said()[3:] == [("peer:a", "unauthorised")]


def test_a_flood_of_strangers_writes_a_few_entries_a_second_and_their_number(
    refusals: Refusals, kept: Kept, clock: FakeClock
) -> None:
    seconds, each = 200, 300
    for second in range(seconds):
        for number in range(each):
            refusals.note(f"peer:{second}.{number}", "http", "POST", "unauthorised")
        clock.seconds += 1
        refusals.settle()
        assert len(kept.entries) <= ENTRIES_PER_S * (second + 2)
        assert len(refusals._repeats) <= CALLERS_MAX
    refusals.settle(closing=True)
    assert kept.refusals() == refusals.total == seconds * each
    assert {who for who, reason in kept.said() if "refusals that are not" in (reason or "")} == {ANY_PEER}


def test_a_flood_of_repeats_hides_no_stranger(refusals: Refusals, kept: Kept, clock: FakeClock) -> None:
    for _ in range(10):
        for _ in range(10_000):
            refusals.note("peer:loud", "http", "POST", "unauthorised")
        clock.seconds += 1
        refusals.settle()
    refusals.note("peer:quiet", "http", "POST", "unauthorised")
    assert kept.said()[-1] == ("peer:quiet", "unauthorised")


def test_nothing_that_was_counted_is_lost_at_the_end(refusals: Refusals, kept: Kept) -> None:
    for number in range(50):
        for _ in range(3):
            refusals.note(f"peer:{number}", "http", "POST", "unauthorised")
    refusals.settle(closing=True)
    assert kept.refusals() == refusals.total == 150


def test_recognised_callers_are_distinguished_by_place_and_method_and_counted_as_others(
    refusals: Refusals, kept: Kept, clock: FakeClock
) -> None:
    ann, bea = RefusalPlace("garden", "ann"), RefusalPlace("garden", 'b"ea')
    for method, place in [("GET", ann), ("POST", ann), ("GET", bea)] * 3:
        refusals.note("room:x", "rooms", method, "removed", "rooms.garden", place=place)
    assert [(one["method"], one["participant"]) for one in kept.lines] == [
        ("GET", "ann"),
        ("POST", "ann"),
        ("GET", 'b"ea'),
    ]
    assert {(one["who"], one["room"], one["tool"], one["reason"]) for one in kept.lines} == {
        ("room:x", "garden", "rooms.garden", "removed")
    }
    clock.seconds += REPEATS_S
    refusals.settle()
    assert [one["reason"] for one in kept.lines[3:]] == ["removed, 2 times more"] * 3
    assert kept.lines[4]["participant"] == "ann"


def test_a_quiet_second_writes_nothing(refusals: Refusals, kept: Kept, clock: FakeClock) -> None:
    refusals.note("peer:a", "http", "POST", "unauthorised")
    for _ in range(100):
        clock.seconds += 1
        refusals.settle()
    assert len(kept.entries) == 1
    assert refusals._repeats == {}
