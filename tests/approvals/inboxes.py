"""An inbox on a real store with a clock that stands until it is moved, and a way to pull the plug."""

import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Raw

from interlock.approvals.audit import ApprovalAudit
from interlock.approvals.inbox import ApprovalStore, Inbox
from interlock.approvals.protocol.approval import Approval, Decision, Kind, Proof, Source, What
from interlock.config.plan import ApprovalsPlan
from interlock.core.recorder import Recorder
from interlock.core.store_backends import build_audit, build_store
from interlock.store.ports import Store
from interlock.store.sqlite.audit import SqliteAudit

ALICE = "client:alice"
ARGUMENTS = Raw(b'{"path":"/etc/s3cret-name",  "n":123456789012345678901234567890}')  # kept byte for byte


class ManualClock:
    """A clock that stands until it is moved; the wall can be moved alone."""

    def __init__(self) -> None:
        self.at = 1_000.0
        self.wall_at = 1_700_000_000.0

    def now(self) -> float:
        return self.at

    def wall(self) -> float:
        return self.wall_at

    def pass_(self, seconds: float) -> None:
        self.at += seconds
        self.wall_at += seconds


class StoredInbox:
    """`inbox` on `store`, with what it needs; `records` reads the audit log."""

    def __init__(self, store: Store, audit: SqliteAudit, clock: ManualClock, rules: ApprovalsPlan) -> None:
        self.store, self.audit, self.clock = store, audit, clock
        self.recorder = Recorder(audit)
        self.inbox = Inbox(ApprovalStore(store.kv, clock), ApprovalAudit(self.recorder), clock, rules)

    async def records(self) -> list[dict[str, Any]]:
        await self.recorder.flush()
        return [msgspec.json.decode(one.data) for one in await self.audit.read()]

    def call(self, digest: str = "d1", requested_by: str = ALICE, **members: Any) -> Approval:
        given = {"params": ARGUMENTS, "tool_digest": "t1", "route": ("files", "delete"), **members}
        return self.inbox.draft(
            Kind.CALL, Source.AX, requested_by=requested_by, tool="files.delete", digest=digest, **given
        )

    async def raised(self, digest: str = "d1", requested_by: str = ALICE, **members: Any) -> Approval:
        return _got(await self.inbox.raise_(self.call(digest, requested_by, **members)))

    async def approved(self, digest: str = "d1", **members: Any) -> Approval:
        raised = await self.raised(digest, **members)
        return _got(await self.inbox.decide(raised.id, self.yes()))

    def yes(self, jti: str = "j1") -> Decision:
        proof = Proof(type="operator_signature", anchor="ops", jti=jti)
        return Decision(what=What.APPROVED, by="operator:bob", at=self.clock.wall(), proof=proof)

    def no(self, reason: str | None = None) -> Decision:
        return Decision(what=What.DENIED, by="operator:bob", at=self.clock.wall(), reason=reason)


def _got(answer: object) -> Approval:
    assert isinstance(answer, Approval), answer
    return answer


@contextlib.asynccontextmanager
async def stored_inbox(
    folder: Path, clock: ManualClock | None = None, made: Callable[[StoredInbox], None] = lambda _: None, **rules: Any
) -> AsyncIterator[StoredInbox]:
    """A second one on the same folder is what a restart sees: nothing is carried over but the disk.

    `made` makes what is there before the inbox opens.
    """
    store, audit = build_store("sqlite", folder), build_audit("sqlite", folder)
    await store.open()
    await audit.open()
    desk = StoredInbox(store, audit, clock or ManualClock(), ApprovalsPlan(**rules))
    made(desk)
    try:
        await desk.inbox.open()
        yield desk
    finally:
        await desk.inbox.close()
        await desk.recorder.flush()
        await audit.close()
        await store.close()
