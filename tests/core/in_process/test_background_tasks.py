"""Background tasks: held, logged when they fail, finished or cancelled by their owner."""

import asyncio
import gc
import logging
import re
from pathlib import Path

import pytest

import interlock
from interlock.core.background import BackgroundTasks


async def fail() -> None:
    raise RuntimeError("for a test")


async def test_a_task_is_held_until_it_ends() -> None:
    tasks, gate, done = BackgroundTasks(), asyncio.Event(), asyncio.Event()

    async def work() -> None:
        await gate.wait()
        done.set()

    tasks.begin(work())
    gc.collect()
    assert len(tasks) == 1
    gate.set()
    await asyncio.wait_for(done.wait(), 5)
    await tasks.finish()
    assert len(tasks) == 0


async def test_a_task_that_fails_is_logged_with_its_name(caplog: pytest.LogCaptureFixture) -> None:
    tasks = BackgroundTasks()
    tasks.begin(fail(), "the sweep")
    await tasks.finish()
    (record,) = caplog.records
    assert (record.levelno, record.getMessage()) == (logging.ERROR, "the sweep failed in a way it should not")
    assert record.exc_info is not None


async def test_what_somebody_awaits_fails_there_and_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    tasks = BackgroundTasks()
    with pytest.raises(RuntimeError, match="for a test"):
        await tasks.begin_awaited(fail())
    tasks.begin_awaited(fail())  # and when that one is gone, nothing is left over
    await tasks.finish()
    gc.collect()
    assert caplog.records == []


async def test_finishing_waits_for_what_begins_meanwhile() -> None:
    tasks, seen = BackgroundTasks(), []

    async def second() -> None:
        await asyncio.sleep(0)
        seen.append("second")

    async def first() -> None:
        await asyncio.sleep(0)
        tasks.begin(second())
        seen.append("first")

    tasks.begin(first())
    await tasks.finish()
    assert seen == ["first", "second"]


async def test_finishing_with_a_limit_leaves_what_takes_longer() -> None:
    tasks = BackgroundTasks()
    tasks.begin(asyncio.Event().wait())
    await tasks.finish(timeout_s=0.01)
    assert len(tasks) == 1
    await tasks.close()


async def test_closing_cancels_and_waits_for_the_end() -> None:
    tasks, ended = BackgroundTasks(), []

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            ended.append(True)

    task = tasks.begin(work())
    await asyncio.sleep(0)
    await tasks.close()
    assert (ended, task.cancelled(), len(tasks)) == ([True], True, 0)


def test_no_part_of_the_runtime_holds_tasks_by_itself() -> None:
    root = Path(interlock.__file__).parent
    holding = re.compile(r"add_done_callback\(self\.\w+\.discard\)")
    found = {str(path.relative_to(root)) for path in root.rglob("*.py") if holding.search(path.read_text())}
    assert found == set()
