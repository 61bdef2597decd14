"""Operations on a data folder and its audit log while no node runs.

Each method opens the stores, does one thing and closes them. The handlers are those of a node, so replies, errors and
audit records are the same as from the operator endpoint. If the store refuses an operation, the command fails with the
same message. Modules of the node are imported inside the functions that need them, because most commands need none.
"""

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from interlock.access.tokens import TokenRegistry
from interlock.cli.client.operator import Answer, refused_with_hint
from interlock.config.plan import Plan
from interlock.core.clock import Clock
from interlock.core.current_plan import Addresses
from interlock.core.part import opened
from interlock.core.recorder import Recorder
from interlock.core.store_backends import build_audit, build_audit_reader, build_store
from interlock.credentials.api import LIST_SECRETS, REMOVE_SECRET, SET_SECRET
from interlock.credentials.service import CredentialService
from interlock.credentials.shared_store import build_names_log, build_shared_store
from interlock.operator.api import ErrorAnswer
from interlock.operator.operation import LOCAL, Operation, handlers_of
from interlock.store.audit_chain import ORIGIN, Break, ChainCheck, ChainedRecord, Flaw, Mark, Verdict
from interlock.store.ports import StoreError
from interlock.store.sqlite.audit import SqliteAuditReader
from interlock.store.tokens import TokenTable
from interlock.wire.refusal import Refused

if TYPE_CHECKING:
    from interlock.credentials.operations import SecretOperations

T = TypeVar("T")

PAGE = 1000
SECRET_OPERATIONS = (LIST_SECRETS, SET_SECRET, REMOVE_SECRET)


@dataclass(eq=False)
class OfflineNode:
    """A client for the data folder of a node that does not run. It carries out operations that need only the stores in
    the folder.

    The handlers are those of a node, so that replies, errors and audit records are the same.
    """

    plan: Plan
    folder: Path

    def call(self, operation: Operation[Any], *, body: object = None, **arguments: object) -> Answer:
        """Call an operation on the data folder, as `OperatorClient.call` does on a node. Raise Refused if the operation
        is refused.
        """
        return run_stored(self._call(operation, {"body": body, "by": LOCAL, **arguments}))

    async def _call(self, operation: Operation[Any], arguments: dict[str, object]) -> Answer:
        """Open the store that an operation needs, and run the operation."""
        async with self._service(operation) as service:
            handler = handlers_of([service])[operation]
            try:
                output = await handler(**{name: arguments[name] for name in inspect.signature(handler).parameters})
            except Refused as error:
                body = ErrorAnswer(error=error.code, message=error.message, details=error.details)
                raise refused_with_hint(error.status, body) from None
        return Answer(msgspec.json.encode(output))

    @asynccontextmanager
    async def _service(self, operation: Operation[Any]) -> AsyncIterator[object]:
        """Open the store that an operation needs, and yield the object that handles it."""
        if operation in SECRET_OPERATIONS:
            async with stored_secrets(self.plan, self.folder) as secrets:
                yield secrets
            return
        from interlock.access.operations import TokenOperations

        clock, store = Clock(), build_shared_store(self.plan, self.folder)
        registry = TokenRegistry(TokenTable(store.kv), clock, self.plan.access, self.plan.auth.token_days)
        async with opened(store):
            yield TokenOperations(registry, lambda: None, _FolderRecorder(self.plan, self.folder), clock)


@asynccontextmanager
async def stored_secrets(plan: Plan, folder: Path) -> "AsyncIterator[SecretOperations]":
    """Open the secrets of a data folder whose node does not run, and yield the operations on them."""
    from interlock.approvals.secret_bindings import SecretBindings
    from interlock.credentials.operations import SecretOperations

    # Where secrets may go is stored per node, and not shared.
    clock, local = Clock(), build_store("sqlite", folder)
    secrets = CredentialService(folder, clock, plan.node.name, Addresses(plan.node))
    bindings = SecretBindings(local.kv, clock, lambda: plan)
    async with opened(local, secrets):
        yield SecretOperations(secrets, bindings, {}, {}, lambda _: (), _FolderRecorder(plan, folder), clock)


class _FolderRecorder(Recorder):
    """A recorder that opens the audit log of a data folder for each record and closes it afterwards."""

    def __init__(self, plan: Plan, folder: Path) -> None:
        super().__init__(build_audit(plan.store.backend, folder))
        self._plan = plan
        self._folder = folder

    async def append_now(self, line: bytes) -> None:
        await record_stored(self._plan, self._folder, [line])


async def record_stored(plan: Plan, folder: Path, lines: list[bytes]) -> None:
    """Append records to the audit log of a data folder. Raise StoreError if the log cannot be written."""
    audit = build_audit(plan.store.backend, folder)
    async with opened(audit):
        await audit.append(lines)


def revoke_stored(plan: Plan, folder: Path, ref: str) -> Answer:
    """Revoke all keys of an anchor, or a single key. `ref` is the name of the anchor or the thumbprint of the key.

    Approvals and grants by these keys end when the node starts. Raise Refused if no key was revoked.
    """
    from interlock.approvals.api import RevokedKeys
    from interlock.approvals.trust.anchors import Anchors
    from interlock.approvals.trust.approval_proofs import ProofVerifier, revocation_line
    from interlock.core.part import CannotStart

    async def revoke() -> Answer:
        store = build_shared_store(plan, folder)
        anchors = Anchors(plan.anchors, Clock())
        try:
            anchors.load()
            async with opened(store):
                revoked = await ProofVerifier(store.kv, Clock(), anchors).revoke(ref)
                if revoked:
                    await record_stored(plan, folder, [revocation_line(revoked, ref, LOCAL, Clock().wall())])
        except CannotStart as error:
            raise Refused("key_unusable", str(error)) from None
        finally:
            await anchors.close()
        if not revoked:
            names = ", ".join(anchor.name for anchor in plan.anchors) or "none"
            raise Refused("not_found", f"there is no anchor {ref} with a key of its own", hint=f"there is {names}")
        return Answer(msgspec.json.encode(RevokedKeys(revoked=tuple(revoked), voided=())))

    return run_stored(revoke())


def enrol_stored(plan: Plan, folder: Path) -> tuple[str, ...]:
    """Enrol the approvers of the configuration, unless that was done before. Return their names. Raise Refused if the
    store or a key cannot be used.
    """
    from interlock.approvals.audit import ApprovalAudit
    from interlock.approvals.enrolments import Enrolments
    from interlock.approvals.inbox import ApprovalStore, Inbox
    from interlock.approvals.trust.anchors import Anchors
    from interlock.core.part import CannotStart

    async def enrol() -> tuple[str, ...]:
        clock, recorder = Clock(), _FolderRecorder(plan, folder)
        store = build_shared_store(plan, folder)
        anchors = Anchors(plan.anchors, clock)
        try:
            anchors.load()
            async with opened(store):
                inbox = Inbox(ApprovalStore(store.kv, clock, None), ApprovalAudit(recorder), clock, plan.approvals)
                return await Enrolments(store.kv, inbox, anchors, recorder, clock).enrol_first()
        except CannotStart as error:
            raise Refused("key_unusable", str(error)) from None
        finally:
            await anchors.close()

    return run_stored(enrol())


def has_stored_approver(plan: Plan, folder: Path) -> bool:
    """Return whether an approver is enrolled in a data folder. Raise Refused if the store cannot be used."""
    from interlock.approvals.enrolments import BUCKET

    async def read() -> bool:
        store = build_shared_store(plan, folder)
        async with opened(store):
            return bool(await store.kv.entries(BUCKET, Clock().wall()))

    return run_stored(read())


class StoredAudit:
    """Reader of the audit log of a data folder. A running node may write to the log at the same time."""

    def __init__(self, plan: Plan, folder: Path) -> None:
        self._plan = plan
        self._folder = folder
        if not (folder / "audit").is_dir():
            hint = "a node writes it when it first runs; --data names another folder"
            raise Refused("no_audit_log", f"there is no audit log in {folder}", hint=hint)

    def verify(self) -> Verdict:
        return self._with_log(lambda audit: audit.verify())

    def verify_names(self) -> Verdict | None:
        """Verify the log of the name registry with the hashes that the audit log contains of it (REG-5-15).

        Return None if this folder never had a registry log, or the store is shared with other machines.
        """
        if self._plan.store.backend != "sqlite":  # the nodes that share it check it whenever they read
            return None
        marks = self._with_log(_marks_of_names)  # first: what is appended meanwhile is in the registry's log before it

        async def verify() -> Verdict | None:
            names, check = build_names_log(self._plan, self._folder), ChainCheck(ORIGIN, stored_marks=marks)  # REG-5-15
            if not names.is_begun and not marks:
                return None
            try:
                at = 0
                while records := await names.read(at, PAGE):
                    for record in records:
                        if not check.add(record):
                            return check.finish()
                    at = records[-1].sequence
                return check.finish()
            except StoreError as unread:  # what the audit log proves is told all the same
                read = check.finish()
                broken = Break(sequence=read.last.sequence + 1, flaw=Flaw.CHANGED, reason=str(unread))
                is_known = read.broken is not None and read.broken.flaw is not Flaw.TAIL_REMOVED
                return msgspec.structs.replace(read, broken=read.broken if is_known else broken)
            finally:
                await names.close()

        return run_stored(verify())

    def export(self, after: int, write: Callable[[str], object]) -> None:
        """Call `write` with one JSON object per record, for all records after number `after`. Records are read in
        pages, so that a long log needs little memory.
        """

        async def export(audit: SqliteAuditReader) -> None:
            at = after
            while records := await audit.read(at, PAGE):
                for record in records:
                    write(_line(record))
                at = records[-1].sequence

        self._with_log(export)

    def page(self, after: int, limit: int) -> Answer:
        async def page(audit: SqliteAuditReader) -> Answer:
            lines = [_line(record) for record in await audit.read(after, limit)]
            last = await audit.last()
            return Answer(f'{{"records":[{",".join(lines)}],"last":{last}}}'.encode())

        return self._with_log(page)

    def _with_log(self, job: Callable[[SqliteAuditReader], Awaitable[T]]) -> T:
        async def with_log() -> T:
            audit = build_audit_reader(self._plan.store.backend, self._folder)
            async with opened(audit):
                return await job(audit)

        return run_stored(with_log())


def run_stored(job: Coroutine[Any, Any, T]) -> T:
    try:
        return asyncio.run(job)
    except StoreError as error:
        raise Refused("store_refused", str(error), hint="interlock check --effective shows the data folder") from None


class _NamesStep(msgspec.Struct):
    """A record of the audit log about a registry change, with its position in the registry log."""

    via: str = ""
    record: int = 0
    record_hash: str = ""


async def _marks_of_names(audit: SqliteAuditReader) -> tuple[Mark, ...]:
    marks, at = [], 0
    while records := await audit.read(at, PAGE):
        for each in records:
            if b'"record_hash"' in each.data and (mark := _find_mark(each.data)) is not None:
                marks.append(mark)
        at = records[-1].sequence
    return tuple(marks)


def _find_mark(data: bytes) -> Mark | None:
    try:
        step = msgspec.json.decode(data, type=_NamesStep)
        return Mark(step.record, bytes.fromhex(step.record_hash)) if step.via == "names" else None
    except (msgspec.DecodeError, ValueError):  # the audit log's own check tells of it
        return None


def _line(record: ChainedRecord) -> str:
    """Return a record as JSON that begins with its position and hash in the chain. The values of the record keep their
    bytes.
    """
    try:
        fields: dict[str, Any] = msgspec.json.decode(record.data, type=dict[str, msgspec.Raw])
    except (msgspec.DecodeError, UnicodeDecodeError):
        fields = {"damaged": record.data.decode("utf-8", "backslashreplace")}
    return msgspec.json.encode({"seq": record.sequence, "hash": record.hash.hex(), **fields}).decode()
