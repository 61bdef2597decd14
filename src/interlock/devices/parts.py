"""The parts of devices: their links, and their registration at the parents of this node."""

from collections.abc import Mapping

from interlock.ax.parts import AxParts
from interlock.config.plan import Plan
from interlock.core.part import Part
from interlock.devices.devices import Devices, OnBehalf
from interlock.node.capability_parts import CapabilityParts, NodeParts, Stage
from interlock.node.reload import ReloadStep, ReloadSteps


class DeviceParts(CapabilityParts):
    """The parts of the node that serve devices: their links, and their registration at the parents."""

    def __init__(self, node: NodeParts) -> None:
        stores, calls, fronts = node.stores, node.calls, node.fronts
        self.devices = Devices(
            stores.current,
            calls.link_events,
            calls.keepers,
            calls.catalog,
            calls.audience,
            node.links.connector_parts,
        )
        self.on_behalf = OnBehalf(
            stores.current,
            self.devices,
            stores.identity.aggregator_id,
            stores.clock,
            fronts.legacy,
            fronts.modern,
            calls.audience,
        )
        node.get(AxParts).parents_changed.subscribe(lambda _: self.on_behalf.replan())

    def stages(self) -> Mapping[Stage, tuple[Part, ...]]:
        return {Stage.SERVERS: (self.on_behalf, self.devices)}

    def reload_steps(self, steps: ReloadSteps) -> Mapping[str, ReloadStep]:
        async def take_devices(old: Plan, new: Plan) -> None:
            steps.take_segments(new)
            await self.devices.take(old, new)

        return {"devices.described": take_devices}
