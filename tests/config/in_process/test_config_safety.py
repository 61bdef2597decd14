"""[safety]: what may be written, what a variable sets, and what is refused at the start."""

import pytest
from tests.config.config_project import Project

from interlock.config.plan import AgentPlan, SafetyPlan


def test_without_a_word_about_it_the_loop_is_off(project: Project) -> None:
    assert project.load("").plan.safety == SafetyPlan()
    assert (SafetyPlan().mode, SafetyPlan().max_autonomous_steps, SafetyPlan().risk_tolerance) == (
        "disabled",
        25,
        "moderate",
    )


@pytest.mark.req("AQL-8.6.1-4")
@pytest.mark.parametrize("mode", ["disabled", "logging", "monitoring", "enforcing"])
def test_the_variable_of_the_specification_goes_first(project: Project, mode: str) -> None:
    project.env["MCPAQL_SAFETY_LOOP"] = mode
    assert project.load('[safety]\nmode = "logging"\n').plan.safety.mode == mode


@pytest.mark.req("AQL-8.7.4-1", "AQL-8.7.2-2", "AQL-8.7.2-13")
@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('mode = "strict"', "enforcing"),
        ("max_autonomous_steps = 0", "1 to"),
        ("max_autonomous_steps = 2.5", "integer"),
        ('risk_tolerance = "reckless"', "aggressive"),
        ('deny = ["a[b"]', "pattern"),
        ('requires_approval = [""]', "empty"),
        ('stages = ["limit"]', "outcome"),
        ("denies = []", "deny"),
        ("agents.a = { deni = [] }", "deny"),
        ('agents.a = { auto_approve = ["x[z-a]"] }', "pattern"),
        ("agents.a = { max_autonomous_steps = 0 }", "1 to"),
    ],
)
def test_an_invalid_value_is_refused(project: Project, text: str, said: str) -> None:
    assert said in str(project.problems(f"[safety]\n{text}\n"))


@pytest.mark.req("AQL-8.6.1-4")
def test_a_variable_with_another_word_stops_the_start(project: Project) -> None:
    project.env["MCPAQL_SAFETY_LOOP"] = "on"
    assert "MCPAQL_SAFETY_LOOP" in str(project.problems(""))


@pytest.mark.req("AQL-8.7.2-2")
def test_an_agent_has_its_own_keys(project: Project) -> None:
    plan = project.load("[safety]\nmax_autonomous_steps = 3\nagents.coder = { max_autonomous_steps = 5 }\n").plan.safety
    assert (plan.max_autonomous_steps, plan.agents) == (3, {"coder": AgentPlan(max_autonomous_steps=5)})
