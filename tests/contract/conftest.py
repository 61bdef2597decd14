"""The HTTP client and the WebSocket are one implementation on two event loops: their tests run on both."""

import asyncio
import secrets
from collections.abc import Callable, Iterator, Mapping

import pytest
import uvloop
from tests import prompt_server
from tests.nats_server import NatsServer

from interlock.core.store_backends import BACKENDS
from interlock.store.nats.servers import SharedPlace

prompt_server.install()


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    if item.path.name.startswith(("test_http_client", "test_websocket")):
        return {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}
    return {"asyncio": asyncio.new_event_loop}


@pytest.fixture(scope="session")
def nats_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    """One for all tests of a run; each has a node name of its own."""
    server = NatsServer(tmp_path_factory.mktemp("nats"))
    server.start()
    yield server
    server.kill()


@pytest.fixture
def shared(backend: str, request: pytest.FixtureRequest) -> SharedPlace | None:
    """Where the store of this test is, if its backend has one that is shared."""
    if not BACKENDS[backend].is_shared:
        return None
    server: NatsServer = request.getfixturevalue("nats_server")
    return server.place(f"test {secrets.token_hex(4)}")
