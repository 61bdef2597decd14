"""A server whose tools are what a file says, word for word, also twice: python listed_server.py FILE

Its list is read anew for each question; a call of `relist` says that it changed. Every other tool answers with its
own name.
"""

import json
import sys
from pathlib import Path
from typing import Any


def served(path: Path) -> dict[str, Any]:
    """Its table in the configuration."""
    return {"command": sys.executable, "args": [str(Path(__file__).resolve()), str(path)]}


def say(message: dict[str, Any]) -> None:
    print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)


def result(method: str, params: dict[str, Any], path: Path) -> dict[str, Any] | None:
    match method:
        case "initialize":
            capabilities = {"tools": {"listChanged": True}}
            server = {"name": "listed", "version": "1"}
            return {"protocolVersion": "2025-11-25", "capabilities": capabilities, "serverInfo": server}
        case "tools/list":
            return {"tools": json.loads(path.read_text())}
        case "tools/call":
            if params["name"] == "relist":
                say({"method": "notifications/tools/list_changed"})
            text = json.dumps({"did": params["name"]})
            return {"content": [{"type": "text", "text": text}], "structuredContent": json.loads(text)}
        case "ping":
            return {}
    return None


def main() -> None:
    for line in sys.stdin:
        asked = json.loads(line)
        if "id" not in asked:
            continue
        said = result(asked["method"], asked.get("params", {}), Path(sys.argv[1]))
        unknown = {"error": {"code": -32601, "message": "Method not found"}}
        say({"id": asked["id"], **({"result": said} if said is not None else unknown)})


if __name__ == "__main__":
    main()
