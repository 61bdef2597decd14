"""Of two that have one subserver, is the first the one that keeps it, and only for as long as it has it?"""

import hashlib

import pytest

from interlock.ax.ownership import HELD_MAX, OWN, Holders, lease_of
from interlock.ax.protocol.messages import Claimed

pytestmark = pytest.mark.req("AX-13.4-2")

LEAF, OTHER = "00000000-0000-4000-8000-000000000001", "00000000-0000-4000-8000-000000000002"


def claimed(aggregator: str, session: str = "s", subserver_id: str = LEAF) -> Claimed:
    lease = lease_of(aggregator, session)
    return Claimed(subserver_id=subserver_id, aggregator_id=aggregator, session_hash=lease.session_hash)


def via(holders: Holders) -> str | None:
    held = holders.find(LEAF)
    return None if held is None else held.via


def test_the_first_to_claim_has_the_proposal_and_is_named_to_the_others() -> None:
    holders = Holders()
    assert holders.claim(claimed("a"), "1") is None
    assert holders.claim(claimed("b"), "2") == "a"
    assert holders.claim(claimed("b"), OWN) == "a"
    assert holders.all() == (claimed("a"),)
    assert via(holders) == "1"


def test_an_aggregator_may_claim_again_with_another_session_and_the_same_session_by_another_way() -> None:
    holders = Holders()
    holders.claim(claimed("a", "old"), "1")
    assert holders.claim(claimed("a", "new"), "1") is None
    assert holders.claim(claimed("a", "new"), "2") is None
    assert holders.all() == (claimed("a", "new"),)
    assert holders.release_all("1") == ()
    assert via(holders) == "2"


def test_a_registrant_that_only_uses_the_holders_name_gets_nothing() -> None:
    holders = Holders()
    holders.claim(claimed("a", "s"), "1")
    assert holders.claim(claimed("a", "made up"), "2") == "a"
    assert holders.claim(claimed("b", "s"), "2") == "a"
    assert via(holders) == "1"


def test_a_subserver_that_releases_its_session_may_move() -> None:
    holders = Holders()
    holders.claim(claimed("a", "there"), "1")
    assert holders.claim(claimed("b"), "2", "elsewhere") == "a"
    assert holders.claim(claimed("b"), "2", "there") is None
    assert not holders.release(LEAF, "1")  # the former holder finds out later, and takes nothing away
    assert holders.all() == (claimed("b"),)


def test_a_claim_goes_with_its_registration_and_only_by_those_who_made_it() -> None:
    holders = Holders()
    holders.claim(claimed("a", "s"), "1")
    holders.claim(claimed("a", "t", OTHER), "1")
    assert not holders.release(LEAF, "2")
    assert not holders.release(LEAF, "1", lease_of("a", "another").session_hash)
    assert holders.release(LEAF, "1", lease_of("a", "s").session_hash)
    assert holders.claim(claimed("b"), "2") is None
    assert holders.release_all("1") == (OTHER,)
    assert holders.release_all("1") == ()
    assert holders.all() == (claimed("b"),)


def test_one_registrant_cannot_fill_the_table() -> None:
    holders = Holders()
    for number in range(HELD_MAX - 1):
        digest = hashlib.md5(b"%d" % number, usedforsecurity=False).hexdigest()
        holders.claim(claimed("a", subserver_id=digest), "1")
    assert holders.has_room("1", 1)
    assert not holders.has_room("1", 2)
    assert holders.has_room("2", 1)
