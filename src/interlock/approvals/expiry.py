"""The expiry of approvals, from the moment on when everything that was decided before has been taken up."""

import asyncio

from interlock.approvals.inbox import Inbox
from interlock.core.background import BackgroundTasks
from interlock.core.replicas import LEASE_S, Replicas


class Expiry:
    def __init__(self, inbox: Inbox, replicas: Replicas) -> None:
        self._inbox = inbox
        self._replicas = replicas
        self._work = BackgroundTasks()

    async def open(self) -> None:
        self._work.begin(self._inbox.sweep_forever(), "approvals")
        if not self._replicas.is_alone:
            self._work.begin(self._end_lost_forever(), "approvals of lost replicas")

    async def close(self) -> None:
        await self._work.close()

    async def _end_lost_forever(self) -> None:
        while True:
            await asyncio.sleep(LEASE_S)
            await self._inbox.end_lost()
