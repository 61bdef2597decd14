"""One aggregator per subserver in a tree (MCP-AX 13.4): by the record in a store, or by asking the subserver."""

from typing import Any

import msgspec
import pytest

from interlock.ax.ownership import SubserverLease, check_lease, check_parent, lease_of, lease_s, may_renew
from interlock.ax.protocol.messages import Parent, Register
from interlock.wire.refusal import INVALID_PARAMS, Refusal

SUBSERVER, A, B = (f"00000000-0000-4000-8000-{number:012x}" for number in range(3))
AT_A = lease_of(A, "session at a")
AT_B = lease_of(B, "session at b")


def register(**changes: Any) -> Register:
    return Register(subserver_id=SUBSERVER, segment="leaf", **changes)


def split_brain(refusal: object, holder: str) -> None:
    assert isinstance(refusal, Refusal), refusal
    assert (refusal.number, refusal.message) == (32113, "split_brain")
    assert refusal.details is not None
    assert refusal.details["holder_aggregator_id"] == holder


def test_a_record_holds_no_session_id() -> None:
    assert b"session at a" not in msgspec.json.encode(AT_A)
    assert lease_of(A, "session at b") != AT_A


@pytest.mark.req("AX-13.4-2", "AX-13.4-3")
def test_a_lease_that_no_aggregator_holds_can_be_taken() -> None:
    assert check_lease(None, register(), AT_B) is None


@pytest.mark.req("AX-13.4-2", "AX-13.4-3")
def test_another_aggregators_registrant_is_refused_with_its_holder() -> None:
    split_brain(check_lease(AT_A, register(), AT_B), A)


@pytest.mark.req("AX-13.4-2", "AX-13.4-3")
def test_an_aggregator_takes_over_its_own_record() -> None:
    again = lease_of(A, "another session at a")
    assert check_lease(AT_A, register(), again) is None


@pytest.mark.req("AX-13.4-2", "AX-13.4-3")
def test_a_subserver_that_releases_its_session_moves_at_once_and_a_clone_does_not() -> None:
    assert check_lease(AT_A, register(released_session="session at a"), AT_B) is None
    for guess in ("", "session at b", AT_A.session_hash):
        split_brain(check_lease(AT_A, register(released_session=guess), AT_B), A)


def test_a_released_session_is_of_no_use_twice() -> None:
    assert check_lease(AT_A, register(released_session="session at a"), AT_B) is None
    split_brain(check_lease(AT_B, register(released_session="session at a"), lease_of(A, "later")), B)


@pytest.mark.req("AX-13.4-5")
def test_a_parent_that_was_only_slow_may_not_renew_a_lease_that_moved_on() -> None:
    assert may_renew(AT_A, AT_A)
    assert may_renew(None, AT_A)
    assert not may_renew(AT_B, AT_A)
    assert not may_renew(lease_of(A, "another session at a"), AT_A)


def test_a_broken_hash_in_the_store_matches_nothing() -> None:
    split_brain(check_lease(SubserverLease(aggregator_id=A, session_hash="é"), register(released_session="é"), AT_B), A)


@pytest.mark.req("AX-13.4-3")
@pytest.mark.parametrize(("interval", "seconds"), [(5000, 15.0), (100, 0.3), (0, 15.0)])
def test_a_lease_lasts_three_intervals(interval: int, seconds: float) -> None:
    assert lease_s(interval) == pytest.approx(seconds)


@pytest.mark.req("AX-13.4-4")
@pytest.mark.parametrize("parent_id", [None, B])
def test_no_parent_and_ourselves_pass(parent_id: str | None) -> None:
    answer = Parent(subserver_id=SUBSERVER, parent_id=parent_id)
    assert check_parent(register(), answer, B) is None
    assert check_parent(register(parent_id=parent_id), None, B) is None
    assert check_parent(register(), None, B) is None


@pytest.mark.req("AX-13.4-4", "AX-13.4-2")
def test_another_parent_is_refused_whether_asked_or_named() -> None:
    split_brain(check_parent(register(), Parent(subserver_id=SUBSERVER, parent_id=A), B), A)
    split_brain(check_parent(register(parent_id=A), None, B), A)


@pytest.mark.req("AX-13.4-4")
def test_an_answer_for_somebody_else_is_refused() -> None:
    refusal = check_parent(register(), Parent(subserver_id=A, parent_id=None), B)
    assert refusal is not None
    assert (refusal.code, refusal.details) == (INVALID_PARAMS, {"member": "subserver_id"})
