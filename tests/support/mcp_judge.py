"""Whether a message a client sees keeps to the MCP revision it negotiated (MCP-AX 3.2).

The judge is the JSON schema of that revision, read with a validator the product does not use. It also looks for MCP-AX
keys outside `_meta`.
"""

import functools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema

SCHEMAS = Path(__file__).resolve().parents[2] / "spec" / "mcp" / "schema"

RESULTS = {
    "initialize": "InitializeResult",
    "server/discover": "DiscoverResult",
    "ping": "EmptyResult",
    "tools/list": "ListToolsResult",
    "tools/call": "CallToolResult",
    "prompts/list": "ListPromptsResult",
    "prompts/get": "GetPromptResult",
    "resources/list": "ListResourcesResult",
    "resources/templates/list": "ListResourceTemplatesResult",
    "resources/read": "ReadResourceResult",
    "resources/subscribe": "EmptyResult",
    "resources/unsubscribe": "EmptyResult",
    "completion/complete": "CompleteResult",
    "logging/setLevel": "EmptyResult",
    "subscriptions/listen": "SubscriptionsListenResult",
    "tasks/get": "GetTaskResult",
    "tasks/result": "CallToolResult",
    "tasks/list": "ListTasksResult",
    "tasks/cancel": "CancelTaskResult",
}
NOTIFICATIONS = {
    "notifications/cancelled": "CancelledNotification",
    "notifications/progress": "ProgressNotification",
    "notifications/message": "LoggingMessageNotification",
    "notifications/tools/list_changed": "ToolListChangedNotification",
    "notifications/prompts/list_changed": "PromptListChangedNotification",
    "notifications/resources/list_changed": "ResourceListChangedNotification",
    "notifications/resources/updated": "ResourceUpdatedNotification",
    "notifications/subscriptions/acknowledged": "SubscriptionsAcknowledgedNotification",
    "notifications/elicitation/complete": "ElicitationCompleteNotification",
    "notifications/tasks/status": "TaskStatusNotification",
}
REQUESTS = {
    "sampling/createMessage": "CreateMessageRequest",
    "elicitation/create": "ElicitRequest",
    "roots/list": "ListRootsRequest",
    "ping": "PingRequest",
    "tasks/get": "GetTaskRequest",
    "tasks/result": "GetTaskPayloadRequest",
    "tasks/cancel": "CancelTaskRequest",
}
# The extension io.modelcontextprotocol/tasks of 2026-07-28, which the schema of that revision leaves out.
EXTENSION = "2026-07-28"
TASK = {
    "type": "object",
    "required": ["taskId", "status", "createdAt", "lastUpdatedAt", "ttlMs"],
    "properties": {
        "taskId": {"type": "string"},
        "status": {"enum": ["working", "input_required", "completed", "failed", "cancelled"]},
        "ttlMs": {"type": ["integer", "null"]},
        "pollIntervalMs": {"type": "integer"},
        "ttl": False,
        "pollInterval": False,
        "requestState": False,
    },
}
DETAIL = {
    **TASK,
    "oneOf": [
        {"properties": {"status": {"const": "input_required"}}, "required": ["inputRequests"]},
        {"properties": {"status": {"const": "completed"}}, "required": ["result"]},
        {"properties": {"status": {"const": "failed"}}, "required": ["error"]},
        {"properties": {"status": {"enum": ["working", "cancelled"]}}},
    ],
}
ACKNOWLEDGED = {"properties": {"resultType": {"const": "complete"}, "taskId": False}, "required": ["resultType"]}
OF_EXTENSION = {"tasks/get": DETAIL, "tasks/update": ACKNOWLEDGED, "tasks/cancel": ACKNOWLEDGED}


VENDOR = "codex/event"  # a notification of a vendor's own, which any client of a shared server may hear


def complaints(version: str, message: Any, method: str | None = None) -> list[str]:
    """Why `message` is not what a client of `version` may get; `method` is the request it answers."""
    found = [f"{path}: an MCP-AX key outside _meta" for path in _stray_keys(message, "$")]
    if not isinstance(message, dict):
        return [*found, "a message is an object"]
    kind = message.get("method")
    if kind is not None:
        table = REQUESTS if "id" in message else NOTIFICATIONS
        if version == EXTENSION and kind == "notifications/tasks":
            return found + _errors_in(DETAIL, message.get("params"))
        if kind == VENDOR and "id" not in message:
            return found
        if table.get(kind) not in _definitions(version):
            return [*found, f"{version} has no {kind} from a server"]
        return found + _errors(version, table[kind], message)
    if "error" in message:
        name = "JSONRPCErrorResponse" if "JSONRPCErrorResponse" in _definitions(version) else "JSONRPCError"
        return found + _errors(version, name, message)
    envelope = "JSONRPCResultResponse" if "JSONRPCResultResponse" in _definitions(version) else "JSONRPCResponse"
    found += _errors(version, envelope, message)
    result = message.get("result")
    if isinstance(result, dict) and result.get("resultType") == "input_required":
        return found + _errors(version, "InputRequiredResult", result)
    if version == EXTENSION and isinstance(result, dict) and result.get("resultType") == "task":
        return found + _errors_in(TASK, result)
    if version == EXTENSION and method in OF_EXTENSION:
        return found + _errors_in(OF_EXTENSION[method], result)
    if method == "tools/call" and isinstance(result, dict) and "task" in result:
        return found + _errors(version, "CreateTaskResult", result)
    return found + (_errors(version, RESULTS[method], result) if method is not None else [])


def _stray_keys(value: Any, path: str) -> Iterator[str]:
    if isinstance(value, dict):
        for key, inner in value.items():
            if key.lower().startswith("x-mcpax-"):
                yield f"{path}.{key}"
            if key != "_meta":
                yield from _stray_keys(inner, f"{path}.{key}")
    elif isinstance(value, list):
        for number, inner in enumerate(value):
            yield from _stray_keys(inner, f"{path}[{number}]")


def _errors_in(schema: dict[str, Any], value: Any) -> list[str]:
    judge = jsonschema.Draft202012Validator(schema)
    return [f"a task's {error.json_path}: {error.message[:300]}" for error in judge.iter_errors(value)]


def _errors(version: str, definition: str, value: Any) -> list[str]:
    return [f"{definition} {error.json_path}: {error.message[:300]}" for error in _judge(version, definition)(value)]


@functools.cache
def _schema(version: str) -> dict[str, Any]:
    return json.loads((SCHEMAS / f"{version}.json").read_text())


def _definitions(version: str) -> dict[str, Any]:
    schema = _schema(version)
    return schema.get("$defs") or schema["definitions"]


@functools.cache
def _judge(version: str, definition: str) -> Any:
    schema = _schema(version)
    key = "$defs" if "$defs" in schema else "definitions"
    root = {"$schema": schema["$schema"], "$ref": f"#/{key}/{definition}", key: schema[key]}
    return jsonschema.validators.validator_for(root)(root).iter_errors
