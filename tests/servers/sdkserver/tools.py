"""The tools of the conformance fixture. A handler is named as its tool is.

Handlers are written for 2026-07-28: one that needs something of the client answers `input_required` and is called again
with the answers. `in_mid_call` does the same for a legacy client, with requests to it while its call is under way.
"""

import asyncio
import dataclasses
import hashlib
import hmac
import json
import secrets
from collections.abc import Awaitable, Callable
from typing import Any

from mcp.server.subscriptions import InMemorySubscriptionBus, PromptsListChanged, ResourceUpdated, ToolsListChanged
from mcp.shared.exceptions import MCPError
from mcp.shared.message import ServerMessageMetadata
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from mcp import types

from .schema import SCHEMA_2020_12

PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8DwHwAFBQIAX8jx0gAAAABJRU5ErkJggg=="
WAV = "UklGRiYAAABXQVZFZm10IBAAAAABAAEAQB8AAAB9AAACABAAZGF0YQIAAAA="
STATE_KEY = secrets.token_bytes(32)
STEP_SECONDS = 0.05  # the suite wants to see notifications apart from each other

Json = dict[str, Any]
Handler = Callable[[Any, Json], Awaitable[Json]]
TOOLS: dict[str, tuple[Json, Handler]] = {}
bus = InMemorySubscriptionBus()
changes = {"tools": 0, "prompts": 0}


def text(words: str) -> Json:
    return {"type": "text", "text": words}


def said(*content: Json) -> Json:
    return {"content": list(content)}


def embedded(uri: str, mime: str, words: str) -> Json:
    return {"type": "resource", "resource": {"uri": uri, "mimeType": mime, "text": words}}


def image() -> Json:
    return {"type": "image", "data": PNG, "mimeType": "image/png"}


def form(message: str, **properties: Json) -> Json:
    schema = {"type": "object", "properties": properties, "required": list(properties)}
    return {"method": "elicitation/create", "params": {"message": message, "requestedSchema": schema}}


def sample(words: str, max_tokens: int = 100) -> Json:
    messages = [{"role": "user", "content": text(words)}]
    return {"method": "sampling/createMessage", "params": {"messages": messages, "maxTokens": max_tokens}}


ROOTS: Json = {"method": "roots/list", "params": {}}


MODELS: dict[str, tuple[Any, Any]] = {
    "elicitation/create": (types.ElicitRequest, types.ElicitResult),
    "sampling/createMessage": (types.CreateMessageRequest, types.CreateMessageResult),
    "roots/list": (types.ListRootsRequest, types.ListRootsResult),
}


async def ask(ctx: Any, request: Json) -> Json:
    """Ask a legacy client, on the stream of the request being answered."""
    model, result = MODELS[request["method"]]
    metadata = ServerMessageMetadata(related_request_id=ctx.request_id)
    answer = await ctx.session.send_request(model.model_validate(request), result, metadata=metadata)
    return answer.model_dump(by_alias=True, mode="json", exclude_none=True)


async def in_mid_call(handler: Handler, ctx: Any, given: Any) -> Json:
    """The handler's result; whatever it needs of a legacy client is asked for meanwhile, all of a round at once."""
    if ctx.protocol_version in MODERN_PROTOCOL_VERSIONS:
        return await handler(ctx, given)
    refusals: list[BaseException] = []
    retry: Json = {"inputResponses": None, "requestState": None}
    while True:
        ctx = dataclasses.replace(ctx, params={**(ctx.params or {}), **retry})
        result = await handler(ctx, given)
        if result.get("resultType") != "input_required":
            return result
        if refusals:
            raise refusals[0]
        requests = result["inputRequests"]
        answers = await asyncio.gather(*(ask(ctx, one) for one in requests.values()), return_exceptions=True)
        refusals = [answer for answer in answers if isinstance(answer, BaseException)]
        given_by_key = zip(requests, answers, strict=True)
        retry = {
            "inputResponses": {key: answer for key, answer in given_by_key if not isinstance(answer, BaseException)},
            "requestState": result.get("requestState"),
        }


def tool(description: str, **schema: Any) -> Callable[[Handler], Handler]:
    def offer(handler: Handler) -> Handler:
        listed = {"name": handler.__name__, "description": description, "inputSchema": {"type": "object", **schema}}
        TOOLS[handler.__name__] = (listed, handler)
        return handler

    return offer


def string_argument(name: str, about: str, **more: Any) -> Json:
    return {"properties": {name: {"type": "string", "description": about, **more}}, "required": [name]}


@tool("Returns one text.")
async def test_simple_text(ctx: Any, given: Json) -> Json:
    return said(text("This is a simple text response for testing."))


@tool("Returns one image.")
async def test_image_content(ctx: Any, given: Json) -> Json:
    return said(image())


@tool("Returns one sound.")
async def test_audio_content(ctx: Any, given: Json) -> Json:
    return said({"type": "audio", "data": WAV, "mimeType": "audio/wav"})


@tool("Returns one embedded resource.")
async def test_embedded_resource(ctx: Any, given: Json) -> Json:
    return said(embedded("test://embedded-resource", "text/plain", "This is an embedded resource content."))


@tool("Returns content of several types.")
async def test_multiple_content_types(ctx: Any, given: Json) -> Json:
    inner = embedded("test://mixed-content-resource", "application/json", '{"test":"data","value":123}')
    return said(text("Multiple content types test:"), image(), inner)


@tool("Logs three messages.")
async def test_tool_with_logging(ctx: Any, given: Json) -> Json:
    for words in ("Tool execution started", "Tool processing data", "Tool execution completed"):
        await ctx.session.send_log_message("info", words, related_request_id=ctx.request_id)
        await asyncio.sleep(STEP_SECONDS)
    return said(text("Logged three messages."))


@tool("Reports progress three times.")
async def test_tool_with_progress(ctx: Any, given: Json) -> Json:
    for done in (0, 50, 100):
        await ctx.session.report_progress(done, 100, f"Completed step {done} of 100")
        await asyncio.sleep(STEP_SECONDS)
    return said(text("Reported progress."))


@tool("Always fails.")
async def test_error_handling(ctx: Any, given: Json) -> Json:
    return {**said(text("This tool intentionally returns an error for testing")), "isError": True}


@tool("Asks the client's model.", **string_argument("prompt", "What to ask."))
async def test_sampling(ctx: Any, given: Json) -> Json:
    answer = answer_to_one(ctx)
    if answer is None:
        return needs({"answer": sample(given["prompt"])}, "one")
    return said(text(f"LLM response: {answer['content'].get('text', '')}"))


@tool("Asks the user.", **string_argument("message", "What to ask."))
async def test_elicitation(ctx: Any, given: Json) -> Json:
    fields = {"username": "User's response", "email": "User's email address"}
    wanted = {name: {"type": "string", "description": about} for name, about in fields.items()}
    answer = answer_to_one(ctx)
    if answer is None:
        return needs({"answer": form(given["message"], **wanted)}, "one")
    return said(text(f"User response: {json.dumps(answer)}"))


def elicited(ctx: Any, request: Json) -> Json:
    del request["params"]["requestedSchema"]["required"]
    answer = answer_to_one(ctx)
    if answer is None:
        return needs({"answer": request}, "one")
    content = json.dumps(answer.get("content", {}))
    return said(text(f"Elicitation completed: action={answer['action']}, content={content}"))


@tool("Asks the user with defaults (SEP-1034).")
async def test_elicitation_sep1034_defaults(ctx: Any, given: Json) -> Json:
    fields: Json = {
        "name": {"type": "string", "default": "John Doe"},
        "age": {"type": "integer", "default": 30},
        "score": {"type": "number", "default": 95.5},
        "status": {"type": "string", "enum": ["active", "inactive", "pending"], "default": "active"},
        "verified": {"type": "boolean", "default": True},
    }
    return elicited(ctx, form("Please check these values.", **fields))


@tool("Asks the user to choose, in every form of enum (SEP-1330).")
async def test_elicitation_sep1330_enums(ctx: Any, given: Json) -> Json:
    plain = ["option1", "option2", "option3"]
    titled = [
        {"const": f"value{n}", "title": f"{word} Option"} for n, word in enumerate(("First", "Second", "Third"), 1)
    ]
    legacy = {"enum": ["opt1", "opt2", "opt3"], "enumNames": ["Option One", "Option Two", "Option Three"]}
    fields: Json = {
        "untitledSingle": {"type": "string", "enum": plain},
        "titledSingle": {"type": "string", "oneOf": titled},
        "legacyEnum": {"type": "string", **legacy},
        "untitledMulti": {"type": "array", "items": {"type": "string", "enum": plain}},
        "titledMulti": {"type": "array", "items": {"anyOf": titled}},
    }
    return elicited(ctx, form("Please choose.", **fields))


@tool("Closes its stream in mid-call; the answer waits for the client to come back (SEP-1699).")
async def test_reconnection(ctx: Any, given: Json) -> Json:
    if ctx.close_sse_stream is not None:
        await ctx.close_sse_stream()
        await asyncio.sleep(STEP_SECONDS * 2)
    return said(text("Reconnected."))


@tool("Mirrors an argument into a header.", **string_argument("region", "Where.", **{"x-mcp-header": "Region"}))
async def test_x_mcp_header(ctx: Any, given: Json) -> Json:
    return said(text(f"Region {given['region']}"))


@tool("Needs a client that can sample.")
async def test_missing_capability(ctx: Any, given: Json) -> Json:
    capabilities = ctx.session.client_capabilities
    if capabilities is None or capabilities.sampling is None:
        data = {"requiredCapabilities": {"sampling": {}}}
        raise MCPError(types.MISSING_REQUIRED_CLIENT_CAPABILITY, "This tool needs sampling", data)
    if "proof" not in responses(ctx):
        return needs({"proof": sample("Can you sample?")})
    return said(text("The client can sample."))


@tool("Reports progress, then needs input.")
async def test_streaming_elicitation(ctx: Any, given: Json) -> Json:
    await ctx.session.report_progress(1, 2, "Half-way")
    if "user_name" in responses(ctx):
        return said(text("Done."))
    return needs({"user_name": form("What is your name?", name={"type": "string"})})


@tool("Logs one message.")
async def test_logging_tool(ctx: Any, given: Json) -> Json:
    await ctx.session.send_log_message("info", "A log message", related_request_id=ctx.request_id)
    return said(text("Logged."))


@tool("Changes the list of tools.")
async def test_trigger_tool_change(ctx: Any, given: Json) -> Json:
    changes["tools"] += 1
    await bus.publish(ToolsListChanged())
    await ctx.session.send_tool_list_changed()
    return said(text("The list of tools changed."))


@tool("Changes the list of prompts.")
async def test_trigger_prompt_change(ctx: Any, given: Json) -> Json:
    changes["prompts"] += 1
    await bus.publish(PromptsListChanged())
    await ctx.session.send_prompt_list_changed()
    return said(text("The list of prompts changed."))


@tool("Updates the watched resource.")
async def test_trigger_resource_update(ctx: Any, given: Json) -> Json:
    await bus.publish(ResourceUpdated(uri="test://watched-resource"))
    await ctx.session.send_resource_updated("test://watched-resource")
    return said(text("The resource was updated."))


def responses(ctx: Any) -> Json:
    return (ctx.params or {}).get("inputResponses") or {}


def needs(requests: Json, state: str | None = None) -> Json:
    result: Json = {"resultType": "input_required", "inputRequests": requests}
    return result if state is None else {**result, "requestState": sealed(state)}


def sealed(state: str) -> str:
    return state + "." + hmac.new(STATE_KEY, state.encode(), hashlib.sha256).hexdigest()


def unsealed(ctx: Any) -> str | None:
    """The state of the round before; a state that this process did not seal is refused."""
    token = (ctx.params or {}).get("requestState")
    if token is None:
        return None
    state = str(token).rpartition(".")[0]
    if not hmac.compare_digest(sealed(state).encode(), str(token).encode()):
        raise MCPError(types.INVALID_PARAMS, "requestState does not verify")
    return state


def answer_to_one(ctx: Any) -> Json | None:
    """The answer to a single question, if it came back with the state that went out with the question."""
    return responses(ctx).get("answer") if unsealed(ctx) == "one" else None


def field_of(ctx: Any, key: str, field: str) -> Any:
    """A field of an accepted form, or None: then the form is asked for again."""
    answer = responses(ctx).get(key)
    content = answer.get("content") if isinstance(answer, dict) else None
    return content.get(field) if isinstance(content, dict) else None


@tool("Needs a name.")
async def test_input_required_result_elicitation(ctx: Any, given: Json) -> Json:
    name = field_of(ctx, "user_name", "name")
    if not isinstance(name, str):
        return needs({"user_name": form("What is your name?", name={"type": "string"})})
    return said(text(f"Hello, {name}!"))


@tool("Needs the client's model.")
async def test_input_required_result_sampling(ctx: Any, given: Json) -> Json:
    answer = responses(ctx).get("capital_question")
    if answer is None:
        return needs({"capital_question": sample("What is the capital of France?")})
    return said(text(str(answer.get("content", {}).get("text", ""))))


@tool("Needs the client's roots.")
async def test_input_required_result_list_roots(ctx: Any, given: Json) -> Json:
    answer = responses(ctx).get("client_roots")
    if answer is None:
        return needs({"client_roots": ROOTS})
    return said(text("Roots: " + ", ".join(str(root["uri"]) for root in answer["roots"])))


@tool("Needs a confirmation, and its own state back.")
async def test_input_required_result_request_state(ctx: Any, given: Json) -> Json:
    if unsealed(ctx) == "confirming" and field_of(ctx, "confirm", "ok") is not None:
        return said(text("state-ok"))
    return needs({"confirm": form("Please confirm", ok={"type": "boolean"})}, "confirming")


@tool("Needs three inputs at once.")
async def test_input_required_result_multiple_inputs(ctx: Any, given: Json) -> Json:
    wanted = {
        "user_name": form("What is your name?", name={"type": "string"}),
        "greeting": sample("Generate a greeting", 50),
        "client_roots": ROOTS,
    }
    if unsealed(ctx) == "three" and wanted.keys() <= responses(ctx).keys():
        return said(text("All three arrived."))
    return needs(wanted, "three")


@tool("Needs two inputs, one after the other.")
async def test_input_required_result_multi_round(ctx: Any, given: Json) -> Json:
    state = unsealed(ctx)
    if state == "two" and "step2" in responses(ctx):
        return said(text("Both steps are done."))
    if state == "one" and "step1" in responses(ctx):
        return needs({"step2": form("Step 2: What is your favorite color?", color={"type": "string"})}, "two")
    return needs({"step1": form("Step 1: What is your name?", name={"type": "string"})}, "one")


@tool("Refuses a state it did not make.")
async def test_input_required_result_tampered_state(ctx: Any, given: Json) -> Json:
    if unsealed(ctx) is None:
        return needs({"confirm": form("Please confirm", ok={"type": "boolean"})}, "intact")
    return said(text("The state is intact."))


@tool("Asks only for what the client can give.")
async def test_input_required_result_capabilities(ctx: Any, given: Json) -> Json:
    capabilities = ctx.session.client_capabilities
    wanted: Json = {}
    if capabilities is not None and capabilities.elicitation is not None:
        wanted["user_name"] = form("What is your name?", name={"type": "string"})
    if capabilities is not None and capabilities.sampling is not None:
        wanted["greeting"] = sample("Generate a greeting", 50)
    if not wanted or responses(ctx):
        return said(text("Nothing more to ask."))
    return needs(wanted)


async def nothing(ctx: Any, given: Json) -> Json:
    return said(text("Called."))


async def list_tools(ctx: Any, params: Any) -> Json:
    """Every tool in a fixed order; the last one is renamed whenever the list is told to change."""
    dynamic = {"name": f"test_dynamic_{changes['tools']}", "description": "Comes and goes."}
    return {"tools": [*(listed for listed, _ in TOOLS.values()), {**dynamic, "inputSchema": {"type": "object"}}]}


async def call_tool(ctx: Any, params: types.CallToolRequestParams) -> Json:
    if params.name == f"test_dynamic_{changes['tools']}":
        return await nothing(ctx, {})
    if params.name not in TOOLS:
        raise MCPError(types.INVALID_PARAMS, f"Unknown tool: {params.name}")
    return await in_mid_call(TOOLS[params.name][1], ctx, params.arguments or {})


TOOLS["json_schema_2020_12_tool"] = (
    {
        "name": "json_schema_2020_12_tool",
        "description": "Tool with JSON Schema 2020-12 features",
        "inputSchema": SCHEMA_2020_12,
    },
    nothing,
)
