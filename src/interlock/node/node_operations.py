"""The operations on the node as a whole, and the objects that handle all other operations.

`StatusOperations` shows the state of the node: status, configuration, metrics, and a stream of what changes.
`Operations` constructs the handlers of the common parts, one object per noun; capabilities bring their own.
"""

import asyncio
import contextlib
import os
from collections import Counter
from collections.abc import AsyncGenerator
from typing import Final, cast

import msgspec
from msgspec import Raw

from interlock import __version__
from interlock.access.operations import LoginOperations, TokenOperations
from interlock.approvals.api import ApprovalSummary
from interlock.approvals.operations.classification import ClassificationOperations
from interlock.approvals.operations.grants import GrantOperations
from interlock.approvals.operations.inbox import ApproverOperations
from interlock.ax.parts import AxParts
from interlock.catalog.api import CheckVerdict
from interlock.catalog.operations import CallOperations, ToolOperations
from interlock.catalog.routes import Route
from interlock.config.effective import effective
from interlock.config.plan import Scope
from interlock.core.calls.caller import VIA_AX, principal_for, view_key
from interlock.core.clock import rfc3339
from interlock.core.metrics import MEDIA_TYPE
from interlock.credentials.operations import ConsentOperations, SecretOperations
from interlock.credentials.protocol.resource import resource_of
from interlock.drivers.operations import AddOperations, DriverOperations
from interlock.drivers.parts import DriverParts
from interlock.links.api import Parent
from interlock.links.operations import LinkOperations
from interlock.node.capability_parts import NodeParts
from interlock.node.reload import Reload
from interlock.operator.api import (
    FOLLOW_NODE,
    GET_CONFIGURATION,
    GET_METRICS,
    GET_STATUS,
    ApprovalCounts,
    CallCounts,
    CatalogCounts,
    ClientCounts,
    EffectiveConfiguration,
    GateCounts,
    NameCounts,
    NodeEvent,
    NodeFacts,
    SafetyCounts,
    Status,
)
from interlock.operator.operation import File, handlers_of, handles
from interlock.rooms.parts import RoomParts
from interlock.store.operations import AuditOperations

LOOK_S: Final = 1.0  # how often status and log are compared, while somebody follows
BEAT_LOOKS: Final = 5  # comparisons without news, then a sign of life is sent
RECORDS_MAX: Final = 100  # in one event
_LEFT_OUT: Final = "an [[access]] entry of this node leaves them out"


class StatusOperations:
    """The operations on the node as a whole: its status, its configuration, its metrics, and a stream of what
    changes.
    """

    def __init__(self, parts: NodeParts, links: LinkOperations, audit: AuditOperations, reload: Reload | None) -> None:
        self._parts, self._links, self._audit, self._reload = parts, links, audit, reload
        self._clock = parts.stores.clock
        self._started = self._clock.now()
        self._started_wall = self._clock.wall()

    @handles(GET_CONFIGURATION)
    def configuration(self) -> EffectiveConfiguration:
        return effective(self._parts.stores.current.plan)

    @handles(GET_METRICS)
    def metrics(self) -> File:
        return File(self._parts.stores.metrics.text().encode(), MEDIA_TYPE)

    @handles(GET_STATUS)
    def status(self) -> Status:
        """Return the state of the node. Nothing is read from disk, so this can be called often."""
        parts = self._parts
        stores, approvals, calls, fronts = parts.stores, parts.approvals, parts.calls, parts.fronts
        plan, namespace, safety = stores.current.plan, calls.catalog.namespace, calls.safety.loop
        sessions, names = fronts.sessions.by_id, approvals.names.reminders.due()
        replication, store_trouble = stores.replicas.replication, None
        if replication is not None and not replication.is_reachable:
            store_trouble = f"the store on NATS does not answer: {', '.join(plan.store.nats_url)}"
        return Status(
            node=NodeFacts(
                name=plan.node.name,
                version=__version__,
                pid=os.getpid(),
                url=stores.addresses.public,
                mcp_url=resource_of(stores.addresses.public),
                operator_url=stores.addresses.operator,
                started_at=rfc3339(self._started_wall),
                uptime_s=round(self._clock.now() - self._started, 1),
                data=str(plan.data),
                aggregator_id=stores.identity.aggregator_id,
                tree=plan.ax.tree,
                audit_trouble=stores.recorder.trouble,
                store_trouble=store_trouble,
                replicas=None if stores.replicas.is_alone else stores.replicas.count,
                require_proof=plan.ax.require_proof,
            ),
            configuration=None if self._reload is None else self._reload.status(),
            parents=tuple(map(self._with_unoffered, self._parts.get(AxParts).parents.status())),
            budgets=calls.budgets.shown(),
            links=self._links.list_all().links,
            idle_drivers=tuple(self._parts.get(DriverParts).drivers.idle()),
            catalog=CatalogCounts(
                version=namespace.version,
                tools=sum(len(namespace.without_collisions(items.tools)) for items in namespace.link_items),
                prompts=sum(len(namespace.without_collisions(items.prompts)) for items in namespace.link_items),
                resources=sum(len(items.resources) for items in namespace.link_items),
                templates=sum(len(items.templates) for items in namespace.link_items),
            ),
            clients=ClientCounts(
                sessions=len(sessions),
                surfaces=dict(
                    Counter(f"{session.caller.principal.name}: {session.surface}" for session in sessions.values())
                ),
                unplaced_logs=calls.audience.unplaced_logs,
                streams=sum(len(session.streams) for session in sessions.values()) + len(fronts.modern.listeners),
            ),
            calls=CallCounts(
                total=calls.dispatch.under_way.total,
                failed=calls.dispatch.under_way.failed,
                in_flight=len(calls.dispatch.under_way.calls),
                parked=calls.dispatch.under_way.parking.waiting,
            ),
            gate=self._gate(),
            approvals=ApprovalCounts(waiting=approvals.inbox.waiting_count, channels=dict(approvals.notifier.trouble)),
            approvers=approvals.enrolments.shown(),
            names=NameCounts(overdue=names.overdue, unconfirmed=names.unconfirmed),
            loosened=approvals.guard_changes.loosened,
            open_rooms=self._parts.get(RoomParts).rooms.open_topics(),
            safety=SafetyCounts(
                mode=safety.plan.mode, running=len(safety.executions.live()), blocked=len(safety.blocks.all())
            ),
        )

    def _with_unoffered(self, parent: Parent) -> Parent:
        """Return the status of a parent aggregator, with the number of tools that this node does not offer to it and
        why.
        """
        if parent.state != "registered" or parent.scope is None:
            return parent
        principal = principal_for(
            f"parent:{parent.url}", cast("Scope", parent.scope), self._parts.stores.current.plan.access
        )
        key = view_key(principal, only=None, names="auto", declares_extension=False, via=VIA_AX)
        unlisted = self._parts.calls.catalog.namespace.view(key).unlisted
        reason = f"it grants us the scope {parent.scope}; its operator may widen it with an [[access]] entry"
        if principal.scope != parent.scope:
            reason = f"an [[access]] entry of this node lets it use scope {principal.scope}"
        numbers = {reason: unlisted.beyond_scope, _LEFT_OUT: unlisted.beyond_access}
        because = parent.not_listed_because | {reason: number for reason, number in numbers.items() if number}
        number = parent.not_listed + unlisted.beyond_scope + unlisted.beyond_access
        return msgspec.structs.replace(parent, not_listed=number, not_listed_because=because)

    def _gate(self) -> GateCounts:
        """Count the tools whose calls are held for a person, and those among them that no person may approve."""
        namespace = self._parts.calls.catalog.namespace
        held = [
            route
            for items in namespace.link_items
            for route in namespace.without_collisions(items.tools)
            if route.is_held
        ]
        return GateCounts(
            mode=self._parts.stores.current.plan.gate.mode,
            tools=len(held),
            unclassified=sum(route.is_open for route in held),
            without_approver=sum(not self._parts.approvals.anchors.approver_names(route.qualified) for route in held),
        )

    @handles(FOLLOW_NODE)
    async def follow(self) -> AsyncGenerator[NodeEvent[Raw], None]:
        """Yield the status of the node, then every change of it and of the approvals that wait. The stream ends when
        the inbox is closed.

        A changed approval is sent immediately. The status and the audit log are compared only every LOOK_S, because
        nearly every call changes them. After BEAT_LOOKS comparisons without a change, an empty event shows that the
        stream is alive.
        """
        newest, quiet = b"", 0
        async with contextlib.aclosing(self._parts.calls.approvals.follow()) as changes:
            # Listen before the first event, so that no change after it is missed.
            upcoming: asyncio.Future[ApprovalSummary] | None = asyncio.ensure_future(anext(changes))
            try:
                await asyncio.sleep(0)
                last = await self._audit.last()
                while True:
                    status = self.status()
                    # Without what changes merely because time passes.
                    timeless = msgspec.structs.replace(status, node=msgspec.structs.replace(status.node, uptime_s=0.0))
                    if (now := msgspec.json.encode(timeless)) != newest:
                        newest, quiet = now, 0
                        yield NodeEvent(at=self._time(), status=status)
                    page = await self._audit.tail(last, RECORDS_MAX)
                    if page.records:
                        last, quiet = page.last, 0
                        yield NodeEvent(at=self._time(), records=page.records)
                    looked = asyncio.get_running_loop().time()
                    while (left := looked + LOOK_S - asyncio.get_running_loop().time()) > 0:
                        upcoming = upcoming or asyncio.ensure_future(anext(changes))
                        if not (await asyncio.wait((upcoming,), timeout=left))[0]:
                            break
                        change, upcoming = upcoming.result(), None
                        quiet = 0
                        yield NodeEvent(at=self._time(), approval=change)
                    quiet += 1
                    if quiet > BEAT_LOOKS:
                        quiet = 0
                        yield NodeEvent(at=self._time())
            except StopAsyncIteration:
                return
            finally:
                if upcoming is not None:
                    upcoming.cancel()
                    await asyncio.gather(upcoming, return_exceptions=True)

    def _time(self) -> str:
        return rfc3339(self._clock.wall())


class Operations:
    """The objects whose methods handle the operations of operators, and a table of these methods.

    Capabilities provide their objects through `CapabilityParts.services`.
    """

    def __init__(self, parts: NodeParts, reload: Reload | None) -> None:
        stores, approvals, calls, links = parts.stores, parts.approvals, parts.calls, parts.links
        fronts, ax, drivers = parts.fronts, parts.get(AxParts), parts.get(DriverParts)

        def explain(route: Route, caller: str) -> tuple[CheckVerdict, ...]:
            return calls.dispatch.guard.explain(route, stores.tokens.as_it_would_be(caller))

        self.links = LinkOperations(calls.keepers, calls.catalog, ax.registrar, ax.children, calls.budgets)
        self.audit = AuditOperations(stores.audit, stores.recorder)
        self.secrets = SecretOperations(
            links.credentials,
            approvals.secret_bindings,
            calls.keepers,
            links.servers.own,
            drivers.drivers.on_secret,
            stores.recorder,
            stores.clock,
        )
        self.approvers = ApproverOperations(approvals.enrolments, approvals.revocation, calls.approvals)
        self.calls = CallOperations(fronts.modern, calls.dispatch, stores.tokens.as_it_would_be)
        self.classification = ClassificationOperations(
            calls.catalog, approvals.definitions, approvals.judge, stores.recorder, calls.approvals
        )
        self.consents = ConsentOperations(
            calls.keepers, links.credentials, calls.audience, stores.recorder, stores.clock
        )
        self.drivers = DriverOperations(
            drivers.drivers.service,
            approvals.anchors.approver_names,
            lambda: calls.approvals.list_all("definition", "pending").approvals,
        )
        self.adding = AddOperations(
            service=drivers.drivers.service, secrets=self.secrets, approver_names=approvals.anchors.approver_names
        )
        self.grants = GrantOperations(approvals.grants, calls.catalog, calls.approvals)
        self.inbox = calls.approvals
        self.logins = LoginOperations(stores.tokens, stores.recorder, stores.clock, approvals.passkeys.browser_url)
        self.node = StatusOperations(parts, self.links, self.audit, reload)
        self.tokens = TokenOperations(stores.tokens, fronts.public.dismiss_unwelcome, stores.recorder, stores.clock)
        self.tools = ToolOperations(
            calls.catalog,
            approvals.definitions,
            calls.approvals,
            drivers.contracts,
            explain,
            calls.aql.classified,
            approvals.names.state.entry,
            calls.dispatch.absent_tools,
        )
        of_capabilities = (service for capability in parts.capabilities.values() for service in capability.services())
        self.handlers = handlers_of((*vars(self).values(), *of_capabilities))
