"""The fleet is started once and shared; so is the event loop its standing clients live in."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from tests.interaction.fleet import Fleet, starting


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def fleet(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Fleet]:
    async with starting(tmp_path_factory.mktemp("fleet")) as started:
        yield started
