"""The operations of a node: native operations, the names of all operations, and an index of the operations that a
caller sees.

Native operations belong to the node. A capability adds each as a declaration and an async handler (`NativeOperations`).
The AQL surfaces route to them, validate their parameters by the declaration, and show them in introspection. A handler
gets the context of the call and the validated parameters under their declared names, and returns data that can be JSON
(or `Raw` text, or a `NativeAnswer` with warnings). To fail with a code it raises `OperationFailed`; any other exception
is answered INTERNAL_ERROR with an id that the log repeats. A handler runs in a task of its own, which is cancelled when
the client cancels the call or disconnects.

Names are given over the whole namespace (`OperationNames`), because an operation has the same name for every caller.
They are constructed before the guard, the safety loop and the dispatcher, which all read names. What AQL servers below
offer is asked through the dispatcher (`lifted_servers`) and written into `LiftedOperations`, which publishes each
change.

An index (`OperationIndex`) is built from an immutable view and kept while neither the view nor the native operations
change. The `OperationEntry` of a tool is kept with its route, so that a change of one server costs the entries of that
server alone. What only details and calls need (parameters, types, a compiled schema) is built on first use: a namespace
may have thousands of tools, of which a client calls a few.
"""

import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from fnmatch import fnmatchcase
from functools import cached_property
from typing import Any, Final

import msgspec
from msgspec import Raw

from interlock.aql.protocol import tool_operations
from interlock.aql.protocol.classification import DangerVerdict, Treatment, Trust, treatment
from interlock.aql.protocol.envelope import AnswerWarning, failed, tool_result
from interlock.aql.protocol.errors import AqlFailure
from interlock.aql.protocol.introspection import DECLARATION
from interlock.aql.protocol.model import (
    AqlOperation,
    Category,
    Danger,
    check_operation,
    operation_name,
    reserved_names,
    suffixed,
)
from interlock.aql.protocol.requests import BatchRequest, OperationRequest, read_item, read_request
from interlock.aql.protocol.search import KNOWN_MAX, SearchIndex, folded, nearest, ranked, term_weights
from interlock.aql.protocol.validation import Arguments, Validator
from interlock.catalog.catalog import EVERYTHING, LiveNamespace, Namespace
from interlock.catalog.checks import refuse_input
from interlock.catalog.routes import Route
from interlock.config.plan import Plan, ToolRule
from interlock.core.calls.call import Call
from interlock.core.calls.caller import Caller
from interlock.core.calls.check import CheckRefusal
from interlock.core.current_plan import CurrentPlan
from interlock.core.feed import Feed
from interlock.mcp.items import find_value
from interlock.mcp.methods import MODERN
from interlock.wire.jsonrpc.codec import decode_object, encode_value, find_string
from interlock.wire.schemas.validators import read_schema

log = logging.getLogger("interlock.aql")

# Names kept beyond twice the number of tools, so that servers may come and go.
ENTRIES_SPARE: Final = 1000
NEAR_MAX: Final = 10
CANDIDATES_MAX: Final = 30


class OperationContext(msgspec.Struct, frozen=True, kw_only=True):
    """The context that the handler of a native operation gets: the caller, its session, and a function that reports
    progress.
    """

    operation: AqlOperation
    caller: Caller  # whose `principal` is who calls; nothing in a request's `_meta` says that
    session_id: str | None  # aqls_..., of a client that has a session; None over stateless HTTP
    tell_progress: Callable[[float, float | None, str | None], None]  # progress, total, message; nothing without token


class NativeAnswer(msgspec.Struct, frozen=True):
    """An answer of a native operation's handler that consists of data and warnings."""

    data: Any
    warnings: Sequence[AnswerWarning] = ()


Handler = Callable[[OperationContext, dict[str, Any]], Awaitable[Any]]


class NativeOperation(msgspec.Struct, frozen=True, kw_only=True):
    """A registered native operation. A caller for which `is_shown` returns False cannot see or call it."""

    declaration: AqlOperation
    handler: Handler
    is_shown: Callable[[Caller], bool]


class NativeOperations:
    """The registry of the operations that the node itself carries out. `version` increases with each change, so that
    caches can detect it.
    """

    def __init__(self) -> None:
        self.by_name: dict[str, NativeOperation] = {}
        self.version = 0

    def add(
        self, declaration: AqlOperation, handler: Handler, *, is_shown: Callable[[Caller], bool] = lambda caller: True
    ) -> None:
        """Register an operation. Raise ValueError if its declaration is invalid or its name is already used (6.2)."""
        problem = check_operation(declaration, may_be_reserved=True)
        if declaration.name in self.by_name:  # AQL-6.2-1
            problem = f"operation '{declaration.name}': there is one of this name already (6.2)"
        if problem is not None:
            raise ValueError(problem)
        self.by_name[declaration.name] = NativeOperation(declaration=declaration, handler=handler, is_shown=is_shown)
        self.version += 1

    def __iter__(self) -> Iterator[NativeOperation]:
        return iter(tuple(self.by_name.values()))


class LiftedOperations:
    """The operations that AQL servers below this node declared, grouped by the endpoint tool that accepts them
    (C.map-16).

    These operations are listed instead of the endpoint tools. An endpoint tool without operations is not listed at all,
    because another endpoint tool of the same server lists what it accepts.
    """

    def __init__(self) -> None:
        self.changed = Feed[None]()
        self._by_route: dict[Route, Mapping[str, AqlOperation]] = {}  # by the name that the server has for it
        self._name_counts: Mapping[str, int] = {}  # how many operations would have a name

    def operations(self, route: Route) -> Mapping[str, AqlOperation] | None:
        """Return the operations that an endpoint tool of an AQL server accepts, by the server's names.

        Return None for an ordinary tool.
        """
        return self._by_route.get(route)

    def name(self, route: Route, upstream: str, taken: Container[str]) -> str:
        """Return the name that an operation has at this node. `upstream` is its name at the server.

        If another operation has the same name, or the name is in `taken`, a suffix is added (C.map-3).
        """
        name = self._by_route[route][upstream].name
        is_doubled = name in taken or self._name_counts[name] > 1
        return suffixed(name, f"{route.qualified}.{upstream}") if is_doubled else name

    def replace(self, segment: str, operations: Mapping[Route, Mapping[str, AqlOperation]]) -> None:
        """Replace the operations that the server of this segment declared."""
        for route in [route for route in self._by_route if route.link.segment == segment]:
            del self._by_route[route]
        self._by_route.update(operations)
        self._name_counts = Counter(
            operation.name for declared in self._by_route.values() for operation in declared.values()
        )
        self.changed.publish(None)


class OperationNames:
    """The operation names of all tools in one state of the namespace (C.map-1 to -3).

    Names are assigned over the complete namespace, not over a caller's view, so that an operation has the same name for
    every caller. If two tools would get the same name, or a tool the name of a native operation, each gets a suffix and
    the plain name is not used: a client must never reach a different tool than it meant.
    """

    def __init__(self, namespace: Namespace, native: NativeOperations, plan: Plan, cache: dict[str, str]) -> None:
        """Compute the operation names of all tools in the namespace.

        `cache` maps qualified names to operation names and is shared between snapshots.
        """
        routes = namespace.view(EVERYTHING).tool_routes
        self.rules: dict[str, ToolRule] = {}
        names: dict[str, str] = {}
        for route in routes:
            name = cache.get(route.qualified)
            if name is None:
                name = cache[route.qualified] = operation_name(route.qualified)
            rule = next((rule for rule in plan.tools if fnmatchcase(route.qualified, rule.match)), None)
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
        """Return the patterns of configured rules that are used for no tool: nothing matches them, or an earlier rule
        matches the same tools.
        """
        used = set(map(id, self.rules.values()))
        about = [rule for rule in self._ruled if rule.aql is not None or rule.trust is not None]
        return [rule.match for rule in about if id(rule) not in used]


class LiveOperationNames:
    """The current names of all operations, and the operations of AQL servers below this node."""

    def __init__(self, current: CurrentPlan, live: LiveNamespace, native: NativeOperations) -> None:
        self.current = current
        self._live = live
        self.native = native
        self.lifted = LiftedOperations()
        self._name_by_tool: dict[str, str] = {}  # qualified name -> operation name, kept between snapshots
        self._names: tuple[Namespace, int, Plan, OperationNames] | None = None
        self._checked: Plan | None = None  # the plan whose rules were compared with the tools

    def names(self) -> OperationNames:
        """Return the current names. They are computed again after tools, operations or the plan changed."""
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
        """Return the operation name of a tool, or None if it has none."""
        return self.names().by_tool.get(route.qualified)

    def lifted_names(self, route: Route) -> Mapping[str, str]:
        """Return the names at this node of the operations that an endpoint tool of an AQL server accepts, by the
        server's names.

        The result is empty for an ordinary tool.
        """
        taken = self.names().taken
        return {each: self.lifted.name(route, each, taken) for each in self.lifted.operations(route) or ()}

    def find_refusal(self, call: Call, route: Route) -> CheckRefusal | None:
        """Return the refusal that the AQL server behind a tool would answer with, or None if it would accept the call.

        With it, no person is asked to approve a call that the server would refuse.
        """
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


@dataclass(eq=False)
class OperationEntry:
    """An operation that callers of this node can use.

    There are three kinds: a native operation of the node (`native`), an ordinary tool that is shown as an operation
    (`route` alone), and an operation of an AQL server below, which is called through an endpoint tool of that server
    (`route`, with `lifted` and `upstream`).
    """

    name: str
    _: KW_ONLY
    plan: Plan
    native: NativeOperation | None = None
    route: Route | None = None
    rule: ToolRule | None = None
    lifted: AqlOperation | None = None  # the declaration of an AQL server's operation
    upstream: str | None = None  # the name of such an operation at its server

    @cached_property
    def tool_name(self) -> Raw | None:
        return Raw(encode_value(self.route.qualified)) if self.route is not None else None

    @cached_property
    def facts(self) -> tool_operations.ToolFacts:
        """The facts about the tool, taken from its definition, its capabilities and the configuration."""
        route = self.route
        if route is None:
            raise TypeError("a native operation has a declaration")
        item, plan = route.item, self.plan.aql
        schema = read_schema(item.get("inputSchema"))  # AQL-C.map-18
        output = read_schema(item.get("outputSchema"))
        hints = find_value(item, "annotations")
        destructive = hints.get("destructiveHint") if isinstance(hints, Mapping) else None
        capability = route.capability
        return tool_operations.ToolFacts(
            name=self.name,
            local=route.local,
            description=find_string(item.get("description")) or "",
            schema=schema if isinstance(schema, Mapping) else {},
            output=output if isinstance(output, Mapping) else None,
            is_read_only=capability is not None and not capability.mutable,
            is_destructive=destructive if isinstance(destructive, bool) else None,
            shows_destructive=None if capability is None else capability.mutable and not capability.reversible,
            is_irreversible=route.irreversible and not route.is_open and bool(route.stated or route.is_classified),
            rule=(self.rule.aql if self.rule is not None else None) or tool_operations.NO_RULE,
            has_fields=plan.field_selection,
            is_confirmed=plan.danger.enforce,
        )

    @cached_property
    def classification(self) -> tool_operations.Classification:
        return tool_operations.classify_tool(self.facts)

    @cached_property
    def category(self) -> Category:
        declared = self._declared
        return declared.category if declared is not None else self.classification[0].category

    @property
    def _declared(self) -> AqlOperation | None:
        """The declaration that the node or an AQL server made of this operation. It is None for an ordinary tool, whose
        declaration is computed.
        """
        return self.native.declaration if self.native is not None else self.lifted

    @cached_property
    def danger(self) -> DangerVerdict:
        if self.lifted is not None:
            return tool_operations.danger_of(self.upstream or "", self.lifted.category, self.facts)
        declared = self._declared
        if declared is not None:
            is_declared = declared.danger is not None
            return DangerVerdict(declared.danger_level, declared.danger_reasons, is_declared=is_declared)
        return self.classification[1]

    @cached_property
    def danger_word(self) -> str:
        return self.danger.level.word

    @cached_property
    def operation(self) -> AqlOperation:
        if self.lifted is not None:
            level, parameters = self.danger.level, self.lifted.parameters
            if self.treatment == "confirm" and level >= Danger.DESTRUCTIVE:
                parameters = (*parameters, tool_operations.CONFIRMATION_PARAMETER)
            changes = {"parameters": parameters, "danger": level, "danger_reasons": self.danger.reasons}
            return msgspec.structs.replace(self.lifted, name=self.name, **changes)
        if self._declared is not None:
            return self._declared
        return tool_operations.declare_tool(self.facts, self.classification)

    @cached_property
    def validator(self) -> Validator:
        return Validator(self.operation)

    @cached_property
    def family(self) -> str | None:
        if self.native is not None:
            return self.native.declaration.family
        return self.rule.aql.family if self.rule is not None and self.rule.aql is not None else None

    @cached_property
    def weights(self) -> Mapping[str, float]:
        """The weight of each word in a search. Only the names of parameters are decoded, not their schemas."""
        declared = self._declared
        if declared is not None:
            return term_weights(self.name, declared.description, (parameter.name for parameter in declared.parameters))
        item = self.route.item if self.route is not None else {}
        schema = decode_object(item["inputSchema"]) if "inputSchema" in item else None
        properties = decode_object(schema["properties"]) if schema is not None and "properties" in schema else None
        original = self.route.original if self.route is not None else ""
        named = self.name if original.isascii() else f"{self.name} {original}"
        return term_weights(named, find_string(item.get("description")) or "", properties or ())

    @cached_property
    def trust(self) -> Trust:
        """The trust level of the operation's server. It is configured, or follows from how the server was added to the
        node.
        """
        if self.native is not None:
            return "certified"
        if self.rule is not None and self.rule.trust is not None:
            return self.rule.trust
        offer = self.route.link.offer if self.route is not None else None
        return "community_reviewed" if offer is None or offer.kind == "adopted" or offer.proved else "validated"

    @cached_property
    def treatment(self) -> Treatment:
        """The treatment of a call (allow, confirm or deny), which follows from the danger of the operation and the
        trust in its server (C.danger-3).
        """
        if not self.plan.aql.danger.enforce:
            return "allow"
        required = treatment(self.danger.level, self.trust, is_declared=self.danger.is_declared)
        # An AQL server that takes a token of its own asks for it itself; two tokens would be one too many.
        is_asked_below = self.lifted is not None and tool_operations.CONFIRMATION_PARAMETER.name in self.lifted.by_name
        return "allow" if required == "confirm" and is_asked_below else required


INTROSPECTION: Final = NativeOperation(declaration=DECLARATION, handler=None, is_shown=lambda caller: True)  # type: ignore[arg-type]


class OperationIndex:
    """The operations that a caller may use, sorted by name.

    An index is immutable; its search structures are built on first use.
    """

    def __init__(self, entries: Iterable[OperationEntry], doubled: Mapping[str, Sequence[str]]) -> None:
        """Create the index. `doubled` maps ambiguous names, which no operation has, to the operations that they may
        mean.
        """
        self.entries = sorted(entries, key=lambda entry: entry.name)
        self.by_name = {entry.name: entry for entry in self.entries}
        self._doubled = doubled

    @cached_property
    def _search_index(self) -> SearchIndex:
        return SearchIndex([entry.weights for entry in self.entries])

    @cached_property
    def _by_form(self) -> Mapping[str, list[str]]:
        """Operation names, grouped by a normalised form that is the same for all spellings of a name."""
        names: dict[str, list[str]] = {}
        for entry in self.entries:
            names.setdefault(folded(entry.name), []).append(entry.name)
        return names

    @cached_property
    def _by_original(self) -> Mapping[str, list[str]]:
        """Operation names, grouped by the original name of their tool. Only tools whose names are not ASCII are
        included, because operation names are always ASCII.
        """
        operations: dict[str, list[str]] = {}
        for entry in self.entries:
            route = entry.route
            if route is not None and not route.original.isascii():
                for name in {route.original, route.qualified, f"{route.link.segment}.{route.original}"}:
                    operations.setdefault(name, []).append(entry.name)
        return operations

    def search(self, text: str, most: int) -> list[OperationEntry]:
        return [self.entries[place] for place in self._search_index.search(text, most)]

    def near(self, name: str) -> list[str]:
        """Return the operation names that an unknown name may mean, best match first."""
        doubled = [candidate for candidate in self._doubled.get(name, ()) if candidate in self.by_name]
        if doubled:
            return doubled[:NEAR_MAX]
        same = self._by_original.get(name, []) if not name.isascii() else self._by_form.get(folded(name), [])
        if len(self.entries) <= KNOWN_MAX:
            close = nearest(name, list(self.by_name), 5)
        else:
            close = ranked(name, (entry.name for entry in self.search(name, CANDIDATES_MAX)), 5)
        return list(dict.fromkeys((*same, *close)))[:NEAR_MAX]
