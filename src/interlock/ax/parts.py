"""The parts of the tree: subservers that register, children that the node starts, and the parents of this node."""

from collections.abc import Mapping

from interlock.approvals.trust.registrant import AuthorityProofs, RegistrantIdentity
from interlock.ax.children import ChildSupervisor
from interlock.ax.endpoint import AxEndpoint
from interlock.ax.ownership import Leases, Owners
from interlock.ax.parents.service import PARENT, ParentService
from interlock.ax.registrar import Registrar
from interlock.config.plan import Plan
from interlock.core.calls.caller import principal_for
from interlock.core.feed import Feed
from interlock.core.part import Part
from interlock.dispatch.absent_tools import AbsentServer
from interlock.node.capability_parts import App, CapabilityParts, NodeParts, Stage
from interlock.node.reload import ReloadStep, ReloadSteps


class AxParts(CapabilityParts):
    """Parts of the MCP-AX capability, with their order of start and stop and their steps on a reload."""

    def __init__(self, node: NodeParts) -> None:
        plan, stores, calls, fronts = node.plan, node.stores, node.calls, node.fronts
        clock, kv, own_id = stores.clock, stores.store.kv, stores.identity.aggregator_id
        url = stores.addresses
        self._stores, self._public = stores, fronts.public
        self.parents_changed = Feed[None]()
        self.registrar = Registrar(
            plan=plan,
            aggregator_id=own_id,
            clock=clock,
            connector_parts=node.links.connector_parts,
            catalog=calls.catalog,
            keepers=calls.keepers,
            audience=calls.audience,
            link_events=calls.link_events,
            recorder=stores.recorder,
            budgets=calls.budgets,
            refusals=stores.refusals,
            owners=Owners(kv, clock),
            proofs=AuthorityProofs(
                kv, clock, node.approvals.anchors, audiences=lambda: (f"{url.public}/ax", url.public, own_id)
            ),
            leases=Leases(stores.shared.kv, clock, own_id, plan.ax.tree) if stores.shared is not None else None,
        )
        self.children = ChildSupervisor(plan, self.registrar, node.links.connector_parts)
        calls.dispatch.arrivals.expect(lambda: self.children.is_settled, self.children.settle)
        calls.dispatch.absent_tools.add_source(self._unregistered_children)
        self.endpoint: AxEndpoint | None = None
        if node.listen:
            self.endpoint = AxEndpoint(plan, stores.tokens, self.registrar, stores.refusals, fronts.certificates)
        fronts.credentials_changed.subscribe(lambda _: self.registrar.dismiss_unwelcome(self._may_still_register))
        self.parents = ParentService(plan, self.registrar, fronts.legacy, fronts.modern)

    def _unregistered_children(self) -> list[AbsentServer]:
        waiting = self.children.waiting.items()
        return [AbsentServer(segment=segment, state=child.state, detail=child.reason) for segment, child in waiting]

    def _may_still_register(self, guest: RegistrantIdentity) -> bool:
        """Return whether a registered subserver would still be allowed to register now."""
        is_admitted = self.endpoint is None or self.endpoint.is_still_admitted(guest)
        return is_admitted and self._stores.tokens.stands(guest.principal)

    def stages(self) -> Mapping[Stage, tuple[Part, ...]]:
        return {Stage.TREE: (self.registrar, self.children, self.parents)}

    def apps(self) -> Mapping[str, App]:
        return {"/ax": self.endpoint} if self.endpoint is not None else {}

    def reload_steps(self, steps: ReloadSteps) -> Mapping[str, ReloadStep]:
        async def take_parents(old: Plan, new: Plan) -> None:
            self.parents.check(new)
            steps.limit(new)
            await self.parents.replan(new)
            self.parents_changed.publish(None)

        async def take_children(old: Plan, new: Plan) -> None:
            steps.take_segments(new)
            await self.children.take(new)

        return {"ax.parents": take_parents, "ax.children": take_children}

    def on_segments_changed(self, plan: Plan) -> None:
        self.registrar.keep_segments(plan)

    async def on_access_changed(self, old: Plan, new: Plan) -> None:
        """Disconnect the subservers whose [[access]] entry has changed. They register again, and get their
        new scope.
        """
        if self.endpoint is not None:
            self.endpoint.replan(new)
        await self.children.take(new)
        self._public.dismiss_unwelcome()  # first, because it gives those that may not come back the reason
        self.registrar.dismiss_changed(new.access)
        names = [f"{PARENT}{parent.url}" for parent in new.ax.parents]
        if any(principal_for(name, None, old.access) != principal_for(name, None, new.access) for name in names):
            await self.parents.replan(new)

    def refuse_calls(self) -> None:
        if self.endpoint is not None:
            self.endpoint.stop()
        self.parents.stop_calls()

    async def hang_up(self) -> None:
        await self.parents.close()
        self.registrar.hang_up()
