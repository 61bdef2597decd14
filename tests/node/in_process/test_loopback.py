"""A door at one address of localhost is at the other too, or knows that it is not."""

import contextlib
import socket
from collections.abc import Iterator

import pytest

from interlock.node.sockets import Taken, bind_twin


def has_ipv6() -> bool:
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET6) as probe:
        probe.bind(("::1", 0))
        return True
    return False


pytestmark = pytest.mark.skipif(not has_ipv6(), reason="this machine has no ::1")


@contextlib.contextmanager
def listening(host: str, port: int = 0) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as sock:
        sock.bind((host, port))
        sock.listen()
        yield sock


@pytest.mark.parametrize(("host", "other"), [("127.0.0.1", "::1"), ("0.0.0.0", "::1"), ("::1", "127.0.0.1")])
def test_the_other_address_is_held_at_the_same_port(host: str, other: str) -> None:
    with listening(host) as sock:
        twin = bind_twin(sock)
        assert twin is not None
        with twin:
            assert twin.getsockname()[:2] == (other, sock.getsockname()[1])
            with socket.create_connection((other, twin.getsockname()[1]), timeout=5):
                pass
            with pytest.raises(Taken):
                bind_twin(sock)


@pytest.mark.parametrize("host", ["127.0.0.2", "::"])
def test_an_address_other_than_localhost_has_no_twin(host: str) -> None:
    with listening(host) as sock:
        assert bind_twin(sock) is None


def test_the_first_arrival_is_noticed() -> None:
    with listening("127.0.0.1") as sock, listening("::1", sock.getsockname()[1]), pytest.raises(Taken, match="::1"):
        bind_twin(sock)
