"""AQL servers below this node, whose operations are listed instead of their endpoint tools (C.map-16).

A server is lifted if its tools are named like MCP-AQL endpoints and it answers `introspect` as MCP-AQL requires. Its
operations then appear in its namespace with their own categories. A server that has such names but does not answer this
way is served as ordinary tools. The node asks the server through the dispatcher, as any caller does, once for each list
of its tools.
"""

import asyncio
import logging
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec import Raw

from interlock.aql.operation_index import LiftedOperations
from interlock.aql.protocol.model import JSON_TYPES, AqlOperation, AqlParameter, Category, Returns, is_name, snake
from interlock.aql.protocol.results import find_envelope_data, read_result
from interlock.aql.protocol.tool_operations import integer_in, number_in, text_in
from interlock.catalog.routes import Route
from interlock.core.background import BackgroundTasks
from interlock.core.calls.caller import AwaitedAnswer, Caller, ClientRequest, Principal, view_key
from interlock.dispatch.dispatch import Dispatch
from interlock.mcp.methods import LATEST_MODERN, META_CAPABILITIES, META_VERSION, TOOLS_CALL, Era
from interlock.wire.jsonrpc.codec import decode_object, decode_value, encode_value

log = logging.getLogger("interlock.aql")

ENDPOINT: Final = re.compile(r"(.+_)?mcp_aql(_[a-z0-9_]+)?")
OPERATIONS_MAX: Final = 1000  # of one server
ANSWER_S: Final = 30.0
SETTLE_S: Final = 3.0  # how long the first list of a client waits for them
_FIRST: Final = ("read", "discover", "inspect", "")  # which endpoint is asked first
_META: Final = {META_VERSION: Raw(encode_value(LATEST_MODERN)), META_CAPABILITIES: Raw(b"{}")}


class LiftedServers:
    """A reader of the operations of AQL servers below this node.

    It asks each server that looks like an AQL server, and stores the operations in `operations`.
    """

    def __init__(self, dispatch: Dispatch | None, operations: LiftedOperations) -> None:
        """Create the reader of AQL servers. If `dispatch` is None, no server is asked."""
        self._dispatch = dispatch
        self._operations = operations
        self._asked: dict[str, frozenset[Route]] = {}  # by segment: the tools it had when it was asked
        self._tasks = BackgroundTasks()

    @property
    def is_asking(self) -> bool:
        return len(self._tasks) > 0

    async def settle(self) -> None:
        """Wait until all asked servers have answered, but no longer than SETTLE_S."""
        await self._tasks.finish(SETTLE_S)

    def look(self, routes: Sequence[Route]) -> None:
        """Ask the servers of these tools for their operations, if they look like AQL servers and were not asked yet."""
        candidates: dict[str, set[Route]] = {}
        for route in routes:
            # A server in a room is not asked: every participant would see a question of an unknown sender.
            may_be_one = "mcp_aql" in route.original and route.link.members is None
            if may_be_one and ENDPOINT.fullmatch(route.original):
                candidates.setdefault(route.link.segment, set()).add(route)
        for segment, several in candidates.items():
            tools = frozenset(several)
            if self._dispatch is not None and self._asked.get(segment) != tools:
                self._asked[segment] = tools
                self._tasks.begin(self._ask(segment, sorted(tools, key=_rank)))

    async def _ask(self, segment: str, tools: list[Route]) -> None:
        """Ask an AQL server for its operations and store them. Its endpoint tools are tried until one answers."""
        by_name = {route.original: route for route in tools}
        for route in tools:
            if route.is_held:  # no person is asked to approve what only the node wants to know
                continue
            operations = await self._listed(route)
            if operations is None:
                continue
            by_route: dict[Route, dict[str, AqlOperation]] = {each: {} for each in tools}
            types = (await self._introspect(route, query="types")).get("types")
            declared = [item for item in types if isinstance(item, Mapping)] if isinstance(types, list) else []
            kinds = {str(item.get("name")): str(item.get("kind")) for item in declared}
            for item in operations:
                name = item.get("name") if isinstance(item, Mapping) else None
                if not isinstance(name, str) or not is_name(name) or name == "introspect":
                    continue
                details = (await self._introspect(route, query="operations", name=name)).get("operation")
                owner = by_name.get(str(details.get("mcpTool"))) if isinstance(details, Mapping) else None
                if owner is not None and isinstance(details, Mapping):
                    declaration = _declaration(name, details, owner, kinds)
                    if declaration is not None:
                        by_route[owner][name] = declaration
            log.info("link %s: an AQL server; %d operations lifted", segment, sum(map(len, by_route.values())))
            self._operations.replace(segment, by_route)
            return

    async def _listed(self, route: Route) -> list[Any] | None:
        """Return the operations that a server lists on all pages, or None if it is not an AQL server."""
        listed: list[Any] = []
        after: dict[str, str] = {}
        while len(listed) < OPERATIONS_MAX:
            page = await self._introspect(route, query="operations", **after)
            operations = page.get("operations")
            if not isinstance(operations, list):
                return listed or None
            listed += operations
            protocol = page.get("_protocol")
            info = protocol.get("page_info") if isinstance(protocol, Mapping) else None
            following = info.get("next") if isinstance(info, Mapping) else None
            if not isinstance(following, str) or not operations or after == {"after": following}:
                break
            after = {"after": following}
        return listed[:OPERATIONS_MAX]

    async def _introspect(self, route: Route, **params: str) -> Mapping[str, Any]:
        """Call `introspect` of a server, and return the data of its answer. The data is empty if the answer is not one
        of MCP-AQL.
        """
        dispatch = self._dispatch
        if dispatch is None:
            return {}
        principal = Principal("local", "admin")
        key = view_key(principal, only=None, names="qualified", declares_extension=True)
        arguments = Raw(encode_value({"operation": "introspect", "params": params}))
        meta = dict(_META)
        call_params = {"name": Raw(encode_value(route.qualified)), "arguments": arguments, "_meta": meta}
        answer = AwaitedAnswer()
        caller = Caller(principal, Era.MODERN, "aql", key)
        dispatch.call_tool(ClientRequest(caller, b'"aql"', TOOLS_CALL, call_params, meta, answer))
        try:
            message = await asyncio.wait_for(answer.message, ANSWER_S)
        except TimeoutError:
            return {}
        result = (decode_object(message or b"{}") or {}).get("result")
        read = read_result(result, tool=route.qualified, operation="introspect") if result is not None else None
        opened = find_envelope_data(read.data) if read is not None and read.failure is None else None
        if opened is None or opened.failure is not None:
            return {}
        data = decode_value(opened.data) if isinstance(opened.data, Raw) else opened.data
        return data if isinstance(data, Mapping) else {}


def _rank(route: Route) -> tuple[int, str]:
    """Return a sort key for endpoints. Endpoints that usually accept `introspect` come first."""
    family = route.original.rpartition("mcp_aql")[2].lstrip("_")
    return (_FIRST.index(family) if family in _FIRST else len(_FIRST), route.original)


def _declaration(name: str, details: Mapping[str, Any], route: Route, kinds: Mapping[str, str]) -> AqlOperation | None:
    """Read the declaration of a server's operation. Return None if it cannot be read.

    READ is not believed if the endpoint tool may change things, because clients run READ operations without asking.
    `kinds` maps the names of the server's types to their kinds.
    """
    category_name = details.get("semantic_category")
    parameters = details.get("parameters")
    if category_name not in Category.__members__ or not isinstance(parameters, list):
        return None
    category = Category[str(category_name)]
    is_mutable = route.capability is None or route.capability.mutable
    if category is Category.READ and is_mutable:
        category = Category.EXECUTE
    namespace = "__".join(snake(segment) for segment in route.segments)
    declared = [_parameter(each, kinds) for each in parameters if isinstance(each, Mapping)]
    description = details.get("description")
    return AqlOperation(
        name=f"{namespace}__{name}",
        category=category,
        description=description if isinstance(description, str) and description.strip() else "An operation.",
        parameters=tuple(each for each in declared if each is not None),
        returns=Returns("any", "scalar", "What the server answers."),
    )


def _parameter(declared: Mapping[str, Any], kinds: Mapping[str, str]) -> AqlParameter | None:
    """Read the declaration of a parameter, or return None if it has no valid name and type."""
    name, kind = declared.get("name"), declared.get("type")
    if not isinstance(name, str) or not isinstance(kind, str) or not is_name(name):
        return None
    enum, items = declared.get("enum"), declared.get("items")
    return AqlParameter(
        name=name,
        type=" | ".join(_word(word.strip(), kinds) for word in kind.split("|")),
        required=declared.get("required") is True,
        description=text_in(declared, "description") or "",
        default=declared.get("default", msgspec.UNSET),
        enum=tuple(enum) if isinstance(enum, list) else (),
        minimum=number_in(declared, "minimum"),
        maximum=number_in(declared, "maximum"),
        min_length=integer_in(declared, "minLength"),
        max_length=integer_in(declared, "maxLength"),
        format=text_in(declared, "format"),
        items=items if isinstance(items, Mapping) else None,
        sensitive=declared.get("sensitive") is True,
    )


def _word(word: str, kinds: Mapping[str, str]) -> str:
    """Return the JSON type for a type name. A type that the server declares is mapped by its kind."""
    if word in JSON_TYPES:
        return word
    return {"object": "object", "enum": "string"}.get(kinds.get(word, ""), "any")
