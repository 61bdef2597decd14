"""A client of mcp-x/v0 that behaves as the published one does.

What the published client does: it names no protocol in the address; takes nothing that does not say `mcp-x/v0`;
is connected when a `system` payload has `type: "welcome"`, and is then who `participant_id` says; ignores what `to`
addresses to others; chats by broadcasting a notification; matches answers by `correlation_id`; and sends requests
that are still open again under the same id when it has connected anew. It has no code of the product.
"""

import asyncio
import json
import random
import uuid
from typing import Any

from websockets.asyncio.client import ClientConnection, connect

V0 = "mcp-x/v0"


class PublishedClient:
    def __init__(self, gateway: str, topic: str, token: str) -> None:
        self._gateway, self._topic, self._token = gateway, topic, token
        self._socket: ClientConnection | None = None
        self._reading: asyncio.Task[None] | None = None
        self.participant_id: str | None = None
        self.peers: dict[str, Any] = {}
        self.pending: dict[str, tuple[dict[str, Any], asyncio.Future[Any]]] = {}
        self.chats: asyncio.Queue[tuple[str, str]] = asyncio.Queue()
        self.errors: list[str] = []
        self.calls: list[Any] = []

    async def connect(self) -> None:
        headers = {"Authorization": f"Bearer {self._token}"}
        url = f"{self._gateway}/v0/ws?topic={self._topic.replace(':', '%3A')}"
        self._socket = await connect(url, additional_headers=headers, compression=None)
        self._welcomed = asyncio.get_running_loop().create_future()
        self._reading = asyncio.create_task(self._read(self._socket))
        async with asyncio.timeout(10):
            await self._welcomed

    async def reconnect(self) -> None:
        await self.disconnect()
        await self.connect()
        for envelope, _ in self.pending.values():
            await self._send(envelope)

    async def disconnect(self) -> None:
        assert self._socket is not None and self._reading is not None
        await self._socket.close()
        await self._reading

    async def chat(self, text: str) -> None:
        payload = {"jsonrpc": "2.0", "method": "notifications/chat/message", "params": {"text": text}}
        await self._send(self._envelope(payload))

    async def request(self, to: str, method: str, params: Any = None) -> Any:
        payload = {"jsonrpc": "2.0", "id": random.randrange(1_000_000), "method": method, "params": params or {}}
        envelope = self._envelope(payload, to=[to])
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.pending[envelope["id"]] = envelope, answer
        await self._send(envelope)
        async with asyncio.timeout(10):
            return await answer

    async def notify(self, to: list[str], method: str) -> None:
        await self._send(self._envelope({"jsonrpc": "2.0", "method": method}, to=to))

    def _envelope(self, payload: Any, **more: Any) -> dict[str, Any]:
        head = {"protocol": V0, "id": str(uuid.uuid4()), "ts": "2025-08-18T10:00:00.000Z", "from": self.participant_id}
        return {**head, "kind": "mcp", "payload": payload, **more}

    async def _send(self, envelope: dict[str, Any]) -> None:
        assert self._socket is not None
        await self._socket.send(json.dumps(envelope))

    async def _read(self, socket: ClientConnection) -> None:
        async for text in socket:
            await self._handle(json.loads(text))

    async def _handle(self, envelope: dict[str, Any]) -> None:
        if envelope["protocol"] != V0:
            self.errors.append(f"Invalid protocol version: {envelope['protocol']}")
            return
        payload = envelope["payload"]
        if envelope["kind"] == "system" and payload.get("type") == "welcome":
            self.participant_id = payload["participant_id"]
            self.peers = {participant["id"]: participant for participant in payload["participants"]}
            assert isinstance(payload["history"], list)
            self._welcomed.set_result(None)
        elif envelope.get("to") and self.participant_id not in envelope["to"]:
            return
        elif envelope["kind"] == "system" and payload.get("type") == "error":
            self.errors.append(payload["message"])
        elif envelope["kind"] == "presence":
            self._meet(payload)
        elif envelope["kind"] == "mcp":
            await self._hear(envelope, payload)

    def _meet(self, payload: dict[str, Any]) -> None:
        if payload["event"] == "join":
            self.peers[payload["participant"]["id"]] = payload["participant"]
        elif payload["event"] == "leave":
            self.peers.pop(payload["participant"]["id"], None)

    async def _hear(self, envelope: dict[str, Any], payload: dict[str, Any]) -> None:
        if payload.get("method") == "notifications/chat/message":
            await self.chats.put((envelope["from"], payload["params"]["text"]))
        elif "method" in payload and "id" in payload and envelope.get("to"):
            await self._serve(envelope, payload)
        elif envelope.get("correlation_id") in self.pending:
            _, answer = self.pending.pop(envelope["correlation_id"])
            answer.set_result(payload.get("result", payload.get("error")))

    async def _serve(self, envelope: dict[str, Any], request: dict[str, Any]) -> None:
        """As the bridge of the same packages serves an MCP server."""
        results: dict[str, Any] = {
            "initialize": {
                "protocolVersion": "2025-06-18",
                "capabilities": {"tools": {}},
                "serverInfo": {"name": "v0"},
            },
            "tools/list": {"tools": [{"name": "turn", "inputSchema": {"type": "object"}}]},
            "tools/call": {"content": [{"type": "text", "text": "turned"}]},
        }
        self.calls.append(request["method"])
        answer = {"jsonrpc": "2.0", "id": request["id"], "result": results[request["method"]]}
        reply = self._envelope(answer, to=[envelope["from"]], correlation_id=envelope["id"])
        await self._send(reply)
