"""What the registry does by itself: it takes in what other processes wrote, raises the reviews that are due, reminds of
what is, notes who offers what, and looks at documents again."""

import asyncio
import logging
from typing import Final

from interlock.core.operator_errors import NotFound, Refused
from interlock.names.document_watch import DocumentWatch
from interlock.names.documents import DocumentFetcher
from interlock.names.reminders import Reminders
from interlock.names.requests import RequestService
from interlock.names.sightings import Sightings
from interlock.names.state import RegistryState
from interlock.store.ports import StoreError

log = logging.getLogger("interlock.names")

EVERY_S: Final = 3600.0


class Reviews:
    def __init__(
        self,
        state: RegistryState,
        requests: RequestService,
        documents: DocumentFetcher,
        watch: DocumentWatch,
        sightings: Sightings,
        reminders: Reminders,
    ) -> None:
        self._state = state
        self._requests = requests
        self._documents = documents
        self._watch = watch
        self._sightings = sightings
        self._reminders = reminders
        self._task: asyncio.Task[None] | None = None

    async def open(self) -> None:
        await self._state.open()
        if self._state.trouble is None:
            self._task = asyncio.get_running_loop().create_task(self._look_forever(), name="names")

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self._documents.close()
        await self._state.close()

    async def _look_forever(self) -> None:
        await self._look(first=True)
        while True:
            await asyncio.sleep(EVERY_S)
            await self._look(first=False)

    async def _look(self, *, first: bool) -> None:
        try:
            await self._state.refresh()
            await (self._requests.open() if first else self._requests.look())
            await self._reminders.look()
            await self._sightings.note()
            await self._watch.look()
        except (StoreError, Refused, NotFound) as error:
            log.error("the registry of names cannot be looked over: %s", error)
