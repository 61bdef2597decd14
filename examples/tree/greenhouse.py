"""A small MCP server on the standard library alone: a greenhouse with a window, a tank and a thermometer.

It shows what Interlock reads from a server: which tools only look, which can be undone, and which cannot.
"""

import json
import sys
import time

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


def send(message):
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


def text(words, **structured):
    return {"content": [{"type": "text", "text": words}], "structuredContent": structured or state}


def refuse(words):
    return {"content": [{"type": "text", "text": words}], "isError": True}


def call(name, arguments, token):
    if name == "read_climate":
        return text(f"{state['celsius']} C, window {state['window_percent']} %, tank {state['tank_litres']} l")
    if name == "set_window":
        state["window_percent"] = arguments["percent"]
        return text(f"The window is open {arguments['percent']} %.")
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
    return None


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
        return call(params.get("name"), params.get("arguments") or {}, (params.get("_meta") or {}).get("progressToken"))
    return {} if method == "ping" else None


for line in sys.stdin:
    request = json.loads(line)
    if "id" not in request:
        continue
    try:
        result = answer(request["method"], request.get("params") or {})
    except (KeyError, TypeError) as missing:
        result = refuse(f"bad arguments: {missing}")
    if result is None:
        send({"id": request["id"], "error": {"code": -32601, "message": "no such method or tool"}})
    else:
        send({"id": request["id"], "result": result})
