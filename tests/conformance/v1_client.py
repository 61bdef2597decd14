"""A client of the first SDK line, run by its own interpreter: python v1_client.py http|sse URL FILE, JSON on stdout."""

import asyncio
import json
import sys

from mcp import ClientSession
from mcp.client.sse import sse_client
from mcp.client.streamable_http import streamablehttp_client


async def main(pipe: str, url: str, path: str) -> None:
    connect = streamablehttp_client if pipe == "http" else sse_client
    async with connect(url) as streams, ClientSession(streams[0], streams[1]) as session:
        hello = await session.initialize()
        tools = await session.list_tools()
        read = await session.call_tool("files__read_text_file", {"path": path})
        now = await session.call_tool("time__get_current_time", {"timezone": "UTC"})
        found = {
            "version": hello.protocolVersion,
            "tools": [tool.name for tool in tools.tools],
            "read": read.content[0].text,
            "now": now.content[0].text,
        }
        print(json.dumps(found))


asyncio.run(main(*sys.argv[1:]))
