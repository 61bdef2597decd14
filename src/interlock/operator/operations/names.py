"""The registry of names, for operators: listed, shown, checked, changed and published."""

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec
from msgspec import Raw
from msgspec.structs import asdict, replace

from interlock.catalog.catalog import Catalog
from interlock.core.feed import AsyncFeed
from interlock.core.operator_errors import NotFound, Refused
from interlock.core.recorder import Recorder
from interlock.names.actions import name_check, name_verification, outcome_document
from interlock.names.actors import Actor
from interlock.names.api import (
    NameCheck,
    NameDetails,
    NameOutcome,
    NamePrefix,
    NamePrefixes,
    Names,
    NameSummary,
    NameVerification,
)
from interlock.names.protocol.entry import PUBLIC, Entry
from interlock.names.protocol.publication import Form, is_overdue, published_entry
from interlock.names.protocol.registry import Proposal, Request
from interlock.names.registry_parts import NameParts
from interlock.names.reviews import is_unconfirmed
from interlock.names.surface_check import SurfacePins
from interlock.operator.operations.admitted_calls import AdmittedCalls
from interlock.operator.operations.surfaces import SurfaceOperations
from interlock.store.ports import AuditReader
from interlock.wire.jsonrpc.codec import decode_object

_NONE: Final = Raw(b"null")


class NameOperations:
    def __init__(
        self,
        parts: NameParts,
        catalog: Catalog,
        pins: SurfacePins,
        ruled: AsyncFeed[str],
        audit: AuditReader,
        recorder: Recorder,
    ) -> None:
        self.surfaces = SurfaceOperations(catalog, pins, ruled)
        self._calls = AdmittedCalls(audit, recorder)
        self._reminders = parts.reminders
        self._state = parts.state
        self._requests = parts.requests
        self._actions = parts.actions
        self._publisher = parts.publisher

    async def list_all(
        self, *, only_public: bool = False, status: str | None = None, search: str = "", limit: int | None = None
    ) -> Names:
        """`search`: what stands in the name, its controller or its reference. Raises StoreError."""
        await self._refresh()
        registry, today = self._state.registry, self._state.today
        found = [
            one
            for one in registry.in_order()
            if (not only_public or one.authentication_scope == PUBLIC)
            and status in (None, one.status.value)
            and (not search or _fits(one, search.lower()))
        ]
        offers = self.surfaces.offers()
        calls = await self._calls.counts() if only_public else None
        due = self._reminders.due()
        return Names(
            names=tuple(self._summary(one, today, offers.get(one.surface_name, ()), calls) for one in found[:limit]),
            total=len(registry.entries),
            matching=len(found),
            overdue=due.overdue,
            unconfirmed=due.unconfirmed,
            trouble=self._state.trouble,
        )

    async def show(self, name: str, *, with_log: bool) -> NameDetails:
        """Raises NotFound where the registry never heard of the name; StoreError."""
        await self._refresh()
        registry = self._state.registry
        entry = registry.entry(name)
        requests = [one for one in registry.requests.values() if one.subject == name]
        steps = await self._state.steps_of(name) if with_log or entry is None else []
        if entry is None and not requests and not steps:
            raise NotFound("name", name, list(registry.entries)[:10_000])
        return NameDetails(
            surface_name=name,
            entry=_NONE if entry is None else _raw(published_entry(entry, self._state.today)),
            requests=tuple(_raw(replace(one, proposal=None)) for one in requests),
            implementations=tuple(_raw(one) for one in registry.implementations.values() if one.surface_name == name),
            log=tuple(_raw(replace(step, entry=None)) for step in steps) if with_log else (),
        )

    async def check(self, name: str, body: Raw) -> NameCheck:
        """Raises Refused."""
        try:
            proposal = msgspec.json.decode(body, type=Proposal)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise Refused("invalid_body", str(error)) from None
        if proposal.surface_name != name:
            raise Refused("invalid_body", "the request is for another name")
        await self._refresh()
        return name_check(name, await self._requests.check(proposal))

    async def verify(self, name: str, definition: Raw) -> NameVerification:
        """Raises Refused."""
        tool = decode_object(definition)
        if tool is None:
            raise Refused("invalid_body", "a tool's definition is a JSON object")
        await self._refresh()
        return name_verification(self._state.entry(name), name, tool)

    async def act(self, principal: str, action: str, subject: str, body: Raw, override: str) -> NameOutcome:
        """Raises Refused, NotFound, StoreError."""
        actor = Actor(principal=principal, override=override.strip(), is_operator=True)
        result = await self._actions.act(actor, action, subject, body)
        made = outcome_document(result)
        return NameOutcome(
            action=action,
            subject=subject,
            kind=made["kind"],
            state=made["state"],
            reason=result.reason if isinstance(result, Request) else "",
            approval=self._requests.maybe_approval_id(result) if isinstance(result, Request) else None,
            document=_raw(made[made["kind"]]),
        )

    async def prefixes(self) -> NamePrefixes:
        await self._refresh()
        holders = self._state.registry.holders
        return NamePrefixes(prefixes=tuple(NamePrefix(**asdict(holders[one])) for one in sorted(holders)))

    async def publish(self, form: Form) -> bytes:
        await self._refresh()
        return self._publisher.published(form)

    async def trust(self, by: str, source: str, *, is_trusted: bool) -> Names:
        """Raises NotFound, Refused, StoreError."""
        await self._publisher.trust(by, source, is_trusted=is_trusted)
        return await self.list_all()

    async def _refresh(self) -> None:
        if self._state.trouble is None:
            await self._state.refresh()

    def _summary(
        self, entry: Entry, today: str, offers: Sequence[tuple[str, str]], calls: Mapping[str, int] | None
    ) -> NameSummary:
        """`offers`: the segments of its servers, and the qualified names of its tools."""
        return NameSummary(
            surface_name=entry.surface_name,
            specification_reference=entry.specification_reference,
            authentication_scope=entry.authentication_scope,
            vendor_prefix=entry.vendor_prefix,
            change_controller=entry.change_controller,
            status=entry.status.value,
            first_registered=entry.first_registered,
            source=entry.source,
            is_trusted=self._state.is_trusted(entry),
            is_overdue=is_overdue(entry, today),
            public_confirmed_on=entry.public_confirmed_on,
            is_unconfirmed=is_unconfirmed(entry, today),
            servers=tuple(sorted({segment for segment, _ in offers})),
            calls=None if calls is None else sum(calls.get(tool, 0) for _, tool in offers),
        )


def _fits(entry: Entry, words: str) -> bool:
    texts = (entry.surface_name, entry.change_controller, entry.specification_reference)
    return any(words in text.lower() for text in texts)


def _raw(value: object) -> Raw:
    return Raw(msgspec.json.encode(value))
