"""The composition root: a Plan becomes a running node.

Theory of operation. A node is an ordered tuple of parts. Each part is constructed with the parts it needs, which are
therefore made before it; where two need each other, both are given a feed. Nothing is assigned to a part from outside.
All parts have one life cycle (`runtime.base.part`): they are opened in the order of the tuple and closed in the
reverse order, and a failure while opening closes those that were opened.

The order is that of what rests on what: keys and stores, the inbox with what people decided, the gate, tokens and
credentials, then the endpoints, so that a client is told "not ready" rather than nothing, and at last what is beyond
this process: servers, drivers, subservers, children, parents. The last two are the shutdown of traffic and the watch of
the configuration, so that a node that stops first takes up no change, then ends its traffic, then closes the rest.

The parts are made by subject, one module for each: `store_parts`, `approval_parts`, `call_parts`, `link_parts`,
`front_parts`, `driver_parts`. What an operator may ask is in `operation_parts`, a changed configuration in
`reload_parts`. None of them knows the node.
"""

from pathlib import Path

from interlock.config.plan import Plan
from interlock.core.clock import Clock, SystemClock
from interlock.core.part import Part, PartStack
from interlock.names.endpoint.endpoint import NamesEndpoint
from interlock.names.rejudgement import Rejudgement
from interlock.node.approval_parts import make_approval_parts
from interlock.node.call_parts import make_call_parts
from interlock.node.driver_parts import make_driver_parts
from interlock.node.endpoints import Endpoints, OperatorApp
from interlock.node.front_parts import make_front_parts
from interlock.node.link_parts import make_link_parts
from interlock.node.operation_parts import make_operations
from interlock.node.readiness import Readiness
from interlock.node.reload import Read, Reload
from interlock.node.reload_parts import ReloadSteps
from interlock.node.replica_parts import follow_replicas
from interlock.node.room_parts import make_room_parts
from interlock.node.shutdown import Shutdown
from interlock.node.sockets import Sockets
from interlock.node.store_parts import make_store_parts


class Node:
    def __init__(
        self,
        plan: Plan,
        operator_app: OperatorApp,
        clock: Clock | None = None,
        *,
        files: tuple[Path, ...] = (),
        read: Read | None = None,
        listen: bool = True,
    ) -> None:
        """`files`: what the plan was read from, which no sandboxed server may write. `read` reads them again when they
        change. Without `listen` there are no sockets."""
        self.stores = make_store_parts(plan, clock or SystemClock())
        self.approvals = make_approval_parts(plan, self.stores)
        self.calls = make_call_parts(plan, self.stores, self.approvals)
        self.links = make_link_parts(plan, files, self.stores, self.approvals, self.calls)
        self.fronts = make_front_parts(plan, self.stores, self.calls, self.links, listen=listen)
        self.rooms = make_room_parts(plan, self.stores, self.calls, self.links, self.fronts)
        self.drivers = make_driver_parts(plan, self.stores, self.approvals, self.calls, self.links, self.fronts)
        parts = (self.stores, self.approvals, self.calls, self.links, self.fronts, self.drivers)
        names = self.approvals.names.state
        self.rejudgement = Rejudgement(names, names.changed, lambda: self.calls.catalog.namespace, self.approvals.ruled)
        follow_replicas(self.stores, self.approvals, self.calls, self.fronts, self.rooms)
        self.readiness = Readiness(self.calls.keepers, self.stores.clock)
        self._reload = (
            Reload(read, files, plan, ReloadSteps(*parts, self.rooms).by_key(), self.stores.clock)
            if read is not None
            else None
        )
        self.operations = make_operations(*parts, self.rooms, self._reload)
        self._sockets = Sockets(plan, self.stores.addresses, self.approvals.passkeys) if listen else None
        self._endpoints = self._maybe_endpoints(plan, operator_app)
        self._shutdown = Shutdown(
            endpoints=self._endpoints,
            public=self.fronts.public,
            subservers=self.fronts.subservers,
            inbox=self.approvals.inbox,
            dispatch=self.calls.dispatch,
            parents=self.fronts.parents,
            registrar=self.links.registrar,
            rooms=self.rooms.rooms,
        )
        self._stack = PartStack(self._parts())

    def _parts(self) -> tuple[Part, ...]:
        stores, approvals, calls = self.stores, self.approvals, self.calls
        links, fronts, drivers = self.links, self.fronts, self.drivers
        ordered: tuple[Part | None, ...] = (
            approvals.anchors,
            stores.store,
            stores.local if stores.local is not stores.store else None,
            stores.shared,
            stores.replicas,
            approvals.judge,
            stores.audit,
            stores.recorder,
            stores.refusals,
            approvals.inbox,
            approvals.enrolments,
            approvals.guard_changes,
            approvals.grants,
            approvals.revocation,
            approvals.definitions,
            approvals.expiry,
            approvals.notifier,
            approvals.names.reviews,
            approvals.surfaces.pins,
            approvals.surfaces.questions,
            self.rejudgement,
            calls.gate,
            calls.dispatch.confirmations,
            calls.safety.verification,
            calls.safety.challenges,
            calls.safety.loop,
            calls.safety.watch,
            calls.loop_operations,
            stores.retention,
            stores.tokens,
            links.credentials,
            links.eras,
            links.asking,
            links.names_tools,
            self._sockets,
            fronts.bearers,
            self.rooms.rooms,
            stores.changes,  # the parts above have read what they keep
            self.rooms.links,
            self.rooms.node,
            self.rooms.tools,
            self.rooms.resources,
            self._endpoints,
            links.reaper,
            links.servers,
            fronts.on_behalf,
            links.devices,
            drivers.drivers,
            links.registrar,
            links.children,
            fronts.parents,
            self._shutdown,
            self._reload,  # closed first: nothing is taken up any more while calls under way end
        )
        return tuple(part for part in ordered if part is not None)

    async def open(self) -> None:
        """Raises what keeps a part from opening; `close` is due then as well."""
        await self._stack.open()

    async def close(self) -> None:
        await self._stack.close()

    async def drain(self) -> None:
        """Until every call under way is answered, within a bound."""
        await self._shutdown.drain()

    def _maybe_endpoints(self, plan: Plan, operator_app: OperatorApp) -> Endpoints | None:
        if self._sockets is None or self.fronts.subservers is None:
            return None
        return Endpoints(
            plan,
            self._sockets,
            public=self.fronts.public,
            subservers=self.fronts.subservers,
            rooms=self.rooms.endpoint,
            names=NamesEndpoint(
                self.stores.current,
                self.stores.tokens,
                self.stores.refusals,
                self.fronts.bearers,
                self.stores.clock,
                self.approvals.names,
                self.stores.identity.aggregator_id,
            ),
            bearers=self.fronts.bearers,
            credentials=self.links.credentials,
            operations=self.operations,
            operator_app=operator_app,
            tokens=self.stores.tokens,
            refusals=self.stores.refusals,
            lines=self.fronts.lines,
            is_ready=self.readiness.is_ready,
        )
