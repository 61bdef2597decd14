"""A stdio MCP server that tells what it was told in its environment: to whoever calls, on stderr, in errors and logs.

python confiding.py [NAME ...]   the environment names whose values it gives away on stderr when it starts

Tools: `env` gives the value of the environment variable `name`, `fail` an error with it, `talk` a log message and a
line on stderr with it, and on stderr an answer that is none, `wait` answers when the file `until` exists and
makes one `until`.waits first, `leave` ends the process with code 42.
"""

import json
import os
import sys
import threading
import time
from pathlib import Path

INPUTS = {"type": "object", "properties": {"name": {"type": "string"}, "until": {"type": "string"}}}
NAMES = ("env", "fail", "talk", "wait", "leave")
TOOLS = [{"name": name, "inputSchema": INPUTS, "outputSchema": {"type": "object"}} for name in NAMES]
lock = threading.Lock()


def say(message):
    with lock:
        sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
        sys.stdout.flush()


def call(ident, name, arguments):
    value = os.environ.get(arguments.get("name", ""), "")
    if name == "leave":
        os._exit(42)
    if name == "fail":
        say({"id": ident, "error": {"code": -32603, "message": f"it does not work with {value}"}})
        return
    if name == "talk":
        print(f"talks of {value}", file=sys.stderr, flush=True)
        answer = {"jsonrpc": "2.0", "id": ident, "error": {"code": -32603, "message": "talked"}}
        print(json.dumps(answer), file=sys.stderr, flush=True)
        say({"method": "notifications/message", "params": {"level": "error", "data": f"talks of {value}"}})
    if name == "wait":
        Path(arguments["until"] + ".waits").touch()
    while name == "wait" and not Path(arguments["until"]).exists():
        time.sleep(0.01)
    content = [{"type": "text", "text": f"it is {value}"}]
    say({"id": ident, "result": {"content": content, "structuredContent": {"value": value, "pid": os.getpid()}}})


def main():
    for name in sys.argv[1:]:
        print(f"{name} is {os.environ.get(name)}", file=sys.stderr, flush=True)
    for line in sys.stdin:
        message = json.loads(line)
        ident, params = message.get("id"), message.get("params", {})
        match message.get("method"):
            case "initialize":
                capabilities = {"tools": {}, "logging": {}}
                info = {"name": "confiding", "version": "1"}
                version = params["protocolVersion"]
                say(
                    {
                        "id": ident,
                        "result": {"protocolVersion": version, "capabilities": capabilities, "serverInfo": info},
                    }
                )
            case "tools/list":
                say({"id": ident, "result": {"tools": TOOLS}})
            case "tools/call":
                given = (ident, params["name"], params.get("arguments", {}))
                threading.Thread(target=call, args=given, daemon=True).start()
            case "ping" | "logging/setLevel":
                say({"id": ident, "result": {}})
            case _ if ident is not None:
                say({"id": ident, "error": {"code": -32601, "message": "no such method"}})


main()
