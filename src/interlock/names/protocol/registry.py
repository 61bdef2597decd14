"""The state of a registry: what its steps came to, and what can be asked of it."""

from collections.abc import Iterable, Iterator
from typing import Final

from interlock.names.protocol.grammar import covers
from interlock.names.protocol.life import RequestState, free_on
from interlock.names.protocol.model import NONE, Entry, Status
from interlock.names.protocol.records import (
    Consent,
    Controller,
    Holder,
    Implementation,
    Request,
    SourceRegistry,
    Step,
    Transfer,
)

OPEN: Final = frozenset((RequestState.SUBMITTED, RequestState.IN_REVIEW))


class Registry:
    """A fold over steps; it changes by `apply` alone."""

    def __init__(self, steps: Iterable[Step] = ()) -> None:
        self.entries: dict[str, Entry] = {}
        self.requests: dict[str, Request] = {}
        self.controllers: dict[str, Controller] = {}
        self.holders: dict[str, Holder] = {}
        self.sources: dict[str, SourceRegistry] = {}
        self.transfers: dict[str, Transfer] = {}
        self.implementations: dict[str, Implementation] = {}
        self.used_statements: set[str] = set()
        self.notices: dict[tuple[str, str], str] = {}  # the last of each kind about a name
        self.updated = ""  # the day of the last change of an entry
        self._consents: dict[tuple[str, str], Consent] = {}
        for step in steps:
            self.apply(step)

    def apply(self, step: Step) -> None:
        if (entry := step.entry) is not None:
            self.transfers.pop(entry.surface_name, None)
            self.updated = max(self.updated, step.at[:10])
            if step.is_removed:
                self.entries.pop(entry.surface_name, None)
            else:
                self.entries[entry.surface_name] = entry
            if entry.vendor_prefix != NONE:  # a removed entry counts as first use as well
                self.holders.setdefault(entry.vendor_prefix, _first_use(entry))  # REG-7.2-1
        if step.request is not None:
            self.requests[step.request.id] = step.request
        if step.controller is not None:
            self.controllers[step.controller.name] = step.controller
        if step.consent is not None:
            self._consents[step.consent.prefix, step.consent.controller] = step.consent
        if step.holder is not None:
            self.holders[step.holder.prefix] = step.holder
        if step.implementation is not None:
            self.implementations[step.implementation.id] = step.implementation
        if step.source is not None:
            self.sources[step.source.url] = step.source
        if step.transfer is not None:
            self.transfers[step.transfer.surface_name] = step.transfer
        if step.notice:
            self.notices[step.subject, step.what] = step.notice
        if step.statement:
            self.used_statements.add(step.statement)

    def entry(self, name: str) -> Entry | None:
        return self.entries.get(name)

    def is_trusted(self, entry: Entry) -> bool:
        if not entry.source:
            return True
        source = self.sources.get(entry.source)
        return source is not None and source.is_trusted  # REG-N-5

    def controller(self, name: str) -> Controller:
        """Its record; no one acts for one that is not known yet."""
        return self.controllers.get(name) or Controller(name=name)

    def has_consent(self, prefix: str, controller: str, today: str) -> bool:
        consent = self._consents.get((prefix, controller))
        return consent is not None and today <= consent.until  # REG-7.2-2

    def open_requests(self) -> Iterator[Request]:
        return (request for request in self.requests.values() if request.state in OPEN)

    def remaining_implementations(self, name: str) -> tuple[Implementation, ...]:
        return tuple(one for one in self.implementations.values() if one.surface_name == name and not one.ended_on)

    def in_order(self) -> list[Entry]:
        """Every entry, in the order of the octets of its name."""
        return [self.entries[name] for name in sorted(self.entries)]

    def maybe_collision(self, name: str, controller: str, today: str) -> tuple[str, str] | None:
        """None: the name can be registered. Otherwise the code and the reason (criterion 5, section 7.3)."""
        entry = self.entries.get(name)
        if entry is None:
            return None
        if entry.status is not Status.WITHDRAWN or entry.source:  # REG-5-7
            return "name_taken", f"{name} is registered to {entry.change_controller}, {entry.status.value}"
        day = free_on(entry.withdrawn_on or today)
        if entry.change_controller == controller or today >= day:  # REG-7.3-5
            return None
        return "name_in_quarantine", f"{name} was withdrawn on {entry.withdrawn_on} and is free on {day}"

    def prefix_conflict(self, name: str, prefix: str, controller: str, today: str) -> str | None:
        """Who would shadow or be shadowed (REG-5-8); only between different controllers, and without a consent."""
        for holder in self.holders.values():
            if holder.controller == controller or self.has_consent(holder.prefix, controller, today):  # REG-7.2-2
                continue
            held = f"{holder.prefix} is {holder.controller}'s since {holder.since}, by {holder.first_entry}"
            if covers(holder.prefix, name):  # REG-5-8
                return f"{held}; {name} falls under it"
            if holder.prefix.startswith(f"{name}_"):  # REG-5-8
                return f"{held}; {name} would stand before it"
            if prefix != NONE and (holder.prefix.startswith(prefix) or prefix.startswith(holder.prefix)):  # REG-5-8
                return f"{held}; one of the two prefixes leads the other"
        return None


def _first_use(entry: Entry) -> Holder:
    return Holder(
        prefix=entry.vendor_prefix,
        controller=entry.change_controller,
        first_entry=entry.surface_name,
        since=entry.first_registered,
    )
