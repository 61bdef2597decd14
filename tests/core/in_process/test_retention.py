"""Audit records that are given up when they are old enough."""

import json
from pathlib import Path

from interlock.core.audit_record import AuditRecord
from interlock.core.recorder import DAY_S, GIVE_UP, Recorder, Retention
from interlock.store.sqlite.audit import SqliteAudit

NOW = 1_800_000_000.0


class Clock:
    wall_time = NOW

    def now(self) -> float:
        return 0.0

    def wall(self) -> float:
        return self.wall_time


def entry(age_days: float) -> AuditRecord:
    return AuditRecord(
        NOW - age_days * DAY_S, "client:a", "http", "tools/call", "x.y", None, "admitted", "ok", 0.1, None
    )


async def test_older_records_are_removed_with_a_record_of_that_and_the_rest_is_provable(tmp_path: Path) -> None:
    audit = SqliteAudit(tmp_path)
    await audit.open()
    recorder = Recorder(audit)
    for age in (40, 31, 29, 1):  # a row each, because rows go whole
        recorder.add(entry(age))
        await recorder.flush()
    old = await audit.read()
    assert await Retention(audit, recorder, Clock(), 30).look() == 2
    records = await audit.read()
    assert [record.sequence for record in records] == [3, 4, 5]
    told = json.loads(records[-1].data)
    assert (told["method"], told["tool"]) == (GIVE_UP, "records to 2")
    assert old[1].hash.hex() in told["reason"]
    verdict = await audit.verify()
    assert (verdict.intact, verdict.start.sequence, verdict.start.hash) == (True, 2, old[1].hash)
    await audit.close()


async def test_without_old_records_nothing_is_recorded(tmp_path: Path) -> None:
    audit = SqliteAudit(tmp_path)
    await audit.open()
    recorder = Recorder(audit)
    recorder.add(entry(29))
    await recorder.flush()
    assert await Retention(audit, recorder, Clock(), 30).look() == 0
    assert await audit.last() == 1
    await audit.close()


async def test_a_record_nobody_can_read_goes_with_its_neighbours(tmp_path: Path) -> None:
    audit = SqliteAudit(tmp_path)
    await audit.open()
    await audit.append([b"not json"])
    await audit.append([b"[]"])
    recorder = Recorder(audit)
    recorder.add(entry(1))
    await recorder.flush()
    assert await Retention(audit, recorder, Clock(), 30).look() == 2
    assert (await audit.verify()).intact
    await audit.close()
