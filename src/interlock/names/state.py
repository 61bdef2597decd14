"""The state of the registry, rebuilt from its log, and the actor that asks for a change.

Theory of operation. The registry is the sum of the records in its log. A change is a function that looks at the state
and returns the steps to append (`RegistryState.change`):

1. `decide` is called with the current state. It raises Refused, or returns steps.
2. The steps are appended after the last record that was read. Only then does the change count.
3. If another process appended first, its records are read and `decide` is called again.

So of two requests for one name only one is accepted, whichever processes received them. `decide` may therefore run
several times and must not have effects of its own. Records are linked by hashes; a broken chain makes the registry
unusable until a person looks at it, and nothing else of the node. An empty log starts with the entries of
`initial.json`, which is table 2 of the draft.

Every change is made by an `Actor`. `check_controller` demands that it acts for the change controller (REG-4.1-8): as
one of its principals, by a statement that one of its keys signed, or as an admin who overrides it on record.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import cache, wraps
from pathlib import Path
from typing import Any, Concatenate, Final, Generic, ParamSpec, TypeVar

import msgspec

from interlock.core.audit_record import AuditRecord
from interlock.core.background import BackgroundTasks
from interlock.core.clock import Clock, rfc3339
from interlock.core.feed import Feed
from interlock.core.recorder import Recorder
from interlock.names.protocol.entry import EntryStatus, RegistryEntry, Revision, copied
from interlock.names.protocol.grammar import is_name
from interlock.names.protocol.registry import (
    INITIAL,
    BadStep,
    Controller,
    NamesRegistry,
    RegistryStep,
    decode_step,
    encode_step,
)
from interlock.names.protocol.statements import Statement, is_signed_by
from interlock.store.audit_chain import ORIGIN, ChainCheck, Mark
from interlock.store.ports import Conflict, Following, NamedRecord, NamesLog, StoreError, StoreRefused
from interlock.wire.refusal import NotFound, Refused

_FILE: Final = Path(__file__).with_name("initial.json")
DRAFT: Final = "draft-morrison-mcp-tool-surface-names-registry-00"


class _Initial(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The content of the file `initial.json`."""

    controller: str
    names: tuple[str, ...]
    authentication_scope: str
    vendor_prefix: str
    status: EntryStatus
    specification_reference: str
    first_registered: str


@cache
def initial_steps() -> tuple[RegistryStep, ...]:
    """Return the steps with which the registry's log begins in every installation (REG-6-3)."""
    read = msgspec.json.decode(_FILE.read_bytes(), type=_Initial)
    revision = copied(read, Revision, revision=1, registered=read.first_registered)
    at, fields = f"{read.first_registered}T00:00:00Z", {"change_controller": read.controller, "revisions": (revision,)}
    steps = []
    for name in read.names:  # REG-6-1
        entry = copied(read, RegistryEntry, surface_name=name, **fields)
        controller = Controller(name=read.controller) if name == read.names[0] else None
        steps.append(RegistryStep(at=at, by=DRAFT, what=INITIAL, subject=name, controller=controller, entry=entry))
    return tuple(steps)


log = logging.getLogger("interlock.names")

TRIES_MAX: Final = 20  # decisions about one change, while other processes append first
P = ParamSpec("P")
T = TypeVar("T")
PAGE: Final = 10_000


class RegistryChange(msgspec.Struct, Generic[T], frozen=True):
    """The result of deciding on a change: the steps to append to the log, and the value to return once they are
    stored.
    """

    steps: tuple[RegistryStep, ...]
    answer: T


class RegistryState:
    """The registry of this node, with its log."""

    def __init__(self, names_log: NamesLog, recorder: Recorder, clock: Clock) -> None:
        self.registry = NamesRegistry(initial_steps())
        self.changed = Feed[None]()  # published after every change, also of another process
        self.trouble: str | None = None  # why the registry cannot be used
        self._log = names_log
        self._recorder = recorder
        self._clock = clock
        self._last = ORIGIN
        self._lock = asyncio.Lock()
        self._work = BackgroundTasks()

    @property
    def version(self) -> str:
        """Return a text that is different after every change of the registry."""
        return f"{self._last.sequence}-{self._last.hash.hex()[:16]}"

    @property
    def now(self) -> str:
        return rfc3339(self._clock.wall())

    @property
    def today(self) -> str:
        return self.now[:10]

    def entry(self, name: str) -> RegistryEntry | None:
        """Return the current entry of a name, in any status, or None if the name has no entry. Names are compared octet
        by octet (REG-3-2).
        """
        return self.registry.entries.get(name)

    def is_trusted(self, entry: RegistryEntry) -> bool:
        """Return whether a tool that differs from this entry may be refused. This is true for entries that are
        registered here, and for those imported from a trusted source.
        """
        source = self.registry.sources.get(entry.source)
        return not entry.source or (source is not None and source.is_trusted)  # REG-N-5

    async def open(self) -> None:
        """Read the log. If it is damaged, the registry cannot be used, but the rest of the node works."""
        try:
            await self._log.open()
            await self.refresh()
        except StoreError as refused:
            self._fail(str(refused))
            return
        watch = self._log.watch()
        if watch is not None:
            self._work.begin(self._take_in(watch), "names: changes of other replicas")

    async def close(self) -> None:
        await self._work.close()
        await self._log.close()

    async def refresh(self) -> None:
        """Read the records that other processes have appended. Raise StoreError if the log cannot be read."""
        async with self._lock:
            before = self._last
            await self._catch_up()
        if self._last != before:
            self.changed.publish(None)

    async def _take_in(self, watch: Following[None]) -> None:
        """Read the log again whenever `watch` reports a change by another replica."""
        async for _ in watch:
            try:
                await self.refresh()
            except StoreError as away:
                log.warning("what other replicas changed in the registry of names is not known yet: %s", away)

    async def steps_of(self, name: str) -> list[RegistryStep]:
        """Return the steps of the log that are about a name. Raise Refused if the registry cannot be used, StoreError
        if the log cannot be read, and BadStep if a record is invalid.
        """
        self._check_usable()
        records = await self._log.read_of(name) if self._log.is_begun else []
        if not records and self._last == ORIGIN:
            return [step for step in initial_steps() if step.subject == name]
        return [decode_step(record.data) for record in records]

    async def change(self, decide: Callable[[NamesRegistry], RegistryChange[T]]) -> T:
        """Call `decide` with the current registry, append the steps that it returns to the log, and apply them. Return
        the answer that `decide` returned.

        If another process appended records first, `decide` is called again with the new state. Raise Refused if the
        registry cannot be used or other processes keep changing it, StoreError if the steps cannot be stored, and the
        errors of `decide`.
        """
        self._check_usable()
        async with self._lock:
            for _ in range(TRIES_MAX):
                change = decide(self.registry)
                if not change.steps:
                    return change.answer
                first = initial_steps() if self._last == ORIGIN else ()
                records = [
                    NamedRecord(step.subject if is_name(step.subject) else "", encode_step(step))
                    for step in (*first, *change.steps)
                ]
                try:
                    self._last = await self._log.append(self._last, records)
                except Conflict:
                    await self._catch_up()
                    continue
                for step in change.steps:
                    self.registry.apply(step)
                    self._recorder.add_line(_audit_line(step, self._last))
                self.changed.publish(None)
                return change.answer
        raise Refused("unavailable", "other processes keep changing the registry")

    async def _catch_up(self) -> None:
        """Read the new records, check their hash chain, and apply them. Raise StoreError if they cannot be read or the
        chain is broken.
        """
        while page := await self._log.read(self._last.sequence, PAGE):
            if self._last == ORIGIN:
                self.registry = NamesRegistry()  # the log begins with the initial contents
            check = ChainCheck(self._last)
            for record in page:
                check.add(record)
            verdict = check.finish()
            if verdict.broken is not None:
                self._fail(f"the log of the registry was tampered with: {verdict.broken.reason}")
                raise StoreRefused(self.trouble or "")
            try:
                for record in page:
                    self.registry.apply(decode_step(record.data))
            except BadStep as bad:
                self._fail(str(bad))
                raise StoreRefused(str(bad)) from None
            self._last = verdict.last

    def _fail(self, why: str) -> None:
        """Mark the registry as unusable, for the reason `why`."""
        self.trouble = why
        log.error("the registry of names cannot be used: %s", why)

    def _check_usable(self) -> None:
        """Raise Refused if the registry is marked as unusable."""
        if self.trouble is not None:
            raise Refused("unavailable", f"the registry cannot be used: {self.trouble}")


def changes_registry(
    decide: Callable[Concatenate[Any, NamesRegistry, P], RegistryChange[T]],
) -> Callable[Concatenate[Any, P], Awaitable[T]]:
    """Turn a method that returns a `RegistryChange` into an asynchronous one that also makes the change. The method
    gets the current registry as its first argument. It may be called several times (`RegistryState.change`), and its
    class needs a `_state`.
    """

    @wraps(decide)
    async def change(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> T:
        state: RegistryState = self._state
        return await state.change(lambda registry: decide(self, registry, *args, **kwargs))

    return change


def own_entry(registry: NamesRegistry, name: str) -> RegistryEntry:
    """Return the entry of a name that is registered here. Raise NotFound if there is none, and Refused if the entry was
    imported.
    """
    entry = registry.entries.get(name)
    if entry is None:
        raise NotFound("name", name, list(registry.entries)[:10_000])
    if entry.source:  # REG-9-4
        raise Refused("read_only", f"{name} was imported from {entry.source}; it is changed there")
    return entry


def _audit_line(step: RegistryStep, mark: Mark) -> bytes:
    """Return the audit record of a step. It contains the hash of the registry's log after the step."""
    details: dict[str, Any] = {"record": mark.sequence, "record_hash": mark.hash.hex(), "outcome": step.what}
    if step.reason:
        details["reason"] = step.reason
    method, verdict = f"names/{step.what}", "override" if step.is_override else "recorded"
    return AuditRecord.event(step.at, step.by, "names", method, f"names.{step.subject}", verdict=verdict, **details)


UNNAMED = frozenset(("local", "anonymous"))  # any program on the machine: never the principal of a controller


class Actor(msgspec.Struct, frozen=True, kw_only=True):
    """The person or program that asks for a change.

    `override` is an admin's reason for acting instead of the controller. It is recorded.
    """

    principal: str
    statement: Statement | None = None
    override: str = ""
    is_operator: bool = False  # at the operator endpoint

    @property
    def shown(self) -> str:
        """Return the name of the actor in the log: the controller that signed a statement, otherwise the principal."""
        return f"controller:{self.statement.controller}" if self.statement is not None else self.principal

    def step(self, at: str, what: str, subject: str, **changes: Any) -> RegistryStep:
        """Return a new step of the log by this actor. `changes` are the fields of the step that say what has
        changed.
        """
        return RegistryStep(
            at=at,
            by=self.shown,
            what=what,
            subject=subject,
            is_override=bool(self.override),
            reason=self.override,
            statement=statement_id(self.statement) if self.statement is not None else "",
            **changes,
        )


def check_controller(actor: Actor, controller: Controller, registry: NamesRegistry) -> None:
    """Raise Refused unless the actor acts for the controller or gives an override, which is recorded."""
    statement = actor.statement
    if statement is not None:
        check_statement(statement, controller, registry)
        return
    if actor.principal in controller.principals or actor.override:
        return
    raise Refused("not_change_controller", f"{actor.principal} does not act for {controller.name}")


def check_statement(statement: Statement, controller: Controller, registry: NamesRegistry) -> None:
    """Raise Refused unless a key of the controller signed the statement and the statement has not been used before."""
    from interlock.crypto.jwt_verification import check_signature  # rarely needed, and slow to load

    if statement_id(statement) in registry.used_statements:
        raise Refused("statement_replayed", "the statement was used before; sign one for each change")
    if statement.controller != controller.name or not is_signed_by(statement, controller.keys, check_signature):
        raise Refused("not_change_controller", f"the statement is not signed by a key of {controller.name}")


def statement_id(statement: Statement) -> str:
    """Return the id under which a used statement is remembered, so that it cannot be used again."""
    return f"{statement.controller}/{statement.jti}"
