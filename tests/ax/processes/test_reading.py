"""Resources and events of subservers, as clients of both eras see them (MCP-AX 3.1, 7.2, 12)."""

import asyncio
import json
from typing import Any

import pytest
from tests.ax.bare_subserver import MODERN, BareSubserver, bare_subserver, connect, tool
from tests.ax.blocking_client import ready
from tests.support.node_process import RunningNode, Wire


class Library(BareSubserver):
    """Also has resources and prompts."""

    async def _serve(self, request: dict[str, Any]) -> None:
        results = {
            "server/discover": {
                "supportedVersions": [MODERN],
                "capabilities": {"tools": {}, "resources": {}, "prompts": {}},
                "ttlMs": 0,
                "cacheScope": "private",
            },
            "resources/list": {"resources": [{"uri": "note://a", "name": "a"}], "ttlMs": 0, "cacheScope": "private"},
            "prompts/list": {"prompts": [{"name": "greet"}], "ttlMs": 0, "cacheScope": "private"},
            "resources/read": {
                "contents": [{"uri": "note://a", "text": "a note"}],
                "ttlMs": 0,
                "cacheScope": "private",
            },
            "prompts/get": {"messages": []},
        }
        result = results.get(request["method"])
        if result is None:
            await super()._serve(request)
        else:
            answer = {"jsonrpc": "2.0", "id": request["id"], "result": {"resultType": "complete", **result}}
            await self.send(answer)


async def test_resources_and_prompts_are_read_by_their_route(node: RunningNode) -> None:
    leaf = Library(await connect(node), "shelf", capabilities={"tools": True, "resources": True})
    await leaf.register()
    await ready(node, "shelf", resources=1, prompts=1)

    def ask() -> tuple[Any, Any]:
        with Wire(node) as wire:
            read = wire.modern("resources/read", {"uri": "mcpax://shelf/note://a"}).message
            got = wire.modern("prompts/get", {"name": "shelf__greet"}).message
            return read, got

    read, got = await asyncio.to_thread(ask)
    assert read["result"]["contents"][0]["text"] == "a note"
    assert got["result"]["messages"] == []
    sent = (await leaf.hear("resources/read"))["params"]
    assert sent["uri"] == "note://a"
    assert (sent["_meta"]["x-mcpax-route"], sent["_meta"]["x-mcpax-cursor"]) == (["shelf"], 0)
    assert (await leaf.hear("prompts/get"))["params"]["_meta"]["x-mcpax-route"] == ["shelf", "greet"]
    await leaf.stop()


@pytest.mark.parametrize("events", [True, False])
async def test_a_2026_client_receives_tree_events_if_it_asked_for_them(node: RunningNode, events: bool) -> None:
    segment = f"events-{str(events).lower()}"
    async with bare_subserver(node, segment, tools=[tool("read")]) as leaf:
        await ready(node, segment, tools=1)
        meta = {
            "io.modelcontextprotocol/protocolVersion": MODERN,
            "io.modelcontextprotocol/clientCapabilities": {},
            **({"x-mcpax-events": True} if events else {}),
        }
        wanted = {"notifications": {"toolsListChanged": True}, "_meta": meta}
        body = json.dumps({"jsonrpc": "2.0", "id": 9, "method": "subscriptions/listen", "params": wanted}).encode()
        reader, writer = await asyncio.open_connection(node.host, node.port)
        writer.write(
            f"POST /mcp HTTP/1.1\r\nhost: {node.host}:{node.port}\r\ncontent-type: application/json\r\n"
            f"accept: application/json, text/event-stream\r\nmcp-protocol-version: {MODERN}\r\n"
            f"mcp-method: subscriptions/listen\r\ncontent-length: {len(body)}\r\n\r\n".encode()
            + body
        )

        async def next_message() -> Any:
            while True:
                line = await asyncio.wait_for(reader.readline(), 10)
                if line.startswith(b"data: "):
                    return json.loads(line[6:])

        assert (await next_message())["method"] == "notifications/subscriptions/acknowledged"
        await leaf.notify("notifications/vendor/tick", {"n": 1, "_meta": {"x-mcpax-event-id": "e-1"}})
        await leaf.beat()
        leaf.tools = []
        await leaf.notify("notifications/tools/list_changed")
        heard = await next_message()
        if events:
            assert (heard["method"], heard["params"]["n"]) == ("notifications/vendor/tick", 1)
            assert heard["params"]["_meta"] == {
                "x-mcpax-event-id": "e-1",
                "x-mcpax-origin": segment,
                "io.modelcontextprotocol/subscriptionId": 9,
            }
        else:
            assert heard["method"] == "notifications/tools/list_changed"
        writer.close()
