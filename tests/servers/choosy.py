"""A stdio MCP server that lists some of its tools only for clients that it may ask, and has prompts and resources."""

import json
import sys

TEXT = {"type": "object", "properties": {"text": {"type": "string"}}}
NEEDS = {"plain": None, "asking": "elicitation", "rooted": "roots", "tasked": "tasks"}
offered: set[str] = set()


def answer(method: str, params: dict) -> dict | None:
    if method == "initialize":
        offered.update(params.get("capabilities", {}))
        version = params["protocolVersion"]
        capabilities: dict = {"tools": {}, "prompts": {}, "resources": {}}
        return {"protocolVersion": version, "capabilities": capabilities, "serverInfo": {"name": "c", "version": "1"}}
    if method == "tools/list":
        names = [name for name, need in NEEDS.items() if need is None or need in offered]
        return {"tools": [{"name": n, "inputSchema": TEXT, "annotations": {"readOnlyHint": True}} for n in names]}
    if method == "prompts/list":
        return {"prompts": [{"name": name} for name in ("greet", "part")]}
    if method == "resources/list":
        return {"resources": [{"uri": f"demo://note/{n}", "name": n} for n in "abc"]}
    if method == "resources/templates/list":
        return {"resourceTemplates": [{"uriTemplate": "demo://page/{page}", "name": "page"}]}
    if method == "prompts/get":
        return {"messages": [{"role": "user", "content": {"type": "text", "text": params["name"]}}]}
    if method == "resources/read":
        return {"contents": [{"uri": params["uri"], "text": "here"}]}
    if method == "tools/call":
        return {"content": [{"type": "text", "text": "done"}]}
    return {} if method == "ping" else None


for line in sys.stdin:
    message = json.loads(line)
    if "id" not in message or "method" not in message:
        continue
    result = answer(message["method"], message.get("params", {}))
    body = {"error": {"code": -32601, "message": "no"}} if result is None else {"result": result}
    print(json.dumps({"jsonrpc": "2.0", "id": message["id"], **body}), flush=True)
