"""Are budgets read right, and nonsense refused with the place of the mistake?"""

import pytest
from tests.config.config_project import Project

from interlock.ax.protocol.budget import LIMIT_MAX, BudgetLimits
from interlock.config.effective import effective
from interlock.config.plan import BudgetPlan, UnitsPlan

KEYS = ["max_calls_per_minute", "max_mutable_calls_per_session", "max_cost_units_per_session"]


def test_without_a_word_nothing_is_limited_and_units_are_as_the_draft_wants_them(project: Project) -> None:
    plan = project.load("").plan
    assert plan.budget == BudgetPlan(units=UnitsPlan(free=0, metered=1, expensive=10))
    assert plan.budget.limits.is_unlimited


def test_every_place_of_a_budget_is_read(project: Project) -> None:
    plan = project.load(
        """
        [budget]
        max_calls_per_minute = 60
        max_mutable_calls_per_session = 0
        units = { expensive = 50 }
        [[access]]
        who = ["client:ci"]
        budget = { max_cost_units_per_session = 100 }
        [[tool]]
        match = "mail.send"
        mutable = true
        cost_units = 7
        budget = { max_calls_per_minute = 1 }
        """
    ).plan
    assert plan.budget.limits == BudgetLimits(max_calls_per_minute=60, max_mutable_calls_per_session=0)
    assert plan.budget.units == UnitsPlan(free=0, metered=1, expensive=50)
    assert plan.access[0].budget == BudgetLimits(max_cost_units_per_session=100)
    (rule,) = plan.tools
    assert (rule.cost_units, rule.budget, rule.capability) == (
        7,
        BudgetLimits(max_calls_per_minute=1),
        {"mutable": True},
    )
    shown = effective(plan)
    assert shown["budget"]["max_calls_per_minute"] == 60
    assert shown["budget"]["units"] == {"free": 0, "metered": 1, "expensive": 50}
    assert shown["access"][0]["budget"]["max_cost_units_per_session"] == 100
    assert shown["tool"][0]["cost_units"] == 7


def test_the_environment_sets_a_limit(project: Project) -> None:
    assert project.load("", {"INTERLOCK_BUDGET__MAX_CALLS_PER_MINUTE": "9"}).plan.budget.max_calls_per_minute == 9


@pytest.mark.parametrize("value", ["-1", str(LIMIT_MAX + 1), "1.5", "nan", "inf", '"60"', "true", "[]", "{}"])
@pytest.mark.parametrize("key", KEYS)
def test_a_limit_that_is_no_whole_number_from_zero_up_is_refused_everywhere(
    project: Project, key: str, value: str
) -> None:
    for text in (
        f"[budget]\n{key} = {value}\n",
        f'[[access]]\nwho = ["*"]\nbudget = {{ {key} = {value} }}\n',
        f'[[tool]]\nmatch = "*"\nbudget = {{ {key} = {value} }}\n',
    ):
        problem = project.problem(text)
        assert key in f"{problem.key} {problem.message}"
        assert problem.line is not None


@pytest.mark.parametrize("value", ["-1", "0.5", "nan", '"1"', str(LIMIT_MAX + 1)])
def test_units_that_are_no_whole_number_are_refused(project: Project, value: str) -> None:
    assert project.problem(f"[budget]\nunits = {{ metered = {value} }}\n").line == 2
    assert project.problem(f'[[tool]]\nmatch = "*"\ncost_units = {value}\n').line == 3


def test_the_largest_limit_is_taken(project: Project) -> None:
    assert project.load(f"[budget]\nmax_calls_per_minute = {LIMIT_MAX}\n").plan.budget.max_calls_per_minute == LIMIT_MAX


def test_a_misspelt_limit_is_named_with_the_limit_that_was_meant(project: Project) -> None:
    problem = project.problem('[[access]]\nwho = ["*"]\nbudget = { max_calls_per_minutes = 5 }\n')
    assert "did you mean 'max_calls_per_minute'?" in (problem.hint or "")
    problem = project.problem("[budget]\nunits = { cheap = 1 }\n")
    assert "free, metered, expensive" in (problem.hint or "")


@pytest.mark.parametrize("value", ["60", '"60"', "[60]", "true"])
def test_a_budget_that_is_no_table_is_refused_with_an_example(project: Project, value: str) -> None:
    problem = project.problem(f'[[access]]\nwho = ["*"]\nbudget = {value}\n')
    assert problem.hint == "for instance budget = { max_calls_per_minute = 60 }"
