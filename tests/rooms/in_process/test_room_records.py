"""Are participants remembered with what became of their proposals, in bounded space, over a restart?"""

from pathlib import Path

import pytest
from tests.approvals.inboxes import stored_inbox

from interlock.rooms import participant_records
from interlock.rooms.participant_records import METHOD_CHARS_MAX, METHODS_MAX, ParticipantRecords
from interlock.rooms.protocol.participants import Privilege
from interlock.rooms.protocol.proposals import ProposalStatus

FULL, RESTRICTED = Privilege.FULL, Privilege.RESTRICTED


@pytest.mark.req("X-7.3-1")
async def test_a_record_counts_and_outlives_the_node(tmp_path: Path) -> None:
    async with stored_inbox(tmp_path) as desk:
        records = ParticipantRecords(desk.store.kv, desk.clock)
        records.note_violation("garden", "nobody")  # of whom nothing is known
        records.note_seen("garden", "planner", "room:planner", RESTRICTED)
        first = records.find("garden", "planner")
        assert first is not None and records.find("yard", "planner") is None
        for status in (ProposalStatus.PENDING, ProposalStatus.CLAIMED, ProposalStatus.FULFILLED):
            records.note_proposal("garden", "planner", "tools/call", status)
        for status in (ProposalStatus.PENDING, ProposalStatus.REJECTED):
            records.note_proposal("garden", "planner", "tools/call", status)
        records.note_violation("garden", "planner")
        records.note_seen("garden", "planner", "room:planner", FULL)
        await records.close()
    async with stored_inbox(tmp_path) as desk:
        records = ParticipantRecords(desk.store.kv, desk.clock)
        await records.open()
        (one,) = (record for _, record in records.of_room("garden"))
        assert (one.proposals, one.approved, one.rejected, one.violations) == (2, 1, 1, 1)
        assert (one.privilege, one.first_seen) == (FULL, first.first_seen)
        assert one.methods["tools/call"].approved == 1


async def test_records_of_participants_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(participant_records, "RECORDS_MAX", 3)
    async with stored_inbox(tmp_path) as desk:
        records = ParticipantRecords(desk.store.kv, desk.clock)
        for number in range(5):
            records.note_seen("garden", f"p{number}", "room:p", RESTRICTED)
        for number in range(100):
            records.note_proposal("garden", "p4", f"{number}" + "x" * 1_000_000, ProposalStatus.PENDING)
        record = records.find("garden", "p4")
        assert record is not None and (record.proposals, len(record.methods)) == (100, METHODS_MAX)
        assert max(map(len, record.methods)) == METHOD_CHARS_MAX
        await records.close()
        again = ParticipantRecords(desk.store.kv, desk.clock)
        await again.open()
        assert [id for id, _ in again.of_room("garden")] == ["p2", "p3", "p4"]
