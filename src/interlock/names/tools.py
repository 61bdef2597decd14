"""The registry as MCP tools: look up, check, verify and request a name. None of them decides (REG-9-5).

The tools are listed under the segment `names` while `registry.tools` is set. Calls go through catalog, guard and link
like calls of any other tool; the link leads to the node itself. Before each call the state reads what other processes
have appended. Refusals of the registry become tool errors with a code, so that a model can react to them.
"""

from collections.abc import Awaitable, Callable, Iterator
from typing import Final, TypeVar

import msgspec
from msgspec import Raw

from interlock.catalog.catalog import Catalog
from interlock.catalog.routes import local_items
from interlock.config.plan import Plan
from interlock.core.clock import Clock
from interlock.links.link import LinkEvents, LocalLink, LocalTool, ToolHandler, ToolResult
from interlock.names.actions import name_check, name_verification, outcome_document
from interlock.names.protocol.publication import published_entry
from interlock.names.protocol.registry import NameProposal
from interlock.names.registry_parts import NameParts
from interlock.names.state import Actor
from interlock.store.ports import StoreError
from interlock.wire.refusal import NotFound, Refused

_T = TypeVar("_T")
SEGMENT: Final = "names"
_TEXT: Final = {"type": "string"}
_SCHEMA: Final = {"type": "object"}
_PROPOSAL: Final = {
    "type": "object",
    "properties": {
        "surface_name": {"type": "string", "maxLength": 64},
        "change_controller": _TEXT,
        "specification_reference": _TEXT,
        "authentication_scope": _TEXT,
        "vendor_prefix": _TEXT,
        "status": {"enum": ["Active", "Provisional"]},
        "argument_schema": _SCHEMA,
        "return_schema": _SCHEMA,
        "semantics": _TEXT,
        "cross_vendor": {"type": "boolean"},
        "no_authentication_planned": {"type": "boolean"},
        "contact": _TEXT,
        "previous": _TEXT,
    },
    "required": ["surface_name", "change_controller"],
    "additionalProperties": False,
}
_LOOKUP: Final = {"type": "object", "properties": {"name": _TEXT}, "required": ["name"]}
_DEFINITION: Final = {"type": "object", "properties": {"inputSchema": _SCHEMA, "outputSchema": _SCHEMA}}
_NAMED_DEFINITION: Final = {"name": _TEXT, "definition": _DEFINITION}
_VERIFY: Final = {"type": "object", "properties": _NAMED_DEFINITION, "required": ["name", "definition"]}


_DESCRIPTIONS: Final = {
    "check": "Run the machine checks of a request for a tool surface name, and file nothing.",
    "lookup": "Look up a tool surface name: what it means, who may change it, and its status.",
    "request": "Ask for a tool surface name. A person decides.",
    "verify": "Compare a tool's definition with the registered specification of its name.",
}


class _Lookup(msgspec.Struct, frozen=True):
    """The arguments of `lookup`."""

    name: str


class _Verify(msgspec.Struct, frozen=True):
    """The arguments of `verify`."""

    name: str
    definition: dict[str, Raw]


class NamesTools:
    """The tools of the registry, which are listed while `registry.tools` is set."""

    def __init__(self, catalog: Catalog, events: LinkEvents, clock: Clock, parts: NameParts, plan: Plan) -> None:
        self._catalog = catalog
        self._plan = plan
        self._state, self._actions = parts.state, parts.actions
        self._link = LocalLink(
            (SEGMENT,),
            events,
            clock,
            tools=tuple(
                LocalTool(
                    name=name,
                    description=_DESCRIPTIONS[name],
                    input_schema=schema,
                    handler=handler,
                    has_effect=name == "request",
                )
                for name, schema, handler in (
                    ("check", _PROPOSAL, self._handler(self._check, NameProposal)),
                    ("lookup", _LOOKUP, self._handler(self._look_up, _Lookup)),
                    ("request", _PROPOSAL, self._handler(self._request, NameProposal)),
                    ("verify", _VERIFY, self._handler(self._verify, _Verify)),
                )
            ),
        )
        self._is_shown = False
        parts.sightings.provide(self._offered)

    async def open(self) -> None:
        self.replan(self._plan)

    async def close(self) -> None:
        await self._link.close()

    def _offered(self) -> Iterator[tuple[str, str]]:
        for items in self._catalog.namespace.link_items:
            if items.link is not self._link:
                yield from ((route.original, items.link.segment) for route in items.tools)

    def replan(self, plan: Plan) -> None:
        """List or remove the tools of the registry, as a new configuration demands."""
        if plan.registry.tools == self._is_shown:
            return
        self._is_shown = plan.registry.tools
        if self._is_shown:
            self._catalog.place(local_items(self._link, plan.ax.root_segment))
        else:
            self._catalog.drop(self._link)

    def _handler(self, action: Callable[[str, _T], Awaitable[object]], shape: type[_T]) -> ToolHandler:
        """Return a handler that reads the latest state, runs `action` with the decoded arguments, and turns refusals
        into tool errors.
        """

        async def handle(principal: str, arguments: bytes) -> ToolResult:
            try:
                if self._state.trouble is not None:
                    raise Refused("unavailable", "the registry cannot be used at the moment")
                await self._state.refresh()
                decoded = msgspec.json.decode(arguments, type=shape)
                return ToolResult(content=await action(principal, decoded))
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
                return _error("invalid_arguments", str(error))
            except NotFound as missing:
                return _error("not_found", f"there is no {missing.what} {missing.name[:100]}")
            except Refused as refused:
                return _error(refused.code, refused.message)
            except StoreError:
                return _error("unavailable", "the registry cannot answer at the moment")

        return handle

    async def _look_up(self, principal: str, lookup: _Lookup) -> object:
        entry = self._state.entry(lookup.name)
        if entry is None:
            raise NotFound("name", lookup.name)
        return published_entry(entry, self._state.today)

    async def _verify(self, principal: str, tool: _Verify) -> object:
        return name_verification(self._state.entry(tool.name), tool.name, tool.definition)

    async def _check(self, principal: str, proposal: NameProposal) -> object:
        return name_check(self._state, proposal)

    async def _request(self, principal: str, proposal: NameProposal) -> object:
        actor, body = Actor(principal=principal), Raw(msgspec.json.encode(proposal))
        return outcome_document(await self._actions.act(actor, "request", proposal.surface_name, body))


def _error(code: str, message: str) -> ToolResult:
    return ToolResult(content={"error": code, "message": message}, is_error=True, text=f"{code}: {message}")
