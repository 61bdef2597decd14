"""The contract service: offers the contracts of the registry in the namespace, with one link for each segment.

After each change the registry passes its complete table to `take`. Unchanged links, compiled contracts and items are
kept as the same objects. Therefore running calls keep their providers, and the catalog sees only actual changes. A
segment that belongs to a configured or registered server is not offered; `problems` reports this.
"""

import asyncio
import hashlib
from collections.abc import Mapping
from typing import Any

from msgspec import Raw

from interlock.config.plan import Plan
from interlock.drivers.api import ServedContract, SkillBlock
from interlock.drivers.contracts.contract import CompiledContract, ContractTable
from interlock.drivers.contracts.leased_call import CallServices
from interlock.drivers.contracts.link import ContractLink, ExposedItems, Exposure, expose
from interlock.drivers.protocol.binding.effects import OfferedContract, offer
from interlock.drivers.protocol.problems import FileProblem
from interlock.drivers.protocol.resolver import SelectionPolicy
from interlock.drivers.registry.service import ContractParts
from interlock.links.listing import Items, Listing
from interlock.mcp.items import Item
from interlock.wire.jsonrpc.codec import decode_value, encode_value


class Contracts:
    """The contracts of all drivers, and their items that no contract binds, offered through one link per segment."""

    def __init__(self, parts: ContractParts) -> None:
        """Create the service without any links."""
        self._plan = parts.current.plan
        self.problems: tuple[FileProblem, ...] = ()
        self.links: dict[str, ContractLink] = {}  # by segment
        self._parts = parts
        self._services = CallServices(parts.guard, parts.clock, parts.recorder)
        self._listings: dict[str, Listing] = {}
        self._items: dict[tuple[bool, bytes], Item] = {}  # an item that is as before is the same object again
        # By the id of the contract, with the inputs that it was compiled from.
        self._serving: dict[str, tuple[tuple[object, ...], CompiledContract]] = {}
        self._table = ContractTable()
        self._taking = asyncio.Lock()

    def skills(self) -> dict[str, tuple[SkillBlock, ...]]:
        """Return the skills that drivers contribute to. Each block has the listed name of a prompt and the driver that
        has it.
        """
        skills: dict[str, list[SkillBlock]] = {}
        for segment, link in sorted(self.links.items()):
            for block in link.shown.prompts.values():
                if block.skill is not None:
                    description = block.item.get("description")
                    if isinstance(description, Raw):
                        description = decode_value(description)
                    view = SkillBlock(
                        block=block.name,
                        prompt=f"{segment}.{block.name}",
                        driver=block.provider.driver.key,
                        server_prompt=block.server_name,
                        description=description if isinstance(description, str) else "",
                    )
                    skills.setdefault(block.skill, []).append(view)
        return {skill: tuple(blocks) for skill, blocks in sorted(skills.items())}

    async def take(self, table: ContractTable) -> None:
        """Offer the contracts of `table` in place of those of the previous table."""
        async with self._taking:
            self._table = table
            await self._take(table)

    async def retake(self) -> None:
        """Apply the last table again, because other servers occupied or released segments."""
        async with self._taking:
            await self._take(self._table)

    def replan(self, plan: Plan) -> None:
        """Use the settings of `plan` from the next table on."""
        self._plan = plan

    async def restock(self, segment: str) -> None:
        """List the tools of a segment again, because an operator changed their rules."""
        link = self.links.get(segment)
        if link is not None:
            self._parts.catalog.reconsider(segment)
            await self._parts.catalog.stock_again(link, self._listings[segment])

    async def restock_all(self) -> None:
        """List every segment again, because the rules for tools changed."""
        for segment, link in list(self.links.items()):
            await self._parts.catalog.stock_again(link, self._listings[segment])

    def find_contract(self, name: str) -> ServedContract | None:
        """Return which driver serves a contract at present and why the others do not.

        Return None if no contract with that id or name is offered.
        """
        for segment, link in self.links.items():
            for local, served in link.contracts.items():
                if name in (served.contract.id, f"{segment}.{local}"):
                    return served.describe(f"{segment}.{local}", self._parts.clock)
        return None

    async def _take(self, table: ContractTable) -> None:
        offering = offer(contract for key, contract in table.contracts.items() if table.providers.get(key))
        contracts: dict[str, list[OfferedContract]] = {}
        for offered in offering.offered:
            contracts.setdefault(offered.segment, []).append(offered)
        names = {segment: frozenset(each.local for each in offers) for segment, offers in contracts.items()}
        exposure = expose(table.drivers, names)
        problems = [*offering.problems, *exposure.problems]
        segments = {
            segment: shown
            for segment, shown in exposure.segments.items()
            if shown.tools or shown.prompts or shown.resources or shown.templates
        }
        for segment in [key for key in (contracts.keys() | segments.keys()) if key in self._parts.taken]:
            for offered in contracts.pop(segment, ()):
                place = "/metadata/interlock/name" if offered.contract.listed_as is not None else "/id"
                message = f"the segment {offered.segment} is a server's"
                hint = "give the contract another metadata.interlock.name, or the server another segment"
                problems.append(offered.contract.places.problem(place, "name_collision", message, hint))
            shown = segments.pop(segment, ExposedItems())
            items = (*shown.tools.values(), *shown.prompts.values())
            items += (*shown.resources.values(), *shown.templates.values())
            for driver in {each.provider.driver.key: each.provider.driver for each in items}.values():
                message = f"what it offers besides contracts would be listed under {segment}, a server's segment"
                hint = "give the driver another id"
                problems.append(driver.places.problem("/id", "name_collision", message, hint, severity="warning"))
        self.problems = tuple(problems)
        self._parts.keep(contracts.keys() | segments.keys())
        for segment in self.links.keys() - contracts.keys() - segments.keys():
            self._parts.catalog.drop(self.links.pop(segment))
            del self._listings[segment]
        self._serving = {key: entry for key, entry in self._serving.items() if key in table.contracts}
        before, self._items = self._items, {}
        for segment in sorted(contracts.keys() | segments.keys()):
            offers, shown = contracts.get(segment, []), segments.get(segment, ExposedItems())
            await self._stock(segment, offers, shown, table, exposure, before)

    async def _stock(
        self,
        segment: str,
        offers: list[OfferedContract],
        shown: ExposedItems,
        table: ContractTable,
        exposure: Exposure,
        before: Mapping[tuple[bool, bytes], Item],
    ) -> None:
        """Offer these contracts and other items in one segment. `before` holds the items of the previous table, to be
        reused.
        """
        link = self.links.get(segment)
        if link is None:
            link = ContractLink(segment, self._parts.link_events, self._services)
        served = {each.local: self._compiled_contract(each, table) for each in offers}
        link.contracts = {**link.contracts, **served}  # a contract that is about to leave is still listed
        link.shown = shown
        link.kinds = exposure.kinds
        link.providers = {provider.driver.key: provider for provider in table.drivers}
        link.asks = frozenset(each.local for each in offers if each.asks)
        link.offers("prompts", bool(shown.prompts))
        link.offers("resources", bool(shown.resources or shown.templates))
        lists = {
            kind: [(each.name, each.item, False) for each in getattr(shown, kind).values()]
            for kind in ExposedItems.__struct_fields__
        }
        lists["tools"] = [*((each.local, each.item, each.asks) for each in offers), *lists["tools"]]
        listing = Listing(**{kind: self._build_items(things, before) for kind, things in lists.items()})
        self.links[segment], self._listings[segment] = link, listing
        await self._parts.catalog.stock(link, listing)
        link.contracts = served

    def _compiled_contract(self, offered: OfferedContract, table: ContractTable) -> CompiledContract:
        """Return the compiled contract. While its inputs are unchanged, return the same object, because compilation is
        slow.
        """
        drivers, contract = self._plan.drivers, offered.contract
        policy = SelectionPolicy(allow=drivers.policy.allow, deny=drivers.policy.deny, region=drivers.region)
        made_of = (contract, table.providers[contract.id], policy, drivers.pins.get(contract.id), self._plan.workspace)
        entry = self._serving.get(contract.id)
        if entry is None or entry[0] != made_of:
            _, providers, _, pinned, workspace = made_of
            served = CompiledContract(offered, providers, policy=policy, pinned=pinned, workspace=str(workspace))
            entry = self._serving[contract.id] = (made_of, served)
        return entry[1]

    def _build_items(
        self, things: list[tuple[str, dict[str, Any], bool]], before: Mapping[tuple[bool, bytes], Item]
    ) -> Items:
        """Build the items of a list. Each tuple has a name, an item, and whether a person must confirm each call.

        The confirmation is part of the digest, because a route depends on it as well as on the item.
        """
        digest = hashlib.sha256()
        items = []
        for name, item, asks in things:
            written = encode_value(item)
            key = (asks, written)
            raw = {member: Raw(encode_value(value)) for member, value in item.items()}
            stored = self._items[key] = before.get(key) or raw
            digest.update(b"%d%d %b" % (asks, len(written), written))
            items.append((name, stored))
        return Items(items=tuple(items), digest=digest.digest() if items else b"", private=False)
