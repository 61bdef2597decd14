"""A node in a process of its own, over real sockets: prints what its calls left for the garbage collector alone."""

import asyncio
import gc
import json
import os
import socket
import sys
from pathlib import Path
from typing import Any

from tests.interaction.asking import command
from tests.servers.start import serving

from interlock.config.load import load
from interlock.runtime.node import Node
from interlock.surface.admin.app import operator_app

CALLS = 40
META = "io.modelcontextprotocol/"
STAMP = {META + "protocolVersion": "2026-07-28", META + "clientCapabilities": {}}


def free_ports() -> tuple[int, int]:
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as other:
        return one.getsockname()[1], other.getsockname()[1]


async def post(client: tuple[asyncio.StreamReader, asyncio.StreamWriter], head: str, message: Any) -> str:
    reader, writer = client
    body = json.dumps(message).encode()
    lines = f"POST /mcp HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n{head}"
    writer.write(f"{lines}content-length: {len(body)}\r\n\r\n".encode() + body)
    answer = (await reader.readuntil(b"\r\n\r\n")).decode()
    length = int(answer.partition("content-length: ")[2].partition("\r\n")[0])
    said = json.loads(await reader.readexactly(length)) if length else {"result": None}
    assert "result" in said, said
    return answer


def call(number: int, **meta: Any) -> dict[str, Any]:
    params = {"name": "web__tally", "arguments": {}, **meta}
    return {"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": params}


async def modern(client: Any) -> None:
    head = "mcp-protocol-version: 2026-07-28\r\nmcp-method: tools/call\r\nmcp-name: web__tally\r\n"
    for number in range(CALLS):
        await post(client, head, call(number, _meta=STAMP))


async def legacy(client: Any) -> None:
    params = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
    answer = await post(client, "", {"jsonrpc": "2.0", "id": "i", "method": "initialize", "params": params})
    head = f"mcp-session-id: {answer.partition('mcp-session-id: ')[2].partition(chr(13))[0]}\r\n"
    for number in range(CALLS):
        await post(client, head, call(number))


async def main(folder: Path, era: str) -> None:
    calls = modern if era == "modern" else legacy
    with serving(command(era)) as url:
        config = folder / "interlock.toml"
        port, operators = free_ports()
        config.write_text(
            f'[node]\nlisten = "127.0.0.1:{port}"\noperator_listen = "127.0.0.1:{operators}"\n'
            f'[servers.web]\nurl = "{url}"\n'
        )
        node = Node(
            load(config, os.environ, {"data": str(folder / "data")}).plan,
            lambda operations, who: operator_app(operations, authenticate=who),
        )
        await node.start()
        try:
            await node.settle(15.0)
            client = await asyncio.open_connection("127.0.0.1", port)
            await calls(client)
            gc.collect()
            gc.disable()
            gc.set_debug(gc.DEBUG_SAVEALL)
            await calls(client)
            gc.collect()
            print(
                json.dumps([type(one).__name__ for one in gc.garbage if type(one).__module__.startswith("interlock.")])
            )
            client[1].close()
        finally:
            await node.stop()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2]))
