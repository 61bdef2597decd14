"""Operations on the name registry of a data folder. A running node may use the same registry log at the same time."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import msgspec

from interlock.config.plan import Plan
from interlock.core.clock import Clock
from interlock.core.part import opened
from interlock.core.recorder import Recorder
from interlock.core.store_backends import build_audit
from interlock.credentials.shared_store import build_names_log
from interlock.names.documents import DocumentCopies
from interlock.names.protocol.entry import RegistryEntry
from interlock.names.protocol.publication import Form
from interlock.names.protocol.registry import SourceRegistry
from interlock.names.publisher import Publisher
from interlock.names.state import RegistryState
from interlock.store.ports import StoreError
from interlock.wire.refusal import NotFound, Refused

T = TypeVar("T")


class ImportedRegistry(msgspec.Struct, frozen=True, kw_only=True):
    entries: int
    source: SourceRegistry


class AttachedCopy(msgspec.Struct, frozen=True, kw_only=True):
    request: str
    subject: str
    digest: str
    path: str


@dataclass(eq=False)
class StoredNames:
    """Client for the name registry of a data folder."""

    plan: Plan
    data: Path

    def import_(self, document: bytes, source: str, *, is_trusted: bool, pin: str) -> ImportedRegistry:
        """Import a registry document and return what was imported. Raise Refused if it cannot be imported."""

        async def work(state: RegistryState) -> ImportedRegistry:
            publisher = Publisher(state, tuple)
            entries, imported = await publisher.import_("local", document, source, is_trusted=is_trusted, pin=pin)
            return ImportedRegistry(entries=entries, source=imported)

        return asyncio.run(self._with_state(work))

    def entries(self) -> Mapping[str, RegistryEntry]:
        """Return the entries by name. Raise Refused if they cannot be read.

        The method writes nothing and does not connect to a store on another machine, so the result is empty for a
        registry in a shared store.
        """
        if self.plan.store.backend != "sqlite":
            return {}

        async def read() -> Mapping[str, RegistryEntry]:
            recorder = Recorder(build_audit(self.plan.store.backend, self.data))  # never opened
            state = RegistryState(build_names_log(self.plan, self.data), recorder, Clock())
            async with opened(state):
                return state.registry.entries

        return asyncio.run(read())

    def publish(self, form: Form) -> bytes:
        experts = tuple(sorted(anchor.name for anchor in self.plan.anchors))

        async def work(state: RegistryState) -> bytes:
            return Publisher(state, lambda: experts).published(form)

        return asyncio.run(self._with_state(work))

    def attach(self, subject: str, document: bytes) -> AttachedCopy:
        """Attach a copy of a specification document to a registry request. Raise Refused if the document does not match
        the request.
        """

        async def work(state: RegistryState) -> AttachedCopy:
            request, path = await DocumentCopies(state, self.data).attach("local", subject, document)
            digest = request.retrieval.digest if request.retrieval is not None else None
            return AttachedCopy(request=request.id, subject=request.subject, digest=digest or "", path=str(path))

        return asyncio.run(self._with_state(work))

    async def _with_state(self, work: Callable[[RegistryState], Awaitable[T]]) -> T:
        audit = build_audit(self.plan.store.backend, self.data)
        recorder = Recorder(audit)
        state = RegistryState(build_names_log(self.plan, self.data), recorder, Clock())
        try:
            async with opened(audit):
                try:
                    async with opened(state):
                        return await work(state)
                finally:
                    await recorder.flush()
        except NotFound as missing:
            raise Refused("not_found", f"no {missing.what} {missing.name[:100]} waits") from None
        except StoreError as error:
            raise Refused("store", str(error)) from None
