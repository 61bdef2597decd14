"""The node's parts for drivers and contracts. Modules that read driver files are imported later, as they
take 20 MiB.
"""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from interlock.approvals.protocol.approval import Source
from interlock.ax.parts import AxParts
from interlock.config.plan import Plan
from interlock.core.part import Part
from interlock.dispatch.absent_tools import AbsentServer
from interlock.drivers.registry.service import ContractParts, DriverWatcher, LazyContracts
from interlock.node.capability_parts import CapabilityParts, NodeParts, Stage
from interlock.node.reload import ReloadStep, ReloadSteps

if TYPE_CHECKING:
    from interlock.drivers.registry.operations import DriverService


class DriverParts(CapabilityParts):
    """The parts of a node that run drivers and offer the contracts that these drivers serve."""

    def __init__(self, node: NodeParts) -> None:
        self._node = node
        stores, calls = node.stores, node.calls
        contract_parts = ContractParts(
            current=stores.current,
            catalog=calls.catalog,
            taken=calls.keepers,
            link_events=calls.link_events,
            clock=stores.clock,
            guard=calls.dispatch.guard,
            recorder=stores.recorder,
            keep=node.get(AxParts).registrar.keep_contracts,
        )
        self.contracts = LazyContracts(contract_parts, node.approvals.ruled)
        self.drivers = DriverWatcher(node.plan, self._open_registry)
        calls.dispatch.arrivals.expect(lambda: self.drivers.is_settled, self.drivers.settle_all)
        calls.dispatch.absent_tools.add_source(self._absent_servers)

    def _absent_servers(self) -> Iterable[AbsentServer]:
        return self.drivers.registry.absent_servers() if self.drivers.registry is not None else ()

    def _open_registry(self, plan: Plan) -> "DriverService":
        """Create the registry of drivers and the service for its operations. They are needed only when there is a
        driver or an operator asks for one.
        """
        from interlock.drivers.install.installation import Locks
        from interlock.drivers.provider.provider import ProviderFactory
        from interlock.drivers.registry.contract_tests import ExampleRunner
        from interlock.drivers.registry.operations import DriverService, TrustRequests
        from interlock.drivers.registry.registry import Registry
        from interlock.drivers.workspace.declaration import Memory
        from interlock.drivers.workspace.survey import this_machine

        node, stores, calls = self._node, self._node.stores, self._node.calls
        offered, kv, clock = self.contracts.get(), stores.local.kv, stores.clock
        registry = Registry(
            plan,
            Memory(kv, clock),
            this_machine(plan.data / "packages"),
            factory=ProviderFactory(
                kv=kv,
                clock=clock,
                recorder=stores.recorder,
                keepers=calls.keepers,
                link_events=calls.link_events,
                credentials=node.links.credentials,
                connector_parts=node.links.connector_parts,
                plan=lambda: stores.current.plan,
            ),
            contracts=offered,
        )
        examples = ExampleRunner(node.fronts.modern, calls.dispatch, calls.catalog, offered)
        record, locks = stores.recorder.append_now, Locks(kv, clock)
        service = DriverService(registry, clock, record, contracts=offered, examples=examples, locks=locks)
        calls.deciding.receive(Source.DRIVERS, TrustRequests(node.approvals.inbox, service, registry.declared))
        return service

    def stages(self) -> Mapping[Stage, tuple[Part, ...]]:
        return {Stage.SERVERS: (self.drivers,)}

    def reload_steps(self, steps: ReloadSteps) -> Mapping[str, ReloadStep]:
        return {"drivers": self._apply_plan}

    async def _apply_plan(self, old: Plan, new: Plan) -> None:
        self._node.stores.current.replace(new)
        if (contracts := self.contracts.current) is not None:
            contracts.replan(new)
        await self.drivers.replan(new)

    async def on_servers_changed(self) -> None:
        await self.drivers.replan(self._node.stores.current.plan)  # a driver's name may be a server's now
        if (contracts := self.contracts.current) is not None:
            await contracts.retake()

    async def on_rules_changed(self, plan: Plan) -> None:
        if (contracts := self.contracts.current) is not None:
            contracts.replan(plan)
            await contracts.restock_all()
