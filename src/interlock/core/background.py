"""Background tasks of one part of a node.

References to them are kept while they run, because the event loop keeps none.

A task is started from a coroutine. `begin_awaited` returns the task for code that needs its result. A task that fails
is logged, unless other code awaits it. The part that owns the tasks ends them: `finish` waits until all of them are
done, `close` cancels them.
"""

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any, Final, TypeVar

_T = TypeVar("_T")
_log: Final = logging.getLogger("interlock.background")


class BackgroundTasks:
    """The background tasks of one part of a node."""

    __slots__ = ("_tasks",)

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    def __len__(self) -> int:
        return len(self._tasks)

    def begin(self, work: Coroutine[Any, Any, _T], name: str | None = None) -> asyncio.Task[_T]:
        """Run `work` as a task. If it raises an exception, the exception is logged under `name`."""
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._log_failure)
        return task

    def begin_awaited(self, work: Coroutine[Any, Any, _T]) -> asyncio.Task[_T]:
        """Run `work` as a task, for code that awaits the task and handles its exception.

        It is still held if that code is cancelled.
        """
        task = asyncio.get_running_loop().create_task(work)
        self.hold(task)
        return task

    def hold(self, task: asyncio.Task[Any]) -> None:
        """Keep a task alive that other code has started. That code also handles the exception of the task."""
        self._tasks.add(task)
        task.add_done_callback(self._drop)

    async def finish(self, timeout_s: float | None = None) -> None:
        """Wait until no task is left, including tasks that begin meanwhile.

        With `timeout_s`, wait only for the tasks that exist now, and at most that long.
        """
        while self._tasks:
            await asyncio.wait(list(self._tasks), timeout=timeout_s)
            if timeout_s is not None:
                return

    async def close(self) -> None:
        """Cancel every task and wait until it has ended."""
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
