"""A client of the first line of the Python SDK, run by its own interpreter; JSON on stdout.

python deep_client_v1.py TOOLS http URL
python deep_client_v1.py TOOLS stdio COMMAND...
"""

import asyncio
import json
import os
import sys

from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamablehttp_client

from mcp import ClientSession, StdioServerParameters


async def main(tools: str, pipe: str, *where: str) -> None:
    if pipe == "stdio":
        command = StdioServerParameters(command=where[0], args=list(where[1:]), env=dict(os.environ))
        connected = stdio_client(command)
    else:
        connected = streamablehttp_client(where[0])
    async with connected as streams, ClientSession(streams[0], streams[1]) as session:
        await session.initialize()
        listed = [tool.name for tool in (await session.list_tools()).tools]
        answers = {}
        for name in tools.split(","):
            answers[name] = (await session.call_tool(name, {"text": "through v1"})).structuredContent
        print(json.dumps({"listed": listed, "answers": answers}))


asyncio.run(main(*sys.argv[1:]))
