"""The sample server of `interlock check aql`: a flat MCP server over stdio with one tool of each category.

It runs as a separate program, needs only the standard library, and changes nothing outside itself.
"""

import json
import sys
from typing import Any

TEXT = {"type": "string"}


def schema(*required: str, **properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(required), "additionalProperties": False}


def tool(name: str, description: str, *, reads: bool, destroys: bool, takes: dict[str, Any]) -> dict[str, Any]:
    hints = {"readOnlyHint": reads, "destructiveHint": destroys}
    return {"name": name, "description": description, "inputSchema": takes, "annotations": hints}


TOOLS = [
    tool("create_note", "Creates a note.", reads=False, destroys=False, takes=schema("title", title=TEXT, body=TEXT)),
    tool("get_note", "Reads a note.", reads=True, destroys=False, takes=schema("note_id", note_id=TEXT)),
    tool("get_count", "Counts the calls of the other tools.", reads=True, destroys=False, takes=schema()),
    tool(
        "update_note", "Changes a note.", reads=False, destroys=False, takes=schema("note_id", note_id=TEXT, title=TEXT)
    ),
    tool("delete_note", "Deletes a note.", reads=False, destroys=True, takes=schema("note_id", note_id=TEXT)),
    tool("run_report", "Runs a report.", reads=False, destroys=False, takes=schema("report", report=TEXT)),
]
called: list[str] = []
notes: dict[str, dict[str, Any]] = {"n1": {"id": "n1", "title": "A note", "body": "Its text", "tags": ["a", "b"]}}


def run(name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    if name == "create_note":
        created = {"id": f"n{len(notes) + 1}", **arguments}
        return notes.setdefault(created["id"], created)
    note = notes.get(arguments.get("note_id", "n1"), {})
    if name == "update_note":
        note.update({key: value for key, value in arguments.items() if key != "note_id"})
    return note


def result_of(method: str, params: dict[str, Any]) -> dict[str, Any] | None:
    if method == "initialize":
        return {
            "protocolVersion": "2025-11-25",
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "sample", "version": "1"},
        }
    if method == "tools/list":
        return {"tools": TOOLS}
    if method == "tools/call":
        if params["name"] == "get_count":
            result: dict[str, Any] = {"calls": len(called)}
        else:
            called.append(params["name"])
            result = run(params["name"], params.get("arguments") or {})
        return {"content": [{"type": "text", "text": json.dumps(result)}], "structuredContent": result}
    return {} if method == "ping" else None


def main() -> None:
    for line in sys.stdin:
        message = json.loads(line)
        if "id" not in message or "method" not in message:
            continue
        result = result_of(message["method"], message.get("params") or {})
        unknown = {"error": {"code": -32601, "message": "Method not found"}}
        answer = {"jsonrpc": "2.0", "id": message["id"], **({"result": result} if result is not None else unknown)}
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
