"""Operations on tools: list tools, explain what a call would meet, call a tool, and ask an operator what a
tool does.
"""

import asyncio
import itertools
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Final

import msgspec
from msgspec import UNSET, Raw, UnsetType
from msgspec.structs import asdict

from interlock.approvals.api import Approval
from interlock.approvals.operations.inbox import InboxOperations
from interlock.approvals.tool_definitions import Definitions
from interlock.aql.protocol.classification import CategoryVerdict
from interlock.aql.protocol.search import SearchIndex, term_weights
from interlock.ax.protocol.capability import as_object
from interlock.ax.protocol.names import WithheldName
from interlock.catalog import api
from interlock.catalog.catalog import EVERYTHING, Catalog, View
from interlock.catalog.routes import CHANGED, LinkItems, Route, definition_table, era_of
from interlock.core.calls.caller import ClientRequest, Principal, ViewKey
from interlock.core.clock import rfc3339
from interlock.core.operator_errors import refused_as
from interlock.core.views import view_of
from interlock.dispatch.absent_tools import AbsentTools
from interlock.dispatch.dispatch import Dispatch
from interlock.drivers.api import Skill, Skills
from interlock.drivers.registry.service import LazyContracts
from interlock.fronts.modern import ModernFront
from interlock.gate.protocol.held_call import CONFIRMATION, REQUIRED
from interlock.links.operations import masked_session
from interlock.links.registered import RegisteredLink
from interlock.mcp.meta import PROGRESS_TOKEN, stamp_modern
from interlock.mcp.methods import PROGRESS, TOOLS_CALL, Era
from interlock.names.protocol.entry import RegistryEntry
from interlock.names.protocol.grammar import SiblingAdvice, sibling_advice
from interlock.names.protocol.judgement import SurfaceVerdict
from interlock.operator.operation import INVALID_BODY, handles
from interlock.wire.jsonrpc.codec import decode_object, decode_value, encode_value, find_string
from interlock.wire.refusal import NotFound, Refusal, Refused
from interlock.wire.schemas.validators import find_excess_of_text

FOUND_MAX: Final = 100  # tools that a search gives

Explain = Callable[[Route, str], tuple[api.CheckVerdict, ...]]  # what a call of the tool by that principal would meet


@dataclass(eq=False)
class ToolOperations:
    """Operations on tools and skills."""

    catalog: Catalog
    definitions: Definitions
    approvals: InboxOperations
    contracts: LazyContracts
    explain: Explain
    classified: Callable[[Route], tuple[str, CategoryVerdict] | None]
    find_entry: Callable[[str], RegistryEntry | None]
    absent_tools: AbsentTools

    @handles(api.LIST_TOOLS)
    def list_all(self, search: str | None = None) -> api.Tools:
        """Return all tools. With `search`, return only the tools that match its words, best match first."""
        listed: list[api.Tool] = []
        by_segment = sorted(self.catalog.namespace.link_items, key=lambda items: f"{items.link.segment}.")
        for items in by_segment:
            advice = self._sibling_advice(items)
            listed += [self._tool(route, advice) for route in sorted(items.tools, key=attrgetter("qualified"))]
        for items in by_segment:
            listed.extend(
                api.Tool(
                    name=f"{items.link.segment}.?",
                    alias=None,
                    segment=items.link.segment,
                    original=entry.name,
                    title=None,
                    description=None,
                    state=items.link.standing.state.value,
                    capability={},
                    hops=1,
                    withheld=entry.reason,
                )
                for entry in items.withheld
            )
        if search and search.strip():
            # Names that contain the words come first, then the ranking of `introspect`.
            written = search.strip().lower()
            named = [tool for tool in listed if written in tool.name.lower() or written in tool.original.lower()]
            index = SearchIndex([term_weights(tool.name, tool.description or "") for tool in listed])
            ranked = [listed[place] for place in index.search(search, FOUND_MAX)]
            listed = list({id(tool): tool for tool in (*named, *ranked)}.values())[:FOUND_MAX]
        return api.Tools(tools=tuple(listed))

    @handles(api.GET_TOOL)
    def get(self, name: str, caller: str = "local") -> api.ToolDetail:
        """Return a tool with the verdicts of the checks on a call by `caller`. Raise NotFound or Refused."""
        namespace = self.catalog.namespace
        if (route := self._find_route(name)) is None:
            if (absent := self.absent_tools.find(self._view, name)) is not None:
                raise refused_as(api.WITHHELD, f"{name} cannot be called now: {absent.detail}", {"tool": name})
            for _, entry in self._find_withheld(name):  # also what the operator hides
                raise refused_as(api.WITHHELD, f"{name} is withheld: {entry.reason}", {"tool": name})
            listed = self._view.tool_routes
            raise NotFound("tool", name, [*(r.qualified for r in listed), *(r.alias for r in listed)])
        shown = namespace.view(ViewKey(who=None))
        items_of_link = next((items for items in namespace.link_items if items.link is route.link), None)
        # The operator is responsible for a tool of a configured server, otherwise the registrant is.
        owner = api.Owner(kind="configuration", verified=True)
        if isinstance(route.link, RegisteredLink):
            session = route.link.registration
            authority = session.register.authority
            owner = api.Owner(
                kind=route.link.kind,
                principal=session.peer.principal,
                subserver_id=session.register.subserver_id,
                authority=f"dns:{authority}" if authority is not None else None,
                verified=session.peer.proved,
            )
        return api.ToolDetail(
            **asdict(self._tool(route, self._sibling_advice(items_of_link))),
            definition=decode_value(shown.show_tool(route, Era.MODERN)),
            route=(*route.segments, route.local),
            era=era_of(route.link).value,
            owner=owner,
            caller=caller,
            checks=self.explain(route, caller),
            schema_excess=find_excess_of_text(route.item.get("inputSchema", b"")),
        )

    @handles(api.CLASSIFY_TOOL)
    async def classify(self, name: str) -> Approval:
        """Request a decision from the operators: about the class of a tool that does not declare its effect, or about a
        definition that is not accepted. Return the approval that is now pending.
        """
        if (item := self._find_item(name)) is not None:
            return await self._ask(*item)
        if (route := self._find_route(name)) is not None and not (route.is_open or route.is_changed):
            message = f"it is known what {name} does; [[tool]] says otherwise"
            raise refused_as(api.CLASSIFIED, message, {"tool": name})
        changed = [segment for segment, entry in self._find_withheld(name) if entry.code == CHANGED]
        if route is None and not changed:
            raise NotFound("tool", name, [other.qualified for other in self._view.tool_routes])
        return await self._ask(*((route.link.segment, route.qualified) if route is not None else (changed[0], name)))

    async def _ask(self, table: str, name: str) -> Approval:
        """Request a decision about a definition from the operators. Return the approval that is now pending."""
        if (raised := await self.definitions.ask_again(table, name)) is None:
            raise NotFound("tool", name)
        if isinstance(raised, Refusal):
            raise Refused(raised.message, (raised.details or {}).get("detail", raised.message), raised.details)
        return self.approvals.get(raised.id)

    @property
    def _view(self) -> View:
        return self.catalog.namespace.view(EVERYTHING)

    def _find_route(self, name: str) -> Route | None:
        """Return the route to a tool. `name` is its qualified name, or its segment followed by the name that the server
        gave it. Return None if there is no such tool.
        """
        if (listed := self._view.find_tool(name)) is not None:
            return listed
        namespace = self.catalog.namespace
        for items in namespace.link_items:
            prefix = namespace.prefix(items.link.segment)
            original = name[len(prefix) :] if name.startswith(prefix) else ""
            match = next((route for route in items.tools if route.original == original), None) if original else None
            if match is not None:
                return match
        return None

    def _find_item(self, name: str) -> tuple[str, str] | None:
        """Find an item other than a tool, such as a prompt, whose definition is not accepted. Return the name of its
        table and the name under which people decide about it, or None.
        """
        namespace = self.catalog.namespace
        for items in namespace.link_items:
            segment = items.link.segment
            for subject in (name, namespace.prefix(segment) + name.removeprefix(f"{segment}.")):
                if (kind := items.unaccepted.get(subject)) is not None:
                    return definition_table(segment, kind), subject
        return None

    def _find_withheld(self, name: str) -> Iterator[tuple[str, WithheldName]]:
        """Yield the withheld tools that would be listed under this name, each with the segment of its link."""
        for items in self.catalog.namespace.link_items:
            for entry in items.withheld:
                if name.endswith(f".{entry.name}") and f".{items.link.segment}." in f".{name}":
                    yield items.link.segment, entry

    @handles(api.LIST_SKILLS)
    def skills(self) -> Skills:
        contracts = self.contracts.current
        blocks_by_name = contracts.skills() if contracts is not None else {}
        return Skills(skills=tuple(Skill(name=name, blocks=blocks) for name, blocks in blocks_by_name.items()))

    @handles(api.LIST_ROUTES)
    def routes(self) -> api.ToolRoutes:
        """Return the route of every qualified name (MCP-AX 7.1)."""
        routes: api.ToolRoutes = {}
        for items in self.catalog.namespace.link_items:
            link = items.link
            session, since = f"{link.segment}:***", link.standing.since_wall
            if isinstance(link, RegisteredLink):
                session, since = masked_session(link.registration.session_id), link.registered_wall
            for route in self.catalog.namespace.without_collisions(items.tools):
                routes[route.qualified] = api.ToolRoute(
                    downstream_session=session,
                    downstream_name=route.original,
                    capability=as_object(route.capability) if route.capability else {},
                    registered_at=rfc3339(since),
                )
        return routes

    def _tool(self, route: Route, advice: Mapping[str, SiblingAdvice]) -> api.Tool:
        clash = self.catalog.namespace.clashing.get(route.qualified)
        operation: api.ToolOperation | UnsetType = UNSET
        if (classified := self.classified(route)) is not None:
            name, verdict = classified
            operation = api.ToolOperation(
                name=name, category=verdict.category.value, rule=verdict.rule, reason=verdict.reason or None
            )
        return api.Tool(
            name=route.qualified,
            alias=route.alias,
            segment=route.link.segment,
            original=route.original,
            title=find_string(route.item.get("title")),
            description=find_string(route.item.get("description")),
            state=route.link.standing.state.value,
            capability=as_object(route.capability) if route.capability else {},
            unclassified=route.is_open,
            operation=operation,
            hops=route.hops,
            withheld=clash.reason if clash is not None else route.warning if route.is_refused else None,
            changed=route.change or UNSET,
            surface=_surface(route, advice.get(route.original)),
        )

    def _sibling_advice(self, items: LinkItems | None) -> Mapping[str, SiblingAdvice]:
        return {} if items is None else sibling_advice([route.original for route in items.tools], self.find_entry)


_ids = itertools.count(1)


@dataclass(eq=False)
class CallOperations:
    """The operation that calls a tool."""

    modern: ModernFront
    dispatch: Dispatch
    principal: Callable[[str], Principal]

    @handles(api.CALL_TOOL)
    def call(self, name: str, body: api.CallTool, by: str) -> AsyncGenerator[api.CallEvent, None]:
        """Call a tool, and yield its progress and then its result. Closing the generator cancels the call.

        Raise Refused if the request is invalid.
        """
        arguments = body.arguments or Raw(b"{}")
        if not bytes(arguments).startswith(b"{"):
            raise refused_as(INVALID_BODY, "arguments must be an object")
        return self._events(name, arguments, by)

    async def _events(self, name: str, arguments: Raw, by: str) -> AsyncGenerator[api.CallEvent, None]:
        caller = self.modern.caller(self.principal(by), "operator", None, "qualified")
        id = str(next(_ids)).encode()
        meta: dict[str, Raw] = {}
        stamp_modern(meta, capabilities=Raw(b"{}"), client=None, log_level=None)
        meta[PROGRESS_TOKEN] = Raw(id)
        params: dict[str, Any] = {"name": Raw(encode_value(name)), "arguments": arguments}
        sink = _ProgressSink()
        call = self.dispatch.call_tool(ClientRequest(caller, id, TOOLS_CALL, params, meta, sink))
        try:
            while not sink.is_over:
                await sink.changed.wait()
                sink.changed.clear()
                if (progress := sink.take_progress()) is not None:
                    yield api.CallEvent(progress=progress)
            if sink.message is not None:
                reply = decode_object(sink.message) or {}
                result = reply.get("result")
                if result is None:
                    yield api.CallEvent(error=reply.get("error", Raw(b"{}")))
                    return
                meta = decode_object((decode_object(result) or {}).get("_meta", b"{}")) or {}
                held = decode_object(meta.get(CONFIRMATION, b"{}")) or {}
                wait: api.CallHeld | UnsetType = UNSET
                if find_string(held.get("status")) == REQUIRED:
                    approval_id = find_string(held.get("confirmation_id")) or ""
                    wait = api.CallHeld(approval_id=approval_id, url=find_string(held.get("approval_url")))
                yield api.CallEvent(result=result, held=wait)
        finally:
            call.cancel("the operator cancelled it")


class _ProgressSink:
    """A sink of a call's messages that stores only the newest progress and the answer, so that its
    memory is limited.
    """

    def __init__(self) -> None:
        self.changed = asyncio.Event()
        self.message: bytes | None = None
        self.is_over = False
        self._newest: bytes | None = None

    def emit(self, message: bytes) -> None:
        self._newest = message
        self.changed.set()

    def answer(self, message: bytes, status: int = 200) -> None:
        self.message = message
        self.drop()

    def drop(self) -> None:
        self.is_over = True
        self.changed.set()

    def take_progress(self) -> api.CallProgress | None:
        newest, self._newest = self._newest, None
        notification = decode_object(newest) if newest is not None else None
        if notification is None or find_string(notification.get("method")) != PROGRESS:
            return None
        try:
            return msgspec.json.decode(notification.get("params", b"{}"), type=api.CallProgress)
        except msgspec.DecodeError:
            return None


def _surface(route: Route, advice: SiblingAdvice | None) -> api.ToolSurface | UnsetType:
    if route.surface is None:
        if advice is None:
            return UNSET
        # The name is not registered, but the names of its siblings are.
        return api.ToolSurface(
            name=route.original,
            verdict=SurfaceVerdict.UNREGISTERED.value,
            status=None,
            digest=None,
            registered=None,
            revision=None,
            notes=(advice.code,),
            differences=(),
            refused=False,
            warning=f"{advice.code}: {advice.reason}",
        )
    judged = route.surface.judgement
    return view_of(
        api.ToolSurface,
        judged,
        registered=judged.registered_digest,
        differences=tuple(map(str, judged.differences)),
        refused=route.is_refused,
        warning=route.surface.warning,
    )
