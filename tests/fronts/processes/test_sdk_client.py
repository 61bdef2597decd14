"""Does a client that somebody else wrote, the one of the `mcp` SDK, find everything it expects on each front?"""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from typing import Any

import pytest
from mcp.client.sse import sse_client
from mcp.client.stdio import stdio_client
from tests.support.fleet import (
    LEGACY_LINKS,
    LINKS,
    MODERN_LINKS,
    Fleet,
    bridge,
    era,
    instructions,
    tool,
    uri,
)

from mcp import Client, MCPError, StdioServerParameters, types

VERSIONS = {"legacy": "2025-11-25", "2026-07-28": "2026-07-28", "auto": "2026-07-28"}
FRONTS = ["http legacy", "http 2026-07-28", "http auto", "sse legacy", "stdio legacy", "stdio auto"]
SAME_ERA = {"legacy": LEGACY_LINKS, "2026-07-28": MODERN_LINKS, "auto": MODERN_LINKS}
SCHEMA = {"type": "object", "properties": {"colour": {"type": "string"}}}
BIG = 1208925819614629174706175
# The SDK warns of everything the next revision will remove; these tests are about that as well.
pytestmark = pytest.mark.filterwarnings("ignore::mcp.shared.exceptions.MCPDeprecationWarning")


@contextlib.asynccontextmanager
async def client(fleet: Fleet, front: str, **options: Any) -> AsyncIterator[Client]:
    pipe, mode = front.split()
    where: Any = f"{fleet.node.url}/mcp"
    if pipe == "sse":
        where = sse_client(f"{fleet.node.url}/sse")
    elif pipe == "stdio":
        command = bridge(fleet.node)
        where = stdio_client(StdioServerParameters(command=command[0], args=command[1:], env=dict(os.environ)))
    async with Client(where, mode=mode, **options) as opened:
        assert opened.protocol_version == VERSIONS[mode]
        yield opened


@pytest.mark.parametrize("front", FRONTS)
async def test_the_sdk_client_lists_and_uses_everything_of_every_server(fleet: Fleet, front: str) -> None:
    async with client(fleet, front) as opened:
        if front.split()[1] != "2026-07-28":  # in this mode the SDK asks for no greeting
            assert all(instructions(link) in (opened.instructions or "") for link in LINKS)
        tools = {one.name for one in (await opened.list_tools()).tools}
        prompts = {one.name for one in (await opened.list_prompts()).prompts}
        resources = {str(one.uri) for one in (await opened.list_resources()).resources}
        templates = {one.uri_template for one in (await opened.list_resource_templates()).resource_templates}
        for link in LINKS:
            assert {tool(link, "echo"), tool(link, "exact")} <= tools
            assert {tool(link, "greet"), tool(link, "plain")} <= prompts
            assert uri(link, "raw://text") in resources
            assert uri(link, "raw://item/{id}") in templates
            assert (await opened.call_tool(tool(link, "echo"), {"n": BIG})).structured_content == {"n": BIG}
            assert (await opened.call_tool(tool(link, "fail"), {})).is_error
            with pytest.raises(MCPError):
                await opened.call_tool(tool(link, "refuse"), {"code": -32000, "message": "no"})
            assert (await opened.get_prompt(tool(link, "greet"), {"who": "x"})).messages
            read = await opened.read_resource(uri(link, "raw://item/7"))
            assert read.contents[0].text == "text of raw://item/7"
            ref = types.PromptReference(type="ref/prompt", name=tool(link, "greet"))
            assert (await opened.complete(ref, {"name": "who", "value": "a"})).completion.values == ["a-one", "a-two"]


@pytest.mark.parametrize("front", FRONTS)
async def test_the_sdk_client_is_asked_and_its_answers_arrive(fleet: Fleet, front: str) -> None:
    async def elicit(context: Any, params: Any) -> types.ElicitResult:
        return types.ElicitResult(action="accept", content={"colour": params.message})

    async def sample(context: Any, params: Any) -> types.CreateMessageResult:
        said = types.TextContent(type="text", text=f"{params.max_tokens} tokens")
        return types.CreateMessageResult(role="assistant", content=said, model="m")

    async def roots(context: Any) -> types.ListRootsResult:
        return types.ListRootsResult(roots=[types.Root(uri="file:///srv/shop/north", name="north")])

    callbacks = {"elicitation_callback": elicit, "sampling_callback": sample, "list_roots_callback": roots}
    async with client(fleet, front, **callbacks) as opened:
        for link in SAME_ERA[front.split()[1]]:
            form = {"message": link, "mode": "form", "requestedSchema": SCHEMA}
            assert (await ask(opened, link, "elicitation/create", form))["content"] == {"colour": link}
            prompt = {"messages": [], "maxTokens": 7}
            assert (await ask(opened, link, "sampling/createMessage", prompt))["content"]["text"] == "7 tokens"
            told = "shop" if era(link) == "legacy" else "shop/north"  # a shared server is told the operator's
            (root,) = (await ask(opened, link, "roots/list", {}))["roots"]
            assert root["uri"] == f"file:///srv/{told}"


async def ask(opened: Client, link: str, method: str, params: dict[str, Any]) -> Any:
    said = (await opened.call_tool(tool(link, "ask"), {"method": method, "params": params})).structured_content
    assert said is not None
    return said["answers"][0] if "answers" in said else said["inputResponses"]["one"]


@pytest.mark.parametrize("front", FRONTS)
async def test_the_sdk_client_receives_progress_and_logs(fleet: Fleet, front: str) -> None:
    steps: list[float] = []
    logged: list[Any] = []

    async def on_progress(progress: float, total: float | None, message: str | None) -> None:
        steps.append(progress)

    async def on_log(params: types.LoggingMessageNotificationParams) -> None:
        logged.append(params.data)

    mode = front.split()[1]
    level: dict[str, Any] = {} if mode == "legacy" else {"log_level": "info"}
    async with client(fleet, front, logging_callback=on_log, **level) as opened:
        if mode == "legacy":
            await opened.set_logging_level("info")
        for link in SAME_ERA[mode]:
            steps.clear()
            await opened.call_tool(tool(link, "progress"), {"steps": 3}, progress_callback=on_progress)
            await opened.call_tool(tool(link, "log"), {"level": "error", "data": link})
            await opened.call_tool(tool(link, "log"), {"level": "debug", "data": "too low"})
            assert steps == [1, 2, 3]
        async with asyncio.timeout(5):
            while len(logged) < len(SAME_ERA[mode]):
                await opened.call_tool(tool(LINKS[0], "echo"), {})
        assert logged == list(SAME_ERA[mode])


@pytest.mark.parametrize("front", ["http 2026-07-28", "stdio auto"])
async def test_the_sdk_client_listens_the_modern_way(fleet: Fleet, front: str) -> None:
    text = uri("new_stdio", "raw://text")
    async with (
        client(fleet, front) as opened,
        opened.listen(tools_list_changed=True, resource_subscriptions=[text]) as events,
        asyncio.timeout(10),
    ):
        await opened.call_tool(tool("new_stdio", "touch"), {"uri": "raw://text"})
        assert type(await anext(events)).__name__ == "ResourceUpdated"
        for _ in range(2):
            await opened.call_tool(tool("new_stdio", "change"), {"kind": "tools", "name": "sdk"})
            assert type(await anext(events)).__name__ == "ToolsListChanged"


@pytest.mark.parametrize("front", ["http legacy", "sse legacy", "stdio legacy"])
async def test_the_sdk_client_listens_the_legacy_way(fleet: Fleet, front: str) -> None:
    heard: asyncio.Queue[str] = asyncio.Queue()

    async def on_message(message: Any) -> None:
        heard.put_nowait(type(message).__name__)

    async with client(fleet, front, message_handler=on_message) as opened:
        await opened.subscribe_resource(uri("old_stdio", "raw://text"))
        async with asyncio.timeout(10):
            await opened.call_tool(tool("old_stdio", "touch"), {"uri": "raw://text"})
            assert await heard.get() == "ResourceUpdatedNotification"
            await opened.unsubscribe_resource(uri("old_stdio", "raw://text"))
            await opened.call_tool(tool("old_stdio", "touch"), {"uri": "raw://text"})
            for _ in range(2):
                await opened.call_tool(tool("old_stdio", "change"), {"kind": "tools", "name": "sdk"})
                assert await heard.get() == "ToolListChangedNotification"
            await opened.send_ping()


@pytest.mark.parametrize("front", FRONTS)
async def test_a_call_it_gives_up_is_cancelled_at_the_server(fleet: Fleet, front: str) -> None:
    link = SAME_ERA[front.split()[1]][0]
    async with client(fleet, front) as opened:
        before = await ids(opened, link, "cancelled")
        with pytest.raises(MCPError):
            await opened.call_tool(tool(link, "wait"), {}, read_timeout_seconds=0.2)
        async with asyncio.timeout(10):
            while await ids(opened, link, "cancelled") == before:
                pass


async def ids(opened: Client, link: str, which: str) -> list[Any]:
    content = (await opened.call_tool(tool(link, which), {})).structured_content
    assert content is not None
    return content["ids"]
