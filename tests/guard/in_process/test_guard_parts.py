"""What the guard and the budgets do with values that only other parts of a node give them."""

from pathlib import Path
from typing import Any, cast

import pytest
from tests.support.frozen_node import frozen_node, in_frozen_time
from tests.support.node_with_clock import AheadClock

from interlock.ax.protocol.budget import BudgetLimits
from interlock.core.calls.call import Call, CallHold, CallLink, Release
from interlock.core.calls.caller import Caller, Principal, view_key
from interlock.core.calls.check import HELD, Admitted, CheckRefusal
from interlock.core.link_state import LinkState, Standing
from interlock.guard.budgets import READING, Budgets
from interlock.mcp.methods import Era

ANY: Any = None


class WaitingHold(CallHold):
    """A hold whose person has not answered yet."""

    is_waiting = True
    is_asked_first = True

    async def find_release(self, call: Call) -> Release | CheckRefusal:
        raise AssertionError("nothing releases the call")


def call_of(budget: BudgetLimits | None = None, hold: CallHold | None = None) -> Call:
    who = Principal("client:x", budget=budget)
    caller = Caller(who, Era.MODERN, "test", view_key(who, only=None, names="auto", declares_extension=False))
    return Call(caller, b"1", "tools/call", {}, {}, ANY, 0.0, ANY, target="plant.look", price=READING, hold=hold)


def ready_link() -> CallLink:
    return CallLink("plant", cast(Any, None), Standing(LinkState.READY, None, 0.0))


@pytest.mark.parametrize("hold", [None, WaitingHold()])
@in_frozen_time
async def test_a_call_that_waits_for_a_person_is_held_even_on_a_route_without_checks(
    tmp_path: Path, hold: CallHold | None
) -> None:
    async with frozen_node(tmp_path) as node:
        verdict = node.node.calls.dispatch.guard.admit(call_of(hold=hold), ready_link())
    assert isinstance(verdict, Admitted) if hold is None else verdict is HELD


def test_a_caller_whose_limit_changes_keeps_what_it_used_and_has_the_new_limit() -> None:
    budgets, link = Budgets(BudgetLimits(), AheadClock()), ready_link()
    once, twice = BudgetLimits(max_calls_per_minute=1), BudgetLimits(max_calls_per_minute=2)
    refused = [budgets.charge(call_of(limits), link) is not None for limits in (once, once, twice, twice, once)]
    assert refused == [False, True, False, True, True]


def test_the_budget_of_a_parent_is_shown_for_its_tree_alone_and_until_it_ends() -> None:
    budgets = Budgets(BudgetLimits(), AheadClock())
    assert budgets.shown_received("default") is None
    budgets.receive("default", BudgetLimits(max_calls_per_minute=6))
    shown = budgets.shown_received("default")
    assert shown is not None
    assert {name: (spent.used, spent.limit) for name, spent in shown.items()} == {"max_calls_per_minute": (0, 6)}
    assert budgets.shown_received("other") is None
    budgets.receive("default", None)
    assert budgets.shown_received("default") is None
