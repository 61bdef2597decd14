"""Makes the registry of a node's drivers, and what meets it. Imported when there is a driver, or an operator asks."""

from interlock.approvals.decisions import DriverDecisions
from interlock.approvals.inbox import Inbox
from interlock.catalog.catalog import Catalog
from interlock.config.plan import Plan
from interlock.core.clock import Clock
from interlock.core.current_plan import CurrentPlan
from interlock.core.feed import AsyncFeed
from interlock.core.recorder import Recorder
from interlock.credentials.service import CredentialService
from interlock.dispatch.dispatch import Dispatch
from interlock.drivers.contracts.lazy import LazyContracts
from interlock.drivers.install.installation import Locks
from interlock.drivers.provider.factory import ProviderFactory
from interlock.drivers.registry.contract_tests import ExampleRunner
from interlock.drivers.registry.operations import DriverService
from interlock.drivers.registry.registry import Registry
from interlock.drivers.registry.trust_requests import TrustRequests
from interlock.drivers.registry.updates import UpdateService
from interlock.drivers.workspace.declaration import Declaration, Memory
from interlock.drivers.workspace.survey import this_machine
from interlock.fronts.modern import ModernFront
from interlock.links.connector import ConnectorParts
from interlock.links.keeper import Keeper
from interlock.links.link import LinkEvents
from interlock.store.ports import KeyValue


def open_registry(
    plan: Plan,
    *,
    current: CurrentPlan,
    kv: KeyValue,
    clock: Clock,
    recorder: Recorder,
    contracts: LazyContracts,
    catalog: Catalog,
    keepers: dict[str, Keeper],
    link_events: LinkEvents,
    dispatch: Dispatch,
    modern: ModernFront,
    connector_parts: ConnectorParts,
    credentials: CredentialService,
    inbox: Inbox,
    decisions: DriverDecisions,
) -> tuple[Registry, DriverService]:
    offered = contracts.get()
    declared = AsyncFeed[Declaration]()
    registry = Registry(
        plan,
        Memory(kv, clock),
        this_machine(plan.data / "packages"),
        factory=ProviderFactory(
            kv=kv,
            clock=clock,
            recorder=recorder,
            keepers=keepers,
            link_events=link_events,
            credentials=credentials,
            connector_parts=connector_parts,
            plan=lambda: current.plan,
        ),
        take=offered.take,
        offered_problems=lambda: offered.problems,
        declared=declared,
    )
    service = DriverService(
        registry,
        clock,
        recorder.append_now,
        explain=offered.explained,
        tester=ExampleRunner(modern, dispatch, catalog, contracts),
        updater=UpdateService(registry, Locks(kv, clock)),
    )
    decisions.provide(TrustRequests(inbox, service, declared))
    return registry, service
