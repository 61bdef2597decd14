"""python -m bench.tokens.recorded_server FILE: an MCP server with recorded definitions and one answer for every call.

It refuses arguments that lack what the definition requires, as the servers do whose definitions these are.
"""

import json
import sys
from pathlib import Path
from typing import Any

ANSWER = "done: 3 items\n- first\n- second\n- third"


def main() -> None:
    with Path(sys.argv[1]).open() as file:
        tools = {one["name"]: one for one in json.load(file)}
    for line in sys.stdin:
        message = json.loads(line)
        if "id" not in message:
            continue
        answer = {"jsonrpc": "2.0", "id": message["id"], **_answer(message, tools)}
        print(json.dumps(answer), flush=True)


def _answer(message: dict[str, Any], tools: dict[str, dict[str, Any]]) -> dict[str, Any]:
    match message["method"]:
        case "initialize":
            version = message["params"]["protocolVersion"]
            info = {"name": "recorded", "version": "1"}
            return {"result": {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": info}}
        case "tools/list":
            return {"result": {"tools": list(tools.values())}}
        case "tools/call":
            given = message["params"].get("arguments") or {}
            schema = tools[message["params"]["name"]]["inputSchema"]
            missing = [name for name in schema.get("required", []) if name not in given]
            if missing:
                text = f"Invalid arguments: '{missing[0]}' is a required property"
                return {"result": {"content": [{"type": "text", "text": text}], "isError": True}}
            return {"result": {"content": [{"type": "text", "text": ANSWER}]}}
        case "ping":
            return {"result": {}}
    return {"error": {"code": -32601, "message": "Method not found"}}


if __name__ == "__main__":
    main()
