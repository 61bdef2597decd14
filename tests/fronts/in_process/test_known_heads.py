"""Which heads of requests are remembered at the front?"""

import asyncio
import contextlib
import json
import os
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.node.garbage_node import STAMP, exchanged
from tests.support.reserved_ports import reserve_port

import interlock
from interlock.config.load import load
from interlock.fronts.http_protocol import KNOWN_HEADS_MAX
from interlock.net.http.messages import UNREAD
from interlock.node.node import Node
from interlock.operator.app import operator_app

DISCOVER = "mcp-protocol-version: 2026-07-28\r\nmcp-method: server/discover\r\n"


@contextlib.asynccontextmanager
async def front(folder: Path) -> AsyncIterator[tuple[Node, Any]]:
    port = reserve_port()
    config = folder / "interlock.toml"
    config.write_text(f'[node]\nlisten = "127.0.0.1:{port}"\noperator_listen = "127.0.0.1:0"\n')
    plan = load(config, os.environ, {"data": str(folder / "data")}).plan
    node = Node(plan, lambda operations, who, own: operator_app(operations, authenticate=who, own=own))
    await node.open()
    try:
        client = await asyncio.open_connection("127.0.0.1", port)
        yield node, client
        client[1].close()
    finally:
        await node.close()


def discover(number: int) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": number, "method": "server/discover", "params": {"_meta": STAMP}}


async def test_a_head_is_studied_when_it_comes_again_and_means_the_same_ever_after(tmp_path: Path) -> None:
    async with front(tmp_path) as (node, client):
        said = []
        studied = []
        for number in range(1, 5):
            answer, told = await exchanged(client, DISCOVER, discover(number))
            said.append((answer, told["id"] - number, told["result"]))
            studied.append(sum(known is not None for known in node.fronts.public.known_heads.values()))
        assert studied == [0, 1, 1, 1]
        assert said == [said[0]] * 4


async def test_heads_that_come_once_are_not_kept_and_their_table_is_bounded(tmp_path: Path) -> None:
    async with front(tmp_path) as (node, client):
        for number in range(KNOWN_HEADS_MAX + 10):
            await exchanged(client, f"{DISCOVER}x-number: {number}\r\n", discover(1))
        assert set(node.fronts.public.known_heads.values()) == {None}
        assert KNOWN_HEADS_MAX // 2 <= len(node.fronts.public.known_heads) <= KNOWN_HEADS_MAX
        assert any(b"x-number: %d" % (KNOWN_HEADS_MAX - 1) in key for key in node.fronts.public.known_heads)  # newest


async def test_requests_that_differ_in_length_and_trace_share_one_known_head(tmp_path: Path) -> None:
    async with front(tmp_path) as (node, client):
        for number in (1, 20, 300, 4000):
            answer, told = await exchanged(client, f"{DISCOVER}traceparent: 00-{number:032}-01\r\n", discover(number))
            assert answer.startswith("HTTP/1.1 200") and told["id"] == number
        assert [known is not None for known in node.fronts.public.known_heads.values()] == [True]


LINES = "POST /mcp HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n" + DISCOVER


def written(number: int, trace: str = "00-1") -> tuple[bytes, bytes]:
    body = json.dumps(discover(number)).encode()
    return f"{LINES}traceparent: {trace}\r\ncontent-length: {len(body)}\r\n\r\n".encode(), body


async def answered(client: Any, *pieces: bytes) -> tuple[int, Any]:
    reader, writer = client
    for piece in pieces:
        writer.write(piece)
        await asyncio.sleep(0.02)
    head = (await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 20)).decode()
    length = int(head.partition("content-length: ")[2].partition("\r\n")[0])
    return int(head.split()[1]), json.loads(await reader.readexactly(length))


async def make_known(client: Any) -> None:
    for number in (1, 2, 3):
        assert (await answered(client, b"".join(written(number))))[0] == 200


async def test_the_body_behind_a_known_head_may_come_in_any_pieces(tmp_path: Path) -> None:
    async with front(tmp_path) as (_, client):
        await make_known(client)
        head, body = written(4)
        for pieces in (
            [head, body],
            [head, body[:5], body[5:]],
            [head + body[:5], body[5:]],
            [head[:50], head[50:] + body],
        ):
            status, told = await answered(client, *pieces)
            assert (status, told["id"]) == (200, 4)
        status, told = await answered(client, head, body + b"".join(written(5)))
        assert (status, told["id"]) == (200, 4)
        status, told = await answered(client)
        assert (status, told["id"]) == (200, 5)


@pytest.mark.parametrize(
    "line",
    [
        "traceparent: 00-1\ntransfer-encoding: chunked",
        "traceparent: 00-1\rtransfer-encoding: chunked",
        "traceparent: 00-\x00",
        "traceparent: 00-1\r\ncontent-length: 3",
        "traceparent: 00-1\r\ntransfer-encoding: chunked",
    ],
)
async def test_a_known_head_hides_no_second_meaning(tmp_path: Path, line: str) -> None:
    async with front(tmp_path) as (_, client):
        await make_known(client)
        head, body = written(4)
        status, told = await answered(client, head.replace(b"traceparent: 00-1", line.encode()) + body)
        assert (status, told["error"]) == (400, "bad_request")


async def test_a_long_body_behind_a_known_head_is_refused(tmp_path: Path) -> None:
    async with front(tmp_path) as (node, client):
        await make_known(client)
        node.fronts.public.max_body_bytes = 10
        status, told = await answered(client, b"".join(written(4)))
        assert (status, told["error"]["data"]["reason"]) == (413, "message_too_large")


async def test_a_known_head_whose_body_never_comes_is_timed_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("interlock.fronts.http_protocol.REQUEST_S", 2.0)
    async with front(tmp_path) as (_, client):
        await make_known(client)
        status, told = await answered(client, written(4)[0])
        assert (status, told["error"]) == (408, "request_timeout")


def test_nothing_reads_a_header_that_a_known_head_leaves_out() -> None:
    """Where a name stands in the program's text as bytes, a head may be asked for it."""
    root = Path(interlock.__file__).parent
    for file in root.rglob("*.py"):
        if file.parts[-3:] != ("net", "http", "messages.py"):
            literals = {found.lower() for found in re.findall(rb'b"([A-Za-z0-9-]+)"', file.read_bytes())}
            assert not literals & UNREAD, file
