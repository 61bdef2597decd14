"""A server on the `mcp` SDK that refuses calls and reads with the error that the request names.

python refusing.py --http PORT      the first line on stdout is the URL
"""

import argparse
import asyncio
import socket
from typing import Any

import uvicorn
from mcp.server.lowlevel import Server

from mcp import MCPError, types


async def list_tools(ctx: Any, params: Any) -> types.ListToolsResult:
    return types.ListToolsResult(tools=[types.Tool(name="refuse", input_schema={"type": "object"})])


async def call_tool(ctx: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
    raise MCPError((params.arguments or {})["code"], "refused", {"own": [1]})


async def list_resources(ctx: Any, params: Any) -> types.ListResourcesResult:
    return types.ListResourcesResult(resources=[types.Resource(name="gone", uri="refusing://gone")])


async def read_resource(ctx: Any, params: types.ReadResourceRequestParams) -> types.ReadResourceResult:
    raise MCPError(-32002, "Resource not found", {"uri": params.uri})


async def serve_http(port: int) -> None:
    server = Server(
        "refusing",
        version="1",
        on_list_tools=list_tools,
        on_call_tool=call_tool,
        on_list_resources=list_resources,
        on_read_resource=read_resource,
    )
    listener = socket.create_server(("127.0.0.1", port))
    print(f"http://127.0.0.1:{listener.getsockname()[1]}/mcp", flush=True)
    config = uvicorn.Config(server.streamable_http_app(), log_level="error", timeout_graceful_shutdown=1)
    await uvicorn.Server(config).serve(sockets=[listener])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--http", type=int, metavar="PORT", required=True, help="0: any free port")
    asyncio.run(serve_http(parser.parse_args().http))
