"""The links of the configured servers, and what a changed configuration does to them.

A server whose configuration did not change is left alone: its process, its connections and its calls go on.
"""

import asyncio
import functools
from collections.abc import Iterable

from interlock.config.plan import Dial, Plan, ServerPlan
from interlock.core.calls.caller import Caller
from interlock.core.current_plan import CurrentPlan
from interlock.core.feed import AsyncFeed
from interlock.credentials.service import CredentialService
from interlock.links.connected_link import ServerLink
from interlock.links.connector import ConnectorParts
from interlock.links.keeper import Keeper
from interlock.links.link import Link
from interlock.links.listing import Listing
from interlock.links.own_links import OwnLinks
from interlock.links.server_keeper import ServerKeeper
from interlock.links.share_decision import AskingMemory, AutoSharing
from interlock.node.call_parts import CallParts


class Servers:
    def __init__(
        self,
        current: CurrentPlan,
        calls: CallParts,
        connector_parts: ConnectorParts,
        credentials: CredentialService,
        ruled: AsyncFeed[str],
        asking: AskingMemory,
    ) -> None:
        """Construct without links. `ruled` publishes the segment of a tool about which an operator decided something
        new.
        """
        self._current = current
        self.own: dict[str, OwnLinks] = {}  # by segment, of servers whose clients may have links of their own
        self._asking = asking
        self._link_events, self._keepers, self._catalog = calls.link_events, calls.keepers, calls.catalog
        self._connector_parts = connector_parts
        self._credentials = credentials
        ruled.subscribe(self._restock_one)

    async def open(self) -> None:
        plan = self._current.plan
        self._add(plan, plan.servers)

    async def take(self, old: Plan, new: Plan) -> None:
        """Replace the links of servers that differ between two plans."""
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
        """List the tools of every server again, by changed rules."""
        for keeper in list(self._keepers.values()):
            if keeper.is_offered and keeper.listing is not None:
                await self._catalog.stock_again(keeper.link, keeper.listing)

    async def close(self) -> None:
        await asyncio.gather(*(links.stop() for links in self.own.values()))
        await asyncio.gather(*(keeper.stop() for keeper in self._keepers.values()))

    async def _restock_one(self, segment: str) -> None:
        keeper = self._keepers.get(segment)
        if keeper is not None and keeper.is_offered and keeper.listing is not None:
            self._catalog.reconsider(segment)
            await self._catalog.stock_again(keeper.link, keeper.listing)

    async def stock(self, link: Link, listing: Listing | None) -> None:
        if listing is None:
            self._catalog.drop(link)
        else:
            await self._catalog.stock(link, listing)

    def _add(self, plan: Plan, servers: Iterable[ServerPlan]) -> None:
        keepers = [self._keeper(plan, server) for server in servers]
        for keeper in keepers:
            keeper.start()

    def _keeper(self, plan: Plan, server: ServerPlan) -> Keeper:
        vendor_meta = plan.mcp.meta_pass == "vendor"  # noqa: S105  (a choice, not a password)
        events, clock = self._link_events, self._connector_parts.clock
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
                self._keepers,
                per="principal" if server.share == "principal" or token_of is not None else "session",
                vendor_meta=vendor_meta,
                holder=holder,
                token_of=token_of,
            )
        sharing = None
        if own is not None and server.share == "auto" and token_of is None:
            sharing, own = AutoSharing(own, self._asking), None
        keeper = self._keepers[server.segment] = ServerKeeper(
            lambda keeper: ServerLink(server, keeper, clock, vendor_meta=vendor_meta, own=own, sharing=sharing),
            self._connector_parts,
            self.stock,
            events,
            holder,
        )
        return keeper

    async def _remove(self, segment: str) -> None:
        """Remove a server. Its tools leave the lists first, so that no client calls them while the link ends."""
        keeper = self._keepers[segment]
        self._catalog.drop(keeper.link)
        own = self.own.pop(segment, None)
        if own is not None:
            await own.stop()
        await keeper.stop()
        if self._keepers.get(segment) is keeper:
            del self._keepers[segment]
