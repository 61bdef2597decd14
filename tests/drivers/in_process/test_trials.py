"""Are trials of servers kept for a bounded time, in a bounded number, and only for those who asked for them?"""

from typing import Any

import pytest
from tests.support.frozen_node import advance_time, in_frozen_time

from interlock.drivers.operations import TRIAL_KEPT_S, TRIALS_MAX, KeptTrial, Trials
from interlock.wire.refusal import Refused

NOTHING: Any = None


def kept(trials: Trials, by: str = "local") -> str:
    return trials.keep(KeptTrial(adder=NOTHING, tried=NOTHING, by=by))


def refusal(trials: Trials, id: str, by: str = "local") -> str | None:
    try:
        trials.get(id, by)
    except Refused as refused:
        return refused.code
    return None


@in_frozen_time
async def test_a_trial_ends_after_its_time() -> None:
    trials = Trials()
    id = kept(trials)
    await advance_time(TRIAL_KEPT_S - 1)
    assert refusal(trials, id) is None
    await advance_time(1)
    assert refusal(trials, id) == "unknown_trial"
    assert trials == Trials()


@in_frozen_time
async def test_the_oldest_trial_ends_if_there_are_too_many() -> None:
    trials = Trials()
    oldest, *others = [kept(trials) for _ in range(TRIALS_MAX + 1)]
    assert refusal(trials, oldest) == "unknown_trial"
    assert {refusal(trials, id) for id in others} == {None}


@in_frozen_time
async def test_a_trial_is_refused_to_others_like_one_that_does_not_exist() -> None:
    trials = Trials()
    id = kept(trials, "operator:ada")
    assert refusal(trials, id, "operator:ada") is None
    with pytest.raises(Refused) as of_another:
        trials.get(id, "operator:eve")
    with pytest.raises(Refused) as unknown:
        trials.get("none", "operator:eve")
    assert str(of_another.value) == str(unknown.value)
