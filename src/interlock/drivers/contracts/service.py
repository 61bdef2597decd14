"""The contract service: offers the registry's contracts as links in the namespace, one for each segment.

`take` is awaited with every change; what is offered as before is not touched, and a call under way keeps the providers
it began with.
"""

import asyncio
import hashlib
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from msgspec import Raw

from interlock.catalog.catalog import Catalog
from interlock.catalog.routes import Route
from interlock.config.plan import Plan
from interlock.core.clock import Clock
from interlock.core.recorder import Recorder
from interlock.drivers.api import ServedContract, SkillBlock
from interlock.drivers.contracts.contract import CompiledContract, ContractTable
from interlock.drivers.contracts.link import ContractLink
from interlock.drivers.contracts.unbound_items import ExposedItems, Exposure, expose
from interlock.drivers.protocol.binding.effects import OfferedContract, offer
from interlock.drivers.protocol.model import Driver
from interlock.drivers.protocol.problems import FileProblem
from interlock.drivers.protocol.resolver import DriverResolution, SelectionPolicy
from interlock.guard.guard import Guard
from interlock.links.link import LinkEvents
from interlock.links.listing import Items, Listing
from interlock.mcp.items import Item
from interlock.wire.jsonrpc.codec import decode_value, encode_value

log = logging.getLogger("interlock.drivers")


class Contracts:
    def __init__(
        self,
        plan: Plan,
        *,
        catalog: Catalog,
        taken: Mapping[str, object],
        link_events: LinkEvents,
        clock: Clock,
        guard: Guard[Route],
        recorder: Recorder,
        keep: Callable[[Iterable[str]], None],
    ) -> None:
        """Create the service without any links.

        `taken` holds the segments of servers and registrants. `keep` receives the segments that must not be registered.
        """
        self._plan = plan
        self._catalog = catalog
        self._taken = taken
        self._link_events = link_events
        self._clock = clock
        self._guard = guard
        self._recorder = recorder
        self._keep = keep
        self._links: dict[str, ContractLink] = {}
        self._listings: dict[str, Listing] = {}
        self._items: dict[tuple[bool, bytes], Item] = {}  # an item that is as before is the same object again
        self._serving: dict[
            str, tuple[tuple[object, ...], CompiledContract]
        ] = {}  # by the contracts' ids, with what each is of
        self._table = ContractTable()
        self._taking = asyncio.Lock()
        self.problems: tuple[FileProblem, ...] = ()

    @property
    def links(self) -> Mapping[str, ContractLink]:
        return self._links

    def skills(self) -> dict[str, tuple[SkillBlock, ...]]:
        """Return every skill that has blocks, with the listed prompt and the driver of each block."""
        skills: dict[str, list[SkillBlock]] = {}
        for segment, link in sorted(self._links.items()):
            for block in link.shown.prompts.values():
                if block.skill is not None:
                    view = SkillBlock(
                        block=block.name,
                        prompt=f"{segment}.{block.name}",
                        driver=block.provider.driver.key,
                        server_prompt=block.theirs,
                        description=_text(block.item.get("description")),
                    )
                    skills.setdefault(block.skill, []).append(view)
        return {skill: tuple(blocks) for skill, blocks in sorted(skills.items())}

    async def take(self, table: ContractTable) -> None:
        async with self._taking:
            self._table = table
            await self._take(table)

    async def retake(self) -> None:
        """Apply the table again, because servers took or released segments."""
        async with self._taking:
            await self._take(self._table)

    def maybe_resolution(self, contract: str) -> DriverResolution | None:
        """Return which driver would serve a call of the contract with this id, and why, or None if it is not
        offered.
        """
        entry = self._serving.get(contract)
        return None if entry is None else entry[1].decide({}, None, self._clock).resolution

    def replan(self, plan: Plan) -> None:
        self._plan = plan

    async def restock(self, segment: str) -> None:
        """List the tools of a segment again, because an operator changed their rules."""
        link = self._links.get(segment)
        if link is not None:
            self._catalog.reconsider(segment)
            await self._catalog.stock_again(link, self._listings[segment])

    async def restock_all(self) -> None:
        """List every segment again, because the rules for tools changed."""
        for segment, link in list(self._links.items()):
            await self._catalog.stock_again(link, self._listings[segment])

    def explained(self, name: str) -> ServedContract | None:
        """Return which driver serves a contract now, and why not the others, or None if no contract of that id or
        name is offered.
        """
        for segment, link in self._links.items():
            for local, served in link.contracts.items():
                if name in (served.contract.id, f"{segment}.{local}"):
                    return served.explained(f"{segment}.{local}", self._clock)
        return None

    async def _take(self, table: ContractTable) -> None:
        offering = offer(contract for key, contract in table.contracts.items() if table.providers.get(key))
        contracts: dict[str, list[OfferedContract]] = {}
        for offered in offering.offered:
            contracts.setdefault(offered.segment, []).append(offered)
        names = {segment: frozenset(each.local for each in offers) for segment, offers in contracts.items()}
        exposure = expose(table.drivers, names)
        problems = [*offering.problems, *exposure.problems]
        segments = {key: shown for key, shown in exposure.segments.items() if _is_any(shown)}
        for segment in [key for key in (contracts.keys() | segments.keys()) if key in self._taken]:
            problems += [_segment_problem(each) for each in contracts.pop(segment, ())]
            problems += [
                _server_segment_problem(each, segment) for each in _drivers_of(segments.pop(segment, ExposedItems()))
            ]
        self.problems = tuple(problems)
        self._keep(contracts.keys() | segments.keys())
        for segment in self._links.keys() - contracts.keys() - segments.keys():
            self._catalog.drop(self._links.pop(segment))
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
        link = self._links.get(segment)
        if link is None:
            link = ContractLink(segment, self._link_events, self._clock, self._guard, self._recorder)
        served = {each.local: self._compiled_contract(each, table) for each in offers}
        link.contracts = {**link.contracts, **served}  # what is about to leave is still listed
        link.shown = shown
        link.kinds = exposure.kinds
        link.providers = {provider.driver.key: provider for provider in table.drivers}
        link.asks = frozenset(each.local for each in offers if each.asks)
        link.offers("prompts", bool(shown.prompts))
        link.offers("resources", bool(shown.resources or shown.templates))
        tools = [(each.local, each.item, each.asks) for each in offers]
        tools += [(each.name, each.item, False) for each in shown.tools.values()]
        listing = Listing(
            tools=self._build_items(tools, before),
            prompts=self._build_items([(each.name, each.item, False) for each in shown.prompts.values()], before),
            resources=self._build_items([(each.name, each.item, False) for each in shown.resources.values()], before),
            templates=self._build_items([(each.name, each.item, False) for each in shown.templates.values()], before),
        )
        self._links[segment], self._listings[segment] = link, listing
        await self._catalog.stock(link, listing)
        link.contracts = served

    def _compiled_contract(self, offered: OfferedContract, table: ContractTable) -> CompiledContract:
        """Return the compiled contract, the same object while its inputs are unchanged, because compiling schemas is
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
        """Build the items of a listing from tuples of name, item, and whether a person confirms each call.

        The confirmation is part of the digest, because a route depends on it as on its item.
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


def _text(value: Any) -> str:
    text = decode_value(value) if isinstance(value, Raw) else value
    return text if isinstance(text, str) else ""


def _is_any(shown: ExposedItems) -> bool:
    return bool(shown.tools or shown.prompts or shown.resources or shown.templates)


def _drivers_of(shown: ExposedItems) -> list[Driver]:
    things = (*shown.tools.values(), *shown.prompts.values(), *shown.resources.values(), *shown.templates.values())
    return list({each.provider.driver.key: each.provider.driver for each in things}.values())


def _server_segment_problem(driver: Driver, segment: str) -> FileProblem:
    message = f"what it offers besides contracts would stand under {segment}, which is a server's segment"
    return driver.places.problem("/id", "name_collision", message, "give the driver another id", severity="warning")


def _segment_problem(offered: OfferedContract) -> FileProblem:
    return offered.contract.places.problem(
        "/metadata/interlock/name" if offered.contract.listed_as is not None else "/id",
        "name_collision",
        f"the segment {offered.segment} is a server's",
        "give the contract another metadata.interlock.name, or the server another segment",
    )
