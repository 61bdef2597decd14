"""A participant on a bare WebSocket, with no code of the product: it sends what it is told and keeps what it hears."""

import asyncio
import contextlib
import http.client
import json
import uuid
from collections.abc import AsyncIterator
from typing import Any, Self

from tests.support.node_process import RunningNode
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

HEARS_S = 10.0


class Bare:
    secret = name = ""  # of one that `joined` let in

    def __init__(self, socket: ClientConnection, reads: str | None = "mcpx/v0.1") -> None:
        self.socket = socket
        # A participant that names no protocol and stays silent gets each envelope in both: it takes its own alone.
        self.reads = reads
        self.heard: list[dict[str, Any]] = []

    @classmethod
    async def join(cls, node: RunningNode, topic: str, token: str | None, **query: str) -> Self:
        text = "".join(f"&{name}={value}" for name, value in query.items())
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        url = f"ws://{node.host}:{node.port}/v0/ws?topic={topic}{text}"
        socket = await connect(url, additional_headers=headers, max_size=None, max_queue=None, compression=None)
        return cls(socket, query.get("protocol", "mcpx/v0.1"))

    async def next(self) -> dict[str, Any]:
        async with asyncio.timeout(HEARS_S):
            while True:
                body: dict[str, Any] = json.loads(await self.socket.recv())
                if self.reads in (None, body["protocol"]):
                    self.heard.append(body)
                    return body

    async def until(self, **wanted: Any) -> dict[str, Any]:
        """The next envelope with these members; `event` is looked for in the payload."""
        while True:
            envelope = await self.next()
            if all(
                (envelope["payload"].get("event") if name == "event" else envelope.get(name)) == value
                for name, value in wanted.items()
            ):
                return envelope

    async def until_either(self, id: str) -> dict[str, Any]:
        """The envelope of that id, or what is said of it."""
        while True:
            envelope = await self.next()
            if id in (envelope.get("id"), envelope.get("correlation_id")):
                return envelope

    async def send(self, kind: str, payload: Any, **members: Any) -> str:
        envelope = {"protocol": "mcpx/v0.1", "id": str(uuid.uuid4()), "kind": kind, "payload": payload} | members
        await self.socket.send(json.dumps({name: value for name, value in envelope.items() if value is not None}))
        return str(envelope["id"])

    async def say(self, text: str, **members: Any) -> str:
        return await self.send("chat", {"text": text}, **members)

    async def closed(self) -> int:
        """The code with which the gateway closed."""
        try:
            async with asyncio.timeout(HEARS_S):
                while True:
                    await self.socket.recv()
        except ConnectionClosed as over:
            return over.rcvd.code if over.rcvd is not None else 1006

    async def leave(self) -> None:
        await self.socket.close()


def token(node: RunningNode, participant: str, topic: str = "garden", privilege: str | None = "restricted") -> str:
    room = {"topic": topic, "participant": participant, "privilege": privilege}
    reply = node.admin("/admin/tokens", "POST", {"name": participant, "for": "room", "room": room})
    return str(reply["token"])


CALL = {"jsonrpc": "2.0", "id": 42, "method": "tools/call", "params": {"name": "dangerous_operation", "arguments": {}}}


@contextlib.asynccontextmanager
async def joined(node: RunningNode, *who: tuple[str, str], topic: str = "garden", **query: str) -> AsyncIterator[Any]:
    """Each participant of its own name, and past its welcome and the joins of those after it."""
    async with contextlib.AsyncExitStack() as stack:
        there = []
        for name, privilege in who:
            secret = token(node, name, topic, privilege)
            participant = await Bare.join(node, topic, secret, **query)
            participant.secret, participant.name = secret, name
            stack.push_async_callback(participant.leave)
            there.append(participant)
            assert (await participant.next())["payload"]["event"] == "welcome"
            for earlier in there[:-1]:
                await earlier.until(kind="presence", event="join")
        yield there


def names(*kinds: str) -> list[tuple[str, str]]:
    """Participants that no other test knows: the rest of the name is the privilege."""
    mark = uuid.uuid4().hex[:8]
    return [(f"{kind}-{mark}-{number}", kind) for number, kind in enumerate(kinds)]


def ask(node: RunningNode, path: str, bearer: str | None, method: str = "GET", body: Any = None) -> tuple[int, Any]:
    connection = http.client.HTTPConnection(node.host, node.port, timeout=10)
    headers = {"content-type": "application/json"} | ({} if bearer is None else {"authorization": f"Bearer {bearer}"})
    connection.request(method, path, None if body is None else json.dumps(body), headers)
    answer = connection.getresponse()
    current_body = json.loads(answer.read())
    connection.close()
    return answer.status, current_body
