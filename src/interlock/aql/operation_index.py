"""The operations that one kind of caller sees: the node's own and those of the tools in its view, by name.

An index is made from an immutable view and kept while neither the view nor the native operations change. What is made
of a tool (`Entry`) is kept with its route, so that a change of one server costs the entries of that server alone; and
what only details and calls need (parameters, types, a compiled schema) is made when it is first asked for.
"""

import logging
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Final

import msgspec
from msgspec import Raw

from interlock.aql.native_operations import NativeOperation
from interlock.aql.protocol.classification import Endangered, Treatment, Trust, least_trust, treatment
from interlock.aql.protocol.introspection import DECLARATION
from interlock.aql.protocol.model import Category, Danger, Operation
from interlock.aql.protocol.search import KNOWN_MAX, SearchIndex, folded, nearest, ranked, term_weights
from interlock.aql.protocol.tool_operations import (
    CONFIRMATION_PARAMETER,
    NO_RULE,
    Classification,
    ToolFacts,
    classify_tool,
    declare_tool,
    lifted_danger,
)
from interlock.aql.protocol.validation import Validator
from interlock.catalog.routes import Route
from interlock.config.plan import Plan, ToolRule
from interlock.mcp.items import maybe_value
from interlock.wire.jsonrpc.codec import decode_object, encode_value, find_string

log = logging.getLogger("interlock.aql")

NEAR_MAX: Final = 10
CANDIDATES_MAX: Final = 30


class Entry:
    """One operation as this node serves it: native, or by way of a tool."""

    def __init__(
        self,
        name: str,
        *,
        native: NativeOperation | None = None,
        route: Route | None = None,
        rule: ToolRule | None = None,
        plan: Plan,
        lifted: Operation | None = None,
        upstream: str | None = None,
    ) -> None:
        """Create an entry. `lifted` is the declaration of an AQL server's own operation, which the server calls
        `upstream`.
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
    def _declared(self) -> Operation | None:
        return self.native.declaration if self.native is not None else self._lifted

    @cached_property
    def danger(self) -> Endangered:
        if self._lifted is not None:
            return lifted_danger(self.upstream or "", self._lifted.category, self.facts)
        declared = self._declared
        if declared is not None:
            return Endangered(declared.danger_level, declared.danger_reasons, is_declared=declared.danger is not None)
        return self.classification.danger

    @cached_property
    def danger_word(self) -> str:
        return self.danger.level.word

    @cached_property
    def operation(self) -> Operation:
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
    def summary(self) -> str:
        return self.operation.summary

    @cached_property
    def weights(self) -> Mapping[str, float]:
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
        if self.native is not None:
            return "certified"
        if self._rule is not None and self._rule.trust is not None:
            return self._rule.trust
        offer = self.route.link.offer if self.route is not None else None
        return "community_reviewed" if offer is None or offer.kind == "adopted" or offer.proved else "validated"

    @cached_property
    def treatment(self) -> Treatment:
        """Return what the danger of an operation and the trust in its server demand (C.danger-3)."""
        if not self._plan.aql.danger.enforce:
            return "allow"
        required = treatment(self.danger.level, self.trust, is_declared=self.danger.is_declared)
        # An AQL server that takes a token of its own asks for it itself; two tokens would be one too many.
        is_asked_below = self._lifted is not None and CONFIRMATION_PARAMETER.name in self._lifted.by_name
        return "allow" if required == "confirm" and is_asked_below else required

    @property
    def least_trust(self) -> str:
        return least_trust(self.danger.level)


INTROSPECTION: Final = NativeOperation(declaration=DECLARATION, handler=None, is_shown=lambda caller: True)  # type: ignore[arg-type]


class OperationIndex:
    """Immutable but for what is made on first use."""

    def __init__(self, entries: Iterable[Entry], doubled: Mapping[str, Sequence[str]]) -> None:
        """Create the index. `doubled` are names that several tools would have, and that therefore name none of them."""
        self.entries = sorted(entries, key=lambda entry: entry.name)
        self.by_name = {entry.name: entry for entry in self.entries}
        self._doubled = doubled

    @cached_property
    def search_index(self) -> SearchIndex:
        return SearchIndex([entry.weights for entry in self.entries])

    @cached_property
    def _by_form(self) -> Mapping[str, list[str]]:
        names: dict[str, list[str]] = {}
        for entry in self.entries:
            names.setdefault(folded(entry.name), []).append(entry.name)
        return names

    @cached_property
    def _by_original(self) -> Mapping[str, list[str]]:
        """Return operations by the name of their tool, if that name is not ASCII and differs from the operation's."""
        operations: dict[str, list[str]] = {}
        for entry in self.entries:
            route = entry.route
            if route is not None and not route.original.isascii():
                for name in {route.original, route.qualified, f"{route.link.segment}.{route.original}"}:
                    operations.setdefault(name, []).append(entry.name)
        return operations

    def search(self, text: str, most: int) -> list[Entry]:
        return [self.entries[place] for place in self.search_index.search(text, most)]

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

    @cached_property
    def danger_levels(self) -> dict[str, str]:
        """Return the operations that need confirmation, with their danger level."""
        return {entry.name: entry.danger.level.word for entry in self.entries if entry.danger.level >= 2}
