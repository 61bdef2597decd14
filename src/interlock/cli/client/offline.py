"""Operations on a data folder and its audit log while no node runs.

Each method opens the stores, does one thing and closes them. The handlers are those of a node, so replies, errors and
audit records are the same as from the operator endpoint. If the store refuses an operation, the command fails with the
same message. A running node may use the log of the registry of names at the same time. Modules of the node are imported
inside the functions that need them, because most commands need none.
"""

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager, contextmanager
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
from interlock.drivers import api as drivers_api
from interlock.operator.api import ErrorAnswer
from interlock.operator.operation import LOCAL, Operation, handlers_of
from interlock.store.audit_chain import ORIGIN, Break, ChainCheck, ChainedRecord, Flaw, Mark, Verdict
from interlock.store.ports import KeyValue, StoreError
from interlock.store.sqlite.audit import SqliteAuditReader
from interlock.store.tokens import TokenTable
from interlock.wire.refusal import NotFound, Refused

if TYPE_CHECKING:
    from interlock.approvals.trust.anchors import Anchors
    from interlock.credentials.operations import SecretOperations
    from interlock.drivers.operations import AddOperations, DriverOperations, Trials
    from interlock.drivers.registry.operations import DriverService
    from interlock.names.protocol.entry import RegistryEntry
    from interlock.names.state import RegistryState

T = TypeVar("T")

PAGE = 1000
SECRET_OPERATIONS = (LIST_SECRETS, SET_SECRET, REMOVE_SECRET)
ADD_OPERATIONS = (drivers_api.TRY_SERVER, drivers_api.ADD_DRIVER)
DRIVER_OPERATIONS = (
    *(drivers_api.LIST_DRIVERS, drivers_api.GET_DRIVER, drivers_api.TRUST_DRIVER),
    *(drivers_api.ALLOW_HOST, drivers_api.REMOVE_DRIVER),
)


@dataclass(eq=False)
class OfflineNode:
    """A client for the data folder of a node that does not run, like `OperatorClient`. It carries out operations that
    need only the stores in the folder and the files of the workspace.

    The handlers are those of a node, so that replies, errors and audit records are the same. A trial of a server is
    kept from one call to the next.
    """

    plan: Plan
    folder: Path
    _trials: "Trials | None" = None

    def call(
        self, operation: Operation[Any], *, body: object = None, timeout: float = 0.0, **arguments: object
    ) -> Answer:
        """Call an operation on the data folder, as `OperatorClient.call` does on a node, but without a time limit.
        Raise Refused if the operation is refused.
        """
        answers: list[Answer] = []
        self.follow(operation, answers.append, body=body, **arguments)
        return answers[0]

    def follow(
        self, operation: Operation[Any], on_event: Callable[[Answer], None], *, body: object = None, **arguments: object
    ) -> None:
        """Call an operation, and call `on_event` with each event of its stream, or with its only reply. Raise the same
        errors as `call`.
        """
        run_stored(self._run(operation, {"body": body, "by": LOCAL, **arguments}, on_event))

    async def _run(
        self, operation: Operation[Any], arguments: dict[str, object], on_event: Callable[[Answer], None]
    ) -> None:
        """Open the stores that an operation needs, and run the operation."""
        async with self._service(operation) as service:
            handler = handlers_of([service])[operation]
            reply = await handler(**{name: arguments[name] for name in inspect.signature(handler).parameters})
            if not operation.is_stream:
                on_event(Answer(msgspec.json.encode(reply)))
                return
            async with aclosing(reply):
                async for event in reply:
                    on_event(Answer(msgspec.json.encode(event)))

    def _service(self, operation: Operation[Any]) -> AbstractAsyncContextManager[object]:
        """Return a context that opens the stores that an operation needs, and yields the object that handles it."""
        if operation in ADD_OPERATIONS:
            return self._adding()
        if operation in DRIVER_OPERATIONS:
            return self._drivers(is_trusting=operation is drivers_api.TRUST_DRIVER)
        return self._stored(operation)

    @asynccontextmanager
    async def _stored(self, operation: Operation[Any]) -> AsyncIterator[object]:
        """Yield the operations on secrets or on tokens."""
        if operation in SECRET_OPERATIONS:
            async with self._secrets() as secrets:
                with _refusing_as_node():
                    yield secrets
            return
        from interlock.access.operations import TokenOperations

        clock, store = Clock(), build_shared_store(self.plan, self.folder)
        registry = TokenRegistry(TokenTable(store.kv), clock, self.plan.access, self.plan.auth.token_days)
        async with opened(store):
            with _refusing_as_node():
                yield TokenOperations(registry, lambda: None, _FolderRecorder(self.plan, self.folder), clock)

    @asynccontextmanager
    async def _secrets(self) -> "AsyncIterator[SecretOperations]":
        from interlock.approvals.secret_bindings import SecretBindings
        from interlock.credentials.operations import SecretOperations

        # Where secrets may go is stored per node, and not shared.
        plan, clock, local = self.plan, Clock(), build_store("sqlite", self.folder)
        secrets = CredentialService(self.folder, clock, plan.node.name, Addresses(plan.node))
        bindings = SecretBindings(local.kv, clock, lambda: plan)
        recorder = _FolderRecorder(plan, self.folder)
        async with opened(local, secrets):
            yield SecretOperations(secrets, bindings, {}, {}, lambda _: (), recorder, clock)

    @asynccontextmanager
    async def _drivers(self, *, is_trusting: bool) -> "AsyncIterator[DriverOperations]":
        """Yield the operations on drivers. Raise Refused if files are to be trusted and an approver is enrolled, who
        signs at a running node.
        """
        from interlock.drivers.operations import DriverOperations

        async with self._driver_service() as service:
            if is_trusting and await _has_approver(self.plan, self.folder):
                message = "an approver signs for this at a running node"
                raise Refused("proof_required", message, hint="interlock serve starts it")
            try:
                yield DriverOperations(_returning(service), approver_names=lambda _: (), requests=tuple)
            except NotFound as missing:
                hint = f"there is {', '.join(missing.known)}" if missing.known else "interlock drivers list shows them"
                raise Refused("not_found", f"there is no {missing.what} {missing.name}", hint=hint) from None

    @asynccontextmanager
    async def _adding(self) -> "AsyncIterator[AddOperations]":
        from interlock.drivers.operations import AddOperations, Trials

        self._trials = trials = self._trials or Trials()
        async with self._driver_service() as service, self._secrets() as secrets:
            # The local user may try a server out before an approver accepts its files.
            yield AddOperations(
                service=_returning(service), secrets=secrets, approver_names=lambda _: (), trials=trials
            )

    @asynccontextmanager
    async def _driver_service(self) -> "AsyncIterator[DriverService]":
        """Open the store, and yield a service for the drivers of the workspace that starts none of them."""
        from interlock.drivers.registry.operations import DriverService
        from interlock.drivers.registry.registry import Registry
        from interlock.drivers.workspace.declaration import Memory
        from interlock.drivers.workspace.survey import this_machine

        clock, store = Clock(), build_store("sqlite", self.folder)
        async with opened(store):
            memory = Memory(store.kv, clock)
            await memory.open()
            registry = Registry(self.plan, memory, this_machine(self.folder / "packages"))
            yield DriverService(registry, clock, lambda line: record_stored(self.plan, self.folder, [line]))


@contextmanager
def _refusing_as_node() -> Iterator[None]:
    """Add to every Refused that is raised in the block the hint that a running node's refusal would have."""
    try:
        yield
    except Refused as error:
        body = ErrorAnswer(error=error.code, message=error.message, details=error.details)
        raise refused_with_hint(error.status, body) from None


def _returning(value: T) -> Callable[[], Awaitable[T]]:
    """Return an async function that returns this value."""

    async def give() -> T:
        return value

    return give


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
    from interlock.approvals.trust.approval_proofs import ProofVerifier, revocation_line

    async def revoke() -> Answer:
        async with _stored_anchors(plan, folder) as (kv, anchors):
            revoked = await ProofVerifier(kv, Clock(), anchors).revoke(ref)
            if revoked:
                await record_stored(plan, folder, [revocation_line(revoked, ref, LOCAL, Clock().wall())])
        if not revoked:
            names = ", ".join(anchor.name for anchor in plan.anchors) or "none"
            raise Refused("not_found", f"there is no anchor {ref} with a key of its own", hint=f"there is {names}")
        return Answer(msgspec.json.encode(RevokedKeys(revoked=tuple(revoked), voided=())))

    return run_stored(revoke())


def enrol_stored(plan: Plan, folder: Path, files: tuple[Path, ...]) -> tuple[str, ...]:
    """Enrol the approvers of the configuration, unless that was done before. Return their names. The configuration then
    counts as signed, so that edits before the first start are compared with it. Raise Refused if the store or a key
    cannot be used.
    """
    from interlock.approvals.audit import ApprovalAudit
    from interlock.approvals.enrolments import Enrolments, find_enrolled_prints
    from interlock.approvals.guard_changes import sign_first
    from interlock.approvals.guarded_starts import find_conflict, remember_start, start_of
    from interlock.approvals.inbox import ApprovalStore, Inbox

    async def enrol() -> tuple[str, ...]:
        clock, recorder = Clock(), _FolderRecorder(plan, folder)
        async with _stored_anchors(plan, folder) as (kv, anchors):
            inbox = Inbox(ApprovalStore(kv, clock, None), ApprovalAudit(recorder), clock, plan.approvals)
            enrolments = Enrolments(kv, inbox, anchors, recorder, clock)
            start = start_of(plan, await find_enrolled_prints(kv, clock.wall()))
            conflict = await find_conflict(plan, start, files, kv, clock.wall())
            # AX-11.N-11: enrolling here would replace the record
            if conflict is not None:
                raise Refused("not_started", conflict.message)
            names = await enrolments.enrol_first()
            if names:
                await sign_first(plan, kv, clock.wall())
                await remember_start(start_of(plan, enrolments.prints), files, kv, clock.wall())
            return names

    return run_stored(enrol())


@asynccontextmanager
async def _stored_anchors(plan: Plan, folder: Path) -> "AsyncIterator[tuple[KeyValue, Anchors]]":
    """Open the store, and yield it with the approvers of the configuration. Raise Refused if a key cannot be used."""
    from interlock.approvals.trust.anchors import Anchors
    from interlock.core.part import CannotStart

    store, anchors = build_shared_store(plan, folder), Anchors(plan.anchors, Clock())
    try:
        anchors.load()
        async with opened(store):
            yield store.kv, anchors
    except CannotStart as error:
        raise Refused("key_unusable", str(error)) from None
    finally:
        await anchors.close()


def has_stored_approver(plan: Plan, folder: Path) -> bool:
    """Return whether an approver is enrolled in a data folder. Raise Refused if the store cannot be used."""
    return run_stored(_has_approver(plan, folder))


async def _has_approver(plan: Plan, folder: Path) -> bool:
    from interlock.approvals.enrolments import BUCKET

    store = build_shared_store(plan, folder)
    async with opened(store):
        return bool(await store.kv.entries(BUCKET, Clock().wall()))


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


def run_with_names(plan: Plan, folder: Path, job: "Callable[[RegistryState], Awaitable[T]]") -> T:
    """Run `job` with the name registry of a data folder, and return its result. Raise Refused if that is impossible."""
    from interlock.names.state import RegistryState

    async def run() -> T:
        audit = build_audit(plan.store.backend, folder)
        recorder = Recorder(audit)
        state = RegistryState(build_names_log(plan, folder), recorder, Clock())
        async with opened(audit):
            try:
                async with opened(state):
                    return await job(state)
            finally:
                await recorder.flush()

    try:
        return asyncio.run(run())
    except NotFound as missing:
        raise Refused("not_found", f"no {missing.what} {missing.name[:100]} waits") from None
    except StoreError as error:
        raise Refused("store", str(error)) from None


def read_entries(plan: Plan, folder: Path) -> "Mapping[str, RegistryEntry]":
    """Return the entries of the name registry in a data folder, by name. Raise Refused if they cannot be read.

    The function writes nothing and does not connect to a store on another machine, so the result is empty for a
    registry in a shared store.
    """
    if plan.store.backend != "sqlite":
        return {}
    from interlock.names.state import RegistryState

    async def read() -> "Mapping[str, RegistryEntry]":
        recorder = Recorder(build_audit(plan.store.backend, folder))  # never opened
        state = RegistryState(build_names_log(plan, folder), recorder, Clock())
        async with opened(state):
            return state.registry.entries

    return asyncio.run(read())
