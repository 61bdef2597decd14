"""Links of a node to its configured servers, and the node's reaction to events of all links.

`Servers` has a keeper for each server of the configuration. A keeper starts or connects to the server, lists what it
offers, and does so again when it is lost (`links.keeper`). A server whose configuration did not change is left
alone when the files change: its process, its connections and its calls go on. A server that changed is replaced: its
tools leave the lists first, so that no client calls them while the old link ends.

`NodeLinkEvents` gets the events of every link, also those of drivers, devices and subservers. Links know nothing of
clients or of the namespace; here an event becomes a change of the catalog, a notification to clients, a charge to a
budget, or a record.
"""

import asyncio
import functools
import logging
from collections.abc import Callable, Iterable
from dataclasses import InitVar, dataclass, field
from typing import TYPE_CHECKING

from msgspec import Raw

from interlock.catalog.catalog import Catalog
from interlock.config.plan import Dial, Plan, ServerPlan
from interlock.core.audit_record import AuditRecord
from interlock.core.calls.caller import Caller, QuestionOrigin
from interlock.core.clock import Clock
from interlock.core.current_plan import CurrentPlan
from interlock.core.feed import AsyncFeed
from interlock.core.link_state import AWAY, LinkState
from interlock.core.recorder import Recorder
from interlock.credentials.service import CredentialService
from interlock.dispatch.tasks import Tasks
from interlock.fronts.audience import Audience
from interlock.guard.budgets import Budgets
from interlock.links.connected_link import ConnectedLink, ServerLink
from interlock.links.connector import ConnectorParts
from interlock.links.keeper import Keeper, ServerKeeper
from interlock.links.link import Link, LinkEvents, TaskEvents
from interlock.links.listing import Listing
from interlock.links.own_links import AskingMemory, AutoSharing, OwnLinks
from interlock.mcp.meta import HeldRoots
from interlock.mcp.methods import ROOTS_LIST
from interlock.wire.jsonrpc.codec import Notification, Request
from interlock.wire.refusal import Refusal

if TYPE_CHECKING:
    from interlock.node.common_parts import CallParts

log = logging.getLogger("interlock.node")


@dataclass(frozen=True, eq=False, kw_only=True)
class NodeLinkEvents(LinkEvents):
    """The handler of events from links to servers. It updates the catalog, notifies clients, charges budgets and writes
    audit records.
    """

    catalog: Catalog
    audience: Audience
    budgets: Budgets
    task_table: Tasks
    task_events: TaskEvents
    recorder: Recorder
    clock: Clock
    keeps_degraded: bool  # tools of a lost server stay listed for a while (degraded.enabled)
    on_ready: Callable[[Link], None]  # called when a link becomes ready

    @property
    def tasks(self) -> TaskEvents:
        return self.task_events

    def on_standing(self, link: Link) -> None:
        because = f" ({link.standing.reason})" if link.standing.reason else ""
        log.info("link %s: %s%s", link.name, link.standing.state.value, because)
        if link.standing.state in AWAY and self.keeps_degraded:
            self.catalog.degrade(link)
        if link.standing.state is LinkState.READY:
            self.on_ready(link)

    def on_resource_updated(self, link: ConnectedLink, params: Raw) -> None:
        self.audience.resource_updated(link, params, self.catalog.namespace.show_uri)

    def on_log(self, link: Link, params: Raw) -> None:
        self.audience.log(link, params, self.task_table.principals(link))

    def on_question(self, link: ConnectedLink, asking: QuestionOrigin) -> Refusal | None:
        return self.budgets.charge_questions(link, asking.caller)

    def on_orphan_request(self, link: ConnectedLink, request: Request) -> bool:
        return self.audience.orphan_request(link, request)

    def on_client_roots(self, link: ConnectedLink, caller: Caller, held: HeldRoots) -> None:
        """Record in the audit log that a server asked for the roots of a client, and which URIs it was given."""
        line = AuditRecord.event(
            self.clock.wall(),
            caller.principal.name,
            str(caller.via),
            ROOTS_LIST,
            link.name,
            verdict="admitted" if held.passed else "refused",
            outcome="refused" if held.withheld else "ok",
            roots=held.passed,
            withheld=held.withheld,
        )
        self.recorder.add_line(line)

    def on_elicitation_complete(self, link: ConnectedLink, params: Raw) -> None:
        self.audience.elicitation_complete(link, params)

    def on_vendor_notification(self, link: ConnectedLink, notification: Notification) -> None:
        self.audience.vendor_notification(link, notification, self.task_table.principals(link), self._sees)

    def on_announced(self, link: Link, kind: str, since: float) -> None:
        self.audience.list_announced(link, kind, since, self._sees)

    def on_own_changed(self, link: ConnectedLink, kind: str) -> None:
        self.audience.own_list_changed(link, kind)

    def _sees(self, caller: Caller, link: Link) -> bool:
        return self.catalog.namespace.view(caller.key).shows(link)


@dataclass(eq=False)
class Servers:
    """The part of a node with the links to its configured servers. It has no links before `open`."""

    _current: CurrentPlan
    _calls: "CallParts"
    _connector_parts: ConnectorParts
    _credentials: CredentialService
    ruled: InitVar[AsyncFeed[str]]  # publishes a server's segment after one of its tools was classified
    _asking: AskingMemory
    # By segment, of servers whose clients may have links of their own.
    own: dict[str, OwnLinks] = field(default_factory=dict, init=False)

    def __post_init__(self, ruled: AsyncFeed[str]) -> None:
        ruled.subscribe(self._restock_server)

    async def open(self) -> None:
        plan = self._current.plan
        self._add(plan, plan.servers)

    async def take(self, old: Plan, new: Plan) -> None:
        """Apply a new plan: replace the links of the servers whose configuration differs between the two plans."""
        before = {server.segment: server for server in old.servers}
        after = {server.segment: server for server in new.servers}
        await asyncio.gather(
            *(self._remove(segment) for segment, server in before.items() if after.get(segment) != server)
        )
        self._add(new, [server for segment, server in after.items() if before.get(segment) != server])

    def end_session(self, caller: Caller) -> None:
        for own in self.own.values():
            own.end_session(caller)

    async def restock(self) -> None:
        """Put the tools of every server into the catalog again, because rules about tools have changed."""
        for keeper in list(self._calls.keepers.values()):
            await self._restock(keeper)

    async def _restock(self, keeper: Keeper) -> None:
        if keeper.is_offered and keeper.listing is not None:
            await self._calls.catalog.stock_again(keeper.link, keeper.listing)

    async def close(self) -> None:
        await asyncio.gather(*(links.stop() for links in self.own.values()))
        await asyncio.gather(*(keeper.stop() for keeper in self._calls.keepers.values()))

    async def _restock_server(self, segment: str) -> None:
        """Put the tools of one server into the catalog again, because an operator has changed the
        class of one of them.
        """
        keeper = self._calls.keepers.get(segment)
        if keeper is not None and keeper.is_offered and keeper.listing is not None:
            self._calls.catalog.reconsider(segment)
            await self._restock(keeper)

    async def stock(self, link: Link, listing: Listing | None) -> None:
        """Add the tools, prompts and resources that a server lists to the catalog. If `listing` is None, remove them
        from the catalog.
        """
        if listing is None:
            self._calls.catalog.drop(link)
        else:
            await self._calls.catalog.stock(link, listing)

    def _add(self, plan: Plan, servers: Iterable[ServerPlan]) -> None:
        """Construct a link to each of these servers, then start all of them."""
        keepers = [self._make_keeper(plan, server) for server in servers]
        for keeper in keepers:
            keeper.start()

    def _make_keeper(self, plan: Plan, server: ServerPlan) -> Keeper:
        """Construct the keeper of a server, which connects to the server and connects again when it is lost.

        If `share` is set accordingly, the keeper also makes links for single clients.

        With share = "auto", clients share one link until the server asks a client a question whose answer depends on
        who the client is.
        """
        vendor_meta = plan.mcp.meta_pass == "vendor"  # noqa: S105  (a choice, not a password)
        events, clock = self._calls.link_events, self._connector_parts.clock
        reach = server.reach
        holder = self._credentials.holder(server.segment, reach) if isinstance(reach, Dial) else None
        token_of = None
        if isinstance(reach, Dial) and holder is not None and reach.auth is not None and reach.auth.per == "user":
            token_of = functools.partial(self._credentials.holder_for, holder, reach)
        own: OwnLinks | None = None
        if server.share != "node" or token_of is not None:
            own = self.own[server.segment] = OwnLinks(
                server,
                self._connector_parts,
                events,
                self._calls.keepers,
                per="principal" if server.share == "principal" or token_of is not None else "session",
                vendor_meta=vendor_meta,
                holder=holder,
                token_of=token_of,
            )
        sharing = None
        if own is not None and server.share == "auto" and token_of is None:
            sharing, own = AutoSharing(own, self._asking), None
        keeper = self._calls.keepers[server.segment] = ServerKeeper(
            lambda keeper: ServerLink(server, keeper, clock, vendor_meta=vendor_meta, own=own, sharing=sharing),
            self._connector_parts,
            self.stock,
            events,
            holder,
        )
        return keeper

    async def _remove(self, segment: str) -> None:
        """Remove a server from the node, and end its link.

        Its tools are removed from the lists first, so that no client calls them while the link closes.
        """
        keeper = self._calls.keepers[segment]
        self._calls.catalog.drop(keeper.link)
        own = self.own.pop(segment, None)
        if own is not None:
            await own.stop()
        await keeper.stop()
        if self._calls.keepers.get(segment) is keeper:
            del self._calls.keepers[segment]
