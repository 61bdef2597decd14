"""Between nodes: TLS 1.3, a certificate that is checked, and a token of the parent's own (MCP-AX 10.1, 10.4)."""

import asyncio
import contextlib
import json
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import websockets
from tests.ax.raw_aggregator import A, Aggregator
from tests.ax.tree import ACCESS, parents, wait_parent
from tests.support.certificates import Authority
from tests.support.node_process import RunningNode, running_node


class Secure(Aggregator):
    def __init__(self, context: ssl.SSLContext) -> None:
        super().__init__(A)
        self._context = context

    @property
    def url(self) -> str:
        return f"wss://127.0.0.1:{self.port}/ax"

    async def start(self) -> None:
        self._server = await websockets.serve(
            self._accept, "127.0.0.1", 0, subprotocols=[websockets.Subprotocol("mcpax.v1")], ssl=self._context
        )
        self.port = next(iter(self._server.sockets)).getsockname()[1]


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@contextlib.asynccontextmanager
async def below(folder: Path, url: str, trusted: Path | None, more: str = "") -> AsyncIterator[RunningNode]:
    env = {"SSL_CERT_FILE": str(trusted)} if trusted is not None else {}
    entered = running_node(folder / "child", {}, parents((url, "edge"), authority=None) + more, env)
    node = await asyncio.to_thread(entered.__enter__)
    try:
        yield node
    finally:
        await asyncio.to_thread(entered.__exit__, None, None, None)


@pytest.mark.req("AX-10.4-1")
@pytest.mark.parametrize("fault", ["older TLS", "unknown authority"])
async def test_a_parent_with_less_than_tls_1_3_or_a_certificate_nobody_vouches_for_is_not_registered_with(
    tmp_path: Path, authority: Authority, fault: str
) -> None:
    newest = ssl.TLSVersion.TLSv1_2 if fault == "older TLS" else ssl.TLSVersion.TLSv1_3
    above = Secure(authority.context(newest))
    await above.start()
    trusted = authority.trusted if fault == "older TLS" else None
    async with below(tmp_path, above.url, trusted) as node:
        shown = await asyncio.to_thread(wait_parent, node, {"state": "waiting"})
        assert ("TLS" if fault == "older TLS" else "certificate") in shown["reason"]
        assert not above.links
    await above.stop()


@pytest.mark.req("AX-10.4-1", "AX-5.3-1")
async def test_nodes_register_over_tls_1_3(tmp_path: Path, authority: Authority) -> None:
    tls = f'tls_cert = "{authority.certificate}"\ntls_key = "{authority.key}"\n'
    listen = f'[node]\nlisten = "127.0.0.1:0"\noperator_listen = "127.0.0.1:0"\n{tls}'
    with running_node(tmp_path / "root", {}, ACCESS + listen) as root:
        async with below(tmp_path, f"wss://127.0.0.1:{root.port}/ax", authority.trusted) as node:
            await asyncio.to_thread(wait_parent, node, {"state": "registered"})
            await asyncio.to_thread(root.wait_link, "edge", {"state": "ready", "kind": "aggregator"})


async def test_a_node_without_the_parents_token_learns_how_to_get_a_token_and_then_registers(tmp_path: Path) -> None:
    with running_node(tmp_path / "root", {}, '[auth]\nanonymous = "never"\n' + ACCESS) as root:
        url = f"ws://127.0.0.1:{root.port}/ax"
        async with below(tmp_path, url, None) as node:
            shown = await asyncio.to_thread(wait_parent, node, {"state": "waiting"})
            assert "401" in shown["reason"]
            assert "interlock access token --for subserver --name" in shown["next_step"]
        made = root.cli("access", "token", "--for", "subserver", "--name", "edge", "--json")
        secret = json.loads(made.stdout)["token"]
        async with below(tmp_path, url, None, f'secret = "{secret}"\n') as node:
            shown = await asyncio.to_thread(wait_parent, node, {"state": "registered"})
            assert secret not in json.dumps(await asyncio.to_thread(node.admin, "/admin/status"))
            link = await asyncio.to_thread(root.wait_link, "edge", {"state": "ready"})
            assert link["registration"]["principal"] == "subserver:edge"
        assert secret not in (tmp_path / "child" / "stderr.txt").read_text()
