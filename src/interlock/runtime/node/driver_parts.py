"""Where a node's drivers meet the rest of the node. Imported when there is a driver, or an operator asks."""

from typing import TYPE_CHECKING

from interlock.config.plan import Plan
from interlock.runtime.drivers.install.locks import Locks
from interlock.runtime.drivers.provider.factory import Providing
from interlock.runtime.drivers.registry.contract_tests import Examples
from interlock.runtime.drivers.registry.operations import DriverDesk
from interlock.runtime.drivers.registry.registry import Registry
from interlock.runtime.drivers.registry.trust_requests import Asking
from interlock.runtime.drivers.registry.updates import Updating
from interlock.runtime.drivers.workspace.host_facts import this_machine
from interlock.runtime.drivers.workspace.trust_store import Memory

if TYPE_CHECKING:
    from interlock.runtime.node.node import Node


def open_drivers(node: "Node", plan: Plan) -> tuple[Registry, DriverDesk]:
    contracts = node.contracts.get()
    memory = Memory(node.store.kv, node.clock)
    registry = Registry(plan, memory, this_machine(plan.data / "packages"))
    registry.factory = Providing(node, node._workshop, lambda: registry.plan)
    registry.take = contracts.take
    registry.offered_problems = lambda: contracts.problems
    desk = DriverDesk(registry, node.clock, node.recorder.append_now)
    desk.explain = contracts.explained
    desk.tester = Examples(node.modern, node.dispatch, node.catalog, node.contracts)
    desk.updater = Updating(registry, Locks(node.store.kv, node.clock))
    asking = Asking(node.inbox, desk, node.deciding.is_current)
    node.deciding.drivers = asking
    node.deciding.is_current = asking.is_current
    registry.on_declared = asking.ask
    return registry, desk
