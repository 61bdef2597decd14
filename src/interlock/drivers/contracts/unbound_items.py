"""What drivers offer besides their contracts, out of what their servers listed: tools that no contract binds, prompts
and resources as declared (AIP-tools-16, AIP-prompts, AIP-resources).

Only what a driver declares is offered, and what it declares and its server lacks is said as a warning; neither prompts
nor resources ever refuse a driver.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import PurePosixPath
from typing import Any, Final

import msgspec

from interlock.drivers.interfaces import Provider
from interlock.drivers.protocol.binding.effects import exposed_item
from interlock.drivers.protocol.binding.uri_access import ResourceKind, matches_template, register_kinds
from interlock.drivers.protocol.model import Driver, Prompt
from interlock.drivers.protocol.problems import FileProblem
from interlock.drivers.protocol.server_name import exposed_segment
from interlock.links.listing import Items
from interlock.mcp.items import Item
from interlock.wire.jsonrpc.codec import encode_value

_EXPRESSION: Final = re.compile(r"\{[^{}]*\}")


class ExposedItem(msgspec.Struct, frozen=True, kw_only=True):
    """Item under a driver's segment. `name` is the offered name and `theirs` the server's own name."""

    provider: Provider
    name: str
    theirs: str
    item: dict[str, Any]
    skill: str | None = None  # of a prompt: the skill it is a block of


class ExposedItems(msgspec.Struct, kw_only=True):
    """Items under one segment, each kind by the offered name."""

    tools: dict[str, ExposedItem] = {}
    prompts: dict[str, ExposedItem] = {}
    resources: dict[str, ExposedItem] = {}
    templates: dict[str, ExposedItem] = {}


class Exposure(msgspec.Struct, frozen=True, kw_only=True):
    segments: Mapping[str, ExposedItems]
    kinds: Mapping[str, ResourceKind]
    problems: tuple[FileProblem, ...]


def expose(providers: Iterable[Provider], contracts: Mapping[str, frozenset[str]]) -> Exposure:
    """Collect the unbound items that drivers expose.

    `contracts` maps a segment to the local names that its contracts have; no other item can use those names.
    """
    drivers = list(providers)
    registered = register_kinds(each.driver for each in drivers)
    problems = list(registered.problems)
    segments: dict[str, ExposedItems] = {}
    for provider in drivers:
        segment = exposed_segment(provider.driver.id)
        builder = _ExposureBuilder(provider, registered.kinds, contracts.get(segment, frozenset()))
        shown = segments.setdefault(segment, ExposedItems())
        for kind in ExposedItems.__struct_fields__:
            for each in builder.of(kind):
                getattr(shown, kind).setdefault(each.name, each)
        problems += builder.problems
    return Exposure(segments=segments, kinds=registered.kinds, problems=tuple(problems))


class _ExposureBuilder:
    def __init__(self, provider: Provider, kinds: Mapping[str, ResourceKind], taken: frozenset[str]) -> None:
        self._provider = provider
        self._driver: Driver = provider.driver
        self._listing = provider.listing
        self._kinds = [kind for kind in kinds.values() if kind.driver == self._driver.key]
        self._taken = taken
        self.problems: list[FileProblem] = []

    def of(self, kind: str) -> Iterator[ExposedItem]:
        yield from {
            "tools": self._tools,
            "prompts": self._prompts,
            "resources": self._resources,
            "templates": self._templates,
        }[kind]()

    def _tools(self) -> Iterator[ExposedItem]:
        if self._driver.interlock.expose != "all" or self._listing is None:  # AIP-tools-16
            return
        bound = {binding.tool_name for binding in self._driver.implements}
        for name, item in self._listing.tools.items:
            if name in bound:
                continue
            if name in self._taken:
                self._warn("", "name_collision", f"a contract is listed where its tool {name} would be")
                continue
            yield self._exposed_item(name, name, exposed_item(_decode(item), self._driver.id))

    def _prompts(self) -> Iterator[ExposedItem]:
        if not self._driver.prompts or self._listing is None:
            return
        if _was_not_listed(self._listing.prompts):
            self._warn("/prompts", "prompts_unsupported", "its server has no prompts")  # AIP-prompts-1
            return
        listed = dict(self._listing.prompts.items)
        for index, prompt in enumerate(self._driver.prompts):
            item = listed.get(prompt.name)
            if item is None:
                # AIP-prompts-1
                self._warn(f"/prompts/{index}/name", "prompt_missing", "its server has no prompt of this name")
            elif prompt.integrate_as == "raw":  # AIP-prompts-2
                yield self._exposed_item(prompt.name, prompt.name, dict(item))
            else:
                name = block_name(prompt)
                described = {} if prompt.description is None else {"description": prompt.description}
                block = self._exposed_item(name, prompt.name, {**item, "name": name, **described})
                yield msgspec.structs.replace(block, skill=skill_of(prompt))

    def _resources(self) -> Iterator[ExposedItem]:
        for uri, item in self._raw_of("resources"):
            if any(matches_template(each, uri) for each in self._raw_templates()):  # AIP-resources-4
                yield self._exposed_item(uri, uri, dict(item))

    def _templates(self) -> Iterator[ExposedItem]:
        for uri, item in self._raw_of("templates"):
            # A template is shown where all that it names would be: its expressions stand for one plain word each.
            if any(each == uri or matches_template(each, _EXPRESSION.sub("x", uri)) for each in self._raw_templates()):
                yield self._exposed_item(uri, uri, dict(item))
        for kind in self._kinds:
            template = f"{kind.name}:{{+uri}}"
            described = next((each.description for each in self._driver.resources if each.description), None)
            members = {} if described is None else {"description": described}
            yield self._exposed_item(template, template, {"uriTemplate": template, "name": kind.name, **members})

    def _raw_templates(self) -> list[str]:
        return [each.uri_template for each in self._driver.resources if each.integrate_as == "raw"]

    def _raw_of(self, kind: str) -> Iterator[tuple[str, Item]]:
        if not self._driver.resources or self._listing is None:
            return
        if _was_not_listed(self._listing.resources):
            if kind == "resources":
                self._warn("/resources", "resources_unsupported", "its server has no resources")
            return
        yield from getattr(self._listing, kind).items

    def _exposed_item(self, name: str, theirs: str, item: dict[str, Any]) -> ExposedItem:
        return ExposedItem(provider=self._provider, name=name, theirs=theirs, item=item)

    def _warn(self, place: str, code: str, message: str) -> None:
        hint = "nothing else of the driver is affected; remove it, or use a server that has it"
        self.problems.append(self._driver.places.problem(place, code, message, hint, severity="warning"))


def skill_of(prompt: Prompt) -> str:
    """Return the name of a skill, which is the folder of its SKILL.md."""
    return PurePosixPath(prompt.skill_ref or "").parent.name


def block_name(prompt: Prompt) -> str:
    """Return the name of the skill block that a prompt becomes (AIP-prompts-3)."""
    return f"{skill_of(prompt)}_{prompt.name}"


def _was_not_listed(items: Items) -> bool:
    """Return whether the server lacks this kind of item. Such a list is never requested and has no digest."""
    return not items.digest


def _decode(item: Item) -> dict[str, Any]:
    value: dict[str, Any] = msgspec.json.decode(encode_value(item))
    return value
