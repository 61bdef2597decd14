"""What a large message leaves to others: a turn between reading it and sending it on, and no copy of what is large."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from msgspec import Raw
from tests.servers.start import raw, serving
from tests.support.local_node import running
from tests.support.node_with_clock import META, SECONDS

from interlock.fronts.exchange import Exchange, Head
from interlock.fronts.public import TURN_BYTES, PublicEndpoint
from interlock.links.connected_link import ServerLink
from interlock.net.http.connection import HttpConnection
from interlock.node.node import Node
from interlock.wire.jsonrpc.codec import LARGE_VALUE_BYTES, LargeParams, call_pieces, encode_call, find_plain_request

STAMP = {META + "protocolVersion": "2026-07-28", META + "clientCapabilities": {}}
HEADERS = {
    "host": "127.0.0.1",
    "content-type": "application/json",
    "accept": "application/json, text/event-stream",
    "mcp-protocol-version": "2026-07-28",
    "mcp-method": "tools/call",
    "mcp-name": "web__echo",
}


class Connection:
    """A client on this machine, and what is written to it."""

    is_loopback, is_proxy, peer = True, False, None

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.transport = self
        self.answered = self.loop.create_future()
        self.written = b""

    def write(self, data: bytes) -> None:
        self.written += data

    def writelines(self, pieces: tuple[bytes, ...]) -> None:
        self.written += b"".join(pieces)

    def wrote(self) -> None: ...

    def on_finished(self, exchange: Exchange) -> None:
        self.answered.set_result(json.loads(self.written.partition(b"\r\n\r\n")[2]))


def post(text: str) -> Exchange:
    params = {"name": "web__echo", "arguments": {"text": text}, "_meta": STAMP}
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}).encode()
    head = Head(b"POST", b"/mcp", [(name.encode(), value.encode()) for name, value in HEADERS.items()], True, True)
    return Exchange(Connection(), head, body, True)


@pytest_asyncio.fixture
async def node(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Node]:
    with serving(raw("echo", "--era", "modern")) as url:
        async with running(tmp_path_factory.mktemp("turns"), f'[servers.web]\nurl = "{url}"\n') as (node, _):
            yield node


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How long the arguments are of what links were given to send."""
    sizes: list[int] = []
    send = ServerLink.send

    def note(link: ServerLink, admitted: Any) -> None:
        sizes.append(len(admitted.command.params["arguments"]))
        send(link, admitted)

    monkeypatch.setattr(ServerLink, "send", note)
    return sizes


async def test_a_small_call_has_its_turn_before_a_large_call_that_was_read_is_sent_on(
    node: Node, sent: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    public: PublicEndpoint = node.fronts.public
    large, small, gone = post("x" * TURN_BYTES), post("x"), post("y" * TURN_BYTES)
    at_once = post("x" * (TURN_BYTES - 1000))
    written: list[tuple[Any, ...]] = []
    write = HttpConnection.send
    monkeypatch.setattr(HttpConnection, "send", lambda *given: written.append(given[3:]) or write(*given))
    for exchange in (large, gone):
        public.serve(exchange)
    assert sent == []
    public.serve(small)
    assert len(sent) == 1
    public.serve(at_once)  # what does not take long to read is sent in the same turn
    assert len(sent) == 2 and sent[0] < 100 < sent[1] < TURN_BYTES
    gone.ended = True  # its client left in between
    await asyncio.sleep(0)
    assert len(sent) == 3 and sent[2] > TURN_BYTES
    async with asyncio.timeout(SECONDS):
        for exchange in (large, small, at_once):
            answer = await exchange.protocol.answered
            text = json.loads(exchange.body)["params"]["arguments"]["text"]
            assert answer["result"]["structuredContent"] == {"text": text}
    views = [part for (body,) in written if isinstance(body, tuple) for part in body if isinstance(part, memoryview)]
    assert sorted(map(len, views)) == sorted(sent[1:])  # written from where they were read


def large_call(arguments: bytes, rest: bytes = b"") -> tuple[bytes, bytes]:
    """A call as it is encoded in one, and in pieces."""
    data = b'{"jsonrpc":"2.0","id":5,"method":"tools/call","params":{"name":"a\\n","arguments":%b%b}}'
    plain = find_plain_request(data % (arguments, rest))
    assert plain is not None and type(plain[2]) is LargeParams
    params = plain[2]
    params["_meta"] = {"x": Raw(b"1.0")}
    pieces = call_pieces(7, "tools/call", params)
    return encode_call(7, "tools/call", params), b"".join(pieces)


@pytest.mark.parametrize(
    "rest", [b"", b',"inputResponses":{"k":"%b"}' % (b"z" * LARGE_VALUE_BYTES), b',"x": [1 , 2.0]']
)
def test_pieces_are_the_bytes_of_the_message(rest: bytes) -> None:
    arguments = b'{"a" : 1e5,"t":"%b"}' % (b"\\u00e9x" * 50_000)
    whole, joined = large_call(arguments, rest)
    assert joined == whole
    assert arguments in joined


def test_a_message_that_is_not_large_is_sent_whole() -> None:
    plain = find_plain_request(b'{"jsonrpc":"2.0","id":5,"method":"tools/call","params":{"name":"a"}}')
    assert plain is not None and type(plain[2]) is dict
