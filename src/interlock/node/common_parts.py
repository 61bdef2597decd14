"""Construction of the common parts of a node, in the order in which each needs those before it.

A node has five groups of common parts: its stores, what people decide, the way of a call, links to configured servers,
and the fronts that clients connect to. Each group is a class whose constructor builds the parts from top to bottom and
keeps those that others use as attributes. A constructor gets the groups before its own and never names a part that
does not exist yet; a test enforces this. Where an earlier part must learn of something later, it publishes a feed that
the later part subscribes to.

Constructing opens no store and no connection, and sends nothing. It reads the node's identity, which it writes at the
first start, and files of certificates. `node.Node` opens the parts in their order. What only one capability needs is
constructed by the capability itself (`capability_parts`).
"""

import contextlib
import os
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from interlock.access.tokens import TokenRegistry
from interlock.approvals.audit import ApprovalAudit
from interlock.approvals.decisions import DecisionService
from interlock.approvals.enrolments import Enrolments, KeyRevocation, find_enrolled_prints
from interlock.approvals.guard_changes import GuardChanges, find_plan_in_effect
from interlock.approvals.guarded_starts import GuardedStart, StartConflict, find_conflict, remember_start, start_of
from interlock.approvals.inbox import ApprovalStore, Expiry, Inbox
from interlock.approvals.notifier import Notifier, make_channels
from interlock.approvals.operations.inbox import InboxOperations
from interlock.approvals.protocol.approval import Approval, Kind, Source
from interlock.approvals.secret_bindings import SecretBindings
from interlock.approvals.standing_grants import StandingGrants
from interlock.approvals.tool_definitions import Definitions
from interlock.approvals.trust.anchors import Anchors
from interlock.approvals.trust.approval_proofs import ProofVerifier
from interlock.approvals.trust.operator_keys import OperatorKeyService
from interlock.approvals.trust.passkeys import PasskeyService
from interlock.aql.adapter import AqlAdapter, LoopAdapter
from interlock.aql.loop_operations import LoopOperations
from interlock.aql.operation_index import LiveOperationNames, NativeOperations
from interlock.aql.protocol.families import Mode
from interlock.aql.surface import AqlSurface
from interlock.catalog.catalog import Catalog, LiveNamespace
from interlock.catalog.checks import ArgumentsCheck, RouteCheck
from interlock.catalog.routes import Route
from interlock.config.folders import config_folder
from interlock.config.load import Loaded
from interlock.config.plan import Plan, ServerPlan, Spawn
from interlock.core.calls.caller import Caller, ViewKey
from interlock.core.clock import Clock
from interlock.core.current_plan import Addresses, CurrentPlan
from interlock.core.feed import AsyncFeed, Feed
from interlock.core.metrics import Metrics
from interlock.core.node_identity import adopt_identity, own_identity
from interlock.core.part import CannotStart, opened
from interlock.core.recorder import Recorder, Refusals, Retention
from interlock.core.replicas import Changes, Replicas
from interlock.core.store_backends import build_audit, build_store
from interlock.credentials.protocol.resource import resource_of
from interlock.credentials.service import CredentialService
from interlock.credentials.shared_store import build_names_log, build_shared_store, find_tree_store
from interlock.dispatch.absent_tools import AbsentTools
from interlock.dispatch.availability import Arrivals, AvailabilityCheck, SendCheck
from interlock.dispatch.dispatch import ClientNotifications, Dispatch
from interlock.dispatch.task_methods import AskedTasks, TaskMethods, TaskNews
from interlock.fronts.audience import Audience
from interlock.fronts.legacy import LegacyFront
from interlock.fronts.lists import ListCache
from interlock.fronts.modern import ModernFront
from interlock.fronts.public import PublicEndpoint
from interlock.fronts.sessions import GRACEFUL, ClientSession, Sessions
from interlock.fronts.stdio import LineFronts
from interlock.fronts.surfaces import FrontPair, ServedSurface, SurfaceChooser
from interlock.gate.gate import CommitCheck, Gate, GateCheck
from interlock.gate.responses import ways_out
from interlock.guard.budgets import BudgetCheck, Budgets, is_limited
from interlock.guard.checks import GuardChecks
from interlock.guard.guard import Guard
from interlock.links.connected_link import ConnectedLink
from interlock.links.connector import ConnectorParts, EraMemory, ProcessLimit
from interlock.links.keeper import Keeper
from interlock.links.own_links import AskingMemory
from interlock.names.registry_parts import make_name_parts
from interlock.names.surface_check import NamesCheck, make_surface_checks
from interlock.node.server_links import NodeLinkEvents, Servers
from interlock.process.orphan_reaper import OrphanReaper
from interlock.process.packages.package_store import package_folders
from interlock.process.sandbox.sandbox import Sandboxes, outer_rules, private_paths
from interlock.rooms.proposals import ProposalTracker
from interlock.safety.agents import Blocks, Policies, StepCounts
from interlock.safety.challenges import TOOL_PREFIX, Challenges
from interlock.safety.codes import Attempts, Codes
from interlock.safety.executions import CallableNames, Executions
from interlock.safety.loop import SafetyLoop
from interlock.safety.verification import Verification
from interlock.safety.watch import AgentCheck
from interlock.store.ports import Store
from interlock.store.tokens import TokenTable

if TYPE_CHECKING:
    from interlock.access.oauth import AccessTokens
    from interlock.approvals.trust.client_certificates import Certificates


# What the node remembers


class StoreParts:
    """The parts of a node that remember: its stores, its identity, and the plan in effect."""

    def __init__(self, plan: Plan, clock: Clock) -> None:
        """Construct the stores, and read or make the node's identity. Raise StoreError if that fails."""
        # Shared with the other replicas of this node, if there are any.
        self.store = store = build_shared_store(plan, plan.data, clock)
        # For what is about this machine only. The same store unless replicas share it.
        self.local = store if store.replication is None else build_store("sqlite", plan.data)
        self.replicas = replicas = Replicas(store, clock)
        self.audit = audit = build_audit(plan.store.backend, plan.data)
        self.recorder = recorder = Recorder(audit)
        self.current = CurrentPlan(plan)
        self.addresses = Addresses(plan.node)
        self.clock = clock
        self.metrics = Metrics()
        self.identity = own_identity(plan.data)
        self.changes = Changes(replicas)
        # In which the aggregators of one tree agree on who has which subserver (MCP-AX 13.4).
        self.shared = find_tree_store(plan, clock)
        self.names_log = build_names_log(plan, plan.data, clock)
        self.refusals = Refusals(recorder.add, clock)
        self.retention = Retention(audit, recorder, clock, plan.store.audit_days)
        self.tokens = TokenRegistry(TokenTable(store.kv), clock, plan.access, plan.auth.token_days)


async def prepare_stores(loaded: Loaded, clock: Clock) -> Plan:
    """Return the plan with which a node starts: the written plan without the looser values that no one signed. If
    replicas share a store, also copy the node's identity from there.

    Call this before the node is constructed, because most parts get both in their constructor. Raise CannotStart if the
    configuration belongs to another node, and StoreError if a store cannot be used.
    """
    plan, now = loaded.plan, clock.wall()
    conflict = await _find_foreign_store(loaded, now)
    if conflict is None:
        async with opened_stores(plan, clock) as (store, local):
            start = await _describe_start(plan, store, local, now)
            conflict = await find_conflict(plan, start, loaded.guarded, local.kv, now)
            if conflict is None:
                if start.keys:
                    await remember_start(start, loaded.guarded, local.kv, now)
                return await find_plan_in_effect(plan, store.kv, local.kv, now)
    raise CannotStart(conflict.message)


async def find_start_conflict(loaded: Loaded, clock: Clock) -> StartConflict | None:
    """Return how the node that would start differs from the node to which the configuration belongs. Return None if
    they are the same node. Raise StoreError if a store cannot be used.
    """
    plan, now = loaded.plan, clock.wall()
    conflict = await _find_foreign_store(loaded, now)
    if conflict is not None:
        return conflict
    async with opened_stores(plan, clock) as (store, local):
        start = await _describe_start(plan, store, local, now)
        return await find_conflict(plan, start, loaded.guarded, local.kv, now)


async def _find_foreign_store(loaded: Loaded, now: float) -> StartConflict | None:
    """Return a conflict if the configuration names NATS servers that no one has signed. The node does not even connect
    to such servers.
    """
    if loaded.plan.store.backend == "sqlite":
        return None
    own = build_store("sqlite", loaded.plan.data)
    async with opened(own):
        return await find_conflict(loaded.plan, None, loaded.guarded, own.kv, now)


async def _describe_start(plan: Plan, store: Store, local: Store, now: float) -> GuardedStart:
    """Return a record of the node that would start with these opened stores: which node it is, and the keys of its
    approvers. If replicas share a store, copy the node's identity from there. Raise StoreError if a store cannot be
    used.
    """
    if local is not store:
        await adopt_identity(plan.data, store.kv, now)
    return start_of(plan, await find_enrolled_prints(store.kv, now))


@contextlib.asynccontextmanager
async def opened_stores(plan: Plan, clock: Clock) -> AsyncIterator[tuple[Store, Store]]:
    """Open the store of the node and the store of this machine. Both are the same store unless replicas share the first
    one.
    """
    store = build_shared_store(plan, plan.data, clock)
    local = store if store.replication is None else build_store("sqlite", plan.data)
    try:
        await store.open()
        if local is not store:
            await local.open()
        yield store, local
    finally:
        await store.close()
        if local is not store:
            await local.close()


# What people decide


class ApprovalParts:
    """The parts of a node for decisions of people: the inbox, the keys of approvers, and decisions about tools and
    names.
    """

    def __init__(self, plan: Plan, stores: StoreParts, written: Plan) -> None:
        """Construct the inbox and all parts that handle approvals without examining a call. `written` is the plan as
        the files have it, which may loosen the guard in ways that are not in effect.
        """
        kv, clock, recorder, addresses = stores.store.kv, stores.clock, stores.recorder, stores.addresses
        self.anchors = anchors = Anchors(plan.anchors, clock)
        self.passkeys = passkeys = PasskeyService(anchors, recorder, clock, lambda: addresses.operator)
        self.judge = judge = ProofVerifier(kv, clock, anchors, passkeys.find_relying_party)
        replicas = stores.replicas
        own_id = None if replicas.is_alone else replicas.own_id
        self.inbox = inbox = Inbox(
            ApprovalStore(kv, clock, own_id), ApprovalAudit(recorder), clock, plan.approvals, replicas
        )
        self.grants = grants = StandingGrants(kv, clock, judge, recorder, aggregator_id=stores.identity.aggregator_id)
        # Publishes the segment of a server when an operator classified one of its tools.
        self.ruled = ruled = AsyncFeed[str]()
        self.codes = codes = Codes(kv, clock)
        self.enrolments = enrolments = Enrolments(kv, inbox, anchors, recorder, clock)
        self.guard_changes = guard_changes = GuardChanges(written, stores.local.kv, inbox, enrolments, recorder, clock)
        self.secret_bindings = SecretBindings(stores.local.kv, clock, lambda: guard_changes.written)
        self.secret_bindings.changed.subscribe(guard_changes.signed.publish)

        self.definitions = definitions = Definitions(kv, inbox, clock, ruled)
        self.names = names = make_name_parts(
            stores.names_log, kv, inbox, anchors, recorder, clock, lambda: stores.current.plan.registry.self_review
        )
        self.surfaces = make_surface_checks(
            names.state, inbox, definitions.rulings, kv, clock, lambda: stores.current.plan
        )
        channels = make_channels(plan.approvals, clock)
        self.operator_keys = OperatorKeyService(config_folder(os.environ) / "keys", anchors, clock)
        self.revocation = KeyRevocation(inbox, grants, judge, recorder, clock)
        self.expiry = Expiry(inbox, replicas)
        self.notifier = Notifier(
            inbox,
            channels,
            url=passkeys.url,
            node=plan.node.name,
            # A verification code leaves this machine only over channels that an approver has signed for.
            code=lambda id: codes.find_code(id) if guard_changes.may_send_codes else None,
        )


# The way of a call


class SafetyParts:
    """The parts of a node for the execution safety loop (MCP-AQL 8.6 to 8.8): its records, the loop, and the check of
    agents.
    """

    def __init__(
        self, plan: Plan, stores: StoreParts, approvals: ApprovalParts, live: LiveNamespace, names: LiveOperationNames
    ) -> None:
        """Construct the safety loop. `live` and `names` contain the tools and operations that agents can call."""
        kv, clock, codes = stores.store.kv, stores.clock, approvals.codes
        self.challenges = challenges = Challenges(approvals.inbox, codes, clock)
        self.loop = loop = SafetyLoop(
            policies=Policies(plan.safety),
            clock=clock,
            blocks=Blocks(kv, clock),
            step_counts=StepCounts(kv, clock, plan.aql.execution_keep_s),
            executions=Executions(stores.local.kv, clock, plan.aql.execution_keep_s),
            challenges=challenges,
            names=CallableNames(live, names.find_name, names.lifted_names),
            recorder=stores.recorder,
            has_channel=lambda name: (
                (bool(approvals.notifier.channels) and approvals.guard_changes.may_send_codes)
                or bool(approvals.anchors.approver_names(TOOL_PREFIX + name))
            ),
            idle_s=plan.aql.execution_idle_s,
        )
        self.attempts = attempts = Attempts(kv, clock, is_progressive=plan.safety.progressive_lockout)
        self.verification = Verification(loop, codes, attempts, clock)
        self.watch = AgentCheck(loop, clock)


class CallParts:
    """The parts of a node that a call passes on its way from a client to a server: catalog, guard, gate and dispatch.

    The guard has the checks of all capabilities. When a tool is listed, the catalog asks the guard which checks apply
    to it, so that a call passes only checks that could refuse or hold it.
    """

    def __init__(self, plan: Plan, stores: StoreParts, approvals: ApprovalParts) -> None:
        """Construct the checks of the guard, then the catalog, then the dispatcher."""
        clock, own_id = stores.clock, stores.identity.aggregator_id
        inbox, passkeys, definitions = approvals.inbox, approvals.passkeys, approvals.definitions
        keepers: dict[str, Keeper] = {}
        self.audience = audience = Audience(keepers)
        live = LiveNamespace(plan.ax.root_segment)
        native = NativeOperations()  # operations that the node serves itself; capabilities add theirs
        self.operation_names = operation_names = LiveOperationNames(stores.current, live, native)
        self.gate = gate = Gate(
            inbox=inbox,
            anchors=approvals.anchors,
            judge=approvals.judge,
            clock=clock,
            kv=stores.store.kv,
            aggregator_id=own_id,
            operator_url=passkeys.url,
            find_ruling=definitions.rulings.find,
            grants=approvals.grants,
        )
        self.budgets = budgets = Budgets(plan.budget.limits, clock, is_enforced=is_limited(plan))
        route_check = RouteCheck(live)
        availability = AvailabilityCheck(plan.limits.calls_in_flight, keepers)
        self.safety = safety = SafetyParts(plan, stores, approvals, live, operation_names)
        commit = CommitCheck(budgets, on_committed=safety.watch.use)
        checks = GuardChecks[Route](
            route=route_check,
            agent=safety.watch,
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
        # The check of agents costs something on every call, so it is on only while an execution is watched.
        safety.loop.changed.subscribe(lambda _: guard.watch(is_needed=safety.watch.is_needed))
        # A tool whose definition changed ends the approvals of its old definition.
        redefined = Feed[Mapping[str, str]]()
        redefined.subscribe(gate.definitions_changed)
        self.catalog = catalog = Catalog(
            plan,
            audience.lists_changed,
            audience.metadata_changed,
            live=live,
            checks_for=guard.checks_for,
            rulings=definitions,
            redefined=redefined,
            surfaces=approvals.surfaces,
        )

        def find_route(approval: Approval) -> Route | None:
            return live.find_tool(approval.tool) if approval.kind is Kind.CALL else None

        def is_current(approval: Approval) -> bool:
            """Return whether the tool still has the definition that the approving person saw.

            A tool that is not listed now may return unchanged, so it counts as current.
            """
            route = find_route(approval)
            return route is None or route.offered_digest == approval.tool_digest

        def find_ways_out(approval: Approval) -> tuple[str, ...]:
            """Return the commands or settings with which an operator can make sure that calls like this one are no
            longer held.
            """
            route = find_route(approval)
            return () if route is None else ways_out(route, approval.id)

        self.proposals = proposals = ProposalTracker(inbox, stores.recorder, clock, live.find_tool, stores.replicas)
        self.deciding = deciding = DecisionService(
            inbox,
            clock,
            own_id,
            judge=approvals.judge,
            receivers={
                Kind.DEFINITION: definitions,
                Kind.ENROLMENT: approvals.enrolments,
                Kind.CONFIGURATION: approvals.guard_changes,
                Kind.REQUEST: approvals.names.decisions,
                Kind.PROPOSAL: proposals,
                Source.AQL: safety.loop,
            },
            judge_setup_code=approvals.enrolments.judge_code,
            code=approvals.codes.find_code,
            is_call_current=is_current,
        )
        self.dispatch = dispatch = Dispatch(
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
            absent_tools=AbsentTools(keepers),
            latency_meta=plan.mcp.latency_meta,
        )
        self.client_tasks = client_tasks = AskedTasks()
        self.loop_operations = loop_operations = LoopOperations(safety.loop, safety.verification, native)
        self.aql = aql = AqlAdapter(catalog, operation_names, stores.recorder, clock, loop_operations, dispatch)
        operation_names.lifted.changed.subscribe(lambda _: safety.loop.names.forget())
        self.task_updates = task_updates = TaskNews(dispatch.tasks, client_tasks)
        self.keepers = keepers
        self.approvals = InboxOperations(
            inbox,
            deciding,
            clock,
            approvals.anchors,
            passkeys,
            approvals.operator_keys,
            aggregator_id=own_id,
            ways_out=find_ways_out,
        )
        self.link_events = NodeLinkEvents(
            catalog=catalog,
            audience=audience,
            budgets=budgets,
            task_table=dispatch.tasks,
            task_events=task_updates,
            recorder=stores.recorder,
            clock=clock,
            keeps_degraded=plan.degraded.enabled,
            on_ready=aql.look_below,
        )
        self.native_operations = native


# Links to servers


def _started_programs(plan: Plan, keepers: Mapping[str, Keeper]) -> list[ServerPlan]:
    """Return every program that the node starts: servers, children, drivers and the command that notifies operators.

    No sandbox may write the program of another one of them.
    """
    links = (keeper.link for keeper in keepers.values())
    commands = {child.segment: child.command for child in plan.ax.children}
    if plan.approvals.command:
        commands["approvals"] = plan.approvals.command
    started = {segment: Spawn(command=command, cwd=plan.workspace) for segment, command in commands.items()}
    started |= {
        link.segment: link.reach for link in links if isinstance(link, ConnectedLink) and isinstance(link.reach, Spawn)
    }
    return [*plan.servers, *(ServerPlan(segment=segment, reach=reach) for segment, reach in started.items())]


class LinkParts:
    """The parts of a node for links: the links to configured servers, and the objects that every new connection to a
    server needs.
    """

    def __init__(
        self, plan: Plan, files: tuple[Path, ...], stores: StoreParts, approvals: ApprovalParts, calls: CallParts
    ) -> None:
        """Construct the links. `files` are the files of the configuration, which no sandboxed server may write."""
        clock = stores.clock
        self.credentials = credentials = CredentialService(
            plan.data, clock, plan.node.name, stores.addresses, stores.current, stores.recorder.add_line
        )
        self.reaper = reaper = OrphanReaper()
        eras, asking = EraMemory(stores.local.kv, clock), AskingMemory(stores.local.kv, clock)
        self.connector_parts = connector_parts = ConnectorParts(
            packages=package_folders(plan),
            may_build_sources=lambda: stores.current.plan.drivers.allow_unverified_install,
            message_bytes=plan.limits.message_bytes,
            reaper=reaper,
            eras=eras,
            clock=clock,
            revealer=credentials.revealer,
            process_limit=ProcessLimit(lambda: stores.current.plan.limits.own_processes),
            sandboxes=Sandboxes(
                state=plan.data,
                packages=package_folders(plan).store,
                workspace=plan.workspace,
                user_home=Path.home(),
                clock=clock,
                record=stores.recorder.add,
                rules=(*outer_rules(plan.drivers), *files),
                private=private_paths(plan, files),
                limits=lambda: stores.current.plan.limits,
                servers=lambda: _started_programs(stores.current.plan, calls.keepers),
            ),
        )
        self.eras = eras
        self.asking = asking
        self.servers = Servers(stores.current, calls, connector_parts, credentials, approvals.ruled, asking)


# What clients connect to


class EndedSession(msgspec.Struct, frozen=True, kw_only=True):
    """The event that the session of a client has ended."""

    caller: Caller
    reason: str
    is_graceful: bool  # the client said so itself


class FrontParts:
    """The parts of a node that clients talk to: the fronts of both MCP eras with their sessions, the public endpoint,
    and clients on stdin or a Unix socket.
    """

    def __init__(self, plan: Plan, stores: StoreParts, calls: CallParts, links: LinkParts, *, listen: bool) -> None:
        """Construct the fronts. `listen` says whether clients can connect over the network.

        Raise StoreError if a store cannot be used, or CertificatesInvalid if a certificate file cannot be used.
        """
        clock = stores.clock
        self.session_ended = session_ended = Feed[EndedSession]()
        # Tokens or certificates may have become invalid: connections are checked again.
        self.credentials_changed = credentials_changed = Feed[None]()

        def on_session_ended(caller: Caller, session: ClientSession | None, reason: str) -> None:
            session_ended.publish(EndedSession(caller=caller, reason=reason, is_graceful=reason in GRACEFUL))
            if session is not None:
                calls.audience.leave(session)
                calls.client_tasks.forget(caller)
                links.servers.end_session(caller)

        self.sessions = sessions = Sessions(clock, plan.mcp.session_idle_s, on_session_ended)
        self.lists = lists = ListCache(calls.catalog, calls.keepers, calls.dispatch.arrivals, clock, plan.ax.list_ttl_s)
        tasks = TaskMethods(calls.dispatch, calls.task_updates, calls.keepers, clock)
        notifications = ClientNotifications(calls.dispatch.view, stores.recorder, clock, calls.safety.watch.may_notify)
        self.legacy = legacy = LegacyFront(
            calls.dispatch, lists, sessions, calls.audience, tasks, calls.client_tasks, notifications
        )
        self.modern = modern = ModernFront(calls.dispatch, lists, calls.audience, tasks, notifications=notifications)
        surfaces = _surfaces(calls, stores, lists, sessions, tasks, FrontPair("flat", legacy, modern))
        self.certificates = _make_certificate_verifier(plan, stores) if listen else None
        self.bearers = bearers = _make_token_verifier(plan, stores, calls) if listen else None
        self.public = PublicEndpoint(
            plan,
            tokens=stores.tokens,
            bearers=bearers,
            legacy=legacy,
            modern=modern,
            surfaces=surfaces,
            refusals=stores.refusals,
            dismiss_others=lambda: credentials_changed.publish(None),
            has_segment=calls.catalog.has_segment,
        )
        self.lines = LineFronts(stores.current, surfaces)


def _surfaces(
    calls: CallParts, stores: StoreParts, lists: ListCache, sessions: Sessions, tasks: TaskMethods, flat: FrontPair
) -> SurfaceChooser:
    """Construct the surfaces among which clients choose, for example `flat` or `aql`. Each has a front for both MCP
    eras.
    """

    def pair(name: ServedSurface, adapter: AqlAdapter, mode: Mode) -> FrontPair:
        surface = AqlSurface(calls.dispatch, adapter, mode, lists)
        return FrontPair(
            name,
            LegacyFront(surface, surface, sessions, calls.audience, tasks, calls.client_tasks),
            ModernFront(surface, surface, calls.audience, tasks, flat.modern.listeners),
        )

    mode = stores.current.plan.aql.mode
    alone = LoopAdapter(calls.catalog, calls.operation_names, stores.recorder, stores.clock, calls.loop_operations)
    return SurfaceChooser(
        {
            "flat": flat,
            "aql": pair("aql", calls.aql, mode),
            "aql-single": pair("aql-single", calls.aql, "single"),
            "safety": pair("safety", alone, mode),
        },
        stores.current,
        calls.catalog,
        calls.dispatch.arrivals,
    )


def _make_certificate_verifier(plan: Plan, stores: StoreParts) -> "Certificates | None":
    """Construct the verifier of the client certificates of subservers and room participants. Return None if no CA is
    configured.

    Raise CertificatesInvalid if a certificate file cannot be used.
    """
    if plan.node.client_ca is None:
        return None
    from interlock.approvals.trust.client_certificates import Certificates

    return Certificates(plan.node.client_ca, plan.node.crl, stores.clock)


def _make_token_verifier(plan: Plan, stores: StoreParts, calls: CallParts) -> "AccessTokens | None":
    """Construct the verifier of OAuth access tokens. Return None if no authorization server is configured."""
    if not plan.auth.issuers:
        return None
    from interlock.access.oauth import AccessTokens  # here, because `cryptography` takes 10 MiB

    def find_tool(key: ViewKey, name: bytes) -> tuple[str, str] | None:
        route = calls.dispatch.view(key).tools.get(name)
        return None if route is None else (route.qualified, route.scope)

    return AccessTokens(
        issuers=plan.auth.issuers,
        rules=plan.access,
        node_name=plan.node.name,
        resource=lambda: resource_of(stores.addresses.public),
        registry=stores.tokens,
        find_tool=find_tool,
        recorder=stores.recorder,
        clock=stores.clock,
    )
