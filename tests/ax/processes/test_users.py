"""Subservers at a Unix socket: the kernel tells who they are, and [[access]] what they speak for (MCP-AX 4.2)."""

import asyncio
import http.client
import os
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import websockets
from tests.ax.bare_subserver import BareSubserver
from tests.ax.processes.test_authority_proofs import EDGE, OTHER, WRITES, ready
from tests.support.node_process import RunningNode, running_node

from interlock.ax.protocol.messages import SUBPROTOCOL

NOBODY = 65534
ACCESS = f"""
[auth]
anonymous = "never"
[[access]]
who = ["uid:{os.getuid()}"]
scope = "write"
authority = "dns:{EDGE}"
[[access]]
who = ["*"]
scope = "admin"
"""


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNode]:
    folder = tmp_path_factory.mktemp("u")
    with running_node(folder, {}, f'[ax]\nsocket = "{folder / "ax.sock"}"\n{ACCESS}') as started:
        yield started


def socket_of(node: RunningNode) -> Path:
    return node.data.parent / "ax.sock"


async def connect(node: RunningNode, path: str = "/ax", **headers: str) -> Any:
    return await websockets.unix_connect(
        str(socket_of(node)),
        f"ws://localhost{path}",
        subprotocols=[websockets.Subprotocol(SUBPROTOCOL)],
        additional_headers=headers,
        compression=None,
        open_timeout=10,
    )


@pytest.mark.req("AX-4.2-10")
async def test_a_user_of_this_machine_speaks_for_the_authority_that_access_gives_it(node: RunningNode) -> None:
    assert stat.S_IMODE(socket_of(node).stat().st_mode) == 0o666
    for segment, authority, tools in (("named", EDGE, 2), ("another", OTHER, 1)):
        leaf = BareSubserver(await connect(node), segment, tools=WRITES, authority=f"dns:{authority}")
        await leaf.register()
        link = (await ready(node, segment, tools=tools))["registration"]
        assert (link["authority"], link["verified"]) == (f"dns:{authority}", authority == EDGE)
        assert link["principal"] == f"uid:{os.getuid()}"
        await leaf.stop()


@pytest.mark.req("AX-4.2-10")
async def test_the_user_counts_nowhere_else_and_nothing_else_is_served_there(node: RunningNode) -> None:
    for path in ("/v0/ws?topic=x", "/mcp"):
        with pytest.raises(websockets.InvalidStatus) as refused:
            await connect(node, path)
        assert refused.value.response.status_code in (404, 426)
    connection = http.client.HTTPConnection("localhost")
    connection.sock = socket.socket(socket.AF_UNIX)
    connection.sock.connect(str(socket_of(node)))
    connection.request("POST", "/mcp", "{}", {"content-type": "application/json"})
    assert connection.getresponse().status == 404
    connection.close()
    with pytest.raises(websockets.InvalidStatus) as refused:
        await connect(node, authorization="Bearer ils_unknown")
    assert refused.value.response.status_code == 401
    with pytest.raises(websockets.InvalidStatus) as refused:  # over TCP nobody has a user
        await websockets.connect(
            f"ws://127.0.0.1:{node.port}/ax", subprotocols=[websockets.Subprotocol(SUBPROTOCOL)], compression=None
        )
    assert refused.value.response.status_code == 401


TRY = """
import os, socket, sys
os.setgid({uid}); os.setuid({uid})
there = socket.socket(socket.AF_UNIX)
there.connect(sys.argv[1])
there.sendall(b"POST /ax HTTP/1.1\\r\\nhost: localhost\\r\\ncontent-length: 2\\r\\n\\r\\n{{}}")
print(there.recv(100).split()[1].decode())
"""


@pytest.mark.req("AX-4.2-10")
async def test_a_user_that_access_does_not_name_is_refused(tmp_path: Path) -> None:
    """Also where an entry is for everyone: `*` means no user of the machine."""
    with running_node(
        tmp_path, {}, f'[ax]\nsocket = "{tmp_path / "ax.sock"}"\n{ACCESS}'.replace("uid:", "uid:1")
    ) as node:
        with pytest.raises(websockets.InvalidStatus) as refused:
            await connect(node)
        assert refused.value.response.status_code == 401
    assert not (tmp_path / "ax.sock").exists()


@pytest.mark.skipif(os.getuid() != 0, reason="NOT ROOT: another user cannot be shown")
@pytest.mark.req("AX-4.2-10")
async def test_another_user_is_another_principal(tmp_path: Path) -> None:
    place = Path(tempfile.mkdtemp())  # which others may enter, unlike those of tests
    place.chmod(0o755)
    with running_node(tmp_path, {}, f'[ax]\nsocket = "{place / "ax.sock"}"\n{ACCESS}'):

        async def status(uid: int) -> str:
            command = [sys.executable, "-c", TRY.format(uid=uid), str(place / "ax.sock")]
            done = await asyncio.to_thread(
                subprocess.run, command, capture_output=True, text=True, timeout=30, check=False
            )
            assert done.returncode == 0, done.stderr
            return str(done.stdout.strip())

        assert (await status(os.getuid()), await status(NOBODY)) == ("200", "401")
    place.rmdir()  # the node took its socket away
