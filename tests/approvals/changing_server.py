"""A server whose lists and instructions are those of a file, which a test writes again.

    python changing_server.py STATE [--era legacy|modern]

STATE is a JSON object: `tools`, `prompts`, `resources` and `templates` map names to further members of an item, and
`instructions` is read when the server starts. The tool `announce` says that a list changed.
"""

import argparse
import asyncio
import json
import sys
from argparse import Namespace
from pathlib import Path
from typing import Any

SERVERS = Path(__file__).resolve().parents[1] / "servers"
if __name__ == "__main__":
    sys.path.insert(0, str(SERVERS))

KINDS = {
    "tools": ("tools/list", "tools", "name"),
    "prompts": ("prompts/list", "prompts", "name"),
    "resources": ("resources/list", "resources", "uri"),
    "templates": ("resources/templates/list", "resourceTemplates", "uriTemplate"),
}
READ_ONLY = {"inputSchema": {"type": "object"}, "annotations": {"readOnlyHint": True}}


def command(state: Path, *options: str) -> list[str]:
    return [sys.executable, str(Path(__file__).resolve()), str(state), *options]


def build(options: Namespace):  # type: ignore[no-untyped-def]
    from rawserver.server import Exchange, Refusal, Server

    path = Path(options.state)

    def state() -> dict[str, Any]:
        return dict(json.loads(path.read_text()))

    server = Server(options.era, instructions=state().get("instructions"))
    for capability in ("tools", "prompts", "resources"):
        server.capabilities[capability] = '{"listChanged":true}'

    async def announce(exchange: Exchange, arguments: str) -> str:
        kind = json.loads(arguments)["kind"]
        await server.announce(f"{kind}ListChanged", f"notifications/{kind}/list_changed")
        return '{"content":[]}'

    async def called(exchange: Exchange, arguments: str) -> str:
        return '{"content":[{"type":"text","text":"called"}]}'

    async def get_prompt(exchange: Exchange) -> str:
        if exchange.param("name") not in state().get("prompts", {}):
            raise Refusal(-32602, "no such prompt")
        return '{"messages":[{"role":"user","content":{"type":"text","text":"as the server now says"}}]}'

    async def read(exchange: Exchange) -> str:
        return json.dumps({"contents": [{"uri": exchange.param("uri"), "text": "content"}]})

    def items(kind: str, key: str) -> list[str]:
        listed = [json.dumps({key: name, **members}) for name, members in state().get(kind, {}).items()]
        if kind != "tools":
            return listed
        for name in state().get("tools", {}):
            server.tools[name] = ("", called)
        return [json.dumps({"name": "announce", **READ_ONLY}), *listed]

    server.tool("announce", announce)
    for kind, (method, member, key) in KINDS.items():
        server.list_method(method, member, lambda kind=kind, key=key: items(kind, key))
    server.methods["prompts/get"] = get_prompt
    server.methods["resources/read"] = read
    return server


async def run(options: Namespace) -> None:
    from rawserver import stdio

    await stdio.serve(build(options))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("state")
    parser.add_argument("--era", choices=("legacy", "modern"), default="modern")
    asyncio.run(run(parser.parse_args()))
