"""The names of operations over the whole namespace, and the operations of AQL servers below.

This part of the node is built before the guard, the safety loop and the dispatcher, which all read names. What AQL
servers below offer is asked through the dispatcher (`lifted_servers`) and written into `LiftedOperations`, which
publishes each change.
"""

import logging
from collections import Counter
from collections.abc import Container, Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Final

from interlock.aql.operation_index import NativeOperations
from interlock.aql.protocol.envelope import failed, tool_result
from interlock.aql.protocol.errors import AqlFailure
from interlock.aql.protocol.model import AqlOperation, operation_name, reserved_names, suffixed
from interlock.aql.protocol.requests import BatchRequest, OperationRequest, read_item, read_request
from interlock.aql.protocol.validation import Arguments, Validator
from interlock.catalog.arguments_check import refuse_input
from interlock.catalog.catalog import EVERYTHING, LiveNamespace, Namespace
from interlock.catalog.routes import Route
from interlock.config.plan import Plan, ToolRule
from interlock.core.calls.call import Call
from interlock.core.calls.check import Refused
from interlock.core.current_plan import CurrentPlan
from interlock.core.feed import Feed
from interlock.mcp.methods import MODERN


class LiftedOperations:
    """The operations that AQL servers below this node declared, by the endpoint tool that takes them (C.map-16).

    These operations are shown in place of the endpoint tools. An endpoint tool with no operation of its own is not
    shown at all: what it takes is shown under another endpoint tool of the same server.
    """

    def __init__(self) -> None:
        self.changed = Feed[None]()
        self._by_route: dict[Route, Mapping[str, AqlOperation]] = {}  # by the name that the server has for it
        self._name_counts: Mapping[str, int] = {}  # how many operations would have a name

    def operations(self, route: Route) -> Mapping[str, AqlOperation] | None:
        """Return the operations behind a tool by the server's names, or None for an ordinary tool."""
        return self._by_route.get(route)

    def name(self, route: Route, upstream: str, taken: Container[str]) -> str:
        """Return the name here of an operation. A name that something else has too names neither (C.map-3)."""
        name = self._by_route[route][upstream].name
        is_doubled = name in taken or self._name_counts[name] > 1
        return suffixed(name, f"{route.qualified}.{upstream}") if is_doubled else name

    def replace(self, segment: str, operations: Mapping[Route, Mapping[str, AqlOperation]]) -> None:
        """Replace what the server of this segment declared."""
        for route in [route for route in self._by_route if route.link.segment == segment]:
            del self._by_route[route]
        self._by_route.update(operations)
        self._name_counts = Counter(
            operation.name for declared in self._by_route.values() for operation in declared.values()
        )
        self.changed.publish(None)


log = logging.getLogger("interlock.aql")

ENTRIES_SPARE: Final = 1000  # names kept beyond twice the number of tools, so that a server may come and go


class OperationNames:
    """The operation names of all tools at one moment (C.map-1 to -3).

    Names are given over the whole namespace, not over a caller's view, so that an operation has the same name for
    every caller. If two tools would have the same name, or a tool that of a native operation, each gets a suffix and
    the plain name leads to none: a client must never reach another tool than it meant.
    """

    def __init__(self, namespace: Namespace, native: NativeOperations, plan: Plan, cache: dict[str, str]) -> None:
        """Name the operations of all tools.

        `cache` maps qualified names to operation names and is shared between snapshots.
        """
        routes = namespace.view(EVERYTHING).tool_routes
        self.rules: dict[str, ToolRule] = {}
        names: dict[str, str] = {}
        for route in routes:
            name = cache.get(route.qualified)
            if name is None:
                name = cache[route.qualified] = operation_name(route.qualified)
            rule = _rule(plan.tools, route.qualified) if plan.tools else None
            if rule is not None:
                self.rules[route.qualified] = rule
                if rule.aql is not None and rule.aql.name is not None:
                    name = rule.aql.name
            names[route.qualified] = name
        sharing: dict[str, list[str]] = {}
        for qualified, name in names.items():
            sharing.setdefault(name, []).append(qualified)
        taken = reserved_names() | {operation.declaration.name for operation in native}
        self.by_tool: dict[str, str] = {}
        self.doubled: dict[str, list[str]] = {}
        for name, tools in sharing.items():
            if len(tools) == 1 and name not in taken:  # AQL-8.5.4-1, AQL-6.2-1
                self.by_tool[tools[0]] = name
                continue
            for qualified in tools:
                self.by_tool[qualified] = suffixed(name, qualified)
            self.doubled[name] = [self.by_tool[qualified] for qualified in tools]
        self._ruled = plan.tools
        self.taken = frozenset((*taken, *self.by_tool.values(), *self.doubled))

    @property
    def unmatched(self) -> list[str]:
        """Return the rules about operations that are not the first match of any tool."""
        used = set(map(id, self.rules.values()))
        about = [rule for rule in self._ruled if rule.aql is not None or rule.trust is not None]
        return [rule.match for rule in about if id(rule) not in used]


def _rule(rules: Iterable[ToolRule], qualified: str) -> ToolRule | None:
    return next((rule for rule in rules if fnmatchcase(qualified, rule.match)), None)


class LiveOperationNames:
    """The names of all operations as they are now, and the operations of AQL servers below."""

    def __init__(self, current: CurrentPlan, live: LiveNamespace, native: NativeOperations) -> None:
        self.current = current
        self._live = live
        self.native = native
        self.lifted = LiftedOperations()
        self._name_by_tool: dict[str, str] = {}  # qualified name -> operation name, kept between snapshots
        self._names: tuple[Namespace, int, Plan, OperationNames] | None = None
        self._checked: Plan | None = None  # the plan whose rules were compared with the tools

    def names(self) -> OperationNames:
        """Return the names at this moment. They are computed again when tools, operations or the plan changed."""
        namespace, version, plan = self._live.current, self.native.version, self.current.plan
        cached = self._names
        if cached is not None and cached[0] is namespace and cached[1] == version and cached[2] is plan:
            return cached[3]
        if len(self._name_by_tool) > 2 * sum(len(items.tools) for items in namespace.link_items) + ENTRIES_SPARE:
            self._name_by_tool.clear()
        names = OperationNames(namespace, self.native, plan, self._name_by_tool)
        # With one tool, only the node's own are listed: the servers are still connecting.
        if self._checked is not plan and len(names.by_tool) > 1:
            self._checked = plan
            for match in names.unmatched:
                log.warning('[[tool]] match = "%s" matches no tool that is listed now', match)
        self._names = (namespace, version, plan, names)
        return names

    def find_name(self, route: Route) -> str | None:
        """Return the name of a tool's operation."""
        return self.names().by_tool.get(route.qualified)

    def lifted_names(self, route: Route) -> Mapping[str, str]:
        """Return the names here of the operations behind a tool, by the server's names. Empty for an ordinary tool."""
        taken = self.names().taken
        return {each: self.lifted.name(route, each, taken) for each in self.lifted.operations(route) or ()}

    def find_refusal(self, call: Call, route: Route) -> Refused | None:
        """Return what the AQL server behind a tool would refuse, so that no person is asked about such a call."""
        operations = self.lifted.operations(route)
        if operations is None:
            return None
        aql = self.current.plan.aql
        request = read_request(call.params.get("arguments"), aql.limits)
        for item in map(read_item, request.items) if isinstance(request, BatchRequest) else (request,):
            outcome: Arguments | AqlFailure | None = item if isinstance(item, AqlFailure) else None
            if isinstance(item, OperationRequest) and item.operation in operations:
                outcome = Validator(operations[item.operation]).validate(item, strict=aql.strict_mode)
            if isinstance(outcome, AqlFailure):
                is_modern = call.caller.era is MODERN
                return refuse_input(call, tool_result(failed(outcome), is_error=False, is_modern=is_modern))
        return None
