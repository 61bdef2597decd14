"""Do the SDK's clients, of both its lines and in every mode, work with a tree of reference servers of both eras?"""

import json
import subprocess
from pathlib import Path

import pytest
from mcp import Client, MCPError
from tests.conformance import toolbox

pytestmark = pytest.mark.timeout(300)
Tree = tuple[str, Path]
SEGMENTS = {"memory", "files", "everything", "time", "git"}
VERSIONS = {"auto": "2026-07-28", "legacy": "2025-11-25", "2026-07-28": "2026-07-28"}


@pytest.mark.parametrize("mode", VERSIONS)
async def test_the_v2_client_lists_and_calls_across_eras(reference_tree: Tree, mode: str) -> None:
    base, folder = reference_tree
    async with Client(f"{base}/mcp", mode=mode) as client:
        assert client.protocol_version == VERSIONS[mode]
        names = [tool.name for tool in (await client.list_tools()).tools]
        assert {name.partition("__")[0] for name in names} == SEGMENTS
        assert names == [tool.name for tool in (await client.list_tools()).tools]
        read = await client.call_tool("files__read_text_file", {"path": str(folder / "hello.txt")})
        assert read.content[0].text == "Hello from a file."
        now = await client.call_tool("time__get_current_time", {"timezone": "UTC"})
        assert json.loads(now.content[0].text)["timezone"] == "UTC"
        status = await client.call_tool("git__git_status", {"repo_path": str(folder)})
        assert "hello.txt" in status.content[0].text


@pytest.mark.parametrize("mode", VERSIONS)
async def test_what_one_client_remembers_is_there_for_the_next(reference_tree: Tree, mode: str) -> None:
    base, _ = reference_tree
    name = f"entity of {mode}"
    async with Client(f"{base}/mcp", mode=mode) as client:
        entity = {"name": name, "entityType": "test", "observations": ["seen"]}
        await client.call_tool("memory__create_entities", {"entities": [entity]})
    async with Client(f"{base}/mcp", mode=mode) as client:
        found = await client.call_tool("memory__open_nodes", {"names": [name]})
        assert name in found.content[0].text


@pytest.mark.parametrize("mode", VERSIONS)
async def test_prompts_and_resources_of_a_legacy_server_are_reachable(reference_tree: Tree, mode: str) -> None:
    base, _ = reference_tree
    async with Client(f"{base}/mcp", mode=mode) as client:
        prompts = [prompt.name for prompt in (await client.list_prompts()).prompts]
        simple = next(name for name in prompts if name.startswith("everything__") and "simple" in name)
        assert (await client.get_prompt(simple)).messages
        resources = (await client.list_resources()).resources
        assert resources
        assert (await client.read_resource(str(resources[0].uri))).contents


@pytest.mark.parametrize("mode", VERSIONS)
async def test_an_unknown_tool_is_an_error_of_the_protocol(reference_tree: Tree, mode: str) -> None:
    async with Client(f"{reference_tree[0]}/mcp", mode=mode) as client:
        with pytest.raises(MCPError):
            await client.call_tool("memory__no_such_tool", {})


@pytest.mark.parametrize(("pipe", "path"), [("http", "/mcp"), ("sse", "/sse")])
def test_the_v1_client_lists_and_calls_across_eras(reference_tree: Tree, pipe: str, path: str) -> None:
    base, folder = reference_tree
    script = Path(__file__).parent / "v1_client.py"
    command = [str(toolbox.sdk_v1()), str(script), pipe, base + path, str(folder / "hello.txt")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout)
    assert {name.partition("__")[0] for name in found["tools"]} == SEGMENTS
    assert found["read"] == "Hello from a file."
    assert "UTC" in found["now"]
