"""The links of a node: configured servers, subservers that register, children, and what connecting to them takes."""

from collections.abc import Mapping
from pathlib import Path

import msgspec

from interlock.approvals.trust.authority_proofs import Proofs
from interlock.ax.children import ChildSupervisor
from interlock.ax.membership_parts import MembershipParts
from interlock.ax.ownership import Leases, Owners
from interlock.ax.registrar import Registrar
from interlock.config.plan import Plan, ServerPlan, Spawn
from interlock.core.feed import Feed
from interlock.credentials.service import CredentialService
from interlock.devices.devices import Devices
from interlock.links.connected_link import ConnectedLink
from interlock.links.connector import ConnectorParts
from interlock.links.era_memory import EraMemory
from interlock.links.keeper import Keeper
from interlock.links.own.asking_memory import AskingMemory
from interlock.links.process_room import ProcessRoom
from interlock.names.tools import NamesTools
from interlock.node.approval_parts import ApprovalParts
from interlock.node.call_parts import CallParts
from interlock.node.configured_servers import Servers
from interlock.node.store_parts import StoreParts
from interlock.process.orphan_reaper import OrphanReaper
from interlock.process.sandbox.sandbox import Sandboxes, outer_rules, private_paths


class LinkParts(msgspec.Struct, frozen=True, kw_only=True):
    credentials: CredentialService
    reaper: OrphanReaper
    eras: EraMemory
    asking: AskingMemory
    connector_parts: ConnectorParts  # what connecting to a server takes
    servers: Servers
    devices: Devices
    subtree: Feed[tuple[str, ...]]  # the ids of the aggregators below this node
    registrar: Registrar
    children: ChildSupervisor
    names_tools: NamesTools


def _started(plan: Plan, keepers: Mapping[str, Keeper]) -> list[ServerPlan]:
    """All that the node starts: configured servers and subservers, also before they are, drivers, and the command that
    tells of approvals."""
    links = (keeper.link for keeper in keepers.values())
    commands = {child.segment: child.command for child in plan.ax.children}
    if plan.approvals.command:
        commands["approvals"] = plan.approvals.command
    started = {segment: Spawn(command=command, cwd=plan.workspace) for segment, command in commands.items()}
    started |= {
        link.segment: link.reach for link in links if isinstance(link, ConnectedLink) and isinstance(link.reach, Spawn)
    }
    return [*plan.servers, *(ServerPlan(segment=segment, reach=reach) for segment, reach in started.items())]


def make_link_parts(
    plan: Plan, files: tuple[Path, ...], stores: StoreParts, approvals: ApprovalParts, calls: CallParts
) -> LinkParts:
    clock, kv, own_id = stores.clock, stores.store.kv, stores.identity.aggregator_id
    addresses = stores.addresses
    credentials = CredentialService(plan.data, clock, plan.node.name, addresses)
    reaper = OrphanReaper()
    eras, asking = EraMemory(stores.local.kv, clock), AskingMemory(stores.local.kv, clock)
    connector_parts = ConnectorParts(
        packages=plan.data / "packages",
        may_build_sources=lambda: stores.current.plan.drivers.allow_unverified_install,
        message_bytes=plan.limits.message_bytes,
        reaper=reaper,
        eras=eras,
        clock=clock,
        revealer=credentials.revealer,
        room=ProcessRoom(lambda: stores.current.plan.limits.own_processes),
        sandboxes=Sandboxes(
            state=plan.data,
            workspace=plan.workspace,
            user_home=Path.home(),
            clock=clock,
            record=stores.recorder.add,
            rules=(*outer_rules(plan.drivers), *files),
            private=private_paths(plan, files),
            limits=lambda: stores.current.plan.limits,
            servers=lambda: _started(stores.current.plan, calls.keepers),
        ),
    )
    subtree = Feed[tuple[str, ...]]()
    registrar = Registrar(
        plan,
        own_id,
        MembershipParts(
            clock=clock,
            connector_parts=connector_parts,
            catalog=calls.catalog,
            keepers=calls.keepers,
            audience=calls.audience,
            link_events=calls.link_events,
            recorder=stores.recorder,
            budgets=calls.budgets,
            refusals=stores.refusals,
            subtree=subtree,
            leases=Leases(stores.shared.kv, clock, own_id, plan.ax.tree) if stores.shared is not None else None,
        ),
        Owners(kv, clock),
        Proofs(kv, clock, approvals.anchors, audiences=lambda: (f"{addresses.public}/ax", addresses.public, own_id)),
    )
    children = ChildSupervisor(plan, registrar, connector_parts)
    calls.dispatch.arrivals.expect(lambda: children.is_settled, children.settle)
    return LinkParts(
        credentials=credentials,
        reaper=reaper,
        eras=eras,
        asking=asking,
        connector_parts=connector_parts,
        servers=Servers(
            stores.current,
            calls.link_events,
            calls.keepers,
            calls.catalog,
            connector_parts,
            credentials,
            approvals.ruled,
            asking,
        ),
        devices=Devices(
            stores.current, calls.link_events, calls.keepers, calls.catalog, calls.audience, connector_parts
        ),
        subtree=subtree,
        registrar=registrar,
        children=children,
        names_tools=NamesTools(calls.catalog, calls.link_events, clock, approvals.names, plan),
    )
