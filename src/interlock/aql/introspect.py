"""The operation `introspect`: lists, searches, pages and explains what a caller may call.

A list of a large catalogue would fill the context of a model before it has called anything. Without parameters a
client therefore gets everything only up to `WHOLE_MAX` operations, and otherwise a first page with the way to the rest.
"""

from collections.abc import Sequence
from typing import Any, Final

from msgspec import Raw

from interlock.aql.adapter import AqlAdapter
from interlock.aql.answers import OperationAnswer
from interlock.aql.operation_index import OperationEntry, OperationIndex
from interlock.aql.protocol.errors import AqlFailure
from interlock.aql.protocol.families import AqlEndpoints
from interlock.aql.protocol.introspection import (
    FIRST_PAGE_BYTES,
    PAGE,
    WHOLE_MAX,
    IntrospectQuery,
    operation_details,
    operation_info,
    read_query,
)
from interlock.aql.protocol.model import Danger, TypeDeclaration
from interlock.aql.protocol.requests import OperationRequest
from interlock.core.calls.caller import Caller
from interlock.dispatch.arrivals import MissingServer
from interlock.wire.jsonrpc.codec import encode_value

NAME_SHOWN_MAX: Final = 100
SUGGESTED_MAX: Final = 3
ITEM_FRAME_BYTES: Final = 75  # keys, quotes and the category of an operation in a list
PROTOCOL_BYTES: Final = 1500  # left for `_protocol` beside the operations of a first page
# Shown with a cut list: the three ways to the rest.
HOW: Final = 'more by {"query":"operations","search":"WORDS"}, "prefix":"SERVER__", or "after":"..." of page_info.next'


class Introspection:
    """The answers to `introspect` (7): what a caller may call. Nothing that the caller may not see is mentioned."""

    def __init__(self, adapter: AqlAdapter) -> None:
        self._adapter = adapter

    def answer(
        self, caller: Caller, request: OperationRequest, endpoints: AqlEndpoints, missing: Sequence[MissingServer]
    ) -> OperationAnswer:
        """Answer `introspect`. `missing` are servers that are still connecting, whose operations cannot be listed."""
        query = read_query(request, strict=self._adapter.plan.aql.strict_mode)
        if isinstance(query, AqlFailure):
            return OperationAnswer(failure=query)
        index = self._adapter.index(caller)
        if query.query == "types":  # AQL-9.2-1
            if query.name is None:
                return OperationAnswer(data={"types": [declared.info() for declared in self._all_types(index)]})
            return OperationAnswer(data={"type": self._find_type(index, query.name)})
        if query.name is not None:
            entry = index.by_name.get(query.name)
            if entry is None:
                return OperationAnswer(data={"operation": None}, blocks=_suggestion(query.name, index.near(query.name)))
            return OperationAnswer(data={"operation": operation_details(entry.operation, endpoints)})
        data = self._operations(caller, index, query, endpoints)
        if missing:
            data["_protocol"]["missing_servers"] = [
                {"server": server.server, "state": server.state} for server in missing
            ]
        return OperationAnswer(data=data)

    def _operations(
        self, caller: Caller, index: OperationIndex, query: IntrospectQuery, endpoints: AqlEndpoints
    ) -> dict[str, Any]:
        """List operations: filtered, searched and cut to a page, with `_protocol` beside them."""
        protocol = self._adapter.protocol(endpoints, caller)
        entries = index.entries
        if query.prefix:
            entries = [entry for entry in entries if entry.name.startswith(query.prefix)]
        if query.search is not None:
            fitting = index.search(query.search, len(index.entries))
            with_prefix = set(entries) if query.prefix else None
            entries = [entry for entry in fitting if with_prefix is None or entry in with_prefix]
        total = len(entries)
        is_cut = not query.is_paged and total > WHOLE_MAX
        start = _start(entries, query.after)
        most = query.first or (PAGE if query.is_paged or is_cut else total)
        page: list[dict[str, str]] = []
        size = 0
        for entry in entries[start : start + most]:
            family = endpoints.profile.family(entry.name, entry.category, entry.family)
            shown = operation_info(entry.name, entry.category, family, entry.operation.summary)
            size += len(shown["name"]) + len(shown["description"]) + len(shown["endpoint"]) + ITEM_FRAME_BYTES
            if is_cut and page and size > FIRST_PAGE_BYTES - PROTOCOL_BYTES:
                break
            page.append(shown)
        listed = [index.by_name[shown["name"]] for shown in page]
        levels = {entry.name: entry.danger_word for entry in listed if entry.danger.level >= Danger.DESTRUCTIVE}
        if levels and self._adapter.plan.aql.danger.enforce:
            protocol["danger_levels"] = levels
        surfaces = {  # what the registry of tool surface names says about the tool of an operation (REG-4.2-9)
            entry.name: entry.route.surface.meta
            for entry in listed
            if entry.route is not None and entry.route.surface is not None
        }
        if surfaces:
            protocol["surfaces"] = surfaces
        if query.is_paged or is_cut:
            end = start + len(page)
            info: dict[str, Any] = {"total": total, "returned": len(page)}
            info["next"] = page[-1]["name"] if page and end < total else None
            if is_cut:
                info["how"] = HOW
            protocol["page_info"] = info
        return {"_protocol": protocol, "operations": page}

    def _all_types(self, index: OperationIndex) -> list[TypeDeclaration]:
        """Return all types, or only the protocol's own for a large catalogue, where a type of an operation is found
        by its name.
        """
        types = {declared.name: declared for declared in self._adapter.types()}
        if len(index.entries) <= WHOLE_MAX:
            for entry in index.entries:
                for declared in entry.operation.types:
                    types.setdefault(declared.name, declared)
        return list(types.values())

    def _find_type(self, index: OperationIndex, name: str) -> dict[str, Any] | None:
        for declared in self._adapter.types():
            if declared.name == name:  # AQL-9.2-1
                return declared.details()
        for entry in index.entries:
            for declared in entry.operation.types if _may_have(entry, name) else ():
                if declared.name == name:
                    return declared.details()
        return None


def _suggestion(name: str, near: list[str]) -> tuple[Raw, ...]:
    """Return suggestions as content beside the answer, whose schema has no place for them."""
    if not near:
        return ()
    text = f"There is no operation '{name[:NAME_SHOWN_MAX]}'. Did you mean {', '.join(near[:SUGGESTED_MAX])}?"
    return (Raw(encode_value({"type": "text", "text": text})),)


def _may_have(entry: OperationEntry, type_name: str) -> bool:
    """Return whether an operation may declare a type. Types of a tool begin with its operation's name, which keeps
    large catalogues cheap.
    """
    if entry.native is not None:
        return True
    return type_name.lower().startswith(entry.name.replace("_", ""))


def _start(entries: list[OperationEntry], after: str | None) -> int:
    """Return where a page starts: after the operation that ended the previous page, wherever it is now."""
    if after is None:
        return 0
    for place, entry in enumerate(entries):
        if entry.name == after:
            return place + 1
    return next((place for place, entry in enumerate(entries) if entry.name > after), len(entries))
