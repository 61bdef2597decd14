"""A client of the first SDK line, run by its own interpreter; JSON on stdout.

python v1_client.py FILE http|sse URL
python v1_client.py FILE stdio COMMAND...
"""

import asyncio
import json
import os
import sys

from mcp.client.sse import sse_client
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamablehttp_client

from mcp import ClientSession, StdioServerParameters, types


async def elicit(context, params):
    return types.ElicitResult(action="accept", content={"name": "Ada of the tests"})


async def main(path: str, pipe: str, *where: str) -> None:
    if pipe == "stdio":
        command = StdioServerParameters(command=where[0], args=list(where[1:]), env=dict(os.environ))
        connected = stdio_client(command)
    else:
        connected = (streamablehttp_client if pipe == "http" else sse_client)(where[0])
    async with (
        connected as streams,
        ClientSession(streams[0], streams[1], elicitation_callback=elicit) as session,
    ):
        hello = await session.initialize()
        tools = await session.list_tools()
        read = await session.call_tool("files__read_text_file", {"path": path})
        now = await session.call_tool("time__get_current_time", {"timezone": "UTC"})
        asked = await session.call_tool("everything__trigger-elicitation-request", {})
        found = {
            "version": hello.protocolVersion,
            "tools": [tool.name for tool in tools.tools],
            "read": read.content[0].text,
            "now": now.content[0].text,
            "asked": " ".join(block.text for block in asked.content),
        }
        print(json.dumps(found))


asyncio.run(main(*sys.argv[1:]))
