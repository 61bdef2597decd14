"""What the registry's contracts are to everybody else: links in the namespace, one for each segment.

`take` is awaited with every change; what is offered as before is not touched, and a call under way keeps the providers
it began with.
"""

import asyncio
import hashlib
import logging
from collections.abc import Mapping
from typing import Any

from msgspec import Raw

from interlock.config.plan import Plan
from interlock.protocol.drivers.messages import Problem
from interlock.protocol.drivers.offering import Offered, offer
from interlock.protocol.drivers.resolver import Policy
from interlock.protocol.jsonrpc.codec import encode_value
from interlock.protocol.mcp.items import Item
from interlock.runtime.catalog import Catalog
from interlock.runtime.clock import Clock
from interlock.runtime.drivers.contract_link import ContractLink
from interlock.runtime.drivers.served import Served
from interlock.runtime.drivers.table import ContractTable
from interlock.runtime.guard import Guard
from interlock.runtime.links.link import LinkWatcher
from interlock.runtime.links.listing import Items, Listing
from interlock.runtime.recorder import Recorder

log = logging.getLogger("interlock.drivers")


class Contracts:
    def __init__(
        self,
        plan: Plan,
        *,
        catalog: Catalog,
        taken: Mapping[str, object],
        watcher: LinkWatcher,
        clock: Clock,
        guard: Guard,
        recorder: Recorder,
    ) -> None:
        """`taken`: the segments that servers and registrants have."""
        self._plan = plan
        self._catalog = catalog
        self._taken = taken
        self._watcher = watcher
        self._clock = clock
        self._guard = guard
        self._recorder = recorder
        self._links: dict[str, ContractLink] = {}
        self._listings: dict[str, Listing] = {}
        self._items: dict[tuple[bool, bytes], Item] = {}  # an item that is as before is the same object again
        self._taking = asyncio.Lock()
        self.problems: tuple[Problem, ...] = ()

    @property
    def links(self) -> Mapping[str, ContractLink]:
        return self._links

    async def take(self, table: ContractTable) -> None:
        async with self._taking:
            await self._take(table)

    def replan(self, plan: Plan) -> None:
        self._plan = plan

    async def restock(self, segment: str) -> None:
        """An operator said something new of its tools: they are listed anew."""
        link = self._links.get(segment)
        if link is not None:
            self._catalog.reconsider(segment)
            await self._catalog.stock_again(link, self._listings[segment])

    async def restock_all(self) -> None:
        """The rules for tools changed."""
        for segment, link in list(self._links.items()):
            await self._catalog.stock_again(link, self._listings[segment])

    def explained(self, name: str) -> dict[str, Any] | None:
        """Who serves a contract now, and why not the others; None: none of that id or name is offered."""
        for segment, link in self._links.items():
            for local, served in link.contracts.items():
                if name in (served.contract.id, f"{segment}.{local}"):
                    return served.explained(f"{segment}.{local}", self._clock.now())
        return None

    async def _take(self, table: ContractTable) -> None:
        offering = offer(contract for one, contract in table.contracts.items() if table.providers.get(one))
        problems = list(offering.problems)
        segments: dict[str, list[Offered]] = {}
        for offered in offering.offered:
            if offered.segment in self._taken:
                problems.append(_taken(offered))
            else:
                segments.setdefault(offered.segment, []).append(offered)
        self.problems = tuple(problems)
        for segment in self._links.keys() - segments.keys():
            self._catalog.drop(self._links.pop(segment))
            del self._listings[segment]
        kept: dict[tuple[bool, bytes], Item] = {}
        for segment, offers in segments.items():
            await self._stock(segment, offers, table, kept)
        self._items = kept

    async def _stock(
        self, segment: str, offers: list[Offered], table: ContractTable, kept: dict[tuple[bool, bytes], Item]
    ) -> None:
        link = self._links.get(segment)
        if link is None:
            link = ContractLink(segment, self._watcher, self._clock, self._guard, self._recorder)
        served = {each.local: self._served(each, table) for each in offers}
        link.contracts = {**link.contracts, **served}
        link.asks = frozenset(each.local for each in offers if each.asks)
        listing = self._listing(offers, kept)
        self._links[segment], self._listings[segment] = link, listing
        await self._catalog.stock(link, listing)
        link.contracts = served

    def _served(self, offered: Offered, table: ContractTable) -> Served:
        drivers = self._plan.drivers
        return Served(
            offered,
            table.providers[offered.contract.id],
            policy=Policy(allow=drivers.policy.allow, deny=drivers.policy.deny, region=drivers.region),
            pinned=drivers.pins.get(offered.contract.id),
            workspace=str(self._plan.workspace),
        )

    def _listing(self, offers: list[Offered], kept: dict[tuple[bool, bytes], Item]) -> Listing:
        digest = hashlib.sha256()
        items = []
        for each in offers:
            written = encode_value(each.item)
            key = (each.asks, written)
            item = kept[key] = self._items.get(key) or {
                name: Raw(encode_value(value)) for name, value in each.item.items()
            }
            digest.update(b"%d%b" % (each.asks, written))
            items.append((each.local, item))
        return Listing(tools=Items(items=tuple(items), digest=digest.digest(), private=False))


def _taken(offered: Offered) -> Problem:
    return offered.contract.places.problem(
        "/metadata/interlock/name" if offered.contract.listed_as is not None else "/id",
        "name_collision",
        f"the segment {offered.segment} is a server's",
        "give the contract another metadata.interlock.name, or the server another segment",
    )
