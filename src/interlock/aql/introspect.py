"""The operation `introspect`: what a caller may call, listed, searched, paged and explained."""

from collections.abc import Sequence
from typing import Any, Final

from msgspec import Raw

from interlock.aql.adapter import AqlAdapter
from interlock.aql.answers import Answered
from interlock.aql.operation_index import Entry, OperationIndex
from interlock.aql.protocol.errors import Failure
from interlock.aql.protocol.families import Endpoints
from interlock.aql.protocol.introspection import (
    FIRST_PAGE_BYTES,
    PAGE,
    WHOLE_MAX,
    Query,
    operation_details,
    operation_info,
    read_query,
)
from interlock.aql.protocol.model import TypeDeclaration
from interlock.aql.protocol.requests import Request
from interlock.core.calls.caller import Caller
from interlock.dispatch.arrivals import MissingServer
from interlock.wire.jsonrpc.codec import encode_value

NAME_SHOWN_MAX: Final = 100
SUGGESTED_MAX: Final = 3
HOW: Final = 'more by {"query":"operations","search":"WORDS"}, "prefix":"SERVER__", or "after":"..." of page_info.next'


class Introspection:
    def __init__(self, adapter: AqlAdapter) -> None:
        self._adapter = adapter

    def answer(
        self, caller: Caller, request: Request, endpoints: Endpoints, missing: Sequence[MissingServer]
    ) -> Answered:
        query = read_query(request, strict=self._adapter.plan.aql.strict_mode)
        if isinstance(query, Failure):
            return Answered(failure=query)
        index = self._adapter.index(caller)
        if query.query == "types":  # AQL-9.2-1
            return Answered(data=self._types(index, query))
        if query.name is not None:
            entry = index.by_name.get(query.name)
            if entry is None:
                return Answered(data={"operation": None}, blocks=_suggestion(query.name, index.near(query.name)))
            return Answered(data={"operation": operation_details(entry.operation, endpoints)})
        data = self._operations(caller, index, query, endpoints)
        if missing:
            data["_protocol"]["missing_servers"] = [
                {"server": server.server, "state": server.state} for server in missing
            ]
        return Answered(data=data)

    def _operations(self, caller: Caller, index: OperationIndex, query: Query, endpoints: Endpoints) -> dict[str, Any]:
        protocol = self._adapter.protocol(endpoints, caller, index)
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
            shown = _info(entry, endpoints)
            size += len(shown["name"]) + len(shown["description"]) + len(shown["endpoint"]) + 75
            if is_cut and page and size > FIRST_PAGE_BYTES - 1500:
                break
            page.append(shown)
        dangers = {entry_shown["name"]: index.by_name[entry_shown["name"]] for entry_shown in page}
        levels = {name: entry.danger.level.word for name, entry in dangers.items() if entry.danger.level >= 2}
        if levels and self._adapter.plan.aql.danger.enforce:
            protocol["danger_levels"] = levels
        surfaces = {name: surface for name, entry in dangers.items() if (surface := _surface(entry)) is not None}
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

    def _types(self, index: OperationIndex, query: Query) -> dict[str, Any]:
        if query.name is None:
            return {"types": [declared.info() for declared in self._all_types(index)]}
        return {"type": self._maybe_type(index, query.name)}

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

    def _maybe_type(self, index: OperationIndex, name: str) -> dict[str, Any] | None:
        for declared in self._adapter.types():
            if declared.name == name:  # AQL-9.2-1
                return declared.details()
        for entry in index.entries:
            for declared in entry.operation.types if _may_have(entry, name) else ():
                if declared.name == name:
                    return declared.details()
        return None


def _surface(entry: Entry) -> dict[str, Any] | None:
    """Return what the registry of names says about the tool of an operation (REG-4.2-9), or None."""
    surface = entry.route.surface if entry.route is not None else None
    return None if surface is None else surface.meta


def _suggestion(name: str, near: list[str]) -> tuple[Raw, ...]:
    """Return suggestions as content beside the answer, whose schema has no place for them."""
    if not near:
        return ()
    text = f"There is no operation '{name[:NAME_SHOWN_MAX]}'. Did you mean {', '.join(near[:SUGGESTED_MAX])}?"
    return (Raw(encode_value({"type": "text", "text": text})),)


def _may_have(entry: Entry, type_name: str) -> bool:
    """Return whether an operation may declare a type. Types of a tool begin with its operation's name, which keeps
    large catalogues cheap.
    """
    if entry.native is not None:
        return True
    return type_name.lower().startswith(entry.name.replace("_", ""))


def _info(entry: Entry, endpoints: Endpoints) -> dict[str, str]:
    profile = endpoints.profile
    family = entry.family if entry.family in profile.families else None
    endpoint = family or profile.by_operation.get(entry.name) or profile.by_category[entry.category]
    return operation_info(entry.name, entry.category, endpoint, entry.summary)


def _start(entries: list[Entry], after: str | None) -> int:
    """Return where a page starts: after the operation that ended the previous page, wherever it is now."""
    if after is None:
        return 0
    for place, entry in enumerate(entries):
        if entry.name == after:
            return place + 1
    return next((place for place, entry in enumerate(entries) if entry.name > after), len(entries))
