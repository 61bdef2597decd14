"""A legacy server over stdio whose list of tools has `pages` pages of one tool each, each page `pad` bytes long.

    python paging.py PAGES PAD [JUNK]

JUNK is how many items that are no tools stand on each page. The padding stands beside the tools, in a member nobody
asked for.
"""

import json
import sys
from pathlib import Path


def command(pages: int, pad: int, junk: int = 0) -> list[str]:
    return [sys.executable, str(Path(__file__).resolve()), str(pages), str(pad), str(junk)]


def result(method: str, params: dict[str, str], pages: int, pad: int, junk: int) -> dict[str, object] | None:
    if method == "initialize":
        info = {"name": "paging", "version": "1"}
        return {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": info}
    if method != "tools/list":
        return None
    number = int(params.get("cursor", "0"))
    more = {"nextCursor": str(number + 1)} if number + 1 < pages else {}
    tool = {"name": f"tool_{number}", "inputSchema": {"type": "object"}}
    return {"tools": [tool, *[7] * junk], "x-pad": "x" * pad, **more}


def main(*size: int) -> None:
    for line in sys.stdin:
        message = json.loads(line)
        if "id" not in message:
            continue
        told = result(message["method"], message.get("params", {}), *size)
        body = {"error": {"code": -32601, "message": "Method not found"}} if told is None else {"result": told}
        print(json.dumps({"jsonrpc": "2.0", "id": message["id"], **body}), flush=True)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
