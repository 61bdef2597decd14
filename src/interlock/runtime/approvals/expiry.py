"""The expiry of approvals, from the moment on when everything that was decided before has been taken up."""

import asyncio

from interlock.runtime.approvals.inbox import Inbox


class Expiry:
    def __init__(self, inbox: Inbox) -> None:
        self._inbox = inbox
        self._task: asyncio.Task[None] | None = None

    async def open(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._inbox.sweep_forever(), name="approvals")

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
