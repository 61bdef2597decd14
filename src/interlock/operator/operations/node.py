"""The state of a whole node, and the configuration it runs with."""

import os
from collections import Counter
from collections.abc import Callable
from typing import Final, cast

import msgspec

from interlock import __version__
from interlock.approvals.api import Approver
from interlock.approvals.inbox import Inbox
from interlock.approvals.notifier import Notifier
from interlock.approvals.trust.anchors import Anchors
from interlock.ax.api import Parent
from interlock.catalog.catalog import Catalog
from interlock.config.effective import effective
from interlock.config.plan import Scope
from interlock.core.addresses import Addresses
from interlock.core.calls.caller import VIA_AX, principal_for, view_key
from interlock.core.clock import Clock, rfc3339
from interlock.core.current_plan import CurrentPlan
from interlock.core.recorder import Recorder
from interlock.core.replicas import Replicas
from interlock.credentials.protocol.resource import resource_of
from interlock.dispatch.dispatch import Dispatch
from interlock.drivers.api import IdleDriver
from interlock.fronts.audience import Audience
from interlock.fronts.modern import ModernFront
from interlock.fronts.sessions import Sessions
from interlock.guard.budgets import Budgets
from interlock.names.reviews import DueNames
from interlock.operator.api import (
    ApprovalCounts,
    CallCounts,
    CatalogCounts,
    ClientCounts,
    ConfigurationState,
    EffectiveConfiguration,
    GateCounts,
    NameCounts,
    NodeFacts,
    SafetyCounts,
    Status,
)
from interlock.operator.operations.links import LinkOperations
from interlock.safety.loop import SafetyLoop

_LEFT_OUT: Final = "an [[access]] entry of this node leaves them out"


class NodeOperations:
    def __init__(
        self,
        *,
        current: CurrentPlan,
        addresses: Addresses,
        clock: Clock,
        aggregator_id: str,
        recorder: Recorder,
        replicas: Replicas,
        links: LinkOperations,
        budgets: Budgets,
        catalog: Catalog,
        sessions: Sessions,
        audience: Audience,
        modern: ModernFront,
        dispatch: Dispatch,
        anchors: Anchors,
        inbox: Inbox,
        approvers: Callable[[], tuple[Approver, ...]],
        loosened: Callable[[], tuple[str, ...]],
        notifier: Notifier,
        safety: SafetyLoop,
        parents: Callable[[], list[Parent]],
        reload: Callable[[], ConfigurationState | None],
        idle_drivers: Callable[[], list[IdleDriver]],
        names: Callable[[], DueNames],
        open_rooms: Callable[[], tuple[str, ...]],
    ) -> None:
        """`parents` and `reload` give what there is to say of the parents and of the configuration's files,
        `idle_drivers` what there is to say of drivers without a link."""
        self._current = current
        self._addresses = addresses
        self._clock = clock
        self._started = clock.now()
        self._started_wall = clock.wall()
        self._aggregator_id = aggregator_id
        self._recorder = recorder
        self._replicas = replicas
        self._links = links
        self._budgets = budgets
        self._catalog = catalog
        self._sessions = sessions
        self._audience = audience
        self._modern = modern
        self._dispatch = dispatch
        self._anchors = anchors
        self._inbox = inbox
        self._approvers = approvers
        self._loosened = loosened
        self._notifier = notifier
        self._safety = safety
        self._parents = parents
        self._reload = reload
        self._idle_drivers = idle_drivers
        self._names = names
        self._open_rooms = open_rooms

    def status(self) -> Status:
        plan, namespace = self._current.plan, self._catalog.namespace
        sessions, names = self._sessions.by_id, self._names()
        return Status(
            node=NodeFacts(
                name=plan.node.name,
                version=__version__,
                pid=os.getpid(),
                url=self._addresses.public,
                mcp_url=resource_of(self._addresses.public),
                operator_url=self._addresses.operator,
                started_at=rfc3339(self._started_wall),
                uptime_s=round(self._clock.now() - self._started, 1),
                data=str(plan.data),
                aggregator_id=self._aggregator_id,
                tree=plan.ax.tree,
                audit_trouble=self._recorder.trouble,
                store_trouble=self._store_trouble(),
                replicas=None if self._replicas.is_alone else self._replicas.count,
                require_proof=plan.ax.require_proof,
            ),
            configuration=self._reload(),
            parents=tuple(map(self._with_unoffered, self._parents())),
            budgets=self._budgets.shown(),
            links=self._links.list_all().links,
            idle_drivers=tuple(self._idle_drivers()),
            catalog=CatalogCounts(
                version=namespace.version,
                tools=sum(len(namespace.without_collisions(items.tools)) for items in namespace.link_items),
                prompts=sum(len(namespace.without_collisions(items.prompts)) for items in namespace.link_items),
                resources=sum(len(items.resources) for items in namespace.link_items),
                templates=sum(len(items.templates) for items in namespace.link_items),
            ),
            clients=ClientCounts(
                sessions=len(sessions),
                surfaces=dict(Counter(f"{one.caller.principal.name}: {one.surface}" for one in sessions.values())),
                unplaced_logs=self._audience.unplaced_logs,
                streams=sum(len(one.streams) for one in sessions.values()) + len(self._modern.listeners),
            ),
            calls=CallCounts(
                total=self._dispatch.under_way.total,
                failed=self._dispatch.under_way.failed,
                in_flight=len(self._dispatch.under_way.calls),
                parked=self._dispatch.under_way.parking.waiting,
            ),
            gate=self._gate(),
            approvals=ApprovalCounts(waiting=self._inbox.waiting_count, channels=dict(self._notifier.trouble)),
            approvers=self._approvers(),
            names=NameCounts(overdue=names.overdue, unconfirmed=names.unconfirmed),
            loosened=self._loosened(),
            open_rooms=self._open_rooms(),
            safety=SafetyCounts(
                mode=self._safety.plan.mode,
                running=len(self._safety.executions.live()),
                blocked=len(self._safety.blocks.all()),
            ),
        )

    def _store_trouble(self) -> str | None:
        replication = self._replicas.replication
        if replication is None or replication.is_reachable:
            return None
        return f"the store on NATS does not answer: {', '.join(self._current.plan.store.nats_url)}"

    def _with_unoffered(self, parent: Parent) -> Parent:
        """With the tools that this node does not offer there: the parent is told the same numbers."""
        if parent.state != "registered" or parent.scope is None:
            return parent
        principal = principal_for(f"parent:{parent.url}", cast("Scope", parent.scope), self._current.plan.access)
        key = view_key(principal, only=None, names="auto", declares_extension=False, via=VIA_AX)
        unlisted = self._catalog.namespace.view(key).unlisted
        reason = f"it grants us the scope {parent.scope}; its operator may widen it with an [[access]] entry"
        if principal.scope != parent.scope:
            reason = f"an [[access]] entry of this node lets it use scope {principal.scope}"
        told = {reason: unlisted.beyond_scope, _LEFT_OUT: unlisted.beyond_access}
        because = parent.not_listed_because | {reason: number for reason, number in told.items() if number}
        number = parent.not_listed + unlisted.beyond_scope + unlisted.beyond_access
        return msgspec.structs.replace(parent, not_listed=number, not_listed_because=because)

    def configuration(self) -> EffectiveConfiguration:
        return effective(self._current.plan)

    def _gate(self) -> GateCounts:
        """How many tools the gate holds, and of how many of them no approver could release a call."""
        namespace = self._catalog.namespace
        held = [
            route
            for items in namespace.link_items
            for route in namespace.without_collisions(items.tools)
            if route.is_held
        ]
        return GateCounts(
            mode=self._current.plan.gate.mode,
            tools=len(held),
            unclassified=sum(route.is_open for route in held),
            without_approver=sum(not self._anchors.approver_names(route.qualified) for route in held),
        )
