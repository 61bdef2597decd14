"""The links to configured servers, and what connecting to any server takes."""

from collections.abc import Mapping
from pathlib import Path

import msgspec

from interlock.config.plan import Plan, ServerPlan, Spawn
from interlock.credentials.service import CredentialService
from interlock.links.connected_link import ConnectedLink
from interlock.links.connector import ConnectorParts
from interlock.links.handshake import EraMemory
from interlock.links.keeper import Keeper
from interlock.links.process_limit import ProcessLimit
from interlock.links.share_decision import AskingMemory
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


def _started_programs(plan: Plan, keepers: Mapping[str, Keeper]) -> list[ServerPlan]:
    """Return all programs that the node starts: servers, children, drivers and the command that notifies of
    approvals.
    """
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
    clock = stores.clock
    credentials = CredentialService(plan.data, clock, plan.node.name, stores.addresses)
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
        process_limit=ProcessLimit(lambda: stores.current.plan.limits.own_processes),
        sandboxes=Sandboxes(
            state=plan.data,
            workspace=plan.workspace,
            user_home=Path.home(),
            clock=clock,
            record=stores.recorder.add,
            rules=(*outer_rules(plan.drivers), *files),
            private=private_paths(plan, files),
            limits=lambda: stores.current.plan.limits,
            servers=lambda: _started_programs(stores.current.plan, calls.keepers),
        ),
    )
    return LinkParts(
        credentials=credentials,
        reaper=reaper,
        eras=eras,
        asking=asking,
        connector_parts=connector_parts,
        servers=Servers(stores.current, calls, connector_parts, credentials, approvals.ruled, asking),
    )
