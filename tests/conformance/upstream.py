"""Interlock as the client that the suite's client mode tests.

The suite plays the server at a URL and starts a client (errand.py), which asks `hosting` to do its work. A node is
started in front of the suite, and an SDK client of the given era does through the node what the scenario asks of a
client. What comes back is looked at too: an assertion that fails here is a failure of the scenario.
"""

import asyncio
import contextlib
import json
import socketserver
import sys
import tempfile
import threading
import traceback
from collections.abc import Awaitable, Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from tests.conformance import agreeing
from tests.conformance.gateway import node

from mcp import Client, types

MODES = {"legacy": "legacy", "modern": "2026-07-28"}
SEGMENT = "harness"

Scenario = Callable[[Client], Awaitable[None]]


async def listing(client: Client) -> None:
    await client.list_tools()


async def tools_call(client: Client) -> None:
    assert await text(client, "add_numbers", {"a": 5, "b": 3}) == "The sum of 5 and 3 is 8"


async def elicitation_defaults(client: Client) -> None:
    said = await text(client, "test_client_elicitation_defaults")
    assert '"score":95.5' in said, said


async def sse_retry(client: Client) -> None:
    assert await text(client, "test_reconnection") == "Reconnection test completed successfully"


async def request_state(client: Client) -> None:
    """The unrelated tool is called while the first one waits for its answer."""
    echo = asyncio.ensure_future(text(client, "test_mrtr_echo_state"))
    assert await text(client, "test_mrtr_unrelated") == "unrelated-ok"
    assert await echo == "echo-state-ok"
    assert await text(client, "test_mrtr_no_state") == "no-state-ok"
    assert await text(client, "test_mrtr_no_result_type") == "no-result-type-test-ok"


async def standard_headers(client: Client) -> None:
    for tool in (await client.list_tools()).tools:
        assert await text(client, tool.name) == "Headers test completed"
    for resource in (await client.list_resources()).resources:
        await client.read_resource(resource.uri)
    for prompt in (await client.list_prompts()).prompts:
        await client.get_prompt(prompt.name)


async def custom_headers(client: Client) -> None:
    await client.list_tools()  # the SDK mirrors arguments of tools it has seen
    for call in json.loads(agreeing.TOLD.get()["MCP_CONFORMANCE_CONTEXT"])["toolCalls"]:
        assert await text(client, call["name"], call["arguments"]) == "Custom headers test completed"


async def invalid_tool_headers(client: Client) -> None:
    """Call whatever is listed; a tool with invalid marks must not be."""
    names = [tool.name for tool in (await client.list_tools()).tools]
    assert names == ["valid_tool"], names
    await client.call_tool("valid_tool", {"region": "us-west1"})


async def schema_preservation(client: Client) -> None:
    tools = {tool.name: tool for tool in (await client.list_tools()).tools}
    schema = tools["json_schema_2020_12_tool"].input_schema
    assert await text(client, "json_schema_echo", {"schema": schema}) == "echoed"


SCENARIOS: dict[str, Scenario] = {
    "initialize": listing,
    "tools_call": tools_call,
    "elicitation-sep1034-client-defaults": elicitation_defaults,
    "sse-retry": sse_retry,
    "request-metadata": listing,
    "sep-2322-client-request-state": request_state,
    "http-standard-headers": standard_headers,
    "http-custom-headers": custom_headers,
    "http-invalid-tool-headers": invalid_tool_headers,
    "json-schema-ref-no-deref": listing,
    "json-schema-2020-12-preservation": schema_preservation,
}


async def text(client: Client, name: str, arguments: dict[str, Any] | None = None) -> str:
    result = await client.call_tool(name, arguments or {})
    assert not result.is_error, result
    return str(result.content[0].text)


async def answer(context: Any, params: types.ElicitRequestParams) -> types.ElicitResult:
    """Every field with its default, and yes where there is none (SEP-1034)."""
    fields = params.requested_schema["properties"]
    return types.ElicitResult(
        action="accept", content={name: field.get("default", True) for name, field in fields.items()}
    )


async def drive(era: str, url: str, scenario: Scenario) -> None:
    async with Client(url, mode=MODES[era], elicitation_callback=answer) as client:
        await scenario(client)


def run(era: str, url: str, told: Mapping[str, str]) -> None:
    """`told`: the environment by which the suite says which scenario it is and more."""
    agreeing.TOLD.set(told)
    scenario = told["MCP_CONFORMANCE_SCENARIO"]
    if scenario.startswith(agreeing.PREFIX):
        agreeing.run(url, scenario, lambda url, scenario: asyncio.run(drive(era, url, scenario)))
        return
    with node({SEGMENT: url}) as running:
        modern = told["MCP_CONFORMANCE_PROTOCOL_VERSION"] == MODES["modern"]
        assert running.link(SEGMENT)["era"] == ("modern" if modern else "legacy")
        asyncio.run(drive(era, f"{running.url}/mcp/only/{SEGMENT}", SCENARIOS[scenario]))


class _Errands(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True


class _Errand(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        errand = json.loads(self.rfile.read())
        try:
            run(errand["era"], errand["url"], errand["told"])
        except BaseException:  # its process is told, and ends with it
            fault = traceback.format_exc().encode()
        else:
            fault = b"\0"
        with contextlib.suppress(OSError):
            self.wfile.write(fault)


@contextlib.contextmanager
def hosting(era: str) -> Iterator[list[str]]:
    """The command for the suite, whose scenarios run on threads of this process."""
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "errands.sock")
        with _Errands(path, _Errand) as server:
            thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
            thread.start()
            try:
                yield [sys.executable, "-S", str(Path(__file__).with_name("errand.py")), path, era]
            finally:
                server.shutdown()
                thread.join()
