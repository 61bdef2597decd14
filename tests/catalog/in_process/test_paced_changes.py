"""Changes of rooms are told at once, and then together."""

import asyncio

import pytest

from interlock.catalog.routes import PAUSE_S, PacedChanges


@pytest.mark.req("X-10.1-3")
async def test_a_change_is_reported_at_once_and_later_ones_together() -> None:
    assert PAUSE_S == 30
    told: list[frozenset[str]] = []
    paced = PacedChanges(told.append, pause_s=0.05)
    paced.add(frozenset(("tools",)))
    await asyncio.sleep(0.01)
    assert told == [{"tools"}]
    paced.add(frozenset(("tools",)))
    paced.add(frozenset(("prompts",)))
    await asyncio.sleep(0.01)
    assert len(told) == 1
    await asyncio.sleep(0.06)
    assert told[1:] == [{"tools", "prompts"}]
