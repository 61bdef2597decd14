"""The parts of drivers and their contracts, without the modules that read driver files: those take 20 MiB."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from interlock.ax.parts import AxParts
from interlock.config.plan import Plan
from interlock.core.part import Part
from interlock.drivers.contracts.lazy import LazyContracts
from interlock.drivers.registry.service import Drivers
from interlock.node.capability_parts import CapabilityParts, NodeParts, Stage
from interlock.node.reload import ReloadStep, ReloadSteps

if TYPE_CHECKING:
    from interlock.drivers.registry.operations import DriverService
    from interlock.drivers.registry.registry import Registry


class DriverParts(CapabilityParts):
    def __init__(self, node: NodeParts) -> None:
        self._node = node
        stores, calls = node.stores, node.calls
        self.contracts = LazyContracts(
            stores.current,
            catalog=calls.catalog,
            taken=calls.keepers,
            link_events=calls.link_events,
            clock=stores.clock,
            guard=calls.dispatch.guard,
            recorder=stores.recorder,
            keep=node.get(AxParts).registrar.keep_contracts,
            ruled=node.approvals.ruled,
        )
        self.drivers = Drivers(node.plan, self._open_registry)
        calls.dispatch.arrivals.expect(lambda: self.drivers.is_settled, self.drivers.settle_all)

    def _open_registry(self, plan: Plan) -> "tuple[Registry, DriverService]":
        from interlock.drivers.registry.registry_parts import open_registry

        node, stores, calls = self._node, self._node.stores, self._node.calls
        return open_registry(
            plan,
            current=stores.current,
            kv=stores.local.kv,
            clock=stores.clock,
            recorder=stores.recorder,
            contracts=self.contracts,
            catalog=calls.catalog,
            keepers=calls.keepers,
            link_events=calls.link_events,
            dispatch=calls.dispatch,
            modern=node.fronts.modern,
            connector_parts=node.links.connector_parts,
            credentials=node.links.credentials,
            inbox=node.approvals.inbox,
            decisions=calls.driver_decisions,
        )

    def stages(self) -> Mapping[Stage, tuple[Part, ...]]:
        return {Stage.SERVERS: (self.drivers,)}

    def reload_steps(self, steps: ReloadSteps) -> Mapping[str, ReloadStep]:
        return {"drivers": self._take_drivers}

    async def _take_drivers(self, old: Plan, new: Plan) -> None:
        self._node.stores.current.replace(new)
        if (contracts := self.contracts.maybe) is not None:
            contracts.replan(new)
        await self.drivers.replan(new)
        await self._node.approvals.guard_changes.replan(new)

    async def on_servers_changed(self) -> None:
        if (contracts := self.contracts.maybe) is not None:
            await contracts.retake()

    async def on_rules_changed(self, plan: Plan) -> None:
        if (contracts := self.contracts.maybe) is not None:
            contracts.replan(plan)
            await contracts.restock_all()
