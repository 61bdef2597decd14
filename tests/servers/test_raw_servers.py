"""Are the raw fixtures what they say they are? Judged by the independent client of the `mcp` SDK and by their bytes."""

import asyncio
import json
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from mcp.client.sse import sse_client
from mcp.client.stdio import stdio_client
from tests.servers.rawserver import cases
from tests.servers.rawserver.text import reading_deeply
from tests.servers.start import raw, serving

from mcp import Client, MCPError, StdioServerParameters, types

MODES = {"legacy": "legacy", "modern": "2026-07-28"}


@contextmanager
def target(pipe: str, era: str, behaviour: str = "all", *options: str) -> Iterator[Any]:
    command = raw(behaviour, "--era", era, *options)
    if pipe == "stdio":
        yield stdio_client(StdioServerParameters(command=command[0], args=command[1:]))
    else:
        with serving(command) as url:
            yield url


@pytest.fixture(params=[(pipe, era) for pipe in ("stdio", "http") for era in MODES], ids=lambda p: f"{p[0]}-{p[1]}")
def cell(request: pytest.FixtureRequest) -> tuple[str, str]:
    return request.param


async def test_the_sdk_client_finds_the_era_and_every_list(cell: tuple[str, str]) -> None:
    with target(*cell) as server:
        async with Client(server, mode="auto") as client:
            assert client.protocol_version == {"legacy": "2025-11-25", "modern": "2026-07-28"}[cell[1]]
            assert {"echo", "ask", "wait", "seen"} <= {tool.name for tool in (await client.list_tools()).tools}
            assert [prompt.name for prompt in (await client.list_prompts()).prompts] == ["greet", "plain"]
            assert [str(item.uri) for item in (await client.list_resources()).resources] == ["raw://text", "raw://blob"]
            result = await client.call_tool("echo", {"n": 1208925819614629174706175})
            assert result.structured_content == {"n": 1208925819614629174706175}
            with pytest.raises(MCPError, match="Unknown tool: no_such_tool"):
                await client.call_tool("no_such_tool", {})


async def test_a_paged_list_is_complete_and_in_order(cell: tuple[str, str]) -> None:
    with target(*cell, "many-tools", "--count", "25", "--page", "10") as server:
        async with Client(server, mode="auto") as client:
            names, cursor = [], None
            while True:
                page = await client.list_tools(cursor=cursor)
                names += [tool.name for tool in page.tools]
                cursor = page.next_cursor
                if cursor is None:
                    break
            assert names == [f"tool_{number:05}" for number in range(25)]


async def test_asking_in_mid_call_returns_what_the_client_answered(cell: tuple[str, str]) -> None:
    async def answer(context: Any, params: types.ElicitRequestParams) -> types.ElicitResult:
        return types.ElicitResult(action="accept", content={"colour": "green"})

    schema = {"type": "object", "properties": {"colour": {"type": "string"}}}
    asked = {"method": "elicitation/create", "params": {"message": "which?", "mode": "form", "requestedSchema": schema}}
    with target(*cell) as server:
        async with Client(server, mode="auto", elicitation_callback=answer) as client:
            result = await client.call_tool("ask", asked)
            content = result.structured_content
            answers = content["answers"][0] if cell[1] == "legacy" else content["inputResponses"]["one"]
            assert answers["content"] == {"colour": "green"}


async def test_progress_and_logs_reach_the_client_before_the_answer(cell: tuple[str, str]) -> None:
    steps: list[float] = []
    logged: list[Any] = []

    async def on_progress(progress: float, total: float | None, message: str | None) -> None:
        steps.append(progress)

    async def on_log(params: types.LoggingMessageNotificationParams) -> None:
        logged.append(params.data)

    with target(*cell) as server:
        async with Client(server, mode="auto", logging_callback=on_log, log_level="info") as client:
            await client.call_tool("progress", {"steps": 3}, progress_callback=on_progress)
            await client.call_tool("log", {"level": "error", "data": {"why": "heat"}})
            assert steps == [1, 2, 3]
            assert logged == [{"why": "heat"}]


async def test_a_modern_subscription_gets_what_it_asked_for_and_a_graceful_end() -> None:
    with target("http", "modern") as server:
        async with Client(server, mode="auto") as client:
            async with client.listen(tools_list_changed=True, resource_subscriptions=["raw://text"]) as events:
                for tool, arguments in (
                    ("change", {"kind": "prompts"}),
                    ("touch", {"uri": "raw://blob"}),
                    ("change", {"kind": "tools", "name": "late"}),
                    ("touch", {"uri": "raw://text"}),
                    ("hang_up", {}),
                ):
                    await client.call_tool(tool, arguments)
                seen = [type(event).__name__ async for event in events]
            assert seen == ["ToolsListChanged", "ResourceUpdated"]
            assert "late" in {tool.name for tool in (await client.list_tools()).tools}


async def test_a_legacy_session_receives_changes_on_its_stream() -> None:
    heard: asyncio.Queue[str] = asyncio.Queue()

    async def on_message(message: Any) -> None:
        heard.put_nowait(type(message).__name__)

    with target("http", "legacy") as server:
        async with Client(server, mode="legacy", message_handler=on_message) as client:
            with pytest.warns(match="resources/subscribe is removed"):
                await client.subscribe_resource("raw://text")
            await client.call_tool("touch", {"uri": "raw://blob"})
            await client.call_tool("touch", {"uri": "raw://text"})
            await client.call_tool("change", {"kind": "tools"})
            async with asyncio.timeout(5):
                assert await heard.get() == "ResourceUpdatedNotification"
                assert await heard.get() == "ToolListChangedNotification"


async def test_a_cancelled_call_is_listed_by_its_id(cell: tuple[str, str]) -> None:
    with target(*cell) as server:
        async with Client(server, mode="auto") as client:
            with pytest.raises(MCPError, match="timed out"):
                await client.call_tool("wait", {}, read_timeout_seconds=0.2)
            async with asyncio.timeout(5):
                while not (await client.call_tool("cancelled", {})).structured_content["ids"]:
                    pass
            waiting = await client.call_tool("waiting", {})
            assert waiting.structured_content == {"ids": []}


async def test_the_old_sse_transport_serves_calls() -> None:
    with target("http", "legacy") as server:
        async with Client(sse_client(server.removesuffix("/mcp") + "/sse"), mode="legacy") as client:
            result = await client.call_tool("echo", {"a": 1})
            assert result.structured_content == {"a": 1}


def test_a_server_with_a_token_says_401_and_how_to_authenticate() -> None:
    with target("http", "legacy", "echo", "--token", "secret") as server:
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(urllib.request.Request(server, data=b"{}"))
        refused.value.close()
        assert refused.value.code == 401
        assert refused.value.headers["www-authenticate"].startswith("Bearer")


async def test_a_forgetful_server_answers_404_once_its_session_is_spent() -> None:
    with target("http", "legacy", "echo", "--forget-after", "1") as server:
        async with Client(server, mode="legacy") as client:
            await client.call_tool("echo", {})
            with pytest.raises(MCPError, match="Session"):
                await client.call_tool("echo", {})


async def test_an_argument_mirrored_into_a_header_is_compared_as_text() -> None:
    with target("http", "modern", "header-params") as server:
        async with Client(server, mode="auto") as client:
            await client.list_tools()
            result = await client.call_tool("regional", {"region": "zürich"})
            assert result.content[0].text == "zürich"


def test_a_header_that_contradicts_the_body_is_refused() -> None:
    meta = {"io.modelcontextprotocol/protocolVersion": "2026-07-28", "io.modelcontextprotocol/clientCapabilities": {}}
    call = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "echo", "_meta": meta}}
    headers = {"MCP-Protocol-Version": "2026-07-28", "Mcp-Method": "tools/call", "Mcp-Name": "other"}
    with target("http", "modern") as server:
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(urllib.request.Request(server, data=json.dumps(call).encode(), headers=headers))
        with refused.value as answer:
            assert (answer.code, json.load(answer)["error"]["code"]) == (400, -32020)


@pytest.mark.parametrize("case", cases.RESULTS)
@pytest.mark.parametrize("era", MODES)
def test_exact_answers_with_the_bytes_of_the_case(era: str, case: str) -> None:
    lines = speak(["echo", "--era", era], era, {"name": "exact", "arguments": {"case": case}})
    assert lines[-1] == f'{{"jsonrpc":"2.0","id":2,"result":{cases.result(case, era)}}}'.encode()
    with reading_deeply():
        json.loads(lines[-1])


def test_echo_returns_arguments_byte_for_byte() -> None:
    text = '{ "z":1.0,"a":99999999999999999999999999, "é":"\\u00e9\\/" ,"e":{}}'
    lines = speak(["echo", "--era", "legacy"], "legacy", '{"name":"echo","arguments":' + text + "}")
    assert lines[-1].endswith(b'"structuredContent":' + text.encode() + b"}}")


def test_twice_answers_twice_and_wrong_id_under_another_id() -> None:
    call = {"name": "echo", "arguments": {}}
    assert [json.loads(line)["id"] for line in speak(["twice"], "legacy", call)][-2:] == [2, 2]
    assert json.loads(speak(["wrong-id"], "legacy", call)[-1])["id"] == "somebody-else"


def test_a_request_and_its_cancellation_may_come_in_one_read() -> None:
    with talking("all", "--era", "legacy") as process:
        say(process, HELLO, call(2, "wait"), cancel(2), call(3, "cancelled"))
        answers = [json.loads(process.stdout.readline()) for _ in range(2)]
        assert answers[1]["result"]["structuredContent"] == {"ids": [2]}


def test_an_answer_to_a_cancelled_call_does_not_end_the_server() -> None:
    with talking("all", "--era", "legacy") as process:
        say(process, HELLO, call(2, "ask", {"method": "roots/list"}))
        _, asked = [json.loads(process.stdout.readline()) for _ in range(2)]
        say(process, cancel(2), {"jsonrpc": "2.0", "id": asked["id"], "result": {"roots": []}}, call(3, "cancelled"))
        assert json.loads(process.stdout.readline())["result"]["structuredContent"] == {"ids": [2]}


HELLO = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}},
}


def call(number: int, name: str, arguments: Any = None) -> dict[str, Any]:
    params = {"name": name, "arguments": arguments or {}}
    return {"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": params}


def cancel(number: int) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": number}}


@contextmanager
def talking(*behaviour: str) -> Iterator[Any]:
    with subprocess.Popen(raw(*behaviour), stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        try:
            yield process
        finally:
            process.stdin.close()


def say(process: Any, *messages: Any) -> None:
    """In one write."""
    process.stdin.write(b"".join(json.dumps(message).encode() + b"\n" for message in messages))
    process.stdin.flush()


def speak(behaviour: list[str], era: str, params: Any) -> list[bytes]:
    """Say hello and make one call over stdio, on the bare pipe; every line that came back."""
    meta = {"io.modelcontextprotocol/protocolVersion": "2026-07-28", "io.modelcontextprotocol/clientCapabilities": {}}
    first = {"jsonrpc": "2.0", "id": 1, "method": "server/discover", "params": {"_meta": meta}}
    if era == "legacy":
        hello = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
        first = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello}
    text = params if isinstance(params, str) else json.dumps({**params, **({"_meta": meta} if era == "modern" else {})})
    call = '{"jsonrpc":"2.0","id":2,"method":"tools/call","params":' + text + "}"
    with subprocess.Popen(raw(*behaviour), stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(json.dumps(first).encode() + b"\n")
        process.stdin.flush()
        lines = [process.stdout.readline()]
        process.stdin.write(call.encode() + b"\n")
        process.stdin.flush()
        lines.append(process.stdout.readline())
        process.stdin.close()
        return [line.rstrip(b"\n") for line in [*lines, *process.stdout.readlines()]]
