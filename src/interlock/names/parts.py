"""The parts of the registry of names that use the namespace: its tools, its endpoint, and checks of listed tools."""

from collections.abc import Callable, Mapping

from interlock.config.plan import Plan
from interlock.core.part import Part
from interlock.names import surface_check
from interlock.names.endpoint import NamesEndpoint
from interlock.names.operations import NameOperations
from interlock.names.registry_parts import define_name_metrics
from interlock.names.surface_check import Rejudgement
from interlock.names.tools import NamesTools
from interlock.node.capability_parts import App, CapabilityParts, NodeParts, Stage
from interlock.node.reload import ReloadStep, ReloadSteps
from interlock.store.ports import Change


class RegistryParts(CapabilityParts):
    """The parts of the node that serve the registry: endpoint, tools, operations, and checks of listed tools."""

    def __init__(self, node: NodeParts) -> None:
        stores, approvals, calls = node.stores, node.approvals, node.calls
        names = approvals.names
        self._names = names
        self._surfaces = approvals.surfaces
        define_name_metrics(stores.metrics, names.reminders.due)
        self.rejudgement = Rejudgement(names.state, lambda: calls.catalog.namespace, approvals.ruled)
        self.tools = NamesTools(calls.catalog, calls.link_events, stores.clock, names, node.plan)
        pins, ruled = self._surfaces.pins, approvals.ruled
        self.operations = NameOperations(names, calls.catalog, pins, ruled, stores.audit, stores.recorder)
        tokens, refusals, clock, own_id = stores.tokens, stores.refusals, stores.clock, stores.identity.aggregator_id
        self.endpoint = NamesEndpoint(stores.current, tokens, refusals, node.fronts.bearers, clock, names, own_id)

    def stages(self) -> Mapping[Stage, tuple[Part, ...]]:
        records = (self._names, self._surfaces.pins, self._surfaces.questions, self.rejudgement)
        return {Stage.RECORDS: records, Stage.TOOLS: (self.tools,)}

    def services(self) -> tuple[object, ...]:
        return (self.operations,)

    def apps(self) -> Mapping[str, App]:
        return {"/registry/": self.endpoint, "/assignments/": self.endpoint}

    def reload_steps(self, steps: ReloadSteps) -> Mapping[str, ReloadStep]:
        async def take_registry(old: Plan, new: Plan) -> None:
            await steps.take_tools(old, new)
            self.tools.replan(new)

        return {"registry": take_registry}

    def replicated_buckets(self) -> Mapping[str, Callable[[Change], None]]:
        return {surface_check.PINS_BUCKET: self._surfaces.pins.take_change}
