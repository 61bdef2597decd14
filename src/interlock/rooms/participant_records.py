"""The records of participants: when a room first saw each, and how its proposals were decided (X-7.3-1).

An admin reads them before promoting a participant. They are written to the store a moment after they changed, so that a
flood costs one write; a node that is killed loses that moment.
"""

import asyncio
import logging
from collections.abc import Iterator
from typing import Final

import msgspec

from interlock.core.background import BackgroundTasks
from interlock.core.clock import Clock
from interlock.rooms.protocol.participants import Privilege
from interlock.rooms.protocol.proposals import ProposalStatus
from interlock.store.ports import Change, KeyValue, StoreError

log = logging.getLogger("interlock.rooms")

BUCKET: Final = "room-participants"  # topic, line feed, participant -> ParticipantRecord
RECORDS_MAX: Final = 10_000  # the one that was away longest is forgotten first
METHODS_MAX: Final = 20  # that are counted apart; a proposer makes them up
METHOD_CHARS_MAX: Final = 100
WRITE_AFTER_S: Final = 0.5


class MethodCounts(msgspec.Struct):
    """The numbers of proposals that a participant has made, and of those that were approved and rejected. They count
    all of its proposals, or those for one method.
    """

    proposals: int = 0
    approved: int = 0
    rejected: int = 0


class ParticipantRecord(MethodCounts, kw_only=True):
    """The stored record of one participant in one room: when it was seen, and how its proposals were decided."""

    principal: str  # of its last connection or message
    privilege: Privilege  # what it had then
    first_seen: float
    last_seen: float
    violations: int = 0
    methods: dict[str, MethodCounts] = {}


class ParticipantRecords:
    """The records of all participants of all rooms, in the order in which the participants were last seen."""

    def __init__(self, store: KeyValue, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._records: dict[str, ParticipantRecord] = {}
        self._changed: set[str] = set()
        self._tasks = BackgroundTasks()

    async def open(self) -> None:
        """Read the records, least recently seen first. Raise StoreError if that fails."""
        entries = await self._store.entries(BUCKET, self._clock.wall())
        records = {entry.key: msgspec.json.decode(entry.value, type=ParticipantRecord) for entry in entries}
        self._records = dict(sorted(records.items(), key=lambda item: item[1].last_seen))

    def take_change(self, change: Change) -> None:
        """Apply a record that another replica wrote. Ignore it if this replica is about to write a newer one."""
        if change.key in self._changed:
            return
        self._records.pop(change.key, None)
        if change.entry is not None:
            self._records[change.key] = msgspec.json.decode(change.entry.value, type=ParticipantRecord)

    async def close(self) -> None:
        await self._tasks.close()
        await self._write()

    def find(self, topic: str, participant: str) -> ParticipantRecord | None:
        return self._records.get(f"{topic}\n{participant}")

    def of_room(self, topic: str) -> Iterator[tuple[str, ParticipantRecord]]:
        records, prefix = self._records.items(), f"{topic}\n"
        return ((key.removeprefix(prefix), record) for key, record in records if key.startswith(prefix))

    def note_seen(self, topic: str, participant: str, principal: str, privilege: Privilege) -> None:
        """Record that a participant joined or sent something. If there are too many records, delete the least recently
        seen one.
        """
        key, now = f"{topic}\n{participant}", self._clock.wall()
        if (record := self._records.pop(key, None)) is None:
            record = ParticipantRecord(principal=principal, privilege=privilege, first_seen=now, last_seen=now)
        record.principal, record.privilege, record.last_seen = principal, privilege, now
        self._records[key] = record
        while len(self._records) > RECORDS_MAX:
            oldest = next(iter(self._records))
            del self._records[oldest]
            self._note(oldest)
        self._note(key)

    def note_violation(self, topic: str, participant: str) -> None:
        """Count an MCP message that was refused because the participant is restricted."""
        if (record := self.find(topic, participant)) is not None:
            record.violations += 1
            self._note(f"{topic}\n{participant}")

    def note_proposal(self, topic: str, participant: str, method: str, status: ProposalStatus) -> None:
        """Count a proposal that is now pending, claimed or rejected. Ignore other statuses, which do not show how it
        was decided.
        """
        if (record := self.find(topic, participant)) is None:
            return
        method = method[:METHOD_CHARS_MAX]
        counts = record.methods.get(method)
        if counts is None and len(record.methods) < METHODS_MAX:
            counts = record.methods[method] = MethodCounts()
        for counted in (record, counts):
            if counted is not None:
                counted.proposals += status is ProposalStatus.PENDING
                counted.approved += status is ProposalStatus.CLAIMED
                counted.rejected += status is ProposalStatus.REJECTED
        self._note(f"{topic}\n{participant}")

    def _note(self, key: str) -> None:
        self._changed.add(key)
        if not len(self._tasks):
            self._tasks.begin(self._write_soon(), "records of participants")

    async def _write_soon(self) -> None:
        while self._changed:
            await asyncio.sleep(WRITE_AFTER_S)
            await self._write()

    async def _write(self) -> None:
        """Write the changed records. A record that cannot be written stays in memory and is written after its next
        change.
        """
        changed, self._changed = self._changed, set()
        try:
            for key in changed:
                if (record := self._records.get(key)) is None:
                    await self._store.delete(BUCKET, key)
                else:
                    await self._store.put(BUCKET, key, msgspec.json.encode(record), self._clock.wall())
        except StoreError as away:
            log.warning("records of participants could not be written: %s", away)
