"""A server on the `mcp` SDK as most are written: of both eras, with a tool that asks in mid-call, as the older has it.

python both_eras.py --stdio
python both_eras.py --http PORT      the first line on stdout is the URL
"""

import argparse
import asyncio
import os
import socket
import warnings

import uvicorn
from mcp.server.mcpserver import Context, MCPServer
from mcp.shared.exceptions import MCPDeprecationWarning
from pydantic import BaseModel

server = MCPServer("both eras")


class Colour(BaseModel):
    colour: str


@server.tool()
async def ask(ctx: Context) -> str:
    """Asks its client for a colour."""
    try:
        answer = await ctx.elicit(message="Which colour?", schema=Colour)
    except Exception as error:
        return f"it cannot ask: {error}"
    return f"{answer.action}: {answer.data.colour if answer.action == 'accept' else ''}"


@server.tool()
def process() -> int:
    """Says which process it is."""
    return os.getpid()


async def serve_http(port: int) -> None:
    listener = socket.create_server(("127.0.0.1", port))
    print(f"http://127.0.0.1:{listener.getsockname()[1]}/mcp", flush=True)
    config = uvicorn.Config(server.streamable_http_app(), log_level="error", timeout_graceful_shutdown=1)
    await uvicorn.Server(config).serve(sockets=[listener])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    pipe = parser.add_mutually_exclusive_group(required=True)
    pipe.add_argument("--stdio", action="store_true")
    pipe.add_argument("--http", type=int, metavar="PORT", help="0: any free port")
    options = parser.parse_args()
    warnings.simplefilter("ignore", MCPDeprecationWarning)
    if options.stdio:
        server.run("stdio")
    else:
        asyncio.run(serve_http(options.http))
