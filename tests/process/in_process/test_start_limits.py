"""Are starts bounded, and does one that takes long keep no other waiting?"""

import asyncio

import pytest

from interlock.process import limits as process_limits
from interlock.process.limits import STARTS_MAX, StartLimits


async def test_a_limited_number_of_processes_starts_at_once() -> None:
    limits, go = StartLimits(), asyncio.Event()
    started = 0

    async def start() -> None:
        nonlocal started
        async with limits.starting():
            started += 1
            await go.wait()

    tasks = [asyncio.create_task(start()) for _ in range(3 * STARTS_MAX)]
    await asyncio.sleep(0.01)
    assert (started, limits.is_full) == (STARTS_MAX, True)
    tasks[0].cancel()
    tasks[STARTS_MAX].cancel()  # one that waits
    await asyncio.sleep(0.01)
    assert started == STARTS_MAX + 1
    go.set()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert started == 3 * STARTS_MAX - 1
    assert not limits.is_full


async def test_a_start_that_takes_long_counts_no_more_and_is_not_given_back_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(process_limits, "START_S", 0.02)
    limits, go = StartLimits(), asyncio.Event()

    async def hang() -> None:
        async with limits.starting():
            await go.wait()

    hanging = [asyncio.create_task(hang()) for _ in range(STARTS_MAX)]
    await asyncio.sleep(0)
    assert limits.is_full
    async with asyncio.timeout(5), limits.starting():
        go.set()
        await asyncio.gather(*hanging)
    held = [limits.starting() for _ in range(STARTS_MAX)]
    for one in held:
        await one.__aenter__()
    assert limits.is_full
    for one in held:
        await one.__aexit__(None, None, None)
