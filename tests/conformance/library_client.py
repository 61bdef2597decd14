"""A client of somebody's library: `library_client.py LIBRARY URL`, run by an interpreter that has it.

It lists, calls, hears progress, answers a question and is refused, as far as its library can; JSON goes out.
"""

import asyncio
import json
import sys
from typing import Any

ECHO = ("everything__echo", {"message": "through"})
STEPS = ("everything__trigger-long-running-operation", {"duration": 0.3, "steps": 3})
QUESTION = ("everything__trigger-elicitation-request", {})
REFUSED = ("memory__delete_entities", {"entityNames": ["Ada"]})
ANSWER = {"name": "Ada of the tests"}

Found = dict[str, Any]


def text(result: Any) -> str:
    """Of a result of the SDK."""
    return " ".join(block.text for block in result.content if block.type == "text")


async def sdk_v1(url: str) -> Found:
    from mcp.client.streamable_http import streamablehttp_client

    from mcp import ClientSession, types

    heard = []

    async def progress(done: float, total: float | None, message: str | None) -> None:
        heard.append([done, total])

    async def elicit(context: Any, params: Any) -> types.ElicitResult:
        return types.ElicitResult(action="accept", content=ANSWER)

    async with (
        streamablehttp_client(url) as (read, write, _),
        ClientSession(read, write, elicitation_callback=elicit) as session,
    ):
        await session.initialize()
        return {
            "tools": [tool.name for tool in (await session.list_tools()).tools],
            "echo": text(await session.call_tool(*ECHO)),
            "steps": text(await session.call_tool(*STEPS, progress_callback=progress)),
            "heard": heard,
            "question": text(await session.call_tool(*QUESTION)),
            "refused": text(await session.call_tool(*REFUSED)),
        }


async def sdk_v2(url: str, mode: str) -> Found:
    from mcp import Client, types

    heard = []

    async def progress(done: float, total: float | None, message: str | None) -> None:
        heard.append([done, total])

    async def elicit(context: Any, params: Any) -> types.ElicitResult:
        return types.ElicitResult(action="accept", content=ANSWER)

    async with Client(url, mode=mode, elicitation_callback=elicit) as client:
        found = {
            "tools": [tool.name for tool in (await client.list_tools()).tools],
            "echo": text(await client.call_tool(*ECHO)),
            "steps": text(await client.call_tool(*STEPS, progress_callback=progress)),
            "heard": heard,
            "question": text(await client.call_tool(*QUESTION)),
        }
    async with Client(url, mode=mode) as client:  # who can be asked is asked instead of refused
        return found | {"refused": text(await client.call_tool(*REFUSED))}


async def fastmcp(url: str) -> Found:
    from fastmcp import Client

    heard = []

    async def progress(done: float, total: float | None, message: str | None) -> None:
        heard.append([done, total])

    async def elicit(message: str, kind: Any, params: Any, context: Any) -> Any:
        return ANSWER

    async with Client(url, elicitation_handler=elicit) as client:
        found = {
            "tools": [tool.name for tool in await client.list_tools()],
            "echo": text(await client.call_tool(*ECHO)),
            "steps": text(await client.call_tool(*STEPS, progress_handler=progress)),
            "heard": heard,
            "question": text(await client.call_tool(*QUESTION)),
        }
    async with Client(url) as client:
        return found | {"refused": text(await client.call_tool(*REFUSED, raise_on_error=False))}


async def pydantic_ai(url: str) -> Found:
    from pydantic_ai import ModelRetry
    from pydantic_ai.mcp import MCPToolset

    heard = []

    async def progress(done: float, total: float | None, message: str | None) -> None:
        heard.append([done, total])

    async def elicit(message: str, kind: Any, params: Any, context: Any) -> Any:
        return ANSWER

    async with MCPToolset(url, elicitation_handler=elicit, progress_handler=progress) as tools:
        found = {
            "tools": [tool.name for tool in await tools.list_tools()],
            "echo": await tools.direct_call_tool(*ECHO),
            "steps": await tools.direct_call_tool(*STEPS),
            "heard": heard,
            "question": json.dumps(await tools.direct_call_tool(*QUESTION)),
        }
    async with MCPToolset(url) as tools:
        try:
            refused = str(await tools.direct_call_tool(*REFUSED))
        except ModelRetry as retry:  # what the model is told
            refused = retry.message
    return found | {"refused": refused}


async def openai_agents(url: str) -> Found:
    from agents.mcp import MCPServerStreamableHttp

    async with MCPServerStreamableHttp({"url": url}, client_session_timeout_seconds=30) as server:
        return {
            "tools": [tool.name for tool in await server.list_tools()],
            "echo": text(await server.call_tool(*ECHO)),
            "steps": text(await server.call_tool(*STEPS)),
            "refused": text(await server.call_tool(*REFUSED)),
        }


async def langchain(url: str) -> Found:
    from langchain_mcp_adapters.callbacks import Callbacks
    from langchain_mcp_adapters.client import MultiServerMCPClient
    from mcp.types import ElicitResult

    heard = []

    async def progress(done: float, total: float | None, message: str | None, context: Any) -> None:
        heard.append([done, total])

    async def elicit(request: Any, params: Any, context: Any) -> ElicitResult:
        return ElicitResult(action="accept", content=ANSWER)

    connections: Any = {"interlock": {"transport": "streamable_http", "url": url}}
    client = MultiServerMCPClient(connections, callbacks=Callbacks(on_progress=progress, on_elicitation=elicit))
    tools = {tool.name: tool for tool in await client.get_tools()}

    async def call(name: str, arguments: dict[str, Any]) -> str:
        return json.dumps(await tools[name].ainvoke(arguments))

    return {
        "tools": list(tools),
        "echo": await call(*ECHO),
        "steps": await call(*STEPS),
        "heard": heard,
        "question": await call(*QUESTION),
        "refused": await call(*REFUSED),
    }


async def mcp_use(url: str) -> Found:
    from mcp.types import ElicitResult
    from mcp_use import MCPClient

    async def elicit(context: Any, params: Any) -> ElicitResult:
        return ElicitResult(action="accept", content=ANSWER)

    client = MCPClient({"mcpServers": {"interlock": {"url": url}}}, elicitation_callback=elicit)
    session = await client.create_session("interlock")
    try:
        return {
            "tools": [tool.name for tool in await session.list_tools()],
            "echo": text(await session.call_tool(*ECHO)),
            "steps": text(await session.call_tool(*STEPS)),
            "question": text(await session.call_tool(*QUESTION)),
            "refused": text(await session.call_tool(*REFUSED)),
        }
    finally:
        await client.close_all_sessions()


LIBRARIES: Any = {
    "sdk-v1": sdk_v1,
    "sdk-v2-legacy": lambda url: sdk_v2(url, "legacy"),
    "sdk-v2-modern": lambda url: sdk_v2(url, "2026-07-28"),
    "fastmcp": fastmcp,
    "pydantic-ai": pydantic_ai,
    "openai-agents": openai_agents,
    "langchain": langchain,
    "mcp-use": mcp_use,
}

if __name__ == "__main__":
    library, url = sys.argv[1:]
    print(json.dumps(asyncio.run(LIBRARIES[library](url))))
