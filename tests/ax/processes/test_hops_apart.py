"""Every hop has credentials of its own: each breaks alone, and none is seen on another (MCP-AX 1.1, 10.1, 10.2)."""

import asyncio
import contextlib
import http.server
import json
import ssl
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import websockets
from tests.ax.bare_subserver import SUBPROTOCOL, BareSubserver, bare_subserver, connect, tool
from tests.ax.blocking_client import call as ask_for
from tests.ax.blocking_client import listed, ready
from tests.ax.processes.test_client_certificates import IP
from tests.ax.tree import ax_url, parent, parents, wait_parent
from tests.servers.start import raw
from tests.support.client_certificates import Issuer
from tests.support.node_process import RunningNode, Wire, running_node, wait_for
from tests.support.raw_client import ask, call, legacy, legacy_session

NOBODY = '[auth]\nanonymous = "never"\n'
WRITES = [tool("read"), tool("write", annotations={"readOnlyHint": False})]


def token(node: RunningNode, door: str, name: str, *more: str) -> str:
    made = node.cli("access", "token", "--for", door, "--name", name, *more)
    assert made.returncode == 0, made.stderr
    return made.stdout.strip()


def asked(node: RunningNode, name: str, bearer: str) -> tuple[int, dict[str, Any]]:
    with Wire(node, token=bearer) as wire:
        answer = wire.modern("tools/call", {"name": name, "arguments": {}})
        return answer.status, answer.json


async def calls(node: RunningNode, name: str, bearer: str) -> tuple[int, dict[str, Any]]:
    return await asyncio.to_thread(asked, node, name, bearer)


class Hops:
    """client - root - edge - leaf, each with a token that only the next one knows."""

    def __init__(self, root: RunningNode, edge: RunningNode, leaf: BareSubserver, laptop: str) -> None:
        self.root, self.edge, self.leaf, self.laptop = root, edge, leaf, laptop

    async def reads(self) -> bool:
        status, body = await calls(self.root, "edge__leaf__read", self.laptop)
        return status == 200 and "result" in body


@contextlib.asynccontextmanager
async def hops(folder: Path) -> AsyncIterator[Hops]:
    with running_node(folder / "root", {"own": {"command": raw("all")}}, NOBODY) as root:
        secret = f'secret = "{token(root, "subserver", "edge")}"\n'
        above = NOBODY + parents((ax_url(root), "edge"), authority=None) + secret
        with running_node(folder / "edge", {"own": {"command": raw("all")}}, above) as edge:
            wait_parent(edge, {"state": "registered"})
            async with bare_subserver(
                edge, "leaf", token=token(edge, "subserver", "leaf"), tools=[tool("read")]
            ) as leaf:
                await ready(edge, "leaf", tools=1)
                made = Hops(root, edge, leaf, token(root, "client", "laptop"))
                async with asyncio.timeout(20):
                    while not await made.reads():
                        pass
                yield made


async def revoke(node: RunningNode, name: str) -> None:
    done = await asyncio.to_thread(node.cli, "access", "revoke", name)
    assert done.returncode == 0, done.stderr


@pytest.mark.req("AX-1.1-8")
async def test_the_token_of_the_last_hop_breaks_the_last_hop(tmp_path: Path) -> None:
    async with hops(tmp_path) as tree:
        await revoke(tree.edge, "leaf")
        assert (await tree.leaf.closed())[0] == 4401
        with pytest.raises(websockets.InvalidStatus) as refused:
            await connect(tree.edge, token="ils_" + "0" * 43)
        assert refused.value.response.status_code == 401
        status, body = await calls(tree.root, "edge__leaf__read", tree.laptop)
        assert status == 200 and "error" in body  # the way failed, not the caller
        assert (await calls(tree.root, "own__echo", tree.laptop))[0] == 200
        assert (await asyncio.to_thread(wait_parent, tree.edge, {"state": "registered"}))["reason"] is None


@pytest.mark.req("AX-1.1-8")
async def test_the_token_of_the_middle_hop_breaks_the_middle_hop(tmp_path: Path) -> None:
    async with hops(tmp_path) as tree:
        await revoke(tree.root, "edge")
        await asyncio.to_thread(wait_for, lambda: "401" in (parent(tree.edge)["reason"] or ""), 20.0)
        assert (await tree.leaf.beat())["status"] == "ok"
        status, body = await calls(tree.root, "edge__leaf__read", tree.laptop)
        assert status == 200 and "error" in body
        assert "result" in (await calls(tree.root, "own__echo", tree.laptop))[1]
        below = token(tree.edge, "client", "near")
        assert "result" in (await calls(tree.edge, "leaf__read", below))[1]


@pytest.mark.req("AX-1.1-8")
async def test_the_token_of_the_client_breaks_the_first_hop(tmp_path: Path) -> None:
    async with hops(tmp_path) as tree:
        other = token(tree.root, "client", "other")
        await revoke(tree.root, "laptop")
        assert (await calls(tree.root, "edge__leaf__read", tree.laptop))[0] == 401
        assert "result" in (await calls(tree.root, "edge__leaf__read", other))[1]
        assert (await asyncio.to_thread(wait_parent, tree.edge, {"state": "registered"}))["reason"] is None
        assert (await tree.leaf.beat())["status"] == "ok"


@pytest.mark.req("AX-1.1-8")
async def test_a_clients_token_opens_no_other_hop(tmp_path: Path) -> None:
    async with hops(tmp_path) as tree:
        assert (await calls(tree.edge, "leaf__read", tree.laptop))[0] == 401
        for node in (tree.root, tree.edge):
            with pytest.raises(websockets.InvalidStatus) as refused:
                await connect(node, token=tree.laptop)
            assert refused.value.response.status_code == 401
        wrong = NOBODY + parents((ax_url(tree.root), "mistaken"), authority=None) + f'secret = "{tree.laptop}"\n'
        with running_node(tmp_path / "mistaken", {}, wrong) as mistaken:
            shown = await asyncio.to_thread(wait_parent, mistaken, {"state": "waiting"})
            assert "401" in shown["reason"]
            assert "interlock access token --for subserver" in shown["next_step"]
        assert await tree.reads()


# 10.1


class Refusing(http.server.BaseHTTPRequestHandler):
    """An MCP server that lets nobody in and says where to get a token."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("content-length", 0)))
        self.send_response(401)
        self.send_header("WWW-Authenticate", 'Bearer realm="downstream7f", resource_metadata="https://downstream7f/"')
        self.send_header("content-length", "0")
        self.end_headers()

    do_GET = do_DELETE = do_POST

    def log_message(self, *_: Any) -> None:
        pass


@contextlib.contextmanager
def serving(handler: type[http.server.BaseHTTPRequestHandler], context: ssl.SSLContext | None = None) -> Iterator[int]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    if context is not None:
        server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.mark.req("AX-10.1-1")
def test_a_server_that_wants_a_token_is_an_error_and_its_challenge_stays_below(tmp_path: Path) -> None:
    with serving(Refusing) as port:
        servers = {"closed": {"url": f"http://127.0.0.1:{port}/mcp", "headers": {"Authorization": "Bearer wrong7f"}}}
        with running_node(tmp_path, servers) as node:
            session = legacy_session(node)
            for data in (call("closed__anything"), legacy(session, "tools/call", {"name": "closed__anything"})):
                answer = ask(node, data)
                assert answer.status == 200 and "error" in answer.json
                assert "www-authenticate" not in {name.lower() for name in answer.headers}
                assert b"downstream7f" not in answer.body and b"wrong7f" not in answer.body


@pytest.mark.req("AX-10.1-1")
async def test_a_client_certificate_is_shown_to_its_parent_alone(tmp_path: Path) -> None:
    """A parent and a server stand behind the same CA, and both would take a certificate."""
    seen: dict[str, Any] = {}

    class Curious(Refusing):
        def do_POST(self) -> None:
            seen["server"] = self.connection.getpeercert()  # type: ignore[attr-defined]
            super().do_POST()

    folder = tmp_path / "certificates"
    folder.mkdir()
    issuer = Issuer(folder)
    there, ours = issuer.issue("there", others=[IP]), issuer.issue("ours", ["edge01.example.com"])
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(there.pem, there.key)
    context.load_verify_locations(issuer.pem)
    context.verify_mode = ssl.CERT_OPTIONAL

    async def above(socket: Any) -> None:
        seen["parent"] = socket.transport.get_extra_info("peercert")
        seen["headers"] = dict(socket.request.headers)
        await socket.recv()

    with serving(Curious, context) as port:
        async with websockets.serve(
            above, "127.0.0.1", 0, subprotocols=[websockets.Subprotocol(SUBPROTOCOL)], ssl=context
        ) as server:
            url = f"wss://127.0.0.1:{next(iter(server.sockets)).getsockname()[1]}/ax"
            extra = parents((url, "edge"), authority=None)
            extra += f'ca_file = "{issuer.pem}"\ntls_cert = "{ours.pem}"\ntls_key = "{ours.key}"\n'
            servers = {"https": {"url": f"https://127.0.0.1:{port}/mcp", "headers": {"X-Key": "key-of-server"}}}
            entered = running_node(tmp_path / "node", servers, extra, {"SSL_CERT_FILE": str(issuer.pem)})
            node = await asyncio.to_thread(entered.__enter__)
            try:
                await asyncio.to_thread(wait_for, lambda: {"server", "parent"} <= seen.keys(), 20.0)
            finally:
                await asyncio.to_thread(entered.__exit__, None, None, None)
            assert node.config.exists()
    assert not seen["server"]
    assert ("DNS", "edge01.example.com") in seen["parent"]["subjectAltName"]
    assert "key-of-server" not in json.dumps(seen["headers"])


# 10.2


@pytest.mark.req("AX-10.2-1")
async def test_each_registrant_has_its_own_scope_and_gets_it_again(tmp_path: Path) -> None:
    extra = (
        '[ax]\nrequire_proof = "never"\n[degraded]\nenabled = false\n'
        '[[access]]\nwho = ["subserver:one", "subserver:two"]\nscope = "write"\n'
    )
    with running_node(tmp_path, {}, extra) as node:
        one = token(node, "subserver", "one", "--scope", "read")
        two = token(node, "subserver", "two", "--scope", "write")
        async with bare_subserver(node, "two", token=two, tools=WRITES) as second:
            async with bare_subserver(node, "one", token=one, tools=WRITES) as first:
                await ready(node, "one", tools=1)
                await ready(node, "two", tools=2)
                assert (first.session["auth_scope"], second.session["auth_scope"]) == ("read", "write")
                shown = {name for name in await listed(node) if name.startswith(("one.", "two."))}
                assert shown == {"one.read", "two.read", "two.write"}
                assert (await ask_for(node, "one__write"))["error"]["code"] == -32601
                assert "result" in (await ask_for(node, "two__write"))
                assert not [message for message in first.heard if message.get("method") == "tools/call"]
            # What the first may do is raised, for its next registration; the second does not notice.
            raised = token(node, "subserver", "one", "--scope", "write")
            async with bare_subserver(node, "one", token=raised, tools=WRITES) as again:
                await ready(node, "one", tools=2)
                assert again.session["auth_scope"] == "write"
                assert "result" in (await ask_for(node, "one__write"))
                assert (await second.beat())["status"] == "ok"
                assert (await asyncio.to_thread(node.link, "two"))["registration"]["auth_scope"] == "write"
            async with bare_subserver(node, "one", token=raised, tools=WRITES, auth_scope="read") as modest:
                await ready(node, "one", tools=1)
                assert modest.session["auth_scope"] == "read"
            assert (await asyncio.to_thread(node.link, "two"))["tools"] == 2
