"""A subserver that connected and never registered does not delay the end of a node."""

import contextlib
import time
from pathlib import Path

import pytest
from tests.ax.processes.test_refused_at_the_door import UPGRADE
from tests.support.node_process import running_node
from tests.support.raw_client import RawConnection, request


@pytest.mark.parametrize("says", [b"", b"\x81"], ids=["silent", "half a frame"])
def test_a_node_stops_soon_though_connections_never_registered(tmp_path: Path, says: bytes) -> None:
    with running_node(tmp_path, {}) as node, contextlib.ExitStack() as connections:
        for _ in range(3):
            rude = connections.enter_context(RawConnection(node))
            assert rude.send(request("GET", "/ax", UPGRADE)).stream_head().status == 101
            rude.send(says)
        began = time.monotonic()
        assert node.stop() == 0
        assert time.monotonic() - began < 5.0
