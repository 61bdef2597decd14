"""A crowd of subservers: each dials /ax, registers, lists its tools, beats, and changes them or leaves when told.

    python -m bench.registrants < job.json

The job comes on the first line of stdin. Every further line is a command, answered by one line with the time at which
it was carried out, in seconds of the system's monotonic clock:

    gather         everybody registers; answered when every list has been asked for
    change NUMBER  one has a tool more, `sprung_NUMBER`, and says that its list changed
    leave          the same one deregisters
    return         ... and registers again
    part           everybody deregisters; answered when every connection is closed
"""

import asyncio
import sys
import time
import uuid
from typing import Any

import msgspec
import uvloop

from bench.crowd import each
from bench.processes import raise_descriptors
from interlock.ax.protocol.messages import SUBPROTOCOL
from interlock.net.message_pipe import MessagePipe
from interlock.net.websocket import dial

SEGMENT = "s{number:05}"
CHANGING = SEGMENT.format(number=0)  # the first in every list, so that it stands on the first page
INTERVAL_S = 5.0  # between the heartbeats that are due; sent twice as often, as subservers should
MAX_BYTES = 32 * 1024 * 1024
SCHEMA = {
    "type": "object",
    "properties": {
        "text": {"type": "string", "description": "What to say."},
        "count": {"type": "integer", "minimum": 1, "description": "How often."},
    },
    "required": ["text"],
}


class Job(msgspec.Struct):
    port: int
    token: str
    count: int
    tools: int  # of each
    at_once: int = 32  # registrations under way


class Message(msgspec.Struct):
    id: msgspec.Raw = msgspec.Raw(b"")
    method: str = ""
    result: msgspec.Raw = msgspec.Raw(b"")


class Granted(msgspec.Struct):
    session_id: str


decode_message = msgspec.json.Decoder(Message).decode
encode = msgspec.json.Encoder().encode


class Registrant:
    """Also the sink of its pipe."""

    def __init__(self, job: Job, number: int) -> None:
        self.job = job
        self.segment = SEGMENT.format(number=number)
        self.id = str(uuid.uuid4())
        self.names = [f"tool_{one:03}" for one in range(job.tools)]
        self.pipe: MessagePipe | None = None
        self.session = ""
        self.gone = asyncio.Event()
        self.gone.set()

    async def register(self) -> None:
        loop = asyncio.get_running_loop()
        self.granted, self.listed = loop.create_future(), loop.create_future()
        self.pipe = await dial(
            f"ws://127.0.0.1:{self.job.port}/ax",
            self,
            subprotocol=SUBPROTOCOL,
            headers={"Authorization": f"Bearer {self.job.token}"},
            max_bytes=MAX_BYTES,
            timeout_s=60,
        )
        self.gone.clear()
        params = {
            "subserver_id": self.id,
            "segment": self.segment,
            "parent_id": None,
            "capabilities": {"tools": True, "notifications": True},
            "heartbeat_interval_ms": int(INTERVAL_S * 1000),
        }
        self.say({"id": "register", "method": "mcpax/register", "params": params})
        self.session = await self.granted
        await self.listed

    def say(self, members: dict[str, Any]) -> None:
        if self.pipe is not None:
            self.pipe.send(encode({"jsonrpc": "2.0", **members}))

    def beat(self) -> None:
        self.say({"id": "beat", "method": "mcpax/heartbeat", "params": {"session_id": self.session}})

    def change(self, number: str) -> None:
        self.names = [*self.names[: self.job.tools], f"sprung_{number}"]
        self.say({"method": "notifications/tools/list_changed"})

    def leave(self) -> None:
        self.say({"id": "leave", "method": "mcpax/deregister", "params": {"session_id": self.session}})

    def on_closed(self, code: int, reason: str) -> None:
        self.pipe, self.session = None, ""
        self.gone.set()
        if not self.listed.done():
            self.listed.set_exception(ConnectionError(f"{self.segment}: {code} {reason}"))
            self.listed.exception()
        if not self.granted.done():
            self.granted.set_exception(ConnectionError(f"{self.segment}: {code} {reason}"))

    def on_message(self, data: bytes) -> None:
        message = decode_message(data)
        if message.method and message.id:
            result = self.answer(message.method)
            error = {"code": -32601, "message": "Method not found"}
            self.say({"id": message.id, **({"error": error} if result is None else {"result": result})})
            if message.method == "tools/list" and not self.listed.done():
                self.listed.set_result(None)
        elif message.id == msgspec.Raw(b'"register"') and not self.granted.done():
            if message.result:
                self.granted.set_result(msgspec.json.decode(message.result, type=Granted).session_id)
            else:
                self.granted.set_exception(ConnectionError(f"{self.segment}: {data[:300]!r}"))

    def answer(self, method: str) -> dict[str, Any] | None:
        hints = {"resultType": "complete", "ttlMs": 60_000, "cacheScope": "private"}
        if method == "server/discover":
            return {**hints, "supportedVersions": ["2026-07-28"], "capabilities": {"tools": {"listChanged": True}}}
        if method == "tools/list":
            reads = {"annotations": {"readOnlyHint": True}}
            tools = [
                {"name": name, "description": f"The tool {name} of {self.segment}.", "inputSchema": SCHEMA, **reads}
                for name in self.names
            ]
            return {**hints, "tools": tools}
        return None


async def beat_forever(everybody: list[Registrant]) -> None:
    """Each twice an interval, spread over it."""
    while True:
        for number, one in enumerate(everybody):
            if one.pipe is not None and one.session:
                one.beat()
            if number % 20 == 19:
                await asyncio.sleep(INTERVAL_S / 2 * 20 / len(everybody))
        await asyncio.sleep(0.01)


async def main(job: Job) -> None:
    raise_descriptors()
    loop = asyncio.get_running_loop()
    everybody = [Registrant(job, number) for number in range(job.count)]
    beating: asyncio.Task[None] | None = None
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        command, *more = line.split()
        if command == "gather":
            beating = loop.create_task(beat_forever(everybody))
            await each([one.register for one in everybody], job.at_once)
        elif command == "change":
            everybody[0].change(*more)
        elif command == "leave":
            everybody[0].leave()
        elif command == "return":
            await everybody[0].register()
        elif command == "part":
            if beating is not None:
                beating.cancel()
            for one in everybody:
                one.leave()
            await asyncio.gather(*(one.gone.wait() for one in everybody))
        print(time.monotonic(), flush=True)


if __name__ == "__main__":
    uvloop.run(main(msgspec.json.decode(sys.stdin.readline(), type=Job)))
