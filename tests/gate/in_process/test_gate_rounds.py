"""What is remembered of calls that go on, and of demands from below: by whom, how often, how long, how many."""

import asyncio
from typing import Any, cast

import pytest

from interlock.gate import rounds
from interlock.gate.rounds import Relayed, Rounds


class Hand:
    def __init__(self) -> None:
        self.at = 0.0

    def now(self) -> float:
        return self.at

    def wall(self) -> float:
        return self.at


class _Link:
    def __init__(self, segment: str) -> None:
        self.segment = segment


class _Route:
    def __init__(self, segment: str) -> None:
        self.link = _Link(segment)


def relayed(segment: str = "low", principal: str = "a", digest: str = "d") -> Relayed:
    return Relayed(route=cast(Any, _Route(segment)), requester=principal, digest=digest)


def made() -> tuple[Rounds, Hand]:
    hand = Hand()
    return Rounds(hand, lambda approval_id: None), hand


async def test_a_call_goes_on_once_for_its_caller_and_with_the_state_that_was_asked_back() -> None:
    kept, hand = made()
    assert kept.allow_next_round("a", "d", "approval", b'"s"', 30)
    assert not kept.has_next_round("b", "d", b'"s"')
    assert not kept.has_next_round("a", "other", b'"s"')
    assert not kept.has_next_round("a", "d", b"")
    assert not kept.has_next_round("a", "d", b'"t"')
    assert kept.has_next_round("a", "d", b'"s"')
    hand.at = 30
    assert not kept.has_next_round("a", "d", b'"s"')
    taken = kept.take_next_round("a", "d")
    assert taken is not None
    assert taken.approval_id == "approval"
    assert kept.take_next_round("a", "d") is None


async def test_an_unclaimed_proposal_is_reported_and_a_claimed_proposal_is_not() -> None:
    lapsed: asyncio.Queue[str] = asyncio.Queue()
    kept = Rounds(Hand(), lapsed.put_nowait)
    kept.allow_next_round("a", "one", "taken", b"", 0.01)
    kept.take_next_round("a", "one")
    kept.allow_next_round("a", "two", "begun anew", b"", 0.01)
    kept.allow_next_round("a", "two", "in its place", b"", 60)
    kept.allow_next_round("a", "two", "in its place", b"", 60)
    assert lapsed.get_nowait() == "begun anew"
    kept.allow_next_round(
        "a", "three", "left", b"", 0.02
    )  # after the others: when this has lapsed, they have had their time
    async with asyncio.timeout(5):
        assert await lapsed.get() == "left"
    assert lapsed.empty()
    left = kept.take_next_round("a", "two")
    assert left is not None
    assert left.approval_id == "in its place"


async def test_a_call_goes_on_only_so_often() -> None:
    kept, _ = made()
    assert kept.allow_next_round("a", "d", "x", b'"s"', 60, number=rounds.ROUNDS_MAX)
    assert not kept.allow_next_round("a", "e", "x", b'"s"', 60, number=rounds.ROUNDS_MAX + 1)


def test_the_first_to_show_an_id_keeps_it() -> None:
    kept, _ = made()
    first = relayed()
    assert kept.remember_relayed("c1", first)
    assert not kept.remember_relayed("c1", relayed(segment="mallory"))
    assert kept.remember_relayed("c1", relayed(principal="b"))  # both wait for one definition
    assert kept.find_relayed("c1") is first
    again = relayed(digest="e")
    kept.remember_relayed("c1", again)
    assert kept.find_relayed("c1") is again


async def test_there_is_room_for_so_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rounds, "RELAYED_MAX", 3)
    monkeypatch.setattr(rounds, "OPEN_ROUNDS_MAX", 2)
    kept, _ = made()
    for number in range(3):
        kept.remember_relayed(f"c{number}", relayed())
    kept.remember_relayed("c0", relayed())  # asked for again: it is the newest now
    kept.remember_relayed("c3", relayed())
    assert [kept.find_relayed(f"c{number}") is not None for number in range(4)] == [True, False, True, True]
    assert kept.allow_next_round("a", "1", "x", b"", 60)
    assert kept.allow_next_round("a", "2", "x", b"", 60)
    assert not kept.allow_next_round("a", "3", "x", b"", 60)
