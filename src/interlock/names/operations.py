"""Operations on the registry of names: list, show, check, change and publish entries, and pin tools to them.

Each operation is declared in `names.api` and handled by a method here. Most need the registry alone; some also need the
catalog, because they are about tools that servers offer now. Before an operation reads the state, it reads what other
processes have appended to the log. Calls of public names are counted in the audit log, in which every admitted call is
recorded anyway.
"""

import contextlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec
from msgspec import Raw
from msgspec.structs import replace

from interlock.catalog.catalog import Catalog
from interlock.catalog.routes import Route
from interlock.core.feed import AsyncFeed
from interlock.core.recorder import Recorder
from interlock.core.views import view_of
from interlock.mcp.methods import TOOLS_CALL
from interlock.names import api
from interlock.names.actions import name_check, name_verification, outcome_document
from interlock.names.protocol.comparison import compare_name, count_differing, origin
from interlock.names.protocol.entry import PUBLIC, RegistryEntry
from interlock.names.protocol.judgement import SchemaPair
from interlock.names.protocol.publication import MEDIA_TYPES, Form, is_overdue, published_entry
from interlock.names.protocol.registry import NameProposal, NameRequest
from interlock.names.registry_parts import NameParts, is_unconfirmed
from interlock.names.state import Actor
from interlock.names.surface_check import ANY, NONE, Pin, SurfacePins
from interlock.operator.operation import File, handles
from interlock.store.sqlite.audit import SqliteAuditReader
from interlock.wire.jsonrpc.codec import CodecError, decode_object
from interlock.wire.refusal import NotFound, Refused

RECORDS_MAX: Final = 200_000  # of the audit log that are counted at first: the newest
PAGE: Final = 10_000  # records that are read at a time


class _AuditedCall(msgspec.Struct, frozen=True):
    """The members of an audit record that show whether it is about an admitted call of a tool."""

    method: str = ""
    tool: str | None = None
    verdict: str = ""


_decode_record = msgspec.json.Decoder(_AuditedCall).decode


@dataclass(eq=False)
class NameOperations:
    """Operations on the registry of names, on the tools that servers offer now, and on their pins. After a change, the
    operations publish on `_ruled` the segments of the servers whose tools must be listed again.
    """

    _parts: NameParts
    _catalog: Catalog
    _pins: SurfacePins
    _ruled: AsyncFeed[str]
    _audit: SqliteAuditReader
    _recorder: Recorder

    def __post_init__(self) -> None:
        self._state = self._parts.state
        self._counts = Counter[str]()
        self._read = 0

    @handles(api.REPIN)
    async def repin(self, body: api.PinName) -> api.PinnedTools:
        """Pin the current definitions of all tools of a surface name, or of a single tool; or remove these pins. Raise
        NotFound if there is no such tool, and StoreError if the pins cannot be stored.
        """
        name = body.name
        routes = {
            each.qualified: each for each in self._routes() if name in (each.qualified, each.original, each.local)
        }
        if body.remove:
            pins = [pin for pin in self._pins.all() if pin.tool in routes or pin.tool == name]
        else:
            pins = []
            for route in routes.values():
                argument, returned = route.item.get("inputSchema", ANY), route.item.get("outputSchema")
                # A tool whose schemas cannot be read gets no pin.
                with contextlib.suppress(CodecError):
                    digest = SchemaPair(argument, returned).digest
                    pins.append(Pin(tool=route.qualified, digest=digest, argument=argument, returned=returned or NONE))
        for pin in pins:
            await (self._pins.remove(pin.tool) if body.remove else self._pins.put(pin))
        pinned = [view_of(api.PinnedTool, pin) for pin in pins]
        if not pinned:
            raise NotFound("tool", name, sorted({route.original for route in self._routes()}))
        for segment in sorted({routes[tool.tool].link.segment for tool in pinned if tool.tool in routes}):
            await self._ruled.publish(segment)
        return api.PinnedTools(tools=tuple(sorted(pinned, key=lambda tool: tool.tool)))

    def _routes(self) -> list[Route]:
        return [route for items in self._catalog.namespace.link_items for route in items.tools]

    async def _count_calls(self) -> Mapping[str, int]:
        """Return the number of admitted calls of each tool, by its qualified name. Raise StoreError if the audit log
        cannot be read. Each count reads only the records since the previous one, and at most the last RECORDS_MAX.
        """
        await self._recorder.flush()
        self._read = max(self._read, await self._audit.last() - RECORDS_MAX)
        while page := await self._audit.read(self._read, PAGE):
            for call in (_decode_record(record.data) for record in page):
                if call.method == TOOLS_CALL and call.verdict == "admitted" and call.tool is not None:
                    self._counts[call.tool] += 1
            self._read = page[-1].sequence
        return self._counts

    @handles(api.LIST_NAMES)
    async def list_all(
        self,
        *,
        only_public: bool = False,
        status: str | None = None,
        search: str | None = None,
        limit: int | None = None,
    ) -> api.Names:
        """Return the entries that match all filters. `search` is looked for in name, controller and reference. Raise
        StoreError if the log cannot be read.
        """
        await self._refresh()
        registry = self._state.registry
        entries = []
        for entry in registry.in_order():
            texts = (entry.surface_name, entry.change_controller, entry.specification_reference)
            is_of_scope = not only_public or entry.authentication_scope == PUBLIC
            is_match = not search or any(search.lower() in text.lower() for text in texts)
            if is_of_scope and is_match and status in (None, entry.status.value):
                entries.append(entry)
        # The listed tools by the name that their servers use: pairs of segment and qualified name.
        offers: dict[str, list[tuple[str, str]]] = {}
        for route in self._routes():
            offers.setdefault(route.original, []).append((route.link.segment, route.qualified))
        calls = await self._count_calls() if only_public else None
        due = self._parts.reminders.due()
        return api.Names(
            names=tuple(self._summary(entry, offers.get(entry.surface_name, ()), calls) for entry in entries[:limit]),
            total=len(registry.entries),
            matching=len(entries),
            overdue=due.overdue,
            unconfirmed=due.unconfirmed,
            compared=tuple(
                api.ComparedRegistry(
                    source=url,
                    imported_on=registry.sources[url].imported_on,
                    entries=len(others),
                    differing=count_differing(registry.entries, others),
                )
                for url, others in registry.beside.items()
            ),
            trouble=self._state.trouble,
        )

    @handles(api.SHOW_NAME)
    async def show(self, name: str, *, with_log: bool) -> api.NameDetails:
        """Return everything about a name. Raise NotFound if the name never existed, and StoreError if the log cannot be
        read.
        """
        await self._refresh()
        registry = self._state.registry
        entry = registry.entries.get(name)
        requests = [record for record in registry.requests.values() if record.subject == name]
        steps = await self._state.steps_of(name) if with_log or entry is None else []
        if entry is None and not requests and not steps:
            raise NotFound("name", name, list(registry.entries)[:10_000])
        implementations = [each for each in registry.implementations.values() if each.surface_name == name]
        return api.NameDetails(
            surface_name=name,
            entry=NONE if entry is None else _raw(published_entry(entry, self._state.today)),
            origin=None if entry is None else origin(registry, entry),
            comparisons=tuple(view_of(api.NameComparison, each) for each in compare_name(registry, name)),
            requests=tuple(_raw(replace(record, proposal=None)) for record in requests),
            implementations=tuple(map(_raw, implementations)),
            log=tuple(_raw(replace(step, entry=None, beside=None)) for step in steps) if with_log else (),
        )

    @handles(api.CHECK_NAME)
    async def check(self, body: api.CheckName) -> api.NameCheck:
        """Run the machine checks of a request without filing it. Raise Refused if the proposal is invalid."""
        try:
            proposal = msgspec.json.decode(body.proposal, type=NameProposal)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise Refused("invalid_body", str(error)) from None
        if proposal.surface_name != body.name:
            raise Refused("invalid_body", "the request is for another name")
        await self._refresh()
        return name_check(self._state, proposal)

    @handles(api.VERIFY_NAME)
    async def verify(self, body: api.VerifyName) -> api.NameVerification:
        """Compare a tool's definition with the registered specification of its name. Raise Refused if the definition
        cannot be compared.
        """
        tool = decode_object(body.definition)
        if tool is None:
            raise Refused("invalid_body", "a tool's definition is a JSON object")
        await self._refresh()
        return name_verification(self._state.entry(body.name), body.name, tool)

    @handles(api.ACT)
    async def act(self, body: api.ActOnName, by: str) -> api.NameOutcome:
        """Perform an action on a name, for example request it. Raise Refused or NotFound if it is not possible, and
        StoreError if it cannot be stored.
        """
        actor = Actor(principal=by, override=body.override.strip(), is_operator=True)
        argument = body.body if isinstance(body.body, Raw) else Raw(b"{}")
        result = await self._parts.actions.act(actor, body.action, body.subject, argument)
        outcome = outcome_document(result)
        return api.NameOutcome(
            action=body.action,
            subject=body.subject,
            kind=outcome["kind"],
            state=outcome["state"],
            reason=result.reason if isinstance(result, NameRequest) else "",
            approval=self._parts.requests.find_approval_id(result) if isinstance(result, NameRequest) else None,
            document=_raw(outcome[outcome["kind"]]),
        )

    @handles(api.LIST_PREFIXES)
    async def prefixes(self) -> api.NamePrefixes:
        await self._refresh()
        holders = self._state.registry.holders
        return api.NamePrefixes(prefixes=tuple(view_of(api.NamePrefix, holders[prefix]) for prefix in sorted(holders)))

    @handles(api.PUBLISH)
    async def publish(self, form: Form) -> File:
        """Return the registry in one of its published forms, as a file."""
        await self._refresh()
        return File(self._parts.publisher.published(form), MEDIA_TYPES[form])

    @handles(api.TRUST)
    async def trust(self, body: api.TrustSource, by: str) -> api.Names:
        """Set whether the entries of an imported registry are enforced. Raise NotFound if there is no such registry,
        Refused if it cannot be changed, and StoreError if the change cannot be stored.
        """
        await self._parts.publisher.trust(by, body.source, is_trusted=body.trusted)
        return await self.list_all()

    async def _refresh(self) -> None:
        if self._state.trouble is None:
            await self._state.refresh()

    def _summary(
        self, entry: RegistryEntry, offers: Sequence[tuple[str, str]], calls: Mapping[str, int] | None
    ) -> api.NameSummary:
        """Return the summary of an entry. `offers` are pairs of a server's segment and a tool's qualified name."""
        return view_of(
            api.NameSummary,
            entry,
            origin=origin(self._state.registry, entry),
            is_trusted=self._state.is_trusted(entry),
            is_overdue=is_overdue(entry, self._state.today),
            is_unconfirmed=is_unconfirmed(entry, self._state.today),
            servers=tuple(sorted({segment for segment, _ in offers})),
            calls=None if calls is None else sum(calls.get(tool, 0) for _, tool in offers),
        )


def _raw(value: object) -> Raw:
    return Raw(msgspec.json.encode(value))
