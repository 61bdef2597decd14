"""A real NATS server for the tests of stores that run on every backend."""

import secrets
from collections.abc import Iterator

import pytest
from tests.store.nats_server import NatsServer

from interlock.core.store_backends import BACKENDS
from interlock.store.ports import SharedPlace


@pytest.fixture(scope="session")
def nats_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    """Start one server for all tests of a run. Each test uses a different node name."""
    server = NatsServer(tmp_path_factory.mktemp("nats"))
    server.start()
    yield server
    server.kill()


@pytest.fixture
def shared(backend: str, request: pytest.FixtureRequest) -> SharedPlace | None:
    """Return where the store of this test is, if its backend is shared between nodes."""
    if not BACKENDS[backend].is_shared:
        return None
    server: NatsServer = request.getfixturevalue("nats_server")
    return server.place(f"test {secrets.token_hex(4)}")
