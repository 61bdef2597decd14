"""Do the SDK's clients, of both its lines and in every mode, work with a tree of reference servers of both eras?"""

import asyncio
import contextlib
import json
import os
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from mcp.client.stdio import stdio_client
from tests.conformance import toolbox
from tests.conformance.tree import SEGMENTS, Tree

from mcp import Client, MCPError, StdioServerParameters, types

pytestmark = [
    pytest.mark.timeout(300),
    # The SDK warns of everything the next revision will remove; a legacy server's questions are among it.
    pytest.mark.filterwarnings("ignore::mcp.shared.exceptions.MCPDeprecationWarning"),
]
VERSIONS = {"legacy": "2025-11-25", "2026-07-28": "2026-07-28", "auto": "2026-07-28"}
FRONTS = ["http legacy", "http 2026-07-28", "http auto", "stdio legacy", "stdio auto"]
every_front = pytest.mark.parametrize("front", FRONTS)


@contextlib.asynccontextmanager
async def v2(tree: Tree, front: str, **options: Any) -> AsyncIterator[Client]:
    pipe, mode = front.split()
    where: Any = tree.url
    if pipe == "stdio":
        command, *arguments = tree.command
        where = stdio_client(StdioServerParameters(command=command, args=arguments, env=dict(os.environ)))
    async with Client(where, mode=mode, **options) as client:
        assert client.protocol_version == VERSIONS[mode]
        yield client


async def said(client: Client, name: str, arguments: dict[str, Any] | None = None, **options: Any) -> str:
    result = await client.call_tool(name, arguments or {}, **options)
    assert not result.is_error, result
    return " ".join(block.text for block in result.content if isinstance(block, types.TextContent))


@every_front
async def test_the_v2_client_lists_and_calls_across_eras(tree: Tree, front: str) -> None:
    async with v2(tree, front) as client:
        names = [tool.name for tool in (await client.list_tools()).tools]
        assert {name.partition("__")[0] for name in names} == SEGMENTS
        assert names == [tool.name for tool in (await client.list_tools()).tools]
        assert await said(client, "files__read_text_file", {"path": str(tree.folder / "hello.txt")}) == (
            "Hello from a file."
        )
        assert json.loads(await said(client, "time__get_current_time", {"timezone": "UTC"}))["timezone"] == "UTC"
        assert "hello.txt" in await said(client, "git__git_status", {"repo_path": str(tree.folder)})
        assert await said(client, "sqlite__list_tables") == "[]"


@every_front
async def test_what_one_client_stores_is_there_for_the_next_client(tree: Tree, front: str) -> None:
    name = f"entity of {front}"
    async with v2(tree, front) as client:
        entity = {"name": name, "entityType": "test", "observations": ["seen"]}
        await said(client, "memory__create_entities", {"entities": [entity]})
    async with v2(tree, front) as client:
        assert name in await said(client, "memory__open_nodes", {"names": [name]})


@every_front
async def test_prompts_resources_and_completions_of_a_legacy_server_are_reachable(tree: Tree, front: str) -> None:
    async with v2(tree, front) as client:
        prompts = [prompt.name for prompt in (await client.list_prompts()).prompts]
        simple = next(name for name in prompts if name.startswith("everything__") and "simple" in name)
        assert (await client.get_prompt(simple)).messages
        resources = (await client.list_resources()).resources
        assert resources
        assert (await client.read_resource(resources[0].uri)).contents
        asked = types.PromptReference(type="ref/prompt", name="everything__completable-prompt")
        found = await client.complete(asked, {"name": "department", "value": "E"})
        assert found.completion.values == ["Engineering"]


@every_front
async def test_links_in_a_result_can_be_followed(tree: Tree, front: str) -> None:
    async with v2(tree, front) as client:
        result = await client.call_tool("everything__get-resource-links", {"count": 2})
        links = [block for block in result.content if isinstance(block, types.ResourceLink)]
        assert len(links) == 2
        for link in links:
            assert (await client.read_resource(link.uri)).contents


@every_front
async def test_an_unknown_tool_is_an_error_of_the_protocol(tree: Tree, front: str) -> None:
    async with v2(tree, front) as client:
        with pytest.raises(MCPError):
            await client.call_tool("memory__no_such_tool", {})


@every_front
async def test_a_legacy_server_asks_and_the_answers_reach_it(tree: Tree, front: str) -> None:
    async def elicit(context: Any, params: types.ElicitRequestParams) -> types.ElicitResult:
        return types.ElicitResult(action="accept", content={"name": "Ada of the tests"})

    async def sample(context: Any, params: types.CreateMessageRequestParams) -> types.CreateMessageResult:
        text = types.TextContent(type="text", text=f"{params.max_tokens} tokens of wisdom")
        return types.CreateMessageResult(role="assistant", content=text, model="none")

    async with v2(tree, front, elicitation_callback=elicit, sampling_callback=sample) as client:
        assert "Ada of the tests" in await said(client, "everything__trigger-elicitation-request")
        asked = {"prompt": "Say something.", "maxTokens": 7}
        assert "7 tokens of wisdom" in await said(client, "everything__trigger-sampling-request", asked)


@every_front
async def test_progress_of_a_legacy_server_arrives(tree: Tree, front: str) -> None:
    heard: list[tuple[float, float | None]] = []

    async def progress(done: float, total: float | None, message: str | None) -> None:
        heard.append((done, total))

    async with v2(tree, front) as client:
        steps = {"duration": 0.3, "steps": 3}
        await said(client, "everything__trigger-long-running-operation", steps, progress_callback=progress)
    assert heard == [(1, 3), (2, 3), (3, 3)]


async def test_clients_of_both_eras_work_at_once(tree: Tree) -> None:
    """Each on its own way in, all of them calling servers of both eras, and each gets its own answers."""

    async def work(front: str) -> None:
        async with v2(tree, front) as client:
            for turn in range(5):
                message = f"{front} {turn}"
                echoed, now = await asyncio.gather(
                    said(client, "everything__echo", {"message": message}),
                    said(client, "time__get_current_time", {"timezone": "UTC"}),
                )
                assert echoed == f"Echo: {message}"
                assert json.loads(now)["timezone"] == "UTC"

    first_line = asyncio.to_thread(v1, tree, "http")
    await asyncio.gather(first_line, *(work(front) for front in FRONTS))


@pytest.mark.parametrize("pipe", ["http", "sse", "stdio"])
def test_the_v1_client_lists_calls_and_is_asked_across_eras(tree: Tree, pipe: str) -> None:
    found = v1(tree, pipe)
    assert found["version"] == "2025-11-25"
    assert {name.partition("__")[0] for name in found["tools"]} == SEGMENTS
    assert found["read"] == "Hello from a file."
    assert "UTC" in found["now"]
    assert "Ada of the tests" in found["asked"]


def v1(tree: Tree, pipe: str) -> dict[str, Any]:
    where = {"http": [tree.url], "sse": [tree.sse], "stdio": tree.command}[pipe]
    script = Path(__file__).parent / "v1_client.py"
    command = [str(toolbox.sdk_v1()), str(script), str(tree.folder / "hello.txt"), pipe, *where]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return dict(json.loads(done.stdout))
