"""The list of the guard's checks. A new check is a module in `checks` and a line in `admission_checks`.

`Guard` asks them in the order of their numbers (SURFACE 8), whatever the order here.
"""

from interlock.runtime.base.current_plan import CurrentPlan
from interlock.runtime.calls.budgets import Budgets
from interlock.runtime.calls.check import Check
from interlock.runtime.calls.guard import Guard
from interlock.runtime.catalog.routes import Route
from interlock.runtime.dispatch.checks.agent import AgentCheck
from interlock.runtime.dispatch.checks.arguments import ArgumentsCheck, OperationRefusal
from interlock.runtime.dispatch.checks.availability import AvailabilityCheck
from interlock.runtime.dispatch.checks.budget import BudgetCheck
from interlock.runtime.dispatch.checks.commit import CommitCheck
from interlock.runtime.dispatch.checks.gate import GateCheck
from interlock.runtime.dispatch.checks.route import RouteCheck
from interlock.runtime.dispatch.checks.send import SendCheck
from interlock.runtime.dispatch.checks.surface import SurfaceCheck
from interlock.runtime.gate.gate import Approvers, Gate


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
