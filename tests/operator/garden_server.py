"""A server for the console's tests: tools of every class, one that takes its time, and content that wants to be markup.

python garden_server.py DIARY
"""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

SERVERS = Path(__file__).resolve().parents[1] / "servers"
if __name__ == "__main__":
    sys.path.insert(0, str(SERVERS))

MARKUP = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>"
BIDI = "\u202egnp.exe\u2066"
BIG_CHARS = 1_000_000
SCHEMA: dict[str, Any] = {
    "type": "object",
    "required": ["bed", "litres"],
    "properties": {
        "bed": {"type": "string", "enum": ["north", "south"], "description": "Which bed."},
        "litres": {"type": "integer", "minimum": 1, "maximum": 50, "description": "How much water."},
        "note": {"type": "string", "maxLength": 80},
        "at_once": {"type": "boolean"},
        "zones": {"type": "array", "items": {"type": ["string", "number"]}, "description": "Parts of the bed."},
        "valve": {"$ref": "#/$defs/valve"},
    },
    "$defs": {"valve": {"type": "object", "properties": {"id": {"type": "integer"}}}},
}
ASKED = {"type": "object", "properties": {"bed": SCHEMA["properties"]["bed"]}}
READS, CHANGES = {"readOnlyHint": True}, {"destructiveHint": True}


def command(diary: Path, *more: str) -> list[str]:
    return [sys.executable, str(Path(__file__).resolve()), str(diary), *more]


def members(annotations: dict[str, bool], **more: object) -> str:
    said = {"inputSchema": {"type": "object"}, "annotations": annotations} | more
    return json.dumps(said)[1:-1]


async def run(diary: Path, *, weeds: bool) -> None:
    from rawserver import stdio
    from rawserver.server import Exchange, Server
    from rawserver.text import string

    server = Server("modern")

    def text_result(text: str, **more: object) -> str:
        rest = "".join(f",{json.dumps(name)}:{json.dumps(value)}" for name, value in more.items())
        return f'{{"content":[{{"type":"text","text":{string(text)}}}]{rest}}}'

    async def water_beds(exchange: Exchange, arguments: str) -> str:
        with diary.open("a") as book:
            book.write(arguments + "\n")
        return text_result("watered", structuredContent={"watered": True, "raw": arguments})

    async def read_climate(exchange: Exchange, arguments: str) -> str:
        said = {"temperature": 21.5, "humidity": 64, "bed": json.loads(arguments).get("bed", "north")}
        return text_result(json.dumps(said), structuredContent=said)

    async def grow(exchange: Exchange, arguments: str) -> str:
        token = exchange.message.meta.get("progressToken")
        if token is not None:
            params = f'{{"progressToken":{token},"progress":1,"total":4,"message":"sowing"}}'
            await exchange.notify("notifications/progress", params)
        await asyncio.sleep(60)
        return text_result("grown")

    async def fail(exchange: Exchange, arguments: str) -> str:
        return text_result(f"the pump is dry {MARKUP}", isError=True)

    async def shout(exchange: Exchange, arguments: str) -> str:
        return text_result(MARKUP + BIDI + "x" * BIG_CHARS)

    odd = {"x-mcpax-capability": {"mutable": "perhaps"}}  # not listed, with its reason
    if weeds:
        server.tool("shout", shout, members(READS, title=MARKUP, description=f"{MARKUP} {BIDI} " + "long" * 2000))
        server.tool(f"{MARKUP} name", water_beds)
        server.tool(f"{MARKUP} odd", water_beds, members({}, _meta=odd))
    else:
        wet = members(CHANGES, inputSchema=SCHEMA, description="Water a bed. It is wet then.")
        server.tool("water_beds", water_beds, wet)
        climate = members(READS, inputSchema=ASKED, description="Read temperature and humidity of the garden.")
        server.tool("read_climate", read_climate, climate)
        server.tool("grow", grow, members(READS, description="Grow something, which takes a while."))
        server.tool("fail", fail, members(READS, description="A tool that fails."))
        server.tool("prune", water_beds)
        server.tool("spray", water_beds, members({}, _meta=odd))
    await stdio.serve(server)


if __name__ == "__main__":
    asyncio.run(run(Path(sys.argv[1]), weeds="weeds" in sys.argv))
