"""The hash chain itself: what a verdict finds, and where."""

import hashlib
from collections.abc import Iterable

import pytest

from interlock.store.audit_chain import GENESIS, ORIGIN, ChainCheck, ChainedRecord, Flaw, Mark, Verdict, link


def chain(*contents: bytes, start: Mark = ORIGIN) -> list[ChainedRecord]:
    records = []
    sequence, previous = start.sequence, start.hash
    for data in contents:
        sequence += 1
        previous = link(previous, sequence, data)
        records.append(ChainedRecord(sequence, data, previous))
    return records


def verify(records: Iterable[ChainedRecord], start: Mark = ORIGIN, head: Mark | None = None) -> Verdict:
    check = ChainCheck(start, head)
    for record in records:
        if not check.add(record):
            break
    return check.finish()


LOG = chain(b"one", b"two", b"", b"four", b"five")
HEAD = Mark(5, LOG[-1].hash)


def found(verdict: Verdict) -> tuple[int, Flaw] | None:
    return None if verdict.broken is None else (verdict.broken.sequence, verdict.broken.flaw)


def replaced(index: int, *, data: bytes | None = None, hash: bytes | None = None) -> list[ChainedRecord]:
    old = LOG[index]
    new = ChainedRecord(old.sequence, old.data if data is None else data, old.hash if hash is None else hash)
    return [*LOG[:index], new, *LOG[index + 1 :]]


def test_a_whole_chain_is_intact_to_its_last_record() -> None:
    assert verify(LOG, head=HEAD) == Verdict(records=5, last=HEAD)
    assert verify([]) == Verdict(records=0, last=ORIGIN)
    assert verify(LOG, head=HEAD).intact


def test_the_hash_of_a_record_is_computed_as_documented() -> None:
    lengths = (1).to_bytes(8) + (32).to_bytes(8) + (3).to_bytes(8)
    assert LOG[0].hash == hashlib.sha256(b"interlock audit record 1\n" + lengths + bytes(32) + b"one").digest()


def test_no_two_places_share_a_hash() -> None:
    hashes = {
        link(GENESIS, 1, b"ab"),
        link(GENESIS, 2, b"ab"),
        link(GENESIS, 1, b"a"),
        link(GENESIS + b"a", 1, b"b"),
        link(GENESIS + b"ab", 1, b""),
        link(b"", 1, GENESIS + b"ab"),
    }
    assert len(hashes) == 6


@pytest.mark.parametrize("head", [None, HEAD], ids=["no head", "head"])
@pytest.mark.parametrize("index", range(5))
def test_every_changed_bit_of_a_record_is_found_at_that_record(index: int, head: Mark | None) -> None:
    for position in range(len(LOG[index].data)):
        for bit in range(8):
            data = bytearray(LOG[index].data)
            data[position] ^= 1 << bit
            verdict = verify(replaced(index, data=bytes(data)), head=head)
            assert found(verdict) == (index + 1, Flaw.CHANGED)
            assert (verdict.records, verdict.last.sequence) == (index, index)


@pytest.mark.parametrize("index", range(5))
def test_every_changed_bit_of_a_stored_hash_is_found_at_that_record(index: int) -> None:
    for position in range(32):
        for bit in range(8):
            hash = bytearray(LOG[index].hash)
            hash[position] ^= 1 << bit
            assert found(verify(replaced(index, hash=bytes(hash)), head=HEAD)) == (index + 1, Flaw.WRONG_HASH)


@pytest.mark.parametrize("index", range(5))
def test_longer_shorter_and_missing_content_is_found(index: int) -> None:
    for data in (LOG[index].data + b"\x00", b"something else"):
        assert found(verify(replaced(index, data=data))) == (index + 1, Flaw.CHANGED)
    for hash in (b"", LOG[index].hash + b"\x00", LOG[index].hash[:-1]):
        assert found(verify(replaced(index, hash=hash), head=HEAD)) == (index + 1, Flaw.WRONG_HASH)


@pytest.mark.parametrize("index", range(1, 4))
def test_a_removed_record_is_found_where_it_was(index: int) -> None:
    assert found(verify(LOG[:index] + LOG[index + 1 :])) == (index + 1, Flaw.REMOVED)


def test_removed_records_are_counted_in_the_reason() -> None:
    verdict = verify([LOG[0], LOG[4]])
    assert verdict.broken is not None
    assert verdict.broken.reason == "the records from 2 to 4 are missing"


@pytest.mark.parametrize("count", range(1, 5))
def test_a_log_that_begins_late_is_found_unless_a_mark_was_kept(count: int) -> None:
    assert found(verify(LOG[count:], head=HEAD)) == (1, Flaw.START_REMOVED)
    mark = Mark(LOG[count - 1].sequence, LOG[count - 1].hash)
    assert verify(LOG[count:], start=mark, head=HEAD) == Verdict(records=5 - count, last=HEAD, start=mark)
    assert found(verify(LOG[count:], start=Mark(count, bytes(32)), head=HEAD)) == (count + 1, Flaw.CHANGED)
    if count > 1:
        assert found(verify(LOG[count - 1 :], start=mark)) == (count + 1, Flaw.REORDERED)


@pytest.mark.parametrize("count", range(5))
def test_a_missing_tail_is_found_by_the_head(count: int) -> None:
    assert found(verify(LOG[:count], head=HEAD)) == (count + 1, Flaw.TAIL_REMOVED)
    assert verify(LOG[:count]).intact


def test_records_beyond_the_head_are_fine() -> None:
    assert verify(LOG, head=Mark(3, LOG[2].hash)).last == HEAD


@pytest.mark.parametrize("index", range(4))
def test_two_swapped_records_are_found(index: int) -> None:
    moved = list(LOG)
    moved[index], moved[index + 1] = moved[index + 1], moved[index]
    assert found(verify(moved)) == (index + 1, Flaw.REORDERED)


@pytest.mark.parametrize("index", range(4))
def test_two_records_swapped_under_their_old_numbers_are_found(index: int) -> None:
    first, second = LOG[index], LOG[index + 1]
    moved = list(LOG)
    moved[index] = ChainedRecord(first.sequence, second.data, second.hash)
    moved[index + 1] = ChainedRecord(second.sequence, first.data, first.hash)
    assert found(verify(moved)) == (index + 1, Flaw.REORDERED)


@pytest.mark.parametrize("index", range(5))
def test_a_repeated_record_is_found(index: int) -> None:
    assert found(verify([*LOG[: index + 1], LOG[index], *LOG[index + 1 :]])) == (index + 2, Flaw.REORDERED)


def test_removing_a_record_and_renumbering_the_rest_is_detected() -> None:
    renumbered = [*LOG[:1], *(ChainedRecord(old.sequence - 1, old.data, old.hash) for old in LOG[2:])]
    assert found(verify(renumbered)) == (2, Flaw.CHANGED)


def test_a_recomputed_history_is_detected_by_the_head() -> None:
    forged = chain(b"one", b"TWO", b"", b"four", b"five")
    assert found(verify(forged, head=HEAD)) == (5, Flaw.REWRITTEN)
    assert found(verify([*forged, *chain(b"six", start=Mark(5, forged[-1].hash))], head=HEAD)) == (5, Flaw.REWRITTEN)
    assert verify(forged).intact, "without a head kept elsewhere this cannot be seen"


@pytest.mark.req("REG-5-15")
def test_marks_kept_elsewhere_show_a_log_that_was_put_back_and_went_on() -> None:
    other = chain(b"one", b"two", b"", b"FOUR", b"five")
    marks = [
        Mark(entry.sequence, entry.hash) for entry in (*LOG[:4], *other[3:])
    ]  # an older state was put back after 4

    def checked(records: list[ChainedRecord], kept: list[Mark]) -> tuple[int, Flaw] | None:
        check = ChainCheck(stored_marks=kept)
        for each in records:
            check.add(each)
        return found(check.finish())

    assert checked(LOG, marks[:4]) is None
    assert checked(other, marks) == (4, Flaw.REWRITTEN)
    assert checked(LOG[:3], marks[:4]) == (4, Flaw.TAIL_REMOVED)
    assert checked([], marks[:4]) == (1, Flaw.TAIL_REMOVED)


def test_the_first_of_several_breaks_is_named() -> None:
    broken = replaced(1, data=b"x")
    del broken[3]
    assert found(verify(broken)) == (2, Flaw.CHANGED)


@pytest.mark.parametrize("sequence", [-1, 0, 2**63, 2**70])
def test_absurd_numbers_give_a_verdict(sequence: int) -> None:
    stray = ChainedRecord(sequence, b"", bytes(32))
    for records in ([stray], [stray, LOG[0]], [LOG[0], stray], [*replaced(0, data=b"x")[:1], stray]):
        assert not verify(records).intact


def test_a_check_in_steps_asks_for_no_more_than_it_needs() -> None:
    check = ChainCheck()
    assert check.add(LOG[0])
    assert check.add(LOG[2])
    assert not check.add(LOG[3])
    assert not check.add(LOG[4])
    assert found(check.finish()) == (2, Flaw.REMOVED)
