"""A loop whose time stands still until a test moves it; files, threads and processes go on in theirs."""

import asyncio
import contextlib
import functools
import math
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any, cast

JOBS_S = 5.0  # of real time: a thread that takes longer waits for something else
TURNS_MAX = 100_000  # of the loop without a rest: what does not come to one by then never will
WALL = 1_800_000_000.0


class FrozenLoop(asyncio.SelectorEventLoop):
    """Its time is `moved`; files, threads and processes go on in theirs."""

    moved = 1000.0

    def __init__(self) -> None:
        super().__init__()
        self._clock_resolution = 0.0  # a timer before its time would find nothing due, and fire again for ever
        self.jobs: set[asyncio.Future[Any]] = set()  # of threads, such as those that read and write files

    def time(self) -> float:
        return self.moved

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> Any:
        job = super().run_in_executor(executor, func, *args)
        self.jobs.add(job)
        job.add_done_callback(self.jobs.discard)
        return job


def in_frozen_time(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """The test runs in a loop whose time stands still."""

    @functools.wraps(test)
    def run(*args: Any, **named: Any) -> None:
        with asyncio.Runner(loop_factory=FrozenLoop) as runner:
            runner.run(test(*args, **named))

    return run


class FrozenClock:
    def now(self) -> float:
        return asyncio.get_running_loop().time()

    def wall(self) -> float:
        return WALL + self.now()


async def run_until_idle() -> None:
    """Wait until no task, and no thread that works for one, has anything to do at this point in time."""
    loop: Any = asyncio.get_running_loop()
    # A test may call this in a loop of real time as well.
    jobs: set[asyncio.Future[Any]] = loop.jobs if isinstance(loop, FrozenLoop) else set()
    until = time.monotonic() + JOBS_S
    for _ in range(TURNS_MAX):
        await asyncio.sleep(0)
        while not loop._ready:
            if not jobs or time.monotonic() > until:
                return
            time.sleep(0.0002)  # noqa: ASYNC251  (the loop has nothing else to do)
            await asyncio.sleep(0)
    raise AssertionError(f"the node does not come to rest: {loop._ready}")


async def advance_time(seconds: float) -> None:
    """Let time pass, timer by timer."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, FrozenLoop)
    until = loop.moved + seconds
    await run_until_idle()
    while True:
        due = [timer.when() for timer in cast(Any, loop)._scheduled if not timer.cancelled() and timer.when() <= until]
        if not due:
            break
        loop.moved = max(loop.moved, math.nextafter(min(due), math.inf))
        await run_until_idle()
    loop.moved = max(loop.moved, until)
    await run_until_idle()


@contextlib.asynccontextmanager
async def in_real_time() -> AsyncIterator[None]:
    """A bound in the time of people, for a node that is broken."""
    task = asyncio.current_task()
    loop = asyncio.get_running_loop()
    late = threading.Timer(10.0, lambda: loop.call_soon_threadsafe(cast(Any, task).cancel))
    late.start()
    try:
        yield
    finally:
        late.cancel()
        late.join()
