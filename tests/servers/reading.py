"""A file server that behaves as the reference one: it reads below the folders of its arguments, or below its roots.

    python reading.py FOLDER...

It asks for the roots once it is greeted and whenever its client says that they changed, and keeps those it is told.
Tools: `read` gives the text of a file, `folders` the folders it would read below. Nothing of the product is imported.
"""

import json
import os
import sys
from pathlib import Path
from urllib.parse import unquote, urlsplit

TOOLS = [
    {"name": name, "inputSchema": {"type": "object"}, "annotations": {"readOnlyHint": True}}
    for name in ("read", "folders")
]
folders = sys.argv[1:]
changes = 0


def say(**message: object) -> None:
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


def call(name: str, path: str) -> dict[str, object]:
    if name == "folders":
        return {"content": [], "structuredContent": {"folders": folders, "changes": changes}}
    real = os.path.realpath(path)
    if not any(real.startswith(folder.rstrip("/") + "/") for folder in folders):
        return {"content": [{"type": "text", "text": "access denied"}], "isError": True}
    return {"content": [{"type": "text", "text": Path(real).read_text()}]}


for line in sys.stdin:
    message = json.loads(line)
    match message.get("method"):
        case "initialize":
            result = {
                "protocolVersion": "2025-06-18",
                "capabilities": {"tools": {}},
                "serverInfo": {"name": "r", "version": "1"},
            }
            say(id=message["id"], result=result)
        case "notifications/initialized":
            say(id="roots", method="roots/list")
        case "notifications/roots/list_changed":
            changes += 1
            say(id="roots", method="roots/list")
        case "tools/list":
            say(id=message["id"], result={"tools": TOOLS})
        case "tools/call":
            params = message["params"]
            say(id=message["id"], result=call(params["name"], params.get("arguments", {}).get("path", "")))
        case None:
            told = message.get("result", {}).get("roots", [])
            if told:
                folders = [unquote(urlsplit(root["uri"]).path) for root in told]
        case _ if "id" in message:
            say(id=message["id"], error={"code": -32601, "message": "Method not found"})
