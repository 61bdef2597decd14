"""A subserver on stdio without any code of the product: python -m tests.ax.leaf SEGMENT [WHAT]"""

import json
import sys
import uuid

MODERN = "2026-07-28"


def main() -> None:
    segment, what = sys.argv[1], (sys.argv[2:] or [""])[0]
    register = {
        "subserver_id": str(uuid.uuid5(uuid.NAMESPACE_DNS, segment)),
        "segment": "elsewhere" if what == "elsewhere" else segment,
        "parent_id": None,
        "heartbeat_interval_ms": 0,
    }
    if what.startswith("dns:"):
        register["authority"] = what
    print("a child says something on stderr", file=sys.stderr, flush=True)
    _say({"jsonrpc": "2.0", "id": "r", "method": "mcpax/register", "params": register})
    tools = [{"name": "write", "inputSchema": {"type": "object"}, "annotations": {"readOnlyHint": False}}]
    for line in sys.stdin:
        message = json.loads(line)
        if "method" not in message or "id" not in message:
            continue
        method = message["method"]
        result = None
        if method == "server/discover":
            result = {"supportedVersions": [MODERN], "capabilities": {"tools": {}}, "ttlMs": 0, "cacheScope": "private"}
        elif method == "tools/list":
            result = {"tools": tools, "ttlMs": 60_000, "cacheScope": "private"}
        elif method == "tools/call":
            if message["params"].get("arguments", {}).get("die"):
                sys.exit(3)
            meta = message["params"]["_meta"]
            result = {"content": [{"type": "text", "text": json.dumps(meta.get("x-mcpax-route"))}]}
        if result is None:
            _say({"jsonrpc": "2.0", "id": message["id"], "error": {"code": -32601, "message": "Method not found"}})
        else:
            _say({"jsonrpc": "2.0", "id": message["id"], "result": {"resultType": "complete", **result}})


def _say(message: object) -> None:
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
