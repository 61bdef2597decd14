"""The list of the guard's checks. A new check is a module in `checks` and a line in `admission_checks`.

`Guard` asks them in the order of their numbers (SURFACE 8), whatever the order here.
"""

from interlock.catalog.routes import Route
from interlock.core.calls.check import Check
from interlock.core.current_plan import CurrentPlan
from interlock.gate.gate import Approvers, Gate
from interlock.guard.budgets import Budgets
from interlock.guard.checks.agent import AgentCheck
from interlock.guard.checks.arguments import ArgumentsCheck, OperationRefusal
from interlock.guard.checks.availability import AvailabilityCheck
from interlock.guard.checks.budget import BudgetCheck
from interlock.guard.checks.commit import CommitCheck
from interlock.guard.checks.gate import GateCheck
from interlock.guard.checks.route import RouteCheck
from interlock.guard.checks.send import SendCheck
from interlock.guard.checks.surface import SurfaceCheck
from interlock.guard.guard import Guard


def admission_checks(
    route_check: RouteCheck,
    availability: AvailabilityCheck,
    budgets: Budgets,
    gate: Gate,
    approvers: Approvers,
    current: CurrentPlan,
    operation_refusal: OperationRefusal,
) -> list[Check[Route]]:
    return [
        # 3, the operation of MCP-AQL, is asked by its surfaces; 5, the agent, is on the list while the loop is on.
        route_check,
        SurfaceCheck(),
        ArgumentsCheck(operation_refusal),
        availability,
        BudgetCheck(budgets),
        GateCheck(gate.inbox, approvers, lambda: current.plan.gate),
    ]


def make_guard(
    route_check: RouteCheck,
    availability: AvailabilityCheck,
    budgets: Budgets,
    gate: Gate,
    approvers: Approvers,
    current: CurrentPlan,
    agent: AgentCheck,
    operation_refusal: OperationRefusal = lambda call, route: None,
) -> Guard[Route]:
    """`current`: the configuration as it is now."""
    guard = Guard(
        admission_checks(route_check, availability, budgets, gate, approvers, current, operation_refusal),
        commit=CommitCheck(gate, budgets, agent),
        send=SendCheck(),
        budgets=budgets,
        calls_max=availability.calls_max,
    )
    guard.include(agent, is_included=current.plan.safety.mode != "disabled")
    return guard
