"""The contract service and its links: offer the contracts of the registry in the namespace, one link for each segment.

After each change the registry passes its complete table to `Contracts.take`. Unchanged links, compiled contracts and
items are kept as the same objects. Therefore running calls keep their providers, and the catalog sees only actual
changes. A segment that belongs to a configured or registered server is not offered; `problems` reports this.

A `ContractLink` offers the contracts of one segment as if a single server had all of them. The catalog, the guard and
the clients see a link that is always up. There is no server behind it: an admitted call chooses its driver and is sent
over a link that it leases. The guard checks the input before it asks for approval. The check needs no driver, and no
person should approve a call that cannot be sent.

A segment also lists items that drivers offer without a contract (`expose`): tools that no contract binds, prompts and
resources (AIP-tools-16, AIP-prompts, AIP-resources). Prompts and resources are offered only if the driver declares
them. With `expose: all`, every tool that no contract binds is offered. A declared prompt that the server lacks, or a
server without any resources, causes a warning and never makes a driver unusable.
"""

import asyncio
import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import PurePosixPath
from typing import Any, Final, Literal

import msgspec
from msgspec import Raw

from interlock.catalog.routes import TOOL, Route
from interlock.config.plan import Plan
from interlock.config.plan_servers import DefinitionPolicy
from interlock.core.calls.call import Call, CallFactory
from interlock.core.calls.check import RELISTED, Admitted
from interlock.core.link_state import LinkState, Outlook
from interlock.drivers.api import ServedContract, SkillBlock
from interlock.drivers.contracts.call import ContractCall, LeasedCall, PassthroughCall
from interlock.drivers.contracts.contract import CompiledContract, ContractTable
from interlock.drivers.protocol.binding import uri_access
from interlock.drivers.protocol.binding.effects import OfferedContract, exposed_item, offer
from interlock.drivers.protocol.model import Driver
from interlock.drivers.protocol.problems import DriverRefusal, FileProblem
from interlock.drivers.protocol.resolver import SelectionPolicy
from interlock.drivers.protocol.server_name import exposed_segment
from interlock.drivers.provider.provider import DriverProvider
from interlock.drivers.registry.service import ContractParts
from interlock.links.link import Link, ServerFacts
from interlock.links.listing import Items, Listing
from interlock.mcp import methods
from interlock.mcp.items import Item
from interlock.mcp.meta import RAW_EMPTY
from interlock.mcp.methods import LATEST_MODERN, Era
from interlock.mcp.modern_requests import modern_head
from interlock.wire.jsonrpc.codec import encode_value, find_string
from interlock.wire.refusal import INVALID_PARAMS, Refusal

_EXPRESSION: Final = re.compile(r"\{[^{}]*\}")


class ExposedItem(msgspec.Struct, frozen=True):
    """A tool, prompt or resource of a driver's server that clients may use although no contract describes it. Clients
    see it as `name`; the server calls it `server_name`.
    """

    kind: Literal["tools", "prompts", "resources", "templates"]
    provider: DriverProvider
    name: str
    server_name: str
    item: dict[str, Any]
    skill: str | None = None  # of a prompt that is a block of a skill


class ExposedItems(msgspec.Struct, kw_only=True):
    """The items of one segment that no contract describes. Each mapping holds one kind of item, by the name that
    clients see.
    """

    tools: dict[str, ExposedItem] = {}
    prompts: dict[str, ExposedItem] = {}
    resources: dict[str, ExposedItem] = {}
    templates: dict[str, ExposedItem] = {}


class Exposure(msgspec.Struct, frozen=True, kw_only=True):
    """Result of `expose`: by segment, the tools, prompts and resources of drivers that no contract describes. It also
    has the kinds of resource references that drivers declare.
    """

    segments: Mapping[str, ExposedItems]
    kinds: Mapping[str, uri_access.ResourceKind]
    problems: tuple[FileProblem, ...]


def expose(providers: Iterable[DriverProvider], contracts: Mapping[str, frozenset[str]]) -> Exposure:
    """Collect the tools, prompts and resources of drivers that no contract describes.

    `contracts` maps each segment to the local names of its contracts, which no tool without a contract may use.
    """
    drivers = list(providers)
    registered = uri_access.register_kinds(each.driver for each in drivers)
    problems = list(registered.problems)
    segments: dict[str, ExposedItems] = {}
    for provider in drivers:
        segment = exposed_segment(provider.driver.id)
        shown = segments.setdefault(segment, ExposedItems())
        kinds = [kind.name for kind in registered.kinds.values() if kind.driver == provider.driver.key]
        for each in (
            *_exposed_tools(provider, contracts.get(segment, frozenset())),
            *_exposed_prompts(provider),
            *_exposed_resources(provider, kinds),
        ):
            if isinstance(each, FileProblem):
                problems.append(each)
            else:
                getattr(shown, each.kind).setdefault(each.name, each)
    return Exposure(segments=segments, kinds=registered.kinds, problems=tuple(problems))


def _warning(driver: Driver, place: str, code: str, message: str) -> FileProblem:
    hint = "nothing else of the driver is affected; remove it, or use a server that has it"
    return driver.places.problem(place, code, message, hint, severity="warning")


def _exposed_tools(provider: DriverProvider, taken: frozenset[str]) -> Iterator[ExposedItem | FileProblem]:
    """Yield the tools of a driver's server that no contract describes, and a warning for each whose name is already
    taken. `taken` are the names of contracts in the same segment.
    """
    driver, listing = provider.driver, provider.listing
    if driver.interlock.expose != "all" or listing is None:  # AIP-tools-16
        return
    bound = {binding.tool_name for binding in driver.implements}
    for name, item in listing.tools.items:
        if name in bound:
            continue
        if name in taken:
            yield _warning(driver, "", "name_collision", f"a contract is listed where its tool {name} would be")
        else:
            unbound = exposed_item(msgspec.json.decode(encode_value(item)), driver.id)
            yield ExposedItem("tools", provider, name, name, unbound)


def _exposed_prompts(provider: DriverProvider) -> Iterator[ExposedItem | FileProblem]:
    """Yield the prompts that the driver declares, and a warning for each that the server lacks."""
    driver, listing = provider.driver, provider.listing
    if not driver.prompts or listing is None:
        return
    # A list that the server does not support is never requested and has no digest.
    if not listing.prompts.digest:
        yield _warning(driver, "/prompts", "prompts_unsupported", "its server has no prompts")  # AIP-prompts-1
        return
    listed = dict(listing.prompts.items)
    for index, prompt in enumerate(driver.prompts):
        item = listed.get(prompt.name)
        if item is None:
            # AIP-prompts-1
            place, message = f"/prompts/{index}/name", "its server has no prompt of this name"
            yield _warning(driver, place, "prompt_missing", message)
        elif prompt.integrate_as == "raw":  # AIP-prompts-2
            yield ExposedItem("prompts", provider, prompt.name, prompt.name, dict(item))
        else:
            # A prompt with integrate_as: skill_block is a block of the skill whose folder skill_ref names.
            skill = PurePosixPath(prompt.skill_ref or "").parent.name
            name = f"{skill}_{prompt.name}"  # AIP-prompts-3
            described = {} if prompt.description is None else {"description": prompt.description}
            yield ExposedItem("prompts", provider, name, prompt.name, {**item, "name": name, **described}, skill)


def _exposed_resources(provider: DriverProvider, kinds: Iterable[str]) -> Iterator[ExposedItem | FileProblem]:
    """Yield the resources and resource templates of a driver's server that clients may read directly. `kinds` are the
    kinds of resource references that the driver declares, such as mcp_notes; each becomes a template.
    """
    driver, listing = provider.driver, provider.listing
    raw = [each.uri_template for each in driver.resources if each.integrate_as == "raw"]
    if driver.resources and listing is not None:
        if not listing.resources.digest:
            yield _warning(driver, "/resources", "resources_unsupported", "its server has no resources")
            listing = Listing()
        for uri, item in listing.resources.items:
            if any(uri_access.matches_template(each, uri) for each in raw):  # AIP-resources-4
                yield ExposedItem("resources", provider, uri, uri, dict(item))
        for uri, item in listing.templates.items:
            # A template is shown where all that it names would be: its expressions stand for one plain word each.
            if any(each == uri or uri_access.matches_template(each, _EXPRESSION.sub("x", uri)) for each in raw):
                yield ExposedItem("templates", provider, uri, uri, dict(item))
    described = next(({"description": each.description} for each in driver.resources if each.description), {})
    for kind in kinds:
        template = f"{kind}:{{+uri}}"
        item_of_kind = {"uriTemplate": template, "name": kind, **described}
        yield ExposedItem("templates", provider, template, template, item_of_kind)


_NO_RESOURCE: Final = Refusal(INVALID_PARAMS, "Resource not found", {"reason": "resource_unavailable"})
_ItemCache = dict[tuple[bool, bytes], Item]  # by whether a person must confirm calls, and the encoded item
_METHOD: Final = Call.__struct_fields__.index("method")
_PARAMS: Final = Call.__struct_fields__.index("params")


class ContractLink(Link):
    """Link behind one segment of the namespace. It lists contracts and other tools, prompts and resources of drivers,
    and creates a call for each request.
    """

    checks_input = True

    def __init__(self, segment: str, parts: ContractParts) -> None:
        super().__init__(segment, parts.link_events, parts.clock, kind="contracts", transport="none")
        self._parts = parts
        self.contracts: Mapping[str, CompiledContract] = {}  # by their local names
        self.shown = ExposedItems()
        self.kinds: Mapping[str, uri_access.ResourceKind] = {}  # of references to resources, of all drivers
        self.providers: Mapping[str, DriverProvider] = {}  # by the keys of all drivers
        self.greeted(ServerFacts(era=Era.MODERN, version=LATEST_MODERN))
        self.set_state(LinkState.READY, None)

    def offers(self, capability: str, has: bool) -> None:
        """Add a capability to those that the link announces, or remove it. `has` says whether the link has the
        capability.
        """
        assert self.facts is not None  # noqa: S101  (greeted above)
        capabilities = {name: raw for name, raw in self.facts.capabilities.items() if name != capability}
        capabilities |= {capability: RAW_EMPTY} if has else {}
        self.facts = msgspec.structs.replace(self.facts, capabilities=capabilities)

    def send(self, admitted: Admitted[Call]) -> None:
        call = admitted.command
        self.calls += 1
        assert isinstance(call, LeasedCall)  # noqa: S101  (the guard refuses a withdrawn tool)
        call.send_admitted(admitted)

    def definition_policy(self, name: str, kind: str) -> DefinitionPolicy:
        """Return what clients see of an item after its definition has changed. For an item that no contract describes,
        the setting of its driver decides. Contracts and kinds of resource references always have `notify`, because a
        person accepted their files.
        """
        shown: dict[str, ExposedItem] = getattr(self.shown, f"{kind}s", {})
        exposed = shown.get(name) if kind != TOOL or name not in self.contracts else None
        if exposed is None or (kind == "template" and name.removesuffix(":{+uri}") in self.kinds):
            return "notify"
        return self._parts.current.plan.drivers.definitions.get(exposed.provider.driver.id, "accept")

    def find_outlook(self, tool: str) -> Outlook | None:
        """Return which driver would serve this tool, or None if the tool is not a contract of this segment."""
        served = self.contracts.get(tool)
        return None if served is None else served.outlook(self._parts.clock)

    @property
    def call_type(self) -> CallFactory:  # type: ignore[override]
        return self._new_tool_call

    def _new_tool_call(self, *fields: Any) -> Call:
        """Create the call of a tool. `fields` are the positional arguments of `Call`; the last one is the route."""
        route: Route = fields[-1]
        served = self.contracts.get(route.original)
        if served is not None:
            params = dict(fields[_PARAMS])
            contract_call = ContractCall(*fields, services=self._parts, client_params=params, served=served)
            contract_call.approved, contract_call.timeout_s = route.is_held, served.timeout_s
            return contract_call
        exposed = self.shown.tools.get(route.original)
        if exposed is None:
            return _WithdrawnToolCall(*fields)
        call = self._new_raw_call(exposed.provider, {"name": route.wire_name}, *fields)
        call.approved = route.is_held
        return call

    def new_request(self, what: str, *fields: Any) -> Call:
        """Create the call of a request other than tools/call. `what` is the name of a prompt or the URI of a resource.

        If it is no longer offered, the call is already refused.
        """
        method = fields[_METHOD]
        if method == methods.RESOURCES_READ:
            return self._new_read_call(what, *fields)
        shown = self.shown.prompts.get(what)
        if method == methods.COMPLETE and shown is None:
            shown = self.shown.templates.get(what) or self.shown.resources.get(what)
        if shown is None:
            return _refuse(Call(*fields), RELISTED)
        params: dict[str, Any] = fields[_PARAMS]
        if method == methods.COMPLETE:
            member = "name" if what in self.shown.prompts else "uri"
            return self._new_raw_call(shown.provider, {"ref": {**params["ref"], member: shown.server_name}}, *fields)
        call = self._new_raw_call(shown.provider, {"name": shown.server_name}, *fields)
        call.head = modern_head(methods.PROMPTS_GET, shown.server_name)
        return call

    def _new_read_call(self, uri: str, *fields: Any) -> Call:
        """Create the call that reads `uri`, which may be a listed resource, a match of a listed template, or a
        reference such as mcp_notes:URI.
        """
        sha256 = None
        if uri.startswith(uri_access.REFERENCE_PREFIX):
            ref = uri_access.parse_reference(uri, self.kinds)
            if isinstance(ref, DriverRefusal):
                refusal = Refusal(INVALID_PARAMS, f"{ref.code}: {ref.message}", {"reason": ref.code})
                return _refuse(Call(*fields), refusal)
            provider = self.providers.get(self.kinds[ref.kind].driver)
            uri, sha256 = ref.uri, ref.sha256
        else:
            templates = self.shown.templates.items()
            matching = (item for template, item in templates if uri_access.matches_template(template, uri))
            shown = self.shown.resources.get(uri) or next(matching, None)
            provider = shown.provider if shown is not None else None
        if provider is None:
            return _refuse(Call(*fields), _NO_RESOURCE)
        call = self._new_raw_call(provider, {"uri": uri}, *fields)
        call.uri, call.sha256 = uri, sha256
        call.head = modern_head(methods.RESOURCES_READ, uri)
        if provider.listing is not None and not provider.listing.resources.digest:
            call.fail(DriverRefusal("resource_unavailable", "the server has no resources"))
        return call

    def _new_raw_call(self, provider: DriverProvider, server_params: dict[str, Any], *fields: Any) -> PassthroughCall:
        return PassthroughCall(
            *fields,
            services=self._parts,
            client_params=dict(fields[_PARAMS]),
            provider=provider,
            server_params=server_params,
        )


class _WithdrawnToolCall(Call, eq=False):
    """Call of a tool that the client saw in a list but that is no longer offered."""

    def argument_refusal(self) -> Refusal:
        return RELISTED


def _refuse(call: Call, refusal: Refusal) -> Call:
    call.refuse(refusal, 200)
    return call


class Contracts:
    """Service that offers the contracts of all drivers to clients, and also the tools, prompts and resources that no
    contract describes. Each segment has one link.
    """

    def __init__(self, parts: ContractParts) -> None:
        """Create the service without any links."""
        self._plan = parts.current.plan
        self.problems: tuple[FileProblem, ...] = ()
        self.links: dict[str, ContractLink] = {}  # by segment
        self._parts = parts
        self._listings: dict[str, Listing] = {}
        self._items: _ItemCache = {}  # an item that is as before is the same object again
        # By the id of the contract, with the inputs that it was compiled from.
        self._serving: dict[str, tuple[tuple[object, ...], CompiledContract]] = {}
        self._table = ContractTable()
        self._taking = asyncio.Lock()

    def skills(self) -> dict[str, tuple[SkillBlock, ...]]:
        """Return the prompts that drivers add to skills, by the name of the skill."""
        skills: dict[str, list[SkillBlock]] = {}
        for segment, link in sorted(self.links.items()):
            for block in link.shown.prompts.values():
                if block.skill is not None:
                    description = block.item.get("description")
                    view = SkillBlock(
                        block=block.name,
                        prompt=f"{segment}.{block.name}",
                        driver=block.provider.driver.key,
                        server_prompt=block.server_name,
                        description=description if isinstance(description, str) else find_string(description) or "",
                    )
                    skills.setdefault(block.skill, []).append(view)
        return {skill: tuple(blocks) for skill, blocks in sorted(skills.items())}

    async def take(self, table: ContractTable) -> None:
        """Replace the table of offered contracts, and offer the contracts of the new table."""
        async with self._taking:
            self._table = table
            await self._take()

    async def retake(self) -> None:
        """Offer the contracts of the present table again, because other servers may have begun or ceased to use the
        same segments.
        """
        async with self._taking:
            await self._take()

    def replan(self, plan: Plan) -> None:
        """Set the configuration that is used when contracts are offered the next time."""
        self._plan = plan

    async def restock(self, segment: str) -> None:
        """Put the tools of one segment into the catalog again, because an operator has changed the rules for them."""
        link = self.links.get(segment)
        if link is not None:
            self._parts.catalog.reconsider(segment)
            await self._parts.catalog.stock_again(link, self._listings[segment])

    async def restock_all(self) -> None:
        """Put the tools of every segment into the catalog again, because the rules for tools have changed."""
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

    async def _take(self) -> None:
        table = self._table
        offering = offer(contract for key, contract in table.contracts.items() if table.providers.get(key))
        contracts: dict[str, list[OfferedContract]] = {}
        for offered in offering.offered:
            contracts.setdefault(offered.segment, []).append(offered)
        names = {segment: frozenset(each.local for each in offers) for segment, offers in contracts.items()}
        exposure = expose(table.drivers, names)
        problems = [*offering.problems, *exposure.problems]
        segments = {segment: shown for segment, shown in exposure.segments.items() if shown != ExposedItems()}
        unlisted: dict[str, str] = {}  # by the key of a driver, why something that it offers is not listed
        for segment in [key for key in (contracts.keys() | segments.keys()) if key in self._parts.taken]:
            taken = f"the name {segment} belongs to another server, and the tools below it are that server's"
            for offered in contracts.pop(segment, ()):
                place = "/metadata/interlock/name" if offered.contract.listed_as is not None else "/id"
                message = f"the segment {offered.segment} is a server's"
                hint = "give the contract another metadata.interlock.name, or the server another segment"
                problems.append(offered.contract.places.problem(place, "name_collision", message, hint))
                unlisted |= {each.driver.key: taken for each in table.providers[offered.contract.id]}
            shown = segments.pop(segment, ExposedItems())
            items = (*shown.tools.values(), *shown.prompts.values())
            items += (*shown.resources.values(), *shown.templates.values())
            for driver in {each.provider.driver.key: each.provider.driver for each in items}.values():
                message = f"what it offers besides contracts would be listed under {segment}, a server's segment"
                hint = "give the driver another id"
                problems.append(driver.places.problem("/id", "name_collision", message, hint, severity="warning"))
                unlisted[driver.key] = taken
        for provider in table.drivers:
            why = unlisted.get(provider.driver.key)
            provider.unlisted = None if why is None else f"{why}; give the driver another id, or rename that server"
        self.problems = tuple(problems)
        self._parts.keep(contracts.keys() | segments.keys())
        for segment in self.links.keys() - contracts.keys() - segments.keys():
            self._parts.catalog.drop(self.links.pop(segment))
            del self._listings[segment]
        self._serving = {key: entry for key, entry in self._serving.items() if key in table.contracts}
        before, self._items = self._items, {}
        for segment in sorted(contracts.keys() | segments.keys()):
            offers, shown = contracts.get(segment, []), segments.get(segment, ExposedItems())
            await self._list_segment(segment, offers, shown, exposure, before)

    async def _list_segment(
        self, segment: str, offers: list[OfferedContract], shown: ExposedItems, exposure: Exposure, before: _ItemCache
    ) -> None:
        """List contracts and other items of drivers under one segment of the namespace. `before` holds items that were
        built earlier and are reused if they are unchanged.
        """
        link = self.links.get(segment)
        if link is None:
            link = ContractLink(segment, self._parts)
        served = {each.local: self._compiled_contract(each) for each in offers}
        link.contracts = {**link.contracts, **served}  # a contract that is about to leave is still listed
        link.shown = shown
        link.kinds = exposure.kinds
        link.providers = {provider.driver.key: provider for provider in self._table.drivers}
        link.asks = frozenset(each.local for each in offers if each.asks)
        link.offers("prompts", bool(shown.prompts))
        link.offers("resources", bool(shown.resources or shown.templates))
        kinds = ExposedItems.__struct_fields__
        lists = {kind: [(each.name, each.item, False) for each in getattr(shown, kind).values()] for kind in kinds}
        lists["tools"] = [*((each.local, each.item, each.asks) for each in offers), *lists["tools"]]
        listing = Listing(**{kind: self._build_items(things, before) for kind, things in lists.items()})
        self.links[segment], self._listings[segment] = link, listing
        await self._parts.catalog.stock(link, listing)
        link.contracts = served

    def _compiled_contract(self, offered: OfferedContract) -> CompiledContract:
        """Return the compiled contract. Return the same object as long as its inputs are unchanged, because compiling
        is slow.
        """
        drivers, contract, workspace = self._plan.drivers, offered.contract, str(self._plan.workspace)
        policy = SelectionPolicy(allow=drivers.policy.allow, deny=drivers.policy.deny, region=drivers.region)
        providers, pinned = self._table.providers[contract.id], drivers.pins.get(contract.id)
        made_of = (contract, providers, policy, pinned, workspace)
        entry = self._serving.get(contract.id)
        if entry is None or entry[0] != made_of:
            entry = self._serving[contract.id] = (made_of, CompiledContract(*made_of))
        return entry[1]

    def _build_items(self, things: list[tuple[str, dict[str, Any], bool]], before: _ItemCache) -> Items:
        """Build one list that clients see, such as that of tools. Each tuple has a name, an item, and whether a person
        must confirm each call.

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
