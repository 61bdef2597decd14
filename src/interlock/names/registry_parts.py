"""The parts of the registry that need no catalog of tools, and their upkeep: reviews that are due, reminders, metrics.

Each hour the registry reads what other processes wrote, starts reviews that are due, reminds operators of them, notes
which servers offer which names, and fetches documents again. A reminder is a step of the log with its date, so it is
given once, whichever process gives it; it has no other effect. An error is logged, and the next hour tries again.
"""

import asyncio
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

import msgspec

from interlock.approvals.inbox import Inbox
from interlock.approvals.trust.anchors import Anchors
from interlock.core.clock import Clock
from interlock.core.metrics import Metrics, Sample
from interlock.core.recorder import Recorder
from interlock.names.actions import NamesActions, Publisher, Sightings
from interlock.names.documents import DocumentFetcher, DocumentWatch
from interlock.names.protocol.entry import PUBLIC, PUBLIC_DAYS, EntryStatus, RegistryEntry, days_after, reached_notice
from interlock.names.protocol.publication import is_overdue
from interlock.names.protocol.registry import NamesRegistry, RegistryStep
from interlock.names.requests import REGISTRY, RequestDecisions, RequestService
from interlock.names.state import RegistryChange, RegistryState, changes_registry
from interlock.store.ports import KeyValue, NamesLog, StoreError
from interlock.wire.refusal import Refused

log = logging.getLogger("interlock.names")

REVIEW: Final = "review_notice"
CONFIRM: Final = "public_notice"


class DueNames(msgspec.Struct, frozen=True, kw_only=True):
    """The numbers of entries in each status, and of entries whose review or confirmation is overdue."""

    statuses: dict[str, int]
    overdue: int
    unconfirmed: int


class Reminders:
    """Reminders of due reviews, and of public entries that must be confirmed."""

    def __init__(self, state: RegistryState, remind: Callable[[str], None]) -> None:
        """Create the reminders. `remind` notifies operators again that the review of a name is waiting."""
        self._state = state
        self._remind = remind
        self._counted: tuple[tuple[str, str], DueNames] | None = None

    def due(self) -> DueNames:
        """Return the counts of entries that wait for a review or a confirmation. They are computed once for each day
        and each state of the registry.
        """
        state = self._state
        key = (state.version, state.today)
        if self._counted is None or self._counted[0] != key:
            statuses = dict.fromkeys((status.value for status in EntryStatus), 0)
            for entry in state.registry.entries.values():
                statuses[entry.status.value] += 1
            own = [each for each in state.registry.entries.values() if not each.source]
            overdue = sum(is_overdue(each, state.today) for each in own)
            unconfirmed = sum(is_unconfirmed(each, state.today) for each in own)
            self._counted = key, DueNames(statuses=statuses, overdue=overdue, unconfirmed=unconfirmed)
        return self._counted[1]

    async def look(self) -> None:
        """Record and send the notices that are due. Called every hour. Raise Refused if the registry cannot be used,
        and StoreError if a notice cannot be stored.
        """
        now, registry = self._state.now, self._state.registry
        steps = [step for entry in registry.entries.values() for step in _due_notices(entry, now)]
        for step in steps:
            if not _is_given(registry, step) and await self._record_notice(step):
                log.warning("%s: %s", step.subject, step.reason)
                if step.what == REVIEW:
                    self._remind(step.subject)

    @changes_registry
    def _record_notice(self, registry: NamesRegistry, step: RegistryStep) -> RegistryChange[bool]:
        """Record a notice in the log if it is not there yet. Return whether it was new."""
        return RegistryChange((), False) if _is_given(registry, step) else RegistryChange((step,), True)


def confirmation_due(entry: RegistryEntry) -> str | None:
    """Return the day on which somebody must confirm again that a surface is public (REG-8.4-2). Return None if no
    confirmation is needed.
    """
    if entry.authentication_scope != PUBLIC or entry.source or entry.status is EntryStatus.WITHDRAWN:
        return None
    return days_after(entry.public_confirmed_on or entry.first_registered, PUBLIC_DAYS)


def is_unconfirmed(entry: RegistryEntry, today: str) -> bool:
    """Return whether somebody should have confirmed again by today that an entry is public."""
    due = confirmation_due(entry)
    return due is not None and today >= due  # REG-8.4-2


def _is_given(registry: NamesRegistry, step: RegistryStep) -> bool:
    return registry.notices.get((step.subject, step.what)) == step.notice


def _due_notices(entry: RegistryEntry, now: str) -> Iterator[RegistryStep]:
    """Yield a step of the log for each notice about an entry that is due now, even if the notice was sent before.
    Imported entries have no notices, because this node does not maintain them.
    """
    if entry.source:
        return
    today, name = now[:10], entry.surface_name
    due = entry.answer_due or entry.review_due
    days = reached_notice(today, due) if entry.status is EntryStatus.PROVISIONAL and due is not None else None
    if days is not None:
        reason = f"its review is due on {due}" if days else f"its review was due on {due}, and is overdue"
        yield RegistryStep(at=now, by=REGISTRY, what=REVIEW, subject=name, reason=reason, notice=f"{due} {days}")
    confirm_on = confirmation_due(entry)
    if confirm_on is not None and today >= confirm_on:  # REG-8.4-2
        reason = f"it is public, and no one has confirmed that for {PUBLIC_DAYS} days"
        yield RegistryStep(at=now, by=REGISTRY, what=CONFIRM, subject=name, reason=reason, notice=confirm_on)


EVERY_S: Final = 3600.0


@dataclass(eq=False, kw_only=True)
class NameParts:
    """The parts of the registry that do not need the catalog of tools, with an hourly task that keeps the registry up
    to date. The other parts are created later (`parts.py`).
    """

    state: RegistryState
    requests: RequestService
    decisions: RequestDecisions
    publisher: Publisher
    actions: NamesActions
    documents: DocumentFetcher
    watch: DocumentWatch
    sightings: Sightings
    reminders: Reminders
    _task: asyncio.Task[None] | None = None

    async def open(self) -> None:
        await self.state.open()
        if self.state.trouble is None:
            self._task = asyncio.get_running_loop().create_task(self._update_forever(), name="names")

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self.documents.close()
        await self.state.close()

    async def _update_forever(self) -> None:
        """Refresh the registry's state, continue its requests, send reminders and check documents, at the start of the
        node and then every hour.
        """
        start = self.requests.open
        while True:
            try:
                await self.state.refresh()
                await start()
                await self.reminders.look()
                await self.sightings.note()
                await self.watch.look()
            except (StoreError, Refused) as error:
                log.error("the registry of names cannot be looked over: %s", error)
            start = self.requests.look
            await asyncio.sleep(EVERY_S)


def make_name_parts(
    names_log: NamesLog,
    kv: KeyValue,
    inbox: Inbox,
    anchors: Anchors,
    recorder: Recorder,
    clock: Clock,
    may_self_review: Callable[[], bool],
) -> NameParts:
    """Create the parts of the registry. `parts.py` adds those that need the catalog. `may_self_review` returns
    registry.self_review.
    """
    state = RegistryState(names_log, recorder, clock)
    documents = DocumentFetcher(clock)
    sightings = Sightings(state, kv, clock)
    decisions = RequestDecisions(state, inbox, anchors.approver_names, may_self_review)
    requests = RequestService(state, inbox, documents.fetch, decisions, sightings.under)
    return NameParts(
        state=state,
        requests=requests,
        decisions=decisions,
        publisher=Publisher(state, lambda: tuple(sorted(anchors.approver_names("names.*")))),
        actions=NamesActions(state, requests, sightings),
        documents=documents,
        watch=DocumentWatch(state, documents.fetch, kv, clock),
        sightings=sightings,
        reminders=Reminders(state, requests.remind),
    )


def define_name_metrics(metrics: Metrics, due: Callable[[], DueNames]) -> None:
    """Define the metrics of the registry. Their values are computed when they are read."""

    def count_entries() -> list[Sample]:
        return [Sample(count, {"status": status}) for status, count in due().statuses.items()]

    metrics.gauge("interlock_names_entries", "Entries of the registry of names, by status.", count_entries)
    late = "Provisional entries whose review is late."
    metrics.gauge("interlock_names_reviews_overdue", late, lambda: [Sample(due().overdue)])
    unconfirmed = "Public entries that were not confirmed for 90 days."
    metrics.gauge("interlock_names_public_unconfirmed", unconfirmed, lambda: [Sample(due().unconfirmed)])
