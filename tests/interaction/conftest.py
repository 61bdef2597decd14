"""The fleet is started once and shared; so is the event loop its standing clients live in."""

import contextlib
from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio
from tests.interaction.fleet import Fleet, starting
from tests.interaction.harness import running_node
from tests.interaction.lingering import HUGE, Lingering
from tests.servers.start import raw


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def fleet(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Fleet]:
    async with starting(tmp_path_factory.mktemp("fleet")) as started:
        yield started


@pytest.fixture(scope="session")
def lingering(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lingering]:
    """Clients that do nothing, on a node of their own; the first test that names this starts their time."""
    servers = {"good": {"command": raw("all")}, "huge": {"command": raw("huge-answer", "--bytes", str(HUGE))}}
    with (
        running_node(tmp_path_factory.mktemp("lingering"), servers) as node,
        contextlib.closing(Lingering(node)) as opened,
    ):
        yield opened
