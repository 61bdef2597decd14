"""The conformance fixture: every name the official suite asks a server for, on the `mcp` SDK, in either era.

    python everything.py --stdio
    python everything.py --http PORT [--era legacy|modern|both]      the first line on stdout is the URL

What the suite (`@modelcontextprotocol/conformance`) needs of it:
    tools-*, prompts-*, resources-*           the tools, prompts and resources below, by these very names
    completion-complete, logging-set-level    `complete`, `set_level`
    tools-call-sampling, -elicitation, elicitation-sep*   test_sampling, test_elicitation*
    server-sse-polling                        test_reconnection, and `sdkserver.events` to resume a stream from
    server-stateless                          test_missing_capability, test_streaming_elicitation, test_logging_tool,
                                              test_trigger_tool_change, test_trigger_prompt_change
    input-required-result-*                   test_input_required_result_*, one prompt of that name
    http-custom-header-server-validation      test_x_mcp_header
    dns-rebinding-protection, caching, http-header-validation, sep-2164-*   the SDK itself, and `read_resource`
    tasks-*                                   the tools of `sdkserver.tasks`, and the extension's methods (2026-07-28)
Not offered: the skills extension (reported by the suite, never scored).
Whatever asks the client does so in the way of the client's era, so that the cells across eras have something to bridge.

`--era legacy` answers 2026-07-28 requests as a server of the v1 SDK does, `--era modern` refuses `initialize`.
"""

import argparse
import asyncio
import socket
import warnings
from collections.abc import Awaitable, Callable
from typing import Any

import uvicorn
from mcp.server.lowlevel import NotificationOptions, Server
from mcp.server.subscriptions import ListenHandler
from mcp.shared.exceptions import MCPDeprecationWarning
from sdkserver import prompts, resources, tasks, tools
from sdkserver.eras import gate, serve_stdio
from sdkserver.events import Events

from mcp import types


class Fixture(Server[Any]):
    def create_initialization_options(self, *args: Any, **kwargs: Any) -> Any:
        """A legacy client is told of changes too; the SDK's default promises none."""
        return super().create_initialization_options(NotificationOptions(True, True, True))


def answering(model: type[Any], handler: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    """The handler's plain JSON as the SDK's value, which knows what each era adds to it."""

    async def handle(ctx: Any, params: Any) -> Any:
        result = await handler(ctx, params)
        if result.get("resultType") == "task":
            return result
        needs_input = result.get("resultType") == "input_required"
        return (types.InputRequiredResult if needs_input else model).model_validate(result)

    return handle


def build() -> Fixture:
    fixture = Fixture(
        "everything",
        version="1.0",
        instructions="A fixture: every tool does exactly what its name says.",
        on_list_tools=answering(types.ListToolsResult, tools.list_tools),
        on_call_tool=answering(types.CallToolResult, tools.call_tool),
        on_list_prompts=answering(types.ListPromptsResult, prompts.list_prompts),
        on_get_prompt=answering(types.GetPromptResult, prompts.get_prompt),
        on_completion=answering(types.CompleteResult, prompts.complete),
        on_list_resources=answering(types.ListResourcesResult, resources.list_resources),
        on_list_resource_templates=answering(types.ListResourceTemplatesResult, resources.list_templates),
        on_read_resource=answering(types.ReadResourceResult, resources.read_resource),
        on_subscribe_resource=answering(types.EmptyResult, resources.subscribe),
        on_unsubscribe_resource=answering(types.EmptyResult, resources.unsubscribe),
        on_set_logging_level=answering(types.EmptyResult, prompts.set_level),
        on_subscriptions_listen=ListenHandler(tools.bus),
    )
    fixture.extensions[tasks.EXTENSION] = {}
    for method, handler in tasks.METHODS.items():
        fixture.add_request_handler(method, tasks.TaskParams, handler)
    return fixture


async def serve_http(port: int, era: str) -> None:
    app = build().streamable_http_app(event_store=Events(), retry_interval=100)
    listener = socket.create_server(("127.0.0.1", port))
    print(f"http://127.0.0.1:{listener.getsockname()[1]}/mcp", flush=True)
    # h11, because httptools leaves the spaces after a header's value (RFC 9110 5.5: they are no part of it).
    config = uvicorn.Config(gate(app, era), http="h11", log_level="error", timeout_graceful_shutdown=1)
    await uvicorn.Server(config).serve(sockets=[listener])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    pipe = parser.add_mutually_exclusive_group(required=True)
    pipe.add_argument("--stdio", action="store_true")
    pipe.add_argument("--http", type=int, metavar="PORT", help="0: any free port")
    parser.add_argument("--era", choices=("legacy", "modern", "both"), default="both")
    options = parser.parse_args()
    warnings.simplefilter("ignore", MCPDeprecationWarning)
    asyncio.run(serve_stdio(build(), options.era) if options.stdio else serve_http(options.http, options.era))
