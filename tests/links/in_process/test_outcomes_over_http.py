"""What is a client told of a call that an HTTP status answered, and does it get back what the call was charged?"""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.support.node_with_clock import SECONDS, AheadClock, ClockedNode

from interlock.config.load import load
from interlock.core.calls.caller import Principal
from interlock.node.node import Node

DISCOVERED = (
    b'{"jsonrpc":"2.0","id":%b,"result":{"resultType":"complete","supportedVersions":["2026-07-28"],'
    b'"capabilities":{"tools":{}},"serverInfo":{"name":"s","version":"1"}}}'
)
LISTED = (
    b'{"jsonrpc":"2.0","id":%b,"result":{"resultType":"complete","ttlMs":0,"cacheScope":"private","tools":'
    b'[{"name":"write","inputSchema":{"type":"object"},"annotations":{"destructiveHint":false}}]}}'
)
BUDGET = '[[access]]\nwho = ["*"]\nscope = "write"\nbudget = { max_mutable_calls_per_session = 1 }\n'


@contextlib.asynccontextmanager
async def served(status: int) -> AsyncIterator[tuple[int, list[bytes]]]:
    """A 2026-07-28 server that does what it is called for, and then answers with this status."""
    done: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).lower()
                length = int(head.partition(b"content-length:")[2].split(b"\r\n")[0] or 0)
                body = await reader.readexactly(length)
                id = body.partition(b'"id":')[2].split(b",")[0].strip(b"} ")
                if b'"tools/call"' in body:
                    done.append(body)
                    writer.write(b"HTTP/1.1 %d No\r\ncontent-length: 0\r\n\r\n" % status)
                    continue
                answer = (DISCOVERED if b'"server/discover"' in body else LISTED) % id
                said = b"content-type: application/json\r\ncontent-length: %d" % len(answer)
                writer.write(b"HTTP/1.1 200 OK\r\n%b\r\n\r\n%b" % (said, answer))
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1], done
    finally:
        server.close()


@pytest.mark.req("AX-11.4-4")
@pytest.mark.parametrize(
    ("status", "outcome", "calls"), [(500, "unknown", 1), (504, "unknown", 1), (400, "not_sent", 2)]
)
async def test_a_call_that_may_have_had_an_effect_is_not_reported_as_unsent_and_stays_charged(
    tmp_path: Path, status: int, outcome: str, calls: int
) -> None:
    async with served(status) as (port, done):
        config = tmp_path / "interlock.toml"
        config.write_text(f'{BUDGET}[servers.plant]\nurl = "http://127.0.0.1:{port}/mcp"\n')
        clock = AheadClock()
        plan = load(config, os.environ, {"data": str(tmp_path / "data")}).plan
        node = Node(plan, lambda operations, authenticate: None, clock, listen=False)
        await node.open()
        try:
            await node.readiness.settle(SECONDS)
            here = ClockedNode(node, clock)
            here.principals["client:agent"] = Principal("client:agent", budget=plan.access[0].budget)
            error = await here.call("plant.write", who="client:agent").error()
            assert (error["message"], error["data"]["outcome"]) == ("tool_degraded", outcome)
            await here.call("plant.write", who="client:agent").error()
            assert len(done) == calls
        finally:
            await node.close()
