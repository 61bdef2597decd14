"""Guarded starts: a configuration whose node has approvers is not started with another node's data.

What was signed is kept in the data folder and in the store of the node. A configuration file that names another data
folder or store would therefore start a node with which nothing is held back. An agent that may edit the file could do
that. So two records say for which node a file is, and which keys may approve there:

- in a folder of the user outside of all data folders, by the path of the file;
- in the data folder, in the store of the machine, for stores that are elsewhere.

`find_conflict` compares them with the node that would start. A person with the key of an approver who is on record lets
the other node be started (`node.cli.accept`). The records in the user's folder are written and compared only if the
data folder comes from a file or is the usual one: who names it on the command line or in the environment has not edited
a file. There is no record of a configuration that was never started with an approver on this machine.
"""

import hashlib
import logging
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import msgspec

from interlock.config.folders import guarded_folder
from interlock.config.plan import Plan
from interlock.core.node_identity import find_identity, own_identity
from interlock.store.ports import KeyValue

log = logging.getLogger("interlock.approvals")

BUCKET, KEY = "guarded-start", "node"
BYTES_MAX: Final = 1024 * 1024
_DIGEST_CHARS: Final = 32


class GuardedStart(msgspec.Struct, frozen=True, kw_only=True):
    """The record of a start of a node that has approvers: its id, its data folder and store, and the thumbprints of the
    approvers' keys.
    """

    node: str
    data: str
    backend: str
    urls: tuple[str, ...] = ()  # of the store's servers
    keys: tuple[str, ...] = ()  # thumbprints

    def store_differences(self, plan: Plan) -> tuple[str, ...]:
        """Return a line if a plan names another store than this record. A plan that names fewer servers of the same
        store does not differ.
        """
        if self.backend != plan.store.backend:
            return (f"store.backend: {self.backend} -> {plan.store.backend}",)
        added = [url for url in _urls(plan) if url not in self.urls]
        return (f"store.nats_url: {', '.join(self.urls)} -> {', '.join(_urls(plan))}",) if added else ()

    def differences(self, plan: Plan, other: "GuardedStart") -> tuple[str, ...]:
        """Return a line for each difference between this record and a start with this plan, whose own record would be
        `other`. The lines are about another data folder or store, or approvers that are missing.
        """
        lines = [f"data: {self.data} -> {other.data}"] if self.node != other.node else []
        lines += self.store_differences(plan)
        # Approvers stay on record, so the store of the same node has at least one of them.
        if not lines and set(self.keys).isdisjoint(other.keys):
            lines.append(f"store: an approver -> {'other approvers' if other.keys else 'none'}, in {other.data}")
        return tuple(lines)


class StartConflict(msgspec.Struct, frozen=True, kw_only=True):
    """A start that differs from the record of an earlier one. `record` is the file to remove if no approver is left."""

    lines: tuple[str, ...]
    keys: tuple[str, ...]
    record: Path | None

    @property
    def message(self) -> str:
        """Return what is wrong and what a person can do."""
        message = (
            "the configuration belongs to a node that has approvers, and a start with other data would ignore what "
            f"they signed ({'; '.join(self.lines)}); write the former value again, or let the new one count with "
            "`interlock serve --accept-configuration`"
        )
        if self.record is not None:
            message += f", or, if no key of an approver is left, remove {self.record}"
        return message


def start_of(plan: Plan, prints: Iterable[str]) -> GuardedStart:
    """Return the record of starting a node with this plan. `prints` are the thumbprints of the keys of
    its approvers.
    """
    return GuardedStart(
        node=own_identity(plan.data).aggregator_id,
        data=str(plan.data),
        backend=plan.store.backend,
        urls=_urls(plan),
        keys=tuple(sorted(prints)),
    )


def _urls(plan: Plan) -> tuple[str, ...]:
    return plan.store.nats_url if plan.store.backend == "nats" else ()


async def find_conflict(
    plan: Plan, start: GuardedStart | None, files: Iterable[Path], local: KeyValue, now: float
) -> StartConflict | None:
    """Return how a start differs from the records of earlier ones, or None if it does not.

    `start` is the node that would start, or None to compare only which store the plan names.
    """
    entry = await local.get(BUCKET, KEY, now)
    records: list[tuple[Path | None, bytes]] = [] if entry is None else [(None, entry.value)]
    for file in files:
        record = record_of(file)
        try:
            records.append((record, record.read_bytes()[:BYTES_MAX]))
        except FileNotFoundError:
            continue
        except OSError:
            return _damaged_record(record)
    for place, value in records:
        try:
            before = msgspec.json.decode(value, type=GuardedStart)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return _damaged_record(place)
        # AX-11.N-11: another node, another store, or no approver any more
        lines = before.store_differences(plan) if start is None else before.differences(plan, start)
        if lines:
            return StartConflict(lines=lines, keys=before.keys, record=place)
    return None


def find_recorded_conflict(plan: Plan, files: Iterable[Path]) -> StartConflict | None:
    """Return how a start of this plan would differ from the records by the path of its files, without opening a store.

    The record in the data folder is not read, and neither is the list of approvers. A start compares them as well.
    Raise StoreError if the identity in the data folder cannot be read.
    """
    for file in files:
        record = record_of(file)
        try:
            before = msgspec.json.decode(record.read_bytes()[:BYTES_MAX], type=GuardedStart)
        except FileNotFoundError:
            continue
        except (OSError, msgspec.DecodeError):
            return _damaged_record(record)
        identity = find_identity(plan.data)
        node = identity.aggregator_id if identity is not None else ""
        start = msgspec.structs.replace(before, node=node, data=str(plan.data))
        if lines := before.differences(plan, start):
            return StartConflict(lines=lines, keys=before.keys, record=record)
    return None


def _damaged_record(record: Path | None) -> StartConflict:
    """Return the conflict for a record that cannot be read. A damaged record prevents the start like a
    different one.
    """
    where = "the record in the data folder" if record is None else str(record)
    return StartConflict(lines=(f"{where} cannot be read",), keys=(), record=record)


async def remember_start(start: GuardedStart, files: Iterable[Path], local: KeyValue, now: float) -> None:
    """Record a node that has approvers. Raise StoreError if the store cannot be written. If the folder of the user
    cannot be written, the log says so.
    """
    value = msgspec.json.encode(start)
    entry = await local.get(BUCKET, KEY, now)
    if entry is None or entry.value != value:
        await local.put(BUCKET, KEY, value, now)
    for file in files:
        record = record_of(file)
        try:
            if record.is_file() and record.read_bytes() == value:
                continue
            record.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            half = record.with_name(f"{record.name}.{os.getpid()}.half")
            half.write_bytes(value)
            half.replace(record)
        except OSError as error:
            log.warning(
                "%s cannot be written: %s; an edit of `data` in %s would not be noticed", record, error.strerror, file
            )
            return


async def forget_start(conflict: StartConflict, local: KeyValue) -> None:
    """Remove the record of an earlier start, after a person with a key of this record has accepted another start. The
    other records stay: they may name the approvers of a different node. Raise StoreError if that fails.
    """
    if conflict.record is None:
        await local.delete(BUCKET, KEY)
    else:
        conflict.record.unlink(missing_ok=True)


def record_of(file: Path) -> Path:
    """Return the path of the file that records the last guarded start with a configuration file."""
    digest = hashlib.sha256(os.fsencode(file)).hexdigest()
    return guarded_folder(os.environ) / f"{digest[:_DIGEST_CHARS]}.json"
