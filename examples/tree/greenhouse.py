"""A small MCP server on the standard library alone: a greenhouse with a window, a tank and a thermometer.

It shows what Interlock reads from a server: which tools only look, which can be undone, and which cannot.
"""

import json
import math
import sys
import time

PARSE_ERROR, INVALID_REQUEST, METHOD_NOT_FOUND, INVALID_PARAMS = -32700, -32600, -32601, -32602

state = {"celsius": 21.5, "window_percent": 0, "tank_litres": 40.0}


def schema(**properties):
    return {"type": "object", "properties": properties, "required": sorted(properties), "additionalProperties": False}


TOOLS = [
    {
        "name": "read_climate",
        "description": "Temperature, window and tank, as they are now.",
        "inputSchema": schema(),
        "annotations": {"readOnlyHint": True},
    },
    {
        "name": "set_window",
        "description": "Open or close the roof window.",
        "inputSchema": schema(percent={"type": "integer", "minimum": 0, "maximum": 100}),
        "annotations": {"destructiveHint": False, "idempotentHint": True},
    },
    {
        "name": "water_beds",
        "description": "Water the beds. What is poured out does not come back.",
        "inputSchema": schema(litres={"type": "number", "exclusiveMinimum": 0}),
        "annotations": {"destructiveHint": True},
    },
    {
        "name": "survey",
        "description": "Walk along all five beds; reports progress on the way.",
        "inputSchema": schema(),
        "annotations": {"readOnlyHint": True},
    },
]


class Refused(Exception):
    """A request that is answered with a JSON-RPC error."""

    def __init__(self, code, message):
        super().__init__(message)
        self.code = code


def send(message):
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


def text(words, **structured):
    return {"content": [{"type": "text", "text": words}], "structuredContent": structured or state}


def refuse(words):
    return {"content": [{"type": "text", "text": words}], "isError": True}


def faults(arguments, wanted):
    """What is wrong with the arguments of a call, in words that a model can act on."""
    known = wanted["properties"]
    yield from (f"{name} is missing" for name in wanted["required"] if name not in arguments)
    yield from (f"there is no argument {name}" for name in arguments if name not in known)
    for name, rule in known.items():
        if name not in arguments:
            continue
        value = arguments[name]
        is_number = isinstance(value, int | float) and not isinstance(value, bool) and -math.inf < value < math.inf
        if not is_number or (rule["type"] == "integer" and value != int(value)):
            yield f"{name} must be {'a whole number' if rule['type'] == 'integer' else 'a number'}"
        elif not rule.get("minimum", value) <= value <= rule.get("maximum", value):
            yield f"{name} must be from {rule['minimum']} to {rule['maximum']}"
        elif value <= rule.get("exclusiveMinimum", -math.inf):
            yield f"{name} must be more than {rule['exclusiveMinimum']}"


def call(name, arguments, token):
    tool = next((tool for tool in TOOLS if tool["name"] == name), None)
    if tool is None:
        raise Refused(INVALID_PARAMS, f"Unknown tool: {name}")
    if not isinstance(arguments, dict):
        raise Refused(INVALID_PARAMS, "arguments must be an object")
    # MCP: bad arguments are an error of the tool, which the model sees and can correct.
    if wrong := list(faults(arguments, tool["inputSchema"])):
        return refuse(f"{name}: {'; '.join(wrong)}.")
    if name == "set_window":
        state["window_percent"] = int(arguments["percent"])
        return text(f"The window is open {state['window_percent']} %.")
    if name == "water_beds":
        if arguments["litres"] > state["tank_litres"]:
            return refuse(f"The tank holds only {state['tank_litres']} l.")
        state["tank_litres"] -= arguments["litres"]
        return text(f"Watered; {state['tank_litres']} l are left.")
    if name == "survey":
        for bed in range(1, 6):
            time.sleep(0.1)
            if token is not None:
                params = {"progressToken": token, "progress": bed, "total": 5, "message": f"bed {bed} looks well"}
                send({"method": "notifications/progress", "params": params})
        return text("All five beds look well.", beds=5)
    return text(f"{state['celsius']} C, window {state['window_percent']} %, tank {state['tank_litres']} l")


def answer(method, params):
    if method == "initialize":
        return {
            "protocolVersion": "2025-11-25",
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "greenhouse", "version": "1.0"},
            "instructions": "Read the climate before you open the window or water the beds.",
        }
    if method == "tools/list":
        return {"tools": TOOLS}
    if method == "tools/call":
        meta = params.get("_meta")
        token = meta.get("progressToken") if isinstance(meta, dict) else None
        return call(params.get("name"), params.get("arguments", {}), token)
    if method == "ping":
        return {}
    raise Refused(METHOD_NOT_FOUND, "no such method")


def handle(line):
    try:
        request = json.loads(line)
    except ValueError:
        send({"id": None, "error": {"code": PARSE_ERROR, "message": "not JSON"}})
        return
    if not isinstance(request, dict) or not isinstance(request.get("method"), str):
        send({"id": None, "error": {"code": INVALID_REQUEST, "message": "not a request"}})
    elif "id" in request:
        try:
            params = request.get("params", {})
            if not isinstance(params, dict):
                raise Refused(INVALID_PARAMS, "params must be an object")
            send({"id": request["id"], "result": answer(request["method"], params)})
        except Refused as refused:
            send({"id": request["id"], "error": {"code": refused.code, "message": str(refused)}})


for line in sys.stdin:
    handle(line)
