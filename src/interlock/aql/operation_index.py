"""The operations that one kind of caller sees, by name: the node's own, and those of the tools in its view.

An index is built from an immutable view and kept while neither the view nor the native operations change. The
`OperationEntry` of a tool is kept with its route, so that a change of one server costs the entries of that server
alone. What only details and calls need (parameters, types, a compiled schema) is built on first use: a namespace may
have thousands of tools, of which a client calls a few.
"""

import logging
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Final

import msgspec
from msgspec import Raw

from interlock.aql.operation_index import NativeOperation
from interlock.aql.protocol.classification import DangerVerdict, Treatment, Trust, treatment
from interlock.aql.protocol.introspection import DECLARATION
from interlock.aql.protocol.model import AqlOperation, Category, Danger
from interlock.aql.protocol.search import KNOWN_MAX, SearchIndex, folded, nearest, ranked, term_weights
from interlock.aql.protocol.tool_operations import (
    CONFIRMATION_PARAMETER,
    NO_RULE,
    Classification,
    ToolFacts,
    classify_tool,
    danger_of,
    declare_tool,
)
from interlock.aql.protocol.validation import Validator
from interlock.catalog.routes import Route
from interlock.config.plan import Plan, ToolRule
from interlock.mcp.items import maybe_value
from interlock.wire.jsonrpc.codec import decode_object, encode_value, find_string

log = logging.getLogger("interlock.aql")

NEAR_MAX: Final = 10
CANDIDATES_MAX: Final = 30


class OperationEntry:
    """An operation as this node serves it.

    There are three kinds: a native operation of the node (`native`), an ordinary tool that is shown as an operation
    (`route` alone), and an operation of an AQL server below, which is called through an endpoint tool of that server
    (`route`, with `lifted` and `upstream`).
    """

    def __init__(
        self,
        name: str,
        *,
        native: NativeOperation | None = None,
        route: Route | None = None,
        rule: ToolRule | None = None,
        plan: Plan,
        lifted: AqlOperation | None = None,
        upstream: str | None = None,
    ) -> None:
        """Create an entry. `lifted` is the declaration of an AQL server's own operation, and `upstream` the name that
        the server has for it.
        """
        self.name = name
        self.native = native
        self.route = route
        self._rule = rule
        self._plan = plan
        self.tool_name = Raw(encode_value(route.qualified)) if route is not None else None
        self._lifted = lifted
        self.upstream = upstream

    @cached_property
    def facts(self) -> ToolFacts:
        """The facts about the tool, from its definition, its capabilities and the configuration."""
        route = self.route
        if route is None:
            raise TypeError("a native operation has a declaration")
        item, plan = route.item, self._plan.aql
        schema = maybe_value(item, "inputSchema")
        output = maybe_value(item, "outputSchema")
        hints = maybe_value(item, "annotations")
        destructive = hints.get("destructiveHint") if isinstance(hints, Mapping) else None
        capability = route.capability
        return ToolFacts(
            name=self.name,
            local=route.local,
            description=find_string(item.get("description")) or "",
            schema=schema if isinstance(schema, Mapping) else {},
            output=output if isinstance(output, Mapping) else None,
            is_read_only=capability is not None and not capability.mutable,
            is_destructive=destructive if isinstance(destructive, bool) else None,
            is_irreversible=route.irreversible and not route.is_open and bool(route.said or route.is_classified),
            rule=(self._rule.aql if self._rule is not None else None) or NO_RULE,
            has_fields=plan.field_selection,
            is_confirmed=plan.danger.enforce,
        )

    @cached_property
    def classification(self) -> Classification:
        return classify_tool(self.facts)

    @cached_property
    def category(self) -> Category:
        declared = self._declared
        return declared.category if declared is not None else self.classification.classified.category

    @property
    def _declared(self) -> AqlOperation | None:
        """The declaration of an operation that has one of its own; that of an ordinary tool is computed."""
        return self.native.declaration if self.native is not None else self._lifted

    @cached_property
    def danger(self) -> DangerVerdict:
        if self._lifted is not None:
            return danger_of(self.upstream or "", self._lifted.category, self.facts)
        declared = self._declared
        if declared is not None:
            return DangerVerdict(
                declared.danger_level, declared.danger_reasons, is_declared=declared.danger is not None
            )
        return self.classification.danger

    @cached_property
    def danger_word(self) -> str:
        return self.danger.level.word

    @cached_property
    def operation(self) -> AqlOperation:
        if self._lifted is not None:
            level, parameters = self.danger.level, self._lifted.parameters
            if self.treatment == "confirm" and level >= Danger.DESTRUCTIVE:
                parameters = (*parameters, CONFIRMATION_PARAMETER)
            return msgspec.structs.replace(
                self._lifted, name=self.name, parameters=parameters, danger=level, danger_reasons=self.danger.reasons
            )
        if self._declared is not None:
            return self._declared
        return declare_tool(self.facts, self.classification)

    @cached_property
    def validator(self) -> Validator:
        return Validator(self.operation)

    @cached_property
    def family(self) -> str | None:
        if self.native is not None:
            return self.native.declaration.family
        return self._rule.aql.family if self._rule is not None and self._rule.aql is not None else None

    @cached_property
    def weights(self) -> Mapping[str, float]:
        """The weight of each word for a search. Only the names of parameters are decoded, not their schemas."""
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
        """The trust in the server of an operation: by configuration, or by how it came to the node."""
        if self.native is not None:
            return "certified"
        if self._rule is not None and self._rule.trust is not None:
            return self._rule.trust
        offer = self.route.link.offer if self.route is not None else None
        return "community_reviewed" if offer is None or offer.kind == "adopted" or offer.proved else "validated"

    @cached_property
    def treatment(self) -> Treatment:
        """The treatment of a call that the danger of the operation and the trust in its server demand (C.danger-3)."""
        if not self._plan.aql.danger.enforce:
            return "allow"
        required = treatment(self.danger.level, self.trust, is_declared=self.danger.is_declared)
        # An AQL server that takes a token of its own asks for it itself; two tokens would be one too many.
        is_asked_below = self._lifted is not None and CONFIRMATION_PARAMETER.name in self._lifted.by_name
        return "allow" if required == "confirm" and is_asked_below else required


INTROSPECTION: Final = NativeOperation(declaration=DECLARATION, handler=None, is_shown=lambda caller: True)  # type: ignore[arg-type]


class OperationIndex:
    """The operations of one view, sorted by name. It is immutable; search structures are built on first use."""

    def __init__(self, entries: Iterable[OperationEntry], doubled: Mapping[str, Sequence[str]]) -> None:
        """Create the index. `doubled` are names that several tools would have, and that therefore name none of them."""
        self.entries = sorted(entries, key=lambda entry: entry.name)
        self.by_name = {entry.name: entry for entry in self.entries}
        self._doubled = doubled

    @cached_property
    def _search_index(self) -> SearchIndex:
        return SearchIndex([entry.weights for entry in self.entries])

    @cached_property
    def _by_form(self) -> Mapping[str, list[str]]:
        """Operations by their folded name, which is the same for all spellings of a name."""
        names: dict[str, list[str]] = {}
        for entry in self.entries:
            names.setdefault(folded(entry.name), []).append(entry.name)
        return names

    @cached_property
    def _by_original(self) -> Mapping[str, list[str]]:
        """Operations by the name of their tool, if that is not ASCII: nothing of it may be left in their own name."""
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
        """Return what an unknown name may mean, the best match first."""
        doubled = [candidate for candidate in self._doubled.get(name, ()) if candidate in self.by_name]
        if doubled:
            return doubled[:NEAR_MAX]
        same = self._by_original.get(name, []) if not name.isascii() else self._by_form.get(folded(name), [])
        if len(self.entries) <= KNOWN_MAX:
            close = nearest(name, list(self.by_name), 5)
        else:
            close = ranked(name, (entry.name for entry in self.search(name, CANDIDATES_MAX)), 5)
        return list(dict.fromkeys((*same, *close)))[:NEAR_MAX]
