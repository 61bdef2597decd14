"""What an approval costs: `python -m bench.inbox [--pending N] [--records N]`.

On a store of its own in the temporary folder, durable as in a node: how many are raised, decided and used in a second,
and how long a start takes with many pending approvals and a long audit log. Disks differ; compare on one.
"""

import argparse
import asyncio
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from msgspec import Raw

from interlock.approvals.audit import ApprovalAudit
from interlock.approvals.inbox import ApprovalStore, Inbox
from interlock.approvals.protocol.approval import Approval, Decision, Kind, Move, Proof, Source, What
from interlock.config.plan import ApprovalsPlan
from interlock.core.audit_record import AuditRecord
from interlock.core.clock import Clock
from interlock.core.recorder import Recorder
from interlock.core.store_backends import build_audit, build_store

PENDING, RECORDS = 10_000, 100_000
AT_ONCE = 20
DECIDED = 1000
ARGUMENTS = Raw(b'{"path":"/srv/reports/2025","recursive":true}')
PROOF = Proof(type="operator_signature", anchor="ops", jti="one-of-many")


@asynccontextmanager
async def opened(folder: Path, most: int) -> AsyncIterator[tuple[Inbox, Recorder]]:
    clock, store, audit = Clock(), build_store("sqlite", folder), build_audit("sqlite", folder)
    await store.open()
    await audit.open()
    recorder = Recorder(audit)
    inbox = Inbox(
        ApprovalStore(store.kv, clock), ApprovalAudit(recorder), clock, ApprovalsPlan(expiry_s=86_400, max_pending=most)
    )
    await inbox.open()
    try:
        yield inbox, recorder
    finally:
        await inbox.close()
        await recorder.flush()
        await audit.close()
        await store.close()


async def per_second(job: Callable[[int], Awaitable[object]], count: int) -> float:
    begun = time.perf_counter()
    for first in range(0, count, AT_ONCE):
        done: Sequence[object] = await asyncio.gather(*(job(first + number) for number in range(AT_ONCE)))
        if not all(isinstance(one, Approval) for one in done):
            raise RuntimeError(f"refused: {done}")
    return count / (time.perf_counter() - begun)


async def measure(folder: Path, pending: int, records: int) -> dict[str, float]:
    figures: dict[str, float] = {}
    async with opened(folder, pending + DECIDED) as (inbox, recorder):

        def raise_(number: int) -> Awaitable[object]:
            return inbox.raise_(
                inbox.draft(
                    Kind.CALL,
                    Source.AX,
                    requested_by="client:bench",
                    tool="files.delete",
                    digest=f"{number:064x}",
                    params=ARGUMENTS,
                )
            )

        def decide(number: int) -> Awaitable[object]:
            yes = Decision(what=What.APPROVED, by="operator:bench", at=time.time(), proof=PROOF)
            return inbox.decide(ids[number], yes)

        figures["raised per second"] = await per_second(raise_, pending + DECIDED)
        ids = [approval.id for approval in inbox.waiting()]
        figures["decided per second"] = await per_second(decide, DECIDED)
        figures["used per second"] = await per_second(lambda number: inbox.use(ids[number]), DECIDED)
        await per_second(lambda number: inbox.finish(ids[number], Move.SUCCEED), DECIDED)
        for _ in range(records):
            recorder.add(
                AuditRecord(time.time(), "local", "http", "tools/call", "a.b", None, "admitted", "ok", seconds=0.001)
            )
    begun = time.perf_counter()
    async with opened(folder, pending) as (inbox, _):
        figures[f"seconds to open with {inbox.waiting_count:,} pending, {records:,} records"] = (
            time.perf_counter() - begun
        )
    return figures


def in_a_folder(pending: int, records: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        return asyncio.run(measure(Path(folder), pending, records))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pending", type=int, default=PENDING)
    parser.add_argument("--records", type=int, default=RECORDS)
    options = parser.parse_args()
    for name, figure in in_a_folder(options.pending, options.records).items():
        print(f"{name:<60} {figure:10.2f}")


if __name__ == "__main__":
    main()
