"""Budgets with plain numbers (MCP-AX 11.4)."""

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from interlock.ax.protocol.budget import (
    KEYS,
    SLICE_S,
    UNLIMITED,
    WINDOW_S,
    BudgetLimits,
    BudgetUsage,
    ExceededLimit,
    Price,
    budget_exceeded,
)
from interlock.wire.jsonrpc.codec import error_body

READ = Price()
WRITE = Price(mutable=True)


def spend(limits: BudgetLimits, usage: BudgetUsage, price: Price, now: float) -> ExceededLimit | None:
    over = limits.exceeded(usage, price, now)
    if over is None:
        usage.charge(price, now)
    return over


@pytest.mark.req("AX-11.4-1")
def test_the_fourth_call_within_a_minute_is_one_too_many_and_the_minute_slides() -> None:
    limits, usage = BudgetLimits(max_calls_per_minute=3), BudgetUsage()
    assert [spend(limits, usage, READ, now) for now in (0.0, 10.0, 20.0)] == [None, None, None]
    assert spend(limits, usage, READ, 59.5) == ExceededLimit(
        budget="max_calls_per_minute", limit=3, used=3, retry_after_ms=500
    )
    assert spend(limits, usage, READ, 60.0) is None
    assert spend(limits, usage, READ, 60.0) == ExceededLimit(
        budget="max_calls_per_minute", limit=3, used=3, retry_after_ms=10_000
    )
    assert spend(limits, usage, READ, 70.0) is None


@pytest.mark.req("AX-11.4-1")
def test_the_third_changing_call_is_refused_for_good_and_reading_goes_on() -> None:
    limits, usage = BudgetLimits(max_mutable_calls_per_session=2), BudgetUsage()
    assert spend(limits, usage, WRITE, 0.0) is spend(limits, usage, WRITE, 1.0) is None
    for now in (2.0, 1e9):
        assert spend(limits, usage, WRITE, now) == ExceededLimit(
            budget="max_mutable_calls_per_session", limit=2, used=2
        )
        assert spend(limits, usage, READ, now) is None


@pytest.mark.req("AX-11.4-1")
def test_a_call_that_would_exceed_the_units_is_refused_and_a_cheaper_call_is_not() -> None:
    limits, usage = BudgetLimits(max_cost_units_per_session=5), BudgetUsage()
    assert spend(limits, usage, Price(units=4), 0.0) is None
    assert spend(limits, usage, Price(units=2), 0.0) == ExceededLimit(
        budget="max_cost_units_per_session", limit=5, used=4
    )
    assert spend(limits, usage, Price(units=1), 0.0) is None
    assert spend(limits, usage, Price(units=1), 1e9) == ExceededLimit(
        budget="max_cost_units_per_session", limit=5, used=5
    )
    assert spend(limits, usage, READ, 1e9) is None


@pytest.mark.req("AX-11.4-3")
def test_of_two_limits_the_one_that_waiting_does_not_resolve_is_named() -> None:
    limits, usage = BudgetLimits(max_calls_per_minute=1, max_mutable_calls_per_session=1), BudgetUsage()
    spend(limits, usage, WRITE, 0.0)
    over = spend(limits, usage, WRITE, 0.0)
    assert over is not None
    assert (over.budget, over.retry_after_ms) == ("max_mutable_calls_per_session", None)


def test_a_limit_of_nothing_allows_nothing_and_promises_nothing() -> None:
    assert spend(BudgetLimits(max_calls_per_minute=0), BudgetUsage(), READ, 5.0) == ExceededLimit(
        budget="max_calls_per_minute", limit=0, used=0
    )
    assert spend(BudgetLimits(max_cost_units_per_session=0), BudgetUsage(), READ, 5.0) is None


@pytest.mark.req("AX-11.4-4")
def test_refunded_budget_can_be_used_again() -> None:
    limits = BudgetLimits(max_calls_per_minute=1, max_mutable_calls_per_session=1, max_cost_units_per_session=3)
    usage, price = BudgetUsage(), Price(mutable=True, units=3)
    taken = usage.charge(price, 0.0)
    assert limits.exceeded(usage, price, 1.0) is not None
    usage.refund(price, taken)
    assert limits.exceeded(usage, price, 1.0) is None
    assert (usage.calls(1.0), usage.mutable_calls, usage.cost_units) == (0, 0, 0)


@pytest.mark.req("AX-11.4-4")
def test_a_charge_that_has_left_the_minute_is_given_back_to_the_session_only() -> None:
    usage = BudgetUsage()
    taken = usage.charge(WRITE, 0.0)
    usage.charge(WRITE, 61.0)
    usage.refund(WRITE, taken)
    assert (usage.calls(61.0), usage.mutable_calls) == (1, 1)


@pytest.mark.req("AX-11.4-4")
def test_a_refund_is_not_subtracted_again_when_its_minute_ends() -> None:
    usage = BudgetUsage()
    usage.refund(READ, usage.charge(READ, 0.0))
    usage.charge(READ, 30.0)
    assert [usage.calls(now) for now in (30.0, 61.0, 91.0)] == [1, 1, 0]


@pytest.mark.req("AX-11.4-1")
def test_calls_of_one_slice_leave_with_its_last() -> None:
    usage = BudgetUsage()
    first = usage.charge(READ, 0.0)
    assert usage.charge(READ, SLICE_S / 2) is first
    assert usage.charge(READ, SLICE_S) is not first
    assert [usage.calls(now) for now in (WINDOW_S, WINDOW_S + SLICE_S / 2, WINDOW_S + SLICE_S)] == [3, 1, 0]


def test_usage_older_than_a_minute_is_dropped_without_being_read() -> None:
    usage = BudgetUsage()
    for number in range(1000):
        usage.charge(READ, number * 30.0)
    assert len(usage._slices) <= 3


@pytest.mark.req("AX-11.4-3")
def test_after_a_lower_limit_the_wait_is_until_enough_calls_have_left() -> None:
    usage = BudgetUsage()
    for now in (0.0, 10.0, 20.0):
        usage.charge(READ, now)
    over = BudgetLimits(max_calls_per_minute=1).exceeded(usage, READ, 30.0)
    assert over is not None
    assert (over.used, over.retry_after_ms) == (3, 50_000)


def test_a_flood_within_a_minute_is_counted_in_bounded_room() -> None:
    usage = BudgetUsage()
    calls = 50_000
    for number in range(calls):
        usage.charge(READ, number * WINDOW_S / calls)
    assert usage.calls(WINDOW_S - 1.0) == calls
    assert len(usage._slices) <= WINDOW_S / SLICE_S + 1


limits_of = st.builds(BudgetLimits, **{name: st.none() | st.integers(0, 9) for name in KEYS})


@pytest.mark.req("AX-11.4-5")
@given(limits_of, limits_of)
def test_a_budget_handed_down_is_within_both_budgets(own: BudgetLimits, given_: BudgetLimits) -> None:
    handed = own.within(given_)
    for name in KEYS:
        known = [limit for limit in (getattr(own, name), getattr(given_, name)) if limit is not None]
        assert getattr(handed, name) == min(known, default=None)
    assert handed == given_.within(own)


def test_limits_that_an_entry_leaves_out_have_the_usual_value() -> None:
    usual = BudgetLimits(max_calls_per_minute=60, max_mutable_calls_per_session=10)
    assert BudgetLimits(max_calls_per_minute=600).completed_by(usual) == BudgetLimits(
        max_calls_per_minute=600, max_mutable_calls_per_session=10
    )


@pytest.mark.req("AX-6.2-4")
def test_an_unlimited_budget_is_left_out() -> None:
    assert UNLIMITED.as_object() == {}
    assert UNLIMITED.is_unlimited
    assert BudgetLimits(max_cost_units_per_session=0).as_object() == {"max_cost_units_per_session": 0}
    assert not BudgetLimits(max_cost_units_per_session=0).is_unlimited


steps = st.lists(
    st.tuples(st.floats(0, 45), st.sampled_from([READ, WRITE, Price(units=1), Price(mutable=True, units=4)])),
    max_size=40,
)


@pytest.mark.req("AX-11.4-1")
@given(limits_of, steps)
def test_no_minute_and_no_session_ever_holds_more_than_its_limit(
    limits: BudgetLimits, wanted: list[tuple[float, Price]]
) -> None:
    usage, now = BudgetUsage(), 0.0
    taken: list[tuple[float, Price]] = []
    for pause, price in wanted:
        now += pause
        if spend(limits, usage, price, now) is None:
            taken.append((now, price))
    if limits.max_calls_per_minute is not None:
        times = [at for at, _ in taken]
        for first, last in itertools.combinations_with_replacement(range(len(times)), 2):
            if times[last] - times[first] < WINDOW_S - 1e-6:
                assert last - first + 1 <= limits.max_calls_per_minute
    if limits.max_mutable_calls_per_session is not None:
        assert sum(price.mutable for _, price in taken) <= limits.max_mutable_calls_per_session
    if limits.max_cost_units_per_session is not None:
        assert sum(price.units for _, price in taken) <= limits.max_cost_units_per_session


@pytest.mark.req("AX-11.4-3")
@given(st.integers(1, 5), st.lists(st.floats(0, 30), max_size=30))
def test_a_caller_that_waits_as_long_as_advised_is_let_through(limit: int, pauses: list[float]) -> None:
    limits, usage, now = BudgetLimits(max_calls_per_minute=limit), BudgetUsage(), 0.0
    for pause in pauses:
        now += pause
        over = spend(limits, usage, READ, now)
        if over is not None:
            assert over.retry_after_ms is not None
            assert 0 < over.retry_after_ms <= WINDOW_S * 1000 + 1
            assert limits.exceeded(usage, READ, now + over.retry_after_ms / 1000 + 1e-9) is None


@pytest.mark.req("AX-11.4-3")
def test_the_refusal_says_which_limit_how_much_and_whose() -> None:
    fault = budget_exceeded(
        ExceededLimit(budget="max_calls_per_minute", limit=3, used=3, retry_after_ms=250), "subserver"
    )
    said = {"budget": "max_calls_per_minute", "limit": 3, "used": 3, "retry_after_ms": 250, "scope": "subserver"}
    assert (fault.number, fault.message) == (32003, "budget_exceeded")
    assert fault.details == {**said, "mcpax_code": -32003}
    assert json.loads(error_body(fault, draft=True))["code"] == -32003
