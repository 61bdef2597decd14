"""The registry of names in a data folder, without its node: two processes share one log."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import msgspec

from interlock.config.plan import Plan
from interlock.protocol.names.publication import Form
from interlock.protocol.names.records import SourceRegistry
from interlock.runtime.base import operator_errors
from interlock.runtime.base.clock import SystemClock
from interlock.runtime.base.recorder import Recorder
from interlock.runtime.base.store_backends import build_audit
from interlock.runtime.names.publisher import Publisher
from interlock.runtime.names.state import RegistryState
from interlock.store.ports import StoreError
from interlock.store.sqlite.names_log import SqliteNamesLog
from interlock.surface.cli.terminal.errors import Refused

T = TypeVar("T")


class ImportedRegistry(msgspec.Struct, frozen=True, kw_only=True):
    entries: int
    source: SourceRegistry


class StoredNames:
    def __init__(self, plan: Plan, data: Path) -> None:
        self._plan = plan
        self._data = data

    def import_(self, document: bytes, source: str, *, is_trusted: bool, pin: str) -> ImportedRegistry:
        """Raises Refused."""

        async def work(publisher: Publisher) -> ImportedRegistry:
            entries, made = await publisher.import_("local", document, source, is_trusted=is_trusted, pin=pin)
            return ImportedRegistry(entries=entries, source=made)

        return asyncio.run(self._with_publisher(work))

    def publish(self, form: Form) -> bytes:
        async def work(publisher: Publisher) -> bytes:
            return publisher.published(form)

        return asyncio.run(self._with_publisher(work))

    async def _with_publisher(self, work: Callable[[Publisher], Awaitable[T]]) -> T:
        audit = build_audit(self._plan.store.backend, self._data)
        recorder = Recorder(audit)
        experts = tuple(sorted(anchor.name for anchor in self._plan.anchors))
        try:
            await audit.open()
            state = RegistryState(SqliteNamesLog(self._data), recorder, SystemClock())
            await state.open()
            try:
                return await work(Publisher(state, lambda: experts))
            finally:
                await state.close()
        except operator_errors.Refused as refused:
            raise Refused(refused.error, refused.message, details=refused.details) from None
        except StoreError as error:
            raise Refused("store", str(error)) from None
        finally:
            await recorder.flush()
            await audit.close()
