"""A node in a process of its own, over real sockets: prints what its clients left for the garbage collector alone.

    python -m tests.node.garbage_node FOLDER KIND [CALLS BYTES]

With CALLS and BYTES: how many bytes of memory that many calls with so long arguments leave behind, without a collector.
"""

import asyncio
import contextlib
import gc
import json
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

from tests.ax.tree import ACCESS, parents
from tests.gate.held_calls import ADA, MARK, anchor, proof
from tests.servers.start import serving
from tests.support.asking_server import command
from tests.support.reserved_ports import reserve_port

from interlock.catalog.catalog import EVERYTHING
from interlock.config.load import load
from interlock.node.node import Node
from interlock.operator.app import operator_app

CALLS = 40
WARMING = 20  # calls before memory is measured
META = "io.modelcontextprotocol/"
ACCEPT = "accept: application/json, text/event-stream\r\n"
STAMP = {META + "protocolVersion": "2026-07-28", META + "clientCapabilities": {}}


class Size:
    """How much is called, and where: set once, for the whole process."""

    calls = CALLS
    padding = ""
    server = "web"  # what the names of its tools begin with


def resident() -> int:
    """Bytes of memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


async def post(client: tuple[asyncio.StreamReader, asyncio.StreamWriter], head: str, message: Any) -> str:
    answer, _ = await exchanged(client, head, message)
    return answer


async def said(client: Any, head: str, message: Any) -> Any:
    return (await exchanged(client, head, message))[1]["result"]


async def exchanged(client: Any, head: str, message: Any, *, fails: bool = False) -> tuple[str, Any]:
    reader, writer = client
    body = json.dumps(message).encode()
    lines = f"POST /mcp HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n{head}"
    writer.write(f"{lines}content-length: {len(body)}\r\n\r\n".encode() + body)
    answer = (await reader.readuntil(b"\r\n\r\n")).decode()
    length = int(answer.partition("content-length: ")[2].partition("\r\n")[0])
    told = json.loads(await reader.readexactly(length)) if length else {"result": None}
    assert fails or "result" in told, told
    return answer, told


def call(number: int, **more: Any) -> dict[str, Any]:
    params = {"name": "web__tally", "arguments": {}, **more}
    params["arguments"] = {**params["arguments"], "padding": Size.padding}
    return {"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": params}


async def modern(client: Any) -> None:
    head = "mcp-protocol-version: 2026-07-28\r\nmcp-method: tools/call\r\nmcp-name: web__tally\r\n"
    for number in range(Size.calls):
        await post(client, head, call(number, _meta=STAMP))


async def legacy(client: Any) -> None:
    params = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
    answer = await post(client, "", {"jsonrpc": "2.0", "id": "i", "method": "initialize", "params": params})
    head = f"mcp-session-id: {answer.partition('mcp-session-id: ')[2].partition(chr(13))[0]}\r\n"
    for number in range(Size.calls):
        await post(client, head, call(number))


async def streams(client: Any) -> None:
    """Sessions, each with a stream of its own, that end in words; the stream ends with its connection."""
    params = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
    for _ in range(Size.calls):
        answer = await post(client, "", {"jsonrpc": "2.0", "id": "i", "method": "initialize", "params": params})
        session = f"mcp-session-id: {answer.partition('mcp-session-id: ')[2].partition(chr(13))[0]}\r\n"
        stream = await opened(client, f"GET /mcp HTTP/1.1\r\nhost: localhost\r\n{ACCEPT}{session}\r\n".encode())
        client[1].write(f"DELETE /mcp HTTP/1.1\r\nhost: localhost\r\n{session}\r\n".encode())
        assert (await client[0].readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 204")
        stream.close()


async def listeners(client: Any) -> None:
    head = f"mcp-protocol-version: 2026-07-28\r\nmcp-method: subscriptions/listen\r\n{ACCEPT}"
    for number in range(Size.calls):
        params = {"notifications": {"toolsListChanged": True}, "_meta": STAMP}
        message = {"jsonrpc": "2.0", "id": number, "method": "subscriptions/listen", "params": params}
        body = json.dumps(message).encode()
        lines = f"POST /mcp HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n{head}"
        (await opened(client, f"{lines}content-length: {len(body)}\r\n\r\n".encode() + body)).close()


async def opened(client: Any, request: bytes) -> asyncio.StreamWriter:
    """Another connection, with a stream on it."""
    reader, writer = await asyncio.open_connection(*client[1].get_extra_info("peername"))
    writer.write(request)
    assert b"text/event-stream" in await reader.readuntil(b"\r\n\r\n")
    return writer


async def parked(client: Any) -> None:
    """Calls that a legacy server asks something of, taken up again."""
    head = "mcp-protocol-version: 2026-07-28\r\nmcp-method: tools/call\r\nmcp-name: web__interview\r\n"
    form = {"message": "Which?", "requestedSchema": {"type": "object", "properties": {}}}
    asked = {"label": "x", "steps": [{"ask": {"q": {"method": "elicitation/create", "params": form}}}]}
    able = {**STAMP, META + "clientCapabilities": {"elicitation": {"form": {}}}}
    for number in range(Size.calls):
        told = await said(client, head, call(number, name="web__interview", arguments=asked, _meta=able))
        answers = {key: {"action": "accept", "content": {}} for key in told["inputRequests"]}
        more = {"requestState": told["requestState"], "inputResponses": answers}
        told = await said(client, head, call(number, name="web__interview", arguments=asked, _meta=able, **more))
        assert told["resultType"] == "complete"


async def held(client: Any) -> None:
    """Calls that wait for a person, each answered so, then confirmed and made."""
    head = "mcp-protocol-version: 2026-07-28\r\nmcp-method: {0}\r\n{1}"
    for number in range(Size.calls):
        named = head.format("tools/call", f"mcp-name: {Size.server}__point\r\n")
        made = call(number, name=f"{Size.server}__point", arguments={"name": f"n{number}"}, _meta=STAMP)
        told = await said(client, named, made)
        demand = told["_meta"][MARK]
        params = {"confirmation_id": demand["confirmation_id"], "proof": proof(demand), "_meta": STAMP}
        confirm = {"jsonrpc": "2.0", "id": number, "method": "mcpax/confirm", "params": params}
        told = await said(client, head.format("mcpax/confirm", ""), confirm)
        assert told["content"][0]["type"] == "resource_link", told


async def repeated(client: Any) -> None:
    """Calls that wait for a person, are confirmed by another program, and made again."""
    head = "mcp-protocol-version: 2026-07-28\r\nmcp-method: {0}\r\n{1}"
    for number in range(Size.calls):
        named = head.format("tools/call", f"mcp-name: {Size.server}__point\r\n")
        made = call(number, name=f"{Size.server}__point", arguments={"name": f"n{number}"}, _meta=STAMP)
        demand = (await said(client, named, made))["_meta"][MARK]
        more = {"dispatch": False, "_meta": STAMP}
        params = {"confirmation_id": demand["confirmation_id"], "proof": proof(demand), **more}
        confirm = {"jsonrpc": "2.0", "id": number, "method": "mcpax/confirm", "params": params}
        assert (await said(client, head.format("mcpax/confirm", ""), confirm))["status"] == "confirmed"
        assert "isError" not in await said(client, named, made)


async def waiting(client: Any) -> None:
    """Calls that wait for a person, or are too many to wait."""
    head = "mcp-protocol-version: 2026-07-28\r\nmcp-method: tools/call\r\nmcp-name: web__point\r\n"
    for number in range(Size.calls):
        made = call(number, name="web__point", arguments={"name": f"w{number}"}, _meta=STAMP)
        _, told = await exchanged(client, head, made, fails=True)
        assert told.get("result", {}).get("isError") or told["error"]["message"] == "budget_exceeded", told


async def refused(client: Any) -> None:
    head = "mcp-protocol-version: 2026-07-28\r\nmcp-method: tools/call\r\nmcp-name: web__nothing\r\n"
    for number in range(Size.calls):
        _, told = await exchanged(client, head, call(number, name="web__nothing", _meta=STAMP), fails=True)
        assert "error" in told


async def hung_up(client: Any) -> None:
    """Calls whose clients close the connection while the server works."""
    head = "mcp-protocol-version: 2026-07-28\r\nmcp-method: tools/call\r\nmcp-name: web__wait\r\n"
    for number in range(Size.calls):
        body = json.dumps(call(number, name="web__wait", _meta=STAMP)).encode()
        _, writer = await asyncio.open_connection(*client[1].get_extra_info("peername"))
        lines = f"POST /mcp HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n{head}"
        writer.write(f"{lines}content-length: {len(body)}\r\n\r\n".encode() + body)
        await writer.drain()
        await asyncio.sleep(0.01)
        writer.close()


BELOW = ("held below", "repeated below")  # by a node that is a subserver of the one that is called
CLIENTS = {
    "held below": ("modern", held),
    "repeated below": ("legacy", repeated),
    "repeated": ("modern", repeated),
    "repeated at a legacy server": ("legacy", repeated),
    "waiting": ("modern", waiting),
    "refused": ("modern", refused),
    "hung up": ("modern", hung_up),
    "hung up at a legacy server": ("legacy", hung_up),
    "across eras": ("legacy", modern),
    "held": ("modern", held),
    "held by a legacy server": ("legacy", held),
    "legacy": ("legacy", legacy),
    "modern": ("modern", modern),
    "streams": ("legacy", streams),
    "listeners": ("modern", listeners),
    "parked": ("legacy", parked),
}


Calls = Callable[[Any], Awaitable[None]]


async def alone(node: Node) -> None:
    """Until the node has noticed who left: one connection is ours and stays."""
    async with asyncio.timeout(15.0):
        while len(node.fronts.public.connections.open) > 1:  # noqa: ASYNC110  (what is waited for is the node's own state)
            await asyncio.sleep(0.01)


async def leave(node: Node, calls: Calls, client: Any) -> list[str]:
    """The names of what is left for the collector."""
    await calls(client)
    await alone(node)
    gc.collect()
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    await calls(client)
    await alone(node)
    gc.collect()
    return [type(one).__name__ for one in gc.garbage if type(one).__module__.startswith("interlock.")]


async def weigh(node: Node, calls: Calls, client: Any, number: int) -> int:
    """The bytes that so many calls leave."""
    gc.disable()
    Size.calls = WARMING
    await calls(client)
    await settle(node)
    before = resident()
    Size.calls = number
    await calls(client)
    await settle(node)
    return resident() - before


async def settle(node: Node) -> None:
    await alone(node)
    await node.stores.recorder.flush()


async def main(folder: Path, kind: str, number: int | None = None, size: int = 0) -> None:
    era, calls = CLIENTS[kind]
    Size.padding = "x" * size
    port, parent = reserve_port(), reserve_port()
    gated = f'[gate]\nmode = "open"\nalso = ["web.point"]\n[approvals]\nmax_pending = 10\n{anchor("ada", ADA, "*")}'
    async with contextlib.AsyncExitStack() as stack:
        url = stack.enter_context(serving(command(era)))
        text = f'{gated}[servers.web]\nurl = "{url}"\n'
        if kind in BELOW:
            Size.server = "low__web"
            above = f'[gate]\nmode = "open"\nshow_holder = true\n{ACCESS}'
            root = await stack.enter_async_context(opened_node(folder / "root", above, parent))
            text += ACCESS + parents((f"ws://127.0.0.1:{parent}/ax", "low"))
        node = await stack.enter_async_context(opened_node(folder / "low", text, port))
        if kind in BELOW:
            port, node = parent, root
            async with asyncio.timeout(15.0):
                while not any(b"point" in name for name in node.calls.dispatch.view(EVERYTHING).tools):  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
        client = await asyncio.open_connection("127.0.0.1", port)
        found = leave(node, calls, client) if number is None else weigh(node, calls, client, number)
        print(json.dumps(await found))
        client[1].close()


@contextlib.asynccontextmanager
async def opened_node(folder: Path, text: str, port: int) -> AsyncIterator[Node]:
    folder.mkdir()
    config = folder / "interlock.toml"
    listens = f'[node]\nlisten = "127.0.0.1:{port}"\noperator_listen = "127.0.0.1:0"\n'
    config.write_text(listens + text)
    plan = load(config, os.environ, {"data": str(folder / "data")}).plan
    node = Node(plan, lambda operations, who, own: operator_app(operations, authenticate=who, own=own))
    await node.open()
    try:
        await node.readiness.settle(15.0)
        yield node
    finally:
        await node.close()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2], *map(int, sys.argv[3:])))
