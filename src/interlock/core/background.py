"""Background tasks of one part: held while they run, since the event loop alone does not keep them alive.

In: coroutines. Out: nothing, or the task for a caller that wants its result. A task that fails is logged, unless a
caller awaits it. The owner closes: with `finish` everything is done to its end, with `close` it is cancelled.
"""

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any, Final, TypeVar

_T = TypeVar("_T")
_log: Final = logging.getLogger("interlock.background")


class BackgroundTasks:
    """The background tasks of one part."""

    __slots__ = ("_tasks",)

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    def __len__(self) -> int:
        return len(self._tasks)

    def begin(self, work: Coroutine[Any, Any, _T], name: str | None = None) -> asyncio.Task[_T]:
        """Run `work` as a task; an exception is logged under `name`."""
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._log_failure)
        return task

    def begin_awaited(self, work: Coroutine[Any, Any, _T]) -> asyncio.Task[_T]:
        """Run `work` for a caller that awaits the task and gets its exception, but may be cancelled meanwhile."""
        task = asyncio.get_running_loop().create_task(work)
        self.hold(task)
        return task

    def hold(self, task: asyncio.Task[Any]) -> None:
        """Keep a reference to a task that another part started and handles."""
        self._tasks.add(task)
        task.add_done_callback(self._drop)

    async def finish(self, timeout_s: float | None = None) -> None:
        """Wait until no task is left, including tasks that begin meanwhile; with a limit, wait only for the present
        ones.
        """
        while self._tasks:
            await asyncio.wait(list(self._tasks), timeout=timeout_s)
            if timeout_s is not None:
                return

    async def close(self) -> None:
        """Cancel every task and wait for its end."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _drop(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # the caller that began it may be gone

    def _log_failure(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (failed := task.exception()) is not None:
            _log.error("%s failed in a way it should not", task.get_name(), exc_info=failed)
