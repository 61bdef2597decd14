"""The drivers of a node and their contracts, without the modules that read them: those take 20 MiB."""

from typing import TYPE_CHECKING

import msgspec

from interlock.config.plan import Plan
from interlock.drivers.contracts.lazy import LazyContracts
from interlock.drivers.registry.service import Drivers
from interlock.node.approval_parts import ApprovalParts
from interlock.node.call_parts import CallParts
from interlock.node.front_parts import FrontParts
from interlock.node.link_parts import LinkParts
from interlock.node.store_parts import StoreParts

if TYPE_CHECKING:
    from interlock.drivers.registry.operations import DriverService
    from interlock.drivers.registry.registry import Registry


class DriverParts(msgspec.Struct, frozen=True, kw_only=True):
    contracts: LazyContracts
    drivers: Drivers


def make_driver_parts(
    plan: Plan,
    stores: StoreParts,
    approvals: ApprovalParts,
    calls: CallParts,
    links: LinkParts,
    fronts: FrontParts,
) -> DriverParts:
    contracts = LazyContracts(
        stores.current,
        catalog=calls.catalog,
        taken=calls.keepers,
        link_events=calls.link_events,
        clock=stores.clock,
        guard=calls.dispatch.guard,
        recorder=stores.recorder,
        keep=links.registrar.keep_contracts,
        ruled=approvals.ruled,
    )

    def open_registry(plan: Plan) -> "tuple[Registry, DriverService]":
        from interlock.drivers.registry.registry_parts import open_registry

        return open_registry(
            plan,
            current=stores.current,
            kv=stores.local.kv,
            clock=stores.clock,
            recorder=stores.recorder,
            contracts=contracts,
            catalog=calls.catalog,
            keepers=calls.keepers,
            link_events=calls.link_events,
            dispatch=calls.dispatch,
            modern=fronts.modern,
            connector_parts=links.connector_parts,
            credentials=links.credentials,
            inbox=approvals.inbox,
            decisions=calls.driver_decisions,
        )

    drivers = Drivers(plan, open_registry)
    calls.dispatch.arrivals.expect(lambda: drivers.is_settled, drivers.settle_all)
    return DriverParts(contracts=contracts, drivers=drivers)
