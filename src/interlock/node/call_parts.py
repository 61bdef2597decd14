"""The way of a call: the catalog that names tools, the dispatcher, the budgets, the gate and what decides about it."""

import msgspec

from interlock.approvals.decisions import DecisionService, DriverDecisions
from interlock.approvals.protocol.approval import Approval, Kind
from interlock.approvals.views import ApprovalViews
from interlock.aql.adapter import AqlAdapter
from interlock.aql.loop_operations import LoopOperations
from interlock.aql.native_operations import NativeOperations
from interlock.aql.operation_names import LiveOperationNames
from interlock.catalog.arguments_check import ArgumentsCheck
from interlock.catalog.catalog import Catalog, LiveNamespace
from interlock.catalog.route_check import RouteCheck
from interlock.catalog.routes import ChangedDefinition, Route
from interlock.config.plan import Plan
from interlock.core.feed import Feed
from interlock.dispatch.arrivals import Arrivals
from interlock.dispatch.client_tasks import AskedTasks
from interlock.dispatch.dispatch import Dispatch, DispatchParts
from interlock.dispatch.link_checks import AvailabilityCheck, SendCheck
from interlock.dispatch.task_updates import TaskNews
from interlock.fronts.audience import Audience
from interlock.gate.gate import Gate, GateParts
from interlock.gate.gate_check import CommitCheck, GateCheck
from interlock.gate.granted_calls import GrantedCalls
from interlock.gate.responses import ways_out
from interlock.guard.budgets import BudgetCheck, Budgets, is_limited
from interlock.guard.checks import GuardChecks
from interlock.guard.guard import Guard
from interlock.links.keeper import Keeper
from interlock.names.surface_check import NamesCheck
from interlock.node.approval_parts import ApprovalParts
from interlock.node.link_events import NodeLinkEvents
from interlock.node.store_parts import StoreParts
from interlock.rooms.proposals import ProposalTracker
from interlock.safety.agent_check import AgentCheck
from interlock.safety.agents import Blocks
from interlock.safety.audit import SafetyAudit
from interlock.safety.challenges import TOOL_PREFIX, Challenges
from interlock.safety.codes import Attempts
from interlock.safety.executions import Executions
from interlock.safety.grants import CallableNames
from interlock.safety.loop import SafetyLoop
from interlock.safety.verification import Verification
from interlock.safety.watch import Watch

# The execution safety loop of a node: its stores, the loop itself, and the watch over calls.

IDLE_S = 1800.0
KEEP_S = 86_400.0


class SafetyParts(msgspec.Struct, frozen=True, kw_only=True):
    challenges: Challenges
    loop: SafetyLoop
    attempts: Attempts
    verification: Verification
    watch: Watch


def make_safety_parts(
    plan: Plan,
    stores: StoreParts,
    approvals: ApprovalParts,
    live: LiveNamespace,
    names: LiveOperationNames,
) -> SafetyParts:
    kv, clock, codes = stores.store.kv, stores.clock, approvals.codes
    challenges = Challenges(approvals.inbox, codes, clock)
    loop = SafetyLoop(
        plan.safety,
        clock,
        blocks=Blocks(kv, clock),
        executions=Executions(stores.local.kv, clock, KEEP_S),
        challenges=challenges,
        names=CallableNames(live, names.find_name, names.lifted_names),
        audit=SafetyAudit(stores.recorder, clock),
        has_channel=lambda name: (
            (approvals.notifier.shows_codes and approvals.guard_changes.may_send_codes)
            or bool(approvals.anchors.approver_names(TOOL_PREFIX + name))
        ),
        idle_s=IDLE_S,
    )
    attempts = Attempts(kv, clock, is_progressive=plan.safety.progressive_lockout)
    return SafetyParts(
        challenges=challenges,
        loop=loop,
        attempts=attempts,
        verification=Verification(loop, codes, attempts, clock),
        watch=Watch(loop, clock),
    )


class CallParts(msgspec.Struct, frozen=True, kw_only=True):
    keepers: dict[str, Keeper]  # of every link, by segment
    audience: Audience
    catalog: Catalog
    budgets: Budgets
    dispatch: Dispatch
    gate: Gate
    deciding: DecisionService
    driver_decisions: DriverDecisions
    approvals: ApprovalViews
    client_tasks: AskedTasks
    task_updates: TaskNews
    safety: SafetyParts
    agent_check: AgentCheck
    link_events: NodeLinkEvents
    native_operations: NativeOperations
    operation_names: LiveOperationNames
    loop_operations: LoopOperations
    aql: AqlAdapter
    proposals: ProposalTracker


def make_call_parts(plan: Plan, stores: StoreParts, approvals: ApprovalParts) -> CallParts:
    clock, own_id = stores.clock, stores.identity.aggregator_id
    inbox, passkeys, definitions = approvals.inbox, approvals.passkeys, approvals.definitions
    keepers: dict[str, Keeper] = {}
    audience = Audience(keepers)
    live = LiveNamespace(plan.ax.root_segment)
    native = NativeOperations()
    operation_names = LiveOperationNames(stores.current, live, native)
    gate = Gate(
        GateParts(
            inbox=inbox,
            anchors=approvals.anchors,
            judge=approvals.judge,
            clock=clock,
            kv=stores.store.kv,
            aggregator_id=own_id,
            operator_url=passkeys.url,
            find_ruling=definitions.rulings.maybe,
            granted=GrantedCalls(approvals.grants, inbox, clock),
        )
    )
    budgets = Budgets(plan.budget.limits, clock, enforced=is_limited(plan))
    route_check = RouteCheck(live)
    availability = AvailabilityCheck(plan.limits.calls_in_flight, keepers)
    safety = make_safety_parts(plan, stores, approvals, live, operation_names)
    agent_check = AgentCheck(safety.watch)
    commit = CommitCheck(budgets, on_committed=agent_check.use)
    checks = GuardChecks[Route](
        route=route_check,
        agent=agent_check,
        names=NamesCheck(),
        arguments=ArgumentsCheck(operation_names.find_refusal),
        availability=availability,
        budget=BudgetCheck(budgets),
        gate=GateCheck(inbox, approvals.anchors, stores.current),
        commit=commit.check,
        explained_later=(commit, SendCheck()),
        is_agent_checked=plan.safety.mode != "disabled",
    )
    guard = Guard(checks, budgets=budgets, calls_max=plan.limits.calls_in_flight)
    safety.loop.changed.subscribe(lambda _: guard.watch(is_needed=safety.watch.is_needed))
    redefined = Feed[tuple[ChangedDefinition, ...]]()
    redefined.subscribe(gate.definitions_changed)
    catalog = Catalog(
        plan,
        audience.lists_changed,
        audience.metadata_changed,
        live=live,
        checks_for=guard.checks_for,
        rulings=definitions,
        redefined=redefined,
        surfaces=approvals.surfaces.checks,
    )

    def is_current(approval: Approval) -> bool:
        """Return whether a call would still run what was shown. A tool that is not listed now may come back
        unchanged.
        """
        is_call = approval.kind is Kind.CALL
        route = live.find_tool(approval.tool) if is_call else None
        return route is None or route.digest == approval.tool_digest

    def find_ways_out(approval: Approval) -> tuple[str, ...]:
        is_call = approval.kind is Kind.CALL
        route = live.find_tool(approval.tool) if is_call else None
        return () if route is None else ways_out(route, approval.id)

    driver_decisions = DriverDecisions()
    proposals = ProposalTracker(inbox, stores.recorder, clock, live.find_tool, stores.replicas)
    deciding = DecisionService(
        inbox,
        clock,
        own_id,
        judge=approvals.judge,
        rulings=definitions,
        drivers=driver_decisions,
        agents=safety.loop,
        enrolments=approvals.enrolments,
        configuration=approvals.guard_changes,
        names=approvals.names.decisions,
        proposals=proposals,
        code=approvals.codes.maybe_shown,
        is_current=is_current,
    )
    dispatch = Dispatch(
        DispatchParts(
            catalog=catalog,
            keepers=keepers,
            recorder=stores.recorder,
            clock=clock,
            guard=guard,
            route_check=route_check,
            availability=availability,
            budgets=budgets,
            gate=gate,
            decisions=deciding,
            arrivals=Arrivals(keepers, clock, plan.mcp.list_wait_s),
            latency_meta=plan.mcp.latency_meta,
        )
    )
    client_tasks = AskedTasks()
    loop_operations = LoopOperations(safety.loop, safety.verification, native)
    aql = AqlAdapter(catalog, operation_names, stores.recorder, clock, loop_operations, dispatch)
    operation_names.lifted.changed.subscribe(lambda _: safety.loop.names.forget())
    task_updates = TaskNews(dispatch.tasks, client_tasks)
    return CallParts(
        keepers=keepers,
        audience=audience,
        catalog=catalog,
        budgets=budgets,
        dispatch=dispatch,
        gate=gate,
        deciding=deciding,
        driver_decisions=driver_decisions,
        approvals=ApprovalViews(
            inbox,
            deciding,
            clock,
            aggregator_id=own_id,
            url=passkeys.url,
            passkeys=passkeys,
            keys=approvals.operator_keys,
            approver_names=approvals.anchors.approver_names,
            ways_out=find_ways_out,
        ),
        client_tasks=client_tasks,
        task_updates=task_updates,
        safety=safety,
        agent_check=agent_check,
        link_events=NodeLinkEvents(
            catalog,
            audience,
            budgets,
            dispatch.tasks,
            task_updates,
            stores.recorder,
            clock,
            keeps_degraded=plan.degraded.enabled,
            on_ready=aql.look_below,
        ),
        native_operations=native,
        operation_names=operation_names,
        loop_operations=loop_operations,
        aql=aql,
        proposals=proposals,
    )
