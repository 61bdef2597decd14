"""Prompts, completions and the logging level of the conformance fixture."""

from typing import Any

from mcp.shared.exceptions import MCPError

from mcp import types

from .tools import Json, changes, embedded, field_of, form, image, in_mid_call, needs, text

ARGUMENTS = {
    "test_simple_prompt": [],
    "test_prompt_with_arguments": ["arg1", "arg2"],
    "test_prompt_with_embedded_resource": ["resourceUri"],
    "test_prompt_with_image": [],
    "test_input_required_result_prompt": [],
}


async def list_prompts(ctx: Any, params: Any) -> Any:
    """Every prompt; the last one is renamed whenever the list is told to change."""
    named = {**ARGUMENTS, f"test_dynamic_prompt_{changes['prompts']}": []}
    return {
        "prompts": [
            {
                "name": name,
                "description": f"The prompt {name}.",
                "arguments": [{"name": given, "description": given, "required": True} for given in arguments],
            }
            for name, arguments in named.items()
        ]
    }


def users(*content: Json) -> Json:
    return {"messages": [{"role": "user", "content": block} for block in content]}


async def get_prompt(ctx: Any, params: types.GetPromptRequestParams) -> Any:
    return await in_mid_call(prompt, ctx, params)


async def prompt(ctx: Any, params: types.GetPromptRequestParams) -> Json:
    given = params.arguments or {}
    missing = [name for name in ARGUMENTS.get(params.name, ()) if name not in given]
    if missing:
        raise MCPError(types.INVALID_PARAMS, f"Missing arguments: {', '.join(missing)}")
    match params.name:
        case "test_simple_prompt":
            return users(text("This is a simple prompt for testing."))
        case "test_prompt_with_arguments":
            return users(text(f"Prompt with arguments: arg1='{given['arg1']}', arg2='{given['arg2']}'"))
        case "test_prompt_with_embedded_resource":
            inner = embedded(given["resourceUri"], "text/plain", "Embedded resource content for testing.")
            return users(inner, text("Please process the embedded resource above."))
        case "test_prompt_with_image":
            return users(image(), text("Please analyze the image above."))
        case "test_input_required_result_prompt":
            context = field_of(ctx, "user_context", "context")
            if context is None:
                question = form("What context should the prompt use?", context={"type": "string"})
                return needs({"user_context": question})
            return users(text(f"The context is {context}."))
    raise MCPError(types.INVALID_PARAMS, f"Unknown prompt: {params.name}")


async def complete(ctx: Any, params: types.CompleteRequestParams) -> Any:
    words = ["paris", "park", "party"]
    found = [word for word in words if word.startswith(params.argument.value)]
    return {"completion": {"values": found, "total": len(found), "hasMore": False}}


async def set_level(ctx: Any, params: types.SetLevelRequestParams) -> Any:
    return {}
