"""The documents behind references, fetched again each week: a change or a loss is noted, and changes no status."""

from typing import Final

import msgspec

from interlock.core.clock import Clock
from interlock.names.protocol.life import days_between
from interlock.names.protocol.model import Entry, Status
from interlock.names.protocol.records import Step
from interlock.names.protocol.registry import Registry
from interlock.names.requests import REGISTRY, Fetch
from interlock.names.state import Change, RegistryState
from interlock.store.ports import KeyValue

BUCKET: Final = "names-documents"
EVERY_DAYS: Final = 7
LOST_AFTER: Final = 3  # failures, a week apart
AT_ONCE_MAX: Final = 50  # in one look


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """When a document was last asked for, and what was told of it."""

    day: str
    failures: int = 0
    told: str = ""  # the digest of the change that was noted


class DocumentWatch:
    def __init__(self, state: RegistryState, fetch: Fetch, kv: KeyValue, clock: Clock) -> None:
        self._state = state
        self._fetch = fetch
        self._kv = kv
        self._clock = clock

    async def look(self) -> None:
        """Raises Refused, StoreError."""
        state = self._state
        watched = [one for one in state.registry.in_order() if _is_watched(one)]
        stored = await self._kv.entries(BUCKET, self._clock.wall())
        known = {one.key: msgspec.json.decode(one.value, type=Seen) for one in stored}
        due = [one for one in watched if _is_due(one, known.get(one.surface_name), state.today)]
        for entry in due[:AT_ONCE_MAX]:
            seen = known.get(entry.surface_name) or Seen(day=state.today)
            await self._look_at(entry, seen)

    async def _look_at(self, entry: Entry, seen: Seen) -> None:
        found = await self._fetch(entry.specification_reference)
        if found.outcome == "skipped_offline":
            return
        failures, told = seen.failures + 1, seen.told
        if found.digest is not None:
            failures = 0
            if found.digest not in (entry.specification.document_digest, told):  # REG-8.2-4
                told = found.digest
                await self._note(entry.surface_name, "document_changed", f"{entry.specification_reference}: {told}")
        elif failures == LOST_AFTER:  # REG-8.2-4
            await self._note(entry.surface_name, "reference_lost", found.detail)
        seen = Seen(day=self._state.today, failures=failures, told=told)
        await self._kv.put(BUCKET, entry.surface_name, msgspec.json.encode(seen), self._clock.wall())

    async def _note(self, name: str, what: str, reason: str) -> None:
        at = self._state.now

        def decide(registry: Registry) -> Change:
            return Change((Step(at=at, by=REGISTRY, what=what, subject=name, reason=reason),))

        await self._state.change(decide)


def _is_watched(entry: Entry) -> bool:
    is_kept = entry.status is not Status.WITHDRAWN and not entry.source
    return is_kept and entry.specification.document_digest is not None


def _is_due(entry: Entry, seen: Seen | None, today: str) -> bool:
    last = seen.day if seen is not None else entry.specification.registered
    return days_between(last, today) >= EVERY_DAYS  # REG-8.2-4
