"""The registry as MCP tools: look up, check, verify and ask for a name. None of them decides (REG-9-5).

They are reached like every other tool, through catalog, guard and a link; at the other end of the link is the node.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec
from msgspec import Raw

from interlock.ax.protocol.capability import AuthScope, Capability, CostClass, LatencyClass, hints
from interlock.ax.protocol.hop_metadata import CAPABILITY, HOPS, published_annotation
from interlock.ax.protocol.names import alias
from interlock.catalog.catalog import Catalog
from interlock.catalog.routes import LinkItems, Route
from interlock.config.plan import Plan
from interlock.core.background import BackgroundTasks
from interlock.core.calls.call import Call
from interlock.core.clock import Clock
from interlock.core.link_state import LinkState
from interlock.core.operator_errors import NotFound, Refused
from interlock.guard.guard import Admitted
from interlock.links.handshake import modern_head
from interlock.links.link import Link, ServerFacts
from interlock.links.link_events import LinkEvents
from interlock.mcp.eras import LATEST_MODERN, Era
from interlock.mcp.methods import TOOLS_CALL
from interlock.names.actions import outcome_document
from interlock.names.actors import Actor
from interlock.names.answers import name_check, name_verification
from interlock.names.protocol.publication import published_entry
from interlock.names.protocol.records import Proposal
from interlock.names.registry_parts import NameParts
from interlock.store.ports import StoreError
from interlock.wire.jsonrpc.codec import encode_value
from interlock.wire.jsonrpc.messages import ABSENT, Response

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
_DEFINITION: Final = {"type": "object", "properties": {"inputSchema": _SCHEMA, "outputSchema": _SCHEMA}}
_TOOLS: Final[dict[str, tuple[str, dict[str, Any]]]] = {
    "check": ("Run the machine checks of a request for a tool surface name, and file nothing.", _PROPOSAL),
    "lookup": (
        "Look up a tool surface name: what it means, who may change it, and its status.",
        {"type": "object", "properties": {"name": _TEXT}, "required": ["name"]},
    ),
    "request": ("Ask for a tool surface name. A person decides.", _PROPOSAL),
    "verify": (
        "Compare a tool's definition with the registered specification of its name.",
        {
            "type": "object",
            "properties": {"name": _TEXT, "definition": _DEFINITION},
            "required": ["name", "definition"],
        },
    ),
}


class NamesTools:
    """Shown while `registry.tools` is set."""

    def __init__(self, catalog: Catalog, events: LinkEvents, clock: Clock, parts: NameParts, plan: Plan) -> None:
        self._catalog = catalog
        self._plan = plan
        self._link = NamesLink(events, clock, parts)
        self._is_shown = False
        parts.sightings.provide(self._offered)

    async def open(self) -> None:
        self.replan(self._plan)

    async def close(self) -> None:
        self._link.stop()

    def _offered(self) -> Iterator[tuple[str, str]]:
        for items in self._catalog.namespace.link_items:
            if items.link is not self._link:
                yield from ((route.original, items.link.segment) for route in items.tools)

    def replan(self, plan: Plan) -> None:
        if plan.registry.tools == self._is_shown:
            return
        self._is_shown = plan.registry.tools
        if self._is_shown:
            self._catalog.place(_items(self._link, plan.ax.root_segment))
        else:
            self._catalog.drop(self._link)


class NamesLink(Link):
    def __init__(self, events: LinkEvents, clock: Clock, parts: NameParts) -> None:
        super().__init__(SEGMENT, events, clock, kind="own", transport="memory")
        self._state, self._requests, self._actions = parts.state, parts.requests, parts.actions
        self._work = BackgroundTasks()
        self.greeted(ServerFacts(era=Era.MODERN, version=LATEST_MODERN))
        self.stand(LinkState.READY, None)

    def stop(self) -> None:
        self.stand(LinkState.STOPPED, None)

    def send(self, admitted: Admitted[Call]) -> None:
        call = admitted.command
        call.link = self
        self.calls += 1
        self._work.begin(self._answer(call), name="names")

    async def _answer(self, call: Call) -> None:
        try:
            result = _result(await self._perform(call))
        except NotFound as missing:
            result = _error("not_found", f"there is no {missing.what} {missing.name[:100]}")
        except Refused as refused:
            result = _error(refused.error, refused.message)
        except StoreError:
            result = _error("unavailable", "the registry cannot answer at the moment")
        call.on_response(Response(b"0", Raw(result), ABSENT), Era.MODERN)

    async def _perform(self, call: Call) -> object:
        arguments = bytes(call.params.get("arguments") or b"{}")
        tool = call.route.original if isinstance(call.route, Route) else ""
        if self._state.trouble is not None:
            raise Refused("unavailable", "the registry cannot be used at the moment")
        await self._state.refresh()
        match tool:
            case "lookup":
                asked = _decoded(arguments, _Lookup)
                entry = self._state.entry(asked.name)
                if entry is None:
                    raise NotFound("name", asked.name)
                return published_entry(entry, self._state.today)
            case "verify":
                verified = _decoded(arguments, _Verify)
                return name_verification(self._state.entry(verified.name), verified.name, verified.definition)
            case "check":
                proposal = _decoded(arguments, Proposal)
                return name_check(proposal.surface_name, await self._requests.check(proposal))
            case _:
                proposal = _decoded(arguments, Proposal)
                actor = Actor(principal=call.caller.principal.name)
                done = await self._actions.act(actor, "request", proposal.surface_name, Raw(arguments))
                return outcome_document(done)


class _Lookup(msgspec.Struct, frozen=True):
    name: str


class _Verify(msgspec.Struct, frozen=True):
    name: str
    definition: dict[str, Raw]


def _decoded(arguments: bytes, shape: type[Any]) -> Any:
    try:
        return msgspec.json.decode(arguments, type=shape)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Refused("invalid_arguments", str(error)) from None


def _result(answer: object) -> bytes:
    text = msgspec.json.encode(answer)
    content = [{"type": "text", "text": text.decode()}]
    return msgspec.json.encode(
        {"resultType": "complete", "content": content, "structuredContent": Raw(text), "isError": False}
    )


def _error(code: str, message: str) -> bytes:
    said = {"error": code, "message": message}
    content = [{"type": "text", "text": f"{code}: {message}"}]
    return msgspec.json.encode(
        {"resultType": "complete", "content": content, "structuredContent": said, "isError": True}
    )


def _items(link: NamesLink, root_segment: str | None) -> LinkItems:
    root = () if root_segment is None else (root_segment,)
    return LinkItems(
        link=link,
        tools=tuple(_route(link, (*root, SEGMENT), tool, *_TOOLS[tool]) for tool in sorted(_TOOLS)),
        digests=dict.fromkeys(("tools", "prompts", "resources", "templates"), b""),
    )


def _route(link: NamesLink, segments: tuple[str, ...], tool: str, description: str, schema: Mapping[str, Any]) -> Route:
    qualified = ".".join((*segments, tool))
    changes = tool == "request"
    capability = Capability(
        mutable=changes,
        reversible=True,
        idempotent=not changes,
        latency_class=LatencyClass.FAST,
        cost_class=CostClass.FREE,
        auth_scope=AuthScope.WRITE if changes else AuthScope.READ,
    )
    return Route(
        link=link,
        qualified=qualified,
        alias=alias(qualified),
        local=tool,
        original=tool,
        wire_name=Raw(encode_value(tool)),
        head=modern_head(TOOLS_CALL) + b"mcp-name: %b\r\n" % tool.encode(),
        item={
            "name": Raw(encode_value(tool)),
            "description": Raw(encode_value(description)),
            "inputSchema": Raw(encode_value(schema)),
        },
        segments=segments,
        below=(),
        capability=capability,
        meta={CAPABILITY: published_annotation(None, capability), HOPS: 1},
        hints=hints(capability, None),
        hops=1,
    )
